"""Convolution of floats as products of halves, by warps that copy and warps that multiply, on devices that have
warpgroup products."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import fetched, halved
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.specialized import copies_windows, tiles_of
from litegpu.gpu.backends.cuda.kernels.tile import (
    MOST_WARPGROUP_SHARED_BYTES,
    USUAL_UNITS,
    WARPGROUP_CAPABILITY,
    divided_registers,
)
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Numbers of the depth that a step takes, and halves that a weight is.
STEP, PARTS = 32, 3


@dataclass(frozen=True)
class FloatTile:
    """A workgroup computes rows x columns: `consumers` warpgroups multiply what other warps copy `stages` steps ahead.
    `resident` workgroups share a multiprocessor."""

    rows: int
    columns: int
    consumers: int
    stages: int
    resident: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}-{self.consumers}h-{self.stages}-{self.resident}"

    @property
    def copying(self) -> int:
        """Threads that copy. Those of a whole warpgroup give registers up to the others."""
        return 128 if self.resident == 1 else 64

    @property
    def threads(self) -> int:
        return 128 * self.consumers + self.copying

    @property
    def shared_bytes(self) -> int:
        """The ring, whose place the sums take, its barriers, and a word."""
        ring = self.stages * (self.rows * 4 + self.columns * 2 * PARTS) * STEP
        return max(ring, 64 * self.consumers * (self.columns + 8) * 4) + 16 * self.stages + 16

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies. The warps are divided among four schedulers."""
        each = min(255, 512 // -(-self.resident * self.threads // 128)) // 8 * 8
        if self.copying < 128:
            return each, each
        return divided_registers(each, self.consumers, 40 if self.rows <= 128 else 56)

    @property
    def wide(self) -> int:
        """Columns that are multiplied at once."""
        return 64 if self.columns % 64 == 0 and self._needed(64) <= self.registers[1] else 32

    @property
    def ahead(self) -> bool:
        """Whether there are registers for the products of two parts."""
        return self._needed(2 * self.wide) <= self.registers[1]

    def _needed(self, found: int) -> int:
        """Registers of a thread that multiplies, with sums of so many columns apart."""
        blocks = self.rows // self.consumers // 64
        return (blocks * self.columns + found) // 2 + 18 * blocks + 22

    def fits(self) -> bool:
        shared = self.resident * (self.shared_bytes + 1024)
        return self._needed(self.wide) <= self.registers[1] and shared <= MOST_WARPGROUP_SHARED_BYTES + 1024


@functools.cache
def candidates() -> tuple[FloatTile, ...]:
    """All tiles that are worth a try."""
    shapes = [
        (64, 32, 1, 4, 3), (64, 64, 1, 3, 3), (64, 64, 1, 4, 2), (64, 128, 1, 3, 2), (64, 256, 1, 4, 1),
        (128, 32, 2, 4, 2), (128, 64, 2, 3, 2), (128, 64, 2, 4, 2), (128, 96, 2, 4, 1), (128, 128, 2, 4, 1),
        (128, 128, 2, 5, 1), (128, 192, 2, 4, 1), (128, 256, 2, 3, 1), (192, 64, 3, 5, 1), (192, 128, 3, 4, 1),
        (256, 64, 2, 4, 1), (256, 64, 4, 4, 1), (256, 128, 2, 3, 1),
    ]  # fmt: skip
    return tuple(FloatTile(*shape) for shape in shapes)


def takes(layer: Layer, capability: int) -> bool:
    """Whether the kernel can do the layer."""
    plain = layer.prologue is None and layer.norm is None and layer.behind is None
    return (
        capability == WARPGROUP_CAPABILITY
        and layer.tf32
        and plain
        and layer.told is None
        and layer.tells is None
        and layer.vector == 4
        and copies_windows(layer)
    )


def steps_of(layer: Layer) -> int:
    """Along the depth."""
    return -(-layer.depth // STEP)


def ranked(layer: Layer, capability: int, units: int) -> list[FloatTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    if not takes(layer, capability):
        return []
    found = [tile for tile in candidates() if _suits(tile, layer)]
    return sorted(found, key=lambda tile: (cost(layer, tile, units), tile.threads))


def _suits(tile: FloatTile, layer: Layer) -> bool:
    """Whether no smaller tile does the same work."""
    narrow = tile.columns < 2 * layer.shape[3] or tile.columns == 32
    return narrow and (tile.rows < 2 * math.prod(layer.shape[:3]) or tile.rows == 64)


def cost(layer: Layer, tile: FloatTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    Fitted to 560 measurements of 33 layers on an H100, random numbers: 6% off, and the first choice takes 2% longer
    than the best one on average. A workgroup takes as long as its steps, of which the slower part is multiplying or
    fetching what is multiplied, and as its sums take to be stored; those that share a multiprocessor overlap. Beside
    that stands what the memory takes.
    """
    units = units or USUAL_UNITS
    pixels, (outputs, kh, kw, inputs) = math.prod(layer.shape[:3]), layer.weights.shape
    steps, tiles, sums = steps_of(layer), tiles_of(layer, tile), tile.rows * tile.columns
    copied = (tile.rows * 4 * (1.0 if kh * kw == 1 else 1.06) + tile.columns * 2 * PARTS) * STEP
    multiplied = 2.65e-5 * sums
    busy = 0.035 + max(multiplied + 1.7e-3 * tile.rows, 1.1e-5 * copied)
    slowest = max(busy, multiplied + 0.235 / tile.consumers, 0.6 / (tile.stages - 1))
    alone = 1.5 + steps * slowest + 1.8e-4 * sums / tile.consumers
    waves = max(1.0, tiles / (units * tile.resident))
    computing = max(alone * waves**1.03, -(-tiles // units) * (steps * busy + 1.8e-4 * sums))
    read = min(math.prod(layer.source.shape[:3]), pixels * (math.prod(layer.op.stride) if kh * kw > 1 else 1)) * inputs
    moving = (read + layer.stored * outputs * (1 + layer.residuals)) * 4 * 4.2e-5 / units
    return float(1.26 + (computing**3 + moving**3) ** (1 / 3))


def packed(layer: Layer, tile: FloatTile) -> tuple[np.ndarray, np.ndarray]:
    """The weights as the tiles lie in shared memory: for each tile's outputs and each step three of halves, the chunks
    of 16 bytes of whose rows are permuted (matrix() of warpgroup.cu); and what undoes the scale of each output."""
    outputs, kh, kw, inputs = layer.weights.shape
    taps, across, steps = kh * kw, -(-outputs // tile.columns), steps_of(layer)
    rows = np.zeros((outputs, taps, layer.depth // taps), np.float32)
    rows[..., :inputs] = layer.weights.reshape(outputs, taps, inputs)
    scales = halved.scales(rows)
    whole = np.zeros((across * tile.columns, steps * STEP), np.float32)
    whole[:outputs, : layer.depth] = rows.reshape(outputs, -1) * scales[:, None]
    parts = np.stack([halved.paired(part) for part in halved.halves(whole)])
    chunks = STEP // 8
    tiles = parts.reshape(PARTS, across, tile.columns, steps, chunks, 8).transpose(1, 3, 0, 2, 4, 5)
    row, chunk = np.arange(tile.columns)[:, None], np.arange(chunks)[None, :]
    unscaled = np.ones(across * tile.columns, np.float32)
    unscaled[:outputs] = 1 / scales
    return np.ascontiguousarray(tiles[:, :, :, row, chunk ^ row // 2 % chunks]), unscaled


def launch(ctx: KernelContext, layer: Layer, tile: FloatTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see float_convolution.cu for the constants."""
    weights, unscaled = packed(layer, tile)
    at_once = 4 if tile.columns < 64 or layer.side > 1 else 8
    copy, multiply = tile.registers
    constants: dict[str, int | str] = {
        **layer.constants(), "VECTOR": layer.vector, "BYTES": layer.size, "BM": tile.rows, "BN": tile.columns,
        "BK": STEP, "STAGES": tile.stages, "CONSUMERS": tile.consumers, "RESIDENT": tile.resident,
        "COPYING": tile.copying, "REGISTERS_COPY": copy, "REGISTERS_MULTIPLY": multiply, "TILES_N": weights.shape[0],
        "STEPS": weights.shape[1], "WIDE": tile.wide, "AHEAD": int(tile.ahead), "AT_ONCE": at_once,
        "PIXELS": layer.stored, "QUADS": -(-layer.shape[3] // 4), "SHARED_BYTES": tile.shared_bytes,
    }  # fmt: skip
    if layer.side > 1:
        constants["SIDE"] = layer.side
    operands: Operands = {"x": layer.source, "w": weights, "scales": unscaled}
    files = (
        "device.cu", "warpgroup.cu", "kept.cu", "pipeline.cu", "elements.cu", "rows.cu", "halved.cu",
        "float_convolution.cu",
    )  # fmt: skip
    return native_launch(
        ctx, "float_convolution", files, constants, operands, label=label_of(ctx), workgroup=(tile.threads, 1, 1),
        dispatch=(tiles_of(layer, tile), 1, 1), shared_bytes=tile.shared_bytes, variant=str(tile), where=where,
        pixels=at_once, inner=fetched.functions_of(ctx, layer),
    )  # fmt: skip
