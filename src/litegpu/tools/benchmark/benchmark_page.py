"""Plots of a benchmark, and its HTML page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from litegpu.report import Page, Plot, bars, graph_nodes, histogram, lines
from litegpu.tools.benchmark.benchmark_text import more_lines
from litegpu.tools.benchmark.comparison import Comparison
from litegpu.tools.benchmark.comparison_text import notes, table
from litegpu.tools.benchmark.profile_text import closing
from litegpu.tools.benchmark.result import BenchmarkResult, Profile

_BINS = 40
_MOST_BARS = 25
_MOST_POINTS = 2000


def result_page(result: BenchmarkResult) -> Page:
    """One configuration."""
    timing = result.inference
    page = Page(f"Benchmark: {Path(result.flags.graph).name}", subtitle=result.device)
    page.figures([
        ("median", _ms(timing.median)),
        ("p99", _ms(timing.percentile(99))),
        ("per second", f"{result.throughput:.1f}"),
        ("start-up", _ms(result.init)),
        *([("energy", f"{result.energy.per_inference * 1e3:.3g} mJ")] if result.energy is not None else []),
    ])  # fmt: skip
    page.text(f"{result.delegation.summary()}. {timing.count} timed runs after {result.warmup.count} to warm up.")
    page.section("Time").table(
        ("", "avg ms", "std ms", "min ms", "median ms", "p90 ms", "p95 ms", "p99 ms", "max ms"),
        [
            (name, *(f"{v / 1e3:.4f}" for v in (
                t.average, t.deviation, t.minimum, t.median, t.percentile(90), t.percentile(95), t.percentile(99),
                t.maximum,
            )))
            for name, t in (("timed runs", timing), ("warm-up", result.warmup))
        ],
    )  # fmt: skip
    for _, plot in result_plots(result):
        page.plot(plot)
    for line in more_lines(result):
        page.text(line)
    if result.profile is not None:
        _add_profile(page, result.profile)
    if result.graph is not None:
        page.section("Graph").graph(graph_nodes(result.graph, result.delegation, _node_times(result)), folded=True)
    return page


def result_plots(result: BenchmarkResult) -> list[tuple[str, Plot]]:
    """(name, plot) of one configuration."""
    timing, found = result.inference, []
    if timing.count > 1:
        values = timing.microseconds / 1e3
        counts, edges = np.histogram(values, min(_BINS, timing.count))
        title = "Inference time: how many runs took how long"
        found.append(("times", histogram(title, edges.tolist(), counts.tolist(), x_label="ms")))
        every = -(-timing.count // _MOST_POINTS)
        points = [(float(i), float(values[i])) for i in range(0, timing.count, every)]
        found.append(("runs", lines("Inference time, run by run", {"ms": points}, x_label="run", unit="ms")))
    parts = {name: seconds * 1e3 for name, seconds in result.startup.parts().items() if seconds}
    found.append(("startup", bars("Start-up", list(parts), {"ms": list(parts.values())}, unit="ms")))
    if result.profile is not None and result.profile.kernels:
        found.append(("ops", _op_plot(result.profile)))
    return found


def comparison_page(comparison: Comparison) -> Page:
    """Several configurations."""
    page = Page(f"Benchmark: {Path(comparison.model).name}", subtitle="configurations in interleaved runs")
    page.figures([
        (f"{s.label}{f', batch {s.batch}' if s.batch else ''}", f"{s.value:.3g} x",
         {"faster": "good", "slower": "bad"}.get(s.verdict, ""))
        for s in comparison.speedups
    ])  # fmt: skip
    page.section("Comparison").table(*table(comparison))
    for line in notes(comparison):
        page.text(line)
    for _, plot in comparison_plots(comparison):
        page.plot(plot)
    page.section("Configurations")
    for result in comparison.results:
        batch = f", batch {result.batch}" if result.batch else ""
        page.text(f"{result.label}{batch}: {result.device}. {result.delegation.summary()}.")
        if result.profile is not None and result.profile.kernels:
            page.plot(_op_plot(result.profile))
    return page


def comparison_plots(comparison: Comparison) -> list[tuple[str, Plot]]:
    """(name, plot) of several configurations."""
    results = comparison.results
    labels = [f"{r.label}{f', batch {r.batch}' if r.batch else ''}" for r in results]
    series = {
        "median": [r.inference.median / 1e3 for r in results],
        "p99": [r.inference.percentile(99) / 1e3 for r in results],
    }
    found = [("times", bars("Inference time", labels, series, unit="ms"))]
    if len({r.batch for r in results}) > 1:
        sweep: dict[str, list[float | tuple[float, float]]] = {}
        for r in results:
            sweep.setdefault(r.label, []).append((float(r.batch or 1), r.throughput))
        found.append(("batches", lines("Rows per second", sweep, x_label="batch size", unit="/s", dots=True)))
    return found


def _op_plot(profile: Profile) -> Plot:
    rows = sorted(profile.ops, key=lambda row: -row.milliseconds)[:_MOST_BARS]
    labels = [f"{row.ops[0] if row.ops else 'no op'} {list(row.nodes)}" for row in rows]
    return bars(
        "GPU time by op, average of the profiled inferences",
        labels,
        {"ms": [row.milliseconds for row in rows]},
        unit="ms",
    )


def _add_profile(page: Page, profile: Profile) -> None:
    page.section("Profile")
    if profile.note:
        page.text(profile.note)
    page.table(
        ("part", "nodes", "average ms", "first ms"),
        [(p.owner, len(p.nodes), f"{p.average:.4f}", f"{p.milliseconds[0]:.4f}") for p in profile.parts],
        caption="Partitions, as the host sees them, copies and waiting included",
    )
    if profile.kernels:
        page.text(closing(profile)[0])
        total = sum(k.average for k in profile.kernels) or 1.0
        page.table(
            ("order", "kernel", "nodes", "average ms", "share"),
            [
                (k.order, k.kernel, " ".join(map(str, k.nodes)), f"{k.average:.4f}", f"{k.average / total:.1%}")
                for k in profile.kernels
            ],
            caption=f"{len(profile.kernels)} kernels",
            folded=True,
        )


def _node_times(result: BenchmarkResult) -> dict[int, str]:
    """What stands beside the nodes of the graph: the GPU's time, at the first node of a kernel."""
    ops = result.profile.ops if result.profile is not None else ()
    return {row.nodes[0]: f"{row.milliseconds:.3f} ms" for row in ops if row.nodes}


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.4g} ms"
