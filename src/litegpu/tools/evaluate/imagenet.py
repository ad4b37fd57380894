"""ILSVRC 2012: top-1 to top-10 accuracy of a classifier, from a folder of images and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.model.reader import read_model
from litegpu.model.types import Model
from litegpu.tools.evaluate.choice import DelegateChoice
from litegpu.tools.evaluate.collecting import Collected, Running
from litegpu.tools.evaluate.data_set import DataSet, DelegateResult, EvaluationReport
from litegpu.tools.evaluate.evaluation import evaluate
from litegpu.tools.evaluate.image_list import Item, list_images, pick, read_denylist, read_names
from litegpu.tools.evaluate.paired import Paired, paired
from litegpu.tools.evaluate.preprocessing import for_input
from litegpu.tools.evaluate.shard import Read
from litegpu.tools.evaluate.topk import ClassAccuracy, K, TopK, by_class, confusions, highest, rank, top_k


@dataclass(frozen=True)
class ImagenetTask:
    """What is measured. Names are those of the official tool's flags.

    ground_truth_images_path: a folder; image i in byte order of the names belongs to line i of ground_truth_labels.
    model_output_labels: line i names output i. Labels count by name: two outputs of one name are one class.
    denylist_file_path: numbers (from 1) of images to leave out. num_images: the first so many of the rest; 0: all.
    preprocessing: options of `Preprocessing` (crop, resize, mean, deviation).
    output_file_path: for the official tool's message of metrics; "" for none.
    """

    model_file: str
    ground_truth_images_path: str
    ground_truth_labels: str
    model_output_labels: str
    denylist_file_path: str = ""
    num_images: int = 0
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    output_file_path: str = ""


@dataclass(frozen=True, eq=False)
class DelegateAccuracy(DelegateResult):
    """The accuracy on one delegate."""

    accuracy: TopK
    classes: tuple[ClassAccuracy, ...]
    confusions: Mapping[tuple[str, str], int]

    @property
    def headline(self) -> tuple[str, float]:
        return "top-1 accuracy", self.accuracy.accuracies[0]

    def figures(self) -> dict[str, Any]:
        return {
            "top_k": list(self.accuracy.accuracies),
            "correct": list(self.accuracy.correct),
            "classes": [asdict(entry) for entry in self.classes],
        }


@dataclass(frozen=True, eq=False)
class ComparedAccuracy(DelegateAccuracy):
    """That of a second delegate on the same images; `same_label`: the share on which both put the same label first."""

    top1: Paired
    top5: Paired
    same_label: float
    differing: tuple[str, ...]

    def figures(self) -> dict[str, Any]:
        return {
            **super().figures(),
            "top1": _paired_as_dict(self.top1),
            "top5": _paired_as_dict(self.top5),
            "same_label": self.same_label,
            "differing_images": list(self.differing),
        }


class ImagenetData(DataSet[ImagenetTask, DelegateAccuracy]):
    """Images with a label each. `labels` are those of the model's outputs, `truths` those of the items."""

    kind = "imagenet"

    def __init__(self, task: ImagenetTask, running: Running) -> None:
        self.labels = read_names(task.model_output_labels, "the model's labels")
        items, self.truths = _ground_truth(task, self.labels)
        model = read_model(task.model_file)
        _check_output(model, self.labels, task)
        self.output_file = task.output_file_path
        super().__init__(task, running, model, items, for_input(model, **task.preprocessing))

    def network(self, choice: DelegateChoice) -> tuple[str | bytes, Read]:
        return self.task.model_file, read_top

    def measured(self, collected: Collected) -> DelegateAccuracy:
        return _accuracy(collected, self._truth_of, self.labels)

    def compared(self, first: DelegateAccuracy, second: DelegateAccuracy) -> ComparedAccuracy:
        return _compared(first, second, self._truth_of, self.labels)

    @property
    def _truth_of(self) -> dict[str, str]:
        return dict(zip((item.name for item in self.items), self.truths, strict=True))


ImagenetReport = EvaluationReport[ImagenetData, DelegateAccuracy]


def evaluate_imagenet(task: ImagenetTask, running: Running | None = None) -> ImagenetReport:
    """Evaluate a classifier, as evaluate() does."""
    return evaluate(ImagenetData(task, running or Running()))


def read_top(outputs: Sequence[np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The indices of the highest scores of one image. The output's own type counts, and its quantization keeps the
    order."""
    return {"top": highest(outputs[0].reshape(-1))}


def _ground_truth(task: ImagenetTask, labels: Sequence[str]) -> tuple[list[Item], list[str]]:
    """The images to evaluate and their labels."""
    images = list_images(task.ground_truth_images_path)
    truths = read_names(task.ground_truth_labels, "the ground truth")
    if len(images) != len(truths):
        raise OptionError(
            f"{task.ground_truth_images_path} has {len(images)} images, but {task.ground_truth_labels} has "
            f"{len(truths)} labels: line i must belong to image i"
        )
    known = set(labels)
    strange = [(i, truth) for i, truth in enumerate(truths) if truth not in known]
    if strange:
        i, truth = strange[0]
        raise OptionError(
            f"{len(strange)} labels of {task.ground_truth_labels} are not among those of {task.model_output_labels}; "
            f"the first is {truth!r}, line {i + 1}"
        )
    left_out = read_denylist(task.denylist_file_path, len(images)) if task.denylist_file_path else ()
    places = pick(len(images), left_out, task.num_images)
    return [images[i] for i in places], [truths[i] for i in places]


def _check_output(model: Model, labels: Sequence[str], task: ImagenetTask) -> None:
    outputs = [model.main.tensors[i] for i in model.main.outputs]
    if len(outputs) != 1:
        raise OptionError(f"{task.model_file} has {len(outputs)} outputs; a classifier has one")
    size = int(np.prod(outputs[0].shape))
    if size != len(labels):
        hint = " (is the background class missing, or too many?)" if abs(size - len(labels)) == 1 else ""
        raise OptionError(
            f"{task.model_output_labels} has {len(labels)} labels, but {task.model_file} has {size} scores{hint}"
        )


def _accuracy(collected: Collected, truth_of: Mapping[str, str], labels: Sequence[str]) -> DelegateAccuracy:
    good = collected.good
    truths = [truth_of[r.name] for r in good]
    predicted = [labels[r.result["top"][0]] for r in good]
    ranks = [rank(r.result["top"], truth, labels) for r, truth in zip(good, truths, strict=True)]
    k = min(K, len(labels))
    classes = by_class(ranks, truths, predicted)
    return DelegateAccuracy(collected, top_k(ranks, k), tuple(classes), confusions(truths, predicted))


def _compared(
    first: DelegateAccuracy, second: DelegateAccuracy, truth_of: Mapping[str, str], labels: Sequence[str]
) -> ComparedAccuracy:
    """On the images that both could read."""
    tops = [{r.name: r.result["top"] for r in side.collected.good} for side in (first, second)]
    names = [name for name in tops[0] if name in tops[1]]
    ranks = [[rank(top[name], truth_of[name], labels) for name in names] for top in tops]
    put_first = [[labels[top[name][0]] for name in names] for top in tops]
    differing = [name for name, a, b in zip(names, *put_first, strict=True) if a != b]

    def at(k: int) -> Paired:
        return paired(*([r < k for r in side] for side in ranks))

    same = 1 - len(differing) / len(names) if names else 0.0
    own = (second.collected, second.accuracy, second.classes, second.confusions)
    return ComparedAccuracy(*own, at(1), at(5), same, tuple(differing))


def _paired_as_dict(found: Paired) -> dict[str, Any]:
    return {**asdict(found), "difference": found.difference, "p_value": found.p_value}
