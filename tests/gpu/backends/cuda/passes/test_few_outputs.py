"""Convolutions with few outputs and wide windows are one of the window's columns and one of its rows."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import require_cuda

from litegpu.gpu.backends.cuda.passes import few_outputs
from litegpu.gpu.backends.cuda.passes.few_outputs import split_few_outputs
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder, Reduce, apply
from litegpu.gpu.lang.features import Features

HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132)


def picture(
    op: Conv2D,
    window: tuple[int, int],
    channels: int = 32,
    outputs: int = 3,
    size: tuple[int, int] = (11, 13),
    shape: tuple[int, int] = (11, 13),
    batch: int = 2,
) -> Graph:
    """x [batch, *size, channels], twice as much, to [batch, *shape, outputs], with a bias and what is largest of that
    and 0."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((batch, *size, channels), DType.FLOAT32)
    weights = b.constant((rng.standard_normal((outputs, *window, channels)) / channels).astype(np.float32))
    bias = b.constant(rng.standard_normal(outputs).astype(np.float32))
    y = b.value((batch, *shape, outputs), DType.FLOAT32)
    b.node(op, [x, weights], y, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias], [5])
    return b.graph([x], [y])


CASES = {
    "9x9": picture(Conv2D(padding=(4, 4)), (9, 9)),
    "one row": picture(Conv2D(padding=(0, 4)), (1, 9)),
    "mirrored": picture(Conv2D(padding=(3, 3), border="reflect"), (7, 7)),
    "one row, mirrored": picture(Conv2D(padding=(0, 3), border="symmetric"), (1, 7)),
    "strides": picture(Conv2D((2, 3), padding=(2, 1)), (5, 5), shape=(6, 4)),
    "dilated": picture(Conv2D(dilation=(2, 1), padding=(4, 2)), (5, 5)),
    "dilated columns": picture(Conv2D(dilation=(1, 2), padding=(2, 4)), (5, 5)),
    "no padding": picture(Conv2D(), (4, 6), outputs=1, shape=(8, 8)),
}


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_outputs, "GAIN", float("inf"))


@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
def test_two_convolutions_compute_the_same(graph: Graph) -> None:
    found = split_few_outputs(graph, HOPPER)
    assert [n.sources for n in found.nodes] == [(5,), (5,)]
    first, second = (found.values[n.inputs[1]].shape for n in found.nodes)
    assert first[2] == second[1] == 1 and first[0] % 8 == 0
    given = [np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_they_are_built(name: str) -> None:
    program = build_program(CASES[name], HOPPER, "cuda", half=True)
    assert len(program.dispatches) == 2


@pytest.mark.cuda
@pytest.mark.parametrize("name", CASES)
def test_they_run(name: str) -> None:
    require_cuda()
    from litegpu.gpu.backends.cuda.opening import open_device

    device, graph = open_device(), CASES[name]
    program = build_program(graph, device.features, "cuda", half=True)
    if device.features.capability >= 80:
        assert len(program.dispatches) == 2
    given = np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)
    want = evaluate_graph(graph, [given])[0]
    session, got = device.session(program), np.empty(want.shape, np.float32)
    session.write(0, given)
    session.run()
    session.read(0, got)
    session.close()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize(
    "graph",
    [
        picture(Conv2D(padding=(4, 4)), (9, 9), outputs=5),
        picture(Conv2D(padding=(4, 0)), (9, 1)),
        picture(Conv2D(padding=(4, 4)), (9, 9), channels=27),
        picture(Conv2D(padding=(4, 4), upsample=(2, 2)), (9, 9), size=(6, 7), shape=(12, 14)),
    ],
    ids=["many outputs", "narrow", "few channels", "enlarged"],
)
def test_what_stays(graph: Graph) -> None:
    assert split_few_outputs(graph, HOPPER) is graph


def test_what_is_decided_on_stays() -> None:
    """Which of the outputs are the largest."""
    graph = picture(Conv2D(padding=(4, 4)), (9, 9))
    b, y = GraphBuilder(dict(graph.values), list(graph.nodes)), graph.outputs[0]
    most = b.node(Reduce("max", (3,)), [y], b.value((2, 11, 13, 1), DType.FLOAT32))
    largest = b.value((2, 11, 13, 3), DType.FLOAT32)
    b.node(Elementwise(), [], largest, apply("ge", Arg(0), Arg(1)), [y, most])
    decided = b.graph(graph.inputs, [largest])
    assert split_few_outputs(decided, HOPPER) is decided


def test_estimates_tell_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture at the end of SRResNet, and a 3x3 layer that the kernel of windows reads fast enough."""
    monkeypatch.undo()
    wide = picture(Conv2D(padding=(4, 4)), (9, 9), 64, 3, (256, 256), (256, 256), 16)
    assert len(split_few_outputs(wide, HOPPER).nodes) == 2
    small = picture(Conv2D(padding=(1, 1)), (3, 3), 64, 3, (128, 128), (128, 128), 16)
    assert split_few_outputs(small, HOPPER) is small
