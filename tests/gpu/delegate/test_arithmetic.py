"""Which arithmetic 8-bit tensors get: what is asked for, or the faster by the estimate, and what the report says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu import GpuDelegate, GpuDelegateOptions
from litegpu.delegates.protocol import Partition
from litegpu.errors import OptionError
from litegpu.gpu.delegate.arithmetic import choose
from litegpu.gpu.kernels import native
from litegpu.gpu.lang.features import Features
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType

INT8 = TensorType.INT8


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

    def multiplies_bytes(self, features: Features, products: float, elements: int) -> bool:
        assert (products, elements) == (2 * 4096, 2)
        return self.of_bytes


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


def test_auto_stays_with_floats_where_weights_have_a_zero_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no native kernels for them."""
    monkeypatch.setattr(native, "of", lambda features: Own(True))
    features = Features(byte_products=True, native="x")
    assert choose("auto", partition(layer()), features, True).integer
    assert not choose("auto", partition(layer(weights_zero_point=3)), features, True).integer


def test_auto_stays_with_floats_where_an_op_is_not_known() -> None:
    found = choose("auto", partition(layer("L2_NORMALIZATION")), Features(byte_products=True), False)
    assert not found.integer and "node 0 (L2_NORMALIZATION)" in found.why


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
