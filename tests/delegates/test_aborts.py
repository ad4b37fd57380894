"""Scales that the official kernels abort on are refused where they would get them, and nowhere else."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from ai_edge_litert.interpreter import OpResolverType
from official_process import outcomes

import litegpu
from litegpu.delegates.aborts import refuse_aborting
from litegpu.model.builder import quantized
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

INT8, UINT8, INT16, BOOL, FLOAT32 = (TensorType[n] for n in ("INT8", "UINT8", "INT16", "BOOL", "FLOAT32"))
SPARE = {INT8: 2.0**20, UINT8: 2.0**20, INT16: 2.0**15}


def binary(operator: str, type_: TensorType, first: float, second: float, result: float | None) -> bytes:
    b = ModelBuilder()
    x = b.input("x", (1, 3), type_, quantization=quantized(first))
    y = b.input("y", (1, 3), type_, quantization=quantized(second))
    made = BOOL if result is None else type_
    b.output(b.op(operator, [x, y], (1, 3), type=made, quantization=None if result is None else quantized(result)))
    return b.build()


def cases() -> list[bytes]:
    """Scales on both sides of every limit, and at random."""
    rng = random.Random(0)
    found = []
    for operator in ("ADD", "SUB"):
        for type_, spare in SPARE.items():
            for factor in (1e-30, 0.3, 0.999, 1 - 2**-24, 1.0, 1 + 2**-23, 1.5, 1e9):
                scale = 2.0 ** rng.randint(
                    -20, 5
                )  # beside 1.3 the scales are no powers of two, which INT16 treats apart
                found.append(binary(operator, type_, 1.3 * scale, 0.7, 2 * max(1.3 * scale, 0.7) / (spare * factor)))
            found += [binary(operator, type_, a, b, 1.0) for a, b in ((1e-37, 1.1), (3e-45, 1.1), (1e-44, 3e-45))]
    for factor in (0.5, 0.999, 1.0, 1.01, 1e5):
        found.append(binary("SQUARED_DIFFERENCE", INT8, 1.3, 0.3, 2.6**2 / (2**14 * factor)))
    for operator in ("ADD", "SUB"):  # without scales, which is plain integers to ADD alone
        model = ModelBuilder()
        x = model.input("x", (1, 3), INT16)
        model.output(model.op(operator, [x, x], (1, 3), type=INT16))
        found.append(model.build())
    for operator in ("LESS", "NOT_EQUAL"):
        for a, b in ((0.5, 0.5), (1, 0.5), (0.5, 1), (1.5, 300), (1 - 2**-24, 2), (1e-40, 1e30), (0, 0.5)):
            found.append(binary(operator, rng.choice((INT8, UINT8)), a, b, None))
    return found


@pytest.mark.skipif(sys.platform == "win32", reason="the official runtime runs in forked processes")
def test_what_is_refused_is_what_aborts() -> None:
    models = cases()
    died = 0
    for content, outcome in zip(models, outcomes(models, "BUILTIN_WITHOUT_DEFAULT_DELEGATES"), strict=True):
        graph = read_model(content).main
        scales = [t.quantization.scales[0] for t in graph.tensors if t.quantization is not None]
        what = f"{graph.operators[0].name} {graph.tensors[0].type.name} {scales}: {outcome}"
        try:
            refuse_aborting(
                graph.operators, graph.tensors, graph.outputs, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
            )
        except litegpu.InvokeError:
            # An error of the runtime's own is as good: for INT16 it has two ways to the same refusal.
            assert outcome != "ran", what
        else:
            assert not outcome.startswith("SIG"), what
        died += outcome.startswith("SIG")
    assert 20 < died < len(models) - 20  # else it has shown nothing


@pytest.mark.skipif(sys.platform == "win32", reason="the official runtime runs in forked processes")
def test_quantize_aborts_in_xnnpack_alone() -> None:
    models = []
    for scale in (1e-39, 1e-37, 0.1):
        b = ModelBuilder()
        x = b.input("x", (1, 3))
        b.output(b.op("QUANTIZE", [x], (1, 3), type=INT8, quantization=quantized(scale)))
        models.append(b.build())
    for resolver in ("AUTO", "BUILTIN_REF"):
        found = outcomes(models, resolver)
        for content, outcome in zip(models, found, strict=True):
            graph = read_model(content).main
            refused = False
            try:
                refuse_aborting(graph.operators, graph.tensors, graph.outputs, OpResolverType[resolver])
            except litegpu.InvokeError:
                refused = True
            assert refused == outcome.startswith("SIG"), (resolver, outcome)


def test_only_the_cpu_refuses(numpy_delegate) -> None:
    content = binary("ADD", INT8, 0.5, 0.5, 1e-9)
    interpreter = litegpu.Interpreter(model_content=content)  # which opens it, as the official one does
    for call in (interpreter.allocate_tensors, interpreter.allocate_tensors):
        with pytest.raises(litegpu.InvokeError, match=r"Node 0 \(ADD\) cannot run on the CPU: its scales 0.5 and 0.5"):
            call()
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    q = b.op("QUANTIZE", [b.op("ADD", [x, x], (1, 3))], (1, 3), type=INT8, quantization=quantized(0.5))
    s = b.op("ADD", [q, q], (1, 3), type=INT8, quantization=quantized(1e-9))
    b.output(b.op("DEQUANTIZE", [s], (1, 3), type=FLOAT32))
    for delegates in (None, [numpy_delegate()]):
        interpreter = litegpu.Interpreter(model_content=b.build(), experimental_delegates=delegates, fallback="silent")
        with pytest.raises(litegpu.InvokeError, match=r"Node 2 \(ADD\)"):
            interpreter.allocate_tensors()


def test_the_gpu_runs_what_the_cpu_would_abort_on() -> None:
    from agreement import on_gpu, require_gpu

    require_gpu()
    gpu = on_gpu(binary("ADD", INT8, 0.5, 0.5, 1e-9))
    assert gpu.delegation_report().fully_delegated
    gpu.set_tensor(0, np.array([[1, -2, 0]], np.int8))
    gpu.set_tensor(1, np.array([[1, -2, 0]], np.int8))
    gpu.invoke()
    np.testing.assert_array_equal(gpu.get_tensor(2), [[127, -128, 0]])


@pytest.mark.skipif(sys.platform == "win32", reason="the official runtime runs in forked processes")
def test_products_abort_at_scales_that_are_no_normal_numbers() -> None:
    models = []
    for scale, other in ((0.0, 0.1), (0.1, 0.1), (1e-45, 0.1), (1.17e-38, 0.1), (1.2e-38, 0.1), (0.1, 1e-40)):
        b = ModelBuilder()
        x = b.input("x", (2, 2, 1, 8), type=INT8, quantization=quantized(scale))
        y = b.input("y", (2, 2, 8, 5), type=INT8, quantization=quantized(other))
        b.output(b.op("BATCH_MATMUL", [x, y], (2, 2, 1, 5), type=INT8, quantization=quantized(0.5)))
        models.append(b.build())
    for content, outcome in zip(models, outcomes(models, "AUTO"), strict=True):
        graph = read_model(content).main
        refused = False
        try:
            refuse_aborting(graph.operators, graph.tensors, graph.outputs, OpResolverType.AUTO)
        except litegpu.InvokeError:
            refused = True
        assert refused == outcome.startswith("SIG"), outcome
