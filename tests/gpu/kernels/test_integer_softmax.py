"""Softmax of bytes: its reciprocal, and rows of all lengths beside the official runtime."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.gpu.kernels.integer_softmax import reciprocal
from litegpu.gpu.lang import Kernel, f32, interpret, trace
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType


def test_the_reciprocal_is_the_nearest_number() -> None:
    rng = np.random.default_rng(0)
    powers = 2.0 ** np.arange(-20, 20)
    near = np.concatenate([np.nextafter(powers.astype(np.float32), np.float32(way)) for way in (0, np.inf)])
    x = np.concatenate([powers, near, np.exp(rng.uniform(-12, 12, 4000))]).astype(np.float32)

    def kernel(k: Kernel) -> None:
        given, made = k.buffer("x", f32, x.size, access="read"), k.buffer("y", f32, x.size)
        i = k.group_id() * 64 + k.local_id()
        with k.If(i < x.size):
            made[i] = reciprocal(k, given[i])

    y = np.zeros_like(x)
    interpret.run(trace(kernel, "inverse", (64, 1, 1), (-(-x.size // 64), 1, 1)), {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.float32(1) / x)


@pytest.mark.parametrize("kind", [TensorType.INT8, TensorType.UINT8])
@pytest.mark.parametrize("shape", [(1, 2), (7, 10), (1, 1001), (5000, 21), (1, 3000), (2, 3, 4, 65)])
def test_rows_of_all_lengths(shape: tuple[int, ...], kind: TensorType) -> None:
    """Short and long ones, few and so many that each has a thread alone."""
    require_gpu()
    content, given = softmax_model(shape, kind)
    want = run(official(content, OpResolverType.BUILTIN), [given])[0]
    np.testing.assert_array_equal(run(on_gpu(content, arithmetic="integer"), [given])[0], want)


def softmax_model(shape: tuple[int, ...], kind: TensorType) -> tuple[bytes, np.ndarray]:
    """And what it is given."""
    low = -128 if kind is TensorType.INT8 else 0
    m = ModelBuilder()
    x = m.input("x", shape, kind, quantization=quantized(0.07, low + 100))
    y = m.tensor(shape, kind, "y", quantization=quantized(1 / 256, low))
    m.node("SOFTMAX", [x], [y], {"beta": 1.0})
    m.output(y)
    return m.build(), np.random.default_rng(1).integers(low, low + 256, shape).astype(np.int8 if low else np.uint8)
