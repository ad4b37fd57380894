"""Composite operators become the operators that they stand for, so that a model can be divided."""

from __future__ import annotations

import dataclasses

from litegpu.model.types import Model, Operator, Subgraph, Tensor

COMPOSITE = "STABLEHLO_COMPOSITE"
#: How deep composites may stand within composites.
_DEPTH = 16


def inline_composites(model: Model) -> Model:
    """The model with its main subgraph's composites (group norm, attention and the like) replaced by their
    decompositions; the same object if it has none that can be.

    Tensors of the main subgraph keep their numbers, those of decompositions follow; operators are numbered anew.
    """
    if not any(o.name == COMPOSITE for o in model.main.operators):
        return model
    main = _inlined(model, model.main)
    if main is model.main:
        return model
    called = any(o.subgraphs for o in main.operators)
    used = any(s.subgraph != 0 for s in model.signatures)
    if called or used:
        return model.with_main(main)
    return dataclasses.replace(model, subgraphs=(main,))


def inline_called(model: Model) -> Model:
    """The model with the composites of the subgraphs that others call replaced in the same way; the same object if
    there are none. Operators of the subgraph that is run keep their numbers."""
    made = [s if s.index == model.entry else _inlined(model, s) for s in model.subgraphs]
    if all(a is b for a, b in zip(made, model.subgraphs, strict=True)):
        return model
    return dataclasses.replace(model, subgraphs=tuple(made))


def _inlined(model: Model, graph: Subgraph) -> Subgraph:
    for _ in range(_DEPTH):
        step = _once(model, graph)
        if step is graph:
            break
        graph = step
    return graph


def _once(model: Model, main: Subgraph) -> Subgraph:
    tensors, operators = list(main.tensors), []
    for operator in main.operators:
        body = _body(model, operator)
        if body is None:
            operators.append(operator)
            continue
        place = dict(zip(body.inputs, operator.inputs, strict=True))
        place.update(zip(body.outputs, operator.outputs, strict=True))
        for tensor in body.tensors:
            if tensor.index not in place:
                place[tensor.index] = len(tensors)
                tensors.append(_moved(tensor, len(tensors)))
        place[-1] = -1
        for inner in body.operators:
            operators.append(
                dataclasses.replace(
                    inner,
                    inputs=tuple(place[i] for i in inner.inputs),
                    outputs=tuple(place[i] for i in inner.outputs),
                    intermediates=tuple(place[i] for i in inner.intermediates),
                )
            )
    if len(operators) == len(main.operators) and all(a is b for a, b in zip(operators, main.operators, strict=True)):
        return main
    numbered = tuple(dataclasses.replace(o, index=i) for i, o in enumerate(operators))
    return dataclasses.replace(main, tensors=tuple(tensors), operators=numbered)


def _body(model: Model, operator: Operator) -> Subgraph | None:
    """What a composite stands for; None for other operators, and for bodies that hand an input through or keep
    variables."""
    if operator.name != COMPOSITE or len(operator.subgraphs) != 1:
        return None
    body = model.subgraphs[operator.subgraphs[0]]
    fits = len(body.inputs) == len(operator.inputs) and len(body.outputs) == len(operator.outputs)
    made = {t for o in body.operators for t in o.outputs}
    plain = len(set(body.inputs)) == len(body.inputs) and len(set(body.outputs)) == len(body.outputs)
    if not (fits and plain and made.issuperset(body.outputs)) or -1 in operator.inputs:
        return None
    return None if any(t.is_variable for t in body.tensors) else body


def _moved(tensor: Tensor, index: int) -> Tensor:
    return dataclasses.replace(tensor, index=index)
