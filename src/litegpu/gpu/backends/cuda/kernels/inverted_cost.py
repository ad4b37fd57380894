"""By which blocks a widening convolution and what follows it are computed in one kernel, and what that takes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels.tile import (
    MOST_SHARED_BYTES,
    MOST_WARPGROUP_SHARED_BYTES,
    USUAL_UNITS,
    WARPGROUP_CAPABILITY,
)
from litegpu.gpu.graph import Apply, Expr, InvertedConv2D, walk

#: Taps that a thread can unroll, and registers that it can have.
MOST_TAPS, MOST_REGISTERS = 25, 240
#: Of a multiprocessor, in a microsecond.
CYCLES = 1700


@dataclass(frozen=True)
class InvertedShape:
    """What of a node decides how long it takes. `outputs`: of the projection, 0 without one; `effort`: instructions for
    each expanded element, and each one that is projected."""

    batch: int
    size: tuple[int, int]
    out_size: tuple[int, int]
    inputs: int
    channels: int
    outputs: int
    window: tuple[int, int]
    stride: tuple[int, int]
    effort: tuple[float, float]

    @classmethod
    def of(cls, op: InvertedConv2D, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...]) -> InvertedShape:
        """From the shapes of the node's inputs and output."""
        (batch, height, width, depth), kernel = inputs[0], inputs[3]
        projects = len(inputs) > 4
        return cls(
            batch, (height, width), (output[1], output[2]), depth, kernel[3], output[3] if projects else 0,
            (kernel[1], kernel[2]), op.depthwise.stride, (_effort(op.expanded), _effort(op.middle)),
        )  # fmt: skip

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
        """Sixteens of places that are expanded."""
        (kh, kw), (down, across) = shape.window, shape.stride
        columns = (min(self.x, shape.out_size[1]) - 1) * across + kw
        return -(-((self.y - 1) * down + kh) * -(-columns // across) * across // 16)

    @property
    def units(self) -> int:
        return -(-self.x // 8) * self.y // self.rows

    def shared_bytes(self, shape: InvertedShape) -> int:
        places = self.tiles(shape) * 16
        return places * (shape.depth * 2 + 16) + self.buffers * (places + 8) * (self.slice * 2 + 16)

    def registers(self, shape: InvertedShape) -> int:
        """Of a thread, about."""
        (kh, kw), down = shape.window, shape.stride[0]
        eights, steps = self.slice // 8, shape.depth // 16
        kept = -(-self.units // self.warps) * self.rows // 2 * shape.out_tiles * 4
        expanding = eights * (4 + 2) + (steps * eights * 2 if steps <= 2 else 8) + 8
        window = 4 * self.rows + 2 * ((self.rows - 1) * down + kh + 1) + 2 * kh * kw + 2 * shape.out_tiles
        return kept + max(expanding, window) + 36

    def resident(self, shape: InvertedShape) -> int:
        """Workgroups of a multiprocessor."""
        threads = 32 * self.warps
        fitting = (MOST_WARPGROUP_SHARED_BYTES + 1024) // (self.shared_bytes(shape) + 1024)
        return max(1, min(fitting, 65536 // (self.registers(shape) * threads), 1536 // threads))


@functools.lru_cache(maxsize=512)
def ranked(shape: InvertedShape, capability: int, units: int) -> tuple[InvertedBlock, ...]:
    """The blocks that fit, the cheapest first; none if there are none."""
    most = MOST_WARPGROUP_SHARED_BYTES if capability == WARPGROUP_CAPABILITY else MOST_SHARED_BYTES
    fitting = [b for b in _candidates(shape) if b.shared_bytes(shape) <= most and _fits(b, shape)]
    return tuple(sorted(fitting, key=lambda b: cost(shape, b, units)))


def _fits(block: InvertedBlock, shape: InvertedShape) -> bool:
    registers = block.registers(shape)
    return (
        registers <= MOST_REGISTERS
        and registers * 32 * block.warps <= 65536
        and block.tiles(shape) <= 32 * block.warps
        and math.prod(shape.window) <= MOST_TAPS
    )


def _candidates(shape: InvertedShape) -> list[InvertedBlock]:
    out_h, out_w = shape.out_size
    found: dict[InvertedBlock, None] = {}
    widths = {-(-out_w // n) for n in (1, 2, 3, 4, 7)} | {8, 16}
    for x in sorted(w for w in widths if 4 <= w <= 64 or w == out_w <= 64):
        for rows in (2, 4, 8):
            for bands in (1, 2, 3, 4, 7, 8):
                y = rows * bands
                if y >= out_h + 8 or (y > out_h and y - rows >= out_h):
                    continue
                units = -(-x // 8) * bands
                for warps in _divisions(units):
                    found |= dict.fromkeys(_slices(shape, y, x, rows, warps))
    return list(found)


def _divisions(units: int) -> set[int]:
    """Numbers of warps that share so many units well."""
    return {w for n in (1, 2, 3, 4, 6, 8) if 4 <= (w := -(-units // n)) <= 16} or {4}


def _slices(shape: InvertedShape, y: int, x: int, rows: int, warps: int) -> list[InvertedBlock]:
    found = []
    for width in (16, 32, 48, 64):
        slices = -(-shape.channels // width)
        for parts in (1, 2, 3, 4, 6, 8) if not shape.outputs else (1,):
            if slices % parts == 0:
                found += [InvertedBlock(y, x, rows, warps, width, parts, n) for n in (1, 2) if n == 1 or slices > parts]
    return found


def cost(shape: InvertedShape, block: InvertedBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: the instructions, products of tensor cores and
    bytes of shared memory of a workgroup, of which the longest hides most of the others, and what the memory takes for
    all. (From counts of instructions; not fitted to measurements.)"""
    units = units or USUAL_UNITS
    (kh, kw), down = shape.window, shape.stride[0]
    out_h, out_w = shape.out_size
    tiles, steps, eights = block.tiles(shape), shape.depth // 16, block.slice // 8
    slices = -(-shape.channels // (block.slice * block.parts))
    groups = shape.batch * -(-out_h // block.y) * -(-out_w // block.x) * block.parts
    each = -(-tiles // block.warps) * block.warps * slices  # tiles, as the slowest warp has them
    unit = -(-block.units // block.warps) * block.warps * slices * eights // 2  # units of 16 channels
    rows = (block.rows - 1) * down + kh
    products = block.rows // 2 * 2 * kw * ((kh + 1) // 2)
    projected = block.rows // 2 * shape.out_tiles
    loads = -(-rows // 2) * kw
    stored = block.rows * (4 * (shape.effort[1] + 1) if shape.outputs else 30)
    issue = each * (steps * (1 + eights) + eights * (8 + 4 * shape.effort[0])) + unit * (
        60 / max(1, block.units // block.warps) + loads + products + projected + stored
    )
    tensor = 5 * (each * steps * eights + unit * (products + projected))
    shared = 4 * (each * steps * 4 + each * eights * 2 + unit * (loads * 4 + 10 / max(1, block.units // block.warps)))
    loaded = tiles * steps * 2 * 30
    working = ((issue * 1.3) ** 2 + tensor**2 + shared**2) ** 0.5 / 4 + loaded / 4
    waiting = 2500 + slices * (2 if block.buffers == 1 else 1) * 150  # cycles: first bytes, barriers
    chain = each / block.warps * (60 + eights * 20) + unit / block.warps * (products * 10 + 200)
    resident = block.resident(shape)
    waves = -(-groups // units) / min(resident, max(1, -(-groups // units)))
    computing = max(-(-groups // units) * working, waves * (waiting + chain)) + waiting / 2
    written = shape.outputs or shape.channels
    moved = 2 * shape.batch * (math.prod(shape.size) * shape.inputs * 1.2 + out_h * out_w * written)
    return float(2 + ((computing / CYCLES) ** 3 + (moved / 3.8e6) ** 3) ** (1 / 3))


def _effort(expr: Expr) -> float:
    """Instructions for an element, roughly; functions of which the hardware has few count as many."""
    slow = {"sigmoid": 18.0, "tanh": 18.0, "exp": 9.0, "div": 2.0, "erf": 30.0}
    return 0.5 + sum(slow.get(e.fn, 1.0) for e in walk(expr) if isinstance(e, Apply))
