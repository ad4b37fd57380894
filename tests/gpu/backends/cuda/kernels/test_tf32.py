"""Floats as two numbers of TF32, in NumPy as the kernels have them."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels.convolution import product_of
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.tf32 import rests
from litegpu.gpu.graph import Conv2D, DType
from litegpu.gpu.view import padded


def cut(x: np.ndarray) -> np.ndarray:
    """What tensor cores take of floats."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def test_a_float_and_its_rest_are_it_but_for_what_24_digits_cannot_tell() -> None:
    """rests() rounds: no error is above half of the last of 11 digits of what is left, which is 2^-10 of a number, nor
    do errors of one sign add up as those of what is cut off do, to 1e-7 of a number."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(100_000) * 2.0 ** rng.integers(-40, 40, 100_000)).astype(np.float32)
    error = cut(x).astype(np.float64) + cut(rests(x)) - x
    assert (np.abs(error) <= 2.0**-22 * np.abs(x)).all()
    assert abs((error / x).mean()) < 5e-8


def test_rests_of_numbers_that_tf32_has_are_not_zero() -> None:
    x = np.array([1.0, -1.5, 2.0**-60, -(2.0**60)], np.float32)
    left = cut(rests(x))
    assert (np.sign(left) == np.sign(x)).all() and (np.abs(left) <= 2.0**-59 * np.abs(x)).all()
    assert rests(np.zeros(1, np.float32)).view(np.uint32) & np.uint32(0xFFFFE000) == 0


def test_rests_are_for_weights_that_are_numbers() -> None:
    for weight, expected in ((1.0, True), (np.inf, False), (np.nan, False)):
        weights = np.full((4, 1, 1, 8), weight, np.float32)
        layer = Layer(Conv2D(), padded(0, (1, 4, 4, 8), DType.FLOAT32), weights, (1, 4, 4, 4), half=False)
        assert product_of(layer, 90).tf32 is expected
    assert not product_of(Layer(Conv2D(), layer.source, np.ones_like(weights), layer.shape, half=True), 90).tf32
