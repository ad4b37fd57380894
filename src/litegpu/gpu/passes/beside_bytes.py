"""Which real numbers in a graph of whole ones float16 would spoil: what is made of bytes, or bytes are made of."""

from __future__ import annotations

from collections.abc import Iterable

from litegpu.gpu.graph import DType, Graph, Node
from litegpu.gpu.passes.decisions import PRODUCTS

_WHY = "bytes are computed to the last bit, and it is made of some, or some of it"


def values_beside_bytes(graph: Graph) -> dict[int, str]:
    """The floats that must not be stored as float16 where bytes are to be as on the CPU, and why: those between bytes
    and other bytes, or a border of the graph. What real numbers are multiplied with weights for is left out, as is what
    that gives: so much work is asked for in float16."""
    values = graph.values

    def is_float(v: int) -> bool:
        return values[v].dtype is DType.FLOAT32 and not values[v].is_constant

    def reached(first: set[int], nodes: Iterable[Node], back: bool) -> set[int]:
        """Floats at which one arrives from those, through elementwise work and movement."""
        found = set(first)
        for node in nodes:
            before, after = {v for v in node.reads if is_float(v)}, {node.output}
            start, end = (after, before) if back else (before, after)
            if not isinstance(node.op, PRODUCTS) and found & start:
                found |= {v for v in end if is_float(v)}
        return found

    bytes_ = {v for v in values if values[v].dtype.is_narrow}
    made = {n.output for n in graph.nodes if is_float(n.output) and bytes_ & set(n.reads)}
    making = {v for n in graph.nodes if n.output in bytes_ for v in n.reads if is_float(v)}
    beside = reached(made, graph.nodes, False) | reached(making, reversed(graph.nodes), True)
    multiplied = {v for n in graph.nodes if isinstance(n.op, PRODUCTS) for v in n.reads if is_float(v)}
    products = {n.output for n in graph.nodes if isinstance(n.op, PRODUCTS) and is_float(n.output)}
    heavy = reached(multiplied, reversed(graph.nodes), True) | reached(products, graph.nodes, False)
    borders = {*graph.inputs, *graph.outputs}  # float32 in any case
    return dict.fromkeys(sorted(beside - heavy - borders), _WHY)
