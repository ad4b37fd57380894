"""Channels that are shuffled and split, found by weights where they are, against the definition in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.kernels import overlapped
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DepthwiseConv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    Reshape,
    Slice,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
BIASED = apply("add", RESULT, Arg(1))
RELU = apply("max", BIASED, 0.0)
SWISH = apply("mul", BIASED, apply("sigmoid", BIASED))


def network(
    half: int = 10, units: int = 3, *, act: Expr = RELU, batch=1, size=6, shuffled=True, turned=False, down=False,
    end: str = "conv", read=False, beside=False,
) -> Graph:  # fmt: skip
    """x -> 1x1 convolution -> units, each of which keeps one half of the channels and computes the other half anew ->
    perhaps a depthwise layer of stride 2 -> 1x1 convolution, or nothing. `beside`: what the last unit computes with is
    an output, twice beside itself."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    shape = (batch, size, size, 2 * half)

    def conv(x: int, outputs: int, expr: Expr) -> int:
        depth, place = b.values[x].shape[3], b.values[x].shape[:3]
        weights = b.constant((rng.standard_normal((outputs, 1, 1, depth)) * depth**-0.5).astype(np.float32))
        bias = b.constant(rng.standard_normal((1, 1, 1, outputs)).astype(np.float32))
        return b.node(Conv2D(), [x, weights], b.value((*place, outputs), DType.FLOAT32), expr, [bias])

    def depthwise(x: int, stride: int = 1) -> int:
        n, h, w, c = b.values[x].shape
        weights = b.constant(rng.standard_normal((1, 3, 3, c)).astype(np.float32) / 3)
        bias = b.constant(rng.standard_normal((1, 1, 1, c)).astype(np.float32))
        out = b.value((n, -(-h // stride), -(-w // stride), c), DType.FLOAT32)
        return b.node(DepthwiseConv2D((stride, stride), padding=(1, 1)), [x, weights], out, BIASED, [bias])

    def part(x: int, first: int) -> int:
        steps = (Slice((0, 0, 0, first), (1, 1, 1, 1), (*shape[:3], half)),)
        return b.node(Copy(steps), [x], b.value((*shape[:3], half), DType.FLOAT32))

    x = b.value((batch, size, size, 8), DType.FLOAT32)
    wide, kept, other = conv(x, 2 * half, RELU), -1, -1
    for _ in range(units):
        kept, other = part(wide, 0), part(wide, half)
        new = conv(depthwise(conv(other, half, act)), half, RELU)
        joined = b.node(Concat(3), [new, kept] if turned else [kept, new], b.value(shape, DType.FLOAT32))
        wide = joined
        if shuffled:
            two = (*shape[:3], 2, half)
            steps = (Reshape(shape, two), Transpose((0, 1, 2, 4, 3)), Reshape((*shape[:3], half, 2), shape))
            wide = b.node(Copy(steps), [joined], b.value(shape, DType.FLOAT32))
    if down:
        wide = depthwise(wide, 2)
    end_value = conv(wide, 12, BIASED) if end == "conv" else wide
    ends = [end_value, kept] if read else [end_value]
    if beside:
        ends.append(b.node(Concat(3), [other, other], b.value(shape, DType.FLOAT32)))
    return b.graph([x], ends)


def copies(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many are left but slices of neighbours, which are views; the graph computes the same."""
    optimised = optimise(graph, features, half)
    inputs = [np.random.default_rng(1).standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return sum(isinstance(n.op, Copy) and not _is_view(n) for n in optimised.nodes)


def _is_view(node) -> bool:
    """Whether it is a slice that begins with a whole group of channels."""
    return all(isinstance(s, Slice) and s.begin[3] % 8 == 0 and s.target[3] % 8 == 0 for s in node.op.steps)


@pytest.mark.parametrize("case", [
    {}, dict(half=16), dict(units=1), dict(act=BIASED), dict(batch=2), dict(turned=True), dict(down=True),
    dict(shuffled=False), dict(act=apply("min", RELU, 6.0)),
])  # fmt: skip
def test_no_copy_is_left(case: dict[str, object]) -> None:
    assert copies(network(**case)) == 0  # type: ignore[arg-type]


def test_what_has_to_be_copied() -> None:
    """Results of the graph, activations that no bounds are, what somebody else reads."""
    assert copies(network(end="none")) > 0
    assert copies(network(act=SWISH)) > 0
    assert copies(network(read=True)) > 0
    assert copies(network(beside=True)) > 0


def test_only_where_launches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert copies(network(), half=False) > 0
    assert copies(network(), replace(CUDA, capability=80)) > 0
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)
    assert copies(network()) > 0
