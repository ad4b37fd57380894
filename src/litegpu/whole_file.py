"""Files that are there whole, or as they were before: a full disk, or an interruption, leaves no half of one."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.errors import OptionError


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file, or put it in the place of an earlier one, and make the folders that lead to it. Raises OptionError
    where that cannot be; then nothing has changed."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _put(Path(os.path.realpath(target)), content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise OptionError(f"Cannot write {target}: {error.strerror or error}") from None


def _put(target: Path, content: bytes) -> None:
    """By a name of its own first, unless the target is no file (a pipe, a device), or its folder takes no new ones."""
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    if target.exists() and (not target.is_file() or not os.access(target.parent, os.W_OK)):
        target.write_bytes(content)
        return
    try:
        temporary.write_bytes(content)
        if target.exists():
            temporary.chmod(target.stat().st_mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
