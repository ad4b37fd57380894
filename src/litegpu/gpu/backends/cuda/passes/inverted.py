"""Join a 1x1 convolution, the depthwise one that alone reads it, and perhaps the 1x1 that alone reads that."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels import byte_inverted_cost, widening
from litegpu.gpu.backends.cuda.kernels.biased import activation, bias_of
from litegpu.gpu.backends.cuda.kernels.inverted_cost import InvertedShape, cost, effort, ranked
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY, times_slower
from litegpu.gpu.backends.cuda.overlap import SHARED_BYTES
from litegpu.gpu.backends.cuda.passes import inverted_integer
from litegpu.gpu.backends.cuda.passes.separable import can_join
from litegpu.gpu.graph import (
    RESULT,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    InvertedConv2D,
    Node,
    Op,
    fits_half,
    sources_of,
)
from litegpu.gpu.lang.features import Features

#: A joint kernel has to be so much quicker, by the estimates, than those apart; the same of bytes, with and without
#: something that widens.
GAIN, BYTES_GAIN, SEPARABLE_GAIN = 0.85, 0.9, 0.87
#: A kernel apart takes so many microseconds at least; so many bytes that one has written are still in the second cache
#: when the next one reads them.
START, CACHE = 1.3, 30e6
#: What a depthwise kernel and one of points take in microseconds where kernels overlap, and what each byte that they
#: read or write adds, and each channel of the latter's inputs; what a joint kernel takes less there than alone. (One
#: H200, MobileNet v2 at batch 1.)
WAITING, WAITING_BYTE, WAITING_CHANNEL, AHEAD = (1.0, 1.15), 0.38e-6, 0.0025, 0.45
#: Channels of the input up to which that is known.
WAITING_INPUTS = 160
#: And outputs up to which a first layer of bytes is joined there with the two behind it: MobileNet v2 takes 76.3 us in
#: place of 77.8.
WAITING_OUTPUTS = 16


@dataclass(frozen=True)
class Apart:
    """What kernels apart take, in microseconds: to begin with, those of points and depthwise ones; for each byte that
    they read or write, where it is in the second cache and where it is not; and for each product of a depthwise
    convolution. (An H200, MobileNet v2 and EfficientNet B0 at batch 64.)"""

    begin: tuple[float, float]
    near: float
    far: float
    product: float


HALVES = Apart((1, 1), 1 / 3.0e6, 1 / 2.8e6, 1 / 8.5e6)
BYTES = Apart((2.3, 1), 1 / 3.0e6, 1 / 3.0e6, 1 / 25e6)
#: Bytes of places that are no whole chunks of 16, which warpgroups copy in smaller pieces.
PIECES = 1 / 1.2e6


def join_inverted(graph: Graph, features: Features, half: bool) -> Graph:
    """The graph with InvertedConv2D nodes, which are for float16, or IntegerInvertedConv2D and IntegerSeparableConv2D
    where these are quicker."""
    consumers, producer = graph.consumers(), graph.producer()
    made: dict[int, list[Node]] = {}  # by the output of a joint node, those that it consists of
    for node in graph.nodes:
        if not isinstance(node.op, (DepthwiseConv2D, IntegerDepthwiseConv2D)):
            continue
        whole = isinstance(node.op, IntegerDepthwiseConv2D)
        widens, projects = (inverted_integer.widens, inverted_integer.projects) if whole else (_widens, _projects)
        if not (whole or half):
            continue
        first, some = producer.get(node.inputs[0]), [node]
        if first is not None and first.output not in made and len(consumers[first.output]) == 1:
            before = producer.get(first.inputs[0]) if first.inputs else None  # a sum reads operands alone
            depthwise = before is not None and isinstance(before.op, (DepthwiseConv2D, IntegerDepthwiseConv2D))
            belongs = before is not None and depthwise and len(consumers[before.output]) == 1  # see separable.py
            opens = whole and inverted_integer.opens(first, node, graph)
            some = [first, node] if not belongs and (opens or widens(first, node, graph)) else some
        readers = consumers[node.output]
        last = readers[0] if len(readers) == 1 and projects(node, readers[0], graph) else None
        if len(some) == 1 and (not whole or last is None or not inverted_integer.is_window(node, graph)):
            continue
        chosen = _quickest(graph, some, last, features)
        if chosen:
            made[chosen[-1].output] = chosen
    gone = {node.output for parts in made.values() for node in parts[:-1]}
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in made:
            _put(builder, graph, made[node.output])
        elif node.output not in gone:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs) if made else graph


def _widens(first: Node, depthwise: Node, graph: Graph) -> bool:
    """Whether `first`, which nothing but `depthwise` reads, and that are such as can be joined."""
    values, op = graph.values, depthwise.op
    assert isinstance(op, DepthwiseConv2D)
    if not _is_pointwise(first, graph) or first.output in graph.outputs:
        return False
    return (
        op.multiplier == 1
        and values[first.output].shape[3] >= 2 * values[first.inputs[0]].shape[3]
        and op.dilation == (1, 1)
        and _is_half(graph, depthwise.inputs[1])
        and not values[first.inputs[0]].is_constant
        and depthwise.output not in depthwise.operands
        and first.output not in depthwise.operands
        and all(values[v].dtype is DType.FLOAT32 for v in (first.inputs[0], first.output, depthwise.output))
        and activation(first, graph) is not None
    )


def _projects(depthwise: Node, last: Node, graph: Graph) -> bool:
    return (
        _is_pointwise(last, graph)
        and last.inputs[0] == depthwise.output
        and depthwise.output not in (*last.operands, *graph.outputs)
        and activation(depthwise, graph) is not None
    )


def _is_pointwise(node: Node, graph: Graph) -> bool:
    return node.op == Conv2D() and graph.values[node.inputs[1]].shape[1:3] == (1, 1) and _is_half(graph, node.inputs[1])


def _is_half(graph: Graph, weights: int) -> bool:
    data = graph.values[weights].data
    return data is not None and fits_half(data)


def _quickest(graph: Graph, some: list[Node], last: Node | None, features: Features) -> list[Node]:
    """Those of the nodes that are best joined, perhaps none. `some`: the depthwise one and perhaps, in front, the one
    that widens."""
    of_bytes = isinstance(some[-1].op, IntegerDepthwiseConv2D)
    opens = of_bytes and len(some) > 1 and graph.values[some[0].inputs[1]].shape[1:3] != (1, 1)
    if features.capability == WARPGROUP_CAPABILITY and will_overlap(graph):
        if opens and last and graph.values[last.output].shape[3] <= WAITING_OUTPUTS:
            return [*some, last] if math.isfinite(_joint_bytes(graph, [*some, last], features)) else []
        if last and len(some) == 2 and not opens and _widening(graph, [*some, last], features):
            return [*some, last]
        return [] if of_bytes or len(some) == 1 else _quickest_where_kernels_overlap(graph, some, features)
    whole = [*some, last] if last else some
    ways: list[tuple[float, list[Node]]] = [(_apart(graph, whole, features), [])]
    # a first layer with no more than the depthwise one takes longer (112x112x32: 42.8 us, apart 38.2)
    joint = [some] * (len(some) > 1 and not opens) + [whole] * (last is not None)
    if last and len(some) > 1 and of_bytes:
        joint += [[some[1], last]] * inverted_integer.is_window(some[1], graph)
    for nodes in joint:
        others = [n for n in whole if all(n is not node for node in nodes)]
        gain = SEPARABLE_GAIN if isinstance(nodes[0].op, IntegerDepthwiseConv2D) else BYTES_GAIN if of_bytes else GAIN
        ways.append((_joint(graph, nodes, features) / gain + _apart(graph, others, features), nodes))
    return min(ways, key=lambda way: way[0])[1]


def _widening(graph: Graph, nodes: list[Node], features: Features) -> bool:
    """Whether clusters of workgroups do a whole block best."""
    whole = isinstance(nodes[1].op, IntegerDepthwiseConv2D)
    if whole and not all(inverted_integer.are_bytes(node, graph) for node in nodes):
        return False
    shape = _byte_shape(graph, nodes) if whole else _shape(graph, nodes)
    return widening.pays(shape, 1 if whole else 2, graph, features)


def _quickest_where_kernels_overlap(graph: Graph, two: list[Node], features: Features) -> list[Node]:
    """The nodes, or none. All kernels wait for the one in front of them, so a joint one takes less than alone, having
    loaded its weights before."""
    shape = _shape(graph, two)
    blocks = ranked(shape, features.capability, features.compute_units)
    if not blocks or blocks[0].shared_bytes(shape) > SHARED_BYTES - (1 << 10) or shape.inputs > WAITING_INPUTS:
        return []
    values, apart = graph.values, 0.0
    for node in two:
        size = 2 * sum(math.prod(values[v].shape) for v in (node.inputs[0], node.output))
        points = isinstance(node.op, Conv2D)
        apart += WAITING[points] + size * WAITING_BYTE + WAITING_CHANNEL * points * values[node.inputs[0]].shape[3]
    least = cost(shape, blocks[0], features.capability, features.compute_units)
    return two if least - AHEAD < apart else []


def _joint(graph: Graph, nodes: list[Node], features: Features) -> float:
    """Estimated microseconds of the nodes in one kernel; infinite if there is none."""
    if isinstance(nodes[-1].op, (IntegerConv2D, IntegerDepthwiseConv2D)):
        return _joint_bytes(graph, nodes, features)
    shape = _shape(graph, nodes)
    blocks = ranked(shape, features.capability, features.compute_units)
    return cost(shape, blocks[0], features.capability, features.compute_units) if blocks else math.inf


def _shape(graph: Graph, nodes: list[Node]) -> InvertedShape:
    """Of nodes that compute halves, as one."""
    values = graph.values
    first, depthwise, *last = nodes
    inputs = [first.inputs[0], first.inputs[1], first.inputs[1], depthwise.inputs[1]]
    shapes = [values[v].shape for v in (*inputs, *((last[0].inputs[1],) * 2 if last else ()))]
    assert isinstance(depthwise.op, DepthwiseConv2D)
    found = activation(first, graph), activation(depthwise, graph)
    expanded, middle = (RESULT if a is None else a.expr for a in found)
    efforts = effort(expanded), effort(middle)
    return InvertedShape.of(depthwise.op.stride, efforts, shapes, values[nodes[-1].output].shape)


def _joint_bytes(graph: Graph, nodes: list[Node], features: Features) -> float:
    """The same of bytes."""
    shape, capability, units = _byte_shape(graph, nodes), features.capability, features.compute_units
    blocks = byte_inverted_cost.ranked(shape, capability, units)
    return byte_inverted_cost.cost(shape, blocks[0], capability, units) if blocks else math.inf


def _byte_shape(graph: Graph, nodes: list[Node]) -> InvertedShape:
    """Of nodes that compute bytes, as one."""
    (depthwise,) = (node for node in nodes if isinstance(node.op, IntegerDepthwiseConv2D))
    assert isinstance(depthwise.op, IntegerDepthwiseConv2D)
    x, stem = graph.values[nodes[0].inputs[0]].shape, None
    inputs = (*x[:3], 0) if nodes[0] is depthwise else x
    if graph.values[nodes[0].inputs[1]].shape[1:3] != (1, 1) and nodes[0] is not depthwise:
        stem = inverted_integer.stem_shape(nodes[0], graph)
        inputs = (*graph.values[nodes[0].output].shape[:3], stem.depth)
    taps, last = graph.values[depthwise.inputs[1]].shape, nodes[-1]
    more = [graph.values[last.inputs[1]].shape] * 2 if last is not depthwise else []
    shapes = [inputs, taps, taps, taps, *more]
    return InvertedShape.of(depthwise.op.stride, (0.0, 0.0), shapes, graph.values[last.output].shape, stem)


def _apart(graph: Graph, nodes: list[Node], features: Features) -> float:
    """Estimated microseconds of the nodes as kernels of their own, or the last two in one, as separable.py has it."""
    values, total, nodes = graph.values, 0.0, list(nodes)
    slower = times_slower(features.capability, features.compute_units)
    while nodes:
        node = end = nodes.pop(0)
        products, whole = 0, isinstance(node.op, (IntegerConv2D, IntegerDepthwiseConv2D))
        size, rates = (1, BYTES) if whole else (2, HALVES)
        if isinstance(node.op, (DepthwiseConv2D, IntegerDepthwiseConv2D)):
            products = math.prod((*values[node.output].shape, *values[node.inputs[1]].shape[1:3]))
            end = nodes.pop(0) if nodes and _separable(node, nodes[0], graph) else node
        sizes = [size * math.prod(values[v].shape) for v in (node.inputs[0], end.output)]
        moving = sum(n * (rates.near if n <= CACHE else rates.far) for n in sizes)
        if whole and not products and values[node.inputs[0]].shape[3] % 16:
            moving += sizes[0] * (PIECES - rates.near)
        begin = rates.begin[products > 0]
        total += max(START, begin + slower * moving, begin + slower * products * rates.product)
    return total


def _separable(depthwise: Node, last: Node, graph: Graph) -> bool:
    return isinstance(depthwise.op, DepthwiseConv2D) and can_join(depthwise, last, graph)


def _put(builder: GraphBuilder, graph: Graph, nodes: list[Node]) -> None:
    """One node instead of these."""
    end = nodes[-1]
    sources = sources_of(*nodes)
    op: Op
    if isinstance(nodes[0].op, IntegerDepthwiseConv2D):
        op, inputs = inverted_integer.separable(builder, graph, nodes)
    elif isinstance(nodes[1].op, IntegerDepthwiseConv2D):
        op, inputs = inverted_integer.joint(builder, graph, nodes)
    else:
        op, inputs = _joined(builder, graph, nodes)
    builder.nodes.append(Node(op, tuple(inputs), end.output, end.epilogue, end.operands, sources))


def _joined(builder: GraphBuilder, graph: Graph, nodes: list[Node]) -> tuple[InvertedConv2D, list[int]]:
    """One op that does the work of these, and its inputs."""
    first, depthwise, *last = nodes
    assert isinstance(depthwise.op, DepthwiseConv2D)

    def parts(node: Node) -> tuple[Expr, int]:
        """What is done to the sum with the bias, and that."""
        found, wide = activation(node, graph), graph.values[node.output].shape[3]
        assert found is not None
        return found.expr, builder.constant(bias_of(found, graph, wide))

    expanded, bias = parts(first)
    inputs = [first.inputs[0], first.inputs[1], bias, depthwise.inputs[1]]
    middle: Expr = RESULT
    if last:
        middle, bias = parts(depthwise)
        inputs += [bias, last[0].inputs[1]]
    return InvertedConv2D(depthwise.op, expanded, middle), inputs
