"""Keeps what the official runtime prints on stderr out of the user's terminal and passes it to logging instead."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO
from weakref import WeakSet

from litegpu.fork import in_child

log = logging.getLogger("litegpu")

# How the runtime's logger starts a line. It has no public switch (TF_CPP_MIN_LOG_LEVEL does not reach it) and writes
# to file descriptor 2 directly, so the descriptor is what has to be redirected.
LEVELS = {
    b"VERBOSE: ": logging.DEBUG,
    b"INFO: ": logging.DEBUG,
    b"WARNING: ": logging.WARNING,
    b"ERROR: ": logging.ERROR,
}

_STDERR = 2
_lock = threading.Lock()
_inside: WeakSet[_Visit] = WeakSet()  # weak: one that is interrupted on its way in or out is gone with its frame
_saved = -1
_captured: IO[bytes] | None = None


@contextmanager
def quiet() -> Iterator[None]:
    """While any thread is inside, file descriptor 2 goes to a temporary file. When the last one leaves, the runtime's
    own lines go to the logger "litegpu" (its INFO as DEBUG) and every other byte, such as what another thread wrote
    meanwhile, is written to stderr unchanged. Without a stderr nothing is redirected."""
    visit = _Visit()
    try:
        _enter(visit)
        yield
    finally:
        _leave(visit)


class _Visit:
    """One thread's stay inside quiet()."""


def split(text: bytes) -> tuple[list[tuple[int, str]], bytes]:
    """The runtime's lines in `text` as (logging level, message), and all the rest."""
    lines, rest = [], []
    for line in text.splitlines(keepends=True):
        for prefix, level in LEVELS.items():
            if line.startswith(prefix):
                lines.append((level, line[len(prefix) :].decode(errors="replace").rstrip()))
                break
        else:
            rest.append(line)
    return lines, b"".join(rest)


@in_child
def _forked() -> None:
    """Other threads were perhaps inside, which will not leave here."""
    global _lock, _inside, _saved, _captured
    _lock = threading.Lock()
    if _saved >= 0:
        with suppress(OSError):  # one of them was just about to put it back
            os.dup2(_saved, _STDERR)
            os.close(_saved)
    _inside, _saved, _captured = WeakSet(), -1, None


def _enter(visit: _Visit) -> None:
    global _saved, _captured
    with _lock:
        _inside.add(visit)
        if _saved >= 0 and _captured is not None:
            return
        import tempfile  # takes 5 ms

        try:
            _saved = os.dup(_STDERR)
        except OSError:  # stderr is closed, as in a daemon or under pythonw
            _saved = -1
            return
        try:
            _captured = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by _leave
            os.dup2(_captured.fileno(), _STDERR)
        except OSError:  # no room for a temporary file: chatter is better than a failure
            os.close(_saved)
            _saved = -1


def _leave(visit: _Visit) -> None:
    global _saved, _captured
    text = b""
    with _lock:
        _inside.discard(visit)
        if len(_inside) or _saved < 0:
            return
        os.dup2(_saved, _STDERR)
        saved, captured = _saved, _captured
        _saved, _captured = -1, None
        os.close(saved)
        if captured is not None:  # else interrupted on the way in
            captured.seek(0)
            text = captured.read()
            captured.close()
    if text:
        lines, rest = split(text)
        if rest:
            os.write(_STDERR, rest)
        for level, message in lines:
            log.log(level, "%s", message)
