"""Inputs in the columns of Parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.tools.mapping.batched import Interface, ItemPort
from litegpu.tools.mapping.items import Part, Raw, TableRows

_READ_ROWS = 256  # at a time


def import_pyarrow() -> Any:
    """pyarrow, with its Parquet module; raises OptionError that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise OptionError(f"Parquet needs pyarrow: pip install 'litegpu[parquet]' ({error})") from None
    return pyarrow


class TablePart(Part):
    """The rows of a Parquet file. Pictures are in binary columns, in those of structures with a field "bytes", or named
    by text, relative to the file; arrays are lists of numbers, of any nesting, or numbers."""

    def __init__(self, path: str, interface: Interface, columns: Mapping[str, str]) -> None:
        self._path = path
        with self._open() as file:
            self._rows = int(file.metadata.num_rows)
            self._columns = _chosen(path, file.schema_arrow, interface, columns)

    def count(self) -> int:
        return self._rows

    def identity(self) -> Iterator[str]:
        yield f"{self._path}#{self._rows}#{','.join(self._columns)}"

    def read(self, size: int, first: int, end: int) -> Iterator[tuple[tuple[str, ...], TableRows]]:
        folder = os.path.dirname(self._path)
        try:
            for at, rows in self._batches(size, first, end):
                columns = tuple(tuple(_raw(folder, v) for v in rows.column(name)) for name in self._columns)
                yield tuple(f"{self._path}#{at + i}" for i in range(len(rows))), TableRows(columns)
        except (OSError, import_pyarrow().ArrowException) as error:
            raise OptionError(f"Cannot read {self._path} between rows {first} and {end}: {error}") from None

    def _batches(self, size: int, first: int, end: int) -> Iterator[tuple[int, Any]]:
        """Rows, with the number of the first of them."""
        with self._open() as file:
            metadata = file.metadata
            at, groups = 0, list(range(metadata.num_row_groups))
            while groups and at + metadata.row_group(groups[0]).num_rows <= first:
                at += metadata.row_group(groups.pop(0)).num_rows
            names = sorted(set(self._columns))
            for batch in file.iter_batches(batch_size=min(size, _READ_ROWS), row_groups=groups, columns=names):
                leave = min(len(batch), max(0, first - at))
                rows = batch.slice(leave, min(len(batch), end - at) - leave) if at + leave < end else batch.slice(0, 0)
                if len(rows):
                    yield at + leave, rows
                at += len(batch)
                if at >= end:
                    return

    def _open(self) -> Any:
        pyarrow = import_pyarrow()
        try:
            return pyarrow.parquet.ParquetFile(self._path)
        except (OSError, pyarrow.ArrowException) as error:
            raise OptionError(f"{self._path} is no Parquet file that can be read: {error}") from None


def _chosen(path: str, schema: Any, interface: Interface, columns: Mapping[str, str]) -> tuple[str, ...]:
    """The column for each input: the one that was asked for, the one of the input's name, or the only one that fits."""
    found = []
    for port in interface.inputs:
        name = columns.get(port.name)
        if name is None and len(interface.inputs) == 1:
            name = columns.get("")
        if name is None and port.name in schema.names:
            name = port.name
        if name is None:
            fitting = [field.name for field in schema if _may_be(field.type, port)]
            if len(interface.inputs) > 1 or len(fitting) != 1:
                raise OptionError(
                    f"Which column of {path} is input '{port.name}'? Say --column {port.name}=NAME; it has "
                    f"{', '.join(f'{field.name} ({field.type})' for field in schema)}"
                )
            name = fitting[0]
        if name not in schema.names:
            raise OptionError(f"{path} has no column {name!r}; it has {', '.join(schema.names)}")
        found.append(name)
    return tuple(found)


def _may_be(type_: Any, port: ItemPort) -> bool:
    """Whether values of an Arrow type can be an input: pictures for what looks like one, else numbers."""
    types = import_pyarrow().types
    is_picture = len(port.shape) == 3 and port.shape[2] in (1, 3, 4)
    if types.is_struct(type_):
        return is_picture and any(field.name == "bytes" for field in type_)
    if types.is_binary(type_) or types.is_large_binary(type_):
        return is_picture
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return True
    return (types.is_floating(type_) or types.is_integer(type_)) and int(np.prod(port.shape)) == 1


def _raw(folder: str, scalar: Any) -> Raw:
    """One value of a column."""
    types = import_pyarrow().types
    if not scalar.is_valid:
        return None
    if types.is_struct(scalar.type):
        stored = _raw(folder, scalar["bytes"])
        return _raw(folder, scalar["path"]) if stored is None and "path" in scalar else stored
    if types.is_string(scalar.type) or types.is_large_string(scalar.type):
        return os.path.join(folder, scalar.as_py())
    if types.is_binary(scalar.type) or types.is_large_binary(scalar.type):
        value: bytes = scalar.as_py()
        return value
    values = getattr(scalar, "values", None)
    if values is not None and types.is_primitive(values.type) and not values.null_count:
        return np.array(values.to_numpy(zero_copy_only=False))
    try:
        return np.array(scalar.as_py())
    except ValueError:  # lists of different lengths: the worker says what is wrong with it
        return np.array([], object)
