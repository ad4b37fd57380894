"""Which .tflite operators the GPU runs: the lowering functions by operator name, with their limits for the docs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from litegpu.model.types import TensorType

if TYPE_CHECKING:
    from litegpu.gpu.lower.context import OpContext

Types = frozenset[TensorType]

FLOAT: Types = frozenset({TensorType.FLOAT32})
BOOL: Types = frozenset({TensorType.BOOL})
INT32: Types = frozenset({TensorType.INT32})
NUMBER = FLOAT | INT32
ANY = NUMBER | BOOL
#: A bias: whole numbers beside quantized data and weights (INT64 constants count as INT32).
BIAS = NUMBER
#: An operand that must be constant (an axis, a shape); the lowering function reads it.
STATIC: Types = frozenset()

Lower = Callable[["OpContext"], None]


@dataclass(frozen=True)
class Entry:
    """One operator. `inputs` are the types that each input may have, the last for all further ones."""

    name: str
    lower: Lower
    max_version: int
    inputs: tuple[Types, ...]
    outputs: Types
    counts: tuple[int, int]  # fewest and most inputs
    ranks: tuple[int, int]  # of the data: the first input that is not STATIC
    notes: str
    custom: bool = False  # whether it is a custom operator, by its custom code
    quantized: bool = True  # whether a quantized tensor may stand where FLOAT32 may

    @property
    def family(self) -> str:
        """The module that lowers it."""
        return self.lower.__module__.rpartition(".")[2]

    @property
    def data(self) -> int:
        """Which input is the first that need not be constant."""
        return next(i for i, types in enumerate(self.inputs) if types is not STATIC)

    def types(self, i: int) -> Types:
        """The types that input i may have."""
        return self.inputs[min(i, len(self.inputs) - 1)]


REGISTRY: dict[str, Entry] = {}

#: More inputs than any model has.
MANY = 1 << 16
MAX_RANK = 4


def lowers(
    *names: str,
    max_version: int,
    inputs: Sequence[Types] = (FLOAT,),
    outputs: Types | None = None,
    counts: tuple[int, int] | int = 1,
    ranks: tuple[int, int] = (0, MAX_RANK),
    notes: str = "",
    custom: bool = False,
    quantized: bool = True,
) -> Callable[[Lower], Lower]:
    """Register a function as the lowering of the operators `names`.

    `max_version` is the highest version whose meaning the function knows. `outputs` defaults to the types of the first
    input. `counts`: how many inputs there are, exactly or (fewest, most). `ranks`: lowest and highest of the data.
    `notes` go into docs/ops.md. `custom`: the names are the custom codes of custom operators. `quantized`: FLOAT32 also
    stands for the numbers that quantized tensors stand for.
    """

    def register(function: Lower) -> Lower:
        for name in names:
            if name in REGISTRY:
                raise ValueError(f"{name} is registered twice")
            fewest, most = (counts, counts) if isinstance(counts, int) else counts
            types = inputs[0] if outputs is None else outputs
            REGISTRY[name] = Entry(
                name, function, max_version, tuple(inputs), types, (fewest, most), ranks, notes, custom, quantized
            )
        return function

    return register


def supported_ops() -> tuple[Entry, ...]:
    """Every operator that the GPU runs, by name."""
    return tuple(REGISTRY[name] for name in sorted(REGISTRY))
