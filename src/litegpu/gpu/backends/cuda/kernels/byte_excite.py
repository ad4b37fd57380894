"""The end of squeeze-and-excite of bytes: the gates of all channels, and what becomes of the pixels with them. Or all
of it, where who computed the bytes added them up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import runs
from litegpu.gpu.backends.cuda.kernels.byte_matvec import LEAST_CAPABILITY, packed_layer
from litegpu.gpu.backends.cuda.kernels.byte_squeeze import CHUNK, limited
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import DType, Expr, IntegerExcite, Shape, tables
from litegpu.gpu.kernels.access import Operands, Position, open_sources, open_table, read_all
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import Argument
from litegpu.gpu.lang import Kernel, TracedValue, i32x4, u32

MOST_WORDS, MOST_ITEMS, MOST_EARLY = 16, 16, 4  # of a thread
MOST_INNER = 16  # chunks of the first layer's weights that a thread holds


@dataclass(frozen=True)
class ByteExciteTile:
    """A workgroup has some pixels of some quads of channels, each gate `lanes` threads, a thread runs of channels."""

    quads: int
    lanes: int
    pixels: int
    run: int

    def __str__(self) -> str:
        return f"{self.quads} quads of {self.pixels}, {self.lanes} lanes"

    @property
    def threads(self) -> int:
        return 4 * self.quads * self.lanes

    @property
    def down(self) -> int:
        """Pixels that threads have side by side."""
        return self.threads // (self.quads * 4 // self.run)

    @property
    def items(self) -> int:
        """Runs of a thread."""
        return -(-self.pixels // self.down)

    def words(self, depth: int) -> int:
        """Of a thread, of a layer of so many inputs."""
        return -(-depth // (4 * self.lanes))

    def groups(self, shape: Shape) -> tuple[int, int]:
        """Workgroups along channels and pixels of an image."""
        return -(-shape[3] // (4 * self.quads)), -(-math.prod(shape[1:3]) // self.pixels)


@dataclass(frozen=True)
class InnerLayer:
    """The first layer, which every workgroup computes: `outputs` of `inputs` channels, means of `copies` of sums."""

    inputs: int
    outputs: int
    copies: int = 1

    @property
    def results(self) -> int:
        return -(-self.outputs // 4) * 4

    @property
    def chunks(self) -> int:
        return -(-self.inputs // CHUNK)

    def lanes(self, threads: int) -> int:
        """Threads of a result: those with which a thread has the fewest weights."""
        return min((4, 8, 16, 32), key=lambda lanes: (self.weights(threads, lanes), lanes))

    def passes(self, threads: int, lanes: int) -> int:
        return -(-self.results // (threads // lanes))

    def weights(self, threads: int, lanes: int) -> int:
        """Chunks of a thread."""
        return self.passes(threads, lanes) * -(-self.chunks // lanes)


def ranked(
    shape: Shape, depth: int, capability: int, units: int, run: int = 4, inner: InnerLayer | None = None
) -> list[ByteExciteTile]:
    """The ways to divide it, the cheapest first; none if the kernel cannot do it."""
    found = list(_that_fit(shape, depth, capability, run, inner))
    return sorted(
        found, key=lambda tile: (cost(shape, depth, tile, units, inner), tile.threads, tile.quads, tile.pixels)
    )


def can(shape: Shape, depth: int, capability: int, inner: InnerLayer | None = None) -> bool:
    """Whether there is one."""
    return any(True for _ in _that_fit(shape, depth, capability, 4, inner))


def _that_fit(
    shape: Shape, depth: int, capability: int, run: int, inner: InnerLayer | None
) -> Iterator[ByteExciteTile]:
    if capability >= LEAST_CAPABILITY and shape[3] % run == 0:
        yield from (tile for tile in _tiles(shape, depth, run) if inner is None or _takes(inner, tile.threads))


def _takes(inner: InnerLayer, threads: int) -> bool:
    return inner.weights(threads, inner.lanes(threads)) <= MOST_INNER and inner.results <= 4 * threads


def _tiles(shape: Shape, depth: int, run: int) -> Iterator[ByteExciteTile]:
    pixels, quads = math.prod(shape[1:3]), shape[3] // 4
    widths = {-(-quads // n) for n in range(1, quads + 1)} | {8, 16, 32}
    for wide, lanes in itertools.product(sorted(widths), (1, 2, 4, 8, 16)):
        wide = -(-wide * 4 // run) * run // 4
        whole = 4 * wide * lanes % 32 == 0 and 64 <= 4 * wide * lanes <= 512 and wide < quads + 8
        if not whole or -(-depth // (4 * lanes)) > MOST_WORDS:
            continue
        for split in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 196, 256):
            tile = ByteExciteTile(wide, lanes, -(-pixels // split), run)
            if split <= pixels and tile.items <= MOST_ITEMS:
                yield tile


def cost(shape: Shape, depth: int, tile: ByteExciteTile, units: int, inner: InnerLayer | None = None) -> float:
    """Estimated microseconds: one after the other, what a multiprocessor issues, and what each workgroup costs. (One
    H200, EfficientNet B0 at batch 1: 160.5 us where threads have two runs, 166 where they have one.)"""
    units = units or USUAL_UNITS
    share = -(-shape[0] * math.prod(tile.groups(shape)) // units)
    instructions: float = 90 + 6 * tile.words(depth) + tile.items * (16 + 9 * tile.run)
    first, read = 900.0, 0.0
    if inner is not None:
        lanes = inner.lanes(tile.threads)
        instructions += 60 + 12 * inner.weights(tile.threads, lanes) + 20 * inner.inputs / tile.threads
        first, read = 1500.0, share * (inner.results * inner.chunks * CHUNK + 4 * inner.copies * inner.inputs) / 64
    waves = max(1.0, share * tile.threads / 2048)
    alone = waves * (first + 4 * instructions)
    return float(max(alone, share * tile.threads / 32 * instructions / 2.5, read) + 250 * share) / 1700


def build(ctx: KernelContext) -> list[Launch]:
    node, op = ctx.node, ctx.node.op
    assert isinstance(op, IntegerExcite)
    depth, run = ctx.value(node.inputs[1]).shape[3], runs.run_of(ctx, by_quads=True)
    inner = None
    if op.squeezed is not None:
        outputs, _, _, inputs = ctx.value(node.inputs[2]).shape
        inner = InnerLayer(inputs, outputs, op.squeezed.copies)
    tiles = ranked(ctx.output.shape, depth, ctx.features.capability, ctx.features.compute_units, run, inner)
    return [offered([_launch(ctx, tile, inner) for tile in tiles[: ctx.most]])]


def _launch(ctx: KernelContext, tile: ByteExciteTile, inner: InnerLayer | None) -> Launch:
    """See byte_excite.cu for the constants."""
    node, op, shape = ctx.node, ctx.node.op, ctx.output.shape
    assert isinstance(op, IntegerExcite)
    source, weights = ctx.views[node.inputs[0]], ctx.value(node.inputs[1]).data
    assert weights is not None
    depth = weights.shape[3]
    groups, each = tile.groups(shape), tile.words(depth)
    unsigned = (source.dtype if op.squeezed is None else op.squeezed.kind) is DType.UINT8
    outputs, inputs = groups[0] * 4 * tile.quads, each * tile.lanes * 4
    whole, corrections = packed_layer(weights, outputs, inputs, op.zero_point, unsigned)
    parts = whole.view(np.int32).reshape(groups[0], 4 * tile.quads, each, tile.lanes).transpose(0, 2, 1, 3)
    epilogue = runs.epilogue_by_runs(ctx, tile.run)
    constants: dict[str, int | str] = {
        "BYTES": 1, "UNSIGNED": int(unsigned), "BN": 4 * tile.run, "PIXELS": math.prod(shape[:3]),
        "QUADS": shape[3] // 4, "WORDS": -(-depth // 4), "S_OFFSET": source.offset, "S_PITCH": source.strides[0],
        "TILE_QUADS": tile.quads, "LANES": tile.lanes, "TURNS": each, "TILE_PIXELS": tile.pixels,
        "GROUPS_C": groups[0], "GROUPS_P": groups[1], "IMAGE": math.prod(shape[1:3]), "THREADS": tile.threads,
        "ITEMS": tile.items, "EARLY": min(MOST_EARLY, tile.items),
    }  # fmt: skip
    operands: Operands = {"s": source}
    files: tuple[str, ...] = ("elements.cu", "runs.cu", "byte_excite.cu")
    functions = [_function(ctx, "gate", op.gate, op.kind, node.inputs[op.gate_operands :], shape[3])]
    if inner is not None:
        more, held, found = _inner(ctx, tile, inner)
        constants |= more
        operands |= held
        functions += found
        files = ("byte_means.cu", *files)
    operands |= {"w": np.ascontiguousarray(parts), "corrections": corrections}
    return native_launch(
        ctx, "excite_of_bytes", files, constants, operands, label="excite", workgroup=(tile.threads, 1, 1),
        dispatch=(shape[0] * math.prod(groups), 1, 1), variant=str(tile), runs=epilogue, inner=functions,
    )  # fmt: skip


def _inner(
    ctx: KernelContext, tile: ByteExciteTile, inner: InnerLayer
) -> tuple[dict[str, int | str], Operands, list[Traced]]:
    """Constants, operands and functions of the first layer."""
    node, op = ctx.node, ctx.node.op
    assert isinstance(op, IntegerExcite) and op.squeezed is not None
    found, weights = op.squeezed, ctx.value(node.inputs[2]).data
    assert weights is not None
    lanes = inner.lanes(tile.threads)
    unsigned = found.squeeze.kind is DType.UINT8
    depth, zero_point = inner.chunks * CHUNK, found.squeeze.zero_point
    packed, corrections = packed_layer(weights, inner.results, depth, zero_point, unsigned)
    constants: dict[str, int | str] = {
        "SUMS_AT": found.begin, "COPIES": found.copies, "CHUNKS": inner.chunks, "UNSIGNED_MEAN": int(unsigned),
        "RESULTS": inner.results, "INNER_LANES": lanes, "PASSES": inner.passes(tile.threads, lanes),
    }  # fmt: skip
    operands: Operands = {"inner_weights": packed, "inner_corrections": corrections}
    known = node.inputs[3 : op.gate_operands]
    functions = [
        Traced(ctx, "mean", (i32x4,), lambda k, _, total: limited(k, found.squeeze.mean, [total], found.squeeze.kind)),
        _function(ctx, "inner", found.inner, found.kind, known, inner.outputs),
    ]
    return constants, operands, functions


def _function(ctx: KernelContext, name: str, expr: Expr, kind: DType, values: Sequence[int], channels: int) -> Traced:
    """NAME(quad, sums): the bytes of four of so many channels."""
    looked_up = {i - 1 for i in tables(expr)}

    def of_quad(k: Kernel, operands: Operands, quad: TracedValue, total: TracedValue) -> TracedValue:
        used = set(range(len(values))) - looked_up
        found = read_all(open_sources(ctx, k, values, operands, used), Position((1, 1, 1, channels), q=quad))
        known: list[Argument] = [
            open_table(ctx, k, v, operands) if i in looked_up else found[i] for i, v in enumerate(values)
        ]
        return limited(k, expr, [total, *known], kind)

    return Traced(ctx, name, (u32, i32x4), of_quad, places=1)
