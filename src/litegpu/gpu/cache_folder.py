"""A folder of cache entries: private, bounded in size, safe under many processes, and never trusted blindly."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litegpu.errors import OptionError
from litegpu.file_lock import lock
from litegpu.gpu.cache_entry import CacheEntry, EntryError, decode, encode
from litegpu.own_folder import FOLDER_VARIABLE, default_folder, distrust, make_private

#: Of all entries of a folder together; those that were not used longest go first.
BYTES_VARIABLE, DEFAULT_BYTES = "LITEGPU_CACHE_BYTES", 1 << 30
SUFFIX = ".litegpu"
_TEMPORARY = ".writing-"
#: Where files cannot be locked: so old a temporary file is nobody's any more.
_ABANDONED_SECONDS = 3600.0
#: An entry's time of use is written again only after so long.
_USED_SECONDS = 60.0

log = logging.getLogger("litegpu")


@dataclass(frozen=True)
class Listed:
    """A file of the folder. `about` is None if the entry is damaged, `problem` then says how."""

    path: Path
    size: int
    used: float  # seconds since 1970
    about: Mapping[str, Any] | None
    problem: str | None


def open_cache(where: str | os.PathLike[str]) -> CacheFolder | None:
    """The folder that serialization_dir is. The user's own, which nobody has named, is a matter of speed: where it
    cannot be had, as in containers that are read-only, a warning says so, and there is none.

    Raises OptionError for one that was named, also by LITEGPU_CACHE_DIR.
    """
    if where != "auto" or os.environ.get(FOLDER_VARIABLE):
        return CacheFolder(default_folder() if where == "auto" else where)
    try:
        return CacheFolder(default_folder())
    except OptionError as error:
        log.warning("nothing that is compiled is kept: %s", error)
        return None


class CacheFolder:
    """Entries by key in a folder. What goes wrong with an entry costs time, never a result: one warning tells."""

    def __init__(self, path: str | os.PathLike[str], most_bytes: int | None = None) -> None:
        """Makes the folder if it is missing. Raises OptionError: see make_private."""
        self.path = Path(path)
        self.most_bytes = _most_bytes() if most_bytes is None else most_bytes
        self._warned: set[str] = set()
        make_private(self.path, "serialization_dir")

    def load(self, key: str) -> CacheEntry | None:
        """The entry of a key, or None if there is none that can be used. A damaged one is removed, with a warning."""
        path = self._place(key)
        try:
            content = _read_own(path)
        except FileNotFoundError:
            return None
        except (OSError, EntryError) as error:
            self._warn("load", f"The cache entry {path} is not used: {error}")
            return None
        try:
            entry = decode(content)
            if not isinstance(entry.about, dict) or entry.about.get("key") != key:
                raise EntryError("it is of something else")
        except EntryError as error:
            self._warn("load", f"The cache entry {path} is built anew: {error}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _USED_SECONDS:
                os.utime(path)
        return entry

    def store(self, key: str, entry: CacheEntry) -> bool:
        """Write an entry, so that other processes see all of it or nothing, and make room. If that cannot be done (a
        full disk, a folder that is read-only), a warning says so, once, and the result is False."""
        path = self._place(key)
        try:
            self._write(path, entry)
        except OSError as error:
            self._warn("store", f"The cache {self.path} takes no new entries: {error.strerror or error}")
            return False
        self._tidy(path)
        return True

    def list(self) -> list[Listed]:
        """All entries, each checked, the last used first."""
        found = []
        for path in sorted(self.path.glob(f"*{SUFFIX}")):
            try:
                status = path.stat()
                content = _read_own(path)
            except FileNotFoundError:  # another process removed it
                continue
            except (OSError, EntryError) as error:
                found.append(Listed(path, 0, 0.0, None, str(error)))
                continue
            try:
                about, problem = dict(decode(content).about), None
            except EntryError as error:
                about, problem = None, str(error)
            found.append(Listed(path, status.st_size, status.st_mtime, about, problem))
        return sorted(found, key=lambda one: -one.used)

    def clear(self) -> int:
        """Remove all entries, and what dead processes left; how many entries there were."""
        count = 0
        for path in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                count += 1
        self._remove_abandoned()
        return count

    def _place(self, key: str) -> Path:
        return self.path / f"{key}{SUFFIX}"

    def _write(self, path: Path, entry: CacheEntry) -> None:
        temporary = self.path / f"{_TEMPORARY}{os.getpid()}-{os.urandom(8).hex()}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                lock(file.fileno())
                for piece in encode(entry):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def _tidy(self, newest: Path) -> None:
        """Remove the entries that were used longest ago until the rest fits, and what dead processes left."""
        self._remove_abandoned()
        files = []
        for path in self.path.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.most_bytes:
                break
            if path != newest:
                with contextlib.suppress(OSError):
                    path.unlink()
                    total -= size

    def _remove_abandoned(self) -> None:
        """Remove temporary files that no process writes any more: whoever writes one holds a lock on it."""
        for path in self.path.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                if lock(file.fileno()) or time.time() - os.fstat(file.fileno()).st_mtime > _ABANDONED_SECONDS:
                    path.unlink()

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning("%s", message)


# ----------------------------------------------------------------------------------------------


def _read_own(path: Path) -> bytes:
    """The content of a plain file of the user's. Raises EntryError for one that others can write, or OSError."""
    flags = sum(getattr(os, name, 0) for name in ("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        problem = distrust(status) if stat.S_ISREG(status.st_mode) else "is no file"
        if problem:
            raise EntryError(f"it {problem}")
        return file.read()


def _most_bytes() -> int:
    text = os.environ.get(BYTES_VARIABLE, "")
    if not text:
        return DEFAULT_BYTES
    if not text.isdecimal():
        raise OptionError(f"{BYTES_VARIABLE} is {text!r}; it must be a number of bytes")
    return int(text)
