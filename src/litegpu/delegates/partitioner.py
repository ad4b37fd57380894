"""Divides a subgraph among delegates and the CPU: largest partitions, no cycles, an order in which they can run.

The rule is the official runtime's (PartitionGraphIntoIndependentNodeSubsets): nodes are taken greedily as their inputs
become ready, all of one kind before the other kind, so a partition can join nodes that are not adjacent in the file.
Here it is tried from both ends of the graph and from both kinds, and the best result is kept.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.blame import described
from litegpu.delegates.protocol import Delegate, DelegateKernel, KeepsVariables, Partition, TakesUnknown
from litegpu.delegates.report import CPU, DelegationReport, NodeReport, PartitionReport
from litegpu.errors import DelegateError, ModelError
from litegpu.model.types import Model, Operator, Subgraph

ON_CPU = -1


@dataclass(frozen=True, eq=False)
class Division:
    """`partitions` in an order in which they can run, each with its owner's position in the list of delegates (ON_CPU
    for the CPU), and the report of it."""

    partitions: tuple[tuple[int, Partition], ...]
    report: DelegationReport

    @property
    def delegated(self) -> bool:
        return any(owner != ON_CPU for owner, _ in self.partitions)


@dataclass
class FailedDelegate:
    """Stands for a delegate whose prepare() raised: it takes nothing, and gives the cause as the reason."""

    name: str
    cause: Exception
    max_delegated_partitions: int = 0
    min_nodes_per_partition: int = 0
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = sys.maxsize

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        return f"The delegate failed to prepare: {type(self.cause).__name__}: {self.cause}"

    def prepare(self, partition: Partition) -> DelegateKernel:
        raise self.cause


@dataclass
class NarrowedDelegate:
    """Stands for a delegate that failed to prepare some nodes, and is not asked for those again."""

    whole: Delegate
    reasons: dict[int, str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        return self.reasons.get(operator.index) or self.whole.check(model, subgraph, operator)


def divide(
    model: Model, subgraph: Subgraph, delegates: Sequence[Delegate], refused: Mapping[int, str] | None = None
) -> Division:
    """Ask the delegates in turn, each for the nodes that the earlier ones left.

    `refused` names nodes that no delegate is asked for, with the reason.
    """
    verdicts = [_verdicts(model, subgraph, delegate, refused or {}) for delegate in delegates]
    graph = _Dataflow(subgraph)
    units: list[_Unit] = [_Unit(ON_CPU, (node,)) for node in range(len(subgraph.operators))]
    dropped: dict[int, str] = {}
    attached = [{n for n in graph.constant_dequantize if v[n] is None} for v in verdicts]
    for position, delegate in enumerate(delegates):
        units = _delegate(graph, units, position, delegate, verdicts[position], attached[position], dropped)
    ordered = _schedule(graph, units, attached)
    partitions = _borders(model, subgraph, ordered)
    return Division(partitions, _report(subgraph, delegates, partitions, verdicts, dropped))


def whole_on_cpu(subgraph: Subgraph, delegates: Sequence[str], reasons: Mapping[int, str]) -> DelegationReport:
    """The report of a model that runs in one piece on the CPU; `reasons` by node number."""
    nodes = tuple(NodeReport(o.index, o.name, o.code, CPU, 0, False, reasons.get(o.index)) for o in subgraph.operators)
    everything = PartitionReport(0, CPU, tuple(n.index for n in nodes), subgraph.inputs, subgraph.outputs)
    return DelegationReport(tuple(delegates), nodes, (everything,))


# ------------------------------------------------------------------------------------------------ the parts


@dataclass(frozen=True)
class _Unit:
    """Nodes that are scheduled as one: a node by itself, or a delegate's partition."""

    owner: int
    nodes: tuple[int, ...]


class _Dataflow:
    """Which node needs which. `constant_dequantize`: see widened_constants()."""

    def __init__(self, subgraph: Subgraph) -> None:
        operators = subgraph.operators
        self.count = len(operators)
        producer = {t: n for n, o in enumerate(operators) for t in o.outputs}
        self.needs = [sorted({producer[t] for t in o.inputs if t in producer}) for o in operators]
        self.constant_dequantize = widened_constants(subgraph)
        self.users: list[list[int]] = [[] for _ in operators]
        for node, sources in enumerate(self.needs):
            for source in sources:
                self.users[source].append(node)

    def attachments(self, nodes: Iterable[int], candidates: set[int]) -> set[int]:
        """Those of `candidates` that one of `nodes` reads."""
        return {source for node in nodes for source in self.needs[node] if source in candidates}

    def successors(self, units: Sequence[_Unit], without: set[int]) -> list[list[int]]:
        """The units that wait for each unit, where what comes from the nodes `without` does not count."""
        home = {node: i for i, unit in enumerate(units) for node in unit.nodes}
        found: list[set[int]] = [set() for _ in units]
        for i, unit in enumerate(units):
            for node in unit.nodes:
                for source in self.needs[node]:
                    if source not in without and source in home and home[source] != i:
                        found[home[source]].add(i)
        return [sorted(s) for s in found]


def _verdicts(model: Model, subgraph: Subgraph, delegate: Delegate, refused: Mapping[int, str]) -> list[str | None]:
    first, last = delegate.first_delegate_node_index, delegate.last_delegate_node_index
    found: list[str | None] = []
    for node, operator in enumerate(subgraph.operators):
        if node in refused and not (isinstance(delegate, TakesUnknown) and delegate.takes_unknown):
            found.append(refused[node])
        elif not first <= node <= last:
            found.append(
                f"The node lies outside first_delegate_node_index..last_delegate_node_index ({first}..{last})."
            )
        else:
            found.append(_check(model, subgraph, delegate, operator))
    return found


def _check(model: Model, subgraph: Subgraph, delegate: Delegate, operator: Operator) -> str | None:
    reads = any(t >= 0 and subgraph.tensors[t].is_variable for t in operator.inputs)
    if reads and not (isinstance(delegate, KeepsVariables) and delegate.keeps_variables):
        return "The node reads a variable, and the delegate keeps none."
    try:
        reason: object = delegate.check(model, subgraph, operator)
    except Exception as error:  # a delegate by someone else: one node that it trips over must not lose the model
        return f"The delegate's check failed: {described(error)}"
    if reason is None or isinstance(reason, str):
        return reason
    raise DelegateError(
        f"Delegate {delegate.name}: check() of operator {operator.index} {operator.name} gave {reason!r}; it must give "
        "None if the delegate runs the node, else the reason why not, a str"
    )


def _delegate(
    graph: _Dataflow,
    units: list[_Unit],
    position: int,
    delegate: Delegate,
    verdict: Sequence[str | None],
    attached: set[int],
    dropped: dict[int, str],
) -> list[_Unit]:
    """`units` after this delegate took its partitions, which the widened constants in `attached` may join."""
    active = [u for u in units if not (len(u.nodes) == 1 and u.nodes[0] in attached)]
    accepted = [u.owner == ON_CPU and verdict[u.nodes[0]] is None for u in active]
    successors = graph.successors(active, attached)

    def groups_of(epochs: list[tuple[bool, list[int]]]) -> list[tuple[int, ...]]:
        return [tuple(sorted(n for i in members for n in active[i].nodes)) for kind, members in epochs if kind]

    def size(nodes: tuple[int, ...]) -> int:
        return len(nodes) + len(graph.attachments(nodes, attached))

    best: tuple[tuple[int, int], list[tuple[int, ...]], list[tuple[int, ...]]] | None = None
    for backward in (False, True):
        for start in (True, False):
            groups = groups_of(_epochs(accepted, successors, start, backward))
            large = [g for g in groups if size(g) >= delegate.min_nodes_per_partition]
            kept = sorted(large, key=size, reverse=True)
            if delegate.max_delegated_partitions > 0:
                kept = kept[: delegate.max_delegated_partitions]
            score = (sum(size(g) for g in kept), -len(groups))
            if best is None or score > best[0]:
                best = (score, groups, kept)
    assert best is not None
    _, groups, kept = best
    for group in groups:
        if group not in kept:
            few = size(group) < delegate.min_nodes_per_partition
            reason = (
                f"in partitions of fewer nodes than min_nodes_per_partition={delegate.min_nodes_per_partition}"
                if few
                else f"in smaller partitions than the largest that max_delegated_partitions="
                f"{delegate.max_delegated_partitions} keeps"
            )
            for node in group:
                dropped.setdefault(node, reason)
    chosen = {n for group in kept for n in group}
    remaining = [u for u in units if u.owner != ON_CPU or u.nodes[0] not in chosen]
    return remaining + [_Unit(position, group) for group in kept]


def _schedule(graph: _Dataflow, units: list[_Unit], attached: Sequence[set[int]]) -> list[_Unit]:
    """Delegates' partitions and joined CPU nodes in an order in which they can run, with as few CPU partitions as the
    two starting kinds give; the widened constants are copied into every partition that reads them."""
    owner = {n: u.owner for u in units for n in u.nodes}
    crossing = {  # widened constants that a delegate reads and cannot compute: a CPU partition of their own does
        n
        for n in graph.constant_dequantize
        if owner[n] == ON_CPU and any(owner[u] != ON_CPU and n not in attached[owner[u]] for u in graph.users[n])
    }
    copied = {n for n in graph.constant_dequantize if owner[n] == ON_CPU and n not in crossing}
    unused = {n for n in copied if not graph.users[n]}
    elsewhere = (copied - unused) | crossing
    scheduled = [u for u in units if not (len(u.nodes) == 1 and u.nodes[0] in elsewhere)]
    successors = graph.successors(scheduled, elsewhere)
    delegated = [u.owner != ON_CPU for u in scheduled]
    orders = [_epochs(delegated, successors, start, False) for start in (True, False)]
    ordered = [_Unit(ON_CPU, tuple(sorted(crossing)))] if crossing else []
    for kind, members in min(orders, key=len):
        if kind:
            ordered += [scheduled[i] for i in members]
        else:
            ordered.append(_Unit(ON_CPU, tuple(n for i in members for n in scheduled[i].nodes)))
    constants = copied | crossing
    copies = [graph.attachments(u.nodes, constants if u.owner == ON_CPU else attached[u.owner]) for u in ordered]
    return [_Unit(u.owner, tuple(sorted({*u.nodes, *c}))) for u, c in zip(ordered, copies, strict=True)]


def _epochs(
    kind: Sequence[bool], successors: Sequence[Sequence[int]], start: bool, backward: bool
) -> list[tuple[bool, list[int]]]:
    """Vertices in runs of one kind: every ready vertex of the kind is taken, then the kind changes. Backward, the graph
    is walked from its outputs, so that vertices run as late as they can instead of as early."""
    after = [list(s) for s in successors]
    if backward:
        after = [[] for _ in successors]
        for vertex, targets in enumerate(successors):
            for target in targets:
                after[target].append(vertex)
    waiting = [0] * len(after)
    for targets in after:
        for target in targets:
            waiting[target] += 1
    ready: dict[bool, deque[int]] = {True: deque(), False: deque()}
    for vertex, count in enumerate(waiting):
        if count == 0:
            ready[kind[vertex]].append(vertex)
    epochs: list[tuple[bool, list[int]]] = []
    current, left = start, len(after)
    while left:
        members: list[int] = []
        while ready[current]:
            vertex = ready[current].popleft()
            members.append(vertex)
            for target in after[vertex]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready[kind[target]].append(target)
        if members:
            epochs.append((current, members))
            left -= len(members)
        elif not ready[not current]:
            raise ModelError("the nodes of the graph depend on each other in a cycle")
        current = not current
    return epochs[::-1] if backward else epochs


# ------------------------------------------------------------------------------------------ borders and report


def widened_constants(subgraph: Subgraph) -> set[int]:
    """The nodes that only widen a constant: any partition can compute such a value for itself, so it never has to cross
    a border, unless it is an output of the graph."""
    return {
        n
        for n, o in enumerate(subgraph.operators)
        if o.name == "DEQUANTIZE"
        and all(t >= 0 and subgraph.tensors[t].is_constant for t in o.inputs)
        and not set(o.outputs) & set(subgraph.outputs)
    }


def borders(subgraph: Subgraph, operators: Sequence[Operator]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tensors that enter and leave some operators as a partition."""
    own = {o.index for o in operators}
    read = {t for o in subgraph.operators if o.index not in own for t in o.inputs}
    wanted = read.union(subgraph.outputs)
    made = dict.fromkeys(t for o in operators for t in o.outputs if t in wanted)
    return _inputs(subgraph, [o.index for o in operators]), tuple(made)


def _borders(model: Model, subgraph: Subgraph, units: Sequence[_Unit]) -> tuple[tuple[int, Partition], ...]:
    operators, tensors = subgraph.operators, subgraph.tensors
    inputs = [_inputs(subgraph, unit.nodes) for unit in units]
    found, offered = [], set()
    for i, unit in enumerate(units):
        wanted = set(subgraph.outputs).union(*(inputs[:i] + inputs[i + 1 :]))
        made = [t for n in unit.nodes for t in operators[n].outputs if t in wanted and t not in offered]
        offered.update(made)
        assert not any(tensors[t].is_constant for t in made)
        nodes = tuple(operators[n] for n in unit.nodes)
        found.append((unit.owner, Partition(model, subgraph, nodes, inputs[i], tuple(made))))
    return tuple(found)


def _inputs(subgraph: Subgraph, nodes: Sequence[int]) -> tuple[int, ...]:
    operators = [subgraph.operators[n] for n in nodes]
    inside = {t for o in operators for t in o.outputs}
    read = (t for o in operators for t in o.inputs if t >= 0 and t not in inside)
    tensors = subgraph.tensors
    return tuple(dict.fromkeys(t for t in read if not (tensors[t].is_constant or tensors[t].is_variable)))


def _report(
    subgraph: Subgraph,
    delegates: Sequence[Delegate],
    partitions: Sequence[tuple[int, Partition]],
    verdicts: Sequence[Sequence[str | None]],
    dropped: Mapping[int, str],
) -> DelegationReport:
    names = [d.name for d in delegates]
    asked = [(name, v) for name, v in zip(names, verdicts, strict=True) if name != CPU]
    place: dict[int, int] = {}
    for i, (owner, partition) in enumerate(partitions):
        for o in partition.nodes:
            if o.index not in place or (owner != ON_CPU and partitions[place[o.index]][0] == ON_CPU):
                place[o.index] = i

    def reason(node: int) -> str | None:
        if len(asked) == 1 and asked[0][1][node] is not None:
            return asked[0][1][node]
        refusals = [f"{name}: {v[node]}" for name, v in asked if v[node] is not None]
        if len(refusals) == len(asked):
            return " ".join(refusals) or None
        return dropped.get(node, "Only nodes on the CPU read its result.")

    nodes = []
    for node, o in enumerate(subgraph.operators):
        owner = partitions[place[node]][0]
        name = CPU if owner == ON_CPU else names[owner]
        accepted = any(v[node] is None for _, v in asked)
        why = reason(node) if name == CPU else None
        nodes.append(NodeReport(o.index, o.name, o.code, name, place[node], accepted, why))
    return DelegationReport(
        tuple(name for name, _ in asked),
        tuple(nodes),
        tuple(
            PartitionReport(
                i, CPU if owner == ON_CPU else names[owner], tuple(o.index for o in p.nodes), p.inputs, p.outputs
            )
            for i, (owner, p) in enumerate(partitions)
        ),
    )
