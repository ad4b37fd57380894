"""Checks on a finished tree: types, scopes, and that every barrier is reached by a whole workgroup or by none of it.

A value is uniform when all threads of a workgroup are sure to have the same: constants, group ids, loads from
read-only buffers at a uniform index, and what is computed from these. A local is uniform while everything assigned to
it is, under uniform control flow.
"""

from __future__ import annotations

from litegpu.gpu.lang import ops, tree
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.types import KernelError
from litegpu.gpu.lang.value import LEAVES, TracedValue


def verify(kernel: Kernel) -> None:
    """Raise KernelError, with the author's line, if the tree breaks a rule of the language."""
    verify_structure(kernel, set())
    check_uniformity(kernel)


def verify_structure(kernel: Kernel, bound: set[int]) -> None:
    """As `verify`, without the rules on threads; the values numbered `bound` are the kernel's from the start."""
    _Structure(kernel).check(kernel.body, bound)


def check_uniformity(kernel: Kernel) -> None:
    """Barriers and subgroup operations only in uniform control flow."""
    analysis = _Uniformity()
    while True:  # a local found to vary makes others vary: repeat until nothing changes
        before = len(analysis.varying)
        analysis.block(kernel.body, True)
        if len(analysis.varying) == before:
            break
    if analysis.divergent:
        s = analysis.divergent[0]
        what = "barrier" if isinstance(s, tree.Barrier) else "subgroup operation"
        raise KernelError(
            f"kernel {kernel.name}: {s.where}: {what} in control flow that may differ between threads of a workgroup"
        )


class _Structure:
    """Every argument is bound before its use, in a scope that encloses it, with the types that the tree promises."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def check(self, block: tree.Block, bound: set[int]) -> None:
        bound = set(bound)
        for s in block.statements:
            self._statement(s, bound)

    def _statement(self, s: tree.Statement, bound: set[int]) -> None:
        def need(condition: bool, rule: str) -> None:
            if not condition:
                raise KernelError(f"kernel {self.kernel.name}: {s.where}: {rule}")

        def use(*values: TracedValue) -> None:
            for v in values:
                need(v.op in ("const", "builtin") or v.number in bound, f"{v!r} is used before it is made")

        match s:
            case tree.Bind(value=v):
                use(*v.args)
                if v.op in ops.OPS:
                    operand = v.args[-1].type
                    need(operand.kind in ops.OPS[v.op].kinds, f"{v.op} on {operand}")
                    need(v.type == ops.OPS[v.op].result_type(operand), f"{v.op} of {operand} gives {v.type}")
                bound.add(v.number)
            case tree.Declare():
                use(s.init)
                need(s.init.type == s.variable.type, f"{s.variable.type} initialised with {s.init.type}")
            case tree.Assign():
                use(s.value)
                need(s.value.type == s.variable.type, f"{s.value.type} assigned to {s.variable.type}")
            case tree.Store():
                use(s.index, s.value)
                need(s.memory.access == "read_write", f"store to read-only {s.memory.name}")
                need(s.value.type == s.memory.type and s.index.type.kind == "u32", f"store to {s.memory.name}")
            case tree.If():
                use(s.condition)
                need(s.condition.type.kind == "bool" and s.condition.type.lanes == 1, "if needs a bool")
                self.check(s.then, bound)
                if s.orelse is not None:
                    self.check(s.orelse, bound)
            case tree.For():
                use(s.start, s.stop, s.step)
                self.check(s.body, bound | {s.index.number})
            case tree.While():
                inner = set(bound)
                for h in s.head.statements:
                    self._statement(h, inner)
                need(s.condition.op in LEAVES or s.condition.number in inner, "the condition is not made at the head")
                self.check(s.body, inner)


class _Uniformity:
    """One walk marks what varies; `varying` holds numbers of values and, negative, of locals."""

    def __init__(self) -> None:
        self.varying: set[int] = set()
        self.divergent: list[tree.Statement] = []

    def block(self, block: tree.Block, uniform: bool) -> None:
        for s in block.statements:
            match s:
                case tree.Bind(value=v):
                    if not self._uniform(v):
                        self.varying.add(v.number)
                    if v.op == "subgroup" and not uniform:
                        self.divergent.append(s)
                case tree.Declare():
                    self._assign(s.variable, self._is(s.init))
                case tree.Assign():
                    self._assign(s.variable, uniform and self._is(s.value))
                case tree.Barrier():
                    if not uniform:
                        self.divergent.append(s)
                case tree.If():
                    inner = uniform and self._is(s.condition)
                    self.block(s.then, inner)
                    if s.orelse is not None:
                        self.block(s.orelse, inner)
                case tree.For():
                    inner = uniform and self._is(s.start) and self._is(s.stop) and self._is(s.step)
                    if not inner:
                        self.varying.add(s.index.number)
                    self.block(s.body, inner)
                case tree.While():
                    self.block(s.head, uniform)
                    inner = uniform and self._is(s.condition)
                    self.block(s.head, inner)
                    self.block(s.body, inner)

    def _assign(self, variable: tree.Variable, uniform: bool) -> None:
        if not uniform:
            self.varying.add(-1 - variable.number)

    def _is(self, value: TracedValue) -> bool:
        if value.op == "const":
            return True
        if value.op == "builtin":
            return bool(value.attr[0] in ("group_id", "subgroup_size"))
        return value.number not in self.varying

    def _uniform(self, value: TracedValue) -> bool:
        if value.op == "subgroup":
            return False
        if value.op == "read":
            return -1 - value.attr[0].number not in self.varying
        if value.op == "load" and value.attr.access != "read":
            return False
        return all(self._is(a) for a in value.args)
