"""A constant matrix times each of many, on devices that have warpgroup products: what mixes the places of a picture."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.backends.cuda.overlap import SHARED_BYTES
from litegpu.gpu.graph import DType, MatMul
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View

#: Rows of a team of four warps.
TEAM = 64
#: Of the depth: for each 16 of it a thread's registers hold eight numbers of its left factor.
MOST_DEPTH = 256
#: Rows at most: of the right factors, which are read anew for each workgroup's.
MOST_ROWS = 512
#: What every workgroup has of shared memory beside what it asks for.
OWN_BYTES = 1024
#: Registers of a thread beside its sums and its left factor.
OTHER_REGISTERS = 44


@dataclass(frozen=True)
class PlacesTile:
    """A workgroup has `teams` x 64 rows, `columns` of one right factor at a time, of which `stages` have places;
    `resident` workgroups share a multiprocessor."""

    teams: int
    columns: int
    stages: int
    resident: int

    def __str__(self) -> str:
        return f"{TEAM * self.teams}x{self.columns}p-{self.stages}-{self.resident}"

    @property
    def threads(self) -> int:
        return 128 * self.teams


@dataclass(frozen=True)
class PlacesSizes:
    """`positions` times [rows, depth] by [depth, columns]; `residuals`: values as large as the output that are read."""

    positions: int
    rows: int
    depth: int
    columns: int
    residuals: int = 0

    @property
    def whole_depth(self) -> int:
        return -(-self.depth // 16) * 16

    def shared_bytes(self, tile: PlacesTile) -> int:
        """The left factor and the places of right ones, as places.cu lays them out."""
        return 2 * self.whole_depth * (TEAM * tile.teams + tile.stages * tile.columns) + 16 * tile.stages

    def units(self, tile: PlacesTile) -> int:
        return self.positions * (self.columns // tile.columns)

    def down(self, tile: PlacesTile) -> int:
        """Workgroups for all rows."""
        return -(-self.rows // (TEAM * tile.teams))

    def groups(self, tile: PlacesTile, units: int) -> int:
        """Workgroups that share the units, for each block of rows."""
        return max(1, min(self.units(tile), (units or USUAL_UNITS) * tile.resident // self.down(tile)))


@functools.cache
def candidates() -> tuple[PlacesTile, ...]:
    """All tiles that are worth a try."""
    return tuple(
        PlacesTile(teams, columns, stages, resident)
        for teams, residents in ((1, (4, 3, 2, 1)), (2, (2, 1)), (3, (1,)), (4, (1,)))
        for columns in (64, 32)
        for stages in (2, 3, 4)
        for resident in residents
    )


def can(sizes: PlacesSizes, capability: int) -> bool:
    """Whether the kernel can do the product."""
    return (
        capability == WARPGROUP_CAPABILITY
        and sizes.depth <= MOST_DEPTH
        and TEAM // 2 < sizes.rows <= MOST_ROWS
        and sizes.columns % 32 == 0
    )


def ranked(sizes: PlacesSizes, units: int) -> list[PlacesTile]:
    """The candidates that fit, the cheapest first; of those that are equal, the one that copies furthest ahead."""
    fitting = [
        tile for tile in candidates() if _fits(tile, sizes) and tile.stages <= max(2, _rounds(sizes, tile, units))
    ]
    return sorted(fitting, key=lambda tile: (cost(sizes, tile, units), tile.threads, -tile.stages))


def _rounds(sizes: PlacesSizes, tile: PlacesTile, units: int) -> int:
    """Units of a workgroup, at most."""
    return -(-sizes.units(tile) // sizes.groups(tile, units))


def _fits(tile: PlacesTile, sizes: PlacesSizes) -> bool:
    registers = min(255, 65536 // (tile.resident * tile.threads)) // 8 * 8
    needed = tile.columns // 2 + sizes.whole_depth // 4 + OTHER_REGISTERS
    shared = tile.resident * (sizes.shared_bytes(tile) + OWN_BYTES)
    return (
        sizes.columns % tile.columns == 0
        and needed <= registers
        and shared <= MOST_WARPGROUP_SHARED_BYTES + OWN_BYTES
        and (tile.teams == 1 or sizes.rows > TEAM * (tile.teams - 1))
    )


def cost(sizes: PlacesSizes, tile: PlacesTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors. (From counts; not fitted to measurements.)"""
    units = units or USUAL_UNITS
    groups, down = sizes.groups(tile, units), sizes.down(tile)
    rounds = _rounds(sizes, tile, units)
    sharing = min(tile.resident, -(-groups * down // units))  # of a multiprocessor
    rows = min(sizes.rows, TEAM * tile.teams)
    products = tile.teams * TEAM * tile.columns * sizes.whole_depth / 1600
    copied = sizes.whole_depth * tile.columns * 2 / 32
    stored = rows * tile.columns * 2 * (1 + 1.5 * sizes.residuals) / 24 + 300
    waiting = 900 + sizes.whole_depth * 3 + 500 * sizes.residuals
    unit = max(sharing * (products + copied + stored), waiting + products)
    filling = 2500 + TEAM * tile.teams * sizes.whole_depth * 2 / 40 * sharing + copied
    moved = (
        sizes.positions * sizes.columns * (sizes.depth * (1 + 0.3 * (down - 1)) + sizes.rows * (1 + sizes.residuals))
    )
    return float(1.0 + (((filling + rounds * unit) / 1700) ** 4 + (2 * moved / 4.0e6) ** 4) ** 0.25)


def sizes_of(ctx: KernelContext) -> PlacesSizes | None:
    """Those of the node, if the kernel can do it."""
    op, (left, right) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, MatMul)
    matrix, view = ctx.value(left).data, ctx.views.get(right)
    if matrix is None or view is None or matrix.shape[:2] != (1, 1) or not ctx.half or op.transpose_a or op.transpose_b:
        return None
    if np.abs(matrix).max(initial=0) > np.finfo(np.float16).max or not _is_read_in_rows(view):
        return None
    batch, heads, rows, columns = ctx.output.shape
    residuals = sum(not ctx.value(v).is_constant and ctx.value(v).shape == ctx.output.shape for v in ctx.node.operands)
    sizes = PlacesSizes(batch * heads, rows, matrix.shape[3], columns, residuals)
    return sizes if can(sizes, ctx.features.capability) else None


def _is_read_in_rows(view: View) -> bool:
    strides = [s for s, size in zip(view.strides[:3], view.shape[:3], strict=True) if size > 1]
    return view.dtype is DType.FLOAT16 and view.vector and not any(n % 8 for n in (*strides, view.offset))


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for what the kernel cannot do."""
    sizes = sizes_of(ctx)
    tiles = ranked(sizes, ctx.features.compute_units) if sizes else []
    if sizes and will_overlap(ctx.graph):  # else the multiprocessors' memory would be divided anew for this kernel
        tiles = [tile for tile in tiles if sizes.shared_bytes(tile) <= SHARED_BYTES - OWN_BYTES]
    if not sizes or not tiles:
        return None
    return [offered([launch(ctx, sizes, tile) for tile in tiles[: ctx.most]])]


def packed(matrix: np.ndarray, tile: PlacesTile) -> np.ndarray:
    """[M, K] in the order in which threads have a left factor: [blocks of 16 rows, 16s of the depth, lanes, 8]."""
    rows, depth = matrix.shape
    whole = np.zeros((-(-rows // (TEAM * tile.teams)) * TEAM * tile.teams, -(-depth // 16) * 16), np.float16)
    whole[:rows, :depth] = matrix
    # row: 16 r + 8 half + g; depth: 16 k + 8 block + 2 t + e; a lane is g, t and has block, half, e
    parts = whole.reshape(len(whole) // 16, 2, 8, whole.shape[1] // 16, 2, 4, 2)
    return np.ascontiguousarray(parts.transpose(0, 3, 2, 5, 4, 1, 6)).reshape(len(whole) // 16, -1, 32, 8)


def launch(ctx: KernelContext, sizes: PlacesSizes, tile: PlacesTile) -> Launch:
    """The products with the given tile; see places.cu for the constants."""
    left, right = ctx.node.inputs
    matrix, view = ctx.value(left).data, ctx.views[right]
    assert matrix is not None
    groups, down = sizes.groups(tile, ctx.features.compute_units), sizes.down(tile)
    batch, heads, row, _ = view.strides
    constants: dict[str, int | str] = {
        "TEAMS": tile.teams, "BN": tile.columns, "STAGES": tile.stages, "RESIDENT": tile.resident,
        "DEPTH": sizes.whole_depth, "REAL": sizes.depth, "M": sizes.rows, "QUADS": -(-sizes.columns // 4),
        "TILES_M": down, "TILES_N": sizes.columns // tile.columns, "UNITS": sizes.units(tile), "GROUPS": groups,
        "HEADS": ctx.output.shape[1], "OFFSET": view.offset, "PITCH_BATCH": batch if view.shape[0] > 1 else 0,
        "PITCH_HEAD": heads if view.shape[1] > 1 else 0, "PITCH_ROW": row, "SHARED_BYTES": sizes.shared_bytes(tile),
    }  # fmt: skip
    operands: Operands = {"w": packed(matrix[0, 0], tile), "x": view}
    files = ("device.cu", "turned.cu", "warpgroup.cu", "kept.cu", "pipeline.cu", "exchange.cu", "places.cu")
    return native_launch(
        ctx, "places_product", files, constants, operands, label="places_product", workgroup=(tile.threads, 1, 1),
        dispatch=(groups * down, 1, 1), shared_bytes=sizes.shared_bytes(tile), variant=str(tile), pixels=2,
    )  # fmt: skip
