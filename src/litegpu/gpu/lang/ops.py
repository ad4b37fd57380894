"""What every pure operation of the language means: the kinds it takes, the type it gives, and its NumPy definition.

Arrays hold one row per thread; vectors have a last axis of lanes. Definitions that differ between targets are pinned
down here and every printer follows them:

* min(a, b) is `b < a ? b : a` and max(a, b) is `a < b ? b : a`: when either is NaN the first operand comes back, so
  put the data first and the bound second and NaN propagates, as with C++ std::min and std::max.
* i32 and u32 wrap; shift amounts count modulo 32; i32 `shr` is arithmetic; idiv and irem truncate as in C.
  A division by zero gives an unspecified number, never a trap.
* Float to integer conversion truncates; out of range (and NaN) it is unspecified, use to_i32_saturating. `nearest` goes
  to the nearest integer instead, of two the even one, and is unspecified there too; so is `nearest_small`, also from
  2**21 on.
* dot4(a, b, c) is c plus the products of the four signed bytes of a and b, lane by lane.
* high_product(a, b) is the product of two i32 in 64 bits, and 2**30, less its last 31 bits.
* rough_exp2(x) is 2**x and rough_reciprocal(x) 1 / x, each as one instruction of most GPUs has it, to a relative 2**-20
  (in WGSL 2**-16) plus 2**-21 |x| for the power: enough for what is then kept as float16. Results below 2**-126 may be
  zero; above the range they are infinite.
* sign(x) is x itself for zeros and NaN. round is to nearest, ties to even; round_small too, of numbers below 2**21 in
  magnitude, with any sign where it gives zero.
* Subnormal float32 numbers may be treated as zero by a device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.gpu.lang.types import Type

Array = Any  # a NumPy array of any type: NumPy's own stubs cannot follow operators over unknown types

NUMPY: dict[str, Any] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "i32": np.dtype(np.int32),
    "u32": np.dtype(np.uint32),
    "bool": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
}

FLOAT = frozenset(("f32", "f16"))
INTEGER = frozenset(("i32", "u32"))
NUMBER = FLOAT | INTEGER
ANY = NUMBER | {"bool"}


@dataclass(frozen=True)
class OperationType:
    """`result`: "same" as the operands, "bool" or "i32" lanes, or "lane" (one lane of the operands' kind)."""

    arity: int
    kinds: frozenset[str]
    evaluate: Callable[..., Array]
    result: str = "same"
    commutes: bool = False

    def result_type(self, operand: Type) -> Type:
        if self.result in ("bool", "i32"):
            return Type(self.result, operand.lanes)
        return operand.scalar if self.result == "lane" else operand


def evaluate(op: str, args: Sequence[Array]) -> Array:
    """The value of a table operation on arrays (quiet about overflow and NaN, which are values here)."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return OPS[op].evaluate(*args)


def cast(value: Array, kind: str) -> Array:
    """Conversion between kinds, lane by lane."""
    dtype: Any = NUMPY[kind]
    with np.errstate(all="ignore"):
        if value.dtype == dtype:
            return value
        if kind == "bool":
            return value != 0
        if value.dtype.kind == "f" and kind in INTEGER:
            info = np.iinfo(dtype)
            whole = np.trunc(np.nan_to_num(value.astype(np.float64), nan=0.0, posinf=info.max, neginf=info.min))
            return np.clip(whole, info.min, info.max).astype(dtype)
        return value.astype(dtype)


def bitcast(value: Array, kind: str) -> Array:
    return np.ascontiguousarray(value).view(NUMPY[kind])


def _rounded(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute in float64 and round once."""

    def apply(*args: Array) -> Array:
        return function(*(a.astype(np.float64) for a in args)).astype(args[0].dtype)

    return apply


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    return np.where(b == 0, a, a // np.where(b == 0, 1, b).astype(a.dtype))


def _modulo(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b).astype(a.dtype)).astype(a.dtype)


def _idiv(a: Array, b: Array) -> Array:
    wide, by = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
    return (np.sign(wide) * np.sign(by) * (abs(wide) // abs(by))).astype(np.int32)


def _irem(a: Array, b: Array) -> Array:
    wide, by = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
    return (np.sign(wide) * (abs(wide) % abs(by))).astype(np.int32)


def _select(condition: Array, yes: Array, no: Array) -> Array:
    if condition.ndim < yes.ndim:
        condition = condition[..., None]
    return np.where(condition, yes, no)


def _dot(a: Array, b: Array) -> Array:
    total = np.sum(a.astype(np.float64) * b, axis=-1) if a.dtype.kind == "f" else np.sum(a * b, axis=-1, dtype=a.dtype)
    return np.asarray(total).astype(a.dtype)


def _to_i32_saturating(x: Array) -> Array:
    clipped = np.clip(np.trunc(np.nan_to_num(x.astype(np.float64), nan=2.0**31)), -(2.0**31), 2.0**31 - 1)
    return clipped.astype(np.int32)


def _nearest(x: Array) -> Array:
    return np.rint(np.clip(np.nan_to_num(x), -(2.0**31), 2.0**31 - 128)).astype(np.int32)


def _dot4(a: Array, b: Array, c: Array) -> Array:
    """The sum of the products of the signed bytes of two words, added to a third number."""
    parts = [(np.asarray(v)[..., None] >> np.arange(0, 32, 8, dtype=np.int32)).astype(np.int8) for v in (a, b)]
    return np.asarray(c + np.sum(parts[0].astype(np.int32) * parts[1], axis=-1, dtype=np.int32))


def _sign(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.where(x > 0, one, np.where(x < 0, -one, x))


def _high_product(a: Array, b: Array) -> Array:
    return ((a.astype(np.int64) * b + (1 << 30)) >> 31).astype(np.int32)


OPS: dict[str, OperationType] = {
    "add": OperationType(2, NUMBER, lambda a, b: a + b, commutes=True),
    "sub": OperationType(2, NUMBER, lambda a, b: a - b),
    "mul": OperationType(2, NUMBER, lambda a, b: a * b, commutes=True),
    "div": OperationType(2, FLOAT | {"u32"}, _divide),
    "mod": OperationType(2, frozenset({"u32"}), _modulo),
    "idiv": OperationType(2, frozenset({"i32"}), _idiv),
    "irem": OperationType(2, frozenset({"i32"}), _irem),
    "min": OperationType(2, NUMBER, lambda a, b: np.where(b < a, b, a)),
    "max": OperationType(2, NUMBER, lambda a, b: np.where(a < b, b, a)),
    "and": OperationType(2, INTEGER | {"bool"}, lambda a, b: a & b, commutes=True),
    "or": OperationType(2, INTEGER | {"bool"}, lambda a, b: a | b, commutes=True),
    "xor": OperationType(2, INTEGER | {"bool"}, lambda a, b: a ^ b, commutes=True),
    "shl": OperationType(2, INTEGER, lambda a, b: a << (b & b.dtype.type(31))),
    "shr": OperationType(2, INTEGER, lambda a, b: a >> (b & b.dtype.type(31))),
    "lt": OperationType(2, NUMBER, lambda a, b: a < b, "bool"),
    "le": OperationType(2, NUMBER, lambda a, b: a <= b, "bool"),
    "gt": OperationType(2, NUMBER, lambda a, b: a > b, "bool"),
    "ge": OperationType(2, NUMBER, lambda a, b: a >= b, "bool"),
    "eq": OperationType(2, ANY, lambda a, b: a == b, "bool", commutes=True),
    "ne": OperationType(2, ANY, lambda a, b: a != b, "bool", commutes=True),
    "neg": OperationType(1, FLOAT | {"i32"}, lambda x: -x),
    "not": OperationType(1, INTEGER | {"bool"}, lambda x: ~x),
    "abs": OperationType(1, FLOAT | {"i32"}, lambda x: abs(x)),
    "sign": OperationType(1, FLOAT | {"i32"}, _sign),
    "floor": OperationType(1, FLOAT, np.floor),
    "ceil": OperationType(1, FLOAT, np.ceil),
    "round": OperationType(1, FLOAT, np.rint),
    "trunc": OperationType(1, FLOAT, np.trunc),
    "sqrt": OperationType(1, FLOAT, _rounded(np.sqrt)),
    "rsqrt": OperationType(1, FLOAT, _rounded(lambda x: 1.0 / np.sqrt(x))),
    "exp": OperationType(1, FLOAT, _rounded(np.exp)),
    "rough_exp2": OperationType(1, frozenset({"f32"}), _rounded(np.exp2)),
    "rough_reciprocal": OperationType(1, frozenset({"f32"}), _rounded(lambda x: 1.0 / x)),
    "log": OperationType(1, FLOAT, _rounded(np.log)),
    "sin": OperationType(1, FLOAT, _rounded(np.sin)),
    "cos": OperationType(1, FLOAT, _rounded(np.cos)),
    "tanh": OperationType(1, FLOAT, _rounded(np.tanh)),
    "pow": OperationType(2, FLOAT, _rounded(np.power)),
    "fma": OperationType(3, FLOAT, _rounded(lambda a, b, c: a * b + c)),
    "dot": OperationType(2, NUMBER, _dot, "lane"),
    "is_nan": OperationType(1, FLOAT, np.isnan, "bool"),
    "to_i32_saturating": OperationType(1, frozenset({"f32"}), _to_i32_saturating, "i32"),
    "nearest": OperationType(1, frozenset({"f32"}), _nearest, "i32"),
    "nearest_small": OperationType(1, frozenset({"f32"}), _nearest, "i32"),
    "round_small": OperationType(1, frozenset({"f32"}), np.rint),
    "high_product": OperationType(2, frozenset({"i32"}), _high_product, commutes=True),
    "dot4": OperationType(3, frozenset({"i32"}), _dot4),
    "any": OperationType(1, frozenset({"bool"}), lambda x: x.any(axis=-1), "lane"),
    "all": OperationType(1, frozenset({"bool"}), lambda x: x.all(axis=-1), "lane"),
    "select": OperationType(3, ANY, _select),
}
