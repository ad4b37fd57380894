"""Convolutions of which the largest of each two by two results is stored, against the definition in NumPy."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected

from litegpu.gpu.backends.cuda.kernels import halo, overlapped, specialized
from litegpu.gpu.backends.cuda.kernels.halo import HaloPlan, HaloTile
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.pooled import layer_of
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.passes import pooled as joining
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, Expr, Graph, GraphBuilder, Pool2D, PooledConv2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.view import padded

SAME = Conv2D(padding=(1, 1))
MAX = Pool2D("max", (2, 2), (2, 2))
RELU = apply("max", apply("add", RESULT, Arg(1)), 0.0)
H200 = Features(float16=True, native="cuda", capability=90, compute_units=132)


@pytest.fixture
def always(monkeypatch) -> None:
    """However small the gain is."""
    monkeypatch.setattr(joining, "gain", lambda *_: 1.0)


def network(
    shape,
    weights,
    op=SAME,
    pool=MAX,
    *,
    done: Expr = RELU,
    also_read: bool = False,
    plain: bool = False,
    odd: int = 0,
    behind: bool = False,
) -> tuple[Graph, np.ndarray]:
    """x -> 1x1 (unless `plain`) -> convolution, `done` of that and a bias -> pool, and perhaps a 1x1 `behind` it; `odd`
    lines less of the pool's result than there could be."""
    rng = np.random.default_rng(1)
    builder = GraphBuilder()
    batch, height, width, channels = shape
    outputs, kh, kw, _ = weights
    x = builder.value(shape, DType.FLOAT32)
    inner = x
    if not plain:
        inner = builder.value(shape, DType.FLOAT32)
        eye = np.eye(channels, dtype=np.float32).reshape(channels, 1, 1, channels)
        builder.node(Conv2D(), [x, builder.constant(eye)], inner)
    h, w = (
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip((height, width), op.padding, (kh, kw), op.dilation, op.stride, strict=True)
    )
    between = builder.value((batch, h, w, outputs), DType.FLOAT32)
    matrix = builder.constant(rng.standard_normal(weights) / np.sqrt(kh * kw * channels))
    builder.node(op, [inner, matrix], between, done, [builder.constant(rng.standard_normal((1, 1, 1, outputs)))])
    smaller = batch, h // 2 - odd, w // 2, outputs
    out = pooled = builder.value(smaller, DType.FLOAT32)
    builder.node(pool, [between], pooled)
    if behind:
        out = builder.value(smaller, DType.FLOAT32)
        eye = np.eye(outputs, dtype=np.float32).reshape(outputs, 1, 1, outputs)
        builder.node(Conv2D(), [pooled, builder.constant(eye)], out)
    ends = [out, between] if also_read else [out]
    return builder.graph([x], ends), rng.standard_normal(shape).astype(np.float32)


def joined(graph: Graph, features: Features = H200, half: bool = True) -> int:
    """How many are joined; the graph computes the same."""
    optimised = optimise(graph, features, half)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return sum(isinstance(n.op, PooledConv2D) for n in optimised.nodes)


#: Shape, weights, op: partly filled tiles, several images, odd sizes of which a line is left out, channels that are no
#: whole tile, windows of other sizes.
CASES = {
    "same": ((2, 10, 8, 32), (32, 3, 3, 32), SAME),
    "odd": ((3, 7, 9, 64), (64, 3, 3, 64), SAME),
    "valid": ((1, 12, 17, 24), (40, 3, 3, 24), Conv2D()),
    "five": ((1, 9, 10, 24), (72, 5, 5, 24), Conv2D(padding=(2, 2))),
    "wide": ((1, 6, 66, 16), (32, 3, 3, 16), SAME),
    "deep": ((2, 6, 6, 96), (136, 3, 3, 96), SAME),
    "one row": ((2, 4, 20, 16), (16, 1, 5, 16), Conv2D(padding=(0, 2))),
    "divided": ((2, 9, 10, 128), (40, 3, 3, 128), SAME),
}
OTHERS = {
    "strided": ((1, 17, 12, 64), (64, 3, 3, 64), Conv2D((2, 2), padding=(1, 1))),
    "points": ((1, 6, 10, 64), (32, 1, 1, 64), Conv2D()),
    "dilated": ((1, 12, 17, 48), (40, 3, 3, 48), Conv2D((1, 1), (2, 3), (2, 3))),
}


def check(device, case: str, kernel: str) -> None:
    behind = kernel == "halo_convolution"  # which stores halves
    graph, x = network(*(CASES | OTHERS)[case], behind=behind)
    program = build_program(graph, dataclasses.replace(device.features, compute_units=4), "cuda", half=True)
    assert kernel in {k.name for k in program.kernels} and len(program.dispatches) == 2 + behind
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def only(monkeypatch, kernel: ModuleType, tile: Any) -> None:
    """Leave no other choice for what is pooled."""
    for module in (halo, specialized):
        before, mine = module.ranked, [tile] if module is kernel else []
        monkeypatch.setattr(module, "ranked", lambda x, *more, b=before, m=mine: m if x.side > 1 else b(x, *more))
    mine = [tile] if kernel is specialized else []
    divisions = overlapped.divisions
    monkeypatch.setattr(overlapped, "divisions", lambda x, *more: mine if x.side > 1 else divisions(x, *more))


def needs_warpgroups(device) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")


@pytest.mark.cuda
@pytest.mark.parametrize("case", [*CASES, *OTHERS])
@pytest.mark.parametrize(
    "tile",
    [(64, 32, 1, 4, 4), (128, 64, 2, 3, 3), (64, 128, 1, 3, 3), (128, 256, 2, 3, 1), (64, 64, 1, 3, 4, 4)],
    ids=str,
)
def test_rows(device, monkeypatch, always, case: str, tile: tuple[int, ...]) -> None:
    """Of tiles whose rows are squares, that of a cluster included."""
    needs_warpgroups(device)
    only(monkeypatch, specialized, SpecializedTile(*tile))
    check(device, case, "specialized_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "tile",
    [
        HaloTile(128, 32, 2, 2, 2),
        HaloTile(128, 32, 2, 2, 3, 0, False, 7),
        HaloTile(128, 64, 2, 2, 2, 0, True),
        HaloTile(128, 64, 2, 2, 2, 2, True, 6),
        HaloTile(256, 32, 1, 4, 2),
        HaloTile(128, 32, 1, 2, 2, split=2),
        HaloTile(128, 64, 2, 2, 2, 0, True, split=4),
    ],
    ids=str,
)
def test_positions(device, monkeypatch, always, case: str, tile: HaloTile) -> None:
    """Of tiles that are copied once with their border: two lines of positions."""
    needs_warpgroups(device)
    if CASES[case][0][3] % (8 * tile.chunks * tile.split):
        pytest.skip("no whole pieces for each workgroup")
    only(monkeypatch, halo, tile)
    check(device, case, "halo_convolution")


def pooled_layer(op=SAME, run: int = 8) -> Layer:
    weights = np.ones((64, 3, 3, 64), np.float32)
    return layer_of(op, padded(0, (8, 28, 28, 64), DType.FLOAT16), weights, (8, 14, 14, 64), run)


def test_which_layers_have_positions_of_two_lines() -> None:
    found = halo.ranked(pooled_layer(), 90, 132)
    assert found and all(HaloPlan(pooled_layer(), tile).fits() and tile.rows % 128 == 0 for tile in found)
    assert all(tile.split > 1 for tile in halo.ranked(pooled_layer(run=0), 90, 132))  # others store from registers
    assert not halo.ranked(pooled_layer(Conv2D((1, 1), (2, 2), (2, 2))), 90, 132)


@pytest.mark.parametrize(
    "done", [RESULT, RELU, apply("tanh", apply("add", Arg(1), RESULT)), apply("mul", RELU, 0.5)], ids=str
)
def test_joined(always, done: Expr) -> None:
    assert joined(network((1, 8, 8, 16), (16, 3, 3, 16), done=done)[0]) == 1


def test_joined_only_where_the_order_is_kept(always) -> None:
    for done in (
        apply("mul", RELU, -0.5),
        apply("mul", RELU, Arg(1)),
        apply("sub", Arg(1), RESULT),
        apply("abs", RESULT),
    ):
        assert joined(network((1, 8, 8, 16), (16, 3, 3, 16), done=done)[0]) == 0


def test_joined_only_where_a_kernel_is(always) -> None:
    case = (1, 8, 8, 16), (16, 3, 3, 16)
    for features, half in ((H200, False), (dataclasses.replace(H200, capability=89), True), (Features(), True)):
        assert joined(network(*case)[0], features, half) == 0
    assert joined(network(*case, also_read=True)[0]) == 0
    assert joined(network(*case, plain=True)[0]) == 0  # floats come in
    assert joined(network((1, 8, 8, 12), (16, 3, 3, 12))[0]) == 0
    for pool in (Pool2D("max", (3, 3), (2, 2)), Pool2D("average", (2, 2), (2, 2)), Pool2D("max", (2, 2), (1, 1))):
        assert joined(network(*case, pool=pool, odd=1)[0]) == 0


@pytest.mark.parametrize("more, read, count", [(3, True, 0), (8, True, 1), (8, False, 0)])
def test_where_the_input_is_a_part(always, more: int, read: bool, count: int) -> None:
    """Of what joins it with more channels: not where these are odd, nor where that is an output, in float32."""
    builder = GraphBuilder()
    x, other = builder.value((1, 8, 8, 16), DType.FLOAT32), builder.value((1, 8, 8, more), DType.FLOAT32)
    inner, wide = builder.value((1, 8, 8, 16), DType.FLOAT32), builder.value((1, 8, 8, 16 + more), DType.FLOAT32)
    sums, out = builder.value((1, 8, 8, 16), DType.FLOAT32), builder.value((1, 4, 4, 16), DType.FLOAT32)
    eye = builder.constant(np.eye(16, dtype=np.float32).reshape(16, 1, 1, 16))
    builder.node(Conv2D(), [x, eye], inner)
    builder.node(Concat(3), [inner, other], wide)
    builder.node(SAME, [inner, builder.constant(np.ones((16, 3, 3, 16), np.float32))], sums)
    builder.node(MAX, [sums], out)
    end = wide
    if read:
        end = builder.value((1, 8, 8, 8), DType.FLOAT32)
        builder.node(Conv2D(), [wide, builder.constant(np.ones((8, 1, 1, 16 + more), np.float32))], end)
    graph = builder.graph([x, other], [out, end])
    assert joined(graph) == count
    build_program(graph, H200, "cuda", half=True)


def test_joined_only_where_it_pays() -> None:
    assert joined(network((1, 56, 56, 256), (256, 3, 3, 256))[0]) == 1
