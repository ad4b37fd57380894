"""Attention by products of four warps together, on devices that have them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.functions import ROUGH_FUNCTIONS
from litegpu.gpu.backends.cuda.kernels.attention_operands import HIDDEN, diagonal_of, side, written_mask
from litegpu.gpu.backends.cuda.kernels.matmul import copied
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import Attention, DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Queries of a team of four warps.
TEAM = 64
#: Of persistent workgroups: with more, what a tile waits for at its beginning is little of its time. (H200: 256 keys in
#: three steps 34.6 us, by others 32.1; 1500 keys 601 and 562.)
MOST_STEPS = 2
#: Rounds of them that three teams and fewer of a multiprocessor must have. (ViT tiny's at batch 64, twice: 11.4 us for
#: 11.3; in the network 0.3 us more. Four times: 22.0 for 23.2.)
FEW_TEAMS_ROUNDS = 3


@dataclass(frozen=True)
class AttentionTile:
    """A workgroup has `teams` x 64 queries, and goes through the keys in steps of `step`, `stages` of which have
    places; `resident` workgroups share a multiprocessor, and where they are persistent there are no others: each does
    several tiles, whose operands come under the work of the one before."""

    teams: int
    step: int
    stages: int
    resident: int
    persistent: bool = False

    def __str__(self) -> str:
        kept = " persistent" if self.persistent else ""
        return f"{self.teams}x64x{self.step}-{self.stages}-{self.resident}{kept}"

    @property
    def threads(self) -> int:
        return 128 * self.teams


@dataclass(frozen=True)
class Sizes:
    """Of an attention: `positions` times [queries, depth] by [keys, depth] and [keys, columns]."""

    positions: int
    queries: int
    keys: int
    depth: int
    columns: int
    masked: bool = False
    diagonal: int | None = None  # queries see keys up to their own number and this
    unpacked: bool = False  # a mask with rows of its own for each query is computed

    def shared_bytes(self, tile: AttentionTile) -> int:
        """The queries, the places of keys and values, and barriers, as warpgroup_attention.cu lays them out."""
        rows, depth, columns = TEAM * tile.teams, _whole(self.depth), _whole(self.columns)
        stage = _tile_bytes(tile.step, depth) + _tile_bytes(tile.step, columns)
        return (1 + tile.persistent) * _tile_bytes(rows, depth) + tile.stages * (stage + 24)

    def steps(self, tile: AttentionTile) -> int:
        return -(-self.keys // tile.step)

    def steps_on_average(self, tile: AttentionTile) -> float:
        """Of a team."""
        if self.diagonal is None:
            return self.steps(tile)
        ends = [min(row, self.queries) for row in range(TEAM, self.queries + TEAM, TEAM)]
        return sum(-(-(end + self.diagonal) // tile.step) for end in ends) / len(ends)

    def tiles(self, tile: AttentionTile) -> int:
        return self.positions * -(-self.queries // (TEAM * tile.teams))

    def groups(self, tile: AttentionTile, units: int) -> int:
        """Workgroups."""
        return min(self.tiles(tile), tile.resident * units) if tile.persistent else self.tiles(tile)

    def registers(self, tile: AttentionTile) -> int:
        """Of a thread: the logits of a step, the sums, the queries, the mask, and what else is needed."""
        held = tile.step // 2 + _whole(self.columns) // 2 + _whole(self.depth) // 4
        return held + (tile.step // 8 if self.masked and self.diagonal is None else 0) + 27


@functools.cache
def candidates() -> tuple[AttentionTile, ...]:
    """All tiles that are worth a try; of their places there are at most as many as steps."""
    return tuple(
        AttentionTile(teams, step, stages, resident, persistent)
        for teams, residents in ((1, (8, 6, 5, 4, 3, 2)), (2, (4, 3, 2, 1)), (3, (1,)), (4, (1,)))
        for step in (48, 64, 80, 96, 112, 128)
        for stages in (1, 2, 3, 4)
        for resident in residents
        for persistent in (False, True)
    )


def ranked(sizes: Sizes, capability: int, units: int) -> list[AttentionTile]:
    """The candidates that fit and make sense, the cheapest first."""
    if capability != WARPGROUP_CAPABILITY:
        return []
    fitting = [tile for tile in candidates() if _fits(tile, sizes, units or USUAL_UNITS)]
    return sorted(fitting, key=lambda tile: (cost(sizes, tile, units), tile.threads, -tile.stages))


def _fits(tile: AttentionTile, sizes: Sizes, units: int) -> bool:
    steps = sizes.steps(tile)
    registers = min(255, 65536 // (tile.resident * tile.threads)) // 8 * 8
    shared = tile.resident * (sizes.shared_bytes(tile) + 1024)
    if tile.persistent:  # at most one tile of queries ahead
        sensible = 2 <= tile.stages <= steps + 1 <= MOST_STEPS + 1 and sizes.diagonal is None
        rounds = sizes.tiles(tile) / sizes.groups(tile, units)
        sensible = sensible and rounds > (1 if tile.teams * tile.resident >= 4 else FEW_TEAMS_ROUNDS)
    else:
        sensible = tile.stages == steps or 3 <= tile.stages < steps
    return (
        sensible
        and sizes.registers(tile) <= registers
        and shared <= MOST_WARPGROUP_SHARED_BYTES + 1024
        and (tile.teams == 1 or sizes.queries > TEAM * (tile.teams - 1))
        and (tile.step == 48 or tile.step < sizes.keys + 16)
    )


def cost(sizes: Sizes, tile: AttentionTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: of a team's steps, which are products,
    exponentials, copies and waiting for other teams, one after the other where few teams share a multiprocessor. (From
    71 measurements of eight attentions on an H200, which it misses by 7%; the first choice takes 1% longer than the
    best one.)"""
    units = units or USUAL_UNITS
    if tile.persistent:
        return _persistent_cost(sizes, tile, units)
    groups, depth = sizes.tiles(tile), _whole(sizes.depth) + _whole(sizes.columns)
    together = min(_resident(sizes, tile), -(-groups // units))  # workgroups
    copies = tile.step * depth / 8 / tile.threads
    step = 0.2 + tile.step * (7.5e-4 + 2.63e-5 * depth + 1.5e-3 * sizes.masked) + 8.5e-3 * copies
    team = 0.07 + sizes.steps_on_average(tile) * (step + 0.0186 * (tile.teams - 1))
    alone = max(1.0, 4 / (tile.teams * together)) ** 0.32  # fewer teams hide less of each other's waiting
    return float(2.6 + max(groups / units, together) * tile.teams * team * alone)


def _persistent_cost(sizes: Sizes, tile: AttentionTile, units: int) -> float:
    """The same of persistent workgroups, of which some have a tile more than others. (From 120 measurements of fifteen
    attentions, beside those of others, missed by 3.4%; what is chosen of all takes 0.7% longer than the best. 4% less
    than measured: memory that the others wait for is in the fit, and not in their estimates.)"""
    rounds, depth = -(-sizes.tiles(tile) // sizes.groups(tile, units)), _whole(sizes.depth) + _whole(sizes.columns)
    teams, copies = tile.teams * tile.resident, tile.step * depth / 8 / tile.threads
    step = 0.1535 + tile.step * (1.52e-3 + 2.0e-5 * depth + 1.06e-3 * sizes.masked) + 4.4e-3 * copies
    team = sizes.steps(tile) * (step + 0.0279 * (tile.teams - 1))
    return float(3.07 + rounds * teams * team * max(1.0, 4 / teams) ** 0.437)


def _resident(sizes: Sizes, tile: AttentionTile) -> int:
    """Workgroups that a multiprocessor has place for, which may be more than the compiler was told."""
    registers = -(-sizes.registers(tile) // 8) * 8 * tile.threads
    shared = sizes.shared_bytes(tile) + 1024
    return max(tile.resident, min(65536 // registers, (MOST_WARPGROUP_SHARED_BYTES + 1024) // shared))


def _whole(numbers: int) -> int:
    return -(-numbers // 16) * 16


def _tile_bytes(rows: int, numbers: int) -> int:
    return -(-rows * _row_bytes(numbers) // 1024) * 1024


def _row_bytes(numbers: int) -> int:
    """Of a tile in shared memory."""
    return 32 if numbers <= 16 else 64 if numbers <= 32 else -(-numbers // 64) * 128


def readable(ctx: KernelContext) -> bool:
    """Whether the kernel can read the node's operands."""
    views = [ctx.views[i] for i in ctx.node.inputs[:3]]
    return all(view.dtype is DType.FLOAT16 and copied(view, True, False) == 8 for view in views)


def sizes_of(ctx: KernelContext) -> Sizes:
    """Those of the node."""
    node = ctx.node
    _, k, _ = (ctx.views[i] for i in node.inputs[:3])
    batch, heads, queries, columns = ctx.output.shape
    op, diagonal, unpacked = node.op, None, False
    assert isinstance(op, Attention)
    if len(node.inputs) > 3:
        mask = ctx.value(node.inputs[3])
        unpacked = mask.data is None and mask.shape[2] > 1
        if mask.data is not None:
            diagonal = diagonal_of(mask.data, op.beta * math.log2(math.e), queries, k.shape[2])
    return Sizes(batch * heads, queries, k.shape[2], k.shape[3], columns, len(node.inputs) > 3, diagonal, unpacked)


def launch(ctx: KernelContext, tile: AttentionTile, mask: dict[str, int | str], operands: Operands) -> Launch:
    """The attention with the given tile; `operands`: q, k, v and perhaps the mask, whose constants are in `mask`."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    _, heads, queries, columns = ctx.output.shape
    sizes, units = sizes_of(ctx), ctx.features.compute_units or USUAL_UNITS
    groups = sizes.groups(tile, units)
    scale, beta = op.scale * math.log2(math.e), op.beta * math.log2(math.e)
    constants: dict[str, int | str] = {
        "TEAMS": tile.teams, "STEP": tile.step, "STAGES": tile.stages, "RESIDENT": tile.resident,
        "DEPTH": _whole(sizes.depth), "COLUMNS": _whole(columns), "HEADS": heads, "QUERIES": queries,
        "KEYS": sizes.keys, "QUADS": -(-columns // 4), "TILES": -(-queries // (TEAM * tile.teams)),
        "GROUPS": groups, "POSITIONS": sizes.positions,
        "SHARED_BYTES": sizes.shared_bytes(tile), "SCALE": float_text(scale), "BETA": float_text(beta),
        "POSITIVE": int(scale > 0), "LIMITED": 0, **side("Q", q), **side("K", k), **side("V", v), **mask,
        "K_SHARED": heads // k.shape[1], "V_SHARED": heads // v.shape[1],
    }  # fmt: skip
    constant = operands.get("mask")
    operands, written = written_mask(operands, sizes.diagonal, beta, tile.step, queries, sizes.keys)
    constants |= written
    limits = not tile.persistent and not written["CAUSAL"]
    if limits and isinstance(constant, np.ndarray) and written["MASK"] == "PACKED":
        ends = last_steps(constant, beta, tile, queries, sizes.keys)
        if (ends < sizes.steps(tile)).any():
            operands = {**operands, "ends": ends}
            constants |= {"LIMITED": 1, "MASK_PARAMETER": f"{written['MASK_PARAMETER']}, const unsigned* ends"}
    return native_launch(
        ctx, "warpgroup_attention",
        ("device.cu", "turned.cu", "warpgroup.cu", "kept.cu", "pipeline.cu", "exchange.cu", "logits.cu",
         "warpgroup_attention.cu"), constants,
        operands, label="attention", workgroup=(tile.threads, 1, 1), dispatch=(groups, 1, 1),
        shared_bytes=sizes.shared_bytes(tile), variant=str(tile), needed=(ROUGH_FUNCTIONS,),
    )  # fmt: skip


def last_steps(mask: np.ndarray, factor: float, tile: AttentionTile, queries: int, keys: int) -> np.ndarray:
    """How many steps the queries of each workgroup need: behind them, as above the diagonal of a causal mask, `mask`
    times `factor` hides all keys from all of them. Rows in which nothing is to be seen count as if all were."""
    scaled = mask.astype(np.float64) * factor
    empty = np.all(scaled <= HIDDEN, axis=3, keepdims=True) & np.any(scaled > -np.inf, axis=3, keepdims=True)
    seen = np.logical_or.reduce((scaled > HIDDEN) | np.isnan(scaled) | empty, axis=(0, 1))
    rows, steps = TEAM * tile.teams, -(-keys // tile.step)
    groups = -(-queries // rows)
    whole = np.zeros((groups * rows, steps * tile.step), bool)
    whole[:queries, :keys] = seen
    needed = np.logical_or.reduce(whole.reshape(groups, rows, steps, tile.step), axis=(1, 3))
    return np.array([1 + np.flatnonzero(row).max(initial=0) for row in needed], np.uint32)
