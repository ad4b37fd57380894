"""Which of several numbers of 64 bits are the largest, and which differ: by their words of 32 bits."""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol

import numpy as np

from litegpu.gpu.graph import Arg, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.fixed_point import turned
from litegpu.gpu.lower.parts import Parts
from litegpu.model.types import Operator, TensorType

#: Elements that are compared with each other.
_MOST_UNIQUE = 2048


class Ordering(Protocol):
    """The operator on words that this is part of."""

    parts: Parts
    operator: Operator

    def made(self, name: str, inputs: tuple[int, ...], shape: tuple[int, ...], **options: object) -> int: ...

    def numbers(self, values: list[int]) -> int: ...


def largest(words: Ordering) -> None:
    """TOPK_V2: ordered by the low words, and then, equals staying as they are, by the high ones."""
    operator, parts = words.operator, words.parts
    low, high = parts.of(operator.inputs[0])
    shape = parts.shape(low)
    values, places = operator.outputs
    made = parts.shape(values)
    rows, n, k = math.prod(shape[:-1]), shape[-1], made[-1]
    if parts.lowering.subgraph.tensors[places].type not in (TensorType.INT32, TensorType.INT16):
        raise Unsupported("the indices are neither INT32 nor INT16")
    flat = [words.made("RESHAPE", (w, words.numbers([rows, n])), (rows, n)) for w in (low, high)]

    def sorted_by(keys: int, count: int) -> int:
        found, order = (parts.blank((rows, count), TensorType.INT32) for _ in range(2))
        size = parts.blank((), TensorType.INT32, np.array(count, np.int32))
        parts.lowering.plain(Operator(operator.index, "TOPK_V2", 0, 1, (keys, size), (found, order), {}))
        return order

    def taken(of: int, order: int, count: int) -> int:
        return words.made("GATHER", (of, order), (rows, count), axis=1, batch_dims=1)

    first = sorted_by(parts.computed(turned(Arg(0)), (flat[0],)), n)
    order = taken(first, sorted_by(taken(flat[1], first, n), k), k)
    results = [words.made("RESHAPE", (taken(w, order, k), words.numbers(list(made))), made) for w in flat]
    for part, result in zip(parts.made(values), results, strict=True):
        parts.compute(part, Arg(0), (result,), (operator.index,))
    numbered = words.made("RESHAPE", (order, words.numbers(list(made))), made)
    parts.compute(places, Arg(0), (numbered,), (operator.index,))


def unlike(words: Ordering) -> None:
    """UNIQUE: of each element the first that equals it, and of these numbers those that are unlike."""
    operator, parts = words.operator, words.parts
    low, high = parts.of(operator.inputs[0])
    (n,) = parts.shape(low)
    if n > _MOST_UNIQUE:
        raise Unsupported(f"{n} numbers of 64 bits: up to {_MOST_UNIQUE} are taken")
    rows, columns = (n, 1), (1, n)
    given = [words.made("RESHAPE", (w, words.numbers(list(s))), s) for s in (rows, columns) for w in (low, high)]
    spread = [words.made("BROADCAST_TO", (w, words.numbers([n, n])), (n, n)) for w in given]
    numbers = parts.blank((n, n), TensorType.INT32, np.broadcast_to(np.arange(n, dtype=np.int32), (n, n)).copy())
    equal = fn("logical_and", fn("eq", Arg(0), Arg(2)), fn("eq", Arg(1), Arg(3)))
    candidates = parts.computed(fn("select", equal, Arg(4), whole(n)), (*spread, numbers))
    first = words.made("REDUCE_MIN", (candidates, words.numbers([1])), (n,))
    values = operator.outputs[0]
    count = parts.shape(values)
    unique = parts.blank(count, TensorType.INT32)
    parts.widen(dataclasses.replace(operator, inputs=(first,), outputs=(unique, *operator.outputs[1:])))
    for part, word in zip(parts.made(values), (low, high), strict=True):
        found = words.made("GATHER", (word, unique), count, axis=0)
        parts.compute(part, Arg(0), (found,), (operator.index,))
