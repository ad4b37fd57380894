"""Products of joints come in front of those of channels, where nothing has to be moved."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.passes.mixing import join_mixing
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    MatMul,
    Reshape,
    Step,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features

HOPPER, AMPERE = (Features(float16=True, native="cuda", capability=n, compute_units=132) for n in (90, 80))
RELU = apply("max", apply("add", RESULT, Arg(1)), 0.0)
BIASED = apply("add", RESULT, Arg(1))


def skeletons(
    batch: int = 2,
    inputs: int = 32,
    *,
    parts: int = 3,
    channels_first: bool = False,
    read: bool = False,
    back: bool = True,
    swapped: bool = False,
) -> Graph:
    """As einsums come out: channels for each part, the joints of all parts last, their layer, and the joints back."""
    rng, b = np.random.default_rng(0), GraphBuilder()
    frames, joints, channels = 5, 25, 16

    def layer(v: int, size: int, fn: Expr) -> int:
        *lead, depth = b.values[v].shape
        weights = b.constant((rng.standard_normal((size, 1, 1, depth)) / depth**0.5).astype(np.float32))
        bias = b.constant(rng.standard_normal(size).astype(np.float32))
        return b.node(Conv2D(), [v, weights], b.value((*lead, size), DType.FLOAT32), fn, [bias])

    def copy(v: int, *steps: Step, shape: tuple[int, ...]) -> int:
        return b.node(Copy(steps), [v], b.value(shape, DType.FLOAT32))

    x = b.value((batch, frames, joints, inputs), DType.FLOAT32)
    wide = layer(x, parts * channels, BIASED)
    apart = Reshape(b.values[wide].shape, (batch, frames, joints, parts, channels))
    turned = (0, 4, 1, 3, 2) if channels_first else (0, 1, 4, 2, 3) if swapped else (0, 1, 4, 3, 2)
    five = [(batch, frames, joints, parts, channels)[i] for i in turned]
    shape = (*five[:3], parts * joints)
    mixed = copy(wide, apart, Transpose(turned), Reshape(tuple(five), shape), shape=shape)
    mixed = layer(mixed, joints, RELU)
    order = (0, 2, 3, 1) if channels_first else (0, 1, 3, 2)
    order = order if back else (0, 1, 2, 3)
    whole = tuple(b.values[mixed].shape[i] for i in order)
    out = copy(mixed, Transpose(order), shape=whole)
    return b.graph([x], [out, wide] if read else [out])


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize(("batch", "inputs", "kinds"), [
    (2, 32, [MatMul, Copy, Conv2D, Copy]), (1, 64, [MatMul, Copy, Conv2D, Copy]), (2, 3, [Copy, Conv2D, Copy]),
])  # fmt: skip
def test_joints_come_first(channels_first: bool, batch: int, inputs: int, kinds: list[type]) -> None:
    graph = skeletons(batch, inputs, channels_first=channels_first)
    found = join_mixing(graph, HOPPER)
    assert [type(n.op) for n in found.nodes] == kinds
    assert all(isinstance(s, Reshape) for n in found.nodes if isinstance(n.op, Copy) for s in n.op.steps)
    given = [np.random.default_rng(1).standard_normal(graph.values[graph.inputs[0]].shape).astype(np.float32)]
    np.testing.assert_allclose(evaluate_graph(found, given)[0], evaluate_graph(graph, given)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "graph",
    [skeletons(read=True), skeletons(back=False), skeletons(inputs=30), skeletons(parts=1), skeletons(swapped=True)],
    ids=["read in between", "not moved back", "odd channels", "one part", "parts of joints"],
)
def test_what_stays(graph: Graph) -> None:
    assert join_mixing(graph, HOPPER) is graph


def test_other_devices_have_no_such_products() -> None:
    graph = skeletons()
    assert join_mixing(graph, AMPERE) is graph
