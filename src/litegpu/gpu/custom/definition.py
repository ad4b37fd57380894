"""Ops defined by a function for one thread: how a kernel of one's own reads, computes and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.access import COMPUTE, Index, Operands, Position, Sink, Source, open_sink, open_source
from litegpu.gpu.kernels.context import Context, Launch
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Features, Kernel, KernelError, Value, trace, vec

Array = np.ndarray[Any, np.dtype[Any]]
Dim3 = tuple[int, int, int]


class Definition(Protocol):
    """What graph.Custom consists of."""

    @property
    def has_reference(self) -> bool:
        """Whether evaluate() can be called."""

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        """The result of B,H,W,C `shape` for inputs in B,H,W,C; of float32, int32 or bool."""

    def build(self, ctx: Context) -> list[Launch]:
        """The kernels of ctx.node."""


@dataclass(frozen=True, eq=False)
class Thread:
    """One thread of a kernel: it computes channels 4q to 4q+3 of the output's pixel (b, y, x).

    Tensors have B,H,W,C coordinates, lower ranks padded with 1 on the left. `inputs` are read with
    `inputs[i].quad(b, y, x, q)`, `inputs[i].at(b, y, x, c)` and `here(i)`; their values are float32, int32 or bool,
    however they are stored. Coordinates are u32 values of the kernel, or Python ints where they are known.
    `k` is the kernel being traced: arithmetic that is not an operator, control flow, variables (gpu/lang/kernel.py).
    """

    k: Kernel
    inputs: tuple[Source, ...]
    b: Index
    y: Index
    x: Index
    q: Index
    at: Position

    def here(self, i: int) -> Value:
        """Four channels of input i at this thread's own place, axes of size 1 broadcast as NumPy does."""
        return self.inputs[i].read(self.at)

    def shape(self, i: int) -> Shape:
        """B,H,W,C of input i."""
        return self.inputs[i].view.shape


@dataclass(frozen=True, eq=False)
class Group:
    """One thread of a workgroup whose work the kernel divides itself, by `k.group_id(axis)` and `k.local_id(axis)`.

    Inputs are as in Thread. Every quad of the output must be stored exactly once.
    """

    k: Kernel
    inputs: tuple[Source, ...]
    output_shape: Shape
    _sink: Sink

    def store(self, b: Index, y: Index, x: Index, q: Index, value: Value) -> None:
        """Channels 4q to 4q+3 of the output's pixel (b, y, x), inside the output; lanes past its last channel are
        ignored."""
        self._sink.store(b, y, x, q, value)

    def shape(self, i: int) -> Shape:
        """B,H,W,C of input i."""
        return self.inputs[i].view.shape


def per_thread(ctx: Context, name: str, dtype: DType, compute: Callable[[Thread], Value]) -> list[Launch]:
    """A launch with one thread for each quad of the output, which `compute` gives as four lanes of `dtype`."""

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        inputs = tuple(open_source(ctx, k, v, operands) for v in ctx.node.inputs)
        result = compute(Thread(k, inputs, at.b, at.y, at.x, at.q, at))
        sink.write(at, checked(result, dtype))

    return [per_quad(ctx, name, body)]


def per_group(
    ctx: Context, name: str, grid: Callable[[Shape, Features], tuple[Dim3, Dim3]], run: Callable[[Group], None]
) -> list[Launch]:
    """A launch of `grid(output shape, features)` = (threads of a workgroup, workgroups), each thread doing `run`."""
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        inputs = tuple(open_source(ctx, k, v, operands) for v in ctx.node.inputs)
        run(Group(k, inputs, ctx.output.shape, open_sink(ctx, k, operands)))

    workgroup, groups = grid(ctx.output.shape, ctx.features)
    return [Launch(trace(kernel, name, workgroup, groups), operands, name)]


def checked(result: object, dtype: DType) -> Value:
    """`result` if it is four lanes of what values of `dtype` are computed in; raises KernelError."""
    want = vec(COMPUTE[dtype], 4)
    if not isinstance(result, Value):
        raise KernelError(f"the kernel function gave {result!r}: it must return a value of type {want}")
    if result.type != want:
        raise KernelError(f"the kernel function gave {result.type}: the output needs {want}")
    return result
