"""NumPy's files of arrays, which may hold anything."""

from __future__ import annotations

import os
import threading

import numpy as np

from litegpu.errors import OptionError

#: NumPy has Python parse headers, which Python 3.11 cannot always do in two threads at once (a SystemError then).
_parsing = threading.Lock()


def read_array(path: str | os.PathLike[str], what: str, *, mapped: bool = False) -> np.ndarray:
    """The array of an .npy file. Raises OptionError for anything else, archives and pickled objects included."""
    try:
        if mapped:
            with _parsing:
                return np.lib.format.open_memmap(path, mode="r")
        with _parsing, open(path, "rb") as file:
            found: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return found
    except Exception as error:  # of many types: NumPy parses a header as Python
        raise _unreadable(path, what, error) from None


def read_archive(path: str | os.PathLike[str], what: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises OptionError for anything else."""
    try:
        with _parsing, open(path, "rb") as file:  # which NumPy leaves open if it is no archive
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("it is one array, not an archive of them")
            members = {name: found[name] for name in found.files}
        for name, member in members.items():
            if not isinstance(member, np.ndarray):
                raise ValueError(f"{name!r} in it is no array")
    except Exception as error:  # of NumPy, zipfile and zlib
        raise _unreadable(path, what, error) from None
    return members


def _unreadable(path: str | os.PathLike[str], what: str, error: Exception) -> OptionError:
    cause = error.strerror if isinstance(error, OSError) else None
    cause = " ".join((cause or str(error) or type(error).__name__).split())
    return OptionError(f"Cannot read {what} {os.fspath(path)}: {cause}")
