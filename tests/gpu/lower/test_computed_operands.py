"""Operands that converters write as constants as a rule, and here come with the inference."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run

from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

BACKENDS = ["reference", "webgpu"]


def compared(model: ModelBuilder, arrays: list[np.ndarray], backend: str) -> None:
    if backend == "webgpu":
        require_gpu()
    gpu = on_gpu(model.build(), backend=backend, max_delegated_partitions=0)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    for got, want in zip(run(gpu, arrays), run(official(model.build()), arrays), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.int64, np.bool_, np.int16], ids=lambda kind: kind.__name__)
def test_the_value_of_a_padding(kind: type, backend: str) -> None:
    model, x = ModelBuilder(), np.arange(6).reshape(2, 3)
    type_ = TensorType[np.dtype(kind).name.upper()]
    margins = model.constant(np.array([[1, 0], [0, 2]], np.int32))
    given = [model.input("x", (2, 3), type_), margins, model.input("value", (), type_)]
    model.output(model.op("PADV2", given, (3, 5)))
    compared(model, [x.astype(kind), np.array(7).astype(kind)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_value_of_a_padding_of_five_axes(backend: str) -> None:
    model, shape = ModelBuilder(), (1, 2, 1, 3, 2)
    margins = model.constant(np.ones((5, 2), np.int32))
    given = [model.input("x", shape), margins, model.input("value", (1,))]
    model.output(model.op("PADV2", given, tuple(n + 2 for n in shape)))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    compared(model, [x, np.array([-np.inf], np.float32)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_begin_of_64_bits(backend: str) -> None:
    model = ModelBuilder()
    x, begin = model.input("x", (6, 4)), model.input("begin", (2,), TensorType.INT64)
    model.output(model.op("SLICE", [x, begin, model.constant(np.array([3, 2]), type=TensorType.INT64)], (3, 2)))
    array = np.arange(24, dtype=np.float32).reshape(6, 4)
    for first in (0, 3):
        compared(model, [array, np.array([first, 1])], backend)
