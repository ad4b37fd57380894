"""What evaluations count and say, on few numbers whose results are known: written out here, or computed another way."""

from __future__ import annotations

import json
import math
import os
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.cocoeval import Params

import litegpu
from litegpu.errors import OptionError
from litegpu.tools.evaluate import choice as choice_module
from litegpu.tools.evaluate import coco, collecting, evaluation, imagenet, pose, shard
from litegpu.tools.evaluate.choice import DelegateChoice, parse_choice
from litegpu.tools.evaluate.coco_metric import STATISTICS, ImageMistakes, coco_precisions
from litegpu.tools.evaluate.coco_truth import GroundTruth, TrueImage, TrueObject, read_instances, read_message
from litegpu.tools.evaluate.collecting import Collected, Running
from litegpu.tools.evaluate.confusion import confusion_matrix, confusion_picture
from litegpu.tools.evaluate.data_set import DataSet, DelegateResult
from litegpu.tools.evaluate.heads import ReadDetections, read_detector
from litegpu.tools.evaluate.image_list import Item, list_images, pick, read_denylist
from litegpu.tools.evaluate.paired import mcnemar_exact, paired
from litegpu.tools.evaluate.preprocessing import Preprocessing, central_square
from litegpu.tools.evaluate.records import RecordFile
from litegpu.tools.evaluate.segmentation import CountPixels, SegmentationTask, _iou, _with_masks
from litegpu.tools.evaluate.shard import Job, Record
from litegpu.tools.evaluate.stage_metrics import classification_metrics, detection_metrics, profiler_metrics
from litegpu.tools.evaluate.topk import by_class, confusions, highest, rank, top_k
from litegpu.tools.statistics import Statistics

STAMP = (1, 2)


def collected(results: dict[str, Any]) -> Collected:
    records = tuple(Record(name, STAMP, result) for name, result in results.items())
    return Collected(DelegateChoice(), None, records, 0, 1.0, 1.0)  # type: ignore[arg-type]


# Classification


def test_highest_is_that_of_a_whole_sort() -> None:
    rng = np.random.default_rng(0)
    for size, k in ((3, 10), (10, 10), (11, 10), (200, 10), (50, 1)):
        for _ in range(20):
            scores = rng.integers(0, 6, size)  # many equal ones
            wanted = sorted(range(size), key=lambda i: (-scores[i], i))[:k]
            assert highest(scores, k) == wanted
    assert highest(np.array([np.nan, 1, np.nan, 5, 1]), 2) == [3, 1]


def test_ranks_and_their_shares() -> None:
    labels = [f"l{i}" for i in range(12)]
    assert [rank(list(range(10)), truth, labels) for truth in ("l0", "l9", "l10")] == [0, 9, 10]
    found = top_k([0, 0, 1, 4, 9, 10], 10)
    assert found.correct == (2, 3, 3, 3, 4, 4, 4, 4, 4, 5) and found.accuracies[4] == 4 / 6
    assert top_k([], 2).accuracies == (0.0, 0.0)


def test_the_figures_of_a_class() -> None:
    ranks = [0, 1, 4, 5, 0, 3, 3, 3, 3, 3]
    truths = ["b", "b", "b", "b", "a", "a", "a", "a", "a", "a"]
    predicted = ["b", "x", "y", "y", "a", "u", "v", "v", "w", "w"]
    a, b = by_class(ranks, truths, predicted)
    assert (a.label, a.images, a.top1, a.top5) == ("a", 6, 1 / 6, 1.0)
    assert a.mistaken_for == (("v", 2), ("w", 2), ("u", 1))
    assert (b.label, b.images, b.top1, b.top5, b.mistaken_for) == ("b", 4, 1 / 4, 3 / 4, (("y", 2), ("x", 1)))
    assert list(confusions(truths, predicted).items())[:3] == [(("a", "v"), 2), (("a", "w"), 2), (("b", "y"), 2)]


def test_two_delegates_image_by_image() -> None:
    labels = [f"l{i}" for i in range(12)]
    tops = {  # rank of l0 on the first and on the second
        "both": (0, 0), "first": (0, 4), "second": (5, 0), "second5": (5, 4), "neither": (9, 7),
    }  # fmt: skip

    def with_rank(place: int) -> list[int]:
        others = iter(range(1, 12))
        return [0 if i == place else next(others) for i in range(10)]

    sides = [collected({n: {"top": with_rank(r[i])} for n, r in tops.items()}) for i in (0, 1)]
    truth_of = dict.fromkeys(tops, "l0")
    first, second = (imagenet._accuracy(side, truth_of, labels) for side in sides)
    assert first.accuracy.correct == (2, 2, 2, 2, 2, 4, 4, 4, 4, 5)
    found = imagenet._compared(first, second, truth_of, labels)
    top1, top5 = found.top1, found.top5
    assert (top1.both, top1.only_first, top1.only_second, top1.neither) == (1, 1, 1, 2)
    assert (top5.both, top5.only_first, top5.only_second, top5.neither) == (2, 0, 2, 1)
    assert top5.difference == pytest.approx(2 / 5)
    assert found.same_label == pytest.approx(3 / 5) and found.differing == ("first", "second")


def test_mcnemar_counts_both_sides() -> None:
    assert mcnemar_exact(1, 5) == pytest.approx(2 * (1 + 6) / 2**6)
    assert mcnemar_exact(5, 1) == mcnemar_exact(1, 5) and mcnemar_exact(3, 3) == 1.0
    found = paired([True, True, False, False, True], [True, False, True, True, False])
    assert (found.both, found.only_first, found.only_second, found.neither, found.difference) == (1, 2, 2, 0, 0.0)


def test_rows_of_the_confusion_matrix_are_true_labels() -> None:
    matrix = confusion_matrix({("a", "a"): 3, ("a", "b"): 1, ("b", "b"): 9}, ["a", "b"])
    assert matrix.tolist() == [[3, 1], [0, 9]]
    picture = confusion_picture(matrix, ["a", "b"])
    height, width = picture.shape[:2]
    cell = 120  # the picture ends with two cells and 20 pixels
    pixels = [
        [picture[height - 20 - cell * (2 - r) + cell // 2, width - 20 - cell * (2 - c) + cell // 2] for c in (0, 1)]
        for r in (0, 1)
    ]
    for r, c, share, ink in (
        (0, 0, 3 / 4, (26, 110, 64)), (0, 1, 1 / 4, (192, 47, 61)),
        (1, 0, 0.0, (192, 47, 61)), (1, 1, 1.0, (26, 110, 64)),
    ):  # fmt: skip
        wanted = [255 + (i - 255) * math.sqrt(share) for i in ink]
        np.testing.assert_allclose(pixels[r][c], wanted, atol=1)


# Segmentation


def test_classes_are_upsampled_from_the_centres_of_pixels() -> None:
    numbers = np.array([[[0, 1, 2]]])  # 3 pixels become 5: centres 0.1, 0.3, 0.5, 0.7, 0.9 of the width
    mask = np.full((2, 5), 0, np.uint8)
    read = CountPixels(3, 255, "nearest")
    assert read([numbers], {"mask": mask})["pairs"] == [[0, 0, 4], [0, 1, 2], [0, 2, 4]]
    mask[0] = (0, 7, 7, 1, 0)
    assert CountPixels(3, 7, "nearest")([numbers], {"mask": mask})["pairs"] == [
        [0, 0, 3], [0, 1, 1], [0, 2, 3], [1, 2, 1],
    ]  # fmt: skip
    scores = np.array([[[[1.0, 0.0], [0.0, 0.9]]]], np.float32)
    # Along a row of 6 the second share is -, 0 at centres <= 0.5, then 1/6, 1/2, 5/6 of the way, then 1.
    bilinear = CountPixels(2, 255, "bilinear")([scores], {"mask": np.zeros((1, 6), np.uint8)})["pairs"]
    assert bilinear == [[0, 0, 3], [0, 1, 3]]
    scores[0, 0, 1] = (0, 0.4)  # 1 - s < 0.4 s from s = 5/7 on, which the centre at 5/6 is the first to pass
    bilinear = CountPixels(2, 255, "bilinear")([scores], {"mask": np.zeros((1, 6), np.uint8)})["pairs"]
    assert bilinear == [[0, 0, 4], [0, 1, 2]]


def test_iou_of_few_pixels() -> None:
    results = {
        "b": {"pairs": [[0, 0, 6], [0, 1, 2], [1, 1, 2]]},
        "a": {"pairs": [[0, 0, 10], [1, 1, 5], [1, 0, 5]]},
    }
    found = _iou(collected(results), ["x", "y", "z"])
    assert found.matrix.tolist() == [[16, 2, 0], [5, 7, 0], [0, 0, 0]]
    assert [c.iou for c in found.classes] == [16 / 23, 7 / 14, None] and [c.pixels for c in found.classes] == [
        18,
        12,
        0,
    ]
    assert found.mean_iou == pytest.approx((16 / 23 + 7 / 14) / 2)
    assert found.pixel_accuracy == pytest.approx(23 / 30)
    assert [i.name for i in found.images] == ["a", "b"]
    assert [i.iou for i in found.images] == pytest.approx([(10 / 15 + 5 / 10) / 2, (6 / 8 + 2 / 4) / 2])
    third = _iou(collected({**results, "c": {"pairs": [[0, 1, 1]]}}), ["x", "y", "z"])
    assert third.images[0].name == "c" and third.images[0].iou == 0.0


def test_a_changed_mask_changes_its_item(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    task = SegmentationTask("m", "", str(tmp_path))
    item = Item("a.jpg", "images/a.jpg", (1, 2))
    (first,) = _with_masks(task, [item])
    os.utime(tmp_path / "a.png", ns=(10**18, 10**18))
    (second,) = _with_masks(task, [item])
    assert first.stamp != second.stamp and second.name == "a.jpg" and second.path == item.path
    Image.new("L", (40, 40), 3).save(tmp_path / "a.png")
    os.utime(tmp_path / "a.png", ns=(10**18, 10**18))
    assert _with_masks(task, [item])[0].stamp != second.stamp


# Poses


def person(points: np.ndarray, area: float | None = 400.0, seen: Sequence[int] = (2,) * 17) -> TrueObject:
    rows = np.concatenate([points, np.array(seen, float)[:, None]], axis=1)
    return TrueObject(1, (0, 0, 20, 20), area, keypoints=tuple(rows.reshape(-1).tolist()))


def test_tolerances_are_those_of_pycocotools() -> None:
    np.testing.assert_allclose(pose.SIGMAS, Params(iouType="keypoints").kpt_oks_sigmas)


def test_a_pose_is_compared_with_the_person_most_like_it() -> None:
    points = np.stack([np.arange(17.0) * 2, np.arange(17.0) * 3 + 1], axis=1)  # x, y
    seen = [2, 1, 0] + [2] * 14
    truth = GroundTruth(
        (
            TrueImage(1, Item("a", "a", STAMP), (person(points + 30), person(points, seen=seen)), (100, 50)),
            TrueImage(2, Item("b", "b", STAMP), (person(points, None),), None),
        ),
        {1: "person"},
    )
    keypoints = [[y / 100, x / 50, 0.25 + 0.5 * (k == 3)] for k, (x, y) in enumerate(points)]
    off = [[(y + 4) / 100, (x + 3) / 50, 0.5] for x, y in points]
    records = {
        "a": {"height": 100, "width": 50, "keypoints": keypoints},
        "b": {"height": 100, "width": 50, "keypoints": off},
    }
    found = pose._pose(collected(records), truth)
    similar = [math.exp(-25 / (2 * 400 * (2 * s) ** 2)) for s in Params(iouType="keypoints").kpt_oks_sigmas]
    assert [i.name for i in found.images] == ["b", "a"]
    assert [i.oks for i in found.images] == [pytest.approx(np.mean(similar)), pytest.approx(1.0)]
    assert found.mean_oks == pytest.approx((np.mean(similar) + 1) / 2)
    assert [k.labelled for k in found.keypoints] == [2, 2, 1] + [2] * 14
    assert [k.similarity for k in found.keypoints[1:3]] == [
        pytest.approx((similar[1] + 1) / 2),
        pytest.approx(similar[2]),
    ]
    first = found.poses[0]
    np.testing.assert_allclose(first["bbox"], [0, 1, 32, 48], atol=1e-9)
    assert first["score"] == pytest.approx((16 * 0.25 + 0.75) / 17)
    np.testing.assert_allclose(first["keypoints"][3:6], [2, 4, 0.25], atol=1e-9)


def test_people_that_count(tmp_path: Path) -> None:
    keypoints = [1.0, 1.0, 1.0] * 17
    entry = {"category_id": 1, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0, "keypoints": keypoints}
    people = [
        entry | {"id": 1, "image_id": 1}, entry | {"id": 2, "image_id": 2}, entry | {"id": 3, "image_id": 2},
        entry | {"id": 4, "image_id": 3, "iscrowd": 1}, entry | {"id": 5, "image_id": 4, "keypoints": [0.0] * 51},
    ]  # fmt: skip
    images = [{"id": i, "file_name": f"{i}.png", "height": 4, "width": 4} for i in (5, 4, 3, 2, 1)]
    for image in images:
        Image.new("RGB", (4, 4)).save(tmp_path / str(image["file_name"]))
    file = tmp_path.parent / f"{tmp_path.name}.json"
    file.write_text(json.dumps({"images": images, "annotations": people, "categories": [{"id": 1, "name": "person"}]}))
    task = pose.PoseTask("", str(tmp_path), str(file))
    truth, left_out = pose._truth(task)
    assert [i.id for i in truth.images] == [1] and left_out == 4
    assert [i.id for i in read_instances(file, tmp_path).images] == [1, 2, 3, 4, 5]


# Detection


def precision_of(
    images: Sequence[TrueImage], records: dict[str, Any], names: dict[int, str], offset: int = 0
) -> coco.DelegatePrecision:
    truth = GroundTruth(tuple(images), names)
    return coco._precision(collected(records), truth, lambda c: c + offset if c + offset in names else None)


def image(id_: int, *objects: TrueObject) -> TrueImage:
    return TrueImage(id_, Item(f"{id_}.jpg", f"{id_}.jpg", STAMP), objects, (100, 200))


def boxes(*found: tuple[tuple[float, float, float, float], int, float]) -> dict[str, Any]:
    """Of (x, y, width, height) in pixels of a picture of 200 x 100, class, score."""
    fractions = [[y / 100, x / 200, (y + h) / 100, (x + w) / 200] for (x, y, w, h), _, _ in found]
    rest = {"classes": [c for _, c, _ in found], "scores": [s for _, _, s in found]}
    return {"height": 100, "width": 200, "boxes": fractions, **rest}


def test_the_figures_of_few_boxes() -> None:
    """Category 1: one of two objects found, at an IoU of 52%. Category 2: exact. Category 3: no objects."""
    images = [
        image(7, TrueObject(1, (10, 20, 100, 50)), TrueObject(2, (0, 0, 40, 30), area=900.0)),
        image(9, TrueObject(1, (10, 20, 100, 50))),
    ]
    records = {
        "7.jpg": boxes(((10, 20, 52, 50), 1, 0.9), ((0, 0, 40, 30), 2, 0.8), ((150, 50, 30, 30), 7, 0.7)),
        "9.jpg": boxes(((150, 20, 20, 20), 1, 0.29), ((150, 50, 30, 30), 3, 0.31)),
    }
    found = precision_of(images, records, {1: "a", 2: "b", 3: "c"})
    first, second, third = found.precisions.categories
    half = 51 / 101  # of the 101 recalls, those up to 1/2
    assert (first.ap50, first.ap, first.recall) == pytest.approx((half, half / 10, 0.05))
    assert (first.name, first.objects, first.detections) == ("a", 2, 2)
    assert (second.ap50, second.ap, second.recall) == pytest.approx((1, 1, 1))
    assert (third.ap50, third.ap, third.recall, third.objects) == (-1, -1, -1, 0)
    assert found.strange == 1 and len(found.detections) == 4
    np.testing.assert_allclose(found.detections[0]["bbox"], [10, 20, 52, 50], atol=1e-9)
    statistics = found.precisions.statistics
    assert tuple(statistics) == STATISTICS
    assert statistics["AP"] == pytest.approx((half / 10 + 1) / 2) and statistics["AP75"] == pytest.approx(0.5)
    assert found.precisions.overall == statistics["AP"]
    assert found.precisions.by_threshold[0.5] == pytest.approx((half + 1) / 2)
    assert found.precisions.by_threshold[0.55] == pytest.approx(0.5)
    # The object of category 2 is small by its area (900 < 32^2), although its box is not; the others are medium.
    assert [statistics[f"AP {s}"] for s in ("small", "medium", "large")] == pytest.approx([1, half / 10, -1])
    assert [statistics[f"AR {s}"] for s in ("small", "medium", "large")] == pytest.approx([1, 0.05, -1])
    assert found.precisions.mistakes == (ImageMistakes(9, 1, 1),)


def test_crowds_count_neither_as_right_nor_as_wrong() -> None:
    crowd = TrueObject(1, (100, 0, 100, 100), crowd=True)
    images = [image(1, TrueObject(1, (0, 0, 40, 40)), crowd, TrueObject(1, (50, 60, 20, 20), crowd=True))]
    records = {"1.jpg": boxes(((0, 0, 40, 40), 1, 0.5), ((120, 20, 40, 40), 1, 0.9), ((120, 60, 30, 30), 1, 0.8))}
    found = precision_of(images, records, {1: "a"}).precisions
    assert found.overall == pytest.approx(1.0) and found.categories[0].objects == 1 and found.mistakes == ()
    entries = coco._annotations(images[0], 100, 200)
    assert [(e["iscrowd"], e["area"]) for e in entries] == [(0, 1600), (1, 10000), (1, 400)]


def test_the_recall_of_a_category_is_that_of_100_detections() -> None:
    objects = [(20.0 * i, 0.0, 10.0, 10.0) for i in range(4)]
    images = [image(1, *(TrueObject(1, o) for o in objects))]
    found = precision_of(images, {"1.jpg": boxes(*((o, 1, 0.5) for o in objects[:3]))}, {1: "a"}).precisions
    assert found.categories[0].recall == pytest.approx(0.75)
    assert [found.statistics[f"AR {n}"] for n in (1, 10, 100)] == pytest.approx([0.25, 0.75, 0.75])


def test_boxes_in_fractions_of_the_picture() -> None:
    thing = TrueObject(1, (0.1, 0.2, 0.5, 0.25), normalized=True)
    (entry,) = coco._annotations(image(1, thing), 100, 200)
    assert entry["bbox"] == pytest.approx([20, 20, 100, 25]) and entry["area"] == pytest.approx(2500)


def test_the_first_annotation_can_be_found() -> None:
    found = coco_precisions(
        [{"id": 1, "height": 9, "width": 9}],
        [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}],
        {1: "a"},
        [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 1.0}],
    )
    assert found.overall == pytest.approx(1.0) and found.mistakes == ()


def test_classes_and_categories(tmp_path: Path) -> None:
    truth = GroundTruth((), {1: "cat", 2: "dog", 9: "cow"})
    detector = SimpleNamespace(classes=3)
    (tmp_path / "labels.txt").write_text("???\ncow\ncat\nbird\n")
    task = coco.CocoTask("m", "i", annotations="a", class_offset=1)
    by_number = coco._categories(task, truth, detector)  # type: ignore[arg-type]
    assert [by_number(c) for c in range(4)] == [1, 2, None, None]
    named = coco.CocoTask(
        "m", "i", annotations="a", class_offset=1, match_labels=True, model_output_labels=str(tmp_path / "labels.txt")
    )
    by_name = coco._categories(named, truth, detector)  # type: ignore[arg-type]
    assert [by_name(c) for c in range(4)] == [9, 1, None, None]


def test_the_model_is_in_one_piece_for_single_images_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco, "read_detector", lambda *a, **options: options["whole"])
    task = coco.CocoTask("m", "i", annotations="a")
    whole: list[Any] = [
        coco._detector(None, task, DelegateChoice(num_threads=threads), batch)  # type: ignore[arg-type]
        for threads, batch in ((1, 1), (2, 1), (1, 2))
    ]
    assert whole == [True, False, False]


def test_detections_in_any_order_up_to_their_count() -> None:
    read = ReadDetections((3, 1, 0, 2), ((0.0, 0), (0.0, 0), (0.0, 0), (0.5, 2)))
    edges = np.array([[[2, 4, 6, 8], [2, 2, 4, 4], [9, 9, 9, 9]]], np.uint8)
    arrays = [np.array([[0.9, 0.8, 0.7]]), np.array([[3.0, 4.0, 5.0]]), np.array([2.0]), edges]
    assert read(arrays, {"height": 5, "width": 6}) == {
        "height": 5, "width": 6, "boxes": [[0, 1, 2, 3], [0, 0, 1, 1]], "classes": [3, 4], "scores": [0.9, 0.8],
    }  # fmt: skip
    outputs = [SimpleNamespace(quantization=None, shape=(1,), name=str(i)) for i in range(4)]
    graph = SimpleNamespace(operators=[], outputs=range(4), tensors=outputs)
    detector = read_detector(SimpleNamespace(main=graph), "m", output_order="scores,boxes,classes,count")  # type: ignore[arg-type]
    assert detector.read.order == (1, 2, 0, 3)  # type: ignore[attr-defined]


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, content: bytes | int | float) -> bytes:
    if isinstance(content, bytes):
        return varint(number << 3 | 2) + varint(len(content)) + content
    if isinstance(content, float):
        return varint(number << 3 | 5) + struct.pack("<f", content)
    return varint(number << 3) + varint(content)


def test_the_official_ground_truth(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    edges = b"".join(field(i, v) for i, v in ((1, 0.125), (2, 0.5), (3, 0.25), (4, 1.0)))  # top, bottom, left, right
    message = field(1, field(2, b"a.png") + field(3, 300) + field(1, field(1, 17) + field(2, edges)))
    file = tmp_path.parent / f"{tmp_path.name}.pb"
    file.write_bytes(message)
    (found,) = read_message(file, tmp_path, {}).images
    assert found.id == 300
    assert found.objects == (TrueObject(17, (0.25, 0.125, 0.75, 0.375), normalized=True),)


# Images


def test_images_are_picked(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("b.png", "a.png", "B.png", "é.png", "a10.png", "a2.png"):
        Image.new("RGB", (2, 2)).save(folder / name)
    assert [i.name for i in list_images(folder)] == ["B.png", "a.png", "a10.png", "a2.png", "b.png", "é.png"]
    (tmp_path / "deny.txt").write_text("1\n3\n")
    denied = read_denylist(tmp_path / "deny.txt", 6)
    assert denied == {0, 2}
    assert pick(6, denied, 0) == [1, 3, 4, 5] and pick(6, denied, 2) == [1, 3]
    for line in ("0", "7", "1\n1"):
        (tmp_path / "deny.txt").write_text(line)
        with pytest.raises(OptionError, match="line"):
            read_denylist(tmp_path / "deny.txt", 6)


def test_pixels_become_the_numbers_of_each_type(tmp_path: Path) -> None:
    pixels = np.array([[[0, 128, 255], [1, 127, 254]], [[10, 20, 30], [40, 50, 60]], [[7, 8, 9], [9, 8, 7]]], np.uint8)
    path = str(tmp_path / "image.png")
    Image.fromarray(pixels).save(path)
    wanted = {
        "uint8": pixels.astype(int),
        "int8": pixels.astype(int) - 128,
        "float32": (pixels - 127.5) / 127.5,
        "float16": (pixels - 127.5) / 127.5,
    }
    for dtype, values in wanted.items():
        out = np.zeros((3, 2, 3), dtype)
        assert Preprocessing(3, 2, dtype, crop=0.0)(path, out) == {"height": 3, "width": 2}
        np.testing.assert_allclose(out, values, atol=1e-6 if dtype == "float32" else 6e-4)
    out = np.zeros((3, 2, 3), np.int8)
    Preprocessing(3, 2, "int8", crop=0.0, mean=(10, 20, 30), deviation=(2, 4, 5), scale=0.5, zero_point=-3)(path, out)
    real = (pixels - np.array([10.0, 20, 30])) / np.array([2.0, 4, 5])
    np.testing.assert_array_equal(out, np.clip(np.rint(real / 0.5) - 3, -128, 127))


def test_halves_of_the_crop_are_rounded_up() -> None:
    pixels = np.arange(5 * 8 * 3, dtype=np.uint8).reshape(5, 8, 3)
    np.testing.assert_array_equal(central_square(pixels, 0.5), pixels[1:4, 3:6])
    np.testing.assert_array_equal(central_square(pixels, 1.0), pixels[:, 2:7])
    np.testing.assert_array_equal(central_square(pixels, 0.01), pixels[2:3, 4:5])


def test_ways_of_resizing_a_ramp(tmp_path: Path) -> None:
    """A ramp of four pixels becomes eight, or two."""
    ramp = np.repeat(np.array([0, 40, 80, 120], np.uint8)[None, :, None], 3, axis=2)
    path = str(tmp_path / "ramp.png")
    Image.fromarray(ramp).save(path)

    def made(width: int, way: str) -> list[float]:
        out = np.zeros((1, width, 3), np.float32)
        Preprocessing(1, width, "float32", crop=0.0, resize=way, mean=(0, 0, 0), deviation=(1, 1, 1))(path, out)
        return [float(v) for v in out[0, :, 0]]

    assert made(8, "half-pixel") == pytest.approx([0, 10, 30, 50, 70, 90, 110, 120])
    assert made(8, "bilinear") == pytest.approx([0, 20, 40, 60, 80, 100, 120, 120])
    assert made(2, "bilinear") == pytest.approx([0, 80])
    assert made(2, "half-pixel") == pytest.approx([20, 100])


# Running, and what is kept


def test_records_are_kept_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    good, bad = Record("a", (3, 4), {"top": [1]}, "", 11, 22), Record("b", (5, 6), {}, "broken", 7)
    with RecordFile(path, {"task": "t"}) as file:
        file.append([good, bad])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"name":"c","st')
    with RecordFile(path, {"task": "t"}) as file:
        assert file.records == {"a": good, "b": bad}
        assert file.known(Item("a", "a", (3, 4))) == good
        assert file.known(Item("a", "a", (3, 5))) is None, "it has changed since"
        assert file.known(Item("b", "b", (5, 6))) is None, "what could not be read is tried again"
        assert path.read_bytes() == whole
        file.append([Record("c", None, {"top": [2]}, "", 1, 2)])
    with RecordFile(path, {"task": "t"}) as file:
        assert list(file.records) == ["a", "b", "c"] and file.records["c"].stamp is None
    with pytest.raises(OptionError, match='task was "t", now "u"'):
        RecordFile(path, {"task": "u"})


@pytest.mark.skipif(os.name != "posix", reason="needs locks")
@pytest.mark.parametrize("restart", [False, True])
def test_one_evaluation_at_a_time_writes_records(tmp_path: Path, restart: bool) -> None:
    path = tmp_path / "records.jsonl"
    record = Record("a", (3, 4), {"top": [1]}, "", 11, 22)
    with RecordFile(path, {"task": "t"}) as file:
        with pytest.raises(OptionError, match="Another process is writing"):
            RecordFile(path, {"task": "t"}, restart=restart)
        file.append([record])
    with RecordFile(path, {"task": "t"}, restart=restart) as file:
        assert file.records == ({} if restart else {"a": record})


def test_what_tells_evaluations_apart() -> None:
    def marks(choice: DelegateChoice | None = None, digest: str = "d", task: str = "t", **options: Any) -> Any:
        image = Preprocessing(8, 8, "float32", **options)
        return collecting.fingerprint(task, digest, Job("m", choice or DelegateChoice("gpu"), image, imagenet.read_top))

    first = marks()
    assert first == marks() and first["litegpu"] == litegpu.__version__
    for other in (
        marks(DelegateChoice("gpu", max_delegated_partitions=2)), marks(DelegateChoice("gpu", "float32")),
        marks(digest="e"), marks(task="u"), marks(resize="half-pixel"), marks(crop=0.5),
        marks(mean=(1, 2, 3), deviation=(1, 1, 1)),
    ):  # fmt: skip
        assert other != first


class Pages(DataSet[SegmentationTask, DelegateResult]):
    """A data set that counts nothing."""

    kind = "pages"

    def network(self, choice: DelegateChoice) -> tuple[str, Any]:
        return f"model on {choice}", "read"

    def marks(self) -> dict[str, Any]:
        return {"paper": "A4"}

    def measured(self, collected: Any) -> Any:
        return SimpleNamespace(collected=collected)

    def compared(self, first: Any, second: Any) -> Any:
        return first.collected.choice, second.collected.choice


def test_the_loop_of_all_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Job, Any]] = []

    def collect(job: Job, items: Any, running: Any, marks: Any) -> Any:
        calls.append((job, marks))
        return SimpleNamespace(choice=job.choice)

    monkeypatch.setattr(evaluation, "collect", collect)
    cpu, gpu = DelegateChoice(), DelegateChoice("gpu")
    model: Any = SimpleNamespace(content=b"abc")
    running = Running(cpu, gpu, workers=3)
    pages = Pages(SegmentationTask("m", "", ""), running, model, ITEMS, Preprocessing(8, 8))
    report = evaluation.evaluate(pages)
    jobs: list[Any] = [(j.model, j.choice, j.batch, j.workers, j.read) for j, _ in calls]
    assert jobs == [
        ("model on cpu", cpu, 1, 3, "read"), ("model on gpu/float16", gpu, 5, 3, "read"),
    ]  # fmt: skip
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of "abc"
    assert all(m["paper"] == "A4" and m["model"] == digest and m["task"] == "pages" for _, m in calls)
    assert report.comparison == (cpu, gpu)
    alone = evaluation.evaluate(Pages(pages.task, Running(gpu), model, ITEMS, pages.preprocessing))
    assert alone.comparison is None and alone.sides == [alone.result]


def test_batches_and_workers() -> None:
    gpu, cpu = DelegateChoice("gpu"), DelegateChoice()
    assert [Running().batch_on(c, n) for c, n in ((gpu, 100), (gpu, 5), (cpu, 100))] == [32, 5, 1]
    assert [Running(batch=7).batch_on(c, 100) for c in (gpu, cpu)] == [7, 7]
    assert [Running(workers=n).workers_for(10**6) for n in (0, 3)] == [0, 3]


def test_the_threads_of_a_choice_reach_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, ...]] = []

    def load(source: Any, device: str, *arguments: Any, **options: Any) -> Any:
        given.append((device, *arguments, options))
        return SimpleNamespace(interpreter=SimpleNamespace(invoke=lambda: None))

    monkeypatch.setattr(choice_module, "load", load)
    choice_module.open_model("m", DelegateChoice(num_threads=3))
    choice_module.open_model("m", parse_choice("cuda:1/float32", DelegateChoice(num_threads=5)))
    choice_module.open_model("m", DelegateChoice("vulkan", max_delegated_partitions=4))
    choice_module.open_model("m", DelegateChoice("cuda", arithmetic="integer"))
    assert given == [
        ("cpu", {"num_threads": 3}),
        ("cuda:1", "float32", {"num_threads": 5, "max_delegated_partitions": 1}),
        ("webgpu", "float16", {"num_threads": 1, "max_delegated_partitions": 4, "backend": "vulkan"}),
        ("cuda", "float16", {"num_threads": 1, "max_delegated_partitions": 1, "arithmetic": "integer"}),
    ]


class FakeModel:
    """Takes pictures, and gives what was put in, in a clock of its own that an inference moves on by 0.3 s."""

    def __init__(self, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batch, self.note, self.closed, self.now = batch, "", 0, 0.0
        self.loaded = SimpleNamespace(interpreter=self, close=self.close, device="cpu")
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def close(self) -> None:
        self.closed += 1

    def set_tensor(self, index: int, array: np.ndarray) -> None:
        self.array = array.copy()

    def invoke(self) -> None:
        self.now += 0.3

    def get_tensor(self, index: int) -> np.ndarray:
        return self.array

    def get_input_details(self) -> list[dict[str, int]]:
        return [{"index": 0}]

    get_output_details = get_input_details


class Decoder:
    """Rows that were decoded already, in groups; "bad" could not be."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def batches(self, items: Sequence[Item]) -> Iterator[Any]:
        for start in range(0, len(items), self.batch):
            some = items[start : start + self.batch]
            rows = [SimpleNamespace(item=i, error="no" * (i.name == "bad"), seconds=0.002, facts={}) for i in some]
            array = np.zeros((self.batch, 1), np.float32)
            array[: len(some), 0] = [start + i for i in range(len(some))]
            yield SimpleNamespace(rows=rows, array=array)


def read_value(outputs: Sequence[np.ndarray], facts: Any) -> dict[str, Any]:
    return {"value": outputs[0].reshape(-1).tolist()}


ITEMS = [Item(name, name, STAMP) for name in ("a", "b", "bad", "c", "d")]


def test_records_have_their_own_rows_and_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel(3, monkeypatch)
    job = Job("m", DelegateChoice(), None, read_value, 3)  # type: ignore[arg-type]
    records = list(shard.map_shard(job, ITEMS, model, Decoder(3)))  # type: ignore[arg-type]
    assert [r.name for r in records] == ["a", "b", "bad", "c", "d"]
    assert [r.result.get("value") for r in records] == [[0.0], [1.0], None, [3.0], [4.0]]
    assert [r.error for r in records] == ["", "", "no", "", ""]
    assert [r.preprocessing_us for r in records] == [2000] * 5
    shares = [r.inference_us for r in records if not r.error]
    assert shares == pytest.approx([100_000, 100_000, 150_000, 150_000], abs=1)
    assert model.closed == 0, "who opened it closes it"


def test_a_model_is_closed_and_an_incomplete_group_is_not_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = FakeModel(2, monkeypatch)
    decoder: Any = Decoder(2)
    monkeypatch.setattr(collecting, "open_model", lambda *_: model)
    monkeypatch.setattr(collecting, "placement", lambda _: "place")
    monkeypatch.setattr(
        collecting, "map_shard", lambda job, items, opened: shard.map_shard(job, items, opened, decoder)
    )
    job = Job("m", DelegateChoice(), None, read_value, 2)  # type: ignore[arg-type]
    items = [i for i in ITEMS if i.name != "bad"]
    running = Running(output=str(tmp_path))
    found = collecting.collect(job, items[:3], running, {"task": "t"})
    assert [r.name for r in found.records] == ["a", "b", "c"] and found.reused == 0 and model.closed == 1
    found = collecting.collect(job, items, running, {"task": "t"})
    assert [r.name for r in found.records] == ["a", "b", "c", "d"] and found.reused == 3 and model.closed == 2
    changed = [*items[:1], Item("b", "b", (9, 9)), *items[2:]]
    assert collecting.collect(job, changed, running, {"task": "t"}).reused == 3
    restarted = Running(output=str(tmp_path), restart=True)
    assert collecting.collect(job, items, restarted, {"task": "t"}).reused == 0


def test_the_report_s_summary_of_times() -> None:
    records = tuple(Record(str(i), STAMP, {}, "", i, 2 * i) for i in range(1, 101))
    failed = (Record("bad", STAMP, {}, "broken", 10**6),)
    place = SimpleNamespace(device="CPU", batch=1, delegation=SimpleNamespace(summary=lambda: "all"))
    found = Collected(DelegateChoice(), place, records + failed, 7, 2.5, 40.0).as_dict()  # type: ignore[arg-type]
    assert found["preprocessing_us"] == {"avg": 50.5, "std": 28, "median": 51, "p95": 96}
    assert found["inference_us"] == {"avg": 101.0, "std": 57, "median": 102, "p95": 192}
    assert (found["images"], found["reused"], found["seconds"], found["images_per_second"]) == (100, 7, 2.5, 40.0)
    assert found["failed"] == {"bad": "broken"}


# The official message


def fields(message: bytes) -> dict[int, list[Any]]:
    """number -> values of a protocol buffer, read here by its specification."""
    found: dict[int, list[Any]] = {}
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        kind = key & 7
        value: Any
        if kind == 0:
            value = number()
        else:
            size = {1: 8, 5: 4}.get(kind) or number()
            raw = message[at : at + size]
            at += size
            value = raw if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", raw)[0]
        found.setdefault(key >> 3, []).append(value)
    return found


def test_the_official_message_holds_the_figures() -> None:
    preprocessing, inference = Statistics((30, 10, 20)), Statistics((5, 9, 7, 7))
    latency = {1: [7], 2: [9], 3: [5], 4: [28], 5: [7.0], 6: [1]}  # last, max, min, sum, average, deviation
    top = fields(classification_metrics(preprocessing, inference, [0.5, 0.75]))
    assert top[1] == [4]
    task = fields(fields(top[2][0])[4][0])
    assert fields(task[1][0]) == {1: [20], 2: [30], 3: [10], 4: [60], 5: [20.0], 6: [8]}
    assert fields(task[2][0]) == latency and fields(task[3][0]) == {1: [4]} and fields(task[4][0]) == {1: [0.5, 0.75]}
    detection = fields(detection_metrics(preprocessing, inference, [(0.5, 0.25), (0.75, 0.125)], 0.1875))
    metrics = fields(fields(fields(detection[2][0])[7][0])[4][0])
    assert [fields(row) for row in metrics[1]] == [{1: [0.5], 2: [0.25]}, {1: [0.75], 2: [0.125]}]
    assert metrics[2] == [0.1875]
    diff = fields(profiler_metrics(4, preprocessing, inference, [(4.0, 1.0, 2.5, 0.5)]))
    profile = fields(fields(diff[2][0])[5][0])
    assert diff[1] == [4] and fields(profile[1][0])[4] == [60] and fields(profile[2][0]) == latency
    assert fields(profile[3][0]) == {1: [4.0], 2: [1.0], 3: [2.5], 4: [0.5]}
