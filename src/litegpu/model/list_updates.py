"""Elements of lists that a loop sets become updates: TensorFlow's converter writes a list as one tensor, and setting an
element as what is in front of it, the element, and what is behind it, joined again. The sizes of these follow from
values; DYNAMIC_UPDATE_SLICE does the same in place, and all sizes are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.model import schema
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType

_TYPES = frozenset({TensorType.FLOAT32, TensorType.INT32, TensorType.INT64, TensorType.BOOL})
#: What makes a vector of one number of the number.
_LIFTS = frozenset({"RESHAPE", "EXPAND_DIMS", "SQUEEZE"})
#: What joins the number of an element with those of the further axes.
_JOINS = frozenset({"CONCATENATION", "PACK"})


def with_list_updates(model: Model) -> Model:
    """The model, in whose called subgraphs elements of lists are updated; the same one if it sets none. The subgraph
    that is run stays as it is. An element that does not exist is an error of the official runtime, and the nearest one
    here."""
    made = [s if s.index == model.entry else _updated(s) for s in model.subgraphs]
    if all(a is b for a, b in zip(made, model.subgraphs, strict=True)):
        return model
    return dataclasses.replace(model, subgraphs=tuple(made))


def _updated(graph: Subgraph) -> Subgraph:
    updating = _Updating(graph)
    operators: list[Operator] = []
    for operator in graph.operators:
        operators += updating.instead(operator)
    if len(updating.tensors) == len(graph.tensors) and operators == list(graph.operators):
        return graph
    kept = _read(operators, graph.outputs, graph.tensors)
    numbered = tuple(dataclasses.replace(o, index=i) for i, o in enumerate(kept))
    return dataclasses.replace(graph, tensors=tuple(updating.tensors), operators=numbered)


def _read(operators: Sequence[Operator], outputs: Sequence[int], tensors: Sequence[Tensor]) -> list[Operator]:
    """Without the slices, and the numbers for them, that nothing reads any more."""
    wanted = set(outputs)
    kept: list[Operator] = []
    for operator in reversed(operators):
        if operator.name in _PARTS and wanted.isdisjoint(operator.outputs):
            continue
        wanted.update(operator.inputs)
        kept.append(operator)
    return kept[::-1]


_PARTS = _LIFTS | _JOINS | {"SLICE", "ADD"}


class _Updating:
    """One subgraph; `tensors` with those that are new."""

    def __init__(self, graph: Subgraph) -> None:
        self.tensors = list(graph.tensors)
        self._producers: Mapping[int, Operator] = {t: o for o in graph.operators for t in o.outputs}

    def instead(self, operator: Operator) -> list[Operator]:
        """What stands for an operator: itself, or an update and what makes its place."""
        if operator.name != "CONCATENATION" or len(operator.inputs) != 3 or operator.options.get("axis"):
            return [operator]
        if operator.options.get("fused_activation_function"):
            return [operator]
        before, element, behind = operator.inputs
        front, back = self._sliced(before), self._sliced(behind)
        if front is None or back is None or front.inputs[0] != back.inputs[0]:
            return [operator]
        whole, given, made = (self.tensors[t] for t in (front.inputs[0], element, operator.outputs[0]))
        if whole.type not in _TYPES or len(given.shape) != len(whole.shape) or given.shape_signature[0] != 1:
            return [operator]
        if not (self._is_all(front.inputs[1:2], 0) and self._is_all(back.inputs[2:], -1)):
            return [operator]
        size, begin = self._parts(front.inputs[2]), self._parts(back.inputs[1])
        if not (self._is_all(size[1:], -1) and self._is_all(begin[1:], 0) and self._follows(begin[0], size[0])):
            return [operator]
        place, joined = self._place(front.inputs[2], begin)
        update = Operator(
            operator.index, "DYNAMIC_UPDATE_SLICE", schema.enum_values("BuiltinOperator")["DYNAMIC_UPDATE_SLICE"], 1,
            (whole.index, element, place), (made.index,),
        )  # fmt: skip
        return [*joined, update]

    def _place(self, size: int, begin: Sequence[int]) -> tuple[int, list[Operator]]:
        """The vector that says where the element is: that of the size in front of it, with zeros for further axes."""
        producer = self._producers[size]
        if producer.name not in _JOINS:
            return size, []
        like = self.tensors[size]
        place = len(self.tensors)
        self.tensors.append(dataclasses.replace(like, index=place, name=f"{like.name}/place"))
        return place, [dataclasses.replace(producer, inputs=(producer.inputs[0], *begin[1:]), outputs=(place,))]

    def _sliced(self, tensor: int) -> Operator | None:
        producer = self._producers.get(tensor)
        return producer if producer is not None and producer.name == "SLICE" else None

    def _parts(self, tensor: int) -> tuple[int, ...]:
        """What a vector is joined of; itself alone if it is not."""
        producer = self._producers.get(tensor)
        return producer.inputs if producer is not None and producer.name in _JOINS else (tensor,)

    def _is_all(self, tensors: Sequence[int], number: int) -> bool:
        """Whether these are constants of this number."""
        values = [self.tensors[t].data for t in tensors]
        return all(v is not None and bool((v == number).all()) for v in values)

    def _follows(self, later: int, earlier: int) -> bool:
        """Whether a number is one more than another, which is computed."""
        first = self._number(earlier)
        producer = self._producers.get(self._number(later))
        if self.tensors[first].is_constant or producer is None or producer.name != "ADD":
            return False
        a, b = (self._number(t) for t in producer.inputs)
        return (a == first and self._is_one(b)) or (b == first and self._is_one(a))

    def _is_one(self, tensor: int) -> bool:
        data = self.tensors[tensor].data
        return data is not None and data.size == 1 and bool(np.all(data == 1))

    def _number(self, tensor: int) -> int:
        """The number of which a vector was made."""
        producer = self._producers.get(tensor)
        while producer is not None and producer.name in _LIFTS:
            tensor = producer.inputs[0]
            producer = self._producers.get(tensor)
        return tensor
