"""Prints tables and text: boxed and coloured on a terminal, plain and aligned when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; columns whose cells are all numbers are aligned to the right."""
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    if sys.stdout.isatty():
        table = Table()
        for name, numeric in zip(columns, right, strict=True):
            table.add_column(escape(name), justify="right" if numeric else "left")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        Console().print(table)
        return
    lines = [tuple(columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        print("  ".join(cells).rstrip())


def print_warning(text: str) -> None:
    """A line on stdout that stands out on a terminal."""
    if sys.stdout.isatty():
        Console().print(f"[yellow]{escape(text)}[/]", highlight=False, soft_wrap=True)
    else:
        print(text)


def progress() -> Progress:
    """A progress bar on stderr, shown only on a terminal; it draws when told to, so as not to disturb timings."""
    console = Console(stderr=True)
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
