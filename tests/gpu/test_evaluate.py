"""The evaluator's own traps: NaN, conversions, activations that the CPU leaves out, empty tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from litegpu.gpu.evaluate import apply_step, evaluate_expr, evaluate_graph
from litegpu.gpu.graph import FUNCTIONS, Arg, DType, Expr, Gather, GraphBuilder, Literal, Mirror, Pad, Slice, apply
from litegpu.gpu.lower import lower_partition
from litegpu.model.writer import ModelBuilder

NAN, INF = np.float32(np.nan), np.float32(np.inf)


def value(fn: str, *args: object) -> np.ndarray:
    arrays = [np.asarray(a, None if isinstance(a, (bool, np.generic, np.ndarray)) else np.float32) for a in args]
    return evaluate_expr(apply(fn, *(Arg(i) for i in range(len(arrays)))), arrays)


def test_min_and_max_give_the_second_argument_next_to_a_nan() -> None:
    for fn in ("min", "max"):
        assert value(fn, NAN, 1.0) == 1
        assert np.isnan(value(fn, 1.0, NAN))


def test_a_clamp_lets_nan_through_and_keeps_infinity() -> None:
    relu = apply("max", Arg(0), 0)
    relu6 = apply("min", relu, 6)
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    np.testing.assert_array_equal(evaluate_expr(relu, [x]), np.array([np.nan, np.inf, 0], np.float32))
    np.testing.assert_array_equal(evaluate_expr(relu6, [x]), np.array([np.nan, 6, 0], np.float32))


def test_integers_come_from_floats_by_truncation_and_saturation() -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, np.nan, np.inf, -np.inf], np.float32)
    top, bottom = 2**31 - 1, -(2**31)
    np.testing.assert_array_equal(value("to_int32", x), [1, -1, top, bottom, top, top, bottom])


def test_erf_is_exact() -> None:
    x = np.linspace(-5, 5, 101, dtype=np.float32)
    np.testing.assert_array_equal(value("erf", x), np.array([math.erf(float(v)) for v in x], np.float32))


def test_every_function_of_the_graph_is_defined() -> None:
    for fn, arity in FUNCTIONS.items():
        args: list[object] = [np.float32(0.5)] * arity
        if fn.startswith("logical") or fn == "select":
            args[0] = np.bool_(True)
        if fn.startswith(("bit_", "shift_")) or fn.startswith("fixed_mul"):
            args = [np.int32(3)] * arity
        assert np.isfinite(value(fn, *args).astype(np.float64)), fn


def test_shared_subtrees_are_computed_once() -> None:
    e: Expr = Arg(0)
    for _ in range(200):
        e = apply("mul", e, e)
    assert evaluate_expr(e, [np.array(1, np.float32)]) == 1


def test_int32_arithmetic_wraps() -> None:
    e = apply("add", Arg(0), Literal(1, DType.INT32))
    assert evaluate_expr(e, [np.array([2**31 - 1], np.int32)]).tolist() == [-(2**31)]


@pytest.mark.parametrize(
    ("step", "want"),
    [
        (Slice((3,), (-2,), (2,)), [3, 1]),
        (Slice((1,), (1,), (0,)), []),
        (Pad((2,), (0,), 9.0), [9, 9, 0, 1, 2, 3]),
        (Pad((-1,), (1,), 9.0), [1, 2, 3, 9]),
        (Mirror((2,), (1,)), [2, 1, 0, 1, 2, 3, 2]),
        (Mirror((2,), (1,), True), [1, 0, 0, 1, 2, 3, 3]),
    ],
)
def test_movement(step: Slice | Pad | Mirror, want: list[float]) -> None:
    assert apply_step(step, np.arange(4, dtype=np.float32)).tolist() == want


def test_a_gather_outside_gives_zero() -> None:
    b = GraphBuilder()
    x, i = b.value((1, 1, 1, 3), DType.FLOAT32), b.value((1, 1, 1, 4), DType.INT32)
    y = b.value((1, 1, 1, 4), DType.FLOAT32)
    b.node(Gather(1, 1, 3, 1, 4), [x, i], y)
    (got,) = evaluate_graph(b.graph([x, i], [y]), [np.array([5, 6, 7], np.float32), np.array([-1, 0, 2, 3], np.int32)])
    assert got.reshape(-1).tolist() == [0, 5, 7, 0]


def test_a_fused_tanh_is_applied() -> None:
    """The CPU kernels ignore it, so the sweeps leave it out."""
    b = ModelBuilder()
    x = b.input("x", (3,))
    b.output(b.op("ADD", [x, b.constant([1.0])], shape=(3,), options=dict(fused_activation_function="TANH")))
    g = b.graph()
    (got,) = evaluate_graph(
        lower_partition(g, g.operators, g.inputs, g.outputs).graph, [np.array([-1, 0, 1], np.float32)]
    )
    np.testing.assert_allclose(got.reshape(-1), np.tanh(np.array([0, 1, 2], np.float32)), rtol=1e-6)
