"""Tensors of types other than those that the sweeps have: what the official runtime takes, the GPU does, in NumPy."""

from __future__ import annotations

import random

import pytest
from agreement import official, run
from lowered_case import check
from small_models.grow import fits, resolver
from small_models.pieces import OTHERS, retyped

from litegpu.gpu.lower import check_operator
from litegpu.model import TensorType, read_model

#: What is left to the CPU: sums of 64 bits at computed places; of INT16 without quantization, what the CPU takes for
#: real numbers.
LEFT = {"SCATTER_ND", "NOT_EQUAL"}
TRIED, TRIED_FULL = 60, 3000


@pytest.mark.parametrize("first", range(0, TRIED, 10))
def test_sample(first: int) -> None:
    _sweep(range(first * 20, (first + 10) * 20))


@pytest.mark.slow
def test_full() -> None:
    assert _sweep(range(TRIED * 20, TRIED_FULL * 20)) == set(OTHERS)


def _sweep(seeds: range) -> set[TensorType]:
    """The types that there were."""
    found = set()
    for seed in seeds:
        try:
            case = retyped(random.Random(f"types {seed}"), ())
            if case is None:
                continue
            model = read_model(case.content)
            wanted = run(official(case.content, resolver(model)), case.inputs)
        except (RuntimeError, ValueError):
            continue
        (operator,) = model.main.operators
        if check_operator(model.main, operator) is not None:
            assert operator.name in LEFT, case.name
        elif all(fits(a, a) for a in wanted):
            check(case, seed)
            found.add(TensorType[case.name.partition(" ")[0]])
    return found
