"""Tracing: types, scopes, folding, sharing, uniformity; every mistake is a KernelError at the author's line."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu.errors import LiteGpuError
from litegpu.gpu.lang import (
    Kernel,
    KernelError,
    TracedValue,
    Type,
    boolean,
    f16,
    f32,
    f32x2,
    f32x4,
    i8,
    i8x4,
    i32,
    trace,
    u32,
    u32x4,
)


@pytest.fixture
def k() -> Kernel:
    return Kernel("test", (64, 1, 1), (8, 1, 1))


def loaded(k: Kernel, type: Type = u32) -> TracedValue:
    return k.buffer(f"b{len(k.buffers)}", type, 64)[k.local_id()]


def test_operators_need_equal_types(k: Kernel) -> None:
    a, b = loaded(k, f32), loaded(k, u32)
    with pytest.raises(KernelError, match="f32 and u32"):
        a + b
    with pytest.raises(KernelError, match="f32x2 and f32x4"):
        k.min(loaded(k, f32x2), f32x4(a))
    with pytest.raises(KernelError, match=r"1\.5 is not a u32"):
        b + 1.5
    with pytest.raises(KernelError, match="True is not a f32"):
        a + True
    with pytest.raises(KernelError, match="not defined on bool"):
        (a > 0.0) + (a < 1.0)
    with pytest.raises(KernelError, match="not defined on f32"):
        a & a


def test_scalars_and_numbers_take_the_vectors_type(k: Kernel) -> None:
    v = loaded(k, f32x4)
    assert (v * 2).type == f32x4 and (1 - v[0] * v).type == f32x4
    assert (v < 0).type == Type("bool", 4)
    assert k.select(v[0] < 0, v, 0.0).type == f32x4
    assert k.fma(v, 2.0, v[1]).type == f32x4


def test_division_of_integers_is_explicit(k: Kernel) -> None:
    i: Any = i32(loaded(k))
    real: Any = loaded(k, f32)
    for divide in (lambda: i / 2, lambda: i // 2, lambda: i % 2, lambda: loaded(k) / 2, lambda: real // 2.0):
        with pytest.raises(KernelError):
            divide()
    assert k.idiv_trunc(i, 3).type == k.irem(i, 3).type == i32
    with pytest.raises(KernelError, match="by zero"):
        loaded(k) % 0


def test_values_are_neither_true_nor_iterable(k: Kernel) -> None:
    v: Any = loaded(k, f32x4)
    for use in (lambda: bool(v), lambda: list(v), lambda: v if v[0] > 0 else None, lambda: v[4], lambda: v[v[0]]):
        with pytest.raises(KernelError):
            use()
    with pytest.raises(KernelError, match=r"k\.const"):
        f32(3.0)  # type: ignore[type-var]


def test_constants_are_checked(k: Kernel) -> None:
    for value, type in ((-1, u32), (2**32, u32), (2**31, i32), (1e39, f32), (7e4, f16), (1, boolean), ("1", f32)):
        with pytest.raises(KernelError):
            k.const(value, type)  # type: ignore[arg-type]
    assert k.const(0.1, f32).constant == float(np.float32(0.1))
    with pytest.raises(KernelError, match="for storage"):
        k.convert(loaded(k, u32x4), i8x4)


def test_constants_and_identities_fold(k: Kernel) -> None:
    x, f = loaded(k), loaded(k, f32)
    for value in (x * 1, x + 0, 0 + x, x // 1, x | 0, x ^ 0, x << 0, x & x, k.max(x, 0), ~~x):
        assert value is x
    for value in (x % 1, x * 0, x & 0, x - x, k.min(x, 0)):
        assert value.constant == 0
    assert (x >= 0).constant is True and (x < 0).constant is False
    assert (k.const(3, u32) - 5).constant == 2**32 - 2
    assert (k.const(-7, i32) >> 1).constant == -4
    assert k.idiv_trunc(k.const(-7, i32), 2).constant == -3
    assert k.exp(k.const(100.0, f32)).constant == float("inf")
    assert f * 1.0 is f and f - 0.0 is f and f / 1.0 is f
    for kept in (f + 0.0, f * 0.0, f - f):  # not the same for -0.0, infinities and NaN
        assert kept is not f and kept.op != "const"
    assert (x // 8).op == "shr" and (x % 8).op == "and" and (x // 6).op == "div"
    assert (x + -1).op == "add"
    assert k.select(True, x, 3) is x


def test_vectors_fold(k: Kernel) -> None:
    v = loaded(k, f32x4)
    assert k.vec(v[0], v[1], v[2], v[3]) is v
    assert k.splat(v[2], 4)[1] is v[2] and k.vec(v[1], v[0])[0] is v[1]
    assert f32x4(k.const(2.0, f32)).constant == 2.0


def test_equal_values_are_made_once_and_loads_are_not(k: Kernel) -> None:
    m = k.buffer("m", f32, 64)
    i = k.local_id()
    assert i * 3 + 1 is 1 + 3 * i
    assert m[i] is not m[i]
    outer = i * 5
    with k.If(i < 3):
        assert i * 5 is outer
        inner = i * 7
    assert i * 7 is not inner


def test_scopes(k: Kernel) -> None:
    i = k.local_id()
    with k.If(i < 3):
        inner = i * 7
        local = k.var(1.0)
    with pytest.raises(KernelError, match="outside of it"):
        inner + 1
    with pytest.raises(KernelError, match="outside of it"):
        _ = local.value
    with k.loop(i) as j:
        pass
    with pytest.raises(KernelError, match="outside of it"):
        j + 1
    with pytest.raises(KernelError, match="another kernel"):
        Kernel("other").call("add", i, 1)
    with pytest.raises(KernelError, match="directly follow"), k.Else():
        pass


def test_memory_is_checked(k: Kernel) -> None:
    constant = k.buffer("constant", f32, 8, access="read")
    with pytest.raises(KernelError, match="read-only"):
        constant[0] = 1.0
    m = k.buffer("m", Type("f16", 4), 8, compute=f32x4)
    for use in (lambda: m[8], lambda: m[-1], lambda: m[i32(k.local_id())], lambda: m[1.0]):  # type: ignore[index]
        with pytest.raises(KernelError):
            use()
    with pytest.raises(KernelError, match="need f32x4"):
        m[0] = loaded(k, f32x2)
    assert m[0].type == f32x4 and m.nbytes == 64
    array = k.array(3, k.const(0.0, f32))
    for element in (3, -1, k.local_id()):
        with pytest.raises(KernelError):
            array[element]  # type: ignore[index]
    for wrong in (
        lambda: k.buffer("m", f32, 8),
        lambda: k.buffer("n", f32, 0),
        lambda: k.buffer("n", boolean, 8),
        lambda: k.buffer("n", f32, 8, compute=u32),
        lambda: k.buffer("n", f32, 8, access="write"),
        lambda: k.buffer("n m", f32, 8),
        lambda: k.buffer("n", i8, 8),  # single bytes are read
        lambda: k.shared(i8x4, 4),
    ):
        with pytest.raises(KernelError):
            wrong()


def test_grids() -> None:
    assert Kernel("g", grid=(65535, 1, 1)).dispatch == (65535, 1, 1)
    assert Kernel("g", grid=(65536, 1, 1)).dispatch == (32768, 2, 1)
    assert Kernel("g", grid=(200001, 1, 1)).dispatch == (50001, 4, 1)
    for grid in ((65536, 2, 1), (1, 65536, 1), (0, 1, 1), (1, 1), (1.5, 1, 1)):
        with pytest.raises(KernelError):
            Kernel("g", grid=grid)  # type: ignore[arg-type]
    for name in ("1a", "a__b", "a-b", "", "ä"):
        with pytest.raises(KernelError):
            Kernel(name)
    k = Kernel("g", (64, 1, 1), (4, 1, 1))
    assert k.group_id(1).constant == 0 and k.local_id(2).constant == 0 and k.local_id().constant is None


def barrier_under_local_condition(k: Kernel) -> None:
    with k.If(k.local_id() < 3):
        k.barrier()


def barrier_under_loaded_condition(k: Kernel) -> None:
    m = k.buffer("m", u32, 4)
    with k.loop(m[0]):
        k.barrier()


def barrier_after_local_varies_in_a_later_round(k: Kernel) -> None:
    turns = k.var(0)
    with k.loop(4):
        with k.If(turns.value < 2):
            k.barrier()
        turns.set(turns.value + k.local_id())


def barrier_in_else(k: Kernel) -> None:
    with k.If(k.local_id() < 3):
        pass
    with k.Else():
        k.barrier()


def barrier_in_divergent_while(k: Kernel) -> None:
    n = k.var(0)
    with k.While(lambda: n.value < k.local_id()):
        k.barrier()
        n.set(n.value + 1)


def local_set_under_local_condition(k: Kernel) -> None:
    n = k.var(0)
    with k.If(k.local_id() == 0):
        n.set(1)
    with k.If(n.value == 1):
        k.barrier()


DIVERGENT = [
    barrier_under_local_condition,
    barrier_under_loaded_condition,
    barrier_after_local_varies_in_a_later_round,
    barrier_in_else,
    barrier_in_divergent_while,
    local_set_under_local_condition,
]


@pytest.mark.parametrize("fn", DIVERGENT)
def test_barriers_only_in_uniform_control_flow(fn: Callable[[Kernel], None]) -> None:
    lines, first = inspect.getsourcelines(fn)
    number = first + next(i for i, text in enumerate(lines) if "barrier()" in text)
    with pytest.raises(KernelError, match=f"{__file__}:{number}: barrier in control flow"):
        trace(fn, "divergent", (64, 1, 1), (2, 1, 1))


def test_uniform_barriers_are_accepted() -> None:
    def fn(k: Kernel) -> None:
        m = k.buffer("m", u32, 4, access="read")
        n = k.var(m[k.group_id()])
        with k.loop(m[0]), k.If(n.value > 2):
            k.barrier()
            n.set(n.value - 1)
        with k.While(lambda: n.value > 0):
            n.set(n.value - 1)
            k.barrier()
        with k.If(k.local_id() < 2):
            m[0]
        k.barrier()

    trace(fn, "uniform", (64, 1, 1), (2, 1, 1))


def test_errors_name_the_authors_line() -> None:
    def fn(k: Kernel) -> None:
        x = k.buffer("x", f32, 4)
        with k.If(k.local_id() < 4):
            x[0] = x[0] + k.local_id()  # here

    lines, first = inspect.getsourcelines(fn)
    number = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(KernelError, match=f"kernel wrong: {__file__}:{number}: add: the operands are f32 and u32"):
        trace(fn, "wrong", (64, 1, 1), (1, 1, 1))
    assert issubclass(KernelError, LiteGpuError) and issubclass(KernelError, TypeError)


def test_unrolling_too_much_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    k = Kernel("long")
    v = k.var(0.0)
    with caplog.at_level(logging.WARNING):
        for n in range(2100):
            v.set(float(n))
    assert [r.message for r in caplog.records] == ["kernel long has over 2000 statements: unroll less"]


DIGEST = """
from litegpu.gpu.lang import *
def fn(k, scale):
    x = k.buffer("x", f32x4, 64)
    with k.loop(k.local_id()) as j:
        x[j] = k.exp(x[j] * scale) + k.inf()
print(trace(fn, "d", (64, 1, 1), (1, 1, 1), scale={scale}).digest())
"""


def test_digests_are_stable_and_tell_kernels_apart() -> None:
    def digest(scale: float) -> str:
        program = DIGEST.format(scale=scale)
        return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    first = digest(2.0)
    assert first == digest(2.0) and first != digest(3.0) and len(first.strip()) == 64
