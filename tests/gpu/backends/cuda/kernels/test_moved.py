"""1x1 convolutions and norms that store the rows of their results somewhere else, against the definition in NumPy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Conv2D,
    Copy,
    DType,
    Graph,
    GraphBuilder,
    LayerNorm,
    PointwiseConv2D,
    Reshape,
    Slice,
    Step,
    Take,
    Transpose,
    apply,
)
from litegpu.gpu.graph.movement import step_shape
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)
#: [2, 6, 4, channels] as windows of 3 x 2, one behind the other.
WINDOWS = (8, 6)
BIASED = apply("max", apply("add", RESULT, Arg(1)), -0.5)


def picture(channels: int) -> tuple[Step, ...]:
    """Windows as a picture."""
    apart = (2, 2, 2, 3, 2, channels)
    joined = (2, 2, 3, 2, 2, channels)
    return (
        Reshape((1, *WINDOWS, channels), apart),
        Transpose((0, 1, 3, 2, 4, 5)),
        Reshape(joined, (2, 6, 4, channels)),
    )


def rolled(by: int) -> tuple[Step, ...]:
    return Take(1, tuple((i + by) % 6 for i in range(6))), Take(2, tuple((i - by) % 4 for i in range(4)))


def network(
    channels: int, outputs: int, steps: tuple[Step, ...], *, norm=False, residual=True, also_read=False
) -> tuple[Graph, list[np.ndarray]]:
    """x (windows) -> 1x1 convolution, or a norm, its epilogue -> `steps` -> and the sum with another input."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    shape = (1, *WINDOWS, channels)
    x = builder.value(shape, DType.FLOAT32)
    weights = builder.constant(rng.standard_normal((outputs, 1, 1, channels)) / np.sqrt(channels))
    bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
    made = builder.value((*shape[:3], outputs), DType.FLOAT32)
    op, inputs = (LayerNorm(1e-6), [x]) if norm else (Conv2D(), [x, weights])
    builder.node(op, inputs, made, BIASED, [bias])
    moved: tuple[int, ...] = (*shape[:3], outputs)
    for step in steps:
        moved = step_shape(step, moved)
    out, inputs = builder.value(moved, DType.FLOAT32), [x]
    if residual:
        inputs.append(builder.value(moved, DType.FLOAT32))
    builder.node(Copy(steps), [made], out, apply("add", RESULT, Arg(1)) if residual else RESULT, inputs[1:])
    values = [rng.standard_normal(builder.values[v].shape).astype(np.float32) for v in inputs]
    return builder.graph(inputs, [out, made] if also_read else [out]), values


def joint(graph: Graph, values: list[np.ndarray], features: Features = CUDA, half: bool = True) -> bool:
    """Whether the convolution moves its rows itself; the graph computes the same."""
    optimised = optimise(graph, features, half)
    for got, want in zip(evaluate_graph(optimised, values), evaluate_graph(graph, values), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    found = any(isinstance(n.op, PointwiseConv2D | LayerNorm) and bool(n.op.moved) for n in optimised.nodes)
    assert found != any(isinstance(n.op, Copy) for n in optimised.nodes)
    return found


CASES = {
    "windows": picture(12),
    "shifted": (*picture(12), *rolled(1)),
    "rows": (Reshape((1, *WINDOWS, 12), (1, 6, 8, 12)), Transpose((0, 2, 1, 3))),
}


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_joined(case: str, residual: bool, norm: bool) -> None:
    assert joint(*network(12 if norm else 20, 12, CASES[case], residual=residual, norm=norm))


def test_joined_only_where_a_kernel_is() -> None:
    graph, values = network(20, 12, CASES["shifted"])
    for features, half in ((dataclasses.replace(CUDA, capability=70), True), (Features(), True), (CUDA, False)):
        assert not joint(graph, values, features, half)
    assert not joint(*network(20, 12, CASES["windows"], also_read=True))
    mixed = (*picture(12), Take(1, (0, 2, 1, 3, 5, 4)))  # whose places would have to be looked up
    twice = (*picture(12), Take(1, (0, 1, 2, 3, 4, 4)))
    channels = (Transpose((0, 1, 3, 2)),)
    some = (*picture(12), Slice((0, 1, 0, 0), (1, 1, 1, 1), (2, 5, 4, 12)))
    for steps in (mixed, twice, channels, some):
        assert not joint(*network(20, 12, steps))


@pytest.mark.cuda
@pytest.mark.parametrize("channels, outputs", [(20, 12), (64, 96), (72, 37), (5, 24)])
@pytest.mark.parametrize("case", ["windows", "shifted"])
def test_results(device, case: str, channels: int, outputs: int) -> None:
    steps = (*picture(outputs), *(rolled(1) if case == "shifted" else ()))
    check(device, *network(channels, outputs, steps))


@pytest.mark.cuda
@pytest.mark.parametrize("channels", [12, 37, 300])
def test_norms(device, channels: int) -> None:
    check(device, *network(channels, channels, (*picture(channels), *rolled(1)), norm=True, residual=channels < 100))


def check(device, graph: Graph, values: list[np.ndarray]) -> None:
    program = build_program(graph, device.features, "cuda", half=True)
    assert not any("copy" in d.label for d in program.dispatches), [d.label for d in program.dispatches]
    got = first_output(device, program, values, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, values)[0]
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
def test_compiles(capability: int) -> None:
    features = dataclasses.replace(CUDA, capability=capability)
    program = build_program(network(64, 96, (*picture(96), *rolled(1)))[0], features, "cuda", half=True)
    assert all(compile_kernels(program.kernels, capability))
