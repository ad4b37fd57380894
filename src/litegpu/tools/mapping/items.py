"""What the items of a map are made of: files, rows of arrays and tables; and what gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.tools.arrays import read_array

#: What one input of an item is made of: the path of a picture or an array, the bytes of a picture, an array, nothing.
Raw = str | bytes | np.ndarray | None
#: One of these for each of the model's inputs.
Item = Sequence[Raw]


@dataclass(frozen=True)
class Files:
    """A file for each item."""

    paths: tuple[str, ...]

    def items(self) -> Iterator[Item]:
        return ((path,) for path in self.paths)


@dataclass(frozen=True)
class Rows:
    """Rows of an array file, read where they are needed."""

    path: str
    first: int
    count: int

    def items(self) -> Iterator[Item]:
        array = read_array(self.path, "the inputs", mapped=True)
        return ((np.array(row),) for row in array[self.first : self.first + self.count])


@dataclass(frozen=True)
class TableRows:
    """Rows of a table that were read already; a column for each of the model's inputs."""

    columns: tuple[tuple[Raw, ...], ...]

    def items(self) -> Iterator[Item]:
        return iter(zip(*self.columns, strict=True))


class Part:
    """Inputs that stand in one place of the command line."""

    def count(self) -> int:
        raise NotImplementedError

    def identity(self) -> Iterator[str]:
        """What tells these inputs from others."""
        raise NotImplementedError

    def read(self, size: int, first: int, end: int) -> Iterator[tuple[tuple[str, ...], Files | Rows | TableRows]]:
        """Names and contents, from number `first` to the one before `end`."""
        raise NotImplementedError
