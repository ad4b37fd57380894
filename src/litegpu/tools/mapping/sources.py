"""The inputs of a map: files, folders, lists of files, rows of arrays or Parquet, in chunks and in a fixed order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from litegpu.errors import OptionError
from litegpu.tools.arrays import read_array
from litegpu.tools.folder import kind_of
from litegpu.tools.mapping.batched import Interface, ItemPort
from litegpu.tools.mapping.items import Files, Item, Part, Rows, TableRows

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif"}
)
_PARQUET_SUFFIXES = frozenset({".parquet", ".pq"})


@dataclass(frozen=True)
class Chunk:
    """Items number `start`, `start` + 1 and so on, with a name for each."""

    start: int
    names: tuple[str, ...]
    content: Files | Rows | TableRows

    def items(self) -> Iterator[Item]:
        return self.content.items()


@dataclass(frozen=True)
class ItemSource:
    """All inputs, in order. `digest` changes with their names and number."""

    parts: tuple[Part, ...]
    count: int
    digest: str

    def chunks(self, size: int, wanted: Sequence[range]) -> Iterator[Chunk]:
        """The inputs of the numbers in `wanted`, which rise, `size` at a time at most. No chunk spans two parts."""
        start = 0
        for part in self.parts:
            count = part.count()
            for numbers in wanted:
                first, end = max(numbers.start - start, 0), min(numbers.stop - start, count)
                if first < end:
                    at = start + first
                    for names, content in part.read(size, first, end):
                        yield Chunk(at, names, content)
                        at += len(names)
            start += count


def open_source(
    inputs: Sequence[str | os.PathLike[str]], interface: Interface, columns: Mapping[str, str]
) -> ItemSource:
    """Look at all inputs, without reading more than names and headers. Raises OptionError for what is not there, is of
    an unknown kind, or cannot be what the model takes.

    `columns`: name of an input -> column of Parquet; "" is the name of the only one.
    """
    if not inputs:
        raise OptionError(
            "No inputs were given: name folders, images, .npy files, Parquet files, or .txt lists of files"
        )
    parts: list[Part] = []
    for one in inputs:
        path = os.fspath(one)
        if not os.path.exists(path):
            raise OptionError(f"There is no file or folder {path}")
        parts.append(_part(path, interface, columns))
    digest, count = hashlib.sha256(), 0
    for part in parts:
        for name in part.identity():
            digest.update(name.encode(errors="surrogateescape") + b"\0")
        count += part.count()
    if not count:
        raise OptionError(f"There are no inputs in {', '.join(os.fspath(i) for i in inputs)}")
    return ItemSource(tuple(parts), count, digest.hexdigest())


def is_array_file(path: str) -> bool:
    return path.lower().endswith(".npy")


# ------------------------------------------------------------------------------------------------ kinds of inputs


def _part(path: str, interface: Interface, columns: Mapping[str, str]) -> Part:
    suffix = Path(path).suffix.lower()
    if suffix in _PARQUET_SUFFIXES:
        from litegpu.tools.mapping.table import TablePart

        return TablePart(path, interface, columns)
    port = _only_input(interface, path)
    if os.path.isdir(path):
        return _FolderPart(path)
    if suffix == ".npy":
        return _array_part(path, port)
    if suffix in IMAGE_SUFFIXES:
        return _FilesPart((path,))
    if suffix == ".txt":
        return _ListPart(path)
    raise OptionError(
        f"{path} is nothing that map reads: folders, images, .npy, Parquet, .txt with the name of a file in each line"
    )


def _only_input(interface: Interface, path: str) -> ItemPort:
    if len(interface.inputs) > 1:
        names = ", ".join(port.name for port in interface.inputs)
        raise OptionError(f"The model has several inputs ({names}): give Parquet with a column for each, not {path}")
    return interface.inputs[0]


class _PathsPart(Part):
    """Files, one item each. They are listed again for every purpose rather than kept."""

    _count: int | None = None

    def paths(self) -> Iterator[str]:
        raise NotImplementedError

    def count(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self.paths())
        return self._count

    def identity(self) -> Iterator[str]:
        return self.paths()

    def read(self, size: int, first: int, end: int) -> Iterator[tuple[tuple[str, ...], Files]]:
        paths = islice(self.paths(), first, end)
        while names := tuple(islice(paths, size)):
            yield names, Files(names)


class _FilesPart(_PathsPart):
    """Files that were named."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def paths(self) -> Iterator[str]:
        return iter(self._names)


class _FolderPart(_PathsPart):
    """Images and .npy files in a folder and the folders in it, by name; each .npy is an item."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def paths(self) -> Iterator[str]:
        return _walk(self._folder)


def _walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """`above`: the folders that it lies in, which a link in it may lead back to."""
    try:
        status = os.stat(folder)
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise OptionError(f"Cannot read the folder {folder}: {error.strerror}") from None
    place = (status.st_dev, status.st_ino)
    if place in above:
        return
    for entry in found:
        kind = kind_of(entry)
        if kind == "folder":
            yield from _walk(entry.path, above | {place})
        elif kind == "file" and _is_data(entry.name):
            yield entry.path


def _is_data(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES | {".npy"} and not name.startswith(".")


class _ListPart(_PathsPart):
    """A text file with the name of a file in each line, relative to its folder. They may be missing."""

    def __init__(self, path: str) -> None:
        self._path = path

    def paths(self) -> Iterator[str]:
        folder = os.path.dirname(self._path)
        try:
            with open(self._path, encoding="utf-8-sig") as file:
                for line in file:
                    if line.strip():
                        yield os.path.join(folder, line.strip())
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"Cannot read the list {self._path}: {error}") from None


class _RowsPart(Part):
    """The rows of an .npy file."""

    def __init__(self, path: str, rows: int) -> None:
        self._path, self._rows = path, rows

    def count(self) -> int:
        return self._rows

    def identity(self) -> Iterator[str]:
        yield f"{self._path}#{self._rows}"

    def read(self, size: int, first: int, end: int) -> Iterator[tuple[tuple[str, ...], Rows]]:
        for start in range(first, end, size):
            count = min(size, end - start)
            yield tuple(f"{self._path}#{row}" for row in range(start, start + count)), Rows(self._path, start, count)


def _array_part(path: str, port: ItemPort) -> Part:
    """One item if the array has an item's shape, else rows."""
    array = read_array(path, "the array", mapped=True)
    if array.shape == port.shape:
        return _FilesPart((path,))
    size = int(np.prod(port.shape))
    if array.ndim and (array.shape[1:] == port.shape or (array.ndim == 2 and array.shape[1] == size)):
        return _RowsPart(path, len(array))
    raise OptionError(
        f"{path} has shape {list(array.shape)}; the model takes {list(port.shape)}, or rows of that: "
        f"[{', '.join(('any number', *map(str, port.shape)))}]"
    )
