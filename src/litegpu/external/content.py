"""Finds the model that an official interpreter was made of. A delegate is not told, but sees addresses: the names of
tensors and the values of constants lie in the model's own bytes. So the model is known for certain when it is found:
every name and every constant lies exactly where a model that begins at one address has it."""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from litegpu.errors import DelegateError, ModelError
from litegpu.external.graph import HostedGraph
from litegpu.model.flatbuffer import IDENTIFIER
from litegpu.model.reader import read_model
from litegpu.model.types import Model, Subgraph

_MAPS, _MEMORY = Path("/proc/self/maps"), Path("/proc/self/mem")
_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r\S+ ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)\s*(.*)")
_CHUNK = 1 << 20
#: Slots in the vtables of the schema's tables.
_SUBGRAPHS, _TENSORS, _NAME = 2, 0, 3


@dataclass(frozen=True)
class Found:
    """A model, and the number of the subgraph that the graph is."""

    model: Model
    subgraph: int


def find(graph: HostedGraph, model_path: str | None) -> Found:
    """The very model of a graph. Raises DelegateError or ModelError if it cannot be found, or is another one."""
    facts = _Addresses(graph)
    if model_path is not None:
        return facts.of_file(model_path, None)
    if not _MAPS.exists():
        raise DelegateError(f"on {sys.platform} the model is not found by itself: give the option model_path")
    problem = "no tensor has a name or a constant there"
    for region, addresses in facts.regions():
        try:
            if region.inode == 0:
                return facts.of_bytes(region, addresses)
            if _read(region.start + 4, 4) == IDENTIFIER:
                return facts.of_file(region.path, region)
        except (DelegateError, ModelError, OSError) as error:
            problem = str(error)
    raise DelegateError(f"the interpreter's model is not found ({problem}): give the option model_path")


@dataclass(frozen=True)
class _Region:
    """A readable part of the address space, and the file that is mapped there."""

    start: int
    end: int
    offset: int
    device: int
    inode: int
    path: str


class _Addresses:
    """Where the runtime has what lies in the model."""

    def __init__(self, graph: HostedGraph) -> None:
        self._tensors = [graph.tensor(i) for i in range(graph.tensors_count)]
        self._all = sorted({t.name for t in self._tensors if t.name} | {t.data for t in self._tensors if t.is_constant})

    def regions(self) -> list[tuple[_Region, list[int]]]:
        """The parts of memory where they are, that with most of them first."""
        regions = _mapped()
        starts = [region.start for region in regions]
        found: dict[_Region, list[int]] = {}
        for address in self._all:
            place = bisect_right(starts, address) - 1
            if place >= 0 and address < regions[place].end:
                found.setdefault(regions[place], []).append(address)
        return sorted(found.items(), key=lambda one: -len(one[1]))

    def of_file(self, path: str, region: _Region | None) -> Found:
        """The model of a file, which lies at `region` if that is known."""
        model = read_model(path)
        base = region.start - region.offset if region is not None else self._base(model)
        found = self._matched(model, base)
        if found is None:
            raise DelegateError(f"'{path}' is not the interpreter's model")
        if region is None or not _is_mapped(region, path):
            _compare(model, base, path)
        return found

    def of_bytes(self, region: _Region, addresses: list[int]) -> Found:
        """The model in a bytes object."""
        for base, size in _bytes_objects(region.start, addresses[0]):
            if base + size > addresses[-1]:
                content = ctypes.cast(base - _BEFORE_BYTES, ctypes.py_object).value
                found = self._matched(read_model(content), base)
                if found is not None:
                    return found
        raise DelegateError("its bytes are not an object of Python's")

    def _base(self, model: Model) -> int:
        """Where the model would begin if its first name were that of the first tensor."""
        for fact, offset in zip(self._tensors, _name_offsets(model, 0), strict=False):
            if fact.name and offset:
                return fact.name - offset
        raise DelegateError("no tensor has a name to know the model by")

    def _matched(self, model: Model, base: int) -> Found | None:
        for subgraph in model.subgraphs:
            if self._is(model, subgraph, base):
                return Found(model, subgraph.index)
        return None

    def _is(self, model: Model, subgraph: Subgraph, base: int) -> bool:
        if len(subgraph.tensors) > len(self._tensors):  # more of them: the runtime's own, for intermediate values
            return False
        content, compared = _address(model.content), 0
        for tensor, fact, name in zip(
            subgraph.tensors, self._tensors, _name_offsets(model, subgraph.index), strict=False
        ):
            if (fact.type, fact.variable) != (tensor.type, tensor.is_variable):
                return False
            if name and fact.name != base + name:
                return False
            has_data = tensor.data is not None and tensor.data.size > 0
            if has_data != fact.is_constant:
                return False
            if tensor.data is not None and has_data and fact.data != base + _address(tensor.data) - content:
                return False
            compared += bool(name) + has_data
        return compared > 0


def _name_offsets(model: Model, subgraph: int) -> list[int]:
    """Where the names of the tensors begin in the file, 0 for tensors without one. The reader has checked offsets."""
    content = memoryview(model.content)

    def follow(position: int) -> int:
        return position + int(struct.unpack_from("<I", content, position)[0])

    def field(table: int, slot: int) -> int:
        """What the field of a table refers to, 0 if it is absent."""
        vtable = table - struct.unpack_from("<i", content, table)[0]
        if 4 + 2 * slot >= struct.unpack_from("<H", content, vtable)[0]:
            return 0
        offset = struct.unpack_from("<H", content, vtable + 4 + 2 * slot)[0]
        return follow(table + offset) if offset else 0

    vector = field(follow(field(follow(0), _SUBGRAPHS) + 4 + 4 * subgraph), _TENSORS)
    count = struct.unpack_from("<I", content, vector)[0] if vector else 0
    names = (field(follow(vector + 4 + 4 * i), _NAME) for i in range(count))
    return [name + 4 if name else 0 for name in names]  # behind its length


def _address(content: bytes | memoryview | np.ndarray) -> int:
    array = content if isinstance(content, np.ndarray) else np.frombuffer(content, np.uint8)
    return int(array.__array_interface__["data"][0])


# ------------------------------------------------------------------------------------------ this process's memory

#: Of a bytes object: what lies before its content, and where in that its type is, with its length behind.
_BEFORE_BYTES, _TYPE = bytes.__basicsize__ - 1, object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)


def _mapped() -> list[_Region]:
    lines = (_LINE.match(line) for line in _MAPS.read_text(errors="replace").splitlines())
    return [
        _Region(
            int(found[1], 16), int(found[2], 16), int(found[3], 16),
            os.makedev(int(found[4], 16), int(found[5], 16)), int(found[6]), found[7],
        )
        for found in lines if found is not None
    ]  # fmt: skip


def _read(address: int, size: int) -> bytes:
    """What lies there, so far as anything does: other threads may free memory meanwhile. Raises OSError."""
    handle = os.open(_MEMORY, os.O_RDONLY)
    try:
        return os.pread(handle, size, address)
    finally:
        os.close(handle)


def _bytes_objects(start: int, before: int) -> Iterator[tuple[int, int]]:
    """(address of the content, length) of what looks like bytes objects with models, the nearest to `before` first."""
    end = before
    while end > start:
        first = max(start, end - _CHUNK)
        chunk = _read(first, end - first + len(IDENTIFIER) - 1)
        place = len(chunk)
        while (place := chunk.rfind(IDENTIFIER, 0, place + len(IDENTIFIER) - 1)) >= 0:
            base = first + place - 4
            if base - _BEFORE_BYTES >= start:
                header = _read(base - _BEFORE_BYTES, _BEFORE_BYTES)
                kind, length = struct.unpack_from("nn", header.ljust(_BEFORE_BYTES), _TYPE)
                if kind == id(bytes) and length > 0:
                    yield base, length
        end = first


def _is_mapped(region: _Region, path: str) -> bool:
    """Whether a path still leads to the file that is mapped; False as well where file systems give other numbers."""
    status = os.stat(path)
    return (status.st_dev, status.st_ino) == (region.device, region.inode)


def _compare(model: Model, base: int, path: str) -> None:
    """Raises DelegateError unless the memory at `base` holds the model's bytes."""
    content = memoryview(model.content)
    for start in range(0, len(content), _CHUNK):
        piece = content[start : start + _CHUNK]
        there = _read(base + start, len(piece)) if _MEMORY.exists() else ctypes.string_at(base + start, len(piece))
        if there != piece:
            raise DelegateError(f"'{path}' has changed since the interpreter was made of it")
