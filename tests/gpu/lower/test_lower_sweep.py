"""Every operator over a sample of its parameter space: lowered and evaluated in NumPy against the official runtime."""

from __future__ import annotations

import random

import pytest
from lowered_case import check
from op_cases import CASES, INTEGER_CASES, SPECIAL_VALUES

from litegpu.gpu.lower import supported_ops

PER_OP, PER_OP_FULL = 8, 200
ALL = CASES | INTEGER_CASES


@pytest.mark.parametrize("op", ALL)
def test_sample(op: str) -> None:
    for seed in range(PER_OP):
        check(ALL[op](random.Random(f"{op} {seed}")), seed)


@pytest.mark.parametrize("name", SPECIAL_VALUES)
def test_nan_and_infinity(name: str) -> None:
    check(SPECIAL_VALUES[name](), 0)


@pytest.mark.slow
@pytest.mark.parametrize("op", ALL)
def test_full(op: str) -> None:
    for seed in range(PER_OP, PER_OP_FULL):
        check(ALL[op](random.Random(f"{op} {seed}")), seed)


def test_every_operator_has_cases() -> None:
    """QUANTIZE and DEQUANTIZE are in test_quantization.py, DENSIFY in test_quantizer.py, what keeps values between
    inferences in test_lstm.py, test_random.py and test_rnn.py, what has a body in test_bodies.py, what has
    a size that the data decide in delegates/test_bounded.py."""
    elsewhere = {"DENSIFY", "DEQUANTIZE", "QUANTIZE", "LSTM", "RNN", "SVDF"}
    elsewhere |= {"UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN"}
    elsewhere |= {"RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"}
    elsewhere |= {"BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN"}
    elsewhere |= {"STABLEHLO_SCATTER", "STABLEHLO_REDUCE_WINDOW", "REDUCE_WINDOW", "UNIQUE", "WHERE"}
    assert {e.op.name for e in supported_ops() if not e.op.custom} - set(CASES) == elsewhere
