"""Models that leave sizes of their inputs open, and do not run in those that their files have in place of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, require_device, run

import litegpu
from litegpu import cli
from litegpu.errors import OpenShapeError, OptionError, TensorError
from litegpu.model.inputs import open_inputs, with_input_shapes
from litegpu.model.writer import ModelBuilder
from litegpu.tools.entered import entered


def convolution() -> bytes:
    """3 x 3 without padding, of an image that the file has as 1 x 1, and a plain second input."""
    rng, b = np.random.default_rng(0), ModelBuilder()
    x = b.input("image", (1, 1, 1, 2), shape_signature=(-1, -1, -1, 2))
    weights = b.constant(rng.standard_normal((4, 3, 3, 2)).astype(np.float32))
    y = b.op("CONV_2D", [x, weights, b.constant(np.ones(4, np.float32))], (1, 1, 1, 4),
             dict(stride_h=1, stride_w=1, padding=1))  # fmt: skip
    b.output(b.op("MUL", [y, b.input("factor", (4,))], (1, 1, 1, 4)))
    return b.build()


def wanted(*arrays: np.ndarray) -> np.ndarray:
    """What the official runtime gives."""
    reference = official(with_input_shapes(litegpu.read_model(convolution()), {0: arrays[0].shape}))
    return run(reference, arrays)[0]


def image(*size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, *size, 2)).astype(np.float32)


FACTOR = np.array([1, 2, -1, 0.5], np.float32)


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_the_first_call_tells_the_sizes(device: str) -> None:
    require_device(device)
    with litegpu.load(convolution(), device) as model:
        assert model.device == device and repr(model)
        with pytest.raises(TensorError, match=r"cannot be resized \('image' \[1, 1, 1, 2\] to \[1, 2, 5, 2\]"):
            model(image(2, 5), FACTOR)
        for size in ((5, 6), (5, 6), (3, 9), (5, 6)):
            assert_agrees(model(image(*size), FACTOR), wanted(image(*size), FACTOR), FLOAT32)
        with pytest.raises(TensorError, match="cannot be resized"):
            model(image(2, 2), FACTOR)
        assert_agrees(model(image(5, 6), FACTOR), wanted(image(5, 6), FACTOR), FLOAT32)
        rows = np.concatenate([image(4, 4), image(4, 4, seed=1)])
        assert_agrees(model(rows, FACTOR), wanted(rows, FACTOR), FLOAT32)


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_what_they_are_may_come_in_a_stream(device: str) -> None:
    require_device(device)
    items = [(image(4, 5, seed=i), FACTOR) for i in range(4)]
    with litegpu.load(convolution(), device) as model:
        for given, result in zip(items, model.stream(items), strict=True):
            assert_agrees(result, wanted(*given), FLOAT32)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_an_interpreter_says_what_is_missing(on_gpu: bool) -> None:
    delegates = []
    if on_gpu:
        require_device("webgpu")
        delegates = [litegpu.GpuDelegate(backend="webgpu")]
    interpreter = litegpu.Interpreter(model_content=convolution(), experimental_delegates=delegates)
    for _ in range(2):
        with pytest.raises(OpenShapeError, match=r"'image' \[-1, -1, -1, 2\] are open.*resize_tensor_input"):
            interpreter.allocate_tensors()
        assert interpreter.awaits_sizes
    interpreter.resize_tensor_input(0, (1, 2, 2, 2))
    with pytest.raises(litegpu.InvokeError) as error:
        interpreter.allocate_tensors()
    assert not isinstance(error.value, OpenShapeError)
    interpreter.resize_tensor_input(0, (1, 4, 3, 2))
    interpreter.allocate_tensors()
    assert not interpreter.awaits_sizes
    assert_agrees(run(interpreter, [image(4, 3), FACTOR])[0], wanted(image(4, 3), FACTOR), FLOAT32)


def test_what_lacks_a_kernel_is_told_at_once() -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 3), shape_signature=(-1, 3))
    b.output(*b.custom("Unheard", [x], [((1, 3), litegpu.read_model(convolution()).main.tensors[0].type)]))
    with pytest.raises(litegpu.InvokeError, match="unresolved custom op"):
        litegpu.load(b.build(), "cpu")


def test_shapes_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "convolution.tflite"
    path.write_bytes(convolution())
    for shapes in (["2,4,5,2"], ["image=2,4,5,2"], ["factor=4", "2,4,5,2"]):
        model = litegpu.read_model(entered(path, shapes=shapes))
        tensor = model.main.tensors[model.main.inputs[0]]
        assert tensor.shape == (2, 4, 5, 2) and tensor.shape_signature == (-1, -1, -1, 2)
        assert [t.name for t in open_inputs(model)] == ["image"]
    for wrong, kind, reason in [
        (["x=1,2"], OptionError, "no input 'x'; the model has image, factor"), (["1,a"], OptionError, "not a shape"),
        (["1,3,3,2", "image=1,3,3,2"], OptionError, "two shapes"), (["4,4"], TensorError, "cannot become"),
        (["1,0,3,2"], TensorError, "cannot become"), (["1,3,3,2", "4", "4"], OptionError, "too many"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=reason):
            entered(path, shapes=wrong)


@pytest.mark.parametrize("words", [
    ["advise"], ["analyze"], ["run", "--device", "cpu"], ["inference-diff", "--delegate", "cpu", "--num_runs", "2"],
], ids=lambda words: words[0])  # fmt: skip
def test_tools_take_the_shapes(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(*line: str) -> int:
        monkeypatch.setattr(sys, "argv", ["litegpu", *line])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0)

    path = tmp_path / "convolution.tflite"
    path.write_bytes(convolution())
    line = [words[0], str(path), *words[1:]]
    assert status(*line) == 1
    assert "--input-shape" in capfd.readouterr().err
    assert status(*line, "--input-shape", "image=1,5,7,2", "--json") == 0
    assert json.loads(capfd.readouterr().out)["model"] == str(path)
