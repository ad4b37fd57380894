"""COCO: mean average precision of a detector at IoU 0.50:0.05:0.95, as pycocotools computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from litegpu.errors import OptionError
from litegpu.model.reader import read_model
from litegpu.model.types import Model
from litegpu.tools.evaluate.choice import DelegateChoice
from litegpu.tools.evaluate.coco_metric import Precisions, coco_precisions, require_pycocotools
from litegpu.tools.evaluate.coco_truth import GroundTruth, TrueImage, picked, read_instances, read_message, true_size
from litegpu.tools.evaluate.collecting import Collected, Running
from litegpu.tools.evaluate.data_set import DataSet, DelegateResult, EvaluationReport
from litegpu.tools.evaluate.evaluation import evaluate
from litegpu.tools.evaluate.heads import Detector, read_detector
from litegpu.tools.evaluate.image_list import read_names
from litegpu.tools.evaluate.preprocessing import for_input
from litegpu.tools.evaluate.shard import Read


@dataclass(frozen=True)
class CocoTask:
    """What is measured. Names are those of the official tool's flags, but for `annotations`.

    ground_truth_images_path: the folder. annotations: COCO's instances_*.json; or ground_truth_proto: the official
    tool's binary ObjectDetectionGroundTruth.
    model_output_labels: a name a line, those of a message's categories by their ids; "" for none.
    match_labels: the category of class i is that of the name in line i + class_offset of model_output_labels, as models
        with 80 classes need it; else it is the one with the id i + class_offset.
    allowlist_file: ids of the images to evaluate, one a line. num_images: the first so many by id; 0: all.
    anchors, output_order, max_detections: as for `heads.read_detector`. preprocessing: options of `Preprocessing`.
    """

    model_file: str
    ground_truth_images_path: str
    annotations: str = ""
    ground_truth_proto: str = ""
    model_output_labels: str = ""
    match_labels: bool = False
    class_offset: int = 1
    allowlist_file: str = ""
    num_images: int = 0
    anchors: str = ""
    output_order: str = ""
    max_detections: int = 100
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    output_file_path: str = ""


@dataclass(frozen=True, eq=False)
class DelegatePrecision(DelegateResult):
    """The precision on one delegate. `detections` are COCO's results (image_id, category_id, bbox, score); `strange`
    ones had no category of the ground truth."""

    precisions: Precisions
    detections: tuple[Mapping[str, Any], ...]
    strange: int

    @property
    def headline(self) -> tuple[str, float]:
        return "mAP", self.precisions.overall

    def figures(self) -> dict[str, Any]:
        precisions = self.precisions
        return {
            "statistics": dict(precisions.statistics),
            "by_threshold": {f"{t:.2f}": ap for t, ap in precisions.by_threshold.items()},
            "categories": [asdict(row) for row in precisions.categories],
            "detections": len(self.detections),
            "detections_of_unknown_categories": self.strange,
            "images_with_mistakes": [asdict(entry) for entry in precisions.mistakes],
        }


class CocoData(DataSet[CocoTask, DelegatePrecision]):
    """Images with the boxes of objects. `detectors`: how outputs are read on each delegate; `how`, in words."""

    kind = "coco"

    def __init__(self, task: CocoTask, running: Running) -> None:
        require_pycocotools()
        model = read_model(task.model_file)
        preprocessing = for_input(model, **{"crop": 0.0, **task.preprocessing})
        self.truth = _truth(task)
        items = [image.item for image in self.truth.images]
        self.detectors = {c: _detector(model, task, c, running.batch_on(c, len(items))) for c in running.choices}
        first = self.detectors[running.choice]
        self.how = first.how
        self.category_of = _categories(task, self.truth, first)
        self.output_file = task.output_file_path
        super().__init__(task, running, model, items, preprocessing)

    def network(self, choice: DelegateChoice) -> tuple[str | bytes, Read]:
        return self.detectors[choice].model, self.detectors[choice].read

    def marks(self) -> dict[str, Any]:
        return {"heads": [self.task.anchors, self.task.output_order, self.task.max_detections]}

    def measured(self, collected: Collected) -> DelegatePrecision:
        return _precision(collected, self.truth, self.category_of)

    def description(self) -> dict[str, Any]:
        return {"outputs": self.how, **super().description(), "unlisted_images": list(self.truth.unlisted)}


CocoReport = EvaluationReport[CocoData, DelegatePrecision]


def evaluate_coco(task: CocoTask, running: Running | None = None) -> CocoReport:
    """Evaluate a detector, as evaluate() does."""
    return evaluate(CocoData(task, running or Running()))


def _detector(model: Model, task: CocoTask, choice: DelegateChoice, batch: int) -> Detector:
    """The model in one piece where images come one at a time; but with several threads the official post-processing
    loses a class, so it runs apart then."""
    whole = batch == 1 and choice.num_threads == 1
    return read_detector(
        model,
        task.model_file,
        whole=whole,
        output_order=task.output_order,
        anchors=task.anchors,
        max_detections=task.max_detections,
    )


def _truth(task: CocoTask) -> GroundTruth:
    if bool(task.annotations) == bool(task.ground_truth_proto):
        raise OptionError("Give the ground truth by one of --annotations (JSON) and --ground_truth_proto (binary)")
    if task.annotations:
        truth = read_instances(task.annotations, task.ground_truth_images_path)
    else:
        names = read_names(task.model_output_labels, "the labels") if task.model_output_labels else []
        truth = read_message(task.ground_truth_proto, task.ground_truth_images_path, dict(enumerate(names)))
    truth = picked(truth, task.allowlist_file, task.num_images)
    if not truth.images:
        raise OptionError("The ground truth has no image to evaluate")
    _require_object((o.crowd for image in truth.images for o in image.objects), len(truth.images))
    return truth


def _require_object(crowds: Iterable[bool], images: int) -> None:
    if all(crowds):
        raise OptionError(
            f"The ground truth has no object in the {images} images to evaluate (crowds do not count), so there is no "
            "precision to measure"
        )


def _categories(task: CocoTask, truth: GroundTruth, detector: Detector) -> Callable[[int], int | None]:
    """Class of the model -> category of the ground truth, None if it has none."""
    labels = read_names(task.model_output_labels, "the labels") if task.model_output_labels else []
    if labels and detector.classes is not None and len(labels) < detector.classes + task.class_offset:
        raise OptionError(
            f"{task.model_output_labels} has {len(labels)} labels, but {task.model_file} has {detector.classes} "
            f"classes, and --class_offset={task.class_offset} puts {task.class_offset} lines in front (the background)"
        )
    if not task.match_labels:
        known = set(truth.categories)
        if detector.classes is not None and not known & {c + task.class_offset for c in range(detector.classes)}:
            raise OptionError(
                f"None of the ground truth's categories ({', '.join(map(str, sorted(known)[:5]))} ...) is a class of "
                f"{task.model_file} (0 to {detector.classes - 1}) plus --class_offset={task.class_offset}"
            )
        return lambda c: c + task.class_offset if c + task.class_offset in known else None
    if not labels:
        raise OptionError("--match_labels needs --model_output_labels")
    ids = {name: id_ for id_, name in truth.categories.items()}
    if not set(labels) & set(ids):
        raise OptionError(
            f"No line of {task.model_output_labels} is the name of a category of {task.annotations} such as "
            f"{next(iter(ids), '')!r}"
        )
    by_class = {i - task.class_offset: ids.get(name) for i, name in enumerate(labels)}
    return by_class.get


def _precision(collected: Collected, truth: GroundTruth, category_of: Callable[[int], int | None]) -> DelegatePrecision:
    by_name = {image.item.name: image for image in truth.images}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    detections: list[dict[str, Any]] = []
    strange = 0
    for record in collected.good:
        image = by_name[record.name]
        height, width = true_size(image, record.result)
        images.append({"id": image.id, "file_name": record.name, "height": height, "width": width})
        annotations += _annotations(image, height, width)
        for box, class_, score in zip(*(record.result[k] for k in ("boxes", "classes", "scores")), strict=True):
            category = category_of(class_)
            if category is None:
                strange += 1
                continue
            top, left, bottom, right = box
            pixels = [left * width, top * height, (right - left) * width, (bottom - top) * height]
            detections.append({"image_id": image.id, "category_id": category, "bbox": pixels, "score": score})
    _require_object((bool(a["iscrowd"]) for a in annotations), len(images))
    precisions = coco_precisions(images, annotations, truth.categories, detections)
    return DelegatePrecision(collected, precisions, tuple(detections), strange)


def _annotations(image: TrueImage, height: int, width: int) -> Sequence[dict[str, Any]]:
    found = []
    for thing in image.objects:
        x, y, w, h = thing.box
        box = [x * width, y * height, w * width, h * height] if thing.normalized else [x, y, w, h]
        area = thing.area if thing.area is not None else box[2] * box[3]
        entry = {"image_id": image.id, "category_id": thing.category, "bbox": box, "area": area}
        found.append(entry | {"iscrowd": int(thing.crowd)})
    return found
