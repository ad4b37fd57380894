"""Ops defined by a function for one thread: how a kernel of one's own reads, computes and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.access import COMPUTE, Index, Operands, Position, Sink, Source, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Features, Kernel, KernelError, TracedValue, trace, u32, vec

Array = np.ndarray[Any, np.dtype[Any]]
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Operand:
    """An input as kernels of the user's read it: coordinates that are known to lie outside are refused, as they would
    read another row, or another tensor. `own`: a thread's own coordinates, which go up to `limits`."""

    source: Source
    number: int
    own: tuple[Index, ...] = ()
    limits: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        """B,H,W,C."""
        return self.source.view.shape

    def quad(self, b: Index, y: Index, x: Index, q: Index) -> TracedValue:
        """Channels 4q to 4q+3; lanes past the last channel are zero (False)."""
        self._check((b, y, x, q), (*self.shape[:3], -(-self.shape[3] // 4)), "quad(b, y, x, q)")
        return self.source.quad(b, y, x, q)

    def at(self, b: Index, y: Index, x: Index, c: Index) -> TracedValue:
        """One element."""
        self._check((b, y, x, c), self.shape, "at(b, y, x, c)")
        return self.source.at(b, y, x, c)

    def here(self, at: Position) -> TracedValue:
        """Four channels at a position of the output, axes of size 1 broadcast."""
        fits = all(mine in (1, theirs) for mine, theirs in zip(self.shape, at.shape, strict=True))
        if not fits:
            raise KernelError(
                f"here({self.number}): input {self.number} is {list(self.shape)} (B, H, W, C) and the output "
                f"{list(at.shape)}; only axes of the same size, or of size 1, have an element at every place of the "
                f"output. Read it with inputs[{self.number}].quad(b, y, x, q) where it has any"
            )
        return self.source.read(at)

    def _check(self, coordinates: tuple[Index, ...], sizes: tuple[int, ...], what: str) -> None:
        for name, i, size in zip(what[what.index("(") + 1 : -1].split(", "), coordinates, sizes, strict=True):
            where = f"inputs[{self.number}].{what}: {name}"
            if isinstance(i, TracedValue):
                if i.type != u32:
                    raise KernelError(f"{where} is of type {i.type}: coordinates are u32; convert it with u32(...)")
                reach = next((n for mine, n in zip(self.own, self.limits, strict=True) if mine is i), 0)
                if reach > size:
                    raise KernelError(
                        f"{where} is the thread's own coordinate, which goes up to {reach - 1}, but input "
                        f"{self.number} is {list(self.shape)} (B, H, W, C): here({self.number}) broadcasts axes of "
                        "size 1"
                    )
            elif isinstance(i, bool) or not isinstance(i, (int, np.integer)):
                raise KernelError(f"{where} is {i!r}: a coordinate is a u32 value of the kernel or a Python int")
            elif not 0 <= i < size:
                raise KernelError(f"{where} is {i}, but input {self.number} is {list(self.shape)} (B, H, W, C)")


@dataclass(frozen=True, eq=False)
class Thread:
    """One thread of a kernel: it computes channels 4q to 4q+3 of the output's pixel (b, y, x).

    Tensors have B,H,W,C coordinates, lower ranks padded with 1 on the left. `inputs` are read with
    `inputs[i].quad(b, y, x, q)`, `inputs[i].at(b, y, x, c)` and `here(i)`; their values are float32, int32 or bool,
    however they are stored. Coordinates are u32 values of the kernel, or Python ints where they are known.
    `k` is the kernel being traced: arithmetic that is not an operator, control flow, variables (gpu/lang/kernel.py).
    """

    k: Kernel
    inputs: tuple[Operand, ...]  # None in place of an optional one that is absent
    b: Index
    y: Index
    x: Index
    q: Index
    at: Position

    def here(self, i: int) -> TracedValue:
        """Four channels of input i at this thread's own place, axes of size 1 broadcast as NumPy does. Raises
        KernelError for an input with other axes."""
        return _input(self.inputs, i).here(self.at)

    def shape(self, i: int) -> Shape:
        """B,H,W,C of input i."""
        return _input(self.inputs, i).shape


@dataclass(frozen=True, eq=False)
class Group:
    """One thread of a workgroup whose work the kernel divides itself, by `k.group_id(axis)` and `k.local_id(axis)`.

    Inputs are as in Thread. Every quad of the output must be stored exactly once.
    """

    k: Kernel
    inputs: tuple[Operand, ...]
    output_shape: Shape
    _sink: Sink
    _dtype: DType

    def store(self, b: Index, y: Index, x: Index, q: Index, value: TracedValue) -> None:
        """Channels 4q to 4q+3 of the output's pixel (b, y, x), inside the output; lanes past its last channel are
        ignored."""
        _check_place((b, y, x, q), self.output_shape)
        self._sink.store(b, y, x, q, checked(value, self._dtype))

    def shape(self, i: int) -> Shape:
        """B,H,W,C of input i."""
        return _input(self.inputs, i).shape


def per_thread(ctx: KernelContext, name: str, dtype: DType, compute: Callable[[Thread], TracedValue]) -> list[Launch]:
    """A launch with one thread for each quad of the output, which `compute` gives as four lanes of `dtype`."""

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        own = (at.b, at.y, at.x, at.q)
        limits = (*at.shape[:3], -(-at.shape[3] // 4))
        inputs = tuple(Operand(open_source(ctx, k, v, operands), i, own, limits) for i, v in enumerate(ctx.node.inputs))
        result = compute(Thread(k, inputs, at.b, at.y, at.x, at.q, at))
        sink.write(at, checked(result, dtype))

    return [per_quad(ctx, name, body)]


def per_group(
    ctx: KernelContext, name: str, grid: Callable[[Shape, Features], tuple[Dim3, Dim3]], run: Callable[[Group], None]
) -> list[Launch]:
    """A launch of `grid(output shape, features)` = (threads of a workgroup, workgroups), each thread doing `run`."""
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        inputs = tuple(Operand(open_source(ctx, k, v, operands), i) for i, v in enumerate(ctx.node.inputs))
        run(Group(k, inputs, ctx.output.shape, open_sink(ctx, k, operands), ctx.output.dtype))

    workgroup, groups = grid(ctx.output.shape, ctx.features)
    return [Launch(trace(kernel, name, workgroup, groups), operands, name)]


def checked(result: object, dtype: DType) -> TracedValue:
    """`result` if it is four lanes of what values of `dtype` are computed in; raises KernelError."""
    want = vec(COMPUTE[dtype], 4)
    if not isinstance(result, TracedValue):
        raise KernelError(f"the kernel function gave {result!r}: it must return a value of type {want}")
    if result.type != want:
        raise KernelError(f"the kernel function gave {result.type}: the output needs {want}")
    return result


def _input(inputs: Sequence[Operand], i: object) -> Operand:
    """Input i; raises KernelError if there is none."""
    if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < len(inputs):
        raise KernelError(f"there is no input {i!r}: the operator has {len(inputs)}, numbered from 0")
    found: Operand | None = inputs[i]
    if found is None:
        raise KernelError(f"input {i} is optional, and this operator has none: op.inputs[{i}] is None then")
    return found


def _check_place(coordinates: tuple[Index, ...], shape: Shape) -> None:
    """Raises KernelError for coordinates of a quad that are known to be outside of the output."""
    for name, i, size in zip("byxq", coordinates, (*shape[:3], -(-shape[3] // 4)), strict=True):
        if isinstance(i, TracedValue):
            if i.type != u32:
                raise KernelError(f"store(): {name} is of type {i.type}: coordinates are u32; convert it with u32(...)")
        elif isinstance(i, bool) or not isinstance(i, (int, np.integer)) or not 0 <= i < size:
            raise KernelError(f"store(): {name} is {i!r}, but the output is {list(shape)} (B, H, W, C)")
