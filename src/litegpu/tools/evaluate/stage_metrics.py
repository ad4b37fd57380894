"""The official evaluation tools' result file: an EvaluationStageMetrics message of protocol buffers (proto2)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from litegpu.tools.statistics import Statistics


def classification_metrics(preprocessing: Statistics, inference: Statistics, accuracies: Sequence[float]) -> bytes:
    """Of the ILSVRC evaluation."""
    top = b"".join(_float(1, value) for value in accuracies)
    return _stage(preprocessing, inference, number=4, metrics=top)


def detection_metrics(
    preprocessing: Statistics, inference: Statistics, precisions: Sequence[tuple[float, float]], overall: float
) -> bytes:
    """Of the COCO evaluation; `precisions` are (threshold of IoU, average precision)."""
    rows = b"".join(_message(1, _float(1, threshold) + _float(2, value)) for threshold, value in precisions)
    return _stage(preprocessing, inference, number=7, metrics=rows + _float(2, overall))


def profiler_metrics(
    num_runs: int, reference: Statistics, test: Statistics, errors: Sequence[tuple[float, float, float, float]]
) -> bytes:
    """Of the inference diff; `errors` are, for each output, the (largest, least, mean, standard deviation) of runs."""
    profile = _message(1, _latency(reference)) + _message(2, _latency(test))
    for largest, least, mean, deviation in errors:
        profile += _message(3, _float(1, largest) + _float(2, least) + _double(3, mean) + _float(4, deviation))
    return _integer(1, num_runs) + _message(2, _message(5, profile))


def _stage(preprocessing: Statistics, inference: Statistics, number: int, metrics: bytes) -> bytes:
    runs = len(inference.values)
    task = _message(1, _latency(preprocessing)) + _message(2, _latency(inference))
    task += _message(3, _integer(1, runs)) + _message(4, metrics)
    return _integer(1, runs) + _message(2, _message(number, task))


def _latency(statistics: Statistics) -> bytes:
    values = statistics.values
    if not values:
        return b""
    integers = (values[-1], max(values), min(values), sum(values))
    numbers = b"".join(_integer(i + 1, value) for i, value in enumerate(integers))
    return numbers + _double(5, statistics.average) + _integer(6, statistics.deviation)


def _integer(field: int, value: int) -> bytes:
    return _tag(field, 0) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _tag(field, 5) + struct.pack("<f", value)


def _double(field: int, value: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", value)


def _message(field: int, content: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(content)) + content


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
