"""Convolution whose windows lie side by side, in CUDA C++, against its definition: tiles, inputs of both types."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import patch
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.patch import PatchTile, packed, ranked
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Graph, GraphBuilder, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import packed as user_view

FEATURES = Features(
    float16=True, subgroups=True, subgroup_size=32, max_threads=1024, max_shared_bytes=48 << 10, max_buffers=64,
    max_groups=(1 << 31) - 1, max_binding_bytes=1 << 40, compute_units=100, native="cuda", capability=90,
)  # fmt: skip
#: Tile, the input's shape, the window, outputs, whether the input is an intermediate (float16).
CASES: dict[str, tuple[PatchTile, tuple[int, ...], tuple[int, int], int, bool]] = {
    "vision": (PatchTile(2, 96, 4, 2, 1), (1, 64, 160, 3), (16, 16), 192, False),
    "vision, all outputs": (PatchTile(1, 192, 2, 2, 2), (2, 32, 48, 3), (16, 16), 192, False),
    "divided depth": (PatchTile(4, 32, 12, 2, 1, 4), (1, 96, 112, 3), (16, 16), 40, False),
    "divided depth of two teams' pixels": (PatchTile(4, 64, 12, 1, 1, 2), (1, 96, 224, 3), (16, 16), 64, False),
    "four by four": (PatchTile(1, 96, 1, 1, 2), (2, 32, 36, 3), (4, 4), 96, False),
    "odd outputs, what is left over": (PatchTile(1, 32, 2, 1, 4), (3, 21, 38, 4), (5, 4), 37, False),
    "halves": (PatchTile(2, 64, 4, 2, 1), (2, 24, 40, 12), (3, 5), 64, True),
    "halves, two by two": (PatchTile(1, 128, 4, 2, 2), (1, 30, 20, 96), (2, 2), 128, True),
    "halves of three channels and a zero": (PatchTile(1, 96, 4, 2, 2), (2, 32, 40, 3), (8, 8), 96, True),
    "one channel": (PatchTile(1, 32, 1, 1, 4), (1, 40, 64, 1), (4, 8), 20, False),
}  # fmt: skip


def network(
    shape: tuple[int, ...], window: tuple[int, int], outputs: int, inner: bool, seed: int = 0
) -> tuple[Graph, np.ndarray]:
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    b, h, w, c = shape
    x = source = builder.value(shape, DType.FLOAT32)
    if inner:
        source = builder.value(shape, DType.FLOAT32)
        eye = 2 * np.eye(c, dtype=np.float32).reshape(c, 1, 1, c)
        builder.node(Conv2D(), [x, builder.constant(eye)], source)
    weights = builder.constant(rng.standard_normal((outputs, *window, c)) / np.sqrt(c * window[0] * window[1]))
    bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
    out = builder.value((b, h // window[0], w // window[1], outputs), DType.FLOAT32)
    builder.node(Conv2D(stride=window), [source, weights], out, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias])
    return builder.graph([x], [out]), rng.standard_normal(shape).astype(np.float32)


def built(tile: PatchTile, graph: Graph, features: Features) -> Any:
    """A program whose last convolution has that tile."""

    def only(layer: Layer, capability: int, units: int) -> list[PatchTile]:
        return [tile] if patch._can(layer.whole_pixels) else []

    with mock.patch.object(patch, "ranked", only), mock.patch.object(patch, "cost", lambda *_: 0.0):
        program = build_program(graph, features, "cuda", half=True)
    assert program.kernels[program.dispatches[-1].kernel].name == "patch_convolution"
    return program


def compare(device: Any, tile: PatchTile, graph: Graph, x: np.ndarray) -> None:
    if device.features.capability != 90:
        pytest.skip("no warpgroup products")
    program = built(tile, graph, dataclasses.replace(device.features, capability=90))
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, [x])[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(device: Any, case: str) -> None:
    tile, shape, window, outputs, inner = CASES[case]
    compare(device, tile, *network(shape, window, outputs, inner))


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(6))
def test_random_sizes(device: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kh, kw, channels = int(rng.integers(1, 9)), int(rng.integers(1, 9)), 4 * int(rng.integers(1, 6))
    kw = max(kw, 2)
    shape = (int(rng.integers(1, 3)), kh * int(rng.integers(1, 9)), kw * int(rng.integers(1, 12)), channels)
    graph, x = network(shape, (kh, kw), int(rng.integers(5, 200)), bool(seed % 2), seed)
    tiles = ranked(layer_of(graph), 90, 132)
    compare(device, tiles[int(rng.integers(len(tiles)))], graph, x)


def layer_of(graph: Graph, dtype: DType = DType.FLOAT32) -> Layer:
    node = graph.nodes[-1]
    source, weights = (graph.values[v] for v in node.inputs)
    assert isinstance(node.op, Conv2D) and weights.data is not None
    view = user_view(0, source.shape, dtype)
    return Layer(node.op, view, weights.data, graph.values[node.output].shape, True)


def test_only_windows_side_by_side() -> None:
    """Strides that are not the window's, padding, and runs that cannot be loaded four by four."""
    graph, _ = network((1, 32, 32, 4), (4, 4), 16, False)
    layer = layer_of(graph)
    assert ranked(layer, 90, 132) and not ranked(layer, 80, 132) and not ranked(layer, 100, 132)
    for op in (Conv2D(stride=(4, 2)), Conv2D(stride=(4, 4), padding=(1, 0)), Conv2D(stride=(4, 4), dilation=(2, 1))):
        assert not ranked(dataclasses.replace(layer, op=op), 90, 132)
    assert not ranked(layer_of(network((1, 32, 32, 3), (2, 2), 16, False)[0]), 90, 132)
    assert not ranked(dataclasses.replace(layer, half=False), 90, 132)


def test_weights_are_packed_in_the_order_of_loads() -> None:
    """A thread's four neighbours of a run meet their weights: places 2 t, 2 t + 1 and eight further on."""
    graph, _ = network((1, 6, 12, 4), (2, 3), 5, False)
    layer, tile = layer_of(graph), PatchTile(1, 32, 1, 1, 4)
    found = packed(layer, tile)
    assert found.shape == (1, 1, 32, 8, 8)
    for output in range(5):
        row = np.concatenate([found[0, 0, output, chunk ^ output % 8] for chunk in range(8)])
        for ky in range(2):
            group = row[16 * ky : 16 * ky + 16]
            run = np.concatenate(
                [np.concatenate([group[2 * t : 2 * t + 2], group[8 + 2 * t : 10 + 2 * t]]) for t in range(4)]
            )
            assert np.array_equal(run[:12], layer.weights[output, ky].reshape(-1).astype(np.float16))
            assert not run[12:].any()
    assert not found[0, 0, 5:].any()


@pytest.mark.parametrize("case", CASES)
def test_compiles(case: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    tile, shape, window, outputs, inner = CASES[case]
    program = built(tile, network(shape, window, outputs, inner)[0], FEATURES)
    kernels = [k for k in program.kernels if k.name == "patch_convolution"]
    assert kernels and compile_kernels(kernels, 90, programmatic=True)
