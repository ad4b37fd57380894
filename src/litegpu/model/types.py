"""A .tflite model as plain frozen data; constants are zero-copy views of the file's bytes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


class TensorType(enum.IntEnum):
    """Element types, numbered as in the schema."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    STRING = 5
    BOOL = 6
    INT16 = 7
    COMPLEX64 = 8
    INT8 = 9
    FLOAT64 = 10
    COMPLEX128 = 11
    UINT64 = 12
    RESOURCE = 13
    VARIANT = 14
    UINT32 = 15
    UINT16 = 16
    INT4 = 17
    BFLOAT16 = 18
    INT2 = 19
    UINT4 = 20

    @property
    def nbytes(self) -> int:
        """Bytes of an element in memory, where the runtimes unpack what files hold packed."""
        return _NBYTES.get(self.name, 1)


_NBYTES: Mapping[str, int] = {
    **dict.fromkeys(("FLOAT32", "INT32", "UINT32"), 4),
    **dict.fromkeys(("FLOAT16", "BFLOAT16", "INT16", "UINT16"), 2),
    **dict.fromkeys(("FLOAT64", "INT64", "UINT64", "COMPLEX64", "STRING"), 8),
    "COMPLEX128": 16,
}


@dataclass(frozen=True, eq=False)
class Quantization:
    """real = scale * (q - zero_point); one scale per tensor, or one per index of `dimension`.

    Blockwise quantization (block_size > 0) names tensors that hold the scales and zero points instead.
    """

    scales: np.ndarray  # float32, [] or [n]
    zero_points: np.ndarray  # int64, same length
    dimension: int = 0
    minimum: np.ndarray | None = None
    maximum: np.ndarray | None = None
    block_size: int = 0
    scales_tensor: int = -1
    zero_points_tensor: int = -1


@dataclass(frozen=True, eq=False)
class Sparsity:
    """The schema's sparse encoding of a constant."""

    traversal_order: tuple[int, ...]
    block_map: tuple[int, ...]
    dimensions: tuple[tuple[Any, ...], ...]  # ("dense", size) or ("csr", segments array, indices array)


@dataclass(frozen=True, eq=False)
class Tensor:
    """`shape` has 1 where the file says "unknown"; `shape_signature` has -1 there (equal to `shape` if it has none).

    `data` is a read-only view: typed and shaped for plain dense types; flat uint8 bytes for packed (4-bit), string and
    sparse constants; None for runtime tensors.
    """

    index: int
    name: str
    type: TensorType
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    buffer: int
    data: np.ndarray | None = None
    quantization: Quantization | None = None
    sparsity: Sparsity | None = None
    is_variable: bool = False
    has_rank: bool = True

    @property
    def is_constant(self) -> bool:
        return self.data is not None


@dataclass(frozen=True, eq=False)
class Operator:
    """`name` is the builtin's schema name ("CONV_2D"), or the custom code for custom ops (then `is_custom`).

    `options` holds the builtin options by schema name in snake_case (stride_h, fused_activation_function, ...) with the
    schema's defaults for absent fields (an op without an options table has an empty mapping). Enums are ints.
    Absent optional inputs are -1, and so are outputs that a custom operator goes without.
    """

    index: int
    name: str
    code: int
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    options_type: str = ""  # schema name of the options table, "" if none
    custom_options: bytes = b""
    intermediates: tuple[int, ...] = ()
    is_custom: bool = False
    subgraphs: tuple[int, ...] = ()  # subgraphs called (IF, WHILE, CALL_ONCE, STABLEHLO_COMPOSITE ...)
    body: str = ""  # what that subgraph does with two numbers, where it is known (model/bodies.py)


@dataclass(frozen=True, eq=False)
class Subgraph:
    """`is_called`: it is looked at as what an operator calls."""

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_called: bool = False


@dataclass(frozen=True)
class Signature:
    """A named entry point: argument name -> tensor index of its subgraph."""

    key: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Model:
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]
    description: str
    version: int
    metadata: Mapping[str, bytes]
    content: bytes | memoryview  # the whole file
    path: str | None = None
    entry: int = 0  # the subgraph that is run: another than the first where that is a signature's

    @property
    def main(self) -> Subgraph:
        """The subgraph that is run."""
        return self.subgraphs[self.entry]

    def with_main(self, main: Subgraph) -> Model:
        """The model with another subgraph in the place of that which is run."""
        return replace(self, subgraphs=(*self.subgraphs[: self.entry], main, *self.subgraphs[self.entry + 1 :]))
