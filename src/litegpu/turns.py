"""Whose turn it is: an interpreter serves one thread at a time, and says so where threads would mix their results.

An interpreter keeps inputs and outputs between calls, so that no lock inside it could keep apart what several threads
do. It may be handed on: filled by one thread and run by another, or used in turns. What is refused is what would give a
thread the results of another: calls that overlap in time, and cycles of set, invoke and read that interleave.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

from litegpu.boundary import OTHERS, left_alone, typed_error
from litegpu.errors import InvokeError, LiteGpuError

_ADVICE = (
    "One interpreter serves one thread at a time: make one for each thread, hold a lock of your own from the first "
    "set_tensor() to the last get_tensor(), or use litegpu.load(), whose models any number of threads may call."
)
_OWNER = "owner"


class Cycle:
    """What one thread has done: `sets`, when it set which input since its last inference; `invoked`, when that began
    (0: never); `read`, the tensors that it has read since."""

    __slots__ = ("invoked", "read", "sets")

    def __init__(self) -> None:
        self.sets: dict[int, int] = {}
        self.invoked = 0
        self.read: set[int] = set()


class _Cycles(threading.local):
    """That of each thread, made when it first asks."""

    def __init__(self) -> None:
        self.one = Cycle()


class Turns:
    """The turns of one interpreter. What happens in it is numbered."""

    def __init__(self) -> None:
        self.inside: dict[str, int] = {}  # the thread that is inside, if any; setdefault() is atomic
        self._cycles = _Cycles()
        self._now = 0
        self._writers: dict[int, Cycle] = {}  # who set an input last
        self._ran = 0  # when the tensors were last computed, or got new memory ...
        self._runner: Cycle | None = None  # ... and by whom
        self._viewer: Cycle | None = None  # who had the last view of an input

    @property
    def mine(self) -> Cycle:
        """That of the thread that asks."""
        return self._cycles.one

    def setting(self, index: int, is_safe: Callable[[], bool], *, view: bool = False) -> None:
        """This thread writes to an input, or takes a view of it. `is_safe`: whether no view is alive."""
        cycle = self._cycles.one
        viewer = self._viewer
        if viewer is not None and viewer is not cycle:
            if not is_safe():
                raise InvokeError(f"Another thread holds a view of an input (from tensor()). {_ADVICE}")
            self._viewer = None
        if view:
            self._viewer = cycle
        self._now = now = self._now + 1
        cycle.sets[index] = now
        self._writers[index] = cycle

    def beginning(self, cycle: Cycle, *, checked: bool = True) -> None:
        """An inference of the thread that `cycle` belongs to. Raises InvokeError if it would not be on the inputs that
        this thread has set; unless `checked`, as it sets them all."""
        writers, ran, sets = self._writers, self._ran, cycle.sets
        for index in sets if checked else ():
            if writers[index] is not cycle:
                raise InvokeError(
                    f"Input tensor {index}, which this thread has set for its inference, was overwritten by another "
                    f"thread. {_ADVICE}"
                )
            if ran > sets[index] and self._runner is not cycle:
                raise InvokeError(
                    "Another thread has run an inference, or resized the model, since this thread set its inputs. "
                    + _ADVICE
                )
        self.rewriting(cycle)
        cycle.invoked = self._now
        if cycle.read:
            cycle.read.clear()

    def rewriting(self, cycle: Cycle) -> None:
        """The tensors lose their content."""
        self._now = self._ran = self._now + 1
        self._runner = cycle

    def reading(self, index: int) -> Cycle | None:
        """What this thread has done, if the value of an output is of its last inference, where it made one and has not
        read it yet. Whoever has read it then adds it to what was `read`."""
        cycle = self._cycles.one
        if cycle.invoked and self._runner is not cycle and index not in cycle.read:
            return None
        return cycle

    def forked(self) -> bool:
        """In the child of a fork: end the call that a thread is in which is not there; whether there was one."""
        if _OWNER not in self.inside or self.inside[_OWNER] == get_ident():
            return False
        self.inside.clear()
        return True


def lost_results(index: int) -> InvokeError:
    return InvokeError(
        f"Tensor {index} of this thread's last inference is gone: another thread has run an inference, or resized the "
        f"model, before it was read. {_ADVICE}"
    )


class _Shared(Protocol):
    _turns: Turns

    def _settle(self) -> None:
        """Wait for what runs in the background."""


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=_Shared)


def alone(turns: Turns, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`work(...)` while no other thread is inside; raises InvokeError if one is. An interruption leaves nothing locked:
    the owner is a plain value, and between its check and its removal Python looks for no signals."""
    inside, me = turns.inside, get_ident()
    outermost = not (_OWNER in inside and inside[_OWNER] == me)
    try:
        if inside.setdefault(_OWNER, me) != me:
            raise in_use()
        return work(*args, **kwargs)
    finally:
        if outermost and _OWNER in inside and inside[_OWNER] == me:
            del inside[_OWNER]


def exclusive(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that no other thread can be in at the same time, nor in any other such method of the same object: the
    second one raises InvokeError. Waits for what runs in the background first. Its errors are litegpu's
    (boundary.typed_errors), where others call it. What alone() does is done here without a call: three of these are an
    inference."""
    name = method.__name__
    others = () if name.startswith("_") else OTHERS

    @left_alone
    @functools.wraps(method)
    def guarded(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            self._settle()
            inside, me = self._turns.inside, get_ident()
            outermost = not (_OWNER in inside and inside[_OWNER] == me)
            try:
                if inside.setdefault(_OWNER, me) != me:
                    raise in_use()
                return method(self, *args, **kwargs)
            finally:
                if outermost and _OWNER in inside and inside[_OWNER] == me:
                    del inside[_OWNER]
        except LiteGpuError:
            raise
        except others as error:
            raise typed_error(error, name) from error

    return cast("Callable[Concatenate[S, P], R]", guarded)


def in_use() -> InvokeError:
    return InvokeError(f"This interpreter is in use by another thread at this moment. {_ADVICE}")


def is_within(turns: Turns) -> bool:
    """Whether this thread is inside."""
    return turns.inside.get(_OWNER) == get_ident()


def wait_until_free(turns: Turns) -> None:
    """Sleep while another thread is inside."""
    me = get_ident()
    while turns.inside.get(_OWNER, me) != me:
        time.sleep(1e-3)
