"""Prints tables and text: boxed and coloured on a terminal, plain and aligned when piped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from litegpu.visible import in_line, terminal_of, visible


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; columns whose cells are all numbers are aligned to the right. Each cell is one line, with what
    cannot be seen escaped."""
    columns, rows = [in_line(name) for name in columns], [[in_line(cell) for cell in row] for row in rows]
    right = [all(_is_number(row[i]) for row in rows) for i in range(len(columns))]
    terminal = terminal_of(sys.stdout)
    if terminal.isatty():
        table = Table()
        for name, numeric in zip(columns, right, strict=True):
            table.add_column(escape(name), justify="right" if numeric else "left")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        Console(file=terminal).print(table)
        return
    lines = [columns, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True))
        print("  ".join(cells).rstrip())


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
