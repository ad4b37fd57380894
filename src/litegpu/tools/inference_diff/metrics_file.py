"""The result as the official tool's binary message."""

from __future__ import annotations

import os

from litegpu.tools.evaluate.stage_metrics import profiler_metrics
from litegpu.tools.inference_diff.compare import DiffReport
from litegpu.whole_file import write_whole


def write_metrics(report: DiffReport, path: str | os.PathLike[str]) -> None:
    """EvaluationStageMetrics with InferenceProfilerMetrics. Raises OptionError where it cannot be written."""
    errors = [(max(o.errors), min(o.errors), o.avg_error, o.std_dev) for o in report.outputs]
    content = profiler_metrics(report.num_runs, report.reference_latency, report.test_latency, errors)
    write_whole(path, content)
