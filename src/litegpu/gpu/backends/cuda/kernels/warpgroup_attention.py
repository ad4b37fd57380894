"""Attention by products of four warps together, on devices that have them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.functions import ROUGH_FUNCTIONS
from litegpu.gpu.backends.cuda.kernels.matmul import copied
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS, WARPGROUP_CAPABILITY
from litegpu.gpu.graph import Attention, DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View

#: Queries of a team of four warps.
TEAM = 64
#: What a logit may have added, as a power of two, without anything being left beside others.
HIDDEN = -2e4


@dataclass(frozen=True)
class AttentionTile:
    """A workgroup has `teams` x 64 queries, and goes through the keys in steps of `step`, `stages` of which have
    places; `resident` workgroups share a multiprocessor."""

    teams: int
    step: int
    stages: int
    resident: int

    def __str__(self) -> str:
        return f"{self.teams}x64x{self.step}-{self.stages}-{self.resident}"

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

    def shared_bytes(self, tile: AttentionTile) -> int:
        """The queries, the places of keys and values, and barriers, as warpgroup_attention.cu lays them out."""
        rows, depth, columns = TEAM * tile.teams, _whole(self.depth), _whole(self.columns)
        stage = _tile_bytes(tile.step, depth) + _tile_bytes(tile.step, columns)
        return _tile_bytes(rows, depth) + tile.stages * (stage + 24)

    def steps(self, tile: AttentionTile) -> int:
        return -(-self.keys // tile.step)

    def steps_on_average(self, tile: AttentionTile) -> float:
        """Of a team."""
        if self.diagonal is None:
            return self.steps(tile)
        ends = [min(row, self.queries) for row in range(TEAM, self.queries + TEAM, TEAM)]
        return sum(-(-(end + self.diagonal) // tile.step) for end in ends) / len(ends)

    def groups(self, tile: AttentionTile) -> int:
        return self.positions * -(-self.queries // (TEAM * tile.teams))

    def registers(self, tile: AttentionTile) -> int:
        """Of a thread: the logits of a step, the sums, the queries, the mask, and what else is needed."""
        held = tile.step // 2 + _whole(self.columns) // 2 + _whole(self.depth) // 4
        return held + (tile.step // 8 if self.masked and self.diagonal is None else 0) + 27


@functools.cache
def candidates() -> tuple[AttentionTile, ...]:
    """All tiles that are worth a try; of their places there are at most as many as steps."""
    return tuple(
        AttentionTile(teams, step, stages, resident)
        for teams, residents in ((1, (8, 6, 5, 4, 3, 2)), (2, (4, 3, 2, 1)), (3, (1,)), (4, (1,)))
        for step in (48, 64, 80, 96, 112, 128)
        for stages in (1, 2, 3, 4)
        for resident in residents
    )


def ranked(sizes: Sizes, capability: int, units: int) -> list[AttentionTile]:
    """The candidates that fit and make sense, the cheapest first."""
    if capability != WARPGROUP_CAPABILITY:
        return []
    fitting = [tile for tile in candidates() if _fits(tile, sizes)]
    return sorted(fitting, key=lambda tile: (cost(sizes, tile, units), tile.threads, -tile.stages))


def _fits(tile: AttentionTile, sizes: Sizes) -> bool:
    steps = sizes.steps(tile)
    registers = min(255, 65536 // (tile.resident * tile.threads)) // 8 * 8
    shared = tile.resident * (sizes.shared_bytes(tile) + 1024)
    return (
        (tile.stages == steps or 3 <= tile.stages < steps)
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
    groups, depth = sizes.groups(tile), _whole(sizes.depth) + _whole(sizes.columns)
    together = min(_resident(sizes, tile), -(-groups // units))  # workgroups
    copies = tile.step * depth / 8 / tile.threads
    step = 0.2 + tile.step * (7.5e-4 + 2.63e-5 * depth + 1.5e-3 * sizes.masked) + 8.5e-3 * copies
    team = 0.07 + sizes.steps_on_average(tile) * (step + 0.0186 * (tile.teams - 1))
    alone = max(1.0, 4 / (tile.teams * together)) ** 0.32  # fewer teams hide less of each other's waiting
    return float(2.6 + max(groups / units, together) * tile.teams * team * alone)


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


def sizes_of(ctx: KernelContext) -> Sizes | None:
    """Those of the node, if the kernel can read its operands."""
    node = ctx.node
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    if any(x.dtype is not DType.FLOAT16 or copied(x, True, False) != 8 for x in (q, k, v)):
        return None
    batch, heads, queries, columns = ctx.output.shape
    op, diagonal = node.op, None
    assert isinstance(op, Attention)
    if len(node.inputs) > 3:
        mask = ctx.value(node.inputs[3]).data
        diagonal = None if mask is None else diagonal_of(mask, op.beta * math.log2(math.e), queries, k.shape[2])
    return Sizes(batch * heads, queries, k.shape[2], k.shape[3], columns, len(node.inputs) > 3, diagonal)


def launch(ctx: KernelContext, tile: AttentionTile, mask: dict[str, int | str], operands: Operands) -> Launch:
    """The attention with the given tile; `operands`: q, k, v and perhaps the mask, whose constants are in `mask`."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    _, heads, queries, columns = ctx.output.shape
    sizes = sizes_of(ctx)
    assert sizes is not None
    scale, beta = op.scale * math.log2(math.e), op.beta * math.log2(math.e)
    constants: dict[str, int | str] = {
        "TEAMS": tile.teams, "STEP": tile.step, "STAGES": tile.stages, "RESIDENT": tile.resident,
        "DEPTH": _whole(sizes.depth), "COLUMNS": _whole(columns), "HEADS": heads, "QUERIES": queries,
        "KEYS": sizes.keys, "QUADS": -(-columns // 4), "TILES": -(-queries // (TEAM * tile.teams)),
        "SHARED_BYTES": sizes.shared_bytes(tile), "SCALE": float_text(scale), "BETA": float_text(beta),
        "POSITIVE": int(scale > 0), "MASK": "GIVEN" if "mask" in operands else 0, "LIMITED": 0, "CAUSAL": 0,
        **_side("Q", q), **_side("K", k), **_side("V", v), **mask,
        "K_SHARED": heads // k.shape[1], "V_SHARED": heads // v.shape[1],
    }  # fmt: skip
    if sizes.diagonal is not None:
        operands = {name: operand for name, operand in operands.items() if name != "mask"}
        constants |= {
            "MASK": 0, "MASK_PARAMETER": "", "CAUSAL": 1, "DIAGONAL": sizes.diagonal, "POSITIONS": sizes.positions,
        }  # fmt: skip
    constant = operands.get("mask")
    if isinstance(constant, np.ndarray):
        packed = packed_mask(constant, beta, tile.step, queries, sizes.keys)
        if packed is not None:
            ends = last_steps(constant, beta, tile, queries, sizes.keys)
            limited = bool((ends < sizes.steps(tile)).any())
            operands = {**operands, "mask": packed, **({"ends": ends} if limited else {})}
            constants |= {
                "MASK": "PACKED", "LIMITED": int(limited),
                "MASK_PARAMETER": ", const uint4* mask" + ", const unsigned* ends" * limited,
                "MASK_PITCH_BATCH": packed.shape[1] * packed.shape[2] if packed.shape[0] > 1 else 0,
                "MASK_PITCH_HEAD": packed.shape[2] if packed.shape[1] > 1 else 0,
            }  # fmt: skip
    return native_launch(
        ctx, "warpgroup_attention",
        ("device.cu", "warpgroup.cu", "kept.cu", "pipeline.cu", "exchange.cu", "warpgroup_attention.cu"), constants,
        operands, label="attention", workgroup=(tile.threads, 1, 1), dispatch=(sizes.groups(tile), 1, 1),
        shared_bytes=sizes.shared_bytes(tile), variant=str(tile), needed=(ROUGH_FUNCTIONS,),
    )  # fmt: skip


def _side(name: str, view: View) -> dict[str, int | str]:
    batch, head, row, _ = view.strides
    return {
        f"{name}_WIDTH": view.quads * 4, f"{name}_OFFSET": view.offset,
        f"{name}_PITCH_BATCH": batch if view.shape[0] > 1 else 0,
        f"{name}_PITCH_HEAD": head if view.shape[1] > 1 else 0, f"{name}_PITCH_ROW": row,
    }  # fmt: skip


def packed_mask(mask: np.ndarray, factor: float, step: int, queries: int, keys: int) -> np.ndarray | None:
    """A constant mask [B, H, M or 1, N or 1] times `factor` as halves in the order in which threads need them: [B, H,
    blocks of 16 rows, steps, blocks of 16 keys, lanes, 8], for all rows and keys of whole tiles. None for values that
    are no halves."""
    with np.errstate(over="ignore"):
        scaled = np.float32(mask) * np.float32(factor)
        halves = scaled.astype(np.float16)
    if not np.array_equal(np.isinf(scaled), np.isinf(halves)):
        return None
    lead = halves.shape[:2]
    rows, across = -(-queries // TEAM) * TEAM, -(-keys // step) * step
    whole = np.full((*lead, rows, across), -np.inf, np.float16)
    whole[:, :, :queries, :keys] = halves
    # row: 16 r + 8 half + g; key: step s, 16 n + 8 block + 2 t + e; a lane is g, t and has block, half, e
    parts = whole.reshape(*lead, rows // 16, 2, 8, across // step, step // 16, 2, 4, 2)
    return np.ascontiguousarray(parts.transpose(0, 1, 2, 5, 6, 4, 8, 7, 3, 9)).reshape(
        *lead, rows // 16, across // step, step // 16, 32, 8
    )


def diagonal_of(mask: np.ndarray, factor: float, queries: int, keys: int) -> int | None:
    """The number that a query sees keys up to beyond its own, if a constant mask [B, H, M or 1, N or 1] times `factor`
    says that and nothing else; None for other masks."""
    if mask.shape[2:] != (queries, keys) or not mask.size:
        return None
    beyond = int(np.count_nonzero(mask[0, 0, 0] == 0)) - 1
    if not 0 <= beyond <= keys - queries:
        return None
    seen = np.arange(keys) <= np.arange(queries)[:, None] + beyond
    with np.errstate(over="ignore", invalid="ignore"):
        hidden = mask * np.float32(factor) <= HIDDEN
    return beyond if bool(np.all(np.where(seen, mask == 0, hidden))) else None


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
