"""Further pieces of models: operators with bodies, results of a size that the data decide, places that are computed,
and control flow within control flow."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
from control_models import Body, below, branch, loop, one_more, scalar
from control_models import random as normal
from gpu.lower.test_bodies import MAKERS
from op_cases import OpCase, Shape

from litegpu.model import ModelBuilder
from litegpu.model.builder import SubgraphBuilder
from litegpu.model.types import TensorType

F32, I32, I64, BOOL = TensorType.FLOAT32, TensorType.INT32, TensorType.INT64, TensorType.BOOL
Known = Sequence[Shape]


def sized(rng: random.Random, known: Known) -> OpCase:
    """One of them; shapes are some of the `known` ones where they can."""
    kind = rng.choice((*MAKERS, *PIECES))
    return MAKERS[kind](rng) if kind in MAKERS else PIECES[kind](rng, known)


def _shape(rng: random.Random, known: Known, ranks: tuple[int, int]) -> Shape:
    fitting = [s for s in known if ranks[0] <= len(s) <= ranks[1] and np.prod(s) <= 2000]
    if fitting and rng.random() < 0.8:
        return rng.choice(fitting)
    return tuple(rng.randint(1, 5) for _ in range(rng.randint(*ranks)))


def _mask(rng: random.Random, shape: Shape, kind: str) -> np.ndarray:
    """Some of it is not 0."""
    found = (np.random.default_rng(rng.getrandbits(30)).random(shape) < rng.choice((0.2, 0.5, 1.0))).astype(kind)
    found.reshape(-1)[rng.randrange(found.size)] = 1
    return found


def _where(rng: random.Random, known: Known) -> OpCase:
    """The places of what is not 0, and perhaps what a table holds there, and what becomes of it row by row."""
    table = _shape(rng, known, (1, 4))
    shape = table[: rng.randint(1, len(table))]
    kind = rng.choice(("bool", "bool", "int32", "int8", "uint8"))
    model = ModelBuilder()
    mask = model.input("mask", shape, TensorType[kind.upper()])
    arrays = [_mask(rng, shape, kind)]
    places = model.op("WHERE", [mask], (-1, len(shape)), type=I64)
    if rng.random() < 0.3:
        model.output(places)
        return OpCase("WHERE", model.build(), arrays)
    rows = (-1, *table[len(shape) :])
    y = model.op("GATHER_ND", [model.input("table", table), places], rows, type=F32)
    arrays.append(normal(*table, seed=rng.getrandbits(30)))
    for _ in range(rng.randint(0, 3)):
        y = _by_rows(rng, model, y, rows)
    model.output(y)
    return OpCase("WHERE", model.build(), arrays)


def _by_rows(rng: random.Random, model: ModelBuilder, x: int, rows: Shape) -> int:
    match rng.choice(("TANH", "MUL", "LOGISTIC", *(("SOFTMAX",) if len(rows) > 1 else ()))):
        case "MUL":
            return model.op("MUL", [x, scalar(model, rng.choice((-1.5, 0.3)), np.float32)], rows)
        case "SOFTMAX":
            return model.op("SOFTMAX", [x], rows, dict(beta=1.0))
        case name:
            return model.op(name, [x], rows)


def _unique(rng: random.Random, known: Known) -> OpCase:
    model, (count,) = ModelBuilder(), _shape(rng, known, (1, 1))
    kind = rng.choice(("float32", "int32", "int8", "uint8", "int16"))
    type_, which = TensorType[kind.upper()], rng.choice((I32, I64))
    x = model.input("x", (count,), type_)
    found = model.op_multi("UNIQUE", [x], [((-1,), type_), ((count,), which)], dict(idx_out_type=which.name))
    model.output(*found)
    given = np.random.default_rng(rng.getrandbits(30)).integers(0, 2 + count // 2, count).astype(kind)
    return OpCase("UNIQUE", model.build(), [given])


def _slice(rng: random.Random, known: Known) -> OpCase:
    """A piece that begins where another value says."""
    model, shape = ModelBuilder(), _shape(rng, known, (1, 5))
    size = [rng.randint(1, n) for n in shape]
    begin = np.array([rng.randint(0, n - s) for n, s in zip(shape, size, strict=True)], np.int32)
    x, places = model.input("x", shape), model.input("begin", begin.shape, I32)
    sizes = model.constant(np.array(size, np.int32))
    model.output(model.op("SLICE", [x, places, sizes], tuple(size), type=F32))
    return OpCase("SLICE at a computed place", model.build(), [normal(*shape, seed=rng.getrandbits(30)), begin])


def _row(rng: random.Random, known: Known) -> OpCase:
    """The one row whose number is computed, perhaps from the end."""
    model, shape = ModelBuilder(), _shape(rng, known, (2, 4))
    place = np.array([rng.randrange(-shape[0], shape[0] - 1) if shape[0] > 1 else 0], np.int32)
    x, at = model.input("x", shape), model.input("at", (1,), I32)
    after = one_more(model, model.op("SQUEEZE", [at], (), dict(squeeze_dims=[0]), type=I32))
    end = model.op("RESHAPE", [after, model.constant(np.array([1], np.int32))], (1,), type=I32)
    stride = model.constant(np.array([1], np.int32))
    options = dict(begin_mask=0, end_mask=0, shrink_axis_mask=1)
    model.output(model.op("STRIDED_SLICE", [x, at, end, stride], shape[1:], options, type=F32))
    return OpCase("STRIDED_SLICE of a computed row", model.build(), [normal(*shape, seed=rng.getrandbits(30)), place])


def _nested(rng: random.Random, known: Known) -> OpCase:
    """A branch within a loop, or a loop within a branch."""
    model, shape = ModelBuilder(), _shape(rng, known, (1, 3))
    steps, odd = rng.randint(1, 5), rng.choice((True, False))
    functions = [rng.choice(("TANH", "LOGISTIC", "SIN")) for _ in range(2)]

    def function(name: str) -> Body:
        return lambda graph, state: [graph.op(name, [state[-1]], shape)]

    def looped(graph: SubgraphBuilder, x: int, body: Body) -> list[int]:
        return loop(model, graph, [scalar(graph, 0), x], [((), I32), (shape, F32)], below(steps), body)

    def chosen(graph: SubgraphBuilder, state: list[int]) -> list[int]:
        rest = graph.op("FLOOR_MOD", [state[0], scalar(graph, 2)], (), type=I32)
        which = graph.op("EQUAL", [rest, scalar(graph, int(odd))], (), type=BOOL)
        given: list[tuple[Shape, TensorType]] = [(shape, F32)]
        made = branch(model, graph, which, [state[1]], given, given, function(functions[0]), function(functions[1]))
        return [one_more(graph, state[0]), *made]

    def repeated(graph: SubgraphBuilder, state: list[int]) -> list[int]:
        def step(inner: SubgraphBuilder, values: list[int]) -> list[int]:
            return [one_more(inner, values[0]), *function(functions[0])(inner, values)]

        return looped(graph, state[-1], step)[1:]

    arrays = [normal(*shape, seed=rng.getrandbits(30))]
    if rng.random() < 0.5:
        model.output(*looped(model, model.input("x", shape), chosen)[1:])
        return OpCase("IF in WHILE", model.build(), arrays)
    predicate, x = model.input("p", (), BOOL), model.input("x", shape)
    state: list[tuple[Shape, TensorType]] = [(shape, F32)]
    model.output(*branch(model, model, predicate, [x], state, state, repeated, function(functions[1])))
    return OpCase("WHILE in IF", model.build(), [np.array(rng.random() < 0.5), *arrays])


PIECES: dict[str, Callable[[random.Random, Known], OpCase]] = {
    "where": _where, "unique": _unique, "slice": _slice, "row": _row, "nested": _nested,
}  # fmt: skip
