"""ILSVRC 2012: top-1 to top-10 accuracy of a classifier, from a folder of images and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

import litegpu
from litegpu.errors import OptionError
from litegpu.model.types import Model
from litegpu.tools.evaluate.collecting import Collected, Running, collect, fingerprint, prepare_output
from litegpu.tools.evaluate.items import Item, list_images, pick, read_denylist, read_names
from litegpu.tools.evaluate.paired import Paired, paired
from litegpu.tools.evaluate.preprocessing import Preprocessing, for_input
from litegpu.tools.evaluate.records import model_digest
from litegpu.tools.evaluate.shard import Job
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
class DelegateAccuracy:
    """The accuracy on one delegate."""

    collected: Collected
    accuracy: TopK
    classes: tuple[ClassAccuracy, ...]
    confusions: Mapping[tuple[str, str], int]


@dataclass(frozen=True, eq=False)
class Comparison:
    """A second delegate on the same images; `same_label`: the share on which both put the same label first."""

    other: DelegateAccuracy
    top1: Paired
    top5: Paired
    same_label: float
    differing: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ImagenetReport:
    """What an evaluation found. `labels` are those that occur, in the model's order."""

    task: ImagenetTask
    preprocessing: Preprocessing
    result: DelegateAccuracy
    comparison: Comparison | None
    labels: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found = {
            "model": self.task.model_file,
            "preprocessing": asdict(self.preprocessing),
            **_accuracy_as_dict(self.result),
        }
        if self.comparison:
            other = self.comparison
            found["comparison"] = {
                **_accuracy_as_dict(other.other),
                "top1": _paired_as_dict(other.top1),
                "top5": _paired_as_dict(other.top5),
                "same_label": other.same_label,
                "differing_images": list(other.differing),
            }
        return found


def evaluate_imagenet(task: ImagenetTask, running: Running | None = None) -> ImagenetReport:
    """Evaluate a classifier; everything that can be wrong with the files is checked before the first inference.

    Nothing is written but the records, in `running.output`; `imagenet_output.write_report` writes the rest.

    Raises OptionError (also for images that cannot be read), ModelError, DeviceError, InvokeError.
    """
    running = running or Running()
    labels = read_names(task.model_output_labels, "the model's labels")
    items, truths = _ground_truth(task, labels)
    model = litegpu.read_model(task.model_file)
    _check_output(model, labels, task)
    prepare = for_input(model, **task.preprocessing)
    prepare_output(running, task.output_file_path)
    digest = model_digest(model.content)

    results: list[DelegateAccuracy] = []
    truth_of = dict(zip((item.name for item in items), truths, strict=True))
    for choice in running.choices:
        job = Job(
            task.model_file,
            choice,
            prepare,
            read_top,
            running.batch_on(choice, len(items)),
            running.workers_for(len(items)),
        )
        collected = collect(job, items, running, fingerprint("imagenet", digest, job))
        results.append(_accuracy(collected, truth_of, labels))
    comparison = _comparison(results[0], results[1], truth_of, labels) if len(results) > 1 else None
    shown = {label for result in results for pair in result.confusions for label in pair}
    ordered = tuple(dict.fromkeys(label for label in labels if label in shown))
    return ImagenetReport(task, prepare, results[0], comparison, ordered)


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


def _comparison(
    first: DelegateAccuracy, second: DelegateAccuracy, truth_of: Mapping[str, str], labels: Sequence[str]
) -> Comparison:
    """On the images that both could read."""
    tops = [{r.name: r.result["top"] for r in side.collected.good} for side in (first, second)]
    names = [name for name in tops[0] if name in tops[1]]
    ranks = [[rank(top[name], truth_of[name], labels) for name in names] for top in tops]
    put_first = [[labels[top[name][0]] for name in names] for top in tops]
    differing = [name for name, a, b in zip(names, *put_first, strict=True) if a != b]

    def at(k: int) -> Paired:
        return paired(*([r < k for r in side] for side in ranks))

    same = 1 - len(differing) / len(names) if names else 0.0
    return Comparison(second, at(1), at(5), same, tuple(differing))


def _accuracy_as_dict(found: DelegateAccuracy) -> dict[str, Any]:
    return {
        **found.collected.as_dict(),
        "top_k": list(found.accuracy.accuracies),
        "correct": list(found.accuracy.correct),
        "classes": [asdict(entry) for entry in found.classes],
    }


def _paired_as_dict(found: Paired) -> dict[str, Any]:
    return {**asdict(found), "difference": found.difference, "p_value": found.p_value}
