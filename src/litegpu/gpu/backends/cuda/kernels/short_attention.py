"""Attention of few keys: a warp has them all in registers, so that many heads wait for nothing but memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.functions import ROUGH_FUNCTIONS
from litegpu.gpu.backends.cuda.kernels.attention_operands import side, written_mask
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.backends.cuda.kernels.warpgroup_attention import Sizes, sizes_of
from litegpu.gpu.graph import Attention
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Keys that a warp has in registers, and queries beyond which others, who read keys once for more of them, do more keys
#: than FEW_KEYS.
MOST_KEYS, MOST_QUERIES, FEW_KEYS = 64, 64, 32
#: Times what is estimated from parts, for more keys than FEW_KEYS, which other kernels do in times that were measured:
#: from two heads for each multiprocessor on, and for fewer, where starting a kernel is most of it.
CAUTION, CAUTION_OF_FEW = 1.25, 1.5
#: Times 16 queries that a warp does one after the other, with the same keys.
MOST_BLOCKS = 4
#: Registers of a thread, as estimated, above which the compiler would keep some in memory.
MOST_REGISTERS = 246
#: Warps of a workgroup: those of neighbouring heads, which share lines of memory where a head's rows are NARROW.
WARPS, NARROW, NARROW_WARPS = 4, 16, 8


@dataclass(frozen=True)
class ShortDivision:
    """A warp does `blocks` x 16 queries of a position, and a workgroup has `warps`."""

    blocks: int
    warps: int

    def __str__(self) -> str:
        return f"{self.blocks}x16-{self.warps}"

    def parts(self, sizes: Sizes) -> int:
        """Warps of a position."""
        return -(-sizes.queries // (16 * self.blocks))

    def groups(self, sizes: Sizes) -> int:
        return -(-sizes.positions * self.parts(sizes) // self.warps)


@dataclass(frozen=True)
class _Pieces:
    """Of a row a thread has `each` neighbours, `times` over, as many apart as all threads of the row have at a time."""

    each: int
    times: int


def _of_rows(depth: int) -> _Pieces:
    """Of queries and keys: four threads share a row."""
    each = 2 if depth <= 8 else 4 if depth <= 16 else 8
    return _Pieces(each, -(-depth // (4 * each)))


def _of_values(columns: int) -> _Pieces:
    """Of values: eight threads share a row."""
    each = 1 if columns <= 8 else 2 if columns <= 16 else 4
    return _Pieces(each, -(-columns // (8 * each)))


def _tiles(sizes: Sizes) -> tuple[int, int]:
    """Of 8 keys, and of 16."""
    tiles = -(-sizes.keys // 8)
    return tiles, -(-tiles // 2)


def _words(sizes: Sizes) -> tuple[int, int]:
    """Registers that hold a thread's numbers of a query or a key, and blocks of 8 columns of the results."""
    row, value = _of_rows(sizes.depth), _of_values(sizes.columns)
    return row.each // 2 * row.times, value.each * value.times


def registers(sizes: Sizes) -> int:
    """Of a thread: keys and values, queries, logits, sums, the mask, and what else is needed."""
    (tiles, steps), (words, out) = _tiles(sizes), _words(sizes)
    mask = 4 * steps if sizes.masked and sizes.diagonal is None else 0
    return tiles * words + 2 * steps * out + 2 * words + 4 * tiles + 4 * out + mask + 22


def divisions(sizes: Sizes, units: int) -> list[ShortDivision]:
    """Those that make sense, the cheapest first; none for sizes that do not fit. See cost()."""
    if (
        sizes.keys > MOST_KEYS
        or (sizes.queries > MOST_QUERIES and sizes.keys > FEW_KEYS)
        or registers(sizes) > MOST_REGISTERS
    ):
        return []
    found: dict[int, ShortDivision] = {}
    for blocks in range(1, MOST_BLOCKS + 1):
        one = ShortDivision(blocks, 1)
        warps = NARROW_WARPS if max(sizes.depth, sizes.columns) <= NARROW else WARPS
        while warps > 1 and ShortDivision(blocks, warps).groups(sizes) < (units or USUAL_UNITS):
            warps //= 2
        found.setdefault(one.parts(sizes), ShortDivision(blocks, warps))
    return sorted(found.values(), key=lambda division: cost(sizes, division, units))


def cost(sizes: Sizes, division: ShortDivision, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors, from what an H200's parts take at least: memory,
    the first cache, exponentials and products; and how long one warp takes, if there are no more than fit at once."""
    units = units or USUAL_UNITS
    (tiles, steps), (words, out) = _tiles(sizes), _words(sizes)
    warps, blocks = sizes.positions * division.parts(sizes), sizes.positions * -(-sizes.queries // 16)
    width = sizes.depth + sizes.columns
    memory = 2 * sizes.positions * (sizes.queries + sizes.keys) * width / 3.5e6
    exponentials = 40 + (8 if sizes.masked else 0)
    products = 4 * (tiles * -(-words // 2) + steps * out)
    arithmetic = blocks * (tiles * exponentials + products) / (4 * units) / 1750
    rows = warps * (tiles * 8 + steps * 16) + blocks * (32 + 64 * tiles * sizes.unpacked)  # lines of the first cache
    cached = rows * max(1.0, width / 64) / units / 1750
    alone = 0.6 + division.blocks * (0.15 + 0.04 * tiles + 0.1 * sizes.unpacked)
    resident = max(1, 65536 // (32 * (-(-registers(sizes) // 8) * 8)) // division.warps) * division.warps
    caution = 1.0 if sizes.keys <= FEW_KEYS else CAUTION if sizes.positions >= 2 * units else CAUTION_OF_FEW
    busy = 0.5 * alone + 1.1 * max(memory, arithmetic, cached)
    return caution * (1.5 + max(alone, busy, alone * warps / units / resident))


def launch(ctx: KernelContext, division: ShortDivision, mask: dict[str, int | str], operands: Operands) -> Launch:
    """The attention divided like that; `operands`: q, k, v and perhaps the mask, whose constants are in `mask`."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    heads, sizes = ctx.output.shape[1], sizes_of(ctx)
    scale, beta = op.scale * math.log2(math.e), op.beta * math.log2(math.e)
    row, value = _of_rows(sizes.depth), _of_values(sizes.columns)
    operands, written = written_mask(operands, sizes.diagonal, beta, 16 * _tiles(sizes)[1], sizes.queries, sizes.keys)
    constants: dict[str, int | str] = {
        "WARPS": division.warps, "BLOCKS": division.blocks, "PARTS": division.parts(sizes),
        "POSITIONS": sizes.positions, "PIECE": row.each, "CHUNKS": row.times, "RUN": value.each, "SPANS": value.times,
        "HEADS": heads, "QUERIES": sizes.queries, "KEYS": sizes.keys, "QUADS": -(-sizes.columns // 4),
        "SCALE": float_text(scale), "BETA": float_text(beta), "POSITIVE": int(scale > 0), "DIAGONAL": 0,
        **side("Q", q), **side("K", k), **side("V", v), **mask, **written,
        "K_SHARED": heads // k.shape[1], "V_SHARED": heads // v.shape[1],
    }  # fmt: skip
    return native_launch(
        ctx, "short_attention", ("device.cu", "logits.cu", "short_attention.cu"), constants, operands,
        label="attention", workgroup=(32 * division.warps, 1, 1), dispatch=(division.groups(sizes), 1, 1),
        variant=str(division), needed=(ROUGH_FUNCTIONS,),
    )  # fmt: skip
