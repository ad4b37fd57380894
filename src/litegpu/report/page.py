"""A self-contained HTML page: works offline, in light and dark, on a phone."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Self

from litegpu.report import explorer, network
from litegpu.report.explorer import Explored
from litegpu.report.network import GraphNode
from litegpu.report.plot import Plot
from litegpu.report.style import style_sheet
from litegpu.report.text import escape
from litegpu.whole_file import write_whole

_LARGEST_GRAPH = 600  # nodes; larger ones are listed only
_LONG_CELL = 40  # characters from which on a cell may break
_UNITS = ("ms", "us", "µs", "s", "B", "kB", "MB", "GB", "dB", "J", "mJ", "W", "x", "%", "/s")

# Nothing is loaded from anywhere: the browser is told to see to it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Page:
    """Built from top to bottom; every method gives the page itself. Texts are escaped."""

    def __init__(self, title: str, *, subtitle: str = "", footer: str = "") -> None:
        self.title, self.subtitle, self.footer = title, subtitle, footer
        self._parts: list[str] = []
        self._scripts: dict[str, None] = {}

    def figures(self, figures: Sequence[Sequence[str]]) -> Self:
        """Key figures, large: (name, value) or (name, value, "good" or "bad")."""
        cells = []
        for name, value, *judged in figures:
            state = f' class="{judged[0]}"' if judged and judged[0] in ("good", "bad") else ""
            cells.append(f"<div><dt>{escape(name)}</dt><dd{state}>{escape(value)}</dd></div>")
        return self._add(f'<dl class="figures">{"".join(cells)}</dl>')

    def section(self, heading: str) -> Self:
        """A heading; what follows belongs to it."""
        return self._add(f"<h2>{escape(heading)}</h2>")

    def text(self, text: str, state: str = "") -> Self:
        """A paragraph; `state` is "good", "bad" or nothing."""
        return self._add(f'<p class="{escape(state)}">{escape(text)}</p>' if state else f"<p>{escape(text)}</p>")

    def code(self, text: str) -> Self:
        """Text as it is, such as a command."""
        return self._add(f"<pre>{escape(text)}</pre>")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        caption: str = "",
        marked: Collection[int] = (),
        folded: bool = False,
    ) -> Self:
        """A table that scrolls by itself where it is too wide; columns of numbers are aligned to the right. `marked`:
        the positions of rows that stand out. `folded`: shown only when its caption is clicked."""
        cells = [[str(cell) for cell in row] for row in rows]
        right = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(columns))]
        head = "".join(
            f'<th{" class=num" if r else ""} scope="col">{escape(name)}</th>'
            for name, r in zip(columns, right, strict=True)
        )
        body = "".join(
            f"<tr{' class=marked' if i in marked else ''}>"
            + "".join(_cell(cell, r) for cell, r in zip(row, right, strict=True))
            + "</tr>"
            for i, row in enumerate(cells)
        )
        told = f"<caption>{escape(caption)}</caption>" if caption and not folded else ""
        table = f"<table>{told}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        table = f'<div class="wide" tabindex="0">{table}</div>'
        return self._add(_folded(caption or f"{len(rows)} rows", table) if folded else table)

    def plot(self, plot: Plot, *, caption: str = "") -> Self:
        """A plot, as inline SVG."""
        told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        place = '<div class="wide" tabindex="0">' if plot.as_is else '<div class="wide chart">'
        return self._add(f"<figure>{place}{plot.svg()}</div>{told}</figure>")

    def image(self, png: bytes, *, alt: str, caption: str = "") -> Self:
        """A picture, given as the content of a PNG or JPEG file, which becomes a part of the page."""
        kind = "jpeg" if png[:2] == b"\xff\xd8" else "png"
        data = base64.b64encode(png).decode()
        told = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
        return self._add(
            f'<figure><img src="data:image/{kind};base64,{data}" alt="{escape(alt)}" loading="lazy">{told}</figure>'
        )

    def graph(self, nodes: Sequence[GraphNode], *, folded: bool = False) -> Self:
        """A model's graph coloured by who runs what (see `graph_nodes`), with a legend and a list of each partition's
        nodes. Graphs of more than 600 nodes are listed only."""
        groups = network.groups_of(nodes)
        legend = "".join(
            f'<li><span class="key b-{role}"></span>{escape(group)}: {_count(members)}</li>'
            for group, (role, members) in groups.items()
        )
        parts = [f'<ul class="wrap">{legend}</ul>']
        if len(nodes) <= _LARGEST_GRAPH:
            parts.append(f'<figure><div class="wide" tabindex="0">{network.picture(nodes).svg()}</div></figure>')
        for group, (role, members) in groups.items():
            items = "".join(
                f"<li>{n.index} {escape(n.op)}{f' ({escape(n.note)})' if n.note else ''}</li>" for n in members
            )
            parts.append(_folded(f"{group}: {_count(members)}", f'<ul class="wrap">{items}</ul>', role))
        content = "".join(parts)
        return self._add(_folded(f"Graph: {_count(nodes)}", content) if folded else content)

    def explorer(self, nodes: Sequence[GraphNode], explored: Sequence[Explored]) -> Self:
        """A graph of any size to walk through, by mouse, finger or keyboard; `explored` is what is told of each node.
        It is the only part of a page that needs a script, which is in the page, and allowed by its digest."""
        self._scripts[explorer.script()] = None
        return self._add(explorer.explorer(nodes, explored))

    def html(self) -> str:
        """The whole page."""
        scripts = "".join(f"<script>{text}</script>" for text in self._scripts)
        subtitle = f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else ""
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(self._scripts)}">'
            f"<title>{escape(self.title)}</title><style>{style_sheet()}</style></head>\n<body>"
            f"<header><h1>{escape(self.title)}</h1>{subtitle}</header>\n<main>"
            + "\n".join(self._parts)
            + f"</main>\n<footer>{escape(self.footer or _made_by())}</footer>{scripts}</body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page, and the folders that lead to it. Raises OptionError where that cannot be."""
        write_whole(path, self.html())

    def _add(self, part: str) -> Self:
        self._parts.append(part)
        return self


def _policy(scripts: Iterable[str]) -> str:
    """With the digests of the page's own scripts, as nothing else may run."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"{_POLICY}; script-src {allowed}" if digests else _POLICY


def _cell(text: str, right: bool) -> str:
    kind = " class=num" if right else " class=long" if len(text) > _LONG_CELL else ""
    return f"<td{kind}>{escape(text)}</td>"


def _folded(summary: str, content: str, role: str = "") -> str:
    key = f'<span class="key b-{role}"></span>' if role else ""
    return f"<details><summary>{key}{escape(summary)}</summary>{content}</details>"


def _count(members: Sequence[Any]) -> str:
    return f"{len(members)} node{'' if len(members) == 1 else 's'}"


def _is_number(cell: str) -> bool:
    """Whether a cell holds a number, with a unit perhaps, or nothing."""
    number, *unit = cell.split() or [""]
    if unit and unit[0] not in _UNITS:
        return False
    if number in ("", "-"):
        return True
    try:
        float(number.rstrip("%"))
    except ValueError:
        return False
    return len(unit) <= 1


def _made_by() -> str:
    from litegpu.version import __version__

    return f"litegpu {__version__}"
