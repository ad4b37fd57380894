"""Convolution of one to four channels by warpgroup products: a network's first layer on devices that have these."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import runs
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: As positions lie in shared memory, each pixel has so many channels, and 16 bytes are copied in bulk at least.
CHANNELS, BULK = 4, 16
#: Products of a tile are unrolled.
MOST_PAIRS = 24
CONSUMERS = 3
#: Bytes of shared memory in front of the first line, and at least as many behind the last, where what is read beside
#: them lies.
MARGIN = 128
COLUMNS = (32, 64, 96, 128)
ROWS = (1, 2, 4, 6, 8, 12)


@dataclass(frozen=True)
class WideStemBlock:
    """A workgroup computes `columns` outputs of `rows` whole rows of pixels at a time."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"wide stem {self.rows}x{self.columns}"


@dataclass(frozen=True)
class WideStemPlan:
    """How a block's input lies in shared memory: see wide_stem.cu."""

    layer: Layer
    block: WideStemBlock

    @property
    def at_once(self) -> int:
        """Pixels of a position."""
        return 4 // self.layer.size

    @property
    def step(self) -> int:
        """Positions from one chunk of a line of the window to the next."""
        return int(self.at_once // self.layer.op.stride[1])

    @property
    def row_chunks(self) -> int:
        return int(-(-self.layer.weights.shape[2] // self.at_once))

    @property
    def pitch(self) -> int:
        """Positions of a row of output pixels."""
        return self.layer.shape[2] + (self.row_chunks - 1) * self.step

    @property
    def lines(self) -> int:
        """Of the input."""
        op, height = self.layer.op, self.layer.weights.shape[1]
        return int((self.block.rows - 1) * op.stride[0] + (height - 1) * op.dilation[0] + 1)

    @property
    def tiles(self) -> int:
        return -(-self.block.rows * self.pitch // 64)

    @property
    def span(self) -> int:
        """Positions of a phase, with what the last tile reads beyond it."""
        op, height = self.layer.op, self.layer.weights.shape[1]
        beyond = (height - 1) * op.dilation[0] // op.stride[0] * self.pitch + (self.row_chunks - 1) * self.step
        return int(max(self.tiles * 64 + beyond, -(-self.lines // op.stride[0]) * self.pitch))

    @property
    def chunks(self) -> list[tuple[int, int, int]]:
        """Of a window: their places, ascending, with the line and the first column that each is for."""
        op = self.layer.op
        found = []
        for line in range(self.layer.weights.shape[1]):
            y = line * op.dilation[0]
            first = y % op.stride[0] * self.span + y // op.stride[0] * self.pitch
            found += [(first + j * self.step, line, j * self.at_once) for j in range(self.row_chunks)]
        return sorted(found)

    @property
    def pairs(self) -> int:
        return int(-(-self.layer.weights.shape[1] * self.row_chunks // 2))

    @property
    def line_bytes(self) -> int:
        """Of the input as it comes."""
        view = self.layer.source
        return view.shape[2] * view.shape[3] * view.dtype.nbytes

    @property
    def beside_bytes(self) -> int:
        """Of shared memory behind a block's lines, where what is read beside the last of them lies: nothing else does,
        so that nobody writes meanwhile."""
        op, view = self.layer.op, self.layer.source
        end = (self.pitch - 1) * op.stride[1] - op.padding[1] + 4 // self.layer.size
        over = (end - view.shape[2]) * view.shape[3] * view.dtype.nbytes + BULK
        return max(MARGIN, -(-over // BULK) * BULK)

    @property
    def shared_bytes(self) -> int:
        raw = 2 * (self.lines * self.line_bytes + self.beside_bytes)
        forms = 2 * self.layer.op.stride[0] * self.span * 16
        return MARGIN + raw + forms + self.pairs * 2 * self.block.columns * 16 + 64

    @property
    def down(self) -> int:
        """Blocks of an image."""
        return -(-self.layer.shape[1] // self.block.rows)


def ranked(layer: Layer, capability: int, units: int) -> list[WideStemBlock]:
    """The blocks that fit, the cheapest first; none for what the kernel cannot do."""
    layer = layer.whole_pixels
    if not _can(layer, capability):
        return []
    outputs = layer.shape[3]
    widths = [n for n in COLUMNS if runs.run_in(layer, n) and (n < 2 * outputs or n == COLUMNS[0])]
    blocks = [WideStemBlock(rows, columns) for rows in ROWS for columns in widths]
    fitting = [one for one in blocks if WideStemPlan(layer, one).shared_bytes <= MOST_WARPGROUP_SHARED_BYTES]
    return sorted(fitting, key=lambda one: cost(layer, one, units))


def _can(layer: Layer, capability: int) -> bool:
    op, view, (_, kh, kw, inputs) = layer.op, layer.source, layer.weights.shape
    if (
        capability != WARPGROUP_CAPABILITY
        or not (layer.half or layer.whole_numbers)
        or inputs > CHANNELS
        or kh * kw < 4
    ):
        return False
    size = view.dtype.nbytes
    line = view.shape[2] * view.shape[3]
    whole = view.strides == (view.strides[0], line, view.shape[3], 1) and view.shape[3] == inputs
    in_bulk = not any(n * size % BULK for n in (line, view.strides[0] if view.shape[0] > 1 else 0, view.offset))
    known = view.dtype in (DType.INT8, DType.UINT8) if layer.whole_numbers else view.dtype is not DType.INT16
    chunks = kh * -(-kw // (4 // layer.size))
    # every row of outputs needs a line that there is
    needed = (
        op.padding[0] <= (kh - 1) * op.dilation[0]
        and (layer.shape[1] - 1) * op.stride[0] < view.shape[1] + op.padding[0]
    )
    return (
        whole and in_bulk and known and needed and op.padding[1] * inputs * size <= MARGIN
        and (layer.weights.dtype == np.int8 or not layer.whole_numbers)
        and op.upsample == (1, 1) and op.border == "zero" and op.dilation[1] == 1
        and op.stride[1] <= 4 // layer.size and 4 // layer.size % op.stride[1] == 0 and op.stride[0] <= 4
        and 2 <= chunks <= 2 * MOST_PAIRS
    )  # fmt: skip


def cost(layer: Layer, block: WideStemBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors. (From counts of instructions, beside 60
    measurements of 12 layers of a form in which positions took twice as long.)"""
    plan, units = WideStemPlan(layer.whole_pixels, block), units or USUAL_UNITS
    batch, _, _, outputs = layer.shape
    across = -(-outputs // block.columns)
    rounds = math.ceil(batch * plan.down / max(1, min(batch * plan.down, units // across)))
    tile = plan.pairs * (16 + 0.25 * block.columns)
    stored = 64 * block.columns * 0.07 + 60
    formed = plan.lines * plan.pitch * 2.6
    busy = max(plan.tiles * max(tile, stored), formed) + 300
    alone = formed + -(-plan.tiles // CONSUMERS) * (tile + stored) + 2500
    moved = math.prod(layer.source.shape) * layer.source.dtype.nbytes + math.prod(layer.shape) * layer.size
    computing = (alone + (rounds - 1) * busy) / 1755
    # 0.72: beside the estimates of stem.py
    return float(0.72 * (1.5 + (computing**4 + (moved / 4e6) ** 4) ** 0.25))


def packed(layer: Layer, plan: WideStemPlan, run: int) -> np.ndarray:
    """[tile of outputs, pair of chunks, chunk, output, pixel, channel]; what no chunk is for is zero."""
    outputs, _, kw, inputs = layer.weights.shape
    columns, at_once = plan.block.columns, plan.at_once
    kind = np.int8 if layer.whole_numbers else np.float16
    across = -(-outputs // columns)
    whole = np.zeros((across * columns, 2 * plan.pairs, at_once, CHANNELS), kind)
    chunks = plan.chunks
    for number, (_, line, column) in enumerate(chunks):
        place = number + 1 if number == len(chunks) - 1 and len(chunks) % 2 else number
        taps = min(at_once, kw - column)
        whole[:outputs, place, :taps, :inputs] = layer.weights[:, line, column : column + taps]
    whole = runs.columns_of(whole, run)
    parts = whole.reshape(across, columns, plan.pairs, 2, at_once, CHANNELS)
    return np.ascontiguousarray(parts.transpose(0, 2, 3, 1, 4, 5))


def launch(ctx: KernelContext, layer: Layer, block: WideStemBlock, where: Where | None = None) -> Launch:
    """The convolution by blocks; see wide_stem.cu for the constants."""
    layer = layer.whole_pixels
    plan = WideStemPlan(layer, block)
    epilogue = runs.epilogue_of(ctx, layer, block.columns)
    batch, height, width, outputs = layer.shape
    across = -(-outputs // block.columns)
    units = ctx.features.compute_units or USUAL_UNITS
    walkers = max(1, min(batch * plan.down, units // across))
    source, load = layer.load
    zero = int(layer.outside.view(np.uint8)[0])
    first = np.zeros(across * block.columns, np.int32)
    if layer.whole_numbers:
        first = layer.corrections(len(first))
        first[:outputs] += epilogue.first
    constants: dict[str, int | str] = {
        **layer.constants(), "CHANNELS": layer.weights.shape[3], "SOURCE": source, "LOAD(value)": load,
        "AS_THEY_ARE": int(layer.source.dtype is DType.FLOAT16 and layer.source.shape[3] == CHANNELS),
        "BYTES": layer.size, "UNSIGNED": int(layer.source.dtype is DType.UINT8), "BN": block.columns, "BY": block.rows,
        "DOWN": plan.down, "BLOCKS": batch * plan.down, "WALKERS": walkers, "LINES": plan.lines,
        "LINE_BYTES": plan.line_bytes, "BESIDE_BYTES": plan.beside_bytes, "PITCH": plan.pitch,
        "SPAN": plan.span, "PAIRS": plan.pairs,
        "PLACES_OF_CHUNKS": ", ".join(f"{place}u" for place, _, _ in plan.chunks), "TILES_N": across,
        "CONSUMERS": CONSUMERS, "OUTSIDE": f"{zero * 0x1010101}u", "PIXELS": batch * height * width,
        "QUADS": -(-outputs // 4), "SHARED_BYTES": plan.shared_bytes, "BATCH": batch,
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": packed(layer, plan, epilogue.run), "corrections": first}
    shared_files = ("device.cu", "turned.cu", "warpgroup.cu", "pipeline.cu", "panels.cu", "elements.cu", "runs.cu")
    return native_launch(
        ctx, "wide_stem", (*shared_files, "wide_stem.cu"), constants, operands, label=label_of(ctx),
        workgroup=(128 * (CONSUMERS + 1), 1, 1),
        dispatch=(walkers * across, 1, 1), shared_bytes=plan.shared_bytes, variant=str(block), where=where,
        runs=epilogue, rounds=layer.rounds,
    )  # fmt: skip
