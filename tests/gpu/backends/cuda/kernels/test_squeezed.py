"""Two layers of one pixel in one kernel, against the definition in NumPy, and where the pass joins them."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels.squeezed import MOST_HIDDEN, MOST_INPUTS
from litegpu.gpu.backends.cuda.passes.squeezed import join_squeezed
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Graph, GraphBuilder, Reduce, SqueezedConv2D, apply


def network(
    inputs: int, hidden: int, outputs: int, *, batch: int = 1, size: int = 3, shared: bool = False
) -> tuple[Graph, np.ndarray]:
    """x -> mean -> convolution + bias, swish -> convolution + bias, sigmoid, times x."""
    rng = np.random.default_rng(inputs)
    builder = GraphBuilder()
    x = builder.value((batch, size, size, inputs), DType.FLOAT32)
    mean = builder.value((batch, 1, 1, inputs), DType.FLOAT32)
    middle = builder.value((batch, 1, 1, hidden), DType.FLOAT32)
    gate = builder.value((batch, 1, 1, outputs), DType.FLOAT32)
    builder.node(Reduce("mean", (1, 2)), [x], mean)

    def layer(before: int, after: int, rows: int, columns: int, activation) -> None:
        weights = builder.constant(rng.standard_normal((rows, 1, 1, columns)) / np.sqrt(columns))
        bias = builder.constant(rng.standard_normal((1, 1, 1, rows)))
        builder.node(Conv2D(), [before, weights], after, activation(apply("add", RESULT, Arg(1))), [bias])

    layer(mean, middle, hidden, inputs, lambda e: apply("mul", e, apply("sigmoid", e)))
    layer(middle, gate, outputs, hidden, lambda e: apply("sigmoid", e))
    results = [gate, middle] if shared else [gate]
    return builder.graph([x], results), rng.standard_normal((batch, size, size, inputs)).astype(np.float32)


def expected(graph: Graph, x: np.ndarray) -> np.ndarray:
    known = {i: v.data for i, v in graph.values.items() if v.data is not None} | {graph.inputs[0]: x}
    for node in graph.nodes:
        known[node.output] = evaluate_node(node, known, graph)
    return known[graph.outputs[0]]


@pytest.mark.cuda
@pytest.mark.parametrize("inputs, hidden, outputs", [(96, 4, 96), (1152, 48, 1152), (70, 33, 45), (2048, 128, 2048)])
def test_results(device, inputs: int, hidden: int, outputs: int) -> None:
    """Shares that are whole, and that are not: of workgroups, warps, chunks and quads."""
    if device.features.capability < 90:
        pytest.skip("needs clusters")
    graph, x = network(inputs, hidden, outputs)
    program = build_program(graph, device.features, "cuda", half=True)
    assert "squeezed_convolution" in {kernel.name for kernel in program.kernels}
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, x)
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def joined(graph: Graph) -> bool:
    return any(isinstance(node.op, SqueezedConv2D) for node in join_squeezed(graph).nodes)


def test_same_as_apart() -> None:
    graph, x = network(24, 6, 24)
    assert joined(graph)
    assert np.allclose(expected(join_squeezed(graph), x), expected(graph, x), rtol=1e-5)


def test_what_stays_apart() -> None:
    assert not joined(network(24, 6, 24, batch=2)[0])
    assert not joined(network(24, 6, 24, shared=True)[0]), "the first result is wanted itself"
    assert not joined(network(MOST_INPUTS + 1, 6, 24)[0])
    assert not joined(network(24, MOST_HIDDEN + 1, 24)[0])
    assert not joined(network(2048, 128, 2048, batch=64)[0])
