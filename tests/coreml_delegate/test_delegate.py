"""The Core ML delegate: what its programs are made of, options, reports; and on a Mac that they run."""

from __future__ import annotations

import dataclasses
import importlib.util
import pickle
import platform
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, relative_l2, run
from coreml_cases import LEFT_FOLDERS, X, coremltools_session, network
from mil_evaluator import MilModel
from typer.testing import CliRunner

import litegpu
from litegpu import fork
from litegpu.cli.application import app
from litegpu.coreml import delegate as delegate_module
from litegpu.coreml import runtime
from litegpu.coreml.conversion import converted, reason_against
from litegpu.coreml.delegate import CoreMlDelegate
from litegpu.coreml.options import CoreMlOptions
from litegpu.delegates.protocol import Partition, Rehearses
from litegpu.errors import DelegateError, DelegateLoadError, DeviceError, InvokeError, OptionError
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import Quantization, TensorType
from litegpu.model.writer import write_model
from litegpu.tools.advise import trial

pytestmark = LEFT_FOLDERS
OWNERS = ["Core ML"] * 3 + ["CPU"] + ["Core ML"] * 3


@pytest.fixture(autouse=True)
def _needs_coremltools() -> Iterator[None]:
    yield from coremltools_session()


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Programs run in NumPy in place of Core ML; those that were made."""
    made: list[Any] = []

    def stand_in(partition: Partition, options: CoreMlOptions) -> MilModel:
        made.append(converted(partition, options))
        return MilModel(made[-1])

    monkeypatch.setattr(delegate_module, "converted", stand_in)
    monkeypatch.setattr(runtime, "require_apple", lambda *, neural_engine: None)
    return made


def whole(content: bytes) -> Partition:
    model = read_model(content)
    return Partition(model, model.main, model.main.operators, model.main.inputs, model.main.outputs)


def noted(model: litegpu.LoadedModel, words: str) -> bool:
    plan = model.interpreter.plan
    return plan is not None and any(words in note for note in plan.notes)


def operations(model: Any) -> list[Any]:
    return [o for o in model._mil_program.functions["main"].operations if o.op_type != "const"]


def kinds(model: Any) -> list[str]:
    return [o.op_type for o in operations(model)]


def convolutions(count: int) -> bytes:
    """A chain of them, with activations and a sum."""
    rng = np.random.default_rng(2)
    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1, "fused_activation_function": "RELU"}
    b = ModelBuilder()
    y = b.input("x", (1, 8, 8, 3))
    for _ in range(count):
        weights = rng.normal(size=(3, 3, 3, 3)).astype(np.float32)
        y = b.op("CONV_2D", [y, b.constant(weights), b.constant(np.ones(3, np.float32))], (1, 8, 8, 3), options)
        y = b.op("ADD", [y, b.op("TANH", [y], (1, 8, 8, 3))], (1, 8, 8, 3), {"fused_activation_function": "NONE"})
    b.output(y)
    return b.build()


# ------------------------------------------------------------------------------------------------ programs


def test_movements_between_convolutions_are_gone() -> None:
    """Of three convolutions two movements are left: at the beginning and at the end."""
    model = converted(whole(convolutions(3)), CoreMlOptions())
    found = kinds(model)
    assert found.count("conv") == 3 and found.count("transpose") == 2, found
    assert model.get_spec().WhichOneof("Type") == "mlProgram"


def test_weights_paddings_and_names_of_a_program() -> None:
    rng = np.random.default_rng(3)
    weights, biases = rng.normal(size=(4, 2, 3, 5)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    options = {"padding": "SAME", "stride_h": 2, "stride_w": 1, "fused_activation_function": "NONE"}
    b = ModelBuilder()
    x = b.input("x", (1, 7, 6, 5))
    b.output(b.op("CONV_2D", [x, b.constant(weights), b.constant(biases)], (1, 4, 6, 4), options))
    partition = whole(b.build())
    model = converted(partition, CoreMlOptions())
    (convolution,) = [o for o in operations(model) if o.op_type == "conv"]
    np.testing.assert_array_equal(convolution.weight.val, weights.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(convolution.bias.val, biases)
    assert list(convolution.strides.val) == [2, 1] and list(convolution.pad.val) == [0, 1, 1, 1]
    description = model.get_spec().description
    (given,), (result,) = description.input, description.output
    assert (given.name, list(given.type.multiArrayType.shape)) == (f"t{partition.inputs[0]}", [1, 7, 6, 5])
    assert result.name == f"r{partition.outputs[0]}"


def test_float16_is_inside_only() -> None:
    model = converted(whole(convolutions(1)), CoreMlOptions(precision="float16"))
    function = model._mil_program.functions["main"]
    assert {o.weight.val.dtype for o in operations(model) if o.op_type == "conv"} == {np.dtype(np.float16)}
    assert "cast" in kinds(model)
    description = model.get_spec().description
    types = {p.type.multiArrayType.dataType for p in (*description.input, *description.output)}
    assert types == {65568} and len(function.inputs) == 1  # FLOAT32 of the format
    assert "cast" not in kinds(converted(whole(convolutions(1)), CoreMlOptions()))


def test_versions_and_units() -> None:
    ct = runtime.coremltools()
    for version, specification in ((0, 7), (5, 6), (6, 7), (7, 8), (8, 9)):
        model = converted(whole(convolutions(1)), CoreMlOptions(coreml_version=version))
        assert model.get_spec().specificationVersion == specification
    for units in ("all", "cpu_and_gpu", "cpu_and_ne", "cpu_only"):
        model = converted(whole(convolutions(1)), CoreMlOptions(compute_units=units))
        assert model.compute_unit is ct.ComputeUnit[units.upper()]


def test_a_program_can_be_kept(tmp_path: Path) -> None:
    """What is written is a package of Core ML, weights in a file of their own."""
    model = converted(whole(convolutions(2)), CoreMlOptions())
    model.save(str(tmp_path / "p.mlpackage"))
    names = {path.name for path in (tmp_path / "p.mlpackage").rglob("*")}
    assert {"model.mlmodel", "Manifest.json"} <= names


@pytest.mark.parametrize("mode", ["REFLECT", "SYMMETRIC"])
def test_images_are_mirrored(mode: str) -> None:
    """Reflections by an operation of MIL, in front of a convolution, whose transposition it shares."""
    pads = np.array([[0, 0], [2, 1], [0, 3], [0, 0]], np.int32)
    b = ModelBuilder()
    y = b.op("MIRROR_PAD", [b.input("x", X.shape), b.constant(pads)], (1, 11, 11, 3), {"mode": mode})
    b.output(b.op("TANH", [y], (1, 11, 11, 3)))
    partition = whole(b.build())
    model = converted(partition, CoreMlOptions())
    (got,) = MilModel(model).predict({f"t{partition.inputs[0]}": X}).values()
    np.testing.assert_allclose(got, run(official(b.build()), [X])[0], rtol=1e-6)
    assert ("pad" in kinds(model)) == (mode == "REFLECT")


# ------------------------------------------------------------------------------------------------ whole models


@pytest.mark.parametrize("half", [False, True])
def test_divides_runs_and_reports(evaluated: list[Any], half: bool) -> None:
    content = network(half)
    (want,) = run(official(content), [X])
    with litegpu.load(content, "coreml") as model:
        owners = [n.owner for n in model.report.nodes if n.op != "DEQUANTIZE"]
        assert owners == OWNERS, str(model.report)
        assert "no translation" in str(model.report)
        assert "(Core ML)" in model.hardware
        assert relative_l2(model(X), want) < 1e-5
        assert noted(model, "computes in float32")
    with litegpu.load(content, "coreml", "float16") as model:
        assert 1e-6 < relative_l2(model(X), want) < 1e-2
        assert noted(model, "computes in float16")
    assert len(evaluated) == 4


def test_tensors_of_one_name_and_results_that_are_inputs(evaluated: list[Any]) -> None:
    """Names of a program are those of numbers; a value can be a result and go on."""
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    y = b.op("TANH", [x], (1, 3))
    b.output(y)
    b.output(b.op("RESHAPE", [y, b.constant(np.array([3], np.int32))], (3,)))
    model = read_model(b.build())
    tensors = tuple(dataclasses.replace(t, name="same") for t in model.main.tensors)
    content = bytes(
        write_model(dataclasses.replace(model, subgraphs=(dataclasses.replace(model.main, tensors=tensors),)))
    )
    given = np.array([[-1, 0, 2]], np.float32)
    with litegpu.Interpreter(model_content=content, experimental_delegates=[CoreMlDelegate()]) as interpreter:
        interpreter.allocate_tensors()
        assert interpreter.delegation_report().fully_delegated
        got = run(interpreter, [given])
    np.testing.assert_allclose(got[0], np.tanh(given), rtol=1e-6)
    np.testing.assert_allclose(got[1], np.tanh(given)[0], rtol=1e-6)


def test_another_batch(evaluated: list[Any]) -> None:
    three = np.concatenate([X, -X, 2 * X])
    content = convolutions(2)
    with litegpu.load(content, "coreml") as model:
        for given in (three, X, three):
            got = model(given)
            want = np.concatenate([run(official(content), [row[None]])[0] for row in given])
            assert relative_l2(got, want) < 1e-5
    assert len(evaluated) >= 2


def test_previews_build_programs_anywhere() -> None:
    with litegpu.Interpreter(model_content=network(), experimental_delegates=[CoreMlDelegate()]) as interpreter:
        preview = interpreter.preview_delegation()
    assert [n.owner for n in preview.nodes] == OWNERS
    assert isinstance(CoreMlDelegate(), Rehearses)
    partition = whole(network())  # has a node that no program can have
    with pytest.raises(DelegateError, match="ATAN2") as caught:
        CoreMlDelegate().rehearse(partition)
    assert caught.value.__dict__["nodes"] == (3,)


# ------------------------------------------------------------------------------------------------ refusing


def test_reasons() -> None:
    def reason(operator: str, *inputs: Any, shape: tuple[int, ...] = (2, 3), **options: Any) -> str:
        b = ModelBuilder()
        type_ = options.pop("type_", TensorType.FLOAT32)
        quantization = options.pop("quantization", None)
        given = [
            b.input(f"x{i}", x, type_, quantization=quantization) if isinstance(x, tuple) else b.constant(x)
            for i, x in enumerate(inputs)
        ]
        b.output(b.op(operator, given, shape, options, type=type_, quantization=quantization))
        main = read_model(b.build()).main
        return str(reason_against(main, main.operators[0], "iOS16"))

    a = (2, 3)
    eighth = Quantization(np.array([0.125], np.float32), np.array([0], np.int64))
    assert reason("ADD", a, a) == "None"
    assert "no translation" in reason("ATAN2", a, a)
    assert "is INT32" in reason("ADD", a, a, type_=TensorType.INT32)
    assert "is quantized (INT8), and Core ML takes models of floats" in reason(
        "ADD", a, a, type_=TensorType.INT8, quantization=eighth
    )
    assert "has 6 dimensions" in reason("TANH", (1, 1, 1, 1, 2, 3), shape=(1, 1, 1, 1, 2, 3))
    assert "is empty" in reason("TANH", (0, 3), shape=(0, 3))
    assert "the fused activation 4" in reason("ADD", a, a, fused_activation_function="TANH").lower()
    assert "would give it the shape [3, 2]" in reason("TRANSPOSE", a, np.array([1, 0], np.int32))
    assert "coremltools does not build it" in reason("CONCATENATION", a, (4, 5), shape=(6, 3), axis=0)
    assert "constant axes" in _computed_axes()


def _computed_axes() -> str:
    b = ModelBuilder()
    inputs = [b.input("x", (2, 3)), b.input("axes", (1,), TensorType.INT32)]
    b.output(b.op("SUM", inputs, (2,), {"keep_dims": False}))
    model = read_model(b.build()).main
    reason = str(reason_against(model, model.operators[0], "iOS16"))
    return "constant axes" if "INT32" in reason else reason


def test_weights_of_8_bits_stay_on_the_cpu(evaluated: list[Any]) -> None:
    b = ModelBuilder()
    weights = b.constant(
        np.ones((5, 3), np.int8), quantization=Quantization(np.array([0.5], np.float32), np.array([0], np.int64))
    )
    y = b.op("FULLY_CONNECTED", [b.input("x", (1, 3)), weights, -1], (1, 5), {"fused_activation_function": "NONE"})
    b.output(b.op("TANH", [y], (1, 5)))
    with litegpu.load(b.build(), "coreml", min_nodes_per_partition=1) as model:
        assert [n.owner for n in model.report.nodes] == ["CPU", "Core ML"]
        assert "is quantized (INT8)" in str(model.report)


def test_elsewhere_than_on_a_mac(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    with pytest.raises(DeviceError, match="runs on macOS only"):
        CoreMlDelegate().prepare(whole(convolutions(1)))
    with litegpu.load(network(), "coreml") as model:
        assert not model.report.delegated
        np.testing.assert_allclose(model(X), run(official(network()), [X])[0], rtol=1e-5)
    assert "runs on macOS only" in caplog.text
    with pytest.raises(litegpu.LiteGpuError, match="runs on macOS only"):
        litegpu.load(convolutions(1), "coreml", fallback="strict")


def test_macs_without_a_neural_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(fork, "gpu_is_used", lambda: None)
    with pytest.raises(DeviceError, match=r'no Neural Engine.*enabled_devices="all"'):
        CoreMlDelegate().prepare(whole(convolutions(1)))
    runtime.require_apple(neural_engine=False)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    runtime.require_apple(neural_engine=True)


# ------------------------------------------------------------------------------------------------ options


def test_options() -> None:
    for wrong, text in (
        ({"compute_units": "gpu"}, "all, cpu_and_gpu, cpu_and_ne, cpu_only"), ({"precision": "bfloat16"}, "precision"),
        ({"enabled_devices": "none"}, "with_neural_engine, all"), ({"coreml_version": 3}, "began with version 5"),
        ({"coreml_version": 99}, "coreml_version"), ({"min_nodes_per_partition": -1}, "0 or more"),
        ({"backend": "cuda"}, "no option 'backend'"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=text):
            litegpu.load_delegate("coreml", wrong)
    with pytest.raises(OptionError, match="not both"):
        CoreMlDelegate(CoreMlOptions(), precision="auto")
    again = pickle.loads(pickle.dumps(CoreMlDelegate(precision="auto", compute_units="cpu_and_ne")))
    assert again.options == CoreMlOptions(precision="auto", compute_units="cpu_and_ne")
    assert again.options.computes_in == "float16" and "Neural Engine and CPU" in again.device_name()


def test_fewer_partitions_and_nodes(evaluated: list[Any]) -> None:
    content = network()
    choices: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({"max_delegated_partitions": 1}, ["Core ML"] * 3 + ["CPU"] * 4),
        ({"min_nodes_per_partition": 4}, ["CPU"] * 7),
        ({"last_delegate_node_index": 1}, ["Core ML"] * 2 + ["CPU"] * 5),
        ({"last_delegate_node_index": 0}, ["CPU"] * 7),  # two nodes at least, as with the official delegate
    )
    for options, owners in choices:
        with litegpu.load(content, "coreml", **options) as model:
            assert [n.owner for n in model.report.nodes] == owners, options


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DelegateLoadError, match=r"pip install litegpu\[coreml\]"):
        litegpu.load_delegate("coreml")


def test_litegpu_imports_it_only_when_asked_and_says_nothing() -> None:
    code = (
        "import sys, litegpu; from litegpu.delegate_registry import known_delegates; known_delegates();"
        "litegpu.load_delegate('coreml'); assert 'coremltools' not in sys.modules;"
        "from litegpu.coreml import runtime; runtime.coremltools()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_conversions_are_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    converted(whole(convolutions(1)), CoreMlOptions(precision="float16"))
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------------------------ lifetimes


def test_closing(evaluated: list[Any]) -> None:
    kernel: Any = CoreMlDelegate().prepare(whole(convolutions(1)))
    (first,) = kernel.invoke([X])
    assert first.shape == X.shape and first.dtype == np.float32
    for _ in range(2):
        kernel.close()
    with pytest.raises(InvokeError, match="closed"):
        kernel.invoke([X])


def test_threads_build_one_at_a_time() -> None:
    """coremltools keeps in a variable of its module what a program is being built into."""
    partitions = [whole(convolutions(n)) for n in (1, 2, 3, 4)]
    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(lambda p: converted(p, CoreMlOptions()), partitions * 2))
    assert [kinds(model).count("conv") for model in models] == [1, 2, 3, 4] * 2


# ------------------------------------------------------------------------------------------------ tools


def test_advise(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(network())
    advice = CliRunner().invoke(app, ["advise", str(path), "--delegate", "coreml"])
    assert advice.exit_code == 0, advice.output
    assert "Core ML would take 6 of 7 ops" in advice.output and "ATAN2" in advice.output


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML is here")
def test_what_takes_nothing_is_not_measured(tmp_path: Path) -> None:
    """The figures of the CPU, under the name of Core ML."""
    path = tmp_path / "model.tflite"
    path.write_bytes(convolutions(1))
    found = trial.run({"model": str(path), "candidate": {"device": "coreml"}, "batch": 2, "began": 0.0})
    assert found["latency"] is None and "Core ML runs on macOS only" in found["problem"]


# ------------------------------------------------------------------------------------------------ on a Mac

on_a_mac = pytest.mark.skipif(sys.platform != "darwin", reason="Core ML runs on macOS only")


@on_a_mac
@pytest.mark.parametrize("units", ["all", "cpu_and_gpu", "cpu_and_ne", "cpu_only"])
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("float16", 1e-2)])
def test_programs_run(units: str, precision: str, tolerance: float) -> None:
    (want,) = run(official(network()), [X])
    options: dict[str, Any] = {"compute_units": units, "enabled_devices": "all"}
    with litegpu.load(network(), "coreml", precision, **options) as model:
        assert [n.owner for n in model.report.nodes] == OWNERS
        for _ in range(3):
            assert relative_l2(model(X), want) < tolerance


@on_a_mac
def test_every_operator_runs() -> None:
    import random

    from op_cases import CASES

    from litegpu.coreml.node import TRANSLATIONS

    options = CoreMlOptions(enabled_devices="all", compute_units="cpu_only", min_nodes_per_partition=0)
    for operator in sorted(TRANSLATIONS):
        for seed in range(3):
            case = CASES[operator](random.Random(f"{operator} {seed}"))
            with litegpu.Interpreter(
                model_content=case.content, experimental_delegates=[CoreMlDelegate(options)], fallback="silent"
            ) as interpreter:
                interpreter.allocate_tensors()
                got = run(interpreter, case.inputs)
            for mine, want in zip(got, run(official(case.content), case.inputs), strict=True):
                assert relative_l2(mine, want) < 1e-4, case.name
