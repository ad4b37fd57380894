"""Convolutions behind nearest-neighbour resizes are transposed ones."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import require_cuda

from litegpu.gpu.backends.cuda.passes import enlarged
from litegpu.gpu.backends.cuda.passes.enlarged import transpose_enlarged
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, Copy, DType, Graph, GraphBuilder, TransposeConv2D, apply
from litegpu.gpu.lang.features import Features

HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132)


def layer(
    times: tuple[int, int] = (2, 2), window: tuple[int, int] = (3, 3), padding: tuple[int, int] = (1, 1),
    shape: tuple[int, int] = (10, 14), size: tuple[int, int] = (5, 7), channels: int = 16, outputs: int = 24,
    batch: int = 2, border: str = "zero", residual: bool = False,
) -> Graph:  # fmt: skip
    """x [batch, *size, channels] to [batch, *shape, outputs], with a bias, or another value, and RELU."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((batch, *size, channels), DType.FLOAT32)
    given = [x]
    weights = b.constant((rng.standard_normal((outputs, *window, channels)) / channels).astype(np.float32))
    y = b.value((batch, *shape, outputs), DType.FLOAT32)
    if residual:
        given.append(b.value((batch, *shape, outputs), DType.FLOAT32))
    other = given[1] if residual else b.constant(rng.standard_normal(outputs).astype(np.float32))
    op = Conv2D(padding=padding, upsample=times, border=border)
    b.node(op, [x, weights], y, apply("max", apply("add", RESULT, Arg(1)), 0.0), [other], [5])
    return b.graph(given, [y])


CASES = {
    "2x2": layer(),
    "2x3": layer((2, 3), shape=(10, 21)),
    "rows": layer((3, 1), (5, 3), (2, 1), (15, 7)),
    "no padding": layer(padding=(0, 0), shape=(8, 12)),
    "uneven": layer(window=(4, 4), padding=(2, 1), shape=(10, 13)),
    "residual": layer(residual=True),
    "reflected": layer(border="reflect"),
    "symmetric": layer(window=(5, 5), padding=(2, 2), border="symmetric"),
    "reflected, rows": layer((3, 1), (5, 3), (2, 0), (15, 5), border="reflect"),
}


def inputs(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enlarged, "GAIN", float("inf"))


@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
def test_they_compute_the_same(graph: Graph) -> None:
    found = transpose_enlarged(graph, HOPPER)
    assert isinstance(found.nodes[-1].op, TransposeConv2D)
    assert all(isinstance(n.op, Copy) for n in found.nodes[:-1])
    given = inputs(graph)
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize("name", CASES)
def test_they_run(name: str) -> None:
    require_cuda()
    from litegpu.gpu.backends.cuda.opening import open_device

    device, graph = open_device(), CASES[name]
    session = device.session(build_program(graph, device.features, "cuda", half=True))
    given = inputs(graph)
    want = evaluate_graph(graph, given)[0]
    got = np.empty(want.shape, np.float32)
    for i, array in enumerate(given):
        session.write(i, array)
    session.run()
    session.read(0, got)
    session.close()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(
    "graph",
    [
        layer((1, 1), shape=(5, 7)),
        layer(window=(5, 5), padding=(2, 2), border="reflect"),
        layer(window=(1, 1), padding=(0, 0)),
        layer(channels=8),
        layer(padding=(3, 3), shape=(14, 18)),
    ],
    ids=["not enlarged", "mirrored", "1x1", "few channels", "much padding"],
)
def test_what_stays(graph: Graph) -> None:
    assert transpose_enlarged(graph, HOPPER) is graph


def test_estimates_tell_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    graph = layer(shape=(64, 64), size=(32, 32), channels=192, outputs=192, batch=16)
    assert isinstance(transpose_enlarged(graph, HOPPER).nodes[0].op, TransposeConv2D)
