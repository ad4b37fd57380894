"""What the nodes of a GPU graph compute, in NumPy: folds constants, and is the definition the kernels are tested by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.gpu.evaluate.expressions import NUMPY, Array, evaluate_expr
from litegpu.gpu.evaluate.ops import apply_step, evaluate_op
from litegpu.gpu.graph import Elementwise, Graph, IntegerExcite, MomentsConv2D, Node
from litegpu.gpu.graph.parts import as_parts, has_parts

__all__ = ["NUMPY", "Array", "apply_step", "evaluate_expr", "evaluate_graph", "evaluate_node"]


def evaluate_graph(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of `graph` (B,H,W,C) for `inputs` in the order of graph.inputs, reshaped to B,H,W,C; those whose
    elements have two parts have these along another last axis."""
    values: dict[int, Array] = {i: v.data for i, v in graph.values.items() if v.data is not None}
    for i, array in zip(graph.inputs, inputs, strict=True):
        value = graph.values[i]
        if has_parts(value.shape, array.shape):
            array = as_parts(array)
        values[i] = np.asarray(array, NUMPY[value.dtype]).reshape(value.shape)
    for node in graph.nodes:
        values[node.output] = evaluate_node(node, values, graph)
    return [values[i] for i in graph.outputs]


def evaluate_node(node: Node, values: Mapping[int, Array], graph: Graph) -> Array:
    """What `node` writes, given the arrays that it reads; sums are taken in float64 and rounded once."""
    output = graph.values[node.output]
    operands = [_computed(values[v]) for v in node.operands]
    with np.errstate(all="ignore"):
        if not isinstance(node.op, Elementwise):
            operands = _with_normalised(node, operands)
            inputs = [_computed(values[v]) for v in node.inputs]
            if isinstance(node.op, IntegerExcite) and node.op.squeezed is not None:
                inputs[0] = operands[0]  # whose sums they become
            operands.insert(0, evaluate_op(node.op, inputs, output.shape))
        result = evaluate_expr(node.epilogue, operands)
        if output.dtype.is_narrow:
            limits = np.iinfo(NUMPY[output.dtype])
            result = np.clip(result, limits.min, limits.max)
        return np.broadcast_to(result, output.shape).astype(NUMPY[output.dtype])


def _with_normalised(node: Node, operands: list[Array]) -> list[Array]:
    """The operands, of which the node may normalise one."""
    if not isinstance(node.op, MomentsConv2D) or node.op.norm is None or not node.op.operand:
        return operands
    at = node.op.operand - 1
    return [*operands[:at], evaluate_op(node.op.norm, [operands[at]], operands[at].shape), *operands[at + 1 :]]


def _computed(x: Array) -> Array:
    if x.dtype == np.float16:
        return x.astype(np.float32)
    return x.astype(np.int32) if x.dtype.kind in "iu" else x
