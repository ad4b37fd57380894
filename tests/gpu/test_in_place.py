"""Which results take the place of an operand: those that are written where it is read for the last time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, Graph, GraphBuilder, apply
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program

SHAPE = (2, 8, 8, 16)
SMALL_CACHE = Features(cache_bytes=1024)


def block(
    *, again: bool = False, self_added: bool = False, late: bool = False, output: bool = False, narrow: bool = False
) -> Graph:
    """a = conv(x), b = conv(a), c = conv(b) + a, conv(c). `again`: the last one adds a too. `self_added`: b is added
    in place of a. `late`: a is added with one channel for all. `output`: a is an output too. `narrow`: b has half of
    the channels."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()

    def conv(x: int, *added: int, channels: int = 16) -> int:
        weights = g.constant(rng.standard_normal((channels, 1, 1, g.values[x].shape[3])))
        y = g.value((*SHAPE[:3], channels), DType.FLOAT32)
        expression = apply("add", RESULT, Arg(1)) if added else RESULT
        return g.node(Conv2D(), [x, weights], y, expression, added)

    x = g.value(SHAPE, DType.FLOAT32)
    a = conv(x, channels=1 if late else 16)
    b = conv(a, channels=8 if narrow else 16)
    c = conv(b, b if self_added else a)
    d = conv(c, a) if again else conv(c)
    return g.graph([x], [a, d] if output else [d])


def places(program: Program) -> list[list[int]]:
    """Where each dispatch has what it binds in the arena, in order of the bindings."""
    return [[b.offset for b in d.bindings if b.space == "arena"] for d in program.dispatches]


def is_in_place(program: Program) -> list[bool]:
    return [len(set(found)) < len(found) for found in places(program)]


def test_a_sum_is_written_over_what_it_adds() -> None:
    program = build_program(block(), SMALL_CACHE, "cuda")
    assert is_in_place(program) == [False, False, True, False]
    before = build_program(block(), Features(), "cuda")
    assert not any(is_in_place(before))
    assert program.arena_size < before.arena_size
    assert program.memory.unshared == before.memory.unshared
    assert program.memory.arena >= program.memory.lower_bound


@pytest.mark.parametrize("change", ["again", "self_added", "late", "output"])
def test_what_is_still_needed_stays(change: str) -> None:
    """By another node, by the kernel itself in other places, for all channels, or by the user."""
    program = build_program(block(**{change: True}), SMALL_CACHE, "cuda")
    assert is_in_place(program) == [False, False, False, change == "again"]


def test_only_large_values_on_devices_that_allow_it() -> None:
    assert not any(is_in_place(build_program(block(), Features(cache_bytes=1 << 30), "cuda")))
    assert not any(is_in_place(build_program(block(), SMALL_CACHE, "wgsl")))


def test_a_chain_of_sums_stays_in_one_place() -> None:
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.value(SHAPE, DType.FLOAT32)
    one = g.constant(np.eye(16).reshape(16, 1, 1, 16))
    y = g.node(Conv2D(), [x, one], g.value(SHAPE, DType.FLOAT32))
    for _ in range(4):
        weights = g.constant(rng.standard_normal((16, 1, 1, 16)))
        branch = g.node(Conv2D(), [y, weights], g.value(SHAPE, DType.FLOAT32))
        y = g.node(Conv2D(), [branch, weights], g.value(SHAPE, DType.FLOAT32), apply("add", RESULT, Arg(1)), [y])
    out = g.node(Conv2D(), [y, one], g.value(SHAPE, DType.FLOAT32))
    program = build_program(g.graph([x], [out]), SMALL_CACHE, "cuda")
    assert is_in_place(program) == [False, *[False, True] * 4, False]
    assert len({found[-1] for found, same in zip(places(program), is_in_place(program), strict=True) if same}) == 1


def test_what_was_begun_before_stays() -> None:
    """Of two concatenations, alike: one part of the second is written while the first is still read."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    x = g.value(SHAPE, DType.FLOAT32)

    def conv(source: int, *added: int) -> int:
        weights = g.constant(rng.standard_normal((16, 1, 1, g.values[source].shape[3])))
        expression = apply("add", RESULT, Arg(1)) if added else RESULT
        return g.node(Conv2D(), [source, weights], g.value(SHAPE, DType.FLOAT32), expression, added)

    def joined(*parts: int) -> int:
        return g.node(Concat(3), parts, g.value((*SHAPE[:3], 32), DType.FLOAT32))

    a = conv(x)
    first = conv(joined(a, conv(a)))
    begun = conv(first)
    out = conv(joined(conv(begun, a), begun))
    assert not any(is_in_place(build_program(g.graph([x], [out]), SMALL_CACHE, "cuda")))


@pytest.mark.parametrize("change", ["", "self_added", "output", "again"])
@pytest.mark.parametrize("features", [SMALL_CACHE, Features()])
def test_what_a_launch_is_the_last_to_read_is_spent(change: str, features: Features) -> None:
    """Which a is not where it is read by the third launch as well."""
    program = build_program(block(**({change: True} if change else {})), features, "cuda")
    spent = [None if d.spent is None else d.bindings[d.spent].offset for d in program.dispatches]
    assert spent == [None if i == 1 and change != "self_added" else at[0] for i, at in enumerate(places(program))]


def test_what_a_result_takes_the_place_of_is_not_spent() -> None:
    program = build_program(block(narrow=True), SMALL_CACHE, "cuda")
    assert is_in_place(program) == [False, False, True, False]
    last = program.dispatches[2]
    assert last.spent is not None and last.bindings[last.spent].offset == places(program)[2][0]
    apart = build_program(block(narrow=True), Features(), "cuda").dispatches[2]
    assert apart.spent is not None and apart.bindings[apart.spent].size == 2 * last.bindings[last.spent].size


def test_the_largest_of_what_is_spent() -> None:
    """Of what a sum adds up: one value for each channel, and the other one of all pixels."""
    g = GraphBuilder()
    few, x = g.value((2, 1, 1, 16), DType.FLOAT32), g.value(SHAPE, DType.FLOAT32)
    weights = g.constant(np.eye(16).reshape(16, 1, 1, 16))
    out = g.node(Conv2D(), [x, weights], g.value(SHAPE, DType.FLOAT32), apply("add", RESULT, Arg(1)), [few])
    (dispatch,) = build_program(g.graph([few, x], [out]), Features(), "cuda").dispatches
    assert dispatch.spent is not None
    sizes = [b.size for b in dispatch.bindings[:-1] if b.space == "arena"]
    assert dispatch.bindings[dispatch.spent].size == max(sizes) > min(sizes)


def test_results_of_less_than_a_line_lie_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they are larger than what a program has of the cache: then what they are added to comes from memory."""

    def narrow(ctx: KernelContext) -> list[Launch]:
        return [dataclasses.replace(launch, narrow=True) for launch in build(ctx)]

    monkeypatch.setattr("litegpu.gpu.build.build_kernels", narrow)
    assert not any(is_in_place(build_program(block(), SMALL_CACHE, "cuda")))
    size = 4 * int(np.prod(SHAPE))
    for share, found in ((1.0, False), (0.8, False), (0.6, True)):  # a program does not have all of it
        cache = Features(cache_bytes=int(size / share))
        assert is_in_place(build_program(block(), cache, "cuda")) == [False, False, found, False]
