"""Convolution by warps that copy and warps that multiply, on devices that have warpgroup products."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from litegpu.gpu.backends.cuda.kernels import fetched, normed, row_norm, runs
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.prologue import constants_of, factors_bytes, files_of, instructions, operands_of
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import (
    MOST_WARPGROUP_SHARED_BYTES,
    USUAL_UNITS,
    WARPGROUP_CAPABILITY,
    divided_registers,
)
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Bytes of a row of a tile, along the depth. In float16 other kernels are quicker where the depth is less than this.
ROW_BYTES, LEAST_HALVES = (128, 64, 32), 40
#: Columns of a tile, at most, where what the epilogue reads has registers beside the sums.
MOST_COLUMNS_AHEAD = 64
#: Microseconds that a thread takes for an instruction, where it has no others to wait for.
PREPARED = 2 / 1700
#: Copies of windows of 256 rows take so many times as long; where a workgroup has a multiprocessor alone, the next one
#: comes so many microseconds later; from so many steps on, a second round that not all workgroups have takes as long as
#: the first. (H200, VGG-16's layers at batch 64.)
MANY_COPIES, CHANGE, DEEP = 2.0, 2.2, 36
#: Workgroups that take tiles of 128 rows in turn: columns, steps, and tiles of each at most, as were measured to gain;
#: how many microseconds sooner what the next tile multiplies is there.
IN_TURN, STEPS_IN_TURN, MOST_IN_TURN, AHEAD = (192, 256), range(6, 13), 9, 1.0
#: Bits of a word, one for each tap.
MOST_TAPS = 32


class RowsByColumns(Protocol):
    """A tile of any kernel, as tiles_of() has it."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...


@dataclass(frozen=True)
class SpecializedTile:
    """A workgroup computes rows x columns: `consumers` warpgroups multiply what other warps copy `stages` steps ahead.
    `resident` workgroups share a multiprocessor; `split` workgroups, a cluster, divide the depth. `in_turn`: there are
    no more workgroups than run at once, and they take one tile after the other."""

    rows: int
    columns: int
    consumers: int
    stages: int
    resident: int
    split: int = 1
    in_turn: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        more = f"/{self.split}" if self.split > 1 else "+" if self.in_turn else ""
        return f"{self.rows}x{self.columns}-{self.consumers}s-{self.stages}-{self.resident}{more}"

    @property
    def copying(self) -> int:
        """Threads that copy. Those of a whole warpgroup give registers up to the others."""
        return 128 if self.resident == 1 else 64

    @property
    def threads(self) -> int:
        return 128 * self.consumers + self.copying

    def shared_bytes(self, row_bytes: int) -> int:
        """The ring, whose place the sums take, and its barriers."""
        ring = self.stages * (self.rows + self.columns) * row_bytes
        rows = self.rows if self.split > 1 else 64 * self.consumers
        return max(ring, rows * (self.columns + 8) * 4) + 16 * self.stages

    def registers(self, prologue: bool = False) -> tuple[int, int]:
        """Of a thread that copies, and perhaps does more, and of one that multiplies."""
        each = min(255, 65536 // (self.resident * self.threads)) // 8 * 8
        if self.copying < 128:
            return each, each
        return divided_registers(each, self.consumers, (40 if self.rows <= 128 else 56) + 32 * prologue)

    def fits(self) -> bool:
        sums = self.rows // self.consumers // 64 * self.columns // 2
        shared = self.resident * (self.shared_bytes(ROW_BYTES[0]) + 1024)
        return sums + 32 <= self.registers()[1] and shared <= MOST_WARPGROUP_SHARED_BYTES + 1024


@functools.cache
def candidates() -> tuple[SpecializedTile, ...]:
    """All tiles that are worth a try."""
    shapes = [
        (64, 32, 1, 4, 4), (64, 32, 1, 3, 4), (64, 64, 1, 3, 4), (64, 64, 1, 2, 4), (64, 96, 1, 3, 3),
        (64, 128, 1, 4, 2), (64, 128, 1, 3, 3), (64, 128, 1, 2, 3), (64, 192, 1, 3, 2), (64, 256, 1, 4, 1),
        (128, 32, 2, 4, 2), (128, 32, 2, 3, 3), (128, 64, 2, 4, 2), (128, 64, 2, 3, 3), (128, 64, 2, 2, 3),
        (128, 96, 2, 3, 2), (128, 96, 2, 2, 2), (128, 128, 2, 3, 2), (128, 128, 1, 3, 2), (128, 128, 1, 2, 2),
        (128, 192, 2, 4, 1), (128, 256, 2, 4, 1), (128, 256, 2, 3, 1), (256, 128, 2, 4, 1),
    ]  # fmt: skip
    split = [(64, 32, 1, 4, 4), (64, 64, 1, 3, 4), (64, 128, 1, 4, 2)]
    return tuple(SpecializedTile(*shape) for shape in shapes) + tuple(
        SpecializedTile(*shape, n) for shape in split for n in (2, 4, 8)
    )


def ranked(layer: Layer, capability: int, units: int) -> list[SpecializedTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    sensible = [_in_turn(tile, layer, units) for tile in that_suit(layer, capability, candidates())]
    # of those that are equal, of bytes, the one of which more share a multiprocessor: all may run at once
    first = 1 if layer.whole_numbers else 0
    return sorted(sensible, key=lambda tile: (cost(layer, tile, units), -first * tile.resident, tile.threads))


def that_suit(layer: Layer, capability: int, tiles: Sequence[SpecializedTile]) -> list[SpecializedTile]:
    """Those that make sense; none if the kernel cannot do the layer."""
    if not takes(layer, capability) or not (layer.whole_numbers or layer.depth >= LEAST_HALVES):
        return []
    return [tile for tile in tiles if _suits(tile, layer)]


def _in_turn(tile: SpecializedTile, layer: Layer, units: int) -> SpecializedTile:
    """The tile by workgroups that take one after the other, where there are more tiles than run at once and that was
    measured to take less time: of layers that are neither shallow nor deep and fill their columns, with a residual the
    narrower ones."""
    plain = layer.half and layer.prologue is None and layer.behind is None and layer.side == 1
    columns = IN_TURN[:1] if layer.residuals else IN_TURN
    wide = tile.resident == 1 and tile.rows == 128 and tile.columns in columns and steps_of(layer) in STEPS_IN_TURN
    whole = layer.shape[3] % tile.columns == 0
    more = 1 < tiles_of(layer, tile) / (units or USUAL_UNITS) <= MOST_IN_TURN
    return dataclasses.replace(tile, in_turn=True) if plain and wide and whole and more and _run(layer, tile) else tile


def tiles_of(layer: Layer, tile: RowsByColumns) -> int:
    """Of all rows and columns."""
    return -(-math.prod(layer.shape[:3]) // tile.rows) * -(-layer.shape[3] // tile.columns)


def takes(layer: Layer, capability: int) -> bool:
    """Whether the warps can copy and multiply what the layer has."""
    return (
        capability == WARPGROUP_CAPABILITY
        and (layer.weights.dtype == np.int8 if layer.whole_numbers else layer.half)
        and layer.vector in ((16, 8, 4) if layer.whole_numbers else (8, 4))
        and copies_windows(layer)
    )


def copies_windows(layer: Layer) -> bool:
    """Whether Window of rows.cu can copy the layer's windows."""
    taps = layer.weights.shape[1] * layer.weights.shape[2]
    return layer.op.upsample == (1, 1) and layer.op.border == "zero" and taps <= MOST_TAPS


def row_bytes(layer: Layer) -> int:
    """Of a tile: as many as a shallow layer has."""
    return min((n for n in ROW_BYTES if n >= layer.depth * layer.size), default=ROW_BYTES[0])


def steps_of(layer: Layer) -> int:
    """Along the depth."""
    return -(-layer.depth * layer.size // row_bytes(layer))


def _suits(tile: SpecializedTile, layer: Layer) -> bool:
    """Whether no smaller tile or ring does the same work."""
    outputs, steps = layer.shape[3], steps_of(layer)
    few = tile.split == 1 or steps >= 2 * tile.split
    if layer.prologue is not None and tile.stages < 3:  # nothing would be copied while a tile is made ready
        return False
    return few and tile.stages <= max(3, steps // tile.split) and (tile.columns < 2 * outputs or tile.columns == 32)


def cost(layer: Layer, tile: SpecializedTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    Fitted to 1100 measurements of 71 layers of halves on an H200, 226 of 42 layers of bytes (the first choice takes 7%
    longer than the best one), 58 of 22 layers of points that are stored from registers, and 200 of 14 layers that are
    divided along the depth: the first choice takes 3% and 1% longer than the best one on average.
    A workgroup takes as long as its steps,
    of which the slowest part is multiplying, fetching what is multiplied, or issuing the copies, and as its sums take
    to be stored; those that share a multiprocessor overlap. Beside that stands what the memory takes for the layer's
    input, output and what else the epilogue reads.
    """
    pixels, outputs = math.prod(layer.shape[:3]), layer.shape[3]
    _, kh, kw, _ = layer.weights.shape
    units = units or USUAL_UNITS
    groups = tiles_of(layer, tile) * tile.split
    steps, bytes_of_row = -(-steps_of(layer) // tile.split), row_bytes(layer)
    summing = row_norm.effort(layer.norm, tile.rows * bytes_of_row / layer.size)
    sums = tile.rows * tile.columns
    windowed = 1.0 if kh * kw == 1 else MANY_COPIES if tile.rows > 128 else 1.32
    copies = tile.rows * bytes_of_row / (layer.vector * layer.size) / tile.copying * windowed
    preparing = tile.rows * bytes_of_row / layer.size * instructions(layer) * PREPARED  # microseconds of threads
    rates = _BYTES if layer.whole_numbers else _HALVES
    if layer.whole_numbers and _run(layer, tile) and kh * kw == 1:
        rates = _FROM_REGISTERS
    issuing = 0.044 + rates.copy * copies + preparing / tile.copying
    multiplying = max(sums * bytes_of_row * 1.4e-7, (tile.rows + tile.columns) * bytes_of_row * 5.2e-7)
    awaited = 0.0 if tile.in_turn else float(layer.residuals)  # which come together there
    if kh * kw == 1 and outputs >= 2 * layer.weights.shape[3]:
        awaited *= WIDENING
    stored = sums * (rates.stored + rates.read * awaited)
    slowest = max(issuing, multiplying, 0.129 / min(tile.stages - 1, steps))
    alone = rates.start + steps * slowest + stored / tile.consumers
    each = steps * (rates.step + multiplying + preparing / 256 + summing) + 0.0735 + rates.share * stored
    if tile.split > 1:  # to add up; and those of a cluster wait for each other
        alone, each = alone + 1.2, each + 0.2
    waves = max(1.0, groups / (units * tile.resident))
    if waves > 2 and tile.resident == 1 and not tile.in_turn:
        alone += CHANGE
    computing = max(alone * waves**0.982, -(-groups // units) * each)
    if tile.in_turn:
        computing -= AHEAD * (waves - 1)
    elif 1 < waves < 2 and steps >= DEEP:
        computing = max(computing, 2 * tile.resident * each)
    computing += max(0.0, groups / units - 1) if tile.split > 1 else 0.0
    batch, height, width, channels = layer.source.shape
    read = min(batch * height * width, pixels * (math.prod(layer.op.stride) if kh * kw > 1 else 1)) * channels
    moving = (read + layer.stored * outputs * (1 + layer.residuals)) * layer.size * 3.82e-5 / units
    # 0.9: beside the estimates of other kernels, which are too low for large layers
    return float(0.6 + (1.08 if layer.whole_numbers else 0.9) * (computing**3 + moving**3) ** (1 / 3))


#: Residuals of 1x1 layers with at least twice as many outputs as inputs take so many times what they take of others:
#: there is little to hide them behind. (64x14x14, 256 to 1024: 6 us more than estimated in ResNet-50; 16x30x30, 512 to
#: 2048: 28, and 256 to 1024: 7.)
WIDENING = 3.0


@dataclass(frozen=True)
class _Rates:
    """Of the estimates, in microseconds: of a copy, of a sum that is stored and of a value that is read with it; until
    the first step, of a step, and the part of storing that others do not hide."""

    copy: float
    stored: float
    read: float
    start: float
    step: float = 0.135
    share: float = 0.332


_HALVES, _BYTES = _Rates(0.0218, 1.89e-4, 5.95e-5, 1.45), _Rates(0.0218, 2.22e-4, 1.21e-4, 1.06)
_FROM_REGISTERS = _Rates(0.039, 1.68e-4, 1.64e-4, 0.75, 0.112, 0.272)


def groups_of(layer: Layer, tile: SpecializedTile, units: int) -> int:
    """Workgroups; those that take tiles in turn have a multiprocessor each."""
    tiles = tiles_of(layer, tile)
    return min(tiles, units or USUAL_UNITS) if tile.in_turn else tiles * tile.split


def _run(layer: Layer, tile: SpecializedTile) -> int:
    """Channels that a thread stores at once, right from its registers; 0: by way of shared memory."""
    if layer.behind is not None:
        return runs.run_in(layer, tile.columns)
    some = runs.pays(layer, tile.columns) and (layer.whole_numbers or layer.weights.shape[1:3] == (1, 1))
    return runs.run_in(layer, tile.columns) if some and tile.split == 1 else 0


def packed(layer: Layer, tile: SpecializedTile) -> np.ndarray:
    """The weights as the tiles lie in shared memory: for each tile's outputs and each step one, the chunks of 16 bytes
    of whose rows are permuted (place() of specialized.cu)."""
    outputs, kh, kw, inputs = layer.weights.shape
    taps, kind = kh * kw, np.int8 if layer.whole_numbers else np.float16
    across, steps, depth = -(-outputs // tile.columns), steps_of(layer), row_bytes(layer) // layer.size
    rows = np.zeros((outputs, taps, layer.depth // taps), kind)
    rows[..., :inputs] = layer.weights.reshape(outputs, taps, inputs)
    whole = np.zeros((across * tile.columns, steps * depth), kind)
    whole[:outputs, : layer.depth] = rows.reshape(outputs, -1)
    chunks = depth // layer.per_chunk
    tiles = whole.reshape(across, tile.columns, steps, chunks, layer.per_chunk).transpose(0, 2, 1, 3, 4)
    row, chunk = np.arange(tile.columns)[:, None], np.arange(chunks)[None, :]
    turn = row % 8 if chunks == 8 else row // (8 // chunks) % chunks
    return np.ascontiguousarray(tiles[:, :, row, chunk ^ turn])


def launch(ctx: KernelContext, layer: Layer, tile: SpecializedTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see specialized.cu for the constants."""
    epilogue, factors = None, layer
    if _run(layer, tile):
        epilogue = runs.epilogue_of(ctx, layer, tile.columns)
        factors = dataclasses.replace(layer, weights=runs.columns_of(layer.weights, epilogue.run))
    weights = packed(factors, tile)
    outputs = layer.shape[3]
    at_once = 1 if tile.split > 1 else 4 if tile.columns < 64 or layer.side > 1 else 8
    copy, multiply = tile.registers(layer.prologue is not None)
    shared, zero_point = tile.shared_bytes(row_bytes(layer)), layer.op.zero_point or 0
    constants: dict[str, int | str] = {
        **layer.constants(), "VECTOR": layer.vector, "BYTES": layer.size, "BM": tile.rows, "BN": tile.columns,
        "BK": row_bytes(layer) // layer.size, "STAGES": tile.stages, "CONSUMERS": tile.consumers,
        "RESIDENT": tile.resident, "COPYING": tile.copying, "SPLIT": tile.split, "REGISTERS_COPY": copy,
        "REGISTERS_MULTIPLY": multiply, "TILES_N": weights.shape[0], "STEPS": weights.shape[1], "AT_ONCE": at_once,
        "PIXELS": layer.stored, "QUADS": -(-outputs // 4), "SHARED_BYTES": shared, **constants_of(layer, shared),
        **row_norm.constants_of(layer.norm),
    }  # fmt: skip
    if layer.side > 1:
        constants["SIDE"] = layer.side
    groups = groups_of(layer, tile, ctx.features.compute_units)
    constants["AHEAD"] = int(epilogue is None and _loads_ahead(layer, tile, at_once))
    if tile.in_turn:
        constants |= {"TILES": tiles_of(layer, tile), "GROUPS": groups}
    operands: Operands = {"x": layer.source, "w": weights}
    if layer.whole_numbers:
        constants |= {"UNSIGNED": int(layer.source.dtype is DType.UINT8), "PADDED": int(zero_point != 0)}
        operands["outside"] = layer.outside
        first = operands["corrections"] = layer.corrections(weights.shape[0] * tile.columns)
        if epilogue is not None:
            first[: len(epilogue.first)] += epilogue.first
    operands |= operands_of(layer, halves=True)
    constants |= normed.constants_of(layer.behind, weights.shape[0])
    operands |= normed.operands_of(layer.behind)
    shared_files = ("device.cu", "turned.cu", "warpgroup.cu", "pipeline.cu", "elements.cu", "rows.cu")
    more = (*row_norm.files_of(layer.norm), *(() if epilogue is None else ("runs.cu",)), *normed.files_of(layer.behind))
    more = (*more, "divided.cu") if tile.split > 1 else more
    files = (*shared_files, *files_of(layer), *more, "specialized.cu")
    return native_launch(
        ctx, "specialized_convolution", files, constants, operands, label=label_of(ctx),
        workgroup=(tile.threads, 1, 1), dispatch=(groups, 1, 1),
        shared_bytes=shared + factors_bytes(layer),
        variant=str(tile), where=where, pixels=at_once, runs=epilogue, inner=fetched.functions_of(ctx, layer),
        ahead=bool(constants["AHEAD"]),
    )  # fmt: skip


def _loads_ahead(layer: Layer, tile: SpecializedTile, at_once: int) -> bool:
    """Whether what the epilogue reads comes before the products, which waits less: where lanes store all that they
    have at once."""
    lanes_down = 32 // (tile.columns // 4) if tile.columns <= 128 else 0
    once = 16 // layer.side**2 <= at_once * lanes_down and tile.rows == 64 * tile.consumers
    return once and tile.split == 1 and not tile.in_turn and tile.columns <= MOST_COLUMNS_AHEAD
