"""The result as the official tool's binary message."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.errors import OptionError
from litegpu.tools.evaluate.stage_metrics import profiler_metrics
from litegpu.tools.inference_diff.compare import DiffReport


def write_metrics(report: DiffReport, path: str | os.PathLike[str]) -> None:
    """EvaluationStageMetrics with InferenceProfilerMetrics. Raises OptionError where it cannot be written."""
    errors = [(max(o.errors), min(o.errors), o.avg_error, o.std_dev) for o in report.outputs]
    content = profiler_metrics(report.num_runs, report.reference_latency, report.test_latency, errors)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
    except OSError as error:
        raise OptionError(f"Cannot write {path}: {error.strerror or error}") from None
