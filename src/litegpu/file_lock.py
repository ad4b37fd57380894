"""Locks on open files and folders, which the system takes back when they are closed or the process ends."""

from __future__ import annotations


def lock(handle: int) -> bool | None:
    """Lock what a file descriptor is open on. False if it is locked already, by whoever opened it another time, in this
    process or another; None if that cannot be known here (Windows, some network file systems)."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
