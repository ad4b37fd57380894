"""One operator as its translation sees it, and the table of translations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np

from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

#: NHWC to MIL's order, and back.
CHANNELS_FIRST, CHANNELS_LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class Untranslated(Exception):
    """Why an operator is not Core ML's, as a sentence."""


class MilNode:
    """`values`: what was made of the tensors so far, MIL variables by the tensors' numbers. `mb`: MIL's builder."""

    def __init__(self, subgraph: Subgraph, operator: Operator, values: Mapping[int, Any], mb: Any) -> None:
        self.mb = mb
        self.name = operator.name
        self._subgraph, self._operator, self._values = subgraph, operator, values

    def option(self, name: str, default: Any = 0) -> Any:
        return self._operator.options.get(name, default)

    def require(self, condition: bool, reason: str) -> None:
        """Raises Untranslated with the reason unless the condition holds."""
        if not condition:
            raise Untranslated(f"{reason[:1].upper()}{reason[1:].rstrip('.')}.")

    def refuse(self, reason: str) -> NoReturn:
        self.require(False, reason)
        raise AssertionError

    def count(self) -> int:
        """How many inputs there are."""
        return len(self._operator.inputs)

    def has(self, i: int) -> bool:
        return i < len(self._operator.inputs) and self._operator.inputs[i] >= 0

    def shape(self, i: int) -> tuple[int, ...]:
        return self._input(i).shape

    def result(self, i: int = 0) -> tuple[int, ...]:
        """The shape of an output."""
        return self._subgraph.tensors[self._operator.outputs[i]].shape

    def results(self) -> int:
        return len(self._operator.outputs)

    def value(self, i: int) -> Any:
        """An input as something that MIL's operations take: a variable, or a float32 array."""
        tensor = self._input(i)
        data = constant_of(self._subgraph, tensor)
        return self._values[tensor.index] if data is None else data

    def is_constant(self, i: int) -> bool:
        return constant_of(self._subgraph, self._input(i)) is not None

    def constant(self, i: int, what: str) -> np.ndarray:
        """The numbers of an input that have to be in the file. Raises Untranslated if they are computed."""
        data = constant_of(self._subgraph, self._input(i))
        if data is None:
            self.refuse(f"Core ML needs constant {what}, and they are computed")
        return data

    def integers(self, i: int, what: str) -> list[int]:
        return [int(n) for n in self.constant(i, what).ravel()]

    def axes(self, i: int, rank: int) -> list[int]:
        """Axes, counted from the front."""
        return [a % rank for a in self.integers(i, "axes")]

    def channels_first(self, i: int) -> Any:
        """An image as MIL wants it. Of two such movements that meet, coremltools removes both."""
        return self.mb.transpose(x=self.value(i), perm=CHANNELS_FIRST)

    def channels_last(self, x: Any) -> Any:
        return self.mb.transpose(x=x, perm=CHANNELS_LAST)

    def _input(self, i: int) -> Tensor:
        return self._subgraph.tensors[self._operator.inputs[i]]


Translation = Callable[[MilNode], Any]  # gives a variable, or one for each output

TRANSLATIONS: dict[str, Translation] = {}


def translates(*names: str) -> Callable[[Translation], Translation]:
    """Registers what makes MIL's operations of operators."""

    def register(translation: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(names, translation))
        return translation

    return register


def activated(node: MilNode, x: Any) -> Any:
    """With the operator's fused activation. Raises Untranslated for one that the CPU's kernels know nothing of."""
    code = int(node.option("fused_activation_function"))
    if code == 0:
        return x
    if code == 1:
        return node.mb.relu(x=x)
    if code == 2:
        return node.mb.clip(x=x, alpha=np.float32(-1), beta=np.float32(1))
    if code == 3:
        return node.mb.relu6(x=x)
    return node.refuse(f"the fused activation {code} is not known")


def constant_of(subgraph: Subgraph, tensor: Tensor) -> np.ndarray | None:
    """A tensor's numbers, if they are in the file: floats of 16 bits are widened, also by a DEQUANTIZE before."""
    if tensor.data is None:
        source = _widened(subgraph).get(tensor.index)
        return None if source is None else constant_of(subgraph, source)
    if tensor.type is TensorType.FLOAT16:
        return tensor.data.astype(np.float32)
    return tensor.data


def _widened(subgraph: Subgraph) -> Mapping[int, Tensor]:
    """Tensors that are constants of 16 bits, widened, and those."""
    found = _WIDENED.get(subgraph)
    if found is None:
        found = _WIDENED[subgraph] = {
            o.outputs[0]: source
            for o in subgraph.operators
            if o.name == "DEQUANTIZE" and _is_half(source := subgraph.tensors[o.inputs[0]])
        }
    return found


def _is_half(tensor: Tensor) -> bool:
    return tensor.is_constant and tensor.type is TensorType.FLOAT16


_WIDENED: WeakKeyDictionary[Subgraph, Mapping[int, Tensor]] = WeakKeyDictionary()


def as_list(made: Any) -> Sequence[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]
