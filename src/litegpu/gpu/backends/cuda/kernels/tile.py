"""Which part of a matrix product a workgroup computes, and how: the candidates, and a model of what they cost."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

#: The least compute capability, times ten, that has what native kernels use: products of halves and of bytes on tensor
#: cores. And that which has asynchronous copies to shared memory; before it threads copy through registers.
LEAST_CAPABILITY, COPYING_CAPABILITY = 75, 80
#: Shared memory of a workgroup that every device with asynchronous copies has (sm_86: 99 KiB), and older ones.
MOST_SHARED_BYTES, MOST_OLD_SHARED_BYTES = 99 << 10, 64 << 10
USUAL_UNITS, MEASURED_UNITS = 64, 132
#: Microseconds that an instruction for an element takes, where 128 threads have one at a time.
PREPARED = 1 / (128 * 1700)
#: The compute capability that has warpgroup products (wgmma), and the shared memory that a workgroup can have there.
WARPGROUP_CAPABILITY = 90
#: Those whose tensor cores do three products of TF32 in less time than others do one of float32: of data centres.
TF32_CAPABILITIES = frozenset({80, 90})
MOST_WARPGROUP_SHARED_BYTES = 227 << 10
#: The same where it is more than MOST_SHARED_BYTES, by compute capability: of data centres, and of Jetson boards.
_MULTIPROCESSOR_SHARED_BYTES = {75: 64 << 10}
_LARGE_SHARED_BYTES = {80: 163 << 10, 87: 163 << 10} | dict.fromkeys(
    (90, 100, 101, 103, 110), MOST_WARPGROUP_SHARED_BYTES
)


def device_shared_bytes(capability: int) -> int:
    """Of a workgroup, at most, on devices of that compute capability; of unknown ones, what all have since 8.0."""
    return _LARGE_SHARED_BYTES.get(capability, most_shared_bytes(capability))


def multiprocessor_shared_bytes(capability: int) -> int:
    """Of all workgroups that a multiprocessor has at once, each with a KiB of its own."""
    return _MULTIPROCESSOR_SHARED_BYTES.get(capability, device_shared_bytes(capability) + 1024)


def multiprocessor_threads(capability: int) -> int:
    """That every multiprocessor can have at once, on devices of that compute capability or later."""
    return 1536 if capability >= COPYING_CAPABILITY else 1024


def times_slower(capability: int, units: int) -> float:
    """How much longer all multiprocessors together take than those of the H200 on which work of a whole device was
    measured. Others have at most as much bandwidth and arithmetic each, or little more; Hopper's smaller ones have the
    same memory."""
    return 1.0 if capability == WARPGROUP_CAPABILITY else MEASURED_UNITS / (units or MEASURED_UNITS)


def most_shared_bytes(capability: int) -> int:
    """Of a workgroup by products of one warp, on devices of that compute capability."""
    return MOST_SHARED_BYTES if capability >= COPYING_CAPABILITY else MOST_OLD_SHARED_BYTES


def divided_registers(each: int, multiplying: int, copy: int) -> tuple[int, int]:
    """Of a thread that copies, `copy`, and of one of so many warpgroups that multiply and take what it gives up, where
    the kernel begins with so many of each."""
    return copy, min(240, (each * (multiplying + 1) - copy) // multiplying // 8 * 8)


def that_fit(options: Sequence[T], shared_bytes: Callable[[T], int], capability: int) -> Sequence[T]:
    """Those of some options, which all fit into MOST_SHARED_BYTES, that fit on a device of that compute capability."""
    if capability >= COPYING_CAPABILITY:
        return options
    return [option for option in options if shared_bytes(option) <= MOST_OLD_SHARED_BYTES]


@dataclass(frozen=True)
class TileProduct:
    """[rows, depth] times [depth, columns], both in float16 (`half`) or float32; sums are float32. Bytes take what half
    as many of float16 do: a product of them has half their depth."""

    rows: int
    columns: int
    depth: int
    half: bool
    gathered: bool = False  # the left factor is read element by element
    windowed: bool = False  # where its rows lie has to be computed for every copy
    capability: int = COPYING_CAPABILITY  # of the device
    prepared: float = 0.0  # instructions for each element of the left factor before it is multiplied
    tf32: bool = False  # tensor cores may multiply it, of float32, and are quicker
    shared: int = MOST_WARPGROUP_SHARED_BYTES + 1024  # bytes of a multiprocessor's shared memory


@dataclass(frozen=True)
class WorkgroupTile:
    """A workgroup computes rows x columns and takes `depth` of the sum at a time, with copies `stages` deep; its warps
    divide rows, columns and depth among them. With `warpgroups`, four warps along the rows multiply together, and read
    both factors right from shared memory; with `tf32` tensor cores multiply floats, each as two of TF32."""

    rows: int
    columns: int
    depth: int
    warps: tuple[int, int, int]
    stages: int
    warpgroups: bool = False
    tf32: bool = False

    def __str__(self) -> str:
        together = ("t" if self.tf32 else "") + ("w" if self.warpgroups else "")
        return f"{self.rows}x{self.columns}x{self.depth}-{'x'.join(map(str, self.warps))}{together}-{self.stages}"

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1] * self.warps[2]

    @property
    def files(self) -> tuple[str, ...]:
        """Of this folder, those that product.cu needs, and itself."""
        warpgroup, tf32 = ("warpgroup.cu",) if self.warpgroups else (), ("tf32.cu", "rests.cu") if self.tf32 else ()
        return ("device.cu", *warpgroup, *tf32, "product.cu")

    def constants(self) -> dict[str, int | str]:
        """As product.cu calls them."""
        tf32: dict[str, int | str] = {"TF32": 1} if self.tf32 else {}
        return tf32 | {
            "BM": self.rows, "BN": self.columns, "BK": self.depth, "STAGES": self.stages, "WARPS_M": self.warps[0],
            "WARPS_N": self.warps[1], "WARPS_K": self.warps[2], "WARPGROUPS": int(self.warpgroups),
        }  # fmt: skip

    @property
    def has_rests(self) -> bool:
        """Whether what TF32 leaves of the right factor's tile is copied behind it."""
        return self.tf32 and self.warpgroups

    @property
    def copied_columns(self) -> int:
        """Rows that are copied of the right factor."""
        return self.columns * (2 if self.has_rests else 1)

    def shared_bytes(self, half: bool) -> int:
        """What the copies need, or afterwards the sums."""
        copies = self.stages * (self.rows + self.copied_columns) * self.depth * (2 if half else 4)
        return max(copies, self.warps[2] * self.rows * (self.columns + 8) * 4)

    def fits(self, half: bool) -> bool:
        chunks = self.depth // (8 if half else 4)
        tensor = half or self.tf32
        rows, columns = (16, 16) if tensor else (4, 8)  # of a warp, at least
        if self.warpgroups and self.shared_bytes(half) > MOST_WARPGROUP_SHARED_BYTES:
            return False
        return (
            self.rows % (rows * self.warps[0]) == 0
            and self.columns % (columns * self.warps[1]) == 0
            and self.threads % chunks == 0
            and (chunks // 2 if tensor else chunks) % self.warps[2] == 0
            and (self.warpgroups or self.shared_bytes(half) <= MOST_SHARED_BYTES)
        )


@functools.cache
def candidates(half: bool, capability: int = COPYING_CAPABILITY) -> tuple[WorkgroupTile, ...]:
    """All tiles that are worth a try."""
    if capability < COPYING_CAPABILITY:
        return tuple(t for t in candidates(half) if t.shared_bytes(half) <= most_shared_bytes(capability))
    if half and capability == WARPGROUP_CAPABILITY:
        return candidates(half) + warpgroup_candidates()
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
    tiles = [WorkgroupTile(m, n, k, w, s) for m, n, w in shapes for k in depths for s in (2, 3, 4)]
    return tuple(t for t in tiles if t.fits(half))


@functools.cache
def tf32_candidates() -> tuple[WorkgroupTile, ...]:
    """Tiles of floats for tensor cores, a warp's."""
    shapes = [
        (16, 16, (1, 1, 4)), (32, 32, (1, 1, 4)), (32, 32, (2, 2, 1)), (64, 16, (4, 1, 1)), (64, 32, (2, 1, 2)),
        (64, 32, (4, 1, 1)), (64, 64, (2, 2, 1)), (128, 32, (4, 1, 1)), (64, 128, (2, 2, 1)), (128, 64, (4, 1, 1)),
        (128, 64, (4, 2, 1)), (128, 128, (4, 2, 1)),
    ]  # fmt: skip
    tiles = [WorkgroupTile(m, n, k, w, s, tf32=True) for m, n, w in shapes for k in (16, 32, 64) for s in (2, 3, 4)]
    return tuple(t for t in tiles if t.fits(False))


@functools.cache
def tf32_warpgroup_candidates() -> tuple[WorkgroupTile, ...]:
    """The same, of which each four warps multiply 64 rows at once."""
    shapes = [(64, 32, 4), (64, 64, 4), (64, 128, 4)]
    ways = [(k, s) for k in (16, 32) for s in (3, 2, 4)]
    tiles = [WorkgroupTile(m, n, k, (w, 1, 1), s, True, True) for m, n, w in shapes for k, s in ways]
    return tuple(t for t in tiles if t.fits(False))


def warpgroup_candidates() -> tuple[WorkgroupTile, ...]:
    """Tiles of which each four warps multiply 64 rows at once."""
    shapes = [
        (64, 32, 4), (64, 64, 4), (64, 128, 4), (64, 256, 4), (128, 32, 8), (128, 64, 4), (128, 64, 8), (128, 128, 4),
        (128, 128, 8), (128, 256, 8), (256, 32, 8), (256, 64, 8), (256, 128, 8),
    ]  # fmt: skip
    tiles = [WorkgroupTile(m, n, k, (w, 1, 1), s, True) for m, n, w in shapes for k in (32, 64) for s in (2, 3, 4)]
    return tuple(t for t in tiles if t.fits(True))


def sensible_candidates(product: TileProduct) -> list[WorkgroupTile]:
    """Those that need of neither factor more than its elements, and of which no smaller one does the same."""
    found = candidates(product.half, product.capability) + (tf32_candidates() if product.tf32 else ())
    return [t for t in found if suits(t, product)]


def ranked(product: TileProduct, units: int) -> list[WorkgroupTile]:
    """The candidates that make sense where the host packs the right factor, the cheapest on a device of `units`
    multiprocessors first."""
    sensible = sensible_candidates(product)
    if product.tf32 and product.capability == WARPGROUP_CAPABILITY:
        sensible += [t for t in tf32_warpgroup_candidates() if suits(t, product)]
    return sorted(sensible, key=lambda tile: (cost(product, tile, units), tile.threads))


def suits(tile: WorkgroupTile, product: TileProduct) -> bool:
    """Whether no smaller tile or pipeline does the same work."""
    steps = -(-product.depth // tile.depth)
    if tile.has_rests and 2 < tile.stages >= steps:  # smaller ones have more workgroups side by side
        return False
    return (
        (tile.depth < 2 * product.depth or tile.depth <= 64)
        and tile.stages <= max(2, steps + 1)
        and (tile.rows < 2 * product.rows or tile.rows == 16)
        and (tile.columns < 2 * product.columns or tile.columns == 16)
    )


@dataclass(frozen=True)
class Rates:
    """What the parts of a workgroup's work take, in microseconds.

    Fitted to 6000 (float16) and 2900 (float32) measurements of candidates on an H200, so that the first choice takes
    little longer than the best one: 2.3% and 5.4% on average. Other devices rank them much alike; `tuning` measures.
    """

    start: float  # until the first copies have arrived
    step: float  # of a barrier, and waiting for what it guards
    barrier: float  # what of it other workgroups cannot use
    slice: float  # 16 (float16), 8 (TF32) or 4 (float32) of the depth, in one warp
    fragment: float  # loading one element of the factors, in one warp
    copied: float  # a byte of the factors
    latency: float  # of a copy, to be divided by those under way, where there are more steps than that
    gathered: float  # how much more a byte costs that is read element by element
    windowed: float  # how much more a byte costs whose place has to be computed, and
    computed: float  # how much longer a step takes
    multiplied: float  # one multiplication
    warps: float  # that are needed for that rate
    stored: float  # a sum
    finish: float
    group: float  # more, of a workgroup among many
    resident: float  # workgroups, and
    threads: float  # threads, that share a multiprocessor well
    waves: float  # exponent: less than one if what follows overlaps
    moved: float  # a byte of the left factor and the result, which a multiprocessor gets from memory


HALF_RATES = Rates(
    start=0.562, step=0.0429, barrier=0.0587, slice=0.0587, fragment=1.07e-6, copied=2.49e-6, latency=0.323,
    gathered=11.2, windowed=1.24, computed=0.105, multiplied=3.63e-7, warps=5.85, stored=1.22e-4, finish=1.07,
    group=0.11, resident=2.86, threads=450, waves=0.871, moved=6.96e-6,
)  # fmt: skip
WARPGROUP_RATES = Rates(
    start=0.668, step=0.0819, barrier=0.0157, slice=0.0233, fragment=7.38e-9, copied=3.25e-6, latency=0.432,
    gathered=16.2, windowed=0.456, computed=0.0688, multiplied=2.92e-7, warps=9.0, stored=1.33e-4, finish=0.88,
    group=0.0249, resident=4.98, threads=736, waves=1.1, moved=5.32e-6,
)  # fmt: skip
FLOAT_RATES = Rates(
    start=0.909, step=0.259, barrier=0, slice=0.211, fragment=6.6e-6, copied=8.3e-7, latency=5.42, gathered=44,
    windowed=1, computed=0, multiplied=8.96e-6, warps=12, stored=6.8e-5, finish=0.562, group=0.0002, resident=32,
    threads=497, waves=0.87, moved=0,
)  # fmt: skip


#: Fitted to 590 and 770 measurements on an H200 and an H100: 3.3% and 4.3% on average; but not the latency, since all
#: factors were in the second cache there, and weights of a network's layers are not.
TF32_RATES = Rates(
    start=1.11, step=0.0217, barrier=0.0471, slice=0.151, fragment=5.32e-06, copied=6.42e-07, latency=1.0,
    gathered=24.2, windowed=2.21, computed=0.025, multiplied=4.11e-06, warps=8.38, stored=8.86e-05, finish=1.62,
    group=0.0365, resident=2.57, threads=507.0, waves=0.807, moved=2.89e-06,
)  # fmt: skip
TF32_WARPGROUP_RATES = Rates(
    start=1.41, step=0.134, barrier=0.109, slice=0.0547, fragment=6.13e-06, copied=2e-06, latency=0.8,
    gathered=13.5, windowed=0.971, computed=0.0136, multiplied=1.5e-06, warps=9.99, stored=0.000167, finish=1.28,
    group=5.25e-08, resident=13.6, threads=1150.0, waves=0.892, moved=4.65e-06,
)  # fmt: skip


def cost(product: TileProduct, tile: WorkgroupTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors.

    A workgroup waits for its first copies, then each step takes as long as the slowest of its parts, then it stores.
    Workgroups on one multiprocessor overlap as long as they have different parts of it to wait for.
    """
    floats = (TF32_WARPGROUP_RATES if tile.warpgroups else TF32_RATES) if tile.tf32 else FLOAT_RATES
    r = (WARPGROUP_RATES if tile.warpgroups else HALF_RATES) if product.half else floats
    units, size = units or USUAL_UNITS, 2 if product.half else 4
    groups = -(-product.rows // tile.rows) * -(-product.columns // tile.columns)
    steps = -(-product.depth // tile.depth)
    down, across, along = tile.warps
    rows = tile.rows * (r.gathered if product.gathered else r.windowed if product.windowed else 1)
    copied = (rows + tile.copied_columns) * tile.depth * size * r.copied
    multiplied = tile.rows * tile.columns * tile.depth * r.multiplied
    prepared = tile.rows * tile.depth * product.prepared * PREPARED
    slices = tile.depth // (16 if product.half else 8 if tile.tf32 else 4) / along
    loaded = tile.depth * (tile.rows / down + tile.columns / across) / along * r.fragment
    in_flight = min(tile.stages - 1, steps)
    step = r.step + (r.computed if product.windowed else 0)
    waiting = max(step + r.slice * slices + loaded, r.latency / in_flight if steps > in_flight else 0)
    stored = tile.rows * tile.columns * along * r.stored
    working = multiplied * max(1.0, r.warps * 32 / tile.threads)
    preparing = 0.05 + prepared * max(1.0, 256 / tile.threads) if prepared else 0.0
    alone = r.start + steps * (max(waiting, working, copied) + preparing) + stored + r.finish
    busy = (steps * (r.barrier + copied + multiplied + prepared) + stored + r.group) * -(-groups // units)
    moved = product.rows * (product.depth + product.columns) * size * r.moved / units
    fitting = max(1, (product.shared - 1024) // (tile.shared_bytes(product.half) + 1024))
    resident = min(r.resident, fitting, max(1, r.threads // tile.threads))
    waves = max(1.0, groups / (units * resident))
    return float(max(alone * waves**r.waves, busy + moved))
