"""Attention of bytes: warps have 16 queries' logits of all keys in registers, and round as each operator does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import Traced, float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, device_shared_bytes
from litegpu.gpu.graph import DType, IntegerAttention, Shape, arguments
from litegpu.gpu.kernels.access import Index, Operands, Source, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import Argument, evaluate
from litegpu.gpu.lang import TracedValue, i32, i32x4, u32
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lang.kernel import Kernel

#: Keys that warps have the logits of in registers, and numbers of a query, and of a value, that they multiply.
MOST_KEYS, MOST_WIDTH = 256, 128
#: Warps of a workgroup, and of them how many have the same 16 queries; blocks of 16 keys that a warp has at most.
WARPS, TEAMS, MOST_OWN = (8, 4), (1, 2, 4), 8
#: Registers of a multiprocessor, for each thread of a warp.
REGISTERS = 2048
#: Floats of the table of exponentials, with zeros behind it; bytes, at most, that warps tell each other.
TABLE, TOLD = 768, 4096


def takes(q: Shape, k: Shape, v: Shape, features: Features) -> bool:
    """Whether there is a kernel for queries, keys and values of these shapes."""
    depth, columns, keys = q[3], v[3], k[2]
    return (
        1 < keys <= MOST_KEYS
        and max(depth, columns) <= MOST_WIDTH
        and depth % 4 == columns % 4 == 0
        and bool(divisions(q, k, v, features))
    )


@dataclass(frozen=True)
class ByteAttentionDivision:
    """A workgroup has `warps`, of which `team` have the same 16 queries of a head, of the sizes that follow."""

    warps: int
    team: int
    positions: int
    queries: int
    keys: int
    depth: int
    columns: int

    def __str__(self) -> str:
        return f"{self.warps}/{self.team}x16"

    @property
    def rows(self) -> int:
        """Queries of a workgroup."""
        return 16 * self.warps // self.team

    @property
    def parts(self) -> int:
        """Workgroups of a head."""
        return -(-self.queries // self.rows)

    @property
    def groups(self) -> int:
        return self.positions * self.parts

    @property
    def own(self) -> int:
        """Blocks of 16 keys of a warp."""
        return -(-self.keys // (16 * self.team))

    @property
    def key_pitch(self) -> int:
        """Words from key to key in shared memory: four more than a multiple of eight, for whose lines no lanes wait."""
        return -(-self.depth // 32) * 8 + 4

    @property
    def value_pitch(self) -> int:
        """Words from column to column of the values, which are turned: keys lie side by side."""
        return 8 * max(-(-self.keys // 32), -(-self.own * self.team // 2)) + 4

    @property
    def row_pitch(self) -> int:
        """Floats from query to query of what is added up in order, and weights take the place of: an odd number of
        quads, for which no lanes wait."""
        return max(4 * (-(-self.keys // 4) | 1), self.value_pitch)

    @property
    def places(self) -> tuple[int, int, int, int]:
        """Where keys' sums, values, keys and rows of floats lie, which give way to weights, in bytes."""
        sums = 4 * TABLE
        values = sums + 64 * self.own * self.team
        keys = values + 64 * -(-self.columns // 16) * self.value_pitch
        return sums, values, keys, keys + 64 * self.own * self.team * self.key_pitch

    @property
    def shared(self) -> int:
        return self.places[3] + 4 * self.rows * self.row_pitch


def divisions(q: Shape, k: Shape, v: Shape, features: Features) -> list[ByteAttentionDivision]:
    """Those that fit, the cheapest first."""
    whole = ByteAttentionDivision(1, 1, math.prod(q[:2]), q[2], k[2], q[3], v[3])
    found = [dataclasses.replace(whole, warps=n, team=m) for n in WARPS for m in TEAMS]
    found = [
        one for one in found if one.own <= MOST_OWN and one.shared + TOLD <= device_shared_bytes(features.capability)
    ]
    return sorted(found, key=lambda one: cost(one, features.compute_units or USUAL_UNITS))


def cost(one: ByteAttentionDivision, units: int) -> float:
    """Estimated cycles: what a quarter of a multiprocessor issues, or what a workgroup takes by itself, whose warps
    wait for memory and for one another. (An H200, ViT tiny's 12 layers: batch 64 401 us by 8 warps in teams of two,
    420 by four, 450 in teams of four; batch 1 58 us by 4 warps in a team, 65 by 8 in two, 85 in teams of two.)"""
    each = 230 * one.own + 300 + 8 * -(-one.columns // (16 * one.team)) * -(-one.keys // 32)  # instructions of a warp
    loading = (8 * one.keys * (one.depth + one.columns) // 16 + 2000) / (32 * one.warps)
    ordered = 5 * one.keys / one.team
    resident = max(
        1, min(64 // one.warps, (224 << 10) // (one.shared + 1024), REGISTERS // (one.warps * _registers(one)))
    )
    rounds = -(-one.groups // (units * resident))
    together = -(-one.warps * min(resident, -(-one.groups // units)) // 4)
    alone = (2 + together) * each + 3 * loading + 12 * one.keys + 1500
    return rounds * max(alone, together * (each + loading + ordered))


def _registers(one: ByteAttentionDivision) -> int:
    """Of a thread, about: logits, queries, sums and what else is needed."""
    return 8 * one.own + 4 * -(-one.depth // 32) + 8 * -(-one.columns // (16 * one.team)) + 28


def build(ctx: KernelContext) -> list[Launch]:
    """One launch."""
    shapes = [ctx.value(v).shape for v in ctx.node.inputs[:3]]
    found = divisions(shapes[0], shapes[1], shapes[2], ctx.features)
    return [offered([_launch(ctx, one) for one in found[: ctx.most]])]


def _launch(ctx: KernelContext, one: ByteAttentionDivision) -> Launch:
    """See byte_attention.cu for the constants."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, IntegerAttention)
    table = ctx.value(node.inputs[3]).data
    assert table is not None
    views = [ctx.views[v] for v in node.inputs[:3]]
    of_q, of_k, of_v = (z - 128 * (x.dtype is DType.UINT8) for z, x in zip(op.zero_points, views, strict=True))
    sums, values, keys, rows = one.places
    constants: dict[str, int | str] = {
        "WARPS": one.warps, "TEAM": one.team, "PARTS": one.parts, "HEADS": ctx.output.shape[1],
        "QUERIES": one.queries, "KEYS": one.keys, "DEPTH": one.depth, "QUADS": one.columns // 4,
        "KEY_PITCH": one.key_pitch, "VALUE_PITCH": one.value_pitch, "ROW_PITCH": one.row_pitch,
        "SUMS_AT": sums, "VALUES_AT": values, "KEYS_AT": keys, "ROWS_AT": rows,
        "OF_Q": of_q, "OF_K": of_k, "OF_V": of_v, "SCALE": float_text(op.scale),
    }  # fmt: skip
    functions = [
        Traced(ctx, name, (u32,) * 4, _words(ctx, v, several=name == "key_words"))
        for name, v in zip(("query_word", "key_words", "value_word"), node.inputs[:3], strict=True)
    ]
    functions.append(Traced(ctx, "logits_of", (u32, u32, u32, u32, i32x4), _logits(ctx, op)))
    return native_launch(
        ctx, "byte_attention", ("device.cu", "pipeline.cu", "byte_attention.cu"), constants,
        {"table": table.reshape(-1).astype(np.float32)}, label="attention", workgroup=(32 * one.warps, 1, 1),
        dispatch=(one.groups, 1, 1), shared_bytes=one.shared, variant=str(one), inner=functions,
    )  # fmt: skip


def _words(ctx: KernelContext, value: int, *, several: bool) -> Callable[..., TracedValue]:
    """(batch, head, row, i) -> the i-th four numbers of a row as the signed bytes of a word, or with `several` the i-th
    16 as four words, zeros behind the last."""

    def read(
        k: Kernel, operands: Operands, b: TracedValue, h: TracedValue, row: TracedValue, i: TracedValue
    ) -> TracedValue:
        source = open_source(ctx, k, value, operands)
        if not several:
            return _word(k, source, b, h, row, i)
        if source.has_words:
            return source.words(b, h, row, i)
        return k.vec(*(_word(k, source, b, h, row, i * 4 + j) for j in range(4)))

    return read


def _word(k: Kernel, source: Source, b: Index, h: Index, row: Index, i: TracedValue) -> TracedValue:
    quads = source.view.quads
    word = source.word(b, h, row, k.min(i, quads - 1))
    return k.select(i < quads, word, k.const(0, i32))


def _logits(ctx: KernelContext, op: IntegerAttention) -> Callable[..., TracedValue]:
    """(batch, head, query, quad of keys, sums) -> four logits."""

    def found(k: Kernel, operands: Operands, *place: TracedValue) -> TracedValue:
        b, h, row, q, sums = place
        known: list[Argument] = [sums]
        used = arguments(op.logits)
        for i, v in enumerate(ctx.node.inputs[4:], start=1):
            if i not in used:
                known.append(None)
                continue
            lead, heads, queries, keys = ctx.value(v).shape
            image: Index = 0 if lead == 1 else b % lead if lead < ctx.output.shape[0] else b
            at = image, 0 if heads == 1 else h, 0 if queries == 1 else row, 0 if keys == 1 else q
            known.append(open_source(ctx, k, v, operands).broadcast(*at))
        return evaluate(k, op.logits, known)

    return found
