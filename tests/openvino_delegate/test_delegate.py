"""The OpenVINO delegate: results, options, reports, lifetimes; on OpenVINO's CPU device."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openvino_cases import require_openvino
from typer.testing import CliRunner

import litegpu
from litegpu.cli.application import app
from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError, DelegateLoadError, DeviceError, InvokeError, OptionError
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import Quantization, TensorType
from litegpu.model.writer import write_model
from litegpu.openvino import runtime
from litegpu.openvino.conversion import converted, cut_out
from litegpu.openvino.delegate import OpenVinoDelegate
from litegpu.openvino.options import OpenVinoOptions
from litegpu.openvino.support import reason_against
from litegpu.tools.inference_diff.compare import DiffOptions, inference_diff

X = np.array([[-1.5, 0.25, 2]], np.float32)


@pytest.fixture(autouse=True)
def _needs_openvino() -> None:
    require_openvino()


def network(name: str = "x") -> bytes:
    """tanh(x + 1) * x, and then one op that OpenVINO does not take."""
    b = ModelBuilder()
    x = b.input(name, (1, 3))
    one = b.constant(np.ones(3, np.float32))
    product = b.op("MUL", [b.op("TANH", [b.op("ADD", [x, one], (1, 3))], (1, 3)), x], (1, 3))
    b.output(b.op("RELU_N1_TO_1", [product], (1, 3)))
    return b.build()


def product(size: int = 64, depth: int = 1) -> bytes:
    """relu of products of matrices."""
    rng = np.random.default_rng(0)
    b = ModelBuilder()
    y = b.input("x", (1, size))
    for _ in range(depth):
        w = b.constant(rng.normal(0, size**-0.5, (size, size)).astype(np.float32))
        y = b.op("FULLY_CONNECTED", [y, w], (1, size), {"fused_activation_function": "NONE"})
    b.output(y)
    return b.build()


def expected(x: np.ndarray) -> np.ndarray:
    return np.clip(np.tanh(x + 1) * x, -1, 1)


# ------------------------------------------------------------------------------------------------ results


def test_divides_runs_and_reports() -> None:
    with litegpu.load(network(), "openvino") as model:
        assert [n.owner for n in model.report.nodes] == ["OpenVINO"] * 3 + ["CPU"]
        assert "no translation" in str(model.report)
        assert model.device == "openvino" and "(OpenVINO CPU)" in model.hardware and not model.is_software
        np.testing.assert_allclose(model(X), expected(X), rtol=1e-6)
        three = np.concatenate([X, 2 * X, -X])
        np.testing.assert_allclose(model(three), expected(three), rtol=1e-6)  # another batch
        np.testing.assert_allclose(model(X), expected(X), rtol=1e-6)
        plan = model.interpreter.plan
        assert plan is not None
        (note,) = [note for note in plan.notes if "OpenVINO" in note]
        assert runtime.version() in note and note.endswith("computes in f32")
        empty = model(X[:0])
        assert empty.shape == (0, 3)


def test_strict_and_previews() -> None:
    with pytest.raises(DelegateError, match="RELU_N1_TO_1"):
        litegpu.load(network(), "openvino", fallback="strict")
    with litegpu.Interpreter(
        model_content=network(), experimental_delegates=[OpenVinoDelegate()], fallback="silent"
    ) as interpreter:
        assert interpreter.preview_delegation().counts["OpenVINO"] == 3


def test_tensors_of_one_name_stay_apart() -> None:
    """The front end would take them for one."""
    model = read_model(network())
    tensors = tuple(dataclasses.replace(t, name="same") for t in model.main.tensors)
    content = bytes(
        write_model(dataclasses.replace(model, subgraphs=(dataclasses.replace(model.main, tensors=tensors),)))
    )
    with litegpu.load(content, "openvino") as loaded:
        assert loaded.report.delegated
        np.testing.assert_allclose(loaded(X), expected(X), rtol=1e-6)


def test_float32_is_float32() -> None:
    """CPUs with AMX would take bfloat16: 1e-3 off; for float16 those do that know bfloat16 alone."""
    content, x = product(512), np.random.default_rng(1).normal(size=(1, 512)).astype(np.float32)
    with litegpu.load(content, "cpu") as model:
        want = model(x)
    with litegpu.load(content, "openvino") as model:
        assert np.linalg.norm(model(x) - want) / np.linalg.norm(want) < 1e-6
    for precision, limit in (("auto", 1e-2), ("float16", 5e-3)):
        with litegpu.load(content, "openvino", precision) as model:
            assert np.linalg.norm(model(x) - want) / np.linalg.norm(want) < limit
    told = [OpenVinoOptions(precision=p).properties((), None) for p in ("float32", "float16", "auto")]
    assert [t.get("INFERENCE_PRECISION_HINT") for t in told] == ["f32", "f16", None]


def _residual() -> bytes:
    """An int8 network of a product, another one of it, and their sum."""
    rng = np.random.default_rng(3)
    scale = Quantization(np.array([0.05], np.float32), np.array([3], np.int64))
    b = ModelBuilder()
    y = b.input("x", (1, 8, 8, 16), TensorType.INT8, quantization=scale)
    for _ in range(3):
        z = y
        for _ in range(2):
            weights = b.constant(
                rng.integers(-127, 128, (16, 3, 3, 16)).astype(np.int8),
                quantization=Quantization(np.array([0.0015], np.float32), np.array([0], np.int64)),
            )
            bias = b.constant(
                rng.integers(-500, 500, 16).astype(np.int32),
                quantization=Quantization(np.array([0.0015 * 0.05], np.float32), np.array([0], np.int64)),
            )
            options = {"padding": "SAME", "stride_w": 1, "stride_h": 1, "fused_activation_function": "NONE"}
            z = b.op("CONV_2D", [z, weights, bias], (1, 8, 8, 16), options, type=TensorType.INT8, quantization=scale)
        y = b.op("ADD", [y, z], (1, 8, 8, 16), type=TensorType.INT8, quantization=scale)
    b.output(y)
    return b.build()


def test_residual_sums_keep_their_roundings() -> None:
    content = _residual()
    x = np.random.default_rng(0).integers(-128, 128, (1, 8, 8, 16)).astype(np.int8)
    with litegpu.load(content, "cpu") as model:
        want = model(x).astype(int)
    with litegpu.load(content, "openvino") as model:
        assert model.report.fully_delegated
        apart = np.abs(model(x).astype(int) - want)
    assert (apart <= 1).mean() >= 0.99 and (apart == 0).mean() > 0.97, np.bincount(apart.ravel())
    main = read_model(content).main
    partition = Partition(read_model(content), main, main.operators, main.inputs, main.outputs)
    kinds = [node.get_type_name() for node in converted(partition).get_ordered_ops()]
    assert kinds.count("Round") >= 5  # all operands but the network's own input


def test_what_files_leave_to_readers() -> None:
    """RESHAPE without a shape in its options, and PADV2 with a value in an array."""
    b = ModelBuilder()
    x = b.input("x", (2, 3))
    y = b.op("RESHAPE", [x, b.constant(np.array([3, 2], np.int32))], (3, 2))
    padding, value = b.constant(np.array([[1, 0], [0, 1]], np.int32)), b.constant(np.array([7], np.float32))
    b.output(b.op("PADV2", [y, padding, value], (4, 3)))
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    with litegpu.load(b.build(), "openvino") as model:
        assert model.report.fully_delegated, str(model.report)
        np.testing.assert_array_equal(model(given), np.pad(given.reshape(3, 2), [(1, 0), (0, 1)], constant_values=7))


def test_the_cut_out_file_is_a_model() -> None:
    model = read_model(network())
    main = model.main
    nodes = main.operators[1:3]
    content = cut_out(Partition(model, main, nodes, (nodes[0].inputs[0], 0), nodes[-1].outputs))
    names = [t.name for t in read_model(content).main.tensors]
    assert len(set(names)) == len(names) and read_model(content).main.operators[0].name == "TANH"


# ------------------------------------------------------------------------------------------------ refusing


def test_reasons() -> None:
    def reason(operator: str, shapes: list[tuple[int, ...]], **options: Any) -> str | None:
        b = ModelBuilder()
        type_ = options.pop("type_", TensorType.FLOAT32)
        inputs = [b.input(f"x{i}", shape, type_) for i, shape in enumerate(shapes)]
        b.output(b.op(operator, inputs, shapes[0], options, type=type_))
        main = read_model(b.build()).main
        return reason_against(main, main.operators[0])

    assert reason("ADD", [(2, 3), (2, 3)]) is None
    assert "no translation" in str(reason("ATAN2", [(2, 3), (2, 3)]))
    assert "is INT64" in str(reason("ADD", [(2, 3), (2, 3)], type_=TensorType.INT64))
    assert "without a scale" in str(reason("ADD", [(2, 3), (2, 3)], type_=TensorType.INT8))


def test_quantized_nodes_can_be_left() -> None:
    with litegpu.load(_residual(), "openvino", quantization_enabled=False) as model:
        assert not model.report.delegated and "quantization_enabled is False" in str(model.report)
        assert model.device == "cpu" and model.hardware == "CPU"


def test_a_node_that_does_not_compile_goes_to_the_cpu(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    from litegpu.openvino import delegate as module

    def broken(partition: Partition) -> Any:
        if any(o.name == "TANH" for o in partition.nodes):
            raise RuntimeError("Exception from src/somewhere.cpp:12:\nNo TANH today\n")
        return converted(partition)

    monkeypatch.setattr(module, "converted", broken)
    with litegpu.load(network(), "openvino") as model:
        assert [n.owner for n in model.report.nodes] == ["OpenVINO", "CPU", "OpenVINO", "CPU"]
        np.testing.assert_allclose(model(X), expected(X), rtol=1e-6)
    assert "No TANH today" in caplog.text and "somewhere.cpp" not in caplog.text


# ------------------------------------------------------------------------------------------------ options


def test_options() -> None:
    delegate = OpenVinoDelegate(num_threads=1, inference_preference="SUSTAINED_SPEED", device="cpu")
    told = delegate.options.properties(runtime.known_properties("CPU"), "folder")
    assert told["INFERENCE_NUM_THREADS"] == 1 and told["PERFORMANCE_HINT"] == "THROUGHPUT"
    assert told["CACHE_DIR"] == "folder" and told["INFERENCE_PRECISION_HINT"] == "f32"
    assert (
        OpenVinoOptions(inference_preference=2).properties(["PERFORMANCE_HINT"], None)["PERFORMANCE_HINT"] == "LATENCY"
    )
    assert "INFERENCE_NUM_THREADS" not in OpenVinoOptions().properties(runtime.known_properties("CPU"), None)
    for wrong, text in (
        ({"precision": "bfloat16"}, "unknown"), ({"num_threads": 0}, "1 or more"), ({"device": ""}, "device is"),
        ({"inference_preference": "SLOW"}, "inference_preference"), ({"min_nodes_per_partition": -1}, "0 or more"),
        ({"backend": "cuda"}, "no option 'backend'"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=text):
            litegpu.load_delegate("openvino", wrong)
    with pytest.raises(OptionError, match="not both"):
        OpenVinoDelegate(OpenVinoOptions(), precision="auto")
    again = pickle.loads(pickle.dumps(OpenVinoDelegate(precision="auto")))
    assert again.options.precision == "auto"


def test_devices_that_are_not_there() -> None:
    for name in ("openvino:NPU", "openvino:TPU"):
        with pytest.raises(DeviceError, match=r"no device .* here; it has CPU \("):
            litegpu.load(network(), name)
    with litegpu.load(network(), "openvino:AUTO") as model:
        np.testing.assert_allclose(model(X), expected(X), rtol=1e-4)


def test_fewer_partitions_and_nodes() -> None:
    with litegpu.load(network(), "openvino", min_nodes_per_partition=4) as model:
        assert not model.report.delegated
    with litegpu.load(network(), "openvino", last_delegate_node_index=0) as model:
        assert [n.owner for n in model.report.nodes] == ["OpenVINO"] + ["CPU"] * 3


def test_what_is_compiled_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    for _ in range(2):
        with litegpu.load(product(), "openvino", serialization_dir=folder) as model:
            model(np.zeros((1, 64), np.float32))
        files = sorted(folder.iterdir())
        assert [f.suffix for f in files] == [".blob"]
    assert folder.stat().st_mode & 0o77 == 0


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DelegateLoadError, match=r"pip install litegpu\[openvino\]"):
        litegpu.load(network(), "openvino")
    with pytest.raises(DelegateLoadError, match=r"pip install litegpu\[openvino\]"):
        litegpu.load_delegate("openvino")


def test_litegpu_imports_it_only_when_asked() -> None:
    code = (
        "import sys, litegpu; from litegpu.delegate_registry import known_delegates; known_delegates();"
        "litegpu.load_delegate('openvino'); sys.exit('openvino' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_its_import_sends_nothing() -> None:
    """The package would tell its maker, from a forked process."""
    code = (
        "import os, sys; os.register_at_fork(before=lambda: print('fork', flush=True));"
        "from litegpu.openvino import runtime; runtime.core(); runtime.front_end();"
        "print('openvino' in sys.modules, 'openvino_telemetry' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


# ------------------------------------------------------------------------------------------------ lifetimes


def test_closing() -> None:
    delegate = OpenVinoDelegate()
    model = read_model(product())
    kernel: Any = delegate.prepare(Partition(model, model.main, model.main.operators, (0,), model.main.outputs))
    x = np.ones((1, 64), np.float32)
    (first,) = kernel.invoke([x])
    kernel.input_memory(0)[...] = 2 * x
    (second,) = kernel.invoke([kernel.input_memory(0)])
    assert first is second and np.abs(second).max() > 0
    assert kernel.input_memory(0).ctypes.data % 64 == 0
    for _ in range(2):
        kernel.close()
    with pytest.raises(InvokeError, match="closed"):
        kernel.invoke([x])


def test_models_in_threads() -> None:
    x = [np.random.default_rng(i).normal(size=(1, 64)).astype(np.float32) for i in range(4)]
    delegate = OpenVinoDelegate()
    with litegpu.load(product(), "cpu") as model:
        wanted = [model(a) for a in x]
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        with litegpu.load(product(), delegate=delegate) as model:
            found[i] = [model(x[i]) for _ in range(20)][-1]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    with litegpu.load(product(), delegate=delegate) as model:
        for got, want in zip(model.stream(x), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
def test_a_forked_child_is_told() -> None:
    code = """
import os, sys
import numpy as np, litegpu
from litegpu.model.builder import ModelBuilder
b = ModelBuilder()
b.output(b.op("TANH", [b.input("x", (1, 3))], (1, 3)))
content, x = b.build(), np.ones((1, 3), np.float32)
model = litegpu.load(content, "openvino")
model(x)
child = os.fork()
if child == 0:
    problems = []
    for attempt in (lambda: model(x), lambda: litegpu.load(content, "openvino", fallback="strict")):
        try:
            attempt()
            problems.append("ran")
        except litegpu.DeviceError as error:
            if "spawn" not in str(error):
                problems.append(str(error))
    if not np.allclose(litegpu.load(content, "cpu")(x), np.tanh(x)):
        problems.append("the CPU is wrong")
    model.close()
    print(problems, flush=True)
    sys.exit(len(problems))
status = os.waitpid(child, 0)[1]
model(x)
model.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to itself")
def test_ctrl_c_gets_through_and_the_model_goes_on() -> None:
    with litegpu.load(product(1024, 24), "openvino", num_threads=1) as model:
        x = np.ones((1, 1024), np.float32)
        want = model(x)
        for _ in range(3):
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    model(x)
            np.testing.assert_array_equal(model(x), want)


# ------------------------------------------------------------------------------------------------ tools


def test_tools(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(product())
    report = inference_diff(path, DiffOptions("openvino", num_runs=3))
    assert report.worst < 1e-5 and "OpenVINO CPU" in report.device and report.delegation.fully_delegated
    result = CliRunner().invoke(app, ["run", str(path), "--device", "openvino", "--json"])
    assert result.exit_code == 0 and "OpenVINO CPU" in result.output and '"agrees": true' in result.output
    timed = litegpu.benchmark(path, external_delegate_path="openvino", num_runs=2, min_secs=0.0, warmup_min_secs=0.0)
    assert "OpenVINO CPU" in timed.device and timed.delegation.fully_delegated
    advice = CliRunner().invoke(app, ["advise", str(path), "--delegate", "openvino"])
    assert advice.exit_code == 0, advice.output
    assert "OpenVINO" in advice.output and "1 of 1" in advice.output
