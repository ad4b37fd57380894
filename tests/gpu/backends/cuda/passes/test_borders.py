"""Mirrored borders are copied where convolutions without any are quicker."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.passes import borders
from litegpu.gpu.backends.cuda.passes.borders import copy_borders
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, Copy, DType, Graph, GraphBuilder, apply
from litegpu.gpu.lang.features import Features

HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132)


def layer(
    op: Conv2D, window: tuple[int, int] = (3, 3), shape: tuple[int, int] = (9, 11), size: tuple[int, int] = (9, 11),
    channels: int = 16, batch: int = 2,
) -> Graph:  # fmt: skip
    rng, b = np.random.default_rng(0), GraphBuilder()
    x = b.value((batch, *size, channels), DType.FLOAT32)
    weights = b.constant((rng.standard_normal((channels, *window, channels)) / channels).astype(np.float32))
    bias = b.constant(rng.standard_normal(channels).astype(np.float32))
    y = b.value((batch, *shape, channels), DType.FLOAT32)
    b.node(op, [x, weights], y, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias], [5])
    return b.graph([x], [y])


CASES = {
    "reflect": layer(Conv2D(padding=(1, 1), border="reflect")),
    "symmetric": layer(Conv2D(padding=(2, 2), border="symmetric"), (5, 5)),
    "stride": layer(Conv2D((2, 2), padding=(1, 2), border="reflect"), (3, 5), (5, 6)),
    "dilated": layer(Conv2D(dilation=(2, 1), padding=(2, 1), border="reflect")),
    "one side": layer(Conv2D(padding=(0, 2), border="reflect"), shape=(7, 11)),
}


@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
def test_they_compute_the_same(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borders, "_gains", lambda node, graph, features: True)
    found = copy_borders(graph, HOPPER)
    assert [type(n.op) for n in found.nodes] == [Copy, Conv2D]
    given = [np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("channels", "batch", "copied"), [(256, 1, True), (256, 16, True), (128, 1, False)])
def test_estimates_tell_where_it_pays(channels: int, batch: int, copied: bool) -> None:
    """CycleGAN's layers, and those of style networks."""
    graph = layer(Conv2D(padding=(1, 1), border="reflect"), (3, 3), (64, 64), (64, 64), channels, batch)
    assert (copy_borders(graph, HOPPER) is not graph) == copied


def test_what_stays() -> None:
    for graph in (layer(Conv2D(padding=(1, 1))), layer(Conv2D(padding=(1, 1), border="reflect", upsample=(2, 2)),
                                                       shape=(18, 22))):  # fmt: skip
        assert copy_borders(graph, HOPPER) is graph
