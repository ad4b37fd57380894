"""The shapes that a model's tensors have for given inputs, found operator by operator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from litegpu.delegates import cpu, folding
from litegpu.delegates.cpu import OfficialOptions
from litegpu.errors import InvokeError
from litegpu.model.calls import MOST_OPERATORS, expanded
from litegpu.model.ops import find
from litegpu.model.shapes import Computed, Unexpected, shapes_of_results
from litegpu.model.types import Model, Operator, Subgraph

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Inferred:
    """`subgraph`: with its true shapes; what follows from them alone is constant in it. `refused`: nodes whose shapes
    only a run decides, and why; `late`: those of them that only come behind such a decision."""

    subgraph: Subgraph
    refused: dict[int, str]
    late: frozenset[int] = frozenset()


def infer(model: Model, options: OfficialOptions, inputs: Mapping[int, Shape]) -> Inferred:
    """The shapes for these shapes of the inputs.

    Rules give them for what the GPU runs (model/shapes.py), so that nothing has to be allocated which the CPU
    could not hold. Operators without a rule, and those that a rule finds odd, are asked of the official runtime, each
    cut out alone. Raises InvokeError with the runtime's text, or where it does not know either.
    """
    subgraph = model.main
    while True:
        shapes, refused, late = _walk(model, subgraph, options, inputs)
        subgraph = _without_empty(cpu.reshaped(subgraph, shapes))
        if not folding.may_fold(subgraph):
            return Inferred(subgraph, refused, late)
        unknown = frozenset(t for node in refused for t in subgraph.operators[node].outputs)
        folded = folding.fold(model, subgraph, unknown, options)  # what follows from shapes may decide further ones
        if folded is None:
            return Inferred(subgraph, refused, late)
        subgraph = folded


def _without_empty(subgraph: Subgraph) -> Subgraph:
    """With concatenations of what has elements alone; the same object if all have."""
    operators = list(subgraph.operators)
    for i, operator in enumerate(operators):
        if operator.name == "CONCATENATION":
            kept = tuple(t for t in operator.inputs if 0 not in subgraph.tensors[t].shape)
            operators[i] = operator if kept in ((), operator.inputs) else replace(operator, inputs=kept)
    if all(a is b for a, b in zip(operators, subgraph.operators, strict=True)):
        return subgraph
    return replace(subgraph, operators=tuple(operators))


def _walk(
    model: Model, subgraph: Subgraph, options: OfficialOptions, inputs: Mapping[int, Shape]
) -> tuple[dict[int, Shape], dict[int, str], frozenset[int]]:
    """Tensor -> shape as far as they are known, node -> why a shape of it is not, and the nodes behind such a one."""
    whole = model.with_main(subgraph)
    shapes = {i: shape for i, shape in inputs.items() if not subgraph.tensors[i].is_constant}
    causes: dict[int, str] = {}  # tensor of unknown shape -> why
    refused: dict[int, str] = {}
    late: set[int] = set()
    for operator in subgraph.operators:
        if not operator.outputs:
            continue
        cause = next((causes[t] for t in operator.inputs if t in causes), None)
        if cause is None:
            found = _results(whole, operator, options, shapes)
            if found is not None:
                _check_sizes(subgraph, operator, found)
                shapes.update(found)
                continue
            name = subgraph.tensors[operator.outputs[0]].name
            cause = (
                f"A shape is known only when the model runs: op number {operator.index}, {operator.name}, decides "
                f"'{name}'."
            )
        else:
            late.add(operator.index)
        refused[operator.index] = cause
        causes.update(dict.fromkeys(operator.outputs, cause))
    return shapes, refused, frozenset(late)


def _results(
    model: Model, operator: Operator, options: OfficialOptions, shapes: Mapping[int, Shape]
) -> dict[int, Shape] | None:
    """The shapes of an operator's results, None if values decide them."""
    try:
        found = shapes_of_results(model.main, operator, shapes)
    except Computed:
        return None
    except Unexpected:
        found = None
    if found is not None:
        return dict(zip(operator.outputs, found, strict=True))
    told = _asked(model, operator, options, shapes)
    return _of_calls(model, operator, options, shapes) if told is None and operator.subgraphs else told


def _of_calls(
    model: Model, operator: Operator, options: OfficialOptions, shapes: Mapping[int, Shape]
) -> dict[int, Shape] | None:
    """Of an IF or a WHILE, where the official runtime does not look into what is called: its branches give the same
    shapes, its rounds keep those of the state. None if values decide them after all."""
    known = find(operator)
    if known is None or known.calls not in ("branch", "loop") or expanded(model, operator) > MOST_OPERATORS:
        return None
    tensors = model.main.tensors
    given = [shapes.get(t, tensors[t].shape) for t in operator.inputs if t >= 0]
    handed = given[1:] if known.calls == "branch" else given
    called = operator.subgraphs if known.calls == "branch" else operator.subgraphs[1:]
    results = [_of_called(model, index, options, handed) for index in called]
    if known.calls == "loop":
        results.append(handed)
    first = results[0]
    if first is None or any(result != first for result in results):
        return None
    return dict(zip(operator.outputs, first, strict=False))


def _of_called(model: Model, index: int, options: OfficialOptions, given: Sequence[Shape]) -> list[Shape] | None:
    """The shapes that a subgraph gives for these, None if values decide them."""
    whole = replace(model, entry=index)
    try:
        found = infer(whole, options, dict(zip(whole.main.inputs, given, strict=True)))
    except (InvokeError, ValueError):
        return None
    behind = {t for node in found.refused for t in found.subgraph.operators[node].outputs}
    outputs = found.subgraph.outputs
    return None if behind.intersection(outputs) else [found.subgraph.tensors[t].shape for t in outputs]


def _asked(
    model: Model, operator: Operator, options: OfficialOptions, shapes: Mapping[int, Shape]
) -> dict[int, Shape] | None:
    """What the official runtime says, without its default delegate and else with it, which accepts some that the plain
    kernels do not and has a few custom operators. Where nothing has the operator the shapes in the file hold, unless
    what it reads was resized."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that preserving all tensors takes memory: it is not kept
        try:
            return cpu.ask_shapes(model, operator, options.plain(), shapes)
        except InvokeError as error:
            refusal = error
            try:
                return cpu.ask_shapes(model, operator, options.preserving(), shapes)
            except InvokeError:
                pass
    if not cpu.is_unresolved(str(refusal)):
        try:
            raise refusal
        finally:
            del refusal  # its traceback has this frame
    main = model.main
    changed = [t for t in operator.inputs if t in shapes and shapes[t] != main.tensors[t].shape]
    if not changed:
        return {t: main.tensors[t].shape for t in operator.outputs}
    names = ", ".join(f"'{main.tensors[t].name}'" for t in changed)
    raise InvokeError(f"After {names} was resized the shapes of the model cannot be computed: {refusal}")


def _check_sizes(subgraph: Subgraph, operator: Operator, found: Mapping[int, Shape]) -> None:
    for tensor, shape in found.items():
        if math.prod(shape) > _MOST_ELEMENTS:
            name = subgraph.tensors[tensor].name
            raise InvokeError(
                f"Node number {operator.index} ({operator.name}) would make '{name}' {list(shape)}, which has "
                f"more than {_MOST_ELEMENTS} elements. Use a smaller batch or input."
            )


_MOST_ELEMENTS = 2**31 - 1  # elements are counted in int32
