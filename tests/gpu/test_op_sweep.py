"""Every op over a sample of its parameter space: the GPU delegate against the official CPU runtime."""

from __future__ import annotations

import random

import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, require_gpu, run
from op_cases import CASES, INTEGER_CASES, SPECIAL_VALUES, OpCase

PER_OP, PER_OP_FULL = 4, 60
ALL = CASES | INTEGER_CASES


@pytest.mark.parametrize("op", ALL)
def test_sample(op: str) -> None:
    _sweep(op, range(PER_OP), half=False)


@pytest.mark.parametrize("op", ALL)
def test_sample_float16(op: str) -> None:
    _sweep(op, range(PER_OP, PER_OP + 1), half=True)


@pytest.mark.parametrize("name", SPECIAL_VALUES)
def test_nan_and_infinity(name: str) -> None:
    require_gpu()
    _check(SPECIAL_VALUES[name](), half=False)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("op", ALL)
def test_full(op: str, half: bool) -> None:
    _sweep(op, range(PER_OP + 1, PER_OP_FULL), half)


def _sweep(op: str, seeds: range, half: bool) -> None:
    require_gpu()
    for seed in seeds:
        _check(ALL[op](random.Random(f"{op} {seed}")), half, f" (seed {seed})")


def _check(case: OpCase, half: bool, seed: str = "") -> None:
    gpu = on_gpu(case.content, precision_loss_allowed=half, max_delegated_partitions=0)
    report = gpu.delegation_report()
    assert report.fully_delegated, f"{case.name}: {report.summary()}"
    wanted = run(official(case.content), case.inputs)
    for i, (got, want) in enumerate(zip(run(gpu, case.inputs), wanted, strict=True)):
        assert_agrees(got, want, FLOAT16 if half else FLOAT32, f"{case.name}{seed} output {i}")
