"""By which clusters of workgroups a widening block is computed in one kernel, and what that takes."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

from litegpu.gpu.backends.cuda.kernels.inverted_cost import InvertedShape
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.backends.cuda.overlap import SHARED_BYTES

#: Warps of a workgroup, and workgroups that a cluster may have.
WARPS, SPLITS = (8, 16), (1, 2, 4, 8)
#: Rows and columns of output pixels of a cluster, and the most of both.
SIDES, MOST_PIXELS = (1, 2, 4, 7, 8, 14, 16, 28), 128
#: Taps of a window, and columns of it where these are bytes; taps, channels of the input and instructions of an
#: activation up to which it is known what kernels apart take, and sides of wide images. (With those of 33 and 129, and
#: a first layer, deeplabv3 at batch 1 took 106.5 us in place of 102.3.)
MOST_TAPS, MOST_COLUMNS = 25, 4
KNOWN_TAPS, KNOWN_INPUTS, KNOWN_EFFORT, KNOWN_SIDES = 9, 160, 8, frozenset((7, 14, 28, 56, 112))
#: What every workgroup has of shared memory beside what it asks for, and the part of the multiprocessors that clusters
#: find beside each other.
_OWN_BYTES, _TOGETHER = 1024, 10 / 11


@dataclass(frozen=True)
class WideningBlock:
    """`split` workgroups of so many warps, a cluster, compute y x x pixels; each has a part of the wide channels."""

    split: int
    y: int
    x: int
    warps: int = 8

    def __str__(self) -> str:
        return f"widening {self.split} of {self.y}x{self.x} by {self.warps} warps"

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def rows(self) -> int:
        """Pixels in whole tiles."""
        return -(-self.y * self.x // 16) * 16

    def own(self, shape: InvertedShape) -> int:
        """Wide channels of a workgroup, in whole tiles."""
        return -(-shape.channels // (16 * self.split)) * 16

    def places(self, shape: InvertedShape) -> int:
        """Wide pixels."""
        (kh, kw), (sy, sx) = shape.window, shape.stride
        return ((self.y - 1) * sy + kh) * ((self.x - 1) * sx + kw)

    def groups(self, shape: InvertedShape) -> int:
        return shape.batch * -(-shape.out_size[0] // self.y) * -(-shape.out_size[1] // self.x) * self.split

    def shared_bytes(self, shape: InvertedShape, size: int) -> int:
        own, out, tiles = self.own(shape), whole_outputs(shape), -(-self.places(shape) // 16) * 16
        narrow, wide = (whole_depth(n, size) * size + 16 for n in (shape.inputs, own))  # from row to row
        sums, channelwise = self.rows * out * 4, own * (4 if size == 2 else 8) + 16
        return (tiles + own) * narrow + (tiles + self.rows + out) * wide + sums + channelwise


def whole_depth(channels: int, size: int) -> int:
    """Channels in whole products, 32 bytes deep, of elements of so many bytes."""
    return -(-channels * size // 32) * 32 // size


def whole_outputs(shape: InvertedShape) -> int:
    """In whole tiles."""
    return -(-shape.outputs // 16) * 16


class BlockParts(NamedTuple):
    """What a kernel's time is made of."""

    begun: float  # 1: the start and the end
    sixteen: float  # 1: of sixteen warps
    expanded: float  # products of 16 x 16 that a warp does one after the other,
    products: float  # and of a workgroup, in all
    crowded: float  # the same where two workgroups may start on one multiprocessor while another has none
    windowed: float  # ten sums of a warp, of four channels of a thread
    added: float  # thousand sums of four outputs, of a workgroup each
    weights: float  # 10 KB of these
    groups: float  # twenty of more workgroups than 90, without clusters,
    clustered: float  # and a hundred in clusters
    eight: float  # 1: clusters of eight

    def at(self, rates: BlockParts) -> float:
        """Microseconds."""
        return float(sum(part * rate for part, rate in zip(self, rates, strict=True)))


#: Microseconds of each part of kernels of halves and of bytes. (One H200, chains of 135 and 143 blocks of MobileNet
#: v2's layers: off by 0.23 and 0.13 us; the first choice is 0.23 and 0.05 us slower than the best, on average.)
HALVES = BlockParts(
    begun=0.637, sixteen=0.278, expanded=0.188, products=0.0303, crowded=0.0095, windowed=0.25, added=1.539,
    weights=0.129, groups=0.43, clustered=0.773, eight=0.247,
)  # fmt: skip
BYTES = BlockParts(
    begun=1.357, sixteen=0.118, expanded=0.241, products=0.0175, crowded=0, windowed=0.268, added=0.905, weights=0.074,
    groups=0.114, clustered=0.497, eight=0.295,
)  # fmt: skip
#: What kernels apart take: to begin with, for each million bytes of the widened image and of the window's, for ten
#: million products of the 1x1 layers, and for each thousand channels; of halves and of bytes. By so many microseconds
#: the joint one has to be quicker. (The layers above: off by 0.2 and 0.1 us.)
APART = (2.655, 0.387, 0.57, 0.531, 0.961), (3.247, 0.776, 0.997, 0.15, 0.82)
GAIN = 0.1


def parts(shape: InvertedShape, size: int, block: WideningBlock) -> BlockParts:
    split, own, groups = block.split, block.own(shape), block.groups(shape)
    products = -(-block.places(shape) // 16) * (own // 16)
    return BlockParts(
        begun=1,
        sixteen=block.warps > 8,
        expanded=-(-products // block.warps),
        products=products,
        crowded=products * (block.shared_bytes(shape, size) + _OWN_BYTES <= SHARED_BYTES // 2),
        windowed=block.rows * own / 1280,
        added=block.rows // split * -(-shape.outputs // 4) * split / 1e3,
        weights=own * (shape.inputs + shape.outputs) * size / 1e4,
        groups=(split == 1) * max(0, groups - 90) / 20,
        clustered=(split > 1) * groups / 100,
        eight=split > 4,
    )


def cost(shape: InvertedShape, size: int, block: WideningBlock) -> float:
    """Estimated microseconds where kernels overlap, of elements of `size` bytes."""
    return parts(shape, size, block).at(BYTES if size == 1 else HALVES)


@functools.lru_cache(maxsize=256)
def ranked(shape: InvertedShape, size: int, units: int) -> tuple[WideningBlock, ...]:
    """Those that fit, and of which each multiprocessor has one at most, the cheapest first. `size`: bytes of an
    element."""
    height, width = shape.out_size
    found = [
        WideningBlock(split, y, x, warps) for split, y, x, warps in itertools.product(SPLITS, SIDES, SIDES, WARPS)
        if y < height + 2 and x < width + 2 and y * x <= MOST_PIXELS
    ]  # fmt: skip
    fitting = [
        b for b in found
        if b.shared_bytes(shape, size) + _OWN_BYTES <= SHARED_BYTES and b.rows % b.split == 0
        and b.groups(shape) <= (units or USUAL_UNITS) * (_TOGETHER if b.split > 1 else 1)
        and b.own(shape) <= 4 * b.threads and 16 * (b.split - 1) < shape.channels and b.rows < 2 * b.y * b.x + 8
    ]  # fmt: skip
    return tuple(sorted(fitting, key=lambda b: (cost(shape, size, b), b.split, b.y, b.warps)))


def is_quicker(shape: InvertedShape, size: int, units: int) -> bool:
    """Whether the kernel can do a block, and takes less than those apart."""
    fits = math.prod(shape.window) <= min(MOST_TAPS, KNOWN_TAPS) and (size == 2 or shape.window[1] <= MOST_COLUMNS)
    known = shape.inputs <= KNOWN_INPUTS and max(shape.effort) <= KNOWN_EFFORT
    known = known and KNOWN_SIDES.issuperset(shape.size)
    if not fits or not known or not shape.inputs or not shape.outputs or shape.stem:
        return False
    blocks = ranked(shape, size, units)
    return bool(blocks) and cost(shape, size, blocks[0]) + GAIN < apart(shape, size)


def apart(shape: InvertedShape, size: int) -> float:
    """Estimated microseconds of the layers as kernels of their own, or two of them in one."""
    wide, results = (shape.batch * math.prod(s) for s in (shape.size, shape.out_size))
    products = shape.channels * (wide * shape.inputs + results * shape.outputs)
    each = shape.channels * size / 1e6
    found = (1, wide * each, results * each, products / 1e7, shape.channels / 1e3)
    return sum(part * rate for part, rate in zip(found, APART[size == 1], strict=True))
