"""Prints advice for people: tables on a terminal, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterable

from litegpu.tools.advise import documented
from litegpu.tools.advise.advice import Advice
from litegpu.tools.advise.coverage import Coverage
from litegpu.tools.console import print_table


def print_advice(advice: Advice) -> None:
    """On stdout, the recommendation last."""
    print(f"{advice.model}: {advice.type.kind.value}")
    for evidence in advice.type.evidence:
        print(f"  {evidence}")
    _print_documented(advice)
    for coverage in advice.coverages:
        print()
        _print_coverage(coverage)
    print(f"\n{advice.numerics}")
    print(f"\nUse the {advice.recommendation.delegate}. {' '.join(advice.recommendation.reasons)}")


def _print_documented(advice: Advice) -> None:
    """The tables by platform and by model type, this model's row marked."""
    print(f"\nDelegates by platform, as the official documentation has it (here: {advice.platform})")
    rows = [(one.delegate, one.platforms, "yes" if one.here else "no", one.note) for one in documented.PLATFORMS]
    print_table(("delegate", "platforms", "here", "note"), rows)
    print("\nDelegates by model type, as the official documentation has it")
    types = [
        (row.model_type, *("yes" if row.takes[d] else "no" for d in documented.DELEGATES), _mark(row, advice.row))
        for row in documented.MODEL_TYPES
    ]
    types.append(("this model, here", *(advice.here.get(d, "-") for d in documented.DELEGATES), ""))
    print_table(("model type", *documented.DELEGATES, ""), types)
    if advice.row is None:
        print("The documentation has no row for a model of this type.")


def _mark(row: documented.TypeRow, mine: documented.TypeRow | None) -> str:
    return "<- this model" if row is mine else ""


def _print_coverage(coverage: Coverage) -> None:
    name = coverage.delegate
    if coverage.device is not None:
        kind = f"{coverage.device.backend}, software" if coverage.device.is_software else coverage.device.backend
        name += f" on {coverage.device.name} ({kind})"
    if coverage.unknown:
        print(f"{name}: what it would take is unknown. {coverage.problem}")
        return
    print(f"{name} would take {coverage.taken} of {coverage.total} ops, in {count(coverage.partitions, 'partition')}")
    if coverage.problem is not None:
        print(f"  It cannot be used here: {coverage.problem}")
    if coverage.without_limit is not None:
        taken, partitions = coverage.without_limit
        print(f"  With max_delegated_partitions=0: {taken} ops, in {count(partitions, 'partition')}")
    if coverage.left:
        rows = [(one.op, str(len(one.nodes)), node_numbers(one.nodes), one.reason) for one in coverage.left]
        print_table(("op left", "count", "nodes", "reason"), rows)


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
