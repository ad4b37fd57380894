"""Depthwise convolution with long windows: along time, or large kernels."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.depthwise_block import chunks_of, estimate, kind_of, lanes_of, packed
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Windows with so many taps along an axis have a loop over these; shorter ones are unrolled by depthwise.cu.
LONG = 9
#: Pixels of a thread along the window's long axis, and its sums: as many numbers of the input are in registers too.
OUTPUTS = (1, 2, 4, 8, 16)
MOST_SUMS = 64
MOST_THREADS = 256
#: Taps whose loads are under way at once, a multiple of all OUTPUTS, and until these have arrived, in microseconds.
AT_ONCE, ARRIVAL = 16, 0.3


@dataclass(frozen=True)
class LongBlock:
    """A thread computes `lanes` channels of `outputs` pixels along the long axis; a workgroup has chunks x along x
    across such threads, `across` along the other axis."""

    lanes: int
    outputs: int
    chunks: int
    along: int
    across: int

    def __str__(self) -> str:
        return f"{self.lanes} of {self.outputs} by {self.chunks}x{self.along}x{self.across}"

    @property
    def threads(self) -> int:
        return self.chunks * self.along * self.across

    def groups(self, layer: Layer) -> tuple[int, int, int, int]:
        """Workgroups along chunks, the long axis, the other one, and images."""
        axis, (spacing, _) = axis_of(layer), _pace(layer)
        along = -(-layer.shape[axis] // (self.outputs * spacing)) * spacing
        return (
            -(-chunks_of(layer, self.lanes) // self.chunks),
            -(-along // self.along),
            -(-layer.shape[3 - axis] // self.across),
            layer.shape[0],
        )


def axis_of(layer: Layer) -> int:
    """Of a [B, H, W, C]: the one along which the window is longer, of equal ones the one along which memory goes."""
    _, kh, kw, _ = layer.weights.shape
    return 1 if kh > kw else 2


def is_long(layer: Layer) -> bool:
    """Whether the window is one for this kernel rather than unrolled."""
    return bool(max(layer.weights.shape[1:3]) >= LONG)


def ranked(layer: Layer, units: int) -> list[LongBlock]:
    """For every division into threads the cheapest workgroup, the cheapest first; none if the kernel cannot do it."""
    if layer.vector == 0:
        return []
    best: dict[tuple[int, int], LongBlock] = {}
    for block in sorted(candidates(layer), key=lambda b: (cost(layer, b, units), b.threads)):
        best.setdefault((block.lanes, block.outputs), block)
    return list(best.values())


def candidates(layer: Layer) -> list[LongBlock]:
    """All blocks that are worth a try; of outputs that are few those of workgroups less than a warp too."""
    return _of_threads(layer, 24) or _of_threads(layer, 1)


def _of_threads(layer: Layer, least: int) -> list[LongBlock]:
    """The blocks with workgroups of so many threads at least."""
    found: dict[tuple[int, ...], LongBlock] = {}
    axis = axis_of(layer)
    length, width = layer.shape[axis], layer.shape[3 - axis]
    for lanes, outputs in itertools.product(lanes_of(layer), OUTPUTS):
        if lanes * outputs > MOST_SUMS or outputs >= 2 * length:
            continue
        n = chunks_of(layer, lanes)
        for most in (8, 16, 32):
            chunks = -(-n // -(-n // most))  # divided evenly among workgroups
            for along, across in itertools.product((1, 2, 4, 8, 16), (1, 2, 4)):
                fits = (along == 1 or along * outputs < 2 * length) and (across == 1 or across < 2 * width)
                if fits and least <= chunks * along * across <= MOST_THREADS:
                    numbers = lanes, outputs, chunks, along, across
                    found.setdefault(numbers, LongBlock(*numbers))
    return list(found.values())


def cost(layer: Layer, block: LongBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: from counts of instructions."""
    lanes, outputs, taps = block.lanes, block.outputs, math.prod(layer.weights.shape[1:3])
    axis, (_spacing, phases) = axis_of(layer), _pace(layer)
    rings = layer.weights.shape[3 - axis] * phases * outputs  # inputs that are loaded before the taps
    convert = 2 * lanes if layer.whole_numbers else lanes if layer.half else 0
    multiply = lanes * (2 if layer.whole_numbers else 1)
    loads = taps + rings
    instructions = loads * (6 + convert) + taps * (lanes / 4 + multiply * outputs) + outputs * lanes * 5 + 60
    inputs = (
        block.across + layer.weights.shape[3 - axis],
        block.along * outputs * layer.op.stride[axis - 1] + (layer.weights.shape[axis] * layer.op.dilation[axis - 1]),
    )
    return estimate(
        layer, units, threads=block.threads, groups=math.prod(block.groups(layer)), instructions=instructions,
        registers=64 + 2 * lanes * outputs + 4 * lanes, first=(loads * layer.size + taps * 4) * lanes,
        second=(math.prod(inputs) + taps * 4 / layer.size) * block.chunks * lanes * layer.size,
        arrival=ARRIVAL * layer.weights.shape[3 - axis] * phases * -(-layer.weights.shape[axis] // phases // AT_ONCE),
    )  # fmt: skip


def launch(ctx: KernelContext, layer: Layer, block: LongBlock) -> Launch:
    """The convolution with the given block; see long_depthwise.cu for the constants."""
    groups, axis, (spacing, phases) = block.groups(layer), axis_of(layer), _pace(layer)
    weights = packed(layer)
    operands: Operands = {"x": layer.source, "w": weights.astype(np.int32) if layer.whole_numbers else weights}
    constants: dict[str, int | str] = {
        **layer.constants(), "HALF": int(layer.half), "BYTES": kind_of(layer), "ZERO_POINT": layer.op.zero_point or 0,
        "SOURCE": layer.load[0], "AT_ONCE": AT_ONCE,
        "KERNEL_H": layer.weights.shape[1], "LANES": block.lanes, "OUTPUTS": block.outputs, "ALONG_X": int(axis == 2),
        "SPACING": spacing, "PHASES": phases, "STEP": spacing * layer.op.stride[axis - 1],
        "WC": block.chunks, "WA": block.along, "WO": block.across,
        "GROUPS_C": groups[0], "GROUPS_A": groups[1], "GROUPS_O": groups[2], "CHUNKS": chunks_of(layer, block.lanes),
        "FINITE": int(np.isfinite(layer.weights).all()),
    }  # fmt: skip
    return native_launch(
        ctx, "long_depthwise", ("chunk.cu", "long_depthwise.cu"), constants, operands, label="depthwise_conv_2d",
        workgroup=(block.threads, 1, 1), dispatch=(math.prod(groups), 1, 1), variant=f"long {block}",
    )  # fmt: skip


def _pace(layer: Layer) -> tuple[int, int]:
    """How far apart a thread's pixels are along the long axis, and into how many sequences its taps are taken apart."""
    axis = axis_of(layer)
    stride, dilation = layer.op.stride[axis - 1], layer.op.dilation[axis - 1]
    common = math.gcd(stride, dilation)
    return dilation // common, stride // common
