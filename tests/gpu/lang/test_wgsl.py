"""The WGSL text: declarations, what the device lacks, names, and what is not printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from gpu.lang.runners import OnDevice

from litegpu.gpu.backends.webgpu.printer import print_wgsl
from litegpu.gpu.lang import Features, Kernel, KernelError, f16, f16x2, f16x4, f32, f32x4, i32, trace, u32

HALF = Features(float16=True)


def text(body: Callable[[Kernel], None], features: Features | None = None, grid: int = 4) -> str:
    return print_wgsl(trace(body, "printed", (64, 1, 1), (grid, 1, 1)), features or Features())


def half_copy(k: Kernel) -> None:
    x = k.buffer("x", f16x4, 64, compute=f32x4, access="read")
    y = k.buffer("y", f16x4, 64, compute=f32x4)
    y[k.local_id()] = x[k.local_id()] + 1.0


def float_copy(k: Kernel) -> None:
    x = k.buffer("layout", f32, 64, access="read")
    y = k.buffer("a__b", f32, 64)
    y[k.local_id()] = x[k.local_id()]


def test_f16_is_enabled_only_when_needed() -> None:
    assert text(half_copy, HALF).startswith("enable f16;\n")
    assert "f16;" not in text(half_copy) and "array<vec2<u32>>" in text(half_copy)
    assert "enable f16" not in text(float_copy, HALF)


def test_bindings_are_explicit_and_in_order_and_named_by_us() -> None:
    printed = text(float_copy)
    assert "@group(0) @binding(0) var<storage, read> b0_layout: array<f32>;" in printed
    assert "@group(0) @binding(1) var<storage, read_write> b1_a_b: array<f32>;" in printed
    assert "__" not in printed


def test_buffers_are_read_write_unless_declared_constant() -> None:
    """What shares the arena is bound read_write even where a kernel only loads from it."""

    def body(k: Kernel) -> None:
        x, y = k.buffer("x", f32, 64), k.buffer("y", f32, 64)
        y[k.local_id()] = x[k.local_id()]

    assert text(body).count("var<storage, read_write>") == 2


def test_reserved_names_are_refused() -> None:
    with pytest.raises(KernelError, match="reserved"):
        print_wgsl(trace(float_copy, "select", (64, 1, 1), (1, 1, 1)), Features())


def test_what_the_device_lacks_is_named() -> None:
    def shared(k: Kernel) -> None:
        k.shared(f32, 5000)[k.local_id()] = 1.0

    def subgroups(k: Kernel) -> None:
        y = k.buffer("y", f32, 64)
        y[k.local_id()] = k.subgroup_add(y[k.local_id()])

    def many_buffers(k: Kernel) -> None:
        for i in range(9):
            k.buffer(f"b{i}", f32, 4)[k.local_id()] = 1.0

    def half_arithmetic(k: Kernel) -> None:
        y = k.buffer("y", f16x2, 64)
        y[k.local_id()] = y[k.local_id()] * 2.0

    def single_halves(k: Kernel) -> None:
        k.buffer("y", f16, 64, compute=f32)[k.local_id()] = 1.0

    def large(k: Kernel) -> None:
        k.buffer("y", f32, 2**30)[k.local_id()] = 1.0

    cases = [
        (shared, "20000 bytes of shared memory, 16384 allowed"),
        (subgroups, "subgroup"),
        (many_buffers, "9 buffers, 8 allowed"),
        (half_arithmetic, "f16x2 arithmetic needs float16"),
        (single_halves, "buffer y: storing single f16 values"),
        (large, "buffer y has 4294967296 bytes"),
    ]
    for body, message in cases:
        with pytest.raises(KernelError, match=f"kernel printed: .*{re.escape(message)}"):
            text(body)
    with pytest.raises(KernelError, match="64 threads, 32 allowed"):
        text(float_copy, Features(max_threads=32))
    text(half_arithmetic, HALF), text(single_halves, HALF), text(subgroups, Features(subgroups=True))


def test_surplus_workgroups_are_guarded() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", u32, 100003)
        y[k.group_id()] = k.group_id()

    printed = text(body, grid=100003)
    assert "let group_x = group_id.x + group_id.y * 50002u;" in printed and "if (group_x < 100003u) {" in printed
    assert "group_x" not in text(float_copy)


def test_nothing_unused_is_printed() -> None:
    def body(k: Kernel) -> None:
        x, y = k.buffer("x", f32, 64), k.buffer("y", f32, 64)
        k.exp(x[k.local_id()])
        with k.loop(0):
            y[0] = 1.0
        with k.If(False):
            y[1] = 1.0
        with k.Else():
            y[2] = 2.0

    printed = text(body)
    assert "exp" not in printed and "b0_x[" not in printed and "for" not in printed
    assert "= 1.0f" not in printed and "b1_y[2u] = 2.0f;" in printed


def test_single_uses_are_inlined_and_loads_bound() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 64)
        i = k.local_id()
        v = y[i * 4 // 2]
        y[i] = v * 2.0 + v

    assert re.search(r"let (t\d+) = b0_y\[\(\(local_id\.x \* 4u\) >> 1u\)\];", text(body))
    assert re.search(
        r"b0_y\[local_id\.x\] = \(\(?(t\d+) \* 2\.0f\) \+ \1\);|b0_y\[local_id\.x\] = \((t\d+) \+ \(\2 \* 2\.0f\)\);",
        text(body),
    )


def test_divisions_by_powers_of_two_are_shifts() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", u32, 64)
        i = k.local_id()
        y[i] = i // 16 + i % 16 + i // 1 + i % 1

    printed = text(body)
    assert ">> 4u" in printed and "& 15u" in printed and "/" not in printed and "%" not in printed


def test_elementary_functions_are_defined_where_used() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32x4, 64)
        y[k.local_id()] = k.tanh(y[k.local_id()])

    printed = text(body)
    assert "fn tanh_x4(p0: vec4<f32>) -> vec4<f32> {" in printed and "fn exp_x4" in printed
    assert "fn pow" not in printed


def test_storage_barriers_only_where_a_buffer_is_both_stored_and_loaded() -> None:
    def through_shared(k: Kernel) -> None:
        x, y, s = k.buffer("x", f32, 64), k.buffer("y", f32, 64), k.shared(f32, 64)
        s[k.local_id()] = x[k.local_id()]
        k.barrier()
        y[k.local_id()] = s[63 - k.local_id()]

    def through_buffer(k: Kernel) -> None:
        y = k.buffer("y", f32, 64)
        y[k.local_id()] = 1.0
        k.barrier()
        y[k.local_id()] = y[63 - k.local_id()]

    assert "storageBarrier" not in text(through_shared) and "workgroupBarrier" in text(through_shared)
    assert "storageBarrier" in text(through_buffer)


def test_kernels_with_every_kind_of_awkward_name_compile(device: OnDevice) -> None:
    def body(k: Kernel) -> None:
        buffers = [k.buffer(n, f32, 4) for n in ("layout", "a__b", "_x", "var", "texture_2d", "b0")]
        for b in buffers:
            b[k.local_id()] = 3.0

    kernel = trace(body, "awkward", (4, 1, 1), (1, 1, 1))
    arrays = {b.name: np.zeros(4, np.float32) for b in kernel.buffers}
    device.run(kernel, arrays, replace(device.features, float16=False))
    assert all((a == 3).all() for a in arrays.values())


def test_generated_names_hide_no_type(device: OnDevice) -> None:
    """Values are numbered, and every number becomes a loop's index here: i32 and u32 must stay types."""

    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 4)
        i = k.local_id()
        for _ in range(3):
            with k.loop(i + 1) as a, k.loop(a + 1) as b:
                for _ in range(4):
                    with k.loop(b + 1) as c:
                        y[i] = y[i] + f32(k.bitcast(c, i32))

    for shift in range(3):

        def shifted(k: Kernel, shift: int = shift) -> None:
            for n in range(shift):
                k.const(n + 100, u32)
            body(k)

        y = np.zeros(4, np.float32)
        device.run(trace(shifted, f"names{shift}", (4, 1, 1), (1, 1, 1)), {"y": y})
        assert y.tolist() == [0, 12, 60, 180]
