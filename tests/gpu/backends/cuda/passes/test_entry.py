"""Convolutions that read stored numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.native import CudaNative
from litegpu.gpu.backends.cuda.passes.entry import join_entry
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Elementwise, GraphBuilder, apply
from litegpu.gpu.lang.features import Features

CUDA = Features(native="cuda", capability=90)
STRIDED = Conv2D((2, 2), (1, 1), (1, 1))
NUMPY: dict[DType, type[np.integer]] = {DType.INT8: np.int8, DType.UINT8: np.uint8, DType.INT16: np.int16}


def network(dtype: DType, shape=(1, 9, 7, 3), op: Conv2D = STRIDED, zero=3, twice=False):
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    x = builder.value(shape, dtype)
    quanta = builder.value(shape, DType.FLOAT32)
    builder.node(Elementwise(), (), quanta, apply("sub", apply("to_float32", Arg(0)), zero), [x])
    weights = builder.constant(rng.integers(-100, 100, (5, 3, 3, shape[3])).astype(np.float32))
    size = [(n + 2 - 3) // s + 1 for n, s in zip(shape[1:3], op.stride, strict=True)]
    y = builder.node(op, [quanta, weights], builder.value((shape[0], *size, 5), DType.FLOAT32))
    outputs = [y]
    if twice:
        outputs.append(builder.node(Elementwise(), (), builder.value(shape, DType.FLOAT32), RESULT, [quanta]))
    limits = np.iinfo(NUMPY[dtype])
    data = rng.integers(limits.min, limits.max + 1, shape).clip(-2000, 2000).astype(NUMPY[dtype])
    return builder.graph([x], outputs), data


@pytest.mark.parametrize("dtype", NUMPY, ids=lambda d: d.value)
def test_same_results(dtype: DType) -> None:
    graph, data = network(dtype)
    joined = join_entry(graph)
    assert [type(n.op) for n in joined.nodes] == [Conv2D]
    np.testing.assert_array_equal(evaluate_graph(joined, [data])[0], evaluate_graph(graph, [data])[0])


def test_where_it_does_not_fit() -> None:
    graph, _ = network(DType.INT8)
    assert CudaNative().join_first(graph, Features(), False) is graph
    several, _ = network(DType.INT8, twice=True)
    assert len(join_entry(several).nodes) == 3
    given, _ = network(DType.INT8)
    handed_out = GraphBuilder.of(given).graph(given.inputs, (*given.outputs, given.nodes[0].output))
    assert len(join_entry(handed_out).nodes) == 2
    half = dataclasses.replace(graph.nodes[0], epilogue=apply("sub", apply("to_float32", Arg(0)), 0.5))
    halves = GraphBuilder(dict(graph.values), [half, graph.nodes[1]]).graph(graph.inputs, graph.outputs)
    assert len(join_entry(halves).nodes) == 2


@pytest.mark.cuda
@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("dtype", NUMPY, ids=lambda d: d.value)
def test_on_the_device(dtype: DType, half: bool) -> None:
    from litegpu.gpu.backends.cuda.opening import available, open_device

    if (reason := available()) is not None:
        pytest.skip(f"no CUDA device: {reason}")
    device = open_device()
    for shape, op in (
        ((2, 9, 7, 3), STRIDED), ((1, 4, 4, 4), Conv2D(padding=(1, 1))),
        ((1, 3, 3, 5), STRIDED),
    ):  # fmt: skip
        graph, data = network(dtype, shape, op)
        program = build_program(graph, device.features, "cuda", half=half)
        if device.features.capability >= 80:
            assert len(program.dispatches) == 1
        session = device.session(program)
        got = np.empty(graph.values[graph.outputs[0]].shape, np.float32)
        session.write(0, data)
        session.run()
        session.read(0, got)
        session.close()
        want = evaluate_graph(graph, [data])[0]
        assert np.linalg.norm(got - want) <= (2e-3 if half else 1e-6) * np.linalg.norm(want)
