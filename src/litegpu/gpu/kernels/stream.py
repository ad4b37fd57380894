"""Kernels that move a quad from here to there, several quads a thread, so that enough bytes are under way at once.

A multiprocessor of a large GPU must have some 32 KB on their way (Little's law: 4.8 TB/s over 132 multiprocessors times
0.8 us); 2048 threads with one load of 8 bytes each have half of that, and while they store they have nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from litegpu.gpu.graph import walk
from litegpu.gpu.kernels.access import Operands, Position, address, divide, open_sink, remainder
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.per_quad import WORKGROUP
from litegpu.gpu.lang import Kernel, TracedValue, trace
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
    operands: Operands = {}
    groups = -(-total // stretch.size)

    def kernel(k: Kernel) -> None:
        first = k.group_id() * stretch.size + k.local_id()
        whole = groups * stretch.size == total
        if stretch.quads == 1:
            with k.If(True if whole else first < total):
                at = Position(shape, flat=first)
                open_sink(ctx, k, operands).write(at, result(k, operands, at))
            return
        flats = [address(j * stretch.threads, [(first, 1)]) for j in range(stretch.quads)]
        inside = None if whole else [flat < total for flat in flats]
        if inside is not None:  # read what exists, and forget it
            flats = [k.min(flat, total - 1) for flat in flats]
        if stretch.threads % quads or inside is not None:
            places = [Position(shape, flat=flat) for flat in flats]
        else:  # a thread's quads have the same channels, and its pixels are evenly spaced
            q, pixel = remainder(first, quads, total), divide(first, quads)
            step = stretch.threads // quads
            places = [
                Position(shape, flat=flat, q=q, pixel=address(j * step, [(pixel, 1)])) for j, flat in enumerate(flats)
            ]
        results = [result(k, operands, at) for at in places]
        open_sink(ctx, k, operands).write_all(places, results, inside)

    return Launch(trace(kernel, name, (stretch.threads, 1, 1), (groups, 1, 1)), operands, name)


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
