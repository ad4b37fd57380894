"""Tensors of types other than those that the sweeps have: what the official runtime takes, the GPU does, in NumPy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from agreement import official, run
from lowered_case import check
from small_models.grow import fits, resolver
from small_models.pieces import OTHERS, retyped

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import TensorType, read_model
from litegpu.model.writer import ModelBuilder

#: What is left to the CPU: of INT16 without quantization, what the CPU takes for real numbers.
LEFT = {"NOT_EQUAL"}
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


@pytest.mark.parametrize("type_", ["int8", "int16", "int32", "int64"])
def test_sizes_may_have_few_bits(type_: str) -> None:
    b = ModelBuilder()
    paddings = b.constant(np.array([[1, 0], [0, 2]], type_))
    b.output(b.op("PAD", [b.input("x", (2, 3)), paddings], (3, 5)))
    content, x = b.build(), np.arange(6, dtype=np.float32).reshape(2, 3)
    main = read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    (found,) = evaluate_graph(lowered.graph, [x])
    np.testing.assert_array_equal(found.reshape(3, 5), run(official(content), [x])[0])
