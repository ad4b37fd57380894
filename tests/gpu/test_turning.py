"""Which launches go backwards: those that find more of what was written last in the device's cache that way."""

from __future__ import annotations

from gpu.backends.cuda.kernels.test_convolution import network

from litegpu.gpu.backends import registry
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D
from litegpu.gpu.lang.features import Features
from litegpu.gpu.turning import USABLE, Access, turned

CACHE = 50_000_000


def chain(size: int, length: int = 6) -> list[list[Access]]:
    """Launches each of which reads what the one before it has written; there are two places."""
    places = [0, size]
    return [
        [Access(places[i % 2], size, False), Access(places[1 - i % 2], size, True)]
        for i in range(length)
    ]  # fmt: skip


def test_the_readers_of_large_tensors_go_the_other_way() -> None:
    assert turned(chain(2 * CACHE), CACHE) == [False, True, False, True, False, True]


def test_nothing_turns_where_everything_fits_or_no_cache_is_known() -> None:
    assert not any(turned(chain(CACHE // 8), CACHE))
    assert not any(turned(chain(2 * CACHE), 0))
    assert turned([], CACHE) == []


def test_two_readers_of_one_tensor_go_towards_each_other() -> None:
    """As a residual block's shortcut and its first convolution, each of which writes little."""
    x = Access(0, 2 * CACHE, False)
    first, second = Access(2 * CACHE, CACHE // 50, True), Access(3 * CACHE, CACHE // 50, True)
    wrote = Access(0, 2 * CACHE, True)
    assert turned([[wrote], [x, first], [x, second]], CACHE) == [False, True, False]


def test_what_is_overwritten_in_the_cache_need_not_go_to_memory() -> None:
    """The end of what was written is still there: to begin with it spares writing it to memory first."""
    wrote = Access(0, 2 * CACHE, True)
    assert turned([[wrote], [wrote]], CACHE) == [False, True]


def test_what_was_read_since_it_was_written_still_has_to_go_to_memory() -> None:
    half = int(CACHE * USABLE) // 2
    end, wide = Access(3 * half, half, True), Access(0, 4 * half, True)
    assert turned([[end], [Access(3 * half, half, False)], [wide]], CACHE) == [False, False, True]


def test_small_launches_in_between_change_nothing() -> None:
    small = [Access(5 * CACHE, CACHE // 1000, False), Access(6 * CACHE, CACHE // 1000, True)]
    launches = chain(2 * CACHE, 2)
    assert turned([launches[0], small, small, launches[1]], CACHE) == [False, False, False, True]


def test_programs_turn_for_devices_that_say_how_large_their_cache_is() -> None:
    graph, _ = network((8, 16, 16, 8), (8, 1, 1, 8), Conv2D())
    known = Features(cache_bytes=16384)
    plain = build_program(graph, Features(), "cuda")
    large = build_program(graph, known, "cuda")
    assert [d.bindings for d in large.dispatches] == [d.bindings for d in plain.dispatches]
    texts = [large.kernels[d.kernel].source for d in large.dispatches]
    backwards = ["turned_block" in text for text in texts]
    assert any(backwards) and not all(backwards)
    assert not any("turned_block" in k.source for k in plain.kernels)
    with_one_printer = build_program(graph, known, "wgsl")  # which does not turn kernels
    assert with_one_printer.kernels == build_program(graph, Features(), "wgsl").kernels


def test_the_backend_of_cuda_turns() -> None:
    from litegpu.gpu.backends.abilities import Turning

    assert isinstance(registry.of_language("cuda"), Turning)
    assert not isinstance(registry.of_language("wgsl"), Turning)
