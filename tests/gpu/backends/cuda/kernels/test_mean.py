"""1x1 convolutions that find the mean of their results, against the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output

from litegpu.gpu.backends.cuda import native
from litegpu.gpu.backends.cuda.kernels import mean, overlapped
from litegpu.gpu.backends.cuda.kernels.tile import WorkgroupTile
from litegpu.gpu.backends.cuda.passes import mean as passes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Concat,
    Conv2D,
    Copy,
    DType,
    Graph,
    GraphBuilder,
    MeanConv2D,
    PointwiseConv2D,
    Pool2D,
    Reduce,
    Reshape,
    apply,
    walk,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.program import Program

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
WILL_OVERLAP = overlapped.will_overlap
BIASED = apply("add", RESULT, Arg(1))
RELU6 = apply("min", apply("max", BIASED, 0.0), 6.0)
SWISH = apply("mul", BIASED, apply("sigmoid", BIASED))


@pytest.fixture(autouse=True)
def overlapping(alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapped, "will_overlap", WILL_OVERLAP)


def network(
    side: int,
    inputs: int,
    outputs: int,
    classes: int,
    *,
    act=RELU6,
    batch=1,
    pooled=False,
    also_read=False,
    also="",
    of_mean=RESULT,
) -> tuple[Graph, list[np.ndarray]]:
    """x -> 1x1 convolution -> another, `act` -> mean -> 1x1 convolution. `also`: what the first one gives is an output
    as well, as it is or "in a row" or "beside" x."""
    rng, builder = np.random.default_rng(0), GraphBuilder()

    def floats(*shape: int) -> int:
        return builder.value(shape, DType.FLOAT32)

    def layer(x: int, shape: tuple[int, ...], depth: int, expr) -> int:
        weights = builder.constant((rng.standard_normal((shape[3], 1, 1, depth)) * depth**-0.5).astype(np.float32))
        bias = builder.constant(rng.standard_normal((1, 1, 1, shape[3])).astype(np.float32))
        return builder.node(Conv2D(), [x, weights], floats(*shape), expr, [bias])

    x = floats(batch, side, side, inputs)
    before = layer(x, (batch, side, side, inputs), inputs, BIASED)
    wide = layer(before, (batch, side, side, outputs), inputs, act)
    op = Pool2D("average", (side, side), (1, 1)) if pooled else Reduce("mean", (1, 2))
    found = builder.node(op, [wide], floats(batch, 1, 1, outputs), of_mean)
    ends = [layer(found, (batch, 1, 1, classes), outputs, BIASED), *([wide] if also_read else [])]
    if also == "as it is":
        ends.append(before)
    elif also == "in a row":
        row = (batch, 1, 1, side * side * inputs)
        ends.append(builder.node(Copy((Reshape((batch, side, side, inputs), row),)), [before], floats(*row)))
    elif also == "beside":
        ends.append(builder.node(Concat(3), [before, x], floats(batch, side, side, 2 * inputs)))
    return builder.graph([x], ends), [rng.standard_normal((batch, side, side, inputs)).astype(np.float32)]


def quantized(
    side: int, inputs: int, outputs: int, classes: int, *, pooled=False, each=True, halves=True, most=255.0
) -> tuple[Graph, list]:
    """The same of whole numbers: what the layers and the mean give is rounded to 0 to 255, or `most`, with a scale for
    `each` channel or for all. `halves`: the mean is as if it could be halfway between two."""
    rng, builder = np.random.default_rng(1), GraphBuilder()

    def floats(*shape: int) -> int:
        return builder.value(shape, DType.FLOAT32)

    def within(expr):
        return apply("min", apply("max", expr, 0.0), most)

    def layer(x: int, shape: tuple[int, ...], depth: int) -> int:
        weights = builder.constant(rng.integers(-127, 128, (shape[3], 1, 1, depth)).astype(np.float32))
        bias = builder.constant(rng.integers(-999, 1000, (1, 1, 1, shape[3])).astype(np.float32))
        scales = builder.constant(
            rng.uniform(1, 2, (1, 1, 1, shape[3] if each else 1)).astype(np.float32) * 0.2 / depth
        )
        expr = within(apply("round", apply("mul", BIASED, Arg(2))))
        return builder.node(Conv2D(), [x, weights], floats(*shape), expr, [bias, scales])

    x = floats(1, side, side, inputs)
    wide = layer(layer(x, (1, side, side, inputs), inputs), (1, side, side, outputs), inputs)
    op = Pool2D("average", (side, side), (1, 1)) if pooled else Reduce("mean", (1, 2))
    rounded = within(apply("floor", apply("add", RESULT, 0.5))) if halves else passes.ROUNDED
    found = builder.node(op, [wide], floats(1, 1, 1, outputs), rounded)
    last = layer(found, (1, 1, 1, classes), outputs)
    return builder.graph([x], [last]), [rng.integers(0, 256, (1, side, side, inputs)).astype(np.float32)]


def names_of(program: Program) -> list[str]:
    return [program.kernels[d.kernel].name for d in program.dispatches]


def check(device, graph: Graph, inputs: list[np.ndarray]) -> None:
    if device.features.capability != 90:
        pytest.skip("only where kernels overlap")
    program = build_program(graph, device.features, "cuda", half=True)
    assert names_of(program)[:3] == ["tensor_convolution", "mean_convolution", "vector_convolution"]
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


TILES = {
    "16x16x256": WorkgroupTile(16, 16, 256, (1, 1, 8), 2), "32x32x128": WorkgroupTile(32, 32, 128, (1, 1, 4), 2),
    "64x32x64": WorkgroupTile(64, 32, 64, (4, 1, 1), 3), "together": WorkgroupTile(64, 64, 64, (4, 1, 1), 2, True),
}  # fmt: skip


@pytest.mark.cuda
@pytest.mark.parametrize("name", TILES)
def test_tiles(device, monkeypatch, name: str) -> None:
    """One part and several, columns that are no whole tile."""
    monkeypatch.setattr(mean, "ranked", lambda *_: [TILES[name]])
    check(device, *network(7, 136, 100, 40))


@pytest.mark.cuda
@pytest.mark.parametrize("act", [RELU6, SWISH], ids=["relu6", "swish"])
def test_activations(device, act) -> None:
    """(Where there is none, the mean is taken in front of the layer: passes/squeezing.py.)"""
    check(device, *network(5, 64, 50, 10, act=act, pooled=act is RELU6))


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["16x16x256", "64x32x64"])
@pytest.mark.parametrize("side, pooled, each", [(6, True, True), (6, False, False), (3, True, False), (7, False, True)])
def test_rounded(device, monkeypatch, name: str, side: int, pooled: bool, each: bool) -> None:
    """What the kernels give one by one, to the last bit: averages of 36 numbers have halves to round, those of an odd
    number none."""
    if device.features.capability != 90:
        pytest.skip("only where kernels overlap")
    monkeypatch.setattr(mean, "ranked", lambda *_: [TILES[name]])
    graph, inputs = quantized(side, 136, 100, 40, pooled=pooled, each=each, halves=side % 2 == 0)
    results = []
    for joined in (True, False):
        if not joined:
            monkeypatch.setattr(native, "join_means", lambda graph, _: graph)
        program = build_program(graph, device.features, "cuda", half=True)
        assert names_of(program).count("mean_convolution") == joined
        results.append(first_output(device, program, inputs, graph.values[graph.outputs[0]].shape))
    np.testing.assert_array_equal(results[0], results[1])
    assert len(np.unique(results[0])) > 10
    np.testing.assert_allclose(results[0], evaluate_graph(graph, inputs)[0], atol=1)


@pytest.mark.parametrize(
    "side, most, halves, expected",
    [(7, 255.0, False, "mul"), (6, 255.0, False, "div"), (7, 255.0, True, "div"), (7, 2.0**16, False, "div")],
)
def test_means_are_products_where_none_is_a_half(side: int, most: float, halves: bool, expected: str) -> None:
    graph = passes.join_means(quantized(side, 136, 100, 40, halves=halves, most=most)[0], CUDA)
    exprs = [n.op.prologue if isinstance(n.op, PointwiseConv2D) else n.epilogue for n in graph.nodes[1:]]
    found = {e.fn for expr in exprs for e in walk(expr) if isinstance(e, Apply) and RESULT in e.args}
    assert any(isinstance(n.op, MeanConv2D) for n in graph.nodes) and found & {"mul", "div"} == {expected}


@pytest.mark.parametrize("pixels", [9, 49, 125, 199])
def test_every_sum_of_an_odd_number(pixels: int) -> None:
    largest = passes.MOST_SUM // pixels
    sums = np.arange(pixels * (largest - 300), pixels * largest + 1).astype(np.float32)
    want = np.rint(sums.astype(np.float64) / pixels)
    np.testing.assert_array_equal(np.rint(sums * np.float32(1 / pixels)), want)


@pytest.mark.cuda
def test_an_epilogue_of_the_mean(device) -> None:
    """Other than a rounding."""
    check(device, *network(7, 64, 48, 10, of_mean=apply("min", apply("mul", RESULT, 0.5), 1.0)))


@pytest.mark.cuda
def test_of_what_is_an_output_as_well(device) -> None:
    check(device, *network(7, 64, 48, 10, also="as it is"))


def means(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many are joined; the graph computes the same."""
    optimised = optimise(graph, features, half)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return sum(isinstance(n.op, MeanConv2D) for n in optimised.nodes)


def test_what_is_joined() -> None:
    assert means(network(7, 64, 128, 10)[0]) == 1
    assert means(network(3, 64, 128, 10, pooled=True)[0]) == 1
    assert means(network(7, 64, 128, 10, of_mean=apply("max", RESULT, 0.1))[0]) == 1
    assert means(quantized(7, 64, 128, 10)[0]) == 1


@pytest.mark.parametrize("name", GPUS)
def test_on_every_gpu(name: str) -> None:
    """With tiles that have room there."""
    assert means(network(7, 64, 128, 10)[0], GPUS[name].features) == 1
    program = build_program(network(7, 64, 128, 10)[0], GPUS[name].features, "cuda", half=True)
    assert all(kernel.shared_bytes <= GPUS[name].shared << 10 for kernel in program.kernels)


def test_what_is_not() -> None:
    graph = network(7, 64, 128, 10)[0]
    assert means(graph, half=False) == 0
    assert means(graph, Features(float16=True, native="cuda", capability=70, compute_units=80)) == 0
    assert means(network(7, 64, 128, 10, batch=2)[0]) == 0
    assert means(network(7, 64, 128, 10, also_read=True)[0]) == 0
    assert means(network(7, 60, 128, 10)[0]) == 0  # rows that are no whole chunks
    assert means(network(30, 64, 128, 10)[0]) == 0  # many parts


@pytest.mark.parametrize("side, also, joined", [
    (1, "", False), (7, "as it is", True), (7, "in a row", False), (7, "beside", False),
])  # fmt: skip
def test_where_the_input_is_stored_as_float32(side: int, also: str, joined: bool) -> None:
    """One pixel, as the last layers of MobileNets have of 32x32; and outputs: what is one as it is, is copied."""
    program = build_program(network(side, 64, 128, 10, also=also)[0], GPUS["H200"].features, "cuda", half=True)
    assert ("mean_convolution" in names_of(program)) == joined
