"""How often a loop runs, where that follows from constants: the part that decides it is run by the official runtime."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.chatter import quiet
from litegpu.delegates.cpu import OfficialOptions
from litegpu.gpu.control.called import CalledGraph, Loop, calls
from litegpu.model.cut import cut

#: Rounds that are followed.
MOST_TRIPS = 4096
#: Dispatches that the rounds of a loop may come to, one behind the other.
MOST_DISPATCHES = 20_000
#: Elements of what decides; larger states are no counters.
_MOST_ELEMENTS = 1024


def trips(loop: Loop) -> int | None:
    """The number of rounds; None if values that are computed decide it, or it is more than MOST_TRIPS."""
    if loop not in _FOUND:
        _FOUND[loop] = _counted(loop)
    return _FOUND[loop]


def rounds(loop: Loop) -> int | None:
    """How many rounds of it a program has one behind the other; None if it has a loop, as their number is not known, or
    they would be too long."""
    count = trips(loop)
    return None if count is None or count * _length(loop.body) > MOST_DISPATCHES else count


def _length(scope: CalledGraph) -> int:
    """About how many dispatches a subgraph comes to."""
    found = 0
    for operator in scope.subgraph.operators:
        match calls(operator):
            case "loop":
                loop = scope.loop(operator)
                found += (rounds(loop) or 1) * _length(loop.body) + _length(loop.condition)
            case "branch":
                found += sum(_length(branch) for branch in scope.branches(operator))
            case _:
                found += 1
    return found


_FOUND: weakref.WeakKeyDictionary[Loop, int | None] = weakref.WeakKeyDictionary()


def _counted(loop: Loop) -> int | None:
    deciding = _deciding(loop)
    if deciding is None:
        return None
    state = {i: loop.constants[i] for i in deciding}
    try:
        condition = _Part(loop.condition, deciding, [0])
        step = _Part(loop.body, deciding, [i for i in deciding if i not in loop.invariant])
        if condition.calls or step.calls:  # what may run without end
            return None
        for count in range(MOST_TRIPS + 1):
            if not bool(condition.run(state)[0].reshape(-1)[0]):
                return count
            state.update(zip(step.results, step.run(state), strict=True))
    except (RuntimeError, ValueError):
        pass
    return None


def _deciding(loop: Loop) -> list[int] | None:
    """The positions in the state that the condition depends on, through any number of rounds; None if one of them does
    not begin as a small constant."""
    found: set[int] = set()
    waiting = _inputs_of(loop.condition, [0])
    while waiting:
        position = waiting.pop()
        if position in found:
            continue
        if position not in loop.constants or loop.constants[position].size > _MOST_ELEMENTS:
            return None
        found.add(position)
        waiting |= _inputs_of(loop.body, [position])
    return sorted(found)


def _inputs_of(scope: CalledGraph, outputs: Sequence[int]) -> set[int]:
    """The positions of the inputs that outputs depend on."""
    graph = scope.subgraph
    _, read = _slice(scope, [graph.outputs[i] for i in outputs])
    return {i for i, t in enumerate(graph.inputs) if t in read and not graph.tensors[t].is_constant}


def _slice(scope: CalledGraph, tensors: Sequence[int]) -> tuple[list[int], set[int]]:
    """The operators that compute tensors, and all that they read."""
    producer = {t: n for n, o in enumerate(scope.subgraph.operators) for t in o.outputs}
    nodes: set[int] = set()
    waiting, read = list(tensors), set(tensors)
    while waiting:
        node = producer.get(waiting.pop())
        if node is not None and node not in nodes:
            nodes.add(node)
            inputs = [t for t in scope.subgraph.operators[node].inputs if t >= 0]
            waiting += inputs
            read.update(inputs)
    return sorted(nodes), read


class _Part:
    """The operators that compute some outputs of a subgraph, as a model of their own. `results`: the outputs."""

    def __init__(self, scope: CalledGraph, deciding: Sequence[int], results: Sequence[int]) -> None:
        graph = scope.subgraph
        self.results = list(results)
        tensors = [graph.outputs[i] for i in results]
        self._nodes, read = _slice(scope, tensors)
        self._inputs = [
            i for i in deciding if graph.inputs[i] in read and not graph.tensors[graph.inputs[i]].is_constant
        ]
        self._direct = {t: i for i, t in enumerate(graph.inputs)}
        self._tensors = tensors
        self._graph = graph
        self.calls = any(graph.operators[n].subgraphs for n in self._nodes)
        made = [t for t in dict.fromkeys(tensors) if t not in self._direct and not graph.tensors[t].is_constant]
        self._made = made
        if not made:
            return
        inputs = [graph.inputs[i] for i in self._inputs]
        shapes = {t: graph.tensors[t].shape for t in inputs}
        content = cut(scope.model.with_main(graph), graph.index, self._nodes, inputs, made, shapes=shapes)
        self._official: Any = OfficialOptions().plain().create(content=content)
        with quiet():
            self._official.allocate_tensors()
        self._places = [d["index"] for d in self._official.get_input_details()]
        self._ends = [d["index"] for d in self._official.get_output_details()]

    def run(self, state: dict[int, np.ndarray]) -> list[np.ndarray]:
        values: dict[int, Any] = {}
        if self._made:
            for place, position in zip(self._places, self._inputs, strict=True):
                self._official.set_tensor(place, state[position])
            self._official.invoke()
            values = {t: np.array(self._official.get_tensor(i)) for t, i in zip(self._made, self._ends, strict=True)}
        found = []
        for t in self._tensors:
            constant = self._graph.tensors[t].data
            found.append(values[t] if t in values else constant if constant is not None else state[self._direct[t]])
        return found
