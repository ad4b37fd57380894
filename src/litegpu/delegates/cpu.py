"""The CPU side: official interpreters made quietly, and a partition that one of them runs as a model of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from weakref import WeakSet

import numpy as np
from ai_edge_litert import interpreter as official

from litegpu import fork
from litegpu.background import Patient
from litegpu.chatter import quiet
from litegpu.delegates.aborts import WITH_XNNPACK, refuse_aborting
from litegpu.delegates.protocol import Partition
from litegpu.delegates.short_bias import completed
from litegpu.errors import ForkError, InvokeError, ModelError
from litegpu.model.cut import called, cut
from litegpu.model.reader import DTYPES
from litegpu.model.state import has_resources, without_resources
from litegpu.model.types import Model, Operator, Subgraph

PLAIN = official.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES

_UNRESOLVED = ("unresolved custom op", "Select TensorFlow op")

#: Official interpreters with threads of their own: those of this process, and those of one that it was forked from.
_threaded: WeakSet[Any] = WeakSet()
_without_threads: set[Any] = set()


@fork.in_child
def _leave_threads() -> None:
    for interpreter in list(_threaded):
        fork.keep(interpreter)  # its destructor ends threads that are not here, which crashes
        _without_threads.add(interpreter)
    _threaded.clear()


def lacks_threads(interpreter: Any) -> bool:
    """Whether an official interpreter is from before a fork, and has its threads in the parent: to run it may hang."""
    return interpreter in _without_threads


def refuse_to_renew() -> NoReturn:
    """Raises ForkError: an interpreter in whose place there cannot be another one."""
    raise ForkError(
        "this process was forked, and the threads of the model's interpreter (num_threads) are in the parent; what the "
        "model keeps from one inference to the next cannot be had from there: load it again here"
    )


@dataclass(frozen=True, eq=False)
class OfficialOptions:
    """The arguments of the official constructor, under their own names without `experimental_`."""

    delegates: tuple[Any, ...] = ()  # objects of the official load_delegate
    num_threads: int | None = None
    op_resolver_type: Any = official.OpResolverType.AUTO
    preserve_all_tensors: bool = False
    disable_delegate_clustering: bool = False
    default_delegate_latest_features: bool = False
    compress_quantization_zero_points: bool = False
    disable_delegate_node_fusion: bool = False
    force_delegate_node_profiling: bool = False
    custom_op_registerers: tuple[Any, ...] = ()

    def create(self, path: Any = None, content: bytes | None = None) -> Any:
        """A new official interpreter over a file or bytes; raises what the official constructor raises."""
        arguments = {
            "model_path": path,
            "model_content": content,
            "experimental_delegates": list(self.delegates) or None,
            "num_threads": self.num_threads,
            "experimental_op_resolver_type": self.op_resolver_type,
            "experimental_preserve_all_tensors": self.preserve_all_tensors,
            "experimental_disable_delegate_clustering": self.disable_delegate_clustering,
            "experimental_default_delegate_latest_features": self.default_delegate_latest_features,
            "experimental_compress_quantization_zero_points": self.compress_quantization_zero_points,
            "experimental_disable_delegate_node_fusion": self.disable_delegate_node_fusion,
            "experimental_force_delegate_node_profiling": self.force_delegate_node_profiling,
        }
        with quiet():
            if self.custom_op_registerers:
                made: Any = official.InterpreterWithCustomOps(list(self.custom_op_registerers), **arguments)  # type: ignore[no-untyped-call]
            else:
                made = official.Interpreter(**arguments)  # type: ignore[no-untyped-call]
        if self.num_threads not in (None, 1):
            _threaded.add(made)
        return made

    @property
    def uses_xnnpack(self) -> bool:
        """Whether the runtime uses XNNPACK's kernels where there are some."""
        return self.op_resolver_type in (official.OpResolverType.AUTO, official.OpResolverType.BUILTIN)

    def plain(self) -> OfficialOptions:
        """The same without any delegate, so that every tensor gets its true shape; the kernels are never run."""
        reference = official.OpResolverType.BUILTIN_REF
        resolver = reference if self.op_resolver_type == reference else PLAIN
        return replace(
            self,
            delegates=(),
            op_resolver_type=resolver,
            preserve_all_tensors=False,
            default_delegate_latest_features=False,
        )

    def fitting(self, shapes: Iterable[Sequence[int]], operators: Iterable[Operator]) -> OfficialOptions:
        """The same without XNNPACK where its kernels would not do and the plain ones do.

        Where a shape is empty they give the tensors behind it shapes from memory that nobody wrote, and damage the
        heap. An operator that reads the content of a resource variable twice (its square) crashes them."""
        if self.uses_xnnpack and (any(0 in shape for shape in shapes) or _squares_variable(operators)):
            return replace(self, op_resolver_type=PLAIN)
        return self

    def preserving(self) -> OfficialOptions:
        """The same with every tensor kept, for models with custom ops that only the default delegate (XNNPACK) has:
        it then replaces op by op, so that every tensor has its true shape as well."""
        return replace(self, delegates=(), preserve_all_tensors=True)


def _squares_variable(operators: Iterable[Operator]) -> bool:
    operators = tuple(operators)
    contents = {o.outputs[0] for o in operators if o.name == "READ_VARIABLE"}
    return any(o.inputs.count(t) > 1 for o in operators for t in contents.intersection(o.inputs))


class CpuPartition:
    """Nodes of a model, cut out and run by an official interpreter."""

    def __init__(self, partition: Partition, options: OfficialOptions, unknown: Set[int] = frozenset()) -> None:
        """`unknown` are tensors whose shape only the run decides: with one as an input, allocation waits for it.

        Raises InvokeError, with the runtime's text, if the official runtime refuses the nodes."""
        if options.op_resolver_type in WITH_XNNPACK:
            partition = completed(partition)
        subgraph = partition.subgraph
        shapes_read = (subgraph.tensors[t].shape for o in partition.nodes for t in o.inputs if t >= 0)
        options = options.fitting(shapes_read, partition.nodes)
        outputs = _outputs(partition, options)
        nodes = [o.index for o in partition.nodes]
        shapes = {t.index: t.shape for t in subgraph.tensors if not t.is_constant}
        refuse_aborting(partition.nodes, subgraph.tensors, outputs, options.op_resolver_type)
        for index in called(partition.model, partition.nodes):
            graph = partition.model.subgraphs[index]
            refuse_aborting(graph.operators, graph.tensors, graph.outputs, options.op_resolver_type)
        self._content = cut(partition.model, subgraph.index, nodes, partition.inputs, outputs, shapes=shapes)
        self.outputs = outputs
        self._patient = Patient()
        # XNNPACK refuses to run what only widens constants, and a cut model has no intermediates to preserve.
        self._options = replace(options, preserve_all_tensors=False) if partition.inputs else options.plain()
        self._place = _place(partition.nodes)
        self._keeps = any(subgraph.tensors[t].is_variable for o in partition.nodes for t in o.inputs if t >= 0)
        waits = not unknown.isdisjoint(partition.inputs)
        self._open(None if waits else [subgraph.tensors[i].shape for i in partition.inputs])

    def _open(self, shapes: list[tuple[int, ...]] | None) -> None:
        """`shapes`: of the inputs in the cut model; None if they are not known, and allocation waits for them."""
        try:
            self._interpreter = self._options.create(content=self._content)
            if shapes is not None:
                with quiet():
                    self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise InvokeError(f"{self._place} cannot run on the CPU: {error}") from None
        details = self._interpreter.get_input_details()
        self._inputs = [int(d["index"]) for d in details]
        self._shapes = shapes
        self._views = [self._interpreter.tensor(d["index"]) for d in self._interpreter.get_output_details()]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Views of the results; they must be gone before the next call."""
        self._patient.settle()
        if lacks_threads(self._interpreter):
            if self._keeps:
                refuse_to_renew()
            self._open(None)  # in what shapes the next lines say
        interpreter = self._interpreter
        shapes = [a.shape for a in inputs]
        if shapes != self._shapes:  # a tensor whose shape only the run decides
            for index, shape in zip(self._inputs, shapes, strict=True):
                interpreter.resize_tensor_input(index, shape)
            with quiet():
                interpreter.allocate_tensors()
            self._shapes = shapes
        for index, value in zip(self._inputs, inputs, strict=True):
            interpreter.set_tensor(index, value)
        self._patient.call(interpreter.invoke)
        return [self._result(i, view) for i, view in enumerate(self._views)]

    def _result(self, i: int, view: Callable[[], Any]) -> np.ndarray:
        try:
            return np.asarray(view())
        except ValueError:  # the runtime gives no view of nothing
            detail = self._interpreter.get_output_details()[i]
            if 0 not in detail["shape"]:
                raise
            return np.empty(detail["shape"], detail["dtype"])

    def reset_variables(self) -> None:
        self._patient.settle()
        self._interpreter.reset_all_variables()

    def close(self) -> None:
        self._views = []
        self._interpreter = None


def is_unresolved(text: str) -> bool:
    """Whether the runtime's text says that it has no kernel for a custom op."""
    return any(sign in text for sign in _UNRESOLVED)


def unresolved_custom_ops(
    model: Model, subgraph: Subgraph, operators: Sequence[Operator], options: OfficialOptions
) -> list[tuple[str, list[int]]]:
    """(custom code, node numbers) of those of `operators` that the official runtime cannot run. Each kind is tried
    alone: there is no way to ask the runtime's resolver, and its default delegate has a few custom ops as well."""
    kinds: dict[str, list[Operator]] = {}
    for operator in operators:
        if operator.is_custom:
            kinds.setdefault(operator.name, []).append(operator)
    missing = []
    for code, found in kinds.items():
        first = found[0]
        inputs = [t for t in dict.fromkeys(first.inputs) if t >= 0 and not subgraph.tensors[t].is_constant]
        partition = Partition(model, subgraph, (first,), tuple(inputs), first.outputs)
        try:
            CpuPartition(partition, options).close()
        except InvokeError as error:
            if is_unresolved(str(error)):
                missing.append((code, [o.index for o in found]))
    return missing


def unresolved_message(missing: Sequence[tuple[str, Sequence[int]]], reasons: Mapping[int, str] | None = None) -> str:
    """What to tell a user whose model has ops that neither a delegate nor the official runtime has. `reasons`: why
    delegates refused them, by number."""
    ops = "; ".join(f"{code} (op number {', '.join(str(n) for n in nodes)})" for code, nodes in missing)
    given = dict.fromkeys(f"{code}: {reasons[n]}" for code, nodes in missing for n in nodes if reasons and n in reasons)
    refused = f" ({'; '.join(given)})" if given else ""
    return (
        f"Encountered unresolved custom op{'' if len(missing) == 1 else 's'}: {ops}. No delegate took them{refused}, "
        "and the official CPU runtime has no kernel for them. Register one with InterpreterWithCustomOps, give a "
        "delegate that supports them, or convert the model without them."
    )


def _outputs(partition: Partition, options: OfficialOptions) -> tuple[int, ...]:
    if not options.preserve_all_tensors:
        return partition.outputs
    return tuple(t for o in partition.nodes for t in o.outputs if t >= 0)


def _place(nodes: Sequence[Operator]) -> str:
    if len(nodes) == 1:
        return f"Node {nodes[0].index} ({nodes[0].name})"
    return f"A partition of {len(nodes)} nodes, {nodes[0].index} ({nodes[0].name}) to {nodes[-1].index}"


def undividable(model: Model) -> dict[int, str]:
    """Why a model runs on the CPU in one piece: the reason for each node of the main subgraph, {} if it need not.

    That is so for resources that are no plain variables, of any signature, variables that are more than one node's own,
    custom operators that lack an output, and element types that have no NumPy array of their own. What calls other
    subgraphs is cut out with them.
    """
    cause = _unusable_resource(model)
    main = model.main if cause else without_resources(model).model.main
    used = {t for o in main.operators for t in (*o.inputs, *o.outputs)}.union(main.inputs, main.outputs)
    for operator in main.operators:
        if cause is None and -1 in operator.outputs:
            cause = f"op number {operator.index}, {operator.name}, lacks an output"
    for tensor in main.tensors:
        if cause is None and tensor.is_variable:
            users = sum(tensor.index in o.inputs for o in main.operators)
            written = any(tensor.index in o.outputs for o in main.operators)
            if users > 1 or written or tensor.index in (*main.inputs, *main.outputs):
                cause = f"several nodes share the variable '{tensor.name}'"
        elif cause is None and not tensor.is_constant and tensor.type not in DTYPES and tensor.index in used:
            cause = f"'{tensor.name}' is a {tensor.type.name} tensor"
    if cause is None:
        return {}
    return {o.index: f"The model runs in one piece on the CPU: {cause}." for o in main.operators}


def _unusable_resource(model: Model) -> str | None:
    """Why variables cannot be values: those of all signatures, since they share them."""
    if has_resources(model):
        for entry in {model.entry, *(s.subgraph for s in model.signatures)}:
            try:
                without_resources(replace(model, entry=entry))
            except ModelError as error:
                return str(error)
    return None


def several_subgraphs(model: Model) -> dict[int, str]:
    """The same for who can delegate the main subgraph alone: the official runtime's own delegates."""
    if len(model.subgraphs) == 1:
        return undividable(model)
    cause = f"The model runs in one piece on the CPU: it has {len(model.subgraphs)} subgraphs."
    return {o.index: cause for o in model.main.operators}


def ask_shapes(
    model: Model, operator: Operator, options: OfficialOptions, shapes: Mapping[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]] | None:
    """The shapes of an operator's results as the official runtime finds them, None if only a run decides them. Raises
    InvokeError with its text."""
    main = model.main
    read = [t for t in dict.fromkeys(operator.inputs) if t >= 0]
    inputs = [t for t in read if not (main.tensors[t].is_constant or main.tensors[t].is_variable)]
    refuse_aborting([operator], main.tensors, operator.outputs, options.op_resolver_type)
    content = cut(model, model.entry, [operator.index], inputs, operator.outputs, shapes={t: shapes[t] for t in inputs})
    try:
        interpreter = options.create(content=content)
        with quiet():
            interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        text = str(error).replace("Node number 0 ", f"Node number {operator.index} ")
        raise InvokeError(text) from None
    places = [int(d["index"]) for d in interpreter.get_output_details()]
    if any(_is_unknown(interpreter, place) for place in places):
        return None
    return {t: _shape(interpreter, place) for t, place in zip(operator.outputs, places, strict=True)}


def _shape(interpreter: Any, tensor: int) -> tuple[int, ...]:
    return tuple(int(n) for n in interpreter._get_tensor_details(tensor, 0)["shape"])


def _is_unknown(interpreter: Any, tensor: int) -> bool:
    """Whether the tensor has no memory, so that the runtime does not vouch for its shape."""
    if 0 in _shape(interpreter, tensor):
        return False
    try:
        interpreter.tensor(tensor)()
    except ValueError as error:
        return "Tensor data is null" in str(error)
    return False


def reshaped(subgraph: Subgraph, shapes: Mapping[int, tuple[int, ...]]) -> Subgraph:
    """`subgraph` with these shapes; the same object if nothing differs."""
    if all(subgraph.tensors[i].shape == shape for i, shape in shapes.items()):
        return subgraph
    tensors = tuple(replace(t, shape=shapes[t.index]) if t.index in shapes else t for t in subgraph.tensors)
    return replace(subgraph, tensors=tensors)
