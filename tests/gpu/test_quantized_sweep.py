"""Every op on quantized tensors: what the official runtime's integer kernels give."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import OpCase
from quantized_cases import ALL, WEIGHTS, compare, operators, quantized_case

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import read_model

PER_OP, PER_OP_FULL = 3, 60


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_in_numpy(kind: str, op: str) -> None:
    for seed in range(PER_OP):
        case = quantized_case(op, kind, seed)
        if case is not None:
            compare(kind, op, case, _evaluated(case), seed)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("op", WEIGHTS)
def test_without_xnnpack(op: str, kind: str) -> None:
    """Convolutions as the runtime's reference kernels round them."""
    require_gpu()
    for seed in range(4):
        case = quantized_case(op, kind, seed)
        if case is None:
            continue
        wanted = run(official(case.content, OpResolverType.BUILTIN_REF), case.inputs)
        with on_gpu(case.content, resolver=OpResolverType.BUILTIN_REF) as gpu:
            assert gpu.delegation_report().fully_delegated, case.name
            for got, want in zip(run(gpu, case.inputs), wanted, strict=True):
                np.testing.assert_array_equal(got, want, err_msg=f"{case.name} (seed {seed})")


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_on_gpu(kind: str, op: str) -> None:
    _sweep(kind, op, range(PER_OP, PER_OP + 1), half=False)


@pytest.mark.parametrize("op", operators("int8"))
def test_sample_on_gpu_in_float16(op: str) -> None:
    _sweep("int8", op, range(PER_OP + 1, PER_OP + 2), half=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "op"), ALL)
def test_full(kind: str, op: str) -> None:
    _sweep(kind, op, range(PER_OP + 2, PER_OP_FULL), half=False)


def _sweep(kind: str, op: str, seeds: range, half: bool) -> None:
    require_gpu()
    for seed in seeds:
        case = quantized_case(op, kind, seed)
        if case is None:
            continue
        gpu = on_gpu(case.content, precision_loss_allowed=half)
        assert gpu.delegation_report().fully_delegated, case.name
        compare(kind, op, case, run(gpu, case.inputs), seed, half=half)


def _evaluated(case: OpCase) -> list[np.ndarray]:
    graph = read_model(case.content).main
    assert [check_operator(graph, o) for o in graph.operators] == [None] * len(graph.operators), case.name
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    return evaluate_graph(lowered.graph, case.inputs)
