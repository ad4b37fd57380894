"""The results of a map as Parquet: parts that are written whole or not at all, so that an interrupted run can go on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.tools.mapping.batched import Port
from litegpu.tools.mapping.table import import_pyarrow
from litegpu.tools.mapping.worker import ChunkResult

_KEY = b"litegpu.map"  # of the file's metadata, under which stands what the rows were made from
_PART_BYTES = 32 << 20
_PART_SECONDS = 60.0
_OWN = ("index", "input", "error")
_WITH_DICTIONARY = ["error"]  # for outputs it would take longer than all the rest of writing them


class Output:
    """Rows in order, numbered from 0. `path` is one Parquet file if its name ends in .parquet, else a folder of part
    files, which readers of Parquet take as one table.

    Columns: index, input (its name), error (null if there is none), and one per output: a list of its elements, or a
    plain value where it is a scalar; null where there is an error. A field's metadata has "shape", and "scale" and
    "zero_point" for numbers that are stored quantized.
    """

    def __init__(self, path: str | os.PathLike[str], ports: Sequence[Port], origin: Mapping[str, Any]) -> None:
        """`origin`: what the results depend on, as plain data. Nothing is written yet."""
        self._arrow = import_pyarrow()
        self._path = Path(path)
        self._is_file = self._path.suffix == ".parquet"
        self._folder = self._path.with_name(self._path.name + ".parts") if self._is_file else self._path
        self._ports = tuple(ports)
        self._origin = json.dumps(origin, sort_keys=True)
        self._schema = self._make_schema()
        self._tables: list[Any] = []
        self._bytes = 0
        self._since = time.monotonic()
        self.rows = 0  # with those that are not written yet

    def open(self, *, resume: bool, overwrite: bool) -> int:
        """Make ready to write; the number of rows that are there already. Raises OptionError if there is something that
        may not be gone on with or overwritten, or if nothing can be written."""
        if resume and overwrite:
            raise OptionError("--resume keeps what is there and --overwrite does not: give one of them")
        there = [p for p in dict.fromkeys((self._path, self._folder)) if p.exists()]
        if overwrite:
            for path in there:
                self._remove(path)
        elif there and not resume:
            if there == [self._folder] and self._is_file:
                raise OptionError(f"{self._folder} is left from an interrupted run: give --resume or --overwrite")
            if not (self._path.is_dir() and not self._is_file and not any(self._path.iterdir())):
                raise OptionError(f"{self._path} exists: give --overwrite, or --resume to complete it")
        elif resume:
            self.rows = self._found()
        if not (self._is_file and self._path.exists()):
            self._make_folder()
        return self.rows

    def append(self, names: Sequence[str], result: ChunkResult) -> None:
        """The rows of the next inputs. They are written when there are many, or a minute has passed."""
        self._tables.append(self._table(names, result))
        self.rows += len(names)
        self._bytes += result.bytes
        if self._bytes >= _PART_BYTES or time.monotonic() - self._since >= _PART_SECONDS:
            self.flush()

    def nothing(self, count: int, error: str) -> ChunkResult:
        """What stands for `count` inputs that have an error and no results."""
        return ChunkResult((error,) * count, tuple(np.zeros((0, *port.shape), port.dtype) for port in self._ports))

    def flush(self) -> None:
        """Write what is waiting, as one more part."""
        self._since = time.monotonic()
        if not self._tables:
            return
        table = self._arrow.concat_tables(self._tables)
        first = self.rows - table.num_rows
        part = self._folder / f"part-{first:012}.parquet"
        temporary = part.with_suffix(".unfinished")
        with self._writing(temporary):
            self._arrow.parquet.write_table(table, temporary, use_dictionary=_WITH_DICTIONARY)
            os.replace(temporary, part)
        self._tables, self._bytes = [], 0

    def finish(self) -> None:
        """Write what is waiting, and put the parts together if the output is one file."""
        self.flush()
        if not self._is_file or not self._folder.exists():
            return
        temporary = self._folder / "whole.unfinished"
        with self._writing(temporary):
            with self._arrow.parquet.ParquetWriter(temporary, self._schema, use_dictionary=_WITH_DICTIONARY) as writer:
                for part in self._parts():
                    with self._arrow.parquet.ParquetFile(part) as file:
                        for group in range(file.metadata.num_row_groups):
                            writer.write_table(file.read_row_group(group).cast(self._schema))
            os.replace(temporary, self._path)
            shutil.rmtree(self._folder)

    @contextlib.contextmanager
    def _writing(self, temporary: Path) -> Iterator[None]:
        """Raises OptionError where a file cannot be written, and leaves no half of it."""
        try:
            yield
        except (OSError, self._arrow.ArrowException) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            why = getattr(error, "strerror", None) or str(error)
            raise OptionError(
                f"Cannot write to {self._folder}: {why}. The {self._written()} rows that are there are kept: --resume "
                "goes on after them"
            ) from None

    def _written(self) -> int:
        return self.rows - sum(int(table.num_rows) for table in self._tables)

    def _make_schema(self) -> Any:
        arrow = self._arrow
        fields = [
            arrow.field("index", arrow.int64(), nullable=False),
            arrow.field("input", arrow.string(), nullable=False),
            arrow.field("error", arrow.string()),
        ]
        for port in self._ports:
            metadata = {"shape": json.dumps(port.shape)} if port.fixed else {}
            if port.quantization[0]:
                metadata |= {"scale": repr(port.quantization[0]), "zero_point": str(port.quantization[1])}
            fields.append(arrow.field(_column(port.name), self._type(port), metadata=metadata))
        return arrow.schema(fields, metadata={_KEY: self._origin.encode()})

    def _type(self, port: Port) -> Any:
        arrow = self._arrow
        element = arrow.binary() if port.dtype.kind in "SO" else arrow.from_numpy_dtype(port.dtype)
        return element if port.shape == () else arrow.list_(element)

    def _table(self, names: Sequence[str], result: ChunkResult) -> Any:
        arrow = self._arrow
        failed = np.array([error != "" for error in result.errors], bool)
        columns = [
            arrow.array(np.arange(self.rows, self.rows + len(names))),
            arrow.array([name.encode(errors="replace").decode() for name in names], arrow.string()),
            arrow.array([error or None for error in result.errors], arrow.string()),
        ]
        columns += [
            self._values(port, values, failed) for port, values in zip(self._ports, result.outputs, strict=True)
        ]
        return arrow.table(columns, schema=self._schema)

    def _values(self, port: Port, values: np.ndarray | list[np.ndarray], failed: np.ndarray) -> Any:
        """One output of all inputs, with nulls for those that failed."""
        arrow, type_ = self._arrow, self._type(port)
        sizes = np.zeros(len(failed), np.int64)
        if isinstance(values, np.ndarray):
            data = values.reshape(-1)
            sizes[~failed] = data.size // max(1, len(values))
        else:
            data = np.concatenate([value.reshape(-1) for value in values])
            sizes[~failed] = [value.size for value in values]
        if port.shape == ():
            places = np.where(failed, 0, np.cumsum(~failed) - 1)
            padded = data[places] if len(data) else np.zeros(len(failed), port.dtype)
            return arrow.array(padded, type_, mask=failed)
        elements = arrow.array(data.tolist() if port.dtype.kind in "SO" else data, type_.value_type)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        return arrow.ListArray.from_arrays(arrow.array(offsets), elements, type=type_, mask=arrow.array(failed))

    def _found(self) -> int:
        """Rows that an earlier run of the same work has written."""
        if self._is_file and self._path.exists():
            return self._checked(self._path)
        if not self._folder.is_dir():
            return 0
        rows = 0
        for part in self._parts():
            if part.name != f"part-{rows:012}.parquet":
                raise OptionError(f"{part} does not begin with row {rows}, where the part before it ends: remove it")
            rows += self._checked(part)
        return rows

    def _checked(self, path: Path) -> int:
        """The number of rows of a file that the same work has written."""
        try:
            with self._arrow.parquet.ParquetFile(path) as file:
                written = (file.schema_arrow.metadata or {}).get(_KEY, b"").decode()
                rows = int(file.metadata.num_rows)
        except (OSError, self._arrow.ArrowException) as error:
            raise OptionError(f"Cannot go on with {path}: {error}") from None
        if written != self._origin:
            raise OptionError(f"Cannot go on with {path}: it comes from {_difference(written, self._origin)}")
        return rows

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob("part-*.parquet"))

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe = self._folder / ".probe"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OptionError(f"Cannot write to {self._folder}: {error.strerror}") from None

    def _remove(self, path: Path) -> None:
        """Remove an earlier output, and nothing else."""
        if path.is_file():
            path.unlink()
            return
        strangers = [p for p in path.iterdir() if not (p.name.startswith("part-") or p.suffix == ".unfinished")]
        if strangers:
            raise OptionError(
                f"{path} holds other files than parts, such as {strangers[0].name}: it is not overwritten"
            )
        shutil.rmtree(path)


def _column(name: str) -> str:
    """The column of an output; one that is called like another column gets a suffix."""
    return f"{name}_output" if name in _OWN else name


def _difference(written: str, wanted: str) -> str:
    """What differs between two origins, for people."""
    try:
        before, now = json.loads(written), json.loads(wanted)
    except ValueError:
        return "something else than litegpu map"
    different = [key for key in now if before.get(key) != now[key]]
    return f"other {' and '.join(different)}" if different else "another version of litegpu"
