"""CUDA's passes and choices for any graph: they need no device, and nothing that they do may fail."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from small_models.grow import corpus_model

from litegpu.gpu.build import build_program
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.lower.constants import Unsupported
from litegpu.model import read_model
from litegpu.model.types import Quantization, TensorType
from litegpu.model.writer import ModelBuilder

SAMPLE, FULL = 60, 3000
HOPPER = Features(
    float16=True, compute_units=132, native="cuda", capability=90, max_buffers=64, max_buffer_bytes=1 << 34
)
#: What devices of several ages would run: its features, whether in float16, whether bytes in whole numbers.
WAYS = {
    "float16": (HOPPER, True, False), "float32": (HOPPER, False, False), "integer": (HOPPER, False, True),
    "integer and float16": (HOPPER, True, True), "Turing": (replace(HOPPER, capability=75), True, False),
    "Turing, integer": (replace(HOPPER, capability=75), False, True),
}  # fmt: skip


@pytest.mark.parametrize("first", range(0, SAMPLE, 10))
def test_sample(first: int) -> None:
    _plan("sample", range(first, first + 10))


def test_one_operand_twice_in_front_of_a_product() -> None:
    rng, b = np.random.default_rng(0), ModelBuilder()
    window = dict(stride_h=1, stride_w=1, padding=0)

    def conv(x: int) -> int:
        weights = b.constant(rng.standard_normal((32, 1, 1, 32)).astype(np.float32))
        return b.op("CONV_2D", [x, weights, b.constant(np.zeros(32, np.float32))], (1, 8, 8, 32), window)

    x = conv(b.input("x", (1, 8, 8, 32)))
    b.output(x, conv(b.op("MUL", [x, x], (1, 8, 8, 32))))
    assert not _failures("squares", b.build())


@pytest.mark.parametrize("channels", [1, 5, 8])
def test_rows_of_few_channels_are_put_somewhere_else(channels: int) -> None:
    b = ModelBuilder()
    weights = b.constant(np.ones((channels, 1, 1, 5), np.float32))
    options = dict(stride_h=1, stride_w=1, padding=0)
    bias = b.constant(np.ones(channels, np.float32))
    y = b.op("CONV_2D", [b.input("x", (1, 3, 5, 5)), weights, bias], (1, 3, 5, channels), options)
    b.output(b.op("RESHAPE", [y, b.constant(np.array([15, channels], np.int32))], (15, channels)))
    assert not _failures(f"{channels} channels", b.build())


@pytest.mark.parametrize("name", ["LOGISTIC", "AVERAGE_POOL_2D", "ADD", "MEAN", "RESHAPE"])
def test_what_is_no_product_behind_a_depthwise_layer_of_bytes(name: str) -> None:
    rng, b, shape = np.random.default_rng(0), ModelBuilder(), (1, 8, 8, 16)
    grid = _grid(1 / 16, 0)
    x = b.input("x", shape, TensorType.INT8, quantization=grid)
    scales = rng.uniform(0.005, 0.01, 16).astype(np.float32)
    each = [Quantization(n, np.zeros(16, np.int64), axis) for n, axis in ((scales, 3), (scales / 16, 0))]
    weights = b.constant(rng.integers(-127, 128, (1, 3, 3, 16)).astype(np.int8), quantization=each[0])
    bias = b.constant(rng.integers(-999, 999, 16).astype(np.int32), quantization=each[1])
    options = dict(stride_h=1, stride_w=1, padding=0, depth_multiplier=1)
    y = b.op("DEPTHWISE_CONV_2D", [x, weights, bias], shape, options, type=TensorType.INT8, quantization=grid)
    more = dict(filter_height=2, filter_width=2, stride_h=2, stride_w=2, padding=1)
    made, others, options = {
        "LOGISTIC": (shape, [], {}), "ADD": (shape, [x], {}), "AVERAGE_POOL_2D": ((1, 4, 4, 16), [], more),
        "RESHAPE": ((64, 16), [b.constant(np.array([64, 16], np.int32))], {}),
        "MEAN": ((1, 16), [b.constant(np.array([1, 2], np.int32))], {}),
    }[name]  # fmt: skip
    given = _grid(1 / 256, -128) if name == "LOGISTIC" else grid
    b.output(b.op(name, [y, *others], made, options, type=TensorType.INT8, quantization=given))
    assert not _failures(name, b.build())


@pytest.mark.slow
def test_full() -> None:
    _plan(str(random.SystemRandom().getrandbits(32)), range(FULL))


def _grid(scale: float, zero: int) -> Quantization:
    return Quantization(np.array([scale], np.float32), np.array([zero], np.int64))


def _plan(seed: str, numbers: range) -> None:
    failed = [f for n in numbers for f in _failures(f"{seed} {n}", corpus_model(seed, n).content)]
    assert not failed, "\n".join(failed)


def _failures(name: str, content: bytes) -> list[str]:
    main, failed = read_model(content).main, []
    for way, (features, half, integer) in WAYS.items():
        try:
            lowered = lower_partition(main, main.operators, main.inputs, main.outputs, integer=integer)
        except Unsupported:
            continue
        try:
            build_program(lowered.graph, features, "cuda", half=half)
        except Exception as error:  # of any kind: all of them are told
            failed.append(f"{name} {way}: {type(error).__name__}: {error}")
    return failed
