"""1x1 convolutions that add normalised rows to their results, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import convolution, overlapped
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.tile import WorkgroupTile
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Expr, Graph, GraphBuilder, LayerNorm, PointwiseConv2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
SCALED = apply("add", apply("mul", RESULT, Arg(1)), Arg(2))
SUMMED = apply("add", apply("add", RESULT, Arg(1)), Arg(2))


@pytest.fixture(autouse=True)
def overlapping(alone, monkeypatch: pytest.MonkeyPatch) -> None:
    """As conftest.py does not have it."""
    for module in (convolution, overlapped):
        monkeypatch.setattr(module, "will_overlap", will_overlap)


def network(
    shape=(1, 1, 40, 72), hidden=64, *, affine: Expr = SCALED, summed: Expr = SUMMED, centred=True, between=True,
    also_read=False, far=0.0, twice="", seed=0,
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """x -> y (a 1x1 convolution) -> normalised, `affine`; that through two 1x1 convolutions, `summed` of the second
    one, its bias (Arg(1)) and the normalised rows (Arg(2)). `twice`: what the last one multiplies, or another summand,
    is normalised as well. Not `between`: the second one alone, of another input."""
    rng = np.random.default_rng(seed)
    b, c = GraphBuilder(), shape[3]
    x = b.value(shape, DType.FLOAT32)

    def conv(source: int, outputs: int, epilogue: Expr = RESULT, operands=(), depth: int = c) -> int:
        weights = b.constant(rng.standard_normal((outputs, 1, 1, depth)) / np.sqrt(depth))
        return b.node(Conv2D(), [source, weights], b.value((*shape[:3], outputs), DType.FLOAT32), epilogue, operands)

    def numbers(count: int) -> int:
        return b.constant(rng.uniform(0.5, 2, (1, 1, 1, count)) * rng.choice([-1, 1], count))

    inputs = [x]
    if not between:
        inputs.append(other := b.value((*shape[:3], hidden), DType.FLOAT32))
    y = conv(x, c, apply("add", RESULT, Arg(1)), [b.constant(np.full((1, 1, 1, c), far))])
    operands = [numbers(c), numbers(c)] if affine != RESULT else []
    normal = b.node(LayerNorm(1e-5, centred), [y], b.value(shape, DType.FLOAT32), affine, operands)
    made = [normal] if also_read else []
    within = conv(normal, hidden, apply("max", RESULT, 0.0))
    if twice:
        other = b.node(LayerNorm(1e-5), [within], b.value((*shape[:3], hidden), DType.FLOAT32))
        if twice == "product":  # of normalised rows, beside what else reads these
            made.append(conv(other, 24, depth=hidden))
            within = other
        else:
            other = b.node(LayerNorm(1e-5), [y], b.value(shape, DType.FLOAT32), apply("mul", RESULT, 3.0))
            made.append(conv(other, 24))
            last = conv(within, c, apply("add", summed, Arg(3)), [numbers(c), normal, other], hidden)
            return b.graph(inputs, [last, *made]), [rng.standard_normal(shape).astype(np.float32)]
    last = conv(within if between else other, c, summed, [numbers(c), normal], hidden)
    made = [last, *made] if between else [last, within, *made]
    data = [rng.standard_normal(b.values[v].shape).astype(np.float32) for v in inputs]
    return b.graph(inputs, made), data


def joint(graph: Graph, features: Features = CUDA, norms: int = 1) -> int:
    """How many convolutions add normalised rows; the graph computes the same."""
    optimised = optimise(graph, features, True)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(graph.values[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_graph(optimised, inputs), evaluate_graph(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    left = sum(isinstance(n.op, LayerNorm) for n in optimised.nodes)
    found = sum(isinstance(n.op, PointwiseConv2D) and n.op.added is not None for n in optimised.nodes)
    assert norms > 1 or left == 1 - found
    return found


CLAMPED = apply("max", SUMMED, 0.0)
OTHER_WAY = apply("add", Arg(2), apply("add", Arg(1), RESULT))


@pytest.mark.parametrize("summed", [SUMMED, CLAMPED, OTHER_WAY, apply("add", RESULT, Arg(2)),
                                    apply("mul", apply("add", RESULT, Arg(2)), Arg(1))], ids=str)  # fmt: skip
@pytest.mark.parametrize(
    "affine", [SCALED, RESULT, apply("mul", RESULT, Arg(1)), apply("sub", RESULT, Arg(2))], ids=str
)
def test_joined(affine: Expr, summed: Expr) -> None:
    assert joint(network(affine=affine, summed=summed)[0]) == 1


def test_left_apart() -> None:
    assert joint(network(also_read=True)[0]) == 0
    for summed in (apply("add", CLAMPED, Arg(2)), apply("add", apply("mul", RESULT, Arg(1)), apply("mul", Arg(2), 2.0)),
                   apply("max", apply("add", RESULT, Arg(1)), Arg(2)), apply("add", SUMMED, RESULT)):  # fmt: skip
        assert joint(network(summed=summed)[0]) == 0
    assert joint(network()[0], dataclasses.replace(CUDA, capability=89)) == 0


def test_other_normalised_rows_beside() -> None:
    """As what is multiplied, or as another summand: one of a node's values alone is normalised by it."""
    graph, _ = network(twice="product")
    assert sum(isinstance(n.op, LayerNorm) for n in optimise(graph, CUDA, True).nodes) == 1
    joint(graph, norms=2)
    joint(network(twice="sum")[0], norms=2)


def test_of_another_product() -> None:
    assert joint(network(between=False)[0]) == 1


def test_not_where_kernels_do_not_overlap() -> None:
    assert joint(network((1, 128, 128, 256), 256)[0]) == 0


@pytest.mark.cuda
@pytest.mark.parametrize("shape, hidden", [((1, 1, 40, 72), 64), ((2, 3, 7, 132), 200), ((1, 5, 5, 21), 24)], ids=str)
@pytest.mark.parametrize("centred", [True, False])
def test_chosen_kernels(device, shape, hidden: int, centred: bool) -> None:
    check(device, *network(shape, hidden, centred=centred))


@pytest.mark.cuda
@pytest.mark.parametrize("tile", [(16, 16, 64, (1, 1, 4), 3), (32, 32, 128, (1, 1, 8), 3), (64, 48, 32, (4, 1, 1), 2),
                                  (64, 64, 64, (2, 2, 2), 2), (64, 64, 64, (4, 1, 1), 3, True)], ids=str)  # fmt: skip
def test_tiles(device, monkeypatch, tile) -> None:
    if device.features.capability != 90:
        pytest.skip("is for where kernels overlap")
    monkeypatch.setattr(convolution, "ranked", lambda *_: [WorkgroupTile(*tile)])
    monkeypatch.setattr(overlapped, "tiles", lambda *_: [])
    check(device, *network((1, 2, 45, 136), 200, summed=CLAMPED))


@pytest.mark.cuda
def test_rows_far_from_zero(device) -> None:
    check(device, *network(far=8.0), most=6e-3)


def check(device, graph: Graph, inputs: list[np.ndarray], *, most: float = 2e-3) -> None:
    program = build_program(graph, device.features, "cuda", half=True)
    if device.features.capability == 90:
        assert sum("ADDED_NORM" in k.source and "sum_with" in k.source for k in program.kernels) == 1
        assert not any(d.label == "layer_norm" for d in program.dispatches)
    got = first_output(device, program, inputs, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, inputs)[0]
    assert np.linalg.norm(got - want) <= most * np.linalg.norm(want)


def test_compiles() -> None:
    for shape in ((1, 1, 128, 384), (1, 1, 50, 21)):
        program = build_program(network(shape, 128)[0], CUDA, "cuda", half=True)
        kernels = [k for k in program.kernels if "sum_with" in k.source]
        assert kernels
        assert all(compile_kernels(kernels, 90, programmatic=True))
