"""Squeeze-and-excite of bytes in two kernels, equal to the definition in NumPy in every element."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected
from gpu.backends.cuda.kernels.test_runs import scaled
from gpu.backends.cuda.kernels.test_specialized import stored

from litegpu.gpu.backends.cuda.kernels import byte_excite, byte_squeeze, overlapped
from litegpu.gpu.backends.cuda.kernels.byte_excite import ByteExciteTile
from litegpu.gpu.backends.cuda.kernels.byte_squeeze import ByteSqueezeTile
from litegpu.gpu.backends.cuda.native import CudaNative
from litegpu.gpu.backends.cuda.passes import byte_excite as passes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerExcite,
    Lookup,
    Reduce,
    apply,
    whole,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.tables import join_tables

HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132, cache_bytes=50 << 20)
#: Shape of what is gated, and results of the first layer.
CASES = {
    "sixteen at once": ((2, 9, 7, 32), 8),
    "eight at once": ((1, 5, 5, 40), 10),
    "four at once": ((3, 4, 5, 20), 6),
    "three slices": ((1, 7, 6, 96), 4),
    "many channels": ((1, 6, 5, 272), 20),
    "a line": ((2, 1, 31, 48), 12),
}


def network(
    shape: tuple[int, ...], results: int, kind: DType, *, looked_up: bool = True, both: bool = False, taps: int = 0
) -> tuple[Graph, np.ndarray]:
    """Bytes -> a layer -> perhaps a depthwise convolution with `taps` x `taps` -> their mean -> two layers, perhaps
    `looked_up` -> their product with it, perhaps with a number for each channel and a value of another layer added
    (`both`)."""
    rng, builder = np.random.default_rng(3), GraphBuilder()
    lowest = 0 if kind is DType.UINT8 else -128
    batch, height, width, channels = shape

    def bytes_of(size: tuple[int, ...]) -> int:
        return builder.value(size, kind)

    def layer(source: int, outputs: int, zero_point: int, *, table: bool) -> int:
        depth = builder.values[source].shape[3]
        weights = builder.constant(rng.integers(-127, 128, (outputs, 1, 1, depth)).astype(np.int8), narrow=True)
        bias = builder.constant(rng.integers(-2999, 2999, (1, 1, 1, outputs)).astype(np.int32))
        factor = builder.constant(rng.uniform(0.005, 0.02, (1, 1, 1, outputs)).astype(np.float32))
        expr = scaled(apply("add", RESULT, Arg(1)), lowest + 100, kind)
        out = bytes_of((*builder.values[source].shape[:3], outputs))
        builder.node(IntegerConv2D(zero_point=zero_point), [source, weights], out, expr, [bias, factor])
        if not table:
            return out
        numbers = builder.constant((rng.permutation(256) + lowest).astype(np.int32).reshape(1, 1, 1, 256))
        return builder.node(Lookup(lowest), [out, numbers], bytes_of((batch, 1, 1, outputs)))

    def depthwise(source: int, zero_point: int) -> int:
        quanta = rng.integers(-127, 128, (1, taps, taps, channels)).astype(np.int32)
        bias = builder.constant(rng.integers(-2999, 2999, (1, 1, 1, channels)).astype(np.int32))
        factor = builder.constant(rng.uniform(0.005, 0.02, (1, 1, 1, channels)).astype(np.float32))
        op = IntegerDepthwiseConv2D(padding=(taps // 2, taps // 2), zero_point=zero_point)
        expr = scaled(apply("add", RESULT, Arg(1)), lowest + 60, kind)
        return builder.node(op, [source, builder.constant(quanta)], bytes_of(shape), expr, [bias, factor])

    given = bytes_of((batch, height, width, 16))
    x = layer(given, channels, lowest + 60, table=False)
    if taps:
        x = depthwise(x, lowest + 60)
    mean = apply("mul", apply("to_float32", RESULT), 1.3 / (height * width))
    mean = apply("nearest", apply("min", apply("max", mean, float(lowest)), float(lowest + 255)))
    squeezed = builder.node(Reduce("sum", (1, 2)), [x], bytes_of((batch, 1, 1, channels)), mean)
    inner = layer(squeezed, results, lowest + 3, table=looked_up)
    gates = layer(inner, channels, lowest + 90, table=looked_up)
    product = apply("mul", apply("sub", Arg(0), whole(lowest + 20)), apply("sub", Arg(1), whole(lowest)))
    gated: Expr = apply("nearest", apply("small", apply("mul", apply("to_float32", product), 0.004)))
    operands = [x, gates]
    outputs = []
    if both:
        other = layer(given, channels, lowest + 50, table=False)
        outputs.append(layer(other, 4, lowest, table=False))  # or it would be added to
        operands += [other, builder.constant(rng.integers(-9, 9, (1, 1, 1, channels)).astype(np.int32))]
        gated = apply("add", apply("add", gated, apply("shift_right", Arg(2), whole(1))), Arg(3))
    y = builder.node(Elementwise(), [], bytes_of(shape), apply("add", gated, whole(lowest + 7)), operands)
    return builder.graph([given], [layer(y, 16, lowest + 7, table=False), *outputs]), stored(
        rng, (batch, height, width, 16), kind
    )


def check(device: Any, graph: Graph, numbers: np.ndarray, kernels: set[str]) -> None:
    program = build_program(graph, device.features, "cuda", half=False)
    assert {k.name for k in program.kernels if k.name.endswith("_of_bytes")} == kernels
    want = expected(graph, {graph.inputs[0]: numbers})
    got = first_output(device, program, [numbers], want.shape, numbers.dtype)
    assert len(np.unique(want)) > 30
    np.testing.assert_array_equal(got, want)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of large batches, whose kernels do not overlap."""
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of single images."""
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: True)


BOTH = {"squeeze_of_bytes", "excite_of_bytes"}


@pytest.mark.cuda
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", CASES)
def test_cases(device: Any, case: str, kind: DType) -> None:
    check(device, *network(*CASES[case], kind), BOTH)


@pytest.mark.cuda
@pytest.mark.usefixtures("apart")
def test_another_value_is_added(device: Any) -> None:
    check(device, *network(*CASES["three slices"], DType.INT8, looked_up=False, both=True), BOTH)


@pytest.mark.cuda
@pytest.mark.usefixtures("together")
def test_where_kernels_overlap(device: Any) -> None:
    """The mean is a kernel of its own, and so is the first layer."""
    check(device, *network(*CASES["three slices"], DType.INT8), {"excite_of_bytes", "vector_of_bytes"})


@pytest.mark.cuda
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("lanes", [4, 32])
@pytest.mark.parametrize("split", byte_squeeze.SPLITS)
@pytest.mark.parametrize("threads", byte_squeeze.THREADS)
def test_every_division(device: Any, monkeypatch: pytest.MonkeyPatch, threads: int, split: int, lanes: int) -> None:
    if split > 1 and device.features.capability < 90:
        pytest.skip("needs clusters")
    monkeypatch.setattr(
        byte_squeeze, "ranked", lambda *a: [ByteSqueezeTile(threads, split, lanes, a[4] if a[4:] else 4)]
    )
    case = "many channels" if lanes == 32 else "sixteen at once"
    check(device, *network(*CASES[case], DType.INT8), BOTH)


TILES = [
    ByteExciteTile(8, 1, 63, 16),
    ByteExciteTile(8, 16, 20, 16),
    ByteExciteTile(4, 4, 63, 16),
    ByteExciteTile(16, 2, 7, 16),
]


@pytest.mark.cuda
@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_some_tiles(device: Any, monkeypatch: pytest.MonkeyPatch, tile: ByteExciteTile) -> None:
    """Of all, some and more quads than there are, with pixels left over."""
    assert tile.threads % 32 == 0
    monkeypatch.setattr(byte_excite, "ranked", lambda *a: [tile])
    check(device, *network(*CASES["sixteen at once"], DType.INT8), BOTH)


@pytest.mark.cuda
@pytest.mark.parametrize("overlapping", [True, False])
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", CASES)
def test_who_computes_the_bytes_adds_them_up(
    device: Any, monkeypatch: pytest.MonkeyPatch, case: str, kind: DType, overlapping: bool
) -> None:
    """All of it behind that is one kernel."""
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: overlapping)
    monkeypatch.setattr(passes, "PIXELS_OF_A_COPY", 12)  # and several copies of the sums
    monkeypatch.setattr(passes, "PIXELS_OF_A_RESULT", 0)
    graph, numbers = network(*CASES[case], kind, taps=5 if case == "a line" else 3, both=case == "many channels")
    program = build_program(graph, device.features, "cuda", half=False)
    names = [program.kernels[d.kernel].name for d in program.dispatches]
    assert names.count("excite_of_bytes") == names.count("byte_depthwise") == 1 and "squeeze_of_bytes" not in names
    assert "reduce" not in names and sum("SUMS_AT" in k.source for k in program.kernels) >= 2
    want = expected(graph, {graph.inputs[0]: numbers})
    session = device.session(program)
    try:
        for _ in range(3):  # sums begin with zero each time
            got = np.zeros(want.shape, want.dtype)
            session.write(0, numbers)
            session.run()
            session.read(0, got)
            np.testing.assert_array_equal(got, want)
    finally:
        session.close()


@pytest.mark.cuda
@pytest.mark.usefixtures("together")
def test_two_blocks_add_up_side_by_side(device: Any) -> None:
    """Each has its part of the memory of sums."""
    first, numbers = network((2, 9, 7, 32), 8, DType.INT8, taps=3)
    second, _ = network((2, 9, 7, 16), 4, DType.INT8, taps=3)
    builder = GraphBuilder.of(first)
    moved = {v: builder._add(x.shape, x.dtype, x.data, "", None) for v, x in second.values.items()}
    moved[second.inputs[0]] = first.outputs[0]
    for node in second.nodes:
        inputs, operands = ([moved[v] for v in of] for of in (node.inputs, node.operands))
        builder.node(node.op, inputs, moved[node.output], node.epilogue, operands)
    graph = builder.graph(first.inputs, [moved[second.outputs[0]]])
    program = build_program(graph, device.features, "cuda", half=False)
    names = [program.kernels[d.kernel].name for d in program.dispatches]
    assert names.count("excite_of_bytes") == names.count("byte_depthwise") == 2
    want = expected(graph, {graph.inputs[0]: numbers})
    np.testing.assert_array_equal(first_output(device, program, [numbers], want.shape, numbers.dtype), want)


@pytest.mark.cuda
@pytest.mark.parametrize("overlapping", [True, False])
def test_two_blocks_of_one_value(device: Any, monkeypatch: pytest.MonkeyPatch, overlapping: bool) -> None:
    """Its sums are added up for one of them."""
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: overlapping)
    graph, numbers = network((1, 9, 7, 32), 3, DType.INT8, taps=3)
    builder = GraphBuilder.of(graph)
    (mean,) = (n for n in graph.nodes if isinstance(n.op, Reduce))
    again = {mean.output}  # and all behind it
    for node in graph.nodes[graph.nodes.index(mean) :]:
        again.add(node.output)
    moved = {v: builder.value(graph.values[v].shape, graph.values[v].dtype) for v in again}
    for node in graph.nodes:
        if node.output in again:
            inputs, operands = ([moved.get(v, v) for v in of] for of in (node.inputs, node.operands))
            epilogue = node.epilogue
            if node is mean:
                epilogue = apply("min", epilogue, whole(50))
            builder.node(node.op, inputs, moved[node.output], epilogue, operands)
    both = builder.node(
        Concat(3), [graph.outputs[0], moved[graph.outputs[0]]], builder.value((1, 9, 7, 32), DType.INT8)
    )
    twice = builder.graph(graph.inputs, [both])
    program = build_program(twice, device.features, "cuda", half=False)
    names = [program.kernels[d.kernel].name for d in program.dispatches]
    assert names.count("excite_of_bytes") == 2 and names.count("byte_depthwise") == 1
    want = expected(twice, {twice.inputs[0]: numbers})
    np.testing.assert_array_equal(first_output(device, program, [numbers], want.shape, numbers.dtype), want)


@pytest.mark.parametrize("overlapping", [True, False])
def test_the_definition_of_what_is_joined(monkeypatch: pytest.MonkeyPatch, overlapping: bool) -> None:
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: overlapping)
    for kind in (DType.INT8, DType.UINT8):
        for taps in (0, 3):
            graph, numbers = network(*CASES["three slices"], kind, both=True, taps=taps)
            found = CudaNative().join_bytes(join_tables(graph, 16), HOPPER)
            assert {type(n.op) for n in found.nodes} > {IntegerExcite}
            np.testing.assert_array_equal(evaluate_graph(found, [numbers])[0], evaluate_graph(graph, [numbers])[0])


@pytest.mark.usefixtures("together")
def test_where_nothing_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large first layers, and depthwise convolutions that the kernel cannot do, are left as they were."""

    def sums(graph: Graph) -> bool:
        found = CudaNative().join_bytes(graph, HOPPER)
        return any(isinstance(n.op, IntegerExcite) and n.op.squeezed is not None for n in found.nodes)

    def one(shape: tuple[int, ...], results: int, taps: int) -> Graph:
        return network(shape, results, DType.INT8, looked_up=False, taps=taps)[0]

    assert sums(one((1, 7, 7, 96), 4, 3))
    assert not sums(one((1, 7, 7, 96), 4, 0))
    assert not sums(one((1, 7, 7, 96), 4, 7))
    assert sums(one((1, 7, 7, 1152), 48, 3)) and not sums(one((1, 7, 7, 1152), 288, 3))
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)
    assert sums(one((1, 7, 7, 96), 6, 3)) and not sums(one((1, 7, 7, 96), 7, 3))
    graph = one((1, 7, 7, 96), 4, 3)
    mean = next(n.output for n in graph.nodes if isinstance(n.op, Reduce))
    assert not sums(GraphBuilder.of(graph).graph(graph.inputs, [*graph.outputs, mean]))


def joined(graph: Graph, features: Features = HOPPER) -> list[str]:
    found = CudaNative().join_bytes(graph, features)
    return [type(n.op).__name__ for n in found.nodes if type(n.op).__name__ in ("IntegerSqueeze", "IntegerExcite")]


def without_tables(shape: tuple[int, ...], results: int) -> Graph:
    return network(shape, results, DType.INT8, looked_up=False)[0]


@pytest.mark.usefixtures("apart")
def test_what_is_joined() -> None:
    shape, results = CASES["three slices"]
    graph = without_tables(shape, results)
    assert joined(graph) == ["IntegerSqueeze", "IntegerExcite"]
    assert joined(graph, dataclasses.replace(HOPPER, capability=60)) == []
    assert joined(without_tables((1, 2, 2, 32), 8)) == ["IntegerExcite"]  # more results than pixels
    assert joined(without_tables((1, 1, 1, 32), 1)) == ["IntegerSqueeze"]  # nothing that gates could be computed for
    assert joined(without_tables((1, 6, 6, 30), 8)) == ["IntegerSqueeze"]  # no quads
    big = without_tables((1, 64, 64, 64), 8)
    assert joined(big) == joined(graph)
    assert joined(big, dataclasses.replace(HOPPER, capability=80)) == ["IntegerExcite"]  # without clusters


@pytest.mark.usefixtures("apart")
@pytest.mark.parametrize("what", ["mean", "gates"])
def test_what_others_read_stays(what: str) -> None:
    graph = without_tables(*CASES["three slices"])
    mean, gates = (next(n.output for n in graph.nodes if isinstance(n.op, kind)) for kind in (Reduce, IntegerConv2D))
    if what == "gates":
        gates = [n.output for n in graph.nodes if isinstance(n.op, IntegerConv2D)][2]
    value = mean if what == "mean" else gates
    more = GraphBuilder.of(graph).graph(graph.inputs, [*graph.outputs, value])
    assert joined(more) == (["IntegerExcite"] if what == "mean" else ["IntegerSqueeze"])
    builder = GraphBuilder.of(graph)
    size = graph.values[value].shape
    other = builder.node(Elementwise(), [], builder.value(size, DType.INT8), apply("neg", Arg(0)), [value])
    assert joined(builder.graph(graph.inputs, [*graph.outputs, other])) == joined(more)


@pytest.mark.usefixtures("together")
def test_where_kernels_wait_the_mean_is_by_itself() -> None:
    assert joined(without_tables(*CASES["three slices"])) == ["IntegerExcite"]


def test_tiles_have_all_of_it() -> None:
    for shape, results in ((1, 112, 112, 32), 8), ((64, 7, 7, 1152), 48), ((3, 14, 14, 480), 20):
        tiles = byte_squeeze.ranked(shape, results, 90, 132, 16)
        assert tiles and all(t.rows(shape) * t.runs(shape) <= t.threads for t in tiles)
        assert all(t.results(results) * t.split >= results for t in tiles)
        found = byte_excite.ranked(shape, results, 90, 132, 16)
        assert found and all(t.items * t.down >= t.pixels and t.threads % 32 == 0 for t in found)
        assert all(t.groups(shape)[0] * t.quads * 4 >= shape[3] for t in found)
