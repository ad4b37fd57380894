"""The end of squeeze-and-excite: both activations, the second layer, and the gates of all channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import DType, Excite, Expr, Shape
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import f32

#: Threads of a column that add up parts, at most: those who go on add up so many sums in turn.
MOST_ROWS = 16
MOST_WEIGHTS, MOST_ITEMS = 64, 16  # of a thread
#: Bytes that are read of memory at least. (Two quads side by side are half of that: 0.15 us slower than four.)
SECTOR = 32


@dataclass(frozen=True)
class ExciteTile:
    """A workgroup has so many threads for some pixels of some quads of channels."""

    threads: int
    quads: int
    pixels: int

    def __str__(self) -> str:
        return f"{self.quads} quads of {self.pixels} by {self.threads}"

    def groups(self, shape: Shape) -> tuple[int, int]:
        """Workgroups along channels and pixels of an image."""
        return -(-shape[3] // (4 * self.quads)), -(-math.prod(shape[1:3]) // self.pixels)

    @property
    def lanes(self) -> int:
        """Threads that compute a gate."""
        return self.threads // (4 * self.quads)

    def weights(self, results: int) -> int:
        """Of a thread."""
        return -(-results // self.lanes)


def build(ctx: KernelContext) -> list[Launch]:
    op = ctx.node.op
    assert isinstance(op, Excite)
    results, parts = ctx.value(ctx.node.inputs[2]).shape[3], ctx.value(ctx.node.inputs[1]).shape[2]
    tiles = ranked(ctx.output.shape, results, parts, ctx.features.compute_units)
    return [offered([_launch(ctx, tile) for tile in tiles[: ctx.most]])]


def ranked(shape: Shape, results: int, parts: int, units: int) -> list[ExciteTile]:
    """The ways to divide it, the cheapest first."""
    return sorted(_tiles(shape, results), key=lambda tile: (cost(shape, results, parts, tile, units), tile.threads))


def _tiles(shape: Shape, results: int) -> Iterator[ExciteTile]:
    pixels = math.prod(shape[1:3])
    for threads, quads, splits in itertools.product(
        (64, 128, 256), (2, 4, 8, 16, 32), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
    ):
        tile = ExciteTile(threads, quads, -(-pixels // splits))
        items = -(-quads * tile.pixels // threads)
        enough = results <= 4 * threads and 1 <= tile.lanes <= 32 and tile.weights(results) <= MOST_WEIGHTS
        if enough and splits <= pixels and items <= MOST_ITEMS and 2 * quads < shape[3]:
            yield tile


def cost(shape: Shape, results: int, parts: int, tile: ExciteTile, units: int) -> float:
    """Estimated microseconds where kernels overlap. (Reasoned, not fitted: loads in a row, and bytes from the second
    cache, 40 a cycle of each multiprocessor and 5 MB a microsecond of all.)"""
    units, groups = units or USUAL_UNITS, shape[0] * math.prod(tile.groups(shape))
    summed, share = 4 * parts * -(-results // 4) * 4, -(-groups // units)
    weights = 4 * tile.weights(results) * tile.threads
    items = -(-tile.quads * tile.pixels // tile.threads)
    read = max(8, SECTOR // tile.quads) * items * tile.threads
    first = share * (summed + 0.3 * weights + read) / 40 / 1700
    columns = -(-results // 4)
    rows = max(1, min(tile.threads // columns, MOST_ROWS, parts))
    instructions = 12 * -(-parts // rows) + 4 * rows + 6 * tile.weights(results) + 40 * items
    alone = instructions * max(1.0, share * tile.threads / 512) / 1700
    return 1.2 + first + groups * (summed + 0.3 * weights) / 5e6 + alone


def _launch(ctx: KernelContext, tile: ExciteTile) -> Launch:
    """See excite.cu for the constants."""
    op, node, shape = ctx.node.op, ctx.node, ctx.output.shape
    assert isinstance(op, Excite)
    x, parts = (ctx.views[v] for v in node.inputs[:2])
    inner_bias, weights, bias = (ctx.value(v).data for v in node.inputs[2:])
    assert inner_bias is not None and weights is not None and bias is not None
    groups, results = tile.groups(shape), inner_bias.shape[3]
    each, columns = tile.weights(results), parts.quads
    each += -(-max(0, 4 * columns - each * tile.lanes) // tile.lanes)
    each += each % 2
    kind, _ = LOAD[x.dtype]
    constants: dict[str, int | str] = {
        "HALF": int(x.dtype is DType.FLOAT16), "SOURCE": kind, "OFFSET": x.offset, "PITCH_B": x.strides[0],
        "PITCH_Y": x.strides[1], "PITCH_X": x.strides[2], "PIXELS": math.prod(shape[1:3]), "QUADS": x.quads,
        "WIDTH": shape[2], "RESULTS": 4 * columns, "SUMMED": results, "PARTS": ctx.value(node.inputs[1]).shape[2],
        "TILE_QUADS": tile.quads, "TILE_PIXELS": tile.pixels, "GROUPS_C": groups[0], "GROUPS_P": groups[1],
        "THREADS": tile.threads, "EACH": each,
        "ROWS": max(1, min(tile.threads // columns, MOST_ROWS, ctx.value(node.inputs[1]).shape[2])),
    }  # fmt: skip
    wide = np.zeros(groups[0] * 4 * tile.quads, np.float32)
    wide[: shape[3]] = bias.reshape(-1)
    operands: Operands = {
        "x": x, "parts": parts, "inner_bias": np.ascontiguousarray(inner_bias.reshape(-1), np.float32),
        "weights": _packed(weights, tile, groups[0], each), "bias": wide,
    }  # fmt: skip
    functions = [_function(ctx, "inner", op.inner), _function(ctx, "gate", op.gate)]
    return native_launch(
        ctx, "excite", ("chunk.cu", "excite.cu"), constants, operands, label="excite", workgroup=(tile.threads, 1, 1),
        dispatch=(shape[0] * math.prod(groups), 1, 1), variant=str(tile), inner=functions,
    )  # fmt: skip


def _function(ctx: KernelContext, name: str, expr: Expr) -> Traced:
    return Traced(ctx, name, (f32,), lambda k, _, value: evaluate(k, expr, [value], rough=ctx.half))


def _packed(weights: np.ndarray, tile: ExciteTile, groups: int, each: int) -> np.ndarray:
    """[C,1,1,S] as [group of channels, pair of a thread's weights, channel of the group, lane, of the pair]:
    weight i of a lane is that of result i * lanes + lane."""
    whole = np.zeros((groups * 4 * tile.quads, each * tile.lanes), np.float16)
    whole[: weights.shape[0], : weights.shape[3]] = weights.reshape(weights.shape[0], -1)
    parts = whole.reshape(groups, 4 * tile.quads, each // 2, 2, tile.lanes)
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 4, 3)).reshape(-1)
