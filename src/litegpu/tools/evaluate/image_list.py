"""The images of an evaluation, listed and picked."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import OptionError
from litegpu.tools.folder import kind_of
from litegpu.tools.text_file import read_text

RAW = ".rgb8"  # interleaved RGB bytes, already of the model's size
_MOST_CHARACTERS = 256 << 20  # of a list; the names of a million images take a tenth
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", RAW)


@dataclass(frozen=True)
class Item:
    """One input. `name` tells it apart from all others; `stamp` is (bytes, nanoseconds of the last change), or None if
    the file is missing."""

    name: str
    path: str
    stamp: tuple[int, int] | None


def list_images(folder: str | os.PathLike[str]) -> list[Item]:
    """The images of a folder in byte order of their names, as the official tools sort them.

    Other files than images raise OptionError: each of them would shift the ground truth by one.
    """
    try:
        with os.scandir(folder) as entries:
            files = sorted((e for e in entries if kind_of(e) != "folder"), key=lambda e: os.fsencode(e.name))
    except OSError as error:
        raise OptionError(f"Cannot list the images of {os.fspath(folder)}: {error.strerror}") from None
    others = [e.name for e in files if Path(e.name).suffix.lower() not in EXTENSIONS or kind_of(e) == "other"]
    if others:
        raise OptionError(
            f"{os.fspath(folder)} has {len(others)} files that are no images, such as {others[0]!r}: move them "
            f"elsewhere (images end in {', '.join(EXTENSIONS)})"
        )
    if not files:
        raise OptionError(f"{os.fspath(folder)} has no images")
    return [item_of(folder, e.name) for e in files]


def item_of(folder: str | os.PathLike[str], name: str) -> Item:
    """The image `name` of a folder, whether it is there or not."""
    path = os.path.join(folder, name)
    try:
        found = os.stat(path)
    except OSError:
        return Item(name, path, None)
    return Item(name, path, (found.st_size, found.st_mtime_ns))


def read_denylist(path: str | os.PathLike[str], count: int) -> frozenset[int]:
    """Positions (from 0) of the images that a file leaves out: one number from 1 to `count` a line, none twice."""
    positions: set[int] = set()
    for number, line in enumerate(read_lines(path, "the denylist"), 1):
        where = f"{os.fspath(path)}, line {number}"
        if not line.strip().isdecimal() or not 1 <= int(line) <= count:
            raise OptionError(f"{where}: {line!r} is no image number from 1 to {count}")
        if int(line) - 1 in positions:
            raise OptionError(f"{where}: image {line.strip()} is there twice")
        positions.add(int(line) - 1)
    return frozenset(positions)


def pick(count: int, left_out: Collection[int], wanted: int) -> Sequence[int]:
    """Positions of the first `wanted` (0: all) of `count` images, without those left out."""
    if wanted < 0:
        raise OptionError(f"num_images is {wanted}; it must be 0 (all) or more")
    kept = [i for i in range(count) if i not in left_out]
    if not kept:
        raise OptionError("no image is left to evaluate: the denylist names all of them")
    return kept[:wanted] if wanted else kept


def read_lines(path: str | os.PathLike[str], what: str) -> list[str]:
    """The lines of a text file without their ends (those of Windows too) and without empty lines at the end."""
    lines = read_text(path, what, _MOST_CHARACTERS).splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise OptionError(f"{os.fspath(path)} ({what}) is empty")
    return lines


def read_names(path: str | os.PathLike[str], what: str) -> list[str]:
    """One name a line, without spaces around it; an empty line between others raises OptionError."""
    names = [line.strip() for line in read_lines(path, what)]
    if "" in names:
        raise OptionError(f"{os.fspath(path)} ({what}), line {names.index('') + 1} is empty")
    return names
