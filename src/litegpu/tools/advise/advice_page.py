"""The advice as an HTML page, with the graph coloured by who would run what."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.model.inline import inline_composites
from litegpu.model.reader import read_model
from litegpu.report import Page, graph_nodes
from litegpu.tools.advise import advice_text as words
from litegpu.tools.advise.advice import Advice
from litegpu.tools.advise.documented import MODEL_TYPES


def write_page(advice: Advice, model: str | os.PathLike[str] | bytes, path: str | os.PathLike[str]) -> None:
    """One self-contained HTML file about `model`, for which the advice was given. Raises OptionError where it cannot be
    written."""
    page = Page(f"Advice: {Path(advice.model).name}", subtitle=advice.type.kind.value)
    page.figures([
        ("use the", advice.recommendation.delegate),
        *((f"{c.delegate} takes", "?" if c.unknown else f"{c.taken}/{c.total}") for c in advice.coverages),
    ])  # fmt: skip
    page.text(" ".join(advice.recommendation.reasons))
    if advice.signature:
        page.text(f"{advice.signature}, which are not looked at here")
    if advice.measurement is not None:
        page.section("Measured on this machine")
        page.table(words.MEASURED_COLUMNS, words.measured_rows(advice.measurement))
        for line in words.problem_lines(advice.measurement):
            page.text(line)
    page.section("Type").text(". ".join(advice.type.evidence) + ".").text(advice.numerics)
    main = inline_composites(read_model(model)).main
    for coverage in advice.coverages:
        page.section(coverage.delegate)
        for line in words.coverage_lines(coverage):
            page.text(line)
        if coverage.left:
            page.table(words.LEFT_COLUMNS, words.left_rows(coverage))
        if coverage.report is not None:
            reasons = {node.index: node.reason for node in coverage.report.nodes if node.reason}
            page.graph(graph_nodes(main, coverage.report, marked=tuple(reasons)), folded=True)
    marked = [i for i, row in enumerate(MODEL_TYPES) if row is advice.row]
    page.section("Documentation")
    page.table(words.TYPE_COLUMNS, words.type_rows(advice), caption=words.BY_TYPE, marked=marked)
    if advice.row is None:
        page.text(words.NO_ROW)
    page.table(
        words.PLATFORM_COLUMNS,
        words.platform_rows(),
        caption=f"{words.BY_PLATFORM} (here: {advice.platform})",
    )
    page.write(path)
