"""Every op on 8-bit tensors in whole numbers: equal to the official runtime's default on every element."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import OpCase
from quantized_cases import operators, quantized_case

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import read_model

#: What is left to the CPU.
REFUSED = {("int8", "REDUCE_PROD"), ("uint8", "REDUCE_PROD"), ("uint8", "L2_NORMALIZATION")}
ALL = [(kind, op) for kind in ("int8", "uint8") for op in operators(kind) if (kind, op) not in REFUSED]
PER_OP, PER_OP_FULL = 4, 60


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_in_numpy(kind: str, op: str) -> None:
    for seed in range(PER_OP):
        case = quantized_case(op, kind, seed)
        if case is not None:
            graph = read_model(case.content).main
            lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
            _compare(case, evaluate_graph(lowered.graph, case.inputs), seed)


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_on_gpu(kind: str, op: str) -> None:
    _sweep(kind, op, range(PER_OP, PER_OP + 1))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "op"), ALL)
def test_full(kind: str, op: str) -> None:
    _sweep(kind, op, range(PER_OP + 1, PER_OP_FULL))


@pytest.mark.parametrize(("kind", "op"), sorted(REFUSED))
def test_what_is_not_known_is_left_to_the_cpu(kind: str, op: str) -> None:
    case = quantized_case(op, kind, 0) if op in operators(kind) else None
    if case is None:
        pytest.skip("the runtime has none")
    graph = read_model(case.content).main
    reason = check_operator(graph, graph.operators[0], integer=True)
    assert reason is not None and "arithmetic='integer'" in reason
    assert check_operator(graph, graph.operators[0]) is None


def _sweep(kind: str, op: str, seeds: range) -> None:
    require_gpu()
    for seed in seeds:
        case = quantized_case(op, kind, seed)
        if case is None:
            continue
        gpu = on_gpu(case.content, arithmetic="integer")
        assert gpu.delegation_report().fully_delegated, case.name
        _compare(case, run(gpu, case.inputs), seed)


def _compare(case: OpCase, got: list[np.ndarray], seed: int) -> None:
    wanted = run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_array_equal(a.reshape(b.shape), b, err_msg=f"{case.name} (seed {seed}) output {i}")
