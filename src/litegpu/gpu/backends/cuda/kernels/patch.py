"""Convolution whose windows lie side by side, as of patches of a picture, by products of four warps together."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Of the depth, in a step.
STEP = 64
#: Of the depth, that a product takes: a run of the window takes whole ones.
GROUP = 16


@dataclass(frozen=True)
class PatchTile:
    """A workgroup computes `teams` x 64 pixels times `columns` outputs; of the weights `stages` steps have places, of
    the input `ahead` steps are on their way; `resident` workgroups share a multiprocessor. `along` teams divide the
    depth."""

    teams: int
    columns: int
    stages: int
    ahead: int
    resident: int
    along: int = 1

    def __str__(self) -> str:
        divided = f"/{self.along}" if self.along > 1 else ""
        return f"patch {self.rows}x{self.columns}-{self.stages}-{self.ahead}-{self.resident}{divided}"

    @property
    def rows(self) -> int:
        return 64 * self.teams // self.along

    @property
    def threads(self) -> int:
        return 128 * self.teams

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.columns * 2 * STEP + 16)


@functools.cache
def candidates() -> tuple[PatchTile, ...]:
    """All tiles that are worth a try."""
    return tuple(
        PatchTile(teams, columns, stages, ahead, resident)
        for teams, residents in ((1, (6, 4, 3, 2)), (2, (2, 1)))
        for columns in (32, 64, 96, 128, 192)
        for stages in (1, 2, 3, 4)
        for ahead in (1, 2)
        for resident in residents
    )


def divided(steps: int) -> list[PatchTile]:
    """Tiles whose teams divide a depth of so many steps, for all of which there are places."""
    return [PatchTile(n, columns, steps, 2, 1, n) for n in (2, 4) for columns in (32, 64) if steps >= 2 * n]


def ranked(layer: Layer, capability: int, units: int) -> list[PatchTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    layer = layer.whole_pixels
    if capability != WARPGROUP_CAPABILITY or not _can(layer):
        return []
    fitting = [tile for tile in (*candidates(), *divided(steps_of(layer))) if _fits(tile, layer)]
    return sorted(fitting, key=lambda tile: (cost(layer, tile, units), tile.threads))


def _can(layer: Layer) -> bool:
    view, op, (_, kh, kw, inputs) = layer.source, layer.op, layer.weights.shape
    size, pitch = 4, view.strides[2]
    return (
        layer.half
        and view.dtype in LOAD
        and kh * kw > 1
        and op.stride == (kh, kw)
        and op.padding == (0, 0)
        and op.dilation == (1, 1) == op.upsample
        and (view.strides[3] == 1 or inputs == 1)
        and pitch == inputs
        and not any(n % size for n in (kw * inputs, view.offset, view.strides[0], view.strides[1]))
        and layer.shape[1] * kh <= view.shape[1]
        and layer.shape[2] * kw <= view.shape[2]
    )


def steps_of(layer: Layer) -> int:
    """Along the depth, whose runs take whole groups."""
    _, kh, kw, inputs = layer.weights.shape
    return int(-(-kh * -(-kw * inputs // GROUP) * GROUP // STEP))


def _fits(tile: PatchTile, layer: Layer) -> bool:
    steps, outputs = steps_of(layer), layer.shape[3]
    floats = layer.source.dtype is DType.FLOAT32
    registers = tile.columns // 2 + tile.ahead * (32 if floats else 16) + 16 + 24
    return (
        registers <= min(255, 65536 // (tile.resident * tile.threads)) // 8 * 8
        and tile.resident * (tile.shared_bytes + 1024) <= MOST_WARPGROUP_SHARED_BYTES + 1024
        and tile.ahead <= steps
        and tile.stages == (min(4, steps) if tile.along == 1 else steps)
        and (tile.columns < 2 * outputs or tile.columns == 32)
    )


def cost(layer: Layer, tile: PatchTile, units: int) -> float:
    """Estimated microseconds: what is on its way at once fills its latency, or memory or products take longer. (From
    counts; not fitted to measurements.)"""
    layer, units = layer.whole_pixels, units or USUAL_UNITS
    pixels, outputs, steps = math.prod(layer.shape[:3]), layer.shape[3], steps_of(layer)
    across = -(-outputs // tile.columns)
    groups = -(-pixels // tile.rows) * across
    products = steps * tile.rows * tile.columns / 32  # cycles
    stored = tile.rows * tile.columns / 16 + 500 + 300 * (tile.along - 1)
    alone = 3000 + steps / tile.along * max(1200 / tile.ahead, products / steps) + stored
    waves = (
        max(1, math.ceil(groups / (units * tile.resident)))
        if groups < 4 * units * tile.resident
        else groups / (units * tile.resident)
    )
    busy = -(-groups // units) * (products + steps * tile.columns * 128 / 40 + stored)
    size = 4 if layer.source.dtype is DType.FLOAT32 else 2
    read = pixels * math.prod(layer.weights.shape[1:]) * size
    moving = (read * (1 + 0.3 * (across - 1)) + pixels * outputs * 2) * 2.8e-7
    return float(1.0 + (max(alone * waves, busy) ** 3 / 1700**3 + moving**3) ** (1 / 3))


def packed(layer: Layer, tile: PatchTile) -> np.ndarray:
    """The weights as the tiles lie in shared memory (matrix() of warpgroup.cu): for each tile's outputs and each step
    one of [outputs, 64], chunks of 16 bytes permuted; each 16 of the depth in the order that patch.cu explains."""
    outputs, kh, kw, inputs = layer.weights.shape
    run, groups = kw * inputs, -(-kw * inputs // GROUP)
    across, steps = -(-outputs // tile.columns), steps_of(layer)
    runs = np.zeros((across * tile.columns, kh, groups * GROUP), np.float16)
    runs[:outputs, :, :run] = layer.weights.reshape(outputs, kh, run)
    whole = np.zeros((across * tile.columns, steps * STEP), np.float16)
    whole[:, : kh * groups * GROUP] = runs.reshape(across * tile.columns, -1)
    # element 4 t + 2 h + e of a group takes place 8 h + 2 t + e
    order = whole.reshape(len(whole), -1, 4, 2, 2).transpose(0, 1, 3, 2, 4)
    tiles = order.reshape(across, tile.columns, steps, 8, 8).transpose(0, 2, 1, 3, 4)
    row, chunk = np.arange(tile.columns)[:, None], np.arange(8)[None, :]
    return np.ascontiguousarray(tiles[:, :, row, chunk ^ row % 8])


def launch(ctx: KernelContext, layer: Layer, tile: PatchTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see patch.cu for the constants."""
    layer = layer.whole_pixels
    weights = packed(layer, tile)
    batch, height, width, outputs = layer.shape
    _, kh, kw, inputs = layer.weights.shape
    view, pixels = layer.source, batch * height * width
    constants: dict[str, int | str] = {
        "TEAMS": tile.teams, "BN": tile.columns, "STAGES": tile.stages, "AHEAD": tile.ahead, "RESIDENT": tile.resident,
        "ALONG": tile.along, "FLOATS": int(view.dtype is DType.FLOAT32), "TILES_N": weights.shape[0],
        "STEPS": weights.shape[1],
        "PIXELS": pixels, "QUADS": -(-outputs // 4), "OUT_H": height, "OUT_W": width, "RUN": kw * inputs,
        "KERNEL_H": kh, "STRIDE_Y": kh, "STRIDE_X": kw, "OFFSET": view.offset, "PITCH_B": view.strides[0],
        "PITCH_Y": view.strides[1], "PITCH_X": view.strides[2], "SHARED_BYTES": tile.shared_bytes,
    }  # fmt: skip
    operands: Operands = {"x": view, "w": weights}
    return native_launch(
        ctx, "patch_convolution",
        ("device.cu", "warpgroup.cu", "kept.cu", "pipeline.cu", "exchange.cu", "patch.cu"), constants, operands,
        label=label_of(ctx), workgroup=(tile.threads, 1, 1),
        dispatch=(-(-pixels // tile.rows) * weights.shape[0], 1, 1), shared_bytes=tile.shared_bytes,
        variant=str(tile), where=where, pixels=2, rounds=layer.rounds,
    )  # fmt: skip
