"""Keeps what the official runtime prints on stderr out of the user's terminal and passes it to logging instead."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

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
_depth = 0
_saved = -1
_captured: IO[bytes] | None = None


@contextmanager
def quiet() -> Iterator[None]:
    """While any thread is inside, file descriptor 2 goes to a temporary file. When the last one leaves, the runtime's
    own lines go to the logger "litegpu" (its INFO as DEBUG) and every other byte, such as what another thread wrote
    meanwhile, is written to stderr unchanged. Without a stderr nothing is redirected."""
    _enter()
    try:
        yield
    finally:
        _leave()


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


def _enter() -> None:
    global _depth, _saved, _captured
    with _lock:
        _depth += 1
        if _depth > 1:
            return
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


def _leave() -> None:
    global _depth, _saved, _captured
    text = b""
    with _lock:
        _depth -= 1
        if _depth or _saved < 0 or _captured is None:
            return
        os.dup2(_saved, _STDERR)
        os.close(_saved)
        _saved = -1
        _captured.seek(0)
        text = _captured.read()
        _captured.close()
        _captured = None
    if text:
        lines, rest = split(text)
        if rest:
            os.write(_STDERR, rest)
        for level, message in lines:
            log.log(level, "%s", message)
