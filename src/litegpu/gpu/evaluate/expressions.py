"""What expressions compute, and what arrays hold values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.graph import Apply, Arg, DType, Expr, Literal

Array = np.ndarray[Any, np.dtype[Any]]

#: The arrays that hold values of each type; FLOAT16 is rounded to when written and computed with as float32.
NUMPY: dict[DType, np.dtype[Any]] = {dtype: np.dtype(dtype.value) for dtype in DType}


def evaluate_expr(expr: Expr, args: Sequence[Array]) -> Array:
    """An expression over broadcastable arrays of float32, int32 and bool; Arg(i) is args[i]."""
    with np.errstate(all="ignore"):
        return _visit(expr, args, {})


def _visit(e: Expr, args: Sequence[Array], memo: dict[int, Array]) -> Array:
    """A part of an expression. (A function inside the other would keep the arrays until garbage is collected.)"""
    if id(e) not in memo:
        match e:
            case Arg(i):
                memo[id(e)] = args[i]
            case Literal(value, dtype):
                memo[id(e)] = np.asarray(value, NUMPY[dtype])
            case Apply("min" | "max" as fn, (first, Literal() as bound)):
                memo[id(e)] = _FUNCTIONS[fn](_visit(bound, args, memo), _visit(first, args, memo))
            case Apply(fn, arguments):
                memo[id(e)] = np.asarray(_FUNCTIONS[fn](*(_visit(a, args, memo) for a in arguments)))
    return memo[id(e)]


def _saturate(x: Array) -> Array:
    """Toward zero, out of range to the nearest int32, NaN to the largest."""
    if x.dtype.kind != "f":
        return x.astype(np.int32)
    limits = np.iinfo(np.int32)
    whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=limits.max, posinf=limits.max, neginf=limits.min))
    return np.clip(whole, limits.min, limits.max).astype(np.int32)


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Computed in float64 and rounded once; integers as they are."""

    def rounded(*args: Array) -> Array:
        if args[0].dtype.kind != "f":
            return function(*args)
        return np.asarray(function(*(a.astype(np.float64) for a in args))).astype(np.float32)

    return rounded


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


def _min(a: Array, b: Array) -> Array:
    """The smaller, or b if either is NaN."""
    return np.asarray(np.where(a < b, a, b))


def _max(a: Array, b: Array) -> Array:
    """The larger, or b if either is NaN."""
    return np.asarray(np.where(b < a, a, b))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _div(a: Array, b: Array) -> Array:
    """The quotient; of integers toward zero."""
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    wide = np.abs(a.astype(np.int64)) // np.maximum(np.abs(b.astype(np.int64)), 1)
    return np.asarray(np.where((a < 0) != (b < 0), -wide, wide)).astype(np.int32)


def _floor_div(a: Array, b: Array) -> Array:
    """The quotient of floats in float64, rounded down, as TFLite's kernel has it."""
    if a.dtype.kind != "f":
        return np.asarray(np.floor_divide(a, b))
    return np.asarray(np.floor(a.astype(np.float64) / b)).astype(np.float32)


def fixed_product(x: Array, multiplier: Array | int, shift: Array | int) -> Array:
    """SaturatingRoundingDoublingHighMul and RoundingDivideByPOT of gemmlowp, after the shift to the left; int32."""
    left, right = (np.maximum(s, 0) for s in (np.asarray(shift, np.int64), -np.asarray(shift, np.int64)))
    product = (x.astype(np.int64) << left).astype(np.int32).astype(np.int64) * np.asarray(multiplier, np.int64)
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.sign(nudged) * (np.abs(nudged) >> 31)
    mask = (np.int64(1) << right) - 1
    return np.asarray((high >> right) + ((high & mask) > (mask >> 1) + (high < 0))).astype(np.int32)


def _fixed_product_once(x: Array, multiplier: Array, shift: Array) -> Array:
    right = np.int64(31) - shift
    product = x.astype(np.int64) * np.asarray(multiplier, np.int64)
    return np.asarray((product + (np.int64(1) << (right - 1))) >> right).astype(np.int32)


#: 1.5 with 28 bits behind the point, and the root of 2, halved, with 31.
THREE_HALVES, HALF_ROOT_OF_TWO = 3 << 27, 1518500250


def one_over_root(number: Array) -> tuple[Array, Array]:
    """GetInvSqrtQuantizedMultiplierExp: a multiplier, and how far to the right, of whole numbers up to 2**31 - 1, those
    below 1 being taken for it."""
    most = 2**31 - 1
    x: Array = np.maximum(number.astype(np.int64), 2)
    right: Array = np.where(x >= 1 << 29, 12, 11)
    x = np.where(x >= 1 << 29, x >> 2, x)
    for bits in (16, 8, 4, 2):
        room = x < 1 << (29 - bits)
        x, right = np.where(room, x << bits, x), np.where(room, right - bits // 2, right)
    half: Array = ((x >> 1) + 1) >> 1
    root: Array = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = np.minimum(_high(_high(root, root), root) << 6, most)
        root = np.minimum((_high(root, THREE_HALVES) - _high(half, cube)) << 3, most)
    root = _high(root, HALF_ROOT_OF_TWO) << np.maximum(-right, 0)
    single = number <= 1
    return np.where(single, most, root).astype(np.int32), np.where(single, 0, np.maximum(right, 0)).astype(np.int32)


def _high(a: Array, b: Array | int) -> Array:
    """SaturatingRoundingDoublingHighMul of numbers that are not negative."""
    product: Array = a * b + (1 << 30)
    return product >> 31


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "min": _min,
    "max": _max,
    "pow": _wide(np.power),
    "floor_div": _floor_div,
    "floor_mod": lambda a, b: np.mod(a, b),
    "atan2": _wide(np.arctan2),
    "shift_right": np.right_shift,
    "shift_left": np.left_shift,
    "bit_and": np.bitwise_and,
    "bit_xor": np.bitwise_xor,
    "bits_to_int32": lambda x: np.ascontiguousarray(x).view(np.int32),
    "bits_to_float32": lambda x: np.ascontiguousarray(x).view(np.float32),
    "fixed_mul": fixed_product,
    "fixed_mul_once": _fixed_product_once,
    "root_multiplier": lambda x: one_over_root(x)[0],
    "root_shift": lambda x: one_over_root(x)[1],
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "neg": np.negative,
    "abs": np.abs,
    "exp": _wide(np.exp),
    "expm1": _wide(np.expm1),
    "log": _wide(np.log),
    "sqrt": _wide(np.sqrt),
    "rsqrt": _wide(lambda x: 1 / np.sqrt(x)),
    "sin": _wide(np.sin),
    "cos": _wide(np.cos),
    "tanh": _wide(np.tanh),
    "sigmoid": _wide(_sigmoid),
    "erf": _wide(_erf),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "to_float32": lambda x: x.astype(np.float32),
    "to_int32": _saturate,
    "small": lambda x: x,
    "nearest": lambda x: np.rint(np.clip(x, -(2.0**31), 2.0**31 - 128)).astype(np.int32),
    "to_bool": lambda x: x != 0,
    "select": np.where,
    "lookup": lambda place, table: table.reshape(-1)[np.minimum(place.astype(np.uint32), 255)],
}
