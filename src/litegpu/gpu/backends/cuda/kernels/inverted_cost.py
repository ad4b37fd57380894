"""By which blocks a widening convolution and what follows it are computed in one kernel, and what that takes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from litegpu.gpu.backends.cuda.kernels.tile import (
    MOST_WARPGROUP_SHARED_BYTES,
    USUAL_UNITS,
    WARPGROUP_CAPABILITY,
    most_shared_bytes,
    multiprocessor_shared_bytes,
    multiprocessor_threads,
    times_slower,
)
from litegpu.gpu.graph import Apply, Expr, walk

Block = TypeVar("Block", bound="InvertedBlock")

#: Taps that a thread can unroll, and registers that it can have.
MOST_TAPS, MOST_REGISTERS = 25, 240
#: Of a multiprocessor, in a microsecond, and bytes of the memory.
CYCLES, MEMORY = 1700, 3.8e6


@dataclass(frozen=True)
class StemShape:
    """Of bytes, a first layer that widens: its window, how that moves, and of the input the bytes of a pixel and those
    that are copied at once, 0 if they are one by one."""

    window: tuple[int, int]
    stride: tuple[int, int]
    pixel: int
    copied: int

    @property
    def depth(self) -> int:
        """Bytes of a place as byte_inverted.cu lays them out: whole words of each row, and a byte more of each."""
        words, more = divmod(self.window[1] * self.pixel, 4)
        return 4 * (self.window[0] * words + bool(more))

    @property
    def fits(self) -> bool:
        """Whether that kernel has an order for them."""
        return self.window[1] * self.pixel % 4 < 2 and self.window[0] <= 4 and 4 <= self.depth <= 64


@dataclass(frozen=True)
class InvertedShape:
    """What of a node decides how long it takes. `inputs`: 0 if nothing is expanded; `outputs`: of the projection, 0
    without one; `effort`: instructions for each expanded element, and each one that is projected. With a `stem`, `size`
    is that of what is expanded."""

    batch: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    inputs: int
    channels: int
    outputs: int
    window: tuple[int, int]
    stride: tuple[int, int]
    effort: tuple[float, float]
    stem: StemShape | None = None

    @classmethod
    def of(
        cls,
        stride: tuple[int, int],
        effort: tuple[float, float],
        inputs: Sequence[tuple[int, ...]],
        output: tuple[int, ...],
        stem: StemShape | None = None,
    ) -> InvertedShape:
        """From the shapes of an InvertedConv2D's inputs and output."""
        (batch, height, width, depth), kernel = inputs[0], inputs[3]
        projects = len(inputs) > 4
        return cls(
            batch,
            (height, width),
            (output[1], output[2]),
            depth,
            kernel[3],
            output[3] if projects else 0,
            (kernel[1], kernel[2]),
            stride,
            effort,
            stem,
        )

    @property
    def depth(self) -> int:
        """Of the expansion's products."""
        return -(-self.inputs // 16) * 16

    @property
    def out_tiles(self) -> int:
        """Eights of outputs of the projection."""
        return -(-self.outputs // 16) * 2


@dataclass(frozen=True)
class InvertedBlock:
    """A workgroup of `warps` computes y x x pixels, a warp `rows` of eight columns at a time, of one of `parts` of the
    channels, `slice` of them at a time, which it keeps in one of `buffers`."""

    y: int
    x: int
    rows: int
    warps: int
    slice: int
    parts: int
    buffers: int

    def __str__(self) -> str:
        return f"{self.y}x{self.x} by {self.rows}, {self.warps} warps, {self.slice}/{self.parts}, {self.buffers}"

    def tiles(self, shape: InvertedShape) -> int:
        """Sixteens of places that the window reads."""
        (kh, kw), (down, across) = shape.window, shape.stride
        columns = (min(self.x, shape.out_size[1]) - 1) * across + kw
        return -(-((self.y - 1) * down + kh) * -(-columns // across) * across // 16)

    @staticmethod
    def strip(shape: InvertedShape) -> int:
        """Columns of a unit."""
        return 8

    def units(self, shape: InvertedShape) -> int:
        return -(-self.x // self.strip(shape)) * self.y // self.rows

    def shared_bytes(self, shape: InvertedShape) -> int:
        places = self.tiles(shape) * 16
        return places * (shape.depth * 2 + 16 if shape.depth else 0) + self.buffers * (places + 8) * (
            self.slice * 2 + 16
        )

    def registers(self, shape: InvertedShape) -> int:
        """Of a thread, about."""
        (kh, kw), down = shape.window, shape.stride[0]
        eights, steps = self.slice // 8, shape.depth // 16
        kept = -(-self.units(shape) // self.warps) * self.rows // 2 * shape.out_tiles * 4
        expanding = eights * (4 + 2) + (steps * eights * 2 if steps <= 2 else 8) + 8
        window = 4 * self.rows + 2 * ((self.rows - 1) * down + kh + 1) + 2 * kh * kw + 2 * shape.out_tiles
        return kept + max(expanding, window) + 36

    def resident(self, shape: InvertedShape, capability: int) -> int:
        """Workgroups of a multiprocessor."""
        threads = 32 * self.warps
        fitting = multiprocessor_shared_bytes(capability) // (self.shared_bytes(shape) + 1024)
        return max(
            1, min(fitting, 65536 // (self.registers(shape) * threads), multiprocessor_threads(capability) // threads)
        )


@functools.lru_cache(maxsize=512)
def ranked(shape: InvertedShape, capability: int, units: int) -> tuple[InvertedBlock, ...]:
    """The blocks that fit, the cheapest first; none if there are none."""
    most = MOST_WARPGROUP_SHARED_BYTES if capability == WARPGROUP_CAPABILITY else most_shared_bytes(capability)
    fitting = [b for b in candidates(shape, InvertedBlock) if b.shared_bytes(shape) <= most and fits(b, shape)]
    return tuple(sorted(fitting, key=lambda b: cost(shape, b, capability, units)))


def fits(block: InvertedBlock, shape: InvertedShape) -> bool:
    """Whether a workgroup has the registers for it."""
    registers = block.registers(shape)
    return (
        registers <= MOST_REGISTERS
        and registers * 32 * block.warps <= 65536
        and block.tiles(shape) <= 32 * block.warps
        and math.prod(shape.window) <= MOST_TAPS
    )


def candidates(shape: InvertedShape, kind: type[Block]) -> list[Block]:
    """All blocks, as such of a certain kind."""
    out_h, out_w = shape.out_size
    found: list[Block] = []
    widths = {w for n in (1, 2, 4) if 7 <= (w := -(-out_w // n)) <= 64} | {min(out_w, 8), min(out_w, 16)}
    for x, rows in itertools.product(widths, (2, 4, 8)):
        heights = {rows * -(-out_h // (rows * n)) for n in range(1, 1 + -(-out_h // rows))}
        for y in heights:
            units = -(-x // kind.strip(shape)) * y // rows
            for warps, width in itertools.product(_divisions(units), _widths(shape)):
                found += [kind(y, x, rows, warps, width, *more) for more in _ways(shape, width)]
    return found


def _divisions(units: int) -> set[int]:
    """Numbers of warps that share so many units evenly."""
    return {units // n for n in (1, 2, 3, 4, 6, 8) if units % n == 0 and 4 <= units // n <= 16} or {4}


def _widths(shape: InvertedShape) -> list[int]:
    """Of slices, that leave few channels of the last one empty."""
    whole = {width: -(-shape.channels // width) * width for width in (16, 32, 48, 64)}
    return [width for width, channels in whole.items() if channels <= 1.1 * min(whole.values())]


def _ways(shape: InvertedShape, width: int) -> list[tuple[int, int]]:
    """Parts that the slices of this width are divided into, and buffers."""
    slices = -(-shape.channels // width)
    parts = [n for n in (1, 2, 3, 4, 6, 8, slices) if slices % n == 0] if not shape.outputs else [1]
    return [(n, buffers) for n in parts for buffers in (1, 2) if buffers == 1 or slices > n]


def cost(shape: InvertedShape, block: InvertedBlock, capability: int, units: int) -> float:
    """Estimated microseconds on a device of that compute capability with `units` multiprocessors: instructions,
    products of tensor cores and bytes of shared memory of all workgroups, of which the longest hides most of the
    others; beside that what a workgroup waits for, by itself; and what the memory takes. Many warps wait for each other
    between two stages, and parts expand places that others expand as well. (Fitted to 250 measurements of 18 layers on
    an H200, most of them at batch 64: the first choice takes 3% longer than the best one on average.)"""
    units = units or USUAL_UNITS
    (kh, kw), down = shape.window, shape.stride[0]
    out_h, out_w = shape.out_size
    tiles, steps, eights = block.tiles(shape), shape.depth // 16, block.slice // 8
    slices = -(-shape.channels // (block.slice * block.parts))
    groups = shape.batch * -(-out_h // block.y) * -(-out_w // block.x) * block.parts
    # of a warp: tiles that it expands, and units of 16 channels
    expanded, unit = (
        -(-tiles // block.warps) * slices if steps else 0,
        -(-block.units(shape) // block.warps) * slices * eights // 2,
    )
    rows = (block.rows - 1) * down + kh
    products, projected = block.rows * kw * ((kh + 1) // 2), block.rows // 2 * shape.out_tiles
    loads = -(-rows // 2) * kw
    first, second = shape.effort
    stored = block.rows * (4 * (second + 1) if shape.outputs else 60)
    issued = expanded * (steps * (1 + eights) + eights * (6 + 2.7 * first))
    issued += 0 if steps else tiles * eights * slices * 13 / block.warps  # to copy what is not expanded
    issued += unit * (loads + products + projected + stored + 8) + slices * eights / 2 * 10.7 * kh * kw
    multiplied = 11.3 * (expanded * steps * eights + unit * (products + projected))
    shared = 2.07 * (expanded * (steps * 4 + eights * 2) + unit * loads * 4)
    working = math.hypot(1.1 * issued, multiplied, shared) * block.warps / 4 + tiles * shape.depth / 4
    chain = expanded * (104 + eights * (5.8 + 3.7 * first) + steps * 33)
    chain += unit * (150 + 6.2 * products / block.rows + 43 * block.rows) + slices * eights * 96
    alone = 650 + chain + slices * 355 * (0.6 if block.buffers > 1 else 1)
    share = -(-groups // units)
    waves = max(1.0, groups / units / min(block.resident(shape, capability), share)) ** 1.08
    together = 1 + 0.13 * max(0, block.warps - 7) / 7
    computing = ((share * working) ** 1.4 + (waves * alone) ** 1.4) ** (1 / 1.4) / CYCLES * together
    computing *= 1.11 if block.parts > 1 else 1
    written = shape.outputs or shape.channels
    moved = (
        2
        * shape.batch
        * (math.prod(shape.size) * (shape.inputs or shape.channels) * 1.2 + out_h * out_w * written)
        * times_slower(capability, units)
        / MEMORY
    )
    return float(1.5 + (computing**3 + moved**3) ** (1 / 3))


def effort(expr: Expr) -> float:
    """Instructions for an element, roughly; functions of which the hardware has few count as many."""
    slow = {"sigmoid": 18.0, "tanh": 18.0, "exp": 9.0, "div": 2.0, "erf": 30.0}
    return 0.5 + sum(slow.get(e.fn, 1.0) for e in walk(expr) if isinstance(e, Apply))
