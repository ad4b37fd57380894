"""`litegpu evaluate pose`: similarities and precisions against pycocotools itself, and what can be wrong."""

from __future__ import annotations

import contextlib
import copy
import io
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
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tools.evaluate.image_set import resized_officially, run_officially
from tools.evaluate.interruption import interrupted_and_resumed
from typer.testing import CliRunner

from litegpu.cli.application import app
from litegpu.errors import OptionError
from litegpu.tools.evaluate.choice import parse_choice
from litegpu.tools.evaluate.coco_truth import TrueObject
from litegpu.tools.evaluate.collecting import Running
from litegpu.tools.evaluate.pose import PoseTask, evaluate_pose, similarities
from litegpu.tools.evaluate.pose_presentation import PosePresentation
from litegpu.zoo import build_model, draw_scene

HERE = Running(workers=0)
SIDE, COUNT = 97, 12


@dataclass(frozen=True)
class PoseSet:
    """`results` are COCO's, by the official runtime and NumPy, of all images; `single`: ids of those with one."""

    folder: Path
    results: list[dict[str, Any]]
    single: list[int]

    def task(self, **changes: Any) -> PoseTask:
        files = {
            "model_file": str(self.folder / "model.tflite"),
            "ground_truth_images_path": str(self.folder / "images"),
            "annotations": str(self.folder / "keypoints.json"),
        }
        return PoseTask(**(files | changes))


def found_officially(content: bytes, pixels: np.ndarray, id_: int) -> dict[str, Any]:
    height, width = pixels.shape[:2]
    feed = (resized_officially(pixels, SIDE, SIDE) - 127.5) / 127.5
    heat, offsets = (a[0] for a in run_officially(content, feed[None].astype(np.float32))[:2])
    keypoints = []
    for k in range(17):
        row, column = np.unravel_index(heat[:, :, k].argmax(), heat.shape[:2])
        stride = (SIDE - 1) / (heat.shape[0] - 1)
        y, x = row * stride + offsets[row, column, k], column * stride + offsets[row, column, 17 + k]
        keypoints += [x / SIDE * width, y / SIDE * height, 1 / (1 + np.exp(-heat[row, column, k]))]
    entry = {"image_id": id_, "category_id": 1, "score": float(np.mean(keypoints[2::3]))}
    return entry | {"keypoints": [float(v) for v in keypoints]}


@pytest.fixture(scope="module")
def poses(tmp_path_factory: pytest.TempPathFactory) -> PoseSet:
    """Drawn scenes, a network of seeded weights, and people near what it finds; some images have two or none."""
    folder = tmp_path_factory.mktemp("pose")
    (folder / "images").mkdir()
    content = build_model("posenet", width=0.25, resolution=SIDE)
    (folder / "model.tflite").write_bytes(content)
    rng = np.random.default_rng(2)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    single: list[Any] = []
    for id_ in range(1, COUNT + 1):
        height, width = (int(n) for n in rng.integers(80, 300, 2))
        pixels = draw_scene(height, width, id_)
        Image.fromarray(pixels).save(folder / "images" / f"{id_:03}.png")
        images.append({"id": id_, "file_name": f"{id_:03}.png", "height": height, "width": width})
        results.append(found_officially(content, pixels, id_))
        people = 2 if id_ % 6 == 0 else 0 if id_ % 5 == 0 else 1
        single += [id_] * (people == 1)
        for person in range(people):
            near = np.array(results[-1]["keypoints"]).reshape(17, 3)
            near[:, :2] += rng.normal(0, rng.uniform(1, 12) + 20 * person, (17, 2))
            near[:, 2] = rng.choice([0, 1, 2], 17)
            box = [0.0, 0.0, float(width), float(height)]
            entry = {"id": len(annotations) + 1, "image_id": id_, "category_id": 1, "bbox": box, "iscrowd": 0}
            entry |= {"area": 0.6 * width * height, "keypoints": near.reshape(-1).tolist()}
            annotations.append(entry | {"num_keypoints": int((near[:, 2] > 0).sum())})
    content_ = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "person"}]}
    (folder / "keypoints.json").write_text(json.dumps(content_))
    return PoseSet(folder, results, single)


def directly(poses: PoseSet, ids: list[int]) -> COCOeval:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(poses.folder / "keypoints.json"))
        found = truth.loadRes(copy.deepcopy([r for r in poses.results if r["image_id"] in ids]))
        evaluation = COCOeval(truth, found, "keypoints")
        evaluation.params.imgIds = ids
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


def test_similarities_and_precisions_are_those_of_pycocotools(poses: PoseSet) -> None:
    report = evaluate_pose(poses.task(), HERE)
    evaluation = directly(poses, poses.single)
    np.testing.assert_allclose(list(report.result.precisions.statistics.values()), evaluation.stats, atol=1e-6)
    assert 0.05 < evaluation.stats[0] < 0.99
    wanted = {f"{i:03}.png": evaluation.ious[i, 1][0, 0] for i in poses.single}
    assert {i.name: i.oks for i in report.result.images} == pytest.approx(wanted, abs=1e-4)
    assert report.result.mean_oks == pytest.approx(np.mean(list(wanted.values())), abs=1e-4)
    assert report.data.left_out == COUNT - len(poses.single) > 2
    assert sum(k.labelled for k in report.result.keypoints) > 50


def test_images_with_several_people_or_none(poses: PoseSet) -> None:
    report = evaluate_pose(poses.task(every_image=True), HERE)
    stats = directly(poses, list(range(1, COUNT + 1))).stats
    np.testing.assert_allclose(list(report.result.precisions.statistics.values()), stats, atol=1e-6)
    assert len(report.result.collected.good) == COUNT and report.data.left_out == 0


def test_similarity_of_a_keypoint() -> None:
    rows = np.zeros((17, 3))
    rows[0] = (10, 20, 2)
    person = TrueObject(1, (0, 0, 50, 40), 100.0, keypoints=tuple(rows.reshape(-1)))
    found = np.zeros((17, 2))
    found[0] = (13, 24)
    similar = similarities(found, person)
    assert similar[0] == pytest.approx(np.exp(-25 / (2 * 100 * (2 * 0.026) ** 2))) and np.isnan(similar[1:]).all()


def test_resuming_and_two_delegates(poses: PoseSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    running = Running(parse_choice("cpu"), parse_choice("webgpu/float32"), 2, 0, str(tmp_path / "out"))
    evaluate_pose(poses.task(num_images=2), running)
    report = evaluate_pose(poses.task(num_images=4), running)
    assert report.result.collected.reused == 2 and report.comparison is not None
    evaluation = directly(poses, poses.single)
    wanted = np.mean([evaluation.ious[i, 1][0, 0] for i in poses.single[:4]])
    assert report.result.mean_oks == pytest.approx(wanted, abs=1e-4)
    assert report.comparison.mean_oks == pytest.approx(wanted, abs=1e-3)
    PosePresentation().print(report)
    assert "compared with webgpu/float32" in capsys.readouterr().out


def test_what_does_not_fit_is_named(poses: PoseSet, tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=5))
    with pytest.raises(OptionError, match=r"\[1, 5\] are no pose that is known"):
        evaluate_pose(poses.task(model_file=str(tmp_path / "net.tflite")), HERE)
    good = json.loads((poses.folder / "keypoints.json").read_text())
    path = tmp_path / "keypoints.json"
    task = poses.task(annotations=str(path))
    for change, words in (
        ({"keypoints": [1, 2, 3]}, "has 3 numbers of keypoints"),
        ({"keypoints": []}, "no keypoints"),
    ):
        path.write_text(json.dumps(good | {"annotations": [good["annotations"][0] | change]}))
        with pytest.raises(OptionError, match=words):
            evaluate_pose(task, HERE)
    two = [good["annotations"][0], good["annotations"][0] | {"id": 2}]
    path.write_text(json.dumps(good | {"annotations": two}))
    with pytest.raises(OptionError, match="no image with exactly one person"):
        evaluate_pose(task, HERE)
    with pytest.raises(OptionError, match="crop has no place"):
        evaluate_pose(replace(poses.task(), preprocessing={"crop": 0.5}), HERE)


def test_command_writes_its_files(poses: PoseSet, tmp_path: Path) -> None:
    task = poses.task()
    names = ("model_file", "ground_truth_images_path", "annotations")
    arguments = ["evaluate", "pose", "--workers=0", *(f"--{n}={getattr(task, n)}" for n in names), "--drawings=2"]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "out"), "--min-oks=0.999"])
    assert result.exit_code == 1 and "the mean OKS" in result.stderr
    assert len(list((tmp_path / "out" / "worst").glob("*.jpg"))) == 2
    text = "".join(check_self_contained((tmp_path / "out" / "report.html").read_text()).text)
    assert "left ankle" in text and "mean OKS" in text
    stats = directly(poses, poses.single).stats
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["statistics"]["AP"] == pytest.approx(stats[0], abs=1e-6)


@pytest.mark.skipif(os.name != "posix", reason="needs signals to a group of processes")
def test_an_interrupted_evaluation_goes_on(poses: PoseSet, tmp_path: Path) -> None:
    images = shutil.copytree(poses.folder / "images", tmp_path / "images")
    task = poses.task(ground_truth_images_path=str(images))
    names = ("model_file", "ground_truth_images_path", "annotations")
    arguments = ["pose", *(f"--{n}={getattr(task, n)}" for n in names)]
    report = interrupted_and_resumed(arguments, images / f"{poses.single[4]:03}.png", tmp_path / "out", 0)
    assert report["images"] == len(poses.single)
    assert report["statistics"]["AP"] == pytest.approx(directly(poses, poses.single).stats[0], abs=1e-6)
