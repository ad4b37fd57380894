"""Join chains of copies into one, drop those that move nothing, and let convolutions do their own padding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    Literal,
    Mirror,
    Node,
    Op,
    Pad,
    Pool2D,
    Reshape,
    Resize2D,
    Shape,
    Slice,
    Step,
    Take,
    Tile,
    Transpose,
    sources_of,
    step_shape,
)
from litegpu.gpu.passes.fold import drop_unused
from litegpu.gpu.view import follow, packed


def join_copies(graph: Graph) -> Graph:
    """Read through every plain copy that feeds another copy; copies that change nothing disappear."""
    values = graph.values
    plain: dict[int, tuple[int, tuple[Step, ...], tuple[int, ...]]] = {}  # output -> source, steps, .tflite nodes
    same: dict[int, int] = {}  # output of a copy that moves nothing -> its source
    nodes: list[Node] = []
    for node in graph.nodes:
        node = _rename(node, same)
        if isinstance(node.op, Copy):
            source, steps, sources = node.inputs[0], node.op.steps, node.sources
            if source in plain and _one_fill(plain[source][1] + steps):
                source, before, first = plain[source]
                steps, sources = before + steps, tuple(sorted({*first, *sources}))
            steps = simplify(steps, values[source].shape)
            node = dataclasses.replace(node, op=Copy(steps), inputs=(source,), sources=sources)
            if node.epilogue == RESULT and values[source].dtype == values[node.output].dtype:
                if not steps and node.output not in graph.outputs and not values[source].is_constant:
                    same[node.output] = source
                    continue
                plain[node.output] = (source, steps, sources)
        nodes.append(node)
    return drop_unused(GraphBuilder(dict(values), nodes).graph(graph.inputs, graph.outputs))


def absorb_padding(graph: Graph) -> Graph:
    """A padding of height and width with zeros, or zero points, in front of a convolution becomes the convolution's
    own, and so it does in front of a pooling, of an average if it is of zeros. A maximum of what is never less passes
    over it: each window has a cell that is no padding. (That of a causal convolution along time has a reshape behind
    it, which makes a picture of one row of it.)"""
    producer = graph.producer()
    builder = GraphBuilder(dict(graph.values), [])
    moved: dict[tuple[int, tuple[Step, ...]], int] = {}  # what is padded -> the copy of it, where it is one
    for node in graph.nodes:
        pad = producer.get(node.inputs[0]) if isinstance(node.op, (*_CONVOLUTIONS, Pool2D)) else None
        if pad is not None and isinstance(pad.op, Copy):
            pad = dataclasses.replace(pad, op=Copy(_padded_last(pad.op.steps, graph.values[pad.inputs[0]].shape)))
        match pad:
            case Node(Copy((*first, Pad(before, after, _) as around)), (source,), _, epilogue) if (
                len(before) == 4
                and epilogue == RESULT
                and not (before[0] or before[3] or after[0] or after[3])
                and min(before + after) >= 0
                and (op := _with_padding(node, around, graph, None if first else producer.get(source))) is not None
            ):
                sources = sources_of(pad, node)
                key = (source, tuple(first))
                if first and key not in moved:
                    shape = graph.values[source].shape
                    for step in first:
                        shape = step_shape(step, shape)
                    moved[key] = builder.value(shape, graph.values[node.inputs[0]].dtype)
                    builder.node(Copy(tuple(first)), [source], moved[key], sources=pad.sources)
                node = dataclasses.replace(
                    node, op=op, inputs=(moved.get(key, source), *node.inputs[1:]), sources=sources
                )
        builder.nodes.append(node)
    return drop_unused(builder.graph(graph.inputs, graph.outputs))


def _padded_last(steps: tuple[Step, ...], shape: Shape) -> tuple[Step, ...]:
    """Steps of which the last ones are a padding along one axis and a reshape to four that keeps this axis: the same
    with the padding behind the reshape."""
    match steps:
        case (*first, Pad(before, after, fill), Reshape(padded, (_, _, _, _) as target)):
            changed = [i for i in range(len(padded)) if before[i] or after[i]]
            if len(changed) != 1:
                return steps
            (i,) = changed
            kept = [
                j for j in range(4)
                if target[j] == padded[i] and math.prod(target[:j]) == math.prod(padded[:i])
                and math.prod(target[j + 1 :]) == math.prod(padded[i + 1 :])
            ]  # fmt: skip
            if not kept:
                return steps
            j = kept[0]
            inside = tuple(n - low - high for n, low, high in zip(padded, before, after, strict=True))
            whole = (*target[:j], inside[i], *target[j + 1 :])

            def along(amounts: tuple[int, ...]) -> tuple[int, ...]:
                return tuple(amounts[i] if axis == j else 0 for axis in range(4))

            return (*simplify((*first, Reshape(inside, whole)), shape), Pad(along(before), along(after), fill))
    return steps


def _with_padding(node: Node, pad: Pad, graph: Graph, source: Node | None) -> Op | None:
    """The node's operation with the padding in front of it, which `source` computes the inside of, if it has such."""
    op = node.op
    assert isinstance(op, (*_CONVOLUTIONS, Pool2D))
    padding = (op.padding[0] + pad.before[1], op.padding[1] + pad.before[2])
    if not isinstance(op, Pool2D):
        same = pad.fill == (op.zero_point if isinstance(op, _INTEGER) else 0)
        return dataclasses.replace(op, padding=padding) if same else None
    shape, result = (graph.values[v] for v in (node.inputs[0], node.output))
    if _may_pass_over(op, pad, source, shape.dtype):
        return dataclasses.replace(op, padding=padding)
    covered = _reach_no_further(result.shape[1:3], op.stride, op.window, (1, 1), shape.shape[1:3])
    counts = op.kind == "max" or (op.kind == "average" and pad.fill == 0)
    if op.padding != (0, 0) or not covered or not counts or shape.dtype is not DType.FLOAT32:
        return None
    return dataclasses.replace(op, padding=padding, outside=float(pad.fill))


_LEAST = {DType.FLOAT32: float(np.finfo(np.float32).min), DType.INT8: -128.0, DType.UINT8: 0.0}
_INTEGER = (IntegerConv2D, IntegerDepthwiseConv2D)
_CONVOLUTIONS = (Conv2D, DepthwiseConv2D, *_INTEGER)


def _may_pass_over(pool: Pool2D, pad: Pad, source: Node | None, dtype: DType) -> bool:
    """Whether what is pooled, which `source` computes, may as well do without the padding: it is never less, or that is
    the lowest number of the type, with which a maximum begins."""
    sides = zip(pool.padding, pad.before[1:3], pad.after[1:3], pool.window, strict=True)
    inside = all(max(own + before, after) < size for own, before, after, size in sides)
    least = _LEAST.get(dtype, -np.inf)
    low = pad.fill <= least or (source is not None and _is_at_least(source.epilogue, pad.fill))
    return pool.kind == "max" and pool.outside is None and inside and low


def _is_at_least(expression: Expr, number: float) -> bool:
    match expression:
        case Apply("max", (_, Literal(least))):
            return float(least) >= number
        case Apply("min", (inner, Literal(most))):
            return float(most) >= number and _is_at_least(inner, number)
        case Apply("add", (Apply("nearest", (inner,)), Literal(zero))):  # a number and a zero point, both whole
            return _is_at_least(inner, number - float(zero))
        case Apply("sigmoid" | "abs" | "exp" | "sqrt", _):
            return number <= 0
    return False


def absorb_border(graph: Graph) -> Graph:
    """A mirrored border in front of a convolution, and a nearest-neighbour enlargement in front of that, become the
    convolution's own: it reads what lies outside, or counts several times, from where it comes from."""
    producer, consumers = graph.producer(), graph.consumers()

    def alone(v: int) -> Node | None:
        return producer.get(v) if len(consumers[v]) == 1 and v not in graph.outputs else None

    nodes: list[Node] = []
    for node in graph.nodes:
        op = node.op
        if not isinstance(op, Conv2D) or op.groups > 1 or graph.values[node.inputs[1]].shape[1:3] == (1, 1):
            nodes.append(node)
            continue
        copy = alone(node.inputs[0])
        match copy:
            case Node(Copy((Mirror((0, top, left, 0), (0, _, _, 0), symmetric),)), _, _, epilogue) if (
                epilogue == RESULT and op.border == "zero" and _stays_inside(node, op, graph)
            ):
                op = dataclasses.replace(op, padding=(top, left), border="symmetric" if symmetric else "reflect")
                node = _reading_from(node, op, copy)
        resize = alone(node.inputs[0])
        if resize is not None and resize.epilogue == RESULT:
            times = _enlargement(resize, graph)
            if times is not None and op.upsample == (1, 1):
                node = _reading_from(node, dataclasses.replace(op, upsample=times), resize)
        nodes.append(node)
    return drop_unused(GraphBuilder(dict(graph.values), nodes).graph(graph.inputs, graph.outputs))


def _stays_inside(node: Node, op: Conv2D, graph: Graph) -> bool:
    """Whether no window of a convolution reaches beyond its input, on either side: SAME may pad behind it alone."""
    x, weights, result = (graph.values[v].shape[1:3] for v in (*node.inputs[:2], node.output))
    return op.padding == (0, 0) and _reach_no_further(result, op.stride, weights, op.dilation, x)


def _reach_no_further(
    counts: Sequence[int], strides: Sequence[int], windows: Sequence[int], dilations: Sequence[int], ends: Sequence[int]
) -> bool:
    """Whether windows that begin at 0, so many along each axis, end there at the latest."""
    each = zip(counts, strides, windows, dilations, ends, strict=True)
    return all((n - 1) * stride + (size - 1) * dilation < end for n, stride, size, dilation, end in each)


def _reading_from(node: Node, op: Conv2D, before: Node) -> Node:
    """The convolution `node` as `op` on the input of `before`."""
    inputs, sources = (before.inputs[0], *node.inputs[1:]), sources_of(before, node)
    return dataclasses.replace(node, op=op, inputs=inputs, sources=sources)


def _enlargement(node: Node, graph: Graph) -> tuple[int, int] | None:
    """How often a nearest-neighbour resize repeats each row and column, if that is a whole number for all of them."""
    match node.op:
        case Resize2D("nearest", False):
            (_, h, w, _), (_, oh, ow, _) = (graph.values[v].shape for v in (node.inputs[0], node.output))
            whole = oh % h == ow % w == 0 and all(_repeats(n, m, node.op) for n, m in ((h, oh), (w, ow)))
            return (oh // h, ow // w) if whole else None
    return None


def _repeats(n: int, m: int, op: Resize2D) -> bool:
    """Whether output i of m comes from input i // (m / n): TFLite reckons in float32."""
    i = np.arange(m, dtype=np.float32) + np.float32(0.5 if op.half_pixel_centers else 0)
    return bool(np.array_equal(np.floor(i * np.float32(n / m)), np.arange(m) // (m // n)))


def simplify(steps: tuple[Step, ...], shape: Shape) -> tuple[Step, ...]:
    """The same movement of a tensor of `shape` in fewer steps."""
    kept: list[Step] = []
    shapes = [tuple(shape)]
    for step in steps:
        before = kept[-1] if kept else None
        if isinstance(step, Reshape) and isinstance(before, Reshape):
            step = Reshape(before.source, step.target)
            kept.pop(), shapes.pop()
        elif isinstance(step, Transpose) and isinstance(before, Transpose):
            step = Transpose(tuple(before.perm[p] for p in step.perm))
            kept.pop(), shapes.pop()
        if not _moves_nothing(step, shapes[-1]):
            kept.append(_as_reshape(step, shapes[-1]))
            shapes.append(step_shape(step, shapes[-1]))
    result = tuple(kept)
    if result and len(result) < len(steps):
        return simplify(result, shape)
    return _in_order(result, shape) if len(result) > 1 else result


def _in_order(steps: tuple[Step, ...], shape: Shape) -> tuple[Step, ...]:
    """The steps, or the reshape that they are together if all elements stay in order: as rows and columns become places
    between two transpositions."""
    if len(shape) != 4 or 0 in shape or not all(isinstance(step, (Reshape, Transpose)) for step in steps):
        return steps
    view = follow(packed(0, shape, DType.FLOAT32), steps)
    if view is None or any(
        n > 1 and stride != math.prod(view.shape[axis + 1 :])
        for axis, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True))
    ):
        return steps
    return (Reshape(tuple(shape), view.shape),)


def _moves_nothing(step: Step, shape: Shape) -> bool:
    match step:
        case Reshape(source, target):
            return tuple(source) == tuple(target)
        case Transpose(perm):
            return tuple(perm) == tuple(range(len(perm)))
        case Slice(begin, stride, target):
            return not any(begin) and tuple(target) == tuple(shape) and (set(stride) <= {1} or max(shape) == 1)
        case Pad(before, after) | Mirror(before, after):
            return not any(before) and not any(after)
        case Tile(multiples):
            return set(multiples) <= {1}
        case Take(axis, indices):
            return tuple(indices) == tuple(range(shape[axis]))
    return False


def _as_reshape(step: Step, shape: Shape) -> Step:
    """A transposition that only moves axes of size 1 is a reshape."""
    if isinstance(step, Transpose):
        moved = [p for p in step.perm if shape[p] != 1]
        if moved == sorted(moved) and 0 not in shape:
            return Reshape(shape, step_shape(step, shape))
    return step


def _one_fill(steps: tuple[Step, ...]) -> bool:
    """Whether one fill value serves all paddings: what lies outside any of them has the same value."""
    return len({s.fill for s in steps if isinstance(s, Pad)}) <= 1


def _rename(node: Node, same: dict[int, int]) -> Node:
    if not any(v in same for v in node.reads):
        return node
    return dataclasses.replace(
        node,
        inputs=tuple(same.get(v, v) for v in node.inputs),
        operands=tuple(same.get(v, v) for v in node.operands),
    )
