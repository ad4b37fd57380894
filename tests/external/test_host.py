"""The official interpreter runs parts of its graph by litegpu, and the rest as ever."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from interrupts import Interruptions

import litegpu
from litegpu.external.kernel import HostKernel
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

SHAPE = (1, 3, 4)
X = np.arange(-6, 6, dtype=np.float32).reshape(SHAPE)

Opened = Callable[..., Any]


def network(shape: Sequence[int] = SHAPE) -> bytes:
    """1 - |x|, and 2 x."""
    b = ModelBuilder()
    x = b.input("x", shape, shape_signature=(-1, *shape[1:]))
    one = b.constant(np.ones(1, np.float32), "one")
    total = b.op("ADD", [b.op("NEG", [b.op("ABS", [x], shape)], shape), one], shape, name="sum")
    double = b.op("MUL", [x, b.constant(np.full(1, 2, np.float32), "two")], shape, name="double")
    b.output(total, double)
    b.signature("both", {"x": x}, {"sum": total, "double": double})
    return b.build()


def right(x: np.ndarray) -> list[np.ndarray]:
    return [1 - np.abs(x), 2 * x]


def results(interpreter: Any, x: np.ndarray = X) -> list[np.ndarray]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def require_right(interpreter: Any, x: np.ndarray = X) -> None:
    for found, known in zip(results(interpreter, x), right(x), strict=True):
        np.testing.assert_array_equal(found, known)


# ---------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_a_model_by_path_and_by_its_bytes(opened: Opened, tmp_path: Path, kind: str) -> None:
    (tmp_path / "m.tflite").write_bytes(network())
    interpreter = opened(tmp_path / "m.tflite" if kind == "path" else network(), fallback="strict")
    for shift in range(3):
        require_right(interpreter, X + shift)


def test_the_rest_runs_on_the_cpu(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    for options in (
        {"first_delegate_node_index": "1", "last_delegate_node_index": "1"},
        {"first_delegate_node_index": "2"},
        {"max_delegated_partitions": "0", "last_delegate_node_index": "0"},
        {"min_nodes_per_partition": "9"},
    ):
        require_right(opened(network(), **options))
    assert "1/4 ops on GPU in 1 partition" in caplog.text


@pytest.fixture
def without_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU does not take SQUARE."""
    check = GpuDelegate.check
    monkeypatch.setattr(
        GpuDelegate, "check", lambda self, m, s, o: "not here" if o.name == "SQUARE" else check(self, m, s, o)
    )


def test_partitions_between_operators_of_the_cpu(
    opened: Opened, without_squares: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Values go from one to the other and back, and an output is read by both."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    first = b.op("ABS", [x], SHAPE)
    middle = b.op("SQUARE", [first], SHAPE)
    b.output(first, b.op("NEG", [middle], SHAPE), b.op("ADD", [first, middle], SHAPE))
    interpreter = opened(b.build(), max_delegated_partitions="0")
    assert "3/4 ops on GPU in 2 partitions" in caplog.text
    known = Interpreter(model_content=b.build())
    known.allocate_tensors()
    for shift in range(3):
        for found, expected in zip(results(interpreter, X + shift), results(known, X + shift), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_widened_constant_that_both_sides_read(opened: Opened) -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    half = b.op("DEQUANTIZE", [b.constant(np.full(4, 0.5, np.float16), "half")], (4,), type=TensorType.FLOAT32)
    product = b.op("MUL", [x, half], SHAPE)
    b.output(b.op("ADD", [product, half], SHAPE))
    for last in ("1", "2"):
        interpreter = opened(b.build(), last_delegate_node_index=last)
        for _ in range(2):
            np.testing.assert_array_equal(results(interpreter)[0], X * 0.5 + 0.5)


def test_sizes_that_follow_from_shapes(opened: Opened) -> None:
    """The official runtime computes them; the GPU takes them for constants, and must still give those that are read."""
    b = ModelBuilder()
    x = b.input("x", SHAPE, shape_signature=(-1, 3, 4))
    shape = b.op("SHAPE", [x], (3,), {"out_type": "INT32"}, type=TensorType.INT32)
    flat = b.op("RESHAPE", [x, b.constant(np.array([-1, 12], np.int32))], (1, 12))
    b.output(shape, b.op("RESHAPE", [b.op("NEG", [flat], (1, 12)), shape], SHAPE))
    for options in ({}, {"max_delegated_partitions": "0"}):
        interpreter = opened(b.build(), **options)
        for batch in (1, 2, 3):
            interpreter.resize_tensor_input(0, (batch, 3, 4))
            interpreter.allocate_tensors()
            x_ = np.repeat(X, batch, 0)
            found = results(interpreter, x_)
            np.testing.assert_array_equal(found[0], (batch, 3, 4))
            np.testing.assert_array_equal(found[1], -x_)


@pytest.mark.parametrize("last", ["9", "1"])
@pytest.mark.parametrize("resolver", ["AUTO", "BUILTIN_WITHOUT_DEFAULT_DELEGATES"])
def test_another_shape(delegate: Callable[..., Any], resolver: str, last: str) -> None:
    """Where XNNPACK runs the rest the runtime undoes all delegates and asks again; else it only prepares nodes anew."""
    interpreter = Interpreter(
        model_content=network(),
        experimental_delegates=[delegate(last_delegate_node_index=last)],
        experimental_op_resolver_type=OpResolverType[resolver],
    )
    interpreter.allocate_tensors()
    require_right(interpreter)
    for batch in (2, 5, 1):
        interpreter.resize_tensor_input(0, (batch, *SHAPE[1:]))
        interpreter.allocate_tensors()
        require_right(interpreter, np.repeat(X, batch, 0) + batch)
        interpreter.allocate_tensors()  # once more, in vain
        require_right(interpreter, np.repeat(X, batch, 0) - batch)


def test_signatures(opened: Opened) -> None:
    runner = opened(network()).get_signature_runner("both")
    for batch in (1, 3, 1):
        x = np.repeat(X, batch, 0) + batch
        found = runner(x=x)
        np.testing.assert_array_equal(found["sum"], right(x)[0])
        np.testing.assert_array_equal(found["double"], right(x)[1])


def test_a_shape_that_the_delegate_does_not_take_runs_on_the_cpu(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interpreter = opened(network())
    strict = opened(network(), fallback="strict")
    monkeypatch.setattr(GpuDelegate, "prepare", lambda *_: 1 / 0)
    interpreter.resize_tensor_input(0, (2, *SHAPE[1:]))
    interpreter.allocate_tensors()
    for shift in range(3):
        require_right(interpreter, np.repeat(X, 2, 0) + shift)
    assert "In these shapes 4 nodes run on the CPU" in caplog.text
    strict.resize_tensor_input(0, (2, *SHAPE[1:]))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        strict.allocate_tensors()


def test_variables_stay_with_the_runtime(opened: Opened) -> None:
    """Which resets them."""
    b = ModelBuilder()
    x = b.input("x", (1, 2, 3))
    constant = partial(np.full, fill_value=0.5, dtype=np.float32)
    inputs: list[int | None] = [
        x,
        *(b.constant(constant((2, 3))) for _ in range(4)),
        *(b.constant(constant((2, 2))) for _ in range(4)),
    ]
    inputs += [None] * 3 + [b.constant(constant(2)) for _ in range(4)] + [None] * 2
    inputs += [b.variable("output", (1, 2)), b.variable("cell", (1, 2))]
    layer = b.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (1, 2, 2), {"fused_activation_function": "TANH"})
    b.output(b.op("NEG", [layer], (1, 2, 2)))
    ours = litegpu.Interpreter(model_content=b.build(), experimental_delegates=[GpuDelegate(backend="reference")])
    assert ours.preview_delegation().fully_delegated  # which keeps them
    interpreter = opened(b.build())
    known = Interpreter(model_content=b.build())
    known.allocate_tensors()
    ones = np.ones((1, 2, 3), np.float32)
    found = []
    for _ in range(2):
        for _ in range(3):
            found.append(results(interpreter, ones)[0])
            np.testing.assert_allclose(found[-1], results(known, ones)[0], rtol=1e-5)
        interpreter.reset_all_variables()
        known.reset_all_variables()
    np.testing.assert_array_equal(found[0], found[3])
    assert (found[0] != found[1]).any()


def test_types_without_floats(opened: Opened) -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    small = b.op("LESS", [x, b.constant(np.zeros(1, np.float32))], SHAPE, type=TensorType.BOOL)
    b.output(b.op("LOGICAL_NOT", [small], SHAPE, type=TensorType.BOOL), b.op("ARG_MAX", [x, b.constant(np.int32(2))],
             (1, 3), {"output_type": "INT32"}, type=TensorType.INT32))  # fmt: skip
    found = results(opened(b.build(), max_delegated_partitions="0"))
    np.testing.assert_array_equal(found[0], X >= 0)
    np.testing.assert_array_equal(found[1], X.argmax(2))
    assert [array.dtype.name for array in found] == ["bool", "int32"]


def test_two_delegates_one_after_the_other(delegate: Callable[..., Any]) -> None:
    """The second takes what the first has left."""
    two = [delegate(last_delegate_node_index="0"), delegate(first_delegate_node_index="1")]
    interpreter = Interpreter(model_content=network(), experimental_delegates=two)
    interpreter.allocate_tensors()
    require_right(interpreter)
    interpreter.resize_tensor_input(0, (2, *SHAPE[1:]))
    interpreter.allocate_tensors()
    require_right(interpreter, np.repeat(X, 2, 0))


def test_every_tensor_preserved(delegate: Callable[..., Any]) -> None:
    """Each node is a partition then."""
    with pytest.warns(UserWarning, match="preserve"):
        interpreter = Interpreter(
            model_content=network(),
            experimental_delegates=[delegate(max_delegated_partitions="0")],
            experimental_preserve_all_tensors=True,
        )
    interpreter.allocate_tensors()
    require_right(interpreter)


def require(backend: str) -> None:
    """Skip the calling test where the backend has no device."""
    if backend == "webgpu":
        require_gpu()
        return
    try:
        GpuDelegate(backend=backend).open_device()
    except litegpu.DeviceError as error:
        pytest.skip(str(error))


def require_same(interpreter: Any, model: Path, backend: str) -> None:
    """As litegpu.Interpreter's results, to the bit."""
    with litegpu.Interpreter(model, experimental_delegates=[litegpu.GpuDelegate(backend=backend)]) as ours:
        ours.allocate_tensors()
        for seed in (0, 1):
            for one in (interpreter, ours):
                random = np.random.default_rng(seed)
                for detail in one.get_input_details():  # what is not set is anything
                    x = random.uniform(0, 100, detail["shape"]).astype(detail["dtype"])
                    one.set_tensor(detail["index"], x)
                one.invoke()
            for detail in ours.get_output_details():
                np.testing.assert_array_equal(interpreter.get_tensor(detail["index"]), ours.get_tensor(detail["index"]))


@pytest.mark.parametrize("name", ["kws_ref_model.tflite", "ad01_fp32.tflite", "ssd_mobilenet_v1_coco_quant.tflite"])
def test_real_models(opened: Opened, models_dir: Path, name: str) -> None:
    require("webgpu")
    require_same(opened(models_dir / name, backend="webgpu"), models_dir / name, "webgpu")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("backend", ["webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_all_real_models(opened: Opened, models_dir: Path, backend: str, part: int) -> None:
    """In parts, which may run beside each other."""
    require(backend)
    models = [path for path in sorted(models_dir.glob("*.tflite")) if path.name != "malformed.tflite"]
    assert len(models) > 20
    for model in models[part::4]:
        require_same(opened(model, backend=backend), model, backend)


@pytest.mark.cuda
def test_cuda(opened: Opened) -> None:
    """Whose inputs are set in the memory that the GPU copies from."""
    require("cuda")
    interpreter = opened(network(), backend="cuda", fallback="strict")
    for batch in (1, 3, 1):
        interpreter.resize_tensor_input(0, (batch, *SHAPE[1:]))
        interpreter.allocate_tensors()
        for shift in range(4):
            require_right(interpreter, np.repeat(X, batch, 0) + shift)


# ------------------------------------------------------------------------------------------------------- lent memory


class Lending:
    """A kernel with memory of its own for its input, which it does not read until it runs."""

    uses_gpu = False

    def __init__(self, partition: Any) -> None:
        self.shape = partition.subgraph.tensors[partition.inputs[0]].shape
        self.memory = np.zeros(self.shape, np.float32)
        self.outputs = [np.zeros(self.shape, np.float32) for _ in partition.outputs]
        self.given: list[bool] = []
        self.failing = False

    def input_memory(self, i: int) -> np.ndarray:
        return self.memory

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self.given.append(inputs[0] is self.memory)
        if self.failing:
            raise litegpu.InvokeError("this inference fails")
        for output, value in zip(self.outputs, right(inputs[0]), strict=True):
            output[...] = value
        return self.outputs

    def close(self) -> None:
        self.memory.fill(np.nan)
        for output in self.outputs:
            output.fill(np.nan)


@pytest.fixture
def lending(monkeypatch: pytest.MonkeyPatch) -> list[Lending]:
    made: list[Lending] = []

    def prepare(_: object, partition: Any) -> Lending:
        made.append(Lending(partition))
        return made[-1]

    monkeypatch.setattr(GpuDelegate, "prepare", prepare)
    return made


def test_nothing_is_copied(opened: Opened, lending: list[Lending]) -> None:
    """Inputs are set where the kernel reads them, outputs read where it writes them."""
    interpreter = opened(network())
    for shift in range(4):
        require_right(interpreter, X + shift)
    (kernel,) = lending
    assert kernel.given == [True] * 4
    address = interpreter.tensor(0)().__array_interface__["data"][0]
    assert address == kernel.memory.__array_interface__["data"][0]
    output = interpreter.get_output_details()[0]["index"]
    assert (
        interpreter.tensor(output)().__array_interface__["data"][0] == kernel.outputs[0].__array_interface__["data"][0]
    )


def test_memory_is_the_runtimes_again_afterwards(opened: Opened, lending: list[Lending]) -> None:
    interpreter = opened(network())
    require_right(interpreter)
    interpreter.allocate_tensors()
    require_right(interpreter, X + 1)
    interpreter.resize_tensor_input(0, (2, *SHAPE[1:]))
    interpreter.allocate_tensors()
    require_right(interpreter, np.repeat(X, 2, 0))
    require_right(interpreter, np.repeat(X, 2, 0) + 3)
    interpreter.resize_tensor_input(0, SHAPE)
    gc.collect()
    interpreter.allocate_tensors()
    require_right(interpreter, X - 1)


def test_a_second_delegate_that_fails(opened: Opened, delegate: Callable[..., Any], lending: list[Lending]) -> None:
    """The runtime then gives up the first as well, and nothing points at the memory of that."""
    interpreter = opened(network())
    require_right(interpreter)
    second = delegate(fallback="strict")
    with pytest.raises(RuntimeError, match="strict"):
        interpreter._interpreter.ModifyGraphWithDelegate(second._get_native_delegate_pointer())
    (kernel,) = lending
    assert np.isnan(kernel.memory).all(), "it is closed"
    lent = {array.__array_interface__["data"][0] for array in (kernel.memory, *kernel.outputs)}
    interpreter.allocate_tensors()
    require_right(interpreter, X + 1)
    for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        assert interpreter.tensor(detail["index"])().__array_interface__["data"][0] not in lent
    del interpreter, second


def test_two_partitions_that_read_an_input(
    opened: Opened, without_squares: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither keeps it."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    middle = b.op("SQUARE", [b.op("ABS", [x], SHAPE)], SHAPE)
    b.output(b.op("ADD", [middle, x], SHAPE))
    asked: list[int] = []
    monkeypatch.setattr(GpuKernel, "input_memory", lambda _, i: asked.append(i))
    interpreter = opened(b.build(), max_delegated_partitions="0")
    for shift in range(2):
        np.testing.assert_array_equal(results(interpreter, X + shift)[0], (X + shift) ** 2 + X + shift)
    assert asked == []
    for shift in range(2):
        require_right(opened(network()), X + shift)
    assert asked == [0, 0]


# ------------------------------------------------------------------------------------------------ errors, interruptions


def test_an_inference_that_fails(opened: Opened, lending: list[Lending]) -> None:
    interpreter = opened(network())
    require_right(interpreter)
    lending[0].failing = True
    with pytest.raises(RuntimeError, match=r"litegpu: InvokeError: this inference fails"):
        interpreter.invoke()
    lending[0].failing = False
    require_right(interpreter, X + 1)


def test_what_cannot_be_prepared_runs_on_the_cpu(
    opened: Opened, delegate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(GpuDelegate, "prepare", lambda *_: 1 / 0)
    interpreter = opened(network())
    require_right(interpreter)
    assert "failed to prepare" in caplog.text
    with pytest.raises(RuntimeError, match="strict"):
        Interpreter(model_content=network(), experimental_delegates=[delegate(fallback="strict")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precison": "float16"}, "did you mean 'precision'"),
        ({"precision": "float17"}, "float17"),
        ({"validation": "maybe"}, "validation is 'maybe'; it must be 1 or 0, true or false"),
        ({"max_delegated_partitions": "two"}, "must be a whole number"),
        ({"wait_type": "never"}, "wait_type is 'never'"),
        ({"calibration": "[]"}, "cannot be passed as a text"),
        ({"fallback": "loud"}, "fallback is 'loud'"),
    ],
)
def test_wrong_options(delegate: Callable[..., Any], options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        delegate(**options)


def test_options_as_texts(path: str) -> None:
    from litegpu.external.options import parsed

    texts = {
        "precision_loss_allowed": "True", "wait_type": "WaitType.DO_NOT_WAIT", "inference_preference": "1",
        "inference_priority1": "MIN_LATENCY", "experimental_flags": "1", "quantization_enabled": "0",
        "max_delegated_partitions": "3", "device": "None", "tuning": "fast", "backend": "reference",
        "model_path": "m.tflite", "fallback": "silent",
    }  # fmt: skip
    found = parsed(texts)
    options = litegpu.GpuDelegateOptions(
        precision_loss_allowed=True, wait_type=litegpu.WaitType.DO_NOT_WAIT, quantization_enabled=False,
        inference_preference=litegpu.InferencePreference.SUSTAINED_SPEED,
        inference_priority1=litegpu.InferencePriority.MIN_LATENCY,
        max_delegated_partitions=3, tuning="fast", backend="reference",
    )  # fmt: skip
    assert (found.delegate.options, found.model_path, found.fallback) == (options, "m.tflite", "silent")


def test_without_waiting(opened: Opened) -> None:
    """The runtime's next operator reads the results at once."""
    interpreter = opened(network(), wait_type="do_not_wait", last_delegate_node_index="1")
    for shift in range(3):
        require_right(interpreter, X + shift)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_in_an_inference(opened: Opened) -> None:
    interpreter = opened(network())
    require_right(interpreter)
    counted = Interruptions()
    counted.during(interpreter.invoke)
    assert counted.count > 10
    for place in range(1, counted.count + 1, max(1, counted.count // 40)):
        one = Interruptions(place)
        with pytest.raises(KeyboardInterrupt):
            one.during(interpreter.invoke)
            for _ in range(1000):
                pass  # at the latest here
        require_right(interpreter, X + place)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_while_the_graph_is_divided(opened: Opened) -> None:
    opened(network())  # what the first one alone does, once for the process, is not counted
    counted = Interruptions()
    counted.during(lambda: opened(network()))
    for place in range(1, counted.count + 1, max(1, counted.count // 24)):
        with pytest.raises(KeyboardInterrupt):
            Interruptions(place).during(lambda: opened(network()))
            for _ in range(1000):
                pass
        require_right(opened(network()), X + place)


def test_a_signal_handler_that_raises(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a real Ctrl-C, in the middle of an inference."""

    class Interrupting(Lending):
        def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            signal.raise_signal(signal.SIGINT)
            return super().invoke(inputs)

    monkeypatch.setattr(GpuDelegate, "prepare", lambda _, partition: Interrupting(partition))
    interpreter = opened(network())
    with pytest.raises(KeyboardInterrupt):
        try:
            interpreter.invoke()
        except RuntimeError as error:
            assert "litegpu: it was interrupted" in str(error)
            for _ in range(1000):
                pass  # at the latest here


def test_ctrl_c_is_not_lost_in_a_finalizer(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the garbage collector runs one while the runtime returns."""

    class Interrupting(Lending):
        def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            raise KeyboardInterrupt

    class Last:
        def __del__(self) -> None:
            with pytest.raises(RuntimeError, match="interrupted"):
                interpreter.invoke()
            finalized.append(True)

    finalized: list[bool] = []
    monkeypatch.setattr(GpuDelegate, "prepare", lambda _, partition: Interrupting(partition))
    interpreter = opened(network())
    last = Last()
    with pytest.raises(KeyboardInterrupt):
        del last
        for _ in range(1000):
            pass  # at the latest here
    assert finalized


# ------------------------------------------------------------------------------------------------------------ lifetimes


@pytest.mark.parametrize("order", ["delegate first", "interpreter first", "interpreter of two"])
def test_any_order_of_destruction(delegate: Callable[..., Any], order: str) -> None:
    for _ in range(2):
        one = delegate()
        first = Interpreter(model_content=network(), experimental_delegates=[one])
        second = Interpreter(model_content=network(), experimental_delegates=[one])
        for interpreter in (first, second):
            interpreter.allocate_tensors()
            require_right(interpreter)
        if order == "delegate first":
            del one
            gc.collect()
            require_right(first, X + 1)
        elif order == "interpreter of two":
            del first
            gc.collect()
            require_right(second, X + 1)
            first = second
        view = first.tensor(0)()
        del interpreter, first, second
        gc.collect()
        view[...] = 0  # the memory is the interpreter's, which the view keeps
        del view


def test_nothing_is_left(opened: Opened) -> None:
    gc.collect()
    before = sum(isinstance(thing, HostKernel) for thing in gc.get_objects())
    for _ in range(3):
        require_right(opened(network()))
    gc.collect()
    assert sum(isinstance(thing, HostKernel) for thing in gc.get_objects()) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_while_a_delegate_is_made(delegate: Callable[..., Any]) -> None:
    """Anywhere: the official loader has a callback of its own, which must not swallow it."""
    counted = Interruptions()
    counted.during(delegate)
    assert counted.count > 10
    for place in range(1, counted.count + 1):
        with pytest.raises(KeyboardInterrupt):
            Interruptions(place).during(delegate)
            for _ in range(1000):
                pass
    assert delegate() is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nothing_is_left_of_what_was_interrupted(opened: Opened, lending: list[Lending]) -> None:
    opened(network())  # what the first one alone does, once for the process, is not counted
    counted = Interruptions()
    counted.during(lambda: opened(network()))
    for place in range(1, counted.count + 1, max(1, counted.count // 24)):
        with pytest.raises(KeyboardInterrupt):
            Interruptions(place).during(lambda: opened(network()))
            for _ in range(1000):
                pass
    gc.collect()
    assert all(np.isnan(kernel.memory).all() for kernel in lending), "all are closed"


def test_threads(delegate: Callable[..., Any]) -> None:
    """Each with an interpreter of its own, some with one delegate."""
    shared, failures = delegate(), []

    def work(seed: int) -> None:
        try:
            for round_ in range(3):
                own = shared if seed % 2 else delegate()
                interpreter = Interpreter(model_content=network(), experimental_delegates=[own])
                interpreter.allocate_tensors()
                for i in range(3):
                    require_right(interpreter, X + seed + round_ + i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def child(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **variables}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=200, check=False, env=environment,
    )  # fmt: skip


PRELUDE = """
import atexit, os, sys
import numpy as np, litegpu
from ai_edge_litert.interpreter import Interpreter, load_delegate
sys.path.insert(0, {folder!r})
from test_host import X, network, require_right
path = litegpu.external_delegate_path()
"""


def test_the_end_of_python(path: str) -> None:
    """Interpreters that nobody has closed, and one that atexit still runs."""
    done = child(
        PRELUDE.format(folder=str(Path(__file__).parent))
        + """
kept = []
def late():
    require_right(kept[0])
    print("late")
atexit.register(late)
for _ in range(2):
    delegate = load_delegate(path, {"backend": "reference"})
    kept.append(Interpreter(model_content=network(), experimental_delegates=[delegate]))
    kept[-1].allocate_tensors()
    require_right(kept[-1])
sys.kept = kept
"""
    )
    assert (done.returncode, done.stdout.split()) == (0, ["late"]), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork(path: str) -> None:
    """After the GPU was used, an error in the child; the reference backend needs no GPU, and goes on."""
    code = (
        PRELUDE.format(folder=str(Path(__file__).parent))
        + """
from litegpu import fork
delegate = load_delegate(path, {"backend": "reference"})
interpreter = Interpreter(model_content=network(), experimental_delegates=[delegate])
interpreter.allocate_tensors()
require_right(interpreter)
if USED:
    fork.gpu_is_used()
pid = os.fork()
if pid == 0:
    status = 1
    try:
        require_right(interpreter, X + 1)
        print("right", flush=True)
        status = 0
    except RuntimeError as error:
        print(error, flush=True)
        status = 0
    os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
require_right(interpreter, X + 2)
"""
    )
    free, used = child(code.replace("USED", "False")), child(code.replace("USED", "True"))
    assert (free.returncode, free.stdout.strip()) == (0, "right"), free.stderr
    assert used.returncode == 0, used.stderr
    assert "litegpu: ForkError: this process was forked" in used.stdout
