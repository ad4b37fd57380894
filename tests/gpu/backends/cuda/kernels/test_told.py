"""1x1 convolutions that tell what the rows of their results sum up to, and those that are told, against the
definition in NumPy."""

from __future__ import annotations

import dataclasses
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from first_output import all_outputs

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import convolution, overlapped, pingpong, pointwise, runs
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.pingpong import PingpongTile, candidates
from litegpu.gpu.backends.cuda.passes import row_moments
from litegpu.gpu.backends.cuda.passes.row_moments import tell_moments
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    LayerNorm,
    MomentsConv2D,
    Reshape,
    RowMoments,
    Slice,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
SUM = apply("add", apply("add", RESULT, Arg(1)), Arg(2))
BIASED = apply("add", RESULT, Arg(1))
AFFINE = apply("add", apply("mul", RESULT, Arg(1)), Arg(2))


@pytest.fixture(autouse=True)
def all_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of however few rows, and however much of a tile is in vain."""
    monkeypatch.setattr(pingpong, "suits", lambda tile, layer: runs.run_in(layer, tile.columns) > 0)
    monkeypatch.setattr(row_moments._Telling, "pays", lambda *_: True)
    monkeypatch.setattr(pingpong, "_is_known", lambda layer: True)
    monkeypatch.setattr(pointwise, "normed_pays", lambda *_: False)
    for module in (convolution, overlapped):
        monkeypatch.setattr(module, "will_overlap", lambda graph: False)


def network(
    shape: tuple[int, ...], channels: int, *, expr: Expr = SUM, centred: bool = True, affine: Expr = AFFINE,
    mean: float = 0.5, behind: bool = True, before: bool = True, extra: str = "",
    outputs: tuple[int, int] = (72, 136), recounted: bool = False,
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """x -> 1x1 convolution (identity) -> h; h -> convolution to `channels`, with a bias -> normalised -> n; with
    `before` n -> convolution; with `behind` another one whose epilogue `expr` reads n -> normalised -> convolution."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()

    def conv(x: int, weights: np.ndarray, epilogue: Expr = RESULT, *operands: int) -> int:
        size = (*builder.values[x].shape[:3], len(weights))
        constant = builder.constant(weights.reshape(len(weights), 1, 1, -1).astype(np.float32))
        return builder.node(Conv2D(), [x, constant], builder.value(size, DType.FLOAT32), epilogue, operands)

    def drawn(outputs: int, inputs: int) -> np.ndarray:
        return rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)

    def vector(low: float, high: float) -> int:
        return builder.constant(rng.uniform(low, high, (1, 1, 1, channels)).astype(np.float32))

    def recount(x: int) -> int:
        """The same rows, in another shape."""
        before = builder.values[x].shape
        after = (1, 1, before[0] * before[1] * before[2], before[3]) if before[1] > 1 else shape[:3] + before[3:]
        copy = Copy((Reshape(before, after),))
        return builder.node(copy, [x], builder.value(after, DType.FLOAT32)) if recounted else x

    def normalised(x: int) -> int:
        operands = (vector(0.5, 2), vector(-1, 1))
        return builder.node(LayerNorm(1e-5, centred), [x], builder.value(builder.values[x].shape, DType.FLOAT32),
                            affine, operands)  # fmt: skip

    x = builder.value(shape, DType.FLOAT32)
    h = conv(x, np.eye(shape[3]))
    raw = conv(h, drawn(channels, shape[3]), BIASED, vector(mean - 1, mean + 1))
    n = normalised(recount(raw))
    ends = []
    if before:
        zeros = builder.constant(np.zeros((1, 1, 1, outputs[0]), np.float32))
        multiplied = conv(recount(n), drawn(outputs[0], channels), apply("tanh", BIASED), zeros)
        ends.append(conv(multiplied, np.eye(outputs[0])))
    if behind:
        second = conv(h, drawn(channels, shape[3]), expr, vector(-1, 1), recount(n))
        ends.append(conv(conv(normalised(second), drawn(outputs[1], channels)), np.eye(outputs[1])))
    if extra == "raw":  # as networks have it whose norms are in front
        ends.append(conv(conv(h, drawn(channels, shape[3]), BIASED, raw), np.eye(channels)))
    elif extra == "result":
        ends.append(n)
    elif extra == "joined":
        ends.append(builder.node(Concat(3), [n, raw], builder.value((*shape[:3], 2 * channels), DType.FLOAT32)))
    elif extra == "turned":  # which others would store right where the copy puts it
        other = (1, 1, shape[1] * shape[2], 128)
        turn = Copy((Transpose((0, 2, 1, 3)), Reshape((1, shape[2], shape[1], 128), other)))
        turned = builder.node(turn, [conv(n, drawn(128, channels))], builder.value(other, DType.FLOAT32))
        ends.append(conv(turned, np.eye(128)))
    elif extra == "sliced":
        part = builder.value((*shape[:3], 8), DType.FLOAT32)
        ends.append(builder.node(Copy((Slice((0, 0, 0, 8), (1, 1, 1, 1), (*shape[:3], 8)),)), [n], part))
    return builder.graph([x], ends), [rng.standard_normal(shape).astype(np.float32)]


CASES: dict[str, dict[str, Any]] = {
    "both": dict(shape=(1, 7, 41, 136), channels=384),
    "in front": dict(shape=(1, 9, 33, 200), channels=192, behind=False, extra="raw"),
    "behind": dict(shape=(2, 5, 67, 72), channels=264, before=False),
    "roots": dict(shape=(1, 3, 99, 136), channels=256, centred=False),
    "a product": dict(shape=(1, 7, 41, 72), channels=392, expr=apply("mul", BIASED, apply("tanh", Arg(2)))),
    "scale alone": dict(shape=(1, 4, 65, 264), channels=200, affine=apply("mul", RESULT, Arg(1))),
    "far from zero": dict(shape=(1, 7, 41, 136), channels=384, mean=20.0),
    "counted in other ways": dict(shape=(3, 5, 67, 72), channels=384, recounted=True),
    "turned": dict(shape=(1, 7, 41, 136), channels=200, behind=False, before=False, extra="turned"),
    "few rows": dict(shape=(1, 1, 3, 136), channels=192),
}


@pytest.mark.cuda
@pytest.mark.parametrize(
    "tile, case, groups",
    [*zip(cycle(candidates()), [*CASES, *reversed(CASES)], cycle((1, 3, 66)), strict=False)],
    ids=str,
)
def test_agrees_with_numpy(device, monkeypatch, case: str, tile: PingpongTile, groups: int) -> None:
    """By workgroups that have all tiles, several, and one or none for the second warpgroup."""
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    taken: list[tuple[bool, bool]] = []
    usual = pingpong.launch

    def launch(ctx, layer: Layer, tile: PingpongTile, where=None):
        taken.append((layer.told is not None, layer.tells is not None))
        return usual(ctx, layer, tile, where)

    monkeypatch.setattr(pingpong, "suits", lambda one, layer: one == tile and runs.run_in(layer, tile.columns) > 0)
    monkeypatch.setattr(pingpong, "groups_of", lambda *_: groups)
    monkeypatch.setattr(pingpong, "launch", launch)
    graph, data = network(**CASES[case])
    program = build_program(tell_moments(graph, device.features), device.features, "cuda", half=True)
    assert any(told for told, _ in taken) and any(tells for _, tells in taken)
    wanted = evaluate_graph(graph, data)
    for got, want in zip(all_outputs(device, program, data), wanted, strict=True):
        assert np.isfinite(got).all()
        # halves between 16 and 32 are 1/64 apart, 0.004 of what is normalised
        assert np.linalg.norm(got - want) <= (1e-2 if case == "far from zero" else 3e-3) * np.linalg.norm(want)


@pytest.mark.parametrize("case", CASES)
def test_compiles(case: str) -> None:
    graph, _ = network(**CASES[case])
    program = build_program(tell_moments(graph, CUDA), CUDA, "cuda", half=True)
    found = [kernel for kernel in program.kernels if "TOLD_AT" in kernel.source]
    assert len(found) > 1 and all(compile_kernels(found, 90))


def kinds(graph: Graph) -> list[str]:
    found = tell_moments(graph, CUDA).nodes
    return [type(node.op).__name__ for node in found if isinstance(node.op, LayerNorm | MomentsConv2D | RowMoments)]


@pytest.mark.parametrize("case", CASES)
def test_what_is_told(case: str) -> None:
    graph, data = network(**CASES[case])
    before, behind = (CASES[case].get(name, True) for name in ("before", "behind"))
    found = kinds(graph)
    assert "LayerNorm" not in found
    assert found.count("RowMoments") == 1 + behind
    assert found.count("MomentsConv2D") == 1 + before + 2 * behind + (case == "turned")
    for got, want in zip(evaluate_graph(tell_moments(graph, CUDA), data), evaluate_graph(graph, data), strict=True):
        np.testing.assert_allclose(got, want, atol=2e-4, rtol=2e-4)


def test_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (1, 8, 16, 64)
    for extra in ("result", "joined", "sliced"):
        assert "LayerNorm" in kinds(network(shape, 256, behind=False, extra=extra)[0])
    assert kinds(network((1, 8, 16, 64), 250)[0]) == ["LayerNorm", "LayerNorm"]  # no eight channels at once
    assert kinds(network((128, 1, 1, 64), 256)[0]) == ["LayerNorm", "LayerNorm"]  # single pixels are float32
    graph, _ = network(shape, 256)
    assert tell_moments(graph, dataclasses.replace(CUDA, capability=80)) is graph
    monkeypatch.setattr(row_moments._Telling, "pays", lambda *_: False)
    assert tell_moments(graph, CUDA) is graph
    monkeypatch.undo()
    assert tell_moments(graph, CUDA) is graph  # kernels of so few rows overlap


def test_norms_that_the_layer_in_front_takes_in(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = network((1, 8, 16, 64), 256, before=False)
    assert "LayerNorm" not in kinds(graph)
    monkeypatch.setattr(pointwise, "normed_pays", lambda *_: True)
    assert "LayerNorm" in kinds(graph)


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for channels in (768, 1024):
        assert "LayerNorm" not in kinds(
            network((1, 64, 128, channels), channels, outputs=(4 * channels, 3 * channels))[0]
        )
