"""The product of two values: by tiles, in float16 on tensor cores or in float32."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.backends.cuda.kernels import places
from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import (
    TF32_CAPABILITIES,
    TileProduct,
    WorkgroupTile,
    cost,
    multiprocessor_shared_bytes,
    sensible_candidates,
)
from litegpu.gpu.graph import DType, MatMul, fits_half
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View, padded

#: Rows and columns of an output from which tiles are worth it.
LEAST_ROWS, LEAST_COLUMNS = 16, 8
#: Sums of a thread, at most, of products of TF32 whose factors come through registers: with 64 there are too few
#: (197x64 by 197 of 192 heads, on an H200: 104 us by 128x64 of four warps, 79 of eight, 63 by 64x64 of four).
MOST_TF32_SUMS = 32


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for outputs that are too small for tiles, and factors that are not floats. A constant may be a
    left factor of places.py."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, MatMul)
    if ctx.value(node.inputs[0]).is_constant and (launches := places.build(ctx)):
        return launches
    if any(ctx.value(v).dtype is not DType.FLOAT32 for v in node.inputs if ctx.value(v).is_constant):
        return None
    a, b = (_view(ctx, v) for v in node.inputs)
    _, _, m, n = ctx.output.shape
    kinds = {a.dtype, b.dtype}
    if m < LEAST_ROWS or n < LEAST_COLUMNS or not kinds <= set(LOAD) or (DType.FLOAT16 in kinds and not ctx.half):
        return None
    tiles = ranked(ctx, a, b)
    return [offered([launch(ctx, a, b, tile) for tile in tiles[: ctx.most]])]


def _view(ctx: KernelContext, v: int) -> View:
    """Where a factor lies; of a constant, where it will lie in an array of its own."""
    data = ctx.value(v).data
    if data is None:
        return ctx.views[v]
    return padded(0, data.shape, DType.FLOAT16 if ctx.half and fits_half(data) else DType.FLOAT32)


def _laid_out(data: np.ndarray, view: View) -> np.ndarray:
    """A constant as its view has it."""
    whole = np.zeros((*view.shape[:3], view.quads * 4), np.float16 if view.dtype is DType.FLOAT16 else np.float32)
    whole[..., : view.shape[3]] = data
    return whole


def ranked(ctx: KernelContext, a: View, b: View) -> list[WorkgroupTile]:
    """The tiles that make sense, the cheapest first."""
    op = ctx.node.op
    assert isinstance(op, MatMul)
    batch, heads, m, n = ctx.output.shape
    depth = a.shape[2 if op.transpose_a else 3]
    gathered = not (copied(a, ctx.half, op.transpose_a) and copied(b, ctx.half, not op.transpose_b))
    capability = ctx.features.capability
    shared = multiprocessor_shared_bytes(capability)
    tf32 = not ctx.half and capability in TF32_CAPABILITIES
    one = TileProduct(m, n, depth, ctx.half, gathered, capability=capability, tf32=tf32, shared=shared)

    def estimate(tile: WorkgroupTile) -> float:
        rows = batch * heads * (-(-m // tile.rows) * tile.rows)
        return cost(dataclasses.replace(one, rows=rows), tile, ctx.features.compute_units)

    def has_registers(tile: WorkgroupTile) -> bool:
        return not (gathered and tile.tf32) or tile.rows * tile.columns <= MOST_TF32_SUMS * tile.threads

    return sorted(filter(has_registers, sensible_candidates(one)), key=lambda t: (estimate(t), t.threads))


def launch(ctx: KernelContext, a: View, b: View, tile: WorkgroupTile) -> Launch:
    """The product with the given tile; see matmul.cu for the constants."""
    op = ctx.node.op
    assert isinstance(op, MatMul)
    batch, heads, m, n = ctx.output.shape
    depth = a.shape[2 if op.transpose_a else 3]
    down, across = -(-m // tile.rows), -(-n // tile.columns)
    constants: dict[str, int | str] = {
        "HALF": int(ctx.half), **tile.constants(), "TILES_M": down, "TILES_N": across, "HEADS": heads, "M": m, "N": n,
        "QUADS": -(-n // 4), "STEPS": -(-depth // tile.depth),
        **_side("A", a, ctx.half, op.transpose_a), **_side("B", b, ctx.half, not op.transpose_b),
    }  # fmt: skip
    operands: Operands = {
        name: _laid_out(data, view) if (data := ctx.value(v).data) is not None else view
        for name, view, v in zip("ab", (a, b), ctx.node.inputs, strict=True)
    }
    name = "tensor_matmul" if ctx.half else "tiled_matmul"
    return native_launch(
        ctx, name, (*tile.files, "matmul.cu"), constants, operands, label="batch_matmul",
        workgroup=(tile.threads, 1, 1), dispatch=(batch * heads * down * across, 1, 1),
        shared_bytes=tile.shared_bytes(ctx.half), variant=str(tile),
    )  # fmt: skip


def copied(view: View, half: bool, down: bool) -> int:
    """How many numbers along the depth, which is the second last axis (`down`) or the last one, can be copied at once;
    0 if they must be loaded one by one."""
    most = 8 if half else 4
    if down or (view.dtype is DType.FLOAT16) != half or not (view.vector and view.whole_quads):
        return 0
    strides = [s for s, size in zip(view.strides[:3], view.shape[:3], strict=True) if size > 1]
    return 4 if any(k % most for k in (*strides, view.offset, view.quads * 4)) else most


def _side(name: str, view: View, half: bool, down: bool) -> dict[str, int | str]:
    kind, load = LOAD[view.dtype]
    along = copied(view, half, down)
    batch, heads, rows, columns = view.strides
    depth = view.shape[2 if down else 3]
    return {
        f"{name}_TYPE": kind, f"{name}_LOAD(value)": load, f"{name}_COPY": along,
        f"{name}_DEPTH": view.quads * 4 if along else depth, f"{name}_OFFSET": view.offset,
        f"{name}_PITCH_BATCH": batch if view.shape[0] > 1 else 0,
        f"{name}_PITCH_HEAD": heads if view.shape[1] > 1 else 0,
        f"{name}_PITCH_ROW": columns if down else rows, f"{name}_PITCH_K": rows if down else columns,
    }  # fmt: skip
