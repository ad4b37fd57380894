"""What fork() leaves behind: locks of threads that the child does not have, and a GPU driver that does not work there.

A child of a process that has used a GPU must not touch it, not even to free something: drivers keep threads and locks
of their own. So everything that would raises ForkError there, at once, and what belongs to the GPU is left alone.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from typing import NoReturn, Protocol
from weakref import WeakKeyDictionary

from litegpu.errors import ForkError


class Follower(Protocol):
    """What has locks, threads, or a part of a GPU."""

    def _forked(self) -> None:
        """Called in the child, which has one thread."""


log = logging.getLogger("litegpu")

_used = False
_forbidden = False
_count = 0
_followers: WeakKeyDictionary[Follower, None] = WeakKeyDictionary()
_calls: list[Callable[[], None]] = []


def follow(follower: Follower) -> None:
    """Tell it, as long as it lives, that the process was forked: what came last first, as what an object is made of
    comes after it, and its locks have to be free when the object is told."""
    _followers[follower] = None


def in_child(call: Callable[[], None]) -> Callable[[], None]:
    """Decorates a function that is called in the child after a fork."""
    _calls.append(call)
    return call


def gpu_is_used() -> None:
    """From now on a child of this process cannot use a GPU."""
    global _used
    _used = True


def is_forbidden() -> bool:
    """Whether this process must not touch the GPU."""
    return _forbidden


def check() -> None:
    """Raises ForkError if this process must not touch the GPU."""
    if _forbidden:
        refuse()


def count() -> int:
    """How often this process was forked: memory from before shares its pages with a child."""
    return _count


def refuse() -> NoReturn:
    raise ForkError(
        "this process was forked from one that had used a GPU, or OpenVINO, and neither works in such a child: start "
        'processes afresh, with multiprocessing.set_start_method("spawn") (PyTorch: '
        'DataLoader(multiprocessing_context="spawn"), '
        "gunicorn: without --preload), or use the GPU only after the fork. The CPU works here as well: "
        'device="cpu"'
    )


def keep(thing: object) -> None:
    """Never free it, not even when Python ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class Refusal:
    """In place of a lock or a context on the way to the GPU."""

    def __enter__(self) -> NoReturn:
        refuse()

    def __exit__(self, *_: object) -> None:
        """Never entered."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        refuse()

    def release(self) -> None:
        """Never acquired."""

    def locked(self) -> bool:
        return False


def _after() -> None:
    global _forbidden
    _forbidden = _used
    for call in _calls:
        call()
    for follower in reversed(list(_followers)):
        try:
            follower._forked()
        except Exception as error:  # the others' locks still have to be renewed
            log.warning("After a fork: %s: %s", type(error).__name__, error)


def _in_parent() -> None:
    global _count
    _count += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after, after_in_parent=_in_parent)
