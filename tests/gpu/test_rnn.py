"""RNN, SVDF and layers of two directions against the official CPU runtime, and what they keep between runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, assert_keeps_alike, official, on_gpu, require_gpu, run

from litegpu.gpu.lower import check_operator
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

F32 = TensorType.FLOAT32
STEPS, BATCH, DEPTH, UNITS = 5, 2, 6, 7


class Drawn(ModelBuilder):
    """With random constants."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays = np.random.default_rng(0)

    def weights(self, *shape: int, scale: float = 0.4) -> int:
        return self.constant((self.arrays.standard_normal(shape) * scale).astype(np.float32))


def one(x: tuple[int, ...], build: Any) -> tuple[bytes, list[list[np.ndarray]]]:
    """A model whose results are negated, so that no output is a state, and three inputs of it."""
    b = Drawn()
    for tensor, shape in build(b, b.input("x", x)):
        b.output(b.op("NEG", [tensor], shape))
    return b.build(), [[b.arrays.standard_normal(x).astype(np.float32)] for _ in range(3)]


def operands(b: Drawn, x: int) -> list[int]:
    """Of a recurrent layer: the input, both weights, the bias and the state."""
    return [x, b.weights(UNITS, DEPTH), b.weights(UNITS, UNITS), b.weights(UNITS), b.variable("h", (BATCH, UNITS))]


def rnn(activation: str) -> Any:
    def build(b: Drawn, x: int) -> Any:
        inputs = operands(b, x)
        made = (BATCH, UNITS)
        return [(b.op("RNN", inputs, made, dict(fused_activation_function=activation)), made)]

    return one((BATCH, DEPTH), build)


def sequence_rnn(time_major: bool) -> Any:
    def build(b: Drawn, x: int) -> Any:
        inputs = operands(b, x)
        made = (STEPS, BATCH, UNITS) if time_major else (BATCH, STEPS, UNITS)
        options = dict(time_major=time_major, fused_activation_function="TANH")
        return [(b.op("UNIDIRECTIONAL_SEQUENCE_RNN", inputs, made, options), made)]

    return one((STEPS, BATCH, DEPTH) if time_major else (BATCH, STEPS, DEPTH), build)


def both_rnn(time_major: bool, merged: bool) -> Any:
    def build(b: Drawn, x: int) -> Any:
        inputs: list[int | None] = [x]
        for name in ("f", "b"):
            inputs += [b.weights(UNITS, DEPTH), b.weights(UNITS, UNITS), b.weights(UNITS)]
            inputs.append(b.variable(name, (BATCH, UNITS)))
        inputs += [None] * 3
        lead = (STEPS, BATCH) if time_major else (BATCH, STEPS)
        shapes = [(*lead, 2 * UNITS)] if merged else [(*lead, UNITS)] * 2
        options = dict(time_major=time_major, merge_outputs=merged, fused_activation_function="TANH")
        made = b.op_multi("BIDIRECTIONAL_SEQUENCE_RNN", inputs, [(s, F32) for s in shapes], options)
        return list(zip(made, shapes, strict=True))

    return one((STEPS, BATCH, DEPTH) if time_major else (BATCH, STEPS, DEPTH), build)


def both_lstm(time_major: bool, merged: bool) -> Any:
    def build(b: Drawn, x: int) -> Any:
        inputs: list[int | None] = [x]
        for _ in range(2):
            inputs += [b.weights(UNITS, DEPTH) for _ in range(4)] + [b.weights(UNITS, UNITS) for _ in range(4)]
            inputs += [None] * 3 + [b.weights(UNITS) for _ in range(4)] + [None] * 2
        inputs += [b.variable(f"s{i}", (BATCH, UNITS)) for i in range(4)] + [None] * 9
        lead = (STEPS, BATCH) if time_major else (BATCH, STEPS)
        shapes = [(*lead, 2 * UNITS)] if merged else [(*lead, UNITS)] * 2
        options = dict(time_major=time_major, merge_outputs=merged, fused_activation_function="TANH")
        made = b.op_multi("BIDIRECTIONAL_SEQUENCE_LSTM", inputs, [(s, F32) for s in shapes], options)
        return list(zip(made, shapes, strict=True))

    return one((STEPS, BATCH, DEPTH) if time_major else (BATCH, STEPS, DEPTH), build)


def svdf(rank: int, memory: int, bias: bool) -> Any:
    def build(b: Drawn, x: int) -> Any:
        count = rank * UNITS
        inputs = [x, b.weights(count, DEPTH), b.weights(count, memory), b.weights(UNITS) if bias else None]
        inputs.append(b.variable("state", (BATCH, memory * count)))
        options = dict(rank=rank, fused_activation_function="RELU" if bias else "NONE")
        return [(b.op("SVDF", inputs, (BATCH, UNITS), options), (BATCH, UNITS))]

    return one((BATCH, DEPTH), build)


LAYERS = {
    "rnn": lambda: rnn("TANH"),
    "rnn relu": lambda: rnn("RELU"),
    "rnn none": lambda: rnn("NONE"),
    "sequence": lambda: sequence_rnn(True),
    "sequence, batch first": lambda: sequence_rnn(False),
    "both": lambda: both_rnn(True, True),
    "both, batch first": lambda: both_rnn(False, False),
    "both lstm": lambda: both_lstm(True, True),
    "both lstm, batch first": lambda: both_lstm(False, False),
    "svdf": lambda: svdf(1, 4, True),
    "svdf of rank 2": lambda: svdf(2, 3, False),
    "svdf without memory": lambda: svdf(1, 1, True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    require_gpu()
    content, inputs = LAYERS[name]()
    assert_keeps_alike(content, inputs)


def test_auxiliary_inputs_are_refused() -> None:
    b = Drawn()
    x, more = b.input("x", (STEPS, BATCH, DEPTH)), b.input("more", (STEPS, BATCH, DEPTH))
    inputs: list[int | None] = [x]
    for name in ("f", "b"):
        inputs += [b.weights(UNITS, DEPTH), b.weights(UNITS, UNITS), b.weights(UNITS), b.variable(name, (BATCH, UNITS))]
    inputs += [more, b.weights(UNITS, DEPTH), b.weights(UNITS, DEPTH)]
    shape = (STEPS, BATCH, 2 * UNITS)
    options = dict(time_major=True, merge_outputs=True, fused_activation_function="TANH")
    b.output(*b.op_multi("BIDIRECTIONAL_SEQUENCE_RNN", inputs, [(shape, F32)], options))
    graph = b.graph()
    assert check_operator(graph, graph.operators[0]) == "an auxiliary input"


def integer_svdf(rank: int, memory: int, bias: bool) -> tuple[bytes, list[list[np.ndarray]]]:
    """As the official converter makes it of 8 bits: weights over time and the state have 16."""
    b, count = ModelBuilder(), rank * UNITS
    rng = np.random.default_rng(rank)
    i8, i16 = TensorType.INT8, TensorType.INT16
    x = b.input("x", (BATCH, DEPTH), i8, quantization=quantized(0.03, 4))
    features = b.constant(rng.integers(-127, 128, (count, DEPTH)).astype(np.int8), quantization=quantized(0.02))
    times = b.constant(rng.integers(-32767, 32768, (count, memory)).astype(np.int16), quantization=quantized(2e-5))
    offset = b.constant(rng.integers(-9000, 9000, UNITS).astype(np.int32), quantization=quantized(1e-4 * 2e-5))
    state = b.variable("state", (BATCH, memory * count), i16, quantization=quantized(1e-4))
    options = dict(rank=rank, fused_activation_function="RELU")
    inputs = [x, features, times, offset if bias else None, state]
    made = quantized(0.02, -128)
    b.output(b.op("SVDF", inputs, (BATCH, UNITS), options, type=i8, quantization=made))
    return b.build(), [[rng.integers(-128, 128, (BATCH, DEPTH)).astype(np.int8)] for _ in range(4)]


@pytest.mark.parametrize("arithmetic", ["float", "integer"])
@pytest.mark.parametrize(("rank", "memory", "bias"), [(1, 4, True), (2, 5, True), (1, 1, True)])
def test_svdf_of_bytes_is_equal(rank: int, memory: int, bias: bool, arithmetic: str) -> None:
    require_gpu()
    content, inputs = integer_svdf(rank, memory, bias)
    assert len(np.unique(run(official(content), inputs[0])[0])) > 4
    assert_keeps_alike(content, inputs, arithmetic=arithmetic)


def test_filters_of_bytes_beside_floats() -> None:
    """Version 4, whose inputs the CPU quantizes with a zero point: here the weights' real numbers alone count."""
    require_gpu()

    def model(hybrid: bool) -> bytes:
        b, arrays = ModelBuilder(), np.random.default_rng(0)
        x, state = b.input("x", (BATCH, DEPTH)), b.variable("state", (BATCH, 4 * UNITS))
        stored, scale = arrays.integers(-127, 128, (UNITS, DEPTH)).astype(np.int8), np.float32(0.01)
        taps, taps_scale = arrays.integers(-127, 128, (UNITS, 4)).astype(np.int8), np.float32(0.005)
        if hybrid:
            weights = (
                b.constant(stored, quantization=quantized(0.01)),
                b.constant(taps, quantization=quantized(0.005)),
            )
        else:
            weights = b.constant(stored * scale), b.constant(taps * taps_scale)
        options = dict(rank=1, fused_activation_function="NONE", asymmetric_quantize_inputs=hybrid)
        made = b.op("SVDF", [x, *weights, None, state], (BATCH, UNITS), options, version=4 if hybrid else 1)
        b.output(b.op("NEG", [made], (BATCH, UNITS)))
        return b.build()

    gpu, cpu = on_gpu(model(hybrid=True), max_delegated_partitions=0), official(model(hybrid=False))
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    for seed in range(5):
        x = [np.random.default_rng(seed).standard_normal((BATCH, DEPTH)).astype(np.float32)]
        assert_agrees(run(gpu, x)[0], run(cpu, x)[0], FLOAT32)
