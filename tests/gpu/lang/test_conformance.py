"""The language's conformance suite: every operation x kind x lanes with special values, on every runner."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.lang import Kernel, Type, boolean, f16, f32, f32x4, i32, trace, u32, u32x4, vec
from litegpu.gpu.lang.ops import FLOAT, NUMPY, OPS

INF, NAN = math.inf, math.nan
SMALLEST_NORMAL = {"f32": 2.0**-126, "f16": 2.0**-14}
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.1, 7.25, -88.0, 100.0, 6e4, INF, -INF, NAN, 3.0, -0.01]
WIDE = [1e-37, -1e-30, 3.4e38, -1e20, 8388609.0, 1e-5, 2147483520.0, 87.5, -100.0, 1e6, 20.0, 2147483648.0, -3e9]
SIGNED = [0, 1, -1, 2, -2, 7, -7, 100, 31, 32, 33, 2**31 - 1, -(2**31), 65537, -65537, 123456789]
UNSIGNED = [0, 1, 2, 3, 7, 31, 32, 33, 100, 2**31 - 1, 2**31, 2**32 - 1, 65536, 65537, 123456789, 3000000000]


@dataclass(frozen=True)
class Case:
    """`expected` takes float64 (or exact integer, or bool) arrays; `ulp` is the error allowed in the kind's ulps."""

    op: str
    kinds: str
    expected: Callable[..., Any]
    ulp: float = 0.0
    domain: Callable[..., Any] | None = None  # where the result is specified


def not_nan(*args: np.ndarray) -> np.ndarray:
    return ~np.logical_or.reduce([np.isnan(a) for a in args])


def c_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.trunc(a / np.where(b == 0, 1, b)).astype(np.int64)


CASES = [
    Case("add", "f32 f16 i32 u32", lambda a, b: a + b, 0.5),
    Case("sub", "f32 f16 i32 u32", lambda a, b: a - b, 0.5),
    Case("mul", "f32 f16 i32 u32", lambda a, b: a * b, 0.5),
    # WGSL promises nothing for other divisors: drivers multiply by the reciprocal, which is then subnormal or infinite
    Case("div", "f32", lambda a, b: a / b, 2.5, domain=lambda a, b: ~(abs(b) > 2.0**126)),
    Case(
        "div",
        "f16",
        lambda a, b: a / b,
        2.5,
        domain=lambda a, b: ~(abs(b) > 2.0**14) & ((b == 0) | ~(abs(b) < 2.0**-14)),
    ),
    Case("div", "u32", lambda a, b: a // np.where(b == 0, 1, b), domain=lambda a, b: b != 0),
    Case("mod", "u32", lambda a, b: a % np.where(b == 0, 1, b), domain=lambda a, b: b != 0),
    Case("idiv", "i32", c_divide, domain=lambda a, b: (b != 0) & ~((a == -(2**31)) & (b == -1))),
    Case(
        "irem",
        "i32",
        lambda a, b: a - b * c_divide(a, b),
        domain=lambda a, b: (b != 0) & ~((a == -(2**31)) & (b == -1)),
    ),
    Case("min", "f32 f16 i32 u32", lambda a, b: np.where(b < a, b, a)),
    Case("max", "f32 f16 i32 u32", lambda a, b: np.where(a < b, b, a)),
    Case("and", "i32 u32 bool", lambda a, b: a & b),
    Case("or", "i32 u32 bool", lambda a, b: a | b),
    Case("xor", "i32 u32 bool", lambda a, b: a ^ b),
    Case("shl", "i32 u32", lambda a, b: a << (b % 32)),
    Case("shr", "i32 u32", lambda a, b: a >> (b % 32)),
    Case("lt", "f32 f16 i32 u32", lambda a, b: a < b),
    Case("le", "f32 f16 i32 u32", lambda a, b: a <= b),
    Case("gt", "f32 f16 i32 u32", lambda a, b: a > b),
    Case("ge", "f32 f16 i32 u32", lambda a, b: a >= b),
    Case("eq", "f32 f16 i32 u32 bool", lambda a, b: a == b),
    Case("ne", "i32 u32 bool", lambda a, b: a != b),
    Case("ne", "f32 f16", lambda a, b: a != b, domain=not_nan),
    Case("neg", "f32 f16 i32", lambda x: -x),
    Case("not", "i32 u32", lambda x: ~x),
    Case("not", "bool", lambda x: ~x),
    Case("abs", "f32 f16 i32", lambda x: abs(x)),
    Case("sign", "f32 f16 i32", lambda x: np.where(x > 0, 1, np.where(x < 0, -1, x))),
    Case("floor", "f32 f16", np.floor),
    Case("ceil", "f32 f16", np.ceil),
    Case("round", "f32 f16", np.rint),
    Case("trunc", "f32 f16", np.trunc),
    Case("sqrt", "f32 f16", np.sqrt, 3),
    Case("rsqrt", "f32 f16", lambda x: 1 / np.sqrt(x), 3, domain=lambda x: x != 0),
    Case("exp", "f32 f16", np.exp, 3),
    Case(
        "rough_exp2",
        "f32",
        np.exp2,
        600,
        domain=lambda x: ~(abs(x) < 1e-30) & ~((x > 126) & (x < 129)) & ~((x < -125) & (x > -151)),
    ),
    Case(
        "rough_reciprocal",
        "f32",
        lambda x: 1 / x,
        16,
        domain=lambda x: ~((abs(x) < 1.2e-38) | ((abs(x) > 1e37) & (abs(x) < 1e39))),
    ),
    Case("log", "f32 f16", np.log, 2),
    Case("sin", "f32 f16", np.sin, 4),
    Case("cos", "f32 f16", np.cos, 4),
    Case("tanh", "f32 f16", np.tanh, 3),
    Case("pow", "f32 f16", np.power, 4),
    Case("is_nan", "f32 f16", np.isnan),
    Case(
        "to_i32_saturating",
        "f32",
        lambda x: np.clip(np.trunc(np.nan_to_num(x, nan=2**31)), -(2**31), 2**31 - 1).astype(np.int64),
    ),
    Case(
        "nearest",
        "f32",
        lambda x: np.rint(np.where(abs(x) < 2**31, x, 0)).astype(np.int64),
        domain=lambda x: abs(x) < 2**31,
    ),
    Case(
        "nearest_small",
        "f32",
        lambda x: np.rint(np.where(abs(x) < 2**21, x, 0)).astype(np.int64),
        domain=lambda x: abs(x) < 2**21,
    ),
    Case("high_product", "i32", lambda a, b: (a * b + 2**30) >> 31),
    Case("round_small", "f32", np.rint, domain=lambda x: (abs(x) < 2**21) & (np.rint(x) != 0)),
]


def data(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """Special values, then random ones."""
    rng = np.random.default_rng(seed)
    if kind == "bool":
        return np.resize([True, False, False], count)
    known: dict[str, list[Any]] = {"f32": FLOATS + WIDE, "f16": FLOATS, "i32": SIGNED, "u32": UNSIGNED}
    special = known[kind]
    if kind in FLOAT:
        values = np.concatenate([special, rng.standard_normal(count) * np.exp(rng.uniform(-5, 4, count))])
    else:
        low, high = (0, 2**32) if kind == "u32" else (-(2**31), 2**31)
        values = np.concatenate([np.array(special, np.int64), rng.integers(low, high, count)])
    with np.errstate(all="ignore"):
        return values[:count].astype(NUMPY[kind])


def pairs(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Every special value against every other, then random pairs."""
    few = data(kind, {"f32": len(FLOATS + WIDE), "f16": len(FLOATS), "bool": 2}.get(kind, 16))
    a, b = (np.array(v, NUMPY[kind]) for v in zip(*itertools.product(few, few), strict=True))
    rest = count - len(a)
    return np.concatenate([a, data(kind, rest, 1)]), np.concatenate([b, data(kind, rest, 2)])


def assert_within(result: np.ndarray, expected: np.ndarray, kind: str, ulp: float, where: Any = None) -> None:
    """Same NaN and infinities, and every number within `ulp`; 0 means the same, the sign of zero included."""
    dtype = NUMPY[kind]
    if kind not in FLOAT:
        wanted = expected if kind == "bool" else np.asarray(expected, np.int64) & 0xFFFFFFFF
        got = result if kind == "bool" else result.astype(np.int64) & 0xFFFFFFFF
        bad = got != wanted
    else:
        with np.errstate(all="ignore"):
            wanted, got = np.asarray(expected).astype(dtype), result
            error = abs(got.astype(np.float64) - expected)
            allowed = ulp * np.spacing(abs(wanted)).astype(np.float64) + (SMALLEST_NORMAL[kind] if ulp else 0)
            bad = ~np.where(np.isfinite(wanted), error <= allowed, (got == wanted) | (np.isnan(got) & np.isnan(wanted)))
            if not ulp:
                bad |= (np.signbit(got) != np.signbit(wanted)) & (wanted == 0)
    if where is not None:
        bad &= where
    assert not bad.any(), [(r, e) for r, e in zip(result[bad][:5], np.asarray(expected)[bad][:5], strict=True)]


def elementwise(kernel: Kernel, *, op: str, kind: str, lanes: int, arity: int, count: int) -> None:
    """y[i] = op(a[i], ...), bools kept as u32."""
    storage = vec(u32 if kind == "bool" else Type(kind), lanes)
    result = OPS[op].result_type(Type(kind, lanes))
    inputs = [kernel.buffer("ab"[j], storage, count, access="read") for j in range(arity)]
    y = kernel.buffer("y", vec(u32 if result.kind == "bool" else result.scalar, result.lanes), count)
    i = kernel.group_id() * kernel.workgroup[0] + kernel.local_id()
    with kernel.If(i < count):
        args = [b[i] != 0 if kind == "bool" else b[i] for b in inputs]
        value = kernel.call(op, *args)
        y[i] = kernel.convert(value, y.type) if result.kind == "bool" else value


def need(runner: Any, kind: str) -> None:
    if kind == "f16" and not runner.features.float16:
        pytest.skip("the device has no float16")


@pytest.mark.parametrize(
    ("case", "kind", "lanes"),
    [
        pytest.param(case, kind, lanes, id=f"{case.op}-{kind}x{lanes}")
        for case in CASES
        for kind in case.kinds.split()
        for lanes in ((1, 4) if kind == "f32" else (1,) if kind == "f16" else (1, 2))
    ],
)
def test_operation(runner: Any, case: Case, kind: str, lanes: int) -> None:
    need(runner, kind)
    arity = OPS[case.op].arity
    rows = 2000 // lanes
    inputs = [data(kind, rows * lanes)] if arity == 1 else list(pairs(kind, rows * lanes))
    result_kind = OPS[case.op].result_type(Type(kind)).kind
    kernel = trace(
        elementwise,
        f"test_{case.op}",
        (64, 1, 1),
        (-(-rows // 64), 1, 1),
        op=case.op,
        kind=kind,
        lanes=lanes,
        arity=arity,
        count=rows,
    )
    y = np.zeros(rows * lanes, np.uint32 if result_kind == "bool" else NUMPY[result_kind])
    stored = [a.astype(np.uint32) if kind == "bool" else a for a in inputs]
    runner.run(kernel, {**dict(zip("ab", stored, strict=False)), "y": y})
    exact = [a.astype(np.float64) if kind in FLOAT else a if kind == "bool" else a.astype(np.int64) for a in inputs]
    with np.errstate(all="ignore"):
        expected = case.expected(*exact)
        where = case.domain(*exact) if case.domain else None
    assert_within(y != 0 if result_kind == "bool" else y, expected, result_kind, case.ulp, where)


@pytest.mark.parametrize("lanes", [1, 4])
def test_dot4(runner: Any, lanes: int) -> None:
    """Of four signed bytes, and added with wrapping."""
    rows = 800 // lanes
    inputs = dict(zip("ab", pairs("i32", rows * lanes), strict=True))

    def kernel(k: Kernel) -> None:
        a, b = (k.buffer(name, vec(Type("i32"), lanes), rows, access="read") for name in "ab")
        y = k.buffer("y", vec(Type("i32"), lanes), rows)
        i = k.group_id() * 64 + k.local_id()
        with k.If(i < rows):
            y[i] = k.dot4(a[i], b[i], a[i])

    y = np.zeros(rows * lanes, np.int32)
    runner.run(trace(kernel, "test_dot4", (64, 1, 1), (-(-rows // 64), 1, 1)), {**inputs, "y": y})
    a, b = (inputs[name].view(np.int8).reshape(-1, 4).astype(np.int64) for name in "ab")
    np.testing.assert_array_equal(y, (inputs["a"] + (a * b).sum(1)).astype(np.int32))


def test_every_operation_is_tested() -> None:
    by_other_tests = {"fma", "dot", "dot4", "select", "any", "all"}
    assert {c.op for c in CASES} | by_other_tests == set(OPS)


def run_simple(
    runner: Any, body: Callable[..., Any], inputs: dict[str, tuple[Type, np.ndarray]], out: Type, count: int
) -> np.ndarray:
    """body(kernel, *input memories, i) gives y[i]."""

    def fn(kernel: Kernel) -> None:
        memories = [
            kernel.buffer(name, type, array.size // type.lanes, access="read") for name, (type, array) in inputs.items()
        ]
        y = kernel.buffer("y", out, count)
        i = kernel.group_id() * 64 + kernel.local_id()
        with kernel.If(i < count):
            y[i] = body(kernel, *(m[i] for m in memories))

    kernel = trace(fn, "simple", (64, 1, 1), (-(-count // 64), 1, 1))
    y = np.zeros(count * out.lanes, NUMPY[out.kind])
    runner.run(kernel, {**{name: array for name, (_, array) in inputs.items()}, "y": y})
    return y


@pytest.mark.parametrize("lanes", [1, 4])
def test_fma(runner: Any, lanes: int) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(400).astype(np.float32) for _ in range(3))
    t = vec(f32, lanes)
    y = run_simple(runner, lambda k, a, b, c: k.fma(a, b, c), {"a": (t, a), "b": (t, b), "c": (t, c)}, t, 400 // lanes)
    exact = a.astype(np.float64) * b + c
    assert np.all(abs(y - exact) <= np.spacing(abs(a * b)) + np.spacing(abs(y)))


def test_dot(runner: Any) -> None:
    a, b = (np.random.default_rng(s).standard_normal(400).astype(np.float32) for s in (0, 1))
    y = run_simple(runner, lambda k, a, b: k.dot(a, b), {"a": (f32x4, a), "b": (f32x4, b)}, f32, 100)
    exact = (a.astype(np.float64) * b).reshape(-1, 4).sum(1)
    assert np.all(abs(y - exact) <= 1e-6 * (1 + abs(exact)))


def test_select_any_all(runner: Any) -> None:
    a, b = data("f32", 400), data("f32", 400, 7)[::-1].copy()
    y = run_simple(
        runner,
        lambda k, a, b: k.select(k.any(a > b), k.select(k.all(a > 0.0), a, b), k.select(a < b, a, 5.0)),
        {"a": (f32x4, a), "b": (f32x4, b)},
        f32x4,
        100,
    )
    m, n = a.reshape(-1, 4), b.reshape(-1, 4)
    with np.errstate(all="ignore"):
        anywhere, everywhere = (m > n).any(1, keepdims=True), (m > 0).all(1, keepdims=True)
        expected = np.where(anywhere, np.where(everywhere, m, n), np.where(m < n, m, np.float32(5)))
    np.testing.assert_array_equal(y.reshape(-1, 4), expected)


@pytest.mark.parametrize("limits", [(0, 255), (-128, 127), (3, 200), (-255, 0), (-2048, 2048), (0.5, 255), (0, 4096)])
@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_whole_numbers_stored_in_halves(runner: Any, kind: str, limits: tuple[float, float]) -> None:
    """Rounded and limited, whatever they were; a NaN stays one."""
    whole = kind == "i32"
    low, high = np.trunc(limits) if whole else limits
    halves = np.arange(-300, 300) + np.float32(0.5)
    a = data(kind, 2000) if whole else np.concatenate([data(kind, 1400), halves.astype(np.float32)])
    a = a[: len(a) // 4 * 4]
    count, stored = len(a) // 4, vec(Type("f16"), 4)

    def fn(k: Kernel) -> None:
        x = k.buffer("x", vec(Type(kind), 4), count, access="read")
        y = k.buffer("y", stored, count, compute=f32x4)
        i = k.group_id() * 64 + k.local_id()
        with k.If(i < count):
            limited = k.min(k.max(x[i], int(low) if whole else float(low)), int(high) if whole else float(high))
            y[i] = f32x4(limited) if whole else k.round_small(limited)

    y = np.zeros(4 * count, np.float16)
    runner.run(trace(fn, "halves", (64, 1, 1), (-(-count // 64), 1, 1)), {"x": a, "y": y})
    numbers = a.astype(np.float64)
    expected = np.where(np.isnan(numbers), numbers, np.rint(np.clip(numbers, low, high)))
    np.testing.assert_array_equal(y, expected.astype(np.float16))


@pytest.mark.parametrize("target", ["f32", "f16", "i32", "u32", "bool"])
@pytest.mark.parametrize("source", ["f32", "f16", "i32", "u32"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_conversion(runner: Any, source: str, target: str, lanes: int) -> None:
    need(runner, "f16" if "f16" in (source, target) else "f32")
    a = data(source, 400)
    if source in FLOAT and target in ("i32", "u32"):
        largest = 6e4 if source == "f16" else 1e9
        a = np.clip(np.nan_to_num(a, posinf=1e3, neginf=-1e3), -largest if target == "i32" else 0, largest)
        a = a.astype(NUMPY[source])
    out = Type("u32" if target == "bool" else target, lanes)

    def body(k: Kernel, v: Any) -> Any:
        converted = Type(target, lanes)(v)
        return converted if target != "bool" else k.convert(converted, out)

    y = run_simple(runner, body, {"a": (Type(source, lanes), a)}, out, 400 // lanes)
    with np.errstate(all="ignore"):
        if target == "bool":
            where = ~np.isnan(a) if source in FLOAT else None
            assert_within(y != 0, a != 0, "bool", 0, where)
        else:
            exact = a.astype(np.float64) if source in FLOAT else a.astype(np.int64)
            expected = exact if target in FLOAT else np.trunc(exact).astype(np.int64)
            assert_within(
                y, expected.astype(np.float64) if target in FLOAT else expected, target, 1 if target in FLOAT else 0
            )


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(["f32", "i32", "u32"], 2)))
def test_bitcast(runner: Any, source: str, target: str) -> None:
    a = data(source, 100)
    a = a[np.isfinite(a)] if source == "f32" else a % NUMPY[source].type(0x70000000)
    y = run_simple(runner, lambda k, v: k.bitcast(v, Type(target)), {"a": (Type(source), a)}, Type(target), len(a))
    normal = abs(a.view(np.float32)) >= 2.0**-126 if target == "f32" else np.ones(len(a), np.bool_)
    np.testing.assert_array_equal(y.view(np.uint32)[normal], a.view(np.uint32)[normal])


CONSTANTS = [
    (f32, v) for v in (INF, -INF, NAN, -0.0, 0.1, 3.4028235e38, 1.1754944e-38, -2.5, 16777217.0, 1e10, 5e-8, 1.0)
] + [(i32, -(2**31)), (i32, 2**31 - 1), (i32, -1), (u32, 2**32 - 1), (u32, 0), (f16, 0.1), (f16, INF), (f16, 65504.0)]


@pytest.mark.parametrize(("type", "value"), CONSTANTS, ids=lambda v: str(v))
def test_constant(runner: Any, type: Type, value: float) -> None:
    """Infinities and NaN, which WGSL has no literals for, in scalars, vectors and arithmetic."""
    need(runner, type.kind)
    four = vec(type, 4)
    zeros = np.zeros(4, NUMPY[type.kind])
    y = run_simple(runner, lambda k, v: k.select(v == v[0], k.const(value, four), v), {"a": (four, zeros)}, four, 1)
    expected = np.full(4, value, NUMPY[type.kind])
    np.testing.assert_array_equal(y, expected)
    if not math.isnan(value):
        np.testing.assert_array_equal(np.signbit(y), np.signbit(expected))


def test_shifts_and_division_of_negative_constants_fold_as_the_target_computes(runner: Any) -> None:
    """Each expression once with constants, folded while tracing, and once with loaded values."""
    a = np.array([-7, 2, -1, 31, 33, -(2**31)], np.int32)

    def body(kernel: Kernel) -> None:
        x = kernel.buffer("x", i32, 6, access="read")
        y = kernel.buffer("y", i32, 16)
        known = [kernel.const(int(v), i32) for v in a]
        for j, (p, q, r, s, t, u) in enumerate((known, [x[n] for n in range(6)])):
            results = [
                kernel.idiv_trunc(p, q), kernel.irem(p, q), p >> q, p << s, r >> s, p >> t, u - q, kernel.abs(p) * u
            ]  # fmt: skip
            for n, v in enumerate(results):
                y[j * 8 + n] = v

    kernel = trace(body, "constants", (1, 1, 1), (1, 1, 1))
    y = np.zeros(16, np.int32)
    runner.run(kernel, {"x": a, "y": y})
    np.testing.assert_array_equal(y[:8], y[8:])
    np.testing.assert_array_equal(y[:8], [-3, -1, -2, -(2**31), -1, -4, 2**31 - 2, -(2**31)])


@pytest.mark.parametrize("native", [True, False], ids=["f16", "packed"])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_float16_storage(runner: Any, lanes: int, native: bool) -> None:
    """Loads and stores convert, on devices with float16 and, for 2 and 4 lanes, on those without."""
    a = np.resize(np.array([0.1, -2.5, 6e-5, 65504, 1e-7, INF, -INF, 0.333, NAN], np.float16), 64)
    storage = vec(f16, lanes)
    count = 64 // lanes
    packed_scalars = lanes == 1 and not native  # may be loaded only

    def body(kernel: Kernel) -> None:
        x = kernel.buffer("x", storage, count, compute=vec(f32, lanes), access="read")
        y = kernel.buffer("y", vec(f32, lanes) if packed_scalars else storage, count, compute=vec(f32, lanes))
        i = kernel.local_id()
        y[i] = x[i] * 0.75

    kernel = trace(body, "half", (count, 1, 1), (1, 1, 1))
    y = np.zeros(64, np.float32 if packed_scalars else np.float16)
    if native:
        need(runner, "f16")
        runner.run(kernel, {"x": a, "y": y})
    elif hasattr(runner, "device"):
        from dataclasses import replace

        runner.run(kernel, {"x": a, "y": y}, replace(runner.features, float16=False))
    else:
        pytest.skip("the interpreter has one way to hold float16")
    np.testing.assert_array_equal(y, (a.astype(np.float32) * np.float32(0.75)).astype(y.dtype))


@pytest.mark.parametrize("compute", ["integer", "f32"])
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_packed_bytes(runner: Any, kind: str, compute: str) -> None:
    """Four 8-bit lanes in a word; stores saturate."""
    storage = Type(kind, 4)
    type = f32x4 if compute == "f32" else vec(i32 if kind == "i8" else u32, 4)
    a = np.arange(256).astype(NUMPY[kind])

    def body(kernel: Kernel) -> None:
        x = kernel.buffer("x", storage, 64, compute=type, access="read")
        y = kernel.buffer("y", storage, 64, compute=type)
        y[kernel.local_id()] = x[kernel.local_id()] * 2 + 1

    y = np.zeros(256, NUMPY[kind])
    runner.run(trace(body, "bytes", (64, 1, 1), (1, 1, 1)), {"x": a, "y": y})
    info = np.iinfo(NUMPY[kind])
    np.testing.assert_array_equal(y, np.clip(a.astype(np.int64) * 2 + 1, info.min, info.max))


@pytest.mark.parametrize("compute", ["integer", "f32"])
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_single_bytes(runner: Any, kind: str, compute: str) -> None:
    """At any place, as a table is looked up."""
    storage = Type(kind)
    type = f32 if compute == "f32" else (i32 if kind == "i8" else u32)
    a = np.random.default_rng(0).permutation(256).astype(np.uint8).view(NUMPY[kind])

    def body(kernel: Kernel) -> None:
        x = kernel.buffer("x", storage, 256, compute=type, access="read")
        y = kernel.buffer("y", type, 64)
        y[kernel.local_id()] = x[kernel.local_id() * 37 % 256] * 2 + 1

    y = np.zeros(64, np.float32 if compute == "f32" else np.int32 if kind == "i8" else np.uint32)
    runner.run(trace(body, "bytes", (64, 1, 1), (1, 1, 1)), {"x": a, "y": y})
    np.testing.assert_array_equal(y, a[np.arange(64) * 37 % 256].astype(y.dtype) * 2 + 1)


def test_control_flow(runner: Any) -> None:
    """Nested loops with run-time bounds, if and else, while, and loops of no and of one round."""

    def body(kernel: Kernel) -> None:
        n = kernel.buffer("n", u32, 64, access="read")
        y = kernel.buffer("y", u32, 64)
        i = kernel.local_id()
        total = kernel.var(0)
        with kernel.loop(n[i], start=2, step=3) as a, kernel.loop(a) as b:
            with kernel.If((a + b) % 2 == 0):
                total.set(total.value + b)
                with kernel.If(b > 4):
                    total.set(total.value * 3)
            with kernel.Else():
                total.set(total.value + 1)
        with kernel.loop(3, start=3):
            total.set(total.value + 1000000)
        with kernel.loop(8, start=7) as only:
            total.set(total.value + only)
        steps = kernel.var(0)
        with kernel.While(lambda: (total.value > 1) & (steps.value < 40)):
            steps.set(steps.value + 1)
            total.set(kernel.select(total.value % 2 == 0, total.value // 2, total.value * 3 + 1))
        y[i] = total.value * 100 + steps.value

    n = np.arange(64, dtype=np.uint32) % 17
    y = np.zeros(64, np.uint32)
    runner.run(trace(body, "flow", (64, 1, 1), (1, 1, 1)), {"n": n, "y": y})
    expected = []
    for bound in n.tolist():
        total = 0
        for a in range(2, bound, 3):
            for b in range(a):
                if (a + b) % 2 == 0:
                    total = (total + b) * (3 if b > 4 else 1)
                else:
                    total += 1
        total, steps = total + 7, 0
        while total > 1 and steps < 40:
            steps, total = steps + 1, (total // 2 if total % 2 == 0 else total * 3 + 1) % 2**32
        expected.append((total * 100 + steps) % 2**32)
    np.testing.assert_array_equal(y, expected)


def test_loads_and_reads_do_not_move_past_writes(runner: Any) -> None:
    def body(kernel: Kernel) -> None:
        y = kernel.buffer("y", u32, 64)
        i = kernel.local_id()
        before = y[i]
        y[i] = before + 1
        local = kernel.var(before)
        old = local.value
        local.set(old * 2)
        again = y[i]
        y[i] = again * 1000 + before * 100 + old + local.value

    y = np.arange(64, dtype=np.uint32)
    runner.run(trace(body, "order", (64, 1, 1), (1, 1, 1)), {"y": y})
    x = np.arange(64, dtype=np.uint32)
    np.testing.assert_array_equal(y, (x + 1) * 1000 + x * 100 + x + 2 * x)


def test_local_arrays_and_vectors(runner: Any) -> None:
    def body(kernel: Kernel) -> None:
        x = kernel.buffer("x", f32x4, 8, access="read")
        y = kernel.buffer("y", f32x4, 8)
        i = kernel.local_id()
        lanes = kernel.array(4, kernel.const(-1.0, f32))
        with kernel.loop(2) as j:
            fresh = kernel.array(2, kernel.const(0.0, f32))  # starts anew in every round
            fresh[1] = fresh[1] + x[i][3] + f32(j)
            zero = kernel.var(0.0)  # as does this
            zero.set(zero.value + fresh[1])
            lanes[0] = lanes[0] + zero.value
        for lane in range(1, 4):
            lanes[lane] = x[i][3 - lane]
        y[i] = kernel.vec(*(lanes[n] for n in range(4)))

    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    y = np.zeros((8, 4), np.float32)
    runner.run(trace(body, "arrays", (8, 1, 1), (1, 1, 1)), {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.stack([-1 + x[:, 3] * 2 + 1, x[:, 2], x[:, 1], x[:, 0]], axis=1))


def test_shared_memory_and_barriers(runner: Any) -> None:
    """A tree reduction per workgroup, through shared memory and, for the last step, through the buffer itself."""

    def body(kernel: Kernel) -> None:
        y = kernel.buffer("y", f32, 256)
        shared = kernel.shared(f32, 64)
        flags = kernel.shared(boolean, 64)
        t = kernel.local_id()
        i = kernel.group_id() * 64 + t
        shared[t] = y[i]
        flags[t] = y[i] > 0.0
        kernel.barrier()
        for half in (32, 16, 8, 4, 2, 1):
            with kernel.If(t < half):
                shared[t] = shared[t] + shared[t + half]
            kernel.barrier()
        y[i] = kernel.select(flags[63 - t], shared[0], -shared[0])
        kernel.barrier()
        other = y[kernel.group_id() * 64 + (63 - t)]
        kernel.barrier()
        y[i] = other + 1.0

    x = np.random.default_rng(0).integers(-50, 50, 256).astype(np.float32)
    y = x.copy()
    runner.run(trace(body, "share", (64, 1, 1), (4, 1, 1)), {"y": y})
    rows = x.reshape(4, 64)
    sums = rows.sum(1, keepdims=True)
    np.testing.assert_array_equal(y.reshape(4, 64), np.where(rows > 0, sums, -sums) + 1)


def test_ids_in_three_dimensions(runner: Any) -> None:
    def body(kernel: Kernel) -> None:
        y = kernel.buffer("y", u32x4, 4 * 2 * 3 * 3 * 2 * 2)
        (lx, ly, lz), (gx, gy, gz) = ([f(axis) for axis in range(3)] for f in (kernel.local_id, kernel.group_id))
        local, group = (lz * 2 + ly) * 4 + lx, (gz * 2 + gy) * 3 + gx
        y[group * 24 + local] = kernel.vec(lx * 10 + gx, ly * 10 + gy, lz * 10 + gz, 1)

    y = np.zeros((2, 2, 3, 3, 2, 4, 4), np.uint32)
    runner.run(trace(body, "ids", (4, 2, 3), (3, 2, 2)), {"y": y})
    gz, gy, gx, lz, ly, lx = np.indices(y.shape[:-1])
    np.testing.assert_array_equal(y, np.stack([lx * 10 + gx, ly * 10 + gy, lz * 10 + gz, np.ones_like(gx)], -1))


@pytest.mark.parametrize("groups", [65535, 65536, 70001, 131071])
def test_more_workgroups_than_one_dimension_takes(runner: Any, groups: int) -> None:
    """Every logical workgroup runs once, surplus ones not at all."""

    def body(kernel: Kernel) -> None:
        y = kernel.buffer("y", u32, groups)
        g = kernel.group_id()
        y[g] = y[g] + g * 2 + 1

    kernel = trace(body, "many", (1, 1, 1), (groups, 1, 1))
    assert max(kernel.dispatch) <= 65535 and math.prod(kernel.dispatch) >= groups
    y = np.zeros(groups, np.uint32)
    runner.run(kernel, {"y": y})
    np.testing.assert_array_equal(y, np.arange(groups) * 2 + 1)


def test_subgroups(runner: Any) -> None:
    """Sums over subgroups of whatever size add up to the workgroup's; shuffles stay inside."""
    if not runner.features.subgroups:
        pytest.skip("the device has no subgroups")

    def body(kernel: Kernel) -> None:
        x = kernel.buffer("x", f32, 64, access="read")
        y = kernel.buffer("y", f32x4, 64)
        t = kernel.local_id()
        v = x[t]
        first = f32(kernel.subgroup_lane() == 0)
        shuffled = kernel.subgroup_shuffle_xor(v, 1)
        y[t] = kernel.vec(kernel.subgroup_add(v) * first, kernel.subgroup_max(v), kernel.subgroup_min(v), shuffled)

    x = np.random.default_rng(0).integers(-50, 50, 64).astype(np.float32)
    y = np.zeros((64, 4), np.float32)
    runner.run(trace(body, "subgroups", (64, 1, 1), (1, 1, 1)), {"x": x, "y": y})
    assert y[:, 0].sum() == x.sum()
    assert y[:, 1].max() == x.max() and y[:, 2].min() == x.min()
    assert np.all(y[:, 1] >= x) and np.all(y[:, 2] <= x)
    np.testing.assert_array_equal(y[:, 3], x.reshape(-1, 2)[:, ::-1].ravel())
