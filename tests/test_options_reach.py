"""What load(), stream() and signatures are told reaches what they stand on, and nothing that they open is left open."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from delegates.numpy_delegate import NumpyDelegate

import litegpu
from litegpu import limits as limits_module
from litegpu import session
from litegpu.background import Background, InferenceFuture
from litegpu.delegates.cpu import OfficialOptions
from litegpu.device_choice import delegate_for
from litegpu.errors import InvokeError, OptionError, TensorError
from litegpu.limits import limits
from litegpu.model.builder import ModelBuilder
from litegpu.stream import Route, _Overlapping

X = np.array([[1, -2, 3]], np.float32)


def adder(signatures: int = 0) -> bytes:
    """x + 1."""
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    y = b.op("ADD", [x, b.constant(np.ones(3, np.float32))], (1, 3), name="y")
    b.output(y)
    for i in range(signatures):
        b.signature(f"s{i}", {f"in{i}": x}, {f"out{i}": y})
    return b.build()


@pytest.fixture
def interpreters(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that load() opens, with `given` and `closed`."""
    found: list[Any] = []

    class Watched(litegpu.Interpreter):
        def __init__(self, **options: Any) -> None:
            self.given, self.closed = options, 0
            found.append(self)
            super().__init__(**options)

        def _close(self, **options: Any) -> None:
            self.closed += 1
            super()._close(**options)

    monkeypatch.setattr(session, "Interpreter", Watched)
    return found


# load()


def test_options_of_load(interpreters: list[Any]) -> None:
    with litegpu.load(adder(), "cpu", num_threads=3, fallback="silent"):
        pass
    (one,) = interpreters
    given = {k: v for k, v in one.given.items() if k not in ("model_path", "model_content")}
    assert given == {"experimental_delegates": None, "num_threads": 3, "fallback": "silent"}
    assert one.closed
    with pytest.raises(OptionError, match="fallback"):
        litegpu.load(adder(), "cpu", fallback="loud")
    with pytest.raises(OptionError, match="precision"):
        litegpu.load(adder(), "cpu", "float64")


def test_what_cannot_be_prepared_is_closed(interpreters: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any) -> None:
        raise InvokeError("no")

    monkeypatch.setattr(litegpu.Interpreter, "allocate_tensors", fails)
    with pytest.raises(InvokeError, match="no"):
        litegpu.load(adder(), "cpu")
    assert [one.closed for one in interpreters] == [1]


def test_all_batches_are_closed_in_the_end(interpreters: list[Any]) -> None:
    model = litegpu.load(adder(), "cpu")
    for batch in (2, 2, 3, 1):
        x = np.repeat(X, batch, axis=0)
        np.testing.assert_array_equal(model(x), x + 1)
        assert model.inputs["x"]["shape"].tolist() == [batch, 3] and model.empty_input().shape == (batch, 3)
        assert model.empty_input("x", 7).shape == (7, 3) and not model._resizing
    assert not any(one.closed for one in interpreters) and len(interpreters) == 3, "those of 1, 2 and 3"
    model.close()
    assert all(one.closed for one in interpreters)
    for use in (lambda: model(X), lambda: next(iter(model.stream([X])))):
        with pytest.raises(InvokeError, match="The model is closed: load it again"):
            use()


def test_a_resize_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = litegpu.load(adder(), "cpu")
    allowed = model.interpreter.allocate_tensors
    calls: list[int] = []

    def fails_once() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise InvokeError("too large")
        allowed()

    monkeypatch.setattr(model, "_opened_for", lambda arrays, several: None)
    monkeypatch.setattr(model.interpreter, "allocate_tensors", fails_once)
    with pytest.raises(TensorError, match=r"'x' \[1, 3\] to \[4, 3\]\): too large"):
        model(np.repeat(X, 4, axis=0))
    assert not model._resizing and model.inputs["x"]["shape"].tolist() == [1, 3]
    np.testing.assert_array_equal(model(X), X + 1)
    assert len(calls) == 2, "nothing is resized for what has its shape"


def test_names_are_those_of_an_only_signature() -> None:
    for count, names in ((0, ["x", "y"]), (1, ["in0", "out0"]), (2, ["x", "y"])):
        with litegpu.load(adder(count), "cpu") as model:
            assert [*model.inputs, *model.outputs] == names
            np.testing.assert_array_equal(model(**{names[0]: X}), X + 1)


# Devices


def test_words_for_devices_become_options(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Delegate:
        def __init__(self, **options: Any) -> None:
            self.given, self.opened = options, 0
            made.append(self)

        def open_device(self) -> None:
            self.opened += 1

    monkeypatch.setattr("litegpu.gpu.delegate.delegate.GpuDelegate", Delegate)
    more = {"max_delegated_partitions": 4}
    for word, options in (
        ("auto", {}), ("cuda", {"backend": "cuda"}), ("cuda:3", {"backend": "cuda", "device": "3"}),
        ("webgpu", {"backend": "webgpu"}),
    ):  # fmt: skip
        found: Any = delegate_for(word, "float16", more)
        assert found is made[-1] and found.given == {"precision": "float16", **options, **more} and found.opened == 1
        assert found.takes_software is (word != "auto")
    assert delegate_for("webgpu", "auto", {"backend": "vulkan"}).given == {"precision": "auto", "backend": "vulkan"}  # type: ignore[union-attr]
    assert delegate_for("cpu", "float32", {}) is None and len(made) == 5


# stream()


class Lane:
    """Stands for inferences in flight."""

    def __init__(self, shapes: Any, log: list[str]) -> None:
        self.shapes, self.log, self.waiting = shapes, log, []  # type: ignore[var-annotated]

    @property
    def full(self) -> bool:
        return len(self.waiting) == 2

    def begin(self, arrays: Any) -> None:
        self.waiting.append(arrays["x"].copy())

    def next(self) -> Any:
        return self.waiting.pop(0) + 1

    def drain(self) -> Any:
        while self.waiting:
            yield self.next()

    def close(self) -> None:
        self.log.append(f"close {self.shapes[0][0]}")


def test_lanes_of_other_shapes_are_drained_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def opened(model: Any, arrays: Any, shapes: Any, ahead: int, wanted: Any) -> Lane:
        log.append(f"open {shapes[0][0]}")
        return Lane(shapes, log)

    monkeypatch.setattr("litegpu.stream._open", opened)
    items = [np.full((n, 3), i, np.float32) for i, n in enumerate((1, 1, 1, 2, 2, 1))]
    with litegpu.load(adder(), "cpu") as model:
        model._reopen = None
        monkeypatch.setattr(model, "_converted", lambda values: values)
        found = list(model.stream(iter(items)))
        assert [f.tolist() for f in found] == [(i + 1).tolist() for i in items]
        assert log == ["open 1", "close 1", "open 2", "close 2", "open 1", "close 1"]
        log.clear()
        stream: Any = model.stream(iter(items))
        next(stream)
        stream.close()
        assert log == ["open 1", "close 1"]


class Kernel:
    """Stands for a kernel that runs a whole model, and its copies; `fails`: the numbers of the inferences that fail."""

    def __init__(self, made: list[Kernel], fails: tuple[int, ...] = (), count: Any = None) -> None:
        self.made, self.fails, self.closed = made, fails, 0
        self.count = count if count is not None else itertools.count()
        self.given: list[np.ndarray] = []

    def another(self) -> Kernel:
        self.made.append(Kernel(self.made, self.fails, self.count))
        return self.made[-1]

    def begin(self, arrays: Any, outputs: Any) -> None:
        assert outputs == (1, 0)
        self.given.append(arrays[7].copy())

    def collect(self, outputs: Any) -> list[np.ndarray]:
        if next(self.count) in self.fails:
            raise InvokeError("lost")
        return [[self.given[-1] + 1, self.given[-1] * 2][i] for i in outputs]

    def close(self, *, wait: bool) -> None:
        assert not wait, "who stops early must not wait"
        self.closed += 1


def overlapping(ahead: int, made: list[Kernel], *fails: int) -> _Overlapping:
    model: Any = SimpleNamespace(
        _as_result=lambda arrays, wanted: [float(a[0]) for a in arrays], _check_open=lambda: None
    )
    route = Route(Kernel(made, fails), {"x": 7}, {"double": 1, "more": 0})  # type: ignore[arg-type]
    return _Overlapping(model, route, ((1,),), ahead)


def test_so_many_are_in_flight_and_their_kernels_are_used_again() -> None:
    made: list[Kernel] = []
    lane = overlapping(3, made)
    found = []
    for i in range(9):
        if lane.full:
            found.append(lane.next())
        lane.begin({"x": np.array([i], np.float32)})
        assert len(made) == min(i + 1, 3) and lane.full == (i >= 2)
    found += lane.drain()
    assert found == [[2.0 * i, i + 1.0] for i in range(9)]
    lane.close()
    assert [kernel.closed for kernel in made] == [1, 1, 1]


def test_a_kernel_that_fails_is_closed_and_not_used_again() -> None:
    made: list[Kernel] = []
    lane = overlapping(2, made, 0)
    lane.begin({"x": np.array([0], np.float32)})
    lane.begin({"x": np.array([1], np.float32)})
    with pytest.raises(InvokeError, match="lost"):
        lane.next()
    assert made[0].closed == 1
    assert lane.next() == [2.0, 2.0]
    lane.begin({"x": np.array([2], np.float32)})
    assert len(made) == 2
    lane.close()
    assert [kernel.closed for kernel in made] == [1, 1], "also what is in flight"


# Limits


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5), ("3K", 3 * 2**10), ("2.5M", int(2.5 * 2**20)), ("2g", 2 * 2**30), ("1T", 2**40), ("4GiB", 4 * 2**30),
        ("7MB", 7 * 2**20), (" 8k ", 8 * 2**10),
    ],
)  # fmt: skip
def test_limits_are_read_with_their_units(text: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", text)
    monkeypatch.setenv("LITEGPU_WORK_LIMIT", text)
    assert set(vars(limits()).values()) == {number}


def test_limits_without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LITEGPU_MEMORY_LIMIT", "LITEGPU_WORK_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(limits_module, "_machine_memory", lambda: 64 << 30)
    assert vars(limits()) == {
        "memory": 64 << 30, "work": 10**15, "unstated_memory": 2**30, "unstated_work": 4 * 10**9,
    }  # fmt: skip
    for name, wrong in itertools.product(("LITEGPU_MEMORY_LIMIT", "LITEGPU_WORK_LIMIT"), ("0", "-1G", "nan")):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(OptionError, match=name):
            limits()
        monkeypatch.delenv(name)


# Signatures


@pytest.mark.parametrize("delegated", [False, True])
def test_signatures_check_their_names_and_resize(delegated: bool) -> None:
    delegates = [NumpyDelegate()] if delegated else None
    interpreter = litegpu.Interpreter(model_content=adder(1), experimental_delegates=delegates)
    runner = interpreter.get_signature_runner("s0")
    for given in ({"x": X}, {}, {"in0": X, "more": X}):
        with pytest.raises(TensorError, match=r"Invalid (Input name \(x\)|number of inputs)"):
            runner(**given)
    for batch in (1, 3, 2):
        x = np.repeat(X, batch, axis=0)
        np.testing.assert_array_equal(runner(in0=x)["out0"], x + 1)
        assert (interpreter.plan is not None) == delegated


def test_a_signature_s_inference_is_on_its_own_inputs() -> None:
    """What was set before it is not what the thread's next inference waits for."""
    interpreter = litegpu.Interpreter(model_content=adder(1))
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner("s0")
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
    assert interpreter._turns.mine.sets
    np.testing.assert_array_equal(runner(in0=2 * X)["out0"], 2 * X + 1)
    assert not interpreter._turns.mine.sets


# Interpreter


@pytest.mark.filterwarnings("ignore:.*experimental_preserve_all_tensors")
def test_options_of_the_interpreter_reach_the_official_one() -> None:
    names = [
        f.name for f in dataclasses.fields(OfficialOptions) if f.name not in ("delegates", "custom_op_registerers")
    ]
    switches = [name for name in names if name not in ("num_threads", "op_resolver_type")]
    plain = litegpu.Interpreter(model_content=adder())._setup.options
    assert plain.num_threads is None and plain.op_resolver_type is litegpu.OpResolverType.AUTO
    for chosen in switches:
        options: dict[str, Any] = {f"experimental_{chosen}": True}
        found = litegpu.Interpreter(model_content=adder(), **options)._setup.options
        assert {name: getattr(found, name) for name in switches} == {name: name == chosen for name in switches}
    reference = litegpu.OpResolverType.BUILTIN_REF
    found = litegpu.Interpreter(
        model_content=adder(), num_threads=3, experimental_op_resolver_type=reference
    )._setup.options  # fmt: skip
    assert (found.num_threads, found.op_resolver_type) == (3, reference)


def test_values_of_another_byte_order_and_views_of_constants() -> None:
    interpreter = litegpu.Interpreter(model_content=adder())
    interpreter.allocate_tensors()
    (given,) = interpreter.get_input_details()
    interpreter.set_tensor(given["index"], X.astype(">f4"))
    np.testing.assert_array_equal(interpreter.get_tensor(given["index"]), X)
    constant = next(t.index for t in interpreter.model.main.tensors if t.is_constant)
    view = interpreter.tensor(constant)()
    assert not view.flags.writeable and interpreter.tensor(given["index"])().flags.writeable


def test_an_inference_in_the_background_is_done_when_its_plan_is(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = litegpu.Interpreter(model_content=adder(), experimental_delegates=[NumpyDelegate()])
    interpreter.allocate_tensors()
    plan = type(interpreter.plan)
    log: list[str] = []
    for name in ("invoke", "settle"):
        real = getattr(plan, name)

        def noted(self: Any, name: str = name, real: Any = real) -> Any:
            result = real(self)
            log.append(name)
            return result

        monkeypatch.setattr(plan, name, noted)
    interpreter.invoke_async().result(30)
    assert log[log.index("invoke") :] == ["invoke", "settle"]


def test_the_thread_of_the_background_ends_with_it() -> None:
    for wait in (True, False):
        background = Background()
        background.start(lambda: None).result(30)
        thread = background._thread
        assert thread is not None
        real, joined = thread.join, list[None]()
        thread.join = lambda *a, real=real, joined=joined: joined.append(real(*a))  # type: ignore[method-assign]
        background.close(wait=wait)
        assert len(joined) == wait


def test_a_cancelled_inference_is_open_at_once() -> None:
    future: InferenceFuture[None] = InferenceFuture()
    assert future.cancel() and future._open.acquire(blocking=False)
