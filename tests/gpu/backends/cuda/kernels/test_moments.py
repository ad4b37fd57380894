"""Moments of parts of images put together, and norms of groups of channels on the GPU, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda import native
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    Arg,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    InstanceNorm,
    JoinedMoments,
    Moments,
    Reduce,
    Reshape,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import instance_norm, optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for images whose norms one kernel has no room for: test_group_norm.py has the others."""
    monkeypatch.setattr(native.CudaNative, "norms_groups", lambda *_: False)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shape", "parts", "groups"),
    [
        *(((2, 5, 6, 12), 1, 3), ((1, 9, 7, 64), 5, 32), ((3, 17, 19, 21), 4, 7), ((2, 4, 4, 21), 3, 21)),
        *(((2, 6, 5, 132), 6, 2), ((1, 3, 3, 8), 9, 1), ((3, 3, 4, 700), 4, 1), ((2, 1, 7, 1604), 2, 1)),
    ],
)
def test_moments_are_put_together(device: Any, shape: tuple[int, ...], parts: int, groups: int) -> None:
    """With parts of which the last is shorter, and more of them than a warp has lanes, or fewer."""
    b, pixels = GraphBuilder(), shape[1] * shape[2]
    x = b.value(shape, DType.FLOAT32)
    moments = b.value((shape[0], parts, 2, shape[3]), DType.FLOAT32)
    joined, y = b.value((shape[0], 1, 2, shape[3]), DType.FLOAT32), b.value(shape, DType.FLOAT32)
    b.node(Moments(parts), [x], moments)
    b.node(JoinedMoments(pixels, groups), [moments], joined)
    b.node(InstanceNorm(1e-3), [x, joined], y)
    data = np.random.default_rng(0).normal(30, 2, shape).astype(np.float32)
    found = first_output(device, build_program(b.graph([x], [y]), device.features, "cuda"), [data], shape)
    apart = data.astype(np.float64).reshape(shape[0], pixels, groups, -1)
    left = apart - apart.mean((1, 3), keepdims=True)
    want = left / np.sqrt((left**2).mean((1, 3), keepdims=True) + 1e-3)
    np.testing.assert_allclose(found.reshape(want.shape), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(evaluate_graph(b.graph([x], [y]), [data])[0].reshape(want.shape), want, atol=1e-4)


def group_norm(
    *, copies: int = 1, factor: bool = True, scale: bool = True, groups: int = 4, flat: bool = False
) -> Graph:
    """Of [2, 6, 5, 24]: each reader has one of `copies` reshapes to groups; by a `factor` and a sum, or what is left of
    the mean times the inverse deviation, with a factor and a sum of each channel (`scale`); x is flattened (`flat`)."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    shape, apart = (2, 6, 5, 24), (2, 30, groups, 24 // groups)
    x = b.value(shape, DType.FLOAT32)

    def value(*size: int) -> int:
        return b.value(size, DType.FLOAT32)

    def do(fn: str, size: tuple[int, ...], *operands: int) -> int:
        expr = apply(fn, *(Arg(i) for i in range(len(operands))))
        return b.node(Elementwise(), [], value(*size), expr, operands)

    def mean(of: int) -> int:
        return b.node(Reduce("mean", (1, 3)), [of], value(2, 1, groups, 1))

    steps, source = (Reshape(shape, apart),), x
    if flat:
        source = b.node(Elementwise(), [], value(1, 2, 30, 24), apply("abs", Arg(0)), [
            b.node(Copy((Reshape(shape, (1, 2, 30, 24)),)), [x], value(1, 2, 30, 24))
        ])  # fmt: skip
        steps = (Reshape((1, 2, 30, 24), apart),)
    read = [b.node(Copy(steps), [source], value(*apart)) for _ in range(copies)]
    m = mean(read[0])
    left = do("sub", apart, read[1 % copies], m)
    one, variance = (2, 1, groups, 1), mean(do("mul", apart, left, left))
    inverse = do("rsqrt", one, do("add", one, variance, b.constant(np.array(1e-3))))
    gamma, beta = (b.constant(rng.standard_normal((1, 1, groups, 24 // groups))) for _ in range(2))
    small = (2, 1, *apart[2:])
    if factor:
        f = do("mul", small, inverse, gamma)
        y = do("add", apart, do("mul", apart, read[2 % copies], f), do("sub", small, beta, do("mul", small, m, f)))
    else:
        y = do("mul", apart, left, inverse)
        y = do("add", apart, do("mul", apart, y, gamma), beta) if scale else y
    z = b.node(Copy((Reshape(apart, shape),)), [y], value(*shape))
    result = b.node(Elementwise(), [], value(*shape), apply("max", Arg(0), 0.0), [z])
    return b.graph([x], [result])


@pytest.mark.cuda
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", [{"copies": 3}, {}, {"factor": False}, {"factor": False, "scale": False}])
def test_groups_of_channels(device: Any, kind: dict[str, Any], flat: bool) -> None:
    """As TensorFlow writes them and as PyTorch: three kernels, and nothing is copied where x has its channels last."""
    graph = group_norm(**kind, flat=flat)
    found = optimise(graph, CUDA)
    kinds = [type(n.op) for n in found.nodes]
    assert [kind for kind in kinds if kind is not Copy] == [
        *([Elementwise] * flat),
        Moments,
        JoinedMoments,
        InstanceNorm,
    ]
    assert flat or Copy not in kinds
    data = np.random.default_rng(1).normal(2, 3, (2, 6, 5, 24)).astype(np.float32)
    (want,) = evaluate_graph(graph, [data])
    np.testing.assert_allclose(evaluate_graph(found, [data])[0], want, rtol=1e-4, atol=1e-4)
    on_gpu = first_output(device, build_program(graph, device.features, "cuda"), [data], data.shape)
    np.testing.assert_allclose(on_gpu, want, rtol=1e-4, atol=1e-4)


def test_other_devices_compute_groups_as_before() -> None:
    kinds = {type(n.op) for n in optimise(group_norm(), Features()).nodes}
    assert JoinedMoments not in kinds
    assert InstanceNorm not in kinds


def of_pixels(shape: tuple[int, ...], axes: tuple[int, ...], factors: tuple[int, ...] = ()) -> Graph:
    """x less its mean, by its deviation and constants of the shape `factors`."""
    b = GraphBuilder()
    x = b.value(shape, DType.FLOAT32)
    small = tuple(1 if i in axes else n for i, n in enumerate(shape))
    m = b.node(Reduce("mean", axes), [x], b.value(small, DType.FLOAT32))
    left = b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), apply("sub", Arg(0), Arg(1)), [x, m])
    square = b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), apply("mul", Arg(0), Arg(0)), [left])
    v = b.node(Reduce("mean", axes), [square], b.value(small, DType.FLOAT32))
    inverse = apply("rsqrt", apply("add", Arg(0), 1e-3))
    d = b.node(Elementwise(), [], b.value(small, DType.FLOAT32), inverse, [v])
    operands, expr = [left, d], apply("mul", Arg(0), Arg(1))
    if factors:
        operands.append(b.constant(np.random.default_rng(2).uniform(1, 2, factors).astype(np.float32)))
        expr = apply("mul", expr, Arg(2))
    y = b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), expr, operands)
    return b.graph([x], [y])


@pytest.mark.parametrize("axes", [(1, 2), (1, 2, 3)])
def test_large_images(axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which each channel, or all of them together, is normalised: only where reading is what takes the time."""
    graph = of_pixels((2, 20, 30, 8), axes)
    assert Moments not in {type(n.op) for n in optimise(graph, CUDA).nodes}
    monkeypatch.setattr(instance_norm, "_LARGE_OF_ALL" if 3 in axes else "_LARGE", 9600)
    found = optimise(graph, CUDA)
    joined = [JoinedMoments] * (3 in axes)  # of one part there is nothing to join but channels
    assert [type(n.op) for n in found.nodes] == [Moments, *joined, InstanceNorm]
    data = np.random.default_rng(1).normal(2, 3, (2, 20, 30, 8)).astype(np.float32)
    np.testing.assert_allclose(evaluate_graph(found, [data])[0], evaluate_graph(graph, [data])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize(("factors", "joined"), [((), True), ((1, 1, 1, 24), True), ((1, 3, 1, 1), False)])
def test_large_images_in_rows(
    device: Any, factors: tuple[int, ...], joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of sounds [1,B,W,C], each of which is normalised as a whole; but not with factors of sounds."""
    graph = of_pixels((1, 3, 50, 24), (2, 3), factors)
    assert Moments not in {type(n.op) for n in optimise(graph, CUDA).nodes}
    monkeypatch.setattr(instance_norm, "_LARGE_OF_ALL", 3600)
    found = optimise(graph, CUDA)
    kinds = [type(n.op) for n in found.nodes if not isinstance(n.op, Copy)]
    assert kinds == [Moments, JoinedMoments, InstanceNorm] if joined else Moments not in kinds
    data = np.random.default_rng(1).normal(2, 3, (1, 3, 50, 24)).astype(np.float32)
    (want,) = evaluate_graph(graph, [data])
    np.testing.assert_allclose(evaluate_graph(found, [data])[0], want, rtol=1e-4, atol=1e-4)
    on_gpu = first_output(device, build_program(graph, device.features, "cuda"), [data], data.shape)
    np.testing.assert_allclose(on_gpu, want, rtol=1e-4, atol=1e-4)
