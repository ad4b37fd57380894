"""RFFT2D, and what makes real numbers of complex ones.

A complex tensor is a value with one more axis, of real and imaginary part. It stays within the GPU's part of a model.
"""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, MatMul, Pad, Reduce, Reshape, Slice, Step, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Array
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.registry import lowers, lowers_as

#: The transform is a product with a matrix of so many rows and columns at most.
LONGEST = 4096
#: Less than any sine or cosine in such a matrix that is not 0.
_NOTHING = 1e-12


@lowers("RFFT2D")
def rfft_2d(ctx: OpContext) -> None:
    """Along rows as a product from the right, whose columns are the real and imaginary parts in turn, then along
    columns as one from the left: (C - iS)(a + ib) is C(a, b) + S(b, -a). The runtime's imaginary parts that are nothing
    are -0, which ATAN2 tells from 0."""
    x, (height, width) = ctx.shape(0), ctx.integers(1, "the lengths")
    ctx.require(min(height, width) > 0 and max(height, width) <= LONGEST, f"lengths {height} and {width}")
    ctx.require(width > 1, "rows of one number, whose imaginary parts the CPU makes the negated real ones")
    ctx.check_shape((*x[:-2], height, width // 2 + 1))
    lead, parts = math.prod(x[:-2]), 2 * (width // 2 + 1)
    whole = (lead, 1, *x[-2:])
    ends = tuple(a - b for a, b in zip((lead, 1, height, width), whole, strict=True))
    steps: list[Step] = [Reshape(bhwc(x), whole), Pad((0, 0, 0, 0), ends)]
    source = ctx.copy(ctx.value(0), steps, ctx.intermediate((lead, 1, height, width), DType.FLOAT32))
    cosines, sines = _waves(width, width // 2 + 1)
    turned = [np.stack(pair, -1).reshape(width, parts) for pair in ((cosines, -sines), (-sines, -cosines))]
    rows = (lead, 1, height, parts)
    made = [
        ctx.add(Conv2D(), [source, _filters(ctx, matrix)], ctx.intermediate(rows, DType.FLOAT32))
        for matrix in (turned if height > 1 else turned[:1])
    ]
    result = made[0]
    if height > 1:
        stacked = ctx.add(Concat(2), made, ctx.intermediate((lead, 1, 2 * height, parts), DType.FLOAT32))
        matrix = np.concatenate(_waves(height, height), 1).astype(np.float32)
        left = ctx.builder.constant(matrix.reshape(1, 1, height, 2 * height))
        result = ctx.add(MatMul(), [left, stacked], ctx.intermediate(rows, DType.FLOAT32))
    nothing = ctx.builder.constant(np.tile(np.array([0.0, -0.0], np.float32), parts // 2).reshape(1, 1, 1, parts))
    signed = fn("select", fn("eq", Arg(0), 0.0), Arg(1), Arg(0))
    result = ctx.elementwise(signed, [result, nothing], ctx.intermediate(rows, DType.FLOAT32))
    output = ctx.output_value()
    ctx.copy(result, [Reshape(rows, ctx.builder.values[output].shape)], output)


@lowers_as(REAL=0, IMAG=1)
def part_of_complex(ctx: OpContext, which: int) -> None:
    x, value = ctx.shape(0), ctx.value(0)
    ctx.check_shape(x)
    begin = (*(0 for _ in x), which)
    chosen = Slice(begin, (1,) * len(begin), (*x, 1))
    steps: list[Step] = [Reshape(ctx.builder.values[value].shape, (*x, 2)), chosen, Reshape((*x, 1), bhwc(x))]
    ctx.copy(value, steps, ctx.output_value())


@lowers("COMPLEX_ABS")
def complex_abs(ctx: OpContext) -> None:
    x, value = ctx.shape(0), ctx.value(0)
    ctx.check_shape(x)
    squares = Reduce("sum", (3,), fn("mul", RESULT, RESULT))
    ctx.finish(squares, [value], (*x, 1), fn("sqrt", RESULT))


def _waves(size: int, count: int) -> tuple[Array, Array]:
    """cos and sin of 2 pi n k / size, [size, count]; the product of n and k is reduced first, where it is exact. What
    is 0 is not what pi's own error makes of it, so that the parts of a spectrum that are nothing are 0 as well."""
    turns = np.outer(np.arange(size), np.arange(count)) % size * (2 * np.pi / size)
    cosines, sines = (np.where(abs(wave) < _NOTHING, 0.0, wave) for wave in (np.cos(turns), np.sin(turns)))
    return cosines, sines


def _filters(ctx: OpContext, matrix: Array) -> int:
    return ctx.builder.constant(matrix.T.astype(np.float32).reshape(matrix.shape[1], 1, 1, matrix.shape[0]))
