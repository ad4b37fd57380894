"""Outputs that are asked for by name: the others are left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.model.builder import ModelBuilder

DEVICES = ["cpu", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def network(input_name: str = "x", signature: bool = False) -> bytes:
    """x -> x + 1, x + 2, x + 3."""
    builder = ModelBuilder()
    x = builder.input(input_name, (1, 4))
    found = {}
    for i in range(1, 4):
        step = builder.constant(np.full(1, i, np.float32))
        y = builder.op("ADD", [x, step], (1, 4), {"fused_activation_function": "NONE"})
        builder.output(y)
        found[f"plus_{i}"] = y
    if signature:
        builder.signature("serving_default", {input_name: x}, found)
    return builder.build()


X = np.arange(4, dtype=np.float32).reshape(1, 4)


def opened(device: str, content: bytes) -> Any:
    try:
        return litegpu.load(content, device)
    except litegpu.DeviceError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("device", DEVICES)
def test_a_call_for_some(device: str) -> None:
    with opened(device, network()) as model:
        first, second, third = model.outputs
        found = model(X, outputs=[third, first])
        assert list(found) == [third, first]
        np.testing.assert_array_equal(found[third], X + 3)
        np.testing.assert_array_equal(found[first], X + 1)
        np.testing.assert_array_equal(model(X, outputs=second), X + 2)
        assert model(X, outputs=[]) == {}
        assert list(model(X)) == [first, second, third]
        streamed = list(model.stream([X, X + 1], outputs=second))
        np.testing.assert_array_equal(streamed, [X + 2, X + 3])


@pytest.mark.parametrize("device", DEVICES)
def test_unknown_names(device: str) -> None:
    with opened(device, network()) as model:
        known = ", ".join(model.outputs)
        for call in (lambda: model(X, outputs=["scores"]), lambda: model(X, outputs="scores"),
                     lambda: model.stream([X], outputs=["scores"])):  # fmt: skip
            with pytest.raises(litegpu.TensorError, match="There is no output 'scores'; the model has") as caught:
                call()
            assert known in str(caught.value)


def test_none_means_all() -> None:
    with litegpu.load(network(), "cpu") as model:
        assert len(model(X, outputs=None)) == len(next(model.stream([X], outputs=None))) == 3


@pytest.mark.parametrize("outputs", [5, b"plus_1", [None], [0], 1.5])
def test_what_is_no_name(outputs: Any) -> None:
    with litegpu.load(network(signature=True), "cpu") as model:
        runner = model.interpreter.get_signature_runner()
        for call in (
            lambda: model(X, outputs=outputs), lambda: model.stream([X], outputs=outputs),
            lambda: runner(x=X, outputs=outputs),
        ):  # fmt: skip
            with pytest.raises(litegpu.TensorError, match=r"outputs is .*; it must be a name|There is no output"):
                call()


def test_an_input_of_that_name_is_an_input() -> None:
    with litegpu.load(network("outputs"), "cpu") as model:
        assert len(model(outputs=X)) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_signatures(device: str) -> None:
    with opened(device, network(signature=True)) as model:
        runner = model.interpreter.get_signature_runner()
        found = runner(x=X, outputs=["plus_3"])
        assert list(found) == ["plus_3"]
        np.testing.assert_array_equal(found["plus_3"], X + 3)
        assert set(runner(x=X)) == {"plus_1", "plus_2", "plus_3"}
        with pytest.raises(litegpu.TensorError, match="There is no output 'scores'; the model has plus_1"):
            runner(x=X, outputs=["scores"])
        assert list(runner(x=X, outputs=iter(["plus_3"]))) == ["plus_3"]
        assert len(runner(x=X, outputs=None)) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_results_of_several_calls_are_apart(device: str) -> None:
    """Also those that the interpreter gives, which is the same one."""
    with opened(device, network()) as model:
        kept = [model(X + i) for i in range(5)]
        index = model.interpreter.get_output_details()[0]["index"]
        last = model.interpreter.get_tensor(index)
        np.testing.assert_array_equal(last, X + 5)
        last[...] = 0
        np.testing.assert_array_equal(model.interpreter.get_tensor(index), X + 5)
        for i, found in enumerate(kept):
            np.testing.assert_array_equal(list(found.values()), [X + i + 1, X + i + 2, X + i + 3])
