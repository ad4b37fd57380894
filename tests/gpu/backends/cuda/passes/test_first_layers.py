"""First layers that scale the picture, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import overlapped
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DType,
    Elementwise,
    Expr,
    Graph,
    GraphBuilder,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
BIASED = apply("max", apply("add", RESULT, Arg(1)), 0.0)
SCALED = apply("add", apply("mul", Arg(0), Arg(1)), Arg(2))


def network(
    *, scaled: Expr, size=9, stride=2, padding=1, batch=1, channels=3, factor=0.25,
    twice=False, epilogue=BIASED,
) -> Graph:  # fmt: skip
    """x -> scaled and shifted -> 3x3 convolution."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    shape = (batch, size, size, channels)
    x = b.value(shape, DType.FLOAT32)
    numbers = [b.constant((rng.uniform(0.5, 1, (1, 1, 1, channels)) * n).astype(np.float32)) for n in (factor, -3)]
    y = b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), scaled, [x, *numbers])
    weights = b.constant(rng.standard_normal((16, 3, 3, channels)).astype(np.float32))
    bias = b.constant(rng.standard_normal((1, 1, 1, 16)).astype(np.float32))
    width = (size + 2 * padding - 3) // stride + 1
    out = b.value((batch, width, width, 16), DType.FLOAT32)
    op = Conv2D((stride, stride), padding=(padding, padding))
    outputs = [b.node(op, [y, weights], out, epilogue, [bias])]
    return b.graph([x], [*outputs, y] if twice else outputs)


def kinds(graph: Graph, features: Features = CUDA, half: bool = True) -> list[str]:
    """What is left; the graph computes the same."""
    optimised = optimise(graph, features, half)
    inputs = [np.random.default_rng(1).uniform(0, 9, graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return [type(n.op).__name__ for n in optimised.nodes]


@pytest.mark.parametrize("case", [
    {}, dict(batch=2), dict(padding=0), dict(stride=1), dict(channels=4, size=6),
    dict(epilogue=apply("add", RESULT, Arg(1))),
])  # fmt: skip
def test_scaled(case: dict[str, object]) -> None:
    assert kinds(network(scaled=SCALED, **case)) == ["Conv2D"]


def test_what_is_scaled_by_itself() -> None:
    """Factors for which numbers may be no halves, other functions, what somebody else reads, many results."""
    assert kinds(network(scaled=SCALED, factor=1e-4)) == ["Elementwise", "Conv2D"]
    assert kinds(network(scaled=apply("mul", SCALED, Arg(0)))) == ["Elementwise", "Conv2D"]
    assert kinds(network(scaled=SCALED, twice=True))[0] == "Elementwise"
    assert kinds(network(scaled=SCALED, channels=8)) == ["Elementwise", "Conv2D"]
    assert kinds(network(scaled=SCALED, size=300, stride=1)) == ["Elementwise", "Conv2D"]


def test_only_where_launches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network(scaled=SCALED)
    assert len(kinds(graph, half=False)) == 2
    assert len(kinds(graph, replace(CUDA, capability=80))) == 2
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: False)
    assert len(kinds(graph)) == 2


@pytest.mark.cuda
@pytest.mark.parametrize("case", [dict(scaled=SCALED), dict(scaled=SCALED, batch=2, size=12)])
def test_on_the_device(device, case: dict[str, object]) -> None:
    if device.features.capability != 90:
        pytest.skip("only where kernels overlap")
    graph = network(**case)  # type: ignore[arg-type]
    program = build_program(graph, device.features, "cuda", half=True)
    x = np.random.default_rng(1).uniform(0, 9, graph.values[graph.inputs[0]].shape).astype(np.float32)
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, [x])[0]
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)
