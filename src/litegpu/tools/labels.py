"""Names of classes: from a file with one in each line, or from the files that are packed into a model."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Sequence

from litegpu.errors import OptionError
from litegpu.tools.text_file import read_text

_MOST_CHARACTERS = 64 << 20  # of a file of labels
_MOST_BYTES = 4 << 20  # of a packed file; the labels of 20,000 classes take a tenth


def read_labels(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a label file up to the first empty one."""
    labels = _lines(read_text(path, "the labels", _MOST_CHARACTERS))
    if not labels:
        raise OptionError(f"{os.fspath(path)} holds no labels: the first line is empty")
    return labels


def packed_labels(content: bytes | memoryview, classes: int | None) -> list[str]:
    """The labels in a model's own files (a ZIP archive behind the model, as the official metadata writer leaves it) of
    which there are as many as `classes` (None: any number); none if there are no such. Files called so come first."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [m for m in archive.infolist() if m.filename.lower().endswith(".txt")]
            for member in sorted(members, key=lambda m: "label" not in m.filename.lower()):
                if member.file_size > _MOST_BYTES:
                    continue
                with archive.open(member) as file:
                    labels = _lines(file.read(_MOST_BYTES).decode("utf-8-sig"))
                if labels and fits(labels, classes):
                    return labels
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, RuntimeError, NotImplementedError):
        return []  # no archive, or one that is damaged, encrypted or packed in a way of its own: names are a comfort
    return []


def fits(labels: Sequence[str], classes: int | None) -> bool:
    """Whether so many classes can have these names: a leading "background" or "???" may be missing, or too many."""
    return classes is None or abs(len(labels) - classes) <= 1


def require_fit(labels: Sequence[str], classes: int | None, path: str | os.PathLike[str]) -> None:
    """Raises OptionError for names of something else."""
    if not fits(labels, classes):
        raise OptionError(f"{os.fspath(path)} has {len(labels)} names, but the model tells {classes} classes apart")


def _lines(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return lines[: lines.index("")] if "" in lines else lines
