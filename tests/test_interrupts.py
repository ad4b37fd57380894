"""Ctrl-C at any place: it arrives, and leaves models, interpreters and devices that give right results."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from interrupts import Interruptions

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.background import settle_all
from litegpu.engines.engine import CLOSED
from litegpu.model.builder import ModelBuilder

#: Files that were opened a moment before are closed by their finalizers, which warn.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SHAPE = (1, 6, 5, 3)
X = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
OTHER = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
#: So many places of each action are interrupted, evenly spread.
PLACES = 16
DEVICES = ["cpu", "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


def content() -> bytes:
    """|x| + 1"""
    builder = ModelBuilder()
    x = builder.input("x", SHAPE)
    one = builder.constant(np.ones(1, np.float32))
    builder.output(builder.op("ADD", [builder.op("ABS", [x], SHAPE), one], SHAPE))
    return builder.build()


def right(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 1


@dataclass(frozen=True)
class Case:
    """What is interrupted, and what must be right afterwards."""

    action: Callable[[], object]
    check: Callable[[], None]


def in_another_thread(work: Callable[[], None]) -> None:
    """A lock that was left taken would be free for the thread that took it."""
    failures: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
            failures.append(None)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert failures, "another thread hangs"
    if failures[0] is not None:
        raise failures[0]


class Opened:
    """A model and an interpreter on a device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.model = litegpu.load(content(), device)
        delegates = [] if device == "cpu" else [GpuDelegate(backend=device)]
        self.interpreter = Interpreter(model_content=content(), experimental_delegates=delegates)
        self.interpreter.allocate_tensors()
        self.x = self.interpreter.get_input_details()[0]["index"]
        self.y = self.interpreter.get_output_details()[0]["index"]

    def close(self) -> None:
        self.model.close()
        self.interpreter.close()

    def cases(self) -> dict[str, Case]:
        return {
            "call": Case(lambda: self.model(X), self.model_is_right),
            "stream": Case(lambda: list(self.model.stream([X] * 4)), self.model_is_right),
            "other batch": Case(self.another_batch, self.model_is_right),
            "invoke": Case(self.invoke, self.interpreter_is_right),
            "invoke_async": Case(self.invoke_async, self.interpreter_is_right),
            "resize": Case(self.resize, self.resized_back_is_right),
            "load": Case(self.load, self.load),
        }

    def model_is_right(self) -> None:
        np.testing.assert_array_equal(self.model(OTHER), right(OTHER))
        in_another_thread(lambda: np.testing.assert_array_equal(self.model(X), right(X)))

    def another_batch(self) -> None:
        self.model(np.repeat(X, 2, axis=0))
        self.model(X)

    def invoke(self) -> None:
        self.interpreter.set_tensor(self.x, X)
        self.interpreter.invoke()
        self.interpreter.get_tensor(self.y)

    def invoke_async(self) -> None:
        self.interpreter.set_tensor(self.x, X)
        self.interpreter.invoke_async().result()
        self.interpreter.get_tensor(self.y)

    def resize(self) -> None:
        for batch in (2, 1):
            self.interpreter.resize_tensor_input(self.x, (batch, *SHAPE[1:]))
            self.interpreter.allocate_tensors()
        self.interpreter.invoke()

    def interpreter_is_right(self) -> None:
        self.interpreter.set_tensor(self.x, OTHER)
        self.interpreter.invoke()
        np.testing.assert_array_equal(self.interpreter.get_tensor(self.y), right(OTHER))

    def resized_back_is_right(self) -> None:
        self.interpreter.resize_tensor_input(self.x, SHAPE)
        self.interpreter.allocate_tensors()
        self.interpreter_is_right()

    def load(self) -> None:
        with litegpu.load(content(), self.device) as model:
            np.testing.assert_array_equal(model(X), right(X))


ACTIONS = ["call", "stream", "other batch", "invoke", "invoke_async", "resize", "load"]


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    try:
        one = Opened(request.param)
    except litegpu.DeviceError as error:
        pytest.skip(str(error))
    yield one
    one.close()


def interrupt(case: Case, most: int | None) -> int:
    """Interrupt the action at up to `most` of its places, and check each time; how often it was."""
    case.action()
    counted = Interruptions()
    counted.during(case.action)
    assert counted.count > 10
    step = 1 if most is None else max(1, counted.count // most)
    found = 0
    for place in range(1, counted.count, step):
        one = Interruptions(place)
        try:
            one.during(case.action)
        except KeyboardInterrupt:
            found += 1
        else:  # in another order, or a finalizer came between, it may be over sooner
            assert not one.where, f"swallowed at {one.where}"
        try:
            case.check()
        except BaseException as error:
            raise AssertionError(f"after an interruption at {one.where}: {error!r}") from error
    gc.collect()  # here, where its warnings are expected
    return found


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("opened", DEVICES, indirect=True)
def test_interrupted_anywhere(opened: Opened, action: str) -> None:
    case = opened.cases()[action]
    assert interrupt(case, PLACES) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("opened", DEVICES, indirect=True)
def test_interrupted_everywhere(opened: Opened, action: str) -> None:
    assert interrupt(opened.cases()[action], 400) > 10


# ------------------------------------------------------------------------- handlers that use what they interrupt


def handled(action: Callable[[], object], handler: Callable[[], object], place: int) -> tuple[object, str]:
    """What the action gives, or its InvokeError, with the handler called in its midst, and where that was. In a thread,
    as it may hang."""
    one, outcome = Interruptions(place, handler), []

    def run() -> None:
        try:
            outcome.append(one.during(action))
        except litegpu.InvokeError as error:
            outcome.append(error)

    try:
        in_another_thread(run)
    except AssertionError as error:
        raise AssertionError(f"{error}: {one.where}") from None
    return outcome[0], one.where


MODEL_ACTIONS: dict[str, Callable[[litegpu.LoadedModel], np.ndarray]] = {
    "call": lambda model: model(X),
    "other batch": lambda model: model(np.repeat(X, 2, axis=0))[:1],
    "stream": lambda model: list(model.stream([X] * 3))[-1],
}


def model_on(device: str) -> litegpu.LoadedModel:
    try:
        model = litegpu.load(content(), device)
    except litegpu.DeviceError as error:
        pytest.skip(str(error))
    model(X)
    return model


def places_of(action: Callable[[litegpu.LoadedModel], object], device: str) -> range:
    with model_on(device) as model:
        counted = Interruptions()
        counted.during(lambda: action(model))
    return range(1, counted.count, max(1, counted.count // PLACES))


@pytest.mark.parametrize("action", MODEL_ACTIONS)
@pytest.mark.parametrize("device", DEVICES)
def test_close_in_the_midst_of_a_call(device: str, action: str) -> None:
    act = MODEL_ACTIONS[action]
    results = 0
    for place in places_of(act, device):
        model = model_on(device)
        after: list[BaseException | None] = []

        def handler(model: litegpu.LoadedModel = model, after: list[BaseException | None] = after) -> None:
            model.close()
            try:
                after.append(model(X))
            except litegpu.InvokeError as error:
                after.append(error)

        found, where = handled(lambda model=model: act(model), handler, place)  # type: ignore[misc]
        if not where:  # it was over sooner
            model.close()
            continue
        if isinstance(found, litegpu.InvokeError):
            assert "closed" in str(found), where
        else:
            results += 1
            np.testing.assert_array_equal(found, right(X), where)
        assert "model is closed" in str(after[0]), where
        with pytest.raises(litegpu.InvokeError, match="closed"):
            model(X)
        settle_all()
        assert model.interpreter._engine is CLOSED and model._slots is None, f"not freed: {where}"
        model.close()
    assert results or action != "call"  # others are mostly preparation


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("action", ["call", "other batch"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_call_in_the_midst_of_a_call(device: str, action: str, rows: int) -> None:
    """It gives the right result, or says that it cannot; and so does what it has interrupted."""
    act = MODEL_ACTIONS[action]
    with model_on(device) as model:
        for place in places_of(act, device):
            model(X)

            def handler(model: litegpu.LoadedModel = model) -> None:
                try:
                    inner = model(np.repeat(OTHER, rows, axis=0))[-1:]
                except litegpu.InvokeError as error:
                    assert "This thread is in a call of the model already" in str(error)
                else:
                    np.testing.assert_array_equal(inner, right(OTHER))
                assert model.inputs

            found, where = handled(lambda: act(model), handler, place)
            np.testing.assert_array_equal(found, right(X), where)


@pytest.mark.parametrize("device", DEVICES)
def test_close_in_another_thread_waits_for_the_call(device: str) -> None:
    model = model_on(device)
    assert model._slots is not None
    model._slots._inside["call"] = -1  # a thread's that never ends
    closing = threading.Thread(target=model.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive() and model.interpreter._engine is not CLOSED
    del model._slots._inside["call"]
    closing.join(60)
    assert model.interpreter._engine is CLOSED


# ------------------------------------------------------------------------------------------------ true signals


LISTENING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that runs `code` and says "ready" when it may be interrupted: a process that was started in the
    background, as these tests may have been, ignores SIGINT, and so do its children, until they ask for it."""
    path = os.pathsep.join([str(Path(litegpu.__file__).parents[1]), str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-u", "-c", LISTENING + textwrap.dedent(code), *arguments]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert child.stdout is not None
    said = ""
    for line in child.stdout:
        if line.startswith("skip"):
            child.communicate()
            pytest.skip(line)
        if line.startswith("ready"):  # which what another thread says may follow
            return child
        said += line
    raise AssertionError(said + child.communicate()[1])


def interrupted(child: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What the process says after the signal, and its errors; it must end within `seconds`."""
    child.send_signal(signal.SIGINT)
    try:
        return child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        raise AssertionError(f"still running: {child.communicate()}") from None


def ended(child: subprocess.Popen[str], seconds: float) -> str:
    """The same, where nothing is to be wrong."""
    out, errors = interrupted(child, seconds)
    assert "Traceback" not in errors and "ignored" not in errors, errors
    return out


LONG = """
    import os
    import threading
    import numpy as np
    import litegpu
    try:
        from litegpu.gpu.backends.webgpu.device import open_device
        device = open_device()
    except litegpu.DeviceError as error:
        print("skip", error)
        os._exit(0)
    import dataclasses
    from gpu.backends.webgpu.test_session import AFFINE, COUNT, affine_chain
    # many groups, as Mesa's software driver ends all loops of a thread after 65,535 rounds
    loop = "var s = 0.0; for (var i = 0u; i < 60000u; i++) { s += sin(s) + c[0]; } y[id.x] = s;"
    slow = affine_chain(1, 1.0, 1.0, source=AFFINE.replace("y[id.x] = x[id.x] * c[0] + c[1];", loop))
    many = tuple(dataclasses.replace(d, groups=(d.groups[0], 60000, 1)) for d in slow.dispatches)
    slow = dataclasses.replace(slow, dispatches=many)
    session = device.session(slow, wait=WAIT)
    session.write(0, np.ones(COUNT, np.float32))
    threading.Timer(0.5, lambda: print("ready")).start()
    try:
        session.run()
    except KeyboardInterrupt:
        session.close(wait=False)
        print("interrupted")
    os._exit(0)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("wait", ["passive", pytest.param("active", marks=pytest.mark.slow)])
def test_a_kernel_that_runs_for_minutes_does_not_keep_signals(wait: str) -> None:
    """As software devices go on with it, the process ends itself."""
    child = started(LONG.replace("WAIT", repr(wait)))
    assert ended(child, 20) == "interrupted\n"


LOOP = """
    import itertools
    import sys
    import numpy as np
    import litegpu
    from test_interrupts import X, content, right
    try:
        model = litegpu.load(content(), sys.argv[1])
    except litegpu.DeviceError as error:
        sys.exit(print("skip", error))
    model(X)
    try:
        print("ready")
        if sys.argv[2] == "stream":
            for _ in model.stream(itertools.repeat(X)):
                pass
        while True:
            model(X)
    except KeyboardInterrupt:
        print(bool((model(X) == right(X)).all()))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("what", ["call", "stream"])
@pytest.mark.parametrize("device", DEVICES)
def test_signals_reach_loops(device: str, what: str) -> None:
    assert ended(started(LOOP, device, what), 60) == "True\n"


COMMAND = """
    import sys
    import threading
    from litegpu.__main__ import main
    threading.Timer(float(sys.argv.pop(1)), lambda: print("ready")).start()
    main()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("delay", [0.01, 1.0])
def test_commands_end_with_130_and_one_line(tmp_path: Path, delay: float) -> None:
    (tmp_path / "model.tflite").write_bytes(content())
    child = started(COMMAND, str(delay), "benchmark", f"--graph={tmp_path / 'model.tflite'}", "--min_secs=100")
    _, errors = interrupted(child, 60)
    assert (child.returncode, errors) == (130, "litegpu: interrupted\n")


HANDLER = """
    import os
    import signal
    import sys
    import threading
    import litegpu
    from test_interrupts import X, content
    try:
        model = litegpu.load(content(), sys.argv[1])
    except litegpu.DeviceError as error:
        sys.exit(print("skip", error))
    model(X)
    stop = []
    signal.signal(signal.SIGINT, lambda *_: (stop.append(1), model.close()))
    print("ready")
    while not stop:
        model(X)
    print("over")
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("device", DEVICES)
def test_a_handler_closes_the_model_that_is_called(device: str) -> None:
    child = started(HANDLER, device)
    time.sleep(0.05)
    out, errors = interrupted(child, 60)
    assert out == "over\n" or "The model is closed" in errors, errors
