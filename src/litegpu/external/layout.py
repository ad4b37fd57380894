"""Whether the installed runtime's structures are those that host.c declares.

They are no stable interface, and a wrong one would be memory read or called at random. So a process of its own tries
them before this one trusts them: a small model is run by the official interpreter, one node of it by host.c, and every
field and function that is used has to have its known value or effect. That process may crash. What it found holds for
this library and this version of the runtime, and is kept in the cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import ai_edge_litert

from litegpu.errors import DelegateError
from litegpu.external.shared_library import Library
from litegpu.version import __version__

_SECONDS = 120.0
#: How the trial's last words begin.
DIFFERS = "differs: "


class _Symbol(ctypes.Structure):
    """What dladdr() tells."""

    _fields_ = (
        ("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p),
    )  # fmt: skip


def require_known(function: int) -> None:
    """Raises DelegateError unless a function of the runtime's lies in the installed ai-edge-litert."""
    told = _Symbol()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(function), ctypes.byref(told)) or not told.file:
        raise DelegateError("the interpreter's runtime is not known")
    where = Path(os.fsdecode(told.file)).resolve()
    if not where.is_relative_to(_package()):
        raise DelegateError(f"the interpreter is not ai-edge-litert's, whose structures are known, but of {where}")


def require_checked(library: Library, keep: Path | None) -> None:
    """Raises DelegateError unless the runtime is as the library takes it. `keep`: a folder for what was found."""
    note = keep / f"checked-{_identity(library)}" if keep is not None else None
    if note is not None and note.exists():
        return
    code = "import sys; from litegpu.external.trial import main; main(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, str(library.path)],
            capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise DelegateError(f"the installed ai-edge-litert could not be tried: {error}") from None
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.startswith(DIFFERS)]
        why = told[-1].removeprefix(DIFFERS) if told else f"the trial ended with status {done.returncode}"
        raise DelegateError(
            f"the installed ai-edge-litert is not as litegpu {__version__} knows it ({why}): use litegpu.Interpreter, "
            "which does not depend on that"
        )
    if note is not None:
        note.touch()


def _package() -> Path:
    return Path(next(iter(ai_edge_litert.__path__))).resolve()


def _identity(library: Library) -> str:
    """Of the library and the runtime: their files, as far as these change when they do."""
    files = [library.path, *sorted(_package().glob("*pywrap_litert_*.*"))]
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([told, sys.version]).encode()).hexdigest()[:16]
