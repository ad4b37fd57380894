"""Every op on quantized tensors: within one quantum of the official runtime's integer kernels."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import CASES, OpCase
from quantized_cases import KINDS, quantized_case, real_case

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import read_model

PER_OP, PER_OP_FULL = 3, 60

#: Operators without kernels of the type in the official runtime, or without real numbers.
_NO_KERNEL = {"ADD_N", "CEIL", "COS", "FLOOR", "POW", "ROUND", "SIGN", "SIN", "SQUARE"}
_NO_REALS = {"LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "CAST"}
_NO_INT16 = {
    *("ARG_MAX", "ARG_MIN", "DEPTH_TO_SPACE", "ELU", "HARD_SWISH", "L2_NORMALIZATION", "RELU_0_TO_1", "RELU_N1_TO_1"),
    *("SPACE_TO_DEPTH", "SQUARED_DIFFERENCE", "PRELU"),
}
_NO_UINT8 = {
    *("ABS", "BATCH_MATMUL", "ELU", "EXP", "LOG", "NEG", "REDUCE_PROD", "RELU_0_TO_1", "RSQRT", "SELECT", "SQRT"),
    "SQUARED_DIFFERENCE",
}
_COMPARISONS = {"EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"}
#: Where the official kernels look int16 up in coarse tables, multiply again and again, or (NEG of int8) let -128 wrap,
#: the reference is the float op.
_AGAINST_FLOAT = {
    *(("int16", op) for op in ("EXP", "GELU", "LOGISTIC", "LOG", "REDUCE_PROD", "RESIZE_BILINEAR", "RSQRT")),
    *(("int16", "SOFTMAX"), ("int16", "TANH"), ("int8", "NEG")),
}


def _ops(kind: str) -> list[str]:
    missing = {"int8": set(), "int16": _NO_INT16 | _COMPARISONS, "uint8": _NO_UINT8}[kind]
    return [op for op in CASES if op not in _NO_KERNEL | _NO_REALS | missing]


ALL = [(kind, op) for kind in KINDS for op in _ops(kind)]


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_in_numpy(kind: str, op: str) -> None:
    for seed in range(PER_OP):
        case = quantized_case(op, kind, seed)
        if case is not None:
            _compare(kind, op, case, _evaluated(case), seed)


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_on_gpu(kind: str, op: str) -> None:
    _sweep(kind, op, range(PER_OP, PER_OP + 1), half=False)


@pytest.mark.parametrize("op", _ops("int8"))
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
        _compare(kind, op, case, run(gpu, case.inputs), seed)


def _evaluated(case: OpCase) -> list[np.ndarray]:
    graph = read_model(case.content).main
    assert [check_operator(graph, o) for o in graph.operators] == [None] * len(graph.operators), case.name
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    return evaluate_graph(lowered.graph, case.inputs)


def _compare(kind: str, op: str, case: OpCase, got: list[np.ndarray], seed: int) -> None:
    wanted = (
        real_case(case)
        if (kind, op) in _AGAINST_FLOAT
        else run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    )
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        difference = np.abs(a.reshape(b.shape).astype(np.float64) - b.astype(np.float64))
        allowed = 1 if b.dtype in (np.int8, np.uint8, np.int16) else 0
        assert difference.max(initial=0) <= allowed, f"{case.name} (seed {seed}) output {i}"
