"""INT64 on the GPU: computed with in 32 bits, where those hold it."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run

import litegpu
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

I64 = TensorType.INT64


def token_model() -> bytes:
    """Rows of a table by INT64 numbers, which leave the model as well, reversed; and where the largest stands."""
    b = ModelBuilder()
    ids = b.input("ids", (5,), I64)
    table = b.constant(np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32))
    rows = b.op("GATHER", [table, ids], shape=(5, 4))
    turned = b.op("REVERSE_V2", [ids, b.constant(np.array([0], np.int32))], shape=(5,), type=I64)
    places = b.op("ARG_MAX", [rows, b.constant(1)], shape=(5,), options=dict(output_type="INT64"), type=I64)
    same = b.op("EQUAL", [places, ids], shape=(5,), type=TensorType.BOOL)
    b.output(rows, turned, places, same)
    return b.build()


def test_numbers_of_64_bits_enter_and_leave() -> None:
    require_gpu()
    ids = np.array([6, 0, 3, 3, 1], np.int64)
    interpreter = on_gpu(token_model(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    for got, want in zip(run(interpreter, [ids]), run(official(token_model()), [ids]), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_what_32_bits_do_not_hold_is_an_error() -> None:
    require_gpu()
    interpreter = on_gpu(token_model(), max_delegated_partitions=0)
    with pytest.raises(litegpu.InvokeError, match=r"holds 0 to 4294967296: the GPU computes with 32 bits"):
        run(interpreter, [np.array([1 << 32, 0, 0, 0, 0], np.int64)])
