"""A widening 1x1 convolution, a depthwise one and perhaps another 1x1 in one kernel, against NumPy."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output
from gpu.backends.cuda.kernels.test_separable import network as separable_network

from litegpu.gpu.backends.cuda.kernels import inverted, inverted_cost, separable, widening
from litegpu.gpu.backends.cuda.passes import inverted as passes
from litegpu.gpu.backends.cuda.passes import separable as joined_separable
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    InvertedConv2D,
    apply,
    substitute,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
SUM = apply("add", RESULT, Arg(1))
ACTIVATIONS: dict[str, Expr] = {
    "none": RESULT,
    "relu": apply("max", RESULT, 0.0),
    "relu6": apply("min", apply("max", RESULT, 0.0), 6.0),
    "odd clamp": apply("min", apply("max", RESULT, 0.0), 1.2345),
    "swish": apply("mul", RESULT, apply("sigmoid", RESULT)),
    "hard swish": apply("mul", RESULT, apply("min", apply("max", apply("add", RESULT, 3.0), 0.0), 6.0)),
    "sigmoid": apply("sigmoid", RESULT),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch) -> None:
    """Join whatever can be joined, all three if that is possible."""
    monkeypatch.setattr(passes, "_quickest", lambda graph, some, last, features: [*some, last] if last else some)
    monkeypatch.setattr(widening, "pays", lambda shape, size, graph, features: False)


def network(shape, channels, op, *, taps=(3, 3), outputs=0, act="relu6", direct=False, residual=False, seed=0):
    """x -> 1x1 to `channels`, bias, act -> depthwise, bias, act (-> 1x1 to `outputs`, bias (+ what came in))."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    b, h, w, c = shape
    x = builder.value(shape, DType.FLOAT32)
    start = x
    if not direct:  # so that it is stored in float16
        eye = builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
        start = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    expr = substitute(ACTIVATIONS[act], {0: SUM})

    def convolution(op, source, weights, size, expr=expr, more=()) -> int:
        bias = builder.constant(rng.standard_normal((1, 1, 1, size[3])))
        return builder.node(
            op, [source, builder.constant(weights)], builder.value(size, DType.FLOAT32), expr, [bias, *more]
        )

    wide = convolution(Conv2D(), start, rng.standard_normal((channels, 1, 1, c)) / np.sqrt(c), (b, h, w, channels))
    size = [
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip((h, w), op.padding, taps, op.dilation, op.stride, strict=True)
    ]
    out = convolution(op, wide, rng.standard_normal((1, *taps, channels)), (b, *size, channels))
    if outputs:
        weights = rng.standard_normal((outputs, 1, 1, channels)) / np.sqrt(channels)
        added = apply("add", SUM, Arg(2)) if residual else SUM
        out = convolution(Conv2D(), out, weights, (b, *size, outputs), added, [start] if residual else [])
    return builder.graph([x], [out]), rng.standard_normal(shape).astype(np.float32)


def run(device, graph: Graph, x: np.ndarray) -> np.ndarray:
    program = build_program(graph, device.features, "cuda", half=True)
    assert any(k.name == "inverted_convolution" for k in program.kernels)
    return first_output(device, program, [x], graph.values[graph.outputs[0]].shape)


def check(device, graph: Graph, x: np.ndarray) -> None:
    got = run(device, graph, x)
    (want,) = evaluate_graph(graph, [x])
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [0, 24, 9])
@pytest.mark.parametrize("inputs, channels", [(8, 48), (3, 20), (7, 17), (16, 33), (40, 80), (46, 100)])
def test_channels(device, inputs: int, channels: int, outputs: int) -> None:
    graph, x = network((2, 7, 9, inputs), channels, DepthwiseConv2D(padding=(1, 1)), outputs=outputs)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [0, 16])
@pytest.mark.parametrize("taps, stride, padding", [
    ((3, 3), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((5, 5), (1, 1), (2, 2)), ((5, 5), (2, 2), (1, 2)),
    ((2, 3), (1, 2), (0, 1)), ((3, 5), (2, 1), (2, 4)), ((1, 1), (1, 1), (0, 0)), ((1, 4), (3, 1), (0, 0)),
    ((3, 3), (1, 1), (0, 2)), ((4, 2), (1, 3), (1, 0)),
])  # fmt: skip
def test_windows(device, taps, stride, padding, outputs: int) -> None:
    op = DepthwiseConv2D(stride, (1, 1), padding)
    graph, x = network((2, 13, 22, 16), 32, op, taps=taps, outputs=outputs)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [0, 16])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations(device, act: str, outputs: int) -> None:
    """Outside of the picture there is zero, not what the activation makes of the bias."""
    graph, x = network(
        (1, 6, 8, 16), 40, DepthwiseConv2D(padding=(1, 1)), act=act, outputs=outputs, residual=bool(outputs)
    )
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("channels", [16, 12, 5])
def test_inputs_that_are_not_halves(device, channels: int) -> None:
    graph, x = network((2, 6, 8, channels), 40, DepthwiseConv2D(padding=(1, 1)), direct=True, outputs=8)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [0, 20])
def test_blocks(device, monkeypatch, outputs: int) -> None:
    """Many of the blocks that may be chosen, for a layer of several tiles and slices each way."""
    stride = 2 if outputs else 1
    op = DepthwiseConv2D((stride, stride), (1, 1), (1, 1))
    graph, x = network((1, 30, 33, 20), 70, op, outputs=outputs)
    joint = optimise(graph, device.features, half=True).nodes[-1]
    assert isinstance(joint.op, InvertedConv2D)
    (out_h, out_w) = -(-30 // stride), -(-33 // stride)
    shapes = [(1, 30, 33, 20), (70, 1, 1, 20), (1, 1, 1, 70), (1, 3, 3, 70), (1, 1, 1, 70), (20, 1, 1, 70)]
    output = (1, out_h, out_w, outputs or 70)
    shape = inverted_cost.InvertedShape.of((stride, stride), (2.5, 2.5), shapes if outputs else shapes[:4], output)
    blocks = inverted_cost.ranked(shape, 90, 132)
    seen: dict[tuple[int, ...], list[inverted_cost.InvertedBlock]] = {}
    for block in blocks:
        seen.setdefault((block.rows, block.slice, block.buffers, block.parts), []).append(block)
    for i, group in enumerate(seen.values()):
        block = group[i * 7 % len(group)]
        monkeypatch.setattr(inverted, "ranked", lambda *_, block=block: [block])
        try:
            check(device, graph, x)
        except Exception as error:
            raise AssertionError(f"{block}: {error}") from error


@pytest.mark.cuda
def test_each_workgroup_has_its_own_channels(device, monkeypatch) -> None:
    """Weights of a deep expansion are in registers before the input is awaited."""
    graph, x = network((1, 7, 7, 160), 320, DepthwiseConv2D(padding=(1, 1)))
    usual = inverted_cost.ranked
    one_slice = lambda *args: [b for b in usual(*args) if b.slice * b.parts >= 320][:1]  # noqa: E731
    monkeypatch.setattr(inverted, "ranked", one_slice)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("act", ["relu6", "swish"])
@pytest.mark.parametrize("outputs", [0, 16])
def test_nan_stays_in_its_window(device, act: str, outputs: int) -> None:
    graph, x = network((2, 5, 9, 12), 24, DepthwiseConv2D((1, 2), (1, 1), (1, 1)), act=act, outputs=outputs)
    x[0, 2, 4], x[1, 0, 0], x[1, 4, 8] = np.nan, np.nan, np.nan
    got = run(device, graph, x)
    (want,) = evaluate_graph(graph, [x])
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    assert np.linalg.norm(got[finite] - want[finite]) <= 3e-3 * np.linalg.norm(want[finite])


def test_joined_only_what_the_kernel_computes() -> None:
    op = DepthwiseConv2D(padding=(1, 1))

    def joined(graph: Graph, features: Features = CUDA, half: bool = True) -> list[InvertedConv2D]:
        optimised = optimise(graph, features, half)
        x = np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)
        for got, want in zip(evaluate_graph(optimised, [x]), evaluate_graph(graph, [x]), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        return [n.op for n in optimised.nodes if isinstance(n.op, InvertedConv2D)]

    graph, _ = network((1, 5, 6, 8), 32, op, outputs=16)
    (found,) = joined(graph)
    assert found.expanded == found.middle == ACTIVATIONS["relu6"]
    (found,) = joined(network((1, 5, 6, 8), 32, op)[0])
    assert found == InvertedConv2D(op, ACTIVATIONS["relu6"])
    assert not joined(graph, half=False)
    assert not joined(graph, dataclasses.replace(CUDA, capability=70))
    assert not joined(graph, Features())
    assert not joined(network((1, 9, 9, 8), 32, DepthwiseConv2D(dilation=(2, 2)))[0])
    assert not joined(network((1, 5, 6, 8), 15, op)[0])
    for value in (graph.nodes[1].output, graph.nodes[2].output):  # which somebody else wants
        kept = joined(GraphBuilder.of(graph).graph(graph.inputs, (*graph.outputs, value)))
        assert len(kept) == (value == graph.nodes[2].output)
    gated, _ = network((1, 5, 6, 8), 32, op)
    nodes = [dataclasses.replace(n, epilogue=Apply("mul", (RESULT, Arg(1)))) if n.operands else n for n in gated.nodes]
    assert not joined(dataclasses.replace(gated, nodes=tuple(nodes)))


def test_joined_only_where_it_is_quicker(monkeypatch) -> None:
    monkeypatch.undo()
    op = DepthwiseConv2D(padding=(1, 1))

    def kinds(batch: int, size: int, inputs: int, channels: int, outputs: int, act: str = "relu6") -> list[str]:
        graph, _ = network((batch, size, size, inputs), channels, op, outputs=outputs, act=act)
        return [type(node.op).__name__ for node in optimise(graph, CUDA, half=True).nodes[1:]]

    assert kinds(64, 56, 24, 144, 24) == ["InvertedConv2D"]
    assert kinds(64, 56, 24, 144, 0) == ["InvertedConv2D"]
    assert kinds(64, 28, 40, 240, 0) == ["Conv2D", "DepthwiseConv2D"]  # whose results are as large, and in the cache
    assert kinds(1, 56, 24, 144, 24) == ["InvertedConv2D"]  # by clusters, where kernels overlap
    assert kinds(1, 56, 24, 144, 24, "swish") == ["Conv2D", "DepthwiseConv2D", "Conv2D"]
    assert kinds(1, 33, 16, 96, 16) == ["InvertedConv2D", "Conv2D"]  # sides that were not measured
    assert kinds(1, 7, 160, 960, 160) == ["InvertedConv2D", "Conv2D"]
    monkeypatch.setattr(widening, "pays", lambda shape, size, graph, features: False)
    assert kinds(1, 56, 24, 144, 24) == ["InvertedConv2D", "Conv2D"]
    assert kinds(1, 14, 112, 672, 0, "swish") == ["Conv2D", "DepthwiseConv2D"]
    assert kinds(64, 7, 160, 960, 160) == ["Conv2D", "DepthwiseConv2D", "Conv2D"]
    assert kinds(64, 14, 112, 672, 0, "swish") == ["Conv2D", "DepthwiseConv2D"]


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_joins_what_saves_most_traffic(monkeypatch, name: str) -> None:
    """Also those with few multiprocessors, which have as little bandwidth; by blocks that fit there."""
    monkeypatch.undo()
    graph, _ = network((64, 56, 56, 24), 144, DepthwiseConv2D(padding=(1, 1)), outputs=24)
    program = build_program(graph, GPUS[name].features, "cuda", half=True)
    (kernel,) = (kernel for kernel in program.kernels if kernel.name == "inverted_convolution")
    assert kernel.shared_bytes <= GPUS[name].shared << 10
    (resident,) = map(int, re.findall(r"#define RESIDENT (\d+)", kernel.source))  # which registers are divided by
    assert resident * (kernel.shared_bytes + 1024) <= max(GPUS[name].shared + 1, 65) << 10
    assert resident * kernel.workgroup[0] <= (1024 if GPUS[name].capability == 75 else 1536)


@pytest.mark.cuda
@pytest.mark.parametrize("channels, outputs, stride, taps, direct", [
    (32, 16, 1, 3, False), (20, 24, 2, 3, False), (13, 9, 1, 5, False), (50, 16, 1, 3, True), (96, 24, 2, 3, False),
])  # fmt: skip
def test_blocks_that_do_not_widen(device, monkeypatch, channels, outputs, stride: int, taps: int, direct: bool) -> None:
    """A depthwise and a 1x1 convolution without anything in front, as separable.py has them."""
    monkeypatch.setattr(joined_separable, "LEAST_PIXELS", 1)
    monkeypatch.setattr(separable, "GAIN", 1e9)
    monkeypatch.setattr(inverted, "LEAST_CHANNELS", 1)
    op = DepthwiseConv2D((stride, stride), (1, 1), (taps // 2, taps // 2))
    graph, x = separable_network((2, 11, 12, channels), (taps, taps), outputs, op, direct=direct)
    usual = inverted_cost.ranked
    for buffers in (1, 2):

        def some(*args, n=buffers) -> list[inverted_cost.InvertedBlock]:
            return [b for b in usual(*args) if b.buffers == n][:1] or list(usual(*args))

        monkeypatch.setattr(inverted_cost, "ranked", some)
        check(device, graph, x)


def test_bounds_are_of_halves() -> None:
    """Only where a clamp ends at a half is it the same before rounding and after."""
    half = {name: inverted.bound_of(expr) for name, expr in ACTIVATIONS.items()}
    assert half == {**dict.fromkeys(ACTIVATIONS, 0), "relu": 0x7C007C00, "relu6": 0x46004600}
