"""Where tensors have the batch, and how an operator's batch rule sees one that reads it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np

from litegpu.errors import TensorError
from litegpu.model.types import Operator, Subgraph, Tensor


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a tensor has the batch: along `axis`, index (o * batch + b) * inner + i is number b's.

    `outer` is what SPACE_TO_BATCH_ND makes, `inner` comes of reshapes that join the batch with what follows it (heads,
    windows). `cause` says what brought the batch away from the front, for errors.
    """

    axis: int = 0
    outer: int = 1
    inner: int = 1
    cause: str = dataclasses.field(default="", compare=False)

    def size(self, batch: int) -> int:
        """The extent of the axis."""
        return self.outer * batch * self.inner

    def at(self, axis: int, cause: str = "") -> Place:
        return dataclasses.replace(self, axis=axis, cause=cause or self.cause)


class Repeat(Exception):
    """A tensor that does not depend on the batch has to be computed for each of it."""

    def __init__(self, tensor: int, place: Place) -> None:
        super().__init__(tensor)
        self.tensor, self.place = tensor, place


class Rebatching(Protocol):
    """A graph on its way from one batch size to another (model/batch.py)."""

    graph: Subgraph
    old: int
    new: int
    places: dict[int, Place]
    repeated: dict[int, Place]
    users: Mapping[int, int]  # tensor -> how often it is read

    def put(self, tensor: int, place: Place) -> None: ...

    def constant(self, tensor: int, data: np.ndarray) -> int: ...


class BatchNode:
    """An operator that reads the batch, seen by the rule for its kind; shapes are those of the old batch."""

    def __init__(self, owner: Rebatching, operator: Operator) -> None:
        self.owner, self.operator = owner, operator
        self.inputs = list(operator.inputs)
        self.options: dict[str, Any] = dict(operator.options)
        self._repeated: dict[int, Place] = {}  # by position: constants that got the batch here

    @property
    def called(self) -> str:
        return f"{self.operator.name} (node {self.operator.index})"

    def refuse(self, reason: str) -> NoReturn:
        raise TensorError(f"the batch cannot become {self.owner.new}: {self.called}: {reason}")

    def require(self, condition: bool, reason: str) -> None:
        if not condition:
            self.refuse(reason)

    def has(self, i: int) -> bool:
        return i < len(self.operator.inputs) and self.operator.inputs[i] >= 0

    @property
    def given(self) -> list[int]:
        """The positions of the inputs that are not absent."""
        return [i for i in range(len(self.operator.inputs)) if self.has(i)]

    def place(self, i: int) -> Place | None:
        """Where input i has the batch, None if it does not depend on it or is absent."""
        return self._repeated.get(i) or (self.owner.places.get(self.operator.inputs[i]) if self.has(i) else None)

    def tensor(self, i: int) -> Tensor:
        return self.owner.graph.tensors[self.operator.inputs[i]]

    def shape(self, i: int) -> tuple[int, ...]:
        return self.tensor(i).shape

    def rank(self, i: int) -> int:
        return len(self.shape(i))

    @property
    def output(self) -> tuple[int, ...]:
        return self.owner.graph.tensors[self.operator.outputs[0]].shape

    def option(self, name: str, default: Any = 0) -> Any:
        value = self.options.get(name, default)
        return default if value is None else value

    def only(self, i: int) -> Place:
        """Where input i has the batch, the only one that may."""
        for other in self.given:
            self.require(other == i or self.place(other) is None, f"its input {other} depends on the batch")
        place = self.place(i)
        assert place is not None
        return place

    def lead(self, i: int) -> Place:
        """The same of a batch that has to be in front."""
        place = self.only(i)
        self.require(place.axis == 0, f"its input {i} {list(self.shape(i))} does not begin with the batch")
        return place

    def integers(self, i: int) -> list[int]:
        """The values of constant input i."""
        tensor = self.tensor(i)
        if tensor.data is None:
            self.refuse(f"its input {i} is computed, so it cannot be told what it does with the batch")
        return [int(n) for n in np.ravel(tensor.data)]

    def rewrite(self, i: int, values: Sequence[int]) -> None:
        """Gives constant input i other values."""
        if list(values) != self.integers(i):
            data = self.tensor(i).data
            assert data is not None
            self.inputs[i] = self.owner.constant(
                self.operator.inputs[i], np.asarray(values, data.dtype).reshape(data.shape)
            )

    def resize(self, i: int, place: Place) -> None:
        """Gives constant input i, the sizes of the result, the new extent of the batch's axis."""
        values = self.integers(i)
        self.rewrite(i, [*values[: place.axis], self.extent(place)[1], *values[place.axis + 1 :]])

    def repeat(self, i: int, place: Place) -> None:
        """Has input i, which does not depend on the batch, as many rows as what does."""
        tensor, old, new = self.tensor(i), self.owner.old, self.owner.new
        fits = place.axis < len(tensor.shape) and tensor.shape[place.axis] == place.size(old)
        own = f"its input {i} {list(tensor.shape)} has rows of its own for the batch"
        self.require(fits, own)
        if tensor.data is None:
            made = any(tensor.index in o.outputs for o in self.owner.graph.operators)
            self.require(made and tensor.index not in self.owner.repeated, own)
            raise Repeat(tensor.index, place)
        several = tensor.quantization is not None and len(tensor.quantization.scales) > 1
        self.require(tensor.data.shape == tensor.shape and not several, own)
        before, after = tensor.shape[: place.axis], tensor.shape[place.axis + 1 :]
        parts = tensor.data.reshape(*before, place.outer, old, place.inner, *after)
        first = parts.take([0], axis=place.axis + 1)
        self.require(bool((parts == first).all()), own)
        data = np.repeat(first, new, axis=place.axis + 1).reshape(*before, place.size(new), *after)
        self.inputs[i] = self.owner.constant(tensor.index, data)
        self._repeated[i] = place

    def off_batch(self, axis: int, place: Place, rank: int, verb: str) -> int:
        """`axis` of a tensor of `rank`, which is not the batch's; from 0 on."""
        self.require(rank > 0 and -rank <= axis < rank, f"it has no axis {axis}")
        self.require(axis % rank != place.axis, f"it {verb} the batch axis")
        return axis % rank

    def extent(self, place: Place) -> tuple[int, int]:
        """The extent of the batch's axis before and after."""
        return place.size(self.owner.old), place.size(self.owner.new)

    def reinterpreted(self, place: Place, source: Sequence[int], target: Sequence[int]) -> Place:
        """Where the batch is after a reshape: the place in row-major order stays, whichever axes hold it."""
        cause = f"{self.called}: from {list(source)} to {list(target)} it mixes the batch with other axes"
        old = self.owner.old
        before = math.prod(source[: place.axis]) * place.outer
        behind = place.inner * math.prod(source[place.axis + 1 :])
        found = []
        for axis, size in enumerate(target if math.prod(source) == math.prod(target) else ()):
            front, back = math.prod(target[:axis]), math.prod(target[axis + 1 :])
            if front == 0 or back == 0:
                continue
            outer, inner = before // front, behind // back
            if size == outer * old * inner:  # so nothing remained: both sides have as many elements
                moved = Place(axis, outer, inner, cause)
                found.append(moved if moved != Place() else Place())
        self.require(bool(found), cause.partition(": ")[2])
        return min(found, key=lambda p: (p.outer * p.inner > 1, p.axis))
