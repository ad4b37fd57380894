"""`litegpu advise`: the model's type, the documented rows, and what delegates would take without running anything."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import cli
from litegpu.choosing.candidate import Candidate, Measured
from litegpu.choosing.records import recall
from litegpu.delegate_registry import find
from litegpu.delegates.protocol import Partition
from litegpu.delegates.xnnpack import xnnpack_partitions
from litegpu.errors import DeviceError, ModelError, OptionError
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.model.builder import ModelBuilder
from litegpu.model.model_type import ModelKind
from litegpu.model.reader import read_model
from litegpu.model.types import Model, Operator, Subgraph, TensorType
from litegpu.tools.advise import MeasuredWays, advise, measure, print_advice, write_page
from litegpu.tools.advise.advice import _recommend
from litegpu.tools.advise.advice_text import node_numbers
from litegpu.tools.advise.coverage import Coverage, Left, TargetDevice
from litegpu.tools.advise.documented import MODEL_TYPES, PLATFORMS, row_of
from litegpu.tools.advise.measuring import candidates
from litegpu.zoo import build_model

SHAPE = (1, 4, 4, 8)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("advise") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=5, precision="float16"))
    return path


@pytest.fixture
def without_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the GPU delegate finds nothing to run on."""

    def refuse(self: GpuDelegate) -> None:
        raise DeviceError("no device was found")

    monkeypatch.setattr(GpuDelegate, "open_device", refuse)


def islands() -> bytes:
    """Two runs of ops that the GPU takes, three and two long, around one that it does not."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    for _ in range(3):
        x = b.op("RELU", [x], SHAPE)
    (x,) = b.custom("Unheard", [x], [(SHAPE, TensorType.FLOAT32)])
    for _ in range(2):
        x = b.op("RELU", [x], SHAPE)
    b.output(x)
    return b.build()


def test_type_row_and_coverage_of_a_float16_model(classifier: Path, without_device: None) -> None:
    advice = litegpu.advise(classifier)
    assert advice.type.kind is ModelKind.FLOAT16_WEIGHTS
    assert advice.row is row_of(ModelKind.FLOAT16_WEIGHTS) and advice.row is not None
    assert advice.row.takes == {"GPU": True, "NNAPI": False, "Hexagon": False, "Core ML": True, "CPU": True}
    gpu, cpu = advice.coverages
    assert gpu.complete and gpu.partitions == 1 and gpu.left == () and gpu.total == 87
    assert cpu.delegate == "XNNPACK" and (cpu.taken, cpu.partitions) == (87, 1)
    assert advice.fully_delegated


def test_no_device_is_needed_but_its_absence_decides(classifier: Path, without_device: None) -> None:
    advice = advise(classifier.read_bytes())
    assert advice.coverages[0].problem == "no device was found" and advice.coverages[0].taken == 87
    assert advice.recommendation.delegate == "CPU" and "no device was found" in advice.recommendation.reasons[0]
    assert advice.here == {"GPU": "absent", "NNAPI": "absent", "Hexagon": "absent", "Core ML": "absent", "CPU": "yes"}


def test_the_preview_is_what_is_delegated(classifier: Path) -> None:
    with litegpu.Interpreter(str(classifier), experimental_delegates=[_Taking({"CONV_2D", "RESHAPE"})]) as one:
        previewed = one.preview_delegation()
        with pytest.raises(ValueError, match="Tensor data is null"):
            one.get_tensor(one.get_output_details()[0]["index"])
        one.allocate_tensors()
        assert one.delegation_report() == previewed
        assert one.preview_delegation() == previewed
    assert 0 < previewed.delegated < len(previewed.nodes)


def test_limits_are_told_apart_from_refusals(without_device: None) -> None:
    (gpu, xnnpack) = advise(islands()).coverages
    assert (gpu.taken, gpu.total, gpu.partitions, gpu.without_limit) == (3, 6, 1, (5, 2))
    refused = [one for one in gpu.left if not one.accepted]
    limited = [one for one in gpu.left if one.accepted]
    assert [(one.op, one.nodes) for one in refused] == [("Unheard", (3,))]
    assert "custom operator" in refused[0].reason
    assert [(one.op, one.nodes) for one in limited] == [("RELU", (4, 5))]
    assert "max_delegated_partitions=1" in limited[0].reason
    # The official runtime cannot even allocate a model with this op, so nobody knows what XNNPACK would do.
    assert xnnpack.unknown and "Unheard" in str(xnnpack.problem)


def test_reasons_are_the_delegates_own(without_device: None) -> None:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", (1, 1, 1, 1, 2, 2, 3))], (1, 1, 1, 1, 2, 2, 3)))
    content = b.build()
    delegate = GpuDelegate()
    model = litegpu.read_model(content)
    gpu = advise(content, delegates=[delegate]).coverages[0]
    assert gpu.left[0].reason == delegate.check(model, model.main, model.main.operators[0])
    assert advise(content).recommendation.delegate == "CPU"


def test_delegates_of_ones_own_are_asked_one_by_one(classifier: Path) -> None:
    convolutions, shapes = _Taking({"CONV_2D"}, limit=0), _Taking({"RESHAPE"})
    advice = advise(classifier, delegates=[convolutions, shapes])
    assert [(c.taken, c.partitions, c.without_limit) for c in advice.coverages[:2]] == [(15, 15, None), (1, 1, None)]
    assert advice.recommendation.delegate == "taking"
    assert convolutions.max_delegated_partitions == 0 and shapes.max_delegated_partitions == 1


def test_a_further_subgraph_is_no_obstacle(without_device: None) -> None:
    b = ModelBuilder()
    x = b.input("x", (2, 2))
    b.output(b.op("RELU", [x], (2, 2)))
    second = b.subgraph("other")
    y = second.input("y", (2, 2))
    second.output(second.op("RELU", [y], (2, 2)))
    advice = advise(b.build())
    assert advice.coverages[0].complete and advice.coverages[0].left == ()
    assert "would take 1 of 1 ops, but cannot be used here" in advice.recommendation.reasons[0]


def test_xnnpack_partitions_hold_what_leads_from_their_inputs_to_their_outputs() -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 8))
    y = b.op("ABS", [x], (1, 8))  # XNNPACK
    y = b.op("CUMSUM", [y, b.constant(np.array(1, np.int32))], (1, 8))  # a plain kernel
    b.output(b.op("ABS", [y], (1, 8)))
    assert xnnpack_partitions(b.build()) == ((0,), (2,))


def test_models_of_bytes_are_tried_in_each_arithmetic() -> None:
    plain, in_bytes = candidates(), candidates(ModelKind.FULL_INTEGER)
    assert {one.arithmetic for one in plain} == {"auto"}
    assert {(one.device, one.precision, one.arithmetic) for one in in_bytes if one.device == "webgpu"} == {
        ("webgpu", "float32", "float"), ("webgpu", "float32", "integer"), ("webgpu", "float16", "auto"),
        ("webgpu", "auto", "auto"),
    }  # fmt: skip


def test_every_documented_type_is_in_the_table_once() -> None:
    assert len({row.kind for row in MODEL_TYPES}) == len(MODEL_TYPES) == 5
    assert row_of(ModelKind.MIXED) is None and row_of(ModelKind.INTEGER_16X8) is None
    assert [row.model_type for row in MODEL_TYPES if row.takes["Hexagon"]] == [
        "post-training integer",
        "quantization-aware training",
    ]


@pytest.mark.parametrize(("system", "core_ml"), [("linux", "absent"), ("darwin", "not asked")])
def test_what_litegpu_has_of_the_documented_delegates(
    monkeypatch: pytest.MonkeyPatch, without_device: None, system: str, core_ml: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    here = {row.delegate: row.here for row in PLATFORMS}
    assert here == {"GPU": True, "NNAPI": False, "Hexagon": False, "Core ML": system == "darwin", "CPU": True}
    (note,) = (row.note for row in PLATFORMS if row.delegate == "Core ML")
    assert '"coreml"' in note and find("coreml") is not None


def test_who_was_not_asked_is_not_said_to_take_the_model(numpy_delegate: Any) -> None:
    advice = advise(islands(), delegates=[numpy_delegate()])
    assert advice.here["GPU"] == "not asked" and advice.here["CPU"] == "yes"
    assert advice.here["Core ML"] == ("not asked" if sys.platform == "darwin" else "absent")


@pytest.mark.parametrize(
    ("name", "kind", "gpu", "xnnpack"),
    [
        ("mobilenet_v1_1.0_224_random_dynamic.tflite", ModelKind.DYNAMIC_RANGE, (31, 31), (20, 12)),
        ("mobilenet_v1_1.0_224_random_int8.tflite", ModelKind.FULL_INTEGER, (31, 31), (30, 1)),
        ("ssd_mobilenet_v1_coco_quant.tflite", ModelKind.QUANTIZATION_AWARE, (64, 64), (61, 2)),
        ("hair_segmentation.tflite", ModelKind.FLOAT32, (259, 259), (259, 1)),
        ("style_transfer_f16_384.tflite", ModelKind.FLOAT16_WEIGHTS, (285, 285), (266, 16)),
    ],
)
def test_shared_models(
    models_dir: Path, name: str, kind: ModelKind, gpu: tuple[int, int], xnnpack: tuple[int, int], without_device: None
) -> None:
    advice = advise(models_dir / name)
    assert advice.type.kind is kind
    assert (advice.coverages[0].taken, advice.coverages[0].total) == gpu
    assert (advice.coverages[1].taken, advice.coverages[1].partitions) == xnnpack


def test_command(classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                 without_device: None) -> None:  # fmt: skip
    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["litegpu", "advise", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0), capsys.readouterr().out

    status, text = call(str(classifier), "--json")
    found = json.loads(text)
    assert status == 0 and found["type"]["kind"] == "float16_weights"
    assert found["documented"]["this_model"]["Core ML"] is True
    assert found["delegates"][0]["report"]["counts"] == {"GPU": 87, "CPU": 0}
    status, text = call(str(classifier), "--require_full_delegation")
    assert status == 0 and "would take 87 of 87 ops, in 1 partition" in text and "<- this model" in text
    partly = classifier.with_name("islands.tflite")
    partly.write_bytes(islands())
    status, text = call(str(partly), "--require-full-delegation")
    assert status == 1 and "Unheard" in text and "With max_delegated_partitions=0: 5 ops, in 2 partitions" in text


def test_page(tmp_path: Path, without_device: None) -> None:
    advice = advise(islands())
    write_page(advice, islands(), tmp_path / "advice.html")
    page = (tmp_path / "advice.html").read_text()
    assert page.count("<svg") == 1 and "Unheard" in page and "GPU takes" in page and "3/6" in page
    with pytest.raises(OptionError):
        write_page(advice, islands(), tmp_path / "advice.html" / "below")


def test_what_is_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.tflite").write_text("<!DOCTYPE html>")
    with pytest.raises(ModelError, match="HTML"):
        advise(tmp_path / "page.tflite")


def test_a_real_gpu_is_recommended(classifier: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    class _Info:
        name, backend, is_software = "Big GPU", "vulkan", False

    class _Features:
        float16 = True

    class _Device:
        info, features = _Info, _Features

    monkeypatch.setattr(GpuDelegate, "open_device", lambda self: _Device)
    advice = advise(classifier)
    assert advice.recommendation.delegate == "GPU" and advice.here["GPU"] == "yes"
    print_advice(advice)
    assert "GPU on Big GPU (vulkan) would take 87 of 87 ops" in capsys.readouterr().out


def test_node_numbers_join_neighbours() -> None:
    assert node_numbers([3, 1, 2, 7, 9, 10]) == "1-3, 7, 9-10"
    assert node_numbers(range(0, 20, 2), limit=3) == "0, 2, 4 and 7 more"


class _Taking:
    """A delegate that takes ops by name and prepares nothing."""

    name = "taking"
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = sys.maxsize

    def __init__(self, ops: set[str], limit: int = 1) -> None:
        self.ops = ops
        self.max_delegated_partitions = limit

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        return None if operator.name in self.ops else "It is not asked for."

    def prepare(self, partition: Partition) -> _Kernel:
        return _Kernel()


class _Kernel:
    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        raise AssertionError("nothing is run")

    def close(self) -> None:
        pass


def covered(taken: int, *, name: str = "GPU", problem: str | None = None, left: str = "", **more: object) -> Coverage:
    """Of ten ops, those that a delegate takes."""
    others = (Left("ABS", (0,), left),) if left else ()
    return Coverage(name, taken, 10, 1, others, problem=problem, **more)  # type: ignore[arg-type]


def test_who_can_be_used_is_recommended_before_who_would_take_more() -> None:
    found = _recommend([covered(10, name="absent", problem="no device"), covered(4, name="here")])
    assert found.delegate == "here" and "4 of 10 ops; 6 run on the CPU" in found.reasons[0]
    assert _recommend([covered(4, name="few"), covered(9, name="most")]).delegate == "most"
    assert "1 runs on the CPU" in _recommend([covered(9)]).reasons[0]
    assert _recommend([]).delegate == "CPU"
    assert _recommend([covered(0, left="It is odd.")]).reasons == ("GPU would take no op: It is odd.",)


def test_the_extent_is_said_with_its_partitions() -> None:
    assert "in one partition" in _recommend([covered(10)]).reasons[0]
    two = dataclasses.replace(covered(10), partitions=2)
    assert _recommend([two]).reasons[0] == "It would take 10 of 10 ops."
    limited = covered(4, without_limit=(8, 3))
    assert "it would take 8, in 3 partitions" in _recommend([limited]).reasons[1]


def test_a_software_device_is_not_recommended() -> None:
    for software, delegate in ((True, "CPU"), (False, "GPU")):
        assert _recommend([covered(10, device=TargetDevice("Chip", "vulkan", software, True))]).delegate == delegate


def test_what_nobody_knows() -> None:
    assert covered(0, problem="It could not be asked.").unknown
    for known in (covered(0), covered(1, problem="no device"), covered(0, problem="no device", left="It is odd.")):
        assert not known.unknown


def test_the_cpu_s_own_delegate_does_not_make_a_model_delegated(classifier: Path) -> None:
    advice = advise(classifier, delegates=[_Taking({"CONV_2D"}, limit=0)])
    assert advice.coverages[-1].complete and not advice.fully_delegated
    assert advice.here["taking"] == "partly"
    assert advise(classifier, delegates=[_Taking(set())]).here["taking"] == "no"


def test_measured_in_every_way(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each in a process of its own; what a way cannot do is told, and the rest goes on."""
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(tmp_path))
    ways = (Candidate("cpu"), Candidate("reference"), Candidate("reference", "float16"), Candidate("nowhere"))
    asked: list[tuple[str, int, int]] = []
    found = measure(
        classifier, ways=ways, batch=2, progress=lambda one, number, of: asked.append((one.device, number, of))
    )
    assert asked == [(one.device, number, 4) for number, one in enumerate(ways)]
    cpu, exact, half, nowhere = found.measured
    assert cpu.deviation == 0 and exact.deviation is not None and 0 < exact.deviation < 1e-5
    assert half.deviation is not None and exact.deviation < half.deviation < 1e-2
    for one in (cpu, exact, half):
        assert one.latency is not None and one.batch_latency is not None and min(one.batch_latency, one.latency) > 0
        assert one.start is not None and one.start > one.latency and one.memory is not None and one.memory > 20e6
        assert one.delegated == (0 if one is cpu else 1)
    assert nowhere.latency is None and "nowhere" in nowhere.problem
    assert found.best == cpu and found.recommendation[0].startswith("Use CPU, 1 thread: a call takes ")
    assert found.kept is not None and recall(read_model(classifier).content) == found.measured
    advice = litegpu.advise(classifier, measured=found)
    assert advice.recommendation.delegate == "CPU" and advice.recommendation.reasons == found.recommendation
    assert advice.as_dict()["measurement"]["best"] == "CPU, 1 thread"
    print_advice(advice)
    out = capsys.readouterr().out
    assert "Measured on this machine" in out and "reference, float16" in out and "nowhere, float32: " in out
    page = tmp_path / "page.html"
    write_page(advice, classifier, page)
    assert "Measured on this machine" in page.read_text()


def test_a_recommended_way_is_near_the_cpu() -> None:
    ways = [
        Measured(Candidate("cpu"), latency=4e-3, batch=64, batch_latency=64e-3, deviation=0.0),
        Measured(Candidate("cuda"), latency=2e-3, batch=64, batch_latency=3e-3, deviation=1e-6),
        Measured(Candidate("cuda", "float16"), latency=1e-3, batch=64, batch_latency=1e-3, deviation=3e-3),
        Measured(Candidate("webgpu"), latency=1e-4, deviation=float("nan")),
    ]
    found = MeasuredWays(tuple(ways), 1e-2)
    assert found.best == found.best_in_batches == ways[2]
    assert found.recommendation == (
        "Use cuda, float16: a call takes 1 ms, on CPU, 1 thread 4 ms; "
        "its results are 3.0e-03 from the CPU's (relative L2).",
        "It gives the most in batches of 64: 64,000 rows a second.",
    )
    assert MeasuredWays(tuple(ways), 1e-4).best == ways[1]
    assert MeasuredWays(tuple(ways), 1e-9).best == ways[0]
    assert MeasuredWays(ways[3:], 1.0).recommendation == ("Nothing could run the model.",)  # type: ignore[arg-type]


def test_a_trial_that_dies_or_hangs_is_told(classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(tmp_path))
    real = subprocess.run

    def dying(command: Any, **options: Any) -> Any:
        order = json.loads(options["input"])["candidate"]["device"]
        if order == "cuda":
            return SimpleNamespace(returncode=-11, stdout="", stderr="a driver\nfell over\n")
        if order == "webgpu":
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return real(command, **options)

    monkeypatch.setattr("litegpu.tools.advise.measuring.subprocess.run", dying)
    ways = (Candidate("cpu"), Candidate("cuda"), Candidate("webgpu"))
    found = measure(classifier, ways=ways, batch=2, timeout=60)
    assert [one.problem for one in found.measured] == [
        "", "its process ended with status -11: fell over", "not done after 60 s",
    ]  # fmt: skip
    with pytest.raises(litegpu.OptionError):
        measure(classifier, tolerance=0)
    with pytest.raises(litegpu.OptionError):
        measure(classifier, batch=1)
    with pytest.raises(litegpu.ModelError):
        measure(tmp_path / "nothing.tflite")
