"""Which arithmetic 8-bit tensors get: what is asked for, or the faster by the estimate, and what the report says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from gpu.delegate.measured_arithmetic import MEASURED

from litegpu import GpuDelegate, GpuDelegateOptions
from litegpu.delegates.protocol import Partition
from litegpu.errors import OptionError
from litegpu.gpu.backends import registry
from litegpu.gpu.delegate.arithmetic import choose
from litegpu.gpu.kernels import native
from litegpu.gpu.lang.features import Features
from litegpu.model import read_model, with_batch
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType
from litegpu.zoo import build_model

INT8, INT16 = TensorType.INT8, TensorType.INT16


def layer(op: str = "FULLY_CONNECTED", weights_zero_point: int = 0) -> bytes:
    """A dense layer of bytes whose sums pass 2**24, or an op that is not known in whole numbers."""
    m = ModelBuilder()
    if op != "FULLY_CONNECTED":
        x = m.input("x", (1, 8), INT8, quantization=quantized(0.1, 0))
        y = m.tensor((1, 8), INT8, "y", quantization=quantized(1 / 128, 0))
        m.node(op, [x], [y])
        m.output(y)
        return m.build()
    x = m.input("x", (1, 4096), INT8, quantization=quantized(0.1, -128))
    w = m.constant(np.full((2, 4096), 127, np.int8), "w", quantization=quantized(0.01, weights_zero_point))
    y = m.tensor((1, 2), INT8, "y", quantization=quantized(0.001 * 127 * 2048, -128))
    m.node(op, [x, w, None], [y])
    m.output(y)
    return m.build()


def partition(content: bytes) -> Partition:
    model = read_model(content)
    main = model.main
    return Partition(model, main, tuple(main.operators), tuple(main.inputs), tuple(main.outputs))


class Own:
    """Native kernels, of bytes too or not."""

    def __init__(self, of_bytes: bool) -> None:
        self.of_bytes = of_bytes

    def keys_of_bytes(self, features: Features) -> int:
        return 0

    def multiplies_bytes(self, features: Features, work: native.ByteWork) -> bool:
        assert dataclasses.replace(work, zero_points=False) == native.ByteWork(2 * 4096, 2, 0, 1, 1)
        return self.of_bytes and not work.zero_points


@pytest.mark.parametrize(("features", "half", "of_bytes", "integer"), [
    (Features(byte_products=True), False, None, True), (Features(byte_products=True), True, None, True),
    (Features(), False, None, False), (Features(byte_products=True, native="x"), False, False, True),
    (Features(byte_products=True, native="x"), True, False, False),
    (Features(byte_products=True, native="x"), True, True, True),
])  # fmt: skip
def test_auto_takes_what_is_estimated_to_be_faster(
    features: Features, half: bool, of_bytes: bool | None, integer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: Any = None if of_bytes is None else Own(of_bytes)
    monkeypatch.setattr(native, "of", lambda features: own)
    found = choose("auto", partition(layer()), features, half)
    assert found.integer == integer
    assert ("whole numbers, as on the CPU" in found.why) == integer and "estimated" in found.why


def test_auto_says_that_weights_have_a_zero_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which native kernels of bytes count."""
    monkeypatch.setattr(native, "of", lambda features: Own(True))
    features = Features(byte_products=True, native="x")
    assert choose("auto", partition(layer()), features, True).integer
    found = choose("auto", partition(layer(weights_zero_point=3)), features, True)
    assert not found.integer and "and weights with zero points of their own in node 0 (FULLY_CONNECTED)" in found.why


def test_auto_says_that_there_is_little_to_multiply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "of", lambda features: Own(False))
    found = choose("auto", partition(layer()), Features(byte_products=True, native="x"), True)
    each = "with 4096 multiplications for each element that is computed, 2 elements an operator, whole numbers are"
    assert each in found.why


def test_auto_stays_with_floats_where_products_are_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no native kernels for them either."""
    monkeypatch.setattr(native, "of", lambda features: Own(True))
    monkeypatch.setattr(Own, "multiplies_bytes", lambda *_: True)
    features = Features(byte_products=True, native="x")
    for groups, integer in ((1, True), (2, False)):
        m = ModelBuilder()
        x = m.input("x", (1, 3, 3, 8), INT8, quantization=quantized(0.1, 0))
        w = m.constant(np.full((8, 1, 1, 8 // groups), 9, np.int8), "w", quantization=quantized(0.01, 0))
        y = m.tensor((1, 3, 3, 8), INT8, "y", quantization=quantized(0.1, 0))
        m.node("CONV_2D", [x, w, None], [y], dict(stride_h=1, stride_w=1, padding="VALID"))
        m.output(y)
        assert choose("auto", partition(m.build()), features, True).integer == integer


def test_auto_says_what_becomes_of_16_bits() -> None:
    m = ModelBuilder()
    x = m.input("x", (1, 8), INT16, quantization=quantized(0.1, 0))
    y = m.tensor((1, 8), INT16, "y", quantization=quantized(0.1, 0))
    m.node("ADD", [x, x], [y])
    m.output(y)
    for asked, integer, told in (("auto", False, True), ("float", False, False), ("integer", True, False)):
        found = choose(asked, partition(m.build()), Features(), False)
        assert (found.integer, "16-bit tensors are computed with as real numbers" in found.why) == (integer, told)
    plain = ModelBuilder()
    x = plain.input("x", (1, 8), INT16)
    plain.output(plain.op("ABS", [x], (1, 8), type=INT16))
    assert choose("auto", partition(plain.build()), Features(), False).why == ""


@pytest.mark.parametrize("op", ["BATCH_MATMUL", "FULLY_CONNECTED"])
def test_auto_stays_with_floats_where_both_matrices_are_computed(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "of", lambda features: Own(True))
    monkeypatch.setattr(Own, "multiplies_bytes", lambda *_: True)
    m = ModelBuilder()
    operands = [m.input(name, (8, 8), INT8, quantization=quantized(0.1, 0)) for name in "xy"]
    y = m.tensor((8, 8), INT8, "z", quantization=quantized(0.5, 0))
    m.node(op, [*operands, None] if op == "FULLY_CONNECTED" else operands, [y])
    m.output(y)
    features = Features(byte_products=True, native="x")
    assert not choose("auto", partition(m.build()), features, True).integer
    assert choose("auto", partition(m.build()), features, False).integer  # beside float32


def test_auto_counts_transposed_convolutions_at_the_price_of_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone it stays with floats, as a small part of a network it does not decide."""
    monkeypatch.setattr(native, "of", lambda features: Own(True))
    monkeypatch.setattr(Own, "multiplies_bytes", lambda *_: True)
    features = Features(byte_products=True, native="x")
    for before, integer in ((8, False), (512, True)):
        m, wide = ModelBuilder(), quantized(0.1, 0)
        x = m.input("x", (1, 4, 4, before), INT8, quantization=wide)
        first = m.constant(np.full((512, 1, 1, before), 3, np.int8), "first", quantization=quantized(0.01, 0))
        inside = m.tensor((1, 4, 4, 512), INT8, "inside", quantization=wide)
        m.node("CONV_2D", [x, first, None], [inside], dict(stride_h=1, stride_w=1, padding="VALID"))
        weights = m.constant(np.full((8, 2, 2, 512), 3, np.int8), "w", quantization=quantized(0.01, 0))
        y = m.tensor((1, 8, 8, 8), INT8, "y", quantization=wide)
        sizes = m.constant(np.array([1, 8, 8, 8], np.int32))
        m.node("TRANSPOSE_CONV", [sizes, weights, inside], [y], dict(stride_h=2, stride_w=2, padding="SAME"))
        m.output(y)
        assert choose("auto", partition(m.build()), features, True).integer == integer


#: By how much the slower may be so: two runs differ by as much.
NOISE = 1.02
#: A device with the kernels that were measured.
HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132, byte_products=True)


@pytest.mark.parametrize(("name", "batch"), MEASURED, ids=str)
def test_auto_takes_what_was_faster(name: str, batch: int, models_dir: Path) -> None:
    registry.of_language("cuda")
    path = models_dir / f"{name}.tflite"
    model = read_model(path.read_bytes() if path.exists() else build_model(name, quantized=True))
    integer = choose("auto", partition(bytes(with_batch(model, batch).content)), HOPPER, True).integer
    whole, floats = MEASURED[name, batch]
    assert (whole if integer else floats) <= NOISE * min(whole, floats)


@pytest.mark.parametrize("work", [
    native.ByteWork(2e9, 10**8, 0, 30, 64, zero_points=True), native.ByteWork(2e9, 10**8, 10**7, 30, 64),
    native.ByteWork(2e8, 6 * 10**6, 0, 70, 1), native.ByteWork(4e6, 3 * 10**4, 0, 70, 1),
])  # fmt: skip
def test_networks_that_are_faster_in_whole_numbers(work: native.ByteWork) -> None:
    """Each by one limit, and no longer where the next smaller of something is given."""
    registry.of_language("cuda")
    cuda = native.of(HOPPER)
    assert cuda is not None and cuda.multiplies_bytes(HOPPER, work)
    assert not cuda.multiplies_bytes(HOPPER, dataclasses.replace(work, products=work.products / 2))
    assert not cuda.multiplies_bytes(dataclasses.replace(HOPPER, capability=70), work)
    small = dataclasses.replace(work, operators=work.elements // 90000)
    assert cuda.multiplies_bytes(HOPPER, small) == (work.elements < 10**8)
    if work.batch == 1:
        assert not cuda.multiplies_bytes(HOPPER, dataclasses.replace(work, zero_points=True))


def test_networks_of_some_products_that_look_much_up_stay_with_floats_where_they_are_small() -> None:
    registry.of_language("cuda")
    cuda, work = native.of(HOPPER), native.ByteWork(2e8, 6 * 10**6, 0, 70, 1)
    assert cuda is not None and cuda.multiplies_bytes(HOPPER, work)
    assert not cuda.multiplies_bytes(HOPPER, dataclasses.replace(work, tables=2 * 10**5))
    assert not cuda.multiplies_bytes(HOPPER, dataclasses.replace(work, batch=4))


def test_auto_stays_with_floats_where_an_op_is_not_known() -> None:
    found = choose("auto", partition(layer("LOG_SOFTMAX")), Features(byte_products=True), False)
    assert not found.integer and "node 0 (LOG_SOFTMAX)" in found.why


def test_floats_have_nothing_to_choose() -> None:
    m = ModelBuilder()
    m.output(m.op("ABS", [m.input("x", (1, 4))], (1, 4)))
    for asked in ("auto", "float", "integer"):
        assert choose(asked, partition(m.build()), Features(byte_products=True), False).why == ""


@pytest.mark.parametrize("asked", ["auto", "float", "integer"])
def test_the_report_says_what_was_chosen(asked: str) -> None:
    require_gpu()
    content = layer()
    gpu = on_gpu(content, arithmetic=asked)
    notes = " ".join(gpu.delegation_report().notes)
    assert ("8-bit tensors are computed with" in notes) == (asked == "auto")
    x = np.random.default_rng(0).integers(-128, 128, (1, 4096)).astype(np.int8)
    want = run(official(content, OpResolverType.BUILTIN), [x])[0]
    if asked == "integer":
        np.testing.assert_array_equal(run(gpu, [x])[0], want)


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(OptionError, match="arithmetic 'exact' is unknown: use one of auto, float, integer"):
        GpuDelegate(arithmetic="exact")
    assert GpuDelegateOptions().arithmetic == "auto"


def test_how_large_operators_must_be_for_whole_numbers() -> None:
    """By whether weights have zero points, and by how many multiplications there are."""
    registry.of_language("cuda")
    cuda = native.of(HOPPER)
    assert cuda is not None

    def takes(elements: float, each: float, *, zero_points: bool = False, batch: int = 64) -> bool:
        """Of so many elements an operator, and so many multiplications for each."""
        whole = round(30 * elements)
        return cuda.multiplies_bytes(HOPPER, native.ByteWork(each * whole, whole, 0, 30, batch, zero_points))

    assert takes(4e5, 50, zero_points=True) and not takes(3e5, 50, zero_points=True)
    assert takes(4e6, 80, zero_points=True) and not takes(2e6, 80, zero_points=True)
    assert takes(3e5, 30) and not takes(1.5e5, 30)
    assert takes(1.5e5, 80) and not takes(5e4, 80)
    assert takes(1.5e5, 30, batch=1), "many for one image"
