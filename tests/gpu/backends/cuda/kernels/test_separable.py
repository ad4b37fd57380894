"""A depthwise and a 1x1 convolution in one kernel, against NumPy and the two kernels of the language."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import inverted, separable
from litegpu.gpu.backends.cuda.passes import separable as passes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DepthwiseConv2D, DType, GraphBuilder, SeparableConv2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)


@pytest.fixture(autouse=True)
def _always(monkeypatch) -> None:
    """Join however few pixels there are, by the kernel of this kind of layer alone."""
    monkeypatch.setattr(passes, "LEAST_PIXELS", 1)
    monkeypatch.setattr(inverted, "fits_separable", lambda ctx: False)


def network(shape, taps, outputs, op, *, direct=False, residual=False):
    """x -> 1x1 convolution (unless `direct`) -> depthwise, bias, relu6 -> 1x1, bias (+ its own input, relu)."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    b, h, w, c = shape
    x = builder.value(shape, DType.FLOAT32)
    middle = x
    if not direct:
        eye = builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
        middle = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    size = [
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip((h, w), op.padding, taps, op.dilation, op.stride, strict=True)
    ]
    inner = builder.value((b, *size, c), DType.FLOAT32)
    relu6 = apply("min", apply("max", apply("add", RESULT, Arg(1)), 0.0), 6.0)
    kernel = builder.constant(rng.standard_normal((1, *taps, c)))
    builder.node(op, [middle, kernel], inner, relu6, [builder.constant(rng.standard_normal((1, 1, 1, c)))])
    out = builder.value((b, *size, outputs), DType.FLOAT32)
    weights = builder.constant(rng.standard_normal((outputs, 1, 1, c)) / np.sqrt(c))
    bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
    expression, operands = apply("add", RESULT, Arg(1)), [bias]
    if residual:
        expression, operands = apply("max", apply("add", expression, Arg(2)), 0.0), [bias, middle]
    builder.node(Conv2D(), [inner, weights], out, expression, operands)
    return builder.graph([x], [out]), rng.standard_normal(shape).astype(np.float32)


def run(device, graph, x, features) -> np.ndarray:
    program = build_program(graph, features, "cuda", half=True)
    joint = [k for k in program.kernels if k.name == "separable_convolution"]
    assert bool(joint) == (features.capability > 0)
    return first_output(device, program, [x], graph.values[graph.outputs[0]].shape)


def check(device, graph, x) -> None:
    got = run(device, graph, x, device.features)
    (want,) = evaluate_graph(graph, [x])
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("taps", [(3, 3), (5, 5), (2, 3)])
@pytest.mark.parametrize("channels", [3, 5, 8, 12, 17, 72])
def test_channels(device, taps, channels: int) -> None:
    op = DepthwiseConv2D((1, 1), (1, 1), (taps[0] // 2, taps[1] // 2))
    residual = taps[0] % 2 == 1
    graph, x = network((2, 7, 9, channels), taps, channels if residual else 21, op, residual=residual)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("op", [
    DepthwiseConv2D((2, 2), (1, 1), (1, 1)), DepthwiseConv2D((1, 2), (2, 1), (2, 0)), DepthwiseConv2D((3, 1)),
    DepthwiseConv2D((1, 1), (4, 4), (4, 4)),
])  # fmt: skip
def test_windows(device, op: DepthwiseConv2D) -> None:
    for channels, direct in ((16, False), (24, True), (3, True)):
        graph, x = network((1, 13, 12, channels), (3, 3), 40, op, direct=direct)
        check(device, graph, x)


@pytest.mark.cuda
def test_blocks(device, monkeypatch) -> None:
    """Every shape of block and division among warps; runs, columns and depths change along the way."""
    groups: dict[tuple, list] = {}
    for block in separable.candidates():
        groups.setdefault((block.y, block.x, block.tile.warps), []).append(block)
    for i, group in enumerate(groups.values()):
        block = group[(i * 7) % len(group)]
        stride = 1 + i % 2
        graph, x = network((2, 9, 10, 40), (3, 3), 36, DepthwiseConv2D((stride, stride), (1, 1), (1, 1)))
        monkeypatch.setattr(separable, "ranked", lambda window, outputs, units, block=block: [block])
        try:
            check(device, graph, x)
        except Exception as error:
            raise AssertionError(f"{block}: {error}") from error


@pytest.mark.cuda
@pytest.mark.parametrize("channels, direct", [(12, False), (12, True), (5, True)])
def test_nan_stays_in_its_window(device, channels: int, direct: bool) -> None:
    """Channels past the last one are the next pixel's."""
    graph, x = network((2, 5, 9, channels), (3, 3), 20, DepthwiseConv2D((1, 2), (1, 1), (1, 1)), direct=direct)
    x[0, 2, 4], x[1, 0, 0], x[1, 4, 8] = np.nan, np.nan, np.nan
    got = run(device, graph, x, device.features)
    (want,) = evaluate_graph(graph, [x])
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert np.linalg.norm(got[finite] - want[finite]) <= 3e-3 * np.linalg.norm(want[finite])


@pytest.mark.cuda
def test_agrees_with_the_two_kernels_of_the_language(device) -> None:
    graph, x = network((1, 17, 15, 48), (3, 3), 32, DepthwiseConv2D((1, 1), (1, 1), (1, 1)))
    plain = dataclasses.replace(device.features, capability=0)
    joint, apart = run(device, graph, x, device.features), run(device, graph, x, plain)
    assert np.linalg.norm(joint - apart) <= 3e-3 * np.linalg.norm(apart)


def test_joined_only_where_the_kernel_is_and_pays(monkeypatch) -> None:
    op = DepthwiseConv2D((1, 1), (1, 1), (1, 1))
    graph, x = network((1, 5, 6, 8), (3, 3), 16, op)
    joined = optimise(graph, CUDA, half=True)
    assert [type(n.op) for n in joined.nodes] == [Conv2D, SeparableConv2D]
    np.testing.assert_allclose(evaluate_graph(joined, [x])[0], evaluate_graph(graph, [x])[0], rtol=1e-5, atol=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(passes, "LEAST_PIXELS", 31)
        assert all(not isinstance(n.op, SeparableConv2D) for n in optimise(graph, CUDA, True).nodes)
    for features, half in (
        (CUDA, False),
        (dataclasses.replace(CUDA, capability=70), True),
        (Features(), True),
    ):
        assert all(not isinstance(n.op, SeparableConv2D) for n in optimise(graph, features, half).nodes)
    for taps, joins in (((7, 7), True), ((7, 8), False), ((8, 7), False), ((1, 49), True), ((1, 50), False)):
        window = DepthwiseConv2D((1, 1), (1, 1), (taps[0] // 2, taps[1] // 2))
        windowed = optimise(network((1, 9, 60, 8), taps, 16, window)[0], CUDA, True)
        assert any(isinstance(n.op, SeparableConv2D) for n in windowed.nodes) == joins, taps
    for channels, outputs, joins in ((128, 128, True), (132, 16, False), (16, 129, False)):
        sized = optimise(network((1, 5, 6, channels), (3, 3), outputs, op)[0], CUDA, True)
        assert any(isinstance(n.op, SeparableConv2D) for n in sized.nodes) == joins, (channels, outputs)
    read_twice = GraphBuilder.of(graph)
    inner = next(n.output for n in graph.nodes if isinstance(n.op, DepthwiseConv2D))
    copy = read_twice.node(Conv2D(), [inner, read_twice.constant(np.ones((4, 1, 1, 8)))],
                           read_twice.value((1, 5, 6, 4), DType.FLOAT32))  # fmt: skip
    for handed_out in ((*graph.outputs, copy), (*graph.outputs, inner)):
        both = read_twice.graph(graph.inputs, handed_out)
        if inner in handed_out:
            both = GraphBuilder.of(graph).graph(graph.inputs, handed_out)
        kept = optimise(both, CUDA, half=True)
        assert any(isinstance(n.op, DepthwiseConv2D) for n in kept.nodes)
        for got, want in zip(evaluate_graph(kept, [x]), evaluate_graph(both, [x]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    wide, _ = network((1, 5, 6, 8), (3, 3), 256, op)
    assert all(not isinstance(n.op, SeparableConv2D) for n in optimise(wide, CUDA, True).nodes)
