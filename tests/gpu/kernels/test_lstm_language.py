"""The language's kernel of an LSTM in its interpreter, which tells of missing barriers."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.backends.cuda.kernels.test_lstm import network
from gpu.kernels.run_launch import assert_close, lay_out, run_node

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lang.features import Features


@pytest.mark.parametrize("threads", [4, 8, 256])
@pytest.mark.parametrize("units", [3, 8])
@pytest.mark.parametrize("time_major", [False, True])
def test_steps_are_in_order(threads: int, units: int, time_major: bool) -> None:
    """With fewer threads than units, as many, and several for each unit; sizes that are no multiples of four."""
    graph, data = network(units, 3, 2, time_major, clip=0.5)
    arrays = dict(zip(graph.inputs, data, strict=True))
    found = run_node(graph, lay_out(graph), arrays, Features(max_threads=threads), interpret=True)
    assert_close(found, evaluate_graph(graph, data)[0].astype(np.float32), 1e-5)
