"""A comparison as a table, and as the official tool's summary."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.tools.benchmark.benchmark_text import software_line
from litegpu.tools.benchmark.comparison import Comparison, Speedup
from litegpu.tools.benchmark.result import BenchmarkResult

COLUMNS = (
    "configuration", "batch", "median ms", "p90 ms", "p99 ms", "std ms", "per s", "start-up ms", "device MB",
    "speed-up", "95% interval", "verdict",
)  # fmt: skip
_BANNER = 80
_NAME_WIDTH = 26


def print_comparison(comparison: Comparison) -> None:
    """The table on stdout."""
    from litegpu.tools.console import print_table

    columns, rows = table(comparison)
    print()
    print_table(columns, rows)
    for line in notes(comparison):
        print(line)


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Column names and rows; without columns that say nothing."""
    rows = [_row(result, _speedup_of(comparison, result)) for result in comparison.results]
    used = [i for i in range(len(COLUMNS)) if any(row[i] not in ("", "-") for row in rows)]
    return [COLUMNS[i] for i in used], [[row[i] for i in used] for row in rows]


def notes(comparison: Comparison) -> list[str]:
    """What the table means, and what went wrong."""
    lines = ["Interrupted: the figures are of the rounds until then"] if comparison.interrupted else []
    if comparison.speedups:
        first = comparison.speedups[0]
        lines.append(
            f"speed-up: beside {first.baseline} of the same batch size; the median over {first.rounds} interleaved "
            "rounds, with its 95% bootstrap interval"
        )
    if any(result.batch for result in comparison.results):
        lines.append("per s: rows of the batch")
    energies = [r for r in comparison.results if r.energy is not None]
    for result in energies:
        if result.energy is not None:
            rows = result.batch or 1
            lines.append(
                f"energy of {result.label}{f', batch {result.batch}' if result.batch else ''}: "
                f"{result.energy.per_inference * 1e3 / rows:.3g} mJ per {'row' if result.batch else 'inference'}"
            )
    lines += [software_line(device) for device in sorted({r.device for r in comparison.results if r.is_software})]
    reasons = {r.energy_note for r in comparison.results if r.energy_note and r.device != "CPU"}
    lines += [f"energy: not measured: {reason}" for reason in sorted(reasons)]
    lines += [f"{label} failed: {reason}" for label, reason in comparison.failures]
    return lines


def official_summary(comparison: Comparison, labels: Sequence[str]) -> list[str]:
    """The closing rows of the official tool, fastest first; those that failed last."""
    lines = ["", " Summary of All Runs w/ Different Performance Options ".center(_BANNER, "=")]
    for result in sorted(comparison.results, key=lambda r: r.inference.average):
        lines.append(f"{result.label:>{_NAME_WIDTH}}: {result.inference.official}")
    failed = dict(comparison.failures)
    lines += [f"{label:>{_NAME_WIDTH}}:  failed!" for label in labels if label in failed]
    return lines


def _row(result: BenchmarkResult, speedup: Speedup | None) -> list[str]:
    timing = result.inference
    row = [result.label, str(result.batch or "-")]
    row += [f"{timing.percentile(p) / 1e3:.3f}" for p in (50, 90, 99)]
    row += [f"{timing.deviation / 1e3:.3f}", f"{result.throughput:.1f}", f"{result.init / 1e3:.0f}"]
    row.append(f"{result.memory.device:.1f}" if result.memory.device else "-")
    if speedup is None:
        return [*row, "-", "-", "-"]
    return [*row, f"{speedup.value:.3g}", f"{speedup.low:.3g} to {speedup.high:.3g}", speedup.verdict]


def _speedup_of(comparison: Comparison, result: BenchmarkResult) -> Speedup | None:
    return next((s for s in comparison.speedups if (s.label, s.batch) == (result.label, result.batch)), None)
