"""CAST to and from FLOAT64, to the bit, against the official runtime."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph.parts import as_typed
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import TensorType, read_model
from litegpu.model.writer import ModelBuilder

TYPES = {
    "float32": TensorType.FLOAT32, "float16": TensorType.FLOAT16, "int32": TensorType.INT32, "int64": TensorType.INT64,
    "bool": TensorType.BOOL, "int8": TensorType.INT8, "uint8": TensorType.UINT8, "int16": TensorType.INT16,
    "uint16": TensorType.UINT16, "uint32": TensorType.UINT32, "float64": TensorType.FLOAT64,
}  # fmt: skip


def model(given: str, made: str, count: int) -> bytes:
    b = ModelBuilder()
    x = b.input("x", (count,), TYPES[given])
    b.output(b.op("CAST", [x], (count,), dict(in_data_type=0, out_data_type=0), type=TYPES[made]))
    return b.build()


def doubles() -> np.ndarray:
    """Numbers of all sizes, halves of the last bit of a float32, the smallest of these, and what is none."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 400, np.uint64).view(np.float64)
    floats = rng.standard_normal(100).astype(np.float32).astype(np.float64)
    halves = np.nextafter(floats.astype(np.float32), np.float32(9)).astype(np.float64) / 2 + floats / 2
    small = 2.0**-149 * np.array([0.25, 0.5, 0.5000001, 0.75, 1, 1.5, 2.5, 3.5, 2**22 + 0.5, 2**23 - 0.5, 2**23])
    large = 2.0**127 * np.array([1.9999999, 2 - 2.0**-24, 2 - 2.0**-25, 2, 4])
    border = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.9999999999, 1, 2**31 - 1, 2**31 - 0.5, -(2**31), 5e-324])
    found = np.concatenate([bits, floats, halves, small, -small, large, -large, border])
    return np.ascontiguousarray(found)


def numbers(kind: str) -> np.ndarray:
    """Of doubles those that the type holds: of others C++ does not say."""
    if kind in ("float64", "float32", "float16", "bool"):
        return doubles()
    limits, rng = np.iinfo(kind), np.random.default_rng(1)
    low, high = float(limits.min), float(limits.max) if kind != "int64" else 2.0**63 - 2048
    reach = rng.uniform(-1, 1, 300) * 2.0 ** rng.uniform(-3, limits.bits, 300)
    some = np.array([0.0, -0.0, 0.5, -0.999, 1, 1.999, low, high, high - 0.5, 2.0**20 + 0.25, 2.0**30, 5e-324])
    found = np.concatenate([reach, some, np.floor(reach)])
    return found[(found >= low) & (found <= high)]


def of(kind: str) -> np.ndarray:
    if kind == "float64":
        return doubles()
    if kind == "bool":
        return np.array([True, False, True])
    if kind in ("float32", "float16"):
        bits = np.random.default_rng(2).integers(0, 2**16 if kind == "float16" else 2**32, 600, np.uint64)
        special = np.array([0.0, -0.0, np.inf, -np.inf, 1, 2.0**-149, 2.0**-127, 2.0**-126, 3 * 2.0**-149], kind)
        drawn = bits.astype("uint16" if kind == "float16" else "uint32").view(kind)
        return np.concatenate([drawn[~np.isnan(drawn)], special])
    limits = np.iinfo(kind)
    most = np.random.default_rng(3).integers(limits.min, limits.max, 300, kind, endpoint=True)
    found = np.concatenate([most, np.array([0, 1, limits.min, limits.max, limits.max // 3], kind)])
    if kind != "int64":
        return found
    bits = np.int64(1) << np.arange(63, dtype=np.int64)  # of every size, and halves between two doubles
    halves = ((np.int64(1) << 53) + 2 * np.arange(8) + 1) << np.arange(8)
    return np.concatenate(
        [found, found >> np.arange(found.size) % 63, bits, -bits, bits - 1, 1 - bits, halves, -halves]
    )


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    if wanted.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        known = ~np.isnan(wanted)
        word = f"u{wanted.dtype.itemsize}"
        np.testing.assert_array_equal(found[known].view(word), wanted[known].view(word))
    else:
        np.testing.assert_array_equal(found, wanted)


CASES = [
    *(("float64", kind) for kind in TYPES),
    *((kind, "float64") for kind in TYPES if kind != "float64"),
]


@pytest.mark.parametrize(("given", "made"), CASES)
def test_in_numpy(given: str, made: str) -> None:
    x = numbers(made) if given == "float64" else of(given)
    content = model(given, made, x.size)
    main = read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    (got,) = evaluate_graph(lowered.graph, [x])
    same(as_typed(got, x.shape, np.dtype(made)), run(official(content), [x])[0])


@pytest.mark.parametrize(("given", "made"), CASES)
def test_on_the_gpu(given: str, made: str) -> None:
    """Without subnormal numbers, which drivers may take for 0."""
    require_gpu()
    x = numbers(made) if given == "float64" else of(given)
    if "float" in made and "float" in given and made != given:
        least = np.finfo(np.float16 if "float16" in (given, made) else np.float32).tiny
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(x.astype(np.float64))
        x = x[(size == 0) | ~(size < least)]
    content = model(given, made, x.size)
    gpu = on_gpu(content, max_delegated_partitions=0)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    same(run(gpu, [x])[0], run(official(content), [x])[0])


def test_what_is_not_taken() -> None:
    for kind in (TensorType.COMPLEX64, TensorType.UINT64):
        b = ModelBuilder()
        x = b.input("x", (4,), kind)
        b.output(b.op("CAST", [x], (4,), dict(in_data_type=0, out_data_type=0), type=TensorType.FLOAT64))
        main = read_model(b.build()).main
        assert check_operator(main, main.operators[0])
