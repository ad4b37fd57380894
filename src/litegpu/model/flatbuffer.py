"""Decodes flatbuffers of the .tflite schema into plain values, checking every offset on the way, and encodes them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.model import schema
from litegpu.model.schema import Field, Kind

IDENTIFIER = b"TFL3"

Table = dict[str, Any]

_MAX_VISITS = 1_000_000  # as flatbuffers' own verifier: more tables than this is an attack, not a model
_MAX_SHARED = 1 << 22  # elements of vectors that tables share, beyond those that the file has


class FormatError(Exception):
    """The bytes are not a flatbuffer of this schema; `path` says in which field, outermost first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.path: list[str] = []

    def __str__(self) -> str:
        place = "".join(self.path).lstrip(".")
        return f"{place}: {self.args[0]}" if place else str(self.args[0])


def decode(content: memoryview) -> Table:
    """The root table "Model" of a file, with every table below it.

    A table is a dict from field name to value. Absent scalars have the schema's default, absent vectors of tables are
    empty, other absent fields are None. Vectors of bytes are memoryviews and other vectors of scalars NumPy arrays;
    both are views of `content`.

    Raises:
        FormatError: an offset, length or string leaves the file, or an enumeration of tables is unknown.
    """
    if len(content) < 8:
        raise FormatError(f"{len(content)} bytes are too few for a model")
    if content[4:8] != IDENTIFIER:
        raise FormatError(f"the file identifier is {bytes(content[4:8])!r} where {IDENTIFIER!r} should be")
    decoder = _Decoder(content)
    return decoder.table("Model", decoder.follow(0))


@dataclass(frozen=True)
class _Layout:
    """Where one vtable puts the fields of a table."""

    size: int
    defaults: Table
    present: tuple[tuple[str, int, Callable[[int], Any]], ...]
    unions: tuple[tuple[str, str, str], ...]  # field, field of its type, union


class _Decoder:
    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._size = len(content)
        self._visits = min(self._size, _MAX_VISITS) + 1024
        self._elements = self._size + _MAX_SHARED
        self._layouts: dict[tuple[str, int], _Layout] = {}

    def follow(self, position: int) -> int:
        """The position that the offset stored at `position` refers to."""
        target: int = position + _UINT32.unpack_from(self._content, position)[0]
        if target & 3 or target > self._size - 4:
            raise FormatError(f"the offset at byte {position} leads to byte {target} of {self._size}")
        return target

    def table(self, name: str, position: int) -> Table:
        self._visits -= 1
        if self._visits < 0:
            raise FormatError("more tables than the file has room for: they refer to each other again and again")
        vtable: int = position - _INT32.unpack_from(self._content, position)[0]
        layout = self._layouts.get((name, vtable)) or self._layout(name, vtable)
        if position + layout.size > self._size:
            raise FormatError(f"a table at byte {position} reaches beyond the end of the file")
        values = layout.defaults.copy()
        for field, offset, read in layout.present:
            try:
                values[field] = read(position + offset)
            except FormatError as error:
                error.path.insert(0, f".{field}")
                raise
        for field, type_field, union in layout.unions:
            values[field] = self._union(values[field], values[type_field], union, field)
        return values

    def _layout(self, name: str, vtable: int) -> _Layout:
        if vtable & 1 or not 0 <= vtable <= self._size - 4:
            raise FormatError(f"a table has its vtable at byte {vtable} of {self._size}")
        vtable_size, table_size = struct.unpack_from("<HH", self._content, vtable)
        if vtable_size < 4 or vtable_size & 1 or vtable + vtable_size > self._size or table_size < 4:
            raise FormatError(f"the vtable at byte {vtable} has impossible sizes {vtable_size} and {table_size}")
        offsets = struct.unpack_from(f"<{(vtable_size - 4) // 2}H", self._content, vtable + 4)
        defaults: Table = {}
        present = []
        unions = []
        for field in schema.fields(name):
            defaults[field.name] = _absent(field)
            offset = offsets[field.slot] if field.slot < len(offsets) else 0
            if offset == 0:
                continue
            width = struct.calcsize("<" + field.code) if field.kind is Kind.SCALAR else 4
            if offset < 4 or offset + width > table_size or (offset & 3 and width >= 4):
                raise FormatError(f"field {field.name} lies at byte {offset} of a table of {table_size} bytes")
            present.append((field.name, offset, self._reader(field)))
            if field.kind is Kind.UNION:
                unions.append((field.name, f"{field.name}_type", field.table))
        layout = _Layout(table_size, defaults, tuple(present), tuple(unions))
        self._layouts[name, vtable] = layout
        return layout

    def _reader(self, field: Field) -> Callable[[int], Any]:
        content = self._content
        match field.kind:
            case Kind.SCALAR:
                unpack = struct.Struct("<" + field.code).unpack_from
                return lambda position: unpack(content, position)[0]
            case Kind.STRING:
                return self._string
            case Kind.TABLE:
                return lambda position: self.table(field.table, self.follow(position))
            case Kind.UNION:
                return self.follow
            case Kind.SCALARS:
                dtype = np.dtype("u1" if field.code == "?" else "<" + field.code)
                return lambda position: self._scalars(position, dtype)
            case Kind.STRINGS:
                return lambda position: self._each(position, "", self._string_at)
            case Kind.TABLES:
                return lambda position: self._each(position, field.table, self.table)

    def _string(self, position: int) -> str:
        return self._string_at("", self.follow(position))

    def _string_at(self, _: str, position: int) -> str:
        start, length = self._vector(position, 1)
        if start + length >= self._size or self._content[start + length] != 0:
            raise FormatError(f"the string at byte {position} does not end")
        return str(self._content[start : start + length], "utf-8", "backslashreplace")

    def _scalars(self, position: int, dtype: np.dtype[Any]) -> Any:
        start, length = self._vector(self.follow(position), dtype.itemsize)
        if dtype.itemsize == 1:
            return self._content[start : start + length]
        self._count(length)
        return np.frombuffer(self._content, dtype, length, start)

    def _each(self, position: int, table: str, read: Callable[[str, int], Any]) -> tuple[Any, ...]:
        start, length = self._vector(self.follow(position), 4)
        self._count(length)
        values = []
        for element in range(length):
            try:
                values.append(read(table, self.follow(start + 4 * element)))
            except FormatError as error:
                error.path.insert(0, f"[{element}]")
                raise
        return tuple(values)

    def _count(self, length: int) -> None:
        """Vectors may be shared, but not so often that a small file becomes a large model."""
        self._elements -= length
        if self._elements < 0:
            raise FormatError("more elements in vectors than the file has room for: tables share them again and again")

    def _vector(self, position: int, width: int) -> tuple[int, int]:
        length: int = _UINT32.unpack_from(self._content, position)[0]
        if position + 4 + length * width > self._size:
            raise FormatError(f"a vector of {length} elements at byte {position} reaches beyond the end of the file")
        return position + 4, length

    def _union(self, position: int, kind: int, union: str, field: str) -> Table | None:
        table = schema.enum_names(union).get(kind)
        if table is None:
            raise FormatError(f"{field} is of kind {kind}, which the installed ai-edge-litert does not know")
        if table == "NONE":
            return None
        try:
            return self.table(table, position)
        except FormatError as error:
            error.path.insert(0, f".{field}")
            raise


def _absent(field: Field) -> Any:
    if field.kind is Kind.SCALAR:
        return field.default
    return () if field.kind in (Kind.TABLES, Kind.STRINGS) else None


_UINT32 = struct.Struct("<I")
_INT32 = struct.Struct("<i")


def encode(root: Table, *, blobs_outside: bool | None = None) -> bytes:
    """The file whose root table "Model" has these values, the inverse of `decode`.

    Fields that are None, or equal to the schema's default, are left out. Vectors may be any sequence, or bytes-like for
    vectors of bytes. The data of buffers goes to the end, aligned to 16 bytes, and is copied once.
    `blobs_outside` puts it behind the flatbuffer, where files of more than 2 GB need it (the default then).
    """
    if blobs_outside is None:
        blobs_outside = sum(len(buffer["data"] or b"") for buffer in root["buffers"]) > _MAX_FLATBUFFER
    encoder = _Encoder(blobs_outside)
    return encoder.file(root)


class _Encoder:
    """Writes front to back: a table, then what it refers to, so that every offset points forward."""

    def __init__(self, blobs_outside: bool) -> None:
        self._out = bytearray(8)
        self._vtables: dict[bytes, int] = {}
        self._blobs_outside = blobs_outside
        self._blobs: list[tuple[int, memoryview]] = []  # where its reference is, its bytes

    def file(self, root: Table) -> bytes:
        self._out[4:8] = IDENTIFIER
        self._refer(0, self._table("Model", root))
        chunks: list[bytes | bytearray | memoryview] = [self._out]
        size = len(self._out)
        for reference, blob in self._blobs:
            header = b"" if self._blobs_outside else _UINT32.pack(len(blob))
            padding = -(size + len(header)) % _BLOB_ALIGNMENT
            chunks += [bytes(padding), header, blob]
            start = size + padding
            size = start + len(header) + len(blob)
            if self._blobs_outside:
                _UINT64.pack_into(self._out, reference, start)
            else:
                self._refer(reference, start)
        chunks.append(bytes(-size % 4))
        return b"".join(chunks)

    def _refer(self, position: int, target: int) -> None:
        _UINT32.pack_into(self._out, position, target - position)

    def _align(self, width: int, ahead: int = 0) -> int:
        """Pads so that what follows after `ahead` more bytes is aligned to `width`; the position reached."""
        self._out += bytes(-(len(self._out) + ahead) % width)
        return len(self._out)

    def _table(self, name: str, values: Table) -> int:
        if name == "Buffer":
            values = self._placed(values)
        present = [field for field in schema.fields(name) if _is_present(field, values.get(field.name))]
        present.sort(key=_width, reverse=True)
        offsets, size = {}, 4
        for field in present:
            size += -size % _width(field)
            offsets[field.slot] = size
            size += _width(field)
        vtable = self._vtable(offsets, size)
        position = self._align(8)
        self._out += bytes(size)
        _INT32.pack_into(self._out, position, position - vtable)
        for field in present:
            self._field(name, field, position + offsets[field.slot], values)
        return position

    def _placed(self, buffer: Table) -> Table:
        data = buffer["data"]
        if self._blobs_outside and data is not None and len(data):
            return {"offset": _UNPLACED, "size": len(data), "outside": data}
        return buffer

    def _vtable(self, offsets: dict[int, int], table_size: int) -> int:
        slots = max(offsets, default=-1) + 1
        content = struct.pack(f"<{slots + 2}H", 4 + 2 * slots, table_size, *(offsets.get(i, 0) for i in range(slots)))
        position = self._vtables.get(content)
        if position is None:
            position = self._vtables[content] = self._align(2)
            self._out += content
        return position

    def _field(self, table: str, field: Field, position: int, values: Table) -> None:
        value = values[field.name]
        match field.kind:
            case Kind.SCALAR:
                try:
                    struct.pack_into("<" + field.code, self._out, position, value)
                except struct.error as error:
                    raise ValueError(f"{table}.{field.name} cannot hold {value!r}: {error}") from None
                if field.name == "offset" and "outside" in values:
                    self._blobs.append((position, memoryview(values["outside"])))
            case Kind.STRING:
                self._refer(position, self._string(value))
            case Kind.TABLE:
                self._refer(position, self._table(field.table, value))
            case Kind.UNION:
                kind = schema.enum_names(field.table)[values[f"{field.name}_type"]]
                self._refer(position, self._table(kind, value))
            case Kind.SCALARS if (table, field.name) == ("Buffer", "data") and len(value):
                self._blobs.append((position, memoryview(value)))
            case Kind.SCALARS:
                self._refer(position, self._scalars(table, field, value))
            case Kind.STRINGS | Kind.TABLES:
                start = self._align(4)
                self._refer(position, start)
                self._out += _UINT32.pack(len(value)) + bytes(4 * len(value))
                for index, element in enumerate(value):
                    child = self._string(element) if field.kind is Kind.STRINGS else self._table(field.table, element)
                    self._refer(start + 4 + 4 * index, child)

    def _string(self, text: str) -> int:
        content = text.encode("utf-8", "backslashreplace")
        position = self._align(4)
        self._out += _UINT32.pack(len(content)) + content + b"\0"
        return position

    def _scalars(self, table: str, field: Field, values: Any) -> int:
        dtype = np.dtype("u1" if field.code == "?" else "<" + field.code)
        if isinstance(values, bytes | bytearray | memoryview):
            content, length = bytes(values), len(values) // dtype.itemsize
        else:
            try:
                content, length = np.asarray(values, dtype).tobytes(), len(values)
            except (OverflowError, TypeError, ValueError) as error:
                raise ValueError(f"{table}.{field.name} cannot hold {values!r}: {error}") from None
        position = self._align(max(4, dtype.itemsize), ahead=4)
        self._out += _UINT32.pack(length) + content
        return position


def _is_present(field: Field, value: Any) -> bool:
    if value is None:
        return False
    if field.kind is Kind.SCALAR:
        return bool(value != field.default)
    return field.kind not in (Kind.TABLES, Kind.STRINGS) or len(value) > 0


def _width(field: Field) -> int:
    return struct.calcsize("<" + field.code) if field.kind is Kind.SCALAR else 4


_UINT64 = struct.Struct("<Q")
_BLOB_ALIGNMENT = 16
_MAX_FLATBUFFER = 2**31 - 2**24  # flatbuffers end at 2 GB; leaves room for what is not a blob
_UNPLACED = 2**64 - 1  # where a blob will lie is not known before the tables are written
