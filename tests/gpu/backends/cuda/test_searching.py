"""Operators that search, count or compute with words of numbers on CUDA, also where the device is emulated: suppression
of all kinds, UNIQUE, WHERE, doubles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu.lower import test_doubles as doubles
from gpu.test_detection import any_kind, falling

from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Graph
from litegpu.gpu.lower import lower_partition
from litegpu.model import ModelBuilder, TensorType, read_model

pytestmark = pytest.mark.cuda


def lowered(model: bytes | ModelBuilder) -> Graph:
    """Of a builder, which need not be a file's."""
    main = model.graph() if isinstance(model, ModelBuilder) else read_model(model).main
    return lower_partition(main, main.operators, main.inputs, main.outputs).graph


def check(device: Any, graph: Graph, inputs: list[np.ndarray]) -> None:
    """All outputs are NumPy's, to the last bit but for floats."""
    program = build_program(graph, device.features, "cuda")
    wanted = evaluate_graph(graph, inputs)
    session = device.session(program)
    try:
        for i, (array, port) in enumerate(zip(inputs, program.inputs, strict=True)):
            dtype = NUMPY[port.dtype]
            given = array.view(dtype) if array.itemsize == 8 else array.astype(dtype)
            session.write(i, given.reshape(port.shape))
        session.run()
        for i, (want, port) in enumerate(zip(wanted, program.outputs, strict=True)):
            found = np.zeros(port.shape, NUMPY[port.dtype])
            session.read(i, found)
            found = found.reshape(want.shape)
            if want.dtype.kind == "f":
                np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(found, want)
    finally:
        session.close()


@pytest.mark.parametrize("seed", range(4))
def test_detections(device: Any, seed: int) -> None:
    case = any_kind(seed)
    check(device, lowered(case.content), case.inputs)


@pytest.mark.parametrize("seed", (0, 4))
def test_scores_that_fall_with_the_overlap(device: Any, seed: int) -> None:
    content, inputs, _ = falling(seed)
    check(device, lowered(content), inputs)


@pytest.mark.parametrize(("count", "kind"), [(1, "uint8"), (300, "float32"), (40, "int32")])
def test_unique(device: Any, count: int, kind: str) -> None:
    """As delegates/bounded.py writes it: as many values as there can be, which each is, and how many count."""
    model, type_ = ModelBuilder(), TensorType[kind.upper()]
    kinds = [((count,), type_), ((count,), TensorType.INT32), ((1,), TensorType.INT32)]
    model.output(*model.op_multi("UNIQUE", [model.input("x", (count,), type_)], kinds, dict(idx_out_type="INT32")))
    given = np.random.default_rng(0).integers(0, 2 + count // 3, count).astype(kind)
    check(device, lowered(model), [given])


@pytest.mark.parametrize("shape", [(7,), (2, 300)])
def test_where(device: Any, shape: tuple[int, ...]) -> None:
    model, count = ModelBuilder(), int(np.prod(shape))
    kinds = [((count, len(shape)), TensorType.INT64), ((1,), TensorType.INT32)]
    model.output(*model.op_multi("WHERE", [model.input("x", shape, TensorType.INT32)], kinds))
    check(device, lowered(model), [np.random.default_rng(1).integers(0, 2, shape).astype(np.int32)])


@pytest.mark.parametrize(("given", "made"), [("float64", "float32"), ("int64", "float64"), ("float64", "int64")])
def test_doubles(device: Any, given: str, made: str) -> None:
    x = doubles.numbers(made) if given == "float64" else doubles.of(given)
    if made == "float32":
        x = x[np.isfinite(x)]
    check(device, lowered(doubles.model(given, made, x.size)), [x])
