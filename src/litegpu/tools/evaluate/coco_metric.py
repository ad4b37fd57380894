"""COCO's detection metric, computed by pycocotools."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.errors import OptionError

#: pycocotools' twelve summary numbers, by its order.
STATISTICS = (
    *("AP", "AP50", "AP75", "AP small", "AP medium", "AP large"),
    *("AR 1", "AR 10", "AR 100", "AR small", "AR medium", "AR large"),
)
#: The ten of keypoints, where precision is of the object keypoint similarity (OKS) in place of the IoU.
KEYPOINT_STATISTICS = (
    *("AP", "AP50", "AP75", "AP medium", "AP large"),
    *("AR", "AR50", "AR75", "AR medium", "AR large"),
)
_SURE = 0.3  # the score from which a false detection counts among the mistakes of an image


@dataclass(frozen=True)
class CategoryPrecision:
    """`ap` averages over IoU 0.50:0.05:0.95, `recall` is that of 100 detections; both -1 without objects. `objects` are
    those that count (crowds do not)."""

    id: int
    name: str
    objects: int
    detections: int
    ap: float
    ap50: float
    recall: float


@dataclass(frozen=True)
class ImageMistakes:
    """At IoU 0.5: objects that were not found, and detections with a score of 0.3 or more that are none."""

    image: int
    missed: int
    false: int

    @property
    def count(self) -> int:
        return self.missed + self.false


@dataclass(frozen=True)
class Precisions:
    """Average precisions; -1 is the metric's word for "there is no ground truth". `by_threshold`: IoU -> mean over the
    categories with objects. `mistakes`: the images that have any, the worst first."""

    statistics: Mapping[str, float]
    by_threshold: Mapping[float, float]
    categories: tuple[CategoryPrecision, ...]
    mistakes: tuple[ImageMistakes, ...]

    @property
    def overall(self) -> float:
        """The mAP: over all thresholds and categories."""
        return self.statistics["AP"]


def require_pycocotools() -> None:
    """Raises OptionError where it is not installed."""
    if importlib.util.find_spec("pycocotools") is None:
        raise OptionError('The COCO metric needs pycocotools: pip install "litegpu[tools]"')


def coco_precisions(
    images: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    categories: Mapping[int, str],
    detections: Sequence[Mapping[str, Any]],
    *,
    keypoints: bool = False,
) -> Precisions:
    """The metric for boxes, or for keypoints, over all of `images`.

    images: id, height, width. annotations: image_id, category_id, bbox (x, y, width, height in pixels), area, iscrowd.
    detections: image_id, category_id, bbox, score. For keypoints, annotations also have keypoints and num_keypoints,
        and detections have keypoints.

    Raises OptionError where pycocotools is not installed.
    """
    require_pycocotools()
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    kinds = [{"id": id_, "name": name} for id_, name in sorted(categories.items())]

    def indexed(entries: Sequence[Mapping[str, Any]]) -> Any:
        dataset = COCO()
        # Numbered from 1: the metric takes a match with annotation 0 for none.
        numbered = [{"iscrowd": 0, "area": e["bbox"][2] * e["bbox"][3], **e, "id": i} for i, e in enumerate(entries, 1)]
        dataset.dataset = {"images": [dict(i) for i in images], "annotations": numbered, "categories": kinds}
        dataset.createIndex()
        return dataset

    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(indexed(annotations), indexed(detections), "keypoints" if keypoints else "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    names = KEYPOINT_STATISTICS if keypoints else STATISTICS
    precision, recall = evaluation.eval["precision"], evaluation.eval["recall"]
    thresholds = [round(float(t), 2) for t in evaluation.params.iouThrs]
    objects = _counted(annotations)
    found = _counted(detections)
    rows = [
        CategoryPrecision(
            id_,
            categories[id_],
            objects.get(id_, 0),
            found.get(id_, 0),
            _mean(precision[:, :, k, 0, -1]),
            _mean(precision[0, :, k, 0, -1]),
            _mean(recall[:, k, 0, -1]),
        )
        for k, id_ in enumerate(int(i) for i in evaluation.params.catIds)
    ]
    return Precisions(
        {name: float(value) for name, value in zip(names, evaluation.stats, strict=True)},
        {t: _mean(precision[i, :, :, 0, -1]) for i, t in enumerate(thresholds)},
        tuple(rows),
        _mistakes(evaluation),
    )


def _counted(entries: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for entry in entries:
        if not entry.get("iscrowd"):
            counts[entry["category_id"]] = counts.get(entry["category_id"], 0) + 1
    return counts


def _mean(values: np.ndarray) -> float:
    """Over those that are defined, -1 if none is."""
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else -1.0


def _mistakes(evaluation: Any) -> tuple[ImageMistakes, ...]:
    """From the matches at IoU 0.5 over all sizes."""
    all_sizes = evaluation.params.areaRng[0]
    missed: dict[int, int] = {}
    false: dict[int, int] = {}
    for entry in evaluation.evalImgs:
        if entry is None or entry["aRng"] != all_sizes:
            continue
        image = int(entry["image_id"])
        ignored = np.asarray(entry["gtIgnore"], bool)
        missed[image] = missed.get(image, 0) + int(((entry["gtMatches"][0] == 0) & ~ignored).sum())
        wrong = (entry["dtMatches"][0] == 0) & ~np.asarray(entry["dtIgnore"][0], bool)
        sure = np.asarray(entry["dtScores"]) >= _SURE
        false[image] = false.get(image, 0) + int((wrong & sure).sum())
    images = (ImageMistakes(image, missed[image], false[image]) for image in missed)
    return tuple(sorted((i for i in images if i.count), key=lambda i: (-i.count, i.image)))
