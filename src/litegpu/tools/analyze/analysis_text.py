"""Prints an analysis for people: a line for each op, then the patterns, then what it all comes to."""

from __future__ import annotations

from litegpu.delegates.report import DelegationReport
from litegpu.tools.analyze.analysis import Analysis, OpAnalysis
from litegpu.tools.analyze.finding import Finding
from litegpu.tools.console import print_table

FINDING_COLUMNS = ("pattern", "nodes", "gain us", "what")
_LISTED = 6  # nodes
_KINDS = 12  # of what another delegate leaves


def print_analysis(analysis: Analysis) -> None:
    """On stdout, the summary last."""
    print(f"{analysis.model}: {analysis.report.summary()}")
    print(rates_line(analysis))
    print()
    print_table(columns(analysis), [row(analysis, op) for op in analysis.ops])
    reasons = reason_lines(analysis)
    if reasons:
        print()
        print("\n".join(reasons))
    print()
    print("\n".join(finding_lines(analysis)))
    print()
    print("\n".join(closing_lines(analysis)))


def rates_line(analysis: Analysis) -> str:
    """What the estimates and limits stand on."""
    rates, half = analysis.rates, analysis.half
    rate = rates.float16 if half else rates.float32
    return (
        f"Limits of the {rates.name} in {'float16' if half else 'float32'}: {rate / 1e12:.3g} TFLOP/s, "
        f"{rates.bandwidth / 1e9:.4g} GB/s ({rates.source}); nodes on the CPU: as on one core"
    )


def columns(analysis: Analysis) -> tuple[str, ...]:
    """Of the table of ops."""
    measured = ("measured us",) if analysis.measured is not None else ()
    others = (one.delegates[0] for one in analysis.others)
    return (
        "node",
        "op",
        "where",
        *others,
        "result",
        "MFLOP",
        "kB",
        "bound",
        "limit us",
        "estimate us",
        *measured,
        "of limit",
    )


def row(analysis: Analysis, op: OpAnalysis) -> tuple[str, ...]:
    """An op as cells."""
    measured = (_us(op.measured),) if analysis.measured is not None else ()
    answers = ("yes" if one.taken else "no" for one in op.answers)
    return (
        str(op.index), op.op, where(analysis, op), *answers, " ".join(map(shape_text, op.outputs[:2])),
        f"{op.flops / 1e6:.3f}", f"{op.bytes / 1e3:.1f}", op.bound or "-", _us(op.limit), _us(op.estimated), *measured,
        "-" if op.share is None else f"{op.share:.0%}",
    )  # fmt: skip


def where(analysis: Analysis, op: OpAnalysis) -> str:
    """The owner, with the number of its partition if it has several."""
    several = sum(p.owner == op.owner for p in analysis.report.partitions) > 1
    return f"{op.owner} {op.partition}" if several else op.owner


def shape_text(shape: tuple[int, ...]) -> str:
    """ "1x224x224x3"."""
    return "x".join(map(str, shape)) or "scalar"


def reason_lines(analysis: Analysis) -> list[str]:
    """Why nodes stay on the CPU, each reason once, by the report of the partitioner; and what others would leave."""
    lines = _left(analysis.report, "On the CPU")
    for one in analysis.others:
        left = _left(one, f"Left by {one.delegates[0]}")
        more = [f"and {len(left) - _KINDS} more, which --json has"] if len(left) > _KINDS else []
        lines += [f"Asked alone: {one.summary().partition(':')[0]}", *left[:_KINDS], *more]
    return lines


def _left(report: DelegationReport, what: str) -> list[str]:
    return [f"{what}: {op} ({numbers(nodes)}): {reason}" for (_, op, _, reason), nodes in report.kinds().items()]


def finding_lines(analysis: Analysis) -> list[str]:
    """The patterns, three lines each."""
    if not analysis.findings:
        return ["No costly pattern was found."]
    lines = []
    for one in analysis.findings:
        lines += [f"{one.pattern} ({numbers(one.nodes)}): {one.what}", f"  Do: {one.advice}", f"  {gain_text(one)}"]
    return lines


def gain_text(finding: Finding) -> str:
    """What it is estimated to save."""
    return f"Estimated gain: {finding.gain * 1e6:.2f} us ({finding.how})"


def closing_lines(analysis: Analysis) -> list[str]:
    """What it comes to."""
    flops, limit = sum(op.flops for op in analysis.ops), sum(op.limit for op in analysis.ops)
    moved = sum(c.seconds for c in analysis.crossings)
    lines = [
        f"{flops / 1e9:.3f} GFLOP; at the limit {_us(limit)} us, estimated {_us(analysis.total)} us, of which "
        f"{_us(moved)} us go to copies to and from the device and waiting"
    ]
    if analysis.measured is not None:
        lines.append(f"Measured on {analysis.device}: {_us(analysis.measured)} us for an inference")
    return lines + list(analysis.notes)


def numbers(nodes: tuple[int, ...]) -> str:
    """ "nodes 1, 2 and 3 more"."""
    more = f" and {len(nodes) - _LISTED} more" if len(nodes) > _LISTED else ""
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes[:_LISTED]))}{more}"


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.2f}"
