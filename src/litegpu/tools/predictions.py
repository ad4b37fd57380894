"""Recognises from a model's outputs what it does, and turns the tensors into labels, masks, boxes or keypoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The PoseNet order of keypoints, and the limbs that are drawn between them.
KEYPOINTS = (
    *("nose", "left eye", "right eye", "left ear", "right ear", "left shoulder", "right shoulder", "left elbow"),
    *("right elbow", "left wrist", "right wrist", "left hip", "right hip", "left knee", "right knee"),
    *("left ankle", "right ankle"),
)
LIMBS = ((5, 6), (5, 7), (7, 9), (6, 8), (8, 10), (5, 11), (6, 12), (11, 12), (11, 13), (13, 15), (12, 14), (14, 16))

_SMALLEST_MASK = 16  # pixels a side; smaller maps are features, not masks
_MOST_CLASSES = 200  # of a mask
_TOP = 5
_SHOWN_DETECTION = 0.3


@dataclass(frozen=True)
class Labelled:
    """A class with its score: a probability, a logit, or a share of the picture, as the model gives it."""

    index: int
    label: str
    score: float


@dataclass(frozen=True)
class Classification:
    """The classes with the highest scores, best first."""

    task = "classification"
    top: tuple[Labelled, ...]


@dataclass(frozen=True, eq=False)
class Segmentation:
    """`mask`: class of each pixel, int [height, width]; `shares`: classes present, by falling share of the pixels."""

    task = "segmentation"
    mask: np.ndarray
    shares: tuple[Labelled, ...]


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as output: uint8 [height, width, 3]."""

    task = "picture"
    pixels: np.ndarray


@dataclass(frozen=True)
class Box:
    """Edges as fractions of the picture."""

    top: float
    left: float
    bottom: float
    right: float
    found: Labelled


@dataclass(frozen=True)
class Detection:
    """Boxes with a score of at least 0.3, best first; `best` is the best of all, if any was found."""

    task = "detection"
    boxes: tuple[Box, ...]
    best: Box | None


@dataclass(frozen=True)
class Keypoint:
    """A position as fractions of the picture."""

    name: str
    y: float
    x: float
    score: float


@dataclass(frozen=True)
class Pose:
    """One person: the strongest candidate of each keypoint."""

    task = "pose"
    keypoints: tuple[Keypoint, ...]


@dataclass(frozen=True)
class TensorSummary:
    """What an output holds, where nothing better is known: figures of its finite numbers, NaN if it has none, and how
    many of its numbers are NaN or infinite."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    mean: float
    deviation: float
    not_finite: int = 0


@dataclass(frozen=True)
class Tensors:
    """Outputs of a model whose task was not recognised."""

    task = "tensors"
    tensors: tuple[TensorSummary, ...]


Result = Classification | Segmentation | Picture | Detection | Pose | Tensors


def class_count(shapes: Sequence[Sequence[int]], input_shape: Sequence[int]) -> int | None:
    """How many classes outputs of these shapes tell apart, None where that is not seen from shapes."""
    if len(shapes) != 1 or len(input_shape) != 4:
        return None
    shape = shapes[0]
    if _is_scores(shape) or _is_mask(shape):
        return int(shape[-1])
    return None


def _is_scores(shape: Sequence[int]) -> bool:
    return len(shape) >= 2 and shape[-1] > 1 and all(n == 1 for n in shape[1:-1])


def _is_mask(shape: Sequence[int]) -> bool:
    return len(shape) == 4 and min(shape[1:3]) > _SMALLEST_MASK and shape[3] != 3 and 2 <= shape[3] <= _MOST_CLASSES


def interpret(
    outputs: Sequence[np.ndarray],
    details: Sequence[Mapping[str, Any]],
    input_shape: Sequence[int],
    labels: Sequence[str] = (),
) -> Result:
    """The meaning of a model's outputs, judged by their shapes; of a batch, that of the first item.

    Args:
        outputs, details: arrays and `get_output_details` dictionaries, in the model's order.
        input_shape: of the model's first input.
        labels: class names; a leading "background" or "???" that the model does not count, or one that is missing, is
            allowed for.
    """
    values = [dequantized(array, detail) for array, detail in zip(outputs, details, strict=True)]
    shapes = [array.shape for array in values]
    if len(values) == 1 and len(input_shape) == 4:
        shape = shapes[0]
        if _is_scores(shape):
            return _classification(values[0].reshape(-1, shape[-1])[0], labels)
        if _is_mask(shape):
            return _segmentation(values[0][0], labels)
        if len(shape) == 4 and min(shape[1:3]) > _SMALLEST_MASK and shape[3] == 3:
            return Picture(_pixels(values[0][0]))
    if len(values) == 1 and shapes[0] == (1, 1, len(KEYPOINTS), 3):
        return _listed_pose(values[0][0, 0])
    if len(values) == 4:
        detection = _detection(values, labels)
        if detection is not None:
            return detection
        heat = next((i for i, s in enumerate(shapes) if len(s) == 4 and s[3] == len(KEYPOINTS)), None)
        offset = next((i for i, s in enumerate(shapes) if len(s) == 4 and s[3] == 2 * len(KEYPOINTS)), None)
        if heat is not None and offset is not None and shapes[heat][1:3] == shapes[offset][1:3]:
            return _pose(values[heat][0], values[offset][0], input_shape)
    return Tensors(tuple(_summary(a, d) for a, d in zip(values, details, strict=True)))


def dequantized(array: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Real values: scale * (q - zero_point) for a quantized tensor, the array itself for others."""
    scale, zero_point = detail["quantization"]
    if array.dtype.kind == "f" or not scale:
        return array
    real: np.ndarray = (array.astype(np.float32) - zero_point) * np.float32(scale)
    return real


def _classification(scores: np.ndarray, labels: Sequence[str]) -> Classification:
    order = np.argsort(-scores, kind="stable")[:_TOP]
    shift = len(labels) - len(scores) if abs(len(labels) - len(scores)) == 1 else 0
    return Classification(tuple(Labelled(int(i), _label(labels, int(i) + shift), float(scores[i])) for i in order))


def _segmentation(scores: np.ndarray, labels: Sequence[str]) -> Segmentation:
    mask = scores.argmax(axis=-1)
    classes, counts = np.unique(mask, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    shares = (Labelled(int(classes[i]), _label(labels, int(classes[i])), float(counts[i] / mask.size)) for i in order)
    return Segmentation(mask, tuple(shares))


def _pixels(image: np.ndarray) -> np.ndarray:
    """uint8 from values in 0..1, -1..1 or 0..255, told apart by the range they take."""
    low, high = float(np.nanmin(image)), float(np.nanmax(image))
    if high <= 1.5:
        image = image * 255 if low >= -0.1 else (image + 1) * 127.5
    pixels: np.ndarray = np.clip(np.nan_to_num(image) + 0.5, 0, 255).astype(np.uint8)
    return pixels


def _detection(values: Sequence[np.ndarray], labels: Sequence[str]) -> Detection | None:
    """The four outputs of TFLite_Detection_PostProcess, in either order that exporters use; None if they are not."""
    boxes = [a for a in values if a.ndim == 3 and a.shape[2] == 4]
    rows = [a for a in values if a.ndim == 2 and boxes and a.shape == boxes[0].shape[:2]]
    counts = [a for a in values if a.size == 1 and a.ndim == 1]
    if not (len(boxes) == 1 and len(rows) == 2 and len(counts) == 1):
        return None
    # Scores lie in 0..1, classes are whole numbers; where both fit, classes come first.
    swap = bool((rows[0] % 1 != 0).any()) and not bool((rows[1] % 1 != 0).any())
    classes, scores = (rows[1], rows[0]) if swap else (rows[0], rows[1])
    shift = 1 if labels and labels[0] in ("???", "background") else 0
    found = []
    count = float(np.nan_to_num(counts[0], nan=0.0).item())
    for i in range(int(min(count, scores.shape[1]))):
        if not np.isfinite(classes[0, i]):  # what overflowed is no detection
            continue
        index, (top, left, bottom, right) = int(classes[0, i]), boxes[0][0, i].tolist()
        entry = Labelled(index, _label(labels, index + shift), float(scores[0, i]))
        found.append(Box(top, left, bottom, right, entry))
    found.sort(key=lambda box: -box.found.score)
    shown = tuple(box for box in found if box.found.score >= _SHOWN_DETECTION)
    return Detection(shown, found[0] if found else None)


def _pose(heat: np.ndarray, offsets: np.ndarray, input_shape: Sequence[int]) -> Pose:
    """Position = cell * output stride + offset, in pixels of the input; score = the heatmap's logistic (PoseNet)."""
    rows, columns, count = heat.shape
    keypoints = []
    for k in range(count):
        row, column = np.unravel_index(int(heat[..., k].argmax()), (rows, columns))
        y = row * (input_shape[1] - 1) / max(rows - 1, 1) + offsets[row, column, k]
        x = column * (input_shape[2] - 1) / max(columns - 1, 1) + offsets[row, column, count + k]
        score = 1 / (1 + np.exp(-float(heat[row, column, k])))
        keypoints.append(Keypoint(KEYPOINTS[k], float(y / input_shape[1]), float(x / input_shape[2]), float(score)))
    return Pose(tuple(keypoints))


def _listed_pose(rows: np.ndarray) -> Pose:
    """y, x as fractions of the picture and score of each keypoint (MoveNet)."""
    listed = zip(KEYPOINTS, rows.tolist(), strict=True)
    return Pose(tuple(Keypoint(name, float(y), float(x), float(score)) for name, (y, x, score) in listed))


def _summary(array: np.ndarray, detail: Mapping[str, Any]) -> TensorSummary:
    numbers = array.astype(np.float64).ravel() if array.dtype.kind in "fiub" else np.empty(0)
    finite = numbers[np.isfinite(numbers)]
    low, high, mean, deviation = (
        float(f(finite)) if finite.size else float("nan") for f in (np.min, np.max, np.mean, np.std)
    )
    name, shape, kind = detail["name"], tuple(array.shape), np.dtype(detail["dtype"]).name
    return TensorSummary(name, shape, kind, low, high, mean, deviation, numbers.size - finite.size)


def _label(labels: Sequence[str], index: int) -> str:
    return labels[index] if 0 <= index < len(labels) else f"class {index}"
