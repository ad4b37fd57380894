"""Sums whose parts several threads have: each is put together, and stored, by one of all the threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from litegpu.gpu.kernels.access import Index, Operands, address, divide, open_sink, remainder
from litegpu.gpu.kernels.blocking import Pixels, ThreadTile, TilePlace, both, store_tile
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang import Array, Kernel, Memory, TracedValue

#: The pixels of the block of this number, of which the one of the second number is asked for: a `Pixels` of one.
OnePixel = Callable[[TracedValue, Index], Pixels]


class Sums(Protocol):
    """Terms or ProductSums."""

    def parts(self) -> Array: ...

    def whole(self, total: TracedValue, q: Index) -> TracedValue: ...

    def totals(self, place: TilePlace) -> list[TracedValue]: ...


def store_terms(
    ctx: KernelContext, k: Kernel, place: TilePlace, pixels: Pixels, one: OnePixel, terms: Sums, operands: Operands
) -> None:
    """Store what `terms` adds up at `pixels`, of which `one` gives each. Reached by the whole workgroup."""
    if place.tile.parts == 1 or ctx.features.native:
        store_tile(k, open_sink(ctx, k, operands), place, pixels, terms.totals(place))
        return
    tile, sums = place.tile, terms.parts()
    shared = _spread(k, tile, place.part, sums)
    sink = open_sink(ctx, k, operands)
    slots, threads = tile.wide * tile.tall, tile.wide * tile.tall * tile.parts
    thread = address(0, [(place.part, slots), (k.local_id(1), tile.wide), (k.local_id(0), 1)])
    items = len(sums) * slots
    for turn in range(-(-items // threads)):
        item = address(turn * threads, [(thread, 1)])
        exists = None if items % threads == 0 or not isinstance(item, TracedValue) else item < items
        with k.If(True if exists is None else exists):
            i, slot = divide(item, slots), remainder(item, slots, items)
            first = address(0, [(i, tile.parts * slots), (slot, 1)])
            total = _summed([shared[address(j * slots, [(first, 1)])] for j in range(tile.parts)])
            across, c = remainder(slot, tile.wide, slots), remainder(i, tile.quads, len(sums))
            block, q, inside = place.of(divide(slot, tile.wide), across, c)
            found = one(block, divide(i, tile.quads))
            condition = both(inside, found.real[0])
            with k.If(True if condition is None else condition):
                sink.store(*found.coordinates[0], q, terms.whole(total, q))


def _spread(k: Kernel, tile: ThreadTile, part: TracedValue, sums: Array) -> Memory:
    """Shared memory with all parts of the sums, at [sum, part, slot of the workgroup], after a barrier."""
    slots = tile.wide * tile.tall
    shared = k.shared(sums.type, slots * tile.parts * len(sums))
    mine = part * slots + (k.local_id(1) * tile.wide + k.local_id(0))
    for i in range(len(sums)):
        shared[mine + i * tile.parts * slots] = sums[i]
    k.barrier()
    return shared


def _summed(values: list[TracedValue]) -> TracedValue:
    """All of these, as a tree."""
    while len(values) > 1:
        values = [a + b for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]
