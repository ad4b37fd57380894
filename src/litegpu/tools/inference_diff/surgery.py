"""Models made from a model to look inside it: with inner tensors as outputs, or with parts that no longer touch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.lower.constants import as_array
from litegpu.model.cut import cut
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType

#: Of tensors that one model hands out: what is beyond goes into another model.
_MOST_BYTES = 64 << 20
_SUMS = frozenset({"MEAN", "SUM"})
_DYNAMIC_RANGE = frozenset({
    *("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"),
    *("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"),
})  # fmt: skip


def is_readable(main: Subgraph, tensor: int) -> bool:
    """Whether a tensor's value can be an output: it is computed, and holds numbers."""
    t = main.tensors[tensor]
    return tensor >= 0 and not (t.is_constant or t.is_variable) and t.type in DTYPES and DTYPES[t.type].kind in "fiub"


def widens_constant(main: Subgraph, operator: Operator) -> bool:
    """Whether an operator only makes floats of a constant, which belongs to whoever reads it."""
    return operator.name == "DEQUANTIZE" and main.tensors[operator.inputs[0]].is_constant


def computes(main: Subgraph, operator: Operator) -> bool:
    """Whether an operator has work of its own: it does not only widen a constant, and something reads its results
    (those that follow from shapes have become constants)."""
    read = {*main.outputs, *(t for o in main.operators for t in o.inputs)}
    return not widens_constant(main, operator) and not read.isdisjoint(operator.outputs)


def exposed(model: Model, tensors: Sequence[int]) -> bytes:
    """The main subgraph with these tensors behind its outputs."""
    main = model.main
    outputs = [*main.outputs, *(t for t in tensors if t not in main.outputs)]
    return cut(model, 0, range(len(main.operators)), main.inputs, outputs)


@dataclass(frozen=True, eq=False)
class Isolated:
    """A model of parts. `inputs` are the tensors of the model that it was made from which its inputs stand for,
    `outputs` those that its outputs are, `nodes` its operators' numbers there."""

    content: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nodes: tuple[int, ...]


def isolated(model: Model, parts: Sequence[Sequence[int]]) -> Isolated:
    """A model in which parts of the main subgraph, each a list of nodes in the order of the file, stand side by side:
    what a part reads from elsewhere comes from inputs of the model."""
    main = model.main
    tensors, operators, outputs = list(main.tensors), [], list[int]()
    widening = {t: o for o in main.operators if widens_constant(main, o) for t in o.outputs}
    fed: dict[int, int] = {}  # tensor -> the one that stands for it as an input
    widened: dict[int, Operator] = {}
    for part in parts:
        inside = {t for n in part for t in main.operators[n].outputs}
        for n in part:
            operator = main.operators[n]
            for t in operator.inputs:
                if t in widening:
                    widened[t] = widening[t]
                elif t not in inside and t not in fed and t >= 0 and _is_computed(main, t):
                    fed[t] = len(tensors)
                    tensors.append(dataclasses.replace(main.tensors[t], index=len(tensors)))
            inputs = tuple(t if t in inside else fed.get(t, t) for t in operator.inputs)
            operators.append(dataclasses.replace(operator, inputs=inputs))
        outputs += leaving(main, part)
    operators = [*dict.fromkeys(widened.values()), *operators]
    numbered = tuple(dataclasses.replace(o, index=i) for i, o in enumerate(operators))
    whole = Subgraph(0, main.name, tuple(tensors), numbered, tuple(fed.values()), tuple(outputs))
    apart = model.with_main(whole)
    content = cut(apart, 0, range(len(numbered)), whole.inputs, whole.outputs)
    return Isolated(content, tuple(fed), tuple(outputs), tuple(o.index for o in operators))


def with_float_weights(model: Model, nodes: Container[int] | None = None) -> tuple[Model, tuple[int, ...]]:
    """The model with the weights of its dynamic-range ops (those among `nodes`) as the float32 numbers that they stand
    for, and the numbers of these ops. The official kernels quantize the inputs of such ops to 8 bits, which the GPU
    does not."""
    main = model.main
    tensors = list(main.tensors)
    found = []
    others = {t for o in main.operators if nodes is not None and o.index not in nodes for t in o.inputs}
    for operator in main.operators:
        if nodes is not None and operator.index not in nodes:
            continue
        weights = [t for t in _quantized_weights(main, operator) if t.index not in others]
        for t in weights:
            tensors[t.index] = dataclasses.replace(
                t,
                type=TensorType.FLOAT32,
                data=as_array(t, tensors=main.tensors),
                quantization=None,
                sparsity=None,
            )
        if weights:
            found.append(operator)
    changed = dataclasses.replace(main, tensors=tuple(tensors))
    return model.with_main(changed), tuple(o.index for o in found)


def with_careful_sums(model: Model) -> Model:
    """The model with its means and sums over several axes as one over each, which is the same function. The official
    kernels add all elements one by one in float32: over 384x384 of them the error is above 1e-5."""
    main = model.main
    tensors, operators = list(main.tensors), list[Operator]()
    for operator in main.operators:
        source = operator.inputs[0] if operator.name in _SUMS else -1
        axes = main.tensors[operator.inputs[1]].data if operator.name in _SUMS else None
        if axes is None or axes.size < 2 or main.tensors[source].type is not TensorType.FLOAT32:
            operators.append(operator)
            continue
        shape = list(main.tensors[source].shape)
        # From the last axis on: if it is dropped, those before it keep their numbers.
        todo = sorted({int(axis) % len(shape) for axis in axes.reshape(-1)}, reverse=True)
        for axis in todo:
            if operator.options.get("keep_dims"):
                shape[axis] = 1
            else:
                del shape[axis]
            place = len(tensors)
            tensors.append(_constant(place, np.array([axis], np.int32)))
            result = operator.outputs[0]
            if axis != todo[-1]:
                result = place + 1
                like = dataclasses.replace(main.tensors[operator.outputs[0]], index=result, name=f"sum_{result}")
                tensors.append(dataclasses.replace(like, shape=tuple(shape), shape_signature=tuple(shape)))
            operators.append(dataclasses.replace(operator, inputs=(source, place), outputs=(result,)))
            source = result
    numbered = tuple(dataclasses.replace(o, index=i) for i, o in enumerate(operators))
    changed = dataclasses.replace(main, tensors=tuple(tensors), operators=numbered)
    return model.with_main(changed)


def _constant(index: int, data: np.ndarray) -> Tensor:
    return Tensor(index, f"constant_{index}", TensorType.INT32, data.shape, data.shape, buffer=0, data=data)


def _quantized_weights(main: Subgraph, operator: Operator) -> list[Tensor]:
    """Of an operator with float inputs, those that no operator of another kind reads."""
    if operator.name not in _DYNAMIC_RANGE or main.tensors[operator.inputs[0]].type is not TensorType.FLOAT32:
        return []
    elsewhere = {t for o in main.operators if o.name not in _DYNAMIC_RANGE for t in o.inputs}
    given = [main.tensors[t] for t in operator.inputs if t >= 0 and t not in elsewhere]
    return [t for t in given if t.is_constant and t.type in (TensorType.INT8, TensorType.UINT8, TensorType.INT4)]


def leaving(main: Subgraph, part: Sequence[int]) -> list[int]:
    """The tensors that nodes hand on to others, or the model to its user; of nodes that nothing reads, all."""
    read = {t for o in main.operators if o.index not in part for t in o.inputs} | set(main.outputs)
    made = [t for n in part for t in main.operators[n].outputs if t >= 0 and is_readable(main, t)]
    return [t for t in made if t in read] or made[-1:]


def portions(main: Subgraph, items: Sequence[Sequence[int]]) -> list[slice]:
    """Divides `items`, each the tensors that something hands out, so that no group's take more than 64 MiB if it has
    more than one."""
    cuts, size = [0], 0
    for i, item in enumerate(items):
        more = sum(math.prod(main.tensors[t].shape) * DTYPES[main.tensors[t].type].itemsize for t in item)
        if i > cuts[-1] and size + more > _MOST_BYTES:
            cuts.append(i)
            size = 0
        size += more
    return [slice(a, b) for a, b in zip(cuts, [*cuts[1:], len(items)], strict=True) if b > a]


def _is_computed(main: Subgraph, tensor: int) -> bool:
    t = main.tensors[tensor]
    return not (t.is_constant or t.is_variable)
