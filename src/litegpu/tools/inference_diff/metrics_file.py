"""The result as the official tool's binary message."""

from __future__ import annotations

import os

from litegpu.tools.evaluation_metrics import latency_metrics, write_stage_metrics
from litegpu.tools.inference_diff.compare import DiffReport
from litegpu.tools.inference_diff.measures import OutputDifference
from litegpu.tools.protobuf import Double, Message, Single, message


def write_metrics(report: DiffReport, path: str | os.PathLike[str]) -> None:
    """EvaluationStageMetrics with InferenceProfilerMetrics. Raises OptionError where it cannot be written."""
    metrics = message(
        (1, latency_metrics(report.reference_latency)),
        (2, latency_metrics(report.test_latency)),
        *((3, _accuracy(output)) for output in report.outputs),
    )
    write_stage_metrics(path, report.num_runs, message((5, metrics)))


def _accuracy(output: OutputDifference) -> Message:
    """AccuracyMetrics."""
    return message(
        (1, Single(max(output.errors))), (2, Single(min(output.errors))), (3, Double(output.avg_error)),
        (4, Single(output.std_dev)),
    )  # fmt: skip
