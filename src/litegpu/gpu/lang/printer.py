"""What all printers share: which values get a name, and the walk over blocks in C-like syntax.

A value is written inline where it is used if it is pure, used once, and used in the block that made it; otherwise it
is bound to a name where it was traced. What nothing uses is not printed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.lang import tree
from litegpu.gpu.lang.types import Type
from litegpu.gpu.lang.value import LEAVES, Scope, TracedValue

INLINE_LIMIT = 96  # characters


class Printer(ABC):
    """Prints the statements of one block and those inside it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self._texts: dict[int, str] = {}
        self._uses: Counter[int] = Counter()
        self._users: defaultdict[int, list[TracedValue]] = defaultdict(list)  # values that are computed with it
        self._elsewhere: set[int] = set()  # values used in another block than their own

    # What a target defines

    @abstractmethod
    def type_name(self, type: Type) -> str: ...

    @abstractmethod
    def constant(self, value: TracedValue) -> str: ...

    @abstractmethod
    def builtin(self, value: TracedValue) -> str: ...

    @abstractmethod
    def operation(self, value: TracedValue, args: list[str]) -> str:
        """The expression of a value that is not a leaf."""

    @abstractmethod
    def repeats(self, value: TracedValue) -> bool:
        """Whether `operation` writes an argument's text more than once, so that it should be a name."""

    @abstractmethod
    def bind(self, name: str, type: Type, text: str) -> str: ...

    @abstractmethod
    def declare(self, variable: tree.Variable, init: TracedValue) -> None: ...

    @abstractmethod
    def store(self, memory: tree.Memory, index: str, value: str) -> str: ...

    @abstractmethod
    def for_header(self, index: str, start: str, stop: str, step: str) -> str: ...

    @abstractmethod
    def forever(self) -> str:
        """The head of a loop that only a break leaves, without its brace."""

    @abstractmethod
    def barrier(self) -> None: ...

    def join(self, block: tree.Block) -> None:
        """Find what is printed together, of a block whose values' users are known."""
        return

    # The walk

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def print_block(self, block: tree.Block, results: tuple[TracedValue, ...] = ()) -> None:
        """Print all of `block`; `results` are values that the caller uses after it."""
        todo: list[tuple[TracedValue, Scope]] = [(v, block) for v in results]
        _effects(block, todo)
        self._count(todo)
        self.join(block)
        self._statements(block)

    def print_values(self, block: tree.Block, values: Sequence[TracedValue]) -> None:
        """Print what `values` are computed with, of `block` itself, and nothing else of it."""
        self._count([(v, block) for v in values])
        for s in block.statements:
            if isinstance(s, tree.Bind):
                self._bind(s.value)

    def text(self, value: TracedValue) -> str:
        """How to write `value` at this place."""
        if value.op == "const":
            return self.constant(value)
        if value.op == "builtin":
            return self.builtin(value)
        return self._texts[value.number]

    def local(self, variable: tree.Variable, element: int) -> str:
        return f"v{variable.number}" + (f"[{element}]" if variable.is_array else "")

    def name_leaf(self, value: TracedValue, name: str) -> None:
        self._texts[value.number] = name

    def _statements(self, block: tree.Block) -> None:
        for s in block.statements:
            self._statement(s)

    def _statement(self, s: tree.Statement) -> None:
        match s:
            case tree.Bind():
                self._bind(s.value)
            case tree.Declare():
                self.declare(s.variable, s.init)
            case tree.Assign():
                self.line(f"{self.local(s.variable, s.element)} = {self.text(s.value)};")
            case tree.Store():
                self.line(self.store(s.memory, self.text(s.index), self.text(s.value)))
            case tree.Barrier():
                self.barrier()
            case tree.If():
                self._if(s)
            case tree.For():
                self._for(s)
            case tree.While():
                self._open(self.forever())
                self._statements(s.head)
                self.line(f"if (!{self.text(s.condition)}) {{ break; }}")
                self._statements(s.body)
                self._close()

    def _bind(self, value: TracedValue) -> None:
        uses = self._uses[value.number]
        if not uses:
            return
        text = self.operation(value, [self.text(a) for a in value.args])
        cheap = value.op == "lane" or (uses == 1 and value.number not in self._elsewhere and len(text) <= INLINE_LIMIT)
        if value.is_pure and cheap:
            self._texts[value.number] = text
            return
        name = f"t{value.number}"
        self.line(self.bind(name, value.type, text))
        self._texts[value.number] = name

    def _if(self, s: tree.If) -> None:
        if s.condition.op == "const":
            chosen = s.then if s.condition.constant else s.orelse
            if chosen is not None:
                self._open("")
                self._statements(chosen)
                self._close()
            return
        self._open(f"if ({self.text(s.condition)}) ")
        self._statements(s.then)
        if s.orelse is not None:
            self.depth -= 1
            self.line("} else {")
            self.depth += 1
            self._statements(s.orelse)
        self._close()

    def _for(self, s: tree.For) -> None:
        if s.start.op == "const" and s.stop.op == "const" and s.start.attr >= s.stop.attr:
            return
        index = f"n{s.index.number}"  # i32 would hide the type
        self.name_leaf(s.index, index)
        self._open(self.for_header(index, self.text(s.start), self.text(s.stop), self.text(s.step)) + " ")
        self._statements(s.body)
        self._close()

    def _open(self, head: str) -> None:
        self.line(head + "{")
        self.depth += 1

    def _close(self) -> None:
        self.depth -= 1
        self.line("}")

    # Who uses what

    def _count(self, todo: list[tuple[TracedValue, Scope]]) -> None:
        """`todo`: values, each with the block that uses it."""
        while todo:
            value, user = todo.pop()
            if value.op in LEAVES:
                continue
            self._uses[value.number] += 1
            if user is not value.block:
                self._elsewhere.add(value.number)
            if self._uses[value.number] == 1:
                args = value.args * (2 if self.repeats(value) else 1)
                todo.extend((a, value.block) for a in args)
                for a in args:
                    self._users[a.number].append(value)


def memory_name(memory: tree.Memory) -> str:
    """A name that cannot clash: numbered, and without the double underscores that WGSL refuses."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", memory.name).strip("_")
    return f"{'b' if memory.space == 'global' else 's'}{memory.number}_{readable}".rstrip("_")


def decimal(number: np.float32) -> str:
    """The shortest decimal text that reads back as `number`."""
    text = str(number)
    return text if "." in text or "e" in text else text + ".0"


def _effects(block: tree.Block, found: list[tuple[TracedValue, Scope]]) -> None:
    """Values that statements other than Bind use, each with the block that uses it."""
    for s in block.statements:
        match s:
            case tree.Declare():
                found += [(s.init, block)] * (2 if s.variable.is_array else 1)  # an array repeats it: give it a name
            case tree.Assign():
                found.append((s.value, block))
            case tree.Store():
                found += [(s.index, block), (s.value, block)]
            case tree.If():
                found.append((s.condition, block))
                _effects(s.then, found)
                if s.orelse is not None:
                    _effects(s.orelse, found)
            case tree.For():
                found += [(s.start, block), (s.stop, block), (s.step, block)]
                _effects(s.body, found)
            case tree.While():
                _effects(s.head, found)
                found.append((s.condition, s.head))
                _effects(s.body, found)
