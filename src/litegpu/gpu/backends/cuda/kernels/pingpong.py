"""Convolutions by workgroups that stay, of which two warpgroups take turns at the tensor cores, on devices that have
warpgroup products: large layers, whose sums are finished and stored while others are multiplied."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels import runs, specialized, told
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.program import RowMap

#: Registers of a thread of the warpgroup that copies, of one of those that multiply, and of these beside its sums.
REGISTERS_COPY, REGISTERS_MULTIPLY, OTHER_REGISTERS = 40, 232, 32
#: Warpgroups that multiply.
TEAMS = 2
#: Rows, and bytes of the depth, of layers that were measured.
LEAST_ROWS, LEAST_DEPTH = 2048, 400
#: Microseconds of a kernel, of a step, of a byte that comes to shared memory and of one that is read there; of a tile
#: that is stored, of each of its sums, and of one to which a value is added or of which a function is taken.
START, STEP, FILLED, READ = 0.9, 6.16e-3, 5.9e-6, 4.22e-6
STORED, SUM, ADDED, FUNCTION = 0.118, 4.52e-5, 1.63e-4, 2.29e-4
#: The same of one that a row's factor is multiplied with, of one to which a number is added that is normalised, and of
#: one that is summed up.
FACTOR, NORMALISED, TOLD = 1e-5, 6e-5, 4e-5
#: Beside the estimates of other kernels, which are too low for large layers.
BESIDE = 0.84


@dataclass(frozen=True)
class PingpongTile:
    """Two warpgroups compute rows x columns each, in turn, of what other warps copy `stages` steps ahead; `cluster`
    workgroups have the same columns, and share what they read of the weights."""

    rows: int
    columns: int
    stages: int
    cluster: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}-{self.stages}p/{self.cluster}"

    @property
    def threads(self) -> int:
        return 3 * 128

    def shared_bytes(self, row_bytes: int) -> int:
        """The ring and its barriers."""
        return self.stages * ((self.rows + self.columns) * row_bytes + 16)

    def fits(self) -> bool:
        sums = self.rows * self.columns // 128
        shared = self.shared_bytes(specialized.ROW_BYTES[0])
        return sums + OTHER_REGISTERS <= REGISTERS_MULTIPLY and shared <= MOST_WARPGROUP_SHARED_BYTES


@functools.cache
def candidates() -> tuple[PingpongTile, ...]:
    """All tiles that are worth a try."""
    shapes = [(128, 192, 5), (192, 128, 5), (128, 128, 7), (64, 256, 5), (128, 96, 8), (128, 64, 9)]
    return tuple(PingpongTile(*shape, cluster) for shape in shapes for cluster in (1, 2))


def ranked(layer: Layer, capability: int, units: int) -> list[PingpongTile]:
    """The candidates that make sense, the cheapest first; none if the kernel cannot do the layer."""
    if not can(layer, capability) or not _is_known(layer):
        return []
    found = [tile for tile in candidates() if suits(tile, layer)]
    return sorted(found, key=lambda tile: (cost(layer, tile, units), tile.threads))


def can(layer: Layer, capability: int) -> bool:
    """Whether the kernel can do the layer."""
    plain = layer.prologue is None and layer.norm is None and layer.behind is None and layer.side == 1
    deep = specialized.row_bytes(layer) == specialized.ROW_BYTES[0]
    # copies by a map begin at multiples of 16 bytes, as pixels have to
    mapped = layer.access == "POINTS" and layer.vector == layer.per_chunk and layer.weights.shape[1:3] == (1, 1)
    return specialized.takes(layer, capability) and layer.run > 0 and plain and deep and mapped and not layer.fetched


def _is_known(layer: Layer) -> bool:
    """Whether the layer is as those that were measured."""
    return math.prod(layer.shape[:3]) >= LEAST_ROWS and layer.depth * layer.size >= LEAST_DEPTH


def suits(tile: PingpongTile, layer: Layer) -> bool:
    """Whether columns are not wasted."""
    across = -(-layer.shape[3] // tile.columns)
    wasted = across * tile.columns - layer.shape[3]
    return tile.fits() and wasted * 4 <= layer.shape[3] and runs.run_in(layer, tile.columns) > 0


def units_of(layer: Layer, tile: PingpongTile) -> int:
    """Tiles of a cluster, of all rows and columns."""
    return -(-math.prod(layer.shape[:3]) // (tile.rows * tile.cluster)) * -(-layer.shape[3] // tile.columns)


def groups_of(layer: Layer, tile: PingpongTile, units: int) -> int:
    """Clusters, each workgroup of which has a multiprocessor to itself."""
    return min(units_of(layer, tile), (units or USUAL_UNITS) // tile.cluster)


def cost(layer: Layer, tile: PingpongTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    Fitted to 157 measurements of 27 layers of halves on an H200 (ResNet-50's, ConvNeXt's and transformers' at batch
    64), 9% from them on average: with the estimates of other kernels what is chosen takes 1.4% longer than the best, 8%
    at most. A step takes what shared memory takes for what comes and for what is multiplied, which is more than the
    products take; one warpgroup's sums are finished and stored under the products of the other.
    """
    row_bytes, steps = specialized.row_bytes(layer), specialized.steps_of(layer)
    rounds = -(-units_of(layer, tile) // groups_of(layer, tile, units))
    filled, read = (tile.rows + tile.columns) * row_bytes, tile.rows // 64 * (64 + tile.columns) * row_bytes
    multiplying = steps * (STEP + FILLED * filled + READ * read)
    each = SUM + ADDED * layer.residuals + FUNCTION * layer.functions + TOLD * (layer.tells is not None)
    if layer.told is not None:
        each += NORMALISED if layer.told.operand else FACTOR
    both = multiplying + STORED + tile.rows * tile.columns * each
    second = multiplying + rounds // 2 * both if rounds > 1 else 0.0  # which begins behind the products of the first
    computing = max((rounds - 1) * multiplying + both, -(-rounds // 2) * both, second)
    pixels, outputs, inputs = math.prod(layer.shape[:3]), layer.shape[3], layer.source.shape[3]
    moving = pixels * (inputs + outputs * (1 + layer.residuals)) * layer.size * 3.82e-5 / (units or USUAL_UNITS)
    return float(BESIDE * (START + (computing**6 + moving**6) ** (1 / 6)))


def launch(ctx: KernelContext, layer: Layer, tile: PingpongTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile; see pingpong.cu for the constants."""
    epilogue = runs.epilogue_of(ctx, layer, tile.columns)
    factors = dataclasses.replace(layer, weights=runs.columns_of(layer.weights, epilogue.run))
    row_bytes, rows = specialized.row_bytes(layer), TEAMS * tile.rows
    fetched, norms = runs.fetched_bytes(epilogue, layer, rows), told.shared_bytes(layer, rows)
    stages = tile.stages
    while (
        dataclasses.replace(tile, stages=stages).shared_bytes(row_bytes) + fetched + norms > MOST_WARPGROUP_SHARED_BYTES
    ):
        stages -= 1
    ring = dataclasses.replace(tile, stages=stages).shared_bytes(row_bytes)
    weights = specialized.packed(factors, SpecializedTile(tile.rows, tile.columns, 1, stages, 1))
    groups = groups_of(layer, tile, ctx.features.compute_units)
    zero_point = layer.op.zero_point or 0
    constants: dict[str, int | str] = {
        **layer.constants(), "VECTOR": layer.vector, "BYTES": layer.size, "BM": tile.rows, "BN": tile.columns,
        "BK": row_bytes // layer.size, "STAGES": stages, "RING_BYTES": ring, "CLUSTER": tile.cluster,
        "REGISTERS_COPY": REGISTERS_COPY, "REGISTERS_MULTIPLY": REGISTERS_MULTIPLY, "TILES_N": weights.shape[0],
        "STEPS": weights.shape[1], "UNITS": units_of(layer, tile), "GROUPS": groups,
        "PIXELS": layer.stored, "QUADS": -(-layer.shape[3] // 4), **told.constants_of(layer, ring + fetched),
        **({"FETCHED_AT": ring, "FETCHING": 128 * TEAMS} if fetched else {}),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": weights}
    if layer.whole_numbers:
        constants |= {"UNSIGNED": int(layer.source.dtype is DType.UINT8), "PADDED": int(zero_point != 0)}
        first = layer.corrections(weights.shape[0] * tile.columns)
        first[: len(epilogue.first)] += epilogue.first
        operands |= {"outside": layer.outside, "corrections": first}
    operands |= told.operands_of(layer)
    shared_files = (
        "device.cu", "turned.cu", "warpgroup.cu", "pipeline.cu", "remote.cu", "bulk.cu", "elements.cu", "runs.cu",
        *told.files_of(layer),
    )  # fmt: skip
    return native_launch(
        ctx, "pingpong_convolution", (*shared_files, "pingpong.cu"), constants, operands, label=label_of(ctx),
        workgroup=(tile.threads, 1, 1), dispatch=(groups * tile.cluster, 1, 1), variant=str(tile),
        shared_bytes=ring + fetched + norms, where=where, runs=epilogue, maps=(_rows(layer, tile),),
    )  # fmt: skip


def _rows(layer: Layer, tile: PingpongTile) -> RowMap:
    """The pixels of the input."""
    view, size = layer.source, layer.size
    assert layer.pitch is not None
    shape, box = (math.prod(layer.shape[:3]), view.shape[3]), (tile.rows, specialized.ROW_BYTES[0] // size)
    return RowMap(0, view.offset * size, shape, layer.pitch * size, box, size)
