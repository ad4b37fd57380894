"""The report of `litegpu run` as an HTML page, with the drawings in it and the graph coloured by what ran where."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.model.inline import inline_composites
from litegpu.model.reader import read_model
from litegpu.report import Page, graph_nodes
from litegpu.tools import run_text as text
from litegpu.tools.entered import entered, others_line
from litegpu.tools.model_run import RunReport


def write_page(report: RunReport, path: str | os.PathLike[str]) -> None:
    """One self-contained HTML file. Raises OptionError where it cannot be written."""
    page = Page(f"Run: {Path(report.model).name}", subtitle=f"{report.device}, {report.precision}")
    figures = [
        ("inference", f"{text.milliseconds(report.timing.median)} ms"),
        ("prepared in", f"{report.timing.prepare:.2f} s"),
    ]
    page.figures(figures)
    page.text(report.delegation.summary())
    others = others_line(report.model, report.signature)
    if others:
        page.text(others)
    if report.cpu_problem:
        page.text(text.no_comparison(report), "bad")
    if report.cpu:
        page.text(text.speed(report))
        told, good = text.agreement(report)
        page.text(told, "good" if good else "bad")
    page.section("Time").table(text.TIMINGS, text.timing_rows(report))
    for inference in report.inferences:
        page.section(inference.source)
        if inference.preparation:
            page.text(inference.preparation)
        if inference.drawing:
            page.image(Path(inference.drawing).read_bytes(), alt=f"the result drawn on {inference.source}")
        columns, rows, told = text.result_table(inference.result)
        if told:
            page.text(told)
        if columns:
            page.table(columns, rows)
        if inference.agreement:
            page.table(text.AGREEMENT, text.agreement_rows(inference))
            if inference.decision:
                page.text(inference.decision)
    page.section("What ran where").table(text.PARTITIONS, text.partition_rows(report))
    page.graph(
        graph_nodes(inline_composites(read_model(entered(report.model, report.signature))).main, report.delegation)
    )
    page.write(path)
