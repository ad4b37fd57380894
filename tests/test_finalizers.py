"""An interrupt that a finalizer has caught arrives where nothing swallows it."""

from __future__ import annotations

import _thread
import gc
import signal
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from litegpu import background
from litegpu.background import in_finalizer, interrupt_soon

SECONDS = 0.05


class _Thing:
    pass


@pytest.fixture
def collector() -> Iterator[list[Any]]:
    """Functions that are called as garbage is collected, and no others: as JAX has one."""
    before = gc.callbacks[:]
    gc.callbacks[:] = []
    yield gc.callbacks
    gc.callbacks[:] = before
    for thread in list(background._left):  # which watches what is unraisable for a while
        thread.join()


def busy() -> None:
    """Python's own instructions for a while: each is a place where the interrupt could be raised."""
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        pass


def test_not_while_garbage_is_collected(collector: list[Any]) -> None:
    told: list[bool] = []

    def called(phase: str, _: dict[str, int]) -> None:
        told.append(in_finalizer(sys._getframe()))
        if phase == "start":
            interrupt_soon()
            busy()

    collector.append(called)
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        gc.collect()
        collector.clear()
        time.sleep(60)
    assert told and all(told) and not in_finalizer(sys._getframe())
    assert time.perf_counter() - start < 30, "it ends a sleep"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals are of the whole process")
def test_sent_again_if_a_wait_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a signal that came before it knows nothing."""
    sent: list[int] = []
    usual, send = signal.getsignal(signal.SIGINT), signal.pthread_kill

    def kill(thread: int, number: int) -> None:
        sent.append(number)
        if len(sent) == 1:
            _thread.interrupt_main()  # which does not end a sleep
        else:
            send(thread, number)

    monkeypatch.setattr(signal, "pthread_kill", kill)
    monkeypatch.setattr(background, "_SOON", 0.2)  # the wait has begun, on a busy machine as well
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        time.sleep(20)
    assert time.perf_counter() - start < 5
    time.sleep(4 * background._WATCHED)  # and no more
    assert sent == [signal.SIGINT] * 2 and signal.getsignal(signal.SIGINT) is usual


def test_a_handler_of_the_users_is_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    usual = signal.signal(signal.SIGINT, mine := lambda number, frame: told.append(number))
    try:
        interrupt_soon()
        time.sleep(4 * background._WATCHED)
        assert told == [signal.SIGINT] and signal.getsignal(signal.SIGINT) is mine
        monkeypatch.setattr(background, "_SOON", 0.2)  # on a busy machine this thread may stand still for a while
        interrupt_soon()
        signal.signal(signal.SIGINT, usual)  # which the user changes meanwhile
        with pytest.raises(KeyboardInterrupt):
            time.sleep(20)
        time.sleep(4 * background._WATCHED)
        assert signal.getsignal(signal.SIGINT) is usual
    finally:
        signal.signal(signal.SIGINT, usual)


def test_raised_again_if_it_is_swallowed(collector: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the garbage collector calls something just then: of which nothing can be seen before."""
    monkeypatch.setattr(background, "in_finalizer", lambda frame: False)
    swallowed: list[bool] = []

    def called(phase: str, _: dict[str, int]) -> None:
        if phase == "stop" and not swallowed:
            try:
                interrupt_soon()
                time.sleep(10)
            except KeyboardInterrupt:
                swallowed.append(True)
                raise

    collector.append(called)
    start, hook = time.perf_counter(), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        gc.collect()
        time.sleep(10)
    assert swallowed == [True] and time.perf_counter() - start < 5
    time.sleep(2 * background._WATCHED)
    assert sys.unraisablehook is hook


def test_not_within_a_weak_reference(collector: list[Any]) -> None:
    ended: list[bool] = []

    def called(_: object) -> None:
        interrupt_soon()
        busy()
        ended.append(True)

    holder: weakref.WeakValueDictionary[str, _Thing] = weakref.WeakValueDictionary()
    holder["thing"] = thing = _Thing()
    final = weakref.finalize(thing, called, None)
    with pytest.raises(KeyboardInterrupt):
        del thing
        time.sleep(10)
    assert ended == [True] and not final.alive
