"""Convolution by windows of several taps, of tiles that are copied once with their border, on devices that have
warpgroup products."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.cached import cached_property
from litegpu.gpu.backends.cuda.kernels import runs
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Taps of windows; products of all of them are unrolled.
LEAST_TAPS, MOST_TAPS = 3, 25
#: With larger ones, most of what is copied would be for no tap.
MOST_STRIDE = 2
#: Threads that copy: a warpgroup but for the warp that copies weights.
COPYING = 96
#: Pieces of the input on their way, and columns of strips (0: images are not divided).
LEAST_STAGES, MOST_STAGES, STRIPS = 2, 8, (0, 30)
#: Rows, columns and warpgroups of tiles whose channels are divided.
DIVIDED = ((64, 32, 1), (64, 64, 1), (64, 64, 2), (128, 64, 1), (128, 64, 2))
#: Of the estimates: cycles of a byte that is copied, and in a microsecond; microseconds of a byte that memory moves, on
#: one multiprocessor.
COPIED, CYCLES, MOVED = 0.101, 1755, 7.7e-5
FEW_OUTPUTS = 96
#: Cycles that a piece of the input takes longer where there is no more than one on its way.
AWAITED = 2000
#: Of the sums of a warp while they are stored.
SUMS_BYTES = 16 * 40 * 4


@dataclass(frozen=True)
class HaloTile:
    """Each of `consumers` warpgroups computes `rows` x `columns` outputs of a tile of its own, or, if `together`, of
    one. What it needs comes in pieces of `chunks` x 16 bytes of each position, `stages` ahead, and the weights in
    pieces of a window's row, `ring` ahead; all at once where `ring` is 0. Images are divided into strips of about
    `strip` columns; 0: not at all. `split` workgroups, a cluster, divide the channels of one tile."""

    rows: int
    columns: int
    consumers: int
    chunks: int
    stages: int
    ring: int = 0
    together: bool = False
    strip: int = 0
    split: int = 1

    def __str__(self) -> str:
        teams = f"{self.consumers}{'t' if self.together else ''}"
        return (
            f"halo {self.rows}x{self.columns}-{teams}-{self.chunks}x{self.stages}"
            + (f"-w{self.ring}" if self.ring else "")
            + (f"|{self.strip}" if self.strip else "")
            + (f"/{self.split}" if self.split > 1 else "")
        )

    @property
    def threads(self) -> int:
        return 128 * self.consumers + COPYING + 32


@dataclass(frozen=True)
class PixelLine:
    """How the positions of all images follow one another: see halo.cu."""

    strips: int
    strip: int  # output columns of one
    pitch: int
    lines: int
    most: int  # positions, up to the last output


def line_of(layer: Layer, strip: int) -> PixelLine:
    """In strips of about so many columns, or in one. Rows and strips begin with the first column of a square."""
    batch, out_h, out_w, _ = layer.shape
    out_h //= layer.side
    strips = max(1, round(out_w / strip)) if strip else 1
    each = -(-out_w // strips // layer.side) * layer.side
    pitch = _pitch(layer, 1) if strips == 1 else -(-(each + _far(layer, 1)) // layer.side) * layer.side
    lines = _pitch(layer, 0)
    return PixelLine(strips, each, pitch, lines, ((batch * strips - 1) * lines + out_h) * pitch)


def _pitch(layer: Layer, axis: int) -> int:
    """Positions of a row (`axis` 1), or rows of an image (0): as few as may be. What a tap finds beyond the last is in
    the next row, or image, and has to be outside there as well as here."""
    size, (taps, dilation, stride, outputs) = layer.source.shape[1 + axis], _window(layer, axis)
    padding = layer.op.padding[axis]
    places = {divmod(tap * dilation, stride) for tap in range(taps)}
    step = layer.side if axis else 1

    def outside(place: int, phase: int) -> bool:
        return not 0 <= place * stride + phase - padding < size

    def is_enough(pitch: int) -> bool:
        return all(
            outside(place, phase) and outside(place - pitch, phase)
            for far, phase in places
            for place in range(pitch, outputs + far)
        )

    return next(pitch for pitch in range(outputs, outputs + _far(layer, axis) + step, step) if is_enough(pitch))


def _window(layer: Layer, axis: int) -> tuple[int, int, int, int]:
    """Taps, dilation, stride and outputs along an axis, as positions have them: a position is that of two lines where
    the largest of two by two sums are stored."""
    op, taps, outputs = layer.op, layer.weights.shape[1 + axis], layer.shape[1 + axis]
    if layer.side == 1 or axis:
        return taps, op.dilation[axis], op.stride[axis], outputs
    return taps + layer.side - 1, 1, layer.side, outputs // layer.side


def _far(layer: Layer, axis: int) -> int:
    """Positions, or rows of these, from that of an output to the last one that it needs."""
    taps, dilation, stride, _ = _window(layer, axis)
    return int((taps - 1) * dilation // stride)


@dataclass(frozen=True)
class HaloPlan:
    """A tile's work on a layer, and how its workgroups lay out their shared memory: see halo.cu."""

    layer: Layer
    tile: HaloTile

    @cached_property
    def line(self) -> PixelLine:
        return line_of(self.layer, self.tile.strip)

    @cached_property
    def groups(self) -> int:
        """Pieces of the channels, of a workgroup."""
        chunks = -(-self.layer.depth // self.taps // self.layer.per_chunk)
        return -(-chunks // (self.tile.chunks * self.tile.split))

    @cached_property
    def taps(self) -> int:
        _, kh, kw, _ = self.layer.weights.shape
        return int(kh * kw)

    @property
    def phases(self) -> int:
        """Lines of input pixels."""
        return math.prod(_window(self.layer, axis)[2] for axis in range(2))

    @property
    def positions(self) -> int:
        """Of a tile."""
        return self.tile.rows // self.layer.side * (self.tile.consumers if self.tile.together else 1)

    @property
    def run(self) -> int:
        """Channels that a thread stores at once, right from its registers; 0: by way of shared memory."""
        return runs.run_in(self.layer, self.tile.columns) if self.tile.split == 1 else 0

    @property
    def piece(self) -> int:
        """Taps of a piece of weights."""
        return self.layer.weights.shape[2] if self.tile.ring else self.taps

    @property
    def tiles(self) -> int:
        return -(-self.line.most // self.positions)

    @property
    def across(self) -> int:
        return -(-self.layer.shape[3] // self.tile.columns)

    def walkers(self, units: int) -> int:
        """Workgroups that share the tiles of the same outputs, but for those of a cluster."""
        if self.tile.split > 1:
            return self.tiles
        return min(self.tiles, max(1, units // self.across))

    @property
    def span(self) -> int:
        """Positions that a tile needs."""
        return self.positions + _far(self.layer, 0) * self.line.pitch + _far(self.layer, 1)

    @property
    def panel(self) -> int:
        """Bytes: such that what eight neighbouring threads copy to `chunks` panels lies in different banks."""
        return self.span * 16 + (128 // self.tile.chunks - self.span * 16) % 128

    @property
    def weight_bytes(self) -> int:
        """Of a piece."""
        return self.piece * self.tile.chunks * self.tile.columns * 16

    @property
    def held(self) -> int:
        """Pieces of weights in shared memory."""
        return self.tile.ring or self.groups * (self.taps // self.piece)

    @property
    def shared_bytes(self) -> int:
        tile = self.tile
        ring = tile.stages * self.phases * tile.chunks * self.panel + self.held * self.weight_bytes
        sums = 0 if self.run else tile.consumers * 4 * SUMS_BYTES
        if tile.split > 1:  # all sums, in the place of all else
            ring, sums = max(ring, self.positions * self.layer.side * (tile.columns + 8) * 4), 0
        return ring + sums + 8 * (2 * tile.stages + self.held + tile.ring + tile.consumers)

    def fits(self) -> bool:
        sums = self.tile.rows // 64 * self.tile.columns // 2
        if self.run:  # what the epilogue reads
            sums += self.tile.columns // 2
        registers = min(255, 65536 // self.tile.threads // 8 * 8)
        return self.shared_bytes <= MOST_WARPGROUP_SHARED_BYTES and sums + 32 <= registers


@functools.cache
def candidates() -> tuple[HaloTile, ...]:
    """All tiles that are worth a try, with the least stages: as many more as fit is what ranked() takes."""
    shapes = [
        (64, 32),
        (128, 32),
        (256, 32),
        (64, 64),
        (128, 64),
        (192, 64),
        (256, 64),
        (64, 96),
        (128, 96),
        (64, 128),
        (128, 128),
    ]
    return tuple(
        HaloTile(rows, columns, consumers, chunks, LEAST_STAGES, ring, together, strip)
        for rows, columns in shapes
        for consumers in (1, 2, 3)
        for chunks in (2, 4, 8)
        for ring, together in ((0, False), (0, True), (3, True))
        for strip in STRIPS
        if (consumers > 1 or not together) and (not ring or columns >= 64)
    ) + tuple(
        HaloTile(rows, columns, consumers, chunks, LEAST_STAGES, 0, consumers > 1, 0, split)
        for rows, columns, consumers in DIVIDED
        for chunks in (2, 4)
        for split in (2, 4, 8)
    )


def ranked(layer: Layer, capability: int, units: int) -> list[HaloTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    if not _can(layer, capability):
        return []
    sensible = [_with_stages(tile, layer) for tile in candidates() if _suits(tile, layer)]
    return sorted(sensible, key=lambda tile: (cost(layer, tile, units), tile.threads))


def _with_stages(tile: HaloTile, layer: Layer) -> HaloTile:
    """As many as fit, and one tile has pieces."""
    most = MOST_STAGES if tile.split == 1 else min(MOST_STAGES, HaloPlan(layer, tile).groups)
    deeper = (dataclasses.replace(tile, stages=n) for n in range(most, LEAST_STAGES, -1))
    return next((one for one in deeper if HaloPlan(layer, one).fits()), tile)


def _can(layer: Layer, capability: int) -> bool:
    op = layer.op
    return (
        capability == WARPGROUP_CAPABILITY
        and (layer.weights.dtype == np.int8 if layer.whole_numbers else layer.half)
        and layer.vector in ((16, 8, 4) if layer.whole_numbers else (8, 4))
        and op.upsample == (1, 1)
        and (op.stride == (1, 1) or (op.dilation == (1, 1) and max(op.stride) <= MOST_STRIDE))
        and op.border == "zero"
        and (layer.side == 1 or (op.stride == (1, 1) and op.dilation[0] == 1))
        and LEAST_TAPS <= layer.weights.shape[1] * layer.weights.shape[2] <= MOST_TAPS
    )


def _suits(tile: HaloTile, layer: Layer) -> bool:
    """Whether it fits, and no smaller tile, piece or ring does the same work."""
    plan = HaloPlan(layer, tile)
    chunks = -(-layer.depth // plan.taps // layer.per_chunk)
    steps = plan.groups * plan.taps // plan.piece
    return (
        (tile.chunks < 2 * chunks or tile.chunks == 2)
        and tile.ring < steps
        and (not tile.strip or plan.line.strips > 1)
        and (tile.columns < 2 * layer.shape[3] or tile.columns == 32)
        and (tile.rows == 64 or plan.tiles > 1)
        and tile.rows % (64 * layer.side) == 0
        and (plan.run > 0 or layer.side == 1 or tile.split > 1)
        and (tile.split == 1 or (layer.half and chunks % (tile.split * tile.chunks) == 0))  # bytes: not measured
        and plan.fits()
    )


def cost(layer: Layer, tile: HaloTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    Fitted to 340 measurements of 22 layers on an H200. A workgroup's tiles take as long as their products, which wait
    for the positions that they read, as what is copied for them, or, of warpgroups that take turns, as the products and
    the stores of one of them.
    """
    plan, units = HaloPlan(layer, tile), units or USUAL_UNITS
    if tile.split > 1:
        return _divided_cost(plan, units)
    share = -(-plan.tiles // plan.walkers(units))  # tiles of a workgroup
    depth = plan.groups * tile.chunks * 16  # bytes of a position
    steps, weights = plan.taps * depth / 32, plan.taps * depth * tile.columns
    pieces = plan.groups * plan.taps // plan.piece
    sums = plan.positions * layer.side / 64
    products = sums * steps * (13.6 + 0.398 * tile.columns) + pieces * 102  # cycles, as all below
    copied = plan.span * plan.phases * depth * COPIED
    stored = tile.rows * tile.columns * (0.173 / layer.side**2 + 0.05 * layer.residuals) + 650
    first = copied / plan.groups + (0 if tile.ring else weights * 0.0035)
    if tile.ring:
        copied += weights * 0.0233
    if tile.stages == LEAST_STAGES:
        copied += plan.groups * AWAITED
    if tile.together:
        busy = max(products + stored, copied)
    else:
        busy = max(products + 594, (products + stored) / tile.consumers, copied)
    computing = (first + stored + share * busy) / CYCLES
    moved = math.prod(layer.source.shape) + layer.stored * layer.shape[3] * (1 + layer.residuals)
    moving = moved * layer.size * MOVED / units
    # beside the estimates of specialized.py, which are too low for few outputs: there inputs come nine times for little
    beside = 0.8 if layer.shape[3] <= FEW_OUTPUTS else 1.0
    return float(beside * (0.74 + (computing**4 + moving**4) ** 0.25))


def _divided_cost(plan: HaloPlan, units: int) -> float:
    """The same where a cluster divides the channels. Fitted to 55 measurements of 14 layers of one image, in chains of
    kernels that overlap, where such a layer takes (this - 0.3) / 1.08: 4% off on average. Most of it is what all
    workgroups read from the second cache, at 6.8 TB/s."""
    layer, tile = plan.layer, plan.tile
    together = units if tile.split < 4 else units * 10 // 11  # so many workgroups find places beside each other
    groups = plan.tiles * plan.across * tile.split
    rounds, sums = -(-groups // together), plan.positions * layer.side
    depth = plan.groups * tile.chunks * 16
    products = sums / 64 * plan.taps * depth / 32 * (13.6 + 0.398 * tile.columns) / CYCLES
    copied, weights = plan.span * plan.phases * depth, plan.taps * depth * tile.columns
    each = 0.526 * products + (0.196 / plan.groups + 0.088) * copied / 1e4 + 1.574e-4 * sums * tile.columns
    return float(2.107 + (rounds - 1) * 1.73 + rounds * each + groups * (copied + weights) * 1.589e-7)


def packed(layer: Layer, plan: HaloPlan) -> np.ndarray:
    """The weights as their pieces lie in shared memory: for each tile's outputs, piece of the channels and tap one
    panel for each 16 bytes of channels."""
    outputs, kh, kw, inputs = layer.weights.shape
    n, tile, groups = layer.per_chunk, plan.tile, plan.groups * plan.tile.split
    kind = np.int8 if layer.whole_numbers else np.float16
    whole = np.zeros((plan.across * tile.columns, kh * kw, groups * tile.chunks * n), kind)
    whole[:outputs, :, :inputs] = layer.weights.reshape(outputs, kh * kw, inputs)
    parts = whole.reshape(plan.across, tile.columns, kh * kw, groups, tile.chunks, n)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 4, 1, 5))


def launch(ctx: KernelContext, layer: Layer, tile: HaloTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see halo.cu for the constants."""
    plan = HaloPlan(layer, tile)
    line, pixels = plan.line, layer.stored
    epilogue = runs.epilogue_of(ctx, layer, tile.columns) if plan.run else None
    walkers = plan.walkers(ctx.features.compute_units or USUAL_UNITS)
    constants: dict[str, int | str] = {
        **layer.constants(), "VECTOR": layer.vector, "BYTES": layer.size, "BM": tile.rows // layer.side,
        "BN": tile.columns, "CONSUMERS": tile.consumers, "TOGETHER": int(tile.together), "COPYING": COPYING,
        "STAGES": tile.stages, "SPLIT": tile.split,
        "CHUNKS": tile.chunks, "GROUPS": plan.groups, "PANEL": plan.panel, "SPAN": plan.span, "RING": tile.ring,
        "PIECE": plan.piece, "TILES": plan.tiles, "TILES_N": plan.across, "WALKERS": walkers,
        "BATCH": layer.shape[0], "LINES": line.lines, "PITCH": line.pitch, "STRIPS": line.strips, "STRIP": line.strip,
        "PIXELS": pixels, "QUADS": -(-layer.shape[3] // 4), "SHARED_BYTES": plan.shared_bytes,
    }  # fmt: skip
    if layer.side > 1:
        constants |= {"SIDE": layer.side, "STRIDE_Y": layer.side, "OUT_H": layer.shape[1] // layer.side}
    factors, first = layer, layer.corrections(plan.across * tile.columns) if layer.whole_numbers else None
    if epilogue is not None:
        factors = dataclasses.replace(layer, weights=runs.columns_of(layer.weights, epilogue.run))
        if first is not None:
            first[: len(epilogue.first)] += epilogue.first
    operands: Operands = {"x": layer.source, "w": packed(factors, plan)}
    if first is not None:
        constants |= {"UNSIGNED": int(layer.source.dtype is DType.UINT8), "PADDED": int(bool(layer.op.zero_point))}
        operands |= {"outside": layer.outside, "corrections": first}
    stores = ("runs.cu",) if plan.run else ("divided.cu",) if tile.split > 1 else ()
    files = ("device.cu", "turned.cu", "warpgroup.cu", "pipeline.cu", "panels.cu", "elements.cu", *stores)
    return native_launch(
        ctx, "halo_convolution", (*files, "halo.cu"), constants, operands, label=label_of(ctx),
        workgroup=(tile.threads, 1, 1), dispatch=(walkers * plan.across * tile.split, 1, 1),
        shared_bytes=plan.shared_bytes, variant=str(tile), where=where,
        pixels=4 if tile.split == 1 else 1, pixel_count=pixels, runs=epilogue,
        ahead=tile.split > 1,
    )  # fmt: skip
