"""Let convolutions read stored numbers of quantized inputs, where their kernels can."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import Apply, Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder, Literal, Node, sources_of


def join_entry(graph: Graph) -> Graph:
    """The graph without the kernels that make real numbers, or quanta, of a narrow value for one convolution alone:
    that subtracts the zero point itself, as the kernels here do, which load an element at a time."""
    consumers, producer = graph.consumers(), graph.producer()
    nodes, gone = [], set()
    for node in graph.nodes:
        before = producer.get(node.inputs[0]) if isinstance(node.op, Conv2D) else None
        zero_point = None if before is None else _zero_point(before, graph)
        if before is None or zero_point is None or not _joins(node, before, graph) or len(consumers[before.output]) > 1:
            nodes.append(node)
            continue
        assert isinstance(node.op, Conv2D)
        gone.add(before.output)
        sources = sources_of(before, node)
        op = dataclasses.replace(node.op, zero_point=zero_point)
        nodes.append(dataclasses.replace(node, op=op, inputs=(before.operands[0], node.inputs[1]), sources=sources))
    left = [node for node in nodes if node.output not in gone]
    return GraphBuilder(dict(graph.values), left).graph(graph.inputs, graph.outputs)


def _zero_point(node: Node, graph: Graph) -> int | None:
    """z, if the node computes x - z of a value x of a narrow type."""
    if not isinstance(node.op, Elementwise) or len(node.operands) != 1:
        return None
    x, y = graph.values[node.operands[0]], graph.values[node.output]
    if not x.dtype.is_narrow or x.shape != y.shape or y.dtype is not DType.FLOAT32:
        return None
    match node.epilogue:
        case Apply("sub", (Apply("to_float32", (Arg(0),)), Literal(z))) if float(z).is_integer():
            return int(z)
        case Apply("to_float32", (Arg(0),)):
            return 0
    return None


def _joins(node: Node, before: Node, graph: Graph) -> bool:
    assert isinstance(node.op, Conv2D)
    return (
        node.op.groups == 1
        and graph.values[node.inputs[1]].is_constant
        and before.output not in (*node.operands, *graph.outputs)
    )
