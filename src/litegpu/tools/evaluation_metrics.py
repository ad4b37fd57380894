"""EvaluationStageMetrics: the message that the official evaluation tools write to `output_file_path`."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.errors import OptionError
from litegpu.tools.protobuf import Double, Message, encode, message
from litegpu.tools.statistics import Statistics


def write_stage_metrics(path: str | os.PathLike[str], num_runs: int, process: Message) -> None:
    """The bare binary message; `process` is its ProcessMetrics. Raises OptionError where the file cannot be written."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(encode(message((1, num_runs), (2, process))))
    except OSError as error:
        raise OptionError(f"Cannot write {target}: {error.strerror or error}") from None


def latency_metrics(latency: Statistics) -> Message:
    """LatencyMetrics, in microseconds; without runs empty."""
    values = latency.values
    if not values:
        return message()
    return message(
        (1, values[-1]), (2, max(values)), (3, min(values)), (4, sum(values)), (5, Double(latency.average)),
        (6, latency.deviation),
    )  # fmt: skip
