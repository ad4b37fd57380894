"""A typed value of a kernel, whose Python operators build the tree, and the scope that it belongs to."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol, Self

import numpy as np

from litegpu.gpu.lang.types import FLOAT_KINDS, KernelError, Type

LEAVES = ("const", "builtin", "index")  # never bound: they have a name or a spelling of their own
ORDERED = ("load", "read", "subgroup")  # happen where they were traced


class Tracer(Protocol):
    """What a value asks of the kernel that it belongs to, and what simplifies values does."""

    def const(self, value: float, type: Type) -> TracedValue: ...

    def convert(self, value: TracedValue, type: Type) -> TracedValue: ...

    def lane(self, value: TracedValue, lane: int) -> TracedValue: ...

    def call(self, op: str, *operands: TracedValue | float) -> TracedValue: ...


class Scope:
    """Where values are made and may be used: there, and in the scopes inside."""

    def __init__(self, parent: Self | None = None) -> None:
        self.parent = parent

    def encloses(self, other: Scope | None) -> bool:
        while other is not None:
            if other is self:
                return True
            other = other.parent
        return False


class TracedValue:
    """`op` of `args` with `attr`; `block` is where it was made and so where it may be used. Compared by identity.

    Beside the operations of `ops.OPS` there are const, builtin, index, cast, bitcast, splat, vec, lane (pure) and
    load, read, subgroup (ordered).
    """

    __slots__ = ("args", "attr", "block", "kernel", "number", "op", "type")

    def __init__(
        self, kernel: Tracer, number: int, type: Type, op: str, args: tuple[TracedValue, ...], attr: Any, block: Scope
    ) -> None:
        self.kernel, self.number, self.type, self.op = kernel, number, type, op
        self.args, self.attr, self.block = args, attr, block

    @property
    def is_pure(self) -> bool:
        return self.op not in ORDERED

    @property
    def constant(self) -> float | int | bool | None:
        """The Python number of a constant (of every lane of it), else None."""
        if self.op != "const":
            return None
        return number_of(self.attr, self.type.kind)

    def is_constant(self, number: float) -> bool:
        return self.op == "const" and bool(self.constant == number)

    def __repr__(self) -> str:
        return f"<{self.type} {self.op} %{self.number}>"

    def __add__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("add", self, other)

    def __radd__(self, other: float) -> TracedValue:
        return self.kernel.call("add", other, self)

    def __sub__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("sub", self, other)

    def __rsub__(self, other: float) -> TracedValue:
        return self.kernel.call("sub", other, self)

    def __mul__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("mul", self, other)

    def __rmul__(self, other: float) -> TracedValue:
        return self.kernel.call("mul", other, self)

    def __truediv__(self, other: TracedValue | float) -> TracedValue:
        self._need_float("/")
        return self.kernel.call("div", self, other)

    def __rtruediv__(self, other: float) -> TracedValue:
        self._need_float("/")
        return self.kernel.call("div", other, self)

    def __floordiv__(self, other: TracedValue | int) -> TracedValue:
        self._need_unsigned("//", "k.idiv_trunc")
        return self.kernel.call("div", self, other)

    def __rfloordiv__(self, other: int) -> TracedValue:
        self._need_unsigned("//", "k.idiv_trunc")
        return self.kernel.call("div", other, self)

    def __mod__(self, other: TracedValue | int) -> TracedValue:
        self._need_unsigned("%", "k.irem")
        return self.kernel.call("mod", self, other)

    def __rmod__(self, other: int) -> TracedValue:
        self._need_unsigned("%", "k.irem")
        return self.kernel.call("mod", other, self)

    def __and__(self, other: TracedValue | int) -> TracedValue:
        return self.kernel.call("and", self, other)

    def __rand__(self, other: int) -> TracedValue:
        return self.kernel.call("and", other, self)

    def __or__(self, other: TracedValue | int) -> TracedValue:
        return self.kernel.call("or", self, other)

    def __ror__(self, other: int) -> TracedValue:
        return self.kernel.call("or", other, self)

    def __xor__(self, other: TracedValue | int) -> TracedValue:
        return self.kernel.call("xor", self, other)

    def __rxor__(self, other: int) -> TracedValue:
        return self.kernel.call("xor", other, self)

    def __lshift__(self, other: TracedValue | int) -> TracedValue:
        return self.kernel.call("shl", self, other)

    def __rlshift__(self, other: int) -> TracedValue:
        return self.kernel.call("shl", other, self)

    def __rshift__(self, other: TracedValue | int) -> TracedValue:
        return self.kernel.call("shr", self, other)

    def __rrshift__(self, other: int) -> TracedValue:
        return self.kernel.call("shr", other, self)

    def __lt__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("lt", self, other)

    def __le__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("le", self, other)

    def __gt__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("gt", self, other)

    def __ge__(self, other: TracedValue | float) -> TracedValue:
        return self.kernel.call("ge", self, other)

    def __eq__(self, other: TracedValue | float) -> TracedValue:  # type: ignore[override]
        return self.kernel.call("eq", self, other)

    def __ne__(self, other: TracedValue | float) -> TracedValue:  # type: ignore[override]
        return self.kernel.call("ne", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> TracedValue:
        return self.kernel.call("neg", self)

    def __invert__(self) -> TracedValue:
        return self.kernel.call("not", self)

    def __abs__(self) -> TracedValue:
        return self.kernel.call("abs", self)

    def __getitem__(self, lane: int) -> TracedValue:
        return self.kernel.lane(self, lane)

    def __bool__(self) -> NoReturn:
        raise KernelError("a kernel value has no truth value while tracing: use k.If, k.select, & and |")

    def __iter__(self) -> NoReturn:
        raise KernelError("a kernel value cannot be iterated: use v[0], v[1], ...")

    def _need_float(self, symbol: str) -> None:
        if not self.type.is_float:
            raise KernelError(f"{symbol} needs floats, not {self.type}: use // on u32, or k.idiv_trunc on i32")

    def _need_unsigned(self, symbol: str, instead: str) -> None:
        if self.type.kind != "u32":
            raise KernelError(f"{symbol} needs u32, not {self.type}: C and Python round differently; use {instead}")


def bits_of(number: float | int | bool, kind: str) -> int:
    """How a constant is kept: floats as their bits, so that -0.0 and NaN are told apart from what they equal."""
    if kind in FLOAT_KINDS:
        with np.errstate(over="ignore"):
            return int(np.float32(number).view(np.uint32) if kind == "f32" else np.float16(number).view(np.uint16))
    return int(number)


def number_of(bits: int, kind: str) -> float | int | bool:
    if kind in FLOAT_KINDS:
        return float(np.uint32(bits).view(np.float32) if kind == "f32" else np.uint16(bits).view(np.float16))
    return bool(bits) if kind == "bool" else bits
