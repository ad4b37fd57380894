"""Reductions over any axes, with prologue and epilogue; accuracy of long sums; special values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node, lay_out, run_node

from litegpu.gpu.graph import RESULT, Arg, DType, Expr, GraphBuilder, Reduce, Shape, apply
from litegpu.gpu.kernels import reduce
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang.features import Features

AXES = [axes for n in range(1, 5) for axes in itertools.combinations(range(4), n)]


def reduced(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if a in axes else n for a, n in enumerate(shape))


def run(kind: str, axes: tuple[int, ...], x: np.ndarray, epilogue: Expr = RESULT) -> np.ndarray:
    dtype = DType.FLOAT32 if x.dtype.kind == "f" else DType.INT32
    builder = GraphBuilder()
    a, y = builder.value(x.shape, dtype), builder.value(reduced(x.shape, axes), dtype)
    builder.node(Reduce(kind, axes), [a], y, epilogue)
    graph = builder.graph([a], [y])
    return run_node(graph, lay_out(graph), {a: x})


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("kind", ("sum", "mean", "max", "min", "prod"))
def test_axes(kind: str, axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    shapes: tuple[tuple[int, ...], ...] = ((2, 3, 5, 6), (1, 7, 4, 4), (2, 5, 1, 1), (1, 6, 7, 17))
    for shape in shapes:
        builder = GraphBuilder()
        x, y = builder.value(shape, DType.FLOAT32), builder.value(reduced(shape, axes), DType.FLOAT32)
        builder.node(Reduce(kind, axes), [x], y, apply("add", RESULT, 0.25))
        check_node(
            builder, {x: rng.uniform(0.5, 1.5, shape)}, packed_values=(x,) if shape[0] == 1 else (), interpret=True
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", ((1, 2), (3,), (1, 3), (2,)))
def test_layouts(layout: str, axes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(6)
    for channels, half in ((3, False), (8, True)):
        shape = (2, 9, 11, channels)
        target = reduced(shape, axes)
        builder = GraphBuilder()
        x, y = builder.value(shape, DType.FLOAT32), builder.value(target, DType.FLOAT32)
        builder.node(Reduce("sum", axes), [x], y)
        stored = DType.FLOAT16 if half else DType.FLOAT32
        views = {x: LAYOUTS[layout](0, shape, stored), y: LAYOUTS[layout](1, target, DType.FLOAT32)}
        check_node(builder, {x: rng.uniform(0.5, 1.5, shape)}, views=views, interpret=True)


def test_prologue_of_broadcast_inputs_and_epilogue_operands() -> None:
    """The variance of an instance normalisation: mean of squared differences, then rsqrt(v + epsilon) * scale."""
    rng = np.random.default_rng(7)
    shape = (2, 12, 10, 5)
    builder = GraphBuilder()
    x, mean = builder.value(shape, DType.FLOAT32), builder.value((2, 1, 1, 5), DType.FLOAT32)
    scale, y = builder.constant(rng.uniform(1, 2, 5)), builder.value((2, 1, 1, 5), DType.FLOAT32)
    difference = apply("sub", Arg(0), Arg(1))
    epilogue = apply("mul", apply("rsqrt", apply("add", RESULT, 1e-3)), Arg(1))
    builder.node(Reduce("mean", (1, 2), apply("mul", difference, difference)), [x, mean], y, epilogue, [scale])
    data = rng.standard_normal(shape)
    check_node(builder, {x: data, mean: data.mean((1, 2), keepdims=True)}, interpret=True)


@pytest.mark.parametrize("axes", ((1, 2), (1, 2, 3)))
def test_long_sums_are_accurate(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(8).uniform(0, 1, (1, 500, 500, 4)).astype(np.float32)
    expected = x.astype(np.float64).sum(axes, keepdims=True)
    np.testing.assert_allclose(run("sum", axes, x), expected, rtol=1e-6)


def test_a_thread_per_result_is_accurate_too() -> None:
    x = np.random.default_rng(9).uniform(0, 1, (1, 300, 9000, 1)).astype(np.float32)
    expected = x.astype(np.float64).sum(1, keepdims=True)
    np.testing.assert_allclose(run("sum", (1,), x), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ("sum", "max", "min", "prod"))
@pytest.mark.parametrize("axes", ((3,), (1, 2), (0, 1, 2, 3)))
def test_int32(kind: str, axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(4).integers(-(2**31), 2**31, (2, 9, 8, 6)).astype(np.int32)
    expected = getattr(np, kind)(x, axis=axes, keepdims=True).astype(np.int32)
    np.testing.assert_array_equal(run(kind, axes, x), expected)


def test_int32_mean_rounds_toward_zero() -> None:
    x = np.array([-3, -4, 5, 2], np.int32).reshape(1, 2, 1, 2)
    np.testing.assert_array_equal(run("mean", (1,), x).ravel(), [1, -1])


@pytest.mark.parametrize("count", (4, 5, 300))
def test_extremes_of_special_values(count: int) -> None:
    """A NaN never hides a number; nothing but NaN is NaN; infinities count."""
    x = np.zeros((1, count, 4, 1), np.float32)
    x[:, :, 1], x[:, :, 2], x[:, :, 3] = np.nan, -np.inf, np.inf
    x[0, 0, 0], x[0, -1, 0], x[0, 1, 0] = np.nan, np.nan, -3
    np.testing.assert_array_equal(run("max", (1,), x).ravel(), [0, np.nan, -np.inf, np.inf])
    np.testing.assert_array_equal(run("min", (1,), x).ravel(), [-3, np.nan, -np.inf, np.inf])
    assert np.isnan(run("sum", (1,), x).ravel()[:2]).all()


def test_padding_takes_no_part() -> None:
    x = -np.ones((1, 1, 3, 5), np.float32)
    assert run("max", (3,), x).ravel().tolist() == [-1] * 3
    assert run("prod", (2, 3), x).ravel().tolist() == [-1]
    assert run("mean", (1, 2, 3), x).ravel().tolist() == [-1]


WARPS = Features(
    subgroups=True,
    subgroup_size=32,
    linear_subgroups=True,
    max_threads=1024,
    max_shared_bytes=48 << 10,
    compute_units=2,
)


@pytest.mark.parametrize("features", (WARPS, Features(compute_units=2)))
@pytest.mark.parametrize("kind", ("mean", "max"))
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((3, 9, 7, 150), (1, 2)),  # 32 of 38 quads side by side: two workgroups share an image
        ((2, 25, 30, 24), (1, 2)),  # full rounds of loads, some without the last, and a rest
        ((9, 14, 1, 65), (1,)),
        ((5, 40, 1, 90), (3,)),  # teams of eight threads
        ((1, 70, 1, 610), (3,)),  # of a subgroup
        ((1, 3, 1, 3000), (3,)),  # of several
        ((1, 1, 1, 9001), (3,)),
        ((1, 64, 1, 16400), (3,)),  # of all, though results are many
    ],
)
def test_teams(shape: Shape, axes: tuple[int, ...], kind: str, features: Features) -> None:
    rng = np.random.default_rng(8)
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(reduced(shape, axes), DType.FLOAT32)
    builder.node(Reduce(kind, axes), [x], y, apply("mul", RESULT, 2.0))
    check_node(builder, {x: rng.uniform(0.5, 1.5, shape)}, features=features, interpret=True, device=features != WARPS)


def test_few_results_of_many_pixels_have_many_rows() -> None:
    """Of one image few results fill no device by themselves: more threads share each, which still read whole sectors.
    Of many images nothing changes."""
    features = Features(max_threads=1024, compute_units=132)

    def workgroup(batch: int) -> tuple[int, int]:
        builder = GraphBuilder()
        x, y = builder.value((batch, 56, 56, 96), DType.FLOAT32), builder.value((batch, 1, 1, 96), DType.FLOAT32)
        builder.node(Reduce("mean", (1, 2)), [x], y)
        graph = builder.graph([x], [y])
        launch = reduce.build(KernelContext(graph, graph.nodes[0], lay_out(graph), features))[0]
        return launch.kernel.workgroup[0], launch.kernel.dispatch[0]

    assert workgroup(1) == (4 * 128, 6)
    assert workgroup(64)[1] == 64 * 24 / 6


def test_few_results_of_many_channels_have_all_threads_of_a_workgroup() -> None:
    """A warp by itself would take long for each. Where results are many, or short, teams stay small."""
    features = Features(max_threads=1024, compute_units=132)

    def threads(results: int, channels: int) -> float:
        """Of a result."""
        builder = GraphBuilder()
        x, y = builder.value((1, results, 1, channels), DType.FLOAT32), builder.value((1, results, 1, 1), DType.FLOAT32)
        builder.node(Reduce("mean", (3,)), [x], y)
        graph = builder.graph([x], [y])
        launch = reduce.build(KernelContext(graph, graph.nodes[0], lay_out(graph), features))[0]
        return launch.kernel.workgroup[0] * launch.kernel.dispatch[0] / results

    assert threads(64, 1 << 16) == threads(1000, 1 << 16) == 512
    assert threads(64, 4096) == threads(4096, 1 << 16) == 32
