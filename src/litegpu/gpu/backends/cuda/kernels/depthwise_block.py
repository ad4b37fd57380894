"""How depthwise kernels divide their work, and what that takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import DType

#: Of a multiprocessor, in a microsecond.
CYCLES = 1700
#: Bytes of the device's memory in a microsecond, and of a multiprocessor's first and second cache in a cycle.
MEMORY, FIRST, SECOND = 4e6, 100, 40
#: Until the first loads have arrived, in microseconds.
LATENCY = 0.6


@dataclass(frozen=True)
class DepthwiseBlock:
    """A thread computes `lanes` channels of y x x pixels; a workgroup has chunks x rows x columns such threads."""

    lanes: int
    y: int
    x: int
    chunks: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.lanes} of {self.y}x{self.x} by {self.chunks}x{self.rows}x{self.columns}"

    @property
    def threads(self) -> int:
        return self.chunks * self.rows * self.columns

    def groups(self, layer: Layer) -> tuple[int, int, int, int]:
        """Workgroups along chunks, columns, rows and images."""
        batch, out_h, out_w, _ = layer.shape
        return (
            -(-chunks_of(layer, self.lanes) // self.chunks),
            -(-out_w // (self.x * self.columns)),
            -(-out_h // (self.y * self.rows)),
            batch,
        )


def chunks_of(layer: Layer, lanes: int) -> int:
    """Of the channels."""
    return -(-layer.source.quads * 4 // lanes)


def lanes_of(layer: Layer) -> tuple[int, ...]:
    """Of a thread: channels that can be read at once."""
    return {16: (8, 16), 8: (4, 8)}.get(layer.vector, (4,))


def kind_of(layer: Layer) -> int:
    """Of bytes, as kernels call it: 1 signed, 2 unsigned, 0 none."""
    return {DType.INT8: 1, DType.UINT8: 2}.get(layer.source.dtype, 0) if layer.whole_numbers else 0


def packed(layer: Layer) -> np.ndarray:
    """The weights as [taps, channels], channels padded as the input's are."""
    _, kh, kw, channels = layer.weights.shape
    result = np.zeros((kh * kw, layer.source.quads * 4), np.float32)
    result[:, :channels] = layer.weights.reshape(kh * kw, channels)
    return result


def estimate(
    layer: Layer, units: int, *, threads: int, groups: int, instructions: float, registers: int, first: float,
    second: float, arrival: float = LATENCY,
) -> float:  # fmt: skip
    """Microseconds on a device of `units` multiprocessors, of `groups` workgroups of `threads` with so many
    instructions and registers each; `first` bytes that a thread, `second` those that a workgroup reads, through the
    first and the second cache; `arrival` microseconds that a thread waits for what it loads. The longest of these hides
    most of the others: what threads take by themselves, issuing the instructions of all that share a multiprocessor,
    and moving bytes through each level of memory."""
    units = units or USUAL_UNITS
    batch, out_h, out_w, channels = layer.shape
    warps, share = -(-threads // 32), -(-groups // units)
    resident = max(1, min(32, 64 // warps, 65536 // (min(255, registers) * 32 * warps)))
    waves = max(1.0, share / resident)
    alone = waves * arrival - LATENCY + waves * 1.3 * instructions / CYCLES
    issued = share * warps * instructions / 4 * 1.15 / CYCLES
    near = share * threads * first / FIRST / CYCLES
    far = share * second / SECOND / CYCLES
    memory = batch * (math.prod(layer.source.shape[1:3]) + out_h * out_w) * channels * layer.size / MEMORY
    return float(LATENCY + sum(part**4 for part in (alone, issued, near, far, memory)) ** 0.25)
