"""Composite operators run as what they stand for."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, on_gpu, require_gpu, run

from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder, SubgraphBuilder
from litegpu.model.inline import inline_composites
from litegpu.model.types import Signature, TensorType


def composite(b: SubgraphBuilder, name: str, body: int, inputs: list[int], shape) -> int:
    options = {"name": name, "decomposition_subgraph_index": body, "version": 1}
    return b.op("STABLEHLO_COMPOSITE", inputs, shape, options)


def attention() -> bytes:
    """odml.scaled_dot_product_attention, within another composite, between two operators."""
    b = ModelBuilder()
    shape, square = (1, 2, 7, 8), (1, 2, 7, 7)
    inner = b.subgraph("attention")
    q, k, v = (inner.input(name, shape) for name in "qkv")
    logits = inner.op("BATCH_MATMUL", [q, k], square, {"adj_y": True})
    scaled = inner.op("MUL", [logits, inner.constant(np.array(8**-0.5, np.float32))], square)
    weights = inner.op("SOFTMAX", [scaled], square, {"beta": 1.0})
    inner.output(inner.op("BATCH_MATMUL", [weights, v], shape))
    outer = b.subgraph("block")
    x = outer.input("x", shape)
    half = outer.op("MUL", [x, outer.constant(np.array(0.5, np.float32))], shape)
    outer.output(composite(outer, "odml.scaled_dot_product_attention", 1, [half, x, x], shape))
    y = b.op("ABS", [b.input("x", shape)], shape)
    y = composite(b, "block", 2, [y], shape)
    b.output(b.op("NEG", [y], shape))
    return b.build()


def rms_norm() -> bytes:
    b = ModelBuilder()
    shape, row = (2, 5, 12), (2, 5, 1)
    inner = b.subgraph("norm")
    x, gain = inner.input("x", shape), inner.input("gain", (12,))
    squares = inner.op("MUL", [x, x], shape)
    mean = inner.op("MEAN", [squares, inner.constant(np.array([2], np.int32))], row, {"keep_dims": True})
    scale = inner.op("RSQRT", [inner.op("ADD", [mean, inner.constant(np.array(1e-6, np.float32))], row)], row)
    inner.output(inner.op("MUL", [inner.op("MUL", [x, scale], shape), gain], shape))
    gains = b.constant(np.linspace(0.5, 2, 12).astype(np.float32))
    y = b.input("x", shape)
    for _ in range(2):  # one body for both
        y = composite(b, "odml.rms_norm", 1, [y, gains], shape)
    b.output(y)
    return b.build()


@pytest.mark.parametrize("make, count", [(attention, 7), (rms_norm, 12)], ids=["attention", "rms_norm"])
def test_composites_run_on_the_gpu(make, count: int) -> None:
    content = make()
    model = inline_composites(read_model(content))
    assert len(model.subgraphs) == 1 and len(model.main.operators) == count
    assert [o.index for o in model.main.operators] == list(range(count))
    require_gpu()
    one = on_gpu(content)
    assert one.delegation_report().fully_delegated, one.delegation_report().summary()
    x = [np.random.default_rng(0).standard_normal(one.get_input_details()[0]["shape"]).astype(np.float32)]
    assert_agrees(run(one, x)[0], run(official(content), x)[0], FLOAT32)


def test_models_without_composites_stay_as_they_are() -> None:
    b = ModelBuilder()
    b.output(b.op("ABS", [b.input("x", (2,))], (2,)))
    model = read_model(b.build())
    assert inline_composites(model) is model


def test_bodies_that_hand_an_input_through_stay() -> None:
    b = ModelBuilder()
    inner = b.subgraph("same")
    inner.output(inner.input("x", (2,)))
    b.output(composite(b, "same", 1, [b.input("x", (2,))], (2,)))
    model = read_model(b.build())
    assert inline_composites(model) is model


def test_absent_operands_stay_absent() -> None:
    b = ModelBuilder()
    inner = b.subgraph("dense")
    weights = inner.constant(np.ones((3, 2), np.float32))
    inner.output(inner.op("FULLY_CONNECTED", [inner.input("x", (1, 2)), weights, None], (1, 3)))
    b.output(composite(b, "dense", 1, [b.input("x", (1, 2))], (1, 3)))
    (operator,) = inline_composites(read_model(b.build())).main.operators
    assert operator.name == "FULLY_CONNECTED" and operator.inputs[2] == -1


@pytest.mark.parametrize("uses", ["nothing", "a branch", "a signature"])
def test_subgraphs_stay_as_long_as_something_uses_them(uses: str) -> None:
    b = ModelBuilder()
    inner = b.subgraph("same")
    inner.output(inner.op("ABS", [inner.input("x", (2,))], (2,)))
    y = composite(b, "same", 1, [b.input("x", (2,))], (2,))
    if uses == "a branch":
        branches = {"then_subgraph_index": 1, "else_subgraph_index": 1}
        y = b.op("IF", [b.constant(np.array(True)), y], (2,), branches, type=TensorType.FLOAT32)
    b.output(y)
    model = read_model(b.build())
    if uses == "a signature":
        model = dataclasses.replace(model, signatures=(Signature("inner", 1, {"x": 0}, {"y": 1}),))
    assert len(inline_composites(model).subgraphs) == (1 if uses == "nothing" else 2)


def test_bodies_that_keep_variables_stay() -> None:
    b = ModelBuilder()
    inner = b.subgraph("kept")
    x = inner.input("x", (2,))
    inner.output(inner.op("ADD", [x, inner.variable("v", (2,))], (2,)))
    b.output(composite(b, "kept", 1, [b.input("x", (2,))], (2,)))
    model = read_model(b.build())
    assert inline_composites(model) is model


def test_each_use_of_a_body_has_tensors_of_its_own() -> None:
    model = inline_composites(read_model(rms_norm()))
    made = [t for o in model.main.operators for t in o.outputs]
    assert len(set(made)) == len(made) == 12
    assert [t.index for t in model.main.tensors] == list(range(len(model.main.tensors)))
