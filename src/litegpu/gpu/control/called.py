"""Subgraphs as they are called: with the shapes, and as far as they are known the values, of what is handed to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.shapes import infer
from litegpu.errors import LiteGpuError
from litegpu.gpu.lower import Unsupported
from litegpu.model.ops import find
from litegpu.model.types import Model, Operator, Subgraph, Tensor


@dataclass(frozen=True, eq=False)
class CalledGraph:
    """A subgraph of a model, with its true shapes. `sources`: the nodes that reports name for its operators', where
    they are not its own numbers."""

    model: Model
    subgraph: Subgraph
    sources: tuple[int, ...] | None = None
    _known: dict[int, Any] = field(default_factory=dict)  # operator -> what it consists of

    def called(
        self, operator: Operator, place: int, given: Sequence[int], known: Mapping[int, np.ndarray]
    ) -> CalledGraph:
        """The subgraph at a place among those that an operator calls, where it is handed the tensors `given`, some of
        which are `known`, by position. Raises Unsupported if its shapes are not known before it runs."""
        index = operator.subgraphs[place]
        graph = self.model.subgraphs[index]
        sources = self.sources or (operator.index,)
        shapes = {inner: self.subgraph.tensors[outer].shape for inner, outer in zip(graph.inputs, given, strict=True)}
        if known:
            tensors = list(graph.tensors)
            for position, value in known.items():
                tensors[graph.inputs[position]] = _constant(tensors[graph.inputs[position]], value)
            graph = dataclasses.replace(graph, tensors=tuple(tensors))
        graph = dataclasses.replace(graph, is_called=True)
        model = dataclasses.replace(self.model, entry=index).with_main(graph)
        try:
            found = infer(model, OfficialOptions(), shapes)
        except LiteGpuError as error:
            raise Unsupported(f"the shapes of subgraph {index}, which it calls, are not known: {error}") from None
        if found.refused:
            raise Unsupported(f"in subgraph {index}, which it calls: {next(iter(found.refused.values()))}")
        return CalledGraph(model, found.subgraph, sources)

    def known(self, tensors: Sequence[int]) -> dict[int, np.ndarray]:
        """Of these, the constants, by position."""
        found = ((i, self.subgraph.tensors[t]) for i, t in enumerate(tensors))
        return {i: t.data for i, t in found if t.data is not None and t.data.shape == t.shape}

    def loop(self, operator: Operator) -> Loop:
        """What a WHILE consists of. Raises Unsupported where that cannot be one program."""
        if operator.index not in self._known:
            self._known[operator.index] = self._loop(operator)
        found: Loop = self._known[operator.index]
        return found

    def branches(self, operator: Operator) -> tuple[CalledGraph, ...]:
        """Those of an IF: what is run if the condition holds, and if not; or of a STABLEHLO_CASE, by their numbers.
        Raises Unsupported."""
        if operator.index not in self._known:
            self._known[operator.index] = self._branches(operator)
        found: tuple[CalledGraph, ...] = self._known[operator.index]
        return found

    def _loop(self, operator: Operator) -> Loop:
        given = operator.inputs
        body = self.model.subgraphs[operator.subgraphs[1]]
        if len(set(body.inputs)) != len(body.inputs):
            raise Unsupported("its body has an input twice")
        constants = self.known(given)
        fixed = {i: v for i, v in constants.items() if body.outputs[i] == body.inputs[i]}
        condition, step = (self.called(operator, place, given, fixed) for place in (0, 1))
        for i, outer in enumerate(given):
            before, after = self.subgraph.tensors[outer], step.subgraph.tensors[step.subgraph.outputs[i]]
            if before.shape != after.shape:
                raise Unsupported(f"'{before.name}' changes its shape from {list(before.shape)} to {list(after.shape)}")
        return Loop(condition, step, fixed, constants)

    def _branches(self, operator: Operator) -> tuple[CalledGraph, ...]:
        given = operator.inputs[1:]
        known = self.known(given)
        found = tuple(self.called(operator, place, given, known) for place in range(len(operator.subgraphs)))
        for i, made in enumerate(operator.outputs):
            results = (branch.subgraph.tensors[branch.subgraph.outputs[i]] for branch in found)
            if {self.subgraph.tensors[made].shape} != {result.shape for result in results}:
                raise Unsupported("its branches give results of different shapes")
        return found


@dataclass(frozen=True, eq=False)
class Loop:
    """`fixed`: of its state, what is the same constant in all rounds, by position; `constants`: what begins as one."""

    condition: CalledGraph
    body: CalledGraph
    fixed: Mapping[int, np.ndarray]
    constants: Mapping[int, np.ndarray]

    @property
    def invariant(self) -> frozenset[int]:
        """Positions in the state of what the body hands on as it is."""
        graph = self.body.subgraph
        return frozenset(i for i, (a, b) in enumerate(zip(graph.inputs, graph.outputs, strict=True)) if a == b)


def calls(operator: Operator) -> str:
    """What kind of call it is, "" for none."""
    known = find(operator)
    return known.calls if known is not None and operator.subgraphs else ""


def _constant(tensor: Tensor, value: np.ndarray) -> Tensor:
    return dataclasses.replace(tensor, data=value, shape=value.shape, shape_signature=value.shape)
