"""Kernels that move a quad from here to there, several quads a thread, so that enough bytes are under way at once.

A multiprocessor of a large GPU must have some 32 KB on their way (Little's law: 4.8 TB/s over 132 multiprocessors times
0.8 us); 2048 threads with one load of 8 bytes each have half of that, and while they store they have nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from litegpu.gpu.graph import walk
from litegpu.gpu.kernels.access import Index, Operands, Position, Sink, address, divide, is_last, open_sink, remainder
from litegpu.gpu.kernels.blocking import both, when
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.per_quad import WORKGROUP
from litegpu.gpu.lang import Kernel, TracedValue, boolean, trace
from litegpu.gpu.lang.features import Features

#: What is stored at a position of the output, before the epilogue; None for Elementwise.
Result = Callable[[Kernel, Operands, Position], TracedValue | None]

#: Threads of a workgroup that stores several quads a thread, and the most that make them whole pixels.
THREADS, MOST_THREADS = 256, 512
#: Quads of a thread at most, and the most functions of epilogues that are unrolled.
MOST_QUADS, MOST_FUNCTIONS = 4, 128
#: Workgroups for each multiprocessor that are left, at least.
LEAST_GROUPS = 4


@dataclass(frozen=True)
class Stretch:
    """A workgroup of `threads` stores threads * quads neighbouring quads, each thread one of every `threads`."""

    threads: int
    quads: int

    @property
    def size(self) -> int:
        return self.threads * self.quads


def streamed(ctx: KernelContext, name: str, result: Result) -> Launch:
    """A launch that stores `result` everywhere. A thread has its loads under way together: all are traced before the
    first store, beyond which no compiler moves them."""
    shape = ctx.output.shape
    quads = -(-shape[3] // 4)
    total = math.prod(shape[:3]) * quads
    functions = sum(1 for _ in walk(ctx.node.epilogue))
    stretch = choose_stretch(total, quads, functions, ctx.features)
    groups = -(-total // stretch.size)

    def kernel(k: Kernel, operands: Operands) -> None:
        first = k.group_id() * stretch.size + k.local_id()
        whole = groups * stretch.size == total
        if stretch.quads == 1:
            with k.If(True if whole else first < total):
                at = Position(shape, flat=first)
                open_sink(ctx, k, operands).write(at, result(k, operands, at))
            return
        sink = open_sink(ctx, k, operands)
        if stretch.threads % quads:
            flats: list[Index] = [address(j * stretch.threads, [(first, 1)]) for j in range(stretch.quads)]
            inside = None if whole else [_less(flat, total) for flat in flats]
            if inside is not None:  # read what exists, and forget it
                flats = [_at_most(k, flat, total - 1) for flat in flats]
            places = [Position(shape, flat=flat) for flat in flats]
        else:  # a thread's quads have the same channels, and its pixels are evenly spaced
            q, pixel = remainder(first, quads, total), divide(first, quads)
            pixels = [address(j * (stretch.threads // quads), [(pixel, 1)]) for j in range(stretch.quads)]
            inside = None if whole else [_less(pixel, total // quads) for pixel in pixels]
            if inside is not None:
                pixels = [_at_most(k, pixel, total // quads - 1) for pixel in pixels]
            if whole:
                flats = [address(j * stretch.threads, [(first, 1)]) for j in range(stretch.quads)]
            else:
                flats = [address(0, [(pixel, quads), (q, 1)]) for pixel in pixels]
            places = [Position(shape, flat=f, q=q, pixel=p) for f, p in zip(flats, pixels, strict=True)]
            if sink.one_run and stretch.size * 16 <= ctx.features.max_shared_bytes:
                _in_a_run(k, sink, stretch, places, [result(k, operands, at) for at in places])
                return
        sink.write_all(places, [result(k, operands, at) for at in places], inside)

    operands: Operands = {}
    traced = trace(kernel, name, (stretch.threads, 1, 1), (groups, 1, 1), operands=operands)
    return Launch(traced, operands, name, part=kernel)


def _in_a_run(
    k: Kernel, sink: Sink, stretch: Stretch, places: Sequence[Position], results: Sequence[TracedValue | None]
) -> None:
    """Store whole pixels that have no multiple of four channels: by way of shared memory, so that neighbouring threads
    store neighbouring elements. Each storing its four, which are apart, takes four times the transactions."""
    t, channels = k.local_id(), sink.view.shape[3]
    quads = -(-channels // 4)
    q, pixel = remainder(t, quads, stretch.threads), divide(t, quads)
    values = [sink.elements(at, result) for at, result in zip(places, results, strict=True)]
    shared = k.shared(values[0].type.scalar, stretch.size // quads * channels)
    step = stretch.threads // quads * channels
    firsts = [address(j * step, [(pixel, channels), (q, 4)]) for j in range(len(values))]
    rest = channels % 4
    for first, value in zip(firsts, values, strict=True):
        for lane in range(rest):
            shared[address(lane, [(first, 1)])] = value[lane]
    last = is_last(q, quads)
    if last is not True:
        with k.If(k.const(True, boolean) if last is False else ~last):
            for first, value in zip(firsts, values, strict=True):
                for lane in range(rest, 4):
                    shared[address(lane, [(first, 1)])] = value[lane]
    k.barrier()
    elements, total = stretch.size // quads * channels, math.prod(sink.view.shape)
    for j in range(-(-elements // stretch.threads)):
        place = address(j * stretch.threads, [(t, 1)])
        i = address(0, [(k.group_id(), elements), (place, 1)])
        within = [] if (j + 1) * stretch.threads <= elements else [_less(place, elements)]
        exists = [] if total % elements == 0 else [_less(i, total)]
        with k.If(when(both(*(c for c in within + exists if isinstance(c, TracedValue))))):
            sink.put_element(i, shared[place])


def _less(i: Index, n: int) -> TracedValue | bool:
    return i < n


def _at_most(k: Kernel, i: Index, n: int) -> Index:
    return min(i, n) if isinstance(i, int) else k.min(i, n)


def choose_stretch(total: int, quads: int, functions: int, features: Features) -> Stretch:
    """How to divide `total` quads, `quads` of a pixel. Where few are left for each multiprocessor, or nobody knows how
    many of these there are, a thread has one quad."""
    for per_thread in (MOST_QUADS, MOST_QUADS // 2):
        if per_thread * functions > MOST_FUNCTIONS or not features.compute_units:
            continue
        if total // (THREADS * per_thread) < LEAST_GROUPS * features.compute_units:
            continue
        most = min(MOST_THREADS, features.max_threads)
        sizes = [n for n in range(quads, most + 1, quads) if n >= THREADS // 2 and (n <= THREADS or n == quads)]
        sizes = sizes or [min(THREADS, features.max_threads)]
        # best without a rest, without idle threads in the last warp, and large
        threads = max(sizes, key=lambda n: (total % (n * per_thread) == 0, n / (-(-n // 32) * 32) > 0.9, n))
        return Stretch(threads, per_thread)
    return Stretch(min(WORKGROUP, features.max_threads), 1)
