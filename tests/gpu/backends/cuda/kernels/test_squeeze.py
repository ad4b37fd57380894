"""Squeeze-and-excite in two kernels, against the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import excite, overlapped, squeeze
from litegpu.gpu.backends.cuda.kernels.excite import ExciteTile
from litegpu.gpu.backends.cuda.kernels.squeeze import alone, ranked
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Excite,
    Graph,
    GraphBuilder,
    Pool2D,
    Reduce,
    Squeeze,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.view import padded

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
BIASED = apply("add", RESULT, Arg(1))
SWISH = apply("mul", BIASED, apply("sigmoid", BIASED))
SIGMOID = apply("sigmoid", BIASED)
HARD = apply("mul", apply("min", apply("max", apply("add", BIASED, Arg(2)), 0.0), 6.0), Arg(3))


WILL_OVERLAP = overlapped.will_overlap


@pytest.fixture(autouse=True)
def overlapping(alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped, "will_overlap", WILL_OVERLAP)


def network(
    size: tuple[int, int], channels: int, results: int, *, batch=1, taps=3, stride=1, depthwise=True, pooled=False,
    hard=False, read=False, seed=0,
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """x -> 1x1 convolution (-> depthwise convolution), swish -> squeeze-and-excite -> 1x1 convolution."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()

    def floats(*shape: int) -> int:
        return builder.value(shape, DType.FLOAT32)

    def constant(*shape: int, scale: float = 1.0) -> int:
        return builder.constant((rng.standard_normal(shape) * scale).astype(np.float32))

    x = floats(batch, *size, channels)
    last = builder.node(Conv2D(), [x, constant(channels, 1, 1, channels, scale=channels**-0.5)],
                        floats(batch, *size, channels), BIASED if depthwise else SWISH,
                        [constant(1, 1, 1, channels)])  # fmt: skip
    if depthwise:
        size = (-(-size[0] // stride), -(-size[1] // stride))
        op = DepthwiseConv2D((stride, stride), padding=((taps - 1) // 2,) * 2)
        last = builder.node(op, [last, constant(1, taps, taps, channels, scale=1 / taps)],
                            floats(batch, *size, channels), SWISH, [constant(1, 1, 1, channels)])  # fmt: skip
    mean = floats(batch, 1, 1, channels)
    builder.node(Pool2D("average", size, (1, 1)) if pooled else Reduce("mean", (1, 2)), [last], mean)
    inner = builder.node(Conv2D(), [mean, constant(results, 1, 1, channels, scale=channels**-0.5)],
                         floats(batch, 1, 1, results), SWISH, [constant(1, 1, 1, results)])  # fmt: skip
    operands, gate = [constant(1, 1, 1, channels)], SIGMOID
    if hard:
        gate, numbers = HARD, (3.0, 1 / 6)
        operands += [builder.constant(np.full((1, 1, 1, 1), n, np.float32)) for n in numbers]
    gates = builder.node(Conv2D(), [inner, constant(channels, 1, 1, results, scale=results**-0.5)],
                         floats(batch, 1, 1, channels), gate, operands)  # fmt: skip
    out = builder.node(Elementwise(), [], floats(batch, *size, channels), apply("mul", Arg(0), Arg(1)), [last, gates])
    end = builder.node(Conv2D(), [out, constant(24, 1, 1, channels, scale=channels**-0.5)], floats(batch, *size, 24))
    outputs = [end, mean] if read else [end]
    return builder.graph([x], outputs), [rng.standard_normal((batch, *builder.values[x].shape[1:])).astype(np.float32)]


def check(device, graph: Graph, inputs: list[np.ndarray], kernels: dict[str, int]) -> None:
    program = build_program(graph, device.features, "cuda", half=True)
    names = [program.kernels[d.kernel].name for d in program.dispatches]
    assert {name: names.count(name) for name in kernels} == kernels
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def needs_warpgroups(device) -> None:
    if device.features.capability != 90:
        pytest.skip("only where kernels overlap")


CASES = {
    "one tile": dict(size=(7, 7), channels=96, results=4),
    "several tiles": dict(size=(19, 23), channels=32, results=8),
    "more results": dict(size=(7, 7), channels=160, results=40, taps=5),
    "odd channels": dict(size=(9, 11), channels=36, results=5),
    "stride": dict(size=(14, 14), channels=72, results=24, stride=2, taps=5, hard=True),
    "batch": dict(size=(8, 6), channels=48, results=12, batch=3),
}


@pytest.mark.cuda
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("depthwise", [True, False])
def test_against_numpy(device, name: str, depthwise: bool) -> None:
    needs_warpgroups(device)
    graph, x = network(**CASES[name], depthwise=depthwise)  # type: ignore[arg-type]
    check(device, graph, x, {"squeeze": 1, "excite": 1, "reduce": 0, "elementwise": 0, "blocked_depthwise": 0})


@pytest.mark.cuda
@pytest.mark.parametrize("wide", [8, 32, 64])
def test_other_divisions(device, monkeypatch, wide: int) -> None:
    """Few and many channels of a workgroup, and parts that nobody has."""
    needs_warpgroups(device)
    graph, x = network((14, 14), 72, 20)

    def some(layer, results, units, usual=ranked):
        return [b for b in usual(layer, results, units) if b.chunks * b.lanes == wide][:3]

    monkeypatch.setattr(squeeze, "ranked", some)
    monkeypatch.setattr(squeeze, "parts_of", lambda *a: 200)
    check(device, graph, x, {"squeeze": 1, "excite": 1})


@pytest.mark.cuda
@pytest.mark.parametrize("tile", [(64, 2, 49), (128, 32, 11), (256, 4, 196), (128, 16, 5)], ids=str)
def test_tiles(device, monkeypatch, tile: tuple[int, int, int]) -> None:
    needs_warpgroups(device)
    monkeypatch.setattr(excite, "ranked", lambda *_: [ExciteTile(*tile)])
    graph, x = network((14, 14), 200, 52)
    check(device, graph, x, {"squeeze": 1, "excite": 1})


def blocks(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many are joined; the graph computes the same."""
    optimised = optimise(graph, features, half)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    found = [type(n.op) for n in optimised.nodes]
    assert found.count(Squeeze) == found.count(Excite)
    return found.count(Excite)


def test_what_is_joined() -> None:
    assert blocks(network((7, 7), 96, 4)[0]) == 1
    assert blocks(network((7, 7), 96, 4, pooled=True, hard=True)[0]) == 1
    assert blocks(network((7, 7), 96, 4, depthwise=False, batch=2)[0]) == 1


@pytest.mark.parametrize("name", GPUS)
def test_on_every_gpu(name: str) -> None:
    assert blocks(network((7, 7), 96, 4)[0], GPUS[name].features) == 1


def test_what_is_not() -> None:
    graph = network((7, 7), 96, 4)[0]
    assert blocks(graph, half=False) == 0
    assert blocks(graph, Features(float16=True, native="cuda", capability=70, compute_units=80)) == 0
    assert blocks(network((7, 7), 96, 4, read=True)[0]) == 0  # somebody else wants the mean
    assert blocks(network((56, 56), 96, 4, batch=64)[0]) == 0  # kernels that take longer than a launch


def test_divisions_of_large_and_small_images() -> None:
    for size, channels, results in ((7, 1152, 48), (14, 672, 168), (112, 32, 8), (7, 960, 240)):
        layer = alone(padded(0, (1, size, size, channels), DType.FLOAT16))
        block = ranked(layer, results, 132)[0]
        assert block.threads % 32 == 0
        assert squeeze.OWN * block.threads >= results
        assert block.groups(layer)[0] * block.chunks * block.lanes >= channels
    assert squeeze.parts_of(alone(padded(0, (1, 3, 3, 8), DType.FLOAT16)), 1, 132) is None  # not worth a workgroup
