"""A kernel as text, and back: its tree as JSON, so that programs can be stored and sent as those of any backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from litegpu.gpu.lang import Kernel, KernelError, Type, ops, tree
from litegpu.gpu.lang.value import TracedValue
from litegpu.gpu.lang.verify import verify

#: What statements bind beside the operations of `ops.OPS`.
_OTHERS = frozenset(("cast", "bitcast", "splat", "vec", "lane", "load", "read", "subgroup"))
#: What damaged text makes of the code below.
_DAMAGE = (ValueError, TypeError, LookupError, AttributeError)


def print_tree(kernel: Kernel) -> str:
    """The kernel as text that read_tree() takes."""
    return json.dumps(
        {
            "name": kernel.name,
            "workgroup": kernel.workgroup,
            "grid": kernel.grid,
            "buffers": [[m.name, _type(m.storage), m.size, _type(m.type), m.access] for m in kernel.buffers],
            "shared": [[_type(m.type), m.size] for m in kernel.shared_memories],
            "body": _block(kernel.body),
        },
        separators=(",", ":"),
    )


def read_tree(text: str) -> Kernel:
    """The kernel that print_tree() wrote, verified. Raises KernelError for anything else."""
    try:
        content = json.loads(text)
        kernel = Kernel(content["name"], tuple(content["workgroup"]), tuple(content["grid"]))
        for name, storage, size, compute, access in content["buffers"]:
            kernel.buffer(name, Type(*storage), size, compute=Type(*compute), access=access)
        for kept, size in content["shared"]:
            kernel.shared(Type(*kept), size)
        _Reader(kernel).fill(kernel.body, content["body"])
        verify(kernel)
    except KernelError:
        raise
    except _DAMAGE as error:
        raise KernelError(f"this is not the text of a kernel: {type(error).__name__}: {error}") from error
    kernel.verified = True
    return kernel


# ----------------------------------------------------------------------------------------------


def _type(type: Type) -> list[Any]:
    return [type.kind, type.lanes]


def _block(block: tree.Block) -> list[Any]:
    return [[type(s).__name__, s.where, *_parts(s)] for s in block.statements]


def _parts(s: tree.Statement) -> list[Any]:
    match s:
        case tree.Bind(value=v):
            return [v.number, _type(v.type), v.op, [_operand(a) for a in v.args], _attribute(v)]
        case tree.Declare(variable=v):
            return [v.number, v.size, _type(v.type), _operand(s.init)]
        case tree.Assign():
            return [s.variable.number, s.element, _operand(s.value)]
        case tree.Store():
            return [_memory(s.memory), _operand(s.index), _operand(s.value)]
        case tree.If():
            return [_operand(s.condition), _block(s.then), None if s.orelse is None else _block(s.orelse)]
        case tree.For():
            return [s.index.number, *map(_operand, (s.start, s.stop, s.step)), _block(s.body)]
        case tree.While():
            return [_block(s.head), _operand(s.condition), _block(s.body)]
    return []  # a barrier


def _operand(value: TracedValue) -> Any:
    """A number for what a statement made, else what it is."""
    return [value.op, _type(value.type), value.attr] if value.op in ("const", "builtin") else value.number


def _attribute(value: TracedValue) -> Any:
    if value.op == "load":
        return _memory(value.attr)
    if value.op == "read":
        return [value.attr[0].number, value.attr[1]]
    return value.attr


def _memory(memory: tree.Memory) -> list[Any]:
    return [memory.space, memory.number]


class _Reader:
    """What a kernel's statements have made so far, by number."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.values: dict[int, TracedValue] = {}
        self.variables: dict[int, tree.Variable] = {}

    def fill(self, block: tree.Block, rows: Sequence[Any]) -> tree.Block:
        for kind, where, *parts in rows:
            block.statements.append(_READERS[kind](self, str(where), *parts))
            self.kernel.statement_count += 1
        return block

    def bind(self, where: str, number: int, type: Any, op: str, args: Sequence[Any], attr: Any) -> tree.Statement:
        if op not in ops.OPS and op not in _OTHERS:
            raise ValueError(f"there is no operation {op!r}")
        if op == "load":
            attr = self._memory(attr)
        elif op == "read":
            variable, element = self.variables[attr[0]], int(attr[1])
            if not 0 <= element < variable.size:
                raise ValueError(f"element {element} is outside a local's {variable.size}")
            attr = variable, element
        value = self._value(number, type, op, tuple(self._operand(a) for a in args), attr)
        return tree.Bind(where, value)

    def declare(self, where: str, number: int, size: int, type: Any, init: Any) -> tree.Statement:
        variable = tree.Array(self.kernel, number, Type(*type), self.kernel.body, size)
        self.variables[number] = variable
        return tree.Declare(where, variable, self._operand(init))

    def assign(self, where: str, number: int, element: int, value: Any) -> tree.Statement:
        return tree.Assign(where, self.variables[number], element, self._operand(value))

    def store(self, where: str, memory: Any, index: Any, value: Any) -> tree.Statement:
        return tree.Store(where, self._memory(memory), self._operand(index), self._operand(value))

    def branch(self, where: str, condition: Any, then: Any, orelse: Any) -> tree.Statement:
        test = self._operand(condition)
        return tree.If(where, test, self._scope(then), None if orelse is None else self._scope(orelse))

    def loop(self, where: str, number: int, start: Any, stop: Any, step: Any, body: Any) -> tree.Statement:
        first, last, by = (self._operand(v) for v in (start, stop, step))
        index = self._value(number, ("u32", 1), "index", (), None)
        return tree.For(where, index, first, last, by, self._scope(body))

    def repeat(self, where: str, head: Any, condition: Any, body: Any) -> tree.Statement:
        first = self._scope(head)
        return tree.While(where, first, self._operand(condition), self._scope(body))

    def _scope(self, rows: Any) -> tree.Block:
        return self.fill(tree.Block(self.kernel.body), rows)

    def _value(self, number: int, type: Any, op: str, args: tuple[TracedValue, ...], attr: Any) -> TracedValue:
        made = self.values[number] = TracedValue(self.kernel, number, Type(*type), op, args, attr, self.kernel.body)
        return made

    def _operand(self, written: Any) -> TracedValue:
        if isinstance(written, int):
            return self.values[written]
        op, type, attr = written
        attr = (str(attr[0]), int(attr[1])) if op == "builtin" else int(attr)
        return TracedValue(self.kernel, -1, Type(*type), op, (), attr, self.kernel.body)

    def _memory(self, written: Any) -> tree.Memory:
        space, number = written
        found: tree.Memory = (self.kernel.buffers if space == "global" else self.kernel.shared_memories)[number]
        return found


_READERS: Mapping[str, Callable[..., tree.Statement]] = {
    "Bind": _Reader.bind,
    "Declare": _Reader.declare,
    "Assign": _Reader.assign,
    "Store": _Reader.store,
    "Barrier": lambda _, where: tree.Barrier(where),
    "If": _Reader.branch,
    "For": _Reader.loop,
    "While": _Reader.repeat,
}
