"""Run by test_fork.py: a process that uses a device forks once for every scenario, and prints how the child fared.

python fork_scenarios.py DEVICE -> one JSON object, scenario -> "ok", what was raised, "hangs" or "killed by ..."
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from test_threads import inputs, is_right, network

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.errors import ForkError

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
ON_GPU = DEVICE != "cpu"
BINDS = DEVICE not in ("cpu", "reference")
PATIENCE = 20
X, Y = inputs(1)
CONTENT = network()


def delegates() -> list[GpuDelegate]:
    return [GpuDelegate(backend=DEVICE)] if ON_GPU else []


def opened() -> Interpreter:
    interpreter = Interpreter(model_content=CONTENT, experimental_delegates=delegates())
    interpreter.allocate_tensors()
    return interpreter


def cycle(interpreter: Interpreter) -> Any:
    for detail, value in zip(interpreter.get_input_details(), (X, Y), strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    found = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    return dict(zip(("negated", "product"), found, strict=True))


def check(found: Any) -> None:
    assert is_right(found, X, Y), "wrong"


model = litegpu.load(CONTENT, DEVICE)
check(model(X, Y))
interpreter = opened()
check(cycle(interpreter))
ins = [d["index"] for d in interpreter.get_input_details()]
outs = [d["index"] for d in interpreter.get_output_details()]
running: Any = model.stream((X, Y) for _ in range(10))
check(next(running))
lent = [litegpu.load(CONTENT, DEVICE) for _ in range(2)]  # for the children to close
bound = GpuDelegate(backend=DEVICE) if BINDS else None
with_buffer = Interpreter(model_content=CONTENT, experimental_delegates=[bound] if bound else [])
with_buffer.allocate_tensors()
if bound is not None:
    with_buffer.get_output_buffer(outs[0])
    check(cycle(with_buffer))


def binding() -> GpuDelegate:
    assert bound is not None
    return bound


def profile() -> None:
    kernel = next(iter(binding().prepared)).kernel()
    assert kernel is not None
    kernel.profile()


def new_interpreter() -> None:
    check(cycle(opened()))


def resize() -> None:
    for index in ins:
        interpreter.resize_tensor_input(index, (2, *X.shape[1:]))
    interpreter.allocate_tensors()


# What uses the device: ForkError in the child, or, if that is the CPU, right.
USES: dict[str, Callable[[], Any]] = {
    "call": lambda: check(model(X, Y)),
    "another batch": lambda: model(np.concatenate([X, X]), np.concatenate([Y, Y])),
    "set_tensor": lambda: interpreter.set_tensor(ins[0], X),
    "invoke": lambda: interpreter.invoke(),
    "get_tensor": lambda: interpreter.get_tensor(outs[0]),
    "invoke_async": lambda: interpreter.invoke_async().result(10),
    "stream that runs": lambda: check(next(running)),
    "new stream": lambda: check(next(model.stream([(X, Y)]))),
    "load": lambda: check(litegpu.load(CONTENT, DEVICE)(X, Y)),
    "new interpreter": new_interpreter,
    "resize": resize,
}
if BINDS:
    USES |= {
        "auto": lambda: litegpu.load(CONTENT),
        "open_device": lambda: delegates()[0].open_device(),
        "bind": lambda: binding().bind_buffer_to_tensor(object(), ins[0]),
        "unbind": lambda: binding().bind_buffer_to_tensor(None, outs[0]),
        "output buffer": lambda: with_buffer.get_output_buffer(outs[0]),
        "bound": lambda: cycle(with_buffer),
        "profile": profile,
    }


def close_all() -> None:
    for close in (interpreter.close, model.close, with_buffer.close, *(one.close for one in lent)):
        close()
    running.close()


def collect() -> None:
    global model, interpreter, running, with_buffer, bound
    del model, interpreter, running, with_buffer, bound
    lent.clear()
    gc.collect()


def cpu() -> None:
    with litegpu.load(CONTENT, "cpu", num_threads=2) as one:
        check(one(X, Y))
        check(next(one.stream([(X, Y)])))
        large = np.zeros((40, *X.shape[1:]), np.float32)
        one(large, large)


def texts() -> None:
    assert "ops on" in str(model) and model.device == DEVICE and model.report.summary()


# What works in every child.
HARMLESS: dict[str, Callable[[], Any]] = {
    "close": close_all,
    "garbage": collect,
    "cpu": cpu,
    "looking": texts,
    "grandchild": lambda: outcome(in_child(cpu)),
}


def in_child(work: Callable[[], Any], leave: Callable[[int], Any] = os._exit) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 0
    try:
        signal.alarm(PATIENCE)
        work()
    except ForkError as error:
        status = 11 if "spawn" in str(error) else 13
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        status = 12
    leave(status)
    raise AssertionError


def outcome(pid: int) -> str:
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return "hangs" if number == signal.SIGALRM else f"killed by {signal.Signals(number).name}"
    words = {0: "ok", 11: "ForkError", 12: "another error", 13: "ForkError without advice"}
    return words.get(os.WEXITSTATUS(status), "unknown")


def main() -> None:
    results = {name: outcome(in_child(work)) for name, work in {**USES, **HARMLESS}.items()}
    results["exit"] = outcome(in_child(lambda: None, sys.exit))  # with all that Python does at its end

    # while other threads hold every lock
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            check(model(X, Y))
            litegpu.load(CONTENT, "cpu").close()

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(6):
        time.sleep(0.02)
        name = ("call", "load")[i % 2]
        results[f"{name} amid threads {i}"] = outcome(in_child(USES[name]))
        results[f"cpu amid threads {i}"] = outcome(in_child(cpu))
    stop.set()
    for thread in threads:
        thread.join()
    future = interpreter.invoke_async()
    results["during invoke_async"] = outcome(in_child(USES["invoke"]))
    future.result(20)

    # the parent goes on unharmed
    check(model(X, Y))
    check(cycle(interpreter))
    check(next(running))
    check(cycle(with_buffer))
    for one in lent:
        check(one(X, Y))
    new_interpreter()
    results["parent"] = "ok"
    print(json.dumps(results))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
