"""Passes keep the function: random graphs before and after, and the fusions that are promised."""

from __future__ import annotations

import random

import numpy as np
import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph, evaluate_node
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    InstanceNorm,
    Literal,
    MatMul,
    Mirror,
    Moments,
    Pad,
    Pool2D,
    Reduce,
    Reshape,
    Resize2D,
    Slice,
    Softmax,
    Transpose,
    apply,
    tree_size,
    walk,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.fuse import LARGEST_TREE, fuse_elementwise
from litegpu.gpu.passes.layout import Placed, place
from litegpu.gpu.passes.movement import absorb_padding
from litegpu.gpu.view import View

RELU = apply("max", Arg(0), 0.0)
ADD = apply("add", Arg(0), Arg(1))


class Net:
    """A random graph of convolutions, elementwise ops, copies, concatenations and reductions."""

    def __init__(self, seed: int, moving: bool = False) -> None:
        """`moving`: with transpositions too."""
        self.kinds = 11 if moving else 9
        self.rnd, self.rng = random.Random(seed), np.random.default_rng(seed)
        self.b = GraphBuilder()
        self.inputs = [self.b.value((1, 4, 6, self.rnd.choice([3, 4, 8])), DType.FLOAT32) for _ in range(2)]
        self.live = list(self.inputs)
        for _ in range(self.rnd.randint(3, 14)):
            self.grow()
        count = min(len(self.live), self.rnd.randint(1, 3))
        self.outputs = self.rnd.sample(self.live[-5:], min(count, len(self.live[-5:])))

    def shape(self, v: int) -> tuple[int, ...]:
        return self.b.values[v].shape

    def out(self, op, inputs, shape, epilogue=RESULT, operands=()) -> None:
        y = self.b.value(shape, DType.FLOAT32)
        self.live.append(self.b.node(op, inputs, y, epilogue, operands))

    def grow(self) -> None:
        x = self.rnd.choice(self.live[-4:])
        b, h, w, c = self.shape(x)
        match self.rnd.randrange(self.kinds):
            case 0:
                o = self.rnd.choice([3, 4, 8])
                weights = self.b.constant(self.rng.standard_normal((o, 3, 3, c)) / 5)
                bias = self.b.constant(self.rng.standard_normal(o))
                if self.rnd.random() < 0.5:
                    padded = self.b.value((b, h + 2, w + 2, c), DType.FLOAT32)
                    x = self.b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0)),)), [x], padded)
                    self.out(Conv2D(), [x, weights], (b, h, w, o), ADD, [bias])
                else:
                    self.out(Conv2D(padding=(1, 1)), [x, weights], (b, h, w, o), ADD, [bias])
            case 1:
                self.out(Elementwise(), [], (b, h, w, c), RELU, [x])
            case 2:
                others = [v for v in self.live if self.shape(v) == (b, h, w, c)]
                self.out(Elementwise(), [], (b, h, w, c), apply("sub", Arg(0), Arg(1)), [x, self.rnd.choice(others)])
            case 3:
                scale = self.b.constant(self.rng.standard_normal(c))
                self.out(Elementwise(), [], (b, h, w, c), Apply("mul", (Arg(1), Arg(0))), [x, scale])
            case 4:
                begin, n = self.rnd.randrange(c), 0
                n = self.rnd.randint(1, c - begin)
                self.out(Copy((Slice((0, 0, 0, begin), (1, 1, 1, 1), (b, h, w, n)),)), [x], (b, h, w, n))
            case 5:
                others = [v for v in self.live if self.shape(v)[:3] == (b, h, w)]
                parts = [x, *(self.rnd.choice(others) for _ in range(self.rnd.randint(1, 2)))]
                self.out(Concat(3), parts, (b, h, w, sum(self.shape(v)[3] for v in parts)))
            case 6:
                self.out(Copy((Reshape((b, h, w, c), (b, w, h, c)),)), [x], (b, w, h, c))
            case 7:
                mean = self.b.value((b, 1, 1, c), DType.FLOAT32)
                self.b.node(Reduce("mean", (1, 2)), [x], mean)
                self.out(Elementwise(), [], (b, h, w, c), apply("sub", Arg(0), Arg(1)), [x, mean])
            case 8:
                self.out(Softmax(), [x], (b, h, w, c))
            case _:
                perm = self.rnd.choice([(0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1, 3), (0, 1, 3, 2)])
                self.out(Copy((Transpose(perm),)), [x], tuple((b, h, w, c)[p] for p in perm))

    def graph(self) -> Graph:
        return self.b.graph(self.inputs, self.outputs)


@pytest.mark.parametrize("seed", range(120))
def test_a_random_graph_keeps_its_function(seed: int) -> None:
    graph = Net(seed).graph()
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    want = evaluate_graph(graph, inputs)
    better = optimise(graph, Features())
    assert len(better.nodes) <= len(graph.nodes)
    for a, b in zip(evaluate_graph(better, inputs), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("seed", range(120))
def test_layout_never_lets_two_values_overlap(seed: int, half: bool) -> None:
    """Every node's output occupies elements that no other node writes, and its views lie inside their memory."""
    placed = place(optimise(Net(seed).graph(), Features()), half)
    written: dict[tuple[int, int], int] = {}
    for node in placed.graph.nodes:
        assert not isinstance(node.op, Concat)
        view = placed.views[node.output]
        index = view.offset + sum(g * s for g, s in zip(np.indices(view.shape), view.strides, strict=True))
        assert index.min() >= 0 and index.max() < placed.roots[view.root][0]
        for i in np.unique(index):
            assert (view.root, int(i)) not in written, f"{node.op} writes over node {written[view.root, int(i)]}"
            written[view.root, int(i)] = node.output
    for v in (*placed.graph.inputs, *placed.graph.outputs):
        assert placed.views[v].dtype is DType.FLOAT32


def index_of(view: View, channels: int | None = None) -> np.ndarray:
    """Where the elements of a view lie in its memory."""
    shape = (*view.shape[:3], channels or view.shape[3])
    return view.offset + sum(g * s for g, s in zip(np.indices(shape), view.strides, strict=True))


def run_placed(placed: Placed, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs, each node reading and writing where the views say; memory is NaN at first, and a node's
    output has zeros in the padding that is its own."""
    memory = {root: np.full(size, np.nan, np.float32) for root, (size, _) in placed.roots.items()}
    known = {v: value.data for v, value in placed.graph.values.items() if value.data is not None}
    for v, data in zip(placed.graph.inputs, inputs, strict=True):
        memory[placed.views[v].root][index_of(placed.views[v])] = data
    for node in placed.graph.nodes:
        read = {v: memory[placed.views[v].root][index_of(placed.views[v])] for v in node.reads if v not in known}
        for v in read:
            view = placed.views[v]
            if view.zero_padded and view.vector:
                quads = memory[view.root][index_of(view, view.quads * 4)]
                assert not quads[..., view.shape[3] :].any() or v in placed.graph.inputs
        view = placed.views[node.output]
        if view.zero_padded:
            memory[view.root][index_of(view, view.quads * 4)] = 0
        memory[view.root][index_of(view)] = evaluate_node(node, known | read, placed.graph)
    return [memory[placed.views[v].root][index_of(placed.views[v])] for v in placed.graph.outputs]


@pytest.mark.parametrize("seed", range(150))
def test_a_random_graph_where_the_layout_puts_it(seed: int) -> None:
    graph = Net(seed, moving=True).graph()
    rng = np.random.default_rng(seed)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    want = evaluate_graph(graph, inputs)
    for got, expected in zip(run_placed(place(optimise(graph, Features()), False), inputs), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_sums_of_what_they_are_added_to_are_fused_in_parts() -> None:
    """x + tanh(x), forty times over: of one expression the tree would have 2**40 nodes."""
    b = GraphBuilder()
    x = given = b.value((1, 2, 2, 4), DType.FLOAT32)
    for _ in range(40):
        y = b.node(Elementwise(), (), b.value((1, 2, 2, 4), DType.FLOAT32), apply("tanh", Arg(0)), [x])
        x = b.node(Elementwise(), (), b.value((1, 2, 2, 4), DType.FLOAT32), ADD, [x, y])
    found = fuse_elementwise(b.graph([given], [x]), 8)
    assert 2 <= len(found.nodes) <= 8
    assert max(tree_size(n.epilogue) for n in found.nodes) <= LARGEST_TREE


def test_what_is_stored_as_float16() -> None:
    """Values of several pixels; not those of one, nor sums, nor what is exact, nor what the user sees."""
    b = GraphBuilder()
    x = b.value((1, 4, 4, 4), DType.FLOAT32)
    pixels, exact = (b.node(Pool2D("max", (1, 1), (1, 1)), [x], b.value((1, 4, 4, 4), DType.FLOAT32)) for _ in range(2))
    one = b.node(Pool2D("max", (4, 4), (1, 1)), [pixels], b.value((1, 1, 1, 4), DType.FLOAT32))
    column = b.node(Pool2D("max", (1, 4), (1, 1)), [exact], b.value((1, 4, 1, 4), DType.FLOAT32))
    total = b.node(Reduce("sum", (2,)), [pixels], b.value((1, 4, 1, 4), DType.FLOAT32))
    out = b.node(Elementwise(), [], b.value((1, 4, 1, 4), DType.FLOAT32),
                 apply("add", apply("add", Arg(0), Arg(1)), Arg(2)), [one, column, total])  # fmt: skip
    placed = place(b.graph([x], [out]), True, {exact})
    halves = [v for v in (x, pixels, exact, one, column, total, out) if placed.views[v].dtype is DType.FLOAT16]
    assert halves == [pixels, column]
    assert not any(view.dtype is DType.FLOAT16 for view in place(b.graph([x], [out]), False).views.values())


def test_every_output_is_written_by_a_node_of_its_own() -> None:
    b = GraphBuilder()
    x = b.value((1, 2, 2, 4), DType.FLOAT32)
    y = b.node(Elementwise(), [], b.value((1, 2, 2, 4), DType.FLOAT32), RELU, [x])
    constant = b.constant(np.ones((1, 1, 1, 4)))
    placed = place(b.graph([x], [y, x, y, constant]), False)
    outputs = placed.graph.outputs
    assert len(set(outputs)) == 4 and len({placed.views[v].root for v in outputs}) == 4
    assert {n.output for n in placed.graph.nodes} == set(outputs)


def test_joined_channels_have_padding_that_nobody_writes() -> None:
    """Two and three channels side by side: what lies behind the fifth may be anything, and must not be read."""
    for counts, zeros in (((2, 3), False), ((1, 4), False), ((3, 3), False), ((4, 4), True)):
        b = GraphBuilder()
        xs = [b.value((1, 2, 2, n), DType.FLOAT32) for n in counts]
        ys = [b.node(Pool2D("max", (1, 1), (1, 1)), [x], b.value(b.values[x].shape, DType.FLOAT32)) for x in xs]
        joined = b.node(Concat(3), ys, b.value((1, 2, 2, sum(counts)), DType.FLOAT32))
        out = b.node(Softmax(), [joined], b.value((1, 2, 2, sum(counts)), DType.FLOAT32))
        placed = place(b.graph(xs, [out]), False)
        assert placed.views[joined].zero_padded == zeros and placed.views[joined].whole_quads == zeros
        assert [placed.views[y].offset for y in ys] == [0, counts[0]]
        assert placed.views[ys[1]].whole_quads == (counts[1] % 4 == 0)


def test_what_others_read_by_vectors_is_copied_into_a_concatenation() -> None:
    """A value that only moves is written right into its place, at channel 3; one that a convolution reads as well is
    not put where every channel would be loaded by itself."""
    for read in (False, True):
        b = GraphBuilder()
        x, z = b.value((1, 2, 2, 4), DType.FLOAT32), b.value((1, 2, 2, 3), DType.FLOAT32)
        y = b.node(Pool2D("max", (1, 1), (1, 1)), [x], b.value((1, 2, 2, 4), DType.FLOAT32))
        first = b.node(Pool2D("max", (1, 1), (1, 1)), [z], b.value((1, 2, 2, 3), DType.FLOAT32))
        joined = b.node(Concat(3), [first, y], b.value((1, 2, 2, 7), DType.FLOAT32))
        outputs = [joined]
        if read:
            weights = b.constant(np.ones((4, 1, 1, 4)))
            outputs.append(b.node(Conv2D(), [y, weights], b.value((1, 2, 2, 4), DType.FLOAT32)))
        placed = place(b.graph([x, z], outputs), False)
        assert (placed.views[y].root == placed.views[joined].root) == (not read)
        assert placed.views[y].vector == read


@pytest.mark.parametrize("fill", [0.0, 5.0])
def test_only_zeros_are_a_convolution_s_padding(fill: float) -> None:
    b = GraphBuilder()
    x = b.value((1, 3, 3, 4), DType.FLOAT32)
    steps = (Pad((0, 1, 1, 0), (0, 1, 1, 0), fill),)
    padded = b.node(Copy(steps), [x], b.value((1, 5, 5, 4), DType.FLOAT32))
    weights = b.constant(np.random.default_rng(0).standard_normal((4, 3, 3, 4)))
    graph = b.graph([x], [b.node(Conv2D(), [padded, weights], b.value((1, 3, 3, 4), DType.FLOAT32))])
    better = optimise(graph, Features())
    assert len(better.nodes) == (1 if fill == 0 else 2)
    values = [np.ones((1, 3, 3, 4), np.float32)]
    np.testing.assert_allclose(evaluate_graph(better, values)[0], evaluate_graph(graph, values)[0], rtol=1e-5)


@pytest.mark.parametrize("first", [0, 1])
def test_functions_that_a_reduction_computes_itself(first: int) -> None:
    """Of its two inputs either is a function of others, in any order; shared operands are read once."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x, y, z = (b.value((1, 3, 4, 8), DType.FLOAT32) for _ in range(3))
    inner = b.node(Elementwise(), [], b.value((1, 3, 4, 8), DType.FLOAT32), apply("sub", Arg(0), Arg(1)), [x, y])
    inputs = [inner, z] if first == 0 else [z, inner]
    prologue = apply("div", Arg(0), apply("add", apply("mul", Arg(1), Arg(1)), 1.0))
    total = b.node(Reduce("sum", (3,), prologue), inputs, b.value((1, 3, 4, 1), DType.FLOAT32))
    other = b.node(Reduce("sum", (1, 3), prologue), [y, inner], b.value((1, 1, 4, 1), DType.FLOAT32))
    for outputs, count in (([total], 1), ([total, other], 3)):
        graph = b.graph([x, y, z], outputs)
        better = optimise(graph, Features())
        values = [rng.standard_normal((1, 3, 4, 8)).astype(np.float32) for _ in range(3)]
        assert len(better.nodes) <= count
        for got, want in zip(evaluate_graph(better, values), evaluate_graph(graph, values), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    alone = GraphBuilder.of(b.graph([x, y, z], [other]))
    graph = alone.graph([x, y, z], [other])  # y is an operand of what the reduction reads, and read by itself
    values = [rng.standard_normal((1, 3, 4, 8)).astype(np.float32) for _ in range(3)]
    np.testing.assert_allclose(
        evaluate_graph(optimise(graph, Features()), values)[0], evaluate_graph(graph, values)[0], rtol=1e-5, atol=1e-6
    )


def test_bias_activation_and_residual_become_the_epilogue() -> None:
    b = GraphBuilder()
    x = b.value((1, 8, 8, 4), DType.FLOAT32)
    y, z, out = (b.value((1, 8, 8, 4), DType.FLOAT32) for _ in range(3))
    b.node(Conv2D(padding=(1, 1)), [x, b.constant(np.ones((4, 3, 3, 4)))], y, ADD, [b.constant(np.ones(4))])
    b.node(Elementwise(), [], z, ADD, [y, x])
    b.node(Elementwise(), [], out, RELU, [z])
    graph = optimise(b.graph([x], [out]), Features())
    assert [type(n.op) for n in graph.nodes] == [Conv2D]


def test_instance_normalisation_is_two_reductions_and_one_pass_where_native_kernels_overlap() -> None:
    b = GraphBuilder()
    x = b.value((1, 8, 8, 4), DType.FLOAT32)
    mean, var, scale = (b.value((1, 1, 1, 4), DType.FLOAT32) for _ in range(3))
    square, centred, out = (b.value((1, 8, 8, 4), DType.FLOAT32) for _ in range(3))
    difference = apply("sub", Arg(0), Arg(1))
    b.node(Reduce("mean", (1, 2)), [x], mean)
    b.node(Elementwise(), [], square, apply("mul", difference, difference), [x, mean])
    b.node(Reduce("mean", (1, 2)), [square], var)
    b.node(Elementwise(), [], scale, apply("rsqrt", apply("add", Arg(0), 1e-5)), [var])
    b.node(Elementwise(), [], centred, difference, [x, mean])
    b.node(Elementwise(), [], out, apply("mul", Arg(0), Arg(1)), [centred, scale])
    graph = optimise(b.graph([x], [out]), Features(native="cuda"))
    assert [type(n.op) for n in graph.nodes] == [Reduce, Reduce, Elementwise]
    graph = optimise(b.graph([x], [out]), Features())
    assert [type(n.op) for n in graph.nodes] == [Moments, InstanceNorm]


def test_an_output_is_not_fused_away() -> None:
    b = GraphBuilder()
    x, y, z = (b.value((1, 4, 4, 4), DType.FLOAT32) for _ in range(3))
    b.node(Pool2D("max", (3, 3), (1, 1), (1, 1)), [x], y)
    b.node(Elementwise(), [], z, RELU, [y])
    assert len(optimise(b.graph([x], [y, z]), Features()).nodes) == 2


def test_fusion_respects_the_number_of_buffers() -> None:
    b = GraphBuilder()
    xs = [b.value((1, 4, 4, 4), DType.FLOAT32) for _ in range(12)]
    total = xs[0]
    for x in xs[1:]:
        y = b.value((1, 4, 4, 4), DType.FLOAT32)
        total = b.node(Elementwise(), [], y, ADD, [total, x])
    for limit in (4, 8, 32):
        graph = optimise(b.graph(xs, [total]), Features(max_buffers=limit))
        assert max(len(set(n.reads)) + 1 for n in graph.nodes) <= limit
        assert len(graph.nodes) <= -(-11 // (limit - 2))


@pytest.mark.parametrize("limit", [4, 5, 6])
@pytest.mark.parametrize("seed", range(25))
def test_kernels_of_a_random_graph_bind_no_more_buffers_than_there_are(seed: int, limit: int) -> None:
    program = build_program(Net(seed).graph(), Features(max_buffers=limit))
    assert max(len(kernel.access) for kernel in program.kernels) <= limit


def test_the_table_of_a_resize_is_a_buffer() -> None:
    """Input, table and output leave room for one operand of four buffers; a constant number needs none."""
    b = GraphBuilder()
    x = b.value((1, 4, 4, 4), DType.FLOAT32)
    operands = [b.value((1, 8, 8, 4), DType.FLOAT32) for _ in range(2)]
    y = b.node(Resize2D("bilinear"), [x], b.value((1, 8, 8, 4), DType.FLOAT32))
    for operand in (*operands, b.constant(np.full((1, 1, 1, 1), 3.0))):
        y = b.node(Elementwise(), [], b.value((1, 8, 8, 4), DType.FLOAT32), ADD, [y, operand])
    graph = b.graph([x, *operands], [y])
    for limit, kernels in ((4, 2), (5, 1)):
        program = build_program(graph, Features(max_buffers=limit))
        assert max(len(kernel.access) for kernel in program.kernels) <= limit
        assert len(program.dispatches) == kernels


def test_fused_functions_stay_readable() -> None:
    """A chain of 200 functions becomes kernels of at most 64; a long function of a small operand is computed once."""
    b = GraphBuilder()
    x = y = b.value((1, 4, 4, 4), DType.FLOAT32)
    for i in range(200):
        y = b.node(Elementwise(), [], b.value((1, 4, 4, 4), DType.FLOAT32), apply("add", Arg(0), float(i)), [y])
    sizes = [sum(isinstance(e, Apply) for e in walk(n.epilogue)) for n in optimise(b.graph([x], [y]), Features()).nodes]
    assert sum(sizes) == 200 and max(sizes) == 64

    for functions, kernels in ((8, 1), (9, 2)):
        b = GraphBuilder()
        x, row = b.value((1, 4, 4, 4), DType.FLOAT32), b.value((1, 1, 1, 4), DType.FLOAT32)
        small = row
        for _ in range(functions):
            small = b.node(Elementwise(), [], b.value((1, 1, 1, 4), DType.FLOAT32), apply("exp", Arg(0)), [small])
        y = b.node(Elementwise(), [], b.value((1, 4, 4, 4), DType.FLOAT32), ADD, [x, small])
        assert len(optimise(b.graph([x, row], [y]), Features()).nodes) == kernels


def test_paddings_with_different_values_stay_apart() -> None:
    b = GraphBuilder()
    x = b.value((1, 2, 2, 4), DType.FLOAT32)
    one = b.node(Copy((Pad((0, 1, 0, 0), (0, 0, 0, 0), 5.0),)), [x], b.value((1, 3, 2, 4), DType.FLOAT32))
    two = b.node(Copy((Pad((0, 0, 1, 0), (0, 0, 0, 0), -7.0),)), [one], b.value((1, 3, 3, 4), DType.FLOAT32))
    graph = b.graph([x], [two])
    values = [np.ones((1, 2, 2, 4), np.float32)]
    np.testing.assert_array_equal(
        evaluate_graph(optimise(graph, Features()), values)[0], evaluate_graph(graph, values)[0]
    )


@pytest.mark.parametrize("before, after", [
    ((0, 1, 1, 0), (0, 1, 1, 4)), ((0, 1, 1, 4), (0, 1, 1, 0)), ((1, 1, 1, 0), (0, 1, 1, 0)),
    ((0, 1, 1, 0), (1, 1, 1, 0)),
])  # fmt: skip
def test_only_rows_and_columns_are_a_convolution_s_padding(before, after) -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.value((1, 4, 5, 4), DType.FLOAT32)
    shape = tuple(n + i + j for n, i, j in zip((1, 4, 5, 4), before, after, strict=True))
    padded = b.node(Copy((Pad(before, after),)), [x], b.value(shape, DType.FLOAT32))
    weights = b.constant(rng.standard_normal((4, 3, 3, shape[3])))
    y = b.node(Conv2D(), [padded, weights], b.value((shape[0], 4, 5, 4), DType.FLOAT32))
    graph = b.graph([x], [y])
    values = [rng.standard_normal((1, 4, 5, 4)).astype(np.float32)]
    better = optimise(graph, Features())
    assert len(better.nodes) == 2
    np.testing.assert_allclose(evaluate_graph(better, values)[0], evaluate_graph(graph, values)[0], rtol=1e-5)


def test_transpositions_are_joined_in_order() -> None:
    rng = np.random.default_rng(0)
    for first, second in (((0, 2, 3, 1), (0, 3, 1, 2)), ((0, 2, 3, 1), (0, 2, 3, 1)), ((0, 3, 1, 2), (0, 1, 3, 2))):
        b = GraphBuilder()
        shape: tuple[int, ...] = (1, 3, 5, 4)
        x = y = b.value(shape, DType.FLOAT32)
        for perm in (first, second):
            shape = tuple(shape[p] for p in perm)
            y = b.node(Copy((Transpose(perm),)), [y], b.value(shape, DType.FLOAT32))
        graph = b.graph([x], [y])
        values = [rng.standard_normal((1, 3, 5, 4)).astype(np.float32)]
        better = optimise(graph, Features())
        assert len(better.nodes) == 1
        np.testing.assert_array_equal(evaluate_graph(better, values)[0], evaluate_graph(graph, values)[0])


@pytest.mark.parametrize("op", [
    Resize2D("nearest"), Resize2D("nearest", half_pixel_centers=True), Resize2D("nearest", align_corners=True),
    Resize2D("bilinear"),
])  # fmt: skip
@pytest.mark.parametrize("size", [(4, 6), (6, 12), (5, 7), (8, 15), (3, 5)])
def test_enlargements_of_every_kind_keep_their_function(op: Resize2D, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.value((1, 2, 3, 4), DType.FLOAT32)
    resized = b.node(op, [x], b.value((1, *size, 4), DType.FLOAT32))
    weights = b.constant(rng.standard_normal((4, 3, 3, 4)))
    y = b.node(Conv2D(padding=(1, 1)), [resized, weights], b.value((1, *size, 4), DType.FLOAT32))
    graph = b.graph([x], [y])
    values = [rng.standard_normal((1, 2, 3, 4)).astype(np.float32)]
    better = evaluate_graph(optimise(graph, Features()), values)[0]
    np.testing.assert_allclose(better, evaluate_graph(graph, values)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_mirrored_borders_and_enlargements_become_the_convolution_s_own(symmetric: bool, times: int) -> None:
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.value((2, 5, 4, 3), DType.FLOAT32)
    resized = builder.node(Resize2D("nearest"), [x], builder.value((2, 5 * times, 4 * times, 3), DType.FLOAT32))
    shape = (2, 5 * times + 3, 4 * times + 4, 3)
    mirrored = builder.node(
        Copy((Mirror((0, 2, 3, 0), (0, 1, 1, 0), symmetric),)), [resized], builder.value(shape, DType.FLOAT32)
    )
    weights = builder.constant(rng.standard_normal((4, 3, 2, 3)))
    out = builder.value((2, shape[1] - 2, shape[2] - 1, 4), DType.FLOAT32)
    graph = builder.graph([x], [builder.node(Conv2D(), [mirrored, weights], out)])
    optimised = optimise(graph, Features())
    (node,) = optimised.nodes
    assert node.op == Conv2D(padding=(2, 3), upsample=(times, times), border="symmetric" if symmetric else "reflect")
    values = [rng.standard_normal((2, 5, 4, 3)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(optimised, values)[0], evaluate_graph(graph, values)[0], rtol=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("window", "stride", "dilation", "beyond"),
    [
        ((3, 3), (2, 2), (1, 1), (1, 1)), ((2, 2), (1, 1), (1, 1), (1, 1)), ((2, 1), (1, 1), (1, 1), (1, 0)),
        ((1, 2), (1, 1), (1, 1), (0, 1)), ((3, 3), (3, 3), (1, 1), (1, 1)), ((2, 2), (1, 1), (3, 2), (0, 1)),
        ((3, 3), (2, 1), (1, 2), (0, 0)),
    ],
)  # fmt: skip
def test_zeros_behind_a_mirrored_border_stay_zeros(
    window: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    beyond: tuple[int, int],
    symmetric: bool,
) -> None:
    """SAME padding that falls behind the border alone, as of 3x3 windows with a stride of 2 on an even size."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.value((2, 6, 7, 3), DType.FLOAT32)
    inner = (6 + 3, 7 + 3)
    mirrored = builder.node(
        Copy((Mirror((0, 1, 2, 0), (0, 2, 1, 0), symmetric),)), [x], builder.value((2, *inner, 3), DType.FLOAT32)
    )
    weights = builder.constant(rng.standard_normal((4, *window, 3)))
    reached = [(size - 1) * by + 1 for size, by in zip(window, dilation, strict=True)]
    sizes = [(n + more - k) // by + 1 for n, more, k, by in zip(inner, beyond, reached, stride, strict=True)]
    out = builder.value((2, *sizes, 4), DType.FLOAT32)
    graph = builder.graph([x], [builder.node(Conv2D(stride, dilation), [mirrored, weights], out)])
    optimised = optimise(graph, Features())
    ends = [(n - 1) * by + k for n, by, k in zip(sizes, stride, reached, strict=True)]
    assert (len(optimised.nodes) == 1) == all(end <= n for end, n in zip(ends, inner, strict=True))
    values = [rng.standard_normal((2, 6, 7, 3)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(optimised, values)[0], evaluate_graph(graph, values)[0], rtol=1e-5)


def test_a_value_that_an_expression_reads_twice_is_fused_all_the_same() -> None:
    """x * sigmoid(x) of a convolution, and GELU by tanh, with a node for each of their functions."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    shape = (1, 4, 6, 8)

    def node(expression: Apply, *operands: int) -> int:
        return b.node(Elementwise(), (), b.value(shape, DType.FLOAT32), expression, operands)

    x = b.value(shape, DType.FLOAT32)
    weights = b.constant(rng.standard_normal((8, 1, 1, 8)))
    y = b.node(Conv2D(), [x, weights], b.value(shape, DType.FLOAT32))
    y = node(apply("mul", Arg(0), Arg(1)), y, node(apply("sigmoid", Arg(0)), y))
    y = b.node(Conv2D(), [y, weights], b.value(shape, DType.FLOAT32))
    cube = node(apply("mul", Arg(0), Arg(1)), node(apply("mul", Arg(0), Arg(0)), y), y)
    gate = node(apply("tanh", Arg(0)), node(ADD, y, node(apply("mul", Arg(0), 0.044715), cube)))
    y = node(apply("mul", Arg(0), Arg(1)), y, node(apply("add", Arg(0), 1.0), gate))
    graph = b.graph([x], [y])
    fused = optimise(graph, Features())
    assert [type(n.op) for n in fused.nodes] == [Conv2D, Conv2D]
    given = [rng.standard_normal(shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(fused, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-6)


def test_what_others_read_too_is_not_fused_away() -> None:
    """The convolution is a factor of what is fused, and another reduction reads it."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    shape = (1, 4, 6, 8)
    x = b.value(shape, DType.FLOAT32)
    weights = b.constant(rng.standard_normal((8, 1, 1, 8)))
    y = b.node(Conv2D(), [x, weights], b.value(shape, DType.FLOAT32))
    gate = b.node(Elementwise(), (), b.value(shape, DType.FLOAT32), apply("sigmoid", Arg(0)), [y])
    z = b.node(Elementwise(), (), b.value(shape, DType.FLOAT32), apply("mul", Arg(0), Arg(1)), [y, gate])
    largest = b.node(Reduce("max", (1, 2)), [y], b.value((1, 1, 1, 8), DType.FLOAT32))
    graph = b.graph([x], [z, largest])
    fused = optimise(graph, Features())
    assert [type(n.op) for n in fused.nodes] == [Conv2D, Elementwise, Reduce]
    given = [rng.standard_normal(shape).astype(np.float32)]
    for got, want in zip(evaluate_graph(fused, given), evaluate_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("channels", [8, 6])
def test_heads_are_joined_by_where_they_are_written(channels: int) -> None:
    """A product for each head, then the heads side by side: no kernel does that if their channels fill groups."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    q, k = (b.value((2, 3, 5, channels), DType.FLOAT32) for _ in range(2))
    square = b.constant(rng.standard_normal((2, 3, 5, 5)))
    y = b.node(MatMul(), [square, b.node(Elementwise(), (), b.value((2, 3, 5, channels), DType.FLOAT32), ADD, [q, k])],
               b.value((2, 3, 5, channels), DType.FLOAT32))  # fmt: skip
    steps = (Transpose((0, 2, 1, 3)), Reshape((2, 5, 3, channels), (1, 1, 10, 3 * channels)))
    joined = b.node(Copy(steps), [y], b.value((1, 1, 10, 3 * channels), DType.FLOAT32))
    weights = b.constant(rng.standard_normal((4, 1, 1, 3 * channels)))
    graph = b.graph([q, k], [b.node(Conv2D(), [joined, weights], b.value((1, 1, 10, 4), DType.FLOAT32))])
    placed = place(optimise(graph, Features()), half=False)
    kinds = [type(n.op) for n in placed.graph.nodes]
    assert kinds == [Elementwise, MatMul, *([Copy] if channels % 4 else []), Conv2D]
    given = [rng.standard_normal((2, 3, 5, channels)).astype(np.float32) for _ in range(2)]
    for got, want in zip(run_placed(placed, given), evaluate_graph(graph, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("epilogue", "window", "left"), [
    (RELU, 3, True), (apply("min", RELU, 6.0), 3, True), (apply("sigmoid", Arg(0)), 3, True),
    (apply("max", Arg(0), -1.0), 3, False), (apply("min", Arg(0), 6.0), 3, False), (RELU, 1, False),
])  # fmt: skip
def test_zeros_around_what_is_never_negative_are_a_maximum_s_padding(epilogue: Apply, window: int, left: bool) -> None:
    """As Keras's ResNet pads in front of its pooling: without a copy of the largest map. Else the padding counts, as it
    does for a window of padding alone, which has nothing else to take."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.value((1, 8, 9, 4), DType.FLOAT32)
    y = b.node(Elementwise(), [], b.value((1, 8, 9, 4), DType.FLOAT32), epilogue, [x])
    padded = b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0)),)), [y], b.value((1, 10, 11, 4), DType.FLOAT32))
    shape = (1, (10 - window) // 2 + 1, (11 - window) // 2 + 1, 4)
    pool = b.node(Pool2D("max", (window, window), (2, 2)), [padded], b.value(shape, DType.FLOAT32))
    graph = b.graph([x], [pool])
    better = optimise(graph, Features())
    assert [type(n.op) for n in better.nodes] == [Elementwise, Pool2D]
    assert getattr(better.nodes[1].op, "outside", 1) == (None if left else 0)
    given = [rng.standard_normal((1, 8, 9, 4)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate_graph(better, given)[0], evaluate_graph(graph, given)[0])


@pytest.mark.parametrize(("kind", "fill", "absorbed"), [
    ("average", 0.0, True), ("average", 1.0, False), ("squares", 0.0, False), ("max", -3.0, True),
    ("max", -3.5e38, True),
])  # fmt: skip
def test_padding_counts_in_poolings(kind: str, fill: float, absorbed: bool) -> None:
    """PyTorch's averages count their padding, and its maxima are padded by the lowest number, which is not seen."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.value((1, 8, 9, 4), DType.FLOAT32)
    padded = b.node(Copy((Pad((0, 2, 1, 0), (0, 1, 1, 0), fill),)), [x], b.value((1, 11, 11, 4), DType.FLOAT32))
    graph = b.graph([x], [b.node(Pool2D(kind, (3, 3), (2, 2)), [padded], b.value((1, 5, 5, 4), DType.FLOAT32))])
    better = absorb_padding(graph)
    assert len(better.nodes) == (1 if absorbed else 2)
    assert (getattr(better.nodes[-1].op, "outside", 1) is None) == (not absorbed or fill < -1e38)
    given = [rng.standard_normal((1, 8, 9, 4)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate_graph(better, given)[0], evaluate_graph(graph, given)[0])


@pytest.mark.parametrize(("dtype", "bottom", "zero", "left"), [
    (DType.INT8, 0, -128, True), (DType.UINT8, -7, 0, True), (DType.INT8, 0, -3, True), (DType.INT8, -125, -3, False),
])  # fmt: skip
def test_bytes_around_what_is_never_less_are_a_maximum_s_padding(
    dtype: DType, bottom: int, zero: int, left: bool
) -> None:
    """The lowest byte never counts, another zero point where limits behind the rounding are no lower."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.value((1, 8, 9, 4), DType.FLOAT32)
    limited = apply("min", apply("max", Arg(0), float(bottom)), float(bottom + 255))
    rounded = apply("add", apply("nearest", limited), Literal(zero, DType.INT32))
    y = b.node(Elementwise(), [], b.value((1, 8, 9, 4), dtype), rounded, [x])
    padded = b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0), zero),)), [y], b.value((1, 10, 11, 4), dtype))
    graph = b.graph([x], [b.node(Pool2D("max", (3, 3), (2, 2)), [padded], b.value((1, 4, 5, 4), dtype))])
    better = absorb_padding(graph)
    assert [type(n.op) for n in better.nodes] == [Elementwise, *([] if left else [Copy]), Pool2D]
    given = [rng.uniform(-200, 200, (1, 8, 9, 4)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate_graph(better, given)[0], evaluate_graph(graph, given)[0])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("before", "after", "dilation"), [(4, 0, 2), (1, 3, 2), (2, 0, 1)])
def test_causal_convolutions_along_time_pad_themselves(batch: int, before: int, after: int, dilation: int) -> None:
    """PAD of [batch, n, d], and a RESHAPE to pictures of one row."""
    b, rng, n, d = GraphBuilder(), np.random.default_rng(0), 9, 4
    whole = n + before + after
    x = b.value((1, batch, n, d), DType.FLOAT32)
    steps = (
        Reshape((1, batch, n, d), (batch, n, d)),
        Pad((0, before, 0), (0, after, 0)),
        Reshape((batch, whole, d), (batch, 1, whole, d)),
    )
    padded = b.node(Copy(steps), [x], b.value((batch, 1, whole, d), DType.FLOAT32))
    weights = b.constant(rng.standard_normal((8, 1, 3, d)).astype(np.float32))
    y = b.value((batch, 1, whole - 2 * dilation, 8), DType.FLOAT32)
    graph = b.graph([x], [b.node(Conv2D(dilation=(1, dilation)), [padded, weights], y)])
    better = absorb_padding(graph)
    op = better.nodes[-1].op
    assert isinstance(op, Conv2D) and op.padding == (0, before)
    moved = [step for node in better.nodes[:-1] if isinstance(node.op, Copy) for step in node.op.steps]
    assert all(isinstance(step, Reshape) for step in moved)
    given = [rng.standard_normal((1, batch, n, d)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate_graph(better, given)[0], evaluate_graph(graph, given)[0])


@pytest.mark.parametrize(("channels", "copies"), [(64, 1), (8, 0)])
def test_a_transposition_takes_the_sum_behind_it_into_its_tiles(channels: int, copies: int) -> None:
    """MLP-Mixer's residuals: an elementwise kernel would read the view of the product an element at a time."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x, other = b.value((1, 2, 48, channels), DType.FLOAT32), b.value((1, 2, channels, 48), DType.FLOAT32)
    turned, y = (b.value((1, 2, channels, 48), DType.FLOAT32) for _ in range(2))
    b.node(Copy((Transpose((0, 1, 3, 2)),)), [x], turned)
    b.node(Elementwise(), [], y, apply("add", Arg(0), Arg(1)), [turned, other])
    graph = b.graph([x, other], [y])
    fused = fuse_elementwise(graph, 8)
    assert sum(isinstance(n.op, Elementwise) for n in fused.nodes) == 1 - copies
    assert [n.operands for n in fused.nodes if isinstance(n.op, Copy)] == [(other,) if copies else ()]
    inputs = [rng.standard_normal(graph.values[v].shape) for v in graph.inputs]
    np.testing.assert_allclose(evaluate_graph(fused, inputs)[0], evaluate_graph(graph, inputs)[0])
