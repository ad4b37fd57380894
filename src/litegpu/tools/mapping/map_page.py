"""The report of `litegpu map` as an HTML page."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.report import Page
from litegpu.tools.mapping.map_run import MapReport


def write_page(report: MapReport, path: str | os.PathLike[str]) -> None:
    """One self-contained HTML file. Raises OptionError where it cannot be written."""
    page = Page(f"Map: {Path(report.model).name}", subtitle=report.output)
    page.figures([
        ("rows", f"{report.inputs}"),
        ("per second", f"{report.throughput:.1f}"),
        ("with an error", f"{report.failed}", "bad" if report.failed else "good"),
        ("batch", f"{report.batch}"),
    ])  # fmt: skip
    page.text(f"{report.inputs - report.resumed} inputs were answered in {report.seconds:.1f} s.")
    if report.resumed:
        page.text(f"{report.resumed} rows are of an earlier run.")
    if report.batch_note:
        page.text(f"Not in larger batches: {report.batch_note}")
    if report.retried:
        page.text(f"{report.retried} inputs were answered by a second worker, because the first died.")
    page.section("Workers").table(("worker",), [(worker,) for worker in report.workers])
    if report.failures:
        page.section("Inputs without results")
        page.table(("index", "input", "error"), [(str(f.index), f.input, f.error) for f in report.failures])
        if report.failed > len(report.failures):
            page.text(f"And {report.failed - len(report.failures)} more, in the column 'error' of the output.")
    page.write(path)
