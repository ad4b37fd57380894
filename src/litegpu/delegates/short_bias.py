"""A bias shorter than the output's channels, which XNNPACK alone accepts for TRANSPOSE_CONV: the missing values are the
bytes that follow it in the file. A partition that is cut out would have others there."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.model.types import Model, Tensor, TensorType


def completed(partition: Partition) -> Partition:
    """The partition with such biases as they are read: so it computes what the whole file does on the CPU."""
    found: dict[int, Tensor] = {}
    tensors = partition.subgraph.tensors
    for operator in partition.nodes:
        if operator.name != "TRANSPOSE_CONV" or len(operator.inputs) < 4 or operator.inputs[3] < 0:
            continue
        bias, weights = tensors[operator.inputs[3]], tensors[operator.inputs[1]]
        channels = weights.shape[0] if weights.shape else 0
        if bias.type is TensorType.FLOAT32 and bias.data is not None and bias.data.size < channels:
            data = _read_on(partition.model, bias.data, channels)
            if data is not None:
                found[bias.index] = dataclasses.replace(bias, data=data, shape=data.shape, shape_signature=data.shape)
    if not found:
        return partition
    subgraph = dataclasses.replace(partition.subgraph, tensors=tuple(found.get(t.index, t) for t in tensors))
    graphs = [subgraph if g.index == subgraph.index else g for g in partition.model.subgraphs]
    model = dataclasses.replace(partition.model, subgraphs=tuple(graphs))
    return dataclasses.replace(partition, model=model, subgraph=subgraph)


def _read_on(model: Model, data: np.ndarray, count: int) -> np.ndarray | None:
    """`count` elements from where `data` begins in the file; None if it is not there, or the file ends before."""
    content = np.frombuffer(model.content, np.uint8)
    start = data.__array_interface__["data"][0] - content.__array_interface__["data"][0]
    end = start + count * data.itemsize
    return content[start:end].view(data.dtype) if start >= 0 and end <= len(content) else None
