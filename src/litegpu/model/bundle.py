"""Files that hold several models: MediaPipe's .task bundles (zip archives) and LiteRT-LM's .litertlm containers.

A model in a bundle has a path like `gesture.task/hand_landmarker.task/hand_detector.tflite`: the bundle's, then its
name inside. Nothing is unpacked to disk; models that are stored as they are, are not copied either.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from litegpu.boundary import reading, typed
from litegpu.errors import ModelError
from litegpu.limits import MEMORY_VARIABLE, limits
from litegpu.model.mapping import map_file

if TYPE_CHECKING:
    import zipfile  # takes 20 ms, which a plain model is not to wait for

_ZIP, _LITERTLM, _TFLITE = b"PK\x03\x04", b"LITERTLM", b"TFL3"
#: Bundles in bundles in bundles.
_DEPTH = 4
#: No model is larger unpacked (flatbuffers end at 2 GiB; larger models are stored as they are), nor compressed so well.
_LARGEST, _BEST_RATIO, _LIKELY_RATIO = 2 << 30, 1100, 16
#: What the sections of a .litertlm container hold, as far as it matters here.
_MODEL_SECTION, _WEIGHTS_SECTION = 3, 7
_STRING_VALUE = 9  # the member of the union of values


@dataclass(frozen=True)
class BundledModel:
    """A model in a bundle: its name there, its size in bytes, and what reads it."""

    name: str
    size: int
    read: Callable[[], memoryview]


@typed
def list_models(path: str | os.PathLike[str]) -> list[BundledModel]:
    """The models in a bundle, in its order; [] for a file that is no bundle. Raises ModelError for a broken one, and
    for one whose inner bundles would unpack to more than 1 GiB (see litegpu.limits)."""
    where = os.fspath(path)
    with reading(f"'{where}'"):
        content = map_file(where)
        return list(_models(content, where, 0, _Unpacking())) if _is_bundle(content) else []


def bundled_content(path: str | os.PathLike[str]) -> memoryview | None:
    """The bytes of the model that `path` names in a bundle, or of its only model if `path` is the bundle; None for what
    is no bundle. Raises ModelError with the names if there are several, or none of that name."""
    with reading(f"'{os.fspath(path)}'"):
        file, name = _split(os.fspath(path))
        if not os.path.isfile(file):
            return None
        with open(file, "rb") as opened:
            if not _is_bundle(memoryview(opened.read(8))):
                return None
    models = list_models(file)
    if not models:
        raise ModelError(f"'{file}' is a bundle without a .tflite model.")
    chosen = [m for m in models if m.name == name] if name else models
    if len(chosen) != 1:
        problem = f"has no model '{name}'" if name else f"holds {len(models)} models: name one of them"
        names = ", ".join(f"'{file}/{m.name}'" for m in models)
        raise ModelError(f"'{file}' {problem}. There are {names}.")
    return chosen[0].read()


def _split(path: str) -> tuple[str, str]:
    """The file that a path leads to or through, and what follows."""
    rest: list[str] = []
    place = path
    while place and not os.path.exists(place):
        place, _, last = place.replace(os.sep, "/").rpartition("/")
        rest.insert(0, last)
    return (place, "/".join(rest)) if place and os.path.isfile(place) else (path, "")


def _is_bundle(content: memoryview) -> bool:
    start = bytes(content[:8])
    return start.startswith(_ZIP) or start == _LITERTLM


class _Unpacking:
    """Counts what is unpacked of one file, bundles in bundles included."""

    def __init__(self) -> None:
        self._limit, self._total = limits().unstated_memory, 0

    def add(self, size: int, where: str) -> None:
        """Raises ModelError if `size` bytes more are too many."""
        self._total += size
        if self._total > self._limit:
            raise ModelError(
                f"'{where}' would unpack, with what was before it in its bundle, to {self._total:,} bytes, where "
                f"{self._limit:,} are allowed; if that is meant, set the environment variable {MEMORY_VARIABLE} to "
                f"{self._total} or more (see litegpu.limits)"
            )


def _models(content: memoryview, where: str, depth: int, unpacking: _Unpacking) -> Iterator[BundledModel]:
    if depth == _DEPTH:
        raise ModelError(f"'{where}': bundles are nested more than {_DEPTH} deep.")
    try:
        if bytes(content[:8]) == _LITERTLM:
            yield from _sections(content, where)
        else:
            yield from _members(content, where, depth, unpacking)
    except ModelError:
        raise
    except _damage() as error:
        raise ModelError(f"'{where}' is a damaged bundle: {error}. Fetch it again.") from None


# ------------------------------------------------------------------------------------------------ zip archives


def _damage() -> tuple[type[Exception], ...]:
    """What reading a broken file raises."""
    import zipfile

    return (
        zipfile.BadZipFile, zlib.error, struct.error, EOFError, IndexError, ValueError, OSError, NotImplementedError,
        RuntimeError,
    )  # fmt: skip


def _members(content: memoryview, where: str, depth: int, unpacking: _Unpacking) -> Iterator[BundledModel]:
    import zipfile

    archive = zipfile.ZipFile(_File(content))
    members = archive.infolist()
    if sum(info.compress_size for info in members) > len(content):
        raise ModelError(f"'{where}': its members overlap: they take more bytes than the file has. Fetch it again.")
    for info in members:
        if info.is_dir() or info.file_size < 8:
            continue
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ModelError(
                f"'{where}': '{info.filename}' is compressed by method {info.compress_type}, where bundles use deflate."
            )
        if info.flag_bits & 1:
            raise ModelError(f"'{where}': '{info.filename}' is encrypted, which is not supported.")
        place = f"{where}/{info.filename}"
        with archive.open(info) as member:
            start = member.read(8)
        if start[4:8] == _TFLITE:
            yield BundledModel(info.filename, info.file_size, _reader(archive, info, content, place))
        elif _is_bundle(memoryview(start)):
            if info.compress_type != zipfile.ZIP_STORED:
                unpacking.add(info.file_size, place)
            inner = _read(archive, info, content, place)
            for model in _models(inner, place, depth + 1, unpacking):
                yield BundledModel(f"{info.filename}/{model.name}", model.size, model.read)


def _reader(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: memoryview, where: str
) -> Callable[[], memoryview]:
    return lambda: _read(archive, info, content, where)


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: memoryview, where: str) -> memoryview:
    import zipfile

    if info.compress_type == zipfile.ZIP_STORED:
        names, extra = struct.unpack_from("<HH", content, info.header_offset + 26)
        begin = info.header_offset + 30 + names + extra
        if begin + info.file_size > len(content):
            raise ModelError(f"'{where}' is cut off. Fetch the bundle again.")
        return content[begin : begin + info.file_size]
    if info.file_size > min(_LARGEST, _BEST_RATIO * max(info.compress_size, 1)):
        raise ModelError(f"'{where}' would unpack to {info.file_size} bytes, more than a model can have.")
    if info.file_size > _LIKELY_RATIO * info.compress_size:  # weights do not get so small
        _Unpacking().add(info.file_size, where)
    try:
        return memoryview(archive.read(info))
    except _damage() as error:
        raise ModelError(f"'{where}' cannot be unpacked: {error}. Fetch the bundle again.") from None


class _File(io.RawIOBase):
    """A memoryview as a file that can be read and sought."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._content))[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._content[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


# ------------------------------------------------------------------------------------------------- LiteRT-LM


def _sections(content: memoryview, where: str) -> Iterator[BundledModel]:
    """The header is a flatbuffer from byte 32 on, whose end is in byte 24; it lists the sections of the file."""
    (end,) = struct.unpack_from("<Q", content, 24)
    if not 36 <= end <= len(content):
        raise ModelError(f"'{where}' is a damaged .litertlm container: its header ends at byte {end}.")
    header = content[32:end]
    sections = [_Table(header, t) for t in _Table.root(header).table(1).tables(0)]
    kinds = [section.number(3, "<B") for section in sections]
    if _WEIGHTS_SECTION in kinds:
        raise ModelError(f"'{where}' keeps its models' weights in sections of their own, which is not supported.")
    number = 0
    for section, kind in zip(sections, kinds, strict=True):
        if kind != _MODEL_SECTION:
            continue
        begin, stop = section.number(1, "<Q"), section.number(2, "<Q")
        if not end <= begin <= stop <= len(content):
            raise ModelError(f"'{where}' is cut off: a section is at bytes {begin} to {stop} of {len(content)}.")
        name = _model_type(section) or f"model_{number}"
        number += 1
        part = content[begin:stop]
        yield BundledModel(f"{name}.tflite", len(part), lambda part=part: part)  # type: ignore[misc]


def _model_type(section: _Table) -> str:
    for item in section.tables(0):
        pair = _Table(section.content, item)
        if pair.text(0) == "model_type" and pair.number(1, "<B") == _STRING_VALUE:
            return pair.table(2).text(0).rpartition(".")[2].lower()
    return ""


class _Table:
    """A table of a flatbuffer, by the numbers of its fields. Offsets outside raise struct.error or IndexError."""

    def __init__(self, content: memoryview, at: int) -> None:
        self.content, self.at = content, at

    @classmethod
    def root(cls, content: memoryview) -> _Table:
        return cls(content, struct.unpack_from("<I", content, 0)[0])

    def number(self, field: int, form: str) -> int:
        at = self._field(field)
        return int(struct.unpack_from(form, self.content, at)[0]) if at else 0

    def table(self, field: int) -> _Table:
        at = self._field(field)
        if not at:
            raise IndexError(f"field {field} is missing")
        return _Table(self.content, at + self.number(field, "<I"))

    def tables(self, field: int) -> list[int]:
        """Where the tables of a vector begin."""
        if not self._field(field):
            return []
        vector = self.table(field).at
        (count,) = struct.unpack_from("<I", self.content, vector)
        if count > len(self.content) // 4:
            raise IndexError(f"a vector has {count} elements")
        places = [vector + 4 + 4 * i for i in range(count)]
        return [place + int(struct.unpack_from("<I", self.content, place)[0]) for place in places]

    def text(self, field: int) -> str:
        if not self._field(field):
            return ""
        at = self.table(field).at
        (count,) = struct.unpack_from("<I", self.content, at)
        return bytes(self.content[at + 4 : at + 4 + count]).decode()

    def _field(self, field: int) -> int:
        table = self.at - struct.unpack_from("<i", self.content, self.at)[0]
        if table < 0:
            raise IndexError("a table is outside the file")
        (size,) = struct.unpack_from("<H", self.content, table)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.content, table + 4 + 2 * field)
        return self.at + int(offset) if offset else 0
