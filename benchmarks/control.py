"""Control flow on a GPU, beside the official CPU runtime: milliseconds of an inference, and the largest difference.

    python benchmarks/control.py [--device cuda] [--steps 64] [--width 256] [--layers 4] [--calls]

An LSTM as a WHILE over time; an encoder-decoder that decodes so many tokens in one WHILE, with its keys and values in
resource variables; the same that stops at the end token, which only the run decides; and one that keeps the best four
of all continuations (beam search) until the best ends. The CPU has as many threads as are quickest of 1, 2, 4 and 8.
--calls counts instead, on CUDA and without the library in C, what an inference asks of the driver: as much whatever
the number of steps, where no step waits for the host.
"""

from __future__ import annotations

import argparse
import collections
import logging
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter

import litegpu
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

I32, F32, BOOL = TensorType.INT32, TensorType.FLOAT32, TensorType.BOOL
END = 3  # the token at which decoding ends
ROUNDS = 10


class Layers:
    """Adds layers with random weights of one width to a graph."""

    def __init__(self, graph: SubgraphBuilder, width: int, seed: int) -> None:
        self.graph, self.width = graph, width
        self._random = np.random.default_rng(seed)

    def weights(self, *shape: int) -> int:
        values = self._random.standard_normal(shape) / np.sqrt(shape[-1])
        return self.graph.constant(values.astype(np.float32))

    def dense(self, x: int, rows: int, outputs: int, activation: str = "NONE") -> int:
        weights = self.weights(outputs, self.width)
        return self.graph.op(
            "FULLY_CONNECTED", [x, weights, None], (rows, outputs), dict(fused_activation_function=activation)
        )

    def attention(self, query: int, rows: int, keys: int, values: int, count: int, mask: int | None = None) -> int:
        g, scale = self.graph, self.graph.constant(np.array(self.width**-0.5, np.float32))
        logits = g.op("BATCH_MATMUL", [query, keys], (rows, count), dict(adj_y=True), type=F32)
        logits = g.op("MUL", [logits, scale], (rows, count))
        if mask is not None:
            low = g.constant(np.array(-1e9, np.float32))
            logits = g.op("SELECT_V2", [mask, logits, low], (rows, count), type=F32)
        weights = g.op("SOFTMAX", [logits], (rows, count), dict(beta=1.0))
        return g.op("BATCH_MATMUL", [weights, values], (rows, self.width), type=F32)

    def added(self, x: int, y: int, rows: int) -> int:
        """A residual sum, normalized."""
        g, shape = self.graph, (rows, self.width)
        total = g.op("ADD", [x, y], shape)
        axis = g.constant(np.array([1], np.int32))
        mean = g.op("MEAN", [total, axis], (rows, 1), dict(keep_dims=True), type=F32)
        less = g.op("SUB", [total, mean], shape)
        square = g.op("MEAN", [g.op("MUL", [less, less], shape), axis], (rows, 1), dict(keep_dims=True), type=F32)
        root = g.op("RSQRT", [g.op("ADD", [square, g.constant(np.array(1e-5, np.float32))], (rows, 1))], (rows, 1))
        return g.op("MUL", [less, root], shape)


def decoder(
    steps: int = 64, width: int = 256, layers: int = 4, words: int = 512, source: int = 32, *, stops: bool = False
) -> bytes:
    """x [source,width] -> tokens [steps], how many, the last one. `stops`: at the end token."""
    model = ModelBuilder("encoder-decoder")
    x = model.input("x", (source, width))
    caches = [f"{what}{i}" for i in range(layers) for what in ("keys", "values")]
    first = model.subgraph("first")
    for name in caches:
        variable = _handle(first, name)
        first.node("ASSIGN_VARIABLE", [variable, first.constant(np.zeros((steps, width), np.float32))], [])
    model.node("CALL_ONCE", [], [], dict(init_subgraph_index=first.index))
    encoder = Layers(model, width, 1)
    memory = encoder.added(x, encoder.dense(encoder.dense(x, source, width, "RELU"), source, width), source)
    state: list[tuple[tuple[int, ...], TensorType]] = [
        ((), I32), ((1,), I32), ((steps,), I32), ((source, width), F32)
    ]  # fmt: skip
    condition, body = model.subgraph("condition"), model.subgraph("body")
    step, token, *_ = (condition.input(f"c{i}", *one) for i, one in enumerate(state))
    goes_on = condition.op("LESS", [step, condition.constant(np.array(steps, np.int32))], (), type=BOOL)
    if stops:
        other = condition.op("NOT_EQUAL", [token, condition.constant(np.array([END], np.int32))], (1,), type=BOOL)
        other = condition.op("RESHAPE", [other, condition.constant(np.zeros(0, np.int32))], (), type=BOOL)
        goes_on = condition.op("LOGICAL_AND", [goes_on, other], (), type=BOOL)
    condition.output(goes_on)
    body.output(*_decode(body, [body.input(f"b{i}", *one) for i, one in enumerate(state)], steps, width, layers, words,
                         source))  # fmt: skip
    given = [model.constant(a) for a in (np.array(0, np.int32), np.array([1], np.int32), np.zeros(steps, np.int32))]
    options = dict(cond_subgraph_index=condition.index, body_subgraph_index=body.index)
    count, last, tokens, _ = model.op_multi("WHILE", [*given, memory], state, options)
    model.output(tokens, count, last)
    return model.build()


def _decode(
    g: SubgraphBuilder, state: Sequence[int], steps: int, width: int, layers: int, words: int, source: int
) -> list[int]:
    """One token more."""
    step, token, tokens, memory = state
    made = Layers(g, width, 2)
    h = g.op("GATHER", [made.weights(words, width), token], (1, width), dict(axis=0), type=F32)
    column = g.constant(np.arange(steps, dtype=np.int32).reshape(steps, 1))
    row = g.constant(np.arange(steps, dtype=np.int32).reshape(1, steps))
    here = g.op("EQUAL", [column, step], (steps, 1), type=BOOL)
    seen = g.op("LESS_EQUAL", [row, step], (1, steps), type=BOOL)
    for i in range(layers):
        query, key, value = (made.dense(h, 1, width) for _ in range(3))
        cached = []
        for name, new in ((f"keys{i}", key), (f"values{i}", value)):
            variable = _handle(g, name)
            before = g.op("READ_VARIABLE", [variable], (steps, width), type=F32)
            after = g.op("SELECT_V2", [here, new, before], (steps, width), type=F32)
            g.node("ASSIGN_VARIABLE", [variable, after], [])
            cached.append(after)
        h = made.added(h, made.attention(query, 1, cached[0], cached[1], steps, seen), 1)
        keys, values = (made.dense(memory, source, width) for _ in range(2))
        h = made.added(h, made.attention(made.dense(h, 1, width), 1, keys, values, source), 1)
        h = made.added(h, made.dense(made.dense(h, 1, width, "RELU"), 1, width), 1)
    logits = made.dense(h, 1, words)
    chosen = g.op("ARG_MAX", [logits, g.constant(np.array(1, np.int32))], (1,), dict(output_type="INT32"), type=I32)
    flat = g.constant(np.arange(steps, dtype=np.int32))
    hit = g.op("EQUAL", [flat, step], (steps,), type=BOOL)
    tokens = g.op("SELECT_V2", [hit, chosen, tokens], (steps,), type=I32)
    return [g.op("ADD", [step, g.constant(np.array(1, np.int32))], ()), chosen, tokens, memory]


def _handle(graph: SubgraphBuilder, name: str) -> int:
    tensor = graph.tensor((), TensorType.RESOURCE)
    graph.node("VAR_HANDLE", [], [tensor], dict(shared_name=name, container=""))
    return tensor


def beam_search(
    steps: int = 64, width: int = 256, words: int = 512, beams: int = 4, source: int = 32, *, stops: bool = True
) -> bytes:
    """x [source,width] -> tokens [beams,steps], scores [beams], how many steps: a recurrent decoder with attention."""
    model = ModelBuilder("beam search")
    x = model.input("x", (source, width))
    memory = model.op("TANH", [Layers(model, width, 1).dense(x, source, width)], (source, width))
    state: list[tuple[tuple[int, ...], TensorType]] = [
        ((), I32), ((beams,), I32), ((beams, width), F32), ((beams, 1), F32), ((beams, steps), I32),
        ((source, width), F32)
    ]  # fmt: skip
    condition, body = model.subgraph("condition"), model.subgraph("body")
    step, token, *_ = (condition.input(f"c{i}", *one) for i, one in enumerate(state))
    goes_on = condition.op("LESS", [step, condition.constant(np.array(steps, np.int32))], (), type=BOOL)
    if stops:
        best = condition.op(
            "SLICE", [token, *(condition.constant(np.array([n], np.int32)) for n in (0, 1))], (1,), type=I32
        )
        best = condition.op("RESHAPE", [best, condition.constant(np.zeros(0, np.int32))], (), type=I32)
        other = condition.op("NOT_EQUAL", [best, condition.constant(np.array(END, np.int32))], (), type=BOOL)
        goes_on = condition.op("LOGICAL_AND", [goes_on, other], (), type=BOOL)
    condition.output(goes_on)
    body.output(*_extend(body, [body.input(f"b{i}", *one) for i, one in enumerate(state)], steps, width, words, beams,
                         source))  # fmt: skip
    only_first = np.where(np.arange(beams) == 0, 0, -1e9).reshape(beams, 1).astype(np.float32)
    given = [np.array(0, np.int32), np.ones(beams, np.int32), np.zeros((beams, width), np.float32), only_first,
             np.zeros((beams, steps), np.int32)]  # fmt: skip
    options = dict(cond_subgraph_index=condition.index, body_subgraph_index=body.index)
    made = model.op_multi("WHILE", [*map(model.constant, given), memory], state, options)
    model.output(made[4], made[3], made[0])
    return model.build()


def _extend(
    g: SubgraphBuilder, state: Sequence[int], steps: int, width: int, words: int, beams: int, source: int
) -> list[int]:
    """Of all beams with any word the best ones."""
    step, token, hidden, scores, tokens, memory = state
    made = Layers(g, width, 2)
    number = lambda *values: g.constant(np.array(values, np.int32))  # noqa: E731
    word = g.op("GATHER", [made.weights(words, width), token], (beams, width), dict(axis=0), type=F32)
    hidden = g.op("TANH", [g.op("ADD", [made.dense(word, beams, width), made.dense(hidden, beams, width)],
                                (beams, width))], (beams, width))  # fmt: skip
    hidden = made.added(hidden, made.attention(hidden, beams, memory, memory, source), beams)
    logits = g.op("LOG_SOFTMAX", [made.dense(hidden, beams, words)], (beams, words))
    total = g.op("RESHAPE", [g.op("ADD", [logits, scores], (beams, words)), number(beams * words)], (beams * words,))
    best, place = g.op_multi(
        "TOPK_V2", [total, g.constant(np.array(beams, np.int32))], [((beams,), F32), ((beams,), I32)]
    )
    from_, token = (g.op(name, [place, g.constant(np.array(words, np.int32))], (beams,), type=I32)
                    for name in ("FLOOR_DIV", "FLOOR_MOD"))  # fmt: skip
    hidden = g.op("GATHER", [hidden, from_], (beams, width), dict(axis=0), type=F32)
    tokens = g.op("GATHER", [tokens, from_], (beams, steps), dict(axis=0), type=I32)
    here = g.op("EQUAL", [g.constant(np.arange(steps, dtype=np.int32).reshape(1, steps)), step], (1, steps), type=BOOL)
    column = g.op("RESHAPE", [token, number(beams, 1)], (beams, 1), type=I32)
    tokens = g.op("SELECT_V2", [here, column, tokens], (beams, steps), type=I32)
    scores = g.op("RESHAPE", [best, number(beams, 1)], (beams, 1))
    return [g.op("ADD", [step, g.constant(np.array(1, np.int32))], ()), token, hidden, scores, tokens, memory]


def lstm(steps: int = 100, units: int = 128, features: int = 64) -> bytes:
    """x [steps,features] -> h [1,units]: one cell, again and again."""
    model = ModelBuilder("while lstm")
    x = model.input("x", (steps, features))
    condition, body = model.subgraph("condition"), model.subgraph("body")
    state: list[tuple[tuple[int, ...], TensorType]] = [
        ((), I32), ((steps, features), F32), ((1, units), F32), ((1, units), F32)
    ]  # fmt: skip
    time_, *_ = (condition.input(f"c{i}", *one) for i, one in enumerate(state))
    condition.output(condition.op("LESS", [time_, condition.constant(np.array(steps, np.int32))], (), type=BOOL))
    time_, rows, h, c = (body.input(f"b{i}", *one) for i, one in enumerate(state))
    begin = body.op("PACK", [time_, body.constant(np.array(0, np.int32))], (2,), dict(values_count=2, axis=0), type=I32)
    row = body.op("SLICE", [rows, begin, body.constant(np.array([1, features], np.int32))], (1, features), type=F32)
    joined = body.op("CONCATENATION", [row, h], (1, features + units), dict(axis=1), type=F32)
    gates = Layers(body, features + units, 3).dense(joined, 1, 4 * units)
    axis = body.constant(np.array(1, np.int32))
    parts = body.op_multi("SPLIT", [axis, gates], [((1, units), F32)] * 4, dict(num_splits=4))
    i, f, o = (body.op("LOGISTIC", [p], (1, units)) for p in (parts[0], parts[1], parts[3]))
    new = body.op("MUL", [i, body.op("TANH", [parts[2]], (1, units))], (1, units))
    after = body.op("ADD", [body.op("MUL", [f, c], (1, units)), new], (1, units))
    out = body.op("MUL", [o, body.op("TANH", [after], (1, units))], (1, units))
    body.output(body.op("ADD", [time_, body.constant(np.array(1, np.int32))], ()), rows, out, after)
    zeros = model.constant(np.zeros((1, units), np.float32))
    options = dict(cond_subgraph_index=condition.index, body_subgraph_index=body.index)
    made = model.op_multi("WHILE", [model.constant(np.array(0, np.int32)), x, zeros, zeros], state, options)
    model.output(made[2])
    return model.build()


def median(action: Callable[[], object]) -> float:
    """Milliseconds."""
    found = []
    for _ in range(ROUNDS + 2):
        started = time.perf_counter()
        action()
        found.append(1e3 * (time.perf_counter() - started))
    return statistics.median(found[2:])


def calls_of(content: bytes) -> dict[str, int]:
    """What the fourth inference asks of the CUDA driver, but how often whether it is done."""
    from cuda.bindings import driver

    from litegpu.gpu.backends.cuda.held import held_calls

    counts: collections.Counter[str] = collections.Counter()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def same(*given: Any) -> Any:
            counts[name] += 1
            return call(*given)

        return same

    held = held_calls()
    wrapped = [(owner, name, getattr(owner, name)) for owner in (driver, held) for name in vars(owner)
               if owner is held or name.startswith("cu")]  # fmt: skip
    wrapped = [one for one in wrapped if callable(one[2]) and not isinstance(one[2], type)]
    try:
        for owner, name, call in wrapped:
            setattr(owner, name, counted(name, call))
        with litegpu.load(content, "cuda") as model:
            x = np.zeros(tuple(model.interpreter.get_input_details()[0]["shape"]), np.float32)
            for _ in range(4):
                counts.clear()
                model(x)
            return {name: count for name, count in sorted(counts.items()) if "query" not in name.lower()}
    finally:
        for owner, name, call in wrapped:
            setattr(owner, name, call)


def on_cpu(content: bytes, x: np.ndarray) -> tuple[float, list[Any]]:
    """The quickest, and what a new interpreter gives first."""
    best, results = float("inf"), []
    for threads in (1, 2, 4, 8):
        one = OfficialInterpreter(model_content=content, num_threads=threads)
        one.allocate_tensors()
        one.set_tensor(one.get_input_details()[0]["index"], x)
        one.invoke()
        results = [one.get_tensor(detail["index"]) for detail in one.get_output_details()]
        best = min(best, median(one.invoke))
    return best, results


def main() -> None:
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--calls", action="store_true", help="count the driver's calls")
    arguments = parser.parse_args()
    shape = dict(steps=arguments.steps, width=arguments.width, layers=arguments.layers)
    models = {
        "while lstm": lstm(),
        f"decoder, {arguments.steps} tokens": decoder(**shape),
        "decoder that stops": decoder(**shape, stops=True),
        "beam search": beam_search(arguments.steps, arguments.width),
    }
    if arguments.calls:
        os.environ["LITEGPU_NATIVE"] = "0"  # whose calls are not seen from here
        for name, content in models.items():
            print(f"{name:24s} {calls_of(content)}")
        return
    print(f"{'model':24s} {'GPU ms':>8s} {'CPU ms':>8s} {'ratio':>6s} {'build s':>8s} {'difference':>11s}  delegated")
    for name, content in models.items():
        started = time.perf_counter()
        with litegpu.load(content, arguments.device) as model:
            built = time.perf_counter() - started
            x = np.random.default_rng(5).standard_normal(tuple(model.interpreter.get_input_details()[0]["shape"]))
            x = x.astype(np.float32)
            found = model(x)
            here = median(lambda model=model, x=x: model(x))  # type: ignore[misc]
            cpu, wanted = on_cpu(content, x)
            made = list(found.values()) if isinstance(found, dict) else [found]
            far = max(
                float(np.abs(np.subtract(a, b, dtype=np.float64)).max()) for a, b in zip(made, wanted, strict=True)
            )
            figures = f"{here:8.2f} {cpu:8.2f} {here / cpu:6.2f} {built:8.2f} {far:11.2e}"
            print(f"{name:24s} {figures}  {model.report.summary()}")


if __name__ == "__main__":
    main()
