"""A partition as an ML program: operators become operations of MIL, which coremltools then optimises and writes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from litegpu.coreml import elementwise, movement, products, runtime, windows
from litegpu.coreml.node import TRANSLATIONS, MilNode, Untranslated, activated, as_list, constant_of
from litegpu.coreml.options import CoreMlOptions
from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError, blame
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

FAMILIES = (elementwise, movement, products, windows)  # each fills the table

_RANKS = range(1, 6)
_QUANTIZED = {TensorType.INT8, TensorType.UINT8, TensorType.INT16, TensorType.INT4, TensorType.INT2, TensorType.UINT4}
_CONSTANTS = {TensorType.FLOAT32, TensorType.FLOAT16, TensorType.INT32, TensorType.INT64}


def reason_against(subgraph: Subgraph, operator: Operator, target: str) -> str | None:
    """Why a node is not Core ML's, as a sentence; None if it is: it is translated, alone, to find out."""
    if operator.name == "DEQUANTIZE" and constant_of(subgraph, subgraph.tensors[operator.outputs[0]]) is not None:
        return None
    if operator.is_custom or operator.name not in TRANSLATIONS:
        return "It has no translation to Core ML's operations."
    tensors = [subgraph.tensors[t] for t in (*operator.inputs, *operator.outputs) if t >= 0]
    reason = next(filter(None, (_against(subgraph, t) for t in tensors)), None)
    if reason is not None:
        return reason
    made = dict.fromkeys(t.index for t in tensors if constant_of(subgraph, t) is None)
    inputs = tuple(t for t in made if t in operator.inputs)
    if not inputs:
        return "All its inputs are constants."
    try:
        program(subgraph, (operator,), inputs, operator.outputs, target)
    except Untranslated as error:
        return str(error)
    except Exception as error:
        return f"coremltools does not build it: {first_line(error)}."
    return None


def _against(subgraph: Subgraph, tensor: Tensor) -> str | None:
    what = f"'{tensor.name}'"
    if tensor.type in _QUANTIZED or (tensor.quantization is not None and len(tensor.quantization.scales)):
        return f"{what} is quantized ({tensor.type.name}), and Core ML takes models of floats."
    if tensor.sparsity is not None:
        return f"The constant {what} is sparse."
    if tensor.is_constant:
        return None if tensor.type in _CONSTANTS else f"The constant {what} is {tensor.type.name}."
    if tensor.type is not TensorType.FLOAT32:
        return f"{what} is {tensor.type.name}; the Core ML delegate computes on FLOAT32 alone."
    if constant_of(subgraph, tensor) is not None:
        return None
    if len(tensor.shape) not in _RANKS:
        return f"{what} has {len(tensor.shape)} dimensions, and arrays of Core ML have 1 to 5."
    if math.prod(tensor.shape) == 0:
        return f"{what} is empty."
    return None


def program(
    subgraph: Subgraph, operators: Iterable[Operator], inputs: Sequence[int], outputs: Sequence[int], target: str
) -> Any:
    """A coremltools Program of one function, whose inputs and outputs have the names of tensors. Raises Untranslated,
    and what coremltools raises, with the number of the operator to blame."""
    with runtime.building():
        mb = runtime.builder()
        from coremltools.converters.mil.mil import Function, Program, types

        places = {
            own_name(t): mb.placeholder(shape=subgraph.tensors[t].shape, dtype=types.fp32, name=own_name(t))
            for t in inputs
        }
        made = Program()
        version = getattr(runtime.coremltools().target, target)
        with Function(places, opset_version=version) as function:
            values: dict[int, Any] = {t: function.inputs[own_name(t)] for t in inputs}
            for operator in operators:
                try:
                    _translate(subgraph, operator, values, mb)
                except Exception as error:
                    blame(error, (operator.index,))
                    raise
            function.set_outputs([mb.identity(x=values[t], name=result_name(t)) for t in outputs])
        made.add_function("main", function)
        return made


def _translate(subgraph: Subgraph, operator: Operator, values: dict[int, Any], mb: Any) -> None:
    """Raises Untranslated if an operation gives another shape than the operator: then it means something else."""
    if operator.name == "DEQUANTIZE":
        (target,) = operator.outputs
        data = constant_of(subgraph, subgraph.tensors[target])
        assert data is not None
        values[target] = mb.const(val=data)
        return
    node = MilNode(subgraph, operator, values, mb)
    made = as_list(TRANSLATIONS[operator.name](node))
    for tensor, value in zip(operator.outputs, made, strict=True):
        value = activated(node, value)
        want = subgraph.tensors[tensor].shape
        node.require(
            tuple(value.shape) == want,
            f"Core ML would give it the shape {list(value.shape)}, where the CPU gives {list(want)}",
        )
        values[tensor] = value


def converted(partition: Partition, options: CoreMlOptions) -> Any:
    """The partition as a coremltools MLModel, which is loaded where Core ML is. Raises what coremltools raises."""
    made = program(partition.subgraph, partition.nodes, partition.inputs, partition.outputs, options.target)
    with runtime.building():
        ct = runtime.coremltools()
        model = ct.convert(
            made,
            source="milinternal",
            convert_to="mlprogram",
            compute_precision=getattr(ct.precision, options.computes_in.upper()),
            compute_units=getattr(ct.ComputeUnit, options.compute_units.upper()),
            minimum_deployment_target=getattr(ct.target, options.target),
            skip_model_load=not runtime.is_apple(),
        )
    if model is None:
        raise DelegateError("coremltools made no model")
    return model


def own_name(tensor: int) -> str:
    """Of an input: files may hold two tensors of one name, or of none."""
    return f"t{tensor}"


def result_name(tensor: int) -> str:
    """Of an output, which may be an input as well."""
    return f"r{tensor}"


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")
