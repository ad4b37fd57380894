"""Small kernels that do not wait for each other, as one: in the body of a loop the launches cost more than the work."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from litegpu.gpu.graph import Node, sources_of
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import Launch, NativeKernel
from litegpu.gpu.lang import Kernel, trace
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import View

#: Workgroups of a kernel that is joined with others, at most.
MOST_GROUPS = 64
#: Kernels in one, at most: their texts are one text.
MOST_PARTS = 6

Launches = list[tuple[Node, Launch]]


def joined(launches: Launches, features: Features, place: Callable[[int], Hashable]) -> Launches:
    """The same work: launches that wait for equally many others, one behind the other, are neighbours, and small ones
    of these one launch. `place`: of a root, equal for roots that are the same memory."""
    levels = _levels([_accesses(launch, place) for _, launch in launches])
    order = sorted(range(len(launches)), key=lambda i: levels[i])
    found: Launches = []
    for _, level in itertools.groupby(order, key=lambda i: levels[i]):
        together: dict[Hashable, Launches] = {}
        for number in level:
            launch = launches[number][1]
            key = launch.kernel.workgroup if _is_small(launch) else number
            together.setdefault(key, []).append(launches[number])
        for members in together.values():
            found += _in_few(members, features)
    return found


@dataclass(frozen=True)
class _Access:
    """Elements of a place from `first` up to `end` that a launch reads, or writes."""

    place: Hashable
    first: float
    end: float
    writes: bool

    def waits_for(self, other: _Access) -> bool:
        """Whether both cannot be at the same time."""
        either = self.writes or other.writes
        return either and self.place == other.place and self.first < other.end and other.first < self.end


def _accesses(launch: Launch, place: Callable[[int], Hashable]) -> list[_Access]:
    """What a launch reads and writes; of kernels in the target's own language nobody knows which. What is read may be
    anywhere in a place, what is written alone lies where the view has it."""
    found: list[_Access] = []
    memories = {} if isinstance(launch.kernel, NativeKernel) else {m.name: m for m in launch.kernel.buffers}
    for name, view in launch.operands.items():
        if not isinstance(view, View):
            continue
        kernel, first, end, writes = launch.kernel, 0.0, math.inf, True
        if isinstance(kernel, Kernel):
            writes = memories[name] in kernel.stored
            if memories[name] not in kernel.loaded:
                first, end = _span(view)
        found.append(_Access(place(view.root), first, end, writes))
    return found


def _span(view: View) -> tuple[int, int]:
    """The elements that a view's lie among, in whole quads."""
    reach = [(n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True)]
    first, last = (view.offset + sum(f(0, r) for r in reach) for f in (min, max))
    return first // 4 * 4, (last // 4 + 1) * 4


def _levels(accesses: Sequence[Sequence[_Access]]) -> list[int]:
    """How many launches each has to wait for, one behind the other."""
    found: list[int] = []
    earlier: dict[Hashable, list[tuple[_Access, int]]] = {}
    for mine in accesses:
        waiting = (level + 1 for a in mine for other, level in earlier.get(a.place, ()) if a.waits_for(other))
        found.append(max(waiting, default=0))
        for access in mine:
            earlier.setdefault(access.place, []).append((access, found[-1]))
    return found


def _is_small(launch: Launch) -> bool:
    return launch.part is not None and launch.kernel.dispatch[0] <= MOST_GROUPS


def _in_few(members: Launches, features: Features) -> Iterator[tuple[Node, Launch]]:
    """Launches that do not wait for each other as few."""
    run: Launches = []
    for member in members:
        if len(run) == MOST_PARTS or sum(len(launch.operands) for _, launch in (*run, member)) > features.max_buffers:
            yield _one(run)
            run = []
        run.append(member)
    yield _one(run)


def _one(members: Launches) -> tuple[Node, Launch]:
    if len(members) == 1:
        return members[0]
    kernels = [launch.kernel for _, launch in members]
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        first = 0
        for _, launch in members:
            assert launch.part is not None
            groups = math.prod(launch.kernel.dispatch)
            with k.part(first, groups):
                launch.part(k, operands)
            first += groups

    groups = sum(math.prod(k.dispatch) for k in kernels)
    traced = trace(kernel, "joined", kernels[0].workgroup, (groups, 1, 1))
    label = "+".join(dict.fromkeys(launch.label for _, launch in members))
    sources = sources_of(*(node for node, _ in members))
    return dataclasses.replace(members[0][0], sources=sources), Launch(traced, operands, label)
