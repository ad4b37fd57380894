"""Files that a tool writes: whether it can is found out before the work, not after it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from litegpu.errors import OptionError


def require_writable(path: str | os.PathLike[str], *, read: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Raises OptionError if `path` cannot become, or be replaced by, a file, or is one that is to be `read`; makes the
    folders that lead to it."""
    target = Path(path)
    for source in read:
        if _same_file(target, Path(source)):
            raise OptionError(f"Cannot write {target}: it is what is read; give another name")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        existed = target.exists()
        with target.open("ab"):
            pass
        if not existed:
            target.unlink()
    except OSError as error:
        raise OptionError(f"Cannot write {target}: {error.strerror or error}") from None


def all_of(show: Callable[[], object], *writes: Callable[[], object]) -> None:
    """Print results, then write files, each whatever becomes of the others: hours of work are not lost because a disk
    is full. Raises OptionError at the end for what could not be written."""
    problems: list[str] = []
    gone: BrokenPipeError | None = None
    for step in (show, *writes):
        try:
            step()
        except BrokenPipeError as error:
            gone = error
        except OptionError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"Cannot write {error.filename or 'the results'}: {error.strerror or error}")
    if problems:
        raise OptionError("; ".join(problems))
    if gone is not None:
        raise gone


def require_folder(path: str | os.PathLike[str]) -> None:
    """Raises OptionError if `path` is no folder that files can be written into; makes it if it is not there."""
    if Path(path).exists() and not Path(path).is_dir():
        raise OptionError(f"Cannot write into {os.fspath(path)}: it is a file, not a folder")
    require_writable(Path(path) / ".litegpu")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
