"""A Program and its compiled kernels as the bytes of a file: data only, under a checksum, nothing that is executed.

16 bytes  magic and version of the format
32 bytes  SHA-256 of all that follows
 8 bytes  length of the header, little endian
header    JSON: what the entry is of, the program's structure, where the blobs lie
blobs     the constants, the kernels' texts and their compiled images, each at a multiple of 64 bytes
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program, Region, RowMap

#: To be raised with every change of the format or of what a Program means.
MAGIC = b"litegpu-entry-06"
_CHECKSUM = 32
_LENGTH = struct.Struct("<Q")
_START = len(MAGIC) + _CHECKSUM + _LENGTH.size
_ALIGNMENT = 64


class EntryError(Exception):
    """The bytes are no entry, or not the bytes that were written; the message says which."""


@dataclass(frozen=True)
class CacheEntry:
    """`about`: what the entry is of, for people and for a check of the key. `images`: what the device compiled the
    program's kernels to, if it tells."""

    about: Mapping[str, Any]
    program: Program
    images: tuple[bytes, ...]


def encode(entry: CacheEntry) -> list[bytes | memoryview]:
    """The entry's bytes, in pieces."""
    program = entry.program
    blobs: list[bytes | memoryview] = [np.ascontiguousarray(program.constants).data if program.constants.size else b""]
    blobs += [kernel.source.encode() for kernel in program.kernels]
    blobs += entry.images
    places, position = [], 0
    for blob in blobs:
        places.append((position, len(blob)))
        position += len(blob) + -len(blob) % _ALIGNMENT
    header = json.dumps(
        {
            "about": dict(entry.about),
            "blobs": places,
            "images": len(entry.images),
            "kernels": [
                (k.name, k.workgroup, k.access, k.shared_bytes, k.options, [astuple(m) for m in k.maps])
                for k in program.kernels
            ],
            "dispatches": [
                (d.kernel, d.groups, [(b.space, b.offset, b.size) for b in d.bindings], d.label, d.sources, d.spent)
                for d in program.dispatches
            ],
            "arena": program.arena_size,
            "inputs": [_port(p) for p in program.inputs],
            "outputs": [_port(p) for p in program.outputs],
            "variables": [_port(p) for p in program.variables],
            "memory": (program.memory.arena, program.memory.unshared, program.memory.lower_bound),
            "in_float32": program.in_float32,
            "regions": [(r.kind, r.first, r.end, r.flag) for r in program.regions],
            "note": program.note,
        },
        separators=(",", ":"),
    ).encode()
    header += b" " * (-(_START + len(header)) % _ALIGNMENT)
    pieces: list[bytes | memoryview] = [_LENGTH.pack(len(header)), header]
    for blob in blobs:
        pieces += [blob, bytes(-len(blob) % _ALIGNMENT)]
    return [MAGIC, checksum(pieces), *pieces]


def decode(content: bytes) -> CacheEntry:
    """The entry that encode() made these bytes of. Raises EntryError."""
    header, blobs = _parts(content)
    try:
        return _entry(header, blobs)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EntryError(f"its header is not what this version writes ({type(error).__name__}: {error})") from None


def checksum(pieces: Sequence[bytes | memoryview]) -> bytes:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.digest()


# ----------------------------------------------------------------------------------------------


def _parts(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header and all blobs, after every check that needs no understanding of them."""
    view = memoryview(content)
    if len(view) < _START:
        raise EntryError(f"it has {len(view)} bytes, less than any entry")
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise EntryError("it does not begin as entries of this version do")
    if checksum([view[len(MAGIC) + _CHECKSUM :]]) != bytes(view[len(MAGIC) : len(MAGIC) + _CHECKSUM]):
        raise EntryError("its checksum is wrong: it was cut short, or changed")
    (length,) = _LENGTH.unpack_from(view, _START - _LENGTH.size)
    if length > len(view) - _START:
        raise EntryError("its header is longer than the entry")
    try:
        header = json.loads(bytes(view[_START : _START + length]))
    except ValueError as error:
        raise EntryError(f"its header is not readable: {error}") from None
    if not isinstance(header, dict):
        raise EntryError("its header is not an object")
    return header, view[_START + length :]


def _entry(header: Mapping[str, Any], room: memoryview) -> CacheEntry:
    blobs = []
    for offset, size in header["blobs"]:
        if not 0 <= offset <= offset + size <= len(room):
            raise ValueError(f"a blob lies at {offset}, {size} bytes")
        blobs.append(room[offset : offset + size])
    count, images = len(header["kernels"]), header["images"]
    if len(blobs) != 1 + count + images:
        raise ValueError(f"{len(blobs)} blobs for {count} kernels and {images} images")
    kernels = tuple(
        KernelCode(name, str(text, "utf-8"), _triple(workgroup), tuple(access), shared, tuple(options), _maps(maps))
        for (name, workgroup, access, shared, options, maps), text in zip(
            header["kernels"], blobs[1 : 1 + count], strict=True
        )
    )
    dispatches = tuple(
        Dispatch(kernel, _triple(groups), tuple(Binding(*b) for b in bindings), label, tuple(sources), spent)
        for kernel, groups, bindings, label, sources, spent in header["dispatches"]
    )
    program = Program(
        kernels,
        dispatches,
        np.frombuffer(blobs[0], np.uint8) if len(blobs[0]) else np.zeros(0, np.uint8),
        header["arena"],
        _ports(header["inputs"]),
        _ports(header["outputs"]),
        MemoryReport(*header["memory"]),
        tuple((name, reason) for name, reason in header["in_float32"]),
        _ports(header["variables"]),
        tuple(Region(kind, first, end, flag) for kind, first, end, flag in header["regions"]),
        header["note"],
    )
    return CacheEntry(header["about"], program, tuple(bytes(blob) for blob in blobs[1 + count :]))


def _port(port: Port) -> tuple[Any, ...]:
    return port.name, port.tensor, port.shape, port.dtype.value, port.offset, port.nbytes, port.uses, port.rounded


def _ports(rows: Sequence[Sequence[Any]]) -> tuple[Port, ...]:
    ports = []
    for name, tensor, shape, dtype, offset, nbytes, uses, rounded in rows:
        places = None if uses is None else tuple((i, n) for i, n in uses)
        ports.append(Port(name, tensor, tuple(shape), DType(dtype), offset, nbytes, places, bool(rounded)))
    return tuple(ports)


def _maps(rows: Sequence[Sequence[Any]]) -> tuple[RowMap, ...]:
    return tuple(
        RowMap(binding, offset, _pair(shape), pitch, _pair(box), size)
        for binding, offset, shape, pitch, box, size in rows
    )


def _pair(numbers: Sequence[int]) -> tuple[int, int]:
    x, y = numbers
    return x, y


def _triple(numbers: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = numbers
    return x, y, z
