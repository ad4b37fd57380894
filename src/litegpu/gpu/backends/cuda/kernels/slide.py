"""Depthwise convolution by large windows that slide down: taps, and sums of all rows they reach, stay in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

THREADS = 64
#: Taps below which a tile of pixels has loads enough to spare.
LEAST_TAPS = 25
#: Of a thread; the compiler needs some for addresses beside those that are counted.
MOST_REGISTERS, OTHER_REGISTERS = 232, 30
#: Warps for each multiprocessor: with fewer, nothing hides what each waits for.
LEAST_WARPS = 6


@dataclass(frozen=True)
class Strip:
    """A thread computes two channels of `rows` rows of `x` output pixels."""

    x: int
    rows: int

    def __str__(self) -> str:
        return f"2 of {self.rows}x{self.x} sliding"

    def blocks(self, layer: Layer) -> tuple[int, int]:
        """Strips along a row, and down."""
        return -(-layer.shape[2] // self.x), -(-layer.shape[1] // self.rows)

    def threads(self, layer: Layer) -> int:
        return layer.shape[0] * math.prod(self.blocks(layer)) * layer.source.quads * 2

    def registers(self, layer: Layer) -> int:
        _, kh, kw, _ = layer.weights.shape
        return int(2 * kh * kw + 2 * kh * self.x + 3 * (self.x + kw - 1) + OTHER_REGISTERS)


def best(layer: Layer, units: int) -> Strip | None:
    """The cheapest strip; None if the kernel cannot do the layer or has too little to do."""
    op, (_, kh, kw, _) = layer.op, layer.weights.shape
    plain = op.stride == (1, 1) and op.dilation == (1, 1) and layer.vector and np.isfinite(layer.weights).all()
    if not plain or layer.whole_numbers or kh * kw < LEAST_TAPS:
        return None
    units = units or USUAL_UNITS
    strips = [
        strip
        for x in (4, 6, 8)
        for rows in {-(-layer.shape[1] // n) for n in range(1, 9)}
        if (strip := Strip(x, rows)).registers(layer) <= MOST_REGISTERS
        and strip.threads(layer) >= LEAST_WARPS * 32 * units
    ]
    return min(strips, key=lambda strip: cost(layer, strip, units), default=None)


#: Of a multiprocessor, in a microsecond; bytes of the device's memory in one; until the first loads have arrived.
CYCLES, MEMORY, LATENCY = 1700, 4e6, 0.6


def cost(layer: Layer, strip: Strip, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors, from counts of instructions and registers."""
    _, kh, kw, channels = layer.weights.shape
    batch, out_h, out_w, _ = layer.shape
    columns, size = strip.x + kw - 1, 2 if layer.half else 4
    rows = strip.rows + kh - 1
    instructions = 2 * kh * kw + rows * (columns * 7 + 20) + strip.rows * strip.x * (2 * kh * kw + 16)
    resident = max(1, 65536 // (strip.registers(layer) * 32))
    waves, rest = divmod(strip.threads(layer) / 32 / units, resident)
    # four schedulers issue for those that are resident; the last few warps wait for their own results
    times = waves * max(resident * 1.1 / 4, 1.3) + (max(rest * 1.1 / 4, 1.3) if rest else 0)
    issued = times * instructions / CYCLES
    moved = math.prod(layer.source.shape[1:3]) + out_h * out_w * (1 + layer.residuals)
    memory = batch * moved * channels * size / MEMORY
    return float(LATENCY + sum(part**4 for part in (issued, memory)) ** 0.25)


def launch(ctx: KernelContext, layer: Layer, strip: Strip, packed: np.ndarray) -> Launch:
    """The convolution by strips with weights as [taps, channels]; see slide.cu for the constants."""
    across, down = strip.blocks(layer)
    constants: dict[str, int | str] = {
        **layer.constants(), "HALF": int(layer.half), "KERNEL_H": layer.weights.shape[1], "THREADS": THREADS,
        "TX": strip.x, "ROWS": strip.rows, "BLOCKS_X": across, "BLOCKS_Y": down, "BATCH": layer.shape[0],
        "PAIRS": layer.source.quads * 2,
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": packed}
    groups = -(-strip.threads(layer) // THREADS)
    return native_launch(
        ctx, "sliding_depthwise", ("slide.cu",), constants, operands, label="depthwise_conv_2d",
        workgroup=(THREADS, 1, 1), dispatch=(groups, 1, 1), variant=str(strip),
    )  # fmt: skip
