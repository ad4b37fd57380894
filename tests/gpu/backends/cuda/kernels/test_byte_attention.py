"""Attention of bytes in CUDA C++, against what its operators are one by one in NumPy."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import byte_attention
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Apply,
    Arg,
    Copy,
    DType,
    Expr,
    Graph,
    GraphBuilder,
    IntegerAttention,
    IntegerMatMul,
    IntegerSoftmax,
    Literal,
    Reshape,
    Transpose,
    apply,
    whole,
)
from litegpu.gpu.passes import optimise, optimise_late

KERNEL = "byte_attention"
HOPPER = GPUS["H200"].features
MAGNITUDE = 1 << 30


def rounded(total: Expr, factor: float, zero: int, low: int) -> Expr:
    """Numbers times a factor, as bytes with a zero point."""
    shift = math.frexp(factor)[1]
    number = Apply("fixed_mul", (total, whole(round(math.ldexp(factor, 31 - shift))), whole(shift)))
    return apply("add", apply("min", apply("max", number, whole(low - zero)), whole(low + 255 - zero)), whole(zero))


@dataclasses.dataclass(frozen=True)
class Case:
    """`mask`: the shape of what is added to the logits; with `windows`, another for each of so many, behind a reshape.
    `heads`: queries, keys and values come side by side, as layers compute them."""

    q: tuple[int, ...]
    keys: int
    columns: int
    kind: DType = DType.INT8
    zero_points: tuple[int, int, int] = (-5, 3, -9)
    mask: tuple[int, ...] | None = None
    windows: int = 0
    heads: bool = False
    given: bool = False  # the mask is an input
    step: float = 0.05  # of the logarithms of a table's numbers
    scale: float = 1 / 256  # of weights

    def graph(self) -> Graph:
        g, low = GraphBuilder(), 0 if self.kind is DType.UINT8 else -128
        b, h, m, d = self.q
        shapes = [self.q, (b, h, self.keys, d), (b, h, self.keys, self.columns)]
        inputs, values = [], []
        for shape in shapes:
            value = g.value(shape, self.kind)
            if self.heads:
                rows = (1, b, shape[2], h * shape[3])
                inputs.append(g.value(rows, self.kind))
                apart = (b, shape[2], h, shape[3])
                g.node(Copy((Reshape(rows, apart), Transpose((0, 2, 1, 3)))), [inputs[-1]], value)
            else:
                inputs.append(value)
            values.append(value)
        random, (of_q, of_k, of_v) = np.random.default_rng(7), self.zero_points
        logits, size = g.value((b, h, m, self.keys), self.kind), 40 / (math.sqrt(d) * 5000)
        made: Expr = rounded(RESULT, size, low + 100, low)
        operands = []
        if self.mask is not None:
            if self.given:
                operands.append(g.value(self.mask, DType.INT8))
                inputs.append(operands[-1])
            else:
                operands.append(g.constant(random.integers(-255, 256, self.mask).astype(np.int32)))
            made = rounded(
                apply("add", apply("mul", made, whole(64)), apply("mul", Arg(1), whole(32))), 1 / 64, low, low
            )
        product = IntegerMatMul(transpose_b=True, zero_point=of_q, other_zero_point=of_k)
        g.node(product, values[:2], logits, made, operands)
        if self.windows:
            apart, back = (b // self.windows, self.windows, h, m * self.keys), logits
            moved, logits = g.value(apart, self.kind), g.value((b, h, m, self.keys), self.kind)
            for_windows = random.integers(-40, 41, (1, self.windows, 1, m * self.keys)).astype(np.int32)
            more = rounded(
                apply("add", apply("mul", RESULT, whole(64)), apply("mul", Arg(1), whole(90))), 1 / 70, low, low
            )
            g.node(Copy((Reshape((b, h, m, self.keys), apart),)), [back], moved, more, [g.constant(for_windows)])
            g.node(Copy((Reshape(apart, (b, h, m, self.keys)),)), [moved], logits)
        weights, result = g.value((b, h, m, self.keys), self.kind), g.value((b, h, m, self.columns), self.kind)
        table = np.exp(-self.step * np.arange(256)).astype(np.float32).reshape(1, 1, 1, 256)
        kept: Expr = apply("min", apply("max", RESULT, whole(0)), whole(255))
        kept = apply("add", kept, whole(low)) if low else kept
        g.node(IntegerSoftmax(self.scale), [logits, g.constant(table)], weights, kept)
        last = IntegerMatMul(zero_point=low, other_zero_point=of_v)
        g.node(last, [weights, values[2]], result, rounded(RESULT, 1 / 256, low + 120, low))
        return g.graph(inputs, [result])


CASES = {
    "one step": Case((2, 3, 16, 32), 32, 16),
    "a vision transformer": Case((1, 3, 197, 64), 197, 64, heads=True),
    "windows": Case((8, 3, 49, 32), 49, 32, mask=(1, 3, 49, 49), windows=4, heads=True),
    "one mask for all rows": Case((2, 2, 40, 32), 50, 32, mask=(1, 1, 1, 50)),
    "a mask of the batch": Case((3, 2, 20, 32), 24, 16, mask=(3, 1, 1, 24), given=True),
    "unsigned": Case((1, 2, 33, 48), 33, 20, DType.UINT8, (120, 131, 118)),
    "unsigned, heads": Case((2, 2, 18, 16), 20, 8, DType.UINT8, (0, 255, 7), mask=(1, 2, 18, 20), heads=True),
    "most keys": Case((1, 1, 20, 128), 256, 128, zero_points=(-128, 2, -1)),
    "narrow, few": Case((1, 5, 3, 4), 2, 4, zero_points=(0, 0, 0)),
    "depth of no whole steps": Case((1, 2, 70, 36), 81, 40),
    "one key alone counts": Case((1, 2, 33, 32), 21, 16, step=1.0),  # whose weight would be 256
}


def numbers(graph: Graph, kind: DType) -> list[np.ndarray]:
    random, limits = np.random.default_rng(3), np.iinfo(kind.value)
    shapes = [graph.values[v].shape for v in graph.inputs]
    found = [random.integers(limits.min, limits.max + 1, shape).astype(kind.value) for shape in shapes[:3]]
    return found + [random.integers(-128, 128, shape).astype(np.int8) for shape in shapes[3:]]


def check(device, case: Case) -> None:
    graph = case.graph()
    inputs = numbers(graph, case.kind)
    (want,) = evaluate_graph(graph, inputs)
    program = build_program(graph, device.features, "cuda", half=True, integer=True)
    names = [program.kernels[d.kernel].name for d in program.dispatches]
    assert names == [KERNEL], names
    got = first_output(device, program, inputs, want.shape, want.dtype)
    assert len(np.unique(want)) > 20 or want.size < 200  # not all at a limit
    np.testing.assert_array_equal(got, want)


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_cases(device, case: str) -> None:
    check(device, CASES[case])


@pytest.mark.cuda
@pytest.mark.parametrize("warps", byte_attention.WARPS)
@pytest.mark.parametrize("team", byte_attention.TEAMS)
@pytest.mark.parametrize("case", ["a vision transformer", "windows", "unsigned", "most keys"])
def test_all_divisions(device, case: str, warps: int, team: int, monkeypatch) -> None:
    monkeypatch.setattr(byte_attention, "WARPS", (warps,))
    monkeypatch.setattr(byte_attention, "TEAMS", (team,))
    monkeypatch.setattr(byte_attention, "MOST_OWN", 16)
    check(device, CASES[case])


@pytest.mark.cuda
def test_sums_are_taken_in_order(device) -> None:
    """With a unit of weights for which one of them is another where sums are taken in any other order."""
    case = Case((1, 1, 16, 32), 200, 16, step=0.02)
    graph, inputs = case.graph(), numbers(case.graph(), case.kind)
    (logits,) = evaluate_graph(
        dataclasses.replace(graph, nodes=graph.nodes[:1], outputs=(graph.nodes[0].output,)), inputs
    )
    table = np.exp(-case.step * np.arange(256)).astype(np.float32)
    parts = table[logits.max(3, keepdims=True).astype(int) - logits]

    def sums(each: np.ndarray) -> np.ndarray:
        return np.add.accumulate(each, axis=3, dtype=np.float32)[..., -1:]

    def weights(total: np.ndarray, scale: np.float32) -> np.ndarray:
        return np.floor(parts * (np.float32(1) / (total * scale)) + np.float32(0.5))

    forwards, others = sums(parts), [sums(parts[..., ::-1]), parts.sum(3, keepdims=True)]
    row = next(r for r in range(16) if all(forwards[0, 0, r] != other[0, 0, r] for other in others))
    near = float(parts[0, 0, row].max() / forwards[0, 0, row, 0] / 100.5)  # half-way between two weights
    scales = np.float32(near) + np.arange(-40, 41).astype(np.float32) * np.spacing(np.float32(near))
    differ = [s for s in scales if any((weights(forwards, s) != weights(other, s)).any() for other in others)]
    assert differ
    for scale in differ[:4]:
        check(device, dataclasses.replace(case, scale=float(scale)))


def joined(case: Case, **changed) -> Graph:
    graph = dataclasses.replace(case, **changed).graph()
    return optimise_late(optimise(graph, HOPPER, True), HOPPER)


@pytest.mark.parametrize("case", CASES)
def test_joined_it_is_the_same(case: str) -> None:
    graph, after = CASES[case].graph(), joined(CASES[case])
    assert any(isinstance(node.op, IntegerAttention) for node in after.nodes)
    inputs = numbers(graph, CASES[case].kind)
    np.testing.assert_array_equal(evaluate_graph(after, inputs)[0], evaluate_graph(graph, inputs)[0])


def test_what_is_left_as_it_is() -> None:
    def is_joined(case: Case, **changed) -> bool:
        return any(isinstance(node.op, IntegerAttention) for node in joined(case, **changed).nodes)

    few = CASES["one step"]
    assert is_joined(few)
    assert not is_joined(few, keys=257)
    assert not is_joined(few, columns=132)
    assert not is_joined(few, columns=18)
    assert not is_joined(few, q=(2, 3, 16, 30))
    graph = few.graph()  # whose weights are read by another as well
    graph = dataclasses.replace(graph, outputs=(*graph.outputs, graph.nodes[1].output))
    assert not any(isinstance(n.op, IntegerAttention) for n in optimise_late(graph, HOPPER).nodes)
    first, softmax, last = few.graph().nodes
    shifted = dataclasses.replace(softmax, epilogue=apply("add", softmax.epilogue, Literal(1, DType.INT32)))
    graph = dataclasses.replace(few.graph(), nodes=(first, shifted, last))
    assert not any(isinstance(n.op, IntegerAttention) for n in optimise_late(graph, HOPPER).nodes)
