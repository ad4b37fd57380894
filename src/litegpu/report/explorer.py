"""A graph that a reader walks through: it pans, zooms and searches, on a canvas, by a script of our own (explorer.js).

The script reads one JSON object: `box` (width and height of a node), `step` (from layer to layer), `groups` (name and
colour) and `nodes`, each with index, op, note, group, x, y, inputs, seconds, facts (pairs), text (what is searched).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from litegpu.report.network import GraphNode, groups_of, layered
from litegpu.report.text import escape
from litegpu.visible import in_line, visible

_BOX = (200, 42)
_STEP_X, _STEP_Y = 260, 74
_LONGEST_NOTE = 60
_LONGEST_FACT = 600

KEYS = (
    "Arrow keys follow the edges and the layer, + and - zoom, 0 shows all, / searches, n and N go to the next and the "
    "last match, Home and End to the first and the last node."
)


@dataclass(frozen=True)
class Explored:
    """What is told of a node beside its GraphNode: `facts` are (name, value), and `seconds` its share of the time."""

    facts: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0


def script() -> str:
    """The script of a page with an explorer."""
    return resources.files("litegpu.report").joinpath("explorer.js").read_text(encoding="utf-8")


def explorer(nodes: Sequence[GraphNode], explored: Sequence[Explored]) -> str:
    """The HTML of an explorer of these nodes. Needs the script on the page."""
    groups = groups_of(nodes)
    legend = "".join(
        f'<li><span class="key b-{role}"></span>{escape(name)}: {len(members)}</li>'
        for name, (role, members) in groups.items()
    )
    content = json.dumps(_data(nodes, explored), separators=(",", ":")).replace("<", "\\u003c")
    label = f"Graph of {len(nodes)} nodes. {KEYS}"
    return (
        f'<section class="explorer"><ul class="wrap">{legend}</ul><div class="tools">'
        '<label>Search <input type="search" placeholder="op, tensor, number" autocomplete="off"></label>'
        '<output aria-live="polite"></output>'
        '<button type="button" value="out" aria-label="Zoom out">&minus;</button>'
        '<button type="button" value="in" aria-label="Zoom in">+</button>'
        '<button type="button" value="fit">All</button>'
        '<label>Colour <select><option value="owner">who runs it</option><option value="time">time</option></select>'
        f'</label></div><canvas tabindex="0" role="application" aria-label="{escape(label)}"></canvas>'
        f'<p class="subtitle">{escape(KEYS)}</p>'
        '<dl class="facts" aria-live="polite"></dl>'
        f'<script type="application/json">{content}</script></section>'
    )


def _data(nodes: Sequence[GraphNode], explored: Sequence[Explored]) -> dict[str, object]:
    groups = groups_of(nodes)
    number = {name: i for i, name in enumerate(groups)}
    places = layered(nodes)
    found = []
    for node, more in zip(nodes, explored, strict=True):
        column, layer = places[node.index]
        facts = [(visible(name), in_line(value, _LONGEST_FACT)) for name, value in more.facts]
        searched = " ".join((str(node.index), node.op, node.group, *(value for _, value in facts)))
        found.append({
            "index": node.index, "op": visible(node.op), "note": in_line(node.note, _LONGEST_NOTE),
            "group": number[node.group], "x": column * _STEP_X + 60, "y": layer * _STEP_Y, "inputs": node.inputs,
            "seconds": more.seconds, "facts": facts, "marked": node.marked, "text": searched.lower(),
        })  # fmt: skip
    roles = [{"name": visible(name), "role": role} for name, (role, _) in groups.items()]
    return {"box": _BOX, "step": _STEP_Y, "groups": roles, "nodes": found}
