"""By which blocks byte_inverted.cu computes a node, and what that takes."""

from __future__ import annotations

import functools
import math

from litegpu.gpu.backends.cuda.kernels.inverted_cost import (
    CYCLES,
    MEMORY,
    InvertedBlock,
    InvertedShape,
    candidates,
    fits,
)
from litegpu.gpu.backends.cuda.kernels.tile import (
    MOST_WARPGROUP_SHARED_BYTES,
    USUAL_UNITS,
    WARPGROUP_CAPABILITY,
    most_shared_bytes,
    multiprocessor_shared_bytes,
    multiprocessor_threads,
    times_slower,
)

#: Of a quarter of a multiprocessor; and of a thread, so that warps enough are there.
REGISTERS, MOST_REGISTERS = 1 << 14, 196
#: Of a workgroup that begins with a first layer.
STEM_WARPS, STEM_TILES = 5, 28


class ByteInvertedBlock(InvertedBlock):
    """The same of bytes."""

    @staticmethod
    def strip(shape: InvertedShape) -> int:
        return 16 if shape.stride[1] == 1 else 8

    def _lines(self, shape: InvertedShape) -> tuple[int, int]:
        """Lines of places that the window reads, and places of one, in pairs."""
        (kh, kw), (down, across) = shape.window, shape.stride
        columns = (min(self.x, shape.out_size[1]) - 1) * across + kw
        return (self.y - 1) * down + kh, -(-columns // 2) * 2

    def tiles(self, shape: InvertedShape) -> int:
        return -(-math.prod(self._lines(shape)) // 16)

    def shared_bytes(self, shape: InvertedShape) -> int:
        places, (lines, line) = self.tiles(shape) * 16, self._lines(shape)
        _, pairs = strips(shape)
        read = -(-self.x // self.strip(shape)) * 16 + 2 * pairs - 2
        plane = (max(places, lines * line + max(0, read - line)) + 7) // 16 * 128 + 64
        pitch = shape.depth + (0 if shape.depth // 16 % 2 else 16)
        rows = places * pitch if shape.depth else 0
        return rows + max(self.buffers * self.slice // 8 * plane, self.raw_bytes(shape))

    def raw_bytes(self, shape: InvertedShape) -> int:
        """Of a first layer's input."""
        stem, (lines, line) = shape.stem, self._lines(shape)
        if stem is None:
            return 0
        chunk = stem.copied or 4
        chunks = (((line - 1) * stem.stride[1] + stem.window[1]) * stem.pixel + 2 * chunk - 2) // chunk
        rows = (lines - 1) * stem.stride[0] + stem.window[0]
        return -(-(rows * chunks * chunk + 4) // 16) * 16

    def registers(self, shape: InvertedShape) -> int:
        kh, sixteens, steps = shape.window[0], self.slice // 16, -(-shape.depth // 32)
        turns, pairs = strips(shape)
        kept = -(-self.units(shape) // self.warps) * self.rows // 2 * turns * shape.out_tiles * 4
        expanding = sixteens * (8 + 8) + (steps if steps <= 2 else 1) * sixteens * 4 + 8
        window = 4 * self.rows * turns + 4 * (kh + 1) * -(-pairs // 2) + 2 * kh * turns * pairs + shape.out_tiles
        return kept + max(expanding, window) + 36

    def resident(self, shape: InvertedShape, capability: int) -> int:
        fitting = multiprocessor_shared_bytes(capability) // (self.shared_bytes(shape) + 1024)
        each = REGISTERS // (32 * -(-self.registers(shape) // 8) * 8)  # warps of a quarter of a multiprocessor
        return max(1, min(fitting, each * 4 // self.warps, multiprocessor_threads(capability) // (32 * self.warps)))


@functools.lru_cache(maxsize=512)
def ranked(shape: InvertedShape, capability: int, units: int) -> tuple[ByteInvertedBlock, ...]:
    """The blocks that fit, the cheapest first; none if there are none."""
    most = MOST_WARPGROUP_SHARED_BYTES if capability == WARPGROUP_CAPABILITY else most_shared_bytes(capability)
    fitting = [b for b in candidates(shape, ByteInvertedBlock) if b.shared_bytes(shape) <= most and _fits(b, shape)]
    return tuple(sorted(fitting, key=lambda b: cost(shape, b, capability, units)))


def _fits(block: ByteInvertedBlock, shape: InvertedShape) -> bool:
    """A first layer's steps wait for one another, so that only small workgroups, several at a time, are any good."""
    small = shape.stem is None or (block.warps <= STEM_WARPS and block.tiles(shape) <= STEM_TILES)
    return small and block.registers(shape) <= MOST_REGISTERS and fits(block, shape)


def cost(shape: InvertedShape, block: ByteInvertedBlock, capability: int, units: int) -> float:
    """Estimated microseconds on a device of that compute capability with `units` multiprocessors, as
    inverted_cost.cost() has it. (Fitted to 400 measurements of ten layers on an H200: the first choice takes 3% longer
    than the best one on average.)"""
    units = units or USUAL_UNITS
    (kh, kw), down = shape.window, shape.stride[0]
    out_h, out_w = shape.out_size
    tiles, steps, sixteens = block.tiles(shape), shape.depth / 32, block.slice // 16
    slices = -(-shape.channels // (block.slice * block.parts))
    groups = shape.batch * -(-out_h // block.y) * -(-out_w // block.x) * block.parts
    # of a warp: tiles that it expands, and units of 16 channels
    expanded = -(-tiles // block.warps) * slices if steps else 0
    unit = -(-block.units(shape) // block.warps) * slices * sixteens
    turns, pairs = strips(shape)
    lines, products = block.rows * turns, block.rows * turns * kh * -(-pairs // 2)
    projected = block.rows // 2 * turns * shape.out_tiles
    loads = unit * 2 * ((block.rows - 1) * down + kh)
    issued: float = expanded * (math.ceil(steps) * (1 + 2 * sixteens) + sixteens * 25)
    issued += 0 if steps else tiles * sixteens * slices * 15 / block.warps  # to copy what is not expanded
    issued += loads + unit * (products + projected + lines * 31.5 + 8) + slices * sixteens * (2 * kh * kw + 10)
    shared = 3 * (expanded * (steps * 4 + sixteens * 2) + loads * 4)
    alone: float = 1230 + expanded * (195 + sixteens * 57) + unit * 352
    alone += slices * 600 * (0.5 if block.buffers > 1 and steps else 1) + (0 if steps else 66 * tiles)
    copied: float = tiles * shape.depth * 1.2
    if shape.stem:
        issued += 0.3 * tiles / block.warps / 2 * (25 + 14 * shape.stem.window[0])  # places of 32 threads, made of rows
        alone += 3000 + 150 * tiles / block.warps
        copied = block.raw_bytes(shape) / 160
    working = math.hypot(1.99 * issued, shared) * block.warps / 4 + copied
    share = -(-groups // units)
    waves = max(1.0, groups / units / min(block.resident(shape, capability), share))
    computing = ((share * working) ** 3.2 + (waves * alone) ** 3.2) ** (1 / 3.2) / CYCLES
    written = shape.outputs or shape.channels
    pixel = math.prod(shape.stem.stride) * shape.stem.pixel if shape.stem else shape.inputs or shape.channels
    read = math.prod(shape.size) * pixel * 1.2
    moved = shape.batch * (read + out_h * out_w * written) * times_slower(capability, units) / MEMORY
    return float(1.5 + (computing**3 + moved**3) ** (1 / 3))


def strips(shape: InvertedShape) -> tuple[int, int]:
    """Turns in which pixels of a strip are computed, and pairs of columns that each reads."""
    kw = shape.window[1]
    return (2, kw // 2 + 1) if shape.stride[1] == 1 else (1, (kw + 1) // 2)
