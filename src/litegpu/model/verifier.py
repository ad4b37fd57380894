"""Checks that a model means something before any runtime is asked to run it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.errors import ModelError
from litegpu.model import schema
from litegpu.model.encodings import check_constant
from litegpu.model.hazards import LARGE_ELEMENTS, LARGE_RATIO, MAX_ELEMENTS, MAX_RANK, check_operator
from litegpu.model.ops import find
from litegpu.model.types import Model, Operator, Quantization, Subgraph, Tensor, TensorType

_MAX_EMPTY = 2**28

# The values that a quantized element can have, which its zero point must be one of.
_INTEGER_RANGES = {
    TensorType.INT8: (-128, 127),
    TensorType.UINT8: (0, 255),
    TensorType.INT16: (-32768, 32767),
    TensorType.UINT16: (0, 65535),
    TensorType.INT32: (-(2**31), 2**31 - 1),
    TensorType.INT4: (-8, 7),
    TensorType.UINT4: (0, 15),
    TensorType.INT2: (-2, 1),
}


def verify_model(model: Model) -> None:
    """Checks shapes, quantization, the order and arity of operators, calls and signatures of a decoded model.

    Constants are looked at only where the official runtime would crash on them (axes, permutations, sizes).

    Raises:
        ModelError: says what is wrong, where, and what to do.
    """
    for subgraph in model.subgraphs:
        try:
            _check_subgraph(model, subgraph)
        except ModelError as error:
            raise ModelError(f"subgraph {subgraph.index} '{subgraph.name}': {error}") from None
    _check_calls(model)
    _check_arguments(model)
    _check_resources(model)
    _check_signatures(model)


def _check_subgraph(model: Model, subgraph: Subgraph) -> None:
    for tensor in subgraph.tensors:
        _check_tensor(tensor, len(subgraph.tensors))
    count = len(subgraph.tensors)
    for kind, indices in (("input", subgraph.inputs), ("output", subgraph.outputs)):
        for index in indices:
            if not 0 <= index < count:
                raise ModelError(f"{kind} tensor {index} does not exist, there are {count}; {_CONVERT}")
    _check_order(subgraph)
    _check_large(subgraph)
    for operator in subgraph.operators:
        try:
            check_operator(operator, subgraph.tensors)
        except ModelError as error:
            raise ModelError(f"{_called(operator)}: {error}") from None


def _check_tensor(tensor: Tensor, count: int) -> None:
    shape, signature = tensor.shape, tensor.shape_signature
    if len(shape) > MAX_RANK:
        raise ModelError(f"{_named(tensor)} has rank {len(shape)}, which is more than {MAX_RANK}; {_CONVERT}")
    if any(extent < 0 for extent in shape):
        raise ModelError(f"{_named(tensor)} has a negative extent in its shape {list(shape)}; {_CONVERT}")
    # Of empty arrays NumPy counts the other extents as well, and so do kernels that broadcast them.
    if math.prod(extent for extent in shape if extent) > (_MAX_EMPTY if 0 in shape else MAX_ELEMENTS):
        raise ModelError(
            f"{_named(tensor)} of shape {list(shape)} has more than {MAX_ELEMENTS} elements, which the runtimes "
            "cannot count; split it into several tensors"
        )
    if len(signature) != len(shape) or any(extent < -1 for extent in signature):
        raise ModelError(f"{_named(tensor)} has shape {list(shape)}, but shape signature {list(signature)}; {_CONVERT}")
    if tensor.is_variable and tensor.is_constant:
        raise ModelError(f"{_named(tensor)} is a variable and yet has constant data; {_CONVERT}")
    if tensor.quantization is not None:
        _check_quantization(tensor, tensor.quantization, count)
    check_constant(tensor)


def _check_quantization(tensor: Tensor, quantization: Quantization, count: int) -> None:
    if quantization.block_size:
        for index in (quantization.scales_tensor, quantization.zero_points_tensor):
            if not -1 <= index < count:
                raise ModelError(f"{_named(tensor)} has its scales in tensor {index} of {count}; {_CONVERT}")
        if quantization.scales_tensor < 0 or quantization.block_size < 0:
            raise ModelError(f"{_named(tensor)} is quantized in blocks without scales; {_CONVERT}")
        return
    scales, zero_points = quantization.scales, quantization.zero_points
    if len(zero_points) != len(scales):
        raise ModelError(f"{_named(tensor)} has {len(scales)} scales, but {len(zero_points)} zero points; {_CONVERT}")
    if tensor.type in _INTEGER_RANGES and (not np.isfinite(scales).all() or np.signbit(scales).any()):
        raise ModelError(f"{_named(tensor)} has a scale that is not a positive number; {_CONVERT}")
    if tensor.type in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[tensor.type]
        if (zero_points < low).any() or (zero_points > high).any():
            raise ModelError(f"{_named(tensor)} has a zero point beyond its type {tensor.type.name}; {_CONVERT}")
    if len(scales) > 1:
        dimension = quantization.dimension
        if not 0 <= dimension < len(tensor.shape):
            raise ModelError(
                f"{_named(tensor)} of shape {list(tensor.shape)} is quantized along dimension {dimension}; {_CONVERT}"
            )
        if tensor.shape[dimension] != len(scales):
            raise ModelError(
                f"{_named(tensor)} of shape {list(tensor.shape)} has {len(scales)} scales along dimension "
                f"{dimension}; {_CONVERT}"
            )


def _check_order(subgraph: Subgraph) -> None:
    """Every operator reads what is there before it, and writes what nothing else writes."""
    tensors = subgraph.tensors
    made_by: dict[int, str] = {index: "a graph input" for index in subgraph.inputs}
    available = set(subgraph.inputs)
    available.update(tensor.index for tensor in tensors if tensor.is_constant or tensor.is_variable)
    for operator in subgraph.operators:
        _check_options(operator)
        for index in (*operator.inputs, *operator.outputs, *operator.intermediates):
            if not -1 <= index < len(tensors):
                raise ModelError(f"{_called(operator)} uses tensor {index}, but there are {len(tensors)}; {_CONVERT}")
        for index in operator.inputs:
            if index >= 0 and index not in available:
                raise ModelError(
                    f"{_called(operator)} reads {_named(tensors[index])} before anything has written it (the "
                    f"operators form a cycle or are out of order); {_CONVERT}"
                )
        for index in operator.outputs:
            if index < 0 and _may_lack_outputs(operator):
                continue
            if index < 0:
                raise ModelError(f"{_called(operator)} lacks an output; {_CONVERT}")
            if index in made_by:
                raise ModelError(
                    f"{_called(operator)} writes {_named(tensors[index])}, already {made_by[index]}; {_CONVERT}"
                )
            if tensors[index].is_constant:
                raise ModelError(f"{_called(operator)} writes {_named(tensors[index])}, a constant; {_CONVERT}")
            made_by[index] = f"written by {_called(operator)}"
        available.update(operator.outputs)
    for index in subgraph.outputs:
        if index not in available:
            raise ModelError(f"the graph's output {_named(tensors[index])} is written by no operator; {_CONVERT}")


def _may_lack_outputs(operator: Operator) -> bool:
    """Whether only whoever registers the operator's kernel knows which outputs it needs."""
    known = find(operator)
    return operator.is_custom and (known is None or known.operands is None)


def _check_large(subgraph: Subgraph) -> None:
    tensors = subgraph.tensors
    sizes = [0 if t.is_constant else math.prod(t.shape) for t in tensors]
    if max(sizes, default=0) <= LARGE_ELEMENTS:
        return
    scalars = {index for operator in subgraph.operators for index in _scalars(operator, subgraph)}
    beside: dict[int, int] = {}  # elements of the largest neighbour of each large tensor
    unstated: set[int] = set()  # large tensors beside one whose shape is not in the file
    for operator in subgraph.operators:
        operands = {index for index in (*operator.inputs, *operator.outputs) if index >= 0}
        by_size = sorted(operands, key=lambda index: math.prod(tensors[index].shape), reverse=True)
        stated = all(tensors[i].shape or tensors[i].is_constant or i in scalars for i in operands)
        for index in operands:
            if sizes[index] <= LARGE_ELEMENTS:
                continue
            largest = next((math.prod(tensors[i].shape) for i in by_size[:2] if i != index), 0)
            beside[index] = max(beside.get(index, 0), largest)
            if not stated:
                unstated.add(index)
    for tensor in tensors:
        elements = sizes[tensor.index]
        largest = beside.get(tensor.index, 0)
        if elements > LARGE_ELEMENTS and tensor.index not in unstated and largest * LARGE_RATIO < elements:
            raise ModelError(
                f"{_named(tensor)} of shape {list(tensor.shape)} has {elements} elements, but what it is computed from "
                f"and goes into has {largest} at most; {_CONVERT}"
            )


def _scalars(operator: Operator, subgraph: Subgraph) -> tuple[int, ...]:
    """The results of a reduction over all axes, where no shape in the file means that it has none."""
    if operator.options.get("keep_dims") or not operator.inputs or operator.inputs[0] < 0:
        return ()
    known = find(operator)
    whole = known is not None and known.is_scalar is not None and known.is_scalar(operator, subgraph.tensors)
    return operator.outputs if whole else ()


def _check_options(operator: Operator) -> None:
    if operator.is_custom or not operator.options_type:
        return
    expected = schema.options_table(operator.name)
    if expected and operator.options_type != expected:
        raise ModelError(f"{_called(operator)} has {operator.options_type}, but takes {expected}; {_CONVERT}")


def _check_calls(model: Model) -> None:
    """Called subgraphs exist and do not call themselves, directly or through others."""
    calls: list[set[int]] = []
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            for index in operator.subgraphs:
                if not 0 <= index < len(model.subgraphs):
                    raise ModelError(
                        f"subgraph {subgraph.index}: {_called(operator)} calls subgraph {index}, but there are "
                        f"{len(model.subgraphs)}; {_CONVERT}"
                    )
        calls.append({index for operator in subgraph.operators for index in operator.subgraphs})
    callers: list[list[int]] = [[] for _ in calls]
    for caller, called in enumerate(calls):
        for index in called:
            callers[index].append(caller)
    waits = [len(called) for called in calls]  # for so many that it calls, which are not known to end yet
    ready = [index for index, count in enumerate(waits) if count == 0]
    for ended in ready:  # which grows while it is gone through
        for caller in callers[ended]:
            waits[caller] -= 1
            if waits[caller] == 0:
                ready.append(caller)
    if len(ready) < len(calls):
        stuck = [index for index, count in enumerate(waits) if count]
        raise ModelError(f"the subgraphs {stuck} call each other in a circle, which never ends; {_CONVERT}")


def _check_arguments(model: Model) -> None:
    """What an operator hands to the subgraphs that it calls, and gets from them, is of the types that they state. The
    runtime would copy what is of one type into the memory of another."""
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            called = [model.subgraphs[index] for index in operator.subgraphs]
            given, results = operator.inputs, operator.outputs
            known = find(operator)
            match known and known.calls:
                case "branch":
                    given = given[1:]
                case "loop":
                    condition, body = called
                    _check_handed(subgraph, operator, given, condition, condition.inputs, "input")
                    _check_handed(subgraph, operator, given, body, body.outputs, "input")
                    called = [body]
                case "all":
                    pass
                case _:
                    continue
            for inner in called:
                _check_handed(subgraph, operator, given, inner, inner.inputs, "input")
                _check_handed(subgraph, operator, results, inner, inner.outputs, "output")
                _check_results(inner)


def _check_results(called: Subgraph) -> None:
    """A called subgraph hands out nothing that it knows from shapes alone: the runtime takes such tensors for constants
    of the subgraph, and frees their memory a second time."""
    for operator in called.operators:
        known = find(operator)
        for index in operator.outputs:
            if known is not None and known.folds == "shapes" and index in called.outputs:
                raise ModelError(
                    f"subgraph {called.index} hands out what {_called(operator)} gives, which ends the process of the "
                    "official runtime; put an operator behind it, such as ADD of 0"
                )


def _check_handed(
    subgraph: Subgraph, operator: Operator, outer: Sequence[int], called: Subgraph, inner: Sequence[int], what: str
) -> None:
    where = f"subgraph {subgraph.index}: {_called(operator)}"
    if len(outer) != len(inner):
        raise ModelError(
            f"{where} has {len(outer)} {what}s for subgraph {called.index}, which has {len(inner)}; {_CONVERT}"
        )
    for a, b in zip(outer, inner, strict=True):
        if a >= 0 and b >= 0 and subgraph.tensors[a].type is not called.tensors[b].type:
            raise ModelError(
                f"{where} has {_named(subgraph.tensors[a])} of type {subgraph.tensors[a].type.name} where subgraph "
                f"{called.index} has {_named(called.tensors[b])} of type {called.tensors[b].type.name}; {_CONVERT}"
            )


def _check_resources(model: Model) -> None:
    """What READ_VARIABLE reads has been assigned: earlier in its subgraph, or in another, which may be called first.
    The runtime would follow a null pointer."""
    assigned: dict[tuple[str, str] | None, set[int]] = {}  # the subgraphs that assign each
    handles = [_handles(subgraph) for subgraph in model.subgraphs]
    for subgraph, variables in zip(model.subgraphs, handles, strict=True):
        for operator in subgraph.operators:
            if operator.name == "ASSIGN_VARIABLE":
                assigned.setdefault(variables.get(operator.inputs[0]), set()).add(subgraph.index)
    for subgraph, variables in zip(model.subgraphs, handles, strict=True):
        known: set[tuple[str, str] | None] = set()
        for operator in subgraph.operators:
            if operator.name not in ("ASSIGN_VARIABLE", "READ_VARIABLE"):
                continue
            name = variables.get(operator.inputs[0])
            elsewhere = assigned.get(name, set()) - {subgraph.index}
            if operator.name == "READ_VARIABLE" and name is not None and name not in known and not elsewhere:
                raise ModelError(
                    f"subgraph {subgraph.index}: {_called(operator)} reads the variable '{name[1]}', to which nothing "
                    f"has assigned a value; {_CONVERT}"
                )
            if name is not None and operator.name == "ASSIGN_VARIABLE":
                value = subgraph.tensors[operator.inputs[1]]
                if 0 in value.shape:
                    raise ModelError(
                        f"subgraph {subgraph.index}: {_called(operator)} assigns the empty {_named(value)}; {_CONVERT}"
                    )
            known.add(name)


def _handles(subgraph: Subgraph) -> dict[int, tuple[str, str]]:
    """The variable that each handle made in a subgraph stands for; what another subgraph hands in is not there."""
    return {
        output: (operator.options.get("container", ""), operator.options.get("shared_name", ""))
        for operator in subgraph.operators
        if operator.name == "VAR_HANDLE"
        for output in operator.outputs
    }


def _check_signatures(model: Model) -> None:
    """The tensors that arguments stand for may be any: the official modify_model_interface leaves signatures as they
    were, so that they name tensors that are no inputs any more, or are gone."""
    for signature in model.signatures:
        if not 0 <= signature.subgraph < len(model.subgraphs):
            raise ModelError(
                f"signature '{signature.key}' is of subgraph {signature.subgraph}, but there are "
                f"{len(model.subgraphs)}; {_CONVERT}"
            )


def _named(tensor: Tensor) -> str:
    return f"tensor {tensor.index} '{tensor.name}'"


def _called(operator: Operator) -> str:
    return f"operator {operator.index} {operator.name}"


_CONVERT = "the file is damaged or its converter is wrong: fetch or convert it again"
