"""From a lowered graph to a Program: run the passes, trace and print the kernels, plan the memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from litegpu.errors import blame
from litegpu.gpu import in_place, memory, turning
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import Contracting, Counting, Turning
from litegpu.gpu.backends.contract import Backend
from litegpu.gpu.graph import RESULT, Copy, DType, Graph, GraphBuilder, Node, Reshape
from litegpu.gpu.kernels.builders import build as build_kernels
from litegpu.gpu.kernels.context import KernelContext, Launch, NativeKernel
from litegpu.gpu.kernels.joined import joined
from litegpu.gpu.kernels.tuner import Tuner
from litegpu.gpu.lang import Kernel, KernelError
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise, optimise_late
from litegpu.gpu.passes.beside_bytes import values_beside_bytes
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.gpu.passes.layout import Placed, place
from litegpu.gpu.passes.precision import values_in_float32
from litegpu.gpu.passes.recomputing import recompute
from litegpu.gpu.passes.staging import stage
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program, RowMap
from litegpu.gpu.view import View


@dataclass(frozen=True)
class Frame:
    """Memory in front of the arena's own, `size` bytes, in which ports lie: the offsets of the graph's inputs,
    variables among them, and of its outputs without these."""

    size: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def build_program(
    graph: Graph,
    features: Features,
    target: str = registry.widespread(),
    *,
    half: bool = False,
    tuner: Tuner | None = None,
    variables: int = 0,
    auto: bool = False,
    ranges: Mapping[int, tuple[float, float]] | None = None,
    staged: tuple[Collection[int], Collection[int]] = ((), ()),
    frame: Frame | None = None,
    integer: bool = False,
) -> Program:
    """Compile `graph` for a device with these features whose kernels are in the language `target`.

    Inputs and outputs of the program follow graph.inputs and graph.outputs. `half`: store intermediates and constants
    as float16 (needs features.float16), but for what decides something (passes/decisions.py). `tuner`: measures where
    several kernels would do. `variables`: that many of the last inputs and outputs stay in the arena: the outputs
    become the inputs of the next inference. `auto`: with `half`, what float16 would spoil stays float32 all the same,
    by what `ranges` (tensor -> least and largest element) and the graph itself tell (passes/precision.py). `staged`:
    positions of inputs and outputs that are kept from changing the kernels that read and write them
    (passes/staging.py). `frame`: where ports lie, if that is not to be planned. `integer`: bytes are computed with as
    on the CPU, and floats beside them likewise: in float32, products and sums rounded each by itself.

    Raises KernelError if a kernel cannot be made for the device.
    """
    auto, backend = auto and half, registry.of_language(target)
    optimised = stage(optimise(_with_flat_variables(graph, variables), features, half and not auto), *staged)
    if frame is not None:  # the body of a loop, perhaps, where launches count
        optimised = recompute(optimised, features.max_buffers)
    exact = values_decided_on(optimised) if half else {}
    exact |= values_in_float32(optimised, ranges) if auto else {}
    exact |= values_beside_bytes(optimised) if half and integer else {}
    optimised = optimise_late(optimised, features)
    exact = {v: reason for v, reason in exact.items() if v in optimised.values}  # others are in no memory any more
    kept = optimised.inputs[len(optimised.inputs) - variables :]
    placed = place(optimised, half, exact, kept)
    if half and isinstance(backend, Counting):
        halves = {v for v, view in placed.views.items() if view.dtype is DType.FLOAT16}
        optimised = backend.counting(optimised, halves)
        placed = place(optimised, half, exact, kept)
    inputs, outputs = optimised.inputs[: len(optimised.inputs) - variables], placed.graph.outputs
    outputs, after = outputs[: len(outputs) - variables], outputs[len(outputs) - variables :]
    last = _into_variables(placed, kept, after)
    launches: list[tuple[Node, Launch]] = []
    most = 1 if tuner is None else tuner.most
    for node in [*(n for n in placed.graph.nodes if n not in last), *last.values()]:
        context = KernelContext(
            placed.graph, node, placed.views, features, half and exact.keys().isdisjoint(node.inputs), most
        )
        try:
            launches += [(node, launch) for launch in build_kernels(context)]
        except Exception as error:
            blame(error, node.sources)
            raise
    ports = [placed.views[v].root for v in (*optimised.inputs, *outputs)]
    fixed = {} if frame is None else dict(zip(ports, (*frame.inputs, *frame.outputs), strict=True))
    in_float32 = tuple((optimised.values[v].name, reason) for v, reason in exact.items())
    plan = _Plan(placed, features, backend, integer, inputs, outputs, kept, in_float32, frame, fixed)
    if tuner is not None:
        nodes = [node for node, _ in launches]

        def program_of(given: Sequence[Launch]) -> Program:
            return _program(plan, list(zip(nodes, given, strict=True)))

        chosen = tuner.chosen([launch for _, launch in launches], None if frame is not None else program_of)
        launches = list(zip(nodes, chosen, strict=True))
    if frame is not None:
        launches = joined(launches, features, lambda root: ("frame", fixed[root]) if root in fixed else root)
    return _program(plan, launches)


@dataclass(frozen=True)
class _Plan:
    """What a program is made of beside its launches. `inputs`, `outputs` and `kept`, the variables: of the graph.
    `in_float32`: names, and why. `ports`: root -> where it lies, in a frame."""

    placed: Placed
    features: Features
    backend: Backend
    integer: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kept: tuple[int, ...]
    in_float32: tuple[tuple[str, str], ...]
    frame: Frame | None
    ports: Mapping[int, int]


def _program(plan: _Plan, launches: list[tuple[Node, Launch]]) -> Program:
    """Raises KernelError if the device has too little memory for it."""
    placed, features, backend = plan.placed, plan.features, plan.backend
    inputs, outputs, kept = plan.inputs, plan.outputs, plan.kept
    alignment = max(256, features.storage_alignment)
    lifetimes = _lifetimes(placed, launches, (*outputs, *kept))
    cache_bytes = features.cache_bytes if isinstance(backend, Turning) else 0
    if plan.frame is None:
        places = in_place.taken_places(placed, launches, lifetimes, cache_bytes) if cache_bytes else {}
        offsets, report = memory.plan(in_place.joined(lifetimes, places), alignment)
        offsets |= {root: offsets[place] for root, place in places.items()}
        report = dataclasses.replace(report, unshared=report.unshared + sum(lifetimes[root].size for root in places))
    else:
        offsets, report = _in_frame(plan.ports, plan.frame, lifetimes, alignment)
    if report.arena > features.max_buffer_bytes:
        raise blame(
            KernelError(
                f"the values that are needed at the same time take {report.arena} bytes, and the device has at most "
                f"{features.max_buffer_bytes} in one buffer (max-buffer-size)"
            ),
            _at_widest(lifetimes, launches),
        )
    turns = _turns(placed, launches, offsets, cache_bytes)
    apart = backend.uncontracted if plan.integer and isinstance(backend, Contracting) else ()
    code, constants = _Code(features, backend, apart), Constants(alignment)
    dispatches: list[Dispatch] = []
    used: dict[int, list[tuple[int, int]]] = {}  # root -> (dispatch, binding)
    exactly: set[int] = set()  # roots that somebody reads, or writes, as they are
    ends: dict[int, list[int]] = {}  # the last steps of roots that were written before; of frames this says nothing
    for root, life in lifetimes.items() if plan.frame is None else ():
        if life.first < life.last:
            ends.setdefault(life.last, []).append(root)
    for step, ((node, launch), turn) in enumerate(zip(launches, turns, strict=True)):
        bindings: list[Binding] = []
        for m in launch.kernel.buffers:
            operand = launch.operands[m.name]
            if isinstance(operand, View):
                used.setdefault(operand.root, []).append((len(dispatches), len(bindings)))
                if m.name not in launch.rounds:
                    exactly.add(operand.root)
                size, dtype = placed.roots[operand.root]
                bindings.append(Binding("arena", offsets[operand.root], _whole_words(size * dtype.nbytes)))
            else:
                bindings.append(constants.add(operand))
        if constants.size > features.max_buffer_bytes:
            raise blame(
                KernelError(
                    f"the constants take more than {features.max_buffer_bytes} bytes, the most that the device has in "
                    "one buffer (max-buffer-size)"
                ),
                node.sources,
            )
        kernel, written = _printed(code, node, launch, turn), offsets[placed.views[node.output].root]
        spent = _largest(bindings, {offsets[root] for root in ends.get(step, ())} - {written})
        dispatches.append(Dispatch(kernel, launch.kernel.dispatch, tuple(bindings), launch.label, node.sources, spent))
    lasting = {placed.views[v].root for v in (*outputs, *kept)}
    given = {placed.views[v].root for v in (*inputs, *kept)}
    return Program(
        kernels=tuple(code.kernels),
        dispatches=tuple(dispatches),
        constants=constants.bytes(),
        arena_size=report.arena,
        inputs=tuple(_input(placed, v, offsets, used, lasting, exactly) for v in inputs),
        outputs=tuple(
            _output(placed, v, offsets, used, {*given, *(placed.views[o].root for o in outputs[:i] + outputs[i + 1 :])})
            for i, v in enumerate(outputs)
        ),
        memory=report,
        variables=tuple(_port(placed, v, offsets) for v in kept),
        in_float32=plan.in_float32,
    )


def _largest(bindings: Sequence[Binding], offsets: Collection[int]) -> int | None:
    """The number of the largest of those in the arena at these offsets."""
    sizes = {i: b.size for i, b in enumerate(bindings) if b.space == "arena" and b.offset in offsets}
    return max(sizes, key=lambda i: sizes[i], default=None)


def describe(program: Program) -> str:
    """The dispatches and the memory of a program, one line each."""
    m = program.memory
    lines = [
        f"{len(program.dispatches)} dispatches of {len(program.kernels)} kernels, {program.constants.size} bytes of "
        f"constants; arena {m.arena} bytes (lower bound {m.lower_bound}, without sharing {m.unshared})"
    ]
    lines += [
        f"  {i:3d} {d.label} {'x'.join(map(str, d.groups))} groups, nodes {list(d.sources)}"
        for i, d in enumerate(program.dispatches)
    ]
    return "\n".join(lines)


def _in_frame(
    ports: Mapping[int, int], frame: Frame, lifetimes: Mapping[int, memory.Allocation], alignment: int
) -> tuple[dict[int, int], MemoryReport]:
    """The offsets of all roots, where those of ports are given."""
    offsets, report = memory.plan({r: b for r, b in lifetimes.items() if r not in ports}, alignment)
    offsets = {**{r: frame.size + offset for r, offset in offsets.items()}, **ports}
    return offsets, dataclasses.replace(report, arena=frame.size + report.arena)


def _with_flat_variables(graph: Graph, variables: int) -> Graph:
    """With the variables of bytes in one row where they leave it so, as no thread may write a part of a word."""
    kept = graph.inputs[len(graph.inputs) - variables :]
    pairs = list(zip(kept, graph.outputs[len(graph.outputs) - variables :], strict=True)) if variables else []
    if all(graph.values[v].shape == graph.values[new].shape for v, new in pairs):
        return graph
    builder, rows, nodes = GraphBuilder(dict(graph.values), []), {}, []
    for v, new in pairs:
        value, row = graph.values[v], graph.values[new].shape
        if value.shape != row:
            rows[v] = builder.value(row, value.dtype, name=value.name, tensor=value.tensor)
            nodes.append(Node(Copy((Reshape(row, value.shape),)), (rows[v],), v))
    inputs = tuple(rows.get(v, v) for v in graph.inputs)
    return GraphBuilder(builder.values, [*nodes, *graph.nodes]).graph(inputs, graph.outputs)


def _into_variables(placed: Placed, kept: Sequence[int], after: Sequence[int]) -> dict[Node, Node]:
    """The nodes that end an inference: each writes one of the values `after` where one of `kept` lies. The keys are
    nodes of the graph that this makes superfluous, or the new ones."""
    producer, consumers = placed.graph.producer(), placed.graph.consumers()
    before = {placed.views[v].root for v in kept}
    found: dict[Node, Node] = {}
    for v, new in zip(kept, after, strict=True):
        write = Node(Copy(()), (new,), v)
        copy = producer.get(new)
        if copy is not None and isinstance(copy.op, Copy) and copy.epilogue == RESULT and not consumers[new]:
            source = copy.inputs[0]
            if source in placed.views and placed.views[source].root not in before:
                found[copy] = dataclasses.replace(copy, output=v)
                continue
        found[write] = write
    return found


def _lifetimes(
    placed: Placed, launches: list[tuple[Node, Launch]], lasting: Sequence[int]
) -> dict[int, memory.Allocation]:
    """Roots live from their first writer to their last reader; inputs from the start, and the values `lasting`, outputs
    and variables, to the end."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for v in placed.graph.inputs:
        first[placed.views[v].root] = last[placed.views[v].root] = -1
    for step, (_, launch) in enumerate(launches):
        for operand in launch.operands.values():
            if isinstance(operand, View):
                first.setdefault(operand.root, step)
                last[operand.root] = step
    for v in lasting:
        root = placed.views[v].root
        first.setdefault(root, -1)
        last[root] = len(launches)
    return {
        r: memory.Allocation(_whole_words(placed.roots[r][0] * placed.roots[r][1].nbytes), first[r], last[r])
        for r in first
    }


def _turns(
    placed: Placed, launches: list[tuple[Node, Launch]], offsets: Mapping[int, int], cache_bytes: int
) -> list[bool]:
    """Whether each launch is to go through its workgroups backwards."""
    accesses = []
    for node, launch in launches:
        result = placed.views[node.output].root
        roots = {operand.root for operand in launch.operands.values() if isinstance(operand, View)}
        sizes = {root: placed.roots[root][0] * placed.roots[root][1].nbytes for root in sorted(roots)}
        accesses.append([turning.Access(offsets[root], size, root == result) for root, size in sizes.items()])
    return turning.turned(accesses, cache_bytes)


def _printed(code: _Code, node: Node, launch: Launch, turn: bool) -> int:
    try:
        return code.add(launch.kernel, turn)
    except Exception as error:
        blame(error, node.sources)
        raise


def _at_widest(lifetimes: Mapping[int, memory.Allocation], launches: Sequence[tuple[Node, Launch]]) -> tuple[int, ...]:
    """The operators of the launch while which the most memory is in use."""

    def live(step: int) -> int:
        return sum(b.size for b in lifetimes.values() if b.first <= step <= b.last)

    widest = max(range(len(launches)), key=live, default=-1)
    return launches[widest][0].sources if widest >= 0 else ()


def _port(placed: Placed, v: int, offsets: dict[int, int]) -> Port:
    value, view = placed.graph.values[v], placed.views[v]
    n = value.elements * view.dtype.nbytes
    return Port(
        value.name, -1 if value.tensor is None else value.tensor, value.shape, view.dtype, offsets[view.root], n
    )


def _input(
    placed: Placed,
    v: int,
    offsets: dict[int, int],
    used: Mapping[int, Sequence[tuple[int, int]]],
    lasting: Collection[int],
    exactly: Collection[int],
) -> Port:
    port, root = _port(placed, v, offsets), placed.views[v].root
    uses = None if root in lasting else tuple(used.get(root, ()))
    rounded = bool(uses) and port.dtype is DType.FLOAT32 and root not in exactly
    return dataclasses.replace(port, uses=uses, rounded=rounded)


def _output(
    placed: Placed,
    v: int,
    offsets: dict[int, int],
    used: Mapping[int, Sequence[tuple[int, int]]],
    others: Collection[int],
) -> Port:
    """`others`: roots that somebody else depends on: of inputs, variables and other outputs."""
    port, root = _port(placed, v, offsets), placed.views[v].root
    size, dtype = placed.roots[root]
    alone = root not in others and size * dtype.nbytes == port.nbytes
    return dataclasses.replace(port, uses=tuple(used.get(root, ())) if alone else None)


def _whole_words(n: int) -> int:
    """A binding covers whole vec4s of the widest type, so that the last lane of a packed array may be loaded."""
    return -(-n // 16) * 16


@dataclass
class _Code:
    """The distinct kernel texts, with their maps, and what they are given: constants, or what is computed."""

    features: Features
    backend: Backend
    options: tuple[str, ...]  # of the compiler, for kernels of the language
    kernels: list[KernelCode] = field(default_factory=list)
    index: dict[tuple[str, tuple[RowMap, ...], tuple[str, ...]], int] = field(default_factory=dict)

    def add(self, kernel: Kernel | NativeKernel, turn: bool) -> int:
        source = kernel.source if isinstance(kernel, NativeKernel) else self.backend.print_kernel(kernel, self.features)
        if turn:
            assert isinstance(self.backend, Turning)
            source = self.backend.turned(source)
        if isinstance(kernel, NativeKernel):
            code = dataclasses.replace(kernel.code, source=source)
        else:
            access = tuple(m.access for m in kernel.buffers)
            code = KernelCode(kernel.name, source, kernel.workgroup, access, 0, self.options)
        key = source, code.maps, code.access
        if key not in self.index:
            self.index[key] = len(self.kernels)
            self.kernels.append(code)
        return self.index[key]


@dataclass
class Constants:
    """Constant arrays one behind the other, equal ones once."""

    alignment: int
    blobs: list[bytes] = field(default_factory=list)
    index: dict[bytes, Binding] = field(default_factory=dict)
    size: int = 0

    def add(self, array: np.ndarray) -> Binding:
        blob = np.ascontiguousarray(array).tobytes()
        if blob not in self.index:
            padded = _whole_words(len(blob))
            self.index[blob] = Binding("constants", self.size, padded)
            room = -(-padded // self.alignment) * self.alignment
            self.blobs.append(blob.ljust(room, b"\0"))
            self.size += room
        return self.index[blob]

    def bytes(self) -> np.ndarray:
        return np.frombuffer(b"".join(self.blobs), np.uint8)
