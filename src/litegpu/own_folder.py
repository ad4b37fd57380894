"""The folder where what was compiled is kept from one process to the next: the user's own, which nobody else writes."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from litegpu.errors import OptionError

#: Where "auto" is; the user's cache folder by default.
FOLDER_VARIABLE = "LITEGPU_CACHE_DIR"


def default_folder() -> Path:
    """What serialization_dir="auto" means: LITEGPU_CACHE_DIR, or litegpu in the user's cache folder."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(base).expanduser() / "litegpu"
    except RuntimeError:  # a user without a home, as numbers without a name in containers
        raise OptionError(f"There is no home folder to keep a cache in: {FOLDER_VARIABLE} names another") from None


def make_private(path: Path, what: str) -> None:
    """Make a folder, readable by the user alone, if it is missing. Raises OptionError, which calls it `what`, if it
    cannot be made, is no folder, belongs to another user (root's may be read), or others can write to it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise OptionError(f"{what} {path} cannot be made or read: {error.strerror}") from None
    problem = distrust(status)
    if problem:
        raise OptionError(f"{what} {path} {problem}")


def distrust(status: os.stat_result) -> str | None:
    """Why a folder or file of this status may not be read: somebody else could have written it."""
    if not hasattr(os, "getuid"):
        return None
    if status.st_uid not in (os.getuid(), 0):
        return f"belongs to another user (number {status.st_uid}): choose a folder of your own"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):o}): chmod 700 it, or choose another"
    return None
