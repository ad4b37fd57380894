"""Semantic segmentation: mean intersection over union, as PASCAL VOC defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from litegpu.errors import OptionError
from litegpu.model.reader import read_model
from litegpu.model.types import Model
from litegpu.tools.evaluate.choice import DelegateChoice
from litegpu.tools.evaluate.collecting import Collected, Running
from litegpu.tools.evaluate.data_set import DataSet, DelegateResult, EvaluationReport
from litegpu.tools.evaluate.evaluation import evaluate
from litegpu.tools.evaluate.image_list import Item, item_of, list_images, pick
from litegpu.tools.evaluate.preprocessing import Preprocessing, UnreadableImage, bilinear, for_input
from litegpu.tools.evaluate.shard import Read
from litegpu.tools.images import undecodable
from litegpu.tools.labels import read_labels

UPSAMPLING = ("bilinear", "nearest")


@dataclass(frozen=True)
class SegmentationTask:
    """What is measured.

    ground_truth_images_path, ground_truth_masks_path: folders; the mask of NAME.jpg is NAME.png, of one channel (or a
        palette) whose numbers are classes, and of the image's size.
    model_output_labels: line i names class i; "" for none. ignore_label: of pixels that do not count.
    upsampling: to the size of the mask, "bilinear" of the scores, which then are compared, or "nearest" of the classes.
    num_images: the first so many; 0: all. preprocessing: options of `Preprocessing`.
    """

    model_file: str
    ground_truth_images_path: str
    ground_truth_masks_path: str
    model_output_labels: str = ""
    ignore_label: int = 255
    upsampling: str = "bilinear"
    num_images: int = 0
    preprocessing: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.upsampling not in UPSAMPLING:
            raise OptionError(f"The upsampling {self.upsampling!r} is unknown: use {', '.join(UPSAMPLING)}")


@dataclass(frozen=True)
class ClassIou:
    """`iou`: pixels that truth and model agree on, over those that either gives to the class; None if there are none.
    `pixels` are those of the ground truth."""

    index: int
    label: str
    pixels: int
    iou: float | None


@dataclass(frozen=True)
class ImageIou:
    """The mean over the classes that occur in one image."""

    name: str
    iou: float


@dataclass(frozen=True, eq=False)
class DelegateIou(DelegateResult):
    """On one delegate. `matrix`: pixels [true class, class of the model]; `images`: the worst first."""

    matrix: np.ndarray
    classes: tuple[ClassIou, ...]
    images: tuple[ImageIou, ...]

    @property
    def mean_iou(self) -> float:
        """Over the classes that occur; 0 if none does."""
        found = [c.iou for c in self.classes if c.iou is not None]
        return sum(found) / len(found) if found else 0.0

    @property
    def pixel_accuracy(self) -> float:
        total = int(self.matrix.sum())
        return int(np.trace(self.matrix)) / total if total else 0.0

    @property
    def headline(self) -> tuple[str, float]:
        return "mean IoU", self.mean_iou

    def figures(self) -> dict[str, Any]:
        return {
            "mean_iou": self.mean_iou,
            "pixel_accuracy": self.pixel_accuracy,
            "classes": [asdict(c) for c in self.classes],
            "images_by_iou": [asdict(i) for i in self.images],
        }


@dataclass(frozen=True)
class WithMask:
    """A `Prepare` that also reads the ground truth, as the fact "mask"."""

    image: Preprocessing
    masks: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.image.shape

    @property
    def dtype(self) -> str:
        return self.image.dtype

    def __call__(self, path: str, out: np.ndarray) -> dict[str, Any]:
        facts = self.image(path, out)
        mask = read_mask(mask_path(self.masks, path))
        if mask.shape != (facts["height"], facts["width"]):
            raise UnreadableImage(
                f"{facts['width']}x{facts['height']}, but its mask is {mask.shape[1]}x{mask.shape[0]}"
            )
        return facts | {"mask": mask}


@dataclass(frozen=True)
class CountPixels:
    """A `Read`: the pixels of one image by (true class, class of the model), those that occur."""

    classes: int
    ignore: int
    upsampling: str

    def __call__(self, outputs: Sequence[np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
        mask = facts["mask"]
        found = self._found(outputs[0][0], *mask.shape)
        counted = mask != self.ignore
        truths = mask[counted].astype(np.int64)
        if truths.size and int(truths.max()) >= self.classes:
            raise OptionError(
                f"A mask has class {int(truths.max())}, but the model tells {self.classes} classes apart (0 to "
                f"{self.classes - 1}); --ignore_label names a number that does not count"
            )
        pairs, counts = np.unique(truths * self.classes + found[counted], return_counts=True)
        return {
            "pairs": [
                [int(p) // self.classes, int(p) % self.classes, int(n)] for p, n in zip(pairs, counts, strict=True)
            ]
        }

    def _found(self, output: np.ndarray, height: int, width: int) -> np.ndarray:
        scored = output.ndim == 3 and output.shape[2] > 1
        if scored and self.upsampling == "bilinear":
            return np.asarray(bilinear(output.astype(np.float32), height, width, centred=True).argmax(axis=2))
        found = output.argmax(axis=2) if scored else output.reshape(output.shape[:2])
        rows, columns = (
            np.minimum((np.arange(size) + 0.5) * old / size, old - 1).astype(np.int64)
            for size, old in ((height, len(found)), (width, len(found[0])))
        )
        return np.asarray(found[rows][:, columns].astype(np.int64))


class SegmentationData(DataSet[SegmentationTask, DelegateIou]):
    """Images with a mask each. `labels`: of all classes."""

    kind = "segmentation"

    def __init__(self, task: SegmentationTask, running: Running) -> None:
        images = list_images(task.ground_truth_images_path)
        items = _with_masks(task, [images[i] for i in pick(len(images), (), task.num_images)])
        model = read_model(task.model_file)
        labels = read_labels(task.model_output_labels) if task.model_output_labels else []
        classes = _class_count(model, labels, task)
        preprocessing = for_input(model, **{"crop": 0.0, **task.preprocessing})
        if preprocessing.crop:
            raise OptionError("A crop has no place here: the masks are of whole images")
        self.labels = [*labels, *(f"class {i}" for i in range(len(labels), classes))]
        self.read = CountPixels(classes, task.ignore_label, task.upsampling)
        super().__init__(task, running, model, items, preprocessing)

    @property
    def prepare(self) -> WithMask:
        return WithMask(self.preprocessing, self.task.ground_truth_masks_path)

    def network(self, choice: DelegateChoice) -> tuple[str | bytes, Read]:
        return self.task.model_file, self.read

    def marks(self) -> dict[str, Any]:
        return {"reading": asdict(self.read)}

    def measured(self, collected: Collected) -> DelegateIou:
        return _iou(collected, self.labels)


SegmentationReport = EvaluationReport[SegmentationData, DelegateIou]


def evaluate_segmentation(task: SegmentationTask, running: Running | None = None) -> SegmentationReport:
    """Evaluate a segmentation network, as evaluate() does. Raises OptionError also for masks that do not fit."""
    return evaluate(SegmentationData(task, running or Running()))


def mask_path(folder: str, image: str) -> Path:
    """Where the mask of an image is."""
    return Path(folder, f"{Path(image).stem}.png")


def read_mask(path: Path) -> np.ndarray:
    """The numbers of a mask, uint8 or int32 [height, width]. Raises UnreadableImage."""
    try:
        with Image.open(path) as image:
            if image.mode not in ("L", "P", "I", "I;16", "1"):
                raise UnreadableImage(f"its mask {path} is a picture of mode {image.mode}; one channel is needed")
            return np.array(image)
    except UnreadableImage:
        raise
    except Exception as error:
        raise UnreadableImage(f"its mask {path} cannot be read: {undecodable(error)}") from None


def iou_by_class(matrix: np.ndarray, labels: Sequence[str]) -> list[ClassIou]:
    """From the pixels [true class, class of the model]."""
    right, true, found = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    union = true + found - right
    return [
        ClassIou(i, label, int(true[i]), float(right[i] / union[i]) if union[i] else None)
        for i, label in enumerate(labels)
    ]


def _iou(collected: Collected, labels: Sequence[str]) -> DelegateIou:
    total = np.zeros((len(labels), len(labels)), np.int64)
    images = []
    for record in collected.good:
        own = np.zeros_like(total)
        for truth, found, count in record.result["pairs"]:
            own[truth, found] = count
        total += own
        values = [c.iou for c in iou_by_class(own, labels) if c.iou is not None]
        images.append(ImageIou(record.name, sum(values) / len(values) if values else 1.0))
    if not total.any():
        raise OptionError(f"No pixel of the {len(images)} masks counts: all are to be ignored")
    images.sort(key=lambda i: (i.iou, i.name))
    return DelegateIou(collected, total, tuple(iou_by_class(total, labels)), tuple(images))


def _with_masks(task: SegmentationTask, items: Sequence[Item]) -> list[Item]:
    """The items, changed when their masks change."""
    folder = task.ground_truth_masks_path
    if not Path(folder).is_dir():
        raise OptionError(f"{folder} (the masks) is no folder")
    masks = [item_of(folder, mask_path(folder, item.path).name) for item in items]
    missing = [mask.path for mask in masks if mask.stamp is None]
    if missing:
        raise OptionError(f"{len(missing)} masks are missing, such as {missing[0]}")
    return [
        replace(item, stamp=(item.stamp[0] + mask.stamp[0], max(item.stamp[1], mask.stamp[1])))
        if item.stamp and mask.stamp
        else item
        for item, mask in zip(items, masks, strict=True)
    ]


def _class_count(model: Model, labels: Sequence[str], task: SegmentationTask) -> int:
    outputs = [model.main.tensors[i] for i in model.main.outputs]
    shape = outputs[0].shape
    if len(outputs) != 1 or len(shape) not in (3, 4):
        shapes = ", ".join(str(list(t.shape)) for t in outputs)
        raise OptionError(
            f"{task.model_file} is no segmentation network that is known: one output [1, height, width, classes], or "
            f"[1, height, width] of class numbers, is needed; it has {shapes}"
        )
    if len(shape) == 4 and shape[3] > 1:
        if labels and len(labels) != shape[3]:
            raise OptionError(f"{task.model_output_labels} has {len(labels)} labels, but the model {shape[3]} classes")
        return shape[3]
    if not labels:
        raise OptionError(f"{task.model_file} gives class numbers: --model_output_labels has to say how many there are")
    return len(labels)
