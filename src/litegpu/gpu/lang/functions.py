"""The functions of the language: how pure values are typed, folded, shared and made."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from litegpu.gpu.lang import fold, ops
from litegpu.gpu.lang.tree import Bind, Block, Statement, author_line
from litegpu.gpu.lang.types import KernelError, Type, boolean, f32, i32, u32
from litegpu.gpu.lang.value import LEAVES, TracedValue, bits_of, number_of

Operand = TracedValue | float


class Functions:
    """The part of a Kernel that makes values."""

    def __init__(self) -> None:
        self.body = Block()
        self.block = self.body
        self.value_count = 0

    def const(self, value: float, type: Type) -> TracedValue:
        """A constant; every lane of a vector gets `value`. Integers must be in range; f32 and f16 round."""
        if isinstance(value, TracedValue):
            raise KernelError(f"k.const needs a Python number, not {value!r}")
        kind = type.kind
        if kind not in ops.NUMPY or type.is_packed:
            raise KernelError(f"no constants of type {type}")
        if not _fits(value, kind):
            raise KernelError(f"{value!r} is not a {kind}")
        bits = bits_of(value, kind)
        if type.is_float and math.isfinite(value) and not math.isfinite(number_of(bits, kind)):
            raise KernelError(f"{value!r} is out of range for {kind}")
        return self._shared("const", type, (), bits, self.body)

    def inf(self, type: Type = f32) -> TracedValue:
        """Positive infinity; `-k.inf()` is the negative."""
        return self.const(math.inf, type)

    def convert(self, value: TracedValue, type: Type) -> TracedValue:
        """Conversion of each lane; a scalar becomes every lane of a vector. See `ops` for what is unspecified."""
        if not isinstance(value, TracedValue):
            return self.const(value, type)
        if type.is_packed:
            raise KernelError(f"{type} is for storage: declare the buffer with it and compute in i32x4, u32x4 or f32x4")
        if value.type.lanes == 1 and type.lanes > 1:
            return self.splat(self.convert(value, type.scalar), type.lanes)
        if value.type.lanes != type.lanes:
            raise KernelError(f"cannot convert {value.type} to {type}: the number of lanes differs")
        if value.type == type:
            return value
        if value.op == "const":
            array = ops.cast(_array(value), type.kind)
            return self.const(array[0].item(), type)
        return self._shared("cast", type, (value,))

    def bitcast(self, value: TracedValue, type: Type) -> TracedValue:
        """The same bits as another 32-bit kind (f32, i32, u32) of as many lanes."""
        self._need_value(value)
        if {value.type.kind, type.kind} - {"f32", "i32", "u32"} or value.type.lanes != type.lanes:
            raise KernelError(f"cannot bitcast {value.type} to {type}")
        if value.type == type:
            return value
        if value.op == "const":
            return self._shared("const", type, (), int(ops.bitcast(_array(value), type.kind).view(_bits_type(type))[0]))
        return self._shared("bitcast", type, (value,))

    def splat(self, value: Operand, lanes: int) -> TracedValue:
        """A vector with `value`, a scalar, in every lane."""
        value = self._value(value)
        if value.type.lanes != 1:
            raise KernelError(f"splat needs a scalar, not {value.type}")
        if lanes == 1:
            return value
        type = Type(value.type.kind, lanes)
        if value.op == "const":
            return self._shared("const", type, (), value.attr, self.body)
        return self._shared("splat", type, (value,))

    def vec(self, *lanes: Operand) -> TracedValue:
        """A vector of 2, 3 or 4 scalars of one kind; at least one is a value (numbers take its kind)."""
        scalars = self._coerce("vec", lanes)
        if scalars[0].type.lanes != 1:
            raise KernelError("vec needs scalars")
        if len(scalars) == 1:
            return scalars[0]
        type = Type(scalars[0].type.kind, len(scalars))
        if all(s is scalars[0] for s in scalars):
            return self.splat(scalars[0], len(scalars))
        source = scalars[0].args[0] if scalars[0].op == "lane" else None
        in_order = all(s.op == "lane" and s.args[0] is source and s.attr == i for i, s in enumerate(scalars))
        if source is not None and source.type == type and in_order:
            return source
        return self._shared("vec", type, scalars)

    def lane(self, value: TracedValue, lane: int) -> TracedValue:
        """One lane, by a Python index; what `v[lane]` calls. A scalar's lane 0 is the scalar."""
        if isinstance(lane, bool) or not isinstance(lane, numbers.Integral):
            raise KernelError(f"a lane is chosen by a Python integer, not {lane!r}")
        lane = int(lane)
        if not 0 <= lane < value.type.lanes:
            raise KernelError(f"no lane {lane} in {value.type}")
        if value.type.lanes == 1 or value.op == "splat":
            return value.args[0] if value.op == "splat" else value
        if value.op == "vec":
            return value.args[lane]
        if value.op == "const":
            return self._shared("const", value.type.scalar, (), value.attr, self.body)
        return self._shared("lane", value.type.scalar, (value,), lane)

    def call(self, op: str, *operands: Operand) -> TracedValue:
        """A table operation on operands of one type; numbers take it, scalars spread over the lanes."""
        spec = ops.OPS[op]
        args = self._coerce(op, operands)
        type = args[0].type
        if type.kind not in spec.kinds:
            raise KernelError(f"{op} is not defined on {type}")
        if op in ("dot", "any", "all") and type.lanes == 1:
            return args[0] if op != "dot" else self.call("mul", *args)
        return self._finish(op, spec.result_type(type), args)

    def select(self, condition: TracedValue | bool, yes: Operand, no: Operand) -> TracedValue:
        """`yes` where `condition` else `no`. A scalar condition chooses whole vectors; both sides are evaluated."""
        if isinstance(condition, bool):
            condition = self.const(condition, boolean)
        self._need_value(condition)
        if condition.type.kind != "bool":
            raise KernelError(f"select needs a bool condition, not {condition.type}")
        args = self._coerce("select", (yes, no), at_least=condition.type.lanes)
        if condition.type.lanes not in (1, args[0].type.lanes):
            raise KernelError(f"select: the condition is {condition.type}, the operands {args[0].type}")
        return self._finish("select", args[0].type, (condition, *args))

    def min(self, a: Operand, b: Operand) -> TracedValue:
        """`b < a ? b : a`: the first operand when either is NaN."""
        return self.call("min", a, b)

    def max(self, a: Operand, b: Operand) -> TracedValue:
        """`a < b ? b : a`: the first operand when either is NaN."""
        return self.call("max", a, b)

    def clamp(self, x: Operand, lo: Operand, hi: Operand) -> TracedValue:
        """min(max(x, lo), hi): NaN stays NaN."""
        return self.min(self.max(x, lo), hi)

    def fma(self, a: Operand, b: Operand, c: Operand) -> TracedValue:
        """a * b + c; whether it is rounded once or twice is the device's choice."""
        return self.call("fma", a, b, c)

    def exp(self, x: TracedValue) -> TracedValue:
        return self.call("exp", x)

    def rough_exp2(self, x: TracedValue) -> TracedValue:
        """2**x, accurate enough for float16."""
        return self.call("rough_exp2", x)

    def rough_reciprocal(self, x: TracedValue) -> TracedValue:
        """1 / x, accurate enough for float16."""
        return self.call("rough_reciprocal", x)

    def log(self, x: TracedValue) -> TracedValue:
        """The natural logarithm."""
        return self.call("log", x)

    def sqrt(self, x: TracedValue) -> TracedValue:
        return self.call("sqrt", x)

    def rsqrt(self, x: TracedValue) -> TracedValue:
        """1 / sqrt(x)."""
        return self.call("rsqrt", x)

    def tanh(self, x: TracedValue) -> TracedValue:
        return self.call("tanh", x)

    def sin(self, x: TracedValue) -> TracedValue:
        return self.call("sin", x)

    def cos(self, x: TracedValue) -> TracedValue:
        return self.call("cos", x)

    def pow(self, x: Operand, y: Operand) -> TracedValue:
        """As C's pow: negative bases have results for whole exponents, pow(x, 0) is 1."""
        return self.call("pow", x, y)

    def floor(self, x: TracedValue) -> TracedValue:
        return self.call("floor", x)

    def ceil(self, x: TracedValue) -> TracedValue:
        return self.call("ceil", x)

    def round(self, x: TracedValue) -> TracedValue:
        """To the nearest whole number, ties to even."""
        return self.call("round", x)

    def trunc(self, x: TracedValue) -> TracedValue:
        return self.call("trunc", x)

    def abs(self, x: TracedValue) -> TracedValue:
        return self.call("abs", x)

    def sign(self, x: TracedValue) -> TracedValue:
        """-1, 1, or x itself for zeros and NaN."""
        return self.call("sign", x)

    def is_nan(self, x: TracedValue) -> TracedValue:
        return self.call("is_nan", x)

    def dot(self, a: Operand, b: Operand) -> TracedValue:
        """The sum of the products of the lanes, a scalar."""
        return self.call("dot", a, b)

    def any(self, x: TracedValue) -> TracedValue:
        return self.call("any", x)

    def all(self, x: TracedValue) -> TracedValue:
        return self.call("all", x)

    def idiv_trunc(self, a: Operand, b: Operand) -> TracedValue:
        """i32 division that rounds toward zero, as C's `/`."""
        return self.call("idiv", a, b)

    def irem(self, a: Operand, b: Operand) -> TracedValue:
        """i32 remainder with the sign of `a`, as C's `%`."""
        return self.call("irem", a, b)

    def to_i32_saturating(self, x: TracedValue) -> TracedValue:
        """f32 to i32: truncates, saturates at both ends, NaN gives 2147483647."""
        return self.call("to_i32_saturating", x)

    def nearest(self, x: TracedValue) -> TracedValue:
        """f32 to the nearest i32, of two the even one; unspecified out of range and for NaN."""
        return self.call("nearest", x)

    def nearest_small(self, x: TracedValue) -> TracedValue:
        """The same of a number that is less than 2**21 in magnitude."""
        return self.call("nearest_small", x)

    def round_small(self, x: TracedValue) -> TracedValue:
        """round() of such a number, but for the sign of zero."""
        return self.call("round_small", x)

    def high_product(self, a: Operand, b: Operand) -> TracedValue:
        """(a * b + 2**30) // 2**31 of two i32."""
        return self.call("high_product", a, b)

    def dot4(self, a: Operand, b: Operand, c: Operand) -> TracedValue:
        """c plus the products of the four signed bytes of the i32 words a and b."""
        return self.call("dot4", a, b, c)

    def _emit(self, statement: Statement) -> None:
        self.block.statements.append(statement)

    def _use(self, value: TracedValue) -> TracedValue:
        if value.kernel is not self:
            raise KernelError("a value of another kernel is used here")
        if not value.block.encloses(self.block):
            raise KernelError("a value made inside a block is used outside of it: keep it in a k.var(...)")
        return value

    def _need_value(self, value: object) -> None:
        if not isinstance(value, TracedValue):
            raise KernelError(f"need a kernel value, not {value!r}")

    def _value(self, value: Operand) -> TracedValue:
        """A bare Python number as a value: bool, u32 for int, f32 for float."""
        if isinstance(value, TracedValue):
            return value
        if isinstance(value, bool):
            return self.const(value, boolean)
        if isinstance(value, numbers.Integral):
            return self.const(value, u32 if value >= 0 else i32)
        if isinstance(value, numbers.Real):
            return self.const(value, f32)
        raise KernelError(f"{value!r} is not a value or a number")

    def _coerce(self, op: str, operands: tuple[Operand, ...], at_least: int = 1) -> tuple[TracedValue, ...]:
        """All operands as values of one type."""
        values = [v for v in operands if isinstance(v, TracedValue)]
        if not values:
            raise KernelError(f"{op}: at least one operand must be a kernel value (k.const(number, type) makes one)")
        kinds = {v.type.kind for v in values}
        lanes = {v.type.lanes for v in values} - {1} | ({at_least} - {1})
        if len(kinds) > 1 or len(lanes) > 1:
            listed = " and ".join(str(v.type) for v in values)
            raise KernelError(f"{op}: the operands are {listed}; convert explicitly")
        type = Type(kinds.pop(), max(lanes, default=1))
        result = []
        for v in operands:
            if isinstance(v, TracedValue):
                result.append(v if v.type == type else self.splat(v, type.lanes))
                continue
            if type.kind == "u32" and op in ("add", "sub") and isinstance(v, numbers.Integral) and -(2**31) <= v < 0:
                v = int(v) + 2**32  # u32 wraps, so adding -1 is subtracting 1
            result.append(self.const(v, type))
        return tuple(result)

    def _finish(self, op: str, type: Type, args: tuple[TracedValue, ...]) -> TracedValue:
        for a in args:
            self._use(a)
        simpler = fold.simplify(self, op, type, args)
        if simpler is not None:
            return simpler
        if op in ops.OPS and ops.OPS[op].commutes:
            args = tuple(sorted(args, key=lambda a: a.number))
        return self._shared(op, type, args)

    def _shared(
        self, op: str, type: Type, args: tuple[TracedValue, ...], attr: Any = None, block: Block | None = None
    ) -> TracedValue:
        """The pure value of this description, made once per scope."""
        for a in args:
            self._use(a)
        block = block or self.block
        key = (op, type.kind, type.lanes, tuple([a.number for a in args]), attr)
        found = block.find(key)
        if found is None:
            found = self._new(op, type, args, attr, block)
            block.values[key] = found
        return found

    def _new(self, op: str, type: Type, args: tuple[TracedValue, ...], attr: Any, block: Block) -> TracedValue:
        value = TracedValue(self, self.value_count, type, op, args, attr, block)
        self.value_count += 1
        if op not in LEAVES:
            self._emit(Bind(author_line(), value))
        return value


class Function(Functions):
    """A pure function of values, traced on its own: what a printer puts in front of a kernel and calls by name."""

    def __init__(self, definition: Callable[..., TracedValue], types: tuple[Type, ...]) -> None:
        super().__init__()
        self.params = tuple(self._new("index", t, (), None, self.body) for t in types)
        self.result: TracedValue = definition(self, *self.params)


def _fits(value: object, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    if kind in ops.FLOAT:
        return True
    low, high = (0, 2**32) if kind == "u32" else (-(2**31), 2**31)
    return float(value).is_integer() and bool(low <= float(value) < high)


def _array(value: TracedValue) -> ops.Array:
    return np.array([value.constant], dtype=ops.NUMPY[value.type.kind])


def _bits_type(type: Type) -> Any:
    return np.int32 if type.kind == "i32" else np.uint32
