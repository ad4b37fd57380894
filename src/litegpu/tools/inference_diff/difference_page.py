"""The result as an HTML page, and its plots."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.report import Page, Plot, graph_nodes, histogram, lines
from litegpu.tools.entered import others_line
from litegpu.tools.inference_diff.compare import DiffReport
from litegpu.tools.inference_diff.difference_text import (
    NODE_COLUMNS,
    OUTPUT_COLUMNS,
    figure,
    node_row,
    notes,
    official_lines,
    output_row,
    reference,
    says_nothing,
    tested,
)
from litegpu.tools.inference_diff.measures import EDGES, Histogram
from litegpu.tools.inference_diff.per_op import PerOpReport


def write_page(report: DiffReport, path: str | os.PathLike[str]) -> None:
    """One self-contained HTML file. Raises OptionError where it cannot be written."""
    state = {True: "good", False: "bad"}[report.passed] if report.options.max_relative_error is not None else ""
    page = Page(f"Inference diff: {Path(report.model).name}", subtitle=f"{tested(report)}, beside {reference(report)}")
    top1 = [o.top1 for o in report.outputs if o.top1 is not None]
    page.figures([
        ("largest relative L2", figure(report.worst), state),
        *([("top-1 agreement", f"{min(top1):.2%}", "")] if top1 else []),
        ("largest abs error", figure(max((o.max_abs for o in report.outputs), default=0.0)), ""),
        ("runs", str(report.num_runs), ""),
        ("reference", f"{report.reference_latency.average / 1e3:.2f} ms", ""),
        ("test", f"{report.test_latency.average / 1e3:.2f} ms", ""),
    ])  # fmt: skip
    page.text(f"{report.delegation.summary()}. Inputs: {report.inputs}.")
    for line, state in ((others_line(report.model, report.options.signature), ""), (says_nothing(report), "bad")):
        if line:
            page.text(line, state)
    page.section("Outputs").table(OUTPUT_COLUMNS, [output_row(o) for o in report.outputs])
    for plot in histograms(report):
        page.plot(plot)
    page.code("\n".join(official_lines(report)))
    if report.per_op is not None:
        _add_nodes(page, report.per_op)
    _add_graph(page, report)
    page.write(path)


def write_plots(report: DiffReport, folder: str | os.PathLike[str]) -> list[Path]:
    """The plots as PNG files in a folder; their paths."""
    plots = [(f"errors-{i}.png", plot) for i, plot in enumerate(histograms(report))]
    if report.per_op is not None:
        plots.append(("per-op.png", growth_plot(report.per_op)))
    paths = []
    for name, plot in plots:
        paths.append(Path(folder) / name)
        plot.write(paths[-1])
    return paths


def histograms(report: DiffReport) -> list[Plot]:
    """Of the absolute errors of each output that has any, over the decades that they span."""
    return [
        _histogram(f"Absolute errors of '{o.name}': {o.histogram.exact} elements are exact", o.histogram)
        for o in report.outputs
        if sum(o.histogram.counts)
    ]


def growth_plot(report: PerOpReport) -> Plot:
    """The errors node by node; a dashed line stands at the first node that deviates."""
    places = [float(row.node) for row in report.nodes]
    series = {
        "in the whole model (lock-step)": [
            (x, row.lock_step.relative_l2) for x, row in zip(places, report.nodes, strict=True) if row.lock_step
        ],
        "alone, on the reference's values": [
            (x, row.alone.relative_l2) for x, row in zip(places, report.nodes, strict=True) if row.alone
        ],
    }
    mark = report.culprit if report.culprit is not None else report.first_lock_step
    return lines(
        "Relative L2 error by node", series, x_label="node", log=True, dots=True,
        mark=None if mark is None else float(mark),
    )  # fmt: skip


def _histogram(title: str, errors: Histogram) -> Plot:
    used = [i for i, count in enumerate(errors.counts) if count]
    first, last = used[0], used[-1] + 1
    return histogram(title, EDGES[first : last + 1], errors.counts[first:last], x_label="|test - reference|")


def _add_nodes(page: Page, per_op: PerOpReport) -> None:
    rows = [node_row(row) for row in per_op.nodes]
    marked = [i for i, row in enumerate(per_op.nodes) if row.node == per_op.culprit]
    page.section("Op by op").text(per_op.verdict(), "bad" if per_op.culprit is not None else "")
    page.plot(growth_plot(per_op), caption="A point that is missing has no error at all.")
    page.table(NODE_COLUMNS, rows, marked=marked)
    for note in notes(per_op):
        page.text(note)


def _add_graph(page: Page, report: DiffReport) -> None:
    rows = report.per_op.nodes if report.per_op is not None else ()
    errors = {row.node: figure(row.lock_step.relative_l2) for row in rows if row.lock_step}
    culprit = report.per_op.culprit if report.per_op is not None else None
    page.section("Graph")
    if errors:
        page.text("Beside each node stands its relative L2 error in the whole model.")
    page.graph(graph_nodes(report.graph, report.delegation, errors, marked=[] if culprit is None else [culprit]))
