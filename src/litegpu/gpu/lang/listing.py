"""A kernel's tree as text, the same in every process: for people, and for digests."""

from __future__ import annotations

from collections.abc import Iterable

from litegpu.gpu.lang import tree
from litegpu.gpu.lang.value import TracedValue


def listing(title: str, memories: Iterable[tree.Memory], body: tree.Block) -> str:
    lines = [title]
    for m in memories:
        lines.append(f"{m.space} {m.name}: {m.storage} as {m.type}, {m.size} elements, {m.access}")
    _block(body, 1, lines)
    return "\n".join(lines) + "\n"


def _block(block: tree.Block, depth: int, lines: list[str]) -> None:
    def line(text: str) -> None:
        lines.append("  " * depth + text)

    for s in block.statements:
        match s:
            case tree.Bind():
                line(f"%{s.value.number}: {s.value.type} = {_expression(s.value)}")
            case tree.Declare():
                line(f"{_local(s.variable)}: {s.variable.type}[{s.variable.size}] = {_name(s.init)}")
            case tree.Assign():
                line(f"{_local(s.variable)}[{s.element}] = {_name(s.value)}")
            case tree.Store():
                line(f"{s.memory.name}[{_name(s.index)}] = {_name(s.value)}")
            case tree.Barrier():
                line("barrier")
            case tree.If():
                line(f"if {_name(s.condition)}")
                _block(s.then, depth + 1, lines)
                if s.orelse is not None:
                    line("else")
                    _block(s.orelse, depth + 1, lines)
            case tree.For():
                line(f"for {_name(s.index)} from {_name(s.start)} to {_name(s.stop)} by {_name(s.step)}")
                _block(s.body, depth + 1, lines)
            case tree.While():
                line("while")
                _block(s.head, depth + 1, lines)
                line(f"holds {_name(s.condition)}")
                _block(s.body, depth + 1, lines)


def _name(value: TracedValue) -> str:
    if value.op == "const":
        return f"{value.type}({value.constant!r})" if value.constant == value.constant else f"{value.type}(nan)"
    if value.op == "builtin":
        return f"{value.attr[0]}.{value.attr[1]}"
    return f"%{value.number}"


def _local(variable: tree.Variable) -> str:
    return f"v{variable.number}"


def _expression(value: TracedValue) -> str:
    args = ", ".join(_name(a) for a in value.args)
    if value.op == "load":
        return f"{value.attr.name}[{args}]"
    if value.op == "read":
        return f"{_local(value.attr[0])}[{value.attr[1]}]"
    return f"{value.op}({args})" + (f" {value.attr}" if value.attr is not None else "")
