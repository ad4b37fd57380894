"""Depthwise convolution of bytes, four products at once."""

from __future__ import annotations

import itertools
import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_rests, runs
from litegpu.gpu.backends.cuda.kernels.depthwise_block import DepthwiseBlock
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import DType, IntegerExcite, Node
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Taps that a word holds, and channels of a thread.
WORD, LANES = 4, 4
#: Of a row and a column of the window.
MOST_TAPS = 5
#: Rows and columns of the output pixels of a thread, and its inputs.
PIXELS = ((1, 2), (2, 2), (2, 4), (4, 2), (4, 4), (7, 2), (1, 4))
MOST_INPUTS = 80
MOST_THREADS = 256
#: Weights that are no signed bytes: each adds some instructions for every output of a thread. (With five there are half
#: as many as depthwise.cu has for such a layer.)
MOST_RESTS = 5
#: Compute capability that has the instruction.
LEAST_CAPABILITY = 61


def summed_for(ctx: KernelContext) -> Node | None:
    """The squeeze-and-excite for which the node's kernel adds up its results, if there is one."""
    return next((n for n in ctx.graph.nodes if sums_of(n) == ctx.node.output), None)


def sums_of(node: Node) -> int | None:
    """Of which value a node reads sums that its kernel adds up."""
    found = isinstance(node.op, IntegerExcite) and node.op.squeezed is not None
    return node.operands[0] if found else None


def ranked(layer: Layer, capability: int, units: int) -> list[DepthwiseBlock]:
    """For every division into threads the cheapest workgroup, the cheapest first; none if the kernel cannot do it."""
    if capability < LEAST_CAPABILITY or not can(layer):
        return []
    best: dict[tuple[int, int], DepthwiseBlock] = {}
    for block in sorted(_candidates(layer), key=lambda b: (cost(layer, b, units), b.threads)):
        best.setdefault((block.y, block.x), block)
    return list(best.values())


def can(layer: Layer) -> bool:
    """Whether the kernel can do the layer."""
    op, (_, kh, kw, _) = layer.op, layer.weights.shape
    return (
        layer.whole_numbers and layer.run > 0 and layer.residuals == 0 and layer.vector > 0
        and max(kh, kw) <= MOST_TAPS and op.dilation == (1, 1) and max(op.stride) <= 2
        and byte_rests.are_few(layer.weights, MOST_RESTS)
    )  # fmt: skip


def sharing(layer: Layer) -> int:
    """Outputs side by side whose taps of a row are in the same four columns; 0 if they are not in four."""
    return int((WORD - layer.weights.shape[2]) // layer.op.stride[1]) + 1 if layer.weights.shape[2] <= WORD else 0


def _fours(layer: Layer, x: int) -> tuple[int, int]:
    """Columns that a thread turns about at once: how often, and from one to the next."""
    share, across = sharing(layer), layer.op.stride[1]
    if not share:
        return -(-((x - 1) * across + layer.weights.shape[2]) // WORD), WORD
    return -(-x // share), share * across


def _inputs(layer: Layer, y: int, x: int) -> tuple[int, int]:
    """Rows and columns of inputs that a thread loads."""
    fours, following = _fours(layer, x)
    across = (fours - 1) * following + WORD
    return (y - 1) * layer.op.stride[0] + layer.weights.shape[1], across


def _candidates(layer: Layer) -> list[DepthwiseBlock]:
    found: dict[tuple[int, ...], DepthwiseBlock] = {}
    _, out_h, out_w, _ = layer.shape
    quads = layer.source.quads
    for (y, x), most in itertools.product(PIXELS, (8, 16, 32)):
        if math.prod(_inputs(layer, y, x)) > MOST_INPUTS or y >= 2 * out_h or x >= 2 * out_w:
            continue
        chunks = -(-quads // -(-quads // most))  # divided evenly among workgroups
        for down, across in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32)):
            fits = (down == 1 or down * y < 2 * out_h) and (across == 1 or across * x < 2 * out_w)
            if fits and 64 <= chunks * down * across <= MOST_THREADS:
                numbers = LANES, y, x, chunks, down, across
                found.setdefault(numbers, DepthwiseBlock(*numbers))
    return list(found.values())


def cost(layer: Layer, block: DepthwiseBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: from counts of instructions."""
    units = units or USUAL_UNITS
    batch, out_h, out_w, channels = layer.shape
    rows, columns = _inputs(layer, block.y, block.x)
    (fours, _), pixels = _fours(layer, block.x), block.y * block.x
    words = 1 if sharing(layer) else 2  # of taps
    instructions = rows * (columns * 2.5 + fours * 8) + pixels * (6 * layer.weights.shape[1] * 1.3 * words + 24) + 90
    registers = min(255, 40 + rows * columns + 4 * block.x * layer.weights.shape[1] * words)
    groups, warps = math.prod(block.groups(layer)), -(-block.threads // 32)
    share = -(-groups // units)
    resident = max(1, min(32, 64 // warps, 65536 // (registers * 32 * warps)))
    waves = max(1.0, share / resident)
    alone = 0.6 + (waves - 1) * 0.6 + waves * 1.5 * instructions / 1755
    issued = share * warps * instructions / 4 / 1755
    memory = batch * (math.prod(layer.source.shape[1:3]) + out_h * out_w) * channels / 4e6
    return float(1.0 + sum(part**4 for part in (alone, issued, memory)) ** 0.25)


def packed(layer: Layer) -> np.ndarray:
    """[word, rows of the window, channels, taps], channels padded as the input's are, the taps of a row in one word or
    two."""
    _, kh, kw, channels = layer.weights.shape
    words = -(-kw // WORD)
    result = np.zeros((kh, layer.source.quads * LANES, words * WORD), np.int8)
    result[:, :channels, :kw] = byte_rests.held(layer.weights[0]).transpose(0, 2, 1)
    return np.ascontiguousarray(result.reshape(kh, -1, words, WORD).transpose(2, 0, 1, 3))


def launch(ctx: KernelContext, layer: Layer, block: DepthwiseBlock) -> Launch:
    """The convolution with the given block; see byte_depthwise.cu for the constants."""
    groups, quads = block.groups(layer), layer.source.quads
    epilogue = runs.epilogue_of(ctx, layer, LANES * LANES, run=LANES)
    unsigned = layer.source.dtype is DType.UINT8
    zero_point = (layer.op.zero_point or 0) - (128 if unsigned else 0)  # of signed bytes
    sums = layer.weights.reshape(-1, layer.weights.shape[3]).sum(axis=0, dtype=np.int32)
    first = np.zeros(quads * LANES, np.int32)
    first[: len(sums)] = epilogue.first - zero_point * sums
    constants: dict[str, int | str] = {
        **layer.constants(), "KERNEL_H": layer.weights.shape[1], "BYTES": 1, "UNSIGNED": int(unsigned), "BN": 16,
        "OUTSIDE": f"{(zero_point & 255) * 0x1010101}u", "SHARING": sharing(layer), "TY": block.y, "TX": block.x,
        "WC": block.chunks, "WX": block.columns, "WY": block.rows,
        "GROUPS_C": groups[0], "GROUPS_X": groups[1], "GROUPS_Y": groups[2],
        "QUADS": quads, "PIXELS": math.prod(layer.shape[:3]),
    }  # fmt: skip
    rests = byte_rests.of_words(layer.weights)
    if rests:
        constants["RESTS"] = rests
    operands: Operands = {"x": layer.source, "w": packed(layer), "corrections": first}
    files: tuple[str, ...] = ("elements.cu", "runs.cu", "byte_depthwise.cu")
    reader = summed_for(ctx)
    if reader is not None:
        assert isinstance(reader.op, IntegerExcite) and reader.op.squeezed is not None
        constants |= {
            "SUMS_AT": reader.op.squeezed.begin, "COPIES": reader.op.squeezed.copies,
            "SUMS_UNSIGNED": int(ctx.views[ctx.node.output].dtype is DType.UINT8),
        }  # fmt: skip
        operands["sums_of"] = ctx.views[reader.inputs[0]]
        files = ("byte_sums.cu", *files)
    return native_launch(
        ctx, "byte_depthwise", files, constants, operands, label="depthwise_conv_2d",
        workgroup=(block.threads, 1, 1), dispatch=(math.prod(groups), 1, 1), variant=str(block), runs=epilogue,
    )  # fmt: skip
