"""Rows of channels that are read once and stay in the registers of the team of threads that shares them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.gpu.graph import Shape
from litegpu.gpu.kernels.access import Index, Position, Sink, Source, mask
from litegpu.gpu.kernels.blocking import both, when
from litegpu.gpu.kernels.per_quad import WORKGROUP
from litegpu.gpu.kernels.powers import power_above
from litegpu.gpu.kernels.team import Combine, number, told
from litegpu.gpu.lang import Kernel, TracedValue
from litegpu.gpu.lang.features import Features

_FEW = 4  # quads up to which a thread has a row to itself; otherwise so many are aimed at for each thread
MOST = 8  # quads that registers keep
_THREADS = 128  # of a workgroup of several subgroups
#: Coordinates of a pixel.
Place = tuple[Index, Index, Index]
_USUAL_UNITS = 16  # multiprocessors, where nobody knows


@dataclass(frozen=True)
class Teams:
    """How pixels of `shape` are divided: a workgroup has `count` teams, each of `width` threads (a power of two), which
    share the channels of a pixel."""

    shape: Shape
    width: int
    count: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:3])

    @property
    def quads(self) -> int:
        return -(-self.shape[3] // 4)

    @property
    def turns(self) -> int:
        """Quads of a thread."""
        return -(-self.quads // self.width)

    @property
    def threads(self) -> int:
        return self.width * self.count

    @property
    def groups(self) -> int:
        return -(-self.rows // self.count)


def choose_teams(shape: Shape, features: Features) -> Teams:
    """Teams within a subgroup where that does and rows are many, the largest where rows are too long to be kept."""
    rows, quads = math.prod(shape[:3]), -(-shape[3] // 4)
    if quads <= _FEW:
        return Teams(shape, 1, min(WORKGROUP, features.max_threads))
    enough = 2 * (features.compute_units or _USUAL_UNITS)
    subgroup = max(1, features.subgroup_size) if features.subgroups else 1
    wanted = power_above(-(-quads // _FEW))
    width = min(wanted, subgroup)
    if width == 1 or width * MOST < quads or (width < wanted and rows < enough):
        most = 1 << (min(features.max_threads, 256).bit_length() - 1)
        width = min(most, max(wanted, power_above(-(-quads // MOST))))
    if features.linear_subgroups or width > subgroup:
        count = max(1, (_THREADS if features.linear_subgroups else WORKGROUP) // width)
        while count > 1 and (rows // count < enough or width * count > features.max_threads):
            count //= 2
    else:  # the workgroup is a subgroup, whose threads know their places
        count = subgroup // width
    return Teams(shape, width, count)


class Row:
    """The pixel of this thread's team, and the quads of it that are this thread's. All threads take part in exchanges:
    those past the last row have the last one, and those past its last quad one that does not count."""

    def __init__(self, k: Kernel, features: Features, teams: Teams) -> None:
        self.k, self.features, self.teams = k, features, teams
        t = number(k, features)
        lane: Index = 0 if teams.width == 1 else t if teams.count == 1 else t % teams.width
        row: Index = k.group_id()
        if teams.count > 1:
            row = k.group_id() * teams.count + (t if teams.width == 1 else t // teams.width)
        self._mine: TracedValue | None = None  # whether the row is not a stand-in
        if teams.groups * teams.count > teams.rows and isinstance(row, TracedValue):
            self._mine, row = row < teams.rows, k.min(row, teams.rows - 1)
        at = Position((*teams.shape[:3], 1), flat=row)
        self.place: Place = (at.b, at.y, at.x)
        self._quads: list[tuple[Index, TracedValue | None]] = []  # and whether there is such a quad
        for turn in range(teams.turns):
            q: Index = lane + turn * teams.width if teams.width > 1 else turn
            exists = None
            if (turn + 1) * teams.width > teams.quads and isinstance(q, TracedValue):
                exists, q = q < teams.quads, k.min(q, teams.quads - 1)
            self._quads.append((q, exists))

    @property
    def places(self) -> list[Position]:
        """Of this thread's quads; of those that do not count, of some that exist."""
        return [Position(self.teams.shape, coordinates=(*self.place, q)) for q, _ in self._quads]

    def load(self, source: Source, fill: float = 0.0, place: Place | None = None) -> list[TracedValue]:
        """This thread's quads, with `fill` in place of those that do not count; of the pixel at another `place`."""
        b, y, x = self.place if place is None else place
        return self.masked([source.quad(b, y, x, q) for q, _ in self._quads], fill)

    def masked(self, values: Sequence[TracedValue], fill: float = 0.0) -> list[TracedValue]:
        """`values` with `fill` in lanes past the last channel, and in what does not count."""
        k, channels = self.k, self.teams.shape[3]
        result = []
        for value, (q, exists) in zip(values, self._quads, strict=True):
            known = mask(k, value, channels, q, fill)
            result.append(known if exists is None else k.select(exists, known, k.const(fill, known.type)))
        return result

    def total(self, values: Sequence[TracedValue], combine: Combine) -> TracedValue:
        """A scalar that the whole team gets: all lanes of all of its values, combined."""
        quad = functools.reduce(combine, values)
        one = combine(combine(quad[0], quad[2]), combine(quad[1], quad[3]))
        return told(self.k, self.features, self.teams.width, one, combine)

    def store(self, sink: Sink, values: Sequence[TracedValue]) -> None:
        """Store the epilogue of `values`."""
        conditions = [both(self._mine, exists) for _, exists in self._quads]
        some = any(c is not None for c in conditions)
        sink.write_all(self.places, values, [when(c) for c in conditions] if some else None)
