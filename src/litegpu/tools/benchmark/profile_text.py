"""A profile as the official tool's tables, as CSV, and as its message of protocol buffers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from litegpu.tools import protobuf
from litegpu.tools.benchmark.result import BenchmarkResult, Profile, Startup
from litegpu.tools.benchmark.timing import Timing
from litegpu.visible import visible

_STEPS = {
    "device": "OpenDevice",
    "load": "LoadModel",
    "partition": "ModifyGraphWithDelegate",
    "build": "BuildKernels",
    "compile": "CompileKernels",
    "upload": "UploadConstants",
}
_TOP = 10
_NOTICED = 0.01  # share from which on two sums look different
_LISTED = 8  # node numbers in a name


@dataclass(frozen=True)
class Event:
    """Something that takes time: its type, its name, the model's nodes that it stands for, milliseconds in each
    profiled inference."""

    type: str
    name: str
    nodes: tuple[int, ...]
    milliseconds: tuple[float, ...]

    @property
    def average(self) -> float:
        return sum(self.milliseconds) / len(self.milliseconds)


def profile_text(result: BenchmarkResult) -> str:
    """The tables of the initialization, of the parts of an inference, and of the GPU's kernels."""
    profile = _profile(result)
    lines = ["Profiling Info for Benchmark Initialization:", *_report(initialization(result.startup)), ""]
    lines += ["Operator-wise Profiling Info for Regular Benchmark Runs:", *_report(parts(profile)), ""]
    for part in profile.parts:
        if part.owner == "CPU":
            lines.append(f"CPU: {_numbers(part.nodes, 10**9)} run in one call, {part.average:.3f} ms; the official")
            lines.append("Python runtime does not time them one by one.")
    if profile.note:
        lines.append(f"Delegate internal: not profiled: {profile.note}")
    if profile.kernels:
        lines += ["Delegate internal: ", *_report(kernels(profile)), "", *_op_table(profile), "", *closing(profile)]
    return "\n".join(lines)


def closing(profile: Profile) -> list[str]:
    """How the sum of the kernels relates to the whole, and to that of the averages in the tables, which single slow
    inferences raise."""
    text = f"GPU: {profile.kernel_sum:.3f} ms for the kernels, one by one"
    if abs(profile.sum_of_averages - profile.kernel_sum) > _NOTICED * profile.kernel_sum:
        text += (
            f" (median of the profiled inferences; the averages of the kernels add up to {profile.sum_of_averages:.3f})"
        )
    if profile.gpu is not None:
        text += f"; {profile.gpu:.3f} ms for all of them together"
    return [text]


def profile_csv(result: BenchmarkResult) -> str:
    """One table: the official columns, the section that a row is from, and node numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["node type", "first", "avg_ms", "%", "cdf%", "mem KB", "times called", "name", "section", "nodes"])
    profile = _profile(result)
    sections = (
        ("initialization", initialization(result.startup)), ("runtime", parts(profile)), ("delegate", kernels(profile)),
    )  # fmt: skip
    for section, events in sections:
        for event, share, total in zip(events, *_shares(events), strict=True):
            figures = [f"{event.milliseconds[0]:.6f}", f"{event.average:.6f}", f"{share:.3%}", f"{total:.3%}"]
            nodes = " ".join(map(str, event.nodes))
            names = visible(event.type, keep=""), visible(event.name, keep="")
            writer.writerow([names[0], *figures, "0.000", 1, names[1], section, nodes])
    return out.getvalue()


def profile_message(result: BenchmarkResult, model_name: str) -> bytes:
    """BenchmarkProfilingData."""
    profile = _profile(result)
    start = protobuf.message(1, _subgraph(initialization(result.startup)))
    runtime = protobuf.message(1, _subgraph(parts(profile)))
    if profile.kernels:
        rows = b"".join(protobuf.message(2, _op(i, event)) for i, event in enumerate(kernels(profile)))
        runtime += protobuf.message(2, protobuf.text(1, "GPU") + rows)
    return protobuf.text(1, model_name) + protobuf.message(2, start) + protobuf.message(3, runtime)


def initialization(startup: Startup) -> list[Event]:
    return [
        Event(_STEPS[name], f"{_STEPS[name]}/0", (), (seconds * 1e3,))
        for name, seconds in startup.parts().items()
        if seconds
    ]


def parts(profile: Profile) -> list[Event]:
    return [
        Event(f"{part.owner} partition", f"{_numbers(part.nodes)}:{i}", part.nodes, part.milliseconds)
        for i, part in enumerate(profile.parts)
    ]


def kernels(profile: Profile) -> list[Event]:
    return [
        Event(k.kernel, f"Delegate/{k.kernel}:{k.order} {list(k.nodes)}", k.nodes, k.milliseconds)
        for k in profile.kernels
    ]


def _profile(result: BenchmarkResult) -> Profile:
    return result.profile if result.profile is not None else Profile((), (), ())


def _numbers(nodes: Sequence[int], limit: int = _LISTED) -> str:
    more = f" and {len(nodes) - limit} more" if len(nodes) > limit else ""
    return f"node{'' if len(nodes) == 1 else 's'} {', '.join(map(str, nodes[:limit]))}{more}"


def _shares(events: Sequence[Event]) -> tuple[list[float], list[float]]:
    """Of the total: each event's share, and the share of all up to it."""
    total = sum(e.average for e in events) or 1.0
    shares = [e.average / total for e in events]
    return shares, list(accumulate(shares))


def _report(events: Sequence[Event]) -> list[str]:
    top = sorted(events, key=lambda e: -e.average)[:_TOP]
    total = sum(e.average for e in events) or 1.0
    lines = [_banner("Run Order"), _HEAD, *_rows(events, total), ""]
    lines += [_banner("Top by Computation Time"), _HEAD, *_rows(top, total), ""]
    lines += [f"Number of nodes executed: {len(events)}", _banner("Summary by node type"), _TYPE_HEAD]
    types: dict[str, list[Event]] = {}
    for event in events:
        types.setdefault(event.type, []).append(event)
    cumulated = 0.0
    for name, found in sorted(types.items(), key=lambda item: -sum(e.average for e in item[1])):
        milliseconds = sum(e.average for e in found)
        cumulated += milliseconds / total
        lines.append(
            f"\t{name:>24}\t{len(found):9}\t{milliseconds:10.3f}\t{milliseconds / total:11.3%}\t{cumulated:11.3%}"
            f"\t{0:10.3f}\t{len(found):10}"
        )
    runs = [sum(round_) / 1e3 for round_ in zip(*(e.milliseconds for e in events), strict=True)]
    timings = str(Timing(tuple(runs)).official).partition(" p5=")[0]
    lines += ["", f"Timings (microseconds): {timings}", "Memory (bytes): count=0", f"{len(events)} nodes observed"]
    return lines


_HEAD = "\t" + "\t".join(
    f"{name:>{width}}"
    for name, width in (
        ("[node type]", 24), ("[first]", 9), ("[avg ms]", 9), ("[%]", 8), ("[cdf%]", 8), ("[mem KB]", 10),
        ("[times called]", 9), ("[Name]", 0),
    )
)  # fmt: skip
_TYPE_HEAD = "\t" + "\t".join(
    f"{name:>{width}}"
    for name, width in (
        ("[Node type]", 24), ("[count]", 9), ("[avg ms]", 10), ("[avg %]", 11), ("[cdf %]", 11), ("[mem KB]", 10),
        ("[times called]", 10),
    )
)  # fmt: skip


def _banner(text: str) -> str:
    return f"{'=' * 30} {text} {'=' * 30}"


def _rows(events: Sequence[Event], total: float) -> list[str]:
    lines, cumulated = [], 0.0
    for event in events:
        share = event.average / total
        cumulated += share
        lines.append(
            f"\t{event.type:>24}\t{event.milliseconds[0]:9.3f}\t{event.average:9.3f}\t{share:8.3%}\t{cumulated:8.3%}"
            f"\t{0:10.3f}\t{1:9}\t{event.name}"
        )
    return lines


def _op_table(profile: Profile) -> list[str]:
    """GPU time by op, slowest first."""
    total = sum(row.milliseconds for row in profile.ops) or 1.0
    lines = ["GPU time by op:", f"\t{'[avg ms]':>9}\t{'[%]':>8}\t{'[kernels]':>9}\t[ops and their nodes]"]
    for row in sorted(profile.ops, key=lambda r: -r.milliseconds):
        told = (
            " + ".join(row.ops[:_LISTED]) + (" ..." if len(row.ops) > _LISTED else "") if row.ops else "(no op's own)"
        )
        share = row.milliseconds / total
        lines.append(f"\t{row.milliseconds:9.3f}\t{share:8.3%}\t{row.kernels:9}\t{told} {list(row.nodes)}")
    return lines


def _subgraph(events: Sequence[Event]) -> bytes:
    rows = b"".join(protobuf.message(3, _op(i, event)) for i, event in enumerate(events))
    return protobuf.text(1, "Primary graph") + protobuf.integer(2, 0) + rows


def _op(order: int, event: Event) -> bytes:
    values = Timing(tuple(ms * 1e-3 for ms in event.milliseconds)).official.values
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    statistics = (
        b"".join(protobuf.integer(f, v) for f, v in ((1, values[0]), (2, values[-1]), (3, int(mean))))
        + protobuf.float32(4, variance**0.5)
        + protobuf.float32(5, variance)
        + b"".join(
            protobuf.integer(f, v) for f, v in ((6, min(values)), (7, max(values)), (8, sum(values)), (9, len(values)))
        )
    )
    return (
        protobuf.text(1, event.type)
        + protobuf.message(2, statistics)
        + protobuf.integer(4, 1)
        + protobuf.text(5, event.name)
        + protobuf.integer(6, order)
    )
