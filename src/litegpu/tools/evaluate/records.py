"""The records of an evaluation in a file that only grows, so that an interrupted one goes on where it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self

from litegpu.errors import OptionError
from litegpu.file_lock import lock
from litegpu.tools.evaluate.image_list import Item
from litegpu.tools.evaluate.shard import Record

log = logging.getLogger("litegpu")

_FORMAT = 1


def model_digest(content: bytes | memoryview) -> str:
    """What tells a model apart from others: SHA-256 of its bytes."""
    return hashlib.sha256(content).hexdigest()


class RecordFile:
    """Lines of JSON: first the fingerprint of the evaluation, then a record each; of one input the last counts.

    A file of another fingerprint (another model, delegate or option) raises OptionError, naming what differs; a last
    line that was cut off when the process ended is dropped. Once something cannot be written (a full disk) nothing more
    is: `problem` says what, and the records are known all the same. While it is open nobody else can open it. `restart`
    drops what is in it.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: Mapping[str, Any], *, restart: bool = False) -> None:
        self.path = Path(path)
        self.records: dict[str, Record] = {}
        self.problem = ""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise OptionError(f"Cannot write {self.path}: {error.strerror}") from None
        try:
            if lock(self._file.fileno()) is False:
                raise OptionError(
                    f"Another process is writing {self.path}: wait for its end, or choose another output folder"
                )
            if restart:
                self._file.truncate(0)
            self._load(json.loads(json.dumps({"format": _FORMAT, **fingerprint})))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written has been told
            self._file.close()

    def known(self, item: Item) -> Record | None:
        """What is known of an input, if it has not changed since and could be read."""
        record = self.records.get(item.name)
        return record if record and not record.error and record.stamp == item.stamp else None

    def append(self, records: Iterable[Record]) -> None:
        """Keep records; they are in the file when this returns, unless there is a problem with that."""
        lines = []
        for record in records:
            self.records[record.name] = record
            lines.append(json.dumps(_as_json(record), separators=(",", ":")))
        if not lines or self.problem:
            return
        whole = self._file.tell()
        try:
            self._write("\n".join(lines) + "\n")
        except OptionError as error:
            self.problem = f"{error}. What was computed later is not kept for another time"
            log.warning("%s", self.problem)
            with contextlib.suppress(OSError):
                self._file.truncate(whole)

    def _load(self, fingerprint: Mapping[str, Any]) -> None:
        self._file.seek(0)
        whole = 0
        lines = _whole_lines(self._file.read())
        first = next(lines, None)
        if first is None:
            self._file.truncate(0)
            self._write(json.dumps(fingerprint, separators=(",", ":")) + "\n")
            return
        try:
            found = json.loads(first)
            whole = len(first)
            self._check(found if isinstance(found, dict) else {}, fingerprint)
            for line in lines:
                record = _from_json(json.loads(line))
                self.records[record.name] = record
                whole += len(line)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{self.path} does not hold records of an evaluation; remove it: {error}") from None
        self._file.truncate(whole)

    def _check(self, found: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> None:
        changed = list(_differences(found, fingerprint))
        if changed:
            differing = "; ".join(f"{name} was {_short(before)}, now {_short(now)}" for name, before, now in changed)
            raise OptionError(
                f"{self.path} holds the records of another evaluation ({differing}). Choose another output folder, or "
                "begin anew with --restart"
            )

    def _write(self, text: str) -> None:
        try:
            rest = memoryview(text.encode())
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OptionError(f"Cannot write {self.path}: {error.strerror}") from None


def unfinished(items: Sequence[Item], known: RecordFile | None) -> list[Item]:
    """The inputs of which nothing is known."""
    return [item for item in items if known is None or known.known(item) is None]


def _whole_lines(content: bytes) -> Iterator[bytes]:
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield line


def _as_json(record: Record) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": record.name, "stamp": record.stamp}
    entry |= {"us": [record.preprocessing_us, record.inference_us]}
    return entry | ({"error": record.error} if record.error else {"result": record.result})


def _from_json(entry: Mapping[str, Any]) -> Record:
    stamp = entry["stamp"]
    result, error = entry.get("result", {}), entry.get("error", "")
    return Record(entry["name"], (stamp[0], stamp[1]) if stamp else None, result, error, *entry["us"])


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(name, before, now) of what differs; of mappings, what differs in them."""
    for name in {**now, **before}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from ((f"{one} of {name}", was, is_) for one, was, is_ in _differences(old, new))
        elif old != new:
            yield name, old, new


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
