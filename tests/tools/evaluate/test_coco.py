"""`litegpu evaluate coco`: precisions against pycocotools itself, kinds of models, and what can be wrong."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import os
import shutil
import struct
from collections.abc import Sequence
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

from litegpu import read_model
from litegpu.cli.application import app
from litegpu.errors import OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.model.serialize import write_model
from litegpu.tools.evaluate.choice import DelegateChoice, parse_choice
from litegpu.tools.evaluate.coco import CocoTask, evaluate_coco
from litegpu.tools.evaluate.coco_presentation import CocoPresentation
from litegpu.tools.evaluate.collecting import ImageError, Running
from litegpu.tools.evaluate.heads import ReadDetections
from litegpu.zoo import build_model, draw_scene

HERE = Running(workers=0)
SIDE, CLASSES, COUNT = 64, 6, 16
EMPTY, ABSENT = 4, 6  # an image without objects, a category without objects


@dataclass(frozen=True)
class DetectionSet:
    """`results` are COCO's, as the official runtime and NumPy give them."""

    folder: Path
    results: list[dict[str, Any]]

    def task(self, **changes: Any) -> CocoTask:
        files = {
            "model_file": str(self.folder / "model.tflite"),
            "ground_truth_images_path": str(self.folder / "images"),
            "annotations": str(self.folder / "instances.json"),
        }
        return CocoTask(**(files | changes))

    @property
    def names(self) -> list[str]:
        return sorted(p.name for p in (self.folder / "images").iterdir())


@pytest.fixture(scope="module")
def detections(tmp_path_factory: pytest.TempPathFactory) -> DetectionSet:
    """Drawn scenes, a detector of seeded weights, and a ground truth near what it finds: shifted, with some left out,
    crowds, an image without objects, a category without."""
    folder = tmp_path_factory.mktemp("coco")
    (folder / "images").mkdir()
    content = build_model("ssd_mobilenet_v1", width=0.25, resolution=SIDE, classes=CLASSES, max_detections=20)
    (folder / "model.tflite").write_bytes(content)
    rng = np.random.default_rng(5)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for i in range(COUNT):
        id_, height, width = 100 + 3 * i, int(rng.integers(50, 400)), int(rng.integers(50, 400))
        name = f"{id_:012}.jpg"
        pixels = draw_scene(height, width, i)
        Image.fromarray(pixels).save(folder / "images" / name, quality=95)
        images.append({"id": id_, "file_name": name, "height": height, "width": width})
        found = found_officially(content, folder / "images" / name, id_)
        results += found
        for j, result in enumerate(found):
            if i == EMPTY or rng.random() < 0.4 or result["category_id"] == ABSENT:
                continue
            x, y, w, h = result["bbox"]
            shift = rng.normal(0, 0.08, 4)
            box = [x + shift[0] * w, y + shift[1] * h, w * np.exp(shift[2]), h * np.exp(shift[3])]
            entry = {"id": len(annotations) + 1, "image_id": id_, "category_id": result["category_id"]}
            annotations.append(entry | {"bbox": box, "area": 0.7 * box[2] * box[3], "iscrowd": int(j % 7 == 3)})
    categories = [{"id": c, "name": f"kind {c}"} for c in range(1, CLASSES + 1)]
    truth = json.dumps({"images": images, "annotations": annotations, "categories": categories})
    (folder / "instances.json").write_text(truth)
    return DetectionSet(folder, results)


def found_officially(content: bytes, path: Path, image: int) -> list[dict[str, Any]]:
    pixels = np.array(Image.open(path).convert("RGB"))
    height, width = pixels.shape[:2]
    feed = (resized_officially(pixels, SIDE, SIDE) - 127.5) / 127.5
    boxes, classes, scores, count = run_officially(content, feed[None].astype(np.float32))
    found = []
    for k in range(int(count[0])):
        top, left, bottom, right = (float(n) for n in boxes[0, k])
        box = [left * width, top * height, (right - left) * width, (bottom - top) * height]
        entry = {"image_id": image, "category_id": int(classes[0, k]) + 1}
        found.append(entry | {"bbox": box, "score": float(scores[0, k])})
    return found


def directly(
    folder: Path, results: list[dict[str, Any]], images: Sequence[int] | None = None
) -> tuple[np.ndarray, COCOeval]:
    """pycocotools' twelve numbers."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "instances.json"))
        evaluation = COCOeval(truth, truth.loadRes(copy.deepcopy(results)), "bbox")
        if images is not None:
            evaluation.params.imgIds = list(images)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats, evaluation


def test_precisions_are_those_of_pycocotools(detections: DetectionSet) -> None:
    report = evaluate_coco(detections.task(), HERE)
    precisions = report.result.precisions
    wanted, evaluation = directly(detections.folder, detections.results)
    np.testing.assert_allclose(list(precisions.statistics.values()), wanted, rtol=0, atol=1e-6)
    assert 0.05 < wanted[0] < 0.95  # else the test would see little
    for place, row in enumerate(precisions.categories):
        values = evaluation.eval["precision"][:, :, place, 0, -1]
        assert row.ap == pytest.approx(values[values > -1].mean() if (values > -1).any() else -1, abs=1e-6)
    absent = precisions.categories[ABSENT - 1]
    assert absent.objects == 0 and absent.detections > 0 and absent.ap == -1
    assert precisions.by_threshold[0.5] == pytest.approx(wanted[1], abs=1e-6)
    assert any(r["image_id"] == 100 + 3 * EMPTY for r in report.result.detections)


def test_crowds_matter(detections: DetectionSet, tmp_path: Path) -> None:
    content = json.loads((detections.folder / "instances.json").read_text())
    assert sum(a["iscrowd"] for a in content["annotations"]) > 5
    for annotation in content["annotations"]:
        annotation["iscrowd"] = 0
    (tmp_path / "instances.json").write_text(json.dumps(content))
    without = evaluate_coco(detections.task(annotations=str(tmp_path / "instances.json")), HERE).result.precisions
    with_crowds = evaluate_coco(detections.task(), HERE).result.precisions
    assert without.overall != pytest.approx(with_crowds.overall, abs=1e-3)
    wanted, _ = directly(tmp_path, detections.results)
    assert without.overall == pytest.approx(wanted[0], abs=1e-6)


def test_batches_workers_and_threads_change_nothing(detections: DetectionSet) -> None:
    whole = evaluate_coco(detections.task(), HERE)
    choice = DelegateChoice("cpu", num_threads=2)
    apart = evaluate_coco(detections.task(), Running(choice, batch=5, workers=2))
    assert (
        apart.result.collected.placement.batch == 5
        and "runs apart" in apart.data.how
        and "runs apart" not in whole.data.how
    )
    assert len(apart.result.detections) == len(whole.result.detections)
    assert apart.result.precisions.overall == pytest.approx(whole.result.precisions.overall, abs=1e-4)


def test_resuming_and_a_subset(detections: DetectionSet, tmp_path: Path) -> None:
    running = replace(HERE, output=str(tmp_path / "out"))
    first = evaluate_coco(detections.task(num_images=7), running)
    assert [r.name for r in first.result.collected.records] == detections.names[:7]
    whole = evaluate_coco(detections.task(), running)
    assert whole.result.collected.reused == 7
    assert whole.result.precisions == evaluate_coco(detections.task(), HERE).result.precisions
    (tmp_path / "ids.txt").write_text("103\n100\n112\n")
    some = evaluate_coco(detections.task(allowlist_file=str(tmp_path / "ids.txt")), running)
    wanted, _ = directly(detections.folder, detections.results, [100, 103, 112])
    np.testing.assert_allclose(list(some.result.precisions.statistics.values()), wanted, rtol=0, atol=1e-6)
    (tmp_path / "ids.txt").write_text("104\n")
    with pytest.raises(OptionError, match=r"line 1: '104' is no id"):
        evaluate_coco(detections.task(allowlist_file=str(tmp_path / "ids.txt")), running)


def test_two_delegates_beside_one_another(detections: DetectionSet, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    running = Running(parse_choice("webgpu/float32"), parse_choice("cpu"), batch=4, workers=0)
    report = evaluate_coco(detections.task(num_images=6), running)
    assert report.comparison is not None and report.result.collected.placement.delegation.fully_delegated
    assert report.result.precisions.overall == pytest.approx(report.comparison.precisions.overall, abs=0.02)
    CocoPresentation().print(report)
    assert "compared with cpu" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- kinds of models


def test_raw_heads_with_the_anchors_of_ssd(detections: DetectionSet, tmp_path: Path) -> None:
    """The same network without its last op gives the same detections."""
    model = read_model(detections.folder / "model.tflite")
    heads = model.main.operators[-1].inputs[:2]
    reversed_heads = (heads[1], heads[0])
    main = dataclasses.replace(model.main, operators=model.main.operators[:-1], outputs=reversed_heads)
    (tmp_path / "heads.tflite").write_bytes(write_model(dataclasses.replace(model, subgraphs=(main,), signatures=())))
    task = detections.task(model_file=str(tmp_path / "heads.tflite"), max_detections=20)
    report = evaluate_coco(task, HERE)
    assert "probabilities of 7 classes, anchors of SSD" in report.data.how
    wanted, _ = directly(detections.folder, detections.results)
    np.testing.assert_allclose(list(report.result.precisions.statistics.values()), wanted, rtol=0, atol=1e-6)
    anchors = np.array(model.main.tensors[model.main.operators[-1].inputs[2]].data)
    np.save(tmp_path / "anchors.npy", anchors)
    given = evaluate_coco(replace(task, anchors=str(tmp_path / "anchors.npy"), num_images=3), HERE)
    assert "anchors of anchors.npy" in given.data.how
    np.save(tmp_path / "anchors.npy", anchors[1:])
    with pytest.raises(OptionError, match=r"float32 \[\d+, 4\]; .* needs float \[\d+, 4\]"):
        evaluate_coco(replace(task, anchors=str(tmp_path / "anchors.npy")), HERE)


def two_headed(path: Path, boxes: Sequence[int], scores: Sequence[int]) -> str:
    builder = ModelBuilder()
    image = builder.input("image", (1, SIDE, SIDE, 3))
    for name, shape in (("boxes", boxes), ("scores", scores)):
        size = int(np.prod(shape))
        flat = builder.op("RESHAPE", [image, builder.constant(np.array([1, -1], np.int32))], (1, SIDE * SIDE * 3))
        begin, count = (builder.constant(np.array(n, np.int32)) for n in ([0, 0], [1, size]))
        part = builder.op("SLICE", [flat, begin, count], (1, size))
        target = builder.constant(np.array(shape, np.int32))
        builder.output(builder.op("RESHAPE", [part, target], shape, name=name))
    path.write_bytes(builder.build())
    return str(path)


def test_raw_heads_with_unknown_anchors_are_refused(detections: DetectionSet, tmp_path: Path) -> None:
    model = two_headed(tmp_path / "two.tflite", (1, 100, 4), (1, 100, 7))
    with pytest.raises(OptionError, match=r"raw heads with 100 boxes.*not those of an SSD for 64x64.*--anchors"):
        evaluate_coco(detections.task(model_file=model), HERE)
    model = two_headed(tmp_path / "other.tflite", (1, 100, 3), (1, 100, 7))
    with pytest.raises(OptionError, match="no box encodings"):
        evaluate_coco(detections.task(model_file=model), HERE)
    (tmp_path / "net.tflite").write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=5))
    with pytest.raises(OptionError, match="is no detector that is known"):
        evaluate_coco(detections.task(model_file=str(tmp_path / "net.tflite")), HERE)


def test_logits_of_raw_heads_are_told_from_probabilities(detections: DetectionSet, tmp_path: Path) -> None:
    np.save(tmp_path / "anchors.npy", np.random.default_rng(0).random((50, 4), np.float32))
    model = two_headed(tmp_path / "two.tflite", (1, 50, 1, 4), (1, 50, 7))
    task = detections.task(model_file=model, anchors=str(tmp_path / "anchors.npy"), num_images=2)
    report = evaluate_coco(task, HERE)
    assert "logits of 7 classes" in report.data.how
    assert all(0.25 < d["score"] < 0.75 for d in report.result.detections)  # sigmoids of -1 to 1


def test_outputs_in_another_order_and_quantized() -> None:
    read = ReadDetections((1, 3, 0, 2), ((0.5, 1), (0.0, 0), (0.0, 0), (0.0, 0)), per_anchor=2)
    outputs: list[np.ndarray] = [
        np.array([[3, 5, 1, 1]], np.uint8),
        np.arange(16, dtype=np.float32).reshape(1, 4, 4),
        np.array([1], np.float32),
        np.array([[4, 2, 9, 9]], np.float32),
    ]
    found = read(outputs, {"height": 10, "width": 20})
    assert found["scores"] == [1.0, 2.0] and found["classes"] == [4, 2]  # two rows for the one anchor counted
    assert found["boxes"] == [[0, 1, 2, 3], [4, 5, 6, 7]] and (found["height"], found["width"]) == (10, 20)


def test_a_real_detector_finds_the_owl_and_the_kite(models_dir: Path, images_dir: Path, tmp_path: Path) -> None:
    """With the quantized SSD of the TensorFlow examples, whole and with its last op apart."""
    (tmp_path / "images").mkdir()
    images, boxes = [], {"owl.jpg": 16, "cat.bmp": 17}
    annotations = []
    for i, (name, category) in enumerate(boxes.items(), 1):
        shutil.copy(images_dir / name, tmp_path / "images" / name)
        with Image.open(images_dir / name) as image:
            width, height = image.size
        images.append({"id": i, "file_name": name, "width": width, "height": height})
        entry = {"id": i, "image_id": i, "category_id": category, "area": 1.0, "iscrowd": 0}
        annotations.append(entry | {"bbox": [0, 0, width, height]})
    categories = [{"id": 16, "name": "bird"}, {"id": 17, "name": "cat"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "instances.json").write_text(json.dumps(content))
    task = CocoTask(
        str(models_dir / "ssd_mobilenet_v1_coco_quant.tflite"),
        str(tmp_path / "images"),
        str(tmp_path / "instances.json"),
        model_output_labels=str(models_dir / "coco_labelmap.txt"),
    )
    whole = evaluate_coco(task, HERE).result
    apart = evaluate_coco(task, replace(HERE, batch=2)).result
    best = {d["image_id"]: d for d in sorted(whole.detections, key=lambda d: d["score"])}
    assert {i: d["category_id"] for i, d in best.items()} == {1: 16, 2: 17}
    assert [d["category_id"] for d in whole.detections] == [d["category_id"] for d in apart.detections]
    np.testing.assert_allclose(
        [d["bbox"] for d in whole.detections], [d["bbox"] for d in apart.detections], rtol=0, atol=1e-3
    )


# ------------------------------------------------------------------------------------------------- classes


def test_classes_by_name(detections: DetectionSet, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"kind {c}" for c in range(1, CLASSES + 1)))
    by_name = detections.task(model_output_labels=str(labels), match_labels=True, class_offset=0, num_images=4)
    by_id = detections.task(num_images=4)
    assert evaluate_coco(by_name, HERE).result.precisions == evaluate_coco(by_id, HERE).result.precisions
    with pytest.raises(OptionError, match=r"has 6 labels, but .* has 6 classes, and --class_offset=1"):
        evaluate_coco(replace(by_name, class_offset=1), HERE)
    labels.write_text("\n".join("abcdef"))
    with pytest.raises(OptionError, match="is the name of a category"):
        evaluate_coco(by_name, HERE)
    with pytest.raises(OptionError, match="None of the ground truth's categories"):
        evaluate_coco(detections.task(class_offset=50), HERE)


def test_detections_of_unknown_categories_are_counted_apart(detections: DetectionSet) -> None:
    report = evaluate_coco(detections.task(class_offset=3), HERE)
    strange = [r for r in detections.results if r["category_id"] + 2 > CLASSES]
    assert report.result.strange == len(strange) > 0
    assert len(report.result.detections) == len(detections.results) - len(strange)


# ------------------------------------------------------------------------------------------------- ground truth


def message(fields: Sequence[tuple[int, Any]]) -> bytes:
    """A protocol buffer of ints (below 2^28), floats, texts and messages."""

    def varint(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    parts = []
    for number, value in fields:
        if isinstance(value, float):
            parts.append(varint(number << 3 | 5) + struct.pack("<f", value))
        elif isinstance(value, int):
            parts.append(varint(number << 3) + varint(value))
        else:
            content = value.encode() if isinstance(value, str) else message(value)
            parts.append(varint(number << 3 | 2) + varint(len(content)) + content)
    return b"".join(parts)


def test_the_official_ground_truth_gives_the_same(detections: DetectionSet, tmp_path: Path) -> None:
    content = json.loads((detections.folder / "instances.json").read_text())
    results = []
    for image in content["images"]:
        objects = []
        for annotation in content["annotations"]:
            if annotation["image_id"] == image["id"]:
                annotation["iscrowd"], (x, y, w, h) = 0, annotation["bbox"]
                annotation["area"] = w * h
                vertical = [(1, y / image["height"]), (2, (y + h) / image["height"])]
                horizontal = [(3, x / image["width"]), (4, (x + w) / image["width"])]
                objects.append((1, [(1, annotation["category_id"]), (2, vertical + horizontal)]))
        if objects:
            results.append((1, [*objects, (2, image["file_name"]), (3, image["id"])]))
    (tmp_path / "truth.pb").write_bytes(message(results))
    (tmp_path / "instances.json").write_text(json.dumps(content))
    (tmp_path / "labels.txt").write_text("\n".join(["???", *(f"kind {c}" for c in range(1, CLASSES + 1))]))
    official = detections.task(
        annotations="", ground_truth_proto=str(tmp_path / "truth.pb"), model_output_labels=str(tmp_path / "labels.txt")
    )
    got = evaluate_coco(official, HERE)
    wanted, _ = directly(tmp_path, detections.results)
    np.testing.assert_allclose(list(got.result.precisions.statistics.values())[:3], wanted[:3], rtol=0, atol=1e-4)
    assert len(got.data.truth.images) == COUNT  # the one without objects too
    (tmp_path / "truth.pb").write_bytes(b"\x0f\xff")
    with pytest.raises(OptionError, match="no binary ObjectDetectionGroundTruth"):
        evaluate_coco(official, HERE)


def test_ground_truth_that_contradicts_itself_is_named(detections: DetectionSet, tmp_path: Path) -> None:
    good = json.loads((detections.folder / "instances.json").read_text())
    path = tmp_path / "instances.json"
    task = detections.task(annotations=str(path))

    def changed(**entry: Any) -> dict[str, Any]:
        return good | {"annotations": [good["annotations"][0] | entry]}

    mistakes: list[tuple[Any, str]] = [
        ({"images": []}, "has no annotations, categories"),
        ([1], "has no images"),
        (changed(image_id=7), "annotation 1 is about image 7"),
        (changed(category_id=77), "annotation 1 is of category 77"),
        (changed(bbox=[1, 2, 3]), "annotation 1 has the box"),
        (changed(bbox=[1, 2, float("nan"), 3]), "annotation 1 has the box"),
        (changed(area=float("inf")), "annotation 1 has the area"),
        (changed(image_id=float("inf")), "no COCO instances file"),
        (good | {"annotations": [{}]}, "no COCO instances file"),
        (good | {"annotations": ["text"]}, "no COCO instances file"),
        (good | {"annotations": None}, "no COCO instances file"),
        (good | {"categories": [["id"]]}, "no COCO instances file"),
        (good | {"images": 7}, "no COCO instances file"),
        (good | {"images": good["images"] * 2}, "the same id"),
    ]
    for content, words in mistakes:
        path.write_text(json.dumps(content))
        with pytest.raises(OptionError, match=words):
            evaluate_coco(task, HERE)
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(OptionError, match="is no JSON"):
            evaluate_coco(task, HERE)
    with pytest.raises(OptionError, match="one of --annotations"):
        evaluate_coco(detections.task(annotations=""), HERE)
    image = good["images"][0] | {"height": 5000}
    thing = good["annotations"][0] | {"image_id": image["id"], "iscrowd": 0}
    path.write_text(json.dumps(good | {"images": [image], "annotations": [thing]}))
    with pytest.raises(OptionError, match=r"but the ground truth says \d+x5000"):
        evaluate_coco(task, HERE)


def test_missing_images_stop_or_are_skipped(detections: DetectionSet, tmp_path: Path) -> None:
    shutil.copytree(detections.folder / "images", tmp_path / "images")
    (tmp_path / "images" / detections.names[2]).unlink()
    (tmp_path / "images" / "zebra.jpg").write_bytes((tmp_path / "images" / detections.names[0]).read_bytes())
    task = detections.task(ground_truth_images_path=str(tmp_path / "images"))
    with pytest.raises(ImageError, match="1 images are missing"):
        evaluate_coco(task, HERE)
    report = evaluate_coco(task, replace(HERE, skip_errors=True))
    assert report.data.truth.unlisted == ("zebra.jpg",) and len(report.result.collected.failed) == 1
    ids = [100 + 3 * i for i in range(COUNT) if i != 2]
    wanted, _ = directly(detections.folder, detections.results, ids)
    np.testing.assert_allclose(list(report.result.precisions.statistics.values()), wanted, rtol=0, atol=1e-6)


def test_nothing_to_find_and_nothing_found(detections: DetectionSet, tmp_path: Path) -> None:
    content = json.loads((detections.folder / "instances.json").read_text())
    (tmp_path / "instances.json").write_text(json.dumps(content | {"annotations": []}))
    task = detections.task(annotations=str(tmp_path / "instances.json"), num_images=2)
    with pytest.raises(OptionError, match="no object in the 2 images"):
        evaluate_coco(task, HERE)
    shutil.copytree(detections.folder / "images", tmp_path / "images")
    (tmp_path / "images" / detections.names[EMPTY - 1]).write_text("no image")
    (tmp_path / "allow.txt").write_text(f"{100 + 3 * EMPTY}\n{100 + 3 * (EMPTY - 1)}\n")
    task = detections.task(
        ground_truth_images_path=str(tmp_path / "images"), allowlist_file=str(tmp_path / "allow.txt")
    )
    with pytest.raises(OptionError, match="no object in the 1 images"):
        evaluate_coco(task, replace(HERE, skip_errors=True))
    silent = detections.task(class_offset=-100 + CLASSES, num_images=3)
    with pytest.raises(OptionError, match="None of the ground truth's categories"):
        evaluate_coco(silent, HERE)


# ------------------------------------------------------------------------------------------------- the command


def test_command_writes_its_files(detections: DetectionSet, tmp_path: Path) -> None:
    task = detections.task()
    flags = ["--debug_mode=true", f"--output_file_path={tmp_path / 'metrics.pb'}", "--drawings=3", "--workers=0"]
    names = ("model_file", "ground_truth_images_path", "annotations")
    arguments = ["evaluate", "coco", *(f"--{name}={getattr(task, name)}" for name in names), *flags]
    result = CliRunner().invoke(app, [*arguments, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    wanted, _ = directly(detections.folder, detections.results)
    lines = result.output.splitlines()
    assert f"Num evaluation runs: {COUNT}" in lines and "Object [0]" in lines and "=" * 54 in lines
    assert sum(line.startswith("Average Precision [IOU Threshold=0.") for line in lines) == 10
    (overall,) = (line for line in lines if line.startswith("Overall mAP: "))
    assert float(overall.split()[-1]) == pytest.approx(wanted[0], abs=1e-5)
    assert len(list((tmp_path / "out" / "worst").glob("*.jpg"))) == 3
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["statistics"]["AP"] == pytest.approx(wanted[0], abs=1e-6)
    text = "".join(check_self_contained((tmp_path / "out" / "report.html").read_text()).text)
    assert f"{wanted[0]:.4f}" in text and "most mistakes" in text
    # What it writes as COCO results gives the same numbers once more.
    again, _ = directly(detections.folder, json.loads((tmp_path / "out" / "detections.json").read_text()))
    np.testing.assert_allclose(again, wanted, rtol=0, atol=1e-6)
    assert (tmp_path / "metrics.pb").stat().st_size > 100
    result = CliRunner().invoke(app, [*arguments, "--min-map=0.99"])
    assert result.exit_code == 1 and "the mAP" in result.stderr


def test_report_without_a_folder_writes_nothing(detections: DetectionSet) -> None:
    assert CocoPresentation().write(evaluate_coco(detections.task(num_images=1), HERE), None) == []


@pytest.mark.skipif(os.name != "posix", reason="needs signals to a group of processes")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_evaluation_goes_on(detections: DetectionSet, tmp_path: Path, workers: int) -> None:
    images = shutil.copytree(detections.folder / "images", tmp_path / "images")
    task = detections.task(ground_truth_images_path=str(images))
    names = ("model_file", "ground_truth_images_path", "annotations")
    arguments = ["coco", *(f"--{n}={getattr(task, n)}" for n in names)]
    # processes answer for several images at once: the first of them do before one comes that is waited for
    waited = detections.names[-1 if workers else 6]
    report = interrupted_and_resumed(arguments, images / waited, tmp_path / "out", workers)
    assert report["images"] == COUNT
    wanted, _ = directly(detections.folder, detections.results)
    np.testing.assert_allclose(list(report["statistics"].values()), wanted, rtol=0, atol=1e-6)
