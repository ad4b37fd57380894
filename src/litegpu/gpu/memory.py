"""Arena planning: offsets for memory with known lifetimes, greedily by size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.gpu.program import MemoryReport


@dataclass(frozen=True)
class Block:
    """A piece of memory that is live from step `first` to step `last`, both included."""

    size: int  # bytes
    first: int
    last: int


def plan(blocks: Mapping[int, Block], alignment: int) -> tuple[dict[int, int], MemoryReport]:
    """Byte offsets such that blocks live at the same step do not overlap.

    Each block, the largest first, goes into the smallest gap that holds it between the blocks already placed that are
    live with it, else behind them (Pisarchyk and Lee 2020, "Efficient memory management for deep neural net inference",
    greedy by size).
    """
    sizes = {i: -(-b.size // alignment) * alignment for i, b in blocks.items()}
    offsets: dict[int, int] = {}
    for i in sorted(blocks, key=lambda i: (-sizes[i], blocks[i].first, i)):
        offsets[i] = _best_gap(i, blocks, sizes, offsets)
    report = MemoryReport(
        arena=max((offsets[i] + sizes[i] for i in blocks), default=0),
        unshared=sum(sizes.values()),
        lower_bound=_widest(blocks, sizes),
    )
    return offsets, report


def _best_gap(i: int, blocks: Mapping[int, Block], sizes: dict[int, int], offsets: dict[int, int]) -> int:
    block = blocks[i]
    live = sorted(
        (offsets[j], offsets[j] + sizes[j])
        for j in offsets
        if blocks[j].first <= block.last and block.first <= blocks[j].last
    )
    best, best_gap, end = None, None, 0
    for start, stop in live:
        gap = start - end
        if gap >= sizes[i] and (best_gap is None or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, stop)
    return end if best is None else best


def _widest(blocks: Mapping[int, Block], sizes: dict[int, int]) -> int:
    steps = {b.first for b in blocks.values()}
    return max((sum(sizes[i] for i, b in blocks.items() if b.first <= t <= b.last) for t in steps), default=0)
