"""Norms of groups of channels by one kernel, against NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_moments import group_norm, of_pixels

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import group_norm as kernels
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    Arg,
    Copy,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    GroupNorm,
    InstanceNorm,
    Moments,
    Reduce,
    Reshape,
    Slice,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
#: Shape and groups.
CASES = {
    "each channel": ((2, 5, 6, 12), 12),
    "two channels": ((1, 9, 7, 64), 32),
    "three channels": ((2, 3, 5, 96), 32),
    "ten channels": ((1, 7, 7, 320), 32),
    "sixteen channels": ((2, 4, 9, 128), 8),
    "all channels": ((3, 6, 5, 36), 1),
    "many channels": ((1, 4, 4, 1024), 2),
    "one pixel": ((2, 1, 1, 64), 4),
    "few channels": ((2, 11, 3, 4), 2),
}


def graph_of(shape: tuple[int, ...], groups: int, *, residual: bool = True, part: bool = False) -> Graph:
    """A norm with a factor and a sum of each channel, what it had before added; of some channels of wider pixels
    (`part`)."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    wide = (*shape[:3], shape[3] + 7) if part else shape
    x = b.value(wide, DType.FLOAT32)
    inner = b.node(Elementwise(), [], b.value(wide, DType.FLOAT32), apply("mul", Arg(0), 2.0), [x])
    if part:
        steps = (Slice((0, 0, 0, 3), (1, 1, 1, 1), shape),)
        inner = b.node(Copy(steps), [inner], b.value(shape, DType.FLOAT32))
    gamma, beta = (b.constant(rng.uniform(0.5, 2, (1, 1, 1, shape[3])).astype(np.float32)) for _ in range(2))
    value = apply("max", apply("add", apply("mul", Arg(0), Arg(1)), Arg(2)), 0.0)
    value, operands = (apply("add", value, Arg(3)), [gamma, beta, inner]) if residual else (value, [gamma, beta])
    y = b.node(GroupNorm(groups, 1e-3), [inner], b.value(shape, DType.FLOAT32), value, operands)
    return b.graph([x], [y])


def forced(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], groups: int, split: int, threads: int) -> None:
    found = [d for d in kernels.ranked(shape, groups, 90, 132) if (d.split, d.threads) == (split, threads)]
    if not found:
        pytest.skip("not so many workgroups")
    monkeypatch.setattr(kernels, "ranked", lambda *_: tuple(found))


@pytest.mark.cuda
@pytest.mark.parametrize(("split", "threads"), [(1, 64), (1, 512), (2, 128), (4, 64), (8, 256)])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("half", [False, True])
def test_groups(device: Any, monkeypatch: pytest.MonkeyPatch, case: str, half: bool, split: int, threads: int) -> None:
    """Large means do not spoil what is left of them."""
    shape, groups = CASES[case]
    if split > 1 and device.features.capability < 90:
        pytest.skip("needs clusters")
    forced(monkeypatch, shape, groups, split, threads)
    graph = graph_of(shape, groups)
    data = np.random.default_rng(1).normal(30 if not half else 3, 2, shape).astype(np.float32)
    found = first_output(device, build_program(graph, device.features, "cuda", half=half), [data], shape)
    (want,) = evaluate_graph(graph, [data])
    limit = 2e-5 if not half else 3e-3
    assert np.linalg.norm(found - want) <= limit * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("half", [False, True])
def test_some_channels_of_wider_pixels(device: Any, half: bool) -> None:
    """Which no thread can read a quad at a time."""
    graph = graph_of((2, 5, 3, 16), 4, part=True)
    data = np.random.default_rng(1).normal(0, 2, (2, 5, 3, 23)).astype(np.float32)
    found = first_output(device, build_program(graph, device.features, "cuda", half=half), [data], (2, 5, 3, 16))
    (want,) = evaluate_graph(graph, [data])
    assert np.linalg.norm(found - want) <= (3e-3 if half else 1e-5) * np.linalg.norm(want)


@pytest.mark.cuda
def test_nan_stays_in_its_group(device: Any) -> None:
    graph = graph_of((2, 5, 6, 32), 4, residual=False)
    data = np.random.default_rng(1).normal(0, 2, (2, 5, 6, 32)).astype(np.float32)
    data[1, 2, 3, 9] = np.nan
    found = first_output(device, build_program(graph, device.features, "cuda", half=True), [data], data.shape)
    lost = np.isnan(found)
    assert lost[1, ..., 8:16].all()
    assert lost.sum() == 5 * 6 * 8


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [{"copies": 3}, {}, {"factor": False}, {"factor": False, "scale": False}])
@pytest.mark.parametrize("flat", [False, True])
def test_groups_of_channels(device: Any, kind: dict[str, Any], flat: bool) -> None:
    """As TensorFlow writes them and as PyTorch: one kernel, and nothing is copied where x has its channels last."""
    graph = group_norm(**kind, flat=flat)
    found = optimise(graph, CUDA)
    kinds = [type(n.op) for n in found.nodes]
    assert [kind for kind in kinds if kind is not Copy] == [*([Elementwise] * flat), GroupNorm]
    assert flat or Copy not in kinds
    data = np.random.default_rng(1).normal(2, 3, (2, 6, 5, 24)).astype(np.float32)
    (want,) = evaluate_graph(graph, [data])
    np.testing.assert_allclose(evaluate_graph(found, [data])[0], want, rtol=1e-4, atol=1e-4)
    on_gpu = first_output(device, build_program(graph, device.features, "cuda"), [data], data.shape)
    np.testing.assert_allclose(on_gpu, want, rtol=1e-4, atol=1e-4)


def one_image(*, apart: bool = False) -> Graph:
    """A norm of groups of one image [1,6,5,24] as a batch of one leaves it: [H,W,groups,each] is normalised, and the
    means are those of [1,H*W,groups,each]; a factor that each column has (`apart`) becomes part of the epilogue."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    wide, flat = (6, 5, 4, 6), (1, 30, 4, 6)
    x = b.value((1, 6, 5, 24), DType.FLOAT32)

    def copy(v: int, shape: tuple[int, ...]) -> int:
        return b.node(Copy((Reshape(b.values[v].shape, shape),)), [v], b.value(shape, DType.FLOAT32))

    def do(shape: tuple[int, ...], fn: str, *operands: int) -> int:
        expr = apply(fn, *(Arg(i) for i in range(len(operands))))
        return b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), expr, operands)

    def mean(v: int) -> int:
        return b.node(Reduce("mean", (1, 3)), [copy(v, flat)], b.value((1, 1, 4, 1), DType.FLOAT32))

    groups = copy(x, wide)
    left = do(wide, "sub", groups, mean(groups))
    variance = do((1, 1, 4, 1), "add", mean(do(wide, "mul", left, left)), b.constant(np.array(1e-3, np.float32)))
    gamma = b.constant(rng.uniform(1, 2, (1, 5, 1, 1) if apart else (1, 1, 4, 6)).astype(np.float32))
    y = do(wide, "mul", do(wide, "mul", left, do((1, 1, 4, 1), "rsqrt", variance)), gamma)
    return b.graph([x], [copy(y, (1, 6, 5, 24))])


@pytest.mark.parametrize("apart", [False, True])
def test_one_image_is_one_kernel(apart: bool) -> None:
    graph = one_image(apart=apart)
    kinds = [type(n.op) for n in optimise(graph, CUDA).nodes if not isinstance(n.op, Copy)]
    assert kinds == [GroupNorm]


@pytest.mark.cuda
@pytest.mark.parametrize("apart", [False, True])
def test_one_image(device: Any, apart: bool) -> None:
    graph = one_image(apart=apart)
    data = np.random.default_rng(1).normal(2, 3, (1, 6, 5, 24)).astype(np.float32)
    (want,) = evaluate_graph(graph, [data])
    on_gpu = first_output(device, build_program(graph, device.features, "cuda"), [data], data.shape)
    np.testing.assert_allclose(on_gpu, want, rtol=1e-4, atol=1e-4)


def reshaped(wide: tuple[int, ...], flat: tuple[int, ...], axes: tuple[int, ...]) -> Graph:
    """x [1,6,5,24], whose means are those of it as `flat`, normalised as `wide`."""
    b = GraphBuilder()
    small = tuple(1 if i in axes else n for i, n in enumerate(flat))
    x = b.value((1, 6, 5, 24), DType.FLOAT32)

    def copy(v: int, shape: tuple[int, ...]) -> int:
        return b.node(Copy((Reshape(b.values[v].shape, shape),)), [v], b.value(shape, DType.FLOAT32))

    def do(shape: tuple[int, ...], expr: Any, *operands: int) -> int:
        return b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), expr, operands)

    def mean(v: int) -> int:
        return b.node(Reduce("mean", axes), [copy(v, flat)], b.value(small, DType.FLOAT32))

    one = b.node(Elementwise(), [], b.value((1, 6, 5, 24), DType.FLOAT32), apply("abs", Arg(0)), [x])
    v = copy(one, wide)
    left = do(wide, apply("sub", Arg(0), Arg(1)), v, mean(v))
    inverse = do(small, apply("rsqrt", apply("add", Arg(0), 1e-3)), mean(do(wide, apply("mul", Arg(0), Arg(0)), left)))
    y = do(wide, apply("mul", Arg(0), Arg(1)), left, inverse)
    return b.graph([x], [do(wide, apply("tanh", Arg(0)), y)])


RESHAPED = [
    ((2, 3, 5, 24), (1, 6, 5, 24), (1, 2)),
    ((2, 3, 5, 24), (1, 6, 5, 24), (1, 2, 3)),
    ((6, 5, 1, 24), (1, 30, 1, 24), (1, 3)),
    ((3, 10, 4, 6), (1, 30, 4, 6), (1, 3)),
]


@pytest.mark.parametrize(("wide", "flat", "axes"), RESHAPED)
def test_other_shapes_keep_their_images(wide: tuple[int, ...], flat: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """What is normalised may lie in other axes than what the means are of: it stays one image, or none is found."""
    graph = reshaped(wide, flat, axes)
    data = np.random.default_rng(1).normal(2, 3, (1, 6, 5, 24)).astype(np.float32)
    want = evaluate_graph(graph, [data])
    for features in (CUDA, Features()):
        found = optimise(graph, features)
        for node in found.nodes:
            if isinstance(node.op, (GroupNorm, InstanceNorm)):
                assert found.values[node.inputs[0]].shape == found.values[node.output].shape
        np.testing.assert_allclose(evaluate_graph(found, [data])[0], want[0], rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("shape", "axes"), [((2, 20, 30, 8), (1, 2)), ((2, 20, 30, 8), (1, 2, 3)), ((1, 3, 50, 24), (2, 3))]
)
def test_channels_and_images(device: Any, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Of which each, or all of an image together, is normalised; images may be rows of a batch in rows."""
    graph = of_pixels(shape, axes)
    kinds = [type(n.op) for n in optimise(graph, CUDA).nodes if not isinstance(n.op, Copy)]
    assert kinds == [GroupNorm]
    data = np.random.default_rng(1).normal(2, 3, shape).astype(np.float32)
    on_gpu = first_output(device, build_program(graph, device.features, "cuda"), [data], shape)
    np.testing.assert_allclose(on_gpu, evaluate_graph(graph, [data])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "groups"), [((1, 512, 512, 32), 32), ((1, 5, 5, 21), 21)])
def test_what_has_no_room(shape: tuple[int, ...], groups: int) -> None:
    """Images too large for the registers of a cluster, and channels that are no quads, have other kernels."""
    assert not kernels.ranked(shape, groups, 90, 132)
    graph = of_pixels(shape, (1, 2))
    assert GroupNorm not in {type(n.op) for n in optimise(graph, CUDA).nodes}


@pytest.mark.parametrize(
    ("shape", "one"), [((1, 64, 64, 96), True), ((16, 56, 56, 64), True), ((16, 64, 64, 96), False)]
)
def test_three_kernels_are_quicker(shape: tuple[int, ...], one: bool) -> None:
    """Of many images of many pixels, whose workgroups have their turn one after the other."""
    assert kernels.pays(shape, 32, 90, 132) == one
    assert kernels.ranked(shape, 32, 90, 132)


def test_large_images_keep_their_moments() -> None:
    kinds = {type(n.op) for n in optimise(of_pixels((1, 512, 512, 32), (1, 2)), CUDA).nodes}
    assert {Moments, InstanceNorm} <= kinds


def test_without_clusters() -> None:
    """A workgroup has all of an image, where it has room for that."""
    found = kernels.ranked((1, 14, 14, 256), 32, 80, 108)
    assert found and {d.split for d in found} == {1}
    assert not kernels.ranked((1, 128, 128, 256), 32, 80, 108)


@pytest.mark.parametrize("capability", [75, 80, 89, 90])
def test_it_compiles(capability: int) -> None:
    features = dataclasses.replace(CUDA, capability=capability)
    for shape, groups in ((1, 7, 7, 320), 32), ((2, 5, 6, 12), 12):
        program = build_program(graph_of(shape, groups), features, "cuda", half=True)
        assert "group_norm" in {kernel.name for kernel in program.kernels}
        assert compile_kernels(program.kernels, capability, programmatic=capability >= 90)
