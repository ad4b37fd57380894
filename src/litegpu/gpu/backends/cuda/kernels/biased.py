"""Epilogues that are an activation of a sum and its bias, and sums that begin with it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import RESULT, Apply, Arg, Expr, Graph, Node, arguments
from litegpu.gpu.kernels.context import KernelContext

#: Up to which floats hold every whole number; and quanta of 8 bits, or counts of 2**-24 as which they are stored
#: (passes/counted.py), differ from zero by no more than that.
_WHOLE, _LARGEST = 2.0**24, 255


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


def begun(expr: Expr) -> Expr | None:
    """`expr` of a RESULT that its sum with Arg(1) is already in, or None where one of them stands apart."""
    sums = Apply("add", (Arg(0), Arg(1))), Apply("add", (Arg(1), Arg(0)))
    found = _replaced(_replaced(expr, sums[0], Arg(-1)), sums[1], Arg(-1))
    return None if arguments(found) & {0, 1} else _replaced(found, Arg(-1), RESULT)


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    if expr == old:
        return new
    return Apply(expr.fn, tuple(_replaced(a, old, new) for a in expr.args)) if isinstance(expr, Apply) else expr


def with_begun_sums(ctx: KernelContext, weights: np.ndarray, channels: int) -> tuple[KernelContext, np.ndarray] | None:
    """The context of a layer whose sums are whole numbers and begin with their bias, and the bias of so many channels:
    one operation less behind the last product. None of others, whose results would be rounded otherwise. `weights`:
    [outputs, those of an output]."""
    node = ctx.node
    bias = ctx.value(node.operands[0]).data if node.operands else None
    expr = begun(node.epilogue)
    if bias is None or expr is None or bias.dtype != np.float32 or bias.size not in (1, len(weights)):
        return None
    each = np.broadcast_to(bias.reshape(-1), len(weights))
    if not _is_whole(weights) or not _are_exact(each, _LARGEST * np.abs(weights).sum(axis=1, dtype=np.float64)):
        return None
    padded = np.zeros(channels, np.float32)
    padded[: len(weights)] += each  # which makes 0 of -0
    return dataclasses.replace(ctx, node=dataclasses.replace(node, epilogue=expr)), padded


def _are_exact(bias: np.ndarray, sums: np.ndarray) -> bool:
    """Whether floats hold all that whole numbers up to these sums become on their way from a bias, or to it. Where
    there are no products, nothing is added to it."""
    bias, sums = np.abs(bias[sums > 0]).astype(np.float64), sums[sums > 0]
    return any(_is_whole(bias * n) and bool(np.all(bias * n + sums <= _WHOLE)) for n in (1, _WHOLE))


def _is_whole(numbers: np.ndarray) -> bool:
    return bool(np.all(numbers == np.rint(numbers)))
