"""What byte_inverted.py does, of small images: see byte_bands.cu."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.functions import packing
from litegpu.gpu.backends.cuda.kernels import byte_inverted
from litegpu.gpu.backends.cuda.kernels.byte_inverted_cost import strips
from litegpu.gpu.backends.cuda.kernels.inverted import in_order, padded, reordered
from litegpu.gpu.backends.cuda.kernels.inverted_cost import CYCLES, InvertedShape
from litegpu.gpu.backends.cuda.kernels.layer import NARROW
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch, quickest

#: Sixteens of places that a warp expands at the most: what is done with each is written out.
MOST_TILES = 16
MOST_REGISTERS = 240
WARPS = (4, 6, 8, 9, 10, 12, 15, 16, 18, 20)
#: Sixteens of pixels and of outputs that a warp projects at a time.
EACH = ((2, 1), (4, 1), (2, 2), (4, 2), (1, 2), (1, 1))


@dataclass(frozen=True)
class BandBlock:
    """A cluster of `split` workgroups of `warps` computes `y` whole rows of outputs; a warp goes through the window by
    `rows` of a strip, and projects `m` sixteens of pixels by `n` sixteens of outputs at a time."""

    y: int
    rows: int
    warps: int
    split: int
    m: int
    n: int

    def __str__(self) -> str:
        return f"{self.y} rows by {self.rows}, {self.warps} warps, {self.split} parts, {self.m}x{self.n}"

    def fold(self, shape: InvertedShape) -> int:
        """See byte_bands.cu."""
        turns, _ = strips(shape)
        return 2 if shape.out_size[1] <= 4 * turns and self.y > self.rows else 1

    def bands(self, shape: InvertedShape) -> int:
        return -(-shape.out_size[0] // self.y)

    def groups(self, shape: InvertedShape) -> int:
        return -(-shape.channels // (16 * self.split))

    def out_sixteens(self, shape: InvertedShape) -> int:
        return -(-shape.outputs // (16 * self.split))

    def units(self, shape: InvertedShape) -> int:
        turns, _ = strips(shape)
        fold = self.fold(shape)
        return -(-shape.out_size[1] // (8 * turns // fold)) * -(-self.y // (self.rows * fold))

    def most_rows(self, shape: InvertedShape) -> int:
        """Of the input, that a band reads and that there are."""
        return min(shape.size[0], (self.y - 1) * shape.stride[0] + shape.window[0])

    def tiles(self, shape: InvertedShape) -> int:
        return -(-self.most_rows(shape) * shape.size[1] // 16)

    def pixel_tiles(self, shape: InvertedShape) -> int:
        return -(-self.y * shape.out_size[1] // 16)

    def plane(self, shape: InvertedShape) -> int:
        """Bytes of eight channels of what is expanded."""
        (kh, kw), (down, across) = shape.window, shape.stride
        turns, pairs = strips(shape)
        fold = self.fold(shape)
        lines = (-(-self.y // (self.rows * fold)) * self.rows * fold - 1) * down + kh
        line = -(-((shape.out_size[1] - 1) * across + kw) // 2) * 2
        read = -(-shape.out_size[1] // (8 * turns // fold)) * 16 // fold + 2 * pairs - 2
        return (lines * line + max(0, read - line) + 7) // 16 * 128 + 64

    def row(self, shape: InvertedShape) -> int:
        """Bytes of a pixel behind the window."""
        return -(-self.split * self.groups(shape) // 2) * 32

    def shared_bytes(self, shape: InvertedShape) -> int:
        pitch = shape.depth + (0 if shape.depth // 16 % 2 else 16)
        row = self.row(shape)
        found = self.tiles(shape) * 16 * pitch + self.warps * 2 * self.plane(shape)
        found += self.pixel_tiles(shape) * 16 * (row + 16)
        return found + row // 32 * self.out_sixteens(shape) * 512

    def registers(self, shape: InvertedShape) -> int:
        kh, steps = shape.window[0], -(-shape.depth // 32)
        turns, pairs = strips(shape)
        window = 4 * self.rows * turns + 4 * (kh + 1) * -(-pairs // 2) + 2 * kh * turns * pairs
        return max(window + 4 * steps + self.tiles(shape) + 16, self.m * self.n * 8 + 8 + 4 * self.n) + 36


@functools.lru_cache(maxsize=512)
def ranked(shape: InvertedShape, capability: int, units: int) -> tuple[BandBlock, ...]:
    """The blocks that fit, the cheapest first; none if there are none."""
    if capability != WARPGROUP_CAPABILITY or not shape.outputs or not shape.depth or shape.stem:
        return ()
    found = []
    heights = {-(-shape.out_size[0] // n) for n in (1, 2, 4)}
    splits = [n for n in (1, 2, 4) if shape.channels >= 64 * n and shape.outputs >= 16 * n]
    for y, rows, warps, split, (m, n) in itertools.product(heights, (2, 4), WARPS, splits, EACH):
        block = BandBlock(y, rows, warps, split, m, n)
        if _fits(block, shape):
            found.append(block)
    return tuple(sorted(found, key=lambda b: cost(shape, b, units)))


def _fits(block: BandBlock, shape: InvertedShape) -> bool:
    registers = block.registers(shape)
    return (
        block.tiles(shape) <= MOST_TILES
        and block.warps <= block.groups(shape)
        and block.m <= block.pixel_tiles(shape)
        and block.n <= block.out_sixteens(shape)
        and registers <= MOST_REGISTERS
        and registers * 32 * block.warps <= 65536
        and block.plane(shape) < 1 << 16
        and block.shared_bytes(shape) <= MOST_WARPGROUP_SHARED_BYTES
    )


def cost(shape: InvertedShape, block: BandBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors (not measured yet)."""
    units = units or USUAL_UNITS
    kh, down = shape.window[0], shape.stride[0]
    turns, pairs = strips(shape)
    steps, groups = -(-shape.depth // 32), block.groups(shape)
    expanded = block.tiles(shape) * (steps * 3 + 46)
    lines = block.rows * turns
    window = lines * kh * -(-pairs // 2) + 2 * ((block.rows - 1) * down + kh) + lines * 30 + 12
    each = expanded + block.units(shape) * window + 2 * kh * turns * pairs + 20
    turn = max(each * 1.77 / 4 * block.warps, each * 3.2)  # of all warps once
    computing = -(-groups // block.warps) * turn
    m_tiles, out = block.pixel_tiles(shape), block.out_sixteens(shape)
    blocks = -(-m_tiles // block.m) * -(-out // block.n)
    along = block.row(shape) // 32
    shared = along * (m_tiles * -(-out // block.n) * 4 + out * -(-m_tiles // block.m) * 4)
    alone = along * -(-blocks // block.warps) * (40 + 8 * block.m * block.n)
    projecting = math.hypot(shared, alone) + 300
    gathering = 1500 + m_tiles * 16 * groups * (block.split - 1) * 0.3 if block.split > 1 else 0
    rounds = -(-shape.batch * block.bands(shape) * block.split // units)
    return float(2.0 + rounds * (1500 + computing + projecting + gathering) / CYCLES)


def build(ctx: KernelContext) -> list[Launch]:
    """An IntegerInvertedConv2D by the quickest of these blocks and of byte_inverted.cu's."""
    layer = byte_inverted.ByteInvertedLayer.of(ctx)
    features = ctx.features
    found = ranked(layer.shape, features.capability, features.compute_units)
    others = byte_inverted.ranked(layer.shape, features.capability, features.compute_units)
    if ctx.tuner is not None:
        some = [launch(ctx, layer, block) for block in found[: ctx.tuner.most // 2]]
        more = others[: ctx.tuner.most - len(some)]
        return [quickest(ctx.tuner, [*some, *(byte_inverted.launch(ctx, layer, block) for block in more)])]
    if found and (not others or cost(layer.shape, found[0], features.compute_units) < byte_inverted.cost(layer.shape, others[0], features.compute_units)):
        return [launch(ctx, layer, found[0])]
    return [byte_inverted.launch(ctx, layer, others[0])]


def launch(ctx: KernelContext, layer: byte_inverted.ByteInvertedLayer, block: BandBlock) -> Launch:
    """All of the node; see byte_bands.cu for the constants."""
    window, shape, view = layer.window, layer.shape, layer.window.source
    batch, _, _, outputs = window.shape
    expansion, middle = layer.expansion, layer.middle
    assert expansion is not None and middle is not None and layer.projection is not None
    groups, out = block.groups(shape), block.out_sixteens(shape)
    wide, columns = block.split * groups * 16, block.split * out * 16
    constants: dict[str, int | str] = {
        **window.constants(), **expansion.settings("EXPANDED"), **middle.settings("MIDDLE"),
        "SOURCE": NARROW[view.dtype], "UNSIGNED": int(view.dtype is DType.UINT8), "VECTOR": window.vector,
        "CHANNELS": view.quads * 4 if window.vector else view.shape[3], "KERNEL_H": shape.window[0],
        "EXPANDS": 1, "PROJECTS": 1, "TY": block.rows, "BY": block.y, "BANDS": block.bands(shape),
        "MOST_ROWS": block.most_rows(shape), "FOLD": block.fold(shape), "DEPTH": shape.depth, "SPLIT": block.split,
        "GROUPS": groups, "OUT_SIXTEENS": out, "M_EACH": block.m, "N_EACH": block.n, "QUADS": -(-outputs // 4),
        "WARPS": block.warps, "SHARED_BYTES": block.shared_bytes(shape),
    }  # fmt: skip

    def channelwise(data: np.ndarray, order: np.ndarray) -> np.ndarray:
        whole = np.zeros(wide, data.dtype)
        whole[: len(data)] = data
        return reordered(whole, 0, order)

    rows = padded(expansion.weights, wide, -(-shape.depth // 32) * 32)
    last = padded(layer.projection, columns, block.row(shape))
    operands: Operands = {
        "x": view, "taps": byte_inverted.tap_words(window, wide, True),
        "middle_bias": channelwise(middle.begun(), byte_inverted.natural()),
        "expansion": byte_inverted.factors(reordered(rows, 0, byte_inverted.expanded()), 16, 2),
        "bias": channelwise(expansion.begun(), byte_inverted.stored()),
        "scale": channelwise(expansion.scale.astype(np.float32), byte_inverted.stored()),
        "middle_scale": channelwise(middle.scale.astype(np.float32), byte_inverted.natural()),
        "projection": byte_inverted.factors(in_order(last, 0), out * 16, 2),
        "corrections": np.concatenate([layer.correction, np.zeros(columns - len(layer.correction), np.int32)]),
    }  # fmt: skip
    return native_launch(
        ctx, "byte_bands", ("device.cu", "diagonal_bytes.cu", "pipeline.cu", "byte_stages.cu", "byte_bands.cu"),
        constants, operands, label="inverted_conv_2d", workgroup=(32 * block.warps, 1, 1),
        dispatch=(batch * block.bands(shape) * block.split, 1, 1), shared_bytes=block.shared_bytes(shape),
        variant=str(block), needed=(packing("s8"), packing("u8")),
    )  # fmt: skip
