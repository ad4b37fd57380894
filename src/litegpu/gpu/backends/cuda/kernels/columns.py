"""1x1 convolutions whose rows stay in shared memory while the columns pass by, on devices that have warpgroup
products: a transformer's wide layers, GELU and all."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels import row_norm, runs, specialized
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Threads that copy rows, where there are registers for them.
COPYING = (128, 64)
#: Places for tiles of weights: at least, and as many as there is room for up to this.
LEAST_STAGES, MOST_STAGES = 3, 12
#: Channels of the input and of the output of which it was measured, without a residual.
DEPTHS, LEAST_OUTPUTS = (192, 512), 576
#: Channels of the input, of results in float32.
MOST_OF_FLOATS = 384
#: Rows that are normalised.
LEAST_ROWS = 4096
#: Registers of a thread beside its sums.
OTHER_REGISTERS = 40


@dataclass(frozen=True)
class ColumnTile:
    """A unit of work is rows x columns, 64 rows of it a warpgroup's."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}c"

    @property
    def copying(self) -> int:
        """Threads that copy rows."""
        return next((n for n in COPYING if self._registers(n) >= self._needed), COPYING[-1])

    @property
    def threads(self) -> int:
        return 2 * self.rows + 32 + self.copying

    @property
    def _needed(self) -> int:
        return self.columns // 2 + OTHER_REGISTERS

    def _registers(self, copying: int) -> int:
        return min(255, 65536 // (2 * self.rows + 32 + copying)) // 8 * 8

    def stages(self, row_bytes: int, steps: int) -> int:
        """Places for tiles of weights."""
        left = MOST_WARPGROUP_SHARED_BYTES - steps * (self.rows * row_bytes + 16)
        return min(MOST_STAGES, left // (self.columns * row_bytes + 16))

    def shared_bytes(self, row_bytes: int, steps: int) -> int:
        """As columns.cu lays it out."""
        stages = self.stages(row_bytes, steps)
        return steps * (self.rows * row_bytes + 16) + stages * (self.columns * row_bytes + 16)

    def fits(self, row_bytes: int, steps: int) -> bool:
        return self._needed <= self._registers(self.copying) and self.stages(row_bytes, steps) >= LEAST_STAGES


@functools.cache
def candidates() -> tuple[ColumnTile, ...]:
    """All tiles that are worth a try."""
    shapes = [(128, 256), (128, 192), (128, 128)]  # of 192 rows all took a tenth longer
    return tuple(ColumnTile(*shape) for shape in shapes)


def ranked(layer: Layer, capability: int, units: int) -> list[ColumnTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    if not can(layer, capability) or not _is_known(layer):
        return []
    found = [tile for tile in candidates() if suits(tile, layer)]
    return sorted(found, key=lambda tile: (cost(layer, tile, units), tile.threads))


def can(layer: Layer, capability: int) -> bool:
    """Whether the kernel can do the layer."""
    return (
        layer.half
        and (layer.run or layer.floats) > 0
        and layer.prologue is None
        and layer.weights.shape[1:3] == (1, 1)
        and specialized.takes(layer, capability)
    )


def _is_known(layer: Layer) -> bool:
    """Whether the layer is as those that were measured."""
    outputs, _, _, inputs = layer.weights.shape
    known = DEPTHS[0] <= inputs <= DEPTHS[1] and outputs >= LEAST_OUTPUTS
    return known and not layer.residuals and (not layer.floats or inputs <= MOST_OF_FLOATS)


def normalises(rows: int, depth: int, outputs: int) -> bool:
    """Whether rows of so many channels are better normalised here, once for all columns, than by a kernel in front.
    Narrower ones may be so elsewhere as well."""
    return rows >= LEAST_ROWS and DEPTHS[0] <= depth <= DEPTHS[1] and outputs >= LEAST_OUTPUTS


def suits(tile: ColumnTile, layer: Layer) -> bool:
    """Whether a tile has room, and columns are not wasted."""
    across = -(-layer.shape[3] // tile.columns)
    room = tile.fits(specialized.row_bytes(layer), specialized.steps_of(layer))
    wasted = across * tile.columns - layer.shape[3]
    return room and wasted * 4 <= layer.shape[3] and runs.pays(layer, runs.LEAST_COLUMNS) and run_in(layer, tile) > 0


def run_in(layer: Layer, tile: ColumnTile) -> int:
    """Channels that a thread stores at once; 0 if it cannot."""
    if layer.floats:
        return layer.floats if tile.columns % (4 * layer.floats) == 0 else 0
    return runs.run_in(layer, tile.columns)


def units_of(layer: Layer, tile: ColumnTile) -> tuple[int, int]:
    """Blocks of rows, and of columns."""
    return -(-math.prod(layer.shape[:3]) // tile.rows), -(-layer.shape[3] // tile.columns)


def groups_of(layer: Layer, tile: ColumnTile, units: int) -> int:
    """Workgroups, each of which has a multiprocessor to itself."""
    return min(math.prod(units_of(layer, tile)), units or USUAL_UNITS)


def cost(layer: Layer, tile: ColumnTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors, beside the estimates of other kernels, which know
    nothing of GELU either (which takes 1.2 to 1.4 times as long). From seven measurements of six layers, and of results
    in float32 three of one."""
    row_bytes, steps = specialized.row_bytes(layer), specialized.steps_of(layer)
    blocks, across = units_of(layer, tile)
    rounds = -(-blocks * across // groups_of(layer, tile, units))
    multiplying = tile.rows * tile.columns * steps * row_bytes * 1.4e-7
    storing = tile.columns * 0.0042 + (0.6 if layer.floats else 0.0)
    copying = steps * tile.rows * row_bytes * (2e-5 if rounds > 1 else 8e-6)
    pixels, read = math.prod(layer.shape[:3]), layer.source.shape[3]
    result = 4 if layer.floats else layer.size
    bytes_of_pixel = read * layer.size + layer.shape[3] * (1 + layer.residuals) * result
    moving = pixels * bytes_of_pixel * 3.82e-5 / (units or USUAL_UNITS)
    computing = 3.0 + copying + rounds * (multiplying + storing)
    return float((computing**8 + moving**8) ** 0.125)


def launch(ctx: KernelContext, layer: Layer, tile: ColumnTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see columns.cu for the constants."""
    epilogue = runs.epilogue_of(ctx, layer, tile.columns, run_in(layer, tile))
    factors = dataclasses.replace(layer, weights=runs.columns_of(layer.weights, epilogue.run))
    weights = specialized.packed(factors, SpecializedTile(tile.rows, tile.columns, 1, 2, 1))
    row_bytes, steps = specialized.row_bytes(layer), weights.shape[1]
    blocks, across = units_of(layer, tile)
    groups, shared = groups_of(layer, tile, ctx.features.compute_units), tile.shared_bytes(row_bytes, steps)
    constants: dict[str, int | str] = {
        **layer.constants(), "VECTOR": layer.vector, "BYTES": layer.size, "BM": tile.rows, "BN": tile.columns,
        "BK": row_bytes // layer.size, "STAGES": tile.stages(row_bytes, steps),
        "COPYING": tile.copying, "TILES_N": across, "STEPS": steps, "UNITS": blocks * across, "GROUPS": groups,
        "AT_ONCE": 4, "PIXELS": math.prod(layer.shape[:3]), "QUADS": -(-layer.shape[3] // 4), "SHARED_BYTES": shared,
        **row_norm.constants_of(layer.norm),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": weights}
    files = ("device.cu", "turned.cu", "warpgroup.cu", "pipeline.cu", "elements.cu", "rows.cu")
    return native_launch(
        ctx, "column_convolution", (*files, *row_norm.files_of(layer.norm), "runs.cu", "columns.cu"), constants,
        operands, label=label_of(ctx),
        workgroup=(tile.threads, 1, 1), dispatch=(groups, 1, 1), shared_bytes=shared, variant=str(tile), where=where,
        runs=epilogue,
    )  # fmt: skip
