"""What a kind of evaluation is made of: a data set, what it measures on one delegate, and the report of both.

A data set says what differs from others: which files it has, how outputs are read, and what is counted. The loop in
`evaluation.py` does the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from litegpu.model.types import Model
from litegpu.tools.evaluate.choice import DelegateChoice
from litegpu.tools.evaluate.collecting import Collected, Running
from litegpu.tools.evaluate.decoding import Prepare
from litegpu.tools.evaluate.image_list import Item
from litegpu.tools.evaluate.preprocessing import Preprocessing
from litegpu.tools.evaluate.shard import Read


class EvaluationTask(Protocol):
    """What the tasks of all data sets have: names are those of the official tools' flags."""

    @property
    def model_file(self) -> str: ...

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """Options of `Preprocessing`."""


@dataclass(frozen=True, eq=False)
class DelegateResult(ABC):
    """What was measured on one delegate, from its records."""

    collected: Collected

    @property
    @abstractmethod
    def headline(self) -> tuple[str, float]:
        """The one figure that is held against a threshold, and its name."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """What was measured, as plain values."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**self.collected.as_dict(), **self.figures()}


T = TypeVar("T", bound=EvaluationTask)
R = TypeVar("R", bound=DelegateResult)
D_co = TypeVar("D_co", bound="DataSet[Any, Any]", covariant=True)


class DataSet(ABC, Generic[T, R]):
    """A task with its files, all of them checked: making one raises OptionError or ModelError for what is wrong.

    items: the images to evaluate. preprocessing: of an image. output_file: for the official message, "" for none.
    """

    kind: ClassVar[str]
    output_file = ""

    def __init__(
        self, task: T, running: Running, model: Model, items: Sequence[Item], preprocessing: Preprocessing
    ) -> None:
        self.task, self.running = task, running
        self.model, self.items, self.preprocessing = model, items, preprocessing

    @property
    def prepare(self) -> Prepare:
        """What reads and decodes an item."""
        return self.preprocessing

    @abstractmethod
    def network(self, choice: DelegateChoice) -> tuple[str | bytes, Read]:
        """What runs on a delegate (a file, or its bytes), and what becomes of its outputs."""

    def marks(self) -> dict[str, Any]:
        """What has to be the same for records to be of this evaluation, beyond what all have."""
        return {}

    @abstractmethod
    def measured(self, collected: Collected) -> R:
        """The metric, from the records on one delegate."""

    def compared(self, first: R, second: R) -> R:
        """The second delegate's result, with what only both together tell."""
        return second

    def description(self) -> dict[str, Any]:
        """What the report says of the data set, as plain values."""
        return {"preprocessing": asdict(self.preprocessing)}


@dataclass(frozen=True, eq=False)
class EvaluationReport(Generic[D_co, R]):
    """What an evaluation found; `comparison` is on the second delegate."""

    data: D_co
    result: R
    comparison: R | None

    @property
    def sides(self) -> list[R]:
        """The result, and that on the second delegate if there is one."""
        return [self.result, self.comparison] if self.comparison is not None else [self.result]

    @property
    def names(self) -> list[str]:
        """Of the sides' delegates."""
        return [str(side.collected.choice) for side in self.sides]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found = {"model": self.data.task.model_file, **self.data.description(), **self.result.as_dict()}
        return found | ({"comparison": self.comparison.as_dict()} if self.comparison is not None else {})
