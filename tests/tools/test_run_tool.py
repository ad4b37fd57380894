"""`litegpu run` as a function: devices, comparison with the CPU, drawings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT32, require_gpu

from litegpu.errors import OptionError
from litegpu.tools.agreement import compare
from litegpu.tools.demo import demonstrate
from litegpu.tools.images import load_image, save_image
from litegpu.tools.run import run_model
from litegpu.tools.run_page import write_page
from litegpu.tools.run_text import print_report
from litegpu.tools.tasks import Classification, Segmentation
from litegpu.zoo import build_model, draw_scene


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=10))
    return path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    save_image(tmp_path / "scene.png", draw_scene(90, 120, 3))
    return tmp_path / "scene.png"


def test_cpu_run_with_a_picture(model: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"thing {i}" for i in range(10)))
    report = run_model(model, [picture], labels=labels, device="cpu", output=tmp_path / "new" / "out.png")
    assert report.device == "CPU" and report.cpu is None and report.worst == 0
    (inference,) = report.inferences
    assert isinstance(inference.result, Classification) and len(inference.result.top) == 5
    assert inference.drawing == str(tmp_path / "new" / "out.png")
    assert load_image(inference.drawing).shape == (480, 640, 3)
    print_report(report)
    text = capsys.readouterr().out
    assert inference.result.top[0].label in text and "31 ops on the CPU" in text
    assert json.loads(json.dumps(report.as_dict()))["inferences"][0]["task"] == "classification"
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert inference.result.top[0].label in page and "data:image/png;base64," in page and "31 ops on the CPU" in page


def test_gpu_agrees_with_the_cpu_without_being_identical(
    model: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_gpu()
    report = run_model(model, [picture, picture], device="webgpu", output=tmp_path)
    assert report.delegation.fully_delegated and report.cpu is not None
    assert len(report.inferences) == 2
    assert 0 < report.worst <= FLOAT32 and report.agrees and not report.suspicious
    assert report.inferences[0].decision == "top-5 equal"
    print_report(report)
    assert "within 1e-05 for float32" in capsys.readouterr().out


def test_automatic_precision_is_judged_as_float16(model: Path) -> None:
    require_gpu()
    assert run_model(model, device="webgpu", precision="auto").agrees


def test_bit_identical_results_are_suspicious(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    report = run_model(model, device="webgpu")
    same = tuple(
        replace(inference, agreement=tuple(compare(a.output, np.ones(3), np.ones(3)) for a in inference.agreement))
        for inference in report.inferences
    )
    copied = replace(report, inferences=same)
    assert copied.suspicious and not copied.agrees
    print_report(copied)
    assert "bit-identical to the CPU: suspicious" in capsys.readouterr().out


def test_agreement_sees_nan_and_differences() -> None:
    want = np.array([3.0, 4.0], np.float32)
    near = compare("a", np.array([3.0, 4.5], np.float32), want)
    assert near.relative_l2 == pytest.approx(0.1) and near.max_abs == pytest.approx(0.5) and not near.identical
    assert compare("a", want.copy(), want).identical
    assert compare("a", np.array([3, np.nan], np.float32), want).relative_l2 == np.inf
    assert compare("a", np.array([3, np.nan]), np.array([3, np.nan])).relative_l2 == 0
    assert compare("a", want, np.array([3, np.inf], np.float32)).relative_l2 == np.inf


def test_mistakes_are_named(model: Path, picture: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="give a folder"):
        run_model(model, [picture, picture], device="cpu", output=tmp_path / "one.png")
    with pytest.raises(OptionError, match="No such file"):
        run_model(model, [tmp_path / "absent.png"], device="cpu")


def test_deeplab_segments_the_cat(models_dir: Path, images_dir: Path, tmp_path: Path) -> None:
    require_gpu()
    report = run_model(
        models_dir / "deeplabv3_257_mv_gpu.tflite",
        [images_dir / "cat.bmp"],
        labels=models_dir / "pascal_voc_segmentation_labels.txt",
        output=tmp_path / "cat.png",
    )
    assert report.delegation.delegated == 70 and len(report.delegation.partitions) == 1
    assert report.agrees
    result = report.inferences[0].result
    assert isinstance(result, Segmentation)
    assert [entry.label for entry in result.shares[:2]] == ["background", "cat"]
    assert 0.3 < result.shares[1].score < 0.42
    # The cat sits in the left half, below the middle.
    mask = result.mask == 8
    assert mask[200, 100] and not mask[20, 20] and not mask[100, 240]
    assert (tmp_path / "cat.png").stat().st_size > 10_000


def test_custom_ops_agree_with_the_official_runtime(models_dir: Path) -> None:
    require_gpu()
    report = run_model(models_dir / "hair_segmentation.tflite", device="webgpu")
    assert report.delegation.fully_delegated
    assert all(a.relative_l2 <= 1e-5 for a in report.inferences[0].agreement)


def test_a_model_without_pictures_says_so(models_dir: Path, picture: Path) -> None:
    with pytest.raises(OptionError, match="takes no picture"):
        run_model(models_dir / "ad01_fp32.tflite", [picture], device="cpu")


def test_demo_draws_its_own_picture(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demonstrate(model, output=tmp_path / "demo")
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"scene.png", "scene-tiny.png"}
    assert "ops on" in capsys.readouterr().out
