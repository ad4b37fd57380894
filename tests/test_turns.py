"""One Interpreter and several threads: hand-offs are allowed, mixtures refused, and no result is ever another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from racing import race
from test_threads import SHAPE, inputs, network

from litegpu import GpuDelegate, Interpreter, InvokeError
from litegpu.errors import TensorError
from litegpu.model.builder import ModelBuilder

KINDS = ["whole", "numpy", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, numpy_delegate: Any) -> Callable[..., Interpreter]:
    """Opens an interpreter of a model: wholly on the official runtime, or with a delegate."""
    kind = str(request.param)
    if kind == "webgpu":
        require_gpu()
    if kind == "cuda":
        from litegpu.gpu.backends.cuda.opening import available

        if available() is not None:
            pytest.skip("no CUDA device")

    def make(content: bytes | None = None) -> Interpreter:
        delegates = {"whole": [], "numpy": [numpy_delegate()]}.get(kind)
        if delegates is None:
            delegates = [GpuDelegate(backend=kind)]
        interpreter = Interpreter(
            model_content=content or network(), experimental_delegates=delegates, fallback="silent"
        )
        interpreter.allocate_tensors()
        return interpreter

    return make


class Thread:
    """A thread that does one thing after the other, when it is told to."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.ins = [d["index"] for d in interpreter.get_input_details()]
        self.outs = [d["index"] for d in interpreter.get_output_details()]
        self._pool = ThreadPoolExecutor(1)

    def do(self, work: Callable[..., Any]) -> Any:
        return self._pool.submit(work).result(60)

    def set(self, values: tuple[np.ndarray, ...], only: int | None = None) -> None:
        for i, (index, value) in enumerate(zip(self.ins, values, strict=True)):
            if only in (None, i):
                self.do(lambda index=index, value=value: self.interpreter.set_tensor(index, value))

    def invoke(self) -> None:
        self.do(self.interpreter.invoke)

    def invoke_async(self) -> None:
        self.do(lambda: self.interpreter.invoke_async().result(60))

    def read(self, which: int = 0) -> np.ndarray:
        return np.asarray(self.do(lambda: self.interpreter.get_tensor(self.outs[which])))

    def sum(self) -> float:
        """What the first output is the negative of."""
        return -float(self.read(0).reshape(-1)[0])


def constant(x: float, y: float = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.full(SHAPE, x, np.float32), np.full(SHAPE, y, np.float32)


# ------------------------------------------------------------------------------------------------ what is allowed


def test_made_in_one_thread_and_used_in_another(opened: Callable[..., Interpreter]) -> None:
    t = Thread(opened())
    t.set(constant(1, 2))
    t.invoke()
    assert t.sum() == 3 and t.sum() == 3


def test_warm_up_in_main_and_work_elsewhere(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    for index in (d["index"] for d in interpreter.get_input_details()):
        interpreter.set_tensor(index, constant(5)[0])
    interpreter.invoke()
    t = Thread(interpreter)
    for i in range(3):
        t.set(constant(i, 1))
        t.invoke()
        assert t.sum() == i + 1


def test_a_producer_sets_and_another_invokes(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    producer, consumer, second = Thread(interpreter), Thread(interpreter), Thread(interpreter)
    consumer.invoke()  # a warm-up
    for i in range(3):
        producer.set(constant(i, 0), only=0)
        second.set(constant(0, 7), only=1)
        consumer.invoke()
        assert consumer.sum() == i + 7 and producer.sum() == i + 7


def test_turns_under_a_lock_of_ones_own(opened: Callable[..., Interpreter]) -> None:
    interpreter, lock = opened(), threading.Lock()
    ins = [d["index"] for d in interpreter.get_input_details()]
    (first, *_) = [d["index"] for d in interpreter.get_output_details()]

    def work(number: int) -> None:
        for i in range(6):
            values = inputs(100 * number + i)
            with lock:
                for index, value in zip(ins, values, strict=True):
                    interpreter.set_tensor(index, value)
                interpreter.invoke()
                np.testing.assert_array_equal(interpreter.get_tensor(first), -(values[0] + values[1]))

    race(work, 8)


def test_a_constant_input_is_set_once(opened: Callable[..., Interpreter]) -> None:
    """By a thread that runs inferences as well."""
    interpreter = opened()
    a, b = Thread(interpreter), Thread(interpreter)
    a.set(constant(1, 10))
    a.invoke()
    for i, t in enumerate((b, a, b, b, a)):
        t.set(constant(i), only=0)
        t.invoke()
        assert t.sum() == i + 10


def test_results_may_be_read_again_and_by_others(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    a, reader = Thread(interpreter), Thread(interpreter)
    a.set(constant(1, 1))
    a.invoke()
    assert a.sum() == 2
    assert reader.sum() == 2
    a.set(constant(3, 1))
    a.invoke()
    assert reader.sum() == 4 and a.sum() == 4


def test_a_new_thread_inherits_nothing(opened: Callable[..., Interpreter]) -> None:
    """Also where it gets the number of one that has ended."""
    interpreter = opened()
    for i in range(6):
        t = Thread(interpreter)
        t.set(constant(i, 1))
        if i % 3 == 0:
            t._pool.shutdown()  # goes away in the middle of its cycle
            continue
        t.invoke()
        if i % 3 == 1:
            t._pool.shutdown()
            continue
        assert t.sum() == i + 1
        t._pool.shutdown()


def test_futures_are_awaited_anywhere(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    t = Thread(interpreter)
    t.set(constant(2, 3))
    future = t.do(interpreter.invoke_async)
    future.result(60)
    assert t.sum() == 5
    other = Thread(interpreter)
    other.set(constant(4, 3))
    future = other.do(interpreter.invoke_async)
    assert t.sum() == 7  # waits; it has read its own result already
    future.result(60)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("invoke", ["invoke", "invoke_async"])
def test_inputs_that_another_overwrote(opened: Callable[..., Interpreter], invoke: str) -> None:
    interpreter = opened()
    a, b = Thread(interpreter), Thread(interpreter)
    a.set(constant(1))
    b.set(constant(2), only=1)
    with pytest.raises(InvokeError, match=r"overwritten by another thread.*One interpreter serves one thread"):
        getattr(a, invoke)()
    with pytest.raises(InvokeError):
        a.invoke()  # still
    a.set(constant(1, 5))
    getattr(a, invoke)()
    assert a.sum() == 6


def test_an_inference_of_another_between_set_and_invoke(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    a, b = Thread(interpreter), Thread(interpreter)
    a.set(constant(1))
    b.invoke()
    with pytest.raises(InvokeError, match="has run an inference"):
        a.invoke()
    a.set(constant(1))
    a.invoke()
    assert a.sum() == 1


def test_results_that_another_overwrote(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    a, b = Thread(interpreter), Thread(interpreter)
    a.set(constant(1))
    a.invoke()
    assert a.sum() == 1  # of two outputs it has read one
    b.set(constant(2))
    b.invoke()
    with pytest.raises(InvokeError, match="is gone"):
        a.read(1)
    with pytest.raises(InvokeError, match="is gone"):
        a.do(lambda: interpreter.tensor(a.outs[1])())
    assert b.sum() == 2
    a.do(lambda: interpreter.get_tensor(a.ins[0]))  # inputs are not meant
    a.set(constant(3))
    a.invoke()
    assert a.read(1).shape == SHAPE and a.sum() == 3


def test_a_resize_by_another(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    a, b = Thread(interpreter), Thread(interpreter)
    a.set(constant(1))
    for index in b.ins:
        b.do(lambda index=index: interpreter.resize_tensor_input(index, (2, *SHAPE[1:])))
    b.do(interpreter.allocate_tensors)
    with pytest.raises(InvokeError, match="resized the model"):
        a.invoke()


def test_views_of_several_threads(opened: Callable[..., Interpreter]) -> None:
    interpreter = opened()
    a, b = Thread(interpreter), Thread(interpreter)
    view = a.do(lambda: interpreter.tensor(a.ins[0])())
    for refused in (lambda: interpreter.tensor(b.ins[1])(), lambda: interpreter.set_tensor(b.ins[1], constant(1)[0])):
        with pytest.raises(InvokeError, match="holds a view"):
            b.do(refused)
    view[...] = 4
    del view
    b.set(constant(0, 1), only=1)  # that is another input, but it is overwritten while the first waits
    a.invoke()
    assert a.sum() == 5
    b.do(lambda: interpreter.tensor(b.ins[1])().fill(2))
    a.do(lambda: interpreter.tensor(b.ins[1])().fill(3))
    with pytest.raises(InvokeError, match="overwritten"):
        b.invoke()
    a.invoke()
    assert a.sum() == 7


def test_calls_that_overlap(numpy_delegate: Any) -> None:
    interpreter = Interpreter(model_content=network(), experimental_delegates=[numpy_delegate()])
    interpreter.allocate_tensors()
    inside, go_on = threading.Event(), threading.Event()
    plan = interpreter.plan
    assert plan is not None
    usual = plan.invoke

    def slow() -> None:
        inside.set()
        assert go_on.wait(60)
        usual()

    plan.invoke = slow  # type: ignore[method-assign]
    a, b = Thread(interpreter), Thread(interpreter)
    running = a._pool.submit(interpreter.invoke)
    assert inside.wait(60)
    for work in (
        interpreter.invoke,
        interpreter.allocate_tensors,
        lambda: interpreter.set_tensor(b.ins[0], constant(1)[0]),
        lambda: interpreter.get_tensor(b.outs[0]),
        lambda: interpreter.tensor(b.outs[0])(),
        lambda: interpreter.resize_tensor_input(b.ins[0], SHAPE),
        interpreter.reset_all_variables,
    ):
        with pytest.raises(InvokeError, match=r"in use by another thread.*litegpu\.load"):
            b.do(work)
    assert len(b.do(interpreter.get_input_details)) == 2  # looking harms nobody
    closing = b._pool.submit(interpreter.close)  # waits
    assert not closing.done()
    go_on.set()
    running.result(60)
    closing.result(60)
    with pytest.raises(InvokeError, match="closed"):
        a.invoke()


def test_nothing_stays_locked_after_an_error_or_an_interruption(
    opened: Callable[..., Interpreter], monkeypatch: Any
) -> None:
    interpreter = opened()
    with pytest.raises(TensorError):
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.zeros(3, np.float32))

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(interpreter._engine, "invoke", interrupted)
        with pytest.raises(KeyboardInterrupt):
            interpreter.invoke()
    assert not interpreter._turns.inside
    t = Thread(interpreter)
    t.set(constant(1, 1))
    t.invoke()
    assert t.sum() == 2


# ------------------------------------------------------------------------------------------------ races


@pytest.mark.parametrize("way", ["set_tensor", "views", "async", "subset"])
def test_sixteen_threads_get_their_own_results_or_an_error(opened: Callable[..., Interpreter], way: str) -> None:
    interpreter = opened()
    ins = [d["index"] for d in interpreter.get_input_details()]
    outs = [d["index"] for d in interpreter.get_output_details()]
    right, refused = [], []

    def cycle(x: np.ndarray, y: np.ndarray) -> bool:
        for index, value in zip(ins, (x, y), strict=True):
            if way == "views":
                interpreter.tensor(index)()[...] = value
            else:
                interpreter.set_tensor(index, value)
        if way == "async":
            interpreter.invoke_async().result(60)
        else:
            interpreter.invoke()
        found = [interpreter.get_tensor(i) for i in (outs[1:] if way == "subset" else outs)]
        return np.array_equal(found[-1], x * y) and (len(found) == 1 or np.array_equal(found[0], -(x + y)))

    def work(number: int) -> None:
        for i in range(25):
            x, y = inputs(100 * number + i)
            try:
                assert cycle(x, y), "the results of another thread"
                right.append(number)
            except InvokeError:
                refused.append(number)
                time.sleep(0)

    race(work)
    assert right and len(right) + len(refused) == 400
    x, y = inputs(1)
    assert cycle(x, y)  # usable afterwards


def test_signatures_in_threads(numpy_delegate: Any) -> None:
    b = ModelBuilder()
    x, y = b.input("x", SHAPE), b.input("y", SHAPE)
    total = b.op("ADD", [x, y], SHAPE)
    b.output(total)
    b.signature("serve", {"x": x, "y": y}, {"total": total})
    for delegates in ([], [numpy_delegate()]):
        interpreter = Interpreter(model_content=b.build(), experimental_delegates=delegates)
        interpreter.allocate_tensors()
        run, right = interpreter.get_signature_runner(), list[Any]()

        def work(number: int, run: Any = run, right: list[int] = right) -> None:
            for i in range(10):
                values = inputs(100 * number + i)
                try:
                    assert np.array_equal(run(x=values[0], y=values[1])["total"], values[0] + values[1])
                    right.append(number)
                except InvokeError:
                    pass

        race(work, 8)
        assert right


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_runners_of_changing_shapes_in_threads(backend: str) -> None:
    """Those of one interpreter resize it under each other; each with one of its own do not meet."""
    b = ModelBuilder()
    x, y = b.input("x", (1, 3)), b.input("y", (1, 3))
    total, product = b.op("ADD", [x, y], (1, 3)), b.op("MUL", [x, y], (1, 3))
    b.output(total)
    b.output(product)
    b.signature("sum", {"x": x, "y": y}, {"total": total})
    b.signature("product", {"a": x, "b": y}, {"product": product})
    content = b.build()

    def opened() -> Interpreter:
        delegates = [] if backend == "cpu" else [GpuDelegate(backend=backend)]
        return Interpreter(model_content=content, experimental_delegates=delegates)

    for shared in (opened(), None):
        own = [shared or opened() for _ in range(6)]
        runners = [(one.get_signature_runner("sum"), one.get_signature_runner("product")) for one in own]
        right: list[Any] = []
        refused: list[Any] = []

        def work(number: int, runners: Any = runners, right: list[int] = right, refused: list[int] = refused) -> None:
            rng = np.random.default_rng(number)
            add, multiply = runners[number]
            for i in range(12):
                rows = 1 + (number + i) % 3
                values = rng.random((rows, 3), np.float32), rng.random((rows, 3), np.float32)
                try:
                    if i % 2:
                        np.testing.assert_allclose(add(x=values[0], y=values[1])["total"], values[0] + values[1])
                    else:
                        np.testing.assert_allclose(
                            multiply(a=values[0], b=values[1])["product"], values[0] * values[1], rtol=1e-6
                        )
                    right.append(i)
                except InvokeError:
                    refused.append(i)

        race(work, 6)
        assert right and len(right) + len(refused) == 72
        assert shared is not None or not refused


def test_the_check_costs_little() -> None:
    """About as much as 55 empty calls of Python, 2 us; in that measure it holds on slow and busy machines as well."""
    interpreter = Interpreter(model_content=network((1, 1, 1, 4)))
    interpreter.allocate_tensors()
    index = interpreter.get_output_details()[0]["index"]

    def fastest(call: Callable[[], Any]) -> float:
        best = float("inf")
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(200):
                call()
            best = min(best, (time.perf_counter() - start) / 200)
        return best

    def costs() -> float:
        ours, official = (lambda: interpreter.get_tensor(index)), (lambda: interpreter.official.get_tensor(index, 0))
        return (fastest(ours) - fastest(official)) / fastest(lambda: None)

    assert min(costs() for _ in range(3)) < 120
