"""The ways to give a LoadedModel its inputs, and what is wrong with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import TensorError
from litegpu.arguments import by_name
from litegpu.model.builder import ModelBuilder


def adder(count: int, shape: tuple[int, ...] = (1, 3)) -> litegpu.LoadedModel:
    b = ModelBuilder()
    inputs = [b.input(name, shape) for name in "abcd"[:count]]
    total = inputs[0]
    for one in inputs[1:] or inputs:
        total = b.op("ADD", [total, one], shape)
    b.output(total)
    return litegpu.load(b.build(), "cpu")


X = np.array([[1, -2, 3]], np.float32)


@pytest.mark.parametrize(
    "given", [{"a": X}, [X], (X,), X, X.tolist(), [X[0]], [X.tolist()], [[[1, -2, 3]]], (X.tolist(),)]
)
def test_one_input(given: Any) -> None:
    """A list is the value if it is as deep as the input, and a list of the inputs if one deeper."""
    with adder(1) as model:
        np.testing.assert_array_equal(model(given), 2 * X)
        np.testing.assert_array_equal(next(model.stream([given])), 2 * X)


class Exchanged:
    """An array in host memory that says so by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_dlpack_in_host_memory() -> None:
    with adder(1) as model, model.batcher(2) as batcher:
        for call in (model, batcher, lambda x: next(model.stream([x]))):
            np.testing.assert_array_equal(call(Exchanged(X)), 2 * X)
            with pytest.raises(TensorError):
                call(Exchanged(X.astype(np.complex64)))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_types_of_libraries(name: str) -> None:
    """Those that JAX brings: float32 holds all of their numbers."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with adder(1) as model:
        np.testing.assert_array_equal(model(X.astype(getattr(ml_dtypes, name))), 2 * X)


def test_a_list_of_rows_is_a_batch() -> None:
    with adder(1) as model:
        np.testing.assert_array_equal(model([X[0], 2 * X[0]]), [2 * X[0], 4 * X[0]])


@pytest.mark.parametrize("given", [{"b": 10 * X, "a": X}, [X, 10 * X], (X, 10 * X), [X.tolist(), 10 * X]])
def test_several_inputs(given: Any) -> None:
    with adder(2) as model:
        np.testing.assert_array_equal(model(given), 11 * X)
        np.testing.assert_array_equal(next(model.stream([given])), 11 * X)


@pytest.mark.parametrize(
    "count, args, kwargs, text",
    [
        (1, ([X, X],), {}, "list of 2 inputs was given, but the model has 1: a"),
        (1, ((X, X, X),), {}, "tuple of 3 inputs"),
        (1, ({"z": X},), {}, "no input 'z'; the model has 1: a"),
        (1, ({3: X},), {}, "no input 3"),
        (1, ({},), {}, "'a' was not given"),
        (1, ([],), {}, r"'a' has shape \[1, 3\], but the value has \[0\]"),
        (1, ([[1, 2], [3]],), {}, "'a' cannot be made an array: ValueError"),
        (1, (None,), {}, "'a' is float32, but the value is object"),
        (1, ([[[X]]],), {}, "'a' has shape"),
        (1, (np.full((1, 3), 0.1),), {}, r"is float32; converting the float64 .* with .astype\(float32\)$"),
        (2, ([X],), {}, "list of 1 inputs was given, but the model has 2: a, b"),
        (2, ({"a": X},), {}, "'b' was not given"),
        (2, ({"a": X},), {"b": X}, "'a' is float32"),
        (2, ([X, X], X), {}, "'a' has shape"),
    ],
)
def test_mistakes(count: int, args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    with adder(count) as model, pytest.raises(TensorError, match=text):
        model(*args, **kwargs)


def test_an_input_of_rank_zero() -> None:
    assert by_name(["a"], [0], (5.0,), {}) == {"a": 5.0}
    assert by_name(["a"], [0], ([5.0],), {}) == {"a": 5.0}


def test_what_cannot_be_an_array_is_named() -> None:
    class Broken:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("nothing here")

    with adder(1) as model, pytest.raises(TensorError, match="'a' cannot be made an array: ZeroDivisionError: nothing"):
        model(Broken())
