"""Arena planning: offsets in one arena for memory with known lifetimes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from litegpu.gpu.program import MemoryReport

#: Random exchanges tried when no greedy order reaches the lower bound; a few milliseconds each on large graphs.
TRIES = 60


@dataclass(frozen=True)
class Allocation:
    """A piece of memory that is live from step `first` to step `last`, both included."""

    size: int  # bytes
    first: int
    last: int


def plan(blocks: Mapping[int, Allocation], alignment: int) -> tuple[dict[int, int], MemoryReport]:
    """Byte offsets such that blocks live at the same step do not overlap.

    Blocks are placed one by one, each into the smallest gap that holds it between the blocks already placed that are
    live with it, else behind them. The order decides the result: by size and by breadth (Pisarchyk and Lee 2020,
    "Efficient memory management for deep neural net inference"), and while those miss the lower bound, seeded random
    exchanges in the best order so far.
    """
    sizes = {i: -(-b.size // alignment) * alignment for i, b in blocks.items()}
    bound = _widest(blocks, sizes)
    best = min((_place(order, blocks, sizes) for order in _orders(blocks, sizes)), key=lambda p: p.arena)
    random = Random(0)
    for _ in range(TRIES if len(blocks) > 1 else 0):
        if best.arena == bound:
            break
        order = list(best.order)
        i, j = random.sample(range(len(order)), 2)
        order.insert(i, order.pop(j))
        best = min(best, _place(order, blocks, sizes), key=lambda p: p.arena)
    return best.offsets, MemoryReport(arena=best.arena, unshared=sum(sizes.values()), lower_bound=bound)


@dataclass(frozen=True)
class _Placement:
    order: list[int]
    offsets: dict[int, int]
    arena: int


def _orders(blocks: Mapping[int, Allocation], sizes: dict[int, int]) -> Iterator[list[int]]:
    """By size, the largest first; and by breadth: the steps with the most live memory first, their blocks by size."""
    by_size = sorted(blocks, key=lambda i: (-sizes[i], blocks[i].first, i))
    yield by_size

    def breadth(step: int) -> int:
        return sum(sizes[i] for i, b in blocks.items() if b.first <= step <= b.last)

    steps = sorted({b.first for b in blocks.values()}, key=lambda t: (-breadth(t), t))
    yield list(dict.fromkeys(i for t in steps for i in by_size if blocks[i].first <= t <= blocks[i].last))


def _place(order: list[int], blocks: Mapping[int, Allocation], sizes: dict[int, int]) -> _Placement:
    offsets: dict[int, int] = {}
    for i in order:
        offsets[i] = _best_gap(i, blocks, sizes, offsets)
    return _Placement(order, offsets, max((offsets[i] + sizes[i] for i in order), default=0))


def _best_gap(i: int, blocks: Mapping[int, Allocation], sizes: dict[int, int], offsets: dict[int, int]) -> int:
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


def _widest(blocks: Mapping[int, Allocation], sizes: dict[int, int]) -> int:
    steps = {b.first for b in blocks.values()}
    return max((sum(sizes[i] for i, b in blocks.items() if b.first <= t <= b.last) for t in steps), default=0)
