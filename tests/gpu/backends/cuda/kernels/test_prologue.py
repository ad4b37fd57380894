"""1x1 convolutions that do something with their input first, against the definition in NumPy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import convolution, matvec, specialized
from litegpu.gpu.backends.cuda.kernels.channelwise import read_channelwise
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.tile import WorkgroupTile
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Conv2D,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    Literal,
    PointwiseConv2D,
    Pool2D,
    Value,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
NORM = apply("add", apply("mul", Arg(0), Arg(1)), Arg(2))
#: Args 1 and 2 are a scale and a shift, 3 is a gate.
EXPRESSIONS = {
    "norm": NORM,
    "norm, relu": apply("max", NORM, 0.0),
    "norm, relu6": apply("min", apply("max", NORM, 0.0), 6.0),
    "norm, from -1 to 1": apply("max", apply("min", NORM, 1.0), -1.0),
    "relu": apply("max", Arg(0), 0.0),
    "gate": apply("mul", Arg(0), Arg(3)),
    "norm, relu, gate": apply("mul", Arg(3), apply("max", NORM, 0.0)),
}


def network(shape, outputs: int, expr: Apply, *, stride=(1, 1), one_gate=False, residual=False, readers=1, seed=0):
    """x -> 1x1 convolution (identity) -> `expr` -> 1x1 convolutions, bias (+ residual); the gate is another input's
    sigmoid."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    b, h, w, c = shape
    x = builder.value(shape, DType.FLOAT32)
    g = builder.value((1 if one_gate else b, 1, 1, c), DType.FLOAT32)
    eye = builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
    inner = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    gate = builder.node(Conv2D(), [g, eye], builder.value(builder.values[g].shape, DType.FLOAT32),
                        apply("sigmoid", RESULT))  # fmt: skip
    scale = builder.constant(rng.uniform(0.5, 2, (1, 1, 1, c)) * rng.choice([-1, 1], c))
    shift = builder.constant(rng.standard_normal((1, 1, 1, c)))
    ready = builder.node(Elementwise(), [], builder.value(shape, DType.FLOAT32), expr, [inner, scale, shift, gate])
    size = [-(-n // s) for n, s in zip((h, w), stride, strict=True)]
    made = []
    for i in range(readers):
        weights = builder.constant(rng.standard_normal((outputs, 1, 1, c)) / np.sqrt(c))
        bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
        out = builder.value((b, *size, outputs), DType.FLOAT32)
        expression, operands = apply("add", RESULT, Arg(1)), [bias]
        if residual:
            expression, operands = apply("add", expression, Arg(2)), [bias, inner]
        made.append(builder.node(Conv2D(stride if i == 0 else (1, 1)), [ready, weights], out, expression, operands))
    values = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(builder.values[g].shape)
    return builder.graph([x, g], made), [v.astype(np.float32) for v in values]


def check(device, graph: Graph, inputs: list[np.ndarray], *, kernel: str = "", half: bool = True) -> None:
    program = build_program(graph, device.features, "cuda", half=half)
    assert not any("elementwise" in d.label for d in program.dispatches), [d.label for d in program.dispatches]
    last = program.kernels[program.dispatches[-1].kernel]
    assert last.name == kernel or not kernel
    assert "Channels<" in last.source
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def only(monkeypatch, module, chosen) -> None:
    """Let pointwise convolutions have this tile of that kernel."""
    for other in (specialized, matvec):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(module, "ranked", lambda *_: [chosen])
    monkeypatch.setattr(module, "cost", lambda *_: 0.0)


@pytest.mark.cuda
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("shape, outputs", [((2, 9, 8, 72), 44), ((3, 5, 7, 37), 21), ((2, 4, 5, 12), 64)], ids=str)
def test_expressions(device, name: str, shape, outputs: int) -> None:
    """By what is estimated to be best: channels in whole chunks, odd ones, half chunks."""
    check(device, *network(shape, outputs, EXPRESSIONS[name]))


@pytest.mark.cuda
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("channels", [64, 100, 260])
@pytest.mark.parametrize("tile", [(64, 32, 1, 4, 4), (128, 64, 2, 3, 3), (128, 128, 1, 2, 2), (256, 128, 2, 4, 1),
                                  (64, 64, 1, 3, 4, 4)], ids=str)  # fmt: skip
def test_specialized(device, monkeypatch, name: str, channels: int, tile: tuple[int, ...]) -> None:
    if device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    graph, inputs = network((3, 9, 11, channels), 136, EXPRESSIONS[name])
    only(monkeypatch, specialized, SpecializedTile(*tile))
    check(device, graph, inputs, kernel="specialized_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("channels", [3, 40, 260])
@pytest.mark.parametrize("tile", [
    (16, 16, 64, (1, 1, 4), 3), (64, 48, 32, (4, 1, 1), 2), (128, 96, 16, (4, 2, 1), 4), (64, 64, 128, (2, 2, 2), 2),
    (128, 64, 64, (4, 1, 1), 3, True),
], ids=str)  # fmt: skip
def test_tiles(device, monkeypatch, name: str, channels: int, tile) -> None:
    if tile[-1] is True and device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    graph, inputs = network((3, 5, 7, channels), 36, EXPRESSIONS[name])
    for other in (specialized, matvec):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(convolution, "ranked", lambda *_: [WorkgroupTile(*tile)])
    check(device, graph, inputs, kernel="tensor_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 300), (2, 1, 3, 41), (2, 2, 2, 12)], ids=str)
def test_few_pixels(device, monkeypatch, name: str, shape) -> None:
    graph, inputs = network(shape, 50, EXPRESSIONS[name])
    only(monkeypatch, matvec, matvec.MatvecDivision(32, 64))
    check(device, graph, inputs, kernel="vector_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("stride", [(2, 2), (1, 3)])
def test_strides_and_one_gate_for_all(device, stride: tuple[int, int]) -> None:
    for channels in (64, 30):
        check(device, *network((2, 9, 8, channels), 64, EXPRESSIONS["norm, relu, gate"], stride=stride, one_gate=True))
    check(device, *network((2, 9, 8, 64), 64, EXPRESSIONS["norm, relu"], residual=True))
