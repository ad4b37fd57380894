"""Large fully-connected layers of int8 models keep their weights as bytes, which the kernel makes numbers of."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, require_gpu, run

from litegpu.gpu.build import build_program
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.program import Program
from litegpu.model import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

UNITS, DEPTH = 301, 400
RNG = np.random.default_rng(0)
STORED = RNG.integers(-127, 128, (UNITS, DEPTH)).astype(np.int8)
SCALES = RNG.uniform(0.001, 0.01, UNITS).astype(np.float32)


def layer(rows: int, whole: bool, type_: TensorType = TensorType.INT8) -> bytes:
    """[rows, DEPTH] -> [rows, UNITS], with whole or real weights."""
    b = ModelBuilder()
    x = b.input("x", (rows, DEPTH))
    stored = np.clip(STORED, -7, 7) if type_ is TensorType.INT4 else STORED
    if whole:
        w = b.constant(stored, type=type_, quantization=quantized(SCALES, np.zeros(UNITS, np.int64), 0))
    else:
        w = b.constant(stored * SCALES[:, None])
    bias = b.constant(np.arange(UNITS, dtype=np.float32))
    b.output(b.op("FULLY_CONNECTED", [x, w, bias], (rows, UNITS), type=TensorType.FLOAT32, version=1))
    return b.build()


def program(content: bytes, target: str, half: bool = False, capability: int = 0) -> Program:
    graph = read_model(content).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    features = Features(float16=half, compute_units=132, native="cuda", capability=capability)
    return build_program(lowered.graph, features, target, half=half)


@pytest.mark.parametrize(("target", "half", "capability"), [("wgsl", False, 0), ("cuda", True, 0), ("cuda", True, 90)])
def test_weights_take_a_byte_each(target: str, half: bool, capability: int) -> None:
    whole, real = (program(layer(1, w), target, half, capability).constants.nbytes for w in (True, False))
    assert whole < 1.1 * UNITS * DEPTH + 4096 < real


@pytest.mark.parametrize("type_", [TensorType.INT8, TensorType.INT4])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_results_are_those_of_real_weights(rows: int, type_: TensorType) -> None:
    require_gpu()
    x = RNG.standard_normal((rows, DEPTH)).astype(np.float32)
    want = run(official(layer(rows, False, type_)), [x])[0]
    for half in (False, True):
        gpu = on_gpu(layer(rows, True, type_), precision_loss_allowed=half)
        assert gpu.delegation_report().fully_delegated
        assert_agrees(run(gpu, [x])[0], want, FLOAT16 if half else FLOAT32)


@pytest.mark.cuda
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("rows", [1, 5])
def test_results_on_cuda(rows: int, half: bool) -> None:
    from litegpu.gpu.backends.cuda.opening import available

    if available() is not None:
        pytest.skip("no CUDA device")
    x = RNG.standard_normal((rows, DEPTH)).astype(np.float32)
    gpu = on_gpu(layer(rows, True), backend="cuda", precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    want = run(official(layer(rows, False)), [x])[0]
    assert_agrees(run(gpu, [x])[0], want, FLOAT16 if half else FLOAT32)
