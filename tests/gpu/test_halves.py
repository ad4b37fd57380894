"""CAST to FLOAT16, to the bit: ties, the smallest numbers, the largest, and what is none."""

from __future__ import annotations

import numpy as np
from agreement import official, on_gpu, require_gpu, run

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import lower_partition
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

_TIES = [1 + n * 2.0**-11 for n in range(8)] + [n * 2.0**-25 for n in range(8)] + [65504, 65519, 65520, 1e30, np.inf]
NUMBERS = np.array([*_TIES, *(-n for n in _TIES), np.nan, 1e-40], np.float32)


def rounded() -> bytes:
    """There and back, so that what is between is no output."""
    b, shape = ModelBuilder(), NUMBERS.shape
    half = b.op("CAST", [b.input("x", shape)], shape, dict(in_data_type=0, out_data_type=1), type=TensorType.FLOAT16)
    b.output(b.op("CAST", [half], shape, dict(in_data_type=1, out_data_type=0)))
    return b.build()


def test_in_numpy() -> None:
    graph = read_model(rounded()).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    (got,) = evaluate_graph(lowered.graph, [NUMBERS])
    np.testing.assert_array_equal(got.reshape(-1), run(official(rounded()), [NUMBERS])[0])


def test_on_the_gpu() -> None:
    require_gpu()
    interpreter = on_gpu(rounded(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated
    np.testing.assert_array_equal(run(interpreter, [NUMBERS])[0], run(official(rounded()), [NUMBERS])[0])
