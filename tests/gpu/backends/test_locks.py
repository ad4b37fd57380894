"""A session serves one thread at a time: while one is inside, no other gets in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu.errors import DeviceError
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Arg, DType, Elementwise, GraphBuilder, apply
from litegpu.gpu.program import Program

SHAPE = (1, 2, 2, 4)
ACTS: dict[str, Callable[[Any], object]] = {
    "write": lambda s: s.write(0, np.ones(SHAPE, np.float32)),
    "run": lambda s: s.run(),
    "read": lambda s: s.read(0, np.empty(SHAPE, np.float32)),
    "reset": lambda s: s.reset_variables(),
    "bind": lambda s: s.bind("input", 0, None, "x"),
    "close": lambda s: s.close(),
}


def program(target: str, features: Any) -> Program:
    b = GraphBuilder()
    x, y = (b.value(SHAPE, DType.FLOAT32) for _ in range(2))
    b.node(Elementwise(), [], y, apply("neg", Arg(0)), [x])
    return build_program(b.graph([x], [y]), features, target)


def sessions() -> list[Any]:
    return [pytest.param("webgpu"), pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Any:
    backend: Any
    if request.param == "webgpu":
        from litegpu.gpu.backends.webgpu import device as backend
    else:
        from litegpu.gpu.backends.cuda import opening as backend

        if backend.available() is not None:
            pytest.skip(f"no CUDA device: {backend.available()}")
    try:
        device = backend.open_device()
    except DeviceError as error:
        pytest.skip(f"no device: {error}")
    made = device.session(program(device.target, device.features), "passive")
    made.write(0, np.ones(SHAPE, np.float32))
    made.run()
    yield made
    made.close()


@pytest.mark.parametrize("session", sessions(), indirect=True)
@pytest.mark.parametrize("act", ACTS)
def test_one_thread_at_a_time(session: Any, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, go = threading.Event(), threading.Event()
    check = "_check_usable" if hasattr(session, "_check_usable") else "_check_open"
    usable = getattr(session, check)
    first_thread: list[threading.Thread] = []

    def hold() -> None:  # called with the lock held
        usable()
        if threading.current_thread() in first_thread:
            inside.set()
            assert go.wait(60)

    monkeypatch.setattr(session, check, hold)
    first = threading.Thread(target=ACTS["run"], args=(session,))
    first_thread.append(first)
    second = threading.Thread(target=ACTS[act], args=(session,))
    first.start()
    assert inside.wait(60)
    second.start()
    second.join(0.1)
    waited = second.is_alive()
    go.set()
    for thread in (first, second):
        thread.join(60)
        assert not thread.is_alive()
    assert waited, f"{act}() got in while run() was inside"
