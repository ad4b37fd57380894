"""`litegpu inference-diff --per-op`: planted faults are found in weights, in fused kernels, in float16, in parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from pages import check_self_contained

import litegpu
from litegpu import cli
from litegpu.gpu import build
from litegpu.gpu.graph import Graph, GraphBuilder, apply
from litegpu.gpu.lower import product, values
from litegpu.gpu.lower.constants import as_array, quanta
from litegpu.gpu.passes import optimise
from litegpu.model import ModelBuilder
from litegpu.model.builder import quantized
from litegpu.model.types import TensorType
from litegpu.tools.inference_diff import DiffOptions, DiffReport, PerOpReport, exact, inference_diff
from litegpu.tools.inference_diff.difference_page import write_page
from litegpu.zoo import build_model

Plant = Callable[[str, float], None]


@pytest.fixture(autouse=True)
def gpu() -> None:
    require_gpu()


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Perturbs a constant, given by its name, in what the GPU is given and nowhere else."""

    def planted(name: str, factor: float) -> None:
        original = as_array

        def perturbed(tensor: Any, **options: Any) -> Any:
            array = original(tensor, **options)
            return array * np.float32(factor) if tensor.name == name else array

        def perturbed_quanta(tensor: Any, *arguments: Any, **options: Any) -> Any:
            found = whole_numbers(tensor, *arguments, **options)
            return (found[0], found[1] * np.float32(factor)) if found is not None and tensor.name == name else found

        whole_numbers = quanta
        monkeypatch.setattr(values, "as_array", perturbed)
        monkeypatch.setattr(product, "quanta", perturbed_quanta)

    return planted


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("per_op") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    return path


@pytest.fixture(scope="module")
def residual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolution, ADD of a constant and RELU, which become one kernel, then a join with the input and a reshape."""
    rng = np.random.default_rng(3)
    b = ModelBuilder()
    x = b.input("x", [1, 8, 8, 5])
    weights = b.constant(rng.standard_normal((5, 3, 3, 5)).astype(np.float32), "weights")
    bias = b.constant(rng.standard_normal(5).astype(np.float32), "bias")
    y = b.op("CONV_2D", [x, weights, bias], [1, 8, 8, 5], {"stride_w": 1, "stride_h": 1, "padding": "SAME"})
    y = b.op("ADD", [y, b.constant(rng.standard_normal((1, 1, 1, 5)).astype(np.float32), "shift")], [1, 8, 8, 5])
    y = b.op("RELU", [y], [1, 8, 8, 5])
    y = b.op("MAX_POOL_2D", [y], [1, 4, 4, 5],
             {"stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2, "padding": "VALID"})  # fmt: skip
    y = b.op("RESHAPE", [y, b.constant(np.array([1, 80], np.int32))], [1, 80])
    b.output(b.op("TANH", [y], [1, 80]))
    path = tmp_path_factory.mktemp("per_op") / "residual.tflite"
    path.write_bytes(bytes(b.build()))
    return path


def analysed(path: Path, **options: Any) -> tuple[DiffReport, PerOpReport]:
    wanted: dict[str, Any] = {"num_runs": 1, "backend": "webgpu", "per_op": True}
    report = inference_diff(path, DiffOptions(**wanted | options))
    assert report.per_op is not None
    return report, report.per_op


def errors(report: PerOpReport, which: str) -> dict[int, float]:
    return {n.node: getattr(n, which).relative_l2 for n in report.nodes if getattr(n, which) is not None}


def test_without_a_fault_no_op_deviates(model: Path) -> None:
    report, per_op = analysed(model)
    assert per_op.culprit is None and per_op.first_lock_step is None
    assert per_op.same_kernels and per_op.same_outputs
    lock_step, alone = errors(per_op, "lock_step"), errors(per_op, "alone")
    assert set(alone) == set(range(31)) and set(lock_step) >= {*range(3), *range(4, 29, 2)}  # some pairs are one kernel
    assert lock_step[30] == report.worst  # the last op's result is the model's
    assert lock_step[28] > 2 * alone[28]  # rounding adds up through the model
    assert "No op deviates" in per_op.verdict()


@pytest.mark.parametrize(("precision", "factor"), [("float32", 1.001), ("float16", 1.1)])
def test_perturbed_weights_are_reproduced_and_named(model: Path, plant: Plant, precision: str, factor: float) -> None:
    node = litegpu.read_model(model).main.operators[14]
    plant(litegpu.read_model(model).main.tensors[node.inputs[1]].name, factor)
    report, per_op = analysed(model, precision=precision, max_relative_error=per_tolerance(precision) / 10)
    assert not report.passed
    assert per_op.culprit == per_op.first_alone == per_op.first_lock_step == 14
    assert per_op.nodes[14].blame(per_op.tolerance) == ""  # what is read wrongly is read so by the definition as well
    alone, lock_step = errors(per_op, "alone"), errors(per_op, "lock_step")
    assert [n for n, e in alone.items() if e > per_op.tolerance] == [14]
    assert all(e <= per_op.tolerance for n, e in lock_step.items() if n < 14) and lock_step[14] > per_op.tolerance
    assert f"Node 14 {node.name}" in per_op.verdict()


def test_a_reference_that_is_wrong_is_named(tmp_path: Path) -> None:
    """The official kernel gives zeros for products of 16 bits and 8 bits."""
    rng = np.random.default_rng(3)
    b = ModelBuilder()
    x = b.input("x", [40, 128], TensorType.INT16, quantization=quantized(3e-5))
    scales = quantized(rng.uniform(2e-4, 3e-4, 16), np.zeros(16, np.int64), 1)
    weights = b.constant(rng.integers(-127, 127, (128, 16)).astype(np.int8), "w", quantization=scales)
    b.output(b.op("BATCH_MATMUL", [x, weights], [40, 16], type=TensorType.INT16, quantization=quantized(7e-6)))
    path = tmp_path / "int16.tflite"
    path.write_bytes(b.build())
    _, per_op = analysed(path)
    (row,) = per_op.nodes
    if row.alone is None or row.alone.relative_l2 < 1:
        pytest.skip("this official runtime multiplies 16-bit numbers")
    assert row.blame(per_op.tolerance) == "reference" and row.test_from_exact == 0
    assert "wrong in the reference, and right on the GPU: 0 BATCH_MATMUL" in per_op.verdict()
    assert per_op.as_dict()["nodes"][0]["reference_from_exact"] == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL", "BATCH_MATMUL"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_the_direct_definitions_are_those_of_the_evaluator(
    op: str, dtype: type[np.generic], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    b = ModelBuilder()
    of_float = dtype is np.float32
    quantization = None if of_float else quantized(0.02, 3)
    type_ = TensorType.FLOAT32 if of_float else TensorType.INT8
    x, y = (b.input(name, [2, 4, 4], type_, quantization=quantization) for name in "xy")
    options = {"adj_y": True} if op == "BATCH_MATMUL" else {}
    b.output(b.op(op, [x, y], [2, 4, 4], options, quantization=None if of_float else quantized(0.05, -4)))
    model = litegpu.read_model(b.build())
    arrays = [rng.integers(-100, 100, (2, 4, 4)).astype(dtype) for _ in range(2)]
    values = dict(zip(model.main.inputs, arrays, strict=True))
    direct = exact.exact_results(model, model.main.operators[0], values)
    monkeypatch.setattr(exact, "_DIRECT", {})
    evaluated = exact.exact_results(model, model.main.operators[0], values)
    assert direct is not None and evaluated is not None and (direct[1], evaluated[1]) == (True, False)
    (tensor,) = direct[0]
    found = direct[0][tensor].astype(np.float64)
    assert np.abs(found).max() > 1
    np.testing.assert_allclose(found, evaluated[0][tensor], rtol=1e-6, atol=0 if of_float else 1)


@pytest.mark.cuda
def test_native_kernels_are_looked_at_as_they_run(model: Path, plant: Plant) -> None:
    """CUDA's own kernels, in float16 on tensor cores."""
    from litegpu.gpu.backends.cuda.opening import available

    if (why := available()) is not None:
        pytest.skip(f"no CUDA device: {why}")
    report, per_op = analysed(model, precision="float16", backend="cuda")
    assert report.delegation.fully_delegated, report.delegation.summary()
    assert report.half and per_op.culprit is None and per_op.same_kernels and per_op.same_outputs
    assert errors(per_op, "lock_step")[30] == report.worst
    node = litegpu.read_model(model).main.operators[12]
    plant(litegpu.read_model(model).main.tensors[node.inputs[1]].name, 1.1)
    assert analysed(model, precision="float16", backend="cuda")[1].culprit == 12


def per_tolerance(precision: str) -> float:
    return {"float32": 1e-5, "float16": 1e-2}[precision]


def test_float16_is_looked_at_as_it_is_stored(model: Path) -> None:
    """Handing out tensors must not turn them into float32, nor change the model's results."""
    report, per_op = analysed(model, precision="float16")
    assert report.half and per_op.same_outputs and per_op.same_kernels
    assert errors(per_op, "lock_step")[30] == report.worst
    assert errors(per_op, "lock_step")[6] > 1e-4 and errors(per_op, "alone")[6] > 1e-4


def test_a_fault_in_an_op_that_is_fused(residual: Path, plant: Plant) -> None:
    plant("shift", 1.01)
    _, per_op = analysed(residual)
    rows = {n.node: n for n in per_op.nodes}
    assert rows[1].kernel == (0, 1, 2) and rows[1].lock_step is None  # it exists only inside the kernel
    assert per_op.culprit == 1 and rows[1].op == "ADD" and per_op.first_kernel is None
    assert per_op.first_lock_step == 2
    joined = rows[2].kernel_alone
    assert joined is not None and joined.relative_l2 > per_op.tolerance


def test_a_fault_of_the_fusion_alone(residual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each op is right by itself, but not together: the kernel is named."""

    def wrong(graph: Graph, *arguments: Any) -> Graph:
        optimised = original(graph, *arguments)
        builder = GraphBuilder(dict(optimised.values), [])
        for node in optimised.nodes:
            epilogue = apply("mul", node.epilogue, 1.01) if len(node.sources) > 1 else node.epilogue
            builder.node(node.op, node.inputs, node.output, epilogue, node.operands, node.sources)
        return builder.graph(optimised.inputs, optimised.outputs)

    original = optimise
    monkeypatch.setattr(build, "optimise", wrong)
    _, per_op = analysed(residual)
    assert per_op.first_alone is None and per_op.first_kernel == (0, 1, 2) and per_op.culprit == 2
    assert "The kernel of the nodes 0, 1, 2" in per_op.verdict()


def test_work_that_moved_past_views(tmp_path: Path, plant: Plant) -> None:
    """LOGISTIC after a concatenation is computed by the convolutions in front of it: no kernel writes their own
    results, and asking for these must not change that."""
    rng = np.random.default_rng(0)
    b = ModelBuilder()
    x = b.input("x", [1, 8, 8, 4])
    heads = []
    for i in range(2):
        weights = b.constant(rng.standard_normal((4, 3, 3, 4)).astype(np.float32), f"weights_{i}")
        bias = b.constant(np.zeros(4, np.float32))
        y = b.op("CONV_2D", [x, weights, bias], [1, 8, 8, 4], {"stride_w": 1, "stride_h": 1, "padding": "SAME"})
        heads.append(b.op("RESHAPE", [y, b.constant(np.array([1, 64, 4], np.int32))], [1, 64, 4]))
    joined = b.op("CONCATENATION", heads, [1, 128, 4], {"axis": 1})
    b.output(b.op("LOGISTIC", [joined], [1, 128, 4]))
    path = tmp_path / "heads.tflite"
    path.write_bytes(bytes(b.build()))
    _, per_op = analysed(path)
    rows = {n.node: n for n in per_op.nodes}
    assert per_op.same_kernels and per_op.same_outputs and per_op.culprit is None
    assert rows[0].kernel == rows[5].kernel == (0, 2, 5)
    assert rows[0].lock_step is None and rows[0].alone is not None
    assert rows[5].lock_step is not None and rows[5].kernel_alone is not None
    plant("weights_1", 1.01)
    _, per_op = analysed(path)
    assert per_op.culprit == 2 and per_op.first_lock_step == 5


def test_nodes_on_the_cpu_pass_errors_on(
    residual: Path, plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model in parts: the pooling stays on the CPU, and what comes after it belongs to a second GPU partition."""
    check = litegpu.GpuDelegate.check
    monkeypatch.setattr(
        litegpu.GpuDelegate, "check", lambda self, m, s, o: "no" if o.name == "MAX_POOL_2D" else check(self, m, s, o)
    )
    plant("weights", 1.01)
    report, per_op = analysed(residual, max_delegated_partitions=2)
    rows = {n.node: n for n in per_op.nodes}
    assert [rows[n].owner for n in range(6)] == ["GPU", "GPU", "GPU", "CPU", "GPU", "GPU"]
    assert rows[3].alone is None and rows[3].lock_step is not None and rows[3].lock_step.relative_l2 > per_op.tolerance
    assert per_op.culprit == 0 and per_op.first_lock_step == 2 and rows[5].growth is not None
    write_page(report, tmp_path / "page.html")
    assert "GPU, partition 2" in (tmp_path / "page.html").read_text()


def test_the_page_and_the_json(
    model: Path, plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(litegpu.read_model(model).main.tensors[litegpu.read_model(model).main.operators[4].inputs[1]].name, 1.5)
    arguments = [str(model), "--per-op", "--precision=float32", "--num_runs=1", f"--plots={tmp_path}"]
    monkeypatch.setattr(
        sys, "argv", ["litegpu", "inference-diff", *arguments, f"--html={tmp_path / 'r.html'}", "--json"]
    )
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 0
    found = json.loads(capsys.readouterr().out)["per_op"]
    assert found["culprit"] == 4 and len(found["nodes"]) == 31
    html = (tmp_path / "r.html").read_text()
    text = " ".join(check_self_contained(html).text)
    assert "Node 4 CONV_2D" in text and "Graph" in text and html.count("<tr class=marked>") == 1
    assert (tmp_path / "per-op.png").exists()


def test_weights_of_8_bits_with_float_inputs(models_dir: Path) -> None:
    """The official kernels quantize the inputs of such ops; that is not the GPU's error."""
    report, per_op = analysed(models_dir / "kws_ref_model_float32.tflite")
    assert report.worst > 1e-4 and per_op.dynamic_range
    assert per_op.culprit is None and per_op.first_lock_step is None


@pytest.mark.parametrize("keep", [True, False])
def test_the_reference_adds_carefully(keep: bool, tmp_path: Path) -> None:
    """The official kernels add one by one in float32: over 512x512 elements the error is theirs, not the GPU's."""
    b = ModelBuilder()
    x = b.input("x", [1, 512, 512, 4])
    squares = b.op("MUL", [x, x], [1, 512, 512, 4])
    shape = [1, 1, 1, 4] if keep else [1, 4]
    y = b.op("MEAN", [squares, b.constant(np.array([1, 2], np.int32))], shape, {"keep_dims": keep})
    b.output(b.op("TANH", [y], shape))
    path = tmp_path / "mean.tflite"
    path.write_bytes(bytes(b.build()))
    report, per_op = analysed(path)
    assert per_op.culprit is None and per_op.first_lock_step is None
    assert errors(per_op, "alone")[1] < 5e-6 < report.worst


def test_quantized_models(models_dir: Path, plant: Plant) -> None:
    path = models_dir / "kws_ref_model.tflite"
    report, per_op = analysed(path)
    assert per_op.culprit is None and report.outputs[0].max_quanta is not None and report.outputs[0].max_quanta <= 1
    main = litegpu.read_model(path).main
    plant(main.tensors[main.operators[5].inputs[1]].name, 1.3)
    _, per_op = analysed(path)
    assert per_op.culprit == per_op.first_alone == 5
