"""Expressions of the graph as values of a kernel: every function of graph.FUNCTIONS for 1, 2 or 4 lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from litegpu.gpu.graph import Apply, Arg, DType, Expr, Literal, whole
from litegpu.gpu.kernels.fixed_point import fixed_mul, fixed_mul_once, one_over_root
from litegpu.gpu.kernels.polynomial import polynomial
from litegpu.gpu.kernels.rough_math import is_smooth, shortcut
from litegpu.gpu.lang import Kernel, Memory, TracedValue, Type, boolean, f32, i32, u32, vec

#: What an argument of an expression is in a kernel: a value, a table, or nothing where the expression does not use it.
Argument = TracedValue | Memory | None

_LITERAL_TYPES = {DType.FLOAT32: f32, DType.FLOAT16: f32, DType.INT32: i32, DType.BOOL: boolean}
_MAGIC, _MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 * 2^23 as a float, and its bits
_SMALL = 1 << 21  # of numbers up to which round_small() is known
_LARGEST_POWER = 16  # integer exponents up to this become multiplications


def evaluate(k: Kernel, expr: Expr, args: Sequence[Argument], *, rough: bool = False) -> TracedValue:
    """`expr` where Arg(i) is args[i], or the table that it is; all values have the same number of lanes, or one. Equal
    subtrees are computed once.

    A NaN passes through every float function. min and max follow TFLite's MINIMUM and MAXIMUM, which give the second
    operand if either is NaN; against a literal (RELU, RELU6, clamps) a NaN stays NaN, as on the CPU. `rough`: the
    result will be rounded to float16, so that functions may be as short as they can be to 16 bits.
    """
    rough = rough and is_smooth(expr)
    lanes = max((a.type.lanes for a in args if isinstance(a, TracedValue)), default=1)
    made: dict[int, TracedValue] = {}

    def visit(e: Expr) -> TracedValue:
        if id(e) not in made:
            made[id(e)] = compute(e)
        return made[id(e)]

    def compute(e: Expr) -> TracedValue:
        match e:
            case Arg(i):
                arg = args[i]
                if not isinstance(arg, TracedValue):
                    raise IndexError(f"the expression needs a value as argument {i}, which was not given")
                return arg if arg.type.lanes == lanes else k.splat(arg, lanes)
            case Literal(number, dtype):
                return constant(k, number, vec(_LITERAL_TYPES[dtype], lanes))
            case Apply("small", (inside,)):
                return visit(inside)
            case Apply("to_float32", (Apply("small", (x,)),)) if (value := visit(x)).type.scalar == i32:
                # likewise: the difference of two floats that have the same exponent is exact
                return k.bitcast(value + _MAGIC_BITS, vec(f32, lanes)) - _MAGIC
            case Apply("lookup", (place, Arg(i))):
                return looked_up(args[i], visit(place))
            case Apply("round", (Apply("small", (inside,)),)) if (value := visit(inside)).type.scalar == f32:
                return k.round_small(value)
            case Apply("nearest", (Apply("small", (Apply("add", (x, Literal(zero))),)),)) if within := _rounded_within(
                x, zero
            ):
                # a whole number is added to one: to its bits as well
                return k.nearest_small(limited(*within)) + int(zero)
            case Apply("nearest", (Apply("small", (x,)),)) if within := _rounded_within(x):
                return k.nearest_small(limited(*within))
            case Apply("nearest", (Apply("small", (inside,)),)):
                return k.nearest_small(visit(inside))
            case Apply("nearest", (Apply("min", (Apply("max", (_, Literal(low))), Literal(high))) as inside,)) if (
                max(abs(low), abs(high)) < _MAGIC / 4
            ):
                # the bits of a number near 1.5 * 2^23 count its units: quicker than a conversion
                return k.bitcast(visit(inside) + _MAGIC, vec(i32, lanes)) - _MAGIC_BITS
            case Apply("min") if within := _rounded_within(e):
                value = limited(*within)
                return k.round_small(value) if value.type.scalar == f32 else k.round(value)
            case Apply("mul", (Apply("sign", (x,)), Apply("floor", (Apply("add", (Apply("abs", (y,)), half)),)))) if (
                x == y and half == Literal(0.5)
            ):
                return _halves_away(k, visit(x))
            case Apply(fn, arguments):
                found = shortcut(k, e, visit) if rough else None
                return found if found is not None else _apply(k, fn, arguments, [visit(a) for a in arguments])

    def limited(inside: Expr, low: float, high: float) -> TracedValue:
        """Before it is rounded, not behind, which is the same: what is known to be small is rounded quicker."""
        value = visit(inside)
        return k.min(k.max(value, constant(k, low, value.type)), constant(k, high, value.type))

    def looked_up(table: Argument, place: TracedValue) -> TracedValue:
        """A byte of each; places beyond the table, of which there should be none, are its last."""
        if not isinstance(table, Memory):
            raise IndexError("the expression needs a table, which was not given")
        places = k.min(k.bitcast(place, vec(u32, lanes)), table.size - 1)
        found = [i32(table[places[j] if lanes > 1 else places]) for j in range(lanes)]
        return k.vec(*found) if lanes > 1 else found[0]

    return visit(expr)


def _rounded_within(expr: Expr, *others: float) -> tuple[Expr, float, float] | None:
    """What is rounded to even and then kept within two small whole numbers, and these; the others are such numbers."""
    match expr:
        case Apply("min", (Apply("max", (Apply("round", (inside,)), Literal(low))), Literal(high))) if all(
            abs(number) < _SMALL and float(number).is_integer() for number in (low, high, *others)
        ):
            return inside, low, high
    return None


def unlimited(expr: Expr, lowest: int, highest: int) -> Expr:
    """What gives the same as `expr` where it is stored within these bounds: without limits that are these."""
    match expr:
        case Apply("nearest", (Apply("small", (Apply("add", (x, Literal(zero))),)),)):
            match _rounded_within(x, zero):
                case (Apply("small") as inside, a, b) if a + zero <= lowest and b + zero >= highest:
                    return Apply("add", (Apply("nearest", (inside,)), Literal(int(zero), DType.INT32)))
        case Apply("min", (Apply("max", (Apply("add", (Apply("nearest", (Apply("small"),)), Arg())) as x, low)), high)):
            return x if (low, high) == (whole(lowest), whole(highest)) else expr
        case Apply("add", (limited, Literal(zero) as shift)):
            match limited:
                case Apply(
                    "min", (Apply("max", (Apply("shift_right", (_, Literal(by))) as x, Literal(a))), Literal(b))
                ):
                    wide = by > 0  # then nothing overflows
                case Apply("min", (Apply("max", (Apply("nearest", (Apply("small"),)) as x, Literal(a))), Literal(b))):
                    wide = True
                case Apply(
                    "nearest", (Apply("min", (Apply("max", (Apply("small", _) as x, Literal(a))), Literal(b))),)
                ):
                    x, wide = Apply("nearest", (x,)), True
                case _:
                    return expr
            return Apply("add", (x, shift)) if wide and a + zero <= lowest and b + zero >= highest else expr
    return expr


def result_type(expr: Expr, args: Sequence[Type]) -> Type:
    """The scalar type of `expr` when Arg(i) is of type args[i]."""
    match expr:
        case Arg(i):
            return args[i]
        case Literal(_, dtype):
            return _LITERAL_TYPES[dtype]
        case Apply("lt" | "le" | "gt" | "ge" | "eq" | "ne" | "logical_and" | "logical_or" | "logical_not" | "to_bool"):
            return boolean
        case Apply("to_float32" | "bits_to_float32"):
            return f32
        case Apply("to_int32" | "bits_to_int32" | "nearest" | "lookup"):
            return i32
        case Apply("select", (_, yes, _)):
            return result_type(yes, args)
        case Apply(_, (first, *_)):
            return result_type(first, args)
    raise TypeError(f"{expr!r} is not an expression")


def constant(k: Kernel, number: float | int | bool, t: Type) -> TracedValue:
    """`number`, a Python number of any kind, in every lane of a value of type `t`."""
    if t.kind == "bool":
        return k.const(bool(number), t)
    return k.const(float(number) if t.is_float else int(number), t)


def boolean_to(k: Kernel, v: TracedValue, kind: Type) -> TracedValue:
    """A bool as the number 0 or 1 of the scalar type `kind`, or a number as the bool `v != 0`; other values
    unchanged."""
    if kind.kind == "bool":
        return v if v.type.kind == "bool" else _differs(v, constant(k, 0, v.type))
    if v.type.kind != "bool":
        return v
    t = vec(kind, v.type.lanes)
    return k.select(v, constant(k, 1, t), constant(k, 0, t))


def _apply(k: Kernel, fn: str, arguments: Sequence[Expr], values: list[TracedValue]) -> TracedValue:
    match fn:
        case "min" | "max":
            a, b = values
            # the language gives back its first operand when either is NaN
            first, second = (a, b) if isinstance(arguments[1], Literal) else (b, a)
            return k.min(first, second) if fn == "min" else k.max(first, second)
        case "pow" if isinstance(arguments[1], Literal):
            return _literal_power(k, values[0], float(arguments[1].value))
        case "shift_right":
            by = arguments[1]
            return values[0] >> (int(by.value) if isinstance(by, Literal) else values[1])
        case "fixed_mul":
            return fixed_mul(k, values[0], *(_known(e, v) for e, v in zip(arguments[1:], values[1:], strict=True)))
        case "fixed_mul_once":
            return fixed_mul_once(k, *values)
        case "root_multiplier" | "root_shift":
            return one_over_root(k, values[0])[fn == "root_shift"]
    return _FUNCTIONS[fn](k, *values)


# ------------------------------------------------------------------------------------------------- functions


def _halves_away(k: Kernel, x: TracedValue) -> TracedValue:
    """The whole number nearest to x, halves away from 0: a half of x's own sign more, and no fraction."""
    if x.type.scalar != f32:
        return k.sign(x) * k.floor(k.abs(x) + 0.5)
    sign = k.bitcast(x, vec(u32, x.type.lanes)) & 0x80000000
    return k.trunc(x + k.bitcast(sign | 0x3F000000, x.type))


def _differs(a: TracedValue, b: TracedValue) -> TracedValue:
    """a != b, true next to a NaN: WGSL's own `!=` is compiled to a comparison that is false there."""
    return ~(a == b)


def _div(k: Kernel, a: TracedValue, b: TracedValue) -> TracedValue:
    return a / b if a.type.is_float else k.idiv_trunc(a, b)


def _floor_div(k: Kernel, a: TracedValue, b: TracedValue) -> TracedValue:
    """a / b rounded down. The quotient of floats may have passed a whole number, upwards by rounding, or downwards
    where division is not exact (2.5 units in the last place in WGSL): the signs of the remainders tell, which are right
    however much of a remainder is rounded away (of 6e-8 and -1.2 it is all of 6e-8)."""
    zero = constant(k, 0, a.type)
    if a.type.is_float:
        q = k.floor(a / b)
        rest, next_rest = _rest(k, a, b, q), _rest(k, a, b, q + 1.0)
        up = k.select((next_rest >= zero) & (b > zero) | (next_rest <= zero) & (b < zero), q + 1.0, q)
        return k.select((rest < zero) & (b > zero) | (rest > zero) & (b < zero), q - 1.0, up)
    q, rest = k.idiv_trunc(a, b), k.irem(a, b)
    down = _differs(rest, zero) & ((rest < zero) ^ (b < zero))
    return q - k.select(down, constant(k, 1, a.type), zero)


def _rest(k: Kernel, a: TracedValue, b: TracedValue, q: TracedValue) -> TracedValue:
    """a - q * b of floats, rounded once. WGSL's fma may round the product: it is taken in parts of 12 bits each, whose
    products are exact."""
    if a.type.scalar != f32:
        return k.fma(-q, b, a)
    (q_high, q_low), (b_high, b_low) = _halves(k, q), _halves(k, b)
    return ((a - q_high * b_high) - q_high * b_low) - q_low * b_high - q_low * b_low


def _halves(k: Kernel, x: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The first 12 bits of float32 x, and what is left."""
    bits = k.bitcast(x, vec(u32, x.type.lanes))
    high = k.bitcast(bits & constant(k, 0xFFFFF000, bits.type), x.type)
    return high, x - high


def _floor_mod(k: Kernel, a: TracedValue, b: TracedValue) -> TracedValue:
    """What is left of a, with the sign of b. Of an infinite b all of a is left, or b itself for the sign. Quotients
    from 2**24 on are not whole numbers to the last bit, nor are their remainders."""
    zero = constant(k, 0, a.type)
    if a.type.is_float:
        rest = _rest(k, a, b, _floor_div(k, a, b))
        infinite = constant(k, math.inf, a.type)
        whole = k.select((a < zero) & (b > zero) | (a > zero) & (b < zero), b, a)
        return k.select((k.abs(b) == infinite) & (k.abs(a) < infinite), whole, rest)
    rest = k.irem(a, b)
    return rest + k.select(_differs(rest, zero) & ((rest < zero) ^ (b < zero)), b, zero)


#: (atan(t) - t) / t**3 as a polynomial in t**2 for t up to tan(pi / 8), fitted here: relative error 2e-8.
_ATAN = (-0.33332955837249756, 0.19977931678295135, -0.13879917562007904, 0.0806053876876831)


def _atan2(k: Kernel, y: TracedValue, x: TracedValue) -> TracedValue:
    """The angle of (x, y), for zeros and infinities as in C. The smaller over the larger side, reduced once more by
    pi / 4, then a polynomial."""
    zero, one, infinite = (constant(k, number, x.type) for number in (0.0, 1.0, math.inf))
    wide, high = k.abs(x), k.abs(y)
    longer = k.max(wide, high)
    t = k.min(wide, high) / k.select(longer == zero, one, longer)
    t = k.select((wide == infinite) & (high == infinite), one, t)
    far = t > math.tan(math.pi / 8)
    r = k.select(far, (t - 1.0) / (t + 1.0), t)
    square = r * r
    angle = k.fma(polynomial(k, _ATAN, square) * square, r, r) + k.select(far, constant(k, math.pi / 4, x.type), zero)
    angle = k.select(high > wide, math.pi / 2 - angle, angle)
    x_negative, y_negative = (k.bitcast(v, vec(u32, v.type.lanes)) >> 31 == 1 for v in (x, y))
    angle = k.select(x_negative, math.pi - angle, angle)
    angle = k.select(y_negative, -angle, angle)
    return k.select(k.is_nan(x) | k.is_nan(y), constant(k, math.nan, x.type), angle)


def _sigmoid(k: Kernel, x: TracedValue) -> TracedValue:
    """1 / (1 + exp(-x)) by way of exp(-|x|), which cannot overflow."""
    e = k.exp(-k.abs(x))
    r = 1.0 / (e + 1.0)
    return k.select(x < 0.0, e * r, r)


def _expm1(k: Kernel, x: TracedValue) -> TracedValue:
    """exp(x) - 1; by its Taylor series to the eighth power where the subtraction would cancel (|x| < 0.5, relative
    remainder below 2**8 / 9! = 1.1e-8)."""
    series = constant(k, 1.0, x.type)
    for n in range(8, 1, -1):
        series = k.fma(series, x * (1.0 / n), constant(k, 1.0, x.type))
    return k.select(k.abs(x) < 0.5, x * series, k.exp(x) - 1.0)


#: erf(x) / x as a polynomial in x**2 for x up to 1 (relative error 4e-8), and log(1 - erf(x)) as one in x beyond, which
#: falls without end (erf's error 2e-8); fitted here.
_ERF = (1.12837911, -0.37612325, 0.112801798, -0.0267112982, 0.00491753314, -0.000563133741)
_ERF_LEFT = (-0.00267135352, -1.11743963, -0.654487431, -0.0886351168, 0.0147784129, -0.00115045754)


def _erf(k: Kernel, x: TracedValue) -> TracedValue:
    """The error function, within 1.7e-7 of it."""
    a = k.abs(x)
    near, far = x * polynomial(k, _ERF, x * x), 1.0 - k.exp(polynomial(k, _ERF_LEFT, a))
    return k.select(a < 1.0, near, k.select(x < 0.0, -far, far))


def _known(expr: Expr, value: TracedValue) -> TracedValue | int:
    return int(expr.value) if isinstance(expr, Literal) else value


def _literal_power(k: Kernel, x: TracedValue, y: float) -> TracedValue:
    if not x.type.is_float:
        raise TypeError(f"pow takes floats, not {x.type}")
    if y == 0.5:
        return k.sqrt(x)
    if y == -0.5:
        return k.rsqrt(x)
    if not y.is_integer() or abs(y) > _LARGEST_POWER:
        return k.pow(x, y)
    result: TracedValue | None = None
    square, n = x, int(abs(y))
    while n:
        if n & 1:
            result = square if result is None else result * square
        n >>= 1
        square = square * square if n else square
    if result is None:
        return constant(k, 1.0, x.type)
    return 1.0 / result if y < 0 else result


def _to_float32(k: Kernel, x: TracedValue) -> TracedValue:
    return boolean_to(k, x, f32) if x.type.kind == "bool" else vec(f32, x.type.lanes)(x)


def _to_int32(k: Kernel, x: TracedValue) -> TracedValue:
    if x.type.is_float:
        return k.to_i32_saturating(x)
    return boolean_to(k, x, i32)


_FUNCTIONS: dict[str, Callable[..., TracedValue]] = {
    "add": lambda k, a, b: a + b,
    "sub": lambda k, a, b: a - b,
    "mul": lambda k, a, b: a * b,
    "div": _div,
    "pow": lambda k, x, y: k.pow(x, y),
    "floor_div": _floor_div,
    "floor_mod": _floor_mod,
    "atan2": _atan2,
    "lt": lambda k, a, b: a < b,
    "le": lambda k, a, b: a <= b,
    "gt": lambda k, a, b: a > b,
    "ge": lambda k, a, b: a >= b,
    "eq": lambda k, a, b: a == b,
    "ne": lambda k, a, b: _differs(a, b),
    "logical_and": lambda k, a, b: a & b,
    "logical_or": lambda k, a, b: a | b,
    "logical_not": lambda k, a: ~a,
    "shift_left": lambda k, a, b: a << b,
    "bit_and": lambda k, a, b: a & b,
    "bit_xor": lambda k, a, b: a ^ b,
    "bits_to_int32": lambda k, x: k.bitcast(x, vec(i32, x.type.lanes)),
    "bits_to_float32": lambda k, x: k.bitcast(x, vec(f32, x.type.lanes)),
    "neg": lambda k, x: -x,
    "abs": lambda k, x: k.abs(x),
    "exp": lambda k, x: k.exp(x),
    "expm1": _expm1,
    "log": lambda k, x: k.log(x),
    "sqrt": lambda k, x: k.sqrt(x),
    "rsqrt": lambda k, x: k.rsqrt(x),
    "sin": lambda k, x: k.sin(x),
    "cos": lambda k, x: k.cos(x),
    "tanh": lambda k, x: k.tanh(x),
    "sigmoid": _sigmoid,
    "erf": _erf,
    "floor": lambda k, x: k.floor(x),
    "ceil": lambda k, x: k.ceil(x),
    "round": lambda k, x: k.round(x),
    "sign": lambda k, x: k.sign(x),
    "to_float32": _to_float32,
    "to_int32": _to_int32,
    "nearest": lambda k, x: k.nearest(x),
    "to_bool": lambda k, x: boolean_to(k, x, boolean),
    "select": lambda k, c, yes, no: k.select(c, yes, no),
}
