"""The official evaluation tools' result file: an EvaluationStageMetrics message of protocol buffers (proto2)."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.tools.protobuf import double, float32, integer, message
from litegpu.tools.statistics import Statistics


def classification_metrics(preprocessing: Statistics, inference: Statistics, accuracies: Sequence[float]) -> bytes:
    """Of the ILSVRC evaluation."""
    top = b"".join(float32(1, value) for value in accuracies)
    return _stage(preprocessing, inference, number=4, metrics=top)


def detection_metrics(
    preprocessing: Statistics, inference: Statistics, precisions: Sequence[tuple[float, float]], overall: float
) -> bytes:
    """Of the COCO evaluation; `precisions` are (threshold of IoU, average precision)."""
    rows = b"".join(message(1, float32(1, threshold) + float32(2, value)) for threshold, value in precisions)
    return _stage(preprocessing, inference, number=7, metrics=rows + float32(2, overall))


def profiler_metrics(
    num_runs: int, reference: Statistics, test: Statistics, errors: Sequence[tuple[float, float, float, float]]
) -> bytes:
    """Of the inference diff; `errors` are, for each output, the (largest, least, mean, standard deviation) of runs."""
    profile = message(1, _latency(reference)) + message(2, _latency(test))
    for largest, least, mean, deviation in errors:
        profile += message(3, float32(1, largest) + float32(2, least) + double(3, mean) + float32(4, deviation))
    return integer(1, num_runs) + message(2, message(5, profile))


def _stage(preprocessing: Statistics, inference: Statistics, number: int, metrics: bytes) -> bytes:
    runs = len(inference.values)
    task = message(1, _latency(preprocessing)) + message(2, _latency(inference))
    task += message(3, integer(1, runs)) + message(4, metrics)
    return integer(1, runs) + message(2, message(number, task))


def _latency(statistics: Statistics) -> bytes:
    values = statistics.values
    if not values:
        return b""
    integers = (values[-1], max(values), min(values), sum(values))
    numbers = b"".join(integer(i + 1, value) for i, value in enumerate(integers))
    return numbers + double(5, statistics.average) + integer(6, statistics.deviation)
