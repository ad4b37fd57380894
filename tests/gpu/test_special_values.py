"""NaN, infinities, zeros of both signs and the largest numbers, through every op and through chains of ops.

Drivers may take it that there is no NaN and no infinity, and simplify what a kernel says: x - x to 0, sqrt(x) * sqrt(x)
to x, what a root is compared with to what it is for positive numbers. One op alone does not show that; chains do.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import lower_partition
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

BACKENDS = ["webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]
NAN, INF = np.nan, np.inf
LARGEST, SMALLEST = float(np.finfo(np.float32).max), float(np.finfo(np.float32).tiny)
_SIGNED = (
    INF,
    0.0,
    SMALLEST,
    LARGEST,
    3e38,
    1e20,
    1e10,
    70000,
    100,
    89,
    88.5,
    20,
    7,
    6,
    3,
    2.5,
    2,
    1.5,
    1,
    0.5,
    1e-8,
    1e-20,
)
VALUES = np.array([NAN, *_SIGNED, *(-v for v in _SIGNED)], np.float32)
UNARY = (
    *("ABS", "ELU", "EXP", "FLOOR", "CEIL", "ROUND", "GELU", "HARD_SWISH", "LOGISTIC", "LOG", "NEG", "RELU", "RELU6"),
    *("RELU_N1_TO_1", "RSQRT", "SIGN", "SQRT", "SQUARE", "TANH", "LEAKY_RELU"),
)
BINARY = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "PRELU", "ATAN2")
COMPARING = ("GREATER", "LESS", "EQUAL", "NOT_EQUAL", "GREATER_EQUAL", "LESS_EQUAL")
CHAINS, CHAINS_FULL = range(40), range(40, 1000)
#: What these chains come to depends on the order of sums, which drivers change: (y - x) - y is -x to them.
REORDERED = frozenset((250,))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda":
        from litegpu.gpu.backends.cuda.opening import available

        if reason := available():
            pytest.skip(f"no CUDA device: {reason}")
    else:
        require_gpu()
    return str(request.param)


def options_of(op: str) -> dict[str, float]:
    return {"alpha": 0.1} if op == "LEAKY_RELU" else {}


def kinds(x: np.ndarray) -> np.ndarray:
    """NaN, one of the infinities, or a number."""
    return np.where(np.isnan(x), 0, np.where(np.isinf(x), np.where(x > 0, 1, 2), 3))


def defined(content: bytes, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """What the model means, op by op, in NumPy."""
    main = read_model(content).main
    graph = lower_partition(main, main.operators, main.inputs, main.outputs).graph
    return evaluate_graph(graph, inputs)[0].reshape(-1)


def check_kinds(content: bytes, inputs: Sequence[np.ndarray], backend: str, what: object) -> None:
    got, want = run(on_gpu(content, backend=backend), inputs)[0].reshape(-1), defined(content, inputs)
    wrong = np.flatnonzero(kinds(got) != kinds(want))
    told = [([x.reshape(-1)[i] for x in inputs if x.size == got.size], got[i], want[i]) for i in wrong[:3]]
    assert not wrong.size, f"{what}: {wrong.size} of {got.size}: {told}"


# ------------------------------------------------------------------------------------------------ one op


@pytest.mark.parametrize("op", (*UNARY, "SIN", "COS"))
def test_one_operand(op: str, backend: str) -> None:
    b = ModelBuilder()
    b.output(b.op(op, [b.input("x", VALUES.shape)], VALUES.shape, options_of(op)))
    want, got = run(official(b.build()), [VALUES])[0], run(on_gpu(b.build(), backend=backend), [VALUES])[0]
    np.testing.assert_array_equal(kinds(got), kinds(want), err_msg=op)
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=2e-5, atol=1e-6)
    if op not in ("SIGN", "ROUND", "GELU", "SIN"):  # whose zeros are positive on the CPU, or not zeros
        zero = (want == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("op", (*BINARY, *COMPARING))
def test_two_operands(op: str, backend: str) -> None:
    """Of every value with every other; without the activation that the CPU's other kernels cut infinities with."""
    n = len(VALUES)
    shape = (1, 1, n, n)
    x, y = np.repeat(VALUES, n).reshape(shape), np.tile(VALUES, n).reshape(shape)
    b = ModelBuilder()
    operands = [b.input("x", shape), b.input("y", shape)]
    result = b.op(op, operands, shape, type=TensorType.BOOL if op in COMPARING else TensorType.FLOAT32)
    b.output(result)
    got = run(on_gpu(b.build(), backend=backend), [x, y])[0].reshape(-1)
    want = defined(b.build(), [x, y])
    if op in COMPARING:
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_array_equal(kinds(got), kinds(want), err_msg=op)
    normal = np.isfinite(want) & ((np.abs(want) >= SMALLEST) | (want == 0))
    np.testing.assert_allclose(got[normal], want[normal], rtol=2e-5, atol=1e-37)
    if op == "ATAN2":
        official_want = run(official(b.build()), [x, y])[0].reshape(-1)
        np.testing.assert_allclose(got, official_want, rtol=2e-6, atol=1e-37)


# ------------------------------------------------------------------------------------------------ chains


def pair(first: str, second: str) -> bytes:
    b = ModelBuilder()
    x = b.op(first, [b.input("x", VALUES.shape)], VALUES.shape, options_of(first))
    b.output(b.op(second, [x], VALUES.shape, options_of(second)))
    return b.build()


@pytest.mark.parametrize("first", ("RSQRT", "SQRT", "EXP", "LOG", "TANH"))
def test_what_comes_after_a_function(first: str, backend: str) -> None:
    for second in UNARY:
        check_kinds(pair(first, second), [VALUES], backend, (first, second))


@pytest.mark.parametrize("shape", [(len(VALUES),), (1, 1, len(VALUES), 1), (1, len(VALUES), 1, 1)], ids=str)
@pytest.mark.parametrize("op", ("SUB", "DIV", "ADD", "SQUARED_DIFFERENCE", "POW", *COMPARING))
def test_an_operand_with_itself(op: str, shape: tuple[int, ...], backend: str) -> None:
    for inner in ("NEG", "SQUARED_DIFFERENCE", None):
        b = ModelBuilder()
        x = b.input("x", shape)
        y = x if inner is None else b.op(inner, [x] * (2 if inner in BINARY else 1), shape)
        left = b.op("NEG", [y], shape) if op == "ADD" else y
        result = b.op(op, [left, y], shape, type=TensorType.BOOL if op in COMPARING else TensorType.FLOAT32)
        if op in COMPARING:
            result = b.op("SELECT_V2", [result, y, b.constant(np.array([7], np.float32))], shape)
        b.output(result)
        check_kinds(b.build(), [VALUES.reshape(shape)], backend, (op, inner))


@pytest.mark.parametrize("number", (0.0, -0.0, INF, -INF, NAN, 1.0, LARGEST))
@pytest.mark.parametrize("op", ("MUL", "DIV", "ADD", "SUB", "MAXIMUM", "MINIMUM"))
def test_an_operand_with_a_constant(op: str, number: float, backend: str) -> None:
    for turned in (False, True):
        b = ModelBuilder()
        operands = [b.input("x", VALUES.shape), b.constant(np.array([number], np.float32))]
        b.output(b.op(op, operands[::-1] if turned else operands, VALUES.shape))
        check_kinds(b.build(), [VALUES], backend, (op, number, turned))


def chain(seed: int) -> tuple[bytes, list[np.ndarray], list[tuple[object, ...]]]:
    """Two to five random ops on two inputs and constants, most of them on the result of the one before."""
    rng, arrays = random.Random(seed), np.random.default_rng(seed)
    n = rng.choice([256, 251, 7])
    inputs = [arrays.choice(VALUES, n) for _ in range(2)]
    b = ModelBuilder()
    made = [b.input("x", (n,)), b.input("y", (n,))]
    told: list[tuple[object, ...]] = []
    for _ in range(rng.randint(2, 5)):
        last, other = made[-1], rng.choice(made)
        kind = rng.random()
        if kind < 0.55:
            op, operand = rng.choice(UNARY), last if rng.random() < 0.8 else other
            made.append(b.op(op, [operand], (n,), options_of(op)))
            told.append((op, operand))
        elif kind < 0.9:
            op = rng.choice(BINARY)
            op = "DIV" if op == "ATAN2" else op  # it shows the signs of zeros, which are no promise
            if rng.random() < 0.3:
                number = rng.choice([0.0, -0.0, 1.0, -1.0, float(arrays.choice(VALUES))])
                other = b.constant(np.array([number], np.float32))
            operands = (last, other) if op == "PRELU" or rng.random() < 0.5 else (other, last)
            made.append(b.op(op, operands, (n,)))
            told.append((op, *operands))
        else:
            op = rng.choice(COMPARING)
            mask = b.op(op, [last, other], (n,), type=TensorType.BOOL)
            made.append(b.op("SELECT_V2", [mask, last, rng.choice(made)], (n,)))
            told.append((op, last, other, "chooses"))
    b.output(made[-1])
    return b.build(), inputs, told


def test_chains(backend: str) -> None:
    for seed in CHAINS:
        content, inputs, told = chain(seed)
        check_kinds(content, inputs, backend, (seed, told))


@pytest.mark.slow
def test_more_chains(backend: str) -> None:
    for seed in CHAINS_FULL:
        if seed not in REORDERED:
            content, inputs, told = chain(seed)
            check_kinds(content, inputs, backend, (seed, told))


# ------------------------------------------------------------------------------------------------ padding

CHANNELS = (1, 2, 3, 4, 5, 7, 33, 260)


def rows(channels: int) -> np.ndarray:
    """Of ordinary, negative, constant and special elements; each in the first, a middle and the last place."""
    rng = np.random.default_rng(channels)
    found = [rng.standard_normal(channels) * 4, -rng.random(channels) - 1, rng.random(channels) + 1]
    for value in (NAN, INF, -INF, 0.0, -LARGEST):
        found.append(np.full(channels, value))
        for place in {0, channels // 2, channels - 1}:
            for row in (rng.standard_normal(channels), -rng.random(channels) - 2):
                row[place] = value
                found.append(row)
    return np.array(found, np.float32)


def reduced(
    op: str, x: np.ndarray, axis: int, options: Mapping[str, object], backend: str
) -> tuple[np.ndarray, np.ndarray]:
    """(litegpu's, the CPU's) result of an op along an axis, or of a whole tensor if the op has none."""
    b = ModelBuilder()
    inputs = [b.input("x", x.shape)]
    shape = x.shape
    if op not in ("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"):
        inputs.append(b.constant(np.array([axis], np.int32) if op != "CUMSUM" else np.array(axis, np.int32)))
        shape = x.shape if op == "CUMSUM" else tuple(1 if i == axis else n for i, n in enumerate(x.shape))
    b.output(b.op(op, inputs, shape, options))
    return run(on_gpu(b.build(), backend=backend), [x])[0], run(official(b.build()), [x])[0]


def assert_same(got: np.ndarray, want: np.ndarray, what: object) -> None:
    """Within the rounding of sums of 260 numbers, which may cancel."""
    np.testing.assert_array_equal(kinds(got), kinds(want), err_msg=str(what))
    finite = np.isfinite(want)
    np.testing.assert_allclose(got[finite], want[finite], rtol=1e-4, atol=5e-5, err_msg=str(what))


@pytest.mark.parametrize("beta", (1.0, 0.0, -1.0, -0.5, -30.0, 100.0))
def test_softmax_of_every_width(beta: float, backend: str) -> None:
    for channels in CHANNELS:
        x = rows(channels)[None, None]
        assert_same(*reduced("SOFTMAX", x, 3, {"beta": beta}, backend), (beta, channels))


@pytest.mark.parametrize("op", ("LOG_SOFTMAX", "L2_NORMALIZATION", "MEAN", "SUM", "REDUCE_PROD", "CUMSUM"))
def test_rows_of_every_width(op: str, backend: str) -> None:
    for channels in CHANNELS if op != "REDUCE_PROD" else CHANNELS[:6]:  # longer products depend on the order
        x = rows(channels)
        x = x if op in ("LOG_SOFTMAX", "L2_NORMALIZATION") else x[(np.abs(x) != LARGEST).all(1)]  # the order decides
        options = {"keep_dims": True} if op not in ("LOG_SOFTMAX", "L2_NORMALIZATION", "CUMSUM") else {}
        assert_same(*reduced(op, x[None, None], 3, options, backend), (op, channels))
        if "keep_dims" in options:
            assert_same(
                *reduced(op, np.ascontiguousarray(x.T)[None, None], 2, options, backend), (op, channels, "down")
            )


@pytest.mark.parametrize("op", ("REDUCE_MAX", "REDUCE_MIN"))
def test_extremes_of_every_width(op: str, backend: str) -> None:
    """A NaN is passed over, other than on the CPU, where that depends on its place: rows with one are left out."""
    for channels in CHANNELS:
        x = rows(channels)
        x = x[~np.isnan(x).any(1)]
        assert_same(*reduced(op, x[None, None], 3, {"keep_dims": True}, backend), (op, channels))
        assert_same(
            *reduced(op, np.ascontiguousarray(x.T)[None, None], 2, {"keep_dims": True}, backend), (op, channels)
        )


@pytest.mark.parametrize("channels", (1, 2, 3, 4, 5))
@pytest.mark.parametrize("op", ("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"))
def test_pools_of_negative_and_special_elements(op: str, channels: int, backend: str) -> None:
    for value in (NAN, INF, -INF, -5.0, LARGEST, -LARGEST):
        x = -np.random.default_rng(0).random((1, 9, 7, channels)).astype(np.float32) - 1
        x[0, :3, :3], x[0, 8, 6, channels - 1] = value, value
        for window, stride in ((3, 2), (5, 1), (9, 9)):
            b = ModelBuilder()
            options = {
                "filter_width": window,
                "filter_height": window,
                "stride_w": stride,
                "stride_h": stride,
                "padding": 0,
            }
            shape = (1, -(-9 // stride), -(-7 // stride), channels)
            b.output(b.op(op, [b.input("x", x.shape)], shape, options))
            got, want = run(on_gpu(b.build(), backend=backend), [x])[0], run(official(b.build()), [x])[0]
            assert_same(np.clip(got, -LARGEST, LARGEST), want, (op, value, window))  # the CPU clips infinities
