"""Cuts a partition out of a model as a model of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from litegpu.errors import ModelError
from litegpu.model import schema
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Subgraph, Tensor


def cut(
    model: Model,
    subgraph_index: int,
    nodes: Sequence[int],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    shapes: Mapping[int, tuple[int, ...]] | None = None,
) -> bytes:
    """A partition as a model of its own.

    The operators `nodes` of a subgraph run in the order given, with the tensors `inputs` and `outputs` of that subgraph
    as the new model's inputs and outputs in this order. Only what they need is kept: tensors (in their old order, with
    names, quantization and sparsity), constants, operator codes, and the subgraphs that they call. `shapes` gives
    tensors the shapes that they have after a resize.

    Raises:
        ModelError: an index is out of range, or an operator reads a tensor that nothing in the partition provides.
    """
    subgraph = model.subgraphs[subgraph_index]
    operators = [subgraph.operators[node] for node in nodes if _runs(subgraph.operators[node])]
    kept = _needed(subgraph, operators, inputs, outputs)
    renumbered = {old: new for new, old in enumerate(kept)}
    subgraph_numbers = {old: new for new, old in enumerate(called(model, operators), start=1)}
    main = Subgraph(
        index=0,
        name=subgraph.name,
        tensors=tuple(
            _moved_tensor(subgraph.tensors[old], new, (shapes or {}).get(old), renumbered)
            for new, old in enumerate(kept)
        ),
        operators=tuple(
            dataclasses.replace(
                recalled(operator, subgraph_numbers),
                index=number,
                inputs=_renumber(operator.inputs, renumbered),
                outputs=_renumber(operator.outputs, renumbered),
                intermediates=_renumber(operator.intermediates, renumbered),
            )
            for number, operator in enumerate(operators)
        ),
        inputs=_renumber(inputs, renumbered),
        outputs=_renumber(outputs, renumbered),
    )
    others = tuple(
        dataclasses.replace(
            model.subgraphs[old],
            index=new,
            operators=tuple(recalled(o, subgraph_numbers) for o in model.subgraphs[old].operators if _runs(o)),
        )
        for old, new in subgraph_numbers.items()
    )
    return write_model(dataclasses.replace(model, subgraphs=(main, *others), signatures=(), metadata={}, entry=0))


def described(model: Model) -> bytes:
    """A model of the tensors of the subgraph that is run, its inputs and outputs, without anything that computes or any
    large constant that is no output: for who asks an official interpreter about tensors alone."""
    read = frozenset(model.main.outputs)
    tensors = tuple(
        dataclasses.replace(t, data=None, sparsity=None)
        if t.data is not None and t.data.nbytes > _SMALL and t.index not in read
        else t
        for t in model.main.tensors
    )
    main = dataclasses.replace(model.main, index=0, tensors=tensors, operators=())
    return write_model(dataclasses.replace(model, subgraphs=(main,), signatures=(), metadata={}, entry=0))


#: Bytes of constants that a description keeps.
_SMALL = 1024


def _runs(operator: Operator) -> bool:
    """Whether it does anything: what only had handles (model/state.py) is left with no operands."""
    return bool(operator.inputs or operator.outputs or operator.subgraphs)


def _needed(
    subgraph: Subgraph, operators: Iterable[Operator], inputs: Sequence[int], outputs: Sequence[int]
) -> list[int]:
    """The tensors of a partition, ascending."""
    tensors = subgraph.tensors
    needed = set(inputs)
    provided = set(inputs)
    for operator in operators:
        for index in operator.inputs:
            if index >= 0 and index not in provided and not (tensors[index].is_constant or tensors[index].is_variable):
                raise ModelError(
                    f"operator {operator.index} {operator.name} reads tensor {index} '{tensors[index].name}', which is "
                    "neither an input of the partition nor made in it; add it to the inputs"
                )
        provided.update(operator.outputs)
        needed.update(i for i in (*operator.inputs, *operator.outputs, *operator.intermediates) if i >= 0)
    for index in outputs:
        if index not in provided and not (tensors[index].is_constant or tensors[index].is_variable):
            raise ModelError(
                f"output tensor {index} '{tensors[index].name}' is not made in the partition; "
                "add the operator that makes it"
            )
    needed.update(outputs)
    for index in list(needed):
        quantization = tensors[index].quantization
        if quantization is not None:
            needed.update(i for i in (quantization.scales_tensor, quantization.zero_points_tensor) if i >= 0)
    return sorted(needed)


def called(model: Model, operators: Iterable[Operator]) -> list[int]:
    """The subgraphs that operators call, directly and through others, ascending."""
    found: set[int] = set()
    waiting = [index for operator in operators for index in operator.subgraphs]
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting += [called for operator in model.subgraphs[index].operators for called in operator.subgraphs]
    return sorted(found)


def recalled(operator: Operator, numbers: Mapping[int, int]) -> Operator:
    """The operator with the subgraphs that it calls renumbered."""
    if not operator.subgraphs:
        return operator
    options = dict(operator.options)
    for name, value in options.items():
        if schema.names_subgraph(name):
            options[name] = tuple(numbers[index] for index in value) if isinstance(value, tuple) else numbers[value]
    return dataclasses.replace(
        operator, options=options, subgraphs=tuple(numbers[index] for index in operator.subgraphs)
    )


def _moved_tensor(tensor: Tensor, index: int, shape: tuple[int, ...] | None, renumbered: Mapping[int, int]) -> Tensor:
    quantization = tensor.quantization
    if quantization is not None and quantization.block_size:
        scales, zero_points = quantization.scales_tensor, quantization.zero_points_tensor
        quantization = dataclasses.replace(
            quantization,
            scales_tensor=renumbered.get(scales, scales),
            zero_points_tensor=renumbered.get(zero_points, zero_points),
        )
    tensor = dataclasses.replace(tensor, index=index, quantization=quantization)
    return tensor if shape is None else dataclasses.replace(tensor, shape=shape, shape_signature=shape)


def _renumber(indices: Iterable[int], renumbered: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(renumbered[index] if index >= 0 else -1 for index in indices)
