"""Prints tables and text: boxed and coloured on a terminal, plain and aligned when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from litegpu.visible import in_line, terminal_of, visible

_LEAST_TEXT = 8  # characters of a line of folded text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout, whole on a terminal of any width; columns of numbers are aligned to the right.
    Each cell is one line, with what cannot be seen escaped."""
    columns, rows = [in_line(name) for name in columns], [[in_line(cell) for cell in row] for row in rows]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    terminal = terminal_of(sys.stdout)
    if terminal.isatty():
        console = Console(file=terminal)
        table = _fitting(columns, rows, right, console.width)
        if table is not None:
            console.print(table)
            return
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        print("  ".join(cells).rstrip())


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], room: int) -> Table | None:
    """A table for a terminal of so many characters, in which no number is cut: with text folded where it is too wide,
    and without borders where these leave too little; None where not even that fits."""
    cells = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    words = [max((len(word) for word in name.split()), default=0) for name in columns]
    widths = [max(cell, len(name)) for cell, name in zip(cells, columns, strict=True)]
    bordered = 3 * len(columns) + 1
    if sum(widths) + bordered > room:
        widths = [
            max(cell, word) if numeric else max(min(cell, _LEAST_TEXT), min(word, _LEAST_TEXT))
            for cell, word, numeric in zip(cells, words, right, strict=True)
        ]
    borders = bordered if sum(widths) + bordered <= room else len(columns)
    spare = room - sum(widths) - borders
    if spare < 0:
        return None
    for i in sorted(range(len(columns)), key=lambda i: cells[i]):  # what is left goes to text, the short ones first
        more = min(spare, max(cells[i] - widths[i], 0))
        widths[i], spare = widths[i] + more, spare - more
    table = Table() if borders == bordered else Table(box=None, collapse_padding=True, pad_edge=False)
    for name, numeric, width in zip(columns, right, widths, strict=True):
        table.add_column(escape(name), justify="right" if numeric else "left", width=width, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def print_warning(text: str) -> None:
    """A line on stdout that stands out on a terminal."""
    terminal = terminal_of(sys.stdout)
    if terminal.isatty():
        Console(file=terminal).print(f"[yellow]{escape(visible(text))}[/]", highlight=False, soft_wrap=True)
    else:
        print(visible(text))


def progress() -> Progress:
    """A progress bar on stderr, shown only on a terminal; it draws when told to, so as not to disturb timings."""
    console = Console(file=terminal_of(sys.stderr))
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        auto_refresh=False,
        transient=True,
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell.rstrip("%"))
    except ValueError:
        return cell in ("", "-")
    return True
