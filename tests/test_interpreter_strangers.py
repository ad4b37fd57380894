"""What strangers do to an Interpreter: views that stay, interrupts at odd moments, failures, indices of other kinds."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agreement import on_gpu, require_gpu

import litegpu
from litegpu.delegates.plan import _Memory
from litegpu.errors import DelegateError, InvokeError, TensorError, WrongTypeError
from litegpu.interpreter import Interpreter
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

SHAPE = (1, 3)
Opened = Callable[..., Interpreter]


def network() -> bytes:
    """(x + 1) * y, and its negative."""
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    product = b.op("MUL", [b.op("ADD", [x, b.constant(np.ones(3, np.float32))], SHAPE), y], SHAPE)
    b.output(product)
    b.output(b.op("NEG", [product], SHAPE))
    return b.build()


@pytest.fixture(params=["cpu", "numpy", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def opened(request, numpy_delegate) -> Iterator[Opened]:
    """An allocated interpreter of a model, run each way."""
    made: list[Interpreter] = []
    if request.param == "webgpu":
        require_gpu()

    def open_(content: bytes) -> Interpreter:
        if request.param in ("webgpu", "cuda"):
            made.append(on_gpu(content, backend=request.param))
        else:
            delegates = [numpy_delegate()] if request.param == "numpy" else []
            made.append(Interpreter(model_content=content, experimental_delegates=delegates, fallback="silent"))
            made[-1].allocate_tensors()
        return made[-1]

    yield open_
    for one in made:
        one.close()


def full(value: float) -> np.ndarray:
    return np.full(SHAPE, value, np.float32)


def outputs(interpreter: Interpreter) -> list[int]:
    return [d["index"] for d in interpreter.get_output_details()]


def test_an_input_that_is_set_beside_a_view_of_a_result(opened: Opened) -> None:
    """It counts, whoever had the one before it."""
    one = opened(network())
    for value in (1, 5, 7):
        one.set_tensor(0, full(1))
        one.set_tensor(1, full(2))
        one.invoke()
        view = one.tensor(outputs(one)[0])()
        assert (view == 4).all()
        one.set_tensor(0, full(value))
        del view
        one.invoke()
        assert (one.get_tensor(outputs(one)[0]) == 2 * (value + 1)).all()
        assert (one.get_tensor(0) == value).all()


def test_what_is_written_to_a_view_of_a_result_is_read(opened: Opened) -> None:
    one = opened(network())
    index = outputs(one)[1]
    for attempt in range(2):
        one.set_tensor(0, full(1))
        one.set_tensor(1, full(1))
        one.invoke()
        if attempt == 0:
            one.get_tensor(index)  # so that it is expected to be asked for
    view = one.tensor(index)()
    view[...] = 9
    assert [one.get_tensor(index)[0, 0] for _ in range(2)] == [9, 9]


def test_a_view_whose_end_was_interrupted(opened: Opened) -> None:
    """As a weak reference's callback was: the reference stays, and stands for nothing."""
    one = opened(network())
    one.set_tensor(0, full(1))
    one.set_tensor(1, full(1))
    one.invoke()
    view = one.tensor(outputs(one)[0])()
    with pytest.raises(InvokeError, match="internal data"):
        one.invoke()
    del view
    if one.plan is not None:
        gone = _Memory(full(0))
        getattr(one.plan._views, "data").add(weakref.ref(gone))  # noqa: B009
        del gone
    one.invoke()
    assert (one.get_tensor(outputs(one)[0]) == 2).all()


@pytest.mark.parametrize("index", [0.0, "0", None, [0]])
def test_indices_are_whole_numbers(opened: Opened, index: Any) -> None:
    one = opened(network())
    for call in (
        lambda: one.set_tensor(index, full(1)),
        lambda: one.get_tensor(index),
        lambda: one.get_tensor(0, index),
        one.tensor(index),
    ):
        with pytest.raises(WrongTypeError):
            call()


def test_whole_numbers_of_every_kind_are_indices(opened: Opened) -> None:
    one = opened(network())
    indices: list[Any] = [0, np.int64(0), np.array(0), False]
    for index in indices:
        one.set_tensor(index, full(3))
        assert (one.get_tensor(index) == 3).all() and (one.tensor(index)() == 3).all()


def test_no_error_keeps_an_interpreter(opened: Opened) -> None:
    """Without the collection of cycles."""
    one = opened(network())
    index = outputs(one)[0]
    calls: list[Callable[[], object]] = [
        lambda: one.set_tensor(0, np.zeros((7, 7), np.float32)),
        lambda: one.set_tensor(0.5, full(1)),  # type: ignore[arg-type]
        lambda: one.get_tensor(999),
        lambda: one.tensor(999)(),
        lambda: one.resize_tensor_input(999, [1]),
        lambda: one.get_signature_runner("none"),
        lambda: one.invoke_async().result(),
    ]
    one.set_tensor(0, full(1))
    one.set_tensor(1, full(1))
    one.invoke()
    view = one.tensor(index)()
    for call in calls:
        gc.collect()
        gc.disable()
        try:
            mark, deadline = weakref.ref(refused(call)), time.monotonic() + 5
            while mark() is not None and time.monotonic() < deadline:
                time.sleep(0.01)  # the thread in the background has it for a moment
            assert mark() is None, call
        finally:
            gc.enable()
    del view


def refused(call: Callable[[], object]) -> BaseException:
    """What a call raises, without this function in its traceback."""
    try:
        call()
    except litegpu.LiteGpuError as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_read_that_fails_is_none(opened: Opened) -> None:
    """What a thread's inference gave is still to be read, and lost when another thread runs one."""
    one = opened(network())
    index = outputs(one)[0]
    one.set_tensor(0, full(1))
    one.set_tensor(1, full(1))
    one.invoke()
    with pytest.raises(TensorError):
        one.get_tensor(index, 1)

    def other() -> None:
        one.set_tensor(0, full(5))
        one.set_tensor(1, full(1))
        one.invoke()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with pytest.raises(InvokeError, match="is gone"):
        one.get_tensor(index)


def test_an_input_with_a_value_is_not_set_beside_a_view(opened: Opened) -> None:
    """As the graph is opened anew for it, and views would be of memory that nothing reads."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    c = b.constant(np.ones(SHAPE, np.float32))
    b.output(b.op("ADD", [x, c], SHAPE))
    b._inputs.append(c)
    one = opened(b.build())
    one.set_tensor(x, full(1))
    view = one.tensor(x)()
    with pytest.raises(InvokeError, match="internal data"):
        one.set_tensor(c, full(10))
    view[...] = 7
    del view
    one.set_tensor(c, full(10))
    one.set_tensor(x, full(7))
    one.invoke()
    assert (one.get_tensor(outputs(one)[0]) == 17).all()


@pytest.mark.parametrize("fallback", ["warn", "strict"])
def test_calls_without_rows(fallback: str, caplog: pytest.LogCaptureFixture) -> None:
    """Have results without rows, wherever the model runs; nothing is computed, so nothing was refused either."""
    require_gpu()
    with litegpu.load(network(), "webgpu", fallback=fallback) as model:
        for rows in (1, 0, 2, 0, 1):
            x = np.ones((rows, 3), np.float32)
            found = model(x, x)
            assert [(y.shape, float(abs(y).sum())) for y in found.values()] == [((rows, 3), 6.0 * rows)] * 2
            assert model.device == "webgpu" and model.report.fully_delegated
        items = [(np.ones((rows, 3), np.float32),) * 2 for rows in (1, 0, 2)]
        assert [len(next(iter(found.values()))) for found in model.stream(items)] == [1, 0, 2]
    assert not [record for record in caplog.records if "cannot be handled" in record.message]


def test_an_interrupted_copy_to_the_gpu_is_completed() -> None:
    """An input has the old value or the new one, but none that is older than both."""
    require_gpu()
    one = on_gpu(network())
    kernel: Any = one.plan.kernels[0] if one.plan is not None else None
    if not one.plan or 0 not in one.plan._takers:
        pytest.skip("this device takes no inputs early")
    one.set_tensor(1, full(1))
    one.set_tensor(0, full(1))
    one.set_tensor(0, full(2))
    write = kernel.session.write

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    kernel.session.write = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            one.set_tensor(0, full(3))
    finally:
        kernel.session.write = write
    assert (one.get_tensor(0) == 3).all()
    one.invoke()
    assert (one.get_tensor(outputs(one)[0]) == 4).all()
    one.close()


class Deferred:
    """A delegate whose results are there later, or never; `memory`: what inputs are to be kept in."""

    name, max_delegated_partitions, min_nodes_per_partition = "deferred", 0, 0
    first_delegate_node_index, last_delegate_node_index = 0, 1 << 30

    def __init__(self, fails: bool = False, memory: np.ndarray | None = None) -> None:
        self.fails, self.memory = fails, memory

    def check(self, model: Any, subgraph: Any, operator: Any) -> str | None:
        return None if all(subgraph.tensors[t].type is TensorType.FLOAT32 for t in operator.inputs) else "no"

    def prepare(self, partition: Any) -> Any:
        outer = self

        class Kernel:
            def invoke(self, inputs: Any) -> list[np.ndarray]:
                return [np.full(SHAPE, 12345, np.float32) for _ in partition.outputs]

            def finish(self) -> None:
                if outer.fails:
                    raise OSError("device lost")

            def input_memory(self, i: int) -> np.ndarray | None:
                return outer.memory

            def close(self) -> None: ...

        return Kernel()


@pytest.mark.parametrize("background", [False, True])
def test_an_inference_that_fails_late_leaves_no_results(background: bool) -> None:
    one = Interpreter(model_content=network(), experimental_delegates=[Deferred(fails=True)])
    one.allocate_tensors()
    if background:
        with pytest.raises(DelegateError, match="device lost"):
            one.invoke_async().result()
    else:
        one.invoke()
        with pytest.raises(DelegateError, match="device lost"):
            one.get_tensor(outputs(one)[0])
    for index in outputs(one):
        with pytest.raises(TensorError, match="null"):
            one.get_tensor(index)


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros((3, 1), np.float32).T[::1].repeat(2, 1)[:, ::2],
        np.zeros((1, 6), np.float32)[:, ::2],
        np.broadcast_to(np.float32(0), SHAPE),
    ],
    ids=["strided", "sliced", "read-only"],
)
def test_memory_for_inputs_can_be_written_to(memory: np.ndarray) -> None:
    one = Interpreter(model_content=network(), experimental_delegates=[Deferred(memory=memory)])
    with pytest.raises(DelegateError, match="input_memory"):
        one.allocate_tensors()
