"""Matrix products of two values, each perhaps stored transposed."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.graph import IntegerMatMul, MatMul
from litegpu.gpu.kernels.access import Index, Operands, Source, open_source
from litegpu.gpu.kernels.blocking import (
    Pixels,
    ThreadTile,
    TilePlace,
    choose_tile,
    grid,
    row_blocks,
    row_pixels,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.product_sums import ProductSums, open_sums
from litegpu.gpu.kernels.shared_sums import store_terms
from litegpu.gpu.lang import Kernel, TracedValue, trace

_Op = MatMul | IntegerMatMul


def build(ctx: KernelContext) -> list[Launch]:
    """a [B,H,M,K] and b [B',H',K,N] -> [..,..,M,N]; leading axes of size 1 broadcast."""
    op = ctx.node.op
    assert isinstance(op, (MatMul, IntegerMatMul))
    b, h, m, n = ctx.output.shape
    inner = ctx.value(ctx.node.inputs[0]).shape[2 if op.transpose_a else 3]
    # four rows of a transposed `a` are one quad of it
    tile = choose_tile(
        b * h * m,
        -(-n // 4),
        -(-inner // 4),
        ctx.features,
        most_pixels=4 if op.transpose_a else min(4, m),
        least_pixels=4 if op.transpose_a else 1,
    )
    blocks = row_blocks(ctx.output.shape, tile.pixels)
    operands: Operands = {}
    kernel = trace(
        _matmul, "matmul", tile.workgroup, grid(tile, blocks, -(-n // 4)),
        ctx=ctx, op=op, inner=inner, tile=tile, blocks=blocks, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, "batch_matmul")]


def _matmul(
    k: Kernel, ctx: KernelContext, op: _Op, inner: int, tile: ThreadTile, blocks: int, operands: Operands
) -> None:
    a, b = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)
    place = TilePlace(k, tile, blocks, -(-ctx.output.shape[3] // 4))
    pixels = row_pixels(place.block, ctx.output.shape, tile.pixels)
    sums = open_sums(ctx, k, tile, op, a, b)

    def step(kq: Index, lanes: int) -> None:
        """The terms 4kq to 4kq + lanes - 1 of the sums."""
        rows = _rows(sums, a, op, pixels, kq, lanes)
        sums.add(rows, [_columns(sums, b, op, pixels, kq, q, lanes) for q in place.q], lanes)

    with k.loop(inner // 4, start=place.part, step=tile.parts) as kq:
        step(kq, 4)
    if inner % 4:  # what lies past the inner size must not be multiplied: 0 * inf is NaN
        with k.If(place.part == 0):
            step(inner // 4, inner % 4)
    shape = ctx.output.shape
    store_terms(ctx, k, place, pixels, lambda block, p: row_pixels(block, shape, tile.pixels, p), sums, operands)


def _rows(sums: ProductSums, a: Source, op: _Op, pixels: Pixels, kq: Index, lanes: int) -> Sequence[TracedValue]:
    """For each of the thread's rows, `lanes` or more elements of `a`."""
    batch, outer, x = pixels.coordinates[0]
    b, h = _broadcast(a, batch, outer)
    if op.transpose_a:
        return sums.rows([sums.read(a, (b, h, kq * 4 + lane, x // 4)) for lane in range(lanes)], across=True)
    height = a.view.shape[2]
    rows = [x for _, _, x in pixels.coordinates]
    if height % len(rows):
        rows = [sums.k.min(x, height - 1) for x in rows]
    return sums.rows([sums.read(a, (b, h, x, kq)) for x in rows], across=False)


def _columns(
    sums: ProductSums, source: Source, op: _Op, pixels: Pixels, kq: Index, q: TracedValue, lanes: int
) -> Sequence[TracedValue]:
    """`lanes` elements of each column of a quad of outputs."""
    b, h = _broadcast(source, *pixels.coordinates[0][:2])
    if not op.transpose_b:
        return sums.columns([sums.read(source, (b, h, kq * 4 + lane, q)) for lane in range(lanes)], across=False)
    height = source.view.shape[2]
    rows = [q * 4 + j for j in range(4)]
    if height % 4:  # the surplus lanes are never stored
        rows = [sums.k.min(r, height - 1) for r in rows]
    return sums.columns([sums.read(source, (b, h, r, kq)) for r in rows], across=True)


def _broadcast(source: Source, b: Index, h: Index) -> tuple[Index, Index]:
    return (0 if source.view.shape[0] == 1 else b, 0 if source.view.shape[1] == 1 else h)
