"""Data sets and flags that strangers give evaluations and map: encodings, thresholds, heads, numbers that are none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu import cli
from litegpu.errors import OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.model.reader import read_model
from litegpu.tools.evaluate.coco_truth import read_instances
from litegpu.tools.evaluate.heads import ReadDetections, read_detector
from litegpu.tools.evaluate.records import RecordFile
from litegpu.tools.evaluate.segmentation import SegmentationData, SegmentationTask
from litegpu.tools.images import image_to_tensor
from litegpu.tools.mapping import map_model
from litegpu.zoo import build_model


def test_annotations_in_the_encoding_of_windows(tmp_path: Path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 4, "height": 4}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 2, "bbox": [0, 0, 2, 2], "area": 4, "iscrowd": 0}],
        "categories": [{"id": 2, "name": "thing"}],
    }
    images = tmp_path / "images"
    images.mkdir()
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content), encoding="utf-8-sig")
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(images / "a.png")
    assert read_instances(path, images).categories == {2: "thing"}
    path.write_text(json.dumps(content | {"images": None}))
    with pytest.raises(OptionError, match=r"it has no images \(lists\)"):
        read_instances(path, images)


def test_overflow_is_no_detection() -> None:
    read = ReadDetections((0, 1, 2, 3), ((0.0, 0),) * 4)
    boxes = np.array([[[0, 0, 1, 1], [0, np.nan, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]], np.float32)
    classes, scores = np.array([[1, 1, np.inf, 2]], np.float32), np.array([[0.9, 0.8, 0.7, 0.6]], np.float32)
    found = read([boxes, classes, scores, np.array([4], np.float32)], {"height": 2, "width": 2})
    assert found["classes"] == [1, 2] and found["scores"] == pytest.approx([0.9, 0.6])
    for count in (np.nan, -np.inf):
        assert read([boxes, classes, scores, np.array([count], np.float32)], {"height": 2, "width": 2})["boxes"] == []
    found = read([boxes, classes, scores, np.array([np.inf], np.float32)], {"height": 2, "width": 2})
    assert found["classes"] == [1, 2]


def test_flags_of_other_heads_are_refused() -> None:
    model = read_model(build_model("ssd_mobilenet_v1", width=0.25, resolution=96, classes=3))
    assert read_detector(model, "m").classes == 3
    for given in ({"anchors": "a.npy"}, {"output_order": "boxes,classes,scores,count"}, {"output_order": "x"}):
        with pytest.raises(OptionError, match="TFLite_Detection_PostProcess"):
            read_detector(model, "m", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["nan", "1.5", "-0.1"])
@pytest.mark.parametrize("flags", [
    ("imagenet", "--ground_truth_labels=t", "--model_output_labels=l", "--min-top1={}"), ("coco", "--min-map={}"),
    ("segmentation", "--ground_truth_masks_path=m", "--min-iou={}"), ("pose", "--annotations=a", "--min-oks={}"),
])  # fmt: skip
def test_thresholds_that_nothing_reaches_are_told_first(
    flags: tuple[str, ...], value: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    task, *others = (flag.format(value) for flag in flags)
    files = ("--model_file=m", "--ground_truth_images_path=i")
    monkeypatch.setattr(sys, "argv", ["litegpu", "evaluate", task, *files, *others])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and others[-1].split("=")[0] in capsys.readouterr().err


def test_what_changed_in_a_preprocessing_is_named(tmp_path: Path) -> None:
    def of(crop: float) -> dict[str, Any]:
        return {"task": "t", "preprocessing": {"height": 96, "width": 96, "dtype": "float32", "crop": crop}}

    with RecordFile(tmp_path / "r.jsonl", of(0.5)):
        pass
    with pytest.raises(OptionError, match=r"\(crop of preprocessing was 0.5, now 0.25\)"):
        RecordFile(tmp_path / "r.jsonl", of(0.25))


def test_names_of_a_segmentation_end_at_an_empty_line_as_those_of_run(tmp_path: Path) -> None:
    from litegpu.tools.evaluate.collecting import Running

    model, names = tmp_path / "m.tflite", tmp_path / "names.txt"
    model.write_bytes(build_model("deeplab_v3", width=0.25, resolution=65, classes=3))
    names.write_text("sky\r\nsea\r\nland\r\n\r\nabout these names\r\n")
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "images" / "a.png")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "masks" / "a.png")
    task = SegmentationTask(str(model), str(tmp_path / "images"), str(tmp_path / "masks"), str(names))
    assert SegmentationData(task, Running()).labels == ["sky", "sea", "land"]


# ------------------------------------------------------------------------------------------------------------- map


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = ModelBuilder("double")
    x = model.input("x", (1, 8, 8, 3))
    model.output(model.op("ADD", [x, x], (1, 8, 8, 3)))
    path = tmp_path_factory.mktemp("map") / "double.tflite"
    path.write_bytes(model.build())
    return path


def test_lists_in_the_encoding_of_windows(doubling: Path, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "list.txt").write_bytes(f"{tmp_path / 'a.png'}\r\n".encode("utf-8-sig"))
    assert map_model(doubling, [tmp_path / "list.txt"], tmp_path / "o.parquet", device="cpu").inputs == 1


def test_no_threads_are_refused(doubling: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="num_threads is 0; it must be at least 1"):
        map_model(doubling, [tmp_path], tmp_path / "o.parquet", device="cpu", num_threads=0)


def test_a_picture_for_what_takes_none_is_told_in_words() -> None:
    detail = {"name": "ids", "shape": np.array([1, 8]), "dtype": np.int64, "quantization": (0.0, 0)}
    with pytest.raises(OptionError, match=r"Input 'ids', int64 of shape \[1, 8\], does not look like a picture"):
        image_to_tensor(np.zeros((4, 4, 3), np.uint8), detail)
