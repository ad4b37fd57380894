"""What a pure operation simplifies to while the tree is built: constants and identities, just as the target would."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.lang import ops
from litegpu.gpu.lang.types import KernelError, Type
from litegpu.gpu.lang.value import TracedValue, Tracer


def simplify(kernel: Tracer, op: str, type: Type, args: tuple[TracedValue, ...]) -> TracedValue | None:
    """An equal, simpler value, or None. Never changes a result bit, NaN and the sign of zero included."""
    if op in ("div", "mod", "idiv", "irem") and args[0].type.is_integer and args[1].is_constant(0):
        raise KernelError(f"integer {op} by zero")
    if op == "select":
        return _select(*args)
    if all(a.op == "const" for a in args):
        return _constant(kernel, op, type, args)
    if op in ("neg", "not") and args[0].op == op:
        return args[0].args[0]
    if len(args) != 2:
        return None
    kind = args[0].type.kind
    if kind in ops.FLOAT:
        return _float_identity(op, *args)
    if kind == "bool":
        return _bool_identity(kernel, op, *args)
    return _integer_identity(kernel, op, type, *args)


def _constant(kernel: Tracer, op: str, type: Type, args: tuple[TracedValue, ...]) -> TracedValue:
    lanes = args[0].type.lanes
    shape = (1, lanes) if lanes > 1 else (1,)
    arrays = [np.full(shape, a.constant, dtype=ops.NUMPY[a.type.kind]) for a in args]
    return kernel.const(ops.evaluate(op, arrays).ravel()[0].item(), type)


def _select(condition: TracedValue, yes: TracedValue, no: TracedValue) -> TracedValue | None:
    if yes is no:
        return yes
    if condition.op == "const":
        return yes if condition.constant else no
    return None


def _float_identity(op: str, a: TracedValue, b: TracedValue) -> TracedValue | None:
    if op in ("mul", "div") and b.is_constant(1):
        return a
    if op == "mul" and a.is_constant(1):
        return b
    if op in ("min", "max") and a is b:
        return a
    if op == "sub" and b.op == "const" and b.attr == 0:  # +0.0: x - 0.0 is x even for x = -0.0
        return a
    return None


def _bool_identity(kernel: Tracer, op: str, a: TracedValue, b: TracedValue) -> TracedValue | None:
    if op in ("and", "or"):
        if a is b:
            return a
        for known, other in ((a, b), (b, a)):
            if known.op == "const":
                return other if bool(known.constant) == (op == "and") else known
    return None


def _integer_identity(kernel: Tracer, op: str, type: Type, a: TracedValue, b: TracedValue) -> TracedValue | None:
    zero = kernel.const(0, type) if type.kind != "bool" else None
    for known, other in ((a, b), (b, a)):
        if op in ("add", "or", "xor") and known.is_constant(0):
            return other
        if op == "mul" and known.is_constant(1):
            return other
        if op in ("mul", "and") and known.is_constant(0):
            return zero
    if op in ("sub", "shl", "shr") and b.is_constant(0):
        return a
    if op in ("div", "idiv") and b.is_constant(1):
        return a
    if op in ("mod", "irem") and b.is_constant(1):
        return zero
    if op in ("shl", "shr", "div", "mod", "idiv", "irem") and a.is_constant(0):
        return zero
    if a is b:
        if op in ("min", "max", "and", "or"):
            return a
        if op in ("sub", "xor"):
            return zero
        if op in ("eq", "ne", "lt", "le", "gt", "ge"):
            return kernel.const(op in ("eq", "le", "ge"), type)
    if a.type.kind == "u32":
        return _unsigned_identity(kernel, op, type, a, b)
    return None


def _unsigned_identity(kernel: Tracer, op: str, type: Type, a: TracedValue, b: TracedValue) -> TracedValue | None:
    if b.is_constant(0):
        if op in ("lt", "ge"):
            return kernel.const(op == "ge", type)
        if op in ("min", "max"):
            return b if op == "min" else a
    divisor = b.constant
    if op in ("div", "mod") and isinstance(divisor, int) and divisor & (divisor - 1) == 0:
        if op == "div":
            return kernel.call("shr", a, divisor.bit_length() - 1)
        return kernel.call("and", a, divisor - 1)
    return None
