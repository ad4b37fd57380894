"""`litegpu evaluate segmentation`: IoU against a calculation by hand, and what can be wrong."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from pages import check_self_contained
from PIL import Image
from tools.evaluate.image_set import resized_officially, run_officially
from tools.evaluate.interruption import interrupted_and_resumed
from typer.testing import CliRunner

from litegpu.cli.application import app
from litegpu.errors import OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.tools.evaluate.choice import parse_choice
from litegpu.tools.evaluate.collecting import ImageError, Running
from litegpu.tools.evaluate.segmentation import CountPixels, SegmentationTask, evaluate_segmentation, iou_by_class
from litegpu.tools.evaluate.segmentation_presentation import SegmentationPresentation
from litegpu.zoo import build_model, draw_scene

HERE = Running(workers=0)
SIDE, CLASSES, COUNT = 65, 5, 8


@dataclass(frozen=True)
class MaskSet:
    """`matrices`: pixels [true class, class of the model] of each image, by the official runtime and NumPy; `matrix`:
    of all."""

    folder: Path
    matrices: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        return np.asarray(self.matrices.sum(axis=0))

    def task(self, **changes: Any) -> SegmentationTask:
        files = {
            "model_file": str(self.folder / "model.tflite"),
            "ground_truth_images_path": str(self.folder / "images"),
            "ground_truth_masks_path": str(self.folder / "masks"),
        }
        return SegmentationTask(**(files | changes))


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> MaskSet:
    folder = tmp_path_factory.mktemp("segmentation")
    (folder / "images").mkdir()
    (folder / "masks").mkdir()
    content = build_model("deeplab_v3", resolution=SIDE, classes=CLASSES, width=0.25)
    (folder / "model.tflite").write_bytes(content)
    rng = np.random.default_rng(1)
    matrices = np.zeros((COUNT, CLASSES, CLASSES), np.int64)
    for i in range(COUNT):
        height, width = (int(n) for n in rng.integers(40, 120, 2))
        pixels = draw_scene(height, width, i)
        Image.fromarray(pixels).save(folder / "images" / f"scene{i}.png")
        feed = (resized_officially(pixels, SIDE, SIDE) - 127.5) / 127.5
        scores = run_officially(content, feed[None].astype(np.float32))[0][0]
        found = resized_officially(scores, height, width, half_pixel=True).argmax(axis=2)
        # The truth is what is found, but for a block of another class and one that does not count.
        mask = found.astype(np.uint8)
        mask[: height // 3] = i % (CLASSES - 1)
        mask[-height // 4 :, : width // 2] = 255
        Image.fromarray(mask).save(folder / "masks" / f"scene{i}.png")
        for truth in range(CLASSES):
            for other in range(CLASSES):
                matrices[i, truth, other] = int(((mask == truth) & (found == other)).sum())
    return MaskSet(folder, matrices)


def iou_by_hand(matrix: np.ndarray) -> list[float]:
    values = []
    for c in range(len(matrix)):
        union = matrix[c].sum() + matrix[:, c].sum() - matrix[c, c]
        values.append(matrix[c, c] / union if union else np.nan)
    return values


def test_iou_is_that_of_a_calculation_by_hand(masks: MaskSet) -> None:
    report = evaluate_segmentation(masks.task(), HERE)
    assert np.abs(report.result.matrix - masks.matrix).sum() <= 2  # pixels whose two best scores are nearly equal
    wanted = iou_by_hand(masks.matrix)
    got = [np.nan if c.iou is None else c.iou for c in report.result.classes]
    np.testing.assert_allclose(got, wanted, atol=1e-4)
    assert report.result.mean_iou == pytest.approx(np.nanmean(wanted), abs=1e-4)
    assert report.result.pixel_accuracy == pytest.approx(np.trace(masks.matrix) / masks.matrix.sum(), abs=1e-4)
    assert 0.1 < report.result.mean_iou < 0.95
    by_image = {f"scene{i}.png": np.nanmean(iou_by_hand(matrix)) for i, matrix in enumerate(masks.matrices)}
    assert {i.name: i.iou for i in report.result.images} == pytest.approx(by_image, abs=1e-3)
    assert [i.name for i in report.result.images] == sorted(by_image, key=by_image.__getitem__)


def test_workers_batches_and_resuming_change_nothing(masks: MaskSet, tmp_path: Path) -> None:
    running = Running(batch=3, workers=2, output=str(tmp_path / "out"))
    evaluate_segmentation(masks.task(num_images=3), running)
    report = evaluate_segmentation(masks.task(), running)
    assert report.result.collected.reused == 3
    assert np.abs(report.result.matrix - masks.matrix).sum() <= 2


def test_two_delegates(masks: MaskSet, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    running = Running(parse_choice("cpu"), parse_choice("webgpu/float32"), workers=0, batch=2)
    report = evaluate_segmentation(masks.task(num_images=2), running)
    assert report.comparison is not None
    matrix = masks.matrices[:2].sum(axis=0)
    assert np.abs(report.result.matrix - matrix).sum() <= 2
    assert np.abs(report.comparison.matrix - matrix).sum() <= 2
    assert report.comparison.mean_iou == pytest.approx(np.nanmean(iou_by_hand(matrix)), abs=1e-3)
    SegmentationPresentation().print(report)
    assert "compared with webgpu/float32" in capsys.readouterr().out


def test_upsampling_of_classes_and_class_numbers() -> None:
    mask = np.array([[0, 0, 1, 1], [0, 255, 1, 2]], np.uint8)
    scores = np.array([[[0.9, 0.1, 0], [0, 0.8, 0.2]]], np.float32)  # one row of two pixels: classes 0 and 1
    wanted = [[0, 0, 3], [1, 1, 3], [2, 1, 1]]
    read = CountPixels(3, 255, "nearest")
    assert read([scores[None]], {"mask": mask})["pairs"] == wanted
    numbers = np.array([[[0, 1]]], np.int64)
    assert read([numbers], {"mask": mask})["pairs"] == wanted
    assert read([numbers[..., None]], {"mask": mask})["pairs"] == wanted
    with pytest.raises(OptionError, match="A mask has class 2, but the model tells 2"):
        CountPixels(2, 255, "nearest")([numbers], {"mask": mask})


def test_classes_that_do_not_occur_do_not_count() -> None:
    found = iou_by_class(np.array([[4, 1, 0], [2, 3, 0], [0, 0, 0]]), ["a", "b", "c"])
    assert [c.iou for c in found] == [4 / 7, 3 / 6, None]


def test_masks_of_which_nothing_counts_have_no_iou(masks: MaskSet, tmp_path: Path) -> None:
    for path in (masks.folder / "masks").iterdir():
        Image.fromarray(np.full_like(np.array(Image.open(path)), 255)).save(tmp_path / path.name)
    with pytest.raises(OptionError, match=f"No pixel of the {COUNT} masks counts"):
        evaluate_segmentation(masks.task(ground_truth_masks_path=str(tmp_path)), HERE)


def test_what_does_not_fit_is_named(masks: MaskSet, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is no folder"):
        evaluate_segmentation(masks.task(ground_truth_masks_path=str(tmp_path / "absent")), HERE)
    with pytest.raises(OptionError, match=r"8 masks are missing, such as .*scene0\.png"):
        evaluate_segmentation(masks.task(ground_truth_masks_path=str(tmp_path)), HERE)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    with pytest.raises(OptionError, match="has 2 labels, but the model 5 classes"):
        evaluate_segmentation(masks.task(model_output_labels=str(tmp_path / "labels.txt")), HERE)
    with pytest.raises(OptionError, match="'cubic' is unknown"):
        masks.task(upsampling="cubic")
    (tmp_path / "masks").mkdir()
    for i in range(COUNT):
        Image.new("L", (7, 9)).save(tmp_path / "masks" / f"scene{i}.png")
    task = masks.task(ground_truth_masks_path=str(tmp_path / "masks"))
    with pytest.raises(ImageError, match="but its mask is 7x9"):
        evaluate_segmentation(task, HERE)
    Image.new("RGB", (7, 9)).save(tmp_path / "masks" / "scene0.png")
    with pytest.raises(ImageError, match="one channel is needed"):
        evaluate_segmentation(task, HERE)
    with pytest.raises(ImageError, match=f"None of the {COUNT} images can be read"):
        evaluate_segmentation(task, replace(HERE, skip_errors=True))


def test_models_of_another_kind_are_refused(masks: MaskSet, tmp_path: Path) -> None:
    builder = ModelBuilder()
    image = builder.input("image", (1, 8, 8, 3))
    builder.output(builder.op("MEAN", [image, builder.constant(np.array([1, 2], np.int32))], (1, 3)))
    (tmp_path / "model.tflite").write_bytes(builder.build())
    with pytest.raises(OptionError, match=r"no segmentation network that is known.*\[1, 3\]"):
        evaluate_segmentation(masks.task(model_file=str(tmp_path / "model.tflite")), HERE)


def test_command_writes_its_files(masks: MaskSet, tmp_path: Path) -> None:
    task = masks.task()
    names = ("model_file", "ground_truth_images_path", "ground_truth_masks_path")
    arguments = ["evaluate", "segmentation", "--workers=0", *(f"--{n}={getattr(task, n)}" for n in names)]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "out"), "--min-iou=0.99"])
    assert result.exit_code == 1 and "the mean IoU" in result.stderr
    wanted = float(np.nanmean(iou_by_hand(masks.matrix)))
    (line,) = (line for line in result.output.splitlines() if line.startswith("Mean IoU: "))
    assert float(line.split()[-1]) == pytest.approx(wanted, abs=1e-4)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["mean_iou"] == pytest.approx(wanted, abs=1e-4)
    text = "".join(check_self_contained((tmp_path / "out" / "report.html").read_text()).text)
    assert "pixel accuracy" in text and "IoU by class" in text


@pytest.mark.skipif(os.name != "posix", reason="needs signals to a group of processes")
def test_an_interrupted_evaluation_goes_on(masks: MaskSet, tmp_path: Path) -> None:
    images = shutil.copytree(masks.folder / "images", tmp_path / "images")
    task = masks.task(ground_truth_images_path=str(images))
    names = ("model_file", "ground_truth_images_path", "ground_truth_masks_path")
    arguments = ["segmentation", *(f"--{n}={getattr(task, n)}" for n in names)]
    report = interrupted_and_resumed(arguments, images / "scene5.png", tmp_path / "out", 0)
    assert report["images"] == COUNT
    assert report["mean_iou"] == pytest.approx(np.nanmean(iou_by_hand(masks.matrix)), abs=1e-4)
