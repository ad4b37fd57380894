"""1x1 convolutions whose results are normalised before they are stored, against the definition in NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import normed, pointwise, specialized
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.passes.normed import join_normed
from litegpu.gpu.build import build_program
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
    LayerNorm,
    PointwiseConv2D,
    Reshape,
    Transpose,
    apply,
)
from litegpu.gpu.lang.features import Features

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
SUM = apply("add", apply("add", RESULT, Arg(1)), Arg(2))
AFFINE = apply("add", apply("mul", RESULT, Arg(1)), Arg(2))


@pytest.fixture(autouse=True)
def all_that_it_can(monkeypatch) -> None:
    """All widths, of however many rows."""
    monkeypatch.setattr(pointwise, "normed_pays", lambda rows, inputs, outputs, *_: normed.fits(outputs))
    monkeypatch.setattr(normed, "WIDTHS", (256, 192, 128))
    monkeypatch.setattr(normed, "MOST_PARTS", 4)


def network(
    shape: tuple[int, ...], outputs: int, *, expr: Expr = SUM, centred: bool = True, reshaped: bool = False,
    readers: int = 1, affine: Expr = AFFINE, mean: float = 0.5,
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """x -> 1x1 convolution (identity), and to `outputs` channels -> 1x1 convolution of the first, `expr` with a bias
    and the second -> (another shape ->) normalised -> identity."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    c = shape[3]

    def conv(x: int, weights: np.ndarray, epilogue: Expr = RESULT, operands: tuple[int, ...] = ()) -> int:
        size = (*builder.values[x].shape[:3], len(weights))
        constant = builder.constant(weights.reshape(len(weights), 1, 1, -1).astype(np.float32))
        return builder.node(Conv2D(), [x, constant], builder.value(size, DType.FLOAT32), epilogue, list(operands))

    x = builder.value(shape, DType.FLOAT32)
    inner = conv(x, np.eye(c))
    residual = conv(inner, rng.standard_normal((outputs, c)) / np.sqrt(c))
    bias = builder.constant((rng.standard_normal((1, 1, 1, outputs)) + mean).astype(np.float32))
    sums = conv(inner, rng.standard_normal((outputs, c)) / np.sqrt(c), expr, (bias, residual))
    if reshaped:
        b, h, w, _ = shape
        other = (1, b, h * w, outputs)
        sums = builder.node(Copy((Reshape((*shape[:3], outputs), other),)), [sums], builder.value(other, DType.FLOAT32))
    scale = builder.constant(rng.uniform(0.5, 2, (1, 1, 1, outputs)).astype(np.float32))
    shift = builder.constant(rng.standard_normal((1, 1, 1, outputs)).astype(np.float32))
    size = builder.values[sums].shape
    norm = LayerNorm(1e-5, centred)
    found = builder.node(norm, [sums], builder.value(size, DType.FLOAT32), affine, [scale, shift])
    outs = [conv(found, np.eye(outputs)), *([sums] if readers > 1 else [])]
    return builder.graph([x], outs), [rng.standard_normal(shape).astype(np.float32)]


CASES: dict[str, tuple[SpecializedTile, dict[str, Any]]] = {
    "one workgroup": (SpecializedTile(128, 128, 2, 3, 2), dict(shape=(1, 7, 23, 64), outputs=128)),
    "two": (SpecializedTile(128, 192, 2, 4, 1), dict(shape=(2, 9, 11, 72), outputs=384)),
    "three, one warpgroup": (SpecializedTile(64, 128, 1, 4, 2), dict(shape=(1, 5, 13, 136), outputs=384)),
    "two blocks of rows": (SpecializedTile(128, 128, 1, 3, 2), dict(shape=(1, 11, 13, 64), outputs=256)),
    "roots": (SpecializedTile(128, 128, 2, 3, 2), dict(shape=(1, 7, 23, 64), outputs=256, centred=False)),
    "no bias": (
        SpecializedTile(128, 128, 2, 3, 2),
        dict(shape=(1, 7, 23, 64), outputs=128, expr=apply("add", Arg(2), RESULT)),
    ),
    "no residual": (
        SpecializedTile(128, 256, 2, 4, 1),
        dict(shape=(1, 7, 23, 64), outputs=256, expr=apply("add", Arg(1), RESULT)),
    ),
    "nothing added": (SpecializedTile(128, 128, 2, 3, 2), dict(shape=(1, 7, 23, 64), outputs=128, expr=RESULT)),
    "another shape": (SpecializedTile(128, 128, 2, 3, 2), dict(shape=(2, 7, 11, 64), outputs=256, reshaped=True)),
    "far from zero": (SpecializedTile(128, 128, 2, 3, 2), dict(shape=(1, 7, 23, 64), outputs=256, mean=20.0)),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(device, monkeypatch, case: str) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    tile, options = CASES[case]
    taken: list[Any] = []
    usual = specialized.launch

    def launch(ctx, layer, tile, where=None):
        taken.append((layer.behind is not None, str(tile)))
        return usual(ctx, layer, tile, where)

    monkeypatch.setattr(pointwise, "_that_have_rows", lambda layer, units: [tile])
    monkeypatch.setattr(specialized, "launch", launch)
    graph, data = network(**options)
    want = evaluate_graph(graph, data)[0]
    program = build_program(join_normed(graph, device.features), device.features, "cuda", half=True)
    assert (True, str(tile)) in taken
    got = first_output(device, program, data, want.shape)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("outputs", (256, 384, 768))
def test_compiles(outputs: int) -> None:
    graph, _ = network((1, 4, 33, 64), outputs)
    program = build_program(join_normed(graph, CUDA), CUDA, "cuda", half=True)
    found = [kernel for kernel in program.kernels if "normalise_behind" in kernel.source]
    assert found and all(compile_kernels(found, 90))


def kinds(graph: Graph) -> list[str]:
    found = join_normed(graph, CUDA).nodes
    return [type(node.op).__name__ for node in found if isinstance(node.op, LayerNorm | PointwiseConv2D)]


def test_what_is_joined(monkeypatch) -> None:
    shape = (1, 8, 16, 64)
    same: list[dict[str, Any]] = [{}, {"reshaped": True}, {"expr": RESULT}, {"centred": False}]
    for options in same:
        graph, data = network(shape, 256, **options)
        assert kinds(graph) == ["PointwiseConv2D"]
        joined = join_normed(graph, CUDA)
        assert np.allclose(evaluate_graph(joined, data)[0], evaluate_graph(graph, data)[0], atol=1e-4)
    other = apply("mul", apply("add", RESULT, Arg(1)), Arg(2))
    twice = apply("add", apply("add", RESULT, Arg(2)), Arg(2))
    apart: list[dict[str, Any]] = [{"readers": 2}, {"expr": other}, {"expr": twice}, {"expr": apply("max", SUM, 0.0)}]
    for options in apart:
        assert kinds(network(shape, 256, **options)[0]) == ["LayerNorm"]
    moved = network(shape, 256)[0]
    turned = Copy((Transpose((0, 2, 1, 3)),))
    apart_nodes = [node for node in moved.nodes if not isinstance(node.op, LayerNorm)]
    (norm,) = (node for node in moved.nodes if isinstance(node.op, LayerNorm))
    builder = GraphBuilder(dict(moved.values), [*apart_nodes[:-1], norm])
    out = builder.node(turned, [norm.output], builder.value((1, 16, 8, 256), DType.FLOAT32))
    assert kinds(builder.graph(moved.inputs, [out])) == ["LayerNorm"]  # it may be stored right where it is moved to
    assert kinds(network(shape, 200)[0]) == ["LayerNorm"]  # no tile has whole rows
    assert kinds(network(shape, 256 * 5)[0]) == ["LayerNorm"]  # too many workgroups
    graph, _ = network(shape, 256)
    assert join_normed(graph, dataclasses.replace(CUDA, capability=80)) is graph
    monkeypatch.setattr(pointwise, "normed_pays", lambda *_: False)
    assert kinds(graph) == ["LayerNorm"]


def test_where_it_pays(monkeypatch) -> None:
    """Large tiles fill all multiprocessors."""
    monkeypatch.undo()
    for inputs, outputs in ((512, 512), (2048, 512), (384, 384), (1536, 384)):
        assert pointwise.normed_pays(8192, inputs, outputs, 1, CUDA)
        assert not pointwise.normed_pays(128, inputs, outputs, 1, CUDA)
    assert not pointwise.normed_pays(3000, 2048, 512, 1, CUDA)
    assert not pointwise.normed_pays(8192, 2048, 768, 1, CUDA)  # three workgroups, or four, have a row
