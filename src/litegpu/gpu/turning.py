"""Which launches go through their workgroups from the last to the first.

Kernels go through a tensor from its first image to its last. If a tensor is larger than the device's cache, what of it
is still there when its reader begins is the end, and by the time the reader comes to that, the reader's own beginning
has taken its place: everything is read from memory. A reader that begins at the end finds a cache full of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

#: Of the cache, what a program has to itself: the rest holds weights, and what is on its way.
USABLE = 0.7
#: The cache is modelled as so many pieces that are replaced as a whole.
_PIECES = 48
#: What turning has to save, of the cache: less is not worth another kernel to compile.
_LEAST = 1 / 6


@dataclass(frozen=True)
class Access:
    """A launch goes through `size` bytes of the arena from `offset` on, once."""

    offset: int
    size: int
    writes: bool


def turned(launches: Sequence[Sequence[Access]], cache_bytes: int) -> list[bool]:
    """For each launch, in order, whether it is to begin with its last workgroup, on a device with such a cache."""
    piece = int(cache_bytes * USABLE) // _PIECES
    if piece == 0 or max((a.offset + a.size for accesses in launches for a in accesses), default=0) <= cache_bytes:
        return [False] * len(launches)
    found: list[bool] = []
    cache = _Cache(piece)
    for accesses in launches:
        forward, backward = cache.copy(), cache.copy()
        saved = forward.run(accesses, False) - backward.run(accesses, True)
        found.append(saved * piece >= _LEAST * cache_bytes)
        cache = backward if found[-1] else forward
    return found


class _Cache:
    """What was used least lately is replaced first; what was written goes to memory when that happens."""

    def __init__(self, piece: int, pieces: OrderedDict[int, bool] | None = None) -> None:
        self._piece = piece
        self._written = OrderedDict[int, bool]() if pieces is None else pieces  # by piece, the latest last

    def copy(self) -> _Cache:
        return _Cache(self._piece, self._written.copy())

    def run(self, accesses: Sequence[Access], backward: bool) -> int:
        """How many pieces are copied from and to memory by a launch, which goes through all it accesses side by
        side."""
        spans = [(a.offset // self._piece, -(-(a.offset + a.size) // self._piece), a.writes) for a in accesses]
        steps = max((end - first for first, end, _ in spans), default=0)
        moved = 0
        for step in range(steps):
            for first, end, writes in spans:
                for i in range((end - first) * step // steps, (end - first) * (step + 1) // steps):
                    moved += self._touch(end - 1 - i if backward else first + i, writes)
        return moved

    def _touch(self, piece: int, writes: bool) -> int:
        before = self._written.pop(piece, None)
        self._written[piece] = writes or bool(before)
        moved = 0 if writes or before is not None else 1
        if len(self._written) > _PIECES:
            moved += self._written.popitem(last=False)[1]
        return moved
