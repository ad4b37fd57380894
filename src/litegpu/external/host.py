"""Takes parts of a graph of the official interpreter: what its delegate does."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

from litegpu.blame import described
from litegpu.delegates.cpu import OfficialOptions, several_subgraphs
from litegpu.delegates.demand import check_demand
from litegpu.delegates.partitioner import ON_CPU, divide, whole_on_cpu, widened_constants
from litegpu.delegates.plan import PrepareError
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.shapes import infer
from litegpu.engines.announcing import Announcer
from litegpu.errors import DelegateError, ForkError
from litegpu.external import content, layout
from litegpu.external.graph import HostedGraph, NodeFacts, Subset
from litegpu.external.kernel import HostKernel, Shapes, Told, partition, told
from litegpu.external.options import HostOptions, parsed
from litegpu.external.shared_library import Creation, Library, Preparation
from litegpu.model.types import Operator, Subgraph

log = logging.getLogger("litegpu")


def create(library: Library, address: int) -> Told | str:
    """What prepares the graphs of a new delegate; a text if its options, at a Creation, are wrong."""
    try:
        given = Creation.from_address(address)
        pairs = [(given.keys[i].decode(), given.values[i].decode()) for i in range(given.count)]
        return told(functools.partial(_prepare, library, parsed(dict(pairs))))
    except Exception as error:
        return str(error) or described(error)


def _prepare(library: Library, options: HostOptions, address: int) -> None:
    """Have the runtime replace what the delegate takes of the graph of a Preparation. What speaks against it leaves the
    graph to the CPU, with a warning; under "strict" it is raised."""
    given = Preparation.from_address(address)
    graph = HostedGraph(library, given.context)
    try:
        nodes, kernels = _Divider(library, options, graph, given.context).make()
    except Exception as error:
        if options.fallback == "strict" or isinstance(error, ForkError):
            raise
        level = logging.DEBUG if options.fallback == "silent" else logging.WARNING
        log.log(level, "The whole graph runs on the CPU. %s", described(error))
        return
    try:
        if kernels:
            graph.replace(given.delegate, nodes, [kernel.offer() for kernel in kernels])
    finally:
        for kernel in kernels:
            kernel.discard()


class _Divider:
    """One graph of one interpreter, while it is divided."""

    def __init__(self, library: Library, options: HostOptions, graph: HostedGraph, context: int) -> None:
        """Raises DelegateError or ModelError if it is not known for certain."""
        layout.require_known(library.runtime(context))
        self._library, self._options, self._graph = library, options, graph
        self._announcer = Announcer(options.fallback)
        found = content.find(graph, options.model_path)
        self._model, self._is_main = found.model, found.subgraph == 0
        self._threads = graph.threads if graph.threads > 0 else None

    def make(self) -> tuple[list[int], list[HostKernel]]:
        """The nodes that the delegate takes, and what runs them. Raises LiteGpuError."""
        if not self._is_main:  # calls of it keep the main graph on the CPU
            return [], []
        model, main, delegate = self._model, self._model.main, self._options.delegate
        reasons = several_subgraphs(model)
        if reasons:
            self._announcer.announce(whole_on_cpu(main, [delegate.name], reasons))
            return [], []
        taken = _taken(main, self._graph.nodes())
        shapes = {t: self._graph.tensor(t).shape for t in main.inputs if t >= 0 and not main.tensors[t].is_constant}
        check_demand(main, shapes)
        inferred = infer(model, OfficialOptions(num_threads=self._threads), shapes)
        return self._divide(
            cast("Delegate", _LeavesVariables(delegate)), inferred.subgraph, {**inferred.refused, **taken}, shapes
        )

    def _divide(
        self, delegate: Delegate, subgraph: Subgraph, refused: Mapping[int, str], shapes: Shapes
    ) -> tuple[list[int], list[HostKernel]]:
        """Without what the delegate fails to prepare."""
        aloud = True
        while True:
            division = divide(self._model, subgraph, [delegate], refused)
            self._announcer.announce(division.report, aloud=aloud)
            aloud = False
            if not division.delegated:
                return [], []
            wanted = {o.index for owner, part in division.partitions if owner != ON_CPU for o in part.nodes}
            subsets = self._grouped(subgraph, wanted)
            made: list[HostKernel] = []
            subset = None
            try:
                for subset in subsets:
                    made.append(self._kernel(delegate, subgraph, subset, subsets, shapes))
                self._announcer.note(tuple(note for kernel in made for note in kernel.notes))
                return sorted(n for one in subsets for n in one.nodes), made
            except BaseException as error:
                for kernel in made:
                    kernel.discard()
                if not isinstance(error, Exception) or isinstance(error, ForkError) or subset is None:
                    raise
                delegate = self._announcer.narrowed(delegate, PrepareError(0, subset.nodes, error))

    def _grouped(self, subgraph: Subgraph, wanted: set[int]) -> tuple[Subset, ...]:
        """The nodes as the runtime will group them. Constants that are widened for nodes outside their group as well
        are left to the runtime, which has to have their values."""
        operators, widened = self._model.main.operators, widened_constants(subgraph)
        readers = {n: [o.index for o in operators if set(o.inputs) & set(operators[n].outputs)] for n in widened}
        while True:
            subsets = self._graph.preview(sorted(wanted)) if wanted else ()
            home = {n: place for place, subset in enumerate(subsets) for n in subset.nodes}
            apart = {n for n in widened & wanted if any(home.get(reader) != home[n] for reader in readers[n])}
            if not apart:
                return subsets
            wanted = wanted - apart

    def _kernel(
        self, delegate: Delegate, subgraph: Subgraph, subset: Subset, subsets: Sequence[Subset], shapes: Shapes
    ) -> HostKernel:
        readers = Counter(t for one in subsets for t in one.inputs)
        lends = {t for t in subset.inputs if t in shapes and readers[t] == 1}
        return HostKernel(
            self._library, delegate, self._model, partition(self._model, subgraph, subset), subset, shapes,
            threads=self._threads, lends=lends, strict=self._options.fallback == "strict",
        )  # fmt: skip


def _taken(main: Subgraph, nodes: Sequence[NodeFacts]) -> dict[int, str]:
    """The operators that the runtime does not have any more, as an earlier delegate runs them. Raises DelegateError if
    one that it has is not the model's."""
    left = {node.index for node in nodes if not node.delegated}
    for node in nodes:
        if node.delegated:
            continue
        operator = main.operators[node.index] if node.index < len(main.operators) else None
        if operator is None or not _is(operator, node):
            raise DelegateError(f"node {node.index} of the interpreter is not that of the model")
    return {o.index: "An earlier delegate runs it." for o in main.operators if o.index not in left}


def _is(operator: Operator, node: NodeFacts) -> bool:
    custom = operator.name if operator.is_custom else None
    same = (operator.code, operator.inputs, operator.outputs) == (node.code, node.inputs, node.outputs)
    return same and (custom is None or custom == node.custom)


class _LeavesVariables:
    """A delegate that keeps no variables: the runtime's reset_all_variables() would not reach them."""

    keeps_variables = False

    def __init__(self, delegate: Delegate) -> None:
        self._delegate = delegate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._delegate, name)
