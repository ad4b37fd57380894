"""Choices and comparisons in float16: a value equals itself, and is never above its own maximum, whatever moved it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from agreement import FLOAT16, assert_agrees, official, on_gpu, require_gpu, run

import litegpu
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.passes.decisions import values_decided_on
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

BOOL, FLOAT, INT = TensorType.BOOL, TensorType.FLOAT32, TensorType.INT32
SHAPE = (1, 9, 7, 6)
POOL = {"stride_w": 1, "stride_h": 1, "padding": 0, "filter_width": 3, "filter_height": 3}


def ints(b: ModelBuilder, *numbers: int) -> int:
    return b.constant(np.array(numbers, np.int32))


def conv(b: ModelBuilder, x: int, shape: tuple[int, ...], outputs: int) -> int:
    weights = np.random.default_rng(1).standard_normal((outputs, 1, 1, shape[3])).astype(np.float32)
    options = {"stride_w": 1, "stride_h": 1, "padding": 0}
    return b.op(
        "CONV_2D", [x, b.constant(weights), b.constant(np.zeros(outputs, np.float32))], (*shape[:3], outputs), options
    )


def counted(b: ModelBuilder, mask: int, shape: tuple[int, ...]) -> int:
    """How often a mask is true, in each image."""
    numbers = b.op("CAST", [mask], shape, {"in_data_type": int(BOOL), "out_data_type": int(FLOAT)})
    axes = ints(b, *range(1, len(shape)))
    return b.op("SUM", [numbers, axes], shape[:1], {"keep_dims": False})


def top_k(source: str) -> bytes:
    """Of an input, of a vector, of what a convolution gives, and of what is also an output."""
    b = ModelBuilder()
    if source == "vector":
        shape: tuple[int, ...] = (1, 200)
        x = b.op("TANH", [b.input("x", shape)], shape)
    else:
        shape = (1, 3, 5, 40)
        x = b.input("x", shape)
        x = x if source == "input" else conv(b, x, shape, 40)
        if source == "output":
            b.output(x)
    values, indices = b.op_multi("TOPK_V2", [x, ints(b, 7)], [((*shape[:-1], 7), FLOAT), ((*shape[:-1], 7), INT)])
    b.output(values)
    b.output(indices)
    return b.build()


def peaks(as_output: bool) -> bytes:
    """Where a heat map is its own maximum over a neighbourhood, as detectors without anchors find their centres."""
    b = ModelBuilder()
    x = b.op("LOGISTIC", [conv(b, b.input("x", SHAPE), SHAPE, 6)], SHAPE)
    highest = b.op("MAX_POOL_2D", [x], SHAPE, POOL)
    equal = b.op("EQUAL", [x, highest], SHAPE, type=BOOL)
    if as_output:
        b.output(x)
    b.output(counted(b, equal, SHAPE))
    return b.build()


def maxima(axes: tuple[int, ...], function: str, source: str) -> bytes:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    if source == "convolution":
        x = conv(b, x, SHAPE, 6)
    elif source == "output":
        x = conv(b, x, SHAPE, 6)
        b.output(x)
    row = tuple(1 if i in axes else n for i, n in enumerate(SHAPE))
    largest = b.op("REDUCE_MAX", [x, ints(b, *axes)], row, {"keep_dims": True})
    b.output(counted(b, b.op(function, [x, largest], SHAPE, type=BOOL), SHAPE))
    return b.build()


def turned(function: str) -> bytes:
    """A tensor against itself, there and back by transposition: never different, though moved in memory."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    there = b.op("TRANSPOSE", [x, ints(b, 0, 3, 1, 2)], (1, 6, 9, 7))
    pads = b.constant(np.array([[0, 0], [1, 0], [0, 1], [0, 0]], np.int32))
    padded = b.op("PAD", [there, pads], (1, 7, 10, 7))
    cut = b.op("SLICE", [padded, ints(b, 0, 1, 0, 0), ints(b, 1, 6, 9, 7)], (1, 6, 9, 7))
    back = b.op("TRANSPOSE", [cut, ints(b, 0, 2, 3, 1)], SHAPE)
    b.output(counted(b, b.op(function, [x, back], SHAPE, type=BOOL), SHAPE))
    return b.build()


def rows_and_columns() -> bytes:
    """How many of a row's elements are above each: the chain that suppresses what is not the largest."""
    b = ModelBuilder()
    n = 50
    x = b.op("LOGISTIC", [b.input("x", (1, n))], (1, n))
    across = b.op("RESHAPE", [x, ints(b, 1, 1, n)], (1, 1, n))
    down = b.op("RESHAPE", [x, ints(b, 1, n, 1)], (1, n, 1))
    above = b.op("GREATER", [across, down], (1, n, n), type=BOOL)
    numbers = b.op("CAST", [above], (1, n, n), {"in_data_type": int(BOOL), "out_data_type": int(FLOAT)})
    b.output(b.op("SUM", [numbers, ints(b, 2)], (1, n), {"keep_dims": False}))
    return b.build()


def remainders() -> bytes:
    """x less its whole part, and the next whole number less x; both are taken of a moved copy."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    pads = b.constant(np.array([[0, 0], [1, 0], [0, 0], [0, 0]], np.int32))
    padded = b.op("PAD", [x, pads], (1, 10, 7, 6))
    for function in ("FLOOR", "CEIL"):
        whole = b.op(function, [padded], (1, 10, 7, 6))
        cut = b.op("SLICE", [whole, ints(b, 0, 1, 0, 0), ints(b, *SHAPE)], SHAPE)
        b.output(b.op("SUB", [x, cut], SHAPE))
    return b.build()


def times_one() -> bytes:
    """An output against what was computed of it, without any change."""
    b = ModelBuilder()
    x = conv(b, b.input("x", SHAPE), SHAPE, 6)
    b.output(x)
    same = b.op("MUL", [x, b.constant(np.array(1, np.float32))], SHAPE)
    b.output(conv(b, same, SHAPE, 4))
    b.output(counted(b, b.op("EQUAL", [x, same], SHAPE, type=BOOL), SHAPE))
    return b.build()


def clipped() -> bytes:
    """x where it is its own clipped value: RELU keeps it, though its result is stored elsewhere."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    positive = b.op("MAX_POOL_2D", [b.op("RELU", [x], SHAPE)], SHAPE, {**POOL, "filter_width": 1, "filter_height": 1})
    b.output(counted(b, b.op("EQUAL", [x, positive], SHAPE, type=BOOL), SHAPE))
    return b.build()


def joined() -> bytes:
    """Of two halves that are joined, one is compared with its own copy out of the whole."""
    b = ModelBuilder()
    x = conv(b, b.input("x", SHAPE), SHAPE, 6)
    wide = (1, 9, 7, 12)
    whole = b.op("CONCATENATION", [x, b.op("TANH", [x], SHAPE)], wide, {"axis": 3})
    b.output(conv(b, whole, wide, 4))
    cut = b.op("SLICE", [whole, ints(b, 0, 0, 0, 0), ints(b, *SHAPE)], SHAPE)
    b.output(x)
    b.output(counted(b, b.op("EQUAL", [x, cut], SHAPE, type=BOOL), SHAPE))
    return b.build()


MODELS: dict[str, Callable[..., bytes]] = {
    **{f"top k of {s}": lambda s=s: top_k(s) for s in ("input", "vector", "convolution", "output")},
    **{f"peaks {s}": lambda s=s: peaks(s) for s in (False, True)},
    **{
        f"{function} {axes} {source}": lambda f=function, a=axes, s=source: maxima(a, f, s)
        for function in ("EQUAL", "GREATER", "GREATER_EQUAL")
        for axes in ((3,), (1, 2))
        for source in ("input", "convolution", "output")
    },
    **{f"{function} turned": lambda f=function: turned(f) for function in ("EQUAL", "NOT_EQUAL", "LESS")},
    "rows and columns": rows_and_columns, "remainders": remainders, "clipped": clipped, "joined": joined,
    "times one": times_one,
}  # fmt: skip


def check(name: str, backend: str, precision: str) -> None:
    content = MODELS[name]()
    reference = official(content)
    x = [np.random.default_rng(7).uniform(-4, 4, d["shape"]).astype(np.float32) for d in reference.get_input_details()]
    if name == "remainders":  # hardly below and above whole numbers, where float16 would round to them
        x = [np.round(a) + np.float32(1e-4) * np.sign(a) for a in x]
    want = run(reference, x)
    one = on_gpu(content, backend=backend, precision=precision, max_delegated_partitions=0)
    assert one.delegation_report().fully_delegated
    got = run(one, x)
    if name.startswith("top k"):
        assert_agrees(got[-2], want[-2], FLOAT16, name)
        indices, source = got[-1], x[0] if "input" in name else np.tanh(x[0]) if "vector" in name else None
        if source is not None:
            np.testing.assert_array_equal(
                np.take_along_axis(source, indices, -1), np.take_along_axis(source, want[-1], -1)
            )
        assert all(len(set(row)) == len(row) for row in indices.reshape(-1, indices.shape[-1]).tolist())
        return
    for a, b in zip(got, want, strict=True):
        assert_agrees(a, b, FLOAT16, name)
    if want[-1].size == 1:
        assert got[-1] == want[-1], name  # a number of elements


@pytest.mark.parametrize("precision", ["float16", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_decisions(name: str, precision: str) -> None:
    require_gpu()
    if not litegpu.GpuDelegate(backend="webgpu").open_device().features.float16:
        pytest.skip("the device has no 16-bit floats")
    check(name, "webgpu", precision)


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["float16", "auto"])
@pytest.mark.parametrize("name", MODELS)
def test_decisions_on_cuda(name: str, precision: str) -> None:
    from litegpu.gpu.backends.cuda.opening import available

    if reason := available():
        pytest.skip(f"no CUDA device: {reason}")
    check(name, "cuda", precision)


def test_networks_without_comparisons_keep_nothing() -> None:
    b = ModelBuilder()
    x = b.op("ELU", [conv(b, b.input("x", SHAPE), SHAPE, 6)], SHAPE)
    y = b.op("HARD_SWISH", [b.op("ADD", [x, conv(b, x, SHAPE, 6)], SHAPE)], SHAPE)
    b.output(conv(b, b.op("LEAKY_RELU", [y], SHAPE, {"alpha": 0.1}), SHAPE, 3))
    model = read_model(b.build()).main
    assert not values_decided_on(lower_partition(model, model.operators, model.inputs, model.outputs).graph)
