"""Outputs are recognised by their shapes and decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.errors import OptionError
from litegpu.tools.drawing import draw, palette
from litegpu.tools.labels import read_labels
from litegpu.tools.predictions import (
    Classification,
    Detection,
    Picture,
    Pose,
    Segmentation,
    Tensors,
    interpret,
)

IMAGE = (1, 257, 257, 3)


def details(arrays: list[np.ndarray], quantization: tuple[float, int] = (0.0, 0)) -> list[dict[str, Any]]:
    return [{"name": f"out{i}", "dtype": a.dtype.type, "quantization": quantization} for i, a in enumerate(arrays)]


@pytest.mark.parametrize("shape", [(1, 6), (1, 1, 1, 6)])
@pytest.mark.parametrize(("labels", "expected"), [(6, "l4"), (7, "l5"), (5, "l3"), (0, "class 4")])
def test_classification_allows_for_a_background_label(shape: tuple[int, ...], labels: int, expected: str) -> None:
    scores = np.array([0, 0.1, 0.2, 0.15, 0.5, 0.05], np.float32).reshape(shape)
    result = interpret([scores], details([scores]), IMAGE, [f"l{i}" for i in range(labels)])
    assert isinstance(result, Classification)
    assert [entry.index for entry in result.top] == [4, 2, 3, 1, 5]
    assert result.top[0].label == expected and result.top[0].score == pytest.approx(0.5)


def test_quantized_scores_are_real_values() -> None:
    scores = np.array([[0, 255, 128]], np.uint8)
    result = interpret([scores], details([scores], (1 / 256, 0)), IMAGE)
    assert isinstance(result, Classification)
    assert result.top[0].score == pytest.approx(255 / 256)


def test_segmentation_and_pictures() -> None:
    scores = np.zeros((1, 40, 40, 21), np.float32)
    scores[0, :, :10, 8] = 1
    result = interpret([scores], details([scores]), IMAGE, ["background"] + [f"l{i}" for i in range(1, 21)])
    assert isinstance(result, Segmentation)
    assert [(e.index, e.label, e.score) for e in result.shares] == [(0, "background", 0.75), (8, "l8", 0.25)]
    styled = np.full((1, 40, 40, 3), 0.5, np.float32)
    picture = interpret([styled], details([styled]), IMAGE)
    assert isinstance(picture, Picture) and (picture.pixels == 128).all()


@pytest.mark.parametrize("scores_first", [False, True])
@pytest.mark.parametrize(
    ("labels", "expected"), [(["a", "b", "c"], "c"), (["???", "a", "b", "c"], "c"), ([], "class 2")]
)
def test_detections(scores_first: bool, labels: list[str], expected: str) -> None:
    boxes = np.array([[[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], [0, 0, 9, 9]]], np.float32)
    classes, scores = np.array([[2, 0, 0]], np.float32), np.array([[0.9, 0.1, 0.95]], np.float32)
    middle = [scores, classes] if scores_first else [classes, scores]
    outputs = [boxes, *middle, np.array([2], np.float32)]  # the third row is not valid
    result = interpret(outputs, details(outputs), IMAGE, labels)
    assert isinstance(result, Detection)
    assert len(result.boxes) == 1
    box = result.boxes[0]
    assert box.found.label == expected and (box.top, box.right) == pytest.approx((0.1, 0.4))


def test_pose_is_cell_times_stride_plus_offset() -> None:
    heat, offsets = np.full((1, 9, 9, 17), -5, np.float32), np.zeros((1, 9, 9, 34), np.float32)
    heat[0, 3, 6, :] = 2
    offsets[0, 3, 6, 0], offsets[0, 3, 6, 17] = 4, -8
    other = np.zeros((1, 9, 9, 32), np.float32)
    outputs = [other, other, heat, offsets]
    result = interpret(outputs, details(outputs), IMAGE)
    assert isinstance(result, Pose)
    nose = result.keypoints[0]
    assert nose.y == pytest.approx((3 * 32 + 4) / 257) and nose.x == pytest.approx((6 * 32 - 8) / 257)
    assert nose.score == pytest.approx(1 / (1 + np.exp(-2)))


def test_pose_that_is_listed() -> None:
    rows = np.linspace(0, 1, 51, dtype=np.float32).reshape(1, 1, 17, 3)
    result = interpret([rows], details([rows]), (1, 192, 192, 3))
    assert isinstance(result, Pose)
    nose, *_, ankle = result.keypoints
    assert (nose.name, nose.y, ankle.name) == ("nose", 0, "right ankle")
    assert (ankle.y, ankle.x, ankle.score) == pytest.approx((0.96, 0.98, 1))


def test_anything_else_is_summarised() -> None:
    outputs = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([True, False])]
    result = interpret(outputs, details(outputs), (1, 640))
    assert isinstance(result, Tensors)
    assert (result.tensors[0].minimum, result.tensors[0].maximum, result.tensors[0].mean) == (0, 5, 2.5)


def test_labels_end_at_the_first_empty_line(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("a\nb \n\nnot a label\n")
    assert read_labels(tmp_path / "labels.txt") == ["a", "b"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(OptionError, match="no labels"):
        read_labels(tmp_path / "empty.txt")
    with pytest.raises(OptionError, match="Cannot read the labels"):
        read_labels(tmp_path / "absent.txt")


def test_palette_is_that_of_pascal_voc() -> None:
    colours = palette(256)
    assert colours[[0, 1, 8, 15, 255]].tolist() == [
        [0, 0, 0],
        [128, 0, 0],
        [64, 0, 0],
        [192, 128, 128],
        [224, 224, 192],
    ]
    assert len(np.unique(colours, axis=0)) == 256


def test_drawings_show_the_result_where_it_is() -> None:
    grey = np.full((480, 640, 3), 100, np.uint8)
    scores = np.zeros((1, 40, 40, 21), np.float32)
    scores[0, 20:, 20:, 5] = 1
    drawn = draw(grey, interpret([scores], details([scores]), IMAGE))
    assert drawn is not None and drawn.shape == grey.shape
    inside, outside = drawn[300:470, 400:630], drawn[300:470, 10:300]
    assert (inside == inside[0, 0]).all() and inside[0, 0, 2] > inside[0, 0, 1]  # class 5 is (128, 0, 128)
    assert (outside == 60).all()
    boxes = [
        np.array([[[0.5, 0.5, 0.9, 0.9]]], np.float32),
        np.array([[0.0]], np.float32),
        np.array([[0.9]], np.float32),
    ]
    outputs = [*boxes, np.array([1], np.float32)]
    drawn = draw(grey, interpret(outputs, details(outputs), IMAGE))
    assert drawn is not None
    assert (drawn[300, 310:330] != 100).any(), "the left edge of the box"
    assert (drawn[:150] == 100).all() and (drawn[300:400, 340:560] == 100).all(), "nothing else was drawn on"


def test_tensors_cannot_be_drawn() -> None:
    outputs = [np.zeros((2, 3), np.float32)]
    assert draw(np.zeros((8, 8, 3), np.uint8), interpret(outputs, details(outputs), (1, 640))) is None
