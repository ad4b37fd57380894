"""Groups of channels normalised over the pixels of an image by one kernel, which reads them once."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.lstm_layer import CLUSTER_CAPABILITY, MOST_WORKGROUPS
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import DType, GroupNorm, Shape
from litegpu.gpu.kernels.access import Operands, Position, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import TracedValue, u32
from litegpu.gpu.lang.kernel import Kernel

#: Quads that a thread keeps in registers, with what its epilogue reads, at most.
MOST_ITEMS = 16
#: Channels side by side, at least, where there are as many: of halves what memory reads at once.
LEAST_SPAN = 16
#: Registers of a thread beside those that hold quads.
REGISTERS = 40
#: Where there are more workgroups than multiprocessors: threads of one at most (512 take a fifth longer), and pixels of
#: an image above which three kernels are quicker (of 56x56 it takes 0.75 of their time, of 64x64 1.05 to 1.25).
MOST_IN_TURN, MOST_PIXELS_IN_TURN = 256, 3600
#: Threads of a workgroup.
THREADS = (64, 128, 256, 512)


@dataclass(frozen=True)
class GroupNormDivision:
    """A cluster of `split` workgroups of so many threads has `quads` side by side of all pixels of an image."""

    quads: int
    split: int
    threads: int

    def __str__(self) -> str:
        return f"{4 * self.quads} channels by {self.threads}" + (f"/{self.split}" if self.split > 1 else "")

    @property
    def rows(self) -> int:
        """Pixels that its threads have side by side."""
        return self.threads // self.quads

    def part(self, pixels: int) -> int:
        """Pixels of a workgroup; the last one may have fewer."""
        return -(-pixels // self.split)

    def items(self, pixels: int) -> int:
        """Quads of a thread."""
        return -(-self.part(pixels) // self.rows)

    def groups(self, shape: Shape) -> int:
        """Workgroups in all."""
        return shape[0] * (shape[3] // (4 * self.quads)) * self.split


@functools.lru_cache(maxsize=256)
def ranked(shape: Shape, groups: int, capability: int, units: int) -> tuple[GroupNormDivision, ...]:
    """The ways to divide x [B,H,W,C] in so many groups of channels, the cheapest first; none if it does not fit."""

    def order(division: GroupNormDivision) -> tuple[bool, float, int, int]:
        slow = division.threads > MOST_IN_TURN and division.groups(shape) > (units or USUAL_UNITS)
        return slow, cost(shape, division, units), division.split, division.threads

    return tuple(sorted(_divisions(shape, groups, capability), key=order))


def _divisions(shape: Shape, groups: int, capability: int) -> Iterator[GroupNormDivision]:
    _, height, width, channels = shape
    pixels, each = height * width, channels // groups
    if channels % 4 or not pixels:
        return
    splits = [1, 2, 4, MOST_WORKGROUPS] if capability >= CLUSTER_CAPABILITY else [1]
    least = math.lcm(each, 4)
    spans = [n for n in range(least, channels + 1, least) if channels % n == 0 and n >= min(LEAST_SPAN, channels)]
    for span, split, threads in itertools.product(spans, splits, THREADS):
        found = GroupNormDivision(span // 4, split, threads)
        whole = (split - 1) * found.part(pixels) < pixels  # each workgroup has some
        if whole and found.rows and found.items(pixels) <= MOST_ITEMS and (span <= 256 or span == least):
            yield found


def cost(shape: Shape, division: GroupNormDivision, units: int) -> float:
    """Estimated microseconds, fitted to 340 measurements of 22 shapes on an H100: those who choose by it take at most a
    sixth longer than the best."""
    units = units or USUAL_UNITS
    items, quads = division.items(shape[1] * shape[2]), division.quads
    share = -(-division.groups(shape) // units)  # of a multiprocessor, of which some run at once
    resident = max(1, min(2048 // division.threads, 65536 // (division.threads * (REGISTERS + 4 * items)), 32))
    rounds, work = -(-share // resident), share * items * division.threads / 1000
    met = 0.0 if division.split == 1 else rounds * (0.72 + 0.11 * min(share, resident))
    return 0.4 + work * (0.72 if 32 % quads == 0 else 0.77) + rounds * (0.6 + 0.071 * items) + met


def pays(shape: Shape, groups: int, capability: int, units: int) -> bool:
    """Whether the kernel fits, and takes less than three that read memory twice and write it once; of a whole image
    there is no such other way, and what takes five is slower in any case."""
    found = ranked(shape, groups, capability, units)
    if not found or groups == 1:
        return bool(found)
    return found[0].groups(shape) <= (units or USUAL_UNITS) or math.prod(shape[1:3]) <= MOST_PIXELS_IN_TURN


def build(ctx: KernelContext) -> list[Launch]:
    op = ctx.node.op
    assert isinstance(op, GroupNorm)
    found = ranked(ctx.output.shape, op.groups, ctx.features.capability, ctx.features.compute_units)
    return [offered([_launch(ctx, op, division) for division in found[: ctx.most]])]


def _launch(ctx: KernelContext, op: GroupNorm, division: GroupNormDivision) -> Launch:
    """See group_norm.cu for the constants."""
    x, (_, height, width, channels) = ctx.views[ctx.node.inputs[0]], ctx.output.shape
    pixels, each, rows = height * width, channels // op.groups, division.rows
    direct = x.dtype in LOAD and x.vector and x.whole_quads
    groups = 4 * division.quads // each
    added = -(-rows * division.quads * (1 if each % 4 == 0 else 4) // 2) * 2  # floats that threads add up
    shared = 4 * (added + 2 * groups * (division.split + 1))
    constants: dict[str, int | str] = {
        "HALF": int(direct and x.dtype is DType.FLOAT16), "SOURCE": LOAD[x.dtype][0] if direct else "void",
        "OFFSET": x.offset, "PITCH_B": x.strides[0], "PITCH_Y": x.strides[1], "PITCH_X": x.strides[2], "WIDTH": width,
        "PIXELS": pixels, "QUADS": division.quads, "SPANS": channels // (4 * division.quads), "EACH": each,
        "SPLIT": division.split, "PART": division.part(pixels), "THREADS": division.threads, "ROWS": rows,
        "ITEMS": division.items(pixels), "EPSILON": float_text(op.epsilon), "SHARED_BYTES": shared,
    }  # fmt: skip

    def numbers(k: Kernel, bound: Operands, pixel: TracedValue, q: TracedValue) -> TracedValue:
        at = Position(ctx.output.shape, pixel=pixel)
        return open_source(ctx, k, ctx.node.inputs[0], bound).quad(at.b, at.y, at.x, q)

    files = ("cluster.cu", "chunk.cu", "group_norm.cu")
    return native_launch(
        ctx, "group_norm", files, constants, {"x": x}, label="group_norm", workgroup=(division.threads, 1, 1),
        dispatch=(division.groups(ctx.output.shape), 1, 1), shared_bytes=shared, variant=str(division), ahead=True,
        inner=() if direct else Traced(ctx, "numbers", (u32, u32), numbers),
    )  # fmt: skip
