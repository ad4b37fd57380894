"""Elementwise work moves in front of copies and concatenations that are views, to the kernels that can do it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    Literal,
    MatMul,
    Pad,
    Pool2D,
    Reshape,
    Transpose,
    apply,
    whole,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.raising import raise_elementwise

RELU = apply("max", Arg(0), 0.0)
ADD = apply("add", Arg(0), Arg(1))
RNG = np.random.default_rng(0)


def value(b: GraphBuilder, *shape: int) -> int:
    return b.value(shape, DType.FLOAT32)


def convolution(b: GraphBuilder, x: int, outputs: int) -> int:
    weights = b.constant(RNG.standard_normal((outputs, 1, 1, b.values[x].shape[3])).astype(np.float32))
    return b.node(Conv2D(), [x, weights], value(b, *b.values[x].shape[:3], outputs))


def same(before: Graph, after: Graph) -> None:
    inputs = [RNG.standard_normal(before.values[v].shape).astype(np.float32) for v in before.inputs]
    for a, b in zip(evaluate_graph(before, inputs), evaluate_graph(after, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def kernels(graph: Graph) -> int:
    return len(build_program(graph, Features()).dispatches)


def test_through_reshapes_into_a_concatenation() -> None:
    """What SSD's heads do: each convolution is reshaped, joined with others, and a function follows."""
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    parts = []
    for outputs in (8, 16):
        y = convolution(b, x, outputs)
        shape = (1, 1, 16 * outputs // 4, 4)
        parts.append(b.node(Copy((Reshape(b.values[y].shape, shape),)), [y], value(b, *shape)))
    joined = b.node(Concat(2), parts, value(b, 1, 1, 96, 4))
    graph = b.graph([x], [b.node(Elementwise(), (), value(b, 1, 1, 96, 4), RELU, [joined])])
    raised = raise_elementwise(graph)
    same(graph, raised)
    assert isinstance(raised.nodes[-1].op, Concat)
    assert kernels(graph) == 2


def test_stays_where_others_read_what_comes_before() -> None:
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    y = convolution(b, x, 8)
    flat = b.node(Copy((Reshape((1, 4, 4, 8), (1, 1, 16, 8)),)), [y], value(b, 1, 1, 16, 8))
    end = b.node(Elementwise(), (), value(b, 1, 1, 16, 8), RELU, [flat])
    graph = b.graph([x], [end, flat])
    assert [type(n.op) for n in raise_elementwise(graph).nodes] == [type(n.op) for n in graph.nodes]


def test_stays_behind_copies_that_move_or_fill() -> None:
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    padded = b.node(Copy((Pad((0, 1, 1, 0), (0, 1, 1, 0), 3.0),)), [x], value(b, 1, 6, 6, 8))
    graph = b.graph([x], [b.node(Elementwise(), (), value(b, 1, 6, 6, 8), apply("neg", Arg(0)), [padded])])
    assert [type(n.op) for n in raise_elementwise(graph).nodes] == [Copy, Elementwise]
    assert raise_elementwise(graph).nodes[-1].epilogue != RESULT


@pytest.mark.parametrize("shared", range(4))
def test_not_over_parts_that_others_read(shared: int) -> None:
    """A function of three joined values becomes theirs, unless two of them would need kernels of their own for that."""
    b = GraphBuilder()
    shape = (1, 2, 2, 4)
    x = b.value(shape, DType.FLOAT32)
    weights = b.constant(np.eye(4).reshape(4, 1, 1, 4))
    parts = [b.node(Conv2D(), [x, weights], b.value(shape, DType.FLOAT32)) for _ in range(3)]
    joined = b.node(Concat(3), parts, b.value((1, 2, 2, 12), DType.FLOAT32))
    out = b.node(Elementwise(), [], b.value((1, 2, 2, 12), DType.FLOAT32), apply("max", Arg(0), 0.0), [joined])
    raised = raise_elementwise(b.graph([x], [out, *parts[:shared]]))
    functions = [n for n in raised.nodes if isinstance(n.op, Elementwise)]
    assert len(functions) == (3 if shared <= 1 else 1)
    values = [np.random.default_rng(0).standard_normal(shape).astype(np.float32)]
    for got, want in zip(evaluate_graph(raised, values), evaluate_graph(b.graph([x], [out, *parts[:shared]]), values),
                         strict=True):  # fmt: skip
        np.testing.assert_array_equal(got, want)


def _projected(b: GraphBuilder, batch: int = 2) -> tuple[int, int]:
    """The graph's input, and a product of its rows as a matrix, seen as (batch, 5 rows, 2 heads, 8)."""
    x = value(b, 1, 1, batch * 5, 16)
    y = convolution(b, x, 16)
    return x, b.node(Copy((Reshape((1, 1, batch * 5, 16), (batch, 5, 2, 8)),)), [y], value(b, batch, 5, 2, 8))


def test_biases_and_scales_behind_heads_reach_the_product() -> None:
    """As Keras's einsums come out: a bias for each head and a scale, behind the reshape to heads."""
    b = GraphBuilder()
    x, y = _projected(b)
    bias, scale = b.constant(RNG.standard_normal((2, 8)).astype(np.float32)), b.constant(np.array(0.25, np.float32))
    y = b.node(Elementwise(), (), value(b, 2, 5, 2, 8), apply("add", Arg(0), Arg(1)), [y, bias])
    turned = b.node(Copy((Transpose((0, 2, 1, 3)),)), [y], value(b, 2, 2, 5, 8))
    out = b.node(Elementwise(), (), value(b, 2, 2, 5, 8), apply("mul", Arg(0), Arg(1)), [turned, scale])
    graph = b.graph([x], [out])
    raised = raise_elementwise(graph)
    same(graph, raised)
    assert [type(n.op) for n in raised.nodes] == [Conv2D, Elementwise, Elementwise, Copy]
    shapes = [raised.values[v].shape for n in raised.nodes for v in n.operands if raised.values[v].is_constant]
    assert shapes == [(1, 1, 1, 16), (1, 1, 1, 1)]


def test_residuals_of_another_shape_reach_the_product() -> None:
    """What is added is a view of rows, so that two layers need no kernel but their products."""
    b = GraphBuilder()
    rows, batch = (1, 1, 10, 16), (1, 2, 5, 16)
    x = y = value(b, *batch)
    for _ in range(2):
        flat = b.node(Copy((Reshape(batch, rows),)), [y], value(b, *rows))
        back = b.node(Copy((Reshape(rows, batch),)), [convolution(b, flat, 16)], value(b, *batch))
        y = b.node(Elementwise(), (), value(b, *batch), apply("add", Arg(0), Arg(1)), [back, y])
    graph = b.graph([x], [y])
    same(graph, raise_elementwise(graph))
    assert kernels(graph) == 2


@pytest.mark.parametrize("constant", [(2, 1, 1, 1), (1, 5, 2, 8)])
def test_constants_that_would_grow_stay_behind_a_reshape(constant: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x, y = _projected(b)
    other = b.constant(RNG.standard_normal(constant).astype(np.float32))
    y = b.node(Elementwise(), (), value(b, 2, 5, 2, 8), apply("add", Arg(0), Arg(1)), [y, other])
    raised = raise_elementwise(b.graph([x], [y]))
    assert [type(n.op) for n in raised.nodes] == [Conv2D, Copy, Elementwise]


def test_a_vector_for_each_place_reaches_a_convolution_along_time_whatever_the_batch() -> None:
    """Rows of a picture of one row, seen as rows of a matrix for each of the batch: as many numbers as nobody looks at
    one by one."""
    b = GraphBuilder()
    x = value(b, 1 << 12, 1, 200, 32)
    y = b.node(Copy((Reshape((1 << 12, 1, 200, 32), (1, 1 << 12, 200, 32)),)), [convolution(b, x, 32)], 
               value(b, 1, 1 << 12, 200, 32))  # fmt: skip
    places = b.constant(RNG.standard_normal((200, 32)).astype(np.float32))
    graph = b.graph([x], [b.node(Elementwise(), (), b.value(b.values[y].shape, DType.FLOAT32), ADD, [y, places])])
    raised = raise_elementwise(graph)
    assert [type(n.op) for n in raised.nodes] == [Conv2D, Elementwise, Copy]
    assert raised.values[raised.nodes[1].operands[1]].shape == (1, 1, 200, 32)


def test_values_stay_where_their_channels_do_not_fill_groups() -> None:
    """A reshape to channels of another number, no multiple of four, is no view."""
    b = GraphBuilder()
    rows, other = (1, 1, 10, 16), (1, 1, 80, 2)
    x, z = value(b, *rows), value(b, *other)
    back = b.node(Copy((Reshape(rows, other),)), [convolution(b, x, 16)], value(b, *other))
    y = b.node(Elementwise(), (), value(b, *other), apply("add", Arg(0), Arg(1)), [back, z])
    raised = raise_elementwise(b.graph([x, z], [y]))
    assert [type(n.op) for n in raised.nodes] == [Conv2D, Copy, Elementwise]


def test_sums_of_two_products_do_not_go_back_and_forth() -> None:
    """One is reshaped to the shape of the other, which comes along through a reshape back."""
    b = GraphBuilder()
    rows, batch = (1, 1, 10, 16), (1, 2, 5, 16)
    x, z = value(b, *rows), value(b, *batch)
    back = b.node(Copy((Reshape(rows, batch),)), [convolution(b, x, 16)], value(b, *batch))
    parts = [back, convolution(b, z, 16)]
    y = b.node(Elementwise(), (), value(b, *batch), apply("add", Arg(0), Arg(1)), parts)
    graph = b.graph([x, z], [y])
    same(graph, raise_elementwise(graph))
    assert kernels(graph) == 2


def test_a_constant_is_divided_among_what_is_joined() -> None:
    """As positions are added behind a class token: the token with its own is a constant."""
    b = GraphBuilder()
    x = value(b, 1, 1, 4, 8)
    weights = b.constant(RNG.standard_normal((8, 1, 1, 8)).astype(np.float32))
    patches = b.node(Conv2D(), [x, weights], value(b, 1, 1, 4, 8))
    token = b.constant(RNG.standard_normal((1, 1, 1, 8)).astype(np.float32))
    joined = b.node(Concat(2), [token, patches], value(b, 1, 1, 5, 8))
    places = b.constant(RNG.standard_normal((1, 1, 5, 8)).astype(np.float32))
    channels = b.constant(RNG.standard_normal((1, 1, 1, 8)).astype(np.float32))
    y = b.node(Elementwise(), (), value(b, 1, 1, 5, 8), apply("add", Arg(0), Arg(1)), [joined, places])
    y = b.node(Elementwise(), (), value(b, 1, 1, 5, 8), apply("mul", Arg(0), Arg(1)), [y, channels])
    graph = b.graph([x], [y])
    found = optimise(graph, Features())
    assert [type(n.op) for n in found.nodes] == [Conv2D, Concat]
    given = [RNG.standard_normal((1, 1, 4, 8)).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-5, atol=1e-6)


def test_a_gate_that_is_read_twice_passes_a_reshape() -> None:
    """Swish behind a convolution along time: LOGISTIC and MUL read what was reshaped, and are one function first."""
    b = GraphBuilder()
    x = value(b, 1, 1, 4, 8)
    weights = b.constant(RNG.standard_normal((8, 1, 1, 8)).astype(np.float32))
    y = b.node(Conv2D(), [x, weights], value(b, 1, 1, 4, 8))
    y = b.node(Copy((Reshape((1, 1, 4, 8), (1, 4, 1, 8)),)), [y], value(b, 1, 4, 1, 8))
    gate = b.node(Elementwise(), (), value(b, 1, 4, 1, 8), apply("sigmoid", Arg(0)), [y])
    z = b.node(Elementwise(), (), value(b, 1, 4, 1, 8), apply("mul", Arg(0), Arg(1)), [y, gate])
    z = b.node(Pool2D("max", (2, 1), (1, 1)), [z], value(b, 1, 3, 1, 8))
    found = optimise(b.graph([x], [z]), Features())
    assert [type(n.op) for n in found.nodes] == [Conv2D, Copy, Pool2D]
    assert found.nodes[0].epilogue == apply("mul", Arg(0), apply("sigmoid", Arg(0)))


@pytest.mark.parametrize("shared", [24, 8])
def test_what_would_stay_apart_is_the_smaller_part(shared: int) -> None:
    """DenseNet's layers normalize all that came before, which others read as well: to do so with what is new alone
    would leave a kernel for nearly all of it, and nothing for who reads it to do."""
    b = GraphBuilder()
    x = value(b, 1, 4, 4, 8)
    old, new = convolution(b, x, shared), convolution(b, x, 8)
    joined = b.node(Concat(3), [old, new], value(b, 1, 4, 4, shared + 8))
    factor = b.constant(RNG.standard_normal((1, 1, 1, shared + 8)).astype(np.float32))
    y = b.node(Elementwise(), (), value(b, 1, 4, 4, shared + 8), apply("mul", Arg(0), Arg(1)), [joined, factor])
    graph = b.graph([x], [y, b.node(Pool2D("max", (2, 2), (2, 2)), [old], value(b, 1, 2, 2, shared))])
    raised = raise_elementwise(graph)
    same(graph, raised)
    assert isinstance(raised.producer()[y].op, Concat) == (shared == 8)


@pytest.mark.parametrize("dtype", [np.bool_, np.int32])
def test_constants_of_other_types_that_no_shape_holds_stay_behind_a_reshape(dtype: type) -> None:
    """Every sixth element of rows of four."""
    b = GraphBuilder()
    x = value(b, 1, 2, 3, 4)
    y = convolution(b, x, 4)
    flat = b.node(Copy((Reshape((1, 2, 3, 4), (1, 1, 4, 6)),)), [y], value(b, 1, 1, 4, 6))
    kept = b.constant(np.array([1, 0, 0, 0, 0, 0], dtype).reshape(1, 1, 1, 6))
    truth = Arg(0) if dtype is np.bool_ else apply("ne", Arg(0), Literal(0, DType.INT32))
    end = b.node(Elementwise(), (), value(b, 1, 1, 4, 6), apply("select", truth, Arg(1), 0.0), [kept, flat])
    graph = b.graph([x], [end])
    raised = raise_elementwise(graph)
    assert [type(n.op) for n in raised.nodes] == [type(n.op) for n in graph.nodes]
    same(graph, raised)


def heads_joined(size: int = 8, *, read: bool = False) -> Graph:
    """The heads of a product side by side, and a function of each element; perhaps the product has another reader."""
    b = GraphBuilder()
    x, y = value(b, 2, 3, 5, 6), value(b, 2, 3, 6, size)
    product = b.node(MatMul(), [x, y], value(b, 2, 3, 5, size))
    steps = (Transpose((0, 2, 1, 3)), Reshape((2, 5, 3, size), (1, 2, 5, 3 * size)))
    joined = b.node(Copy(steps), [product], value(b, 1, 2, 5, 3 * size))
    result = b.node(Elementwise(), [], value(b, 1, 2, 5, 3 * size), RELU, [joined])
    last = convolution(b, result, 8)
    return b.graph([x, y], [last, product] if read else [last])


def test_what_follows_heads_that_are_joined_belongs_to_their_product() -> None:
    """LeViT's attentions: the product is written where its heads are side by side, so nothing is copied."""
    graph = heads_joined()
    after = raise_elementwise(graph)
    assert [type(n.op) for n in after.nodes] == [MatMul, Elementwise, Copy, Conv2D]
    same(graph, after)
    assert kernels(graph) == 2


@pytest.mark.parametrize("graph", [heads_joined(6), heads_joined(read=True)], ids=["parts of quads", "read twice"])
def test_what_follows_heads_that_are_copied_stays(graph: Graph) -> None:
    assert [type(n.op) for n in raise_elementwise(graph).nodes] == [MatMul, Copy, Elementwise, Conv2D]


def of_bytes(kept: DType = DType.INT8) -> Graph:
    """A layer of bytes whose results are reshaped, scaled, and added to others, which come in the new shape."""
    b = GraphBuilder()
    x, y, other = (b.value(s, DType.INT8) for s in ((1, 4, 6, 8), (1, 4, 6, 16), (1, 1, 24, 16)))
    weights = b.constant(RNG.integers(-9, 9, (16, 1, 1, 8)).astype(np.int8), narrow=True)
    byte = apply("min", apply("max", apply("shift_right", RESULT, whole(4)), whole(-128)), whole(127))
    b.node(IntegerConv2D(zero_point=3), [x, weights], y, byte)
    moved, scaled, added = b.value((1, 1, 24, 16), DType.INT8), b.value((1, 1, 24, 16), kept), value(b, 1, 1, 24, 16)
    b.node(Copy((Reshape((1, 4, 6, 16), (1, 1, 24, 16)),)), [y], moved)
    half = apply("shift_right", apply("add", apply("mul", Arg(0), Arg(1)), whole(32)), whole(6))
    b.node(
        Elementwise(),
        (),
        scaled,
        apply("min", apply("max", half, whole(-128)), whole(127)),
        [moved, b.constant(np.array(50))],
    )
    b.node(Elementwise(), (), added, apply("to_float32", apply("add", Arg(0), Arg(1))), [scaled, other])
    return b.graph([x, other], [added])


def test_functions_of_bytes_pass_what_moves_them() -> None:
    graph = of_bytes()
    for node in graph.nodes[2:3]:
        alone = dataclasses.replace(graph, nodes=graph.nodes[:3], outputs=(node.output,), inputs=graph.inputs[:1])
        raised = raise_elementwise(alone)
        assert [type(n.op) for n in raised.nodes] == [IntegerConv2D, Elementwise, Copy]
        assert raised.values[raised.nodes[1].output].dtype is DType.INT8
    inputs = [RNG.integers(-128, 128, graph.values[v].shape).astype(np.int8) for v in graph.inputs]
    for made in (raise_elementwise(graph), optimise(graph, Features())):
        np.testing.assert_array_equal(evaluate_graph(made, inputs)[0], evaluate_graph(graph, inputs)[0])


def test_a_residual_of_bytes_in_another_shape_is_in_the_epilogue_of_the_layer() -> None:
    graph = of_bytes()
    last = dataclasses.replace(graph.values[graph.outputs[0]], dtype=DType.INT8)
    added = dataclasses.replace(graph.nodes[-1], epilogue=apply("min", apply("max", ADD, whole(-128)), whole(127)))
    graph = dataclasses.replace(graph, values={**graph.values, last.id: last}, nodes=(*graph.nodes[:-1], added))
    made = optimise(graph, Features())
    assert [type(n.op) for n in made.nodes if not isinstance(n.op, Copy)] == [IntegerConv2D]
    inputs = [RNG.integers(-128, 128, graph.values[v].shape).astype(np.int8) for v in graph.inputs]
    np.testing.assert_array_equal(evaluate_graph(made, inputs)[0], evaluate_graph(graph, inputs)[0])


def test_functions_from_bytes_to_other_types_stay_behind_what_moves_them() -> None:
    graph = of_bytes(DType.INT32)
    raised = raise_elementwise(dataclasses.replace(graph, nodes=graph.nodes[:3], outputs=(graph.nodes[2].output,)))
    assert [type(n.op) for n in raised.nodes] == [IntegerConv2D, Copy, Elementwise]
