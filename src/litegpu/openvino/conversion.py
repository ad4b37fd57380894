"""A partition as OpenVINO's graph: cut out as a .tflite file of its own, which OpenVINO's front end reads."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError
from litegpu.model.types import Operator, Subgraph, Tensor
from litegpu.model.writer import cut
from litegpu.openvino import runtime
from litegpu.openvino.quanta import in_quanta

#: Sums of quantized tensors: left alone, OpenVINO adds what comes before the rounding of one of them.
_ROUNDED_OPERANDS = ("Add", "Subtract")


def converted(partition: Partition) -> Any:
    """The openvino.Model. Raises what the front end raises."""
    content = cut_out(partition)
    front_end = runtime.front_end()
    # the front end goes by the ending of a file's name
    with tempfile.TemporaryDirectory(prefix="litegpu-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "partition.tflite"
        path.write_bytes(content)
        model = front_end.convert(front_end.load(str(path)))
    in_quanta(model)
    keep_roundings(model)
    return model


def places(ports: Sequence[Any], tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """For each tensor of a partition the place of its port among those of the compiled model. Raises DelegateError if
    there is none, or one of another shape."""
    names = {name: place for place, port in enumerate(ports) for name in port.get_names()}
    found = []
    for tensor in tensors:
        place = names.get(_own_name(tensor))
        if place is None:
            raise DelegateError(f"OpenVINO lost tensor {tensor.index} '{tensor.name}' as it read the partition")
        shape = ports[place].get_partial_shape()
        if shape.is_dynamic or tuple(shape.to_shape()) != tensor.shape:
            raise DelegateError(
                f"OpenVINO takes tensor {tensor.index} '{tensor.name}' for {shape}, but it is {list(tensor.shape)}"
            )
        found.append(place)
    return tuple(found)


def cut_out(partition: Partition) -> bytes:
    """The partition as a file. The front end takes a tensor's name for its identity, so each gets one of its own; it
    reads a RESHAPE's new shape from the options, where newer files have none; and PADV2's value has to be a scalar."""
    subgraph = partition.subgraph
    scalars = {o.inputs[2] for o in partition.nodes if o.name == "PADV2"}
    tensors = tuple(_named(t, t.index in scalars) for t in subgraph.tensors)
    changed = replace(
        subgraph, index=0, tensors=tensors, operators=tuple(_shaped(o, subgraph) for o in subgraph.operators)
    )
    model = replace(partition.model, subgraphs=(changed,))
    shapes = {t.index: t.shape for t in tensors if not t.is_constant}
    nodes = [o.index for o in partition.nodes]
    return bytes(cut(model, 0, nodes, partition.inputs, partition.outputs, shapes=shapes))


def keep_roundings(model: Any) -> int:
    """Put a rounding that OpenVINO cannot remove in front of sums of quantized tensors; how many.

    Its 8-bit passes otherwise leave out the rounding of an operand that another layer gives, so that residual networks
    are several quanta off. After the barrier results equal the official runtime's; it costs a few instructions."""
    from openvino import opset13 as ops

    count = 0
    for node in model.get_ordered_ops():
        operands = node.inputs() if node.get_type_name() in _ROUNDED_OPERANDS else []
        sources = [operand.get_source_output().get_node() for operand in operands]
        if any(source.get_type_name() == "Constant" for source in sources):
            continue
        for operand, source in zip(operands, sources, strict=True):
            step = _step(source)
            if step is None:
                continue
            steps = ops.multiply(operand.get_source_output(), ops.constant(np.float32(1) / step))
            quanta = ops.round(steps, "half_to_even")
            operand.replace_source_output(ops.multiply(quanta, ops.constant(step)).output(0))
            count += 1
    return count


def _step(node: Any) -> np.float32 | None:
    """Between two numbers that a FakeQuantize gives, if all its channels have the same and zero is one of them."""
    if node.get_type_name() != "FakeQuantize":
        return None
    low, high = (node.input_value(i).get_node() for i in (3, 4))
    if low.get_type_name() != "Constant" or low.data.size != 1 or high.data.size != 1:
        return None
    return np.float32((float(high.data.item()) - float(low.data.item())) / (node.get_attributes()["levels"] - 1))


def _named(tensor: Tensor, scalar: bool) -> Tensor:
    tensor = replace(tensor, name=_own_name(tensor))
    if scalar and tensor.data is not None and tensor.data.size == 1:
        tensor = replace(tensor, shape=(), shape_signature=(), data=tensor.data.reshape(()))
    return tensor


def _shaped(operator: Operator, subgraph: Subgraph) -> Operator:
    if operator.name != "RESHAPE":
        return operator
    shape = subgraph.tensors[operator.outputs[0]].shape
    options = {**operator.options, "new_shape": shape}
    return replace(operator, options=options, options_type="ReshapeOptions")


def _own_name(tensor: Tensor) -> str:
    return f"t{tensor.index}"
