"""Whole numbers of 64 bits as two words of 32, and complex numbers as two floats: what computes with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from litegpu.gpu.graph import Arg, Expr, Literal, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import doubles, ordered_words, word_division
from litegpu.gpu.lower.activation import ACTIVATIONS, BOUNDS
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.fixed_point import turned
from litegpu.gpu.lower.pairs import (
    ZERO,
    A,
    B,
    Wide,
    absolute,
    choice,
    either,
    equal,
    less,
    minus,
    negative,
    of_float,
    plus,
    shifted,
    sign,
    times,
    to_float,
)
from litegpu.gpu.lower.parts import Parts
from litegpu.gpu.lower.quantization import STORED
from litegpu.gpu.lower.registry import find
from litegpu.model.ops.spans import IN_WORDS
from litegpu.model.types import Operator, Tensor, TensorType

_MOVED_ALONE = frozenset({TensorType.FLOAT64, TensorType.UINT64})
_NOT_DOUBLE = frozenset({TensorType.COMPLEX64, TensorType.UINT64})
#: Words are added up in parts of so many bits, of so many numbers at most, whose sums fit into a word.
_LIMBS, _MOST = (11, 11, 10), 1 << 20
_MOST_FACTORS = 1 << 16

_BINARY: dict[str, Callable[[Wide, Wide], Wide]] = {
    "ADD": plus,
    "SUB": minus,
    "MUL": times,
    "MAXIMUM": lambda a, b: either(less(a, b), b, a),
    "MINIMUM": lambda a, b: either(less(b, a), b, a),
    "STABLEHLO_AND": lambda a, b: (fn("bit_and", a[0], b[0]), fn("bit_and", a[1], b[1])),
}
_BINARY |= {
    f"STABLEHLO_{name}": _BINARY[short]
    for name, short in (("ADD", "ADD"), ("MULTIPLY", "MUL"), ("MAXIMUM", "MAXIMUM"), ("MINIMUM", "MINIMUM"))
}
_COMPARED: dict[str, Callable[[Wide, Wide], Expr]] = {
    "EQUAL": equal,
    "NOT_EQUAL": lambda a, b: fn("logical_not", equal(a, b)),
    "LESS": less,
    "GREATER": lambda a, b: less(b, a),
    "LESS_EQUAL": lambda a, b: fn("logical_not", less(b, a)),
    "GREATER_EQUAL": lambda a, b: fn("logical_not", less(a, b)),
}
_UNARY: dict[str, Callable[[Wide], Wide]] = {"NEG": negative, "ABS": absolute, "SIGN": sign}


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
        if name == "BITCAST" and {t.nbytes for t in types} == {8}:
            self._recast()
            return True
        if not types.isdisjoint(_MOVED_ALONE):
            return False
        if TensorType.COMPLEX64 in types:
            return self._complex()
        if name in _BINARY:
            self.give(*self._activated(_BINARY[name](A, B)), self.both())
        elif name in _COMPARED:
            self.parts.compute(self._output.index, _COMPARED[name](A, B), self.both(), self._sources)
        elif name in _UNARY:
            self.give(*_UNARY[name](A), self.parts.of(self.operator.inputs[0]))
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
        elif name == "MEAN":
            self._mean()
        elif name == "BUCKETIZE":
            number = self.parts.computed(
                to_float(A), self.parts.of(self.operator.inputs[0]), self._sources, TensorType.FLOAT32
            )
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(number,)))
        elif name == "TOPK_V2":
            ordered_words.largest(self)
        elif name == "UNIQUE":
            ordered_words.unlike(self)
        elif name == "FLOOR_MOD":
            given = self.both()
            self.give(Arg(0), Arg(1), word_division.divided(self.parts, given[:2], given[2:], self._sources)[1])
        else:
            assert name not in IN_WORDS
            return False
        return True

    def _recast(self) -> None:
        """The bits of one type of 64 bits as another's; parts of complex numbers are floats."""
        given = self._tensor(self.operator.inputs[0]).type is TensorType.COMPLEX64
        wanted = self._output.type is TensorType.COMPLEX64
        pair: Wide = (Arg(0), Arg(1))
        if given is not wanted:
            function = "bits_to_int32" if given else "bits_to_float32"
            pair = fn(function, pair[0]), fn(function, pair[1])
        self.give(*pair, self.parts.of(self.operator.inputs[0]))

    def _complex(self) -> bool:
        """Products, and casts: of the real part, and to it."""
        if self.operator.name == "MUL":
            self.give(*_complex_product(A, B), self.both())
        elif self.operator.name != "CAST":
            return False
        elif self._tensor(self.operator.inputs[0]).type is TensorType.COMPLEX64:
            self._of_complex(*self.parts.of(self.operator.inputs[0]))
        else:
            self.give(Arg(0), Literal(0.0), (self._as_float(self.operator.inputs[0]),))
        return True

    def _of_complex(self, real: int, imaginary: int) -> None:
        if self._output.type is TensorType.COMPLEX64:
            self.give(Arg(0), Arg(1), (real, imaginary))
        elif self.parts.has(self._output.index):
            self.give(*of_float(Arg(0)), (real,))
        else:
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(real,)))

    def _as_float(self, tensor: int) -> int:
        """FLOAT32 of a number of any type."""
        if self.parts.has(tensor):
            return self.parts.computed(to_float(A), self.parts.of(tensor), self._sources, TensorType.FLOAT32)
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
        a = a if low is None else either(less(a, low), low, a)
        return a if high is None else either(less(high, a), high, a)

    def give(self, low: Expr, high: Expr, given: tuple[int, ...]) -> None:
        """Both words of the result, or the low one if it is known that this is enough."""
        made = self._output.index
        parts = self.parts.made(made) if self.parts.has(made) else (made,)
        for part, expr in zip(parts, (low, high), strict=False):
            self.parts.compute(part, expr, given, self._sources)

    def both(self) -> tuple[int, ...]:
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
            self.give(*of_float(Arg(0)), (source,))
        elif given.type is TensorType.INT64:
            low, high = self.parts.of(source)
            self.give(Arg(0), Arg(1), (low, high))
        else:
            low = self.parts.blank(given.shape, TensorType.INT32)
            self.parts.lowering.plain(dataclasses.replace(self.operator, outputs=(low,)))
            signed = given.type is not TensorType.UINT32
            self.give(Arg(0), fn("shift_right", Arg(0), whole(31)) if signed else ZERO, (low,))

    def _narrowed(self, source: int, target: Tensor) -> None:
        low, high = self.parts.of(source)
        if self.parts.has(target.index):
            self.give(Arg(0), Arg(1), (low, high))
        elif target.type in (TensorType.FLOAT32, TensorType.FLOAT16):
            number = self.parts.computed(to_float(A), (low, high), self._sources, TensorType.FLOAT32)
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(number,)))
        elif target.type is TensorType.BOOL:
            self.parts.compute(target.index, fn("logical_not", equal(A, (ZERO, ZERO))), (low, high), self._sources)
        elif target.type in STORED or target.type in (TensorType.INT32, TensorType.UINT32, TensorType.UINT16):
            self.parts.lowering.plain(dataclasses.replace(self.operator, inputs=(low,)))
        else:
            raise Unsupported(f"INT64 to {target.type.name}")

    def _summed(self) -> None:
        low = self.parts.of(self.operator.inputs[0])[0]
        shape, made = tuple(self._tensor(low).shape), tuple(self._output.shape)
        self._in_limbs(0, max(math.prod(shape) // max(math.prod(made), 1), max(shape, default=1)))

    def _mean(self) -> None:
        """Rounded towards zero, as by C++."""
        low = self.parts.of(self.operator.inputs[0])[0]
        shape, made = tuple(self._tensor(low).shape), tuple(self._output.shape)
        count = math.prod(shape) // max(math.prod(made), 1)
        total, sums = self._limbs(0, count, "SUM")
        pair = tuple(self.parts.computed(word, sums, self._sources) for word in total)
        by = tuple(self.made("BROADCAST_TO", (self.numbers(n), self.numbers(made)), made) for n in (count, 0))
        self.give(Arg(0), Arg(1), word_division.toward_zero(self.parts, pair, by, self._sources))

    def _scattered(self) -> None:
        """Rows with one place add up."""
        self._in_limbs(1, math.prod(self._tensor(self.operator.inputs[0]).shape[:-1]))

    def _in_limbs(self, summed: int, count: int) -> None:
        """An operator that adds, up to `count` numbers of the input `summed`."""
        total, sums = self._limbs(summed, count, self.operator.name)
        self.give(*total, sums)

    def _limbs(self, summed: int, count: int, name: str) -> tuple[Wide, tuple[int, ...]]:
        """The sum as an expression of the sums that the operator `name` gives of parts of the numbers."""
        low, high = self.parts.of(self.operator.inputs[summed])
        if count > _MOST:
            raise Unsupported(f"{count} numbers of 64 bits in a sum: up to {_MOST} are taken")
        sums, at = [], 0
        for bits in _LIMBS:
            limb = fn("bit_and", fn("shift_right", Arg(0), whole(at)), whole((1 << bits) - 1))
            sums.append(self._again(summed, self.parts.computed(limb, (low,), self._sources), name))
            at += bits
        sums.append(self._again(summed, high, name))
        total: Wide = (ZERO, Arg(3))
        for i, at in enumerate((0, _LIMBS[0], _LIMBS[0] + _LIMBS[1])):
            total = plus(shifted(Arg(i), at), total)
        return total, tuple(sums)

    def _again(self, place: int, part: int, name: str) -> int:
        """The operator, as `name`, on one part of its input `place`."""
        made = self.parts.blank(tuple(self._output.shape), TensorType.INT32)
        inputs = list(self.operator.inputs)
        inputs[place] = part
        again = dataclasses.replace(self.operator, name=name, inputs=tuple(inputs), outputs=(made,))
        self.parts.lowering.plain(again)
        return made

    def _axes(self, rank: int) -> set[int]:
        axes = self._tensor(self.operator.inputs[1]).data
        if axes is None:
            raise Unsupported("the axes (input 1) are computed by the model: the GPU needs constants")
        return {int(a) % max(rank, 1) for a in axes.reshape(-1)}

    def numbers(self, values: Sequence[int] | int) -> int:
        data = np.array(values, np.int32)
        return self.parts.blank(data.shape, TensorType.INT32, data)

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
            words, count = [self.parts.computed(word, given, self._sources) for word in times(A, B)], half
        sizes = tuple(self._output.shape)
        self.give(Arg(0), Arg(1), tuple(self.made("RESHAPE", (w, self.numbers(sizes)), sizes) for w in words))

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
        ordered = choice(fn("eq", Arg(1), Arg(2)), turned(Arg(0)), none)
        candidates = self.parts.computed(ordered, (low, high, spread), self._sources)
        self.give(turned(Arg(0)), Arg(1), (self._again(0, candidates, name), self._again(0, high, name)))


def moved_inputs(operator: Operator) -> tuple[int, ...] | None:
    """Which inputs of an operator hold the elements that it moves, or have the shape that it tells; None if it does
    anything else with them."""
    entry = find(operator)
    if entry is not None and entry.op.folds == "shapes":
        return (0,)
    if entry is None or not entry.op.moves or TensorType.FLOAT32 not in entry.gpu.results or operator.name == "BITCAST":
        return None
    return tuple(i for i in range(len(operator.inputs)) if TensorType.FLOAT32 in entry.gpu.types(i))
