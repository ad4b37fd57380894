"""The report of `litegpu run` as tables and sentences, for the terminal and for the page."""

from __future__ import annotations

import math

from litegpu.tools.console import print_table, print_warning
from litegpu.tools.entered import others_line
from litegpu.tools.model_run import InputResult, RunReport
from litegpu.tools.predictions import Classification, Detection, Picture, Pose, Result, Segmentation, Tensors

Rows = list[tuple[str, ...]]

PARTITIONS = ("partition", "on", "ops", "nodes", "tensors in -> out")
TIMINGS = ("device", "inference ms (median)", "fastest", "first", "prepare ms", "runs")
AGREEMENT = ("output: GPU beside CPU", "relative L2", "max abs")


def print_report(report: RunReport) -> None:
    """The report for people, on stdout."""
    print(f"{report.model}: {report.delegation.summary()}")
    for line in (device_line(report), others_line(report.model, report.signature, "--signature")):
        if line:
            print(line)
    print()
    print_table(PARTITIONS, partition_rows(report))
    print()
    print_table(TIMINGS, timing_rows(report))
    for inference in report.inferences:
        print()
        _print_inference(inference)
    if report.cpu_problem:
        print()
        print_warning(no_comparison(report))
    if report.cpu:
        print()
        print(speed(report))
        text, good = agreement(report)
        if good:
            print(text)
        else:
            print_warning(text)


def device_line(report: RunReport) -> str:
    if report.delegation.delegated:
        return f"GPU: {report.device}"
    return "" if report.wanted == "cpu" else 'No op runs on a GPU; "litegpu doctor" says whether one can be used.'


def partition_rows(report: RunReport) -> Rows:
    return [
        (str(p.index), p.owner, str(len(p.nodes)), f"{p.nodes[0]}..{p.nodes[-1]}",
         f"{len(p.inputs)} -> {len(p.outputs)}")
        for p in report.delegation.partitions
        if p.nodes
    ]  # fmt: skip


def timing_rows(report: RunReport) -> Rows:
    timings = [("GPU" if report.delegation.delegated else "CPU", report.timing)]
    timings += [("CPU", report.cpu)] if report.cpu else []
    return [
        (name, *(milliseconds(seconds) for seconds in (t.median, t.fastest, t.first, t.prepare)), str(t.runs))
        for name, t in timings
    ]


def result_table(result: Result) -> tuple[tuple[str, ...], Rows, str]:
    """What a result says: columns, rows, and a sentence; any of them may be empty."""
    match result:
        case Classification(top):
            return ("class", "label", "score"), [(str(e.index), e.label, f"{e.score:.4f}") for e in top], ""
        case Segmentation(_, shares):
            rows: Rows = [(str(e.index), e.label, f"{e.score:.1%}") for e in shares]
            return ("class", "label", "share of the picture"), rows, ""
        case Detection(boxes, best):
            told = "" if boxes else "nothing with a score of 0.3 or more" + ("; the best was" if best else "")
            shown = boxes or ((best,) if best else ())
            found = [(b.found, (b.top, b.left, b.bottom, b.right)) for b in shown]
            rows = [(str(f.index), f.label, f"{f.score:.3f}", *(f"{edge:.3f}" for edge in e)) for f, e in found]
            return ("class", "label", "score", "top", "left", "bottom", "right"), rows, told
        case Pose(keypoints):
            points: Rows = [(k.name, f"{k.score:.3f}", f"{k.y:.3f}", f"{k.x:.3f}") for k in keypoints]
            return ("keypoint", "score", "y", "x"), points, ""
        case Picture(pixels):
            return (), [], f"a picture of {pixels.shape[1]}x{pixels.shape[0]} pixels"
        case Tensors(tensors):
            summaries = [
                (t.name, str(list(t.shape)), t.dtype,
                 *("-" if math.isnan(v) else f"{v:.5g}" for v in (t.minimum, t.maximum, t.mean, t.deviation)))
                for t in tensors
            ]  # fmt: skip
            told = "; ".join(
                f"{t.not_finite} of the {math.prod(t.shape)} numbers of '{t.name}' are NaN or infinite: "
                "the figures are of the others"
                for t in tensors
                if t.not_finite
            )
            return ("output", "shape", "type", "min", "max", "mean", "std"), summaries, told


def agreement_rows(inference: InputResult) -> Rows:
    return [(a.output, f"{a.relative_l2:.2e}", f"{a.max_abs:.2e}") for a in inference.agreement]


def speed(report: RunReport) -> str:
    """GPU beside CPU; the report has a comparison."""
    assert report.cpu is not None
    gpu, cpu = report.timing.median, report.cpu.median
    verdict = f"the GPU is {cpu / gpu:.1f} times as fast" if gpu <= cpu else f"the CPU is {gpu / cpu:.1f} times as fast"
    if report.is_software:
        verdict = "a software device: this says nothing about the speed of a GPU"
    return f"speed: GPU {milliseconds(gpu)} ms, CPU {milliseconds(cpu)} ms; {verdict}"


def milliseconds(seconds: float) -> str:
    """Without the unit; what is small has more places, for no inference takes 0.00 ms."""
    return f"{1e3 * seconds:.2f}" if seconds >= 1e-3 else f"{1e3 * seconds:.3f}"


def no_comparison(report: RunReport) -> str:
    """That the CPU's results are missing, and why; empty if they are not, or were not wanted."""
    if not report.cpu_problem:
        return ""
    return f"agreement: not known, for the official CPU runtime cannot run this model: {report.cpu_problem}"


def agreement(report: RunReport) -> tuple[str, bool]:
    """How near the results are to the CPU's, and whether that is near enough and says something."""
    verdict = report.verdict
    return verdict.text, verdict.agrees and verdict.tells


def source_line(inference: InputResult) -> str:
    return f"{inference.source} ({inference.preparation})" if inference.preparation else inference.source


def _print_inference(inference: InputResult) -> None:
    print(source_line(inference))
    columns, rows, told = result_table(inference.result)
    if told:
        print(told)
    if columns:
        print_table(columns, rows)
    if inference.drawing:
        print(f"drawn: {inference.drawing}")
    if inference.agreement:
        print()
        print_table(AGREEMENT, agreement_rows(inference))
        if inference.decision:
            print(inference.decision)
