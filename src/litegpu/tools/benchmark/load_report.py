"""What is said of a benchmark under load: lines of the log, plots and a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from litegpu.report import Page, Plot, histogram, lines
from litegpu.tools.benchmark.benchmark_text import software_line
from litegpu.tools.benchmark.load import PERCENTILES, LoadResult

_BINS = 40
_MOST_POINTS = 2000


def load_lines(result: LoadResult) -> tuple[list[str], list[str]]:
    """Lines of the log, and warnings."""
    calls, asked = result.calls, result.load
    counted = "from its scheduled arrival" if asked.arrival_rate else "as its caller sees it"
    figures = " ".join(f"p{p:g}={result.percentile(p):.3f}" for p in PERCENTILES)
    wanted = f" (of {asked.arrival_rate:g} that arrive)" if asked.arrival_rate else ""
    rows = f", {result.throughput * result.rows:.1f} rows/s" if result.rows > 1 else ""
    found = [
        f"Load: {description(result)}, on {result.device}",
        f"Throughput: {result.throughput:.1f} calls/s{wanted}{rows}; {len(calls.ends)} calls in {calls.seconds:.3f} s",
        f"Latency in ms of a call, {counted}: {figures} max={result.milliseconds.max():.3f}",
    ]
    if result.is_software:
        found.append(software_line(result.device))
    if result.statistics is not None:
        found += [f"Batcher, with the warm-up: {line}" for line in str(result.statistics).splitlines()]
    warnings = []
    if calls.failures:
        told = ", ".join(f"{count} {name}" for name, count in calls.failures.items())
        warnings.append(f"Calls that failed: {told}; the first: {calls.error}")
    if result.is_overload:
        warnings.append(overload(result))
    elif asked.arrival_rate:
        found.append("Stable: the queue does not grow" if result.stability else "Too few calls to say if it is stable")
    return found, warnings


def description(result: LoadResult) -> str:
    """The load, for people."""
    asked = result.load
    way = f"a batcher of up to {asked.max_batch} rows, {asked.max_delay_ms:g} ms" if asked.batcher else "the model"
    if asked.streams:
        return f"one caller, {asked.streams} inferences in flight (stream)"
    if asked.arrival_rate:
        by = "" if asked.batcher else f" by {asked.callers} threads"
        return f"{asked.arrival_rate:g} arrivals/s (open loop, Poisson){by}, through {way}"
    return f"{asked.callers} threads (closed loop), through {way}"


def overload(result: LoadResult) -> str:
    """What is wrong, in one sentence."""
    parts = []
    if result.stability is not None:
        s = result.stability
        parts.append(f"the queue grows (from {s.before:.0f} to {s.after:.0f} calls under way)")
    if result.calls.left:
        parts.append(f"{result.calls.left} arrivals were not begun in --max_secs")
    return (
        f"Overload: {'; '.join(parts)}. About {result.throughput:.0f} calls/s are answered: percentiles say how long "
        "this went on, not how long a call takes. Try a lower --arrival_rate"
        + ("" if result.load.batcher else ", or --batcher=true")
    )


def load_page(result: LoadResult) -> Page:
    """The page."""
    page = Page(f"Under load: {Path(result.model).name}", subtitle=result.device)
    figures: list[tuple[str, ...]] = [(f"p{p:g}", f"{result.percentile(p):.4g} ms") for p in (50, 99, 99.9)]
    figures.append(("calls per second", f"{result.throughput:.1f}"))
    if result.load.arrival_rate:
        known = ("queue", "stable", "good") if result.stability else ("queue", "too few calls", "")
        figures.append(("queue", "grows", "bad") if result.is_overload else known)
    page.figures(figures)
    found, warnings = load_lines(result)
    for line in warnings:
        page.text(line, "bad")
    for line in found:
        page.text(line)
    latencies = result.milliseconds
    page.section("Latency").table(
        ("", "mean ms", *(f"p{p:g} ms" for p in PERCENTILES), "max ms"),
        [("calls", f"{latencies.mean():.3f}", *(f"{result.percentile(p):.3f}" for p in PERCENTILES),
          f"{latencies.max():.3f}")],
    )  # fmt: skip
    for _, plot in load_plots(result):
        page.plot(plot)
    if result.statistics is not None:
        page.section("Batches").table(
            ("prepared size", "batches"), [(size, count) for size, count in result.statistics.sizes.items()]
        )
    return page


def load_plots(result: LoadResult) -> list[tuple[str, Plot]]:
    """(name, plot): how many calls took how long, and how that went with time."""
    latencies = result.milliseconds
    counts, edges = np.histogram(latencies, min(_BINS, len(latencies)))
    title = "Latency: how many calls took how long"
    found = [("latencies", histogram(title, edges.tolist(), counts.tolist(), x_label="ms", log_counts=True))]
    due = np.asarray(result.calls.due)
    order = np.argsort(due)[:: max(1, -(-len(due) // _MOST_POINTS))]
    points = [(float(due[i] - due.min()), float(latencies[i])) for i in order]
    if len(points) > 1:
        found.append(("load", lines("Latency of calls by their arrival", {"ms": points}, x_label="s", unit="ms")))
    return found
