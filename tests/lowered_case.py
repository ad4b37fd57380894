"""How tests compare a lowered operator, evaluated in NumPy, with the official CPU runtime."""

from __future__ import annotations

import numpy as np
from agreement import FLOAT32, assert_agrees, official, run
from op_cases import OpCase

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph.parts import as_typed
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.reader import read_model


def check(case: OpCase, seed: int) -> None:
    graph = read_model(case.content).main
    what = f"{case.name} (seed {seed})"
    assert [check_operator(graph, o) for o in graph.operators] == [None] * len(graph.operators), what
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    assert [t for t, _ in lowered.inputs] == list(graph.inputs), what
    assert [t for t, _ in lowered.outputs] == list(graph.outputs), what
    wanted = run(official(case.content), case.inputs)
    for got, want in zip(evaluate_graph(lowered.graph, case.inputs), wanted, strict=True):
        tolerance = 2.0**-11 if want.dtype == np.float16 else FLOAT32
        assert_agrees(as_typed(got, want.shape, want.dtype), want, tolerance, what)
