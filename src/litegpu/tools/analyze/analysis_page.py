"""The analysis as an HTML page, with the graph to walk through."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.model.inline import inline_composites
from litegpu.model.reader import read_model
from litegpu.model.types import Subgraph
from litegpu.report import Explored, Page, graph_nodes
from litegpu.tools.analyze import analysis_text as words
from litegpu.tools.analyze.analysis import Analysis, OpAnalysis


def analysis_page(analysis: Analysis, model: str | os.PathLike[str] | bytes) -> Page:
    """About `model`, which was analysed."""
    main = inline_composites(read_model(model)).main
    page = Page(f"Analysis: {Path(analysis.model).name}", subtitle=words.rates_line(analysis))
    measured = [] if analysis.measured is None else [("measured", f"{analysis.measured * 1e6:.1f} us")]
    page.figures([
        ("estimated", f"{analysis.total * 1e6:.1f} us"), *measured,
        *((f"ops on {name}", f"{count}/{len(analysis.ops)}") for name, count in analysis.report.counts.items()),
        *((f"{one.delegates[0]} would take", f"{one.delegated}/{len(one.nodes)}") for one in analysis.others),
        ("GFLOP", f"{sum(op.flops for op in analysis.ops) / 1e9:.3f}"),
        ("patterns", str(len(analysis.findings))),
    ])  # fmt: skip
    for line in (*words.closing_lines(analysis), *words.reason_lines(analysis)):
        page.text(line)
    page.section("Graph")
    found = {n for finding in analysis.findings if finding.gain for n in finding.nodes}
    notes = {op.index: _note(op) for op in analysis.ops}
    page.explorer(
        graph_nodes(main, analysis.report, notes, marked=sorted(found)),
        [_explored(analysis, main, op) for op in analysis.ops],
    )
    page.section("Patterns")
    if not analysis.findings:
        page.text("No costly pattern was found.")
    for one in analysis.findings:
        page.text(f"{one.pattern} ({words.numbers(one.nodes)}): {one.what}.")
        page.text(f"What to do: {one.advice}. {words.gain_text(one)}.")
    page.section("Ops")
    rows = [words.row(analysis, op) for op in analysis.ops]
    page.table(words.columns(analysis), rows, caption=f"{len(rows)} ops", folded=True)
    return page


def write_graph_page(analysis: Analysis, model: str | os.PathLike[str] | bytes, path: str | os.PathLike[str]) -> None:
    """One self-contained HTML file about `model`, which was analysed. Raises OptionError where it cannot be written."""
    analysis_page(analysis, model).write(path)


def _note(op: OpAnalysis) -> str:
    taken = op.estimated if op.measured is None else op.measured
    return f"{' '.join(map(words.shape_text, op.outputs[:1]))}  {taken * 1e6:.2f} us"


def _explored(analysis: Analysis, main: Subgraph, op: OpAnalysis) -> Explored:
    before = 4 + len(analysis.others)
    cells = zip(words.columns(analysis)[before:], words.row(analysis, op)[before:], strict=True)
    answers = [(one.delegate, "would take it" if one.taken else one.reason or "no") for one in op.answers]
    names = [main.tensors[t].name for t in main.operators[op.index].outputs if t >= 0]
    findings = [f"{f.pattern}: {f.what}. {f.advice}" for f in analysis.findings if op.index in f.nodes]
    shared = [("kernels shared with", ", ".join(map(str, op.shared)))] if op.shared else []
    return Explored(
        (
            ("where", words.where(analysis, op)), *((("reason", op.reason),) if op.reason else ()), *answers,
            ("inputs", ", ".join(map(words.shape_text, op.inputs))),
            ("outputs", ", ".join(map(words.shape_text, op.outputs))), ("tensors", ", ".join(names)),
            ("version", str(op.version)), *cells, *shared, *(("pattern", text) for text in findings),
        ),
        op.estimated if op.measured is None else op.measured,
    )  # fmt: skip
