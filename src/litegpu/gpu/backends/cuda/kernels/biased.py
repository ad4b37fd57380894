"""Epilogues that are an activation of a sum and its bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import RESULT, Apply, Arg, Expr, Graph, Node, arguments


@dataclass(frozen=True)
class Activation:
    """An epilogue as `expr` of (Arg(0) + bias). `bias`: the operand, or None."""

    expr: Expr
    bias: int | None


def activation(node: Node, graph: Graph) -> Activation | None:
    """The node's epilogue as such, if it is no more than that."""
    if not node.operands and arguments(node.epilogue) <= {0}:
        return Activation(node.epilogue, None)
    if len(node.operands) != 1:
        return None
    bias = graph.values[node.operands[0]]
    expr = without_bias(node.epilogue)
    channelwise = bias.is_constant and bias.shape in ((1, 1, 1, 1), (1, 1, 1, graph.values[node.output].shape[3]))
    return Activation(expr, bias.id) if channelwise and arguments(expr) <= {0} else None


def bias_of(found: Activation, graph: Graph, channels: int) -> np.ndarray:
    """Its bias, float32 [1, 1, 1, channels]; zeros if there is none."""
    data = None if found.bias is None else graph.values[found.bias].data
    return np.broadcast_to(np.float32(0) if data is None else data, (1, 1, 1, channels)).astype(np.float32)


def without_bias(expr: Expr) -> Expr:
    """`expr` with RESULT instead of its sum with Arg(1); where RESULT stands apart from that sum, Arg(2)."""
    made: dict[int, Expr] = {}  # what is shared stays so

    def visit(e: Expr) -> Expr:
        if id(e) not in made:
            match e:
                case Apply("add", (Arg(0), Arg(1)) | (Arg(1), Arg(0))):
                    made[id(e)] = RESULT
                case Apply(fn, args):
                    made[id(e)] = Apply(fn, tuple(map(visit, args)))
                case Arg(0):
                    made[id(e)] = Arg(2)
                case _:
                    made[id(e)] = e
        return made[id(e)]

    return visit(expr)
