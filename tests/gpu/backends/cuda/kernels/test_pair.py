"""Two 1x1 convolutions in one kernel, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import pair
from litegpu.gpu.backends.cuda.kernels.pair import PairSizes, PairTile, cost, packed, ranked
from litegpu.gpu.backends.cuda.passes import pair as joining
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    PairConv2D,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
BIASED = apply("add", RESULT, Arg(1))
GELU = apply("mul", apply("mul", BIASED, 0.5), apply("add", apply("erf", apply("mul", BIASED, 0.5**0.5)), 1.0))
SWISH = apply("mul", RESULT, apply("sigmoid", RESULT))


def network(
    pixels: int, inputs: int, inner: int, outputs: int, *, norm=True, residual=True, done: Expr = GELU, plain=False,
    also_read=False, seed=0,
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """x -> 1x1 convolution (identity, unless `plain`) -> perhaps normalised -> 1x1 convolution, `done` -> 1x1
    convolution, bias (+ residual)."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    shape = (1, 1, pixels, inputs)
    x = before = builder.value(shape, DType.FLOAT32)
    if not plain:
        eye = builder.constant(np.eye(inputs, dtype=np.float32).reshape(inputs, 1, 1, inputs))
        before = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    ready = before
    if norm:
        scale = builder.constant(rng.uniform(0.5, 2, (1, 1, 1, inputs)))
        ready = builder.node(LayerNorm(1e-6), [before], builder.value(shape, DType.FLOAT32),
                             apply("mul", RESULT, Arg(1)), [scale])  # fmt: skip

    def weights(out: int, depth: int) -> int:
        return builder.constant(rng.standard_normal((out, 1, 1, depth)) / np.sqrt(depth))

    def bias(n: int) -> int:
        return builder.constant(rng.standard_normal((1, 1, 1, n)))

    operands = [bias(inner)] if done in (GELU, BIASED) else []
    wide = builder.node(
        Conv2D(), [ready, weights(inner, inputs)], builder.value((1, 1, pixels, inner), DType.FLOAT32), done, operands
    )
    expression, operands = BIASED, [bias(outputs)]
    if residual and inputs == outputs:
        expression, operands = apply("add", expression, Arg(2)), [*operands, before]
    out = builder.value((1, 1, pixels, outputs), DType.FLOAT32)
    made = [builder.node(Conv2D(), [wide, weights(outputs, inner)], out, expression, operands)]
    made += [wide] if also_read else []
    return builder.graph([x], made), [rng.standard_normal(shape).astype(np.float32)]


def check(device, graph: Graph, inputs: list[np.ndarray], most: float = 2e-3) -> None:
    program = build_program(graph, device.features, "cuda", half=True)
    assert "pair_convolution" in [k.name for k in program.kernels]
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)


@pytest.fixture
def joined(monkeypatch) -> None:
    monkeypatch.setattr(joining, "LEAST_PIXELS", 1)
    monkeypatch.setattr(joining, "GAIN", 1e9)


def needs_warpgroups(device) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")


TILES = [(1, 32, 3, 1), (1, 64, 2, 2), (2, 64, 3, 1), (2, 32, 12, 1), (3, 64, 2, 1)]


@pytest.mark.cuda
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("norm", [True, False])
def test_tiles(device, monkeypatch, joined, tile: tuple[int, ...], norm: bool) -> None:
    """One round and several, weights that come again and such that stay, teams without rows."""
    needs_warpgroups(device)
    monkeypatch.setattr(pair, "ranked", lambda *_: [PairTile(*tile)])
    monkeypatch.setattr(joining, "ranked", lambda *_: [PairTile(*tile)])
    for units, pixels, inputs, inner, outputs in ((132, 200, 96, 384, 96), (1, 400, 64, 200, 64)):
        monkeypatch.setattr(PairSizes, "groups", lambda s, t, u, units=units: min(-(-s.blocks // t.teams), units))
        graph, x = network(pixels, inputs, inner, outputs, norm=norm)
        check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "inputs, inner, outputs, norm", [(192, 400, 192, True), (40, 100, 36, False), (72, 150, 100, True)]
)
def test_sizes(device, joined, inputs: int, inner: int, outputs: int, norm: bool) -> None:
    needs_warpgroups(device)
    check(device, *network(150, inputs, inner, outputs, norm=norm))
    check(device, *network(70, inputs, inner, outputs, norm=norm, done=SWISH))


@pytest.mark.cuda
def test_inputs_as_they_come(device, joined) -> None:
    """Floats, and channels that are no whole chunks."""
    needs_warpgroups(device)
    for inputs in (64, 37):
        check(device, *network(150, inputs, 128, 64, plain=True, residual=False))


def pairs(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many are joined; the graph computes the same."""
    optimised = optimise(graph, features, half)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return sum(isinstance(n.op, PairConv2D) for n in optimised.nodes)


@pytest.mark.parametrize("done", [GELU, SWISH, BIASED, RESULT, apply("max", RESULT, 0.0)], ids=str)
@pytest.mark.parametrize("norm", [True, False])
def test_joined(joined, done: Expr, norm: bool) -> None:
    assert pairs(network(70, 32, 64, 32, norm=norm, done=done)[0]) == 1


def test_joined_only_where_a_kernel_is(joined) -> None:
    graph = network(70, 32, 64, 32)[0]
    for features, half in ((CUDA, False), (dataclasses.replace(CUDA, capability=89), True), (Features(), True)):
        assert pairs(graph, features, half) == 0
    assert pairs(network(70, 32, 64, 32, also_read=True)[0]) == 0
    assert pairs(network(70, 260, 64, 32)[0]) == 0
    assert pairs(network(70, 32, 64, 196)[0]) == 0


def test_joined_only_where_it_pays() -> None:
    assert pairs(network(12608, 192, 768, 192)[0]) == 1
    assert pairs(network(197, 192, 768, 192)[0]) == 0


def test_tiles_fit() -> None:
    for sizes in (PairSizes(12608, 192, 768, 192, 13.0, 1), PairSizes(200704, 96, 384, 96, 13.0, 1)):
        found = ranked(sizes, 132)
        assert len(found) > 2
        assert all(sizes.shared_bytes(tile, 132) * tile.resident <= 227 << 10 for tile in found)
        assert [cost(sizes, tile, 132) for tile in found] == sorted(cost(sizes, tile, 132) for tile in found)


def test_weights_lie_as_they_are_multiplied() -> None:
    """Of a row the chunk c lies at c ^ row % 8, slabs of 64 channels one behind the other; then the others, a bias."""
    sizes, tile = PairSizes(64, 128, 64, 32, 1.0), PairTile(1, 64, 1, 1)
    weights = np.arange(64 * 128).reshape(64, 1, 1, 128) % 2048
    last = np.arange(32 * 64).reshape(32, 1, 1, 64) % 2048
    found = packed(sizes, tile, weights, np.arange(64.0), last)
    assert found.shape == (1, 64 * 128 + 32 * 64 + 512)
    first, second = found[0, : 64 * 128].reshape(2, 64, 8, 8), found[0, 64 * 128 : -512].reshape(32, 8, 8)
    np.testing.assert_array_equal(first[1, 5, 3 ^ 5], weights[5, 0, 0, 64 + 24 : 64 + 32])
    np.testing.assert_array_equal(second[9, 2 ^ 1], last[9, 0, 0, 16:24])
    np.testing.assert_array_equal(found[0, -512:].view(np.float32)[:64], np.arange(64))
