"""The results of a map as Parquet: parts that are written whole or not at all, so that an interrupted run can go on."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.file_lock import lock
from litegpu.tools.mapping.batched import ItemPort
from litegpu.tools.mapping.table import import_pyarrow
from litegpu.tools.mapping.worker import ChunkResult

_PART, _UNFINISHED = "part-", ".unfinished"
_KEY = b"litegpu.map"  # of the file's metadata, under which stands what the rows were made from
_PART_BYTES = 32 << 20
_PART_SECONDS = 60.0
_OWN = ("index", "input", "error")
_WITH_DICTIONARY = ["error"]  # for outputs it would take longer than all the rest of writing them


class Output:
    """Rows, numbered from 0, in order however they come. `path` is one Parquet file if its name ends in .parquet, else
    a folder of part files, which readers of Parquet take as one table. One process at a time writes an output.

    Columns: index, input (its name), error (null if there is none), and one per output: a list of its elements, or a
    plain value where it is a scalar; null where there is an error. A field's metadata has "shape", and "scale" and
    "zero_point" for numbers that are stored quantized.
    """

    def __init__(self, path: str | os.PathLike[str], ports: Sequence[ItemPort], origin: Mapping[str, Any]) -> None:
        """`origin`: what the results depend on, as plain data. Nothing is written yet."""
        self._arrow = import_pyarrow()
        self._path = Path(os.path.realpath(path) if os.path.islink(path) else path)  # a link is not replaced
        self._is_file = self._path.suffix == ".parquet"
        self._folder = self._path.with_name(self._path.name + ".parts") if self._is_file else self._path
        self._ports = tuple(ports)
        self._origin = json.dumps(origin, sort_keys=True)
        self._schema = self._make_schema()
        self._written: list[range] = []
        self._tables: dict[int, Any] = {}  # by their first row: those that are not written yet
        self._bytes = 0
        self._since = time.monotonic()
        self._is_complete = False
        self._lock: int | None = None  # a descriptor of the folder

    @property
    def rows(self) -> int:
        """With those that are not written yet."""
        return self._kept + sum(int(table.num_rows) for table in self._tables.values())

    @property
    def _kept(self) -> int:
        return sum(len(numbers) for numbers in self._written)

    def open(self, *, resume: bool, overwrite: bool) -> int:
        """Make ready to write; the number of rows that are there already. Raises OptionError if there is something that
        may not be gone on with or overwritten, or if nothing can be written."""
        if resume and overwrite:
            raise OptionError("--resume keeps what is there and --overwrite does not: give one of them")
        try:
            self._look(resume, overwrite)
            if not self._is_complete:
                self._make_folder()
                while not self._take_lock():
                    self._make_folder()
                self._look(resume, overwrite)  # again: another process may have ended in between
                self._begin(resume, overwrite)
        except OSError as error:
            raise OptionError(f"Cannot write to {self._folder}: {error.strerror}") from None
        return self.rows

    def close(self) -> None:
        """Let other processes write. What is not written yet is given up."""
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)

    def missing(self, count: int) -> list[range]:
        """The numbers below `count` of which there are no rows."""
        ends = [0, *(numbers.stop for numbers in self._written)]
        starts = [*(numbers.start for numbers in self._written), count]
        return [range(end, start) for end, start in zip(ends, starts, strict=True) if end < start]

    def append(self, first: int, names: Sequence[str], result: ChunkResult) -> None:
        """The rows of inputs from number `first` on. They are written when there are many, or a minute has passed."""
        self._tables[first] = self._table(first, names, result)
        self._bytes += result.bytes
        if self._bytes >= _PART_BYTES or time.monotonic() - self._since >= _PART_SECONDS:
            self.flush()

    def nothing(self, count: int, error: str) -> ChunkResult:
        """What stands for `count` inputs that have an error and no results."""
        return ChunkResult((error,) * count, tuple(np.zeros((0, *port.shape), port.dtype) for port in self._ports))

    def flush(self) -> None:
        """Write what is waiting: one more part, or several where rows are missing in between."""
        self._since = time.monotonic()
        while self._tables:
            first = end = min(self._tables)
            run = []
            while end in self._tables:
                run.append(end)
                end += int(self._tables[end].num_rows)
            part = self._folder / f"{_PART}{first:012}.parquet"
            with self._writing(part) as temporary:
                table = self._arrow.concat_tables([self._tables[start] for start in run])
                self._arrow.parquet.write_table(table, temporary, use_dictionary=_WITH_DICTIONARY)
            self._written = sorted([*self._written, range(first, end)], key=lambda numbers: numbers.start)
            for start in run:
                del self._tables[start]
        self._bytes = 0

    def finish(self) -> None:
        """Write what is waiting, put the parts together if the output is one file, and close."""
        self.flush()
        if self._is_file and not self._is_complete:
            self._join_parts()
        if self._is_file:
            self._remove_folder()
        self.close()

    def _join_parts(self) -> None:
        with (
            self._writing(self._path) as temporary,
            self._arrow.parquet.ParquetWriter(temporary, self._schema, use_dictionary=_WITH_DICTIONARY) as writer,
        ):
            for part in self._parts():
                with self._arrow.parquet.ParquetFile(part) as file:
                    for group in range(file.metadata.num_row_groups):
                        writer.write_table(file.read_row_group(group).cast(self._schema))

    @contextlib.contextmanager
    def _writing(self, path: Path) -> Iterator[Path]:
        """Where to write what becomes the file `path` if all goes well: under a name that readers of Parquet pass over.
        Raises OptionError where it cannot be written, and leaves no half of it."""
        temporary = self._folder / f".{path.name}{_UNFINISHED}"
        try:
            yield temporary
            os.replace(temporary, path)
        except (OSError, self._arrow.ArrowException) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            why = getattr(error, "strerror", None) or str(error)
            raise OptionError(
                f"Cannot write to {self._folder}: {why}. The {self._kept} rows that are there are kept: --resume goes "
                "on with the others"
            ) from None

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

    def _type(self, port: ItemPort) -> Any:
        arrow = self._arrow
        element = arrow.binary() if port.dtype.kind in "SO" else arrow.from_numpy_dtype(port.dtype)
        return element if port.shape == () else arrow.list_(element)

    def _table(self, first: int, names: Sequence[str], result: ChunkResult) -> Any:
        arrow = self._arrow
        failed = np.array([error != "" for error in result.errors], bool)
        columns = [
            arrow.array(np.arange(first, first + len(names))),
            arrow.array([name.encode(errors="backslashreplace").decode() for name in names], arrow.string()),
            arrow.array([error or None for error in result.errors], arrow.string()),
        ]
        columns += [
            self._values(port, values, failed) for port, values in zip(self._ports, result.outputs, strict=True)
        ]
        return arrow.table(columns, schema=self._schema)

    def _values(self, port: ItemPort, values: np.ndarray | list[np.ndarray], failed: np.ndarray) -> Any:
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

    def _look(self, resume: bool, overwrite: bool) -> None:
        """Raises OptionError for what is there and may be neither gone on with nor overwritten."""
        has_file = self._is_file and self._path.exists()
        has_parts = self._folder.is_dir() and not all(_is_temporary(path) for path in self._folder.iterdir())
        if overwrite:
            if has_parts:
                self._require_only_parts()
        elif resume and has_file:
            self._written = [range(self._checked(self._path))]
            self._is_complete = True
        elif has_file or (has_parts and not self._is_file and not resume):
            raise OptionError(f"{self._path} exists: give --overwrite, or --resume to complete it")
        elif has_parts and not resume:
            raise OptionError(f"{self._folder} is left from an interrupted run: give --resume or --overwrite")

    def _begin(self, resume: bool, overwrite: bool) -> None:
        """Remove what is not gone on with, and count what is."""
        if overwrite and self._is_file:
            self._path.unlink(missing_ok=True)
        for path in self._folder.iterdir():
            if overwrite or _is_temporary(path):
                path.unlink(missing_ok=True)
        if resume and not self._is_complete:
            self._written = self._found()

    def _found(self) -> list[range]:
        """The rows that an earlier run of the same work has written."""
        found: list[range] = []
        for part in self._parts():
            number = part.stem.removeprefix(_PART)
            first = int(number) if number.isdecimal() else -1
            if first < (found[-1].stop if found else 0):
                raise OptionError(f"{part} holds rows that the part before it has as well: remove it")
            found.append(range(first, first + self._checked(part, first)))
        return found

    def _checked(self, path: Path, first: int = 0) -> int:
        """The number of rows of a file that the same work has written, from number `first` on."""
        try:
            with self._arrow.parquet.ParquetFile(path) as file:
                written = (file.schema_arrow.metadata or {}).get(_KEY, b"").decode()
                rows = int(file.metadata.num_rows)
                if written == self._origin:
                    index = file.read_row_group(0, columns=["index"]).column(0)[0].as_py() if rows else first
        except (OSError, self._arrow.ArrowException) as error:
            raise OptionError(f"Cannot go on with {path}: {error}") from None
        if written != self._origin:
            raise OptionError(f"Cannot go on with {path}: it comes from {_difference(written, self._origin)}")
        if index != first:
            raise OptionError(f"Cannot go on with {path}: it begins with row {index}, not {first}")
        return rows

    def _parts(self) -> list[Path]:
        return sorted(self._folder.glob(f"{_PART}*.parquet"))

    def _make_folder(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        probe = self._folder / f".probe{_UNFINISHED}"
        probe.touch()
        probe.unlink(missing_ok=True)

    def _take_lock(self) -> bool:
        """Keep other processes out of the folder; False if it is not there any more. Raises OptionError if another
        process is in it."""
        try:
            handle = os.open(self._folder, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except PermissionError:  # Windows opens no folders
            return True
        self._lock = handle
        is_free = lock(handle) is not False
        try:
            is_there = os.path.samestat(os.fstat(handle), self._folder.stat())
        except FileNotFoundError:
            is_there = False
        if not (is_free and is_there):
            self.close()
        if is_there and not is_free:
            raise OptionError(f"Another process is writing {self._path}: wait for its end, or choose another output")
        return is_there

    def _remove_folder(self) -> None:
        """Of parts that are in the file now; anything else in it stays."""
        with contextlib.suppress(OSError, OptionError):
            self._require_only_parts()
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)
            self._folder.rmdir()

    def _require_only_parts(self) -> None:
        for path in self._folder.iterdir():
            if not (path.name.startswith(_PART) or _is_temporary(path)):
                raise OptionError(
                    f"{self._folder} holds other files than parts, such as {path.name}: it is not overwritten"
                )


def _is_temporary(path: Path) -> bool:
    """Whether it is what a process that died was writing."""
    return path.suffix == _UNFINISHED and path.name.startswith((".", _PART, "whole."))


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
