"""Custom operators that a user registered: each output is one Custom node."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.blame import described
from litegpu.errors import InvokeError, LiteGpuError, OptionError
from litegpu.gpu.custom.definition import Array, Dim3, Group, Operand, Thread, per_group, per_thread
from litegpu.gpu.custom.operation import Operation, TensorInfo
from litegpu.gpu.custom.registration import Registration, as_outputs
from litegpu.gpu.graph import Custom, DType, Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Features, KernelError, TracedValue
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import Entry
from litegpu.model.ops import Gpu, Op
from litegpu.model.ops.record import ANY, MANY
from litegpu.model.types import Tensor

_NUMPY = {
    DType.FLOAT32: np.dtype(np.float32),
    DType.INT32: np.dtype(np.int32),
    DType.BOOL: np.dtype(np.bool_),
}


def custom_entry(registration: Registration) -> Entry:
    """How the registered operator is lowered."""
    lower = functools.partial(_lower, registration)
    gpu = Gpu(registration.max_version, inputs=(ANY,), counts=(0, MANY))
    return Entry(Op(registration.name, custom=True, gpu=gpu), gpu, lower)


@dataclass(frozen=True, eq=False)
class RegisteredKernel:
    """One output of a registered operator; satisfies custom.definition.Definition. `present` are the numbers of the
    operator's inputs that the node reads: all that are not absent."""

    registration: Registration
    op: Operation
    output: int
    dtype: DType
    present: tuple[int, ...]

    @property
    def has_reference(self) -> bool:
        return self.registration.reference is not None

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        assert self.registration.reference is not None
        arrays: list[Any] = self._all(inputs)
        arguments = [
            None if info is None else a.reshape(info.shape) for a, info in zip(arrays, self.op.inputs, strict=True)
        ]
        wanted = [(t.shape, t.dtype) for t in self.op.outputs]
        with _blaming(self.op, "reference", InvokeError):
            result = self.registration.reference(self.op, *arguments)
        outputs = as_outputs(self.op.name, result, wanted)
        return outputs[self.output].reshape(shape)

    def build(self, ctx: KernelContext) -> list[Launch]:
        name, grid = self.registration.kernel_name, self.registration.grid
        kernel: Any = self.registration.kernels[self.output]

        def of_thread(thread: Thread) -> TracedValue:
            with _blaming(self.op, "kernel", KernelError):
                result: TracedValue = kernel(self.op, dataclasses.replace(thread, inputs=self._operands(thread.inputs)))
            return result

        def of_group(group: Group) -> None:
            with _blaming(self.op, "kernel", KernelError):
                kernel(self.op, dataclasses.replace(group, inputs=self._operands(group.inputs)))

        def of_grid(shape: Shape, features: Features) -> tuple[Dim3, Dim3]:
            assert grid is not None
            with _blaming(self.op, "grid", KernelError):
                sizes: object = grid(self.op, shape, features)
            if not (isinstance(sizes, tuple) and len(sizes) == 2 and all(isinstance(s, tuple) for s in sizes)):
                raise KernelError(
                    f"grid of operator {self.op.index} {self.op.name} gave {sizes!r}: it must give two tuples of three "
                    "ints, the threads of a workgroup and the workgroups"
                )
            return sizes

        if grid is None:
            return per_thread(ctx, name, self.dtype, of_thread)
        return per_group(ctx, name, of_grid, of_group)

    def _operands(self, given: Sequence[Operand]) -> tuple[Operand, ...]:
        """`given`, under the numbers that the operator's inputs have."""
        return tuple(self._all([dataclasses.replace(o, number=i) for i, o in zip(self.present, given, strict=True)]))

    def _all(self, given: Sequence[Any]) -> list[Any]:
        """`given`, one for each input that is present, in the places of the operator's inputs; None elsewhere."""
        places: list[Any] = [None] * len(self.op.inputs)
        for i, one in zip(self.present, given, strict=True):
            places[i] = one
        return places


@contextlib.contextmanager
def _blaming(op: Operation, what: str, kind: type[LiteGpuError]) -> Iterator[None]:
    """Errors in a function of the user's name the operator, the function and the line."""
    try:
        yield
    except LiteGpuError:
        raise
    except Exception as error:
        raise kind(f"{what} of operator {op.index} {op.name}: {described(error)}") from error


def _lower(registration: Registration, ctx: OpContext) -> None:
    for tensor in (*(ctx.tensor(i) for i in range(len(ctx.operator.inputs)) if ctx.has(i)), *ctx.outputs):
        rank = len(tensor.shape)
        ctx.require(rank <= 4, f"tensor '{tensor.name}' has rank {rank}: kernels of the user's take ranks up to 4")
    op = Operation(
        name=registration.name,
        version=ctx.operator.version,
        options=ctx.operator.custom_options,
        inputs=tuple(_input(ctx, i) for i in range(len(ctx.operator.inputs))),
        outputs=tuple(_output(ctx, t) for t in ctx.outputs),
        index=ctx.operator.index,
    )
    if registration.check is not None and not ctx.lowering.in_numpy:
        with _blaming(op, "check", OptionError):
            reason = registration.check(op)
        if reason is not None and not isinstance(reason, str):
            raise OptionError(f"check of {op.name} gave {reason!r}: it must give None, or the reason for refusing")
        ctx.require(reason is None, reason or "")
    ctx.require(
        ctx.lowering.in_numpy or len(registration.kernels) == len(op.outputs),
        f"{len(op.outputs)} outputs, and {len(registration.kernels)} kernels were registered for it",
    )
    present = tuple(i for i, info in enumerate(op.inputs) if info is not None)
    values = [ctx.value(i) for i in present]
    for i, tensor in enumerate(ctx.outputs):
        output = ctx.output_value(tensor)
        kernel = RegisteredKernel(registration, op, i, ctx.builder.values[output].dtype, present)
        ctx.add(Custom(kernel), values, output)


def _input(ctx: OpContext, i: int) -> TensorInfo | None:
    if not ctx.has(i):
        return None
    data = ctx.array(i) if ctx.is_constant(i) else None
    return TensorInfo(ctx.tensor(i).name, ctx.shape(i), _NUMPY[ctx.dtype(i)], data)


def _output(ctx: OpContext, tensor: Tensor) -> TensorInfo:
    dtype = {"FLOAT32": DType.FLOAT32, "INT32": DType.INT32, "BOOL": DType.BOOL}.get(tensor.type.name, DType.FLOAT32)
    return TensorInfo(tensor.name, tuple(tensor.shape), _NUMPY[dtype])
