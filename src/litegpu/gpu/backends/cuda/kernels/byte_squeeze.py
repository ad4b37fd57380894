"""The beginning of squeeze-and-excite of bytes: the mean over the pixels, and the first layer of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels.byte_matvec import LEAST_CAPABILITY, packed_layer
from litegpu.gpu.backends.cuda.kernels.layer import channels_at_once
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import DType, Expr, IntegerSqueeze, Shape
from litegpu.gpu.kernels.access import Operands, byte_bounds
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import Argument, constant, evaluate
from litegpu.gpu.lang import Kernel, TracedValue, i32x4

THREADS, SPLITS = (512,), (1, 2, 4, 8)
#: Pieces of 16 bytes that a thread has under way, of the bytes, and that it has of the layer's weights.
MOST_EARLY, MOST_WEIGHTS = 8, 12
#: Bytes of an image that one workgroup adds up in no more time than it takes to share the work of others.
ALONE = 1 << 17
CHUNK = 16


@dataclass(frozen=True)
class ByteSqueezeTile:
    """A cluster of `split` workgroups has an image; a result of the layer belongs to `lanes` threads."""

    threads: int
    split: int
    lanes: int
    run: int  # channels that are loaded at once

    def __str__(self) -> str:
        return f"{self.split} of {self.threads}, {self.lanes} lanes"

    def part(self, shape: Shape) -> int:
        """Pixels of a workgroup."""
        return -(-math.prod(shape[1:3]) // self.split)

    def runs(self, shape: Shape) -> int:
        """Of a pixel."""
        return -(-shape[3] // 4) * 4 // self.run

    def rows(self, shape: Shape) -> int:
        """Pixels that threads have side by side."""
        return min(self.threads // self.runs(shape), self.part(shape))

    def results(self, results: int) -> int:
        """Of a workgroup."""
        return -(-results // (4 * self.split)) * 4

    def passes(self, results: int) -> int:
        return -(-self.results(results) // (self.threads // self.lanes))

    def weights(self, shape: Shape, results: int) -> int:
        """Chunks of a thread."""
        return self.passes(results) * -(-chunks_of(shape) // self.lanes)

    def shared_bytes(self, shape: Shape, results: int) -> int:
        lines = self.rows(shape) * self.runs(shape) * self.run * 4
        return lines + chunks_of(shape) * CHUNK + self.results(results) * 4


def chunks_of(shape: Shape) -> int:
    return -(-shape[3] // CHUNK)


def ranked(shape: Shape, results: int, capability: int, units: int, run: int = 4) -> list[ByteSqueezeTile]:
    """The ways to divide it, the cheapest first; none if the kernel cannot do it, or would take long."""
    found = list(_tiles(shape, results, capability, run))
    return sorted(found, key=lambda tile: (cost(shape, results, tile, units), tile.threads, tile.split, tile.lanes))


def can(shape: Shape, results: int, capability: int) -> bool:
    """Whether there is one."""
    return any(True for _ in _tiles(shape, results, capability, 4))


def _tiles(shape: Shape, results: int, capability: int, run: int) -> Iterator[ByteSqueezeTile]:
    if capability < LEAST_CAPABILITY:
        return
    splits = SPLITS if capability >= WARPGROUP_CAPABILITY else SPLITS[:1]
    pixels = math.prod(shape[1:3])
    if results > pixels:  # more bytes of weights than of the image: each cluster would load all of them
        return
    if len(splits) == 1 and pixels * shape[3] > ALONE:
        return
    for threads, split, lanes in itertools.product(THREADS, splits, (4, 8, 16, 32)):
        tile = ByteSqueezeTile(threads, split, lanes, run)
        if tile.runs(shape) > threads:
            continue
        full = (split - 1) * tile.part(shape) < pixels
        fits = tile.results(results) <= 4 * threads
        if full and fits and tile.weights(shape, results) <= MOST_WEIGHTS:
            yield tile


def cost(shape: Shape, results: int, tile: ByteSqueezeTile, units: int) -> float:
    """Estimated microseconds. (One H200, 64 times 112x112x32 to eight results: two of 512 threads 8.9 us, one 12.7,
    four 12.6, two of 256 threads 12.6. A workgroup has a multiprocessor to itself.)"""
    waves, part = -(-shape[0] * tile.split // (units or USUAL_UNITS)), tile.part(shape)
    loads = -(-part // tile.rows(shape))
    latency = 600 * -(-loads // early(loads)) + 60 * math.ceil(math.log(max(2, tile.rows(shape)), 8))
    read = (part * shape[3] + tile.results(results) * chunks_of(shape) * CHUNK) / 64
    issued = tile.threads / 32 * loads * (2 * tile.run + 8) / 4
    other = 700 + 12 * tile.weights(shape, results) + 500 * (tile.split > 1) + 50 * tile.split
    return waves * (other + max(latency, read, issued)) / 1700


def early(loads: int) -> int:
    """Pieces under way of so many."""
    return min(MOST_EARLY, loads)


def build(ctx: KernelContext) -> list[Launch]:
    node = ctx.node
    source, results = ctx.views[node.inputs[0]], ctx.output.shape[3]
    run = channels_at_once(source, (16, 8))
    tiles = ranked(source.shape, results, ctx.features.capability, ctx.features.compute_units, run)
    return [offered([_launch(ctx, tile) for tile in tiles[: ctx.most]])]


def _launch(ctx: KernelContext, tile: ByteSqueezeTile) -> Launch:
    """See byte_squeeze.cu for the constants."""
    node, op = ctx.node, ctx.node.op
    assert isinstance(op, IntegerSqueeze)
    source, weights = ctx.views[node.inputs[0]], ctx.value(node.inputs[1]).data
    assert weights is not None
    shape, results = source.shape, ctx.output.shape[3]
    own, rows = tile.results(results), tile.rows(shape)
    depth, unsigned = chunks_of(shape) * CHUNK, op.kind is DType.UINT8
    packed, corrections = packed_layer(weights, own * tile.split, depth, op.zero_point, unsigned)
    constants: dict[str, int | str] = {
        "RUN": tile.run, "RUNS": tile.runs(shape), "ROWS": rows, "THREADS": tile.threads,
        "EARLY": early(-(-tile.part(shape) // rows)), "SPLIT": tile.split, "PIXELS": math.prod(shape[1:3]),
        "PART": tile.part(shape), "WIDTH": shape[2], "OFFSET": source.offset, "PITCH_B": source.strides[0],
        "PITCH_Y": source.strides[1], "PITCH_X": source.strides[2], "UNSIGNED": int(source.dtype is DType.UINT8),
        "UNSIGNED_MEAN": int(unsigned), "RESULTS": own, "QUADS": -(-results // 4),
        "CHUNKS": chunks_of(shape), "INNER_LANES": tile.lanes, "PASSES": tile.passes(results),
        "SHARED_BYTES": tile.shared_bytes(shape, results),
    }  # fmt: skip
    operands: Operands = {"x": source, "w": packed, "corrections": corrections}
    mean = Traced(ctx, "mean", (i32x4,), lambda k, _, total: limited(k, op.mean, [total], op.kind))
    return native_launch(
        ctx, "squeeze_of_bytes", ("device.cu", "pipeline.cu", "byte_sums.cu", "byte_means.cu", "byte_squeeze.cu"),
        constants, operands, label="squeeze", workgroup=(tile.threads, 1, 1), dispatch=(shape[0] * tile.split, 1, 1),
        inner=mean, ahead=True, shared_bytes=tile.shared_bytes(shape, results), variant=str(tile),
    )  # fmt: skip


def limited(k: Kernel, expr: Expr, args: Sequence[Argument], kind: DType) -> TracedValue:
    """Four of an expression's numbers, as bytes hold them."""
    bounds = byte_bounds(kind)
    assert bounds is not None
    value = evaluate(k, expr, args)
    low, high = (constant(k, bound, i32x4) for bound in bounds)
    return k.min(k.max(value if value.type.lanes == 4 else k.splat(value, 4), low), high)
