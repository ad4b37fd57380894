"""Results that take the place of an operand which their kernel reads last, each element where it is written.

A residual block's sum is as large as what it adds: written over that, it takes up no more of the device's cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litegpu.gpu.graph import Node
from litegpu.gpu.kernels.context import Launch
from litegpu.gpu.memory import Allocation
from litegpu.gpu.passes.layout import Placed
from litegpu.gpu.turning import USABLE
from litegpu.gpu.view import View

#: A value of less than so much of the cache is small.
LEAST_SHARE = 16


def taken_places(
    placed: Placed, launches: Sequence[tuple[Node, Launch]], lifetimes: Mapping[int, Allocation], cache_bytes: int
) -> dict[int, int]:
    """Roots, of a size that counts in such a cache, whose values lie where another root's did, which is in none's place
    itself. Epilogues read their operands where they write; nothing else of the launch may read that memory, and nothing
    after it."""
    found: dict[int, int] = {}
    for step, (node, launch) in enumerate(launches):
        result = placed.views[node.output]
        if lifetimes[result.root].first != step or lifetimes[result.root].size * LEAST_SHARE < cache_bytes:
            continue  # part of it was written before, or it is small
        if launch.narrow and lifetimes[result.root].size > USABLE * cache_bytes:
            continue  # what is added comes from memory, a line at a time
        others = {placed.views[v].root for v in node.inputs if v in placed.views}
        bound = [operand.root for operand in launch.operands.values() if isinstance(operand, View)]
        for v in node.operands:
            view = placed.views.get(v)
            if view is None or view.root in others or bound.count(view.root) != 1 or not _are_alike(view, result):
                continue
            life = lifetimes[view.root]
            if 0 <= life.first < life.last == step:
                found[result.root] = found.get(view.root, view.root)
                break
    return found


def joined(lifetimes: Mapping[int, Allocation], places: Mapping[int, int]) -> dict[int, Allocation]:
    """The memory to plan: each place once, from its first value's first step to its last value's last."""
    found: dict[int, Allocation] = {}
    for root, life in lifetimes.items():
        place = places.get(root, root)
        before = found.get(place, life)
        found[place] = Allocation(life.size, min(before.first, life.first), max(before.last, life.last))
    return found


def _are_alike(a: View, b: View) -> bool:
    """Whether the views are the same window onto memory of the same size, of values that are not repeated."""
    same = (a.shape, a.strides, a.dtype, a.offset, a.size) == (b.shape, b.strides, b.dtype, b.offset, b.size)
    return same and a.root != b.root and a.zero_padded == b.zero_padded
