"""The tree that tracing builds: blocks of statements in order, over values that are each bound where they were made."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

from litegpu.gpu.lang.types import Type
from litegpu.gpu.lang.value import Scope, TracedValue

_SKIPPED = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.abspath(contextlib.__file__))


def author_line() -> str:
    """file:line of the kernel author's code that is now calling into the language."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_language_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def is_language_file(filename: str) -> bool:
    return filename.startswith(_SKIPPED)


class Block(Scope):
    """Statements in order, and the pure values made in it (so that equal ones are made once)."""

    def __init__(self, parent: Self | None = None) -> None:
        super().__init__(parent)
        self.statements: list[Statement] = []
        self.values: dict[tuple[Any, ...], TracedValue] = {}

    def find(self, key: tuple[Any, ...]) -> TracedValue | None:
        """An equal pure value made earlier here or in an enclosing block."""
        block: Block | None = self
        while block is not None:
            if key in block.values:
                return block.values[key]
            block = block.parent
        return None


@dataclass(frozen=True, eq=False)
class Statement:
    where: str  # file:line of the kernel's author


@dataclass(frozen=True, eq=False)
class Bind(Statement):
    """Compute `value` here. Loads, reads and subgroup operations happen exactly here; pure values at the latest."""

    value: TracedValue


@dataclass(frozen=True, eq=False)
class Declare(Statement):
    """A mutable local; every element starts as `init`."""

    variable: Variable
    init: TracedValue


@dataclass(frozen=True, eq=False)
class Assign(Statement):
    variable: Variable
    element: int  # 0 for a plain variable
    value: TracedValue


@dataclass(frozen=True, eq=False)
class Store(Statement):
    memory: Memory
    index: TracedValue
    value: TracedValue


@dataclass(frozen=True, eq=False)
class Barrier(Statement):
    """All threads of the workgroup arrive, and see each other's stores to shared and global memory."""


@dataclass(frozen=True, eq=False)
class If(Statement):
    condition: TracedValue
    then: Block
    orelse: Block | None = None


@dataclass(frozen=True, eq=False)
class For(Statement):
    """`index` runs from `start` up to, not including, `stop`; stop + step must not pass 2**32."""

    index: TracedValue
    start: TracedValue
    stop: TracedValue
    step: TracedValue
    body: Block


@dataclass(frozen=True, eq=False)
class While(Statement):
    """Run `head`, leave unless `condition`, run `body` (inside head's scope), repeat."""

    head: Block
    condition: TracedValue
    body: Block


def statements(block: Block) -> Iterator[Statement]:
    """Those of a block, each followed by those inside it."""
    for s in block.statements:
        yield s
        for inner in blocks(s):
            yield from statements(inner)


def blocks(statement: Statement) -> list[Block]:
    """Those inside a statement."""
    match statement:
        case If(then=then, orelse=orelse):
            return [then] if orelse is None else [then, orelse]
        case For(body=body):
            return [body]
        case While(head=head, body=body):
            return [head, body]
    return []


class Accessor(Protocol):
    """What locals and memories ask of the kernel that they belong to."""

    def read(self, variable: Variable, element: int) -> TracedValue: ...

    def assign(self, variable: Variable, element: int, value: TracedValue | float) -> None: ...

    def load(self, memory: Memory, index: TracedValue | int) -> TracedValue: ...

    def store(self, memory: Memory, index: TracedValue | int, value: TracedValue | float) -> None: ...


class Variable:
    """A mutable local of one thread; `.value` reads it here and now, `.set(v)` writes it."""

    def __init__(self, kernel: Accessor, number: int, type: Type, block: Block) -> None:
        self.kernel, self.number, self.type, self.block = kernel, number, type, block
        self.size = 1
        self.is_array = False

    @property
    def value(self) -> TracedValue:
        return self.kernel.read(self, 0)

    def set(self, value: TracedValue | float) -> None:
        self.kernel.assign(self, 0, value)


class Array(Variable):
    """A small local array of one thread, indexed by Python integers only (a run-time index would spill to memory)."""

    def __init__(self, kernel: Accessor, number: int, type: Type, block: Block, size: int) -> None:
        super().__init__(kernel, number, type, block)
        self.size = size
        self.is_array = True

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, element: int) -> TracedValue:
        return self.kernel.read(self, element)

    def __setitem__(self, element: int, value: TracedValue | float) -> None:
        self.kernel.assign(self, element, value)


@dataclass(frozen=True, eq=False)
class Memory:
    """A buffer or shared array: `storage` is what an element is in memory, `type` what a load gives and a store takes.

    `size` counts elements. `access` is "read" or "read_write"; `space` is "global" or "shared".
    """

    kernel: Accessor
    number: int  # among the memories of its space, in order of declaration: the binding of a buffer
    name: str
    storage: Type
    type: Type
    space: str
    size: int
    access: str

    @property
    def nbytes(self) -> int:
        return self.size * self.storage.nbytes

    def __getitem__(self, index: TracedValue | int) -> TracedValue:
        return self.kernel.load(self, index)

    def __setitem__(self, index: TracedValue | int, value: TracedValue | float) -> None:
        self.kernel.store(self, index, value)

    def __iter__(self) -> Any:
        raise TypeError(f"{self.name} cannot be iterated while tracing; index it")
