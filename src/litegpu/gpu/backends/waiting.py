"""Waiting for a device without a native call that waits: signals, Ctrl-C above all, get through at once."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds between two questions: less is no sleep any more; and what a long wait may be late by.
_SHORTEST, _LONGEST = 20e-6, 5e-3
#: Sleep little longer than this part of the time that was waited already.
_PART = 1 / 32
#: This part of the time that is expected passes without a question.
_EARLY = 0.85


def wait_until(done: Callable[[], object], spin: float = 0.0, expected: float = 0.0) -> None:
    """Return when `done()` says so. It is asked without a pause for `spin` seconds, and then between sleeps, which are
    short from about the time on when it is `expected`, in seconds from now. Python delivers signals between two
    bytecodes of the main thread: a native wait would keep them for as long as the device works."""
    if done():
        return
    clock = time.perf_counter
    start = clock()
    while clock() - start < spin:
        if done():
            return
    due = _EARLY * expected
    while not done():
        elapsed = clock() - start
        pause = due - elapsed if elapsed < due else (elapsed - due) * _PART
        time.sleep(min(max(pause, _SHORTEST), _LONGEST))
