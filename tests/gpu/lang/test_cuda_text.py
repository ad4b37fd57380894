"""The CUDA text: parameters, vectors, halves, waiting, names, and that nothing needs a header."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu.lang.runners import nvrtc

from litegpu.gpu.backends.cuda.printer import RESERVED, print_cuda, print_cuda_function
from litegpu.gpu.lang import Features, Kernel, KernelError, Type, f16, f16x2, f16x4, f32, f32x4, i32, trace, u32, vec
from litegpu.gpu.lang.tracing import trace_function
from litegpu.gpu.lang.value import TracedValue
from litegpu.gpu.program import KernelCode

ALL = Features(float16=True, subgroups=True, subgroup_size=32, max_threads=1024, max_shared_bytes=48 << 10)


def text(body: Callable[[Kernel], None], features: Features = ALL, grid: int = 4, threads: int = 64) -> str:
    return print_cuda(trace(body, "printed", (threads, 1, 1), (grid, 1, 1)), features)


def copy(storage: Type, compute: Type | None, **options: Any) -> Callable[[Kernel], None]:
    def body(k: Kernel) -> None:
        x = k.buffer("x", storage, 64, compute=compute, **options)
        y = k.buffer("y", storage, 64, compute=compute)
        y[k.local_id()] = x[k.local_id()] + 1.0

    return body


def test_the_entry_point_has_the_kernels_name_and_a_parameter_per_buffer() -> None:
    printed = text(copy(f32x4, f32x4, access="read"))
    assert (
        'extern "C" __global__ void __launch_bounds__(64) printed(const float4* __restrict__ b0_x, float4* b1_y) {'
        in printed
    )
    assert "#include" not in printed


def test_only_memory_that_nothing_writes_is_restrict_and_cached_read_only() -> None:
    """Buffers of the arena may overlap, as a view and what it looks at do."""
    printed = text(copy(f32x4, f32x4))
    assert "__restrict__" not in printed and "__ldg" not in printed and "const float4*" not in printed
    assert "__ldg(b0_x + threadIdx.x)" in text(copy(f32x4, f32x4, access="read"))


@pytest.mark.parametrize(
    ("lanes", "element"), [(1, "unsigned short"), (2, "unsigned"), (4, "uint2")], ids=["1", "2", "4"]
)
def test_halves_are_loaded_and_converted_together(lanes: int, element: str) -> None:
    printed = text(copy(vec(f16, lanes), vec(f32, lanes), access="read"))
    assert f"(const {element}* __restrict__ b0_x, {element}* b1_y)" in printed
    assert "__ldg(b0_x" in printed and "half_to_float" in printed
    assert printed.count("pack_half2(a.") == {1: 0, 2: 1, 4: 2}[lanes]


def test_half_arithmetic_needs_a_device_that_has_it() -> None:
    body = copy(f16x2, f16x2)
    assert "struct __align__(4) f16x2 { f16 x, y; };" in text(body)
    with pytest.raises(KernelError, match="float16"):
        text(body, Features())


def test_names_of_cpp_and_cuda_are_refused() -> None:
    for name in ("exp", "template", "float"):
        assert name in RESERVED
        with pytest.raises(KernelError, match="reserved in CUDA"):
            print_cuda(trace(copy(f32, f32), name, (4, 1, 1), (1, 1, 1)), ALL)


def test_what_the_device_lacks_is_named() -> None:
    with pytest.raises(KernelError, match="64 threads, 32 allowed"):
        text(copy(f32, f32), Features(max_threads=32))


def test_a_kernel_waits_before_it_first_touches_the_arena_and_after_what_it_can_do_ahead() -> None:
    def body(k: Kernel) -> None:
        weights, x = k.buffer("weights", f32, 64, access="read"), k.buffer("x", f32, 64)
        i = k.local_id()
        w = weights[i]
        with k.If(w > 0.0), k.loop(3) as n:
            x[i] = x[i] + w * f32(n)
        x[i] = x[i] + 1.0

    lines = [line.strip() for line in text(body).splitlines()]
    early = lines.index("launch_dependents();")
    (wait,) = [n for n, line in enumerate(lines) if line == "wait_for_predecessors();"]
    first = next(n for n, line in enumerate(lines) if "b1_x[" in line)
    load = next(n for n, line in enumerate(lines) if "__ldg(b0_weights" in line)
    branch = next(n for n, line in enumerate(lines) if line.startswith("if ("))
    assert load < wait < early < branch < first


def test_every_kernel_that_touches_the_arena_waits_whatever_its_shape() -> None:
    """Also where the first access is in a condition's body, a while's head or an else."""

    def in_else(k: Kernel) -> None:
        y = k.buffer("y", f32, 64)
        with k.If(k.local_id() < 3):
            pass
        with k.Else():
            y[k.local_id()] = 1.0

    def in_head(k: Kernel) -> None:
        y = k.buffer("y", u32, 64)
        with k.While(lambda: y[k.local_id()] > 0):
            y[k.local_id()] = 0

    def folded(k: Kernel) -> None:
        k.buffer("y", u32, 70001)[k.group_id()] = 1

    for printed in (text(in_else), text(in_head), text(folded, grid=70001)):
        body = printed[printed.index('extern "C"') :]
        assert body.count("wait_for_predecessors();") == 1
        assert body.index("wait_for_predecessors();") < body.index("b0_y[")


def test_surplus_workgroups_are_guarded() -> None:
    def body(k: Kernel) -> None:
        k.buffer("y", u32, 100003)[k.group_id()] = k.group_id()

    printed = text(body, grid=100003)
    assert "const unsigned group_x = blockIdx.x + blockIdx.y * 50002u;" in printed
    assert "if (group_x < 100003u) {" in printed
    assert "group_x" not in text(copy(f32, f32))


def test_signed_overflow_is_left_to_unsigned_arithmetic() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", i32, 64)
        i = k.local_id()
        y[i] = y[i] + y[i] * y[i] - (-y[i])

    printed = text(body)
    for op in "+-*":
        assert f"return (int)((unsigned)a {op} (unsigned)b);" in printed


def test_functions_are_defined_once_and_before_others_that_call_them() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32x4, 64)
        h = k.buffer("h", f16x4, 64)
        i = k.local_id()
        y[i] = k.pow(y[i], k.pow(y[i], y[i])) + k.subgroup_add(y[i])
        h[i] = k.pow(h[i], h[i])

    printed = text(body)
    defined = re.findall(r"__forceinline__ \w+ (\w+|operator\S+)\(([^)]*)\)", printed)
    assert len(defined) == len(set(defined))
    assert nvrtc().compile([KernelCode("printed", printed, (64, 1, 1), ())], 90)


@pytest.mark.parametrize("threads", [32, 64, 40, 20])
def test_subgroups_of_any_workgroup_compile(threads: int) -> None:
    """Also where the last warp has fewer threads, and on vectors and halves."""

    def body(k: Kernel) -> None:
        y, h = k.buffer("y", f32x4, 64), k.buffer("h", f16, 64)
        i = k.local_id()
        y[i] = k.subgroup_add(y[i]) + k.subgroup_shuffle_down(y[i], 3) + k.subgroup_max(y[i])
        h[i] = k.subgroup_min(h[i]) + k.subgroup_shuffle_xor(h[i], 1)

    printed = text(body, threads=threads)
    rest = f" < {threads - threads % 32}u ? 32u : {threads % 32}u;"
    assert ("subgroup_threads = 32u;" not in printed) == (rest in printed) == bool(threads % 32)
    assert nvrtc().compile([KernelCode("printed", printed, (threads, 1, 1), ())], 90)


def test_the_smallest_integer_is_no_negation() -> None:
    """2147483648 is no int in C++."""

    def body(k: Kernel) -> None:
        y = k.buffer("y", i32, 4)
        for i, number in enumerate((-(2**31), -(2**31) + 1, -(2**30), -1)):
            y[i] = k.const(number, i32)

    stored = re.findall(r"b0_y\[\d+u?\] = (.*);", text(body))
    assert stored == ["(-2147483647 - 1)", "(-2147483647)", "(-1073741824)", "(-1)"]


def test_zeros_keep_their_sign_but_where_a_sum_of_products_is_added_to() -> None:
    """max(-0, 0) of a kernel is -0, as on the CPU; a sum of products is no -0, and the quicker one gives the same."""

    def rectify(k: Kernel) -> None:
        x = k.buffer("x", f32x4, 64)
        x[k.local_id()] = k.max(x[k.local_id()] * 2.0, 0.0)

    def moved(k: Kernel) -> None:
        x = k.buffer("x", f32x4, 64)
        x[k.local_id()] = k.max(x[k.local_id()] - 1.0, 0.0)

    def finish(k: Kernel, total: TracedValue) -> TracedValue:
        return k.max(k.buffer("bias", f32x4, 1)[0] + (total + 2.0), 0.0)

    def others(k: Kernel, total: TracedValue) -> TracedValue:
        return k.max(-total, 0.0) + k.max(total + 1.0, 1.0)

    def function(body: Callable[[Kernel, TracedValue], TracedValue]) -> str:
        return "".join(print_cuda_function(trace_function(body, "printed", (f32x4,)), ALL).definitions)

    assert "at_least" not in text(rectify)
    assert "at_least(a.x, 0.0f)" in text(moved)  # what was subtracted from is no -0 either
    assert "at_least(a.x, 0.0f)" in function(finish)
    assert "at_least(a.x, 0.0f)" not in function(others)
    assert "at_least(a.x, 1.0f)" in function(others)


def test_what_is_rounded_loses_its_sign_before() -> None:
    """A maximum with 0 that ends as a whole number, and as nothing else, is the quicker one."""

    def quanta(k: Kernel, total: TracedValue) -> TracedValue:
        return k.round_small(k.min(k.max(total * 0.5, 0.0), 255.0))

    def both(k: Kernel, total: TracedValue) -> TracedValue:
        limited = k.max(total * 0.5, 0.0)
        return k.round_small(limited) + k.exp(limited)

    def kept(k: Kernel, total: TracedValue) -> TracedValue:
        limited = k.max(total * 0.5, 0.0)
        k.buffer("y", f32x4, 1)[0] = limited
        return k.round_small(limited)

    def function(body: Callable[[Kernel, TracedValue], TracedValue]) -> str:
        return "".join(print_cuda_function(trace_function(body, "printed", (f32x4,)), ALL).definitions)

    assert "at_least(a.x, 0.0f)" in function(quanta)
    assert "at_least" not in function(both) and "at_least" not in function(kept)


def test_whole_numbers_in_halves_are_limited_in_pairs() -> None:
    """Where nothing else reads what is limited, by limits that halves have; ints within those of bytes."""

    def stored(value: Callable[[Kernel, TracedValue], TracedValue], whole: bool = False) -> str:
        def body(k: Kernel) -> None:
            x = k.buffer("x", vec(i32 if whole else f32, 4), 64, access="read")
            y = k.buffer("y", f16x4, 64, compute=f32x4)
            y[k.local_id()] = value(k, x[k.local_id()])

        return text(body)

    def both(k: Kernel, x: TracedValue) -> TracedValue:
        limited = k.min(k.max(x, 0.0), 255.0)
        k.buffer("z", f32x4, 64)[k.local_id()] = limited
        return k.round_small(limited)

    def rounded(low: float, high: float) -> str:
        return stored(lambda k, x: k.round_small(k.min(k.max(x, low), high)))

    def converted(low: int, high: int) -> str:
        return stored(lambda k, x: f32x4(k.min(k.max(x, low), high)), True)

    quanta, signed = rounded(0.0, 255.0), rounded(-100.0, 155.0)
    assert "relu" in quanta and "max.NaN.f16x2" not in quanta and "max.NaN.f16x2" in signed
    for other in (rounded(0.0, 2049.0), rounded(0.5, 255.0), rounded(9.0, 3.0), stored(both)):
        assert "f16x2 %0, %0" not in other
    assert ["add.f16x2" in converted(*limits) for limits in ((0, 255), (3, 200), (-128, 127))] == [True, False, False]
    for source in (quanta, signed, converted(0, 255)):
        for capability in (75, 80, 90):
            assert nvrtc().compile([KernelCode("test", source, (64, 1, 1), ())], capability)


def test_what_is_stored_in_halves_is_limited_in_pairs() -> None:
    """Behind the conversion, by what halves have nearest to the limits; not where -0 would be another number, nor by
    limits that are no halves."""

    def stored(low: float, high: float, moved: float = 0.0) -> str:
        def body(k: Kernel) -> None:
            x, y = k.buffer("x", f32x4, 64, access="read"), k.buffer("y", f16x4, 64, compute=f32x4)
            given = x[k.local_id()]
            y[k.local_id()] = k.min(k.max(given + moved if moved else given, low), high)

        return text(body)

    positive, signed = stored(0.0, 6.0, 1.5), stored(-1.0, 1.0)
    assert "relu" in positive and "max.NaN.f16x2" not in positive and "max.NaN.f16x2" in signed
    assert "0x46004600u" in positive and "relu" in stored(2.0**-26, 6.0)
    for other in (stored(0.0, 6.0), stored(-1.0, 1e6), stored(2.0, 1.0)):
        assert "f16x2 %0, %0" not in other
    for source in (positive, signed):
        for capability in (75, 80, 90):
            assert nvrtc().compile([KernelCode("test", source, (64, 1, 1), ())], capability)


def test_what_a_kernel_loads_ahead_for_a_function() -> None:
    """Constants at the last of the places, or at one that is known, by loads that the compiler leaves where they are;
    other buffers at places that the parameters tell. What depends on the value, or is read after a store, the function
    reads itself."""

    def finish(k: Kernel, pixel: TracedValue, quad: TracedValue, total: TracedValue) -> None:
        sizes = {"bias": 8, "first": 1, "table": 8}
        bias, first, table = (k.buffer(name, f32x4, size, access="read") for name, size in sizes.items())
        x = k.buffer(
            "x",
            f16x4,
            64,
            compute=f32x4,
        )
        y = k.buffer("y", f32x4, 64)
        y[pixel * 8 + quad] = total + bias[quad] + first[0] + table[pixel] + x[pixel * 8 + quad]
        y[quad] = x[u32(total[0])] + x[pixel]

    function = trace_function(finish, "store", (u32, u32, f32x4))
    printed = print_cuda_function(function, ALL, 2)
    whole = "\n".join(printed.definitions)
    assert "struct StoreConstants { float4 v0; float4 v1; };" in whole
    assert re.search(r"return StoreConstants\{b0_bias\[p1\], b1_first\[0u\]\};", whole)
    assert "struct StoreOperands { uint2 v0; };" in whole  # as it is in memory: not converted before it is there
    assert re.search(r"load_store_operands\([^)]*unsigned p0, unsigned p1\)", whole)
    body = whole[whole.index(" store(") :]
    assert "constants.v1" in body and "operands.v0" in body and "__ldg(b2_table + p0)" in body
    assert not re.search(r"b0_bias\[|b1_first\[", body) and body.count("b3_x[") == 2
    assert ["__restrict__" in p for p in printed.parameters] == [False, False, True, False, False]
    code = KernelCode("printed", whole + '\nextern "C" __global__ void printed() {}\n', (64, 1, 1), ())
    assert nvrtc().compile([code], 90)


def test_constants_divide_by_multiplications() -> None:
    """Not where a multiplication gives the same, nor where the quotient's rest may be too small for a float32."""

    def divide(by: float) -> str:
        def body(k: Kernel) -> None:
            x = k.buffer("x", f32x4, 64)
            x[k.local_id()] = x[k.local_id()] / by

        return text(body)

    assert "divided(a.x, 9.0f, 0.11111111f)" in divide(9.0)
    assert "divided(a.x, (-3.0f), " in divide(-3.0)
    assert all("divided" not in divide(by) for by in (8.0, 0.5, 1e-5, 1e9, 1.9999999))


def test_quotients_by_multiplications_are_rounded_once() -> None:
    """divided() in float32, of numerators of all sizes, whole ones, zeros and what is no number."""
    rng = np.random.default_rng(0)
    sizes = np.exp2(rng.uniform(-40, 60, 100_000))
    a = np.concatenate([rng.uniform(-1, 1, 100_000) * sizes, np.arange(-4096, 4096)]).astype(np.float32)
    a = np.concatenate([a, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)])
    for by in np.array([9, 49, 3, -7, 0.3, 1.9999998, 1001, 65535, 0.001, 16777213], np.float32):
        over, size = (a, by) if by > 0 else (-a, -by)
        inverse = np.float32(1) / size
        q = over * inverse
        with np.errstate(invalid="ignore"):
            # A product of two float32 is exact in float64; what is left of it has few digits where the quotient counts.
            rest = (q.astype(np.float64) * size - over.astype(np.float64)).astype(np.float32)
            better = (rest.astype(np.longdouble) * -inverse + q).astype(np.float32)
        found = np.where(np.abs(q) < 1e38, better, q)
        assert np.array_equal(found, a / by, equal_nan=True), by
        assert np.array_equal(np.signbit(found[:-1]), np.signbit(a[:-1] / by))
