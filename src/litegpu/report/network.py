"""A model's graph as a picture: a box for each node, coloured by who runs it, layer under layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from litegpu.delegates.report import CPU, DelegationReport
from litegpu.model.types import Subgraph
from litegpu.report.plot import Line, Mark, Plot, Rect, Text
from litegpu.report.style import SERIES
from litegpu.visible import in_line

_BOX_WIDTH, _BOX_HEIGHT = 190.0, 22.0
_STEP_X, _STEP_Y = 204.0, 38.0
_LONGEST_NAME = 21
_LONGEST_NOTE = 60


@dataclass(frozen=True)
class GraphNode:
    """`inputs` are the indices of the nodes whose results it reads; `group` is who runs it, "CPU" or "GPU, partition
    2"; `note` is shown beside it and `marked` makes it stand out."""

    index: int
    op: str
    group: str
    inputs: tuple[int, ...] = ()
    note: str = ""
    marked: bool = False


def graph_nodes(
    subgraph: Subgraph,
    report: DelegationReport,
    notes: Mapping[int, str] | None = None,
    marked: Sequence[int] = (),
) -> list[GraphNode]:
    """The nodes of a subgraph, grouped by the partitions of a delegation. `notes`: node -> text."""
    producer = {t: o.index for o in subgraph.operators for t in o.outputs}
    several = {owner for owner in report.counts if sum(p.owner == owner for p in report.partitions) > 1}
    nodes = []
    for operator, told in zip(subgraph.operators, report.nodes, strict=True):
        part = f", partition {told.partition}" if told.owner in several and told.owner != CPU else ""
        sources = dict.fromkeys(producer[t] for t in operator.inputs if t in producer and t >= 0)
        note = (notes or {}).get(operator.index, "")
        name = operator.name
        nodes.append(GraphNode(operator.index, name, told.owner + part, tuple(sources), note, operator.index in marked))
    return nodes


def groups_of(nodes: Sequence[GraphNode]) -> dict[str, tuple[str, list[GraphNode]]]:
    """Group -> its colour and its nodes, in order of appearance; the CPU is grey."""
    found: dict[str, list[GraphNode]] = {}
    for node in nodes:
        found.setdefault(node.group, []).append(node)
    others = [g for g in found if g != CPU]
    roles = {g: SERIES[i % len(SERIES)] for i, g in enumerate(others)} | {CPU: "s0"}
    return {group: (roles[group], members) for group, members in found.items()}


def picture(nodes: Sequence[GraphNode]) -> Plot:
    """The graph from top to bottom. Nodes stand below all that they read; an edge that passes layers bends aside."""
    place = layered(nodes)
    roles = {n.index: role for role, members in groups_of(nodes).values() for n in members}
    columns = max((x for x, _ in place.values()), default=0) + 1
    notes = {n.index: in_line(n.note, _LONGEST_NOTE) for n in nodes}
    note_room = 8 + 6.6 * max(map(len, notes.values()), default=0)
    spread = _STEP_X + (note_room if note_room > 8 else 0)
    marks: list[Mark] = []
    far = 0
    for node in nodes:
        x, y = _top_left(place[node.index], spread)
        for source in node.inputs:
            if source not in place:
                continue
            sx, sy = _top_left(place[source], spread)
            start, end = (sx + _BOX_WIDTH / 2, sy + _BOX_HEIGHT), (x + _BOX_WIDTH / 2, y)
            if place[node.index][1] - place[source][1] <= 1:
                marks.append(Line((start, end), "muted"))
                continue
            aside = min(sx, x) - 6 - 4 * (far % 3)
            far += 1
            bend = ((aside, start[1] + 5), (aside, end[1] - 5))
            marks.append(Line((start, (start[0], bend[0][1]), *bend, (end[0], bend[1][1]), end), "muted"))
    for node in nodes:
        x, y = _top_left(place[node.index], spread)
        if node.marked:
            marks.append(Rect(x - 3, y - 3, _BOX_WIDTH + 6, _BOX_HEIGHT + 6, "bad", rounded=True))
        name = in_line(node.op, _LONGEST_NAME)
        told = f"node {node.index} {node.op}: {node.group}{f'; {node.note}' if node.note else ''}"
        marks.append(Rect(x, y, _BOX_WIDTH, _BOX_HEIGHT, roles[node.index], told, rounded=True))
        marks.append(Text(x + 6, y + _BOX_HEIGHT / 2, f"{node.index} {name}", "page"))
        if node.note:
            marks.append(
                Text(x + _BOX_WIDTH + 6, y + _BOX_HEIGHT / 2, notes[node.index], "bad" if node.marked else "muted")
            )
    depth = max((y for _, y in place.values()), default=0) + 1
    return Plot(f"graph of {len(nodes)} nodes", 24 + columns * spread, depth * _STEP_Y, tuple(marks), as_is=True)


def layered(nodes: Sequence[GraphNode]) -> dict[int, tuple[float, int]]:
    """Node -> column and layer. Nodes stand below all that they read, which they follow in `nodes`."""
    return _places(nodes, _layers(nodes))


def _top_left(place: tuple[float, int], spread: float) -> tuple[float, float]:
    return 20 + place[0] * spread, 6 + place[1] * _STEP_Y


def _layers(nodes: Sequence[GraphNode]) -> dict[int, int]:
    """Node -> the length of the longest way to it. Nodes stand in an order in which they can run."""
    depth: dict[int, int] = {}
    for node in nodes:
        depth[node.index] = 1 + max((depth[s] for s in node.inputs if s in depth), default=-1)
    return depth


def _places(nodes: Sequence[GraphNode], layers: Mapping[int, int]) -> dict[int, tuple[float, int]]:
    """Node -> column and layer; within a layer in the order of the mean column of what they read."""
    rows: dict[int, list[GraphNode]] = {}
    for node in nodes:
        rows.setdefault(layers[node.index], []).append(node)
    column: dict[int, float] = {}
    for depth in sorted(rows):
        wanted = {}
        for node in rows[depth]:
            above = [column[s] for s in node.inputs if s in column]
            wanted[node.index] = sum(above) / len(above) if above else 0.0
        for position, node in enumerate(sorted(rows[depth], key=lambda n: wanted[n.index])):
            column[node.index] = float(position)
    return {node.index: (column[node.index], layers[node.index]) for node in nodes}
