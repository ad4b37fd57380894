"""Prints advice for people: tables on a terminal, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterable

from litegpu.choosing.candidate import Measured
from litegpu.tools.advise import documented
from litegpu.tools.advise.advice import Advice
from litegpu.tools.advise.coverage import Coverage
from litegpu.tools.advise.measuring import MeasuredWays
from litegpu.tools.console import print_table


def print_advice(advice: Advice) -> None:
    """On stdout, the recommendation last."""
    print(f"{advice.model}: {advice.type.kind.value}")
    if advice.signature:
        print(f"{advice.signature}, which are not looked at here")
    for evidence in advice.type.evidence:
        print(f"  {evidence}")
    _print_documented(advice)
    for coverage in advice.coverages:
        print()
        _print_coverage(coverage)
    print(f"\n{advice.numerics}")
    if advice.measurement is None:
        print(f"\nUse the {advice.recommendation.delegate}. {' '.join(advice.recommendation.reasons)}")
        return
    print("\nMeasured on this machine")
    print_table(MEASURED_COLUMNS, measured_rows(advice.measurement))
    for line in problem_lines(advice.measurement):
        print(line)
    print(f"\n{' '.join(advice.recommendation.reasons)}")
    if advice.measurement.kept is not None:
        print('litegpu.load(..., device="auto") goes by this from now on.')


def _print_documented(advice: Advice) -> None:
    """The tables by platform and by model type, this model's row marked."""
    print(f"\n{BY_PLATFORM} (here: {advice.platform})")
    print_table(PLATFORM_COLUMNS, platform_rows())
    print(f"\n{BY_TYPE}")
    marks = ["<- this model" if row is advice.row else "" for row in documented.MODEL_TYPES]
    print_table((*TYPE_COLUMNS, ""), [(*row, mark) for row, mark in zip(type_rows(advice), [*marks, ""], strict=True)])
    if advice.row is None:
        print(NO_ROW)


def _print_coverage(coverage: Coverage) -> None:
    first, *others = coverage_lines(coverage)
    print(first)
    for line in others:
        print(f"  {line}")
    if coverage.left:
        print_table(LEFT_COLUMNS, left_rows(coverage))


BY_PLATFORM = "Delegates by platform, as the official documentation has it"
BY_TYPE = "Delegates by model type, as the official documentation has it"
NO_ROW = "The documentation has no row for a model of this type."
PLATFORM_COLUMNS = ("delegate", "platforms", "here", "note")
TYPE_COLUMNS = ("model type", *documented.DELEGATES)
LEFT_COLUMNS = ("op left", "count", "nodes", "reason")


MEASURED_COLUMNS = ("way", "ms a call", "rows/s", "rows/s in batches", "start s", "memory MB", "deviation", "on GPU")


def measured_rows(measurement: MeasuredWays) -> list[tuple[str, ...]]:
    """One for each way that ran. Memory is that of the process, with the device's after a plus sign."""
    return [
        (
            str(one.candidate),
            f"{one.latency * 1e3:.3f}",
            f"{1 / one.latency:,.0f}",
            "-" if one.batch_latency is None else f"{one.batch / one.batch_latency:,.0f}",
            "-" if one.start is None else f"{one.start:.2f}",
            _megabytes(one),
            "-" if one.deviation is None else f"{one.deviation:.1e}" if one.deviation else "0",
            f"{one.delegated:.0%}",
        )
        for one in measurement.measured
        if one.latency is not None
    ]


def problem_lines(measurement: MeasuredWays) -> list[str]:
    """What did not run, or not in batches, and why; ways with the same reason together."""
    told: dict[str, list[str]] = {}
    for one in measurement.measured:
        problem = one.problem or (f"no batches of {one.batch}: {one.batch_problem}" if one.batch_problem else "")
        if problem:
            told.setdefault(problem, []).append(str(one.candidate))
    return [f"{'; '.join(ways)}: {problem}" for problem, ways in told.items()]


def _megabytes(one: Measured) -> str:
    if one.memory is None:
        return "-"
    text = f"{one.memory / 1e6:,.0f}"
    return text if one.device_memory is None else f"{text} + {one.device_memory / 1e6:,.0f}"


def platform_rows() -> list[tuple[str, ...]]:
    return [(one.delegate, one.platforms, "yes" if one.here else "no", one.note) for one in documented.PLATFORMS]


def type_rows(advice: Advice) -> list[tuple[str, ...]]:
    """The documented rows, and a last one for this model on this machine."""
    rows = [
        (row.model_type, *("yes" if row.takes[d] else "no" for d in documented.DELEGATES))
        for row in documented.MODEL_TYPES
    ]
    return [*rows, ("this model, here", *(advice.here.get(d, "-") for d in documented.DELEGATES))]


def coverage_lines(coverage: Coverage) -> list[str]:
    """What a delegate would take, in sentences."""
    name = coverage.delegate
    if coverage.device is not None:
        kind = f"{coverage.device.backend}, software" if coverage.device.is_software else coverage.device.backend
        name += f" on {coverage.device.name} ({kind})"
    if coverage.unknown:
        return [f"{name}: what it would take is unknown. {coverage.problem}"]
    lines = [
        f"{name} would take {coverage.taken} of {coverage.total} ops, in {count(coverage.partitions, 'partition')}"
    ]
    if coverage.problem is not None:
        lines.append(f"It cannot be used here: {coverage.problem}")
    if coverage.without_limit is not None:
        taken, partitions = coverage.without_limit
        lines.append(f"With max_delegated_partitions=0: {taken} ops, in {count(partitions, 'partition')}")
    return lines


def left_rows(coverage: Coverage) -> list[tuple[str, ...]]:
    return [(one.op, str(len(one.nodes)), node_numbers(one.nodes), one.reason) for one in coverage.left]


def count(n: int, noun: str) -> str:
    """ "1 partition", "2 partitions"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def node_numbers(nodes: Iterable[int], limit: int = 6) -> str:
    """Numbers for a table, neighbours joined: "3-7, 9 and 4 more"."""
    ranges: list[list[int]] = []
    for node in sorted(nodes):
        if ranges and node == ranges[-1][1] + 1:
            ranges[-1][1] = node
        else:
            ranges.append([node, node])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")
