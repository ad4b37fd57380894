"""The interpreter's checks: bounds, races, barriers, and arrays that do not fit."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest

from litegpu.gpu.lang import Kernel, KernelError, boolean, f32, trace, u32
from litegpu.gpu.lang.interpret import run


def check(body: Callable[[Kernel], None], message: str | None, groups: int = 2) -> None:
    """Run `body` over 2 workgroups of 8 threads on a buffer y of 16 elements, made by it."""
    kernel = trace(body, "checked", (8, 1, 1), (groups, 1, 1))
    arrays = {"y": np.zeros(16, np.float32)}
    if message is None:
        run(kernel, arrays)
        return
    with pytest.raises(KernelError, match=rf"kernel checked: {__file__}:\d+: .*{message}"):
        run(kernel, arrays)


def test_bounds() -> None:
    def load(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        y[0] = y[k.local_id() * 3]

    def store(k: Kernel) -> None:
        k.buffer("y", f32, 16)[k.local_id() - 1] = 1.0

    def guarded(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        i = k.group_id() * 8 + k.local_id()
        with k.If(i * 2 < 16):
            y[i * 2] = 1.0

    check(load, r"y\[21\] is outside its 16")
    check(store, r"y\[4294967295\] is outside")
    check(guarded, None)


def test_stores_of_different_values_race() -> None:
    def within_a_group(k: Kernel) -> None:
        k.buffer("y", f32, 16)[0] = f32(k.local_id())

    def between_groups(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        with k.If(k.local_id() == 0):
            y[0] = f32(k.group_id())

    def the_same_value(k: Kernel) -> None:
        k.buffer("y", f32, 16)[0] = 1.0

    check(within_a_group, "race")
    check(between_groups, "race")
    check(the_same_value, None)


def test_loads_of_what_others_store_race() -> None:
    def neighbour(k: Kernel, ordered: bool, far: bool = False) -> None:
        y = k.buffer("y", f32, 16)
        i = k.group_id() * 8 + k.local_id()
        y[i] = f32(i)
        if ordered:
            k.barrier()
        other = 15 - i if far else k.group_id() * 8 + (7 - k.local_id())
        value = y[other]
        if ordered:
            k.barrier()
        y[i] = value

    check(lambda k: neighbour(k, ordered=True), None)
    check(lambda k: neighbour(k, ordered=False), "loads what another thread stored")
    check(lambda k: neighbour(k, ordered=True, far=True), "loads what another thread stored")  # no order between groups


def test_stores_to_what_others_load_race() -> None:
    def shift(k: Kernel, ordered: bool) -> None:
        y = k.buffer("y", f32, 16)
        shared = k.shared(f32, 8)
        t = k.local_id()
        shared[t] = f32(t)
        k.barrier()
        value = shared[(t + 1) % 8]
        if ordered:
            k.barrier()
        shared[t] = value
        y[k.group_id() * 8 + t] = value

    check(lambda k: shift(k, ordered=True), None)
    check(lambda k: shift(k, ordered=False), "stores to what another thread loads")


def test_own_elements_do_not_race() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        i = k.group_id() * 8 + k.local_id()
        for _ in range(3):
            y[i] = y[i] + 1.0

    check(body, None)


def test_shared_memory_must_be_stored_first() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        shared = k.shared(f32, 9)
        shared[k.local_id()] = 1.0
        k.barrier()
        y[k.group_id() * 8 + k.local_id()] = shared[k.local_id() + 1]

    check(body, "never stored")


def test_arrays_must_fit() -> None:
    def body(k: Kernel) -> None:
        k.buffer("y", f32, 16)[0] = 1.0

    kernel = trace(body, "fits", (1, 1, 1), (1, 1, 1))
    for arrays in ({}, {"y": np.zeros(15, np.float32)}, {"y": np.zeros(16)}, {"y": np.zeros(32, np.float32)[::2]}):
        with pytest.raises(KernelError, match="buffer y"):
            run(kernel, arrays)
    whole = np.zeros((4, 4), np.float32)
    run(kernel, {"y": whole})
    assert whole[0, 0] == 1.0


def test_loops_must_not_wrap() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        n = k.buffer("n", u32, 1, access="read")
        with k.loop(n[0], start=2**32 - 3, step=2) as i:
            y[k.group_id() * 8 + k.local_id()] = f32(i)

    kernel = trace(body, "wraps", (8, 1, 1), (2, 1, 1))
    with pytest.raises(KernelError, match="passes"):
        run(kernel, {"y": np.zeros(16, np.float32), "n": np.array([2**32 - 1], np.uint32)})


def divergent(condition, loop: bool = False):
    """A kernel with a barrier where `condition(k)` holds; its own check is not asked, so that the interpreter's is."""

    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        y[k.group_id() * 8 + k.local_id()] = 1.0
        if loop:
            with k.loop(condition(k)) as _:
                k.barrier()
        else:
            with k.If(condition(k)):
                k.barrier()

    return body


def in_both_branches(k: Kernel) -> None:
    y = k.buffer("y", f32, 16)
    with k.If(k.local_id() < 4):
        k.barrier()
    with k.Else():
        k.barrier()
    y[k.group_id() * 8 + k.local_id()] = 1.0


def in_a_while(k: Kernel) -> None:
    y = k.buffer("y", f32, 16)
    left = k.var(k.local_id() % 2 + 1)
    with k.While(lambda: left.value > 0):
        k.barrier()
        left.set(left.value - 1)
    y[k.group_id() * 8 + k.local_id()] = 1.0


@pytest.mark.parametrize("body", [
    in_both_branches, in_a_while,
    divergent(lambda k: k.local_id() < 4), divergent(lambda k: k.local_id() != 7),
    divergent(lambda k: k.group_id() * 8 + k.local_id() < 9),  # whole in one workgroup only
    divergent(lambda k: k.local_id(), loop=True), divergent(lambda k: k.local_id() // 4 + 1, loop=True),
])  # fmt: skip
def test_barriers_that_only_some_threads_reach(body, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="control flow that may differ"):
        trace(body, "checked", (8, 1, 1), (2, 1, 1))
    module = importlib.import_module("litegpu.gpu.lang.verify")  # whose name in the package is the function's
    monkeypatch.setattr(module, "check_uniformity", lambda kernel: None)
    check(body, "only some threads of a workgroup reach the barrier")


@pytest.mark.parametrize("body", [
    divergent(lambda k: k.group_id() == 1), divergent(lambda k: k.group_id(), loop=True),
    divergent(lambda k: k.const(False, boolean)),
])  # fmt: skip
def test_barriers_that_whole_workgroups_reach_or_none(body) -> None:
    check(body, None)


def test_index_just_past_the_end() -> None:
    def load(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        with k.If(k.local_id() == 0):
            y[k.group_id()] = y[k.group_id() + 15]

    def shared(k: Kernel) -> None:
        k.buffer("y", f32, 16)[0] = 1.0
        k.shared(f32, 8)[k.local_id() + 1] = 2.0

    check(load, r"y\[16\] is outside its 16")
    check(shared, r"\[8\] is outside its 8")
    check(lambda k: k.buffer("y", f32, 16).__setitem__(k.group_id() * 8 + k.local_id(), 1.0), None)


def test_what_another_workgroup_wrote_is_a_race_even_behind_a_barrier() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        i = k.group_id() * 8 + k.local_id()
        y[i] = f32(i)
        k.barrier()
        k.barrier()
        with k.If((k.group_id() == 1) & (k.local_id() == 0)):
            y[15] = y[0]

    check(body, "loads what another thread stored")


def test_reading_what_another_workgroup_then_writes() -> None:
    def body(k: Kernel) -> None:
        y = k.buffer("y", f32, 16)
        shared = k.shared(f32, 8)
        shared[k.local_id()] = y[k.local_id()]
        k.barrier()
        k.barrier()
        with k.If(k.group_id() == 1):
            y[k.local_id()] = 3.0

    check(body, "stores to what another thread loads")
