"""Cheap work on a value that stays in memory is done by each of its readers, from that value."""

from __future__ import annotations

import dataclasses

from litegpu.gpu.graph import Apply, Elementwise, Graph, GraphBuilder, Node, Reduce, walk
from litegpu.gpu.passes.fuse import CHEAP, fuse_elementwise

#: What takes no longer than reading a number.
_QUICK = {"add", "sub", "mul", "neg", "max", "min", "abs"}


def reread(graph: Graph, max_buffers: int) -> Graph:
    """The graph without elementwise nodes whose result several read, of one value as large that others read as well,
    and of small ones, where all readers can do that work themselves: a difference to a mean, say, whose square is
    summed up, and which is then divided by the root of that. Each reads as much as before, and nothing is stored."""
    consumers = graph.consumers()
    again = {n.output: n for n in graph.nodes if _is_done_again(n, graph, consumers)}
    while again:
        apart, made = _for_each_reader(graph, again)
        found = fuse_elementwise(apart, max_buffers)
        left = {made[n.output] for n in found.nodes if n.output in made}  # readers that had buffers enough without
        if not left:
            return found
        again = {v: node for v, node in again.items() if v not in left}
    return graph


def _for_each_reader(graph: Graph, again: dict[int, Node]) -> tuple[Graph, dict[int, int]]:
    """The graph with one of the nodes `again`, by their outputs, for each of its readers, and what its output stands
    for."""
    builder, made = GraphBuilder(dict(graph.values), []), {}
    for node in graph.nodes:
        for v in dict.fromkeys(node.reads):
            if v in again:
                value = graph.values[v]
                own = builder.value(value.shape, value.dtype, name=value.name)
                made[own] = v
                builder.nodes.append(dataclasses.replace(again[v], output=own))
                inputs, operands = (tuple(own if i == v else i for i in x) for x in (node.inputs, node.operands))
                node = dataclasses.replace(node, inputs=inputs, operands=operands)
        if node.output not in again:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs), made


def _is_done_again(node: Node, graph: Graph, consumers: dict[int, list[Node]]) -> bool:
    if not isinstance(node.op, Elementwise) or node.output in graph.outputs:
        return False
    calls = [e.fn for e in walk(node.epilogue) if isinstance(e, Apply)]
    whole = graph.values[node.output]
    full = [v for v in node.operands if graph.values[v].elements * 2 > whole.elements]
    if len(calls) > CHEAP or not _QUICK.issuperset(calls) or len(full) != 1:
        return False
    stored = full[0] in graph.inputs or len({n.output for n in consumers[full[0]]}) > 1
    readers = consumers[node.output]
    return (
        graph.values[full[0]].shape == whole.shape
        and stored
        and len(readers) > 1
        and all(_can_do_it(n, node.output, graph) for n in readers)
    )


def _can_do_it(reader: Node, value: int, graph: Graph) -> bool:
    """Whether it is a reduction of the value, or an elementwise node of the same shape."""
    if isinstance(reader.op, Reduce):
        return value not in reader.operands and len(reader.inputs) == 1
    same = graph.values[reader.output].shape == graph.values[value].shape
    return isinstance(reader.op, Elementwise) and same
