"""Every operator over a sample of its parameter space: lowered and evaluated in NumPy against the official runtime."""

from __future__ import annotations

import random

import pytest
from agreement import FLOAT32, assert_agrees, official, run
from op_cases import CASES, SPECIAL_VALUES, OpCase

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition, supported_ops
from litegpu.model.reader import read_model

PER_OP, PER_OP_FULL = 8, 200


@pytest.mark.parametrize("op", CASES)
def test_sample(op: str) -> None:
    for seed in range(PER_OP):
        check(CASES[op](random.Random(f"{op} {seed}")), seed)


@pytest.mark.parametrize("name", SPECIAL_VALUES)
def test_nan_and_infinity(name: str) -> None:
    check(SPECIAL_VALUES[name](), 0)


@pytest.mark.slow
@pytest.mark.parametrize("op", CASES)
def test_full(op: str) -> None:
    for seed in range(PER_OP, PER_OP_FULL):
        check(CASES[op](random.Random(f"{op} {seed}")), seed)


def test_every_operator_has_cases() -> None:
    """QUANTIZE and DEQUANTIZE are in test_quantization.py, DENSIFY in test_quantizer.py, what keeps values between
    inferences in test_lstm.py."""
    elsewhere = {"DENSIFY", "DEQUANTIZE", "QUANTIZE", "LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
    assert {e.op.name for e in supported_ops() if not e.op.custom} - set(CASES) == elsewhere


def check(case: OpCase, seed: int) -> None:
    graph = read_model(case.content).main
    what = f"{case.name} (seed {seed})"
    assert [check_operator(graph, o) for o in graph.operators] == [None] * len(graph.operators), what
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    assert [t for t, _ in lowered.inputs] == list(graph.inputs), what
    assert [t for t, _ in lowered.outputs] == list(graph.outputs), what
    wanted = run(official(case.content), case.inputs)
    for got, want in zip(evaluate_graph(lowered.graph, case.inputs), wanted, strict=True):
        assert_agrees(got.reshape(want.shape).astype(want.dtype), want, FLOAT32, what)
