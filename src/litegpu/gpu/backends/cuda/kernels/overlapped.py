"""What float16 convolutions take where kernels overlap (compute capability 9.0): programs of one image, whose kernels
wait for each other more than they work.

Such a kernel is started, and loads its weights, while the one in front of it runs; what it takes is from the last store
of that one to its own. So other tiles are the quickest than where each kernel has the device to itself, and there are
more of them: deeper rings, and more warps that share the depth of a tile.

The estimates are sums: each part of a kernel's work at a rate of its own. Fitted to measurements on an H200 of launches
one behind the other, with weights from memory where they are large.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import NamedTuple

from litegpu.gpu.backends.cuda.kernels import (
    halo,
    matvec,
    persistent,
    row_norm,
    specialized,
    stem,
    tile,
    wide_stem,
    window,
)
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.prologue import factors_bytes
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.backends.cuda.kernels.stem import StemBlock
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, WorkgroupTile
from litegpu.gpu.backends.cuda.overlap import SHARED_BYTES, mostly_little
from litegpu.gpu.graph import Graph

#: What every workgroup has of shared memory beside what it asks for, and registers of a multiprocessor.
_OWN_BYTES, _REGISTERS = 1024, 65536
#: Of a multiprocessor's threads, and registers of one (of small and of large workgroups), about.
_THREADS, _EACH = 2048, (128, 96)
#: The part of the multiprocessors that clusters of four and more workgroups find beside each other.
_TOGETHER = 10 / 11
#: Microseconds by which another kernel must be faster to be taken instead of what would be without overlap: in the
#: networks less than that was lost as often as gained.
CLEARLY = 0.18

#: Layers of more than 5 us take so much, and so many times the estimate. (VGG-16's of 7 to 12 us.)
LONG = (-0.5, 1.1)

#: Up to what most of a program's kernels touch, beside constants, these estimates choose the tiles of convolutions of
#: one round, too, while all else is chosen as for kernels that have the device to themselves (docs/performance.md).
MOST_TILED_BYTES = 14 << 20

_touched: weakref.WeakKeyDictionary[Graph, list[int]] = weakref.WeakKeyDictionary()


def will_overlap(graph: Graph) -> bool:
    """Whether the kernels of the program that a graph in float16 becomes will overlap (overlap.latency_bound())."""
    return mostly_little(_bytes_of(graph))


def overlaps_tiles(graph: Graph) -> bool:
    """The same for the tiles of convolutions."""
    return mostly_little(_bytes_of(graph), MOST_TILED_BYTES)


def _bytes_of(graph: Graph) -> list[int]:
    """That each node touches beside constants."""
    found = _touched.get(graph)
    if found is None:
        sizes = {v: 0 if value.is_constant else 2 * math.prod(value.shape) for v, value in graph.values.items()}
        found = [sum(sizes[v] for v in {*node.reads, node.output}) for node in graph.nodes]
        _touched[graph] = found
    return found


class TimeParts(NamedTuple):
    """What a kernel's time is made of, for the multiprocessor that has most workgroups. Rounds are workgroups that
    come one after the other, steps those along the depth, of all rounds."""

    once: float  # 1: the start and the end
    rounds: float  # beyond the first
    arrivals: float  # how often copies are awaited that were begun when those before them had come
    steps: float
    products: float  # of 16 x 8 x 16 that a warp does one after the other
    left: float  # thousand chunks of 16 bytes that are copied of the inputs,
    right: float  # and of the weights
    windowed: float  # of a thread, one after the other, whose places have to be computed
    copies: float  # of a thread, one after the other
    stored: float  # thousand sums
    added: float  # the same of residuals
    met: float  # ten sums that a thread writes down for other warps
    multiplied: float  # a million products
    prepared: float  # steps in which something is done with the inputs first,
    preparing: float  # and how much of a thread
    gated: float  # steps whose gates are awaited
    divided: float  # rounds in which a cluster adds up its sums
    divided_more: float  # the same of clusters of more than four

    def at(self, rates: TimeParts) -> float:
        """Microseconds."""
        return float(sum(part * rate for part, rate in zip(self, rates, strict=True)))


#: Microseconds of each part.
MATRIX = TimeParts(
    once=0.8715, rounds=0.5013, arrivals=0.1239, steps=0.0317, products=0.0037, left=0.1538, right=0.1254,
    windowed=0.0115, copies=0, stored=0.152, added=0.0697, met=0.0116, multiplied=0.0362, prepared=0.102,
    preparing=0.0727, gated=0, divided=0, divided_more=0,
)  # fmt: skip
WARPGROUP = TimeParts(
    once=1.35, rounds=0, arrivals=0.0111, steps=0, products=0.005, left=0.0769, right=0, windowed=0, copies=0,
    stored=0.0474, added=0.0821, met=0, multiplied=0.46, prepared=0.1, preparing=0.07, gated=0, divided=0,
    divided_more=0,
)  # fmt: skip
SPECIALIZED = TimeParts(
    once=0.9264, rounds=0.7589, arrivals=0.2094, steps=0.0724, products=0, left=0.1238, right=0.027, windowed=0.0065,
    copies=0.0008, stored=0.075, added=0.0255, met=0.0867, multiplied=0, prepared=0, preparing=0.0508, gated=0,
    divided=1.24, divided_more=0.0857,
)  # fmt: skip

#: So many times what instructions take it costs to sum up rows, of which a warp has more than 16 (128 x 384 to 1152 by
#: 32 x 64 of a warp's 32 x 32: 5.0 us, where 2.2 without a norm; by 16 x 32 2.6), and by specialized.cu.
MANY_ROWS, DIVIDED = 12.0, 2.0

#: Where the copies of several steps, but not of one alone, are all under way from the start, products begin when the
#: rows of the first one have come: so much of the time for each KB of these beyond the first so many, and so much less
#: otherwise. (14x14x512 to 512 in MobileNet v1 by 32x32 in four steps of 128, 8 KB, 0.2 us less than in two of 256; as
#: one step 16x32x512, for 7x7x512 to 1024, was no slower than others.)
OF_FIRST, AT_ONCE, ALL_UNDER_WAY = 0.0125, 8.0, -0.005

#: What layers of bytes take more by tiles of convolution.cu, and by those of specialized.cu for each step but the first
#: (54 layers; the first choice was up to 1.1 us slower than the best).
BYTES, BYTES_OF_STEP = 0.3, 0.26


def tile_parts(layer: Layer, t: WorkgroupTile, units: int) -> TimeParts:
    """Of the kernel of convolution.cu."""
    down, across, along = t.warps
    groups = _groups(layer, t)
    share = -(-groups // units)
    deep = -(-layer.depth // 2) if layer.whole_numbers else layer.depth  # bytes are multiplied as half as many halves
    steps, shared = -(-deep // t.depth), t.shared_bytes(True) + factors_bytes(layer)
    registers = _REGISTERS // (t.threads * _EACH[t.threads > 256])
    rounds = -(-share // _resident(shared, t.threads, registers))
    chunks, prepared = t.rows * t.depth / 8 / t.threads, float(layer.prologue is not None)
    return TimeParts(
        once=1,
        rounds=rounds - 1,
        arrivals=rounds * steps / min(t.stages - 1, steps),
        steps=rounds * steps,
        products=rounds * steps * t.depth / 16 / along * (t.rows / down / 16) * (t.columns / across / 8),
        left=share * steps * t.rows * t.depth / 8e3,
        right=share * steps * t.columns * t.depth / 8e3,
        windowed=rounds * steps * chunks * (layer.access == "WINDOW"),
        copies=rounds * steps * chunks,
        stored=share * t.rows * t.columns / 1e3,
        added=share * t.rows * t.columns / 1e3 * layer.residuals,
        met=rounds * along * t.rows * t.columns / t.threads / 10,
        multiplied=share * steps * t.rows * t.columns * t.depth / 1e6,
        prepared=prepared * rounds * steps,
        preparing=prepared * rounds * steps * chunks,
        gated=float(layer.gate is not None) * rounds * steps,
        divided=0,
        divided_more=0,
    )


def specialized_parts(layer: Layer, t: SpecializedTile, units: int) -> TimeParts:
    """Of the kernel of specialized.cu."""
    row = specialized.row_bytes(layer)
    groups = _groups(layer, t) * t.split
    share = -(-groups // (units if t.split < 4 else int(units * _TOGETHER)))
    steps, shared = -(-specialized.steps_of(layer) // t.split), t.shared_bytes(row) + factors_bytes(layer)
    rounds = -(-share // _resident(shared, t.threads, t.resident))
    chunks, prepared = t.rows * row / 16 / t.copying, float(layer.prologue is not None)
    return TimeParts(
        once=1,
        rounds=rounds - 1,
        arrivals=rounds * steps / min(t.stages - 1, steps),
        steps=rounds * steps,
        products=0,
        left=share * steps * t.rows * row / 16e3,
        right=share * steps * t.columns * row / 16e3,
        windowed=rounds * steps * chunks * (layer.weights.shape[1:3] != (1, 1)),
        copies=rounds * steps * chunks,
        stored=share * t.rows * t.columns / 1e3,
        added=share * t.rows * t.columns / 1e3 * layer.residuals,
        met=(t.split > 1) * rounds * t.rows * t.columns / 1e3,
        multiplied=share * steps * t.rows * t.columns * row / 1e7,
        prepared=prepared * rounds * steps,
        preparing=prepared * rounds * steps * chunks,
        gated=float(layer.gate is not None) * rounds * steps,
        divided=(t.split > 1) * rounds,
        divided_more=(t.split > 4) * rounds,
    )


def tile_cost(layer: Layer, t: WorkgroupTile, units: int) -> float:
    """Estimated microseconds of the kernel of convolution.cu."""
    units = units or USUAL_UNITS
    found = tile_parts(layer, t, units).at(WARPGROUP if t.warpgroups else MATRIX)
    share = -(-_groups(layer, t) // units)
    summing = row_norm.effort(layer.norm, share * t.rows * layer.depth)
    summing *= 1.0 if t.rows // t.warps[0] == 16 else MANY_ROWS
    if layer.whole_numbers:
        return found + BYTES + summing
    if 1 < -(-layer.depth // t.depth) < t.stages:
        found += ALL_UNDER_WAY + OF_FIRST * max(0.0, t.rows * t.depth / 512 - AT_ONCE)
    return found + summing


def specialized_cost(layer: Layer, t: SpecializedTile, units: int) -> float:
    """Estimated microseconds of that of specialized.cu."""
    units = units or USUAL_UNITS
    found = specialized_parts(layer, t, units).at(SPECIALIZED)
    share = -(-_groups(layer, t) * t.split // units)
    found += DIVIDED * row_norm.effort(layer.norm, share * t.rows * layer.depth / t.split)
    if layer.whole_numbers:
        return found + BYTES_OF_STEP * (-(-specialized.steps_of(layer) // t.split) - 1)
    return max(found, LONG[0] + LONG[1] * found)


def stem_cost(layer: Layer, block: StemBlock, units: int) -> float:
    """Estimated microseconds of that of stem.cu: pixels are loaded one by one."""
    blocks = math.prod(layer.shape[:1]) * -(-layer.shape[1] // block.y) * -(-layer.shape[2] // stem.LINE)
    share = -(-blocks * -(-layer.shape[3] // block.columns) // (units or USUAL_UNITS))
    lines, columns = stem.halo(layer, block)
    products = stem.depth(layer) / 16 * (block.y / block.warps[0]) * (block.columns / block.warps[1] / 8)
    loaded, stored = lines * columns * layer.weights.shape[3] / 1e3, block.y * stem.LINE * block.columns / 1e3
    return float(1.48 + share * (0.0775 * loaded + 0.0107 * products + 0.044 * stored))


def stems(layer: Layer, units: int) -> list[StemBlock]:
    """For that of stem.cu, the cheapest first; none if it cannot do the layer."""
    found = stem.ranked(layer, units) if layer.prologue is None else []
    return sorted(found, key=lambda block: stem_cost(layer, block, units))


#: What the other kernels take there: so much, and so much of what they take by their own estimates; the most of these.
#: (VGG-16's layers of 6 to 13 us by that of halo.cu take 0.9 to 0.96 of what they take alone; its 25088 to 4096 56.6 us
#: by that of matvec.cu, and 52.6 by tiles. That of window.cu was 1 to 1.7 us slower, in SqueezeNet and others, than
#: those of the same estimate, and took 110 us of sixteen images of AlexNet's first layer, 49 by its own estimate; that
#: of wide_stem.cu 0.3 and 0.6 us quicker than stem.cu's for windows of 7x7.)
_OTHERS = {
    matvec: ((-0.5, 1.0), (-2.0, 1.2)), persistent: ((0.0, 0.75),), window: ((2.8, 0.4), (-10.0, 1.2)),
    wide_stem: ((0.0, 0.85),), halo: ((0.5, 0.75), (-0.5, 0.95)),
}  # fmt: skip


def measured(estimate: Callable[..., float]) -> Callable[..., float]:
    """The estimate of another kernel, as it is where kernels overlap."""
    lines = next((lines for module, lines in _OTHERS.items() if module.cost is estimate), ((0.0, 1.0),))
    return lambda *args: max(more + times * float(estimate(*args)) for more, times in lines)


def knows(layer: Layer) -> bool:
    """Whether these estimates are of layers that read their inputs like this one."""
    return layer.access in ("POINTS", "WINDOW") and layer.gate is None


def tiles(layer: Layer, product: tile.TileProduct, units: int) -> list[WorkgroupTile]:
    """For the kernel of convolution.cu, those that make sense, the cheapest first; none for layers it does not know."""
    if not knows(layer):
        return []
    found = [t for t in (*tile.candidates(True, product.capability), *more_tiles()) if tile.suits(t, product)]
    found = [t for t in found if t.shared_bytes(True) + factors_bytes(layer, t.depth) + _OWN_BYTES <= SHARED_BYTES]
    return sorted(found, key=lambda t: (tile_cost(layer, t, units), t.threads))


def divisions(layer: Layer, capability: int, units: int) -> list[SpecializedTile]:
    """For that of specialized.cu, as tiles()."""
    if not knows(layer):
        return []
    row = specialized.row_bytes(layer)
    found = specialized.that_suit(layer, capability, (*specialized.candidates(), *more_divisions()))
    found = [t for t in found if t.shared_bytes(row) + factors_bytes(layer) + _OWN_BYTES <= SHARED_BYTES]
    return sorted(found, key=lambda t: (specialized_cost(layer, t, units), t.threads))


@functools.cache
def more_tiles() -> tuple[WorkgroupTile, ...]:
    """Of eight warps, which divide the depth: large steps, and many of them under way."""
    shapes = [
        (16, 16, (1, 1, 8)), (16, 32, (1, 1, 8)), (32, 16, (1, 1, 8)), (32, 32, (1, 1, 8)), (16, 64, (1, 1, 8)),
        (32, 64, (1, 2, 4)), (64, 32, (2, 1, 4)), (64, 64, (2, 2, 2)),
    ]  # fmt: skip
    found = [WorkgroupTile(m, n, k, w, s) for m, n, w in shapes for k in (128, 256, 512) for s in (2, 3, 4, 5, 6, 8)]
    return tuple(t for t in found if t.fits(True) and t not in tile.candidates(True))


@functools.cache
def more_divisions() -> tuple[SpecializedTile, ...]:
    """Whose rings hold more of the depth, as far as the shared memory goes that all kernels have."""
    shapes = [
        (64, 64, 1, 6, 2), (64, 64, 1, 8, 1), (64, 128, 1, 5, 1),
        (128, 64, 2, 5, 1), (128, 128, 2, 4, 1),
    ]  # fmt: skip
    return tuple(SpecializedTile(*shape, n) for shape in shapes for n in (1, 2, 4, 8))


def _groups(layer: Layer, t: WorkgroupTile | SpecializedTile) -> int:
    """Tiles of the result."""
    return -(-math.prod(layer.shape[:3]) // t.rows) * -(-layer.shape[3] // t.columns)


def _resident(shared: int, threads: int, most: int) -> int:
    """Workgroups that share a multiprocessor."""
    return max(1, min(most, SHARED_BYTES // (shared + _OWN_BYTES), _THREADS // threads))
