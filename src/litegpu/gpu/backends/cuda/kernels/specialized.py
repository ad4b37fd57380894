"""Convolution by warps that copy and warps that multiply, on devices that have warpgroup products."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Of the sum, in a step: what 128 bytes hold. Shallower layers have little to copy.
DEPTH, LEAST_DEPTH = 64, 40
#: Bits of a word, one for each tap.
MOST_TAPS = 32


@dataclass(frozen=True)
class SpecializedTile:
    """A workgroup computes rows x columns: `consumers` warpgroups multiply what other warps copy `stages` steps ahead.
    `resident` workgroups share a multiprocessor."""

    rows: int
    columns: int
    consumers: int
    stages: int
    resident: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}-{self.consumers}s-{self.stages}-{self.resident}"

    @property
    def copying(self) -> int:
        """Threads that copy. Those of a whole warpgroup give registers up to the others."""
        return 128 if self.resident == 1 else 64

    @property
    def threads(self) -> int:
        return 128 * self.consumers + self.copying

    @property
    def shared_bytes(self) -> int:
        """The ring, and its barriers."""
        return self.stages * ((self.rows + self.columns) * 2 * DEPTH + 16)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies."""
        each = min(255, 65536 // (self.resident * self.threads)) // 8 * 8
        if self.copying < 128:
            return each, each
        copy = 40 if self.rows <= 128 else 56
        return copy, min(240, (each * (self.consumers + 1) - copy) // self.consumers // 8 * 8)

    def fits(self) -> bool:
        sums = self.rows // self.consumers // 64 * self.columns // 2
        staging = 16 * (self.columns + 8) * 4 * 4 * self.consumers
        return (
            sums + 32 <= self.registers[1]
            and self.resident * (self.shared_bytes + 1024) <= MOST_WARPGROUP_SHARED_BYTES + 1024
            and staging <= self.stages * (self.rows + self.columns) * 2 * DEPTH
        )


@functools.cache
def candidates() -> tuple[SpecializedTile, ...]:
    """All tiles that are worth a try."""
    shapes = [
        (64, 32, 1, 4, 4), (64, 32, 1, 3, 4), (64, 64, 1, 3, 4), (64, 64, 1, 2, 4), (64, 96, 1, 3, 3),
        (64, 128, 1, 4, 2), (64, 128, 1, 3, 3), (64, 128, 1, 2, 3), (64, 192, 1, 3, 2), (64, 256, 1, 4, 1),
        (128, 32, 2, 4, 2), (128, 32, 2, 3, 3), (128, 64, 2, 4, 2), (128, 64, 2, 3, 3), (128, 64, 2, 2, 3),
        (128, 96, 2, 3, 2), (128, 96, 2, 2, 2), (128, 128, 2, 3, 2), (128, 128, 1, 3, 2), (128, 128, 1, 2, 2),
        (128, 192, 2, 4, 1), (128, 256, 2, 4, 1), (128, 256, 2, 3, 1), (256, 64, 2, 2, 2), (256, 128, 2, 4, 1),
    ]  # fmt: skip
    return tuple(SpecializedTile(*shape) for shape in shapes)


def ranked(layer: Layer, capability: int, units: int) -> list[SpecializedTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    if not _can(layer, capability):
        return []
    sensible = [tile for tile in candidates() if _suits(tile, layer)]
    return sorted(sensible, key=lambda tile: (cost(layer, tile, units), tile.threads))


def _can(layer: Layer, capability: int) -> bool:
    return (
        capability == WARPGROUP_CAPABILITY
        and layer.half
        and layer.vector == 8
        and layer.depth >= LEAST_DEPTH
        and layer.op.upsample == (1, 1)
        and layer.op.border == "zero"
        and layer.weights.shape[1] * layer.weights.shape[2] <= MOST_TAPS
    )


def _suits(tile: SpecializedTile, layer: Layer) -> bool:
    """Whether no smaller tile or ring does the same work."""
    outputs, steps = layer.shape[3], -(-layer.depth // DEPTH)
    return tile.stages <= max(3, steps) and (tile.columns < 2 * outputs or tile.columns == 32)


def cost(layer: Layer, tile: SpecializedTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    Fitted to 1100 measurements of 71 layers on an H200: the first choice takes 3% longer than the best one on average.
    A workgroup takes as long as its steps, of which the slowest part is multiplying, fetching what is multiplied, or
    issuing the copies, and as its sums take to be stored; those that share a multiprocessor overlap. Beside that stands
    what the memory takes for the layer's input, output and what else the epilogue reads.
    """
    pixels, outputs = math.prod(layer.shape[:3]), layer.shape[3]
    _, kh, kw, _ = layer.weights.shape
    units = units or USUAL_UNITS
    groups = -(-pixels // tile.rows) * -(-outputs // tile.columns)
    steps = -(-layer.depth // DEPTH)
    sums = tile.rows * tile.columns
    copies = tile.rows * DEPTH / 8 / tile.copying * (1.32 if kh * kw > 1 else 1.0)
    issuing = 0.044 + 0.0218 * copies
    multiplying = max(sums * DEPTH * 2.8e-7, (tile.rows + tile.columns) * DEPTH * 2 * 5.2e-7)
    stored = sums * (1.89e-4 + 5.95e-5 * layer.residuals)
    alone = 1.45 + steps * max(issuing, multiplying, 0.129 / min(tile.stages - 1, steps)) + stored / tile.consumers
    busy = -(-groups // units) * (steps * (0.135 + multiplying) + 0.0735 + 0.332 * stored)
    computing = max(alone * max(1.0, groups / (units * tile.resident)) ** 0.982, busy)
    batch, height, width, channels = layer.source.shape
    read = min(batch * height * width, pixels * (math.prod(layer.op.stride) if kh * kw > 1 else 1)) * channels
    moving = (read + pixels * outputs * (1 + layer.residuals)) * 2 * 3.82e-5 / units
    # beside the estimates of other kernels, which are too low for large layers
    return float(0.6 + 0.9 * (computing**3 + moving**3) ** (1 / 3))


def packed(layer: Layer, tile: SpecializedTile) -> np.ndarray:
    """The weights as the tiles lie in shared memory: for each tile's outputs and each step one, the chunks of 16 bytes
    of whose rows are permuted (place() of specialized.cu)."""
    outputs, kh, kw, inputs = layer.weights.shape
    channels = layer.depth // (kh * kw)
    across, steps = -(-outputs // tile.columns), -(-layer.depth // DEPTH)
    rows = np.zeros((outputs, kh * kw, channels), np.float16)
    rows[..., :inputs] = layer.weights.reshape(outputs, kh * kw, inputs)
    whole = np.zeros((across * tile.columns, steps * DEPTH), np.float16)
    whole[:outputs, : layer.depth] = rows.reshape(outputs, -1)
    tiles = whole.reshape(across, tile.columns, steps, DEPTH // 8, 8).transpose(0, 2, 1, 3, 4)
    row, chunk = np.arange(tile.columns)[:, None], np.arange(DEPTH // 8)[None, :]
    return np.ascontiguousarray(tiles[:, :, row, chunk ^ row % 8])


def launch(ctx: KernelContext, layer: Layer, tile: SpecializedTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see specialized.cu for the constants."""
    weights = packed(layer, tile)
    batch, height, width, outputs = layer.shape
    pixels = batch * height * width
    at_once = 4 if tile.columns < 64 else 8
    copy, multiply = tile.registers
    constants: dict[str, int | str] = {
        **layer.constants(), "BM": tile.rows, "BN": tile.columns, "BK": DEPTH, "STAGES": tile.stages,
        "CONSUMERS": tile.consumers, "RESIDENT": tile.resident, "COPYING": tile.copying, "REGISTERS_COPY": copy,
        "REGISTERS_MULTIPLY": multiply, "TILES_N": weights.shape[0], "STEPS": weights.shape[1], "AT_ONCE": at_once,
        "PIXELS": pixels, "QUADS": -(-outputs // 4),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": weights}
    return native_launch(
        ctx, "specialized_convolution", ("device.cu", "warpgroup.cu", "pipeline.cu", "specialized.cu"), constants,
        operands, label=label_of(ctx), workgroup=(tile.threads, 1, 1),
        dispatch=(-(-pixels // tile.rows) * weights.shape[0], 1, 1), shared_bytes=tile.shared_bytes,
        variant=str(tile), where=where, pixels=at_once,
    )  # fmt: skip
