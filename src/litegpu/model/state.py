"""Resource variables become values: what READ_VARIABLE and ASSIGN_VARIABLE do through handles enters and leaves a model
as tensors, so that its operators can be divided among delegates and the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.model import schema
from litegpu.model.ops import find
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType

#: Container and shared name: what a handle is of.
Key = tuple[str, str]

_OBJECTS = (TensorType.RESOURCE, TensorType.VARIANT)


@dataclass(frozen=True)
class StateTensor:
    """A variable as the main subgraph has it: the tensors of its value before an inference and after it. -1: it is not
    assigned to."""

    key: Key
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class Initializer:
    """What CALL_ONCE runs: `called` is the subgraph's number in the file, `subgraph` what computes the variables `keys`
    in its place, as its outputs."""

    called: int
    subgraph: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, eq=False)
class StatefulModel:
    """A model without resources. Its main subgraph has the tensors of `states` as further inputs and outputs; operators
    keep their numbers, and those that only name a variable have no operands any more."""

    model: Model
    states: tuple[StateTensor, ...] = ()
    initializers: tuple[Initializer, ...] = ()


def has_resources(model: Model) -> bool:
    """Whether any subgraph uses some."""
    return any(t.type in _OBJECTS for subgraph in model.subgraphs for t in _used(subgraph))


def keeps_values(model: Model) -> bool:
    """Whether an inference may depend on those before it."""
    return has_resources(model) or any(t.is_variable for subgraph in model.subgraphs for t in subgraph.tensors)


def without_resources(model: Model) -> StatefulModel:
    """The model, whose variables' values are tensors from now on; the same one if it has none.

    Raises:
        ModelError: says what cannot be done so: hash tables, variables that change their shape, and handles that are
            chosen at run time.
    """
    if not has_resources(model):
        return StatefulModel(model)
    rewriting = _Rewriting(model)
    main = rewriting.entry(model.main)
    whole = dataclasses.replace(model, subgraphs=(*model.subgraphs, *rewriting.added)).with_main(main)
    return StatefulModel(whole, tuple(rewriting.states), tuple(rewriting.initializers))


@dataclass
class _Rewriting:
    """`added`: subgraphs behind those of the model."""

    model: Model
    added: list[Subgraph] = field(default_factory=list)
    states: list[StateTensor] = field(default_factory=list)
    initializers: list[Initializer] = field(default_factory=list)
    _known: dict[Any, Any] = field(default_factory=dict)  # what was asked before: subgraphs may be called often

    def __post_init__(self) -> None:
        self._assigned = _assigned(self.model)
        self.written: set[Key] = set()  # by what is run, also where handles are handed in

    def entry(self, main: Subgraph) -> Subgraph:
        if any(main.tensors[t].type in _OBJECTS for t in (*main.inputs, *main.outputs)):
            raise ModelError("handles enter or leave the model")
        keys = self._touched(main, {})
        made = _Body(self, main, {}, keys)
        before, after = dict(made.values), {}
        made.rewrite()
        for key in keys:
            after[key] = made.values[key] if made.values[key] != before[key] else -1
            if key not in self._assigned and key not in self.written:
                raise ModelError(f"nothing assigns a value to the variable '{key[1]}'")
            self.states.append(StateTensor(key, before[key], after[key]))
        outputs = (*main.outputs, *(t for t in after.values() if t >= 0))
        return made.graph((*main.inputs, *before.values()), outputs)

    def initializer(self, index: int) -> None:
        """Note what CALL_ONCE of a subgraph assigns."""
        if any(one.called == index for one in self.initializers):
            return
        graph = self.model.subgraphs[index]
        keys = self._touched(graph, {})
        made = _Body(self, graph, {}, keys, entered=False)
        made.rewrite()
        assigned = tuple(key for key in keys if key in made.values)
        self.added.append(made.graph(graph.inputs, tuple(made.values[key] for key in assigned)))
        self.initializers.append(Initializer(index, self._last, assigned))

    def called(self, index: int, handles: Mapping[int, Key], keys: Mapping[Key, Tensor], truth: bool) -> int:
        """The number of a subgraph for which variables are arguments and, but for a `truth`, results behind its own."""
        asked = index, tuple(handles.items()), tuple(keys), truth
        if asked not in self._known:
            self._known[asked] = self._called(index, handles, keys, truth)
        number: int = self._known[asked]
        return number

    def _called(self, index: int, handles: Mapping[int, Key], keys: Mapping[Key, Tensor], truth: bool) -> int:
        graph = self.model.subgraphs[index]
        made = _Body(self, graph, handles, keys, called=True)
        before = tuple(made.values.values())
        made.rewrite()
        plain = [t for t in graph.inputs if graph.tensors[t].type not in _OBJECTS]
        results = [t for t in graph.outputs if graph.tensors[t].type not in _OBJECTS]
        after = tuple(made.values.values())
        if truth and after != before:
            raise ModelError(f"subgraph {index} assigns a variable, and is the condition of a loop")
        self.added.append(made.graph((*plain, *before), (*results, *(() if truth else after))))
        return self._last

    @property
    def _last(self) -> int:
        return len(self.model.subgraphs) + len(self.added) - 1

    def touched(self, calls: Sequence[tuple[int, Mapping[int, Key]]]) -> dict[Key, Tensor]:
        """The variables that called subgraphs read or assign, where these handles are handed in."""
        found: dict[Key, Tensor] = {}
        for index, handles in calls:
            for key, like in self._touched(self.model.subgraphs[index], handles).items():
                _agree(key, found.setdefault(key, like), like)
        return found

    def _touched(self, graph: Subgraph, given: Mapping[int, Key]) -> dict[Key, Tensor]:
        """Variable -> a tensor of its type and shape."""
        asked = graph.index, tuple(given.items())
        if asked not in self._known:
            self._known[asked] = self._found(graph, given)
        found: dict[Key, Tensor] = self._known[asked]
        return found

    def _found(self, graph: Subgraph, given: Mapping[int, Key]) -> dict[Key, Tensor]:
        handles = dict(given)
        found: dict[Key, Tensor] = {}
        for operator in graph.operators:
            if operator.name == "VAR_HANDLE":
                handles[operator.outputs[0]] = _key(operator)
            elif operator.name in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
                key = _handle(handles, operator, operator.inputs[0])
                reads = operator.name == "READ_VARIABLE"
                like = graph.tensors[operator.outputs[0] if reads else operator.inputs[1]]
                if reads and key in self._assigned:
                    like = _shaped_as(like, self._assigned[key])
                if -1 in like.shape_signature:
                    raise ModelError(f"the variable '{key[1]}' has no fixed shape")
                _agree(key, found.setdefault(key, like), like)
            elif operator.subgraphs and operator.name != "CALL_ONCE":
                calls = [(i, self.handed(graph, operator, i, handles)) for i in operator.subgraphs]
                for key, like in self.touched(calls).items():
                    _agree(key, found.setdefault(key, like), like)
                self.pass_handles(graph, operator, handles)
        return found

    def handed(self, graph: Subgraph, operator: Operator, called: int, handles: Mapping[int, Key]) -> dict[int, Key]:
        """Tensor of a called subgraph -> the variable that it is a handle of."""
        inner = self.model.subgraphs[called]
        given = operator.inputs[1:] if _calls(operator) == "branch" else operator.inputs
        pairs = [(a, b) for a, b in zip(given, inner.inputs, strict=False) if a >= 0]
        return {b: _handle(handles, operator, a) for a, b in pairs if graph.tensors[a].type in _OBJECTS}

    def pass_handles(self, graph: Subgraph, operator: Operator, handles: dict[int, Key]) -> None:
        """Learn what an operator's resulting handles are of: a loop's have to be those that it was given."""
        for place, tensor in enumerate(operator.outputs):
            if graph.tensors[tensor].type in _OBJECTS:
                if _calls(operator) != "loop":
                    raise ModelError(f"op number {operator.index}, {operator.name}, chooses a handle")
                handles[tensor] = _handle(handles, operator, operator.inputs[place])


class _Body:
    """One subgraph while it is rewritten. `values`: the tensor that has each variable's value at present."""

    def __init__(
        self,
        rewriting: _Rewriting,
        graph: Subgraph,
        handles: Mapping[int, Key],
        keys: Mapping[Key, Tensor],
        *,
        entered: bool = True,
        called: bool = False,
    ) -> None:
        """`entered`: the variables' values are inputs. `called`: by an IF or a WHILE."""
        self._rewriting = rewriting
        self._old = graph
        self._tensors = list(graph.tensors)
        self._handles = dict(handles)
        self._operators: list[Operator] = []
        self._once = graph is rewriting.model.main
        self._called = called
        self.values: dict[Key, int] = {}
        for key, like in keys.items() if entered else ():
            self.values[key] = self._like(like, key[1])

    def graph(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Subgraph:
        return dataclasses.replace(
            self._old, tensors=tuple(self._tensors), operators=tuple(self._operators), inputs=inputs, outputs=outputs
        )

    def rewrite(self) -> None:
        for operator in self._old.operators:
            self._operators.append(self._rewritten(operator))

    def _rewritten(self, operator: Operator) -> Operator:
        tensors = self._old.tensors
        match operator.name:
            case "VAR_HANDLE":
                self._handles[operator.outputs[0]] = _key(operator)
                return _emptied(operator)
            case "CALL_ONCE":
                if not self._once:
                    raise ModelError(f"op number {operator.index}, CALL_ONCE, is in a subgraph that is called")
                self._rewriting.initializer(operator.subgraphs[0])
                return _emptied(operator)
            case "READ_VARIABLE":
                key = _handle(self._handles, operator, operator.inputs[0])
                if key not in self.values:
                    raise ModelError(f"the variable '{key[1]}' is read while it is initialized")
                (target,) = operator.outputs
                given = self._tensors[self.values[key]]
                self._tensors[target] = _shaped_as(self._tensors[target], given)
                if given.is_constant:
                    self._tensors[target] = dataclasses.replace(self._tensors[target], data=given.data)
                    return _emptied(operator)
                return self._identity(operator, self.values[key], target)
            case "ASSIGN_VARIABLE":
                key = _handle(self._handles, operator, operator.inputs[0])
                source = operator.inputs[1]
                self._rewriting.written.add(key)
                self.values[key] = self._like(tensors[source], key[1])
                given = self._tensors[source]
                if given.is_constant and self._called:
                    # the official IF frees what a branch gives if it is a constant that was reshaped
                    made = self._tensors[self.values[key]]
                    self._tensors[made.index] = dataclasses.replace(made, data=given.data)
                    return _emptied(operator)
                return self._identity(operator, source, self.values[key])
        if _calls(operator) in ("branch", "loop"):
            return self._call(operator)
        if any(t >= 0 and tensors[t].type in _OBJECTS for t in (*operator.inputs, *operator.outputs)):
            raise ModelError(f"op number {operator.index}, {operator.name}, uses a resource")
        if operator.subgraphs and self._rewriting.touched([(i, {}) for i in operator.subgraphs]):
            raise ModelError(f"op number {operator.index}, {operator.name}, calls what uses a resource")
        return operator

    def _call(self, operator: Operator) -> Operator:
        """IF or WHILE, which get the variables that they touch as arguments and give them as results."""
        rewriting, tensors = self._rewriting, self._old.tensors
        handles = [rewriting.handed(self._old, operator, i, self._handles) for i in operator.subgraphs]
        keys = rewriting.touched(list(zip(operator.subgraphs, handles, strict=True)))
        resources = any(t >= 0 and tensors[t].type in _OBJECTS for t in (*operator.inputs, *operator.outputs))
        if not keys and not resources:
            return operator
        rewriting.pass_handles(self._old, operator, self._handles)
        for key in keys:
            if key not in self.values:
                raise ModelError(f"the variable '{key[1]}' is read while it is initialized")
        made: list[int] = []
        for place, (index, given) in enumerate(zip(operator.subgraphs, handles, strict=True)):
            made.append(rewriting.called(index, given, keys, _calls(operator) == "loop" and place == 0))
        numbers = dict(zip(operator.subgraphs, made, strict=True))
        after = {key: self._like(self._tensors[self.values[key]], key[1]) for key in keys}
        inputs = [t for t in operator.inputs if t < 0 or tensors[t].type not in _OBJECTS]
        outputs = [t for t in operator.outputs if tensors[t].type not in _OBJECTS]
        options: dict[str, Any] = dict(operator.options)
        for name, value in options.items():
            if schema.names_subgraph(name):
                several = isinstance(value, tuple)
                options[name] = tuple(numbers[v] for v in value) if several else numbers[value]
        inputs += [self.values[key] for key in keys]
        self.values.update(after)
        return dataclasses.replace(
            operator,
            inputs=tuple(inputs),
            outputs=(*outputs, *after.values()),
            options=options,
            subgraphs=tuple(numbers[i] for i in operator.subgraphs),
        )

    def _like(self, tensor: Tensor, name: str) -> int:
        index = len(self._tensors)
        self._tensors.append(
            dataclasses.replace(tensor, index=index, name=name, data=None, sparsity=None, buffer=0, is_variable=False)
        )
        return index

    def _identity(self, operator: Operator, source: int, target: int) -> Operator:
        """An operator that hands a tensor on, which every delegate knows."""
        shape = np.array(self._tensors[target].shape, np.int32)
        sizes = Tensor(len(self._tensors), "sizes", TensorType.INT32, shape.shape, shape.shape, 0, data=shape)
        self._tensors.append(sizes)
        options = {"new_shape": tuple(shape.tolist())}
        code = schema.enum_values("BuiltinOperator")["RESHAPE"]
        return Operator(
            operator.index, "RESHAPE", code, 1, (source, sizes.index), (target,), options, options_type="ReshapeOptions"
        )


def _emptied(operator: Operator) -> Operator:
    return dataclasses.replace(operator, inputs=(), outputs=(), subgraphs=())


def _key(operator: Operator) -> Key:
    return str(operator.options.get("container", "")), str(operator.options.get("shared_name", ""))


def _handle(handles: Mapping[int, Key], operator: Operator, tensor: int) -> Key:
    if tensor not in handles:
        raise ModelError(f"op number {operator.index}, {operator.name}, has a handle that is no variable's")
    return handles[tensor]


def _assigned(model: Model) -> dict[Key, Tensor]:
    """Variable -> a tensor that is assigned to it under its own name."""
    found: dict[Key, Tensor] = {}
    for graph in model.subgraphs:
        handles = {o.outputs[0]: _key(o) for o in graph.operators if o.name == "VAR_HANDLE"}
        for operator in graph.operators:
            if operator.name == "ASSIGN_VARIABLE" and operator.inputs[0] in handles:
                key, value = handles[operator.inputs[0]], graph.tensors[operator.inputs[1]]
                if key not in found or not found[key].shape:
                    found[key] = value
    return found


def _shaped_as(tensor: Tensor, other: Tensor) -> Tensor:
    """With the shape of the other where the file says nothing about it, not even a rank."""
    if tensor.has_rank or tensor.shape or tensor.shape == other.shape:
        return tensor
    return dataclasses.replace(tensor, shape=other.shape, shape_signature=other.shape_signature, has_rank=True)


def _agree(key: Key, one: Tensor, other: Tensor) -> None:
    if (one.type, one.shape) != (other.type, other.shape):
        raise ModelError(f"the variable '{key[1]}' is {one.type.name} {list(one.shape)} and {other.type.name} "
                         f"{list(other.shape)} in places")  # fmt: skip


def _calls(operator: Operator) -> str:
    known = find(operator)
    return "" if known is None else known.calls


def _used(subgraph: Subgraph) -> list[Tensor]:
    indices = {t for o in subgraph.operators for t in (*o.inputs, *o.outputs) if t >= 0}
    return [subgraph.tensors[t] for t in indices.union(subgraph.inputs, subgraph.outputs)]
