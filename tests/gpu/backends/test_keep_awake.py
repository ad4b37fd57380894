"""The thread that keeps a GPU awake: it begins when it is needed, and ends."""

from __future__ import annotations

import threading
import time

import pytest

from litegpu.gpu.backends import keep_awake
from litegpu.gpu.backends.keep_awake import KeepAwake


def alive() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "litegpu keep-awake"]


def test_it_ends_when_it_is_stopped() -> None:
    nudged = threading.Event()
    awake = KeepAwake(nudged.set)
    assert not alive()
    awake.used()
    assert nudged.wait(60) and len(alive()) == 1
    (thread,) = alive()
    stopping = threading.Thread(target=awake.stop)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive() and not thread.is_alive()
    awake.used()  # a straggler starts nothing anew
    assert not alive()


def test_it_sleeps_once_nobody_comes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that runs as the test says."""
    now = [100.0]
    asleep = threading.Event()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    nudges: list[float] = []
    awake = KeepAwake(lambda: nudges.append(now[0] - 100.0))
    clear = awake._wanted.clear

    def cleared() -> None:
        clear()
        asleep.set()

    monkeypatch.setattr(awake._wanted, "clear", cleared)
    awake.used()
    assert asleep.wait(60)
    awake.stop()
    assert nudges and min(nudges) >= keep_awake.INTERVAL - 1e-9 and max(nudges) <= keep_awake.PATIENCE
    assert len(nudges) >= 0.9 * (keep_awake.PATIENCE / keep_awake.INTERVAL - 1)
