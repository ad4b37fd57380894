"""Custom operators that the official runtime lacks, in NumPy: which are taken, and in what types results come."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import litegpu
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.protocol import Partition
from litegpu.gpu import custom
from litegpu.gpu.delegate.missing_ops import ReferenceDelegate, ReferenceKernel, for_missing_ops
from litegpu.model import ModelBuilder, TensorType, read_model
from litegpu.model.types import Model

F = TensorType.FLOAT32


def pooling(*, read: bool = True, beside: str = "") -> Model:
    """2x2 windows with the places of their greatest elements; `beside` is a custom operator on the same input."""
    b = ModelBuilder()
    x = b.input("x", (1, 4, 4, 1))
    options = struct.pack("<5i", 2, 2, 2, 2, 2) + bytes(40)
    highest, places = b.custom("MaxPoolingWithArgmax2D", [x], [((1, 2, 2, 1), F)] * 2, options)
    if read:
        b.output(highest, places)
    if beside:
        b.output(*b.custom(beside, [x], [((1, 4, 4, 1), F)]))
    if not read:
        b.output(b.op("ABS", [x], (1, 4, 4, 1)))
    return read_model(b.build())


@pytest.mark.parametrize("alone", [True, False])
def test_places_in_windows_are_litegpu_s_own_beside_delegates(alone: bool) -> None:
    """The official runtime has the operator, but writes places that a GPU partition would take for others."""
    found = for_missing_ops(pooling(), OfficialOptions(), alone=alone)
    assert bool(found) is not alone
    model = pooling()
    for delegate in found:
        assert delegate.check(model, model.main, model.main.operators[0]) is None


def test_what_nothing_reads_is_left_out() -> None:
    for read in (True, False):
        model = pooling(read=read)
        reason = ReferenceDelegate().check(model, model.main, model.main.operators[0])
        assert reason == (None if read else "Nothing reads what it computes.")


def test_builtin_operators_and_unknown_ones_are_not_taken() -> None:
    model = pooling(read=False, beside="Unknown")
    delegate = ReferenceDelegate()
    assert all(delegate.check(model, model.main, o) is not None for o in model.main.operators)
    named = ReferenceDelegate(frozenset({"Other"}))
    assert named.check(pooling(), pooling().main, pooling().main.operators[0]) is not None


def test_results_have_the_tensors_types() -> None:
    model = pooling()
    main = model.main
    part = Partition(model, main, main.operators, tuple(main.inputs), tuple(main.outputs))
    kernel = ReferenceDelegate().prepare(part)
    assert isinstance(kernel, ReferenceKernel)
    x = np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1)
    highest, places = kernel.invoke([x])
    np.testing.assert_array_equal(highest.ravel(), [5, 7, 13, 15])
    for result in (highest, places):
        assert result.dtype == np.float32 and result.shape == (1, 2, 2, 1) and result.flags.c_contiguous


def test_between_parts_on_the_cpu_it_runs_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing keeps arrays of the official runtime's, which does not run while somebody has one."""
    kept = []

    def reference(op: object, x: np.ndarray) -> np.ndarray:
        kept.append(x)
        return x + 1

    monkeypatch.setattr(custom.registration, "_REGISTERED", {})
    custom.register_op("Increment", lambda op, thread: None, reference=reference)
    b, shape = ModelBuilder(), (1, 5, 2)
    points, matrix = b.op("ABS", [b.input("points", shape)], shape), b.op("ABS", [b.input("m", (1, 4, 4))], (1, 4, 4))
    (moved,) = b.custom("TransformLandmarks", [points, matrix], [(shape, F)], version=2)
    (more,) = b.custom("Increment", [b.op("NEG", [moved], shape)], [(shape, F)])
    b.output(b.op("ABS", [more], shape))
    interpreter = litegpu.Interpreter(model_content=b.build())
    interpreter.allocate_tensors()
    for seed in range(4):
        x = np.random.default_rng(seed).random(shape).astype(np.float32)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
        interpreter.set_tensor(interpreter.get_input_details()[1]["index"], np.eye(4, dtype=np.float32)[None])
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_allclose(found, abs(1 - x), rtol=1e-6)
    assert len(kept) == 4


def test_results_have_the_tensors_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom.registration, "_REGISTERED", {})
    custom.register_op("Sum", lambda op, thread: None, reference=lambda op, x: x.sum(-1))
    b = ModelBuilder()
    b.output(*b.custom("Sum", [b.input("x", (2, 3, 4))], [((2, 3), F)]))
    model = read_model(b.build())
    part = Partition(model, model.main, model.main.operators, tuple(model.main.inputs), tuple(model.main.outputs))
    (found,) = ReferenceDelegate().prepare(part).invoke([np.ones((2, 3, 4), np.float32)])
    assert found.shape == (2, 3) and (found == 4).all()
