"""Which nodes the kernels of a model's programs compute together, and which results they write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.gpu.program import Program
from litegpu.model.types import Subgraph
from litegpu.tools.inference_diff.surgery import widens_constant


@dataclass(frozen=True)
class Kernels:
    """`groups`: node -> the nodes, itself among them, that kernels compute with it, ascending; nodes without a kernel
    (whose results are parts of other tensors' memory) are missing. `written`: the nodes whose results a kernel writes.
    `sources`: the nodes of each kernel."""

    groups: dict[int, tuple[int, ...]]
    written: frozenset[int]
    sources: frozenset[tuple[int, ...]]

    @property
    def several(self) -> list[tuple[int, ...]]:
        """The groups of more than one node."""
        return [group for group in dict.fromkeys(self.groups.values()) if len(group) > 1]


def kernels_of(main: Subgraph, programs: Sequence[Program]) -> Kernels:
    """What `programs` do with the nodes of `main`. A kernel's result is that of the last of its nodes."""
    widening = {o.index for o in main.operators if widens_constant(main, o)}
    found = [tuple(sorted(set(dispatch.sources) - widening)) for program in programs for dispatch in program.dispatches]
    sources = frozenset(s for s in found if s)
    home: dict[int, set[int]] = {}
    for s in sources:
        joined = set(s).union(*(home.get(n, ()) for n in s))
        home.update(dict.fromkeys(joined, joined))
    return Kernels({n: tuple(sorted(h)) for n, h in home.items()}, frozenset(s[-1] for s in sources), sources)


def with_views(main: Subgraph, group: Sequence[int], kernels: Kernels) -> tuple[int, ...]:
    """A group and the nodes without a kernel on the ways from one of its nodes to another."""
    operators = main.operators
    after: set[int] = set()
    made = {t for n in group for t in operators[n].outputs}
    for o in operators:
        if o.index not in kernels.groups and not made.isdisjoint(o.inputs):
            after.add(o.index)
            made.update(o.outputs)
    before: set[int] = set()
    read = {t for n in group for t in operators[n].inputs}
    for o in reversed(operators):
        if o.index not in kernels.groups and not read.isdisjoint(o.outputs):
            before.add(o.index)
            read.update(o.inputs)
    return tuple(sorted({*group, *(after & before)}))
