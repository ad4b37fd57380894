"""Small models with several signatures, and with control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

I32, F32, BOOL = TensorType.INT32, TensorType.FLOAT32, TensorType.BOOL
Shapes = Sequence[tuple[tuple[int, ...], TensorType]]
#: Adds to a subgraph what computes its outputs from its inputs.
Body = Callable[[SubgraphBuilder, list[int]], Sequence[int]]


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def subgraph(model: ModelBuilder, name: str, state: Shapes, body: Body) -> SubgraphBuilder:
    """A further subgraph with inputs like `state`."""
    graph = model.subgraph(name)
    inputs = [graph.input(f"{name}_{i}", shape, type_) for i, (shape, type_) in enumerate(state)]
    graph.output(*body(graph, inputs))
    return graph


def loop(
    model: ModelBuilder, graph: SubgraphBuilder, given: Sequence[int], state: Shapes, condition: Body, body: Body
) -> list[int]:
    """WHILE over `state`, which begins with the tensors `given`."""
    name = f"loop{len(model._graphs)}"
    test = subgraph(model, f"{name}_condition", state, condition)
    step = subgraph(model, f"{name}_body", state, body)
    options = dict(cond_subgraph_index=test.index, body_subgraph_index=step.index)
    return graph.op_multi("WHILE", list(given), list(state), options)


def branch(
    model: ModelBuilder, graph: SubgraphBuilder, predicate: int, given: Sequence[int], state: Shapes, results: Shapes,
    then: Body, otherwise: Body,
) -> list[int]:  # fmt: skip
    """IF."""
    name = f"branch{len(model._graphs)}"
    first = subgraph(model, f"{name}_then", state, then)
    second = subgraph(model, f"{name}_else", state, otherwise)
    options = dict(then_subgraph_index=first.index, else_subgraph_index=second.index)
    return graph.op_multi("IF", [predicate, *given], list(results), options)


def scalar(graph: SubgraphBuilder, value: float, kind: type = np.int32) -> int:
    return graph.constant(np.array(value, kind))


def one_more(graph: ModelBuilder | SubgraphBuilder, count: int) -> int:
    return graph.op("ADD", [count, scalar(graph, 1)], ())


def below(limit: int) -> Body:
    """A condition: the first of the state is less than this."""

    def condition(graph: SubgraphBuilder, state: list[int]) -> list[int]:
        return [graph.op("LESS", [state[0], scalar(graph, limit)], (), type=BOOL)]

    return condition


def three_signatures(rows: int = 1) -> bytes:
    """ "encode", "decode" and "both", which share weights; both further ones have subgraphs of their own."""
    model = ModelBuilder("three signatures")
    wide, narrow = random(16, 8, seed=1), random(8, 16, seed=2)

    def encode(graph: SubgraphBuilder, x: int) -> int:
        options = dict(fused_activation_function="RELU")
        return graph.op("FULLY_CONNECTED", [x, graph.constant(wide, "wide"), None], (rows, 16), options)

    def decode(graph: SubgraphBuilder, h: int) -> int:
        y = graph.op("FULLY_CONNECTED", [h, graph.constant(narrow, "narrow"), None], (rows, 8))
        return graph.op("TANH", [y], (rows, 8))

    def dimension(extent: int) -> list[int]:
        return [-1, extent]

    x = model.input("x", (rows, 8), shape_signature=dimension(8))
    h = encode(model, x)
    model.output(h)
    model.signature("encode", {"x": x}, {"h": h})
    second = model.subgraph("decode")
    h = second.input("h", (rows, 16), shape_signature=dimension(16))
    y = decode(second, h)
    second.output(y)
    model.signature("decode", {"h": h}, {"y": y}, second)
    third = model.subgraph("both")
    x = third.input("x", (rows, 8), shape_signature=dimension(8))
    y = decode(third, encode(third, x))
    third.output(y)
    model.signature("both", {"x": x}, {"y": y}, third)
    return model.build()


def while_lstm(steps: int = 5, units: int = 8, features: int = 4) -> bytes:
    """An LSTM as TensorFlow writes it: a WHILE over time, which takes one row and collects the states. Its results:
    the sequence, and the last state."""
    model = ModelBuilder("while lstm")
    x = model.input("x", (steps, features))
    weights = random(4 * units, features + units, seed=3, scale=0.5)
    bias = random(4 * units, seed=4)
    state: Shapes = [((), I32), ((steps, features), F32), ((1, units), F32), ((1, units), F32), ((steps, units), F32)]

    def body(graph: SubgraphBuilder, values: list[int]) -> list[int]:
        time, rows, h, c, made = values
        shape = graph.constant(np.array([1], np.int32))
        begin = graph.op("PACK", [time, scalar(graph, 0)], (2,), dict(values_count=2, axis=0), type=I32)
        size = graph.constant(np.array([1, features], np.int32))
        row = graph.op("SLICE", [rows, begin, size], (1, features), type=F32)
        joined = graph.op("CONCATENATION", [row, h], (1, features + units), dict(axis=1), type=F32)
        gates = graph.op(
            "FULLY_CONNECTED", [joined, graph.constant(weights), graph.constant(bias)], (1, 4 * units), type=F32
        )
        parts = graph.op_multi("SPLIT", [scalar(graph, 1), gates], [((1, units), F32)] * 4, dict(num_splits=4))
        i, f, o = (graph.op("LOGISTIC", [p], (1, units)) for p in (parts[0], parts[1], parts[3]))
        g = graph.op("TANH", [parts[2]], (1, units))
        kept, new = graph.op("MUL", [f, c], (1, units)), graph.op("MUL", [i, g], (1, units))
        c = graph.op("ADD", [kept, new], (1, units))
        h = graph.op("MUL", [o, graph.op("TANH", [c], (1, units))], (1, units))
        at = graph.op("RESHAPE", [time, shape], (1,), dict(new_shape=(1,)), type=I32)
        hot = graph.op(
            "ONE_HOT", [at, scalar(graph, steps), scalar(graph, 1.0, np.float32), scalar(graph, 0.0, np.float32)],
            (1, steps), dict(axis=-1), type=F32,
        )  # fmt: skip
        column = graph.op("RESHAPE", [hot, graph.constant(np.array([steps, 1], np.int32))], (steps, 1),
                          dict(new_shape=(steps, 1)), type=F32)  # fmt: skip
        made = graph.op("ADD", [made, graph.op("MUL", [column, h], (steps, units))], (steps, units))
        return [graph.op("ADD", [time, scalar(graph, 1)], ()), rows, h, c, made]

    zeros = [np.zeros(shape, np.float32) for shape in ((1, units), (1, units), (steps, units))]
    given = [scalar(model, 0), x, *(model.constant(z) for z in zeros)]
    results = loop(model, model, given, state, below(steps), body)
    model.output(results[4], results[2])
    return model.build()


def around(kind: str) -> bytes:
    """A WHILE or an IF, depending on what the model computes, between layers."""
    model = ModelBuilder(f"around {kind}")
    x = model.input("x", (1, 8))
    h = model.op("FULLY_CONNECTED", [x, model.constant(random(8, 8, seed=5)), None], (1, 8))
    h = model.op("TANH", [h], (1, 8))
    total = model.op("SUM", [h, model.constant(np.array([0, 1], np.int32))], (), type=F32)
    if kind == "IF":
        predicate = model.op("GREATER", [total, scalar(model, 0.0, np.float32)], (), type=BOOL)

        def then(graph: SubgraphBuilder, v: list[int]) -> list[int]:
            return [graph.op("EXP", [v[0]], (1, 8)), graph.op("ABS", [v[0]], (1, 8))]

        def otherwise(graph: SubgraphBuilder, v: list[int]) -> list[int]:
            y = graph.op("FULLY_CONNECTED", [v[0], graph.constant(random(8, 8, seed=6)), None], (1, 8))
            return [y, graph.op("NEG", [v[0]], (1, 8))]

        state: Shapes = [((1, 8), F32)]
        y, z = branch(model, model, predicate, [h], state, [((1, 8), F32)] * 2, then, otherwise)
        h = model.op("ADD", [y, z], (1, 8))
    else:
        start = model.op("CAST", [total], (), type=I32)

        def body(graph: SubgraphBuilder, v: list[int]) -> list[int]:
            y = graph.op("FULLY_CONNECTED", [v[1], graph.constant(random(8, 8, seed=7)), None], (1, 8))
            return [graph.op("ADD", [v[0], scalar(graph, 1)], ()), graph.op("TANH", [y], (1, 8))]

        _, h = loop(model, model, [start, h], [((), I32), ((1, 8), F32)], below(6), body)
    h = model.op("FULLY_CONNECTED", [h, model.constant(random(4, 8, seed=8)), None], (1, 4))
    model.output(model.op("SOFTMAX", [h], (1, 4), dict(beta=1.0)))
    return model.build()


RESOURCE = TensorType.RESOURCE


def handle(graph: SubgraphBuilder, name: str) -> int:
    """A variable's."""
    tensor = graph.tensor((), RESOURCE)
    graph.node("VAR_HANDLE", [], [tensor], dict(shared_name=name, container=""))
    return tensor


def once(model: ModelBuilder, graph: SubgraphBuilder, values: dict[str, np.ndarray], first: int = 0) -> int:
    """CALL_ONCE of a subgraph that gives variables their first values: a new one, or `first`; its number."""
    if not first:
        body = model.subgraph("initializer")
        for name, value in values.items():
            body.node("ASSIGN_VARIABLE", [handle(body, name), body.constant(value)], [])
        first = body.index
    graph.node("CALL_ONCE", [], [], dict(init_subgraph_index=first))
    return first


def cached_decoder(length: int = 8, width: int = 16, heads: int = 1) -> bytes:
    """Signature prompt puts a row of keys and values into caches, which are variables, at a place; decode does so and
    attends to all places up to that; its steps are how many it took."""
    model = ModelBuilder("decoder with a cache")
    project = [random(width, width, seed=20 + i, scale=0.4) for i in range(4)]
    caches = {name: np.zeros((length, width), np.float32) for name in ("keys", "values")}

    def places(graph: SubgraphBuilder) -> int:
        return graph.constant(np.arange(length, dtype=np.int32).reshape(length, 1))

    def stored(graph: SubgraphBuilder, name: str, row: int, at: int) -> int:
        """The cache with `row` at place `at`, assigned."""
        variable = handle(graph, name)
        before = graph.op("READ_VARIABLE", [variable], (length, width), type=F32)
        hit = graph.op("EQUAL", [places(graph), at], (length, 1), type=BOOL)
        after = graph.op("SELECT_V2", [hit, row, before], (length, width), type=F32)
        graph.node("ASSIGN_VARIABLE", [variable, after], [])
        return after

    def dense(graph: SubgraphBuilder, x: int, i: int) -> int:
        return graph.op("FULLY_CONNECTED", [x, graph.constant(project[i]), None], (1, width))

    def counted(graph: SubgraphBuilder) -> int:
        variable = handle(graph, "steps")
        after = graph.op("ADD", [graph.op("READ_VARIABLE", [variable], (), type=I32), scalar(graph, 1)], ())
        graph.node("ASSIGN_VARIABLE", [variable, after], [])
        return after

    def decode(graph: SubgraphBuilder, x: int, at: int) -> int:
        query = dense(graph, x, 0)
        keys = stored(graph, "keys", dense(graph, x, 1), at)
        values = stored(graph, "values", dense(graph, x, 2), at)
        logits = graph.op("BATCH_MATMUL", [query, keys], (1, length), dict(adj_y=True), type=F32)
        row = graph.constant(np.arange(length, dtype=np.int32).reshape(1, length))
        seen = graph.op("LESS_EQUAL", [row, at], (1, length), type=BOOL)
        masked = graph.op("SELECT_V2", [seen, logits, scalar(graph, -1e9, np.float32)], (1, length), type=F32)
        weights = graph.op("SOFTMAX", [masked], (1, length), dict(beta=1.0))
        read = graph.op("BATCH_MATMUL", [weights, values], (1, width), type=F32)
        return graph.op("TANH", [dense(graph, read, 3)], (1, width))

    first = {**caches, "steps": np.array(0, np.int32)}
    x, at = model.input("x", (1, width)), model.input("at", (), I32)
    initializer = once(model, model, first)
    y, n = decode(model, x, at), counted(model)
    model.output(y, n)
    model.signature("decode", {"x": x, "at": at}, {"y": y, "steps": n})
    prompt = model.subgraph("prompt")
    x, at = prompt.input("x", (1, width)), prompt.input("at", (), I32)
    once(model, prompt, first, initializer)
    keys = stored(prompt, "keys", dense(prompt, x, 1), at)
    values = stored(prompt, "values", dense(prompt, x, 2), at)
    total = prompt.op("ADD", [keys, values], (length, width))
    prompt.output(total)
    model.signature("prompt", {"x": x, "at": at}, {"sum": total}, prompt)
    return model.build()


def variables_in_control(kind: str, handed: bool = False) -> bytes:
    """A WHILE, or an IF, whose subgraphs read and assign a variable, by handles of their own or ones `handed` in."""
    model = ModelBuilder(f"variables in {kind}")
    x = model.input("x", (4,))
    once(model, model, {"total": np.full(4, 0.5, np.float32)})
    outer = handle(model, "total")

    def added(graph: SubgraphBuilder, variable: int, value: int) -> int:
        before = graph.op("READ_VARIABLE", [variable], (4,), type=F32)
        after = graph.op("ADD", [before, value], (4,))
        graph.node("ASSIGN_VARIABLE", [variable, after], [])
        return after

    def own(graph: SubgraphBuilder, v: list[int]) -> int:
        return v[-1] if handed else handle(graph, "total")

    passed: list[int] = [outer] if handed else []
    kinds: list[tuple[tuple[int, ...], TensorType]] = [((), RESOURCE)] if handed else []
    if kind == "WHILE":

        def body(graph: SubgraphBuilder, v: list[int]) -> list[int]:
            y = added(graph, own(graph, v), v[1])
            half = graph.op("MUL", [y, scalar(graph, 0.5, np.float32)], (4,))
            return [graph.op("ADD", [v[0], scalar(graph, 1)], ()), half, *(v[2:] if handed else [])]

        given = [scalar(model, 0), x, *passed]
        y = loop(model, model, given, [((), I32), ((4,), F32), *kinds], below(3), body)[1]
    else:
        size = model.op("SUM", [x, model.constant(np.array([0], np.int32))], (), type=F32)
        predicate = model.op("GREATER", [size, scalar(model, 0.0, np.float32)], (), type=BOOL)

        def then(graph: SubgraphBuilder, v: list[int]) -> list[int]:
            return [added(graph, own(graph, v), v[0])]

        def otherwise(graph: SubgraphBuilder, v: list[int]) -> list[int]:
            return [graph.op("NEG", [v[0]], (4,))]

        state: list[tuple[tuple[int, ...], TensorType]] = [((4,), F32), *kinds]
        y = branch(model, model, predicate, [x, *passed], state, [((4,), F32)], then, otherwise)[0]
    model.output(model.op("ADD", [y, model.op("READ_VARIABLE", [outer], (4,), type=F32)], (4,)))
    return model.build()
