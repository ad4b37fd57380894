"""Body keypoints: average precision by object keypoint similarity (OKS), as pycocotools computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.model.reader import read_model
from litegpu.model.types import Model
from litegpu.tools.evaluate.choice import DelegateChoice
from litegpu.tools.evaluate.coco_metric import Precisions, coco_precisions, require_pycocotools
from litegpu.tools.evaluate.coco_truth import GroundTruth, TrueImage, TrueObject, picked, read_instances, true_size
from litegpu.tools.evaluate.collecting import Collected, Running
from litegpu.tools.evaluate.data_set import DataSet, DelegateResult, EvaluationReport
from litegpu.tools.evaluate.evaluation import evaluate
from litegpu.tools.evaluate.preprocessing import for_input
from litegpu.tools.evaluate.shard import Read
from litegpu.tools.predictions import KEYPOINTS, Pose, interpret

#: COCO's tolerance of each keypoint, as a share of the square root of the person's area (Ronchi and Perona 2017).
SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000


@dataclass(frozen=True)
class PoseTask:
    """What is measured.

    annotations: COCO's person_keypoints_*.json. ground_truth_images_path: the folder of its images.
    every_image: images with several people too. The networks find one person, so by default only images with exactly
        one, labelled with keypoints, are taken.
    allowlist_file: ids of the images to evaluate, one a line. num_images: the first so many by id; 0: all.
    preprocessing: options of `Preprocessing`.
    """

    model_file: str
    ground_truth_images_path: str
    annotations: str
    every_image: bool = False
    allowlist_file: str = ""
    num_images: int = 0
    preprocessing: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KeypointSimilarity:
    """`similarity`: the mean over the people in whom it is labelled, None if there are none."""

    name: str
    labelled: int
    similarity: float | None


@dataclass(frozen=True)
class ImageSimilarity:
    """OKS of what was found with the person in the image that is most like it."""

    name: str
    oks: float


@dataclass(frozen=True, eq=False)
class DelegatePose(DelegateResult):
    """On one delegate. `poses` are COCO's results (keypoints in pixels); `images`: the worst first."""

    precisions: Precisions
    poses: tuple[Mapping[str, Any], ...]
    keypoints: tuple[KeypointSimilarity, ...]
    images: tuple[ImageSimilarity, ...]

    @property
    def mean_oks(self) -> float:
        """Over the images with a person; 0 if there are none."""
        return sum(i.oks for i in self.images) / len(self.images) if self.images else 0.0

    @property
    def headline(self) -> tuple[str, float]:
        return "mean OKS", self.mean_oks

    def figures(self) -> dict[str, Any]:
        return {
            "mean_oks": self.mean_oks,
            "statistics": dict(self.precisions.statistics),
            "keypoints": [asdict(k) for k in self.keypoints],
            "images_by_oks": [asdict(i) for i in self.images],
        }


@dataclass(frozen=True)
class ReadPose:
    """A `Read`: y, x (fractions of the image) and score of each keypoint. `outputs`: name and quantization of each."""

    outputs: tuple[tuple[str, float, int], ...]
    input_shape: tuple[int, ...]

    def __call__(self, outputs: Sequence[np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
        details = [
            {"name": name, "quantization": (scale, zero_point), "dtype": array.dtype}
            for (name, scale, zero_point), array in zip(self.outputs, outputs, strict=True)
        ]
        found = interpret(outputs, details, self.input_shape)
        assert isinstance(found, Pose), "the outputs' shapes have been checked"
        points = [[k.y, k.x, k.score] for k in found.keypoints]
        return {"height": facts["height"], "width": facts["width"], "keypoints": points}


class PoseData(DataSet[PoseTask, DelegatePose]):
    """Images with the keypoints of people. `left_out`: how many have none or several."""

    kind = "pose"

    def __init__(self, task: PoseTask, running: Running) -> None:
        require_pycocotools()
        self.truth, self.left_out = _truth(task)
        model = read_model(task.model_file)
        preprocessing = for_input(model, **{"crop": 0.0, **task.preprocessing})
        if preprocessing.crop:
            raise OptionError("A crop has no place here: the annotations are of whole images")
        self.read = _reader(model)
        super().__init__(task, running, model, [image.item for image in self.truth.images], preprocessing)

    def network(self, choice: DelegateChoice) -> tuple[str | bytes, Read]:
        return self.task.model_file, self.read

    def measured(self, collected: Collected) -> DelegatePose:
        return _pose(collected, self.truth)

    def description(self) -> dict[str, Any]:
        return {**super().description(), "left_out": self.left_out}


PoseReport = EvaluationReport[PoseData, DelegatePose]


def evaluate_pose(task: PoseTask, running: Running | None = None) -> PoseReport:
    """Evaluate a network that finds the keypoints of one person, as evaluate() does."""
    return evaluate(PoseData(task, running or Running()))


def similarities(found: np.ndarray, person: TrueObject) -> np.ndarray:
    """exp(-d^2 / (2 area (2 sigma)^2)) of each keypoint, NaN of those that are not labelled. found: [17, 2] of x, y in
    pixels, as the person's keypoints are."""
    true = np.array(person.keypoints).reshape(-1, 3)
    area = person.area if person.area is not None else person.box[2] * person.box[3]
    squared = ((found - true[:, :2]) ** 2).sum(axis=1)
    similar = np.exp(-squared / (2 * (area + np.spacing(1)) * (2 * SIGMAS) ** 2))
    return np.where(true[:, 2] > 0, similar, np.nan)


def _truth(task: PoseTask) -> tuple[GroundTruth, int]:
    truth = picked(read_instances(task.annotations, task.ground_truth_images_path), task.allowlist_file, 0)
    size = 3 * len(KEYPOINTS)
    for image in truth.images:
        for thing in image.objects:
            if thing.keypoints and len(thing.keypoints) != size:
                raise OptionError(
                    f"{task.annotations}: a person in image {image.id} has {len(thing.keypoints)} numbers of "
                    f"keypoints, not {size}: COCO's {len(KEYPOINTS)} with x, y and visibility"
                )
    if not any(thing.keypoints for image in truth.images for thing in image.objects):
        raise OptionError(f"{task.annotations} has no keypoints: it should be a person_keypoints_*.json")
    images = [i for i in truth.images if task.every_image or (len(i.objects) == 1 and _labelled(i.objects[0]))]
    if not images:
        raise OptionError(f"{task.annotations} has no image with exactly one person (--every-image takes them all)")
    chosen = GroundTruth(tuple(images), truth.categories, truth.unlisted)
    return picked(chosen, "", task.num_images), len(truth.images) - len(images)


def _labelled(person: TrueObject) -> bool:
    return not person.crowd and any(v > 0 for v in person.keypoints[2::3])


def _reader(model: Model) -> ReadPose:
    outputs = []
    for i in model.main.outputs:
        tensor = model.main.tensors[i]
        q = tensor.quantization
        known = q is not None and q.scales.size == 1
        outputs.append(
            (tensor.name, float(q.scales[0]), int(q.zero_points[0])) if known and q else (tensor.name, 0.0, 0)
        )
    read = ReadPose(tuple(outputs), model.main.tensors[model.main.inputs[0]].shape)
    shapes = [model.main.tensors[i].shape for i in model.main.outputs]
    details = [{"name": "", "quantization": (0.0, 0), "dtype": np.float32}] * len(shapes)
    if not isinstance(interpret([np.zeros(s, np.float32) for s in shapes], details, read.input_shape), Pose):
        raise OptionError(
            f"The outputs {', '.join(str(list(s)) for s in shapes)} are no pose that is known: the four maps of "
            f"PoseNet, or [1, 1, {len(KEYPOINTS)}, 3] of y, x and score as MoveNet gives them"
        )
    return read


def _pose(collected: Collected, truth: GroundTruth) -> DelegatePose:
    by_name = {image.item.name: image for image in truth.images}
    category = next(t.category for image in truth.images for t in image.objects if t.keypoints)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    poses: list[dict[str, Any]] = []
    likeness: list[np.ndarray] = []
    scored: list[ImageSimilarity] = []
    for record in collected.good:
        image = by_name[record.name]
        height, width = true_size(image, record.result)
        images.append({"id": image.id, "height": height, "width": width})
        annotations += _annotations(image)
        rows = np.array(record.result["keypoints"])
        points = np.stack([rows[:, 1] * width, rows[:, 0] * height], axis=1)
        poses.append(_result(image.id, category, points, rows[:, 2]))
        own = [similarities(points, person) for person in image.objects if _labelled(person)]
        if own:
            best = max(own, key=lambda s: float(np.nanmean(s)))
            likeness.append(best)
            scored.append(ImageSimilarity(record.name, float(np.nanmean(best))))
    precisions = coco_precisions(images, annotations, truth.categories, poses, keypoints=True)
    scored.sort(key=lambda i: (i.oks, i.name))
    return DelegatePose(collected, precisions, tuple(poses), _by_keypoint(likeness), tuple(scored))


def _by_keypoint(likeness: Sequence[np.ndarray]) -> tuple[KeypointSimilarity, ...]:
    table = np.array(likeness).reshape(-1, len(KEYPOINTS))
    found = []
    for name, column in zip(KEYPOINTS, table.T, strict=True):
        values = column[~np.isnan(column)]
        found.append(KeypointSimilarity(name, values.size, float(values.mean()) if values.size else None))
    return tuple(found)


def _annotations(image: TrueImage) -> list[dict[str, Any]]:
    found = []
    for thing in image.objects:
        if not thing.keypoints:
            continue
        entry = {"image_id": image.id, "category_id": thing.category, "bbox": list(thing.box)}
        area = thing.area if thing.area is not None else thing.box[2] * thing.box[3]
        entry |= {"area": area, "iscrowd": int(thing.crowd), "keypoints": list(thing.keypoints)}
        found.append(entry | {"num_keypoints": sum(v > 0 for v in thing.keypoints[2::3])})
    return found


def _result(image: int, category: int, points: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """COCO's result: its score is the mean of the keypoints'."""
    low, high = points.min(axis=0), points.max(axis=0)
    entry: dict[str, Any] = {"image_id": image, "category_id": category, "score": float(scores.mean())}
    entry["keypoints"] = np.concatenate([points, scores[:, None]], axis=1).reshape(-1).tolist()
    return entry | {"bbox": [*low.tolist(), *(high - low).tolist()]}
