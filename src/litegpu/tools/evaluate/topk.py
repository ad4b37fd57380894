"""Top-K accuracy of a classifier, as the official ILSVRC evaluation counts it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

K = 10


@dataclass(frozen=True)
class ClassAccuracy:
    """One class of the ground truth. `mistaken_for`: the labels most often put first instead, with their numbers."""

    label: str
    images: int
    top1: float
    top5: float
    mistaken_for: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TopK:
    """`accuracies[k - 1]` is the share of the images whose true label is among the k highest scores."""

    images: int
    correct: tuple[int, ...]

    @property
    def accuracies(self) -> tuple[float, ...]:
        """Of no images at all: 0."""
        return tuple(count / self.images if self.images else 0.0 for count in self.correct)


def highest(scores: np.ndarray, k: int = K) -> list[int]:
    """Indices of the k highest scores of a flat array, best first; equal ones by rising index, NaN last."""
    negated = -np.asarray(scores, np.float64)
    if k < negated.size:
        # Sorting all of them is slow. What is not above the k-th largest includes all that equal it.
        limit = np.partition(negated, k - 1)[k - 1]
        places = np.flatnonzero(~(negated > limit))
        order = places[np.argsort(negated[places], kind="stable")]
    else:
        order = np.argsort(negated, kind="stable")
    found: list[int] = order[:k].tolist()
    return found


def rank(top: Sequence[int], truth: str, labels: Sequence[str]) -> int:
    """Where the true label stands among the highest scores, from 0; their number if it is not there. Two indices of one
    label are the same class, as in ImageNet."""
    return next((place for place, index in enumerate(top) if labels[index] == truth), len(top))


def top_k(ranks: Sequence[int], k: int) -> TopK:
    """From the rank of each image."""
    counts = np.bincount(np.minimum(np.asarray(ranks, np.int64), k), minlength=k + 1)
    return TopK(len(ranks), tuple(int(n) for n in np.cumsum(counts)[:k]))


def by_class(ranks: Sequence[int], truths: Sequence[str], predicted: Sequence[str]) -> list[ClassAccuracy]:
    """One entry for each label of the ground truth, in alphabetical order."""
    places: dict[str, list[int]] = {}
    for i, truth in enumerate(truths):
        places.setdefault(truth, []).append(i)
    classes = []
    for label, members in sorted(places.items()):
        wrong = Counter(predicted[i] for i in members if predicted[i] != label)
        accuracy = top_k([ranks[i] for i in members], 5).accuracies
        common = sorted(wrong.items(), key=lambda entry: (-entry[1], entry[0]))[:3]
        classes.append(ClassAccuracy(label, len(members), accuracy[0], accuracy[4], tuple(common)))
    return classes


def confusions(truths: Sequence[str], predicted: Sequence[str]) -> Mapping[tuple[str, str], int]:
    """(true label, label put first) -> number of images, the most frequent first."""
    counts = Counter(zip(truths, predicted, strict=True))
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))
