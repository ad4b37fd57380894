"""Mistakes in the user's own operators and delegates: the error names the operator, the function and the line."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu

import litegpu
from litegpu import DelegateError, GpuDelegate, Interpreter, InvokeError, OptionError, TensorError
from litegpu.errors import DelegateTypeError
from litegpu.gpu import custom
from litegpu.gpu.lang import f32
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

SHAPE = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    before = dict(custom.registration._REGISTERED)
    yield
    custom.registration._REGISTERED.clear()
    custom.registration._REGISTERED.update(before)


def mixture(second: tuple[int, ...] = SHAPE) -> bytes:
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", second)
    (z,) = b.custom("Mix", [b.op("NEG", [x], SHAPE), y], [(SHAPE, TensorType.FLOAT32)], b"")
    b.output(z)
    return b.build()


def add(op: Any, t: Any) -> Any:
    return t.here(0) + t.here(1)


def reference(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x + y


def on_gpu(content: bytes, fallback: str = "strict") -> Interpreter:
    require_gpu()
    interpreter = Interpreter(
        model_content=content, experimental_delegates=[GpuDelegate(backend="webgpu")], fallback=fallback
    )
    interpreter.allocate_tensors()
    return interpreter


# ------------------------------------------------------------------------------------------------ what kernels read


@pytest.mark.parametrize("second", [SHAPE, (1, 1, 1, 4), (1, 2, 1, 1), (1, 1, 1, 1), (4,), (3, 4)])
def test_here_broadcasts_as_numpy_does(second: tuple[int, ...]) -> None:
    litegpu.register_op("Mix", add, reference=reference)
    interpreter = on_gpu(mixture(second))
    values = [np.random.default_rng(i).normal(size=s).astype(np.float32) for i, s in enumerate((SHAPE, second))]
    for detail, value in zip(interpreter.get_input_details(), values, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(found, values[1] - values[0], rtol=1e-6)


@pytest.mark.parametrize(
    "kernel, second, text",
    [
        (add, (1, 2, 5, 4), r"here\(1\): input 1 is \[1, 2, 5, 4\] .* and the output \[1, 2, 3, 4\]"),
        (add, (1, 2, 2, 4), r"here\(1\): input 1 is"),
        (add, (1, 2, 3, 8), r"here\(1\): input 1 is"),
        (add, (1, 2, 3, 3), r"here\(1\): input 1 is"),
        (add, (2, 2, 3, 4), r"here\(1\): input 1 is"),
        (lambda op, t: t.inputs[1].quad(t.b, t.y, t.x, t.q), (1, 2, 2, 4), r"x is the thread's own .* up to 2"),
        (lambda op, t: t.inputs[1].quad(t.b, t.y, t.x, t.q), (1, 1, 3, 4), r"y is the thread's own .* up to 1"),
        (lambda op, t: t.inputs[1].quad(t.b, t.x, t.y, t.q), SHAPE, r"y is the thread's own .* up to 2"),
        (lambda op, t: t.inputs[1].quad(0, 2, 0, 0), SHAPE, r"quad\(b, y, x, q\): y is 2, but input 1 is"),
        (lambda op, t: t.inputs[1].quad(0, 0, 0, 1), SHAPE, r"q is 1, but"),
        (lambda op, t: t.inputs[1].quad(-1, 0, 0, 0), SHAPE, r"b is -1"),
        (lambda op, t: t.k.splat(t.inputs[1].at(0, 0, 0, 4), 4), SHAPE, r"at\(b, y, x, c\): c is 4"),
        (lambda op, t: t.k.splat(t.inputs[1].at(0, 0, 1.5, 0), 4), SHAPE, r"x is 1.5: a coordinate is"),
        (lambda op, t: t.inputs[1].quad(t.b, t.y, t.k.const(1.0, f32), t.q), SHAPE, r"x is of type f32"),
        (lambda op, t: t.here(2), SHAPE, r"no input 2: the operator has 2"),
        (lambda op, t: t.here(-1), SHAPE, r"no input -1"),
        (lambda op, t: t.shape(7), SHAPE, r"no input 7"),
        (lambda op, t: t.here(0) / (1 // 0), SHAPE, r"operator 1 Mix: ZeroDivisionError: .*test_blame.py, line"),
        (lambda op, t: None + t.here(0), SHAPE, r"Mix: TypeError|KernelError"),
        (lambda op: None, SHAPE, r"kernel of operator 1 Mix: TypeError"),
    ],
)  # fmt: skip
def test_what_would_read_elsewhere_is_refused(kernel: Any, second: tuple[int, ...], text: str) -> None:
    litegpu.register_op("Mix", kernel, reference=reference)
    with pytest.raises(DelegateError, match=text):
        on_gpu(mixture(second))


@pytest.mark.parametrize(
    "store, text",
    [
        (lambda g: g.store(0, 2, 0, 0, g.inputs[0].quad(0, 0, 0, 0)), r"store\(\): y is 2, but the output is"),
        (lambda g: g.store(0, 0, 0, 0, 1.0), "gave 1.0"),
        (lambda g: g.store(0, 0, 0, 0, g.inputs[0].at(0, 0, 0, 0)), "gave f32"),
        (lambda g: 1 // 0, r"kernel of operator 1 Mix: ZeroDivisionError"),
    ],
)
def test_kernels_that_divide_the_work(store: Any, text: str) -> None:
    litegpu.register_op("Mix", lambda op, g: store(g), grid=lambda op, shape, features: ((1, 1, 1), (1, 1, 1)))
    with pytest.raises(DelegateError, match=text):
        on_gpu(mixture())


@pytest.mark.parametrize("grid", [lambda op, shape, features: 1 // 0, lambda op, shape, features: 64])
def test_mistakes_in_grids(grid: Any) -> None:
    litegpu.register_op("Mix", lambda op, g: None, grid=grid)
    with pytest.raises(DelegateError, match="grid of operator 1 Mix"):
        on_gpu(mixture())


def test_mistakes_in_checks_and_references() -> None:
    def check(op: Any) -> str:
        raise ZeroDivisionError

    litegpu.register_op("Mix", add, check=check, reference=lambda op, x, y: x.nothing)
    interpreter = Interpreter(model_content=mixture(), experimental_delegates=[GpuDelegate()], fallback="silent")
    reason = interpreter.delegation_report().nodes[1].reason
    assert reason is not None and "check of operator 1 Mix: ZeroDivisionError" in reason and "test_blame.py" in reason
    interpreter = Interpreter(model_content=mixture())
    interpreter.allocate_tensors()
    with pytest.raises(InvokeError, match=r"reference of operator 1 Mix: AttributeError: .*test_blame.py, line \d+"):
        interpreter.invoke()


def test_unregistering_leaves_open_models_alone() -> None:
    require_gpu()
    litegpu.register_op("Mix", add, reference=reference)
    x = np.ones(SHAPE, np.float32)
    wide = np.ones((2, *SHAPE[1:]), np.float32)
    models = [litegpu.load(mixture(), device) for device in ("cpu", "webgpu")]
    litegpu.unregister_op("Mix")
    for model in models:
        before = model.report.delegated
        np.testing.assert_array_equal(model(x, 3 * x), 2 * x)
        with pytest.raises(
            TensorError, match="cannot be resized"
        ):  # as with the operator: its shapes are its own affair
            model(wide, 3 * wide)
        np.testing.assert_array_equal(model(x, 3 * x), 2 * x)
        assert model.report.delegated == before
    interpreter = Interpreter(model_content=mixture())
    with pytest.raises(InvokeError, match="Mix"):
        interpreter.allocate_tensors()


# ------------------------------------------------------------------------------------------------ delegates


def changed(numpy_delegate: Any, **methods: Any) -> Any:
    """The example delegate with other methods, of its own or of its kernels."""
    mine = {name: method for name, method in methods.items() if name in ("check", "prepare")}
    others = {name: method for name, method in methods.items() if name not in mine}

    class Kernel:
        def __init__(self, usual: Any) -> None:
            self._usual = usual
            for name, value in others.items():
                setattr(self, name, value)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._usual, name)

    class Delegate(numpy_delegate):
        def prepare(self, partition: Any) -> Any:
            return Kernel(super().prepare(partition))

    delegate = Delegate()
    for name, method in mine.items():
        setattr(delegate, name, method)
    return delegate


def summation() -> bytes:
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    b.output(b.op("ADD", [x, b.constant(np.ones(3, np.float32))], (1, 3)))
    return b.build()


def run(delegate: Any) -> Any:
    interpreter = Interpreter(model_content=summation(), experimental_delegates=[delegate], fallback="strict")
    interpreter.allocate_tensors()
    interpreter.invoke()
    return interpreter


@pytest.mark.parametrize(
    "methods, text",
    [
        ({"check": lambda *_: True}, r"Delegate NumPy: check\(\) of operator 0 ADD gave True; it must give None"),
        ({"check": lambda *_: False}, "gave False"),
        ({"check": lambda *_: 0}, "gave 0"),
        ({"check": lambda *_: 1 // 0}, r"check failed: ZeroDivisionError: .*test_blame.py, line \d+"),
        ({"prepare": lambda _: None}, r"prepare\(\) gave a NoneType without invoke and close\(\)"),
        ({"prepare": lambda _: 1 // 0}, r"ZeroDivisionError: .*test_blame.py, line \d+"),
        ({"invoke": lambda _: None}, r"invoke\(\) gave a NoneType; it must give a list"),
        ({"invoke": lambda _: np.zeros((1, 3), np.float32)}, r"invoke\(\) gave a ndarray"),
        ({"invoke": lambda _: [None]}, r"invoke\(\) gave a list of NoneType"),
        ({"invoke": lambda _: [1.0]}, r"a list of float"),
        ({"invoke": lambda _: []}, "gave 0 results for 1 outputs"),
        ({"invoke": lambda _: [np.zeros(2, np.float32)]}, r"gave float32 \[2\] for tensor"),
        ({"invoke": lambda _: 1 // 0}, r"failed to invoke: ZeroDivisionError: .*test_blame.py, line \d+.*nodes 0"),
        ({"invoke": 3}, r"without invoke\(\)"),
        ({"notes": "text"}, "notes are 'text'"),
        ({"input_memory": lambda i: 5}, r"input_memory\(\) gave 'int'"),
        ({"finish": lambda: 1 // 0}, r"failed to invoke: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_mistakes_in_delegates(numpy_delegate: Any, methods: dict[str, Any], text: str) -> None:
    with pytest.raises(DelegateError, match=text):
        run(changed(numpy_delegate, **methods)).get_tensor(0)


@pytest.mark.parametrize("name, value", [
    ("name", 3), ("max_delegated_partitions", "1"), ("min_nodes_per_partition", None), ("check", "x"), ("prepare", 1),
    ("first_delegate_node_index", 1.5), ("last_delegate_node_index", True),
])  # fmt: skip
def test_attributes_of_the_wrong_type(numpy_delegate: Any, name: str, value: Any) -> None:
    delegate = numpy_delegate()
    setattr(delegate, name, value)
    with pytest.raises(DelegateTypeError, match=name):
        Interpreter(model_content=summation(), experimental_delegates=[delegate])


def test_errors_while_closing_are_logged(numpy_delegate: Any, caplog: Any) -> None:
    """Not printed as "Exception ignored in", which says nothing of the delegate."""
    caplog.set_level(logging.WARNING, "litegpu")
    interpreter = run(changed(numpy_delegate, close=lambda: 1 // 0))
    interpreter.close()
    (record,) = caplog.records
    assert "Delegate NumPy failed to close a kernel: ZeroDivisionError" in record.getMessage()
    assert "test_blame.py, line" in record.getMessage()
    caplog.clear()
    interpreter = run(changed(numpy_delegate, close=lambda: 1 // 0))
    del interpreter
    gc.collect()
    assert len(caplog.records) == 1


def test_option_errors_of_checks_are_reasons() -> None:
    litegpu.register_op("Mix", add, check=lambda op: 5)  # type: ignore[arg-type,return-value]
    interpreter = Interpreter(model_content=mixture(), experimental_delegates=[GpuDelegate()], fallback="silent")
    assert "must give None, or the reason" in str(interpreter.delegation_report().nodes[1].reason)
    assert issubclass(OptionError, ValueError)
