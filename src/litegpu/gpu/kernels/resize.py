"""Resizing by tables: for each row and column of the output, which rows and columns of the input it mixes."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.gpu.graph import Resize2D
from litegpu.gpu.interpolation import XNNPACK_BITS, integer_table
from litegpu.gpu.kernels.access import Operands, Position, declare_table, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.stream import streamed
from litegpu.gpu.lang import Kernel, TracedValue, f32, f32x4, i32, i32x4, u32x4


def build(ctx: KernelContext) -> list[Launch]:
    """Coordinates are computed here, in float32 and in the order of TFLite's reference kernels, so that nearest
    neighbours are the same pixels and weights the same numbers as there."""
    op = ctx.node.op
    assert isinstance(op, Resize2D)
    source, target = ctx.value(ctx.node.inputs[0]).shape, ctx.output.shape
    tables = [axis_table(op, source[a], target[a]) for a in (1, 2)]
    body = _nearest if op.kind == "nearest" else _bilinear_integers if op.bits else _bilinear

    table = np.concatenate(tables)
    return [streamed(ctx, f"resize_{op.kind}", lambda k, operands, at: body(k, ctx, operands, at, table))]


def axis_table(op: Resize2D, size: int, out: int) -> np.ndarray:
    """uint32 [out, 4]: the lower and upper input index and the bits of the upper one's weight (float32), of each output
    index; for "nearest" only the first counts. ComputeInterpolationValues and GetNearestNeighbor of TFLite."""
    if op.bits:
        lower, upper, weight = integer_table(op, size, out)
        return np.stack([lower, upper, weight, np.zeros_like(lower)], axis=1).astype(np.uint32)
    one, half = np.float32(1), np.float32(0.5)
    aligned = op.align_corners and out > 1
    scale = np.float32(size - 1) / np.float32(out - 1) if aligned else np.float32(size) / np.float32(out)
    i = np.arange(out, dtype=np.float32)
    table = np.zeros((out, 4), np.uint32)
    if op.kind == "nearest":
        at = (i + (half if op.half_pixel_centers else np.float32(0))) * scale
        index = _round(at) if op.align_corners else np.floor(at)
        table[:, 0] = np.clip(index, 0, size - 1).astype(np.uint32)
        return table
    at = (i + half) * scale - half if op.half_pixel_centers else i * scale
    lower = np.clip(np.floor(at), 0, size - 1)
    table[:, 0] = lower.astype(np.uint32)
    table[:, 1] = np.clip(np.ceil(at), 0, size - 1).astype(np.uint32)
    weight = np.clip(at - lower, np.float32(0), one)  # outside, both indices are the same
    table[:, 2] = weight.astype(np.float32).view(np.uint32)
    return table


def _round(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Half away from zero, of numbers that are not negative: C's roundf."""
    whole = np.floor(x)
    up: np.ndarray[Any, Any] = np.where(x - whole >= np.float32(0.5), whole + np.float32(1), whole)
    return up


def _nearest(k: Kernel, ctx: KernelContext, operands: Operands, at: Position, table: np.ndarray) -> TracedValue:
    rows, columns = _entries(k, ctx, operands, at, table)
    source = open_source(ctx, k, ctx.node.inputs[0], operands)
    return source.quad(at.b, rows[0], columns[0], at.q)


def _bilinear(k: Kernel, ctx: KernelContext, operands: Operands, at: Position, table: np.ndarray) -> TracedValue:
    """All four corners are weighted, also by zero, so that infinities become NaN where they do on the CPU."""
    rows, columns = _entries(k, ctx, operands, at, table)
    source = open_source(ctx, k, ctx.node.inputs[0], operands)
    along_y, along_x = (k.bitcast(e[2], f32) for e in (rows, columns))

    weights = [[(1 - along_y) * (1 - along_x), (1 - along_y) * along_x], [along_y * (1 - along_x), along_y * along_x]]
    total = k.const(0.0, f32x4)
    for i in range(2):
        for j in range(2):
            total = k.fma(source.quad(at.b, rows[i], columns[j], at.q), k.splat(weights[i][j], 4), total)
    return total


def _bilinear_integers(
    k: Kernel, ctx: KernelContext, operands: Operands, at: Position, table: np.ndarray
) -> TracedValue:
    """The sums have up to 36 bits: of the upper and the lower bytes of the numbers they have 28."""
    op = ctx.node.op
    assert isinstance(op, Resize2D)
    rows, columns = _entries(k, ctx, operands, at, table)
    source = open_source(ctx, k, ctx.node.inputs[0], operands)
    along_y, along_x = (k.bitcast(e[2], i32) for e in (rows, columns))
    whole = 1 << op.bits
    weights = [
        [(whole - along_y) * (whole - along_x), (whole - along_y) * along_x],
        [along_y * (whole - along_x), along_y * along_x],
    ]
    upper, lower = k.const(0, i32x4), k.const(0, i32x4)
    for i in range(2):
        for j in range(2):
            corner, weight = source.quad(at.b, rows[i], columns[j], at.q), k.splat(weights[i][j], 4)
            upper, lower = upper + (corner >> 8) * weight, lower + (corner & 255) * weight
    half, down = 1 << (2 * op.bits - 1), 2 * op.bits - 8
    if op.bits == XNNPACK_BITS:
        return (upper + ((lower + half) >> 8)) >> down
    negative = (upper + (lower >> 8)) < 0
    upper, lower = k.select(negative, -upper, upper), k.select(negative, -lower, lower)
    magnitude = (upper + ((lower + half) >> 8)) >> down
    return k.select(negative, -magnitude, magnitude)


def _entries(
    k: Kernel, ctx: KernelContext, operands: Operands, at: Position, table: np.ndarray
) -> tuple[TracedValue, TracedValue]:
    """The entries of this row and this column; those of the columns come after those of the rows."""
    memory = declare_table(k, "table", table, u32x4, operands)
    return memory[at.y], memory[at.x + ctx.output.shape[1]]
