"""Depthwise convolution with as many loads under way as registers hold, and each input used for several pixels."""

from __future__ import annotations

import itertools
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels import biased, byte_depthwise, long_depthwise, overlapped, runs
from litegpu.gpu.backends.cuda.kernels.depthwise_block import (
    DepthwiseBlock,
    chunks_of,
    estimate,
    kind_of,
    lanes_of,
    packed,
)
from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer, residuals_of
from litegpu.gpu.backends.cuda.kernels.offer import Option, cheapest
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import Conv2D, DepthwiseConv2D, DType, IntegerDepthwiseConv2D
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Rows and columns of the output pixels of a thread.
PIXELS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (4, 1), (2, 4), (4, 2), (1, 8), (4, 4))
#: A thread's sums, multiplications of a lane, and inputs: everything is unrolled.
MOST_SUMS, MOST_PRODUCTS, MOST_INPUTS = 64, 400, 200
#: Registers that a row of the window and one of the inputs may take: with those of a window of 1x31 a thread had none
#: left, and took thirty times as long.
MOST_WORDS = 160
MOST_THREADS = 256
#: Threads of a multiprocessor, at most, each of which may have 128 registers.
MOST_RESIDENT = 512
FILES = ("chunk.cu", "depthwise_sums.cu", "depthwise.cu")
#: How an element of bytes is declared, and taps whose sums of products of differences of bytes float32 holds.
BYTES = {DType.INT8: ("signed char", ""), DType.UINT8: ("unsigned char", "")}
MOST_EXACT = (1 << 24) // (255 * 255)


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for several outputs of an input channel, weights that are not constant, and inputs that
    cannot be read four channels at once."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, (DepthwiseConv2D, IntegerDepthwiseConv2D))
    weights = ctx.value(node.inputs[1]).data
    if op.multiplier > 1 or weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    source, whole = ctx.views[node.inputs[0]], isinstance(op, IntegerDepthwiseConv2D)
    if source.dtype not in (BYTES if whole else LOAD):
        return None
    plain = Conv2D(
        op.stride, op.dilation, op.padding, zero_point=op.zero_point if isinstance(op, IntegerDepthwiseConv2D) else None
    )
    layer = Layer(
        plain, source, weights, ctx.output.shape, source.dtype is DType.FLOAT16, residuals_of(ctx), whole_numbers=whole,
        run=runs.run_of(ctx, by_quads=True) if whole else 0,
    )  # fmt: skip
    units = ctx.features.compute_units
    options: list[Option] = [(cost(layer, block, units), launch, block) for block in ranked(layer, units)]
    if not options or long_depthwise.is_long(layer):
        long = long_depthwise.ranked(layer, units)
        options += [(long_depthwise.cost(layer, block, units), long_depthwise.launch, block) for block in long]
    by_words = byte_depthwise.ranked(layer, ctx.features.capability, units)
    waits = ctx.features.capability == WARPGROUP_CAPABILITY and overlapped.will_overlap(ctx.graph)
    words: list[Option] = [
        (byte_depthwise.cost(layer, block, units), byte_depthwise.launch, block) for block in by_words
    ]
    # MobileNet v2 at batch 1: 0.6 us less, ten times
    first = min(words, key=lambda option: option[0]) if words and waits else None
    if byte_depthwise.summed_for(ctx) is not None:
        options = []  # of which none adds up
    return [cheapest(ctx, layer, [*options, *words], first=first)] if options or words else None


def candidates(layer: Layer) -> list[DepthwiseBlock]:
    """All blocks that are worth a try; none if the kernel cannot do the layer."""
    found: dict[tuple[int, ...], DepthwiseBlock] = {}
    _, out_h, out_w, _ = layer.shape
    for lanes, (y, x) in itertools.product(lanes_of(layer), PIXELS):
        if not is_small(layer, lanes, y, x):
            continue
        for most in (8, 16, 32):
            # neighbouring threads have neighbouring chunks, divided evenly among workgroups
            n = chunks_of(layer, lanes)
            chunks = -(-n // -(-n // most))
            for down, across in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
                fits = (down == 1 or down * y < 2 * out_h) and (across == 1 or across * x < 2 * out_w)
                if fits and 24 <= chunks * down * across <= MOST_THREADS:
                    numbers = lanes, y, x, chunks, down, across
                    found.setdefault(numbers, DepthwiseBlock(*numbers))
    return list(found.values())


def is_small(layer: Layer, lanes: int, y: int, x: int) -> bool:
    """Whether a thread can compute so many channels of y x x pixels."""
    _, kh, kw, _ = layer.weights.shape
    rows, columns = _inputs(layer, y, x)
    words = max(1, lanes * layer.size // 4)
    if kw * lanes + columns * words > MOST_WORDS or (layer.whole_numbers and kh * kw > MOST_EXACT):
        return False
    if layer.vector == 0 or lanes * y * x > MOST_SUMS or kh * kw * y * x > MOST_PRODUCTS:
        return False
    return rows * columns <= MOST_INPUTS and y < 2 * layer.shape[1] and x < 2 * layer.shape[2]


def ranked(layer: Layer, units: int) -> list[DepthwiseBlock]:
    """For every division into threads the cheapest workgroup, the cheapest first."""
    best: dict[tuple[int, int, int], DepthwiseBlock] = {}
    for block in sorted(candidates(layer), key=lambda b: (cost(layer, b, units), b.threads)):
        best.setdefault((block.lanes, block.y, block.x), block)
    return list(best.values())


def launch(ctx: KernelContext, layer: Layer, block: DepthwiseBlock) -> Launch:
    """The convolution with the given block."""
    operands: Operands = {"x": layer.source, "w": packed(layer)}
    begun = biased.with_begun_sums(
        ctx, layer.weights.reshape(-1, layer.shape[3]).T, chunks_of(layer, block.lanes) * block.lanes
    )
    if begun is not None:
        ctx, operands["bias"] = begun
    groups, units = math.prod(block.groups(layer)), ctx.features.compute_units or USUAL_UNITS
    resident = -(-groups // units)
    constants = constants_of(layer, block) | {
        "RESIDENT": resident if resident * block.threads <= MOST_RESIDENT else 0, "BEGUN": int(begun is not None),
    }  # fmt: skip
    return native_launch(
        ctx, "blocked_depthwise", FILES, constants, operands, label="depthwise_conv_2d",
        workgroup=(block.threads, 1, 1), dispatch=(groups, 1, 1), variant=str(block), ahead=True,
    )  # fmt: skip


def constants_of(layer: Layer, block: DepthwiseBlock) -> dict[str, int | str]:
    """For depthwise_sums.cu, and how workgroups divide the work."""
    groups = block.groups(layer)
    step_y, step_x = _steps(layer, block.y, block.x)
    return {
        **layer.constants(), "HALF": int(layer.half), "SOURCE": (BYTES | LOAD)[layer.source.dtype][0],
        "BYTES": kind_of(layer), "ZERO_POINT": layer.op.zero_point or 0,
        "FINITE": int(np.isfinite(layer.weights).all()), "KERNEL_H": layer.weights.shape[1],
        "LANES": block.lanes, "TY": block.y, "TX": block.x,
        "WC": block.chunks, "WX": block.columns, "WY": block.rows,
        "GROUPS_C": groups[0], "GROUPS_X": groups[1], "GROUPS_Y": groups[2],
        "CHUNKS": chunks_of(layer, block.lanes), "STEP_Y": step_y, "STEP_X": step_x,
    }  # fmt: skip


def cost(layer: Layer, block: DepthwiseBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors. (From counts of instructions and registers; not
    fitted to measurements.)"""
    _, kh, kw, _ = layer.weights.shape
    lanes, pixels, size = block.lanes, block.y * block.x, layer.size
    rows, columns = _inputs(layer, block.y, block.x)
    convert = 2 * lanes if layer.whole_numbers else lanes if layer.half else 0
    words = max(1, lanes * size // 4)
    halo = math.prod(_inputs(layer, block.y * block.rows, block.x * block.columns)) + kh * kw
    return estimate(
        layer, units, threads=block.threads, groups=math.prod(block.groups(layer)),
        instructions=rows * columns * (4 + convert) + kh * kw * lanes * (0.25 + pixels) + pixels * lanes * 5 + 60,
        registers=40 + lanes * pixels + min(128, columns * 2 * words + kw * block.y * lanes + kh * kw * lanes // 2),
        first=(rows * columns * size + kh * kw * 4) * lanes, second=halo * block.chunks * lanes * size,
    )  # fmt: skip


def _steps(layer: Layer, y: int, x: int) -> tuple[int, int]:
    """The largest numbers that rows and columns of the inputs of y x x outputs are multiples of."""
    op = layer.op
    down, across = (
        math.gcd(stride if pixels > 1 else 0, dilation if taps > 1 else 0) or 1
        for stride, pixels, dilation, taps in zip(op.stride, (y, x), op.dilation, layer.weights.shape[1:3], strict=True)
    )
    return down, across


def _inputs(layer: Layer, y: int, x: int) -> tuple[int, int]:
    """Rows and columns of inputs that y x x outputs need."""
    op, (_, kh, kw, _) = layer.op, layer.weights.shape
    down, across = _steps(layer, y, x)
    return (
        ((y - 1) * op.stride[0] + (kh - 1) * op.dilation[0]) // down + 1,
        ((x - 1) * op.stride[1] + (kw - 1) * op.dilation[1]) // across + 1,
    )
