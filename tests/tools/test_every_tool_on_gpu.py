"""Every command on a GPU, by the command line: exit status, results that are known, and that the GPU did the work."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, require_gpu, run
from tools.evaluate.image_set import LABELS, ImageSet, make_image_set
from tools.evaluate.test_coco import DetectionSet, detections  # noqa: F401 (a fixture)
from tools.evaluate.test_pose import PoseSet, poses  # noqa: F401
from tools.evaluate.test_segmentation import MaskSet, masks  # noqa: F401

import litegpu
from litegpu import cli, native
from litegpu.tools.images import save_image
from litegpu.zoo import build_model, draw_scene

CLASSES = 10
COMMANDS = {
    *("advise", "analyze", "benchmark", "cache clear", "cache list", "cache verify", "demo", "doctor", "evaluate coco"),
    *("evaluate imagenet", "evaluate pose", "evaluate segmentation", "inference-diff", "map", "models", "run"),
    *("version", "zoo build", "zoo list"),
}
#: The methods of sessions that an inference comes through (see contract.Session, and Caller, PlainCaller and
#: ArrayBinder of abilities). Those that LEAVE one to another way, with nothing done, say so by None.
WAYS = ("run", "call", "call_plain", "call_tensors")
LEAVES = ("call_plain", "call_tensors")


@dataclass
class Gpu:
    """A backend, how often it has run something, and a way to give commands."""

    backend: str
    command: Callable[..., str]
    inferences: int = 0

    def json(self, *arguments: object) -> Any:
        return json.loads(self.command(*arguments))


@pytest.fixture(params=["webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gpu:
    session: Any
    if request.param == "cuda":
        from litegpu.gpu.backends.cuda.opening import available

        if (why := available()) is not None:
            pytest.skip(f"no CUDA device: {why}")
        from litegpu.gpu.backends.cuda.session import CudaSession as session
    else:
        require_gpu()
        from litegpu.gpu.backends.webgpu.device import WebGpuSession as session

    def command(*arguments: object, status: int = 0) -> str:
        words = [str(a) for a in arguments]
        monkeypatch.setattr(sys, "argv", ["litegpu", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert (ended.value.code or 0) == status, captured.out + captured.err
        assert "Traceback" not in captured.err
        return captured.out

    found = Gpu(request.param, command)

    def count(way: str) -> None:
        original = getattr(session, way)

        def counted(self: Any, *arguments: Any, **options: Any) -> Any:
            result = original(self, *arguments, **options)
            found.inferences += way not in LEAVES or result is not None
            return result

        monkeypatch.setattr(session, way, counted)

    for way in WAYS:
        if hasattr(session, way):
            count(way)
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("every_tool") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=CLASSES))
    return path


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return make_image_set(tmp_path_factory.mktemp("every_tool") / "set", 8)


def test_doctor(gpu: Gpu) -> None:
    found = gpu.json("doctor", "--json")
    backends = ("cuda",) if gpu.backend == "cuda" else ("vulkan", "metal", "d3d12", "gl")
    of_backend = [d for d in found["devices"] if d["backend"] in backends]
    assert found["ok"] and of_backend and all(d["problem"] is None for d in of_backend)
    assert gpu.inferences >= len(of_backend)
    text = gpu.command("doctor")
    opened = [d for d in found["devices"] if not d["unusable"]]  # NVIDIA's OpenGL has no compute shaders for wgpu
    assert text.count("self-test: passed") == len(opened) and "FAILED" not in text


def test_what_needs_no_gpu(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    assert gpu.json("version", "--json")["litegpu"]
    assert "mobilenet_v1" in gpu.json("zoo", "list", "--json")
    gpu.command(
        "zoo", "build", "mobilenet_v1", "--width", 0.25, "--resolution", 64, "--classes", 10, "-o", tmp_path / "m"
    )
    assert (tmp_path / "m").read_bytes() == model.read_bytes()
    with zipfile.ZipFile(tmp_path / "b.task", "w") as bundle:
        bundle.write(model, "tiny.tflite")
    (listed,) = gpu.json("models", tmp_path / "b.task", "--json")["models"]
    assert listed["bytes"] == model.stat().st_size
    advice = gpu.json("advise", listed["path"], "--json", "--html", tmp_path / "advice.html")
    assert advice["delegates"][0]["left"] in ([], {}) and "CONV_2D" in (tmp_path / "advice.html").read_text()


def test_analyze(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    found = gpu.json(
        "analyze", model, "--measure", "--rates", "H200", "--device", gpu.backend, "--json",
        "--html", tmp_path / "a.html", "--model-explorer", tmp_path / "a.json",
        "--annotated", tmp_path / "a.tflite",
    )  # fmt: skip
    assert gpu.inferences >= 6 and found["measured"] > 0 and {op["owner"] for op in found["ops"]} == {"GPU"}
    timed = [op["measured"] for op in found["ops"] if op["measured"] is not None]
    assert found["notes"] or (len(timed) >= 29 and all(time > 0 for time in timed))
    assert all((tmp_path / name).stat().st_size for name in ("a.html", "a.json"))
    assert gpu.json("run", tmp_path / "a.tflite", "--device", gpu.backend, "--json")["verdict"]["agrees"]


def test_run(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    save_image(tmp_path / "scene.png", draw_scene(80, 100, 3))
    (tmp_path / "labels.txt").write_text("\n".join(f"thing {i}" for i in range(CLASSES)))
    found = gpu.json(
        "run", model, "--image", tmp_path / "scene.png", "--labels", tmp_path / "labels.txt", "--device", gpu.backend,
        "-o", tmp_path / "out.png", "--html", tmp_path / "run.html", "--json",
    )  # fmt: skip
    assert gpu.inferences >= 2 and found["delegation"]["counts"]["GPU"] == 31
    assert found["verdict"]["agrees"] and found["verdict"]["tells"] and 0 <= found["worst_relative_l2"] <= 1e-5
    alone = gpu.json("run", model, "--image", tmp_path / "scene.png", "--device", "cpu", "-o", tmp_path, "--json")
    top, wanted = (f["inferences"][0]["result"]["top"] for f in (found, alone))
    assert [e["index"] for e in top] == [e["index"] for e in wanted] and top[0]["label"] == f"thing {top[0]['index']}"
    assert [e["score"] for e in top] == pytest.approx([e["score"] for e in wanted], rel=1e-4)
    assert (tmp_path / "out.png").stat().st_size > 1000 and "thing" in (tmp_path / "run.html").read_text()
    half = gpu.json("run", model, "--device", gpu.backend, "--precision", "float16", "--json")
    assert half["verdict"]["agrees"] and half["worst_relative_l2"] <= 1e-2


@pytest.mark.parametrize("library", ["native library", "no library"])
def test_work_of_the_cpu_is_not_counted(gpu: Gpu, model: Path, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the other tests could not fail; and the GPU's is, by whatever way it goes."""
    if library == "no library":
        monkeypatch.setattr(native, "find", lambda: None)
    elif native.build() is None:
        pytest.skip(f"no native library: {native.problem()}")
    flags = (f"--graph={model}", "--num_runs=5", "--min_secs=0", "--warmup_min_secs=0", "--warmup_runs=1", "--json")
    on_gpu = (*flags, "--use_gpu=true", f"--gpu_backend={gpu.backend}")
    assert gpu.json("benchmark", *on_gpu)["delegation"]["counts"] == {"GPU": 31, "CPU": 0}
    assert gpu.inferences == 6
    gpu.json("benchmark", *flags)
    assert gpu.inferences == 6
    monkeypatch.setattr(litegpu.GpuDelegate, "check", lambda *_: "no")
    assert gpu.json("benchmark", *on_gpu)["delegation"]["counts"] == {"GPU": 0, "CPU": 31}
    assert gpu.inferences == 6


def test_demo(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    text = gpu.command("demo", model, "-o", tmp_path / "demo")
    assert "31/31 ops on GPU" in text and "within 1e-05 for float32" in text
    assert {p.name for p in (tmp_path / "demo").iterdir()} == {"scene.png", "scene-tiny.png"}


def test_inference_diff(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    found = gpu.json(
        "inference-diff", model, "--num_runs=2", f"--gpu_backend={gpu.backend}", "--precision=float32", "--per-op",
        "--max_relative_error=1e-5", "--html", tmp_path / "d.html", "--plots", tmp_path, "--json",
        "--output_file_path", tmp_path / "metrics",
    )  # fmt: skip
    assert gpu.inferences >= 6 and found["passed"] and found["per_op"]["culprit"] is None
    assert 0 < found["worst_relative_l2"] <= 1e-5 and len(found["per_op"]["nodes"]) >= 29
    assert all((tmp_path / name).stat().st_size for name in ("d.html", "metrics", "per-op.png"))
    gpu.command(
        "inference-diff", model, "--num_runs=1", f"--gpu_backend={gpu.backend}", "--max_relative_error=0", status=1
    )


def test_benchmark(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    flags = [f"--graph={model}", "--num_runs=5", "--min_secs=0", "--warmup_min_secs=0", f"--gpu_backend={gpu.backend}"]
    found = gpu.json(
        "benchmark", *flags, "--use_gpu=true", "--enable_op_profiling=true", f"--trace={tmp_path / 't.json'}",
        f"--html={tmp_path / 'b.html'}", f"--result_file_path={tmp_path / 'r.pb'}", f"--plot={tmp_path}", "--json",
    )  # fmt: skip
    assert gpu.inferences >= 6 and found["delegation"]["counts"]["GPU"] == 31
    assert all((tmp_path / name).stat().st_size for name in ("b.html", "r.pb", "times.png"))
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    text = gpu.command("benchmark", *flags, "--use_gpu=true")
    assert re.search(r"INFO: Inference timings in us: Init: \d+, First inference: \d+", text)
    compared = gpu.json("benchmark", *flags[:4], f"--compare=cpu,{gpu.backend}", "--json")
    assert len(compared["results"]) == 2


def test_map(gpu: Gpu, model: Path, images: ImageSet, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    array = np.random.default_rng(0).uniform(-1, 1, (6, 64, 64, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", array)
    report = gpu.json(
        "map", model, tmp_path / "x.npy", "--out", tmp_path / "o.parquet", "--device", gpu.backend, "--batch", 2,
        "--html", tmp_path / "map.html", "--json",
    )  # fmt: skip
    assert report["inputs"] == 6 and report["failed"] == 0 and gpu.inferences >= 1
    rows = np.array(parquet.read_table(tmp_path / "o.parquet").column(3).to_pylist()).reshape(6, -1)
    reference = official(model)
    wanted = np.stack([run(reference, [row[None]])[0].reshape(-1) for row in array])
    assert np.linalg.norm(rows - wanted) <= 1e-5 * np.linalg.norm(wanted)


def both(gpu: Gpu, *arguments: object) -> tuple[Any, Any]:
    """The results of an evaluation on the CPU and on the GPU."""
    before = gpu.inferences
    wanted = gpu.json("evaluate", *arguments, "--delegate=cpu", "--workers=0", "--json")
    assert gpu.inferences == before
    found = gpu.json("evaluate", *arguments, f"--delegate={gpu.backend}/float32", "--workers=0", "--json")
    assert gpu.inferences > before and len(numbers(wanted)) > 3
    return found, wanted


def numbers(value: Any) -> list[float]:
    """Of accuracies, at any depth; what depends on the time left out."""
    if isinstance(value, dict):
        left_out = ("collected", "seconds", "images_per_second", "preprocessing_us", "inference_us", "delegation")
        return [n for key, item in value.items() if key not in left_out for n in numbers(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers(item)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_evaluate_imagenet(gpu: Gpu, images: ImageSet, tmp_path: Path) -> None:
    task = images.task()
    found, wanted = both(
        gpu, "imagenet", f"--model_file={task.model_file}", f"--ground_truth_images_path={images.images}",
        f"--ground_truth_labels={task.ground_truth_labels}", f"--model_output_labels={task.model_output_labels}",
        "--batch=1",
    )  # fmt: skip
    assert numbers(found) == pytest.approx(numbers(wanted)) and len(LABELS) > 1


def test_evaluate_coco(gpu: Gpu, detections: DetectionSet) -> None:  # noqa: F811
    task = detections.task()
    found, wanted = both(
        gpu, "coco", f"--model_file={task.model_file}", f"--annotations={task.annotations}", "--batch=1",
        f"--ground_truth_images_path={task.ground_truth_images_path}",
    )  # fmt: skip
    assert numbers(found) == pytest.approx(numbers(wanted), rel=1e-3)


@pytest.mark.slow
def test_evaluate_segmentation(gpu: Gpu, masks: MaskSet) -> None:  # noqa: F811
    task = masks.task()
    found, wanted = both(
        gpu, "segmentation", f"--model_file={task.model_file}",
        f"--ground_truth_images_path={task.ground_truth_images_path}",
        f"--ground_truth_masks_path={task.ground_truth_masks_path}", "--batch=1",
    )  # fmt: skip
    assert numbers(found) == pytest.approx(numbers(wanted), rel=1e-2)


@pytest.mark.slow
def test_evaluate_pose(gpu: Gpu, poses: PoseSet) -> None:  # noqa: F811
    task = poses.task()
    found, wanted = both(
        gpu, "pose", f"--model_file={task.model_file}", f"--ground_truth_images_path={task.ground_truth_images_path}",
        f"--annotations={task.annotations}", "--batch=1",
    )  # fmt: skip
    assert numbers(found) == pytest.approx(numbers(wanted), rel=1e-3)


def test_cache(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    flags = (f"--graph={model}", "--use_gpu=true", f"--gpu_backend={gpu.backend}", "--num_runs=1", "--min_secs=0")
    (tmp_path / "cache").mkdir()
    gpu.command("benchmark", *flags, f"--delegate_serialize_dir={tmp_path / 'cache'}")
    assert len(gpu.json("cache", "list", tmp_path / "cache", "--json")["entries"]) == 1
    assert gpu.json("cache", "verify", tmp_path / "cache", "--json")["damaged"] == 0
    assert gpu.json("cache", "clear", tmp_path / "cache", "--json")["removed"] == 1


def test_no_command_is_left_out() -> None:
    """Of those that there are; the tests above have to give each of them."""
    from litegpu.cli.application import app

    there = {c.name or c.callback.__name__.rstrip("_") for c in app.registered_commands if c.callback is not None}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        there |= {
            f"{group.name}" + f" {c.name or _own(c, group.name)}" for c in group.typer_instance.registered_commands
        }
    assert there == COMMANDS


def _own(command: Any, group: str | None) -> str:
    return str(command.callback.__name__).removeprefix(f"{group}_")
