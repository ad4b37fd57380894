"""Convolution of one to four channels on tensor cores: a network's first layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer, stored_constants
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_SHARED_BYTES, USUAL_UNITS
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

MOST_CHANNELS = 4
#: Pixels of a line of a block.
LINE = 16
#: Threads on a multiprocessor: each workgroup walks over its share of the blocks.
RESIDENT_THREADS = 512
#: The loop over the depth is unrolled, and a thread holds the pixels that it loads.
MOST_DEPTH, MOST_LOADS = 512, 8
#: Products of bytes less their zero point with bytes, the sums of which tensor cores have exact in float32.
MOST_EXACT = (1 << 23) // (255 * 127)
#: Of the estimates, in a microsecond.
CYCLES = 1700


@dataclass(frozen=True)
class StemBlock:
    """A workgroup computes `columns` outputs of y x 16 pixels at a time; its warps divide lines and outputs."""

    y: int
    columns: int
    warps: tuple[int, int]

    def __str__(self) -> str:
        return f"stem {self.y}x{LINE}x{self.columns}-{self.warps[0]}x{self.warps[1]}"

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]

    @property
    def resident(self) -> int:
        """Workgroups on a multiprocessor."""
        return RESIDENT_THREADS // self.threads

    @property
    def at_once(self) -> int:
        """Rows that a lane stores at once: of those that lie side by side it has one in `down`."""
        down = 32 * 4 * self.warps[1] // self.columns
        return min(4, 16 // down)


#: A warp has 16, 32 or 64 outputs.
CANDIDATES = (
    StemBlock(4, 16, (4, 1)), StemBlock(8, 16, (4, 1)), StemBlock(16, 16, (8, 1)),
    StemBlock(4, 32, (4, 1)), StemBlock(8, 32, (4, 1)), StemBlock(8, 32, (8, 1)), StemBlock(16, 32, (8, 1)),
    StemBlock(4, 64, (4, 1)), StemBlock(4, 64, (2, 2)), StemBlock(8, 64, (4, 2)), StemBlock(8, 64, (8, 1)),
)  # fmt: skip


def ranked(layer: Layer, units: int) -> list[StemBlock]:
    """The candidates that fit, the cheapest first; none for what the kernel cannot do."""
    _, kh, kw, inputs = layer.weights.shape
    if layer.whole_numbers and kh * kw * inputs > MOST_EXACT:
        return []
    if not (layer.half or layer.whole_numbers) or inputs > MOST_CHANNELS or kh * kw < 4 or layer.op.dilation[1] > 1:
        return []
    if depth(layer) > MOST_DEPTH:
        return []
    outputs = layer.shape[3]
    fitting = [
        block for block in CANDIDATES
        if (block.columns < 2 * outputs or block.columns == 16)
        and halo(layer, block)[0] * halo(layer, block)[1] <= MOST_LOADS * block.threads
        and shared_bytes(layer, block) <= MOST_SHARED_BYTES
    ]  # fmt: skip
    return sorted(fitting, key=lambda block: (cost(layer, block, units), block.threads))


def launch(ctx: KernelContext, layer: Layer, block: StemBlock, where: Where | None = None) -> Launch:
    """The convolution by blocks; see stem.cu for the constants."""
    weights = packed(layer, block.columns)
    batch, out_h, out_w, outputs = layer.shape
    columns, down, across = weights.shape[0] // block.columns, -(-out_h // block.y), -(-out_w // LINE)
    units = ctx.features.compute_units or USUAL_UNITS
    groups = min(batch * down * across, max(1, block.resident * units // columns))
    source, load = layer.load
    constants: dict[str, int | str] = {
        **layer.constants(), "CHANNELS": layer.weights.shape[3], "SOURCE": source, "LOAD(value)": load, "BY": block.y,
        "BN": block.columns, "WARPS_M": block.warps[0], "WARPS_N": block.warps[1], "TILES_N": columns, "TILES_Y": down,
        "TILES_X": across, "BATCH": batch, "GROUPS": groups, "AT_ONCE": block.at_once, "QUADS": -(-outputs // 4),
        "DEPTH": weights.shape[1], "SHARED_BYTES": shared_bytes(layer, block), "WHOLE": int(layer.whole_numbers),
        **stored_constants(layer.source.dtype, layer.op.zero_point or 0),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": weights}
    return native_launch(
        ctx, "stem_convolution", ("device.cu", "turned.cu", "border.cu", "stored.cu", "stem.cu"), constants, operands,
        label=label_of(ctx),
        workgroup=(block.threads, 1, 1), dispatch=(groups * columns, 1, 1),
        shared_bytes=shared_bytes(layer, block), variant=str(block), where=where, pixels=block.at_once,
        rounds=layer.rounds,
    )  # fmt: skip


def packed(layer: Layer, columns: int) -> np.ndarray:
    """The weights as [outputs, rows of the window, columns of it by four channels], the outputs and columns in whole
    tiles and pairs."""
    outputs, kh, kw, inputs = layer.weights.shape
    rows = np.zeros((outputs, kh, -(-kw // 2) * 2, 4), np.float16)
    rows[:, :, :kw, :inputs] = layer.weights
    flat = rows.reshape(outputs, -1)
    result = np.zeros((-(-outputs // columns) * columns, depth(layer)), np.float16)
    result[:outputs, : flat.shape[1]] = flat
    return result


def shared_bytes(layer: Layer, block: StemBlock) -> int:
    """The pixels, the weights and the sums, as stem.cu lays them out."""
    high, wide = halo(layer, block)
    copies = layer.op.stride[1] % 2 + 1
    copy = -(-high * -(-wide // 2) * 16 // 128) * 128 + 64
    warps, columns = block.warps[0] * block.warps[1], block.columns // block.warps[1]
    pixels = copies * copy + 64 * (copies % 2)
    return pixels + block.columns * (depth(layer) // 8 | 1) * 16 + warps * 16 * (columns + 8) * 4


def cost(layer: Layer, block: StemBlock, units: int) -> float:
    """Estimated microseconds: the weights once, then for each block loading, multiplying and storing. (From counts of
    instructions; not fitted to measurements.)"""
    units = units or USUAL_UNITS
    batch, out_h, out_w, outputs = layer.shape
    blocks = batch * -(-out_h // block.y) * -(-out_w // LINE) * -(-outputs // block.columns)
    high, wide = halo(layer, block)
    pixels = block.y * LINE
    busy = (
        1.3 * pixels * block.columns * depth(layer) / 1024
        + high * wide * layer.weights.shape[3] / 8
        + pixels * block.columns / 16
    )
    alone = busy * max(1.0, 8 / (block.threads // 32)) + 1200
    share = blocks / units
    return float((2500 + max(share * busy, -(-blocks // (units * block.resident)) * alone)) / CYCLES)


def depth(layer: Layer) -> int:
    _, kh, kw, _ = layer.weights.shape
    return int(-(-kh * -(-kw // 2) // 4) * 32)


def halo(layer: Layer, block: StemBlock) -> tuple[int, int]:
    """Lines and columns of the pixels that a block needs."""
    op, (_, kh, kw, _) = layer.op, layer.weights.shape
    lines = (block.y - 1) * op.stride[0] + (kh - 1) * op.dilation[0] + 1
    return lines, (LINE - 1) * op.stride[1] + -(-kw // 2) * 2
