"""Makes a shared library of host.c. Needs nothing but Python: hatch_build.py uses it while the wheel is built."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).with_name("host.c")
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_SECONDS = 120.0


class CompilerError(Exception):
    """There is no compiler, or it refused; the text says what to do."""


def file_name() -> str:
    """Of the library: another one for another source or platform."""
    platform = sysconfig.get_platform().replace(".", "_")
    return f"host-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}-{platform}.so"


def compiler() -> list[str]:
    """The command: $CC, or the first there is of cc, gcc and clang. Raises CompilerError."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    wanted = f"CC names {named[0]!r}, which is not there" if named else "neither cc nor gcc nor clang is there"
    raise CompilerError(f"no C compiler: {wanted}. Install one (Debian: gcc, macOS: xcode-select --install)")


def compile_library(folder: Path) -> Path:
    """Compile into `folder`, so that other processes see a whole library or none. Raises CompilerError or OSError."""
    if sys.platform == "win32":
        raise CompilerError("the library is for Linux and macOS; on Windows use litegpu.Interpreter")
    command, target = compiler(), folder / file_name()
    temporary = folder / f".writing-{os.getpid()}-{secrets.token_hex(8)}.so"
    try:
        done = subprocess.run(
            [*command, *_FLAGS, str(SOURCE), "-o", str(temporary)],
            capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode or not temporary.exists():
            raise CompilerError(f"{shlex.join(command)} failed: {done.stderr.strip()[-2000:] or done.returncode}")
        os.replace(temporary, target)
    except subprocess.TimeoutExpired:
        raise CompilerError(f"{shlex.join(command)} took more than {_SECONDS:.0f} s") from None
    finally:
        temporary.unlink(missing_ok=True)
    return target
