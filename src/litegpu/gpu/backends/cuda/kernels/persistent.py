"""Shallow convolutions by workgroups that stay, on devices that have warpgroup products."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels import row_norm, runs, specialized
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, divided_registers
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Columns of which a thread keeps what the epilogue reads of its channels.
KEPT = 128
#: Outputs from which on sums of halves may leave from registers. (H200: 64 x 56 x 56 x 256 to 128 takes 54.5 us so, and
#: 43.9 by way of shared memory; 12608 x 192 to 576 9.9 and 12.2.)
LEAST_OUTPUTS = 384
#: Steps along the depth of a shallow layer, and bytes of the depth that one of halves has at least.
MOST_STEPS, LEAST_BYTES = 4, 32


@dataclass(frozen=True)
class StayingTile:
    """`teams` warpgroups compute rows x columns each, in turn, of what other warps copy `stages` steps ahead for each;
    `resident` workgroups share a multiprocessor. Sums leave `span` columns at a time; 0: from registers."""

    rows: int
    columns: int
    teams: int
    stages: int
    resident: int
    span: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}-{self.teams}t-{self.stages}-{self.resident}-{self.span}"

    @property
    def copying(self) -> int:
        """Threads that copy. Those of a whole warpgroup give registers up to the others."""
        return 128 if self.resident == 1 else 64

    @property
    def threads(self) -> int:
        return 128 * self.teams + self.copying

    def shared_bytes(self, row_bytes: int, steps: int) -> int:
        """Weights, the ring, the sums and the barriers."""
        weights, ring = steps * self.columns * row_bytes, self.teams * self.stages * self.rows * row_bytes
        sums = self.teams * 64 * (self.span + 8) * 4 if self.span else 0
        return weights + ring + sums + 16 * self.teams * self.stages + 16

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that copies, and of one that multiplies."""
        each = min(255, 65536 // (self.resident * self.threads)) // 8 * 8
        if self.copying < 128:
            return each, each
        return divided_registers(each, self.teams, 40 if self.rows <= 128 else 56)

    def fits(self, row_bytes: int, steps: int) -> bool:
        shared = self.resident * (self.shared_bytes(row_bytes, steps) + 1024)
        registers = self.rows * self.columns // 128 + 32
        if not self.span:  # with what the epilogue reads, and without the ways through shared memory
            registers += self.columns // 2 + self.rows * self.columns // 512 - 8 if self.columns <= KEPT else 24
        return registers <= self.registers[1] and shared <= MOST_WARPGROUP_SHARED_BYTES + 1024


@functools.cache
def candidates() -> tuple[StayingTile, ...]:
    """All tiles that are worth a try."""
    shapes = [
        (64, 32, 1, 4, 4, 32), (64, 32, 2, 2, 2, 32), (64, 64, 1, 3, 3, 64), (64, 64, 1, 4, 4, 64),
        (64, 64, 2, 2, 1, 64), (64, 64, 2, 2, 2, 64), (64, 96, 1, 3, 3, 96), (64, 96, 1, 3, 4, 96),
        (64, 96, 2, 2, 2, 96), (64, 128, 1, 2, 3, 64), (64, 128, 1, 3, 2, 64), (64, 128, 1, 3, 3, 64),
        (64, 128, 2, 2, 1, 64), (64, 128, 2, 2, 2, 64), (64, 128, 2, 3, 1, 64), (64, 128, 3, 2, 1, 64),
        (64, 256, 2, 2, 1, 64), (128, 64, 1, 3, 3, 64), (128, 64, 2, 2, 1, 64), (128, 128, 2, 2, 1, 64),
        (64, 32, 2, 2, 2, 0), (64, 32, 3, 3, 2, 0), (64, 64, 1, 3, 3, 0), (64, 64, 2, 2, 2, 0), (64, 64, 3, 2, 1, 0),
        (64, 64, 4, 2, 1, 0), (64, 96, 3, 2, 1, 0), (64, 128, 2, 2, 1, 0), (128, 64, 1, 3, 2, 0), (128, 64, 2, 2, 1, 0),
        (128, 64, 3, 2, 1, 0), (64, 192, 2, 2, 1, 0), (64, 256, 2, 2, 1, 0),
    ]  # fmt: skip
    return tuple(StayingTile(*shape) for shape in shapes)


def ranked(layer: Layer, capability: int, units: int) -> list[StayingTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer, or it is deep."""
    row_bytes, steps = specialized.row_bytes(layer), specialized.steps_of(layer)
    if not can(layer, capability) or steps > MOST_STEPS or layer.weights.shape[1:3] != (1, 1):
        return []
    found = [tile for tile in candidates() if tile.fits(row_bytes, steps) and _suits(tile, layer, units)]
    return sorted(found, key=lambda tile: (cost(layer, tile, units), tile.threads))


def can(layer: Layer, capability: int) -> bool:
    """Whether the kernel can do the layer."""
    deep = layer.whole_numbers or layer.depth * layer.size >= LEAST_BYTES
    return specialized.takes(layer, capability) and layer.prologue is None and deep


def _suits(tile: StayingTile, layer: Layer, units: int) -> bool:
    """Whether columns are not wasted, teams have several blocks, and three of them need not wait for inputs."""
    waiting = tile.teams > 2 and layer.half and specialized.steps_of(layer) > tile.stages
    narrow = tile.columns < 2 * layer.shape[3] or tile.columns == 32
    wide = layer.whole_numbers or (runs.pays(layer, tile.columns) and layer.shape[3] >= LEAST_OUTPUTS)
    stored = tile.span > 0 or (wide and runs.run_in(layer, tile.columns) > 0)
    return narrow and stored and not waiting and lanes(layer, tile, units)[1] > 1


def lanes(layer: Layer, tile: StayingTile, units: int) -> tuple[int, float]:
    """Workgroups that share the blocks of rows of a column, and how many rounds each has."""
    blocks = -(-math.prod(layer.shape[:3]) // tile.rows)
    across = -(-layer.shape[3] // tile.columns)
    count = max(1, min(blocks // tile.teams, (units or USUAL_UNITS) * tile.resident // across))
    return count, blocks / count / tile.teams


def cost(layer: Layer, tile: StayingTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    Fitted to 620 measurements of 47 layers on an H200, halves and bytes: the first choice takes 3% longer than the best
    one on average. A workgroup's blocks take as long as its teams need in turn, as the copies of their inputs, or as
    the multiprocessor's share of products and stores; beside that stands what the memory takes.
    """
    units, row_bytes, steps = units or USUAL_UNITS, specialized.row_bytes(layer), specialized.steps_of(layer)
    pixels, outputs = math.prod(layer.shape[:3]), layer.shape[3]
    count, rounds = lanes(layer, tile, units)
    sums, across = tile.rows * tile.columns, -(-outputs // tile.columns)
    rates = _FROM_REGISTERS if not tile.span else _BYTES if layer.whole_numbers else _HALVES
    stored, read = sums * rates.stored, layer.residuals * rates.read
    multiplying = steps * max(sums * row_bytes * 1.4e-7, (tile.rows + tile.columns) * row_bytes * 5.2e-7)
    multiplying += row_norm.effort(layer.norm, steps * tile.rows * row_bytes / layer.size)
    alone = 0.11 + rates.step * steps + multiplying + stored * (0.94 + 1.19 * read)
    copying = steps * (0.14 + 0.032 * tile.rows * row_bytes / (layer.vector * layer.size) / tile.copying)
    few = max(1.0, 4 / (tile.teams * tile.resident)) ** rates.few  # warps that store
    each = rates.block + rates.multiplied * multiplying + 0.61 * stored * (1 + 1.23 * read) * few
    blocks = rounds * tile.teams  # of a workgroup
    computing = max(math.ceil(rounds) * alone, blocks * copying, blocks * -(-count * across // units) * each)
    batch, height, width, channels = layer.source.shape
    moving = (min(batch * height * width, pixels) * channels + pixels * outputs * (1 + layer.residuals)) * layer.size
    loading = rates.loaded * steps * tile.columns * row_bytes * tile.resident  # the weights
    estimate = 1.87 + loading + (computing**8 + (moving * rates.moved / units) ** 8) ** 0.125
    # of halves beside the estimates of other kernels, which are too low for large layers
    return float(estimate if layer.whole_numbers else 0.86 * estimate)


@dataclass(frozen=True)
class _Rates:
    """Of the estimates, in microseconds: what a sum that is stored takes, by its way, and what else was fitted."""

    stored: float
    read: float  # what a value that is added takes, of that
    step: float = 0.39
    block: float = 0.07
    multiplied: float = 1.0
    few: float = 0.28
    moved: float = 3.82e-5
    loaded: float = 3.15e-6


_HALVES, _BYTES = _Rates(1e-4, 1.0), _Rates(1.18e-4, 0.69)
#: From 80 measurements of 13 layers of bytes.
_FROM_REGISTERS = _Rates(6.2e-5, 1.28, 0.101, 0.021, 1.65, 0.16, 3.44e-5, 1.06e-5)


def launch(ctx: KernelContext, layer: Layer, tile: StayingTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see persistent.cu for the constants."""
    columns = SpecializedTile(tile.rows, tile.columns, 1, tile.stages, tile.resident)
    epilogue = None if tile.span else runs.epilogue_of(ctx, layer, tile.columns)
    factors = layer
    if epilogue is not None:
        factors = dataclasses.replace(layer, weights=runs.columns_of(layer.weights, epilogue.run))
    weights = specialized.packed(factors, columns)
    batch, height, width, outputs = layer.shape
    pixels, row_bytes = batch * height * width, specialized.row_bytes(layer)
    copy, multiply = tile.registers
    count = lanes(layer, tile, ctx.features.compute_units)[0]
    at_once = 4 if tile.span < 64 else 8
    shared, zero_point = tile.shared_bytes(row_bytes, weights.shape[1]), layer.op.zero_point or 0
    constants: dict[str, int | str] = {
        **layer.constants(), "VECTOR": layer.vector, "BYTES": layer.size, "BM": tile.rows, "BN": tile.columns,
        "BK": row_bytes // layer.size, "STAGES": tile.stages, "TEAMS": tile.teams, "RESIDENT": tile.resident,
        "COPYING": tile.copying, "SPAN": tile.span, "REGISTERS_COPY": copy, "REGISTERS_MULTIPLY": multiply,
        "TILES_N": weights.shape[0], "STEPS": weights.shape[1], "AT_ONCE": at_once, "PIXELS": pixels,
        "QUADS": -(-outputs // 4), "SHARED_BYTES": shared, "LANES": count, "BLOCKS": -(-pixels // tile.rows),
        **row_norm.constants_of(layer.norm),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": weights}
    if layer.whole_numbers:
        constants |= {"UNSIGNED": int(layer.source.dtype is DType.UINT8), "PADDED": int(zero_point != 0)}
        first = layer.corrections(weights.shape[0] * tile.columns)
        if epilogue is not None:
            first[: len(epilogue.first)] += epilogue.first
        operands |= {"outside": layer.outside, "corrections": first}
    more = (*row_norm.files_of(layer.norm), *(() if epilogue is None else ("runs.cu",)))
    files = ("device.cu", "turned.cu", "warpgroup.cu", "pipeline.cu", "elements.cu", "rows.cu", *more, "persistent.cu")
    return native_launch(
        ctx, "persistent_convolution", files, constants, operands, label=label_of(ctx),
        workgroup=(tile.threads, 1, 1), dispatch=(count * weights.shape[0], 1, 1), shared_bytes=shared,
        variant=str(tile), where=where, pixels=at_once, runs=epilogue,
    )  # fmt: skip
