"""Which part of a matrix product a workgroup computes, and how: the candidates, and a model of what they cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass

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
            (128, 128, (4, 2, 1)), (64, 96, (2, 2, 1)), (64, 48, (4, 1, 1)),
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


def cost(product: Product, tile: Tile, units: int) -> float:
    """Estimated cycles.

    A workgroup waits for its first copies, then alternates between waiting for a step and computing it, then stores.
    Those that share a multiprocessor overlap, and share the rate of its copies and its arithmetic.
    """
    units = units or USUAL_UNITS
    m, n = -(-product.rows // tile.rows), -(-product.columns // tile.columns)
    steps = -(-product.depth // tile.depth)
    groups = m * n
    size = 2 if product.half else 4
    # of one workgroup, alone
    copied = (tile.rows + tile.columns) * tile.depth * size / 64  # cycles at the rate of the second-level cache
    if product.gathered:
        copied *= 4
    rate = 1024 if product.half else 128  # multiplications per cycle
    arithmetic = tile.rows * tile.columns * tile.depth / rate
    warps = tile.threads // 32
    issue = arithmetic * max(1.0, 4 / warps)  # few warps do not keep the units busy
    latency = 60 + 25 * (tile.depth // 16 if product.half else tile.depth // 4) / tile.warps[2]
    stored = tile.rows * tile.columns * (4 * tile.warps[2] + 4) / 64 + 150
    in_flight = min(tile.stages - 1, steps)
    alone = 700 + copied + steps * max(latency, issue, copied, 600 / in_flight if steps > in_flight else 0) + stored
    busy = steps * max(copied, arithmetic) + stored
    # together
    resident = min(8, max(1, (200 << 10) // tile.shared_bytes(product.half)), max(1, 1536 // tile.threads))
    per_unit = -(-groups // units)
    waves = -(-per_unit // resident)
    return max(waves * alone, per_unit * busy)
