"""A partition with control flow as one program.

Straight runs of operators are compiled each by itself. What passes between them lies in a frame in front of the arena,
a place for each tensor, where the runs' own ports are: so nothing is copied from one to the next. A loop's state has
places of its own. Rounds of a known number are the same dispatches again, every second time with the places exchanged
that they read the state from and write it to; other rounds change it where it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from litegpu.delegates.protocol import Partition
from litegpu.gpu.build import Constants, Frame
from litegpu.gpu.control.called import CalledGraph, Loop, calls
from litegpu.gpu.control.checks import is_control
from litegpu.gpu.control.costs import is_small
from litegpu.gpu.control.trips import rounds
from litegpu.gpu.graph import Arg, DType, Elementwise, Expr, Graph, GraphBuilder, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import LoweredGraph
from litegpu.gpu.lower.parts import border_shape, handed_shape
from litegpu.gpu.lower.quantization import STORED
from litegpu.gpu.lower.values import dtype_of
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program, Region
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

#: Of places in the frame, in bytes: what every device binds at.
_ALIGNMENT = 256

#: Lowers operators of a subgraph, given the tensors that enter and leave.
Lower = Callable[[Subgraph, Sequence[Operator], Sequence[int], Sequence[int]], LoweredGraph]
#: Compiles a graph whose ports lie in a frame; `variables` as build_program() has it.
Compile = Callable[[Graph, Frame, int], Program]


def build_linked(partition: Partition, lower: Lower, compiled: Compile) -> Program:
    """The partition as one program. `lower`: what lowers a straight run; `compiled` is told where ports lie and how
    large the frame is."""
    linker = _Linker(lower)
    scope = CalledGraph(partition.model, partition.subgraph)
    places = {t: linker.place(scope, t) for t in partition.inputs}
    inputs = dict(places)
    linker.block(scope, partition.nodes, places, {t: linker.place(scope, t) for t in partition.outputs})
    outputs = {t: linker.results[t] for t in partition.outputs}
    return linker.program(compiled, scope, inputs, outputs)


@dataclass(frozen=True, eq=False)
class _Unit:
    """A straight run, lowered: offsets of its ports, how many of the last ones are state that it changes in place, and
    the nodes that its dispatches are reported under, () for their own."""

    graph: Graph
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    variables: int
    sources: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Block:
    """What runs `count` times, or, as Region has it, while or if a flag at a place is set. Every second time it has the
    places in `swapped` exchanged."""

    kind: Literal["count", "while", "if"]
    inside: tuple[_Unit | _Block, ...]
    count: int = 1
    flag: int = 0
    swapped: Mapping[int, int] = field(default_factory=dict)


@dataclass
class _Linker:
    """`code` is what has been put together so far; `results` where the partition's outputs are."""

    lower: Lower
    size: int = 0
    code: list[_Unit | _Block] = field(default_factory=list)
    results: Mapping[int, int] = field(default_factory=dict)
    variables: dict[tuple[int, int], tuple[int, Tensor]] = field(default_factory=dict)

    def place(self, scope: CalledGraph, tensor: int) -> int:
        """A new place for a tensor."""
        t = scope.subgraph.tensors[tensor]
        offset = self.size
        self.size += -(-4 * math.prod(handed_shape(scope.subgraph, t)) // _ALIGNMENT) * _ALIGNMENT
        return offset

    def flag(self) -> int:
        """A new place for a truth, or a number."""
        self.size += _ALIGNMENT
        return self.size - _ALIGNMENT

    # ------------------------------------------------------------------------------------------------- blocks

    def block(
        self,
        scope: CalledGraph,
        operators: Sequence[Operator],
        places: dict[int, int],
        results: Mapping[int, int],
        state: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Put the operators of a subgraph behind what there is. `places`: of the tensors that are there. `results`:
        tensor -> where it is to be in the end. `state`: inputs of the subgraph, and which tensor each becomes in the
        end, in the same place."""
        found: dict[int, int] = {}
        run: list[Operator] = []
        for number, operator in enumerate(operators):
            if not is_control(operator):
                run.append(operator)
                continue
            later = operators[number:]
            wanted = {t for o in later for t in o.inputs}.union(results, (new for _, new in state))
            if calls(operator) == "loop":
                found |= self._loop(scope, run, operator, places, wanted)
            else:
                found |= self._branch(scope, run, operator, places, wanted)
            places |= found
            run = []
        made = {t for o in run for t in o.outputs}
        ends = {t: results[t] for t in results if t in made or t not in found}
        self.results = {t: ends.get(t, found.get(t, -1)) for t in results}
        self._run(scope, run, places, list(ends.items()), state)

    def _run(
        self,
        scope: CalledGraph,
        operators: Sequence[Operator],
        places: Mapping[int, int],
        outputs: Sequence[tuple[int, int]],
        state: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Put a straight run behind what there is, which writes tensors to places."""
        tensors = scope.subgraph.tensors
        made = {t for o in operators for t in o.outputs}
        read = [t for o in operators for t in o.inputs if t >= 0]
        read += [*(t for t, _ in outputs), *(new for _, new in state)]
        kept = [t for t, _ in state]
        entering = [
            t
            for t in dict.fromkeys(read)
            if t not in made and t not in kept and not (tensors[t].is_constant or tensors[t].is_variable)
        ]
        if not outputs and not state:
            return
        leaving = [*(t for t, _ in outputs), *(new for _, new in state)]
        lowered = self.lower(scope.subgraph, operators, [*entering, *kept], leaving)
        own = [self._variable(scope, t) for t in lowered.variables]
        self.code.append(
            _Unit(
                lowered.graph,
                (*(places[t] for t in (*entering, *kept)), *own),
                tuple(place for _, place in outputs),
                len(state) + len(own),
                scope.sources or (),
            )
        )

    def _variable(self, scope: CalledGraph, tensor: int) -> int:
        """Where an operator keeps something from one inference to the next: a tensor, or one number, for which none
        stands (lower/chance.py)."""
        key = scope.subgraph.index, tensor
        if key not in self.variables and tensor < 0:
            self.variables[key] = self.flag(), Tensor(tensor, "", TensorType.INT32, (), (), 0)
        elif key not in self.variables:
            self.variables[key] = self.place(scope, tensor), scope.subgraph.tensors[tensor]
        return self.variables[key][0]

    def _before(
        self, scope: CalledGraph, run: Sequence[Operator], places: dict[int, int], wanted: Iterable[int],
        copied: Sequence[tuple[int, int]],
    ) -> None:  # fmt: skip
        """Put the run in front of an operator that calls subgraphs: what is `wanted` later gets places, and what the
        subgraphs change is `copied` to places of its own."""
        made = {t for o in run for t in o.outputs}
        new = {t: self.place(scope, t) for t in dict.fromkeys(wanted) if t in made}
        self._run(scope, run, places, [*new.items(), *copied])
        places |= new

    # ----------------------------------------------------------------------------------------------- control

    def _loop(
        self, scope: CalledGraph, run: Sequence[Operator], operator: Operator, places: dict[int, int], wanted: set[int]
    ) -> dict[int, int]:
        """A WHILE; where its results are."""
        loop = scope.loop(operator)
        count = rounds(loop)
        given = operator.inputs
        varying = [i for i in range(len(given)) if i not in loop.invariant]
        still = [i for i in loop.invariant if i not in loop.fixed]
        state = {i: self.place(scope, given[i]) for i in varying}
        constants = {i: self.place(scope, given[i]) for i in still if scope.subgraph.tensors[given[i]].is_constant}
        copied = [(given[i], place) for i, place in (*state.items(), *constants.items())]
        self._before(scope, run, places, wanted, copied)
        at = {i: constants[i] if i in constants else places[given[i]] for i in still} | state
        if count is None:
            self._rounds_while(loop, at, varying)
        else:
            at |= self._rounds(loop, at, varying, count)
        results = {operator.outputs[i]: place for i, place in at.items()}
        fixed = [i for i in loop.fixed if operator.outputs[i] in wanted]
        for i in fixed:
            results[operator.outputs[i]] = self.place(scope, operator.outputs[i])
        self._run(scope, (), places, [(given[i], results[operator.outputs[i]]) for i in fixed])
        return results

    def _rounds(self, loop: Loop, at: Mapping[int, int], varying: Sequence[int], count: int) -> dict[int, int]:
        """So many rounds of a loop whose state is at places; where what varies of it is in the end. Every other round
        reads what the one before has written, and writes what that has read."""
        graph = loop.body.subgraph
        other = {i: self.place(loop.body, graph.inputs[i]) for i in varying}
        outer, self.code = self.code, []
        inner = {graph.inputs[i]: place for i, place in at.items()}
        self._results_of(loop.body, inner, [(graph.outputs[i], other[i]) for i in varying])
        swapped = {at[i]: other[i] for i in varying} | {other[i]: at[i] for i in varying}
        self.code = [*outer, _Block("count", tuple(self.code), count, swapped=swapped)]
        return other if count % 2 else {}

    def _rounds_while(self, loop: Loop, at: Mapping[int, int], varying: Sequence[int]) -> None:
        """Rounds while the condition holds, each of which changes the state where it is."""
        graph, condition, flag = loop.body.subgraph, loop.condition.subgraph, self.flag()

        def test() -> None:
            handed = {condition.inputs[i]: place for i, place in at.items()}
            self._results_of(loop.condition, handed, [(condition.outputs[0], flag)])

        test()
        outer, self.code = self.code, []
        inner = {graph.inputs[i]: place for i, place in at.items()}
        self.block(loop.body, graph.operators, inner, {}, [(graph.inputs[i], graph.outputs[i]) for i in varying])
        test()
        self.code = [*outer, _Block("while", tuple(self.code), flag=flag)]

    def _branch(
        self, scope: CalledGraph, run: Sequence[Operator], operator: Operator, places: dict[int, int], wanted: set[int]
    ) -> dict[int, int]:
        """An IF, or a choice by number; where its results are. Of an IF's small branches both are computed, and then
        there is a choice."""
        predicate, *given = operator.inputs
        known = scope.known(given)
        self._before(scope, run, places, wanted, ())
        branches = scope.branches(operator)
        results = {t: self.place(scope, t) for t in operator.outputs}

        def put(branch: CalledGraph, ends: Sequence[int]) -> None:
            graph = branch.subgraph
            inner = {graph.inputs[i]: places[t] for i, t in enumerate(given) if i not in known}
            self._results_of(branch, inner, list(zip(graph.outputs, ends, strict=True)))

        number = _chosen(operator, scope.subgraph.tensors[predicate])
        if number is not None:
            put(branches[number], list(results.values()))
        elif _is_if(operator) and all(is_small(branch) for branch in branches) and not self._stored(scope, operator):
            made = [[self.place(branch, t) for t in branch.subgraph.outputs] for branch in branches]
            for branch, ends in zip(branches, made, strict=True):
                put(branch, ends)
            self._choose(scope, operator, places[predicate], made, results)
        else:
            for branch, flag in zip(branches, self._flags(operator, places[predicate]), strict=True):
                outer, self.code = self.code, []
                put(branch, list(results.values()))
                self.code = [*outer, _Block("if", tuple(self.code), flag=flag)]
        return results

    def _stored(self, scope: CalledGraph, operator: Operator) -> bool:
        """Whether any result is bytes, between which nothing chooses."""
        return any(scope.subgraph.tensors[t].type in STORED for t in operator.outputs)

    def _results_of(self, scope: CalledGraph, places: dict[int, int], ends: Sequence[tuple[int, int]]) -> None:
        """A called subgraph, whose outputs, some of them perhaps twice, come to places."""
        first = dict(reversed(ends))
        self.block(scope, scope.subgraph.operators, places, first)
        found = {**places, **self.results}
        self._run(scope, (), found, [(t, place) for t, place in ends if self.results[t] != place])

    def _choose(
        self, scope: CalledGraph, operator: Operator, truth: int, made: Sequence[Sequence[int]],
        results: Mapping[int, int],
    ) -> None:  # fmt: skip
        """Of two places for each result that which the truth says."""
        builder = GraphBuilder()
        flag = builder.value((1, 1, 1, 1), DType.BOOL)
        inputs, values, outputs = [truth], [flag], []
        for tensor, *sides in zip(operator.outputs, *made, strict=True):
            t = scope.subgraph.tensors[tensor]
            shape, dtype = bhwc((math.prod(border_shape(scope.subgraph, t)),)), dtype_of(t)
            operands = [builder.value(shape, dtype) for _ in sides]
            result = builder.value(shape, dtype, name=t.name, tensor=t.index)
            chosen = fn("select", Arg(0), Arg(1), Arg(2))
            outputs.append(builder.node(Elementwise(), (), result, chosen, [flag, *operands], (operator.index,)))
            inputs += sides
            values += operands
        ends = tuple(results[t] for t in operator.outputs)
        self.code.append(_Unit(builder.graph(values, outputs), tuple(inputs), ends, 0, scope.sources or ()))

    def _flags(self, operator: Operator, given: int) -> list[int]:
        """Places of whether each branch is run. `given`: where the condition is, or the number of one: what is no
        number stands for the last."""
        if _is_if(operator):
            return [given, self._computed(given, DType.BOOL, fn("logical_not", Arg(0)))]
        last = len(operator.subgraphs) - 1
        flags = [self._computed(given, DType.INT32, fn("eq", Arg(0), whole(k))) for k in range(last)]
        outside = [fn("lt", Arg(0), whole(0)), fn("ge", Arg(0), whole(last))]
        return [*flags, self._computed(given, DType.INT32, fn("logical_or", *outside))]

    def _computed(self, given: int, dtype: DType, truth: Expr) -> int:
        """A place for what is found of the one element at another."""
        builder = GraphBuilder()
        value, result = (builder.value((1, 1, 1, 1), kind) for kind in (dtype, DType.BOOL))
        builder.node(Elementwise(), (), result, truth, [value])
        place = self.flag()
        self.code.append(_Unit(builder.graph([value], [result]), (given,), (place,), 0, ()))
        return place

    # ----------------------------------------------------------------------------------------------- linking

    def program(
        self, compiled: Compile, scope: CalledGraph, inputs: Mapping[int, int], outputs: Mapping[int, int]
    ) -> Program:
        """Everything in one."""
        parts = _Parts(compiled, self.size)
        dispatches, regions = parts.put(self.code)
        graph, tensors = scope.subgraph, scope.subgraph.tensors
        reports = [p.memory for p in parts.programs.values()]
        arena = max([self.size, *(p.arena_size for p in parts.programs.values())])
        return Program(
            kernels=tuple(parts.kernels),
            dispatches=tuple(dispatches),
            constants=parts.constants.bytes(),
            arena_size=arena,
            inputs=tuple(_port(tensors[t], offset, border_shape(graph, tensors[t])) for t, offset in inputs.items()),
            outputs=tuple(_port(tensors[t], offset, border_shape(graph, tensors[t])) for t, offset in outputs.items()),
            memory=MemoryReport(
                arena,
                self.size + sum(r.unshared for r in reports),
                self.size + max((r.lower_bound for r in reports), default=0),
            ),
            in_float32=tuple(dict.fromkeys(pair for p in parts.programs.values() for pair in p.in_float32)),
            variables=tuple(_port(t, offset, t.shape) for offset, t in self.variables.values()),
            regions=tuple(regions),
        )


class _Parts:
    """The units, compiled, and what they have in common."""

    def __init__(self, compiled: Compile, size: int) -> None:
        self._compiled = compiled
        self._size = size
        self.programs: dict[_Unit, Program] = {}
        self.kernels: list[KernelCode] = []
        self.constants = Constants(_ALIGNMENT)
        self._numbers: dict[str, int] = {}

    def put(self, code: Iterable[_Unit | _Block]) -> tuple[list[Dispatch], list[Region]]:
        """All dispatches, in order, and the regions among them."""
        found: list[Dispatch] = []
        regions: list[Region] = []
        for one in code:
            if isinstance(one, _Unit):
                found += self._of(one)
                continue
            rounds = [self.put(one.inside)]
            if one.count > 1:
                rounds.append(_exchanged(*rounds[0], one.swapped))
            for number in range(one.count):
                inside, within = rounds[number % 2]
                at = len(found)
                if one.kind != "count":
                    regions.append(Region(one.kind, at, at + len(inside), one.flag))
                regions += [dataclasses.replace(r, first=r.first + at, end=r.end + at) for r in within]
                found += inside
        return found, regions

    def _of(self, unit: _Unit) -> list[Dispatch]:
        frame = Frame(self._size, unit.inputs, unit.outputs)
        program = self.programs[unit] = self._compiled(unit.graph, frame, unit.variables)
        return [self._moved(program, dispatch, unit.sources) for dispatch in program.dispatches]

    def _moved(self, program: Program, dispatch: Dispatch, sources: tuple[int, ...]) -> Dispatch:
        """A dispatch with the numbers that its kernel and its constants have in the whole."""
        code = program.kernels[dispatch.kernel]
        if code.source not in self._numbers:
            self._numbers[code.source] = len(self.kernels)
            self.kernels.append(code)
        bindings = tuple(self._binding(program, b) for b in dispatch.bindings)
        return dataclasses.replace(
            dispatch, kernel=self._numbers[code.source], bindings=bindings, sources=sources or dispatch.sources
        )

    def _binding(self, program: Program, binding: Binding) -> Binding:
        if binding.space != "constants":
            return binding
        return self.constants.add(program.constants[binding.offset : binding.offset + binding.size])


def _exchanged(
    dispatches: Sequence[Dispatch], regions: Sequence[Region], swapped: Mapping[int, int]
) -> tuple[list[Dispatch], list[Region]]:
    """The same on other places of the frame."""

    def moved(binding: Binding) -> Binding:
        if binding.space != "arena" or binding.offset not in swapped:
            return binding
        return dataclasses.replace(binding, offset=swapped[binding.offset])

    return (
        [dataclasses.replace(d, bindings=tuple(moved(b) for b in d.bindings)) for d in dispatches],
        [dataclasses.replace(r, flag=swapped.get(r.flag, r.flag)) for r in regions],
    )


def _is_if(operator: Operator) -> bool:
    return operator.name == "IF"


def _chosen(operator: Operator, given: Tensor) -> int | None:
    """Which of its branches is run, if that is known."""
    if given.data is None:
        return None
    number = int(given.data.reshape(-1)[0])
    last = len(operator.subgraphs) - 1
    if _is_if(operator):
        return 0 if number else 1
    return number if 0 <= number < last else last


def _port(tensor: Tensor, offset: int, elements: tuple[int, ...]) -> Port:
    dtype = _stored(tensor)
    count = math.prod(elements)
    shape = bhwc(elements) if len(elements) <= 4 else (1, 1, 1, count)
    return Port(tensor.name, tensor.index, shape, dtype, offset, count * dtype.nbytes)


def _stored(tensor: Tensor) -> DType:
    """What lies in a port of the tensor."""
    return STORED.get(tensor.type, dtype_of(tensor))
