"""Inputs and outputs that pass through memory of the kind that intermediates have.

The kernels around them are then those that they would be if the value came from a kernel and went to one: of the same
type (float16 perhaps) and layout. For tools that look at inner values without changing how these are computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from litegpu.gpu.graph import Arg, DType, Elementwise, Graph, GraphBuilder

_COPIED = (DType.FLOAT32, DType.INT32, DType.BOOL)


def stage(graph: Graph, inputs: Collection[int] = (), outputs: Collection[int] = ()) -> Graph:
    """Put a copy behind the inputs, and before the outputs, at these positions. Stored bytes of quantized tensors are
    left alone: a kernel converts them in any case."""
    builder = GraphBuilder.of(graph)
    moved: dict[int, int] = {}
    first = []
    for position in inputs:
        v = graph.inputs[position]
        value = graph.values[v]
        if value.dtype in _COPIED:
            moved[v] = builder.value(value.shape, value.dtype, name=value.name, tensor=value.tensor)
            builder.node(Elementwise(), (), moved[v], Arg(0), [v])
            first.append(builder.nodes.pop())
    rest = [
        dataclasses.replace(
            node,
            inputs=tuple(moved.get(v, v) for v in node.inputs),
            operands=tuple(moved.get(v, v) for v in node.operands),
        )
        for node in builder.nodes
    ]
    ends = list(graph.outputs)
    builder.nodes = [*first, *rest]
    for position in outputs:
        v = graph.outputs[position]
        value = graph.values[v]
        if value.dtype in _COPIED and not value.is_constant and v not in graph.inputs:
            ends[position] = builder.value(value.shape, value.dtype, name=value.name, tensor=value.tensor)
            builder.node(Elementwise(), (), ends[position], Arg(0), [v])
    return builder.graph(graph.inputs, ends)
