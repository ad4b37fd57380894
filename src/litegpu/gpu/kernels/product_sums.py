"""What a matrix product adds up: numbers, four in a vector, or bytes, four terms of a sum in a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from litegpu.gpu.graph import DType, IntegerMatMul, MatMul
from litegpu.gpu.kernels.access import Index, Source
from litegpu.gpu.kernels.blocking import ThreadTile, TilePlace, accumulate, total_of_parts, transposed
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.terms import ONES, sum_type
from litegpu.gpu.lang import Array, Kernel, TracedValue, i32, i32x4, u32


class ProductSums(Protocol):
    """The sums of one thread's tile."""

    k: Kernel

    def read(self, source: Source, at: tuple[Index, Index, Index, Index]) -> TracedValue:
        """Four neighbours along the innermost axis, at quad (b, h, y, q)."""

    def rows(self, found: Sequence[TracedValue], *, across: bool) -> Sequence[TracedValue]:
        """What add() takes for rows of `a`, of what was read of them; `across`: of four, which lie innermost."""

    def columns(self, found: Sequence[TracedValue], *, across: bool) -> Sequence[TracedValue]:
        """The same for four columns of `b`; `across`: each lies innermost."""

    def add(self, rows: Sequence[TracedValue], columns: Sequence[Sequence[TracedValue]], terms: int) -> None:
        """So many terms, up to four, for each row and each quad of columns."""

    def parts(self) -> Array:
        """As in Terms."""

    def whole(self, total: TracedValue, q: Index) -> TracedValue:
        """As in Terms."""

    def totals(self, place: TilePlace) -> list[TracedValue]:
        """The sums for row p and quad c of the tile, at p * tile.quads + c. Reached by the whole workgroup."""


def open_sums(
    ctx: KernelContext, k: Kernel, tile: ThreadTile, op: MatMul | IntegerMatMul, a: Source, b: Source
) -> ProductSums:
    """For a node's product of a and b. Bytes are multiplied one by one beside a backend's own kernels, where nobody has
    measured what four at once gain."""
    if isinstance(op, IntegerMatMul) and ctx.features.byte_products and not ctx.features.native:
        return _Bytes(k, tile, op, a, b)
    return _Numbers(k, tile, op)


class _Numbers:
    """Of float32 or int32."""

    def __init__(self, k: Kernel, tile: ThreadTile, op: MatMul | IntegerMatMul) -> None:
        self.k, self.tile, self.op = k, tile, op
        self.sums = k.array(tile.pixels * tile.quads, constant(k, 0, sum_type(op)))

    def read(self, source: Source, at: tuple[Index, Index, Index, Index]) -> TracedValue:
        return source.quad(*at)

    def rows(self, found: Sequence[TracedValue], *, across: bool) -> Sequence[TracedValue]:
        return transposed(self.k, found) if across else found

    columns = rows

    def add(self, rows: Sequence[TracedValue], columns: Sequence[Sequence[TracedValue]], terms: int) -> None:
        op = self.op
        if isinstance(op, IntegerMatMul):
            rows = [row - op.zero_point for row in rows]
            columns = [[lane - op.other_zero_point for lane in column] for column in columns]
        accumulate(self.k, self.sums, rows, columns, terms)

    def parts(self) -> Array:
        return self.sums

    def whole(self, total: TracedValue, q: Index) -> TracedValue:
        return total

    def totals(self, place: TilePlace) -> list[TracedValue]:
        return total_of_parts(self.k, self.tile, place.part, self.sums)


class _Bytes:
    """Of bytes as they are stored, signed. With s = sum(a * b) the sum of (a - za) * (b - zb) is
    s - za * sum(b) - zb * sum(a) + count * za * zb."""

    def __init__(self, k: Kernel, tile: ThreadTile, op: IntegerMatMul, a: Source, b: Source) -> None:
        self.k, self.tile = k, tile
        self.count = a.view.shape[2 if op.transpose_a else 3]
        self.zeros = [
            zero - (128 if source.view.dtype is DType.UINT8 else 0)
            for zero, source in ((op.zero_point, a), (op.other_zero_point, b))
        ]
        self.sums = k.array(tile.pixels * tile.quads, k.const(0, i32x4))
        self.of_a = k.array(tile.pixels, k.const(0, i32)) if self.zeros[1] else None
        self.of_b = k.array(tile.quads, k.const(0, i32x4)) if self.zeros[0] else None

    def read(self, source: Source, at: tuple[Index, Index, Index, Index]) -> TracedValue:
        return source.word(*at)

    def rows(self, found: Sequence[TracedValue], *, across: bool) -> Sequence[TracedValue]:
        return exchanged(self.k, found) if across else found

    def columns(self, found: Sequence[TracedValue], *, across: bool) -> Sequence[TracedValue]:
        return found if across else exchanged(self.k, found)

    def add(self, rows: Sequence[TracedValue], columns: Sequence[Sequence[TracedValue]], terms: int) -> None:
        k, n = self.k, len(columns)
        if terms < 4:  # the rest of a word is anything
            mask = (1 << 8 * terms) - 1
            rows, columns = [row & mask for row in rows], [[word & mask for word in words] for words in columns]
        quads = [k.vec(*words) for words in columns]
        for p, row in enumerate(rows):
            for c, quad in enumerate(quads):
                self.sums[p * n + c] = k.dot4(k.splat(row, 4), quad, self.sums[p * n + c])
            if self.of_a is not None:
                self.of_a[p] = k.dot4(row, k.const(ONES, i32), self.of_a[p])
        if self.of_b is not None:
            for c, quad in enumerate(quads):
                self.of_b[c] = k.dot4(quad, k.const(ONES, i32x4), self.of_b[c])

    def parts(self) -> Array:
        k, n, (a, b) = self.k, self.tile.quads, self.zeros
        for i in range(len(self.sums)):
            if self.of_a is not None:
                self.sums[i] = self.sums[i] - k.splat(self.of_a[i // n] * b, 4)
            if self.of_b is not None:
                self.sums[i] = self.sums[i] - self.of_b[i % n] * a
        return self.sums

    def whole(self, total: TracedValue, q: Index) -> TracedValue:
        a, b = self.zeros
        terms = int(np.int64(self.count * a * b).astype(np.int32))
        return total + terms if terms else total

    def totals(self, place: TilePlace) -> list[TracedValue]:
        totals = total_of_parts(self.k, self.tile, place.part, self.parts())
        return [self.whole(total, 0) for total in totals]


def exchanged(k: Kernel, words: Sequence[TracedValue]) -> list[TracedValue]:
    """Byte i of the result's word j is byte j of words[i], of up to four i32."""
    r = [k.bitcast(word, u32) for word in words] + [k.const(0, u32)] * (4 - len(words))
    even, odd = 0x00FF00FF, 0xFF00FF00
    pairs = [((r[i] & even) | (r[i + 1] & even) << 8, (r[i] & odd) >> 8 | (r[i + 1] & odd)) for i in (0, 2)]
    made = [(low & 0xFFFF) | high << 16 for low, high in zip(*pairs, strict=True)]
    made += [low >> 16 | (high & 0xFFFF0000) for low, high in zip(*pairs, strict=True)]
    return [k.bitcast(word, i32) for word in made]
