"""What crosses the border of a graph without being computed: constants, folded values, inputs, views of inputs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

import litegpu
from litegpu.model import write_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

DTYPES = {
    TensorType.FLOAT32: np.float32,
    TensorType.FLOAT16: np.float16,
    TensorType.INT8: np.int8,
    TensorType.UINT8: np.uint8,
    TensorType.INT16: np.int16,
    TensorType.INT32: np.int32,
    TensorType.INT64: np.int64,
    TensorType.BOOL: np.bool_,
}
KINDS = [(t, q) for t in DTYPES for q in (False, True) if not q or t.name in ("INT8", "UINT8", "INT16")]
GIVEN = np.array([[1, 2, 3, 4]], np.float32)


def numbers(type_: TensorType, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2 if type_ is TensorType.BOOL else 100, (2, 5)).astype(DTYPES[type_])


def uncomputed(type_: TensorType, with_scale: bool) -> bytes:
    """Outputs: a constant, a folded value, an input, a view of it twice, both joined, input and folded value again."""
    b = ModelBuilder()
    q = quantized(0.1, 0 if type_ is TensorType.INT16 else 3) if with_scale else None
    turned = b.constant(np.array([5, 2], np.int32))
    x = b.input("x", (2, 5), type_, quantization=q)
    constant = b.constant(numbers(type_, 0), quantization=q)
    folded = b.op("RESHAPE", [constant, turned], (5, 2), type=type_, quantization=q)
    view = b.op("RESHAPE", [x, turned], (5, 2), type=type_, quantization=q)
    joined = b.op("CONCATENATION", [x, constant], (4, 5), {"axis": 0}, type=type_, quantization=q)
    b.output(constant, folded, x, view, view, joined, x, folded)
    return b.build()


@pytest.mark.parametrize(("type_", "with_scale"), KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_outputs_that_nothing_computes(type_: TensorType, with_scale: bool, half: bool) -> None:
    require_gpu()
    content, x = uncomputed(type_, with_scale), numbers(type_, 1)
    wanted = run(official(content, OpResolverType.AUTO), [x])
    with on_gpu(content, precision_loss_allowed=half) as gpu:
        for got, want in zip(run(gpu, [x]), wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("device", ["webgpu", "cpu"])
@pytest.mark.parametrize("type_", [TensorType.INT8, TensorType.INT16, TensorType.BOOL])
def test_outputs_that_nothing_computes_of_loaded_models(tmp_path: Path, type_: TensorType, device: str) -> None:
    require_gpu()
    path, x = tmp_path / "model.tflite", numbers(type_, 1)
    path.write_bytes(uncomputed(type_, type_ is not TensorType.BOOL))
    wanted = run(official(path, OpResolverType.AUTO), [x])
    with litegpu.load(str(path), device=device) as model:
        for results in (model(x), *model.stream([x, x])):
            for got, want in zip(results.values(), wanted, strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)


def test_a_folded_output_is_bound() -> None:
    require_gpu()
    delegate = litegpu.GpuDelegate(backend="webgpu")
    content, x = uncomputed(TensorType.INT8, True), numbers(TensorType.INT8, 1)
    with litegpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter:
        interpreter.allocate_tensors()
        folded = interpreter.get_output_details()[1]["index"]
        device = delegate.wgpu_device
        buffer = device.create_buffer(size=12, usage=4 | 8 | 128)
        delegate.bind_buffer_to_tensor(buffer, folded)
        run(interpreter, [x])
        held = np.frombuffer(device.queue.read_buffer(buffer), np.int8)[:10]
        np.testing.assert_array_equal(held, numbers(TensorType.INT8, 0).reshape(-1))


def with_given_input() -> bytes:
    """(x + c) * c, where c is an input and has a value in the file."""
    b = ModelBuilder()
    x, c = b.input("x", (1, 4)), b.constant(GIVEN, name="c")
    b.output(b.op("MUL", [b.op("ADD", [x, c], (1, 4)), c], (1, 4)))
    model = b.model()
    main = dataclasses.replace(model.main, inputs=(x, c))
    return bytes(write_model(dataclasses.replace(model, subgraphs=(main,))))


@pytest.mark.parametrize("on", ["cpu", "gpu"])
def test_an_input_with_a_value_in_the_file(on: str) -> None:
    """The value counts until the input is set, also through a resize, and the file's bytes stay as they are."""
    require_gpu()
    content = with_given_input()
    delegates = [litegpu.GpuDelegate(backend="webgpu")] if on == "gpu" else None
    x, new = np.array([[10, 20, 30, 40]], np.float32), np.array([[5, 6, 7, 8]], np.float32)
    reference = official(bytes(bytearray(content)), OpResolverType.AUTO)  # which writes into what it is given
    with litegpu.Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        interpreter.allocate_tensors()
        assert [d["index"] for d in interpreter.get_input_details()] == [0, 1]
        np.testing.assert_array_equal(interpreter.get_tensor(1), GIVEN)
        for i in (interpreter, reference):
            i.set_tensor(0, x)
        for step in ("as it is in the file", "set", "set again"):
            for i in (interpreter, reference):
                if step != "as it is in the file":
                    i.set_tensor(1, new + len(step))
                i.invoke()
            index = interpreter.get_output_details()[0]["index"]
            np.testing.assert_array_equal(interpreter.get_tensor(index), reference.get_tensor(index), err_msg=step)
        with pytest.raises(RuntimeError, match="fixed-size"):
            interpreter.resize_tensor_input(1, [2, 4])
        interpreter.resize_tensor_input(0, [3, 4])
        interpreter.allocate_tensors()
        np.testing.assert_array_equal(interpreter.get_tensor(1), new + len("set again"))
        if on == "gpu":
            assert interpreter.delegation_report().fully_delegated
    assert content == with_given_input()


@pytest.mark.parametrize("device", ["webgpu", "cpu"])
def test_a_loaded_model_with_such_an_input(tmp_path: Path, device: str) -> None:
    require_gpu()
    path = tmp_path / "model.tflite"
    path.write_bytes(with_given_input())
    x, values = np.array([[10, 20, 30, 40]], np.float32), [GIVEN, GIVEN * 2, GIVEN + 3]
    with litegpu.load(str(path), device=device) as model:
        for got in ([model(x, c) for c in values], list(model.stream([(x, c) for c in values]))):
            np.testing.assert_allclose(got, [(x + c) * c for c in values], rtol=1e-6)
