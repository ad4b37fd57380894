"""Bars, lines and histograms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from litegpu.report.plot import Dot, Line, Mark, Plot, Rect, Text
from litegpu.report.style import SERIES
from litegpu.visible import in_line

_WIDTH = 720.0
_LETTER = 6.6  # average width at the size of the plots
_CAPITAL = 8.4
_TOP = 26.0
_LONGEST_LABEL = 34
_ROW = 18.0  # of a legend

Point = tuple[float, float]


def bars(
    title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], *, unit: str = "", log: bool = False
) -> Plot:
    """Horizontal bars, a group for each label with a bar for each series. `log`: of a logarithmic axis; what is not
    above zero has no bar then. Values that are no numbers are shown as text without a bar."""
    thick = 16.0 if len(series) == 1 else 12.0
    group = thick * len(series) + 8
    left = 12 + max((_width(_shortened(label)) for label in labels), default=0.0)
    values = [v for found in series.values() for v in found]
    axis = _Axis([*values, *([] if log else [0.0])], left, _WIDTH - 90, log)
    legend, room = _legend(list(series), 28)
    top = _TOP + room
    bottom = top + group * len(labels)
    marks: list[Mark] = [Text(0, 10, title + (f" ({unit})" if unit else "")), *legend]
    for tick in axis.ticks:
        marks += [Line(((axis(tick), top), (axis(tick), bottom)), "grid"), _tick_label(axis, tick, bottom + 10)]
    start = axis.low if log else axis(0.0)
    for i, label in enumerate(labels):
        y = top + 4 + group * i
        marks.append(Text(left - 8, y + thick * len(series) / 2, _shortened(label), anchor="end"))
        for j, (name, found) in enumerate(series.items()):
            value, end = found[i], start
            if math.isfinite(value) and (value > 0 or not log):
                end = axis(value)
                x, width = min(start, end), abs(end - start)
                told = f"{label}{f', {name}' if len(series) > 1 else ''}: {_figure(value)} {unit}".rstrip()
                marks.append(Rect(x, y + thick * j, max(width, 1), thick - 2, SERIES[j % len(SERIES)], told))
            marks.append(Text(max(start, end) + 6, y + thick * j + thick / 2 - 1, _figure(value), "muted"))
    return Plot(title, _WIDTH, bottom + 22, tuple(marks))


def lines(
    title: str,
    series: Mapping[str, Sequence[float | tuple[float, float]]],
    *,
    x_label: str = "",
    unit: str = "",
    log: bool = False,
    dots: bool = False,
    mark: float | None = None,
    point_labels: Sequence[str] = (),
) -> Plot:
    """A line for each series: of values, at 0, 1, 2 ..., or of (x, y). What is no number, and with `log` what is not
    above zero, leaves a gap. `dots`: also mark each point, with its entry of `point_labels` as a tooltip. `mark`: a
    dashed vertical line at this x."""
    points = {name: _points(found) for name, found in series.items()}
    drawable = [p for found in points.values() for p in found if math.isfinite(p[1]) and (p[1] > 0 or not log)]
    legend, room = _legend(list(series), 28)
    top, bottom, left, right = _TOP + room, 300.0 + max(0.0, room - _ROW), 64.0, _WIDTH - 28
    across = _Axis([p[0] for p in drawable], left, right, tight=True)
    up = _Axis([p[1] for p in drawable], bottom, top + 8, log)
    marks: list[Mark] = [Text(0, 10, title + (f" ({unit})" if unit else "")), *legend]
    for tick in up.ticks:
        y = up(tick)
        marks += [Line(((left, y), (right, y)), "grid"), Text(left - 6, y, _figure(tick), "muted", "end")]
    marks += [_tick_label(across, tick, bottom + 12) for tick in across.ticks]
    if x_label:
        marks.append(Text((left + right) / 2, bottom + 28, x_label, "muted", "middle"))
    if mark is not None and drawable:
        marks.append(Line(((across(mark), top), (across(mark), bottom)), "bad", 1.5, dashed=True))
    for j, found in enumerate(points.values()):
        role = SERIES[j % len(SERIES)]
        for piece in _pieces(found, log):
            placed = tuple((across(x), up(y)) for _, x, y in piece)
            if len(placed) > 1:
                marks.append(Line(placed, role, 1.8))
            if dots or len(placed) == 1:
                for (i, x, y), (px, py) in zip(piece, placed, strict=True):
                    label = point_labels[i] if i < len(point_labels) else _figure(x)
                    marks.append(Dot(px, py, 2.5, role, f"{label}: {_figure(y)} {unit}".rstrip()))
    return Plot(title, _WIDTH, bottom + (38 if x_label else 24), tuple(marks))


def histogram(
    title: str, edges: Sequence[float], counts: Sequence[int], *, x_label: str = "", log_counts: bool = False
) -> Plot:
    """One upright bar between each two edges (one edge more than counts, ascending; the bars are equally wide)."""
    top, bottom, left, right = _TOP, 240.0, 64.0, _WIDTH - 28
    up = _Axis([float(c) for c in counts if c > 0] + [0.5 if log_counts else 0.0], bottom, top + 8, log_counts)
    marks: list[Mark] = [Text(0, 10, title)]
    for tick in up.ticks:
        y = up(tick)
        marks += [Line(((left, y), (right, y)), "grid"), Text(left - 6, y, _figure(tick), "muted", "end")]
    width = (right - left) / max(len(counts), 1)
    for i, count in enumerate(counts):
        if count:
            y = up(float(count))
            told = f"{_figure(edges[i])} to {_figure(edges[i + 1])}: {count}"
            marks.append(Rect(left + width * i + 0.5, y, width - 1, bottom - y, "s1", told))
    every = max(1, math.ceil(len(edges) / 8))
    for i in range(0, len(edges), every):
        marks.append(Text(left + width * i, bottom + 12, _figure(edges[i]), "muted", "middle"))
    if x_label:
        marks.append(Text((left + right) / 2, bottom + 28, x_label, "muted", "middle"))
    return Plot(title, _WIDTH, bottom + (38 if x_label else 24), tuple(marks))


class _Axis:
    """Maps values to places from `low` to `high`; `tight`: it ends at the extreme values, not at ticks beyond them."""

    def __init__(
        self, values: Sequence[float], low: float, high: float, log: bool = False, tight: bool = False
    ) -> None:
        found = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or ([1.0] if log else [0.0])
        self.low, self.high, self._log = low, high, log
        if log:
            bottom, top = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
            top = max(top, bottom + 1)
            self.ticks = [10.0**e for e in range(bottom, top + 1, max(1, math.ceil((top - bottom) / 8)))]
            self._from, self._to = float(bottom), float(top)
            return
        least, most = min(found), max(found)
        if least == most:
            least, most = (least - 1, most + 1) if tight else (min(least, 0.0), max(most, 0.0) or 1.0)
        step = _step((most - least) / 6)
        first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
        ticks = [round(k * step, 12) for k in range(first, last + 1)]
        self._from, self._to = (least, most) if tight else (ticks[0], ticks[-1])
        self.ticks = [t for t in ticks if self._from <= t <= self._to]

    def __call__(self, value: float) -> float:
        position = math.log10(value) if self._log else value
        return self.low + (position - self._from) / (self._to - self._from) * (self.high - self.low)


def _step(rough: float) -> float:
    """A round number, not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))


def _tick_label(axis: _Axis, tick: float, y: float) -> Text:
    return Text(axis(tick), y, _figure(tick), "muted", "middle")


def _points(found: Sequence[float | Point]) -> list[Point]:
    return [given if isinstance(given, tuple) else (float(i), float(given)) for i, given in enumerate(found)]


def _pieces(points: Sequence[Point], log: bool) -> list[list[tuple[int, float, float]]]:
    """(place in the series, x, y) of the points that can be drawn, divided at those that cannot."""
    pieces: list[list[tuple[int, float, float]]] = [[]]
    for i, (x, y) in enumerate(points):
        if math.isfinite(y) and (y > 0 or not log):
            pieces[-1].append((i, x, y))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _legend(names: Sequence[str], y: float) -> tuple[list[Mark], float]:
    """The marks, in as many rows as they need, and how high these are; nothing for a single series."""
    if len(names) < 2:
        return [], 0.0
    marks: list[Mark] = []
    x, rows = 0.0, 1
    for j, name in enumerate(names):
        label = _shortened(name)
        width = 30 + _width(label)
        if x and x + width > _WIDTH:
            x, rows = 0.0, rows + 1
        at = y + _ROW * (rows - 1)
        marks += [Rect(x, at - 5, 10, 10, SERIES[j % len(SERIES)], rounded=True), Text(x + 15, at, label, "muted")]
        x += width
    return marks, _ROW * rows


def _shortened(label: str) -> str:
    label = in_line(label, None)
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}…"


def _width(text: str) -> float:
    """About how wide a text is; capitals are wider."""
    return sum(_CAPITAL if letter.isupper() else _LETTER for letter in text)


def _figure(value: float) -> str:
    """Short, for an axis or the end of a bar."""
    if value and math.isfinite(value) and abs(value) < 1e-3:
        return f"{value:.2g}"
    return f"{value:.4g}"
