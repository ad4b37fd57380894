"""load(): devices, calling with arrays, conversions, resizing, names."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.errors import DeviceError, InvokeError, OptionError, TensorError
from litegpu.gpu.backends.cuda.opening import available
from litegpu.gpu.delegate import delegate as gpu
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

X = np.array([[1, -2, 3]], np.float32)


def one_output() -> bytes:
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    b.output(b.op("ADD", [x, b.constant(np.ones(3, np.float32))], (1, 3)))
    return b.build()


def two_outputs(signature: bool) -> bytes:
    b = ModelBuilder()
    x, y = b.input("left:0", (1, 3)), b.input("right:0", (1, 3))
    s = b.op("ADD", [x, y], (1, 3), name="out")
    p = b.op("MUL", [x, y], (1, 3), name="out")
    b.output(s, p)
    if signature:
        b.signature("serve", {"a": x, "b": y}, {"sum": s, "product": p})
    return b.build()


def test_cpu(tmp_path: Path) -> None:
    file = tmp_path / "m.tflite"
    file.write_bytes(one_output())
    for source in (file, str(file), one_output()):
        with litegpu.load(source, "cpu", num_threads=2) as model:
            assert model.device == "cpu" and model.report.delegated == 0
            np.testing.assert_array_equal(model(X), X + 1)
            assert list(model.inputs) == ["x"] and model.inputs["x"]["shape"].tolist() == [1, 3]
        with pytest.raises(InvokeError, match="closed"):
            model(X)


def dense() -> bytes:
    """Two layers with a batch that is open, as converters write it."""
    b = ModelBuilder()
    x = b.input("x", (1, 6, 6, 2), shape_signature=(-1, 6, 6, 2))
    stride = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    weights, bias = np.arange(18, dtype=np.float32).reshape(1, 3, 3, 2) / 9, np.ones(2, np.float32)
    y = b.op("DEPTHWISE_CONV_2D", [x, b.constant(weights), b.constant(bias)], (1, 6, 6, 2), stride)
    window = {**stride, "stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    b.output(b.op("AVERAGE_POOL_2D", [y], (1, 3, 3, 2), window))
    return b.build()


def test_an_input_that_is_an_output_too() -> None:
    """The GPU does not give it: the results of what it computes must not stand in its place."""
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    y = b.op("TANH", [x], (1, 3), name="y")
    b.output(x, y, y)
    with litegpu.load(b.build(), "reference") as model:
        assert model.report.fully_delegated
        for given in (X, 2 * X):
            for found in (model(given), *model.stream([given, given])):
                np.testing.assert_array_equal(found["x"], given)
                np.testing.assert_allclose(found["y"], np.tanh(given), rtol=1e-6)
                np.testing.assert_array_equal(found["y"], found["y:1"])


@pytest.mark.parametrize("device", ["cpu", "reference", "webgpu"])
def test_an_empty_batch_gives_an_empty_result_and_leaves_the_model_whole(device: str) -> None:
    """XNNPACK, resized to nothing, gives sizes from memory that nobody wrote, and soon ends the process."""
    x = np.arange(72, dtype=np.float32).reshape(1, 6, 6, 2)
    with litegpu.load(dense(), device, fallback="silent") as model:
        expected = model(x)
        for _ in range(4):
            assert model(x[:0]).shape == (0, 3, 3, 2)
            np.testing.assert_array_equal(model(x), expected)
            interpreter = model.interpreter
            interpreter.resize_tensor_input(0, (0, 6, 6, 2))
            interpreter.allocate_tensors()
            interpreter.invoke()
            assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).shape == (0, 3, 3, 2)
            interpreter.resize_tensor_input(0, (1, 6, 6, 2))
            interpreter.allocate_tensors()
            np.testing.assert_array_equal(model(x), expected)


def test_representations_in_every_state() -> None:
    assert repr(litegpu.LoadedModel.__new__(litegpu.LoadedModel)) == "<LoadedModel, not opened>"
    assert repr(litegpu.GpuDelegate.__new__(litegpu.GpuDelegate)) == "<GpuDelegate, not opened>"
    model = litegpu.load(one_output(), "cpu")
    assert repr(model).startswith("<LoadedModel on cpu: ")
    model.close()
    assert repr(model).startswith("<LoadedModel on cpu, closed: ")


def test_models_are_not_copied_and_delegates_are() -> None:
    """Two models over one interpreter would close it under each other's hands."""
    with litegpu.load(one_output(), "cpu") as model:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=r"LoadedModel: load\(\) the model again"):
                attempt(model)

    class Named(litegpu.GpuDelegate):
        def __init__(self, name: str) -> None:
            super().__init__(precision="float16")
            self.called = name

    named = copy.deepcopy(Named("mine"))
    assert type(named) is Named and (named.called, named.options.precision) == ("mine", "float16")
    delegate = litegpu.GpuDelegate(precision="float16", max_delegated_partitions=3)
    for other in (copy.copy(delegate), copy.deepcopy(delegate), pickle.loads(pickle.dumps(delegate))):
        assert other is not delegate and other.options == delegate.options and other.max_delegated_partitions == 3


def test_masked_values_are_refused() -> None:
    with litegpu.load(one_output(), "cpu") as model:
        np.testing.assert_array_equal(model(np.ma.array(X, mask=False)), X + 1)
        with pytest.raises(TensorError, match="'x' has masked values"):
            model(np.ma.array(X, mask=[[False, True, False]]))


def test_several_outputs_come_by_name() -> None:
    model = litegpu.load(two_outputs(signature=True), "cpu")
    for found in (model(X, 2 * X), model(a=X, b=2 * X), model(X, b=2 * X), model(b=2 * X, a=X)):
        assert list(found) == ["sum", "product"]
        np.testing.assert_array_equal(found["sum"], 3 * X)
        np.testing.assert_array_equal(found["product"], 2 * X * X)
    model = litegpu.load(two_outputs(signature=False), "cpu")
    found = model(**{"left:0": X, "right:0": X})
    assert list(found) == ["out", "out:1"]
    np.testing.assert_array_equal(found["out:1"], X * X)


def several_signatures() -> bytes:
    """Of the main subgraph "double" and "same", with other names; of further ones "negate", and "clip", which calls."""
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    y = b.op("ADD", [x, x], (1, 3))
    b.output(y)
    b.signature("double", {"in": x}, {"out": y})
    b.signature("same", {"given": x}, {"twice": y})
    negate = b.subgraph("negate")
    n = negate.input("n", (1, 3))
    m = negate.op("NEG", [n], (1, 3))
    negate.output(m)
    b.signature("negate", {"value": n}, {"negative": m}, negate)
    clip = b.subgraph("clip")
    c = clip.input("c", (1, 3))
    condition = clip.input("condition", (), TensorType.BOOL)
    options = {"then_subgraph_index": 0, "else_subgraph_index": negate.index}
    (z,) = clip.op_multi("IF", [condition, c], [((1, 3), TensorType.FLOAT32)], options)
    clip.output(z)
    b.signature("clip", {"value": c, "double": condition}, {"result": z}, clip)
    return b.build()


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_signature_by_its_key(device: str) -> None:
    expected = {"double": 2 * X, "same": 2 * X, "negate": -X}
    for key, name in (("double", "in"), ("same", "given"), ("negate", "value")):
        with litegpu.load(several_signatures(), device, signature=key) as model:
            assert list(model.inputs) == [name]
            np.testing.assert_array_equal(model(**{name: X}), expected[key])
            many = np.repeat(X, 4, 0)
            np.testing.assert_array_equal(model(many), np.repeat(expected[key], 4, 0))
            assert model.report.fully_delegated == (device != "cpu")
    with litegpu.load(several_signatures(), device, signature="clip", fallback="silent") as model:
        for double, result in ((True, 2 * X), (False, -X)):
            np.testing.assert_array_equal(model(value=X, double=double), result)
    with litegpu.load(several_signatures(), device) as model:
        assert list(model.inputs) == ["x"], "without a key the names are the tensors'"


def test_an_input_that_a_signature_hands_out_keeps_its_name() -> None:
    b = ModelBuilder()
    x = b.input("tensor", (2,))
    y = b.op("NEG", [x], (2,))
    b.output(x, y)
    b.signature("both", {"given": x}, {"same": x, "made": y})
    with litegpu.load(b.build(), "cpu") as model:
        assert list(model.inputs) == ["given"]
        assert list(model.outputs) == ["same", "made"]
        np.testing.assert_array_equal(model(given=np.ones(2, np.float32))["made"], [-1, -1])


def test_a_signature_that_there_is_not() -> None:
    with pytest.raises(TensorError, match="no signature 'serve'; it has 'double', 'same', 'negate', 'clip'"):
        litegpu.load(several_signatures(), "cpu", signature="serve")
    with pytest.raises(TensorError, match="it has none"):
        litegpu.load(one_output(), "cpu", signature="serve")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_how_long_the_last_inference_took(device: str) -> None:
    with litegpu.load(several_signatures(), device, signature="double") as model:
        interpreter = model.interpreter
        assert model.last_inference_duration_ns is None and interpreter.last_inference_duration_ns is None
        begin = time.perf_counter_ns()
        model(X)
        whole = time.perf_counter_ns() - begin
        took = model.last_inference_duration_ns
        assert took is not None and 0 < took < whole
        for run in (
            interpreter.invoke,
            lambda: interpreter.invoke_async().result(),
            lambda: interpreter.get_signature_runner("negate")(value=X),
            lambda: interpreter.get_signature_runner("double")(**{"in": X}),
        ):
            interpreter._duration = None
            run()
            assert interpreter.last_inference_duration_ns


def test_wrong_arguments_are_named() -> None:
    model = litegpu.load(two_outputs(signature=True), "cpu")
    for arguments, keywords, text in [
        ((X,), {}, "'b' was not given"),
        ((X, X, X), {}, "3 inputs were given, but the model has 2: a, b"),
        ((X,), {"c": X}, "no input 'c'"),
        ((X, X), {"a": X}, "'a' was given twice"),
        ((X, X[0]), {}, r"'b' has shape \[1, 3\], but the value has \[3\]"),
        ((X, X[:, :2]), {}, "Only the first dimension"),
        ((X, "text"), {}, "'b' is float32"),
        ((X, X + 1j), {}, "'b' is float32, but the value is complex64"),
        ((X, X.astype(np.float64) / 3), {}, r"\.astype\(float32\)"),
    ]:
        with pytest.raises(TensorError, match=text):
            model(*arguments, **keywords)
    np.testing.assert_array_equal(model(X, X)["sum"], 2 * X)


def test_conversions_that_lose_nothing() -> None:
    model = litegpu.load(one_output(), "cpu")
    for value in (
        X.tolist(),
        [[1, -2, 3]],
        X.astype(np.float64),
        X.astype(np.int64),
        X.astype(np.float16),
        X.astype(">f4"),
    ):
        np.testing.assert_array_equal(model(value), X + 1)
    np.testing.assert_array_equal(model([[0.1, np.nan, np.inf]]), np.array([[0.1, np.nan, np.inf]], np.float32) + 1)
    b = ModelBuilder()
    b.output(b.op("RESHAPE", [b.input("x", (1, 2), TensorType.UINT8)], (2,), {"new_shape": [2]}))
    model = litegpu.load(b.build(), "cpu")
    np.testing.assert_array_equal(model([[0, 255]]), [0, 255])
    for wrong in ([[0, 256]], [[-1, 0]], [[0.5, 1]]):
        with pytest.raises(TensorError, match="would change it"):
            model(wrong)


def test_another_batch_resizes() -> None:
    model = litegpu.load(two_outputs(signature=True), "cpu")
    for n in (4, 1, 2):
        wide = np.repeat(X, n, axis=0)
        np.testing.assert_array_equal(model(wide, wide)["sum"], 2 * wide)
        assert model.inputs["a"]["shape"].tolist() == [n, 3]


def test_a_batch_that_constants_hold() -> None:
    """The official resize would fail on the first reshape and mix the rows in the second."""
    b = ModelBuilder()
    x = b.input("x", (1, 2, 2))
    b.output(
        b.op("RESHAPE", [x, b.constant([1, 4])], (1, 4), name="flat"),
        b.op("RESHAPE", [x], (1, 4, 1), {"new_shape": [1, -1, 1]}, name="long"),
    )
    with litegpu.load(b.build(), "cpu") as model:
        for n in (3, 5, 1, 2):
            value = np.arange(4 * n, dtype=np.float32).reshape(n, 2, 2)
            found = model(value)
            np.testing.assert_array_equal(found["flat"], value.reshape(n, 4))
            np.testing.assert_array_equal(found["long"], value.reshape(n, 4, 1))
            assert model.inputs["x"]["shape"].tolist() == [n, 2, 2]
    for later in (value, value[:1]):
        with pytest.raises(InvokeError, match="closed"):
            model(later)


def test_one_input_gets_a_batch_and_another_does_not() -> None:
    model = litegpu.load(two_outputs(signature=True), "cpu")
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    for a, b in ((wide, X), (X, X), (wide, wide), (wide, X)):
        np.testing.assert_array_equal(model(a, b)["sum"], a + b)


def test_a_batch_that_the_graph_refuses_leaves_the_model_usable() -> None:
    b = ModelBuilder()
    b.output(b.op("RESHAPE", [b.input("x", (1, 3))], (3,), {"new_shape": [3]}))
    model = litegpu.load(b.build(), "cpu")
    with pytest.raises(TensorError, match=r"cannot be resized \('x' \[1, 3\] to \[2, 3\]\)"):
        model(np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(model(X), X[0])


@pytest.mark.parametrize(
    "arguments, error",
    [
        ({"device": "tpu"}, OptionError),
        ({"device": "cuda:0"}, DeviceError),
        ({"precision": "int8"}, OptionError),
        ({"device": "cpu", "backend": "vulkan"}, OptionError),
        ({"device": "webgpu", "backen": "vulkan"}, OptionError),
        ({"device": "cpu", "fallback": "never"}, OptionError),
    ],
)
def test_bad_options(arguments: dict[str, Any], error: type[Exception]) -> None:
    if error is DeviceError and available() is None:
        pytest.skip("there is such a device here")
    with pytest.raises(error):
        litegpu.load(one_output(), **arguments)


def test_without_a_gpu(monkeypatch, caplog) -> None:
    def no_device(self: object) -> None:
        raise DeviceError("no adapter was found")

    monkeypatch.setattr(gpu.GpuDelegate, "open_device", no_device)
    caplog.set_level(logging.INFO, logger="litegpu")
    model = litegpu.load(one_output())
    (record,) = [r for r in caplog.records if r.levelno >= logging.INFO]
    assert record.levelname == "INFO" and "no adapter was found" in record.getMessage()
    assert model.device == "cpu"
    np.testing.assert_array_equal(model(X), X + 1)
    with pytest.raises(DeviceError, match="no adapter"):
        litegpu.load(one_output(), "webgpu")


def test_importing_litegpu_stays_light() -> None:
    code = "import sys, litegpu; print([m for m in ('wgpu', 'typer', 'rich', 'PIL', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_strings_that_nothing_reads_need_not_be_set() -> None:
    b = ModelBuilder()
    x, unread = b.input("x", (2,)), b.input("unread", (1,), TensorType.STRING)
    b.output(b.op("NEG", [x], (2,)))
    interpreter = litegpu.Interpreter(model_content=b.build())
    interpreter.allocate_tensors()
    interpreter.set_tensor(x, np.ones(2, np.float32))
    interpreter.invoke()
    with pytest.raises(TensorError, match="holds no strings yet"):
        interpreter.get_tensor(unread)
