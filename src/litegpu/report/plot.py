"""A picture made of rectangles, lines and texts, printed as SVG for a page or as PNG for a file."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litegpu.errors import OptionError
from litegpu.report.style import PALETTE
from litegpu.report.text import escape
from litegpu.visible import in_line
from litegpu.whole_file import write_whole

_SCALE = 2  # pixels of a PNG for a unit
_FONT = 12
_DASH = 4.0
_MARGIN = 10  # around a plot in a file of its own


@dataclass(frozen=True)
class Rect:
    """`title` is shown when a mouse rests on it."""

    x: float
    y: float
    width: float
    height: float
    role: str
    title: str = ""
    rounded: bool = False


@dataclass(frozen=True)
class Line:
    points: tuple[tuple[float, float], ...]
    role: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    radius: float
    role: str
    title: str = ""


@dataclass(frozen=True)
class Text:
    """`y` is the middle of the line; `anchor` is "start", "middle" or "end"."""

    x: float
    y: float
    text: str
    role: str = "ink"
    anchor: str = "start"


Mark = Rect | Line | Dot | Text


@dataclass(frozen=True)
class Plot:
    """Marks in units of which a page shows about one a pixel; `title` describes the plot to those who cannot see it.
    `as_is`: not enlarged to the width of the page."""

    title: str
    width: float
    height: float
    marks: tuple[Mark, ...]
    as_is: bool = False

    def svg(self, *, standalone: bool = False) -> str:
        """An <svg> element for a page with the style sheet of litegpu.report; `standalone`: a file of its own."""
        edge = _MARGIN if standalone else 0
        width, height = self.width + 2 * edge, self.height + 2 * edge
        size = f' width="{width:g}" height="{height:g}"' if standalone or self.as_is else ""
        kind = ' class="as-is"' if self.as_is else ""
        head = (
            f'<svg{size}{kind} viewBox="{-edge} {-edge} {width:g} {height:g}" role="img" '
            f'aria-label="{escape(self.title)}"'
        )
        if not standalone:
            return f"{head}>{''.join(map(_element, self.marks))}</svg>"
        rules = "".join(f".f-{role}{{fill:{c[0]}}}.l-{role}{{stroke:{c[0]}}}" for role, c in PALETTE.items())
        style = f"<style>text{{font:{_FONT}px sans-serif}}{rules}</style>"
        marks = [Rect(-edge, -edge, width, height, "page"), *self.marks]
        return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{"".join(map(_element, marks))}</svg>'

    def write(self, path: str | os.PathLike[str]) -> None:
        """A .svg or .png file, in the light colours. Raises OptionError for other names and where it cannot."""
        target = Path(path)
        if target.suffix.lower() not in (".svg", ".png"):
            raise OptionError(f"{target}: a plot is written as .png or .svg")
        if target.suffix.lower() == ".svg":
            write_whole(target, self.svg(standalone=True))
            return
        content = io.BytesIO()
        self._image().save(content, "PNG")
        write_whole(target, content.getvalue())

    def _image(self) -> Any:
        from PIL import Image, ImageDraw, ImageFont

        def place(*xy: float) -> list[float]:
            return [(c + _MARGIN) * _SCALE for c in xy]

        width, height = (round((n + 2 * _MARGIN) * _SCALE) for n in (self.width, self.height))
        image = Image.new("RGB", (width, height), PALETTE["page"][0])
        draw = ImageDraw.Draw(image)
        font = ImageFont.load_default(_FONT * _SCALE)
        for mark in self.marks:
            colour = PALETTE[mark.role][0]
            match mark:
                case Rect(x, y, w, h):
                    left, top, right, bottom = place(x, y, x + w, y + h)
                    if w > 0 and h > 0:
                        box = (left, top, max(left, right - 1), max(top, bottom - 1))
                        draw.rounded_rectangle(box, 3 * _SCALE if mark.rounded else 0, fill=colour)
                case Line():
                    for start, end in _strokes(mark):
                        draw.line(place(*start, *end), fill=colour, width=max(1, round(mark.width * _SCALE)))
                case Dot(x, y, r):
                    draw.ellipse(place(x - r, y - r, x + r, y + r), fill=colour)
                case Text():
                    anchor = {"start": "lm", "middle": "mm", "end": "rm"}[mark.anchor]
                    left, top = place(mark.x, mark.y)
                    draw.text((left, top), in_line(mark.text), fill=colour, font=font, anchor=anchor)
        return image


def _element(mark: Mark) -> str:
    match mark:
        case Rect(x, y, width, height, role, title, rounded):
            corner = ' rx="3"' if rounded else ""
            place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"{corner}'
            return f'<rect {place} class="f-{role}">{_tooltip(title)}</rect>'
        case Line(points, role, width, dashed):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            dashes = f' stroke-dasharray="{_DASH:g}"' if dashed else ""
            return f'<polyline points="{path}" fill="none" stroke-width="{width:g}"{dashes} class="l-{role}"/>'
        case Dot(x, y, radius, role, title):
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="f-{role}">{_tooltip(title)}</circle>'
        case Text(x, y, text, role, anchor):
            place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"'
            return f'<text {place} class="f-{role}">{escape(text)}</text>'


def _tooltip(title: str) -> str:
    return f"<title>{escape(title)}</title>" if title else ""


def _strokes(line: Line) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The pieces of a line that are drawn."""
    pairs = list(zip(line.points, line.points[1:], strict=False))
    if not line.dashed:
        return pairs
    pieces = []
    for (x0, y0), (x1, y1) in pairs:
        length = ((x1 - x0) ** 2 + (y1 - y0) ** 2) ** 0.5
        count = max(1, int(length / _DASH))
        for i in range(0, count, 2):
            a, b = i / count, min(1.0, (i + 1) / count)
            pieces.append(((x0 + a * (x1 - x0), y0 + a * (y1 - y0)), (x0 + b * (x1 - x0), y0 + b * (y1 - y0))))
    return pieces
