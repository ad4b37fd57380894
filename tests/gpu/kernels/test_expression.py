"""Every function of expressions on a device, with special values, against NumPy and the official CPU's rules."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node, lay_out, run_node

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import FUNCTIONS, Apply, Arg, DType, Elementwise, Expr, GraphBuilder, Literal, apply, whole
from litegpu.gpu.kernels.expression import evaluate, unlimited
from litegpu.gpu.lang import Kernel, Type, f32, f32x2, f32x4, i8, i32, u8, vec

UNARY = {
    "neg": (-9, 9), "abs": (-9, 9), "exp": (-20, 20), "expm1": (-5, 5), "log": (1e-4, 50), "sqrt": (0, 50),
    "rsqrt": (1e-3, 50), "sin": (-30, 30), "cos": (-30, 30), "tanh": (-6, 6), "sigmoid": (-20, 20), "erf": (-5, 5),
    "floor": (-9, 9), "ceil": (-9, 9), "round": (-9, 9), "sign": (-9, 9), "to_float32": (-9, 9),
}  # fmt: skip
NAN = np.nan
SPECIAL = np.array([np.nan, 1, -1, np.inf, -np.inf, np.nan, 0.5, -0.0], np.float32)
OTHER = np.array([1, np.nan, 2, np.nan, np.nan, np.nan, -1, 0.0], np.float32)


def run(expr: Expr, *arrays: np.ndarray, output: DType = DType.FLOAT32) -> np.ndarray:
    types = {"f": DType.FLOAT32, "i": DType.INT32, "b": DType.BOOL}
    builder = GraphBuilder()
    shape = (1, 1, arrays[0].size // 8, 8)
    inputs = [builder.value(shape, types[a.dtype.kind]) for a in arrays]
    builder.node(Elementwise(), [], builder.value(shape, output), expr, inputs)
    graph = builder.graph(inputs, [builder.nodes[0].output])
    return run_node(graph, lay_out(graph), {i: a.reshape(shape) for i, a in zip(inputs, arrays, strict=True)}).ravel()


@pytest.mark.parametrize("fn", UNARY)
def test_unary(fn: str) -> None:
    x = np.linspace(*UNARY[fn], 512, dtype=np.float32)
    expected = evaluate_expr(apply(fn, Arg(0)), [x]).astype(np.float64)
    result = run(apply(fn, Arg(0)), x).astype(np.float64)
    assert np.linalg.norm(result - expected) <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("fn", ["expm1", "erf", "tanh", "sigmoid"])
def test_small_arguments_keep_relative_accuracy(fn: str) -> None:
    x = np.geomspace(1e-6, 0.7, 64, dtype=np.float32)
    x = np.concatenate([x, -x])
    expected = evaluate_expr(apply(fn, Arg(0)), [x])
    np.testing.assert_allclose(run(apply(fn, Arg(0)), x), expected, rtol=2e-6)


def test_gelu_is_exact_to_a_millionth() -> None:
    x = np.linspace(-6, 6, 1024, dtype=np.float32)
    gelu = apply("mul", apply("mul", Arg(0), 0.5), apply("add", apply("erf", apply("mul", Arg(0), 0.5**0.5)), 1.0))
    expected = evaluate_expr(gelu, [x.astype(np.float64)])
    assert np.abs(run(gelu, x) - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (apply("max", Arg(0), 0.0), [NAN, 1, 0, np.inf, 0, NAN, 0.5, 0]),
        (apply("min", apply("max", Arg(0), 0.0), 6.0), [NAN, 1, 0, 6, 0, NAN, 0.5, 0]),
        (apply("sigmoid", Arg(0)), [NAN, 0.7310586, 0.26894143, 1, 0, NAN, 0.62245935, 0.5]),
        (apply("tanh", Arg(0)), [NAN, 0.7615942, -0.7615942, 1, -1, NAN, 0.46211717, 0]),
        (apply("expm1", Arg(0)), [NAN, 1.7182818, -0.63212055, np.inf, -1, NAN, 0.64872127, 0]),
        (apply("abs", Arg(0)), [NAN, 1, 1, np.inf, np.inf, NAN, 0.5, 0]),
        (apply("max", Arg(0), Arg(1)), [1, NAN, 2, NAN, NAN, NAN, 0.5, 0]),
        (apply("min", Arg(0), Arg(1)), [1, NAN, -1, NAN, NAN, NAN, -1, 0]),
        (apply("sign", Arg(0)), [NAN, 1, -1, 1, -1, NAN, 1, 0]),
        (apply("erf", Arg(0)), [NAN, 0.8427008, -0.8427008, 1, -1, NAN, 0.5204999, 0]),
    ],
)
def test_special_values_as_the_official_cpu(expr: Expr, expected: list[float]) -> None:
    """The numbers were measured with ai-edge-litert 2.3 (RELU, RELU6, LOGISTIC, TANH, ELU, ABS, MAXIMUM, MINIMUM)."""
    arrays = (SPECIAL, OTHER) if "Arg(index=1)" in repr(expr) else (SPECIAL,)
    np.testing.assert_allclose(run(expr, *arrays), np.array(expected, np.float32), rtol=2e-6)


@pytest.mark.parametrize("low, high", [(-128.0, 127.0), (0.0, 255.0), (-0.5, 3.5), (-4e6, 4e6)])
def test_rounding_within_limits(low: float, high: float) -> None:
    """Of halves too, as the limits of the rounded number have it."""
    x = np.concatenate(
        [np.arange(-300, 300, 0.5), [1e9, -1e9, np.inf, -np.inf, NAN, 0.49999997, 2.5000002, -1.4999999]]
    )
    x = x.astype(np.float32)
    expr = apply("min", apply("max", apply("round", Arg(0)), low), high)
    np.testing.assert_array_equal(run(expr, x), evaluate_expr(expr, [x]))


def test_to_int32_saturates() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2.7, -2.7, 0], np.float32)
    result = run(apply("to_int32", Arg(0)), x, output=DType.INT32)
    assert result.tolist() == [2**31 - 1, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 2, -2, 0]


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -1.0, -0.5, 0.0, 1.7, 40.0])
def test_pow_of_a_literal(exponent: float) -> None:
    x = np.linspace(0.25, 4, 64, dtype=np.float32)
    expected = x.astype(np.float64) ** exponent
    result = run(apply("pow", Arg(0), exponent), x)
    assert np.linalg.norm(result - expected) <= 1e-5 * np.linalg.norm(expected)


def test_pow_of_negative_bases() -> None:
    x = np.array([-2, -2, -2, -2, 0, 2, -1, 3], np.float32)
    y = np.array([2, 3, -1, 0, 2, 0.5, 5, 0], np.float32)
    np.testing.assert_allclose(run(apply("pow", Arg(0), Arg(1)), x, y), x.astype(float) ** y, rtol=1e-5)


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "min", "max"])
def test_int32_arithmetic(fn: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(-(2**31), 2**31, (2, 64)).astype(np.int32)
    expected = evaluate_expr(apply(fn, Arg(0), Arg(1)), [a, b])
    np.testing.assert_array_equal(run(apply(fn, Arg(0), Arg(1)), a, b, output=DType.INT32), expected)


def test_int32_division_rounds_toward_zero() -> None:
    a = np.array([7, -7, 7, -7, 1, 0, 9, -9], np.int32)
    b = np.array([2, 2, -2, -2, 3, 5, 9, 4], np.int32)
    expected = [3, -3, -3, 3, 0, 0, 1, -2]
    assert run(apply("div", Arg(0), Arg(1)), a, b, output=DType.INT32).tolist() == expected


@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_comparisons(fn: str, kind: type[np.generic]) -> None:
    a = np.array([0, 1, 2, 2, -1, -2, 5, 5], kind)
    b = np.array([0, 2, 1, 2, -2, -1, 5, 6], kind)
    expected = evaluate_expr(apply(fn, Arg(0), Arg(1)), [a, b])
    np.testing.assert_array_equal(run(apply(fn, Arg(0), Arg(1)), a, b, output=DType.BOOL), expected)


@pytest.mark.parametrize("fn", ["logical_and", "logical_or"])
def test_logic(fn: str) -> None:
    a, b = np.array([0, 0, 1, 1] * 2, bool), np.array([0, 1, 0, 1] * 2, bool)
    expected = evaluate_expr(apply(fn, Arg(0), Arg(1)), [a, b])
    np.testing.assert_array_equal(run(apply(fn, Arg(0), Arg(1)), a, b, output=DType.BOOL), expected)


def test_select_and_conversions() -> None:
    builder = GraphBuilder()
    shape = (1, 2, 2, 5)
    a, y = builder.value(shape, DType.INT32), builder.value(shape, DType.FLOAT32)
    expr = Apply("select", (Apply("to_bool", (Arg(0),)), Apply("to_float32", (Arg(0),)), Literal(0.5)))
    builder.node(Elementwise(), [], y, expr, [a])
    check_node(builder, {a: np.arange(20).reshape(shape) - 9})


def test_equal_subtrees_are_computed_once() -> None:
    k = Kernel("k")
    x = k.buffer("x", f32x4, 1)[0]

    def twice(n: int) -> Expr:
        return Arg(0) if n == 0 else apply("add", apply("exp", twice(n - 1)), apply("exp", twice(n - 1)))

    evaluate(k, twice(6), [x])
    assert str(k).count("exp") == 6


@pytest.mark.parametrize("t", [f32, f32x2, f32x4])
def test_any_number_of_lanes(t: Type) -> None:
    for fn, arity in FUNCTIONS.items():
        if fn.startswith(("logical", "select", "shift", "bit_", "bits_to_float32", "fixed_mul", "root", "lookup")):
            continue  # of other types
        k = Kernel("k")
        x = k.buffer("x", t, 2)
        assert evaluate(k, Apply(fn, (Arg(0), Arg(1))[:arity]), [x[0], x[1]]).type.lanes == t.lanes


@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("fn", ["shift_left", "shift_right", "bit_and", "bit_xor", "bits_to_float32", "root_shift"])
def test_any_number_of_lanes_of_integers(fn: str, lanes: int) -> None:
    k = Kernel("k")
    x = k.buffer("x", vec(i32, lanes), 2)
    made = evaluate(k, Apply(fn, (Arg(0), Arg(1))[: FUNCTIONS[fn]]), [x[0], x[1]])
    assert made.type == vec(f32 if fn == "bits_to_float32" else i32, lanes)


def test_small_whole_numbers_become_floats_without_a_conversion() -> None:
    x = np.concatenate([np.arange(-250, 250), [2**21 - 1, 1 - 2**21, 2**20, -(2**20), 65025, -65025] * 2]).astype(
        np.int32
    )
    result = run(apply("to_float32", apply("small", Arg(0))), x)
    np.testing.assert_array_equal(result, x.astype(np.float32))


@pytest.mark.parametrize("kind", [i8, u8])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_table_of_bytes(lanes: int, kind: Type) -> None:
    k = Kernel("k")
    x, table = k.buffer("x", vec(i32, lanes), 2), k.buffer("table", kind, 256, access="read")
    made = evaluate(k, Apply("lookup", (Arg(0), Arg(1))), [x[0], table])
    assert made.type == vec(i32, lanes)
    with pytest.raises(IndexError, match="table"):
        evaluate(k, Apply("lookup", (Arg(0), Arg(1))), [x[0], x[1]])
    with pytest.raises(IndexError, match="value"):
        evaluate(k, Arg(1), [x[0], table])


@pytest.mark.parametrize("known", [True, False])
def test_fixed_point_products(known: bool) -> None:
    """With multipliers and shifts that are literals, and with those that are operands, against 64-bit arithmetic."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.integers(-(2**24), 2**24, 200), [0, 1, -1, 2, -2, 3, -3, 2**23, -(2**23), 5, -5, 7, 9, 11]])
    x = np.resize(x, 512).astype(np.int32)
    for multiplier, shift in ((2**30, 0), (2**30, -1), (2**31 - 1, 3), (1518500250, -7), (1073741825, -31), (2**30, 5)):
        if known:
            numbers: list[Expr] = [Literal(multiplier, DType.INT32), Literal(shift, DType.INT32)]
            arrays = [x]
        else:
            numbers, arrays = [Arg(1), Arg(2)], [x, np.full_like(x, multiplier), np.full_like(x, shift)]
        expr = apply("fixed_mul", Arg(0), *numbers)
        wide = (x.astype(np.int64) << max(shift, 0)).astype(np.int32).astype(object) * multiplier
        high = [(p + 2**30) // 2**31 if p >= 0 else -((-p + 2**30 - 1) // 2**31) for p in wide]
        right = max(-shift, 0)
        want = [(abs(h) + (1 << right >> 1) >> right) * (1 if h >= 0 else -1) for h in high]
        np.testing.assert_array_equal(evaluate_expr(expr, arrays), want)
        np.testing.assert_array_equal(run(expr, *arrays, output=DType.INT32), want)


@pytest.mark.parametrize("known", [True, False])
def test_products_that_are_rounded_once(known: bool) -> None:
    rng = np.random.default_rng(0)
    ends = [0, 1, -1, 2, -2, 2**31 - 1, -(2**31) + 1, 1 << 15, -(1 << 15), 3 << 15]
    x = np.resize([*ends, *rng.integers(-(2**31) + 1, 2**31, 120), *rng.integers(-999, 999, 120)], 256).astype(np.int32)
    for multiplier, shift in (
        (2**30, 0),
        (1518500250, -7),
        (1073741825, -1),
        (2**31 - 1, -2),
        (32767 << 16, -31),
        (5, 0),
    ):
        given = [Literal(multiplier, DType.INT32), Literal(shift, DType.INT32)] if known else [Arg(1), Arg(2)]
        arrays = [x] if known else [x, np.full_like(x, multiplier), np.full_like(x, shift)]
        expr = apply("fixed_mul_once", Arg(0), *given)
        want = [(int(v) * multiplier + (1 << (30 - shift))) >> (31 - shift) for v in x]
        np.testing.assert_array_equal(evaluate_expr(expr, arrays), want)
        np.testing.assert_array_equal(run(expr, *arrays, output=DType.INT32), want)


def test_one_over_roots() -> None:
    rng = np.random.default_rng(0)
    near = np.array([-1, 0, 1, 2, 3, 4, (1 << 29) - 1, 1 << 29, (1 << 31) - 1])
    x = np.resize(np.concatenate([near, 2.0 ** rng.uniform(0, 31, 200)]).astype(np.int64), 256).astype(np.int32)
    found = []
    for fn in ("root_multiplier", "root_shift"):
        want = evaluate_expr(apply(fn, Arg(0)), [x])
        np.testing.assert_array_equal(run(apply(fn, Arg(0)), x, output=DType.INT32), want)
        found.append(want.astype(np.float64))
    np.testing.assert_allclose(found[0] * 2.0 ** (-31 - found[1]), 1 / np.sqrt(np.maximum(x, 1)), rtol=2e-6)


def test_shifts_round_down() -> None:
    x = np.arange(-256, 256).astype(np.int32)
    np.testing.assert_array_equal(
        run(apply("shift_right", Arg(0), Literal(3, DType.INT32)), x, output=DType.INT32), x >> 3
    )


@pytest.mark.parametrize("fn", ["floor_div", "floor_mod"])
def test_whole_numbers_are_divided_as_the_cpu_does(fn: str) -> None:
    """Every combination of signs, exact and not."""
    a, b = (x.ravel().astype(np.int32) for x in np.meshgrid(np.arange(-8, 8), [-7, -3, -2, -1, 1, 2, 3, 7]))
    want = {"floor_div": a // b, "floor_mod": a % b}[fn].astype(np.int32)
    np.testing.assert_array_equal(run(apply(fn, Arg(0), Arg(1)), a, b, output=DType.INT32), want)
    np.testing.assert_array_equal(evaluate_expr(apply(fn, Arg(0), Arg(1)), [a, b]), want)


@pytest.mark.parametrize("fn", ["floor_div", "floor_mod"])
def test_floats_are_divided_as_the_cpu_does(fn: str) -> None:
    """Numbers far smaller than the divisor, products that are whole numbers but for their rounding, and any others."""
    rng, n = np.random.default_rng(0), 4096
    b = (rng.integers(1, 30, n) / 10 * rng.choice([-1, 1], n)).astype(np.float32)
    products = (b * rng.integers(-5000, 5000, n)).astype(np.float32)
    for a in (np.float32(6e-8) * rng.choice([-1, 1], n), products, rng.integers(-100, 100, n) / 10):
        a = a.astype(np.float32)
        want = {"floor_div": np.floor_divide(a, b), "floor_mod": np.mod(a, b)}[fn]
        np.testing.assert_allclose(run(apply(fn, Arg(0), Arg(1)), a, b), want, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize(("fn", "reach", "allowed"), [("sigmoid", 100, 1e-6), ("tanh", 60, 3e-6), ("erf", 12, 1e-6)])
def test_functions_whose_results_float16_rounds(fn: str, reach: float, allowed: float) -> None:
    """Far below the 5e-4 of float16's rounding; relative for small arguments of tanh; special values stay."""
    x = np.linspace(-reach, reach, 4096, dtype=np.float32)
    expected, found = evaluate_expr(apply(fn, Arg(0)), [x.astype(np.float64)]), rough(fn, x)
    assert np.abs(found - expected).max() < allowed
    if fn == "tanh":
        small = np.geomspace(1e-6, 0.1, 64, dtype=np.float32)
        np.testing.assert_allclose(rough(fn, small), np.tanh(small.astype(np.float64)), rtol=5e-5)
    np.testing.assert_allclose(rough(fn, SPECIAL), run(apply(fn, Arg(0)), SPECIAL), atol=allowed)


def rough(fn: str, x: np.ndarray) -> np.ndarray:
    """As a device computes it with float16 in memory, here between float32."""
    builder = GraphBuilder()
    shape = (1, 1, x.size // 8, 8)
    a = builder.value(shape, DType.FLOAT32)
    builder.node(Elementwise(), [], builder.value(shape, DType.FLOAT32), apply(fn, Arg(0)), [a])
    graph = builder.graph([a], [builder.nodes[0].output])
    return run_node(graph, lay_out(graph), {a: x.reshape(shape)}, half=True).ravel()


@pytest.mark.parametrize(("lowest", "highest", "dtype"), [(-128, 127, np.int8), (0, 255, np.uint8)])
@pytest.mark.parametrize("zero", [-128, -5, 0, 100, 131])
def test_limits_that_storing_sets_as_well(lowest: int, highest: int, dtype: type[np.generic], zero: int) -> None:
    """Without them bytes come out the same; narrower ones stay, and those of numbers that might overflow."""
    shift = Literal(zero, DType.INT32)
    x = np.random.default_rng(0).uniform(-3e5, 3e5, 1000).astype(np.float32)
    x[:6] = [0.5, 1.5, 2.5, -0.5, -1.5, 127.5]
    numbers = (x * 7).astype(np.int32)

    def stored(expr: Expr, values: np.ndarray) -> np.ndarray:
        return np.clip(evaluate_expr(expr, [values]), lowest, highest).astype(dtype)

    def limited(inner: Expr, low: int, high: int, kind: DType) -> Expr:
        return apply("min", apply("max", inner, Literal(low, kind)), Literal(high, kind))

    low, high = lowest - zero, highest - zero
    small = apply("small", Arg(0))
    rounded = apply("add", apply("nearest", limited(small, low, high, DType.FLOAT32)), shift)
    assert unlimited(rounded, lowest, highest) == apply("add", apply("nearest", small), shift)
    assert np.array_equal(stored(rounded, x), stored(unlimited(rounded, lowest, highest), x))
    halved = apply("shift_right", Arg(0), Literal(1, DType.INT32))
    moved = apply("add", limited(halved, low, high, DType.INT32), shift)
    assert unlimited(moved, lowest, highest) == apply("add", halved, shift)
    assert np.array_equal(stored(moved, numbers), stored(unlimited(moved, lowest, highest), numbers))
    kept_within = limited(apply("round", small), low, high, DType.FLOAT32)
    whole = apply("nearest", apply("small", apply("add", kept_within, float(zero))))
    assert unlimited(whole, lowest, highest) == apply("add", apply("nearest", small), shift)
    assert np.array_equal(stored(whole, x), stored(unlimited(whole, lowest, highest), x))
    for kept in (
        apply(
            "nearest", apply("small", apply("add", limited(apply("round", small), low, high - 1, DType.FLOAT32), zero))
        ),
        apply("nearest", apply("small", apply("add", limited(apply("round", Arg(0)), low, high, DType.FLOAT32), zero))),
        apply("add", limited(halved, low + 1, high, DType.INT32), shift),
        apply("add", limited(Arg(0), low, high, DType.INT32), shift),
        apply("add", apply("nearest", limited(Arg(0), low, high, DType.FLOAT32)), shift),
    ):
        assert unlimited(kept, lowest, highest) is kept


def test_whole_numbers_behind_a_rounding() -> None:
    """Their bits are read at once, with what is added to them; the numbers are those that NumPy has."""
    x = np.concatenate([np.arange(-150, 150) + 0.5, np.random.default_rng(0).uniform(-1e9, 1e9, 212)]).astype(
        np.float32
    )
    kept = apply("min", apply("max", apply("round", Arg(0)), -100.0), 120.0)
    for quanta in (kept, apply("add", kept, -28.0)):
        expr = apply("nearest", apply("small", quanta))
        np.testing.assert_array_equal(run(expr, x, output=DType.INT32), evaluate_expr(expr, [x]))
    few = x[:296] / 3
    np.testing.assert_array_equal(run(apply("round", apply("small", Arg(0))), few), np.rint(few))


def test_halves_away_from_zero() -> None:
    """What pools of the official runtime do; -0, infinities and NaN stay what they are."""
    x = np.concatenate([np.arange(-150, 150) + 0.5, [0.49999997, -0.49999997, 8388609, -3e38]]).astype(np.float32)
    x = np.concatenate([x, SPECIAL, np.random.default_rng(0).uniform(-9, 9, 200).astype(np.float32)])
    away = apply("mul", apply("sign", Arg(0)), apply("floor", apply("add", apply("abs", Arg(0)), 0.5)))
    found, expected = run(away, x), evaluate_expr(away, [x])
    np.testing.assert_array_equal(found, expected)
    assert found[0] == -150 and found[299] == 150


def test_limits_that_storing_has_anyway_are_left_out_behind_a_zero_point_of_channels() -> None:
    added = apply("add", apply("nearest", apply("small", Arg(0))), Arg(1))

    def kept(low: int, high: int) -> Expr:
        return apply("min", apply("max", added, whole(low)), whole(high))

    assert unlimited(kept(-128, 127), -128, 127) == added
    for low, high in ((-128, 100), (0, 127), (0, 255)):
        assert unlimited(kept(low, high), -128, 127) == kept(low, high)
    other = apply("min", apply("max", apply("add", apply("to_int32", Arg(0)), Arg(1)), whole(-128)), whole(127))
    assert unlimited(other, -128, 127) == other  # which might wrap
