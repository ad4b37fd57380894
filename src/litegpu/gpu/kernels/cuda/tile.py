"""Which part of a matrix product a workgroup computes, and how: the candidates, and a model of what they cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass

#: The least compute capability, times ten, that has what native kernels use: asynchronous copies to shared memory.
LEAST_CAPABILITY = 80
#: Shared memory of a workgroup that every device with these instructions has (sm_86: 99 KiB).
MOST_SHARED_BYTES = 99 << 10
USUAL_UNITS = 64


@dataclass(frozen=True)
class Product:
    """[rows, depth] times [depth, columns], both in float16 (`half`) or float32; sums are float32."""

    rows: int
    columns: int
    depth: int
    half: bool
    gathered: bool = False  # the left factor is read element by element


@dataclass(frozen=True)
class Tile:
    """A workgroup computes rows x columns and takes `depth` of the sum at a time, with copies `stages` deep; its warps
    divide rows, columns and depth among them."""

    rows: int
    columns: int
    depth: int
    warps: tuple[int, int, int]
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}-{'x'.join(map(str, self.warps))}-{self.stages}"

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1] * self.warps[2]

    def shared_bytes(self, half: bool) -> int:
        """What the copies need, or afterwards the sums."""
        copies = self.stages * (self.rows + self.columns) * self.depth * (2 if half else 4)
        return max(copies, self.warps[2] * self.rows * (self.columns + 8) * 4)

    def fits(self, half: bool) -> bool:
        chunks = self.depth // (8 if half else 4)
        rows, columns = (16, 16) if half else (4, 8)  # of a warp, at least
        return (
            self.rows % (rows * self.warps[0]) == 0
            and self.columns % (columns * self.warps[1]) == 0
            and self.threads % chunks == 0
            and (self.depth // 16 if half else chunks) % self.warps[2] == 0
            and self.shared_bytes(half) <= MOST_SHARED_BYTES
        )


@functools.cache
def candidates(half: bool) -> tuple[Tile, ...]:
    """All tiles that are worth a try."""
    if half:
        shapes = [
            (16, 16, (1, 1, 4)), (16, 32, (1, 1, 4)), (32, 16, (1, 1, 4)), (32, 32, (1, 1, 4)), (32, 32, (2, 2, 1)),
            (64, 16, (4, 1, 1)), (64, 16, (2, 1, 2)), (32, 64, (1, 2, 2)), (64, 32, (2, 1, 2)), (64, 32, (4, 1, 1)),
            (64, 64, (2, 2, 1)), (64, 64, (2, 2, 2)), (128, 16, (4, 1, 1)), (128, 32, (4, 1, 1)), (64, 128, (2, 2, 1)),
            (128, 48, (4, 1, 1)), (128, 64, (4, 1, 1)), (128, 64, (4, 2, 1)), (128, 96, (4, 2, 1)),
            (128, 128, (4, 2, 1)), (64, 96, (2, 2, 1)), (64, 48, (4, 1, 1)), (128, 128, (2, 2, 1)),
            (256, 64, (4, 1, 1)),
        ]  # fmt: skip
        depths: tuple[int, ...] = (16, 32, 64, 128)
    else:
        shapes = [
            (16, 16, (1, 1, 4)), (16, 32, (1, 1, 4)), (32, 32, (1, 1, 4)), (32, 32, (2, 2, 1)), (64, 16, (4, 1, 1)),
            (64, 32, (4, 1, 1)), (64, 64, (2, 2, 1)), (128, 16, (4, 1, 1)), (128, 32, (4, 1, 1)), (64, 128, (2, 2, 1)),
            (128, 64, (4, 1, 1)), (128, 64, (4, 2, 1)), (128, 128, (4, 2, 1)), (64, 32, (2, 1, 2)),
        ]  # fmt: skip
        depths = (16, 32, 64)
    tiles = [Tile(m, n, k, w, s) for m, n, w in shapes for k in depths for s in (2, 3, 4)]
    return tuple(t for t in tiles if t.fits(half))


def ranked(product: Product, units: int) -> list[Tile]:
    """The candidates that make sense, the cheapest on a device of `units` multiprocessors first."""
    sensible = [t for t in candidates(product.half) if _suits(t, product)]
    return sorted(sensible, key=lambda tile: (cost(product, tile, units), tile.threads))


def _suits(tile: Tile, product: Product) -> bool:
    """Whether no smaller tile or pipeline does the same work."""
    steps = -(-product.depth // tile.depth)
    return (
        (tile.depth < 2 * product.depth or tile.depth <= 64)
        and tile.stages <= max(2, steps + 1)
        and (tile.rows < 2 * product.rows or tile.rows == 16)
        and (tile.columns < 2 * product.columns or tile.columns == 16)
    )


@dataclass(frozen=True)
class Rates:
    """What the parts of a workgroup's work take, in microseconds.

    Fitted to 5700 (float16) and 2900 (float32) measurements of candidates on an H200, so that the first choice takes
    little longer than the best one: 4.6% and 5.4% on average. Other devices rank them much alike; `tuning` measures.
    """

    start: float  # until the first copies have arrived
    step: float  # of a barrier, and waiting for what it guards
    slice: float  # 16 (float16) or 4 (float32) of the depth, in one warp
    fragment: float  # loading one element of the factors, in one warp
    copied: float  # a byte of the factors
    latency: float  # of a copy, to be divided by those under way, where there are more steps than that
    gathered: float  # how much more a byte costs that is read element by element
    multiplied: float  # one multiplication
    warps: float  # that are needed for that rate
    stored: float  # a sum
    finish: float
    group: float  # more, of a workgroup among many
    resident: float  # workgroups, and
    threads: float  # threads, that share a multiprocessor well
    waves: float  # exponent: less than one if what follows overlaps


HALF_RATES = Rates(
    start=0.696, step=0.365, slice=0.372, fragment=5.87e-07, copied=2.4e-07, latency=0.0111, gathered=736,
    multiplied=4.19e-08, warps=96, stored=2.28e-09, finish=0.541, group=0.183, resident=3.8, threads=514, waves=1.2,
)  # fmt: skip
FLOAT_RATES = Rates(
    start=0.909, step=0.259, slice=0.211, fragment=6.6e-6, copied=8.3e-7, latency=5.42, gathered=44,
    multiplied=8.96e-6, warps=12, stored=6.8e-5, finish=0.562, group=0.0002, resident=32, threads=497, waves=0.87,
)  # fmt: skip


def cost(product: Product, tile: Tile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    A workgroup waits for its first copies, then each step takes as long as the slowest of its parts, then it stores.
    Workgroups on one multiprocessor overlap as long as they have different parts of it to wait for.
    """
    r = HALF_RATES if product.half else FLOAT_RATES
    units = units or USUAL_UNITS
    groups = -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    steps = -(-product.depth // tile.depth)
    down, across, along = tile.warps
    rows = tile.rows * (r.gathered if product.gathered else 1)
    copied = (rows + tile.columns) * tile.depth * (2 if product.half else 4) * r.copied
    multiplied = tile.rows * tile.columns * tile.depth * r.multiplied
    slices = tile.depth // (16 if product.half else 4) / along
    loaded = tile.depth * (tile.rows / down + tile.columns / across) / along * r.fragment
    in_flight = min(tile.stages - 1, steps)
    waiting = max(r.step + r.slice * slices + loaded, r.latency / in_flight if steps > in_flight else 0)
    stored = tile.rows * tile.columns * along * r.stored
    working = multiplied * max(1.0, r.warps * 32 / tile.threads)
    alone = r.start + steps * max(waiting, working, copied) + stored + r.finish
    busy = steps * (copied + multiplied) + stored + r.group
    fitting = max(1, (227 << 10) // (tile.shared_bytes(product.half) + 1024))
    resident = min(r.resident, fitting, max(1, r.threads // tile.threads))
    waves = max(1.0, groups / (units * resident))
    return float(max(alone * waves**r.waves, busy * -(-groups // units)))
