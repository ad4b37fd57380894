"""1x1 convolutions that normalise the rows that they multiply, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import columns, convolution, overlapped, persistent, specialized
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.persistent import StayingTile
from litegpu.gpu.backends.cuda.kernels.row_norm import folded
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.tile import WorkgroupTile
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    PointwiseConv2D,
    Reduce,
    Reshape,
    Slice,
    Step,
    Take,
    Transpose,
    apply,
)
from litegpu.gpu.graph.movement import step_shape
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
SCALED = apply("add", apply("mul", RESULT, Arg(1)), Arg(2))
BIASED = apply("add", RESULT, Arg(1))


def network(
    shape, outputs: int, *, affine: Expr = SCALED, centred=True, mean=0.5, biased: Expr | None = BIASED, readers=1,
    steps: tuple[Step, ...] = (), before: tuple[Step, ...] = (), epsilon=1e-6, also_read=False, seed=0,
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """x -> 1x1 convolution (identity) -> `before` -> normalised, `affine` -> `steps` -> 1x1 convolutions, `biased` with
    what the identity gave as Arg(2). The mean of the identity is an output as well."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    c = shape[3]
    x = builder.value(shape, DType.FLOAT32)
    eye = builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
    inner = first = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    if before:
        for step in before:
            shape = step_shape(step, shape)
        inner, c = builder.node(Copy(before), [inner], builder.value(shape, DType.FLOAT32)), shape[3]
    scale = builder.constant(rng.uniform(0.5, 2, (1, 1, 1, c)) * rng.choice([-1, 1], c))
    shift = builder.constant(rng.standard_normal((1, 1, 1, c)))
    norm = LayerNorm(epsilon, centred)
    operands = [scale, shift] if affine != RESULT else []
    ready = builder.node(norm, [inner], builder.value(shape, DType.FLOAT32), affine, operands)
    made = [ready] if also_read else []
    if steps:
        moved = shape
        for step in steps:
            moved = step_shape(step, moved)
        ready, shape = builder.node(Copy(steps), [ready], builder.value(moved, DType.FLOAT32)), moved
    for _ in range(readers):
        weights = builder.constant(rng.standard_normal((outputs, 1, 1, c)) / np.sqrt(c))
        bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
        out = builder.value((*shape[:3], outputs), DType.FLOAT32)
        made.insert(0, builder.node(Conv2D(), [ready, weights], out, biased or RESULT, [bias] if biased else []))
    given = builder.values[x].shape
    average = builder.value((given[0], 1, 1, given[3]), DType.FLOAT32)
    made.append(builder.node(Reduce("mean", (1, 2)), [first], average))
    value = rng.standard_normal(given) + mean * rng.standard_normal(given[3])
    return builder.graph([x], made), [value.astype(np.float32)]


def check(device, graph: Graph, inputs: list[np.ndarray], *, kernel: str = "", most: float = 2e-3) -> None:
    program = build_program(graph, device.features, "cuda", half=True)
    assert not any("layer_norm" in d.label for d in program.dispatches), [d.label for d in program.dispatches]
    joint = [k for k in program.kernels if "struct RowMoments {" in k.source]
    assert joint
    assert all(k.name == kernel for k in joint) or not kernel
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)


def only(monkeypatch, module, chosen) -> None:
    """Let 1x1 convolutions with a norm have this tile of that kernel."""
    for other in (specialized, persistent):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(module, "ranked", lambda layer, *_: [chosen] if getattr(layer, "norm", True) else [])
    monkeypatch.setattr(module, "cost", lambda *_: 0.0)


def needs_warpgroups(device) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")


@pytest.mark.cuda
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("shape, outputs", [((2, 9, 8, 72), 44), ((3, 5, 7, 37), 21), ((2, 4, 5, 12), 64),
                                            ((1, 1, 1, 96), 10)], ids=str)  # fmt: skip
def test_chosen_kernels(device, shape, outputs: int, centred: bool) -> None:
    """By what is estimated to be best: channels in whole chunks, odd ones, half chunks; one row."""
    check(device, *network(shape, outputs, centred=centred))


@pytest.mark.cuda
@pytest.mark.parametrize("centred, channels", [(True, 64), (True, 100), (False, 200), (True, 200)])
@pytest.mark.parametrize("tile", [(64, 32, 1, 4, 4), (128, 64, 2, 3, 3), (128, 128, 1, 2, 2), (256, 128, 2, 4, 1),
                                  (64, 64, 1, 3, 4, 2)], ids=str)  # fmt: skip
def test_specialized(device, monkeypatch, channels: int, centred: bool, tile: tuple[int, ...]) -> None:
    needs_warpgroups(device)
    graph, inputs = network((3, 9, 11, channels), 136, centred=centred)
    only(monkeypatch, specialized, SpecializedTile(*tile))
    check(device, graph, inputs, kernel="specialized_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("centred, channels", [(True, 32), (True, 100), (False, 192), (True, 192)])
@pytest.mark.parametrize("tile", [(64, 32, 1, 4, 2, 32), (128, 64, 2, 2, 1, 64), (64, 128, 3, 2, 1, 64)], ids=str)
def test_persistent(device, monkeypatch, channels: int, centred: bool, tile: tuple[int, ...]) -> None:
    needs_warpgroups(device)
    graph, inputs = network((3, 9, 11, channels), 136, centred=centred)
    only(monkeypatch, persistent, StayingTile(*tile))
    monkeypatch.setattr(persistent, "lanes", lambda layer, tile, units: (2, 2.0))
    check(device, graph, inputs, kernel="persistent_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("centred, channels", [(True, 3), (True, 40), (False, 200), (True, 200)])
@pytest.mark.parametrize("tile", [
    (16, 16, 64, (1, 1, 4), 3), (64, 48, 32, (4, 1, 1), 2), (128, 96, 16, (4, 2, 1), 4), (64, 64, 128, (2, 2, 2), 2),
    (128, 64, 64, (4, 1, 1), 3, True),
], ids=str)  # fmt: skip
def test_tiles(device, monkeypatch, channels: int, centred: bool, tile) -> None:
    if tile[-1] is True:
        needs_warpgroups(device)
    graph, inputs = network((3, 5, 7, channels), 36, centred=centred)
    for other in (specialized, persistent):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(convolution, "ranked", lambda *_: [WorkgroupTile(*tile)])
    check(device, graph, inputs, kernel="tensor_convolution")


@pytest.mark.cuda
def test_rows_far_from_zero(device) -> None:
    """Where the mean is eight times as large as what is left, float16 has taken three bits of that already."""
    check(device, *network((2, 9, 8, 192), 64, mean=0.0, affine=RESULT))
    graph, (x,) = network((2, 9, 8, 192), 64, mean=0.0)
    check(device, graph, [(x + 8).astype(np.float16).astype(np.float32)], most=4e-3)
    check(device, graph, [x * 1000], most=2e-3)
    check(device, graph, [np.full_like(x, 3.0)], most=2e-3)  # nothing is left, neither of the weights


@pytest.mark.cuda
def test_nan_stays_in_its_row(device) -> None:
    graph, (x,) = network((2, 5, 9, 44), 64)
    x[0, 2, 4, 7], x[1, 0, 0, 43] = np.nan, np.nan
    program = build_program(graph, device.features, "cuda", half=True)
    assert any("struct RowMoments {" in k.source for k in program.kernels)
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = np.zeros((2, 5, 9, 64), bool)
    want[0, 2, 4], want[1, 0, 0] = True, True
    np.testing.assert_array_equal(np.isnan(got), want)


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_compiles(capability: int) -> None:
    for pixels, centred in ((7, True), (400, False)):
        features = dataclasses.replace(CUDA, capability=capability)
        program = build_program(network((2, 8, pixels, 192), 256, centred=centred)[0], features, "cuda", half=True)
        kernels = [k for k in program.kernels if "struct RowMoments {" in k.source]
        assert kernels
        assert all(compile_kernels(kernels, capability))


def joint(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many convolutions normalise; the graph computes the same."""
    optimised = optimise(graph, features, half)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    found = sum(isinstance(n.op, PointwiseConv2D) and n.op.norm is not None for n in optimised.nodes)
    assert found == 0 or not any(isinstance(n.op, LayerNorm) for n in optimised.nodes)
    return found


GELU = apply("mul", BIASED, apply("sigmoid", BIASED))


@pytest.mark.parametrize("biased", [None, BIASED, GELU, apply("mul", RESULT, Arg(1)), apply("mul", BIASED, Arg(1)),
                                    apply("max", BIASED, RESULT)], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "affine", [SCALED, RESULT, apply("mul", RESULT, Arg(1)), apply("sub", RESULT, Arg(2))], ids=str
)
def test_joined(affine: Expr, biased: Expr | None) -> None:
    assert joint(network((2, 5, 6, 12), 16, affine=affine, biased=biased)[0]) == 1


def test_a_shift_joins_the_bias() -> None:
    for biased, constants in ((BIASED, 1), (GELU, 1), (apply("mul", BIASED, Arg(1)), 2), (None, 1)):
        graph = optimise(network((2, 5, 6, 12), 16, biased=biased)[0], CUDA, True)
        (node,) = [n for n in graph.nodes if isinstance(n.op, PointwiseConv2D)]
        assert len(node.operands) == constants


def test_joined_only_where_a_kernel_is() -> None:
    graph, _ = network((2, 5, 6, 12), 16, readers=3)
    assert joint(graph) in (1, 3)  # siblings may be one
    for features, half in ((CUDA, False), (dataclasses.replace(CUDA, capability=70), True), (Features(), True)):
        assert joint(graph, features, half) == 0
    assert joint(network((2, 5, 6, 12), 16, also_read=True)[0]) == 0
    assert joint(network((2, 5, 6, 12), 16, affine=apply("max", SCALED, 0.0))[0]) == 0


def test_wide_rows_are_joined_where_they_are_kept(monkeypatch) -> None:
    """Those of more channels by columns.cu alone, of many rows and outputs and without a residual."""
    shape = (1, 1, 24, 264)

    def inside(graph: Graph) -> Graph:
        """The same with its first output an intermediate."""
        builder = GraphBuilder(dict(graph.values), list(graph.nodes))
        v, *others = graph.outputs
        c = graph.values[v].shape[3]
        last = builder.constant(np.full((8, 1, 1, c), 1 / c, np.float32))
        out = builder.node(Conv2D(), [v, last], builder.value((*graph.values[v].shape[:3], 8), DType.FLOAT32))
        return builder.graph(list(graph.inputs), [out, *others])

    assert joint(inside(network(shape, 640)[0])) == 0
    monkeypatch.setattr(columns, "LEAST_ROWS", 24)
    assert joint(inside(network(shape, 640)[0])) == 1
    assert joint(network(shape, 640)[0]) == 0  # results in float32
    assert joint(inside(network(shape, 640)[0]), dataclasses.replace(CUDA, capability=80)) == 0
    assert joint(inside(network(shape, 320)[0])) == 0
    assert joint(inside(network((1, 1, 24, 520), 640)[0])) == 0
    monkeypatch.setattr(columns, "LEAST_OUTPUTS", 264)
    square = network(shape, 264)[0]
    assert joint(inside(square)) == 1
    *nodes, last, mean = square.nodes
    added = dataclasses.replace(last, epilogue=apply("add", BIASED, Arg(2)), operands=(*last.operands, nodes[0].output))
    residual = GraphBuilder(square.values, [*nodes, added, mean]).graph(square.inputs, square.outputs)
    assert joint(inside(residual)) == 0


def test_what_moves_rows_moves_them_before() -> None:
    shape = (2, 6, 4, 12)
    windows = (Reshape(shape, (2, 3, 2, 4, 12)), Transpose((0, 2, 1, 3, 4)), Reshape((2, 2, 3, 4, 12), (4, 3, 4, 12)))
    turned = (Transpose((0, 1, 3, 2)), Reshape((2, 6, 12, 4), (2, 6, 4, 12)))
    split = (Reshape(shape, (2, 6, 2, 24)), Reshape((2, 6, 2, 24), shape))
    shifted = (Take(1, (2, 3, 4, 5, 0, 1)), *windows)
    swapped = (Take(3, tuple(range(11, -1, -1))),)
    some = (Slice((0, 1, 0, 0), (1, 1, 1, 1), (2, 2, 4, 12)),)
    for steps, joins in ((windows, 1), ((Reshape(shape, (1, 1, 48, 12)),), 1), (turned, 0),
                         (shifted, 1), (swapped, 0)):  # fmt: skip
        assert joint(network(shape, 16, steps=steps)[0]) == joins
    assert joint(network(shape, 16, steps=split)[0]) == 1  # which moves nothing
    assert joint(network(shape, 16, steps=some)[0]) == 0


@pytest.mark.cuda
def test_moved_rows(device) -> None:
    shape = (2, 6, 4, 64)
    windows = (Reshape(shape, (2, 3, 2, 4, 64)), Transpose((0, 2, 1, 3, 4)), Reshape((2, 2, 3, 4, 64), (4, 3, 4, 64)))
    check(device, *network(shape, 36, steps=windows))


SHIFTED = (Take(1, (4, 5, 0, 1, 2, 3)), Reshape((2, 6, 4, 64), (2, 3, 2, 4, 64)), Transpose((0, 2, 1, 3, 4)),
           Reshape((2, 2, 3, 4, 64), (4, 3, 4, 64)))  # fmt: skip


@pytest.fixture
def overlapping(monkeypatch) -> None:
    for module in (convolution, overlapped):
        monkeypatch.setattr(module, "will_overlap", will_overlap)


def test_rows_are_found_where_they_were(overlapping) -> None:
    """Where kernels overlap, and only of what puts every row somewhere."""
    for steps, copies in ((SHIFTED, 0), ((Take(1, (0, 0, 1, 2, 3, 5)),), 1)):
        graph = network((2, 6, 4, 64), 36, steps=steps)[0]
        assert joint(graph) == 1
        nodes = optimise(graph, CUDA, True).nodes
        assert sum(isinstance(n.op, Copy) for n in nodes) == copies
        assert any(isinstance(n.op, PointwiseConv2D) and bool(n.op.fetched) for n in nodes) == (copies == 0)


SQUARES = (Reshape((2, 6, 4, 40), (2, 3, 2, 2, 2, 40)), Transpose((0, 1, 3, 4, 2, 5)),
           Reshape((2, 3, 2, 2, 2, 40), (2, 3, 2, 160)))  # fmt: skip


def test_joined_squares_are_windows(overlapping) -> None:
    """Of rows that a copy made of two by two pixels, column by column."""
    graph = network((2, 6, 4, 40), 24, before=SQUARES)[0]
    assert joint(graph) == 1
    nodes = optimise(graph, CUDA, True).nodes
    assert not any(isinstance(n.op, Copy) for n in nodes)
    assert any(isinstance(n.op, PointwiseConv2D) and n.op.stride == (2, 2) for n in nodes)
    others = (Reshape((2, 6, 4, 40), (2, 3, 2, 2, 2, 40)), Transpose((0, 1, 3, 4, 5, 2)),
              Reshape((2, 3, 2, 2, 40, 2), (2, 3, 2, 160)))  # fmt: skip
    graph = network((2, 6, 4, 40), 24, before=others)[0]
    assert any(isinstance(n.op, LayerNorm) for n in optimise(graph, CUDA, True).nodes)


@pytest.mark.cuda
@pytest.mark.parametrize("tile", [SpecializedTile(64, 32, 1, 4, 4), WorkgroupTile(32, 32, 64, (1, 1, 4), 3)], ids=str)
def test_windows_of_squares(device, monkeypatch, overlapping, tile) -> None:
    needs_warpgroups(device)
    only_this(monkeypatch, tile)
    graph, inputs = network((2, 6, 4, 40), 136, before=SQUARES)
    check(device, graph, inputs, kernel="specialized_convolution" if tile.stages == 4 else "tensor_convolution")


@pytest.mark.parametrize(
    "depth, rows, expected", [(256, 30, 1), (384, 30, 1), (1536, 30, 1), (1540, 30, 0), (384, 8, 0)]
)
def test_how_deep(overlapping, depth: int, rows: int, expected: int) -> None:
    """Where kernels overlap, up to 1024 channels, but not where a vector's kernel is the quickest."""
    graph = network((1, 1, rows, depth), 16)[0]
    found = [n for n in optimise(graph, CUDA, True).nodes if isinstance(n.op, PointwiseConv2D)]
    assert len(found) == expected


@pytest.mark.cuda
@pytest.mark.parametrize("tile", [SpecializedTile(64, 32, 1, 4, 4), SpecializedTile(64, 64, 1, 3, 4, 2),
                                  WorkgroupTile(32, 32, 64, (1, 1, 4), 3)], ids=str)  # fmt: skip
def test_rows_where_they_were(device, monkeypatch, overlapping, tile) -> None:
    needs_warpgroups(device)
    only_this(monkeypatch, tile)
    graph, inputs = network((2, 6, 4, 64), 136, steps=SHIFTED)
    divided = isinstance(tile, SpecializedTile)
    check(device, graph, inputs, kernel="specialized_convolution" if divided else "tensor_convolution")


def only_this(monkeypatch, tile) -> None:
    divided = isinstance(tile, SpecializedTile)
    monkeypatch.setattr(specialized, "ranked", lambda layer, *_: [tile] if divided and layer.norm else [])
    monkeypatch.setattr(specialized, "cost", lambda *_: 0.0)
    monkeypatch.setattr(
        convolution, "ranked", lambda *_: [WorkgroupTile(64, 64, 64, (2, 2, 2), 2) if divided else tile]
    )
    monkeypatch.setattr(overlapped, "tiles", lambda *_: [])
    monkeypatch.setattr(overlapped, "divisions", lambda *_: [])
    monkeypatch.setattr(overlapped, "CLEARLY", 1e9)


def test_folded_weights_keep_their_digits() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((8, 1, 1, 24)) * 1e-5 + 3e-5).astype(np.float32)
    for centred in (True, False):
        norm, ready = folded(LayerNorm(1e-6, centred), weights)
        assert 1 <= np.abs(ready).max() < 2
        want = weights - weights.mean(axis=3, keepdims=True) if centred else weights
        np.testing.assert_allclose(ready * norm.scale, want, rtol=3e-3, atol=1e-8)
        np.testing.assert_array_equal(ready, ready.astype(np.float16))
    assert folded(LayerNorm(1e-6), np.zeros((8, 1, 1, 24), np.float32))[0].scale == 1


@pytest.mark.parametrize("outputs, depth", [(5, 3), (16, 192), (8, 768)])
def test_folded_weights_have_no_sum(outputs: int, depth: int) -> None:
    weights = np.random.default_rng(0).standard_normal((outputs, 1, 1, depth)).astype(np.float32)
    _, ready = folded(LayerNorm(1e-6), weights)
    assert np.abs(ready.astype(np.float64).sum(axis=3)).max() <= (2.0**-11 if depth < 100 else 2.0**-16)
