"""A depthwise convolution and the 1x1 convolution behind it: a workgroup computes the depthwise results of its pixels
into shared memory, and its outputs from there."""

from __future__ import annotations

import dataclasses
import itertools
import math

from litegpu.gpu.graph import Conv2D, Graph, Node, SeparableConv2D
from litegpu.gpu.kernels.access import (
    Index,
    Operands,
    Position,
    address,
    divide,
    open_source,
    open_sources,
    remainder,
)
from litegpu.gpu.kernels.blocking import (
    ThreadTile,
    TilePlace,
    both,
    choose_tile,
    grid,
    linear_pixels,
    or_zero,
    window_axes,
)
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.convolution import together
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.kernels.shared_sums import store_terms
from litegpu.gpu.kernels.terms import open_terms
from litegpu.gpu.lang import Kernel, Memory, TracedValue, f32x4, trace
from litegpu.gpu.lang.features import Features

#: Taps of a window that a thread unrolls.
MOST_TAPS = 25
#: Quads of sums of a thread that shares them with others.
_FEW_SUMS = 4


def tile_of(graph: Graph, node: Node, features: Features) -> ThreadTile:
    """How the kernel of `node`, a SeparableConv2D, would divide its output. Where threads are few, they have few sums
    each: the workgroup computes the depthwise results of all its pixels first, and shares the sums at last."""
    shape = graph.values[node.output].shape
    outputs, _, _, inputs = graph.values[node.inputs[2]].shape
    pixels, depth, room = math.prod(shape[:3]), -(-inputs // 4), features.max_shared_bytes

    def chosen(most: int) -> ThreadTile:
        with_room = dataclasses.replace(features, max_shared_bytes=room)
        return choose_tile(pixels, -(-outputs // 4), depth, with_room, most_pixels=min(8, pixels), most=most)

    most = 16 if chosen(16).parts == 1 else _FEW_SUMS
    while shared_bytes(tile := chosen(most), inputs) > features.max_shared_bytes and room >= 1024:
        room //= 2  # for sums that threads share, beside the depthwise results
    return tile


def shared_bytes(tile: ThreadTile, channels: int) -> int:
    """Of a workgroup of the kernel."""
    sums = 16 * math.prod(tile.workgroup) * tile.pixels * tile.quads if tile.parts > 1 else 0
    return sums + tile.pixels * tile.tall * -(-channels // 4) * 16


def build(ctx: KernelContext) -> list[Launch]:
    """Sums and the depthwise results are in float32, which takes no conversions."""
    op = ctx.node.op
    assert isinstance(op, SeparableConv2D)
    tile = tile_of(ctx.graph, ctx.node, ctx.features)
    shape, outputs = ctx.output.shape, ctx.value(ctx.node.inputs[2]).shape[0]
    blocks, quads = -(-math.prod(shape[:3]) // tile.pixels), -(-outputs // 4)
    operands: Operands = {}
    kernel = trace(
        _separable, "separable", tile.workgroup, grid(tile, blocks, quads),
        ctx=ctx, op=op, tile=tile, blocks=blocks, operands=operands,
    )  # fmt: skip
    return [Launch(kernel, operands, "separable_conv_2d")]


def _separable(
    k: Kernel, ctx: KernelContext, op: SeparableConv2D, tile: ThreadTile, blocks: int, operands: Operands
) -> None:
    outputs, _, _, inputs = ctx.value(ctx.node.inputs[2]).shape
    depth = -(-inputs // 4)
    place = TilePlace(k, tile, blocks, -(-outputs // 4))
    middle = _depthwise(k, ctx, op, tile, place, operands)
    k.barrier()
    pointwise = dataclasses.replace(ctx.node, op=Conv2D(), inputs=(ctx.node.inputs[0], ctx.node.inputs[2]))
    terms = open_terms(dataclasses.replace(ctx, node=pointwise), k, tile, operands)
    terms.begin()
    rows = [address(p * depth, [(k.local_id(1), tile.pixels * depth)]) for p in range(tile.pixels)]
    steps = together(ctx, depth, tile, 4 * tile.quads)
    with k.loop(depth, start=place.part, step=tile.parts * steps) as i:
        for j in range(steps):
            step = address(j * tile.parts, [(i, 1)])
            terms.add([middle[address(0, [(row, 1), (step, 1)])] for row in rows], (0, 0), step, place.q)
    shape = ctx.output.shape
    pixels = linear_pixels(k, place.block, shape, tile.pixels)
    store_terms(ctx, k, place, pixels, lambda block, p: linear_pixels(k, block, shape, tile.pixels, p), terms, operands)


def _depthwise(
    k: Kernel, ctx: KernelContext, op: SeparableConv2D, tile: ThreadTile, place: TilePlace, operands: Operands
) -> Memory:
    """Shared memory with the depthwise results, at [pixel of the workgroup, quad of channels]; before a barrier."""
    shape, depth = ctx.output.shape, -(-ctx.value(ctx.node.inputs[2]).shape[3] // 4)
    total, count, threads = math.prod(shape[:3]), tile.pixels * tile.tall, math.prod(tile.workgroup)
    shared = k.shared(f32x4, count * depth)
    source, weights = (open_source(ctx, k, v, operands) for v in ctx.node.inputs[:2])
    others = open_sources(ctx, k, ctx.node.inputs[3:], operands)
    _, kh, kw, _ = ctx.value(ctx.node.inputs[1]).shape
    first = op.depthwise
    vertical, horizontal = window_axes(ctx, (kh, kw), first.stride, first.dilation, first.padding)
    thread = address(0, [(k.local_id(2), tile.wide * tile.tall), (k.local_id(1), tile.wide), (k.local_id(0), 1)])
    begin, items = place.first_block * tile.pixels, count * depth
    with k.loop(-(-items // threads)) as turn:
        item = address(0, [(turn, threads), (thread, 1)])
        with k.If(True if items % threads == 0 else _less(item, items)):
            q, pixel = remainder(item, depth, items), address(0, [(begin, 1), (divide(item, depth), 1)])
            if total % count and isinstance(pixel, TracedValue):
                pixel = k.min(pixel, total - 1)
            at = Position((*shape[:3], 4 * depth), pixel=pixel, q=q)
            summed = k.const(0.0, f32x4)
            for ky, kx in itertools.product(range(kh), range(kw)):
                iy, ok_y = vertical.at(k, at.y, ky * first.dilation[0])
                ix, ok_x = horizontal.at(k, at.x, kx * first.dilation[1])
                loaded = or_zero(k, both(ok_y, ok_x), source.quad(at.b, iy, ix, q))
                summed = k.fma(loaded, weights.quad(0, ky, kx, q), summed)
            known = [None if other is None else other.broadcast(0, 0, 0, q) for other in others]
            shared[item] = evaluate(k, op.inner, [summed, *known], rough=ctx.half)
    return shared


def _less(i: Index, n: int) -> TracedValue | bool:
    return i < n
