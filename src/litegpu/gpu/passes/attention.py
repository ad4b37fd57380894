"""Join the products and the softmax of an attention, where one kernel does them without storing the logits."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Attention,
    Copy,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    Literal,
    MatMul,
    Node,
    Reshape,
    Shape,
    Softmax,
    Tile,
    Value,
    apply,
    arguments,
    sources_of,
    step_shape,
    substitute,
)
from litegpu.gpu.kernels import native
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.fold import drop_unused

#: Numbers of a query, and of a value, that a thread keeps in registers.
MOST_DEPTH, MOST_COLUMNS = 256, 128
#: Logits from which on separate products win, where native kernels do not decide: the kernel of the language reads all
#: keys and values for each query.
MANY_LOGITS = 1 << 17
#: What is added to a logit of which nothing is to be left: float16 holds it, and the sum with the logit.
HIDDEN = -30000.0
#: The same where it is computed, which stays in float32: a logit plus this is this.
LOWEST = -1e30
#: Elements of a mask that is made of several.
MOST_MASK = 1 << 22


def join_attention(graph: Graph, features: Features, half: bool) -> Graph:
    """The graph with Attention nodes for softmax(scale * q k^T + mask) v. `half`: intermediates will be float16."""
    original, graph = graph, dataclasses.replace(graph, values=dict(graph.values))  # constants may be added
    producer, consumers = graph.producer(), graph.consumers()
    gone: set[int] = set()
    nodes: list[Node] = []
    masks: dict[_Choice, Node] = {}
    for node in graph.nodes:
        found = _joined(node, graph, producer, features, half)
        if found is not None:
            joined, inner, choice = found
            if all(len(consumers[v]) == 1 and v not in graph.outputs for v in inner):
                gone |= inner
                node = _with_queries_for_all(joined, graph.values, nodes)
                node = node if choice is None else _with_choice(node, choice, graph.values, nodes, masks, producer)
                node = _with_shared_heads(node, graph.values, nodes, producer)
        nodes.append(node)
    if not gone:
        return original
    left = [node for node in nodes if node.output not in gone]
    return drop_unused(GraphBuilder(dict(graph.values), left).graph(graph.inputs, graph.outputs))


def _joined(
    node: Node, graph: Graph, producer: dict[int, Node], features: Features, half: bool
) -> tuple[Node, set[int], _Choice | None] | None:
    """The Attention that ends in `node`, if it is the product of weights and values, the values within it, and a choice
    that is yet to become its mask."""
    values = graph.values
    if node.op != MatMul() or node.inputs[0] not in producer:
        return None
    weights = producer[node.inputs[0]]
    if not isinstance(weights.op, Softmax) or weights.epilogue != RESULT or weights.inputs[0] not in producer:
        return None
    if not weights.op.beta > 0:  # the largest product would be the least logit
        return None
    logits, *copies = _product(weights.inputs[0], producer)
    if logits.op != MatMul(transpose_b=True):
        return None
    repeated = [_repeated(copy, values, values[logits.output].shape) for copy in copies]
    if any(r is None for r in repeated):
        return None
    replace: dict[int, Expr] = {0: RESULT}
    for i, operand in enumerate(logits.operands):
        data = values[operand].data
        replace[i + 1] = Literal(float(data.reshape(-1)[0])) if data is not None and data.size == 1 else Arg(i + 1)
    epilogue, hidden = _chosen(substitute(logits.epilogue, replace), logits.operands, values)
    epilogue, choice = (epilogue, None) if hidden else _computed_choice(epilogue, logits.operands, values)
    found = _scale(epilogue)
    if found is None:
        return None
    scale, beta, added = found
    if not math.isfinite(scale * weights.op.beta):
        return None
    if beta != 1.0 and (not math.isfinite(beta * weights.op.beta) or hidden or choice is not None or any(repeated)):
        return None  # masks of which one alone has a factor
    q, k, v = (values[i] for i in (*logits.inputs, node.inputs[1]))
    lead = values[logits.output].shape[:2]
    own = native.of(features)
    pays = None if own is None else own.attention_pays(q.shape[3], v.shape[3], k.shape[2], features, half)
    if pays is None:
        pays = math.prod(values[logits.output].shape) <= MANY_LOGITS
    fits = (
        all(t.dtype is DType.FLOAT32 for t in (q, k, v))
        and q.shape[:2] in (lead, (1, lead[1]))
        and lead == values[node.output].shape[:2]
        and q.shape[3] <= MOST_DEPTH
        and v.shape[3] <= MOST_COLUMNS
        and v.shape[2] == k.shape[2]
    )
    if not pays or not fits:
        return None
    own_masks = [*(logits.operands[i - 1] for i in added), *hidden]
    mask = _mask(own_masks, [a for r in repeated for a in r or ()], values)
    if mask is None or (mask and choice is not None):
        return None
    sources = sources_of(node, logits, *copies, weights)
    op = Attention(scale * weights.op.beta, beta * weights.op.beta)
    joined = Node(op, (*logits.inputs, node.inputs[1], *mask), node.output, node.epilogue, node.operands, sources)
    return joined, {n.output for n in (logits, *copies, weights)}, choice


def _with_queries_for_all(node: Node, values: dict[int, Value], nodes: list[Node]) -> Node:
    """The Attention with queries for each of the batch, where all have the same: those that a network has learnt. A
    copy of them is added to the nodes."""
    q, out = values[node.inputs[0]], values[node.output]
    if q.shape[0] == out.shape[0]:
        return node
    every = GraphBuilder(values).value((out.shape[0], *q.shape[1:]), q.dtype, name=q.name)
    nodes.append(Node(Copy((Tile((out.shape[0], 1, 1, 1)),)), (q.id,), every, sources=node.sources))
    return dataclasses.replace(node, inputs=(every, *node.inputs[1:]))


def _with_shared_heads(node: Node, values: dict[int, Value], nodes: list[Node], producer: dict[int, Node]) -> Node:
    """The Attention with keys and values as they are before copies repeat them for several heads side by side; such
    copies without that are added to the nodes."""
    inputs = list(node.inputs)
    for i in (1, 2):
        copy = producer.get(inputs[i])
        if copy is None or not isinstance(copy.op, Copy) or copy.epilogue != RESULT:
            continue
        before, heads = copy.op.steps[:-3], values[inputs[i]].shape[1]
        match copy.op.steps[-3:]:
            case (Reshape(whole, (b, shared, 1, n, size)), Tile((1, 1, times, 1, 1)), Reshape(_, target)) if (
                whole == (b, shared, n, size) and target == (b, shared * times, n, size) and shared * times == heads
            ):
                once = values[copy.inputs[0]]
                if before:
                    once = values[GraphBuilder(values).value(whole, once.dtype, name=once.name)]
                    nodes.append(dataclasses.replace(copy, op=Copy(before), output=once.id))
                inputs[i] = once.id
    return dataclasses.replace(node, inputs=tuple(inputs))


@dataclasses.dataclass(frozen=True)
class _Choice:
    """Which logits are left as they are, or (`hides`) which are not, by an expression of values."""

    which: Expr
    operands: tuple[int, ...]
    hides: bool


def _computed_choice(expr: Expr, operands: Sequence[int], values: dict[int, Value]) -> tuple[Expr, _Choice | None]:
    """The logits without a choice by what is computed, as PyTorch fills in where there is no word, and that choice."""
    match expr:
        case Apply("select", (which, inner, Literal(low))):
            hides = False
        case Apply("select", (which, Literal(low), inner)):
            hides = True
        case _:
            return expr, None
    numbers = sorted(arguments(which))
    if low > HIDDEN or 0 in numbers or all(values[operands[i - 1]].is_constant for i in numbers):
        return expr, None
    places: dict[int, Expr] = {i: Arg(place) for place, i in enumerate(numbers)}
    return inner, _Choice(substitute(which, places), tuple(operands[i - 1] for i in numbers), hides)


def _with_choice(
    node: Node,
    choice: _Choice,
    values: dict[int, Value],
    nodes: list[Node],
    masks: dict[_Choice, Node],
    producer: dict[int, Node],
) -> Node:
    """The Attention with a mask that is computed of the choice, for all that make the same one: what is hidden is so
    low that no logit changes it, so that all keys count alike where all are."""
    if choice not in masks:
        operands = tuple(_before_repeated(v, values, nodes, producer) for v in choice.operands)
        shape = np.broadcast_shapes(*(values[v].shape for v in operands))
        kept, hidden = Literal(0.0), Literal(LOWEST)
        which = apply("select", choice.which, *((hidden, kept) if choice.hides else (kept, hidden)))
        mask = GraphBuilder(values).value(shape, DType.FLOAT32)
        masks[choice] = Node(Elementwise(), (), mask, which, operands, node.sources)
        nodes.append(masks[choice])
    return dataclasses.replace(node, inputs=(*node.inputs, masks[choice].output))


def _before_repeated(v: int, values: dict[int, Value], nodes: list[Node], producer: dict[int, Node]) -> int:
    """The value that `v` repeats along axes of size one, as PyTorch's masks are for each head: it broadcasts too."""
    copy = producer.get(v)
    if copy is None or not isinstance(copy.op, Copy) or copy.epilogue != RESULT or not copy.op.steps:
        return v
    *before, last = copy.op.steps
    if not isinstance(last, Tile) or len(last.multiples) != 4:
        return v
    source = values[copy.inputs[0]]
    shape = source.shape
    for step in before:
        shape = step_shape(step, shape)
    if any(n > 1 and times > 1 for n, times in zip(shape, last.multiples, strict=True)):
        return v
    if not before:
        return source.id
    once = GraphBuilder(values).value(shape, source.dtype, name=source.name)
    nodes.append(dataclasses.replace(copy, op=Copy(tuple(before)), output=once))
    return once


def _product(v: int, producer: dict[int, Node]) -> list[Node]:
    """The node that computes value `v`, where it is reshaped and something is added with the nodes that do that, these
    in their order behind it."""
    found = [producer[v]]
    while isinstance(found[0].op, Copy) and found[0].inputs[0] in producer:
        found.insert(0, producer[found[0].inputs[0]])
    return found


def _repeated(copy: Node, values: dict[int, Value], shape: Shape) -> list[np.ndarray] | None:
    """The constants that a reshaping node adds to logits of `shape`, as masks of them whose first size divides that of
    the logits: as where windows of several pictures have a mask for each window. None if it does anything else."""
    if not (isinstance(copy.op, Copy) and copy.op.keeps_order):
        return None
    found = _scale(copy.epilogue)
    target = values[copy.output].shape
    if found is None or found[:2] != (1.0, 1.0) or shape[0] % target[0] or math.prod(shape) // target[0] > MOST_MASK:
        return None if copy.epilogue != RESULT else []
    masks = []
    for i in found[2]:
        data = values[copy.operands[i - 1]].data
        if data is None or data.shape[0] != 1:
            return None
        masks.append(np.broadcast_to(data, (1, *target[1:])).reshape(shape[0] // target[0], *shape[1:]))
    return masks


def _mask(added: Sequence[int], more: list[np.ndarray], values: dict[int, Value]) -> tuple[int, ...] | None:
    """The one value that is added to the logits, or the sum of several constants, as of a bias for each pair of places
    and a mask for each window; () for none, None where there is no such value."""
    if not more and len(added) < 2:
        return tuple(added)
    data = [d for v in added if (d := values[v].data) is not None] + more
    if len(data) < len(added) + len(more) or len({d.shape[0] for d in data} - {1}) > 1:
        return None
    if math.prod(np.broadcast_shapes(*(d.shape for d in data))) > MOST_MASK:
        return None
    total = functools.reduce(np.add, data)
    known = GraphBuilder(values)
    return (known.constant(total, name=values[added[0]].name if added else ""),)


def _chosen(expr: Expr, operands: Sequence[int], values: dict[int, Value]) -> tuple[Expr, tuple[int, ...]]:
    """The logits without a choice by a constant of some of them, and the mask that is added in its place: the others
    were so low that nothing is left of them. None of the rows may be hidden as a whole."""
    match expr:
        case Apply("select", (Arg(i), inner, Literal(low))) if i:
            kept = values[operands[i - 1]].data
        case Apply("select", (Arg(i), Literal(low), inner)) if i:
            data = values[operands[i - 1]].data
            kept = None if data is None else np.logical_not(data)
        case _:
            return expr, ()
    if kept is None or kept.dtype.kind != "b" or low > HIDDEN or not kept.any(axis=3).all() or kept.size > MOST_MASK:
        return expr, ()
    mask = np.where(kept, np.float32(0), np.float32(HIDDEN))
    return inner, (GraphBuilder(values).constant(mask),)


def _scale(expr: Expr) -> tuple[float, float, tuple[int, ...]] | None:
    """(factor, factor of what is added, numbers of the Args that are added to the products), None if anything else is
    done to them."""
    match expr:
        case Arg(0):
            return 1.0, 1.0, ()
        case Apply("mul", (inner, Literal(number))) | Apply("mul", (Literal(number), inner)):
            found, factor, divisor = _scale(inner), float(number), 1.0
        case Apply("div", (inner, Literal(number))) if number:
            found, factor, divisor = _scale(inner), 1.0, float(number)
        case Apply("add", (inner, Arg(mask))) | Apply("add", (Arg(mask), inner)) if mask:
            found = _scale(inner)
            alike = found is not None and (found[1] == 1.0 or not found[2])
            return (found[0], 1.0, (*found[2], mask)) if found is not None and alike else None
        case _:
            return None
    if found is None:
        return None
    scale, beta, masks = found
    return scale * factor / divisor, beta * factor / divisor if masks else 1.0, masks
