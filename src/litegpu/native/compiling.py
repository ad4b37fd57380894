"""Makes shared libraries of the C files of the package. Needs nothing but Python: hatch_build.py uses it while the
wheel is built."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_SECONDS = 120.0


class CompilerError(Exception):
    """There is no compiler, or it refused; the text says what to do."""


@dataclass(frozen=True)
class Sources:
    """The C files and headers of a folder, of which one library is made. `name`: what that is called, as far as it does
    not follow from what is in them."""

    folder: Path
    name: str

    def file_name(self) -> str:
        """Of the library: another one for other sources or another platform."""
        platform = sysconfig.get_platform().replace(".", "_")
        digest = hashlib.sha256()
        for path in self._files("*.[ch]"):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return f"{self.name}-{digest.hexdigest()[:16]}-{platform}.so"

    def compile(self, folder: Path) -> Path:
        """Make the library in `folder`, so that other processes see a whole one or none. Raises CompilerError or
        OSError."""
        import shlex  # these are imported where there is something to compile
        import subprocess

        if sys.platform == "win32":
            raise CompilerError("the library is for Linux and macOS; on Windows use litegpu.Interpreter")
        command, target = compiler(), folder / self.file_name()
        temporary = folder / f".writing-{os.getpid()}-{os.urandom(8).hex()}.so"
        try:
            done = subprocess.run(
                [*command, *_FLAGS, *map(str, self._files("*.c")), "-o", str(temporary)],
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

    def _files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))


_PACKAGE = Path(__file__).resolve().parents[1]
#: The entry points of an external delegate of the official runtime.
EXTERNAL = Sources(_PACKAGE / "external", "host")
#: What Python is too slow for, or holds its lock too long.
NATIVE = Sources(_PACKAGE / "native", "native")


def compiler() -> list[str]:
    """The command: $CC, or the first there is of cc, gcc and clang. Raises CompilerError."""
    import shlex
    import shutil

    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    wanted = f"CC names {named[0]!r}, which is not there" if named else "neither cc nor gcc nor clang is there"
    raise CompilerError(f"no C compiler: {wanted}. Install one (Debian: gcc, macOS: xcode-select --install)")
