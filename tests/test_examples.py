"""The examples, each against what the same steps give without it; every one has a test here, and is in the guide."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from PIL import Image

import litegpu
from litegpu.zoo import build_model, draw_scene

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """example(name) is the module; example(name, *arguments) is what it prints when it is run with them."""

    def run(name: str, *arguments: object) -> ModuleType | str:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if not arguments:
            return module
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        module.main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    path = tmp_path / "photograph.png"
    Image.fromarray(draw_scene(90, 120, 3)).save(path)
    return path


@pytest.fixture(params=["cpu", "webgpu"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "webgpu":
        require_gpu()
    return str(request.param)


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    path = tmp_path / "classifier.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=7))
    return path


def test_all_are_listed_tested_and_explained() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    guide = (ROOT / "docs" / "guide" / "index.md").read_text()
    assert sorted(re.findall(r"\]\(../../examples/(\w+\.py)\)", guide)) == names
    tests = Path(__file__).read_text()
    for name in names:
        assert f"\n    python examples/{name} " in (EXAMPLES / name).read_text(), f"{name} says how to run it"
        assert f"def test_{name.removesuffix('.py')}(" in tests


def test_classify_stream(example: Any, device: str, classifier: Path, photograph: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"thing {i}\n" for i in range(7)))
    out = example("classify_stream", classifier, photograph, "--frames", 5, "--device", device, "--labels", labels)
    windows = list(example("classify_stream").pan(str(photograph), 5))
    assert [window.size for window in windows] == [(67, 67)] * 5
    np.testing.assert_array_equal(windows[-1], np.asarray(Image.open(photograph))[-67:, -67:])
    with litegpu.load(str(classifier), "cpu") as model:
        for number, (line, window) in enumerate(zip(out.splitlines(), windows, strict=True)):
            pixels = np.asarray(window.resize((32, 32), Image.Resampling.BILINEAR), np.float32)[None]
            assert line == f"frame {number:3}: thing {model(pixels / 127.5 - 1).argmax()}"


def test_classify_stream_of_a_photograph(example: Any, models_dir: Path, images_dir: Path) -> None:
    files = models_dir / "mobilenet_v2_1.0_224_quant.tflite", images_dir / "parrot.jpg"
    labels = models_dir / "imagenet_labels.txt"
    out = example("classify_stream", *files, "--labels", labels, "--frames", 3, "--device", "cpu")
    assert [line.partition(": ")[2] for line in out.splitlines()] == ["macaw"] * 3


def test_detect_boxes(example: Any, device: str, photograph: Path, tmp_path: Path) -> None:
    model, result, labels = tmp_path / "ssd.tflite", tmp_path / "boxes.png", tmp_path / "labels.txt"
    model.write_bytes(build_model("ssd_mobilenet_v1", width=0.25, resolution=64, classes=9, max_detections=4))
    labels.write_text("???\n" + "".join(f"thing {i}\n" for i in range(9)))
    options = ["--device", device, "--labels", labels]
    out = example("detect_boxes", model, photograph, result, "--threshold", 0, *options)
    pixels = np.asarray(Image.open(photograph).resize((64, 64), Image.Resampling.BILINEAR), np.float32)[None]
    with litegpu.load(str(model), "cpu") as on_cpu:
        _, classes, scores, _ = on_cpu(pixels / 127.5 - 1).values()
    printed = re.findall(r"thing (\d): (\d\.\d\d)\n", out)
    assert [int(c) for c, _ in printed] == classes[0].tolist()
    np.testing.assert_allclose([float(score) for _, score in printed], scores[0], atol=0.006)
    assert np.any(np.asarray(Image.open(result)) != np.asarray(Image.open(photograph)))

    assert len(example("detect_boxes", model, photograph, result, "--threshold", 1.1, *options).splitlines()) == 1
    np.testing.assert_array_equal(Image.open(result), Image.open(photograph))


def test_detect_boxes_draws_where_they_are(example: Any) -> None:
    picture = Image.new("RGB", (101, 201))
    example("detect_boxes").draw(picture, np.array([0.25, 0.1, 0.75, 2.0]), "", (255, 0, 0))
    red = np.argwhere(np.asarray(picture)[..., 0] == 255)
    assert (*red.min(0), *red.max(0)) == (50, 10, 150, 100)


def test_detect_boxes_of_a_photograph(example: Any, models_dir: Path, images_dir: Path, tmp_path: Path) -> None:
    files = models_dir / "ssd_mobilenet_v1_coco_quant.tflite", images_dir / "cat.bmp", tmp_path / "boxes.png"
    out = example("detect_boxes", *files, "--labels", models_dir / "coco_labelmap.txt", "--device", "cpu")
    assert [line.partition(":")[0] for line in out.splitlines()[1:]] == ["cat"]


def test_official_interpreter(example: Any, classifier: Path) -> None:
    try:
        litegpu.external_delegate_path()
    except litegpu.DelegateError as error:
        pytest.skip(str(error))
    out = example("official_interpreter", classifier, "--backend", "reference", "--runs", 1)
    assert out.splitlines()[0] == "largest difference 0"
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["official", "litegpu"]


def test_custom_op(example: Any, device: str, photograph: Path, tmp_path: Path) -> None:
    try:
        out = example("custom_op", photograph, tmp_path / "embossed.png", "--device", device, "--depth", 1.5)
    finally:
        litegpu.unregister_op("Emboss")
    assert out.startswith("2/2 ops on GPU in 1 partition\n" if device == "webgpu" else "all 2 ops on the CPU")
    assert float(out.split()[-1]) <= 1e-6
    grey = np.asarray(Image.open(photograph).convert("L"), np.float64) / 255
    expected = np.full_like(grey, np.nan)
    for y, x in np.ndindex(grey.shape):
        expected[y, x] = 0.5 + 1.5 * (grey[y, x] - grey[max(y - 1, 0), max(x - 1, 0)])
    drawn = np.asarray(Image.open(tmp_path / "embossed.png"), np.float64)
    assert np.abs(drawn - 255 * np.clip(expected, 0, 1)[..., None]).max() < 0.51


def test_product_delegate(example: Any, classifier: Path, photograph: Path) -> None:
    out = example("product_delegate", classifier, photograph)
    assert "14/31 ops on products in 14 partitions" in out
    assert out.count("Only constant windows of 1x1 can be multiplied.") == 2, "the first layer, and the summary"
    assert float(out.split()[-1]) <= 1e-5
    assert isinstance(example("product_delegate").ProductDelegate(), litegpu.DelegateProtocol)


@pytest.mark.cuda
def test_torch_tensors(example: Any, classifier: Path, photograph: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU with CUDA")
    out = example("torch_tensors", classifier, photograph, "--top", 7)
    found = dict(re.findall(r"class (\d): (\d\.\d+)", out))
    pixels = np.asarray(Image.open(photograph).resize((32, 32), Image.Resampling.BILINEAR), np.float32)[None]
    with litegpu.load(str(classifier), "cpu") as model:
        expected = model(pixels / 127.5 - 1).flatten()
    # Pillow rounds what it scales to whole pixels.
    np.testing.assert_allclose([float(found[str(i)]) for i in range(7)], expected, atol=0.02)


def test_torch_tensors_says_what_is_missing(classifier: Path, photograph: Path) -> None:
    hidden = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    command = [sys.executable, "-c", hidden, str(EXAMPLES / "torch_tensors.py"), str(classifier), str(photograph)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("PyTorch is not installed") and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_segmentation_overlay(
    example: Any, models_dir: Path, images_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drawing is what the scores, read back by the test alone, say; the example reads nothing but the drawing."""
    module = example("segmentation_overlay")
    seen: dict[str, Any] = {}
    draw = module.draw

    def spy(device: Any, photograph: Any, scores: Any, *shape: int) -> Any:
        seen.update(scores=np.frombuffer(device.queue.read_buffer(scores), np.float32).reshape(shape))
        with monkeypatch.context() as patch:
            patch.setattr(type(device.queue), "read_buffer", None)
            return draw(device, photograph, scores, *shape)

    module.draw = spy
    module.main(str(models_dir / "deeplabv3_257_mv_gpu.tflite"), str(images_dir / "cat.bmp"), str(tmp_path / "o.png"))
    photograph = np.asarray(Image.open(images_dir / "cat.bmp").convert("RGB"))
    drawn = np.asarray(Image.open(tmp_path / "o.png"))
    height, width, _ = photograph.shape
    mask = seen["scores"].argmax(-1)
    rows, columns = np.arange(height) * mask.shape[0] // height, np.arange(width) * mask.shape[1] // width
    tinted = mask[rows][:, columns] != 0
    assert 0.2 < tinted.mean() < 0.6, "the cat"
    np.testing.assert_array_equal(drawn[~tinted], photograph[~tinted])
    cat = np.array([64, 0, 0])  # class 8
    expected = 0.4 * photograph[tinted] + 0.6 * cat
    assert np.mean(np.abs(drawn[tinted] - expected).max(-1) <= 1) > 0.99
