"""Staging: inputs and outputs that pass through intermediate memory, without another result."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.layout import place
from litegpu.gpu.passes.staging import stage

FEATURES = Features(float16=True)


@pytest.fixture
def graph() -> Graph:
    """x of 5 channels -> convolution with RELU -> another one; both results are outputs."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x, y, z = (b.value((1, 6, 6, n), DType.FLOAT32, name=name) for n, name in ((5, "x"), (8, "y"), (8, "z")))
    for source, result in ((x, y), (y, z)):
        shape = (b.values[result].shape[3], 1, 1, b.values[source].shape[3])
        weights = b.constant(rng.standard_normal(shape).astype(np.float32))
        b.node(Conv2D(), [source, weights], result, fn("max", Arg(0), 0.0), sources=[result])
    return b.graph([x], [y, z])


def test_the_function_stays(graph: Graph) -> None:
    x = np.random.default_rng(1).standard_normal((1, 6, 6, 5)).astype(np.float32)
    staged = stage(graph, [0], [0, 1])
    assert len(staged.nodes) == 5 and staged.inputs == graph.inputs and not set(staged.outputs) & set(graph.outputs)
    for got, want in zip(evaluate_graph(staged, [x]), evaluate_graph(graph, [x]), strict=True):
        np.testing.assert_array_equal(got, want)
    readers = [node for node in staged.nodes if staged.inputs[0] in node.reads]
    assert [type(node.op) for node in readers] == [Elementwise]  # the copy alone


def test_inner_values_are_stored_as_intermediates_are(graph: Graph) -> None:
    """An output is float32, in the user's layout; what is behind a staged one is, here, float16."""
    y = graph.outputs[0]
    plain, staged = place(graph, True), place(stage(graph, outputs=[0]), True)
    assert plain.views[y].dtype is DType.FLOAT32
    assert staged.views[y].dtype is DType.FLOAT16
    assert staged.views[staged.graph.outputs[0]].dtype is DType.FLOAT32


def test_kernels_are_those_of_a_model_without_the_output(graph: Graph) -> None:
    """The model whose inner value is y has the same two convolutions as the one that hands y out, if that is staged."""
    inner = GraphBuilder.of(graph).graph(graph.inputs, graph.outputs[1:])

    def convolutions(found: Graph, staged: list[int]) -> list[str]:
        program = build_program(found, FEATURES, half=True, staged=((), staged))
        return [program.kernels[d.kernel].source for d in program.dispatches if d.sources]

    assert convolutions(graph, [0]) == convolutions(inner, [])
    assert convolutions(graph, []) != convolutions(inner, [])


def test_stored_bytes_inputs_and_constants_are_left_alone() -> None:
    b = GraphBuilder()
    x, narrow = b.value((1, 1, 1, 4), DType.FLOAT32), b.value((1, 1, 1, 4), DType.INT8)
    y = b.value((1, 1, 1, 4), DType.FLOAT32)
    b.node(Elementwise(), (), y, fn("neg", Arg(0)), [x])
    graph = b.graph([x, narrow], [y, x])
    staged = stage(graph, [1], [1])
    assert len(staged.nodes) == 1 and staged.inputs == graph.inputs and staged.outputs == graph.outputs
