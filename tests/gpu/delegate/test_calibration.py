"""The ranges of a model's tensors on calibration inputs are those of all samples together."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.errors import OptionError
from litegpu.gpu.delegate.calibration import tensor_ranges
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 2, 3)
X = np.ones(SHAPE, np.float32)


def test_ranges() -> None:
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    difference = b.op("SUB", [x, y], SHAPE)
    tripled = b.op("MUL", [difference, b.constant(np.full(1, 3.0, np.float32))], SHAPE)
    b.output(tripled)
    model = read_model(b.build())
    rng = np.random.default_rng(0)
    samples = [[rng.uniform(-2, 5, SHAPE).astype(np.float32) * k for _ in range(2)] for k in (1, 3, 2)]
    found = tensor_ranges(model, samples)
    want = {
        x: [s[0] for s in samples], y: [s[1] for s in samples],
        difference: [s[0] - s[1] for s in samples], tripled: [3 * (s[0] - s[1]) for s in samples],
    }  # fmt: skip
    assert found.keys() == want.keys()
    for tensor, arrays in want.items():
        np.testing.assert_allclose(found[tensor], (np.min(arrays), np.max(arrays)), rtol=1e-6)


def test_what_is_not_finite_does_not_count() -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    b.output(b.op("ABS", [x], SHAPE))
    sample = np.array([[[1, np.nan, -4], [np.inf, -np.inf, 2]]], np.float32)
    assert tensor_ranges(read_model(b.build()), [[sample]]) == {0: (-4.0, 2.0), 1: (1.0, 4.0)}


@pytest.mark.parametrize(
    "sample, words",
    [
        ([X], "sample 1 has 1 arrays; the model has 2 inputs"),
        ([X, X, X], "sample 1 has 3 arrays; the model has 2 inputs"),
        ([X, np.ones((1, 2, 5), np.float32)], "sample 1 does not fit the model"),
        ([X, X.astype(np.float64)], "sample 1 does not fit the model"),
    ],
)
def test_samples_that_do_not_fit(sample: list[np.ndarray], words: str) -> None:
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    b.output(b.op("FLOOR_DIV", [x, y], SHAPE))
    with pytest.raises(OptionError, match=words):
        tensor_ranges(read_model(b.build()), [[X, X], sample])
