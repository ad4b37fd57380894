"""Files that a tool will write: whether it can is found out before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from litegpu.errors import OptionError


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raises OptionError if `path` cannot become, or be replaced by, a file; makes the folders that lead to it."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        existed = target.exists()
        with target.open("ab"):
            pass
        if not existed:
            target.unlink()
    except OSError as error:
        raise OptionError(f"Cannot write {target}: {error.strerror or error}") from None


def require_folder(path: str | os.PathLike[str]) -> None:
    """Raises OptionError if `path` is no folder that files can be written into; makes it if it is not there."""
    require_writable(Path(path) / ".litegpu")
