"""Types of elements, and the expressions that are applied to each of them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

Shape = tuple[int, ...]


class DType(enum.Enum):
    """What a value holds: arithmetic is float32, int32 or bool.

    The others are storage types: FLOAT16 is computed with as float32; INT8, UINT8 and INT16 as int32. What is written
    to those saturates.
    """

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    INT32 = "int32"
    BOOL = "bool"  # stored as int32, 0 or 1
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory."""
        return _BYTES.get(self.value, 4)

    @property
    def is_narrow(self) -> bool:
        """Whether several elements share a 32-bit word, as whole numbers."""
        return self in (DType.INT8, DType.UINT8, DType.INT16)


_BYTES = {"float16": 2, "int16": 2, "int8": 1, "uint8": 1}


@dataclass(frozen=True)
class Arg:
    """An input of an expression. In an epilogue Arg(0) is the op's own result and Arg(i) is operand i-1."""

    index: int


@dataclass(frozen=True)
class Literal:
    """A scalar constant."""

    value: float | int | bool
    dtype: DType = DType.FLOAT32


@dataclass(frozen=True)
class Apply:
    """A function of FUNCTIONS applied to expressions. Equal subtrees are the same value and are computed once.

    Of x = x + tanh(x), forty times over, the tree has 2**40 nodes and the expression eighty: what is done with shared
    subtrees is done once for each, hashes and comparisons too.
    """

    fn: str
    args: tuple[Expr, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.args)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Apply) and _are_equal(self, other))

    def __reduce__(self) -> tuple[type[Apply], tuple[str, tuple[Expr, ...]]]:
        return Apply, (self.fn, self.args)  # hashes of strings are of one process


Expr = Arg | Literal | Apply

#: name -> number of arguments. Comparisons give BOOL; `select(condition, yes, no)`; `to_*` convert (to_int32
#: truncates toward zero, saturates, and maps NaN to the largest int32, as the TFLite reference CAST does).
#: `nearest` is the int32 nearest to a float that is in range, of two the even one. `small` is its argument, of
#: which is known that it is less than 2**21 in magnitude.
#: `shift_right` of an int32 rounds down; `bit_*` and `shift_left`, by 0 to 31, are of int32; `bits_to_*` keep the bits;
#: `fixed_mul(x, m, s)` is x * m * 2**(s - 31) of three int32,
#: m not negative unless it is a Literal, rounded twice as MultiplyByQuantizedMultiplier of TFLite is
#: (lower/fixed_point.py).
#: `fixed_mul_once` is the same rounded once, halves up, of m not negative and s from -31 to 15.
#: `root_multiplier` and `root_shift`, of int32, are one over the root of it, as a multiplier and how far to the right:
#: GetInvSqrtQuantizedMultiplierExp of TFLite.
#: `lookup` is the element of a table [1,1,1,256], an operand, that an int32 from 0 to 255 says.
#: `sigmoid`, `erf`, `expm1` and `sign` are as in NumPy/SciPy; `round` rounds half to even; `floor_div` and `floor_mod`
#: (which has the sign of the divisor) as in Python; `pow`, `floor`, `atan2` as in C.
#: `min` and `max` give their second argument if either is NaN, as TFLite's MINIMUM and MAXIMUM do; if the second is a
#: Literal (RELU, clamps) a NaN first argument comes back instead, so put the data first and it passes through.
FUNCTIONS: dict[str, int] = {
    **dict.fromkeys(("add", "sub", "mul", "div", "min", "max", "pow", "lt", "le", "gt", "ge", "eq", "ne"), 2),
    **dict.fromkeys(("logical_and", "logical_or", "floor_div", "floor_mod", "atan2", "shift_right"), 2),
    **dict.fromkeys(("bit_and", "bit_xor", "shift_left", "lookup"), 2),
    **dict.fromkeys(("root_multiplier", "root_shift"), 1),
    **dict.fromkeys(("bits_to_int32", "bits_to_float32"), 1),
    **dict.fromkeys(("neg", "abs", "exp", "expm1", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf"), 1),
    **dict.fromkeys(
        ("floor", "ceil", "round", "sign", "logical_not", "to_float32", "to_int32", "to_bool", "nearest", "small"), 1
    ),
    **dict.fromkeys(("select", "fixed_mul", "fixed_mul_once"), 3),
}

RESULT = Arg(0)


def apply(fn: str, *args: Expr | float) -> Apply:
    """`fn` of the arguments; plain numbers become float32 literals."""
    if FUNCTIONS[fn] != len(args):
        raise TypeError(f"{fn} takes {FUNCTIONS[fn]} arguments, got {len(args)}")
    return Apply(fn, tuple(a if isinstance(a, (Arg, Literal, Apply)) else Literal(float(a)) for a in args))


def whole(number: float) -> Literal:
    """An int32 literal."""
    return Literal(int(number), DType.INT32)


def substitute(expr: Expr, replace: dict[int, Expr]) -> Expr:
    """`expr` with every Arg(i) replaced by replace[i]."""
    memo: dict[int, Expr] = {}

    def visit(e: Expr) -> Expr:
        if id(e) not in memo:
            match e:
                case Arg(i):
                    memo[id(e)] = replace[i]
                case Apply(fn, args):
                    memo[id(e)] = Apply(fn, tuple(visit(a) for a in args))
                case _:
                    memo[id(e)] = e
        return memo[id(e)]

    return visit(expr)


def arguments(expr: Expr) -> set[int]:
    """The indices of all Args in `expr`."""
    return {e.index for e in walk(expr) if isinstance(e, Arg)}


def tables(expr: Expr) -> set[int]:
    """The indices of the Args in `expr` that are tables which it looks up, rather than values."""
    return {e.args[1].index for e in walk(expr) if isinstance(e, Apply) and e.fn == "lookup"}  # type: ignore[union-attr]


def tree_size(expr: Expr) -> int:
    """How many nodes the expression has where shared subtrees count each time."""
    sizes: dict[int, int] = {}
    for e in walk(expr):
        sizes[id(e)] = 1 + (sum(sizes[id(a)] for a in e.args) if isinstance(e, Apply) else 0)
    return sizes[id(expr)]


def _are_equal(first: Apply, second: Apply) -> bool:
    """Whether both compute the same, each pair of subtrees compared once."""
    seen: set[tuple[int, int]] = set()
    waiting: list[tuple[Expr, Expr]] = [(first, second)]
    while waiting:
        a, b = waiting.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if not (isinstance(a, Apply) and isinstance(b, Apply)):
            if a != b:
                return False
        elif hash(a) != hash(b) or a.fn != b.fn or len(a.args) != len(b.args):
            return False
        else:
            waiting += zip(a.args, b.args, strict=True)
    return True


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of the expression, arguments first, shared subtrees once."""
    seen: set[int] = set()

    def visit(e: Expr) -> Iterator[Expr]:
        if id(e) in seen:
            return
        seen.add(id(e))
        if isinstance(e, Apply):
            for a in e.args:
                yield from visit(a)
        yield e

    return visit(expr)
