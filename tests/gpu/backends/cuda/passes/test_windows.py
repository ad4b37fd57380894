"""1x1 convolutions that a larger one beside them does, against the definition in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.kernels import overlapped
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, Expr, Graph, GraphBuilder, IntegerConv2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
RELU = apply("max", apply("add", RESULT, Arg(1)), 0.0)


def network(
    *, windows=(1, 3), stride=1, dilation=1, padding=1, more=0, size=9, outputs=16, batch=1, other: Expr = RELU,
    also_read=False, twice=None,
) -> Graph:  # fmt: skip
    """x -> convolutions with these windows, ReLU, side by side (and behind `more` channels of x). `twice`: the axis
    along which another output has x beside itself."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    x = builder.value((batch, size, size, 8), DType.FLOAT32)
    width = (size - 1) // stride + 1
    parts = []
    for i, n in enumerate(windows):
        op = Conv2D(
            (stride, stride), (dilation, dilation) if n > 1 else (1, 1), (padding, padding) if n > 1 else (0, 0)
        )
        weights = builder.constant(rng.standard_normal((outputs, n, n, 8)).astype(np.float32))
        bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)).astype(np.float32))
        out = builder.value((batch, width, width, outputs), DType.FLOAT32)
        parts.append(builder.node(op, [x, weights], out, RELU if i else other, [bias]))
    wide = builder.value((batch, width, width, outputs * len(parts) + more), DType.FLOAT32)
    joined = builder.node(Concat(3), [*([x] if more else []), *parts], wide)
    ends = [joined, *parts[:1]] if also_read else [joined]
    if twice is not None:
        shape = [2 * n if axis == twice else n for axis, n in enumerate((batch, size, size, 8))]
        ends.append(builder.node(Concat(twice), [x, x], builder.value(tuple(shape), DType.FLOAT32)))
    return builder.graph([x], ends)


def convolutions(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many are left; the graph computes the same."""
    optimised = optimise(graph, features, half)
    inputs = [np.random.default_rng(1).standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return sum(isinstance(n.op, Conv2D) for n in optimised.nodes)


@pytest.mark.parametrize("case", [
    {}, dict(windows=(3, 1)), dict(windows=(1, 5), padding=2), dict(stride=2), dict(dilation=2, padding=2),
    dict(more=8), dict(windows=(3, 1, 3)), dict(windows=(1, 3, 1, 3)),
])  # fmt: skip
def test_neighbours_become_one(case: dict[str, object]) -> None:
    windows = case.get("windows", (1, 3))
    assert convolutions(network(**case)) == (len(windows) + 1) // 2  # type: ignore[arg-type]


@pytest.mark.parametrize("axis", [1, 3])
def test_others_may_join_a_value_with_itself(axis: int) -> None:
    assert convolutions(network(twice=axis)) == 1


@pytest.mark.parametrize("case", [
    dict(windows=(3, 3)), dict(other=apply("add", RESULT, Arg(1))), dict(also_read=True), dict(dilation=2, padding=1),
    dict(size=80, outputs=96, batch=2),
])  # fmt: skip
def test_what_is_left_alone(case: dict[str, object]) -> None:
    """Two large windows, other activations, a part that somebody else reads, no tap on the pixel, too much work."""
    if "dilation" in case:
        case = case | dict(size=11)
    assert convolutions(network(**case)) == 2  # type: ignore[arg-type]


def test_only_where_launches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert convolutions(network(), half=False) == 2
    assert convolutions(network(), replace(CUDA, capability=80)) == 2
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)
    assert convolutions(network()) == 2


def of_bytes(
    *, windows=(1, 3), zero_points=(5, 5), last=(127, 127), own_scale=False, kind: DType = DType.INT8, groups=1
) -> Graph:  # fmt: skip
    """x -> convolutions of bytes with these windows, requantized, side by side. `own_scale`: one number for all
    channels of the first."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    x = builder.value((1, 7, 8, 16), kind)
    parts = []
    for n, zero_point, end in zip(windows, zero_points, last, strict=True):
        op = IntegerConv2D(padding=(n // 2, n // 2), zero_point=zero_point, groups=groups if n > 1 else 1)
        weights = rng.integers(-127, 128, (12, n, n, 16 // op.groups)).astype(np.int8)
        bias = builder.constant(rng.integers(-999, 999, (1, 1, 1, 12)).astype(np.int32))
        one = own_scale and n == 1
        factor = builder.constant(rng.uniform(0.001, 0.01, (1, 1, 1, 1 if one else 12)).astype(np.float32))
        scaled = apply("mul", apply("to_float32", apply("add", RESULT, Arg(1))), Arg(2))
        epilogue = apply("nearest", apply("min", apply("max", scaled, 0.0), float(end)))
        out = builder.value((1, 7, 8, 12), kind)
        inputs = [x, builder.constant(weights, narrow=True)]
        parts.append(builder.node(op, inputs, out, epilogue, [bias, factor]))
    joined = builder.node(Concat(3), parts, builder.value((1, 7, 8, 12 * len(parts)), kind))
    return builder.graph([x], [joined])


def convolutions_of_bytes(graph: Graph) -> int:
    """How many are left; the graph computes the same, every element."""
    optimised = optimise(graph, CUDA, True)
    info = np.iinfo(np.dtype(graph.values[graph.inputs[0]].dtype.value))
    x = np.random.default_rng(1).integers(info.min, info.max + 1, (1, 7, 8, 16)).astype(info.dtype)
    (got,), (want,) = (evaluate_graph(g, [x]) for g in (optimised, graph))
    assert len(np.unique(want)) > 30
    np.testing.assert_array_equal(got, want)
    return sum(isinstance(n.op, IntegerConv2D) for n in optimised.nodes)


@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", [
    {}, dict(windows=(3, 1)), dict(own_scale=True), dict(windows=(1, 5)),
])  # fmt: skip
def test_neighbours_of_bytes_become_one(case: dict[str, object], kind: DType) -> None:
    assert convolutions_of_bytes(of_bytes(**case, kind=kind)) == 1


@pytest.mark.parametrize("case", [
    dict(windows=(3, 3)), dict(zero_points=(5, 6)), dict(last=(127, 99)), dict(groups=2),
])  # fmt: skip
def test_what_of_bytes_is_left_alone(case: dict[str, object]) -> None:
    """Two large windows, other zero points and limits, groups."""
    assert convolutions_of_bytes(of_bytes(**case)) >= 2  # type: ignore[arg-type]
