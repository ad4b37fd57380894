"""Children of a process that has used a GPU: a typed error at once, nothing that hangs, and a parent that goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from agreement import require_gpu

import litegpu
from litegpu.cached import cached_property

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
SCRIPT = Path(__file__).with_name("fork_scenarios.py")
LOCKED = re.compile(r"functools\.cached_property|from functools import .*cached_property")


def run(*arguments: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def uses_device(name: str) -> bool:
    return not name.startswith(("close", "garbage", "cpu", "looking", "grandchild", "exit", "parent"))


@pytest.mark.parametrize("device", ["webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_children_of_a_process_that_has_used_a_gpu(device: str) -> None:
    if device == "webgpu":
        require_gpu()
    else:
        from litegpu.gpu.backends.cuda.opening import available

        reason = available()
        if reason is not None:
            pytest.skip(f"no CUDA device: {reason}")
    found = run(device)
    assert len(found) > 30
    wrong = {n: f for n, f in found.items() if f != ("ForkError" if uses_device(n) else "ok")}
    assert not wrong, wrong


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_children_of_a_process_that_has_used_no_driver(device: str) -> None:
    found = run(device)
    assert len(found) > 20 and set(found.values()) == {"ok"}, found


def test_a_child_may_use_the_gpu_if_the_parent_has_not() -> None:
    require_gpu()
    code = """
import os, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import litegpu
from test_threads import inputs, is_right, network
x, y = inputs(1)
parent = litegpu.load(network(), "cpu")
parent(x, y)
pid = os.fork()
if pid == 0:
    with litegpu.load(network(), "webgpu") as model:
        right = is_right(model(x, y), x, y) and is_right(parent(x, y), x, y)
    os._exit(0 if right else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(SCRIPT.parent)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


#: Models and interpreters of a process whose official interpreters have threads, and what their children do.
WITH_THREADS = """
import os, signal, sys, threading
import numpy as np
import litegpu
from litegpu import Interpreter, OpResolverType
from litegpu.delegates.cpu import CpuPartition, OfficialOptions
from litegpu.delegates.protocol import Partition
from litegpu.model.builder import ModelBuilder

PLAIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES  # whose convolutions wait for all threads
SHAPE = (1, 64, 64, 16)
X = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)

def content(keeps=False):
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    options = {"padding": "SAME", "stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
    y = b.op("CONV_2D", [x, b.constant(np.full((16, 3, 3, 16), 0.1, np.float32)), b.constant(np.zeros(16, np.float32))],
             SHAPE, options)
    if keeps:
        b.variable("state", SHAPE)
    b.output(y)
    return b.build()

def opened(resolver, keeps=False):
    one = Interpreter(model_content=content(keeps), num_threads=4, experimental_op_resolver_type=resolver)
    one.allocate_tensors()
    one.set_tensor(one.get_input_details()[0]["index"], X)
    one.invoke()
    return one

def result(one):
    return one.get_tensor(one.get_output_details()[0]["index"])

models = [litegpu.load(content(), "cpu", num_threads=4) for _ in range(3)]
want = [model(X) for model in models][0]
batcher = models[0].batcher(max_batch=2)
batcher(X)
models[1](np.concatenate([X, X]))
plain, keeping, xnnpack = opened(PLAIN), opened(PLAIN, keeps=True), opened(OpResolverType.AUTO)
model = litegpu.read_model(content())
main = model.main
partition = Partition(model, main, tuple(main.operators), tuple(main.inputs), tuple(main.outputs))
cut = CpuPartition(partition, OfficialOptions(num_threads=4, op_resolver_type=PLAIN))
cut.invoke([X])

def close(x, y):
    np.testing.assert_allclose(x, y, 1e-4, 1e-4)

def leave():
    pass

def run():
    for one in (plain, xnnpack):
        close(result(one), want)  # what was computed before the fork
        one.invoke()
        close(result(one), want)
    close(models[0](X), want)
    close(cut.invoke([X])[0], want)

def resize():
    plain.resize_tensor_input(plain.get_input_details()[0]["index"], (2, *SHAPE[1:]))
    plain.allocate_tensors()
    plain.set_tensor(plain.get_input_details()[0]["index"], np.concatenate([X, X]))
    plain.invoke()
    close(result(plain)[1:], want)

def keep():
    close(result(keeping), want)
    try:
        keeping.invoke()
    except litegpu.DeviceError as error:
        assert "load it again" in str(error)
    else:
        raise AssertionError

def forget():
    global models, batcher, plain, cut
    models[0].close()
    cut.close()
    models = batcher = plain = cut = None
    with litegpu.load(content(), "cpu", num_threads=4) as own:
        close(own(X), want)

def grandchild():
    run()
    assert not status_of(run)

def status_of(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        # memory of the missing threads' stacks is used for others, so that who follows pointers there crashes
        threads = [threading.Thread(target=list, args=(range(1000),)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        work()
        sys.exit(0)
    return os.waitpid(pid, 0)[1]

found = {name: status_of(globals()[name]) for name in sys.argv[1:]}
run()
assert not any(found.values()), found
"""


@pytest.mark.parametrize("work", ["leave", "run", "resize", "keep", "forget", "grandchild"])
def test_children_of_a_process_whose_cpu_models_have_threads(work: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITH_THREADS, work], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_followed_last_is_told_first() -> None:
    code = """
import os, sys
from litegpu import fork
told = []
class Follower:
    def __init__(self, name):
        self.name = name
        fork.follow(self)
    def _forked(self):
        told.append(self.name)
kept = [Follower(i) for i in range(30)]
del kept[10:20]
pid = os.fork()
if pid == 0:
    os._exit(0 if told == [*range(29, 19, -1), *range(9, -1, -1)] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_children_do_not_wait_for_attributes_that_threads_were_making() -> None:
    """Until Python 3.11 all objects of a class share a lock for each cached property."""
    begun, may_end = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, waits: bool) -> None:
            self.waits = waits

        @cached_property
        def value(self) -> int:
            if self.waits:
                begun.set()
                may_end.wait(60)
            return 7

    thread = threading.Thread(target=lambda: Slow(True).value)
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(Slow(False).value)
    status = os.waitpid(child, 0)[1]
    may_end.set()
    thread.join()
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7, "hangs"
    again = Slow(False)
    assert again.value == 7 and vars(again)["value"] == 7  # kept


def test_no_cached_property_has_a_lock() -> None:
    sources = sorted(Path(litegpu.__file__).parent.rglob("*.py"))
    others = [path.name for path in sources if path.name != "cached.py" and LOCKED.search(path.read_text("utf-8"))]
    assert len(sources) > 400 and others == []
