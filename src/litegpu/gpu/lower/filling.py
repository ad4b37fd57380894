"""Operators that make values of shapes and sizes: SHAPE, RANK, FILL, RANGE, diagonals of matrices."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import Arg, DType, Pad, Reshape, Slice, Step, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Array
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import move
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops.filling import steps
from litegpu.model.types import TensorType


@lowers("SHAPE")
def shape(ctx: OpContext) -> None:
    ctx.check_shape((len(ctx.shape(0)),))
    _known(ctx, np.array(ctx.shape(0), np.int32))


@lowers("RANK")
def rank(ctx: OpContext) -> None:
    ctx.check_shape(())
    _known(ctx, np.array(len(ctx.shape(0)), np.int32))


@lowers("FILL")
def fill(ctx: OpContext) -> None:
    ctx.require(math.prod(ctx.shape(1)) == 1, f"a value of shape {list(ctx.shape(1))}: it must be one")
    ctx.check_shape(ctx.integers(0, "the sizes"))
    ctx.elementwise(Arg(0), [ctx.value(1)], ctx.output_value())


@lowers("RANGE")
def range_(ctx: OpContext) -> None:
    start, limit, delta = (_number(ctx, i) for i in range(3))
    ctx.require(delta != 0, "its step is 0")
    count = steps(start, limit, delta)
    ctx.check_shape((count,))
    if ctx.dtype(0) is DType.INT32:
        _known(ctx, np.arange(count, dtype=np.int64) * int(delta) + int(start))
        return
    terms = np.full(count, delta, np.float32)
    terms[:1] = start
    _known(ctx, np.cumsum(terms, dtype=np.float32))  # the kernel adds step by step


def _number(ctx: OpContext, i: int) -> float:
    ctx.require(
        ctx.is_constant(i), f"input {i}, '{ctx.tensor(i).name}', is computed by the model: the result has no size"
    )
    data = ctx.lowering.constant_tensor(ctx.operator.inputs[i])
    assert data is not None and data.data is not None  # also while constants are not decoded
    ctx.require(data.data.size == 1, f"input {i} has shape {list(ctx.shape(i))}: it must be one number")
    return float(data.data.reshape(-1)[0])


def _known(ctx: OpContext, array: Array) -> None:
    low, high = -(2**31), 2**31
    ctx.require(array.dtype.kind == "f" or all(low <= n < high for n in array.reshape(-1)), "numbers of 64 bits")
    ctx.copy(ctx.builder.constant(array), [], ctx.output_value())


# ---------------------------------------------------------------------------------------------- diagonals


@lowers("MATRIX_DIAG")
def matrix_diag(ctx: OpContext) -> None:
    """Each element with as many zeros behind it as there are, in rows cut off at the right place."""
    x = ctx.shape(0)
    count, n = math.prod(x[:-1]), x[-1]
    ctx.require(ctx.tensor(0).type is not TensorType.BOOL, "BOOL is not taken")
    cut = Slice((0, 0), (1, 1), (count, n * n))
    move(
        ctx,
        [
            Reshape(x, (count, n, 1)), Pad((0, 0, 0), (0, 0, n)), Reshape((count, n, n + 1), (count, n * (n + 1))), cut,
            Reshape((count, n * n), (*x, n)),
        ],
    )  # fmt: skip


@lowers("MATRIX_SET_DIAG")
def matrix_set_diag(ctx: OpContext) -> None:
    x, diagonal = ctx.shape(0), ctx.shape(1)
    ctx.check_shape(x)
    ctx.require(
        len(x) >= 2 and diagonal == (*x[:-2], min(x[-2:])), f"a diagonal of shape {list(diagonal)} for {list(x)}"
    )
    ctx.require(ctx.dtype(0) is ctx.dtype(1), "inputs of different types are not taken together")
    count, (rows, columns) = math.prod(x[:-2]), x[-2:]
    spread: list[Step] = [
        Reshape(bhwc(diagonal), (count, 1, diagonal[-1], 1)),
        Pad((0, 0, 0, 0), (0, 0, rows - diagonal[-1], 0)),
    ]
    given = ctx.copy(ctx.value(1), spread, ctx.intermediate((count, 1, rows, 1), ctx.dtype(1)))
    matrices = ctx.reshaped(ctx.value(0), (count, 1, rows, columns))
    places = [
        ctx.builder.constant(np.arange(n, dtype=np.int32).reshape(shape))
        for n, shape in ((rows, (1, 1, rows, 1)), (columns, (1, 1, 1, columns)))
    ]
    chosen = fn("select", fn("eq", Arg(2), Arg(3)), Arg(1), Arg(0))
    result = ctx.elementwise(
        chosen, [matrices, given, *places], ctx.intermediate((count, 1, rows, columns), ctx.dtype(0))
    )
    ctx.copy(ctx.reshaped(result, x), [], ctx.output_value())
