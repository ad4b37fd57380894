"""Whole numbers of 64 bits as two words of 32, and complex numbers as two floats: what computes with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from litegpu.gpu.graph import Arg, Expr, Literal
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import doubles, ordered_words
from litegpu.gpu.lower.activation import ACTIVATIONS, BOUNDS
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.fixed_point import turned, unsigned, whole
from litegpu.gpu.lower.parts import Parts
from litegpu.gpu.lower.quantization import STORED
from litegpu.gpu.lower.registry import find
from litegpu.model.ops.spans import IN_WORDS
from litegpu.model.types import Operator, Tensor, TensorType

_MOVED_ALONE = frozenset({TensorType.FLOAT64, TensorType.UINT64})
_NOT_DOUBLE = frozenset({TensorType.COMPLEX64, TensorType.UINT64})
#: The low and the high word.
Wide = tuple[Expr, Expr]

_HALF, _MASK = whole(16), whole(0xFFFF)
_ZERO, _ONE, _LOWEST = whole(0), whole(1), whole(-(2**31))
#: The first and the second operand, as four arguments of an expression.
_A: Wide = (Arg(0), Arg(1))
_B: Wide = (Arg(2), Arg(3))
#: Words are added up in parts of so many bits, of so many numbers at most, whose sums fit into a word.
_LIMBS, _MOST = (11, 11, 10), 1 << 20
_MOST_FACTORS = 1 << 16


def _choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return fn("select", condition, yes, no)


def _as_number(condition: Expr) -> Expr:
    return _choice(condition, _ONE, _ZERO)


def _below(a: Expr, b: Expr) -> Expr:
    """Whether a word is less than another, both without signs."""
    return fn("lt", turned(a), turned(b))


def _plus(a: Wide, b: Wide) -> Wide:
    low = fn("add", a[0], b[0])
    return low, fn("add", fn("add", a[1], b[1]), _as_number(_below(low, a[0])))


def _minus(a: Wide, b: Wide) -> Wide:
    return fn("sub", a[0], b[0]), fn("sub", fn("sub", a[1], b[1]), _as_number(_below(a[0], b[0])))


def _negative(a: Wide) -> Wide:
    return _minus((_ZERO, _ZERO), a)


def _upper(word: Expr) -> Expr:
    return fn("bit_and", fn("shift_right", word, _HALF), _MASK)


def _times(a: Wide, b: Wide) -> Wide:
    """The low 64 bits; the low words are multiplied half by half."""
    a0, a1, b0, b1 = fn("bit_and", a[0], _MASK), _upper(a[0]), fn("bit_and", b[0], _MASK), _upper(b[0])
    middle = fn("add", fn("mul", a1, b0), _upper(fn("mul", a0, b0)))
    other = fn("add", fn("mul", a0, b1), fn("bit_and", middle, _MASK))
    carried = fn("add", fn("add", fn("mul", a1, b1), _upper(middle)), _upper(other))
    crossed = fn("add", fn("mul", a[1], b[0]), fn("mul", a[0], b[1]))
    return fn("mul", a[0], b[0]), fn("add", carried, crossed)


def _less(a: Wide, b: Wide) -> Expr:
    return _choice(fn("eq", a[1], b[1]), _below(a[0], b[0]), fn("lt", a[1], b[1]))


def _equal(a: Wide, b: Wide) -> Expr:
    return fn("logical_and", fn("eq", a[0], b[0]), fn("eq", a[1], b[1]))


def _either(condition: Expr, a: Wide, b: Wide) -> Wide:
    return _choice(condition, a[0], b[0]), _choice(condition, a[1], b[1])


def _absolute(a: Wide) -> Wide:
    return _either(fn("lt", a[1], _ZERO), _negative(a), a)


def _sign(a: Wide) -> Wide:
    negative = fn("shift_right", a[1], whole(31))
    return _choice(_equal(a, (_ZERO, _ZERO)), _ZERO, _choice(fn("lt", a[1], _ZERO), whole(-1), _ONE)), negative


def _shifted(word: Expr, bits: int) -> Wide:
    """A word that is not negative, times a power of two."""
    return (fn("shift_left", word, whole(bits)), fn("shift_right", word, whole(32 - bits))) if bits else (word, _ZERO)


def _to_float(a: Wide) -> Expr:
    """By the magnitude, so that small negative numbers stay exact."""
    low, high = _absolute(a)
    number = fn("add", fn("mul", unsigned(high), 2.0**32), unsigned(low))
    return _choice(fn("lt", a[1], _ZERO), fn("neg", number), number)


def _of_float(x: Expr) -> Wide:
    """Towards zero, saturating, NaN to the largest number."""
    size = fn("floor", fn("abs", x))
    high = fn("floor", fn("mul", size, 2.0**-32))
    low = fn("sub", size, fn("mul", high, 2.0**32))
    upper = fn("floor", fn("mul", low, 2.0**-16))
    lower = fn("sub", low, fn("mul", upper, 65536.0))
    words = fn("add", fn("shift_left", fn("to_int32", upper), _HALF), fn("to_int32", lower)), fn("to_int32", high)
    fits = fn("lt", size, 2.0**63)
    negative = fn("lt", x, 0.0)
    limit = _either(negative, (_ZERO, _LOWEST), (whole(-1), whole(2**31 - 1)))
    return _either(fits, _either(negative, _negative(words), words), limit)


_BINARY: dict[str, Callable[[Wide, Wide], Wide]] = {
    "ADD": _plus,
    "SUB": _minus,
    "MUL": _times,
    "MAXIMUM": lambda a, b: _either(_less(a, b), b, a),
    "MINIMUM": lambda a, b: _either(_less(b, a), b, a),
}
_BINARY |= {
    f"STABLEHLO_{name}": _BINARY[short]
    for name, short in (("ADD", "ADD"), ("MULTIPLY", "MUL"), ("MAXIMUM", "MAXIMUM"), ("MINIMUM", "MINIMUM"))
}
_COMPARED: dict[str, Callable[[Wide, Wide], Expr]] = {
    "EQUAL": _equal,
    "NOT_EQUAL": lambda a, b: fn("logical_not", _equal(a, b)),
    "LESS": _less,
    "GREATER": lambda a, b: _less(b, a),
    "LESS_EQUAL": lambda a, b: fn("logical_not", _less(b, a)),
    "GREATER_EQUAL": lambda a, b: fn("logical_not", _less(a, b)),
}
_UNARY: dict[str, Callable[[Wide], Wide]] = {"NEG": _negative, "ABS": _absolute, "SIGN": _sign}


_ORDERED: dict[str, Callable[[ordered_words.Ordering], None]] = {
    "TOPK_V2": ordered_words.largest,
    "UNIQUE": ordered_words.unlike,
}


def _complex_product(a: Wide, b: Wide) -> Wide:
    real = fn("sub", fn("mul", a[0], b[0]), fn("mul", a[1], b[1]))
    return real, fn("add", fn("mul", a[0], b[1]), fn("mul", a[1], b[0]))


class Words:
    """One operator on numbers of two parts."""

    def __init__(self, parts: Parts, operator: Operator) -> None:
        self.parts, self.operator = parts, operator

    def lower(self) -> bool:
        """Add what computes the operator; False if that is not known."""
        name = self.operator.name
        types = {self._tensor(t).type for t in (*self.operator.inputs, *self.operator.outputs) if t >= 0}
        if name == "CAST" and TensorType.FLOAT64 in types and types.isdisjoint(_NOT_DOUBLE):
            doubles.cast(self.parts, self.operator)
            return True
        if not types.isdisjoint(_MOVED_ALONE):
            return False
        if TensorType.COMPLEX64 in types:
            return self._complex()
        if name in _BINARY:
            self._give(*self._activated(_BINARY[name](_A, _B)), self._both())
        elif name in _COMPARED:
            self.parts.compute(self._output.index, _COMPARED[name](_A, _B), self._both(), self._sources)
        elif name in _UNARY:
            self._give(*_UNARY[name](_A), self.parts.of(self.operator.inputs[0]))
        elif name == "CAST":
            self._cast()
        elif name in ("SUM", "CUMSUM"):
            self._summed()
        elif name == "SCATTER_ND":
            self._scattered()
        elif name in ("REDUCE_MAX", "REDUCE_MIN"):
            self._extreme()
        elif name == "REDUCE_PROD":
            self._product()
        elif name in _ORDERED:
            _ORDERED[name](self)
        else:
            assert name not in IN_WORDS
            return False
        return True

    def _complex(self) -> bool:
        """Products, and casts: of the real part, and to it."""
        if self.operator.name == "MUL":
            self._give(*_complex_product(_A, _B), self._both())
        elif self.operator.name != "CAST":
            return False
        elif self._tensor(self.operator.inputs[0]).type is TensorType.COMPLEX64:
            self._of_complex(*self.parts.of(self.operator.inputs[0]))
        else:
            self._give(Arg(0), Literal(0.0), (self._as_float(self.operator.inputs[0]),))
        return True

    def _of_complex(self, real: int, imaginary: int) -> None:
        if self._output.type is TensorType.COMPLEX64:
            self._give(Arg(0), Arg(1), (real, imaginary))
        elif self.parts.has(self._output.index):
            self._give(*_of_float(Arg(0)), (real,))
        else:
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(real,)))

    def _as_float(self, tensor: int) -> int:
        """FLOAT32 of a number of any type."""
        if self.parts.has(tensor):
            return self.parts.computed(_to_float(_A), self.parts.of(tensor), self._sources, TensorType.FLOAT32)
        made = self.parts.blank(tuple(self._output.shape), TensorType.FLOAT32)
        self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(tensor,), outputs=(made,)))
        return made

    @property
    def _output(self) -> Tensor:
        return self._tensor(self.operator.outputs[0])

    @property
    def _sources(self) -> tuple[int, ...]:
        return (self.operator.index,)

    def _tensor(self, tensor: int) -> Tensor:
        return self.parts.lowering.subgraph.tensors[tensor]

    def _activated(self, a: Wide) -> Wide:
        code = int(self.operator.options.get("fused_activation_function", 0) or 0)
        if code not in BOUNDS:
            raise Unsupported(f"the fused activation {ACTIVATIONS.get(code, code)} of INT64")
        low, high = (None if n is None else (whole(n), whole(-1 if n < 0 else 0)) for n in BOUNDS[code])
        a = a if low is None else _either(_less(a, low), low, a)
        return a if high is None else _either(_less(high, a), high, a)

    def _give(self, low: Expr, high: Expr, given: tuple[int, ...]) -> None:
        for part, expr in zip(self.parts.made(self._output.index), (low, high), strict=True):
            self.parts.compute(part, expr, given, self._sources)

    def _both(self) -> tuple[int, ...]:
        """The parts of two operands, in the shape of the result."""
        shape, found = tuple(self._output.shape), []
        for t in self.operator.inputs:
            for part in self.parts.of(t):
                if tuple(self._tensor(part).shape) != shape:
                    part = self.made("BROADCAST_TO", (part, self.numbers(shape)), shape)
                found.append(part)
        return tuple(found)

    def made(self, name: str, inputs: tuple[int, ...], shape: tuple[int, ...], **options: object) -> int:
        """What an operator on words gives."""
        made = self.parts.blank(shape, self._tensor(inputs[0]).type)
        self.parts.lowering.plain(Operator(self.operator.index, name, 0, 1, inputs, (made,), options))
        return made

    def _cast(self) -> None:
        source, target = self.operator.inputs[0], self._output
        if self.parts.has(source):
            self._narrowed(source, target)
            return
        given = self._tensor(source)
        if given.type in (TensorType.FLOAT32, TensorType.FLOAT16):
            self._give(*_of_float(Arg(0)), (source,))
        elif given.type is TensorType.INT64:
            low, high = self.parts.of(source)
            self._give(Arg(0), Arg(1), (low, high))
        else:
            low = self.parts.blank(given.shape, TensorType.INT32)
            self.parts.lowering.plain(dataclasses.replace(self.operator, outputs=(low,)))
            signed = given.type is not TensorType.UINT32
            self._give(Arg(0), fn("shift_right", Arg(0), whole(31)) if signed else _ZERO, (low,))

    def _narrowed(self, source: int, target: Tensor) -> None:
        low, high = self.parts.of(source)
        if self.parts.has(target.index):
            self._give(Arg(0), Arg(1), (low, high))
        elif target.type in (TensorType.FLOAT32, TensorType.FLOAT16):
            number = self.parts.computed(_to_float(_A), (low, high), self._sources, TensorType.FLOAT32)
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(number,)))
        elif target.type is TensorType.BOOL:
            self.parts.compute(target.index, fn("logical_not", _equal(_A, (_ZERO, _ZERO))), (low, high), self._sources)
        elif target.type in STORED or target.type in (TensorType.INT32, TensorType.UINT32, TensorType.UINT16):
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(low,)))
        else:
            raise Unsupported(f"INT64 to {target.type.name}")

    def _summed(self) -> None:
        low = self.parts.of(self.operator.inputs[0])[0]
        shape, made = tuple(self._tensor(low).shape), tuple(self._output.shape)
        self._in_limbs(0, max(math.prod(shape) // max(math.prod(made), 1), max(shape, default=1)))

    def _scattered(self) -> None:
        """Rows with one place add up."""
        self._in_limbs(1, math.prod(self._tensor(self.operator.inputs[0]).shape[:-1]))

    def _in_limbs(self, summed: int, count: int) -> None:
        """An operator that adds, up to `count` numbers of the input `summed`: part by part; the parts put together."""
        low, high = self.parts.of(self.operator.inputs[summed])
        if count > _MOST:
            raise Unsupported(f"{count} numbers of 64 bits in a sum: up to {_MOST} are taken")
        sums, at = [], 0
        for bits in _LIMBS:
            limb = fn("bit_and", fn("shift_right", Arg(0), whole(at)), whole((1 << bits) - 1))
            sums.append(self._again(summed, self.parts.computed(limb, (low,), self._sources)))
            at += bits
        sums.append(self._again(summed, high))
        total: Wide = (_ZERO, Arg(3))
        for i, at in enumerate((0, _LIMBS[0], _LIMBS[0] + _LIMBS[1])):
            total = _plus(_shifted(Arg(i), at), total)
        self._give(*total, tuple(sums))

    def _again(self, place: int, part: int) -> int:
        """The operator on one part of its input `place`."""
        made = self.parts.blank(tuple(self._output.shape), TensorType.INT32)
        inputs = list(self.operator.inputs)
        inputs[place] = part
        self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=tuple(inputs), outputs=(made,)))
        return made

    def _axes(self, rank: int) -> set[int]:
        axes = self._tensor(self.operator.inputs[1]).data
        if axes is None:
            raise Unsupported("the axes (input 1) are computed by the model: the GPU needs constants")
        return {int(a) % max(rank, 1) for a in axes.reshape(-1)}

    def numbers(self, values: Sequence[int]) -> int:
        return self.parts.blank((len(values),), TensorType.INT32, np.array(values, np.int32))

    def _product(self) -> None:
        """One half of what is multiplied times the other, until one number is left."""
        pair = self.parts.of(self.operator.inputs[0])
        shape = tuple(self._tensor(pair[0]).shape)
        gone = self._axes(len(shape))
        order = [*(i for i in range(len(shape)) if i not in gone), *sorted(gone)]
        moved = tuple(shape[i] for i in order)
        count = math.prod(shape[i] for i in gone)
        rows = math.prod(shape) // count
        if count > _MOST_FACTORS:
            raise Unsupported(f"{count} numbers of 64 bits in a product: up to {_MOST_FACTORS} are taken")
        turned_ = [self.made("TRANSPOSE", (part, self.numbers(order)), moved) for part in pair]
        words = [self.made("RESHAPE", (part, self.numbers((rows, count))), (rows, count)) for part in turned_]
        while count > 1:
            half = (count + 1) // 2
            if count % 2:
                words = [self._padded(part, (rows, count + 1), one) for part, one in zip(words, (1, 0), strict=True)]
            given = tuple(
                self.made("SLICE", (part, self.numbers((0, at)), self.numbers((rows, half))), (rows, half))
                for at in (0, half)
                for part in words
            )
            words, count = [self.parts.computed(word, given, self._sources) for word in _times(_A, _B)], half
        sizes = tuple(self._output.shape)
        self._give(Arg(0), Arg(1), tuple(self.made("RESHAPE", (w, self.numbers(sizes)), sizes) for w in words))

    def _padded(self, part: int, shape: tuple[int, int], value: int) -> int:
        margins = self.parts.blank((2, 2), TensorType.INT32, np.array([[0, 0], [0, 1]], np.int32))
        fill = self.parts.blank((), TensorType.INT32, np.array(value, np.int32))
        return self.made("PADV2", (part, margins, fill), shape)

    def _extreme(self) -> None:
        """The high word of all, and of those that have it the low one; words compare as numbers without signs."""
        low, high = self.parts.of(self.operator.inputs[0])
        name, shape = self.operator.name, tuple(self._tensor(low).shape)
        gone = self._axes(len(shape))
        kept = tuple(1 if i in gone else n for i, n in enumerate(shape))
        top = self.made(name, (high, self.operator.inputs[1]), kept, keep_dims=True)
        spread = self.made("BROADCAST_TO", (top, self.numbers(shape)), shape)
        none = whole(-(2**31)) if name == "REDUCE_MAX" else whole(2**31 - 1)
        ordered = _choice(fn("eq", Arg(1), Arg(2)), turned(Arg(0)), none)
        candidates = self.parts.computed(ordered, (low, high, spread), self._sources)
        self._give(turned(Arg(0)), Arg(1), (self._again(0, candidates), self._again(0, high)))


def moved_inputs(operator: Operator) -> tuple[int, ...] | None:
    """Which inputs of an operator hold the elements that it moves, or have the shape that it tells; None if it does
    anything else with them."""
    entry = find(operator)
    if entry is not None and entry.op.folds == "shapes":
        return (0,)
    if entry is None or not entry.op.moves or TensorType.FLOAT32 not in entry.gpu.results or operator.name == "BITCAST":
        return None
    return tuple(i for i in range(len(operator.inputs)) if TensorType.FLOAT32 in entry.gpu.types(i))
