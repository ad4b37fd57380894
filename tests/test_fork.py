"""Children of a process that has used a GPU: a typed error at once, nothing that hangs, and a parent that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from agreement import require_gpu

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork()")
SCRIPT = Path(__file__).with_name("fork_scenarios.py")


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
