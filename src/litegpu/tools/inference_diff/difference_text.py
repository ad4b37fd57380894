"""The result as text: the official tool's lines, then tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from litegpu.tools.console import print_table, print_warning
from litegpu.tools.entered import others_line
from litegpu.tools.inference_diff.compare import DELEGATES, DiffReport
from litegpu.tools.inference_diff.measures import Difference, OutputDifference
from litegpu.tools.inference_diff.per_op import NodeDifference, PerOpReport
from litegpu.tools.statistics import Statistics, number

OUTPUT_COLUMNS = ("output", "type", "relative L2", "max abs", "max quanta", "cosine", "PSNR dB", "top-1", "exact")
NODE_COLUMNS = ("node", "op", "on", "kernel", "lock-step", "growth", "alone", "kernel alone", "max abs", "tensor")


def official_lines(report: DiffReport) -> list[str]:
    """What the official tool prints, by its format."""
    lines = [
        f"INFO: Num evaluation runs: {report.num_runs}",
        f"INFO: Reference run latency: {_latency(report.reference_latency)}",
        f"INFO: Test run latency: {_latency(report.test_latency)}",
    ]
    lines += [
        f"INFO: OutputDiff[{i}]: avg_error={number(o.avg_error)}, std_dev={number(o.std_dev)}"
        for i, o in enumerate(report.outputs)
    ]
    return lines


def print_report(report: DiffReport) -> None:
    """The report for people and for scripts that read the official tool's lines, on stdout."""
    print("\n".join(official_lines(report)))
    print()
    print(f"{report.model}: {report.delegation.summary() if report.options.delegate == 'gpu' else tested(report)}")
    print(f"test: {tested(report)}; reference: {reference(report)}; inputs: {report.inputs}")
    others = others_line(report.model, report.options.signature, "--signature")
    if others:
        print(others)
    print()
    print_table(OUTPUT_COLUMNS, [output_row(o) for o in report.outputs])
    if report.per_op is not None:
        print()
        _print_nodes(report.per_op)
    print()
    print_verdict(report)


def print_verdict(report: DiffReport) -> None:
    """Whether the limit holds, and whether it could have failed."""
    if report.interrupted:
        print_warning(f"Interrupted: the figures are of the {report.num_runs} runs until then")
    empty = says_nothing(report)
    if empty:
        print_warning(empty)
    limit = report.options.max_relative_error
    worst = figure(report.worst)
    if limit is None:
        print(f"largest relative L2 error: {worst}")
    elif report.passed:
        print(f"PASSED: relative L2 error {worst}, at most {limit:g}")
    else:
        print_warning(f"FAILED: relative L2 error {worst} is above {limit:g}")


def says_nothing(report: DiffReport) -> str:
    """Which outputs any program would have agreed with; empty if there are none."""
    names = [f"'{o.name}'" for o in report.outputs if o.constant]
    if not names:
        return ""
    every = "every output" if len(names) == len(report.outputs) else ", ".join(names)
    return (
        f"The reference gave one number throughout, or none that is finite, for {every}, in every run: that comparison "
        "says nothing. Give inputs that make a difference (--input)"
    )


def tested(report: DiffReport) -> str:
    """What was tested, in a few words."""
    threads = f"{report.options.num_threads} thread{'' if report.options.num_threads == 1 else 's'}"
    if report.options.delegate == "gpu":
        asked = report.options.precision
        precision = asked if report.half or asked == "float32" else f"float32 (the device has no {asked})"
        return f"{report.device}, {precision}"
    if report.options.delegate not in DELEGATES:
        return f"{report.device}, {report.options.precision}"
    kernels = "built-in kernels" if report.options.delegate == "cpu" else "XNNPACK"
    return f"CPU with {kernels}, {threads}"


def reference(report: DiffReport) -> str:
    """What it was compared with."""
    kernels = {"xnnpack": "XNNPACK", "builtin": "built-in kernels", "reference": "reference kernels"}
    return f"CPU with {kernels[report.options.reference_kernels]}, 1 thread"


def output_row(output: OutputDifference) -> tuple[str, ...]:
    """A row of OUTPUT_COLUMNS."""
    total = sum(output.histogram.counts) + output.histogram.exact + output.histogram.not_finite
    return (
        output.name,
        f"{output.dtype} {list(output.shape)}",
        figure(output.relative_l2),
        figure(output.max_abs),
        "-" if output.max_quanta is None else f"{output.max_quanta:g}",
        f"{output.cosine:.9f}",
        f"{output.psnr:.1f}",
        "-" if output.top1 is None else f"{output.top1:.2%}",
        f"{output.histogram.exact / total:.1%}" if total else "-",
    )


def node_row(row: NodeDifference) -> tuple[str, ...]:
    """A row of NODE_COLUMNS."""
    shown = row.alone or row.lock_step
    return (
        str(row.node),
        row.op,
        row.owner,
        nodes_text(row.kernel) if row.kernel else "-",
        _error(row.lock_step),
        f"{row.growth:.2f}" if row.growth is not None else "-",
        _error(row.alone),
        _error(row.kernel_alone),
        figure(shown.max_abs) if shown else "-",
        row.tensor,
    )


def nodes_text(nodes: Sequence[int]) -> str:
    """ "3-5" for nodes that follow each other, else "3,5"."""
    if len(nodes) > 1 and nodes[-1] - nodes[0] == len(nodes) - 1:
        return f"{nodes[0]}-{nodes[-1]}"
    return ",".join(map(str, nodes))


def notes(report: PerOpReport) -> list[str]:
    """What to know when reading the comparison op by op."""
    lines = [
        "lock-step: relative L2 error in the whole model on the GPU; growth: over that of what the kernel reads; "
        "alone: of the op on the reference's values; kernel alone: of the ops that one kernel computes. What exists "
        "only inside a kernel, or is a part of another tensor's memory, has no lock-step error."
    ]
    if report.dynamic_range:
        lines.append(
            f"{len(report.dynamic_range)} ops have 8-bit weights and float inputs. The official kernels quantize these "
            "inputs, which is an error of theirs; op by op the reference computes with the weights as floats."
        )
    if not (report.same_kernels and report.same_outputs):
        what = "how some ops are joined into kernels" if not report.same_kernels else "some bits of the outputs"
        lines.append(
            f"Handing out inner tensors changed {what}: lock-step errors are those of a slightly other program "
            "than the model's."
        )
    return lines


def figure(value: float) -> str:
    """An error."""
    return "0" if value == 0 else f"{value:.2e}" if math.isfinite(value) else str(value)


def _print_nodes(report: PerOpReport) -> None:
    print_table(NODE_COLUMNS, [node_row(row) for row in report.nodes])
    print()
    print("\n".join(notes(report)))
    print()
    if report.culprit is not None:
        print_warning(report.verdict())
    else:
        print(report.verdict())


def _error(found: Difference | None) -> str:
    return "-" if found is None else figure(found.relative_l2)


def _latency(latency: Statistics) -> str:
    return f"avg={number(latency.average)}(us), std_dev={latency.deviation}(us)"
