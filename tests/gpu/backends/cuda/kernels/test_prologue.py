"""1x1 convolutions that do something with their input first, against the definition in NumPy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from agreement import FLOAT16, assert_agrees, official, on_gpu, random_inputs, run
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import convolution, matvec, specialized
from litegpu.gpu.backends.cuda.kernels import tile as tiles
from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise, read_channelwise
from litegpu.gpu.backends.cuda.kernels.layer import Layer
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
    PointwiseConv2D,
    Reduce,
    Value,
    apply,
    arguments,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.passes import optimise
from litegpu.gpu.view import padded
from litegpu.model import read_model
from litegpu.zoo.layers import Layers
from litegpu.zoo.network import NetworkTensor

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
    sigmoid. The mean of what the first one computes is an output as well."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    b, h, w, c = shape
    x = builder.value(shape, DType.FLOAT32)
    g = builder.value((1 if one_gate else b, 1, 1, c), DType.FLOAT32)
    eye = builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
    no_line = apply("max", RESULT, -1000.0)  # or the mean would be taken in front of it (passes/squeezing.py)
    inner = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32), no_line)
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
    made.append(builder.node(Reduce("mean", (1, 2)), [inner], builder.value((b, 1, 1, c), DType.FLOAT32)))
    values = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(builder.values[g].shape)
    return builder.graph([x, g], made), [v.astype(np.float32) for v in values]


def check(device, graph: Graph, inputs: list[np.ndarray], *, kernel: str = "", half: bool = True) -> None:
    program = build_program(graph, device.features, "cuda", half=half)
    assert not any("elementwise" in d.label for d in program.dispatches), [d.label for d in program.dispatches]
    (joint,) = [k for k in program.kernels if "struct Prologue {" in k.source]
    assert joint.name == kernel or not kernel
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def only(monkeypatch, module, chosen) -> None:
    """Let 1x1 convolutions with a prologue have this tile of that kernel."""
    for other in (specialized, matvec):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(module, "ranked", lambda layer, *_: [chosen] if layer.prologue is not None else [])
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
@pytest.mark.parametrize("name", ["norm, relu", "norm, relu, gate"])
@pytest.mark.parametrize("channels, depth", [(136, 256), (300, 512)])
def test_steps_beyond_the_factors(device, monkeypatch, name: str, channels: int, depth: int) -> None:
    """Deep steps, as where kernels overlap, end behind the channels: what is multiplied by zeros is a number."""
    graph, inputs = network((1, 5, 7, channels), 36, EXPRESSIONS[name])
    for other in (specialized, matvec):
        monkeypatch.setattr(other, "ranked", lambda *_: [])
    monkeypatch.setattr(convolution, "ranked", lambda *_: [WorkgroupTile(16, 16, depth, (1, 1, 8), 2)])
    check(device, graph, inputs, kernel="tensor_convolution")


@pytest.mark.cuda
@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("shape", [(1, 1, 2, 300), (2, 1, 3, 41), (2, 2, 2, 12)], ids=str)
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


@pytest.mark.cuda
def test_float32_input_and_result(device) -> None:
    """What is decided on stays in float32, and its convolution is computed in that."""
    graph, inputs = network((2, 9, 8, 36), 24, EXPRESSIONS["norm, relu, gate"])
    joint = next(n for n in optimise(graph, device.features, True).nodes if isinstance(n.op, PointwiseConv2D))
    builder = GraphBuilder.of(optimise(graph, device.features, True))
    kept = builder.graph(graph.inputs, graph.outputs)
    program = build_program(kept, device.features, "cuda", half=False)
    (kernel,) = [k for k in program.kernels if "struct Prologue {" in k.source]
    assert kernel.name == "tiled_convolution" and joint.output == graph.outputs[0]
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("channels", [64, 260])
def test_what_cancels_keeps_its_digits(device, channels: int) -> None:
    """A mean that is much larger than the deviation: factors of one half each would lose a percent."""
    graph, inputs = network((2, 9, 8, channels), 64, EXPRESSIONS["norm"])
    builder = GraphBuilder.of(graph)
    scale, shift = next(n.operands[1:3] for n in graph.nodes if isinstance(n.op, Elementwise))
    rng = np.random.default_rng(2)
    scales = rng.uniform(0.9, 1.1, (1, 1, 1, channels)).astype(np.float32)
    means = rng.uniform(60, 63, scales.shape).astype(np.float32)
    for v, data in ((scale, scales), (shift, -means * scales)):
        builder.values[v] = dataclasses.replace(builder.values[v], data=data)
    inputs[0] = (means + rng.standard_normal(inputs[0].shape)).astype(np.float16).astype(np.float32)
    changed = builder.graph(graph.inputs, graph.outputs)
    program = build_program(changed, device.features, "cuda", half=True)
    assert any("struct Prologue {" in k.source for k in program.kernels)
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(changed, inputs)[0]
    assert np.linalg.norm(got - want) <= 1e-3 * np.linalg.norm(want)


@pytest.mark.cuda
def test_the_largest_halves(device) -> None:
    """Where the second half of a factor is zero, as of a scale of one."""
    graph, inputs = network((2, 5, 9, 44), 64, EXPRESSIONS["norm, relu6"])
    builder = GraphBuilder.of(graph)
    scale = next(n.operands[1] for n in graph.nodes if isinstance(n.op, Elementwise))
    ones = np.ones((1, 1, 1, 44), np.float32)
    builder.values[scale] = dataclasses.replace(builder.values[scale], data=ones)
    inputs[0][0, 2, 4, 7], inputs[0][1, 0, 0, 43] = 65504, -65504
    changed = builder.graph(graph.inputs, graph.outputs)
    program = build_program(changed, device.features, "cuda", half=True)
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(changed, inputs)[0]
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
def test_nan_stays_in_its_pixel(device) -> None:
    for name in ("norm, relu", "norm, relu6"):
        graph, inputs = network((2, 5, 9, 44), 64, EXPRESSIONS[name])
        inputs[0][0, 2, 4, 7], inputs[0][1, 0, 0, 43] = np.nan, np.nan
        program = build_program(graph, device.features, "cuda", half=True)
        assert any("struct Prologue {" in k.source for k in program.kernels)
        got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
        want = np.zeros((2, 5, 9, 64), bool)
        want[0, 2, 4], want[1, 0, 0] = True, True
        np.testing.assert_array_equal(np.isnan(got), want)


def joint(graph: Graph, features: Features = CUDA, half: bool = True) -> int:
    """How many convolutions have a prologue; the graph computes the same."""
    optimised = optimise(graph, features, half)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    return sum(isinstance(n.op, PointwiseConv2D) for n in optimised.nodes)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_joined(name: str) -> None:
    graph, _ = network((2, 5, 6, 12), 16, EXPRESSIONS[name], readers=2)
    assert joint(graph) == 2
    optimised = optimise(graph, CUDA, True)
    assert not any(isinstance(n.op, Elementwise) for n in optimised.nodes)


def test_joined_only_where_a_kernel_is_and_pays() -> None:
    expr = EXPRESSIONS["norm, relu"]
    graph, _ = network((2, 5, 6, 12), 16, expr)
    assert joint(graph) == 1
    for features, half in (
        (CUDA, False),
        (dataclasses.replace(CUDA, capability=70), True),
        (Features(), True),
    ):
        assert joint(graph, features, half) == 0
    assert joint(network((1, 2, 3, 8), 1024, expr)[0]) == 1
    assert joint(network((1, 2, 3, 8), 1025, expr)[0]) == 0
    assert joint(network((1, 2, 3, 8), 520, expr, readers=2)[0]) == 0
    for channels, joins in ((320, 1), (324, 0)):
        assert joint(network((1, 2, 3, channels), 16, EXPRESSIONS["gate"])[0]) == joins


def altered(change) -> Graph:
    """A network of a prologue and its convolution, to the builder of which `change` does something, given the value
    between the two; it gives further outputs."""
    graph, _ = network((2, 5, 6, 12), 12, EXPRESSIONS["norm, relu"])
    builder = GraphBuilder.of(graph)
    between = next(n.output for n in graph.nodes if isinstance(n.op, Elementwise))
    return builder.graph(graph.inputs, (*graph.outputs, *change(builder, between)))


def test_other_readers_keep_it() -> None:
    def pooled(b: GraphBuilder, v: int) -> list[int]:
        return [b.node(Reduce("mean", (1, 2)), [v], b.value((2, 1, 1, 12), DType.FLOAT32))]

    def windowed(b: GraphBuilder, v: int) -> list[int]:
        weights = b.constant(np.ones((4, 3, 3, 12)))
        return [b.node(Conv2D(padding=(1, 1)), [v, weights], b.value((2, 5, 6, 4), DType.FLOAT32))]

    def bordered(b: GraphBuilder, v: int) -> list[int]:
        """What lies outside is zero, not what the prologue makes of zero."""
        weights = b.constant(np.ones((4, 1, 1, 12)))
        return [b.node(Conv2D((2, 2), padding=(1, 1)), [v, weights], b.value((2, 3, 4, 4), DType.FLOAT32))]

    def large(b: GraphBuilder, v: int) -> list[int]:
        weights = b.constant(np.full((4, 1, 1, 12), 1e5))
        return [b.node(Conv2D(), [v, weights], b.value((2, 5, 6, 4), DType.FLOAT32))]

    def added(b: GraphBuilder, v: int) -> list[int]:
        weights = b.constant(np.ones((12, 1, 1, 12)))
        out = b.value((2, 5, 6, 12), DType.FLOAT32)
        return [b.node(Conv2D(), [v, weights], out, apply("add", RESULT, Arg(1)), [v])]

    for change in (pooled, windowed, bordered, large, added, lambda b, v: [v]):
        assert joint(altered(change)) == 0, change
    assert joint(altered(lambda b, v: [])) == 1


def test_concatenations_are_read_in_rows() -> None:
    def concatenated(parts: tuple[int, ...]) -> Graph:
        rng, b = np.random.default_rng(0), GraphBuilder()
        x, c = b.value((2, 5, 6, 8), DType.FLOAT32), sum(parts)
        made = [b.node(Conv2D(), [x, b.constant(rng.standard_normal((n, 1, 1, 8)))],
                       b.value((2, 5, 6, n), DType.FLOAT32)) for n in parts]  # fmt: skip
        whole = b.node(Concat(3), made, b.value((2, 5, 6, c), DType.FLOAT32))
        ready = b.value((2, 5, 6, c), DType.FLOAT32)
        b.node(Elementwise(), [], ready, apply("max", Arg(0), 0.0), [whole])
        weights = b.constant(rng.standard_normal((8, 1, 1, c)))
        out = b.node(Conv2D(), [ready, weights], b.value((2, 5, 6, 8), DType.FLOAT32))
        return b.graph([x], [out, b.node(Reduce("mean", (1, 2)), [whole], b.value((2, 1, 1, c), DType.FLOAT32))])

    assert joint(concatenated((8, 4))) == 1
    assert joint(concatenated((5, 4))) == 0


X0, X1, X2 = Arg(0), Arg(1), Arg(2)


@pytest.mark.parametrize("expr, channelwise", [
    (apply("sub", apply("mul", X0, X1), X1), True),
    (apply("mul", apply("mul", X0, X2), X1), True),
    (apply("mul", apply("add", apply("mul", X2, X0), X1), X1), False),  # a shift behind the gate
    (apply("mul", apply("max", X0, 0.0), X1), False),  # a factor behind the bound
    (apply("max", apply("mul", X0, X2), 0.0), False),  # a bound behind the gate
    (apply("max", apply("min", X0, 0.0), 1.0), False),  # bounds that cross
    (apply("mul", X0, apply("sigmoid", X0)), False),
    (apply("mul", X0, X0), False),
    (apply("mul", apply("mul", X0, X2), X2), False),
    (apply("add", X0, X2), False),
    (apply("add", X0, apply("div", X1, 0.0)), False),
    (X2, False),
], ids=str)  # fmt: skip
def test_what_is_channelwise(expr, channelwise: bool) -> None:
    values = [
        Value(0, (3, 4, 5, 6), DType.FLOAT32),
        Value(1, (1, 1, 1, 6), DType.FLOAT32, np.full((1, 1, 1, 6), 2, np.float32)),
        Value(2, (3, 1, 1, 6), DType.FLOAT32),
    ]
    assert (read_channelwise(expr, values) is not None) is channelwise
    for i, shape in ((1, (1, 1, 5, 1)), (1, (1, 1, 1, 3)), (2, (3, 1, 5, 6)), (2, (3, 1, 1, 1)), (2, (2, 1, 1, 6))):
        other = dataclasses.replace(values[i], shape=shape, data=None if i == 2 else np.ones(shape, np.float32))
        changed = [other if v.id == i else v for v in values]
        if any(a == i for a in arguments(expr)):
            assert read_channelwise(expr, changed) is None


def test_what_it_does_to_numbers() -> None:
    """Bounds and factors, in the order in which they are written."""
    c = np.array([1.0, -2.0, 3.0], np.float32).reshape(1, 1, 1, 3)
    values = [Value(0, (1, 2, 2, 3), DType.FLOAT32), Value(1, c.shape, DType.FLOAT32, c)]
    found = read_channelwise(apply("min", apply("max", apply("sub", apply("mul", X0, X1), 4.0), -1.0), 6.0), values)
    assert found is not None and found.scale is not None and found.shift is not None
    np.testing.assert_array_equal(found.scale, c.reshape(-1))
    np.testing.assert_array_equal(found.shift, [-4.0] * 3)
    assert found.bounds == (-1.0, 6.0) and found.gate is None
    alone = read_channelwise(apply("max", X0, 0.0), values)
    assert alone is not None and alone.scale is None and alone.bounds == (0.0, math.inf)


def test_the_estimates_know_of_it() -> None:
    """More work for each element, and more where it is done by more workgroups."""
    shape = (8, 28, 28, 256)
    plain = Layer(Conv2D(), padded(0, shape, DType.FLOAT16), np.ones((128, 1, 1, 256), np.float32), (*shape[:3], 128),
                  True)  # fmt: skip
    ready = dataclasses.replace(plain, prologue=Channelwise(np.ones(256), np.zeros(256), (0.0, math.inf)))
    gated = dataclasses.replace(plain, prologue=Channelwise(gate=1), gate=padded(1, (8, 1, 1, 256), DType.FLOAT32))
    for other in (ready, gated):
        tile = specialized.ranked(plain, 90, 132)[0]
        assert specialized.cost(other, tile, 132) > specialized.cost(plain, tile, 132)
        product, before = (convolution.product_of(layer, 90) for layer in (other, plain))
        one = tiles.ranked(before, 132)[0]
        assert tiles.cost(product, one, 132) > tiles.cost(before, one, 132)


def dense(net: Layers, x: NetworkTensor) -> NetworkTensor:
    for _ in range(3):
        y = net.conv(net.norm_activate(x), 32)
        x = net.op("CONCATENATION", [x, net.plain(y, 12, 3)], dict(axis=3))
    return net.mean_pool(net.plain(net.norm_activate(x), 24), 2, 2)


def residual_v2(net: Layers, x: NetworkTensor) -> NetworkTensor:
    """Blocks whose identity reads what they normalize, and one between them whose shortcut reads what is normalized:
    that is the epilogue of the sum."""
    x = net.add(x, net.plain(net.conv(net.conv(net.norm_activate(x), 16), 16, 3), 20))
    ready = net.norm_activate(x)
    x = net.add(net.plain(ready, 64, 1, 2), net.plain(net.conv(net.conv(ready, 16), 16, 3, 2), 64))
    x = net.add(x, net.plain(net.conv(net.conv(net.norm_activate(x), 16), 16, 3), 64))
    return net.norm_activate(x)


def squeeze_and_excite(net: Layers, x: NetworkTensor) -> NetworkTensor:
    for channels, last in ((24, "LOGISTIC"), (20, "HARD_SIGMOID")):
        y = net.gate(net.separate(net.conv(x, 60, activation="SWISH"), kernel=5), 8, last=last)
        x = net.plain(y, channels)
    return net.conv(x, 20, activation="RELU")  # else a mean would be taken in front of the gates


@pytest.mark.cuda
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("body, prologues", [(dense, 3), (residual_v2, 2), (squeeze_and_excite, 2)])
def test_networks(device, body: Callable[[Layers, NetworkTensor], NetworkTensor], prologues: int, batch: int) -> None:
    net = Layers("a small network", batch=batch)
    x = net.conv(net.image("input", 24, 24), 20, 3, 2)
    net.classify(net.mean(body(net, x)), 10)
    content = net.build()
    main = read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs).graph
    assert sum(isinstance(n.op, PointwiseConv2D) for n in optimise(lowered, CUDA, True).nodes) == prologues
    cpu, gpu = official(content), on_gpu(content, backend="cuda", precision_loss_allowed=True)
    assert gpu.delegation_report().fully_delegated
    inputs = random_inputs(cpu)
    for got, want in zip(run(gpu, inputs), run(cpu, inputs), strict=True):
        assert_agrees(got, want, FLOAT16)
