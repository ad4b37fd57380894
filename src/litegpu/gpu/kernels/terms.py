"""What a convolution adds up: products of floats, four channels a vector, or of bytes, four channels a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from litegpu.gpu.graph import (
    DType,
    IntegerAttention,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerExcite,
    IntegerInvertedConv2D,
    IntegerMatMul,
    IntegerSeparableConv2D,
    IntegerSoftmax,
    IntegerSqueeze,
    IntegerTransposeConv2D,
    Op,
)
from litegpu.gpu.kernels.access import Index, Operands, Source, address, is_last, open_source
from litegpu.gpu.kernels.blocking import ThreadTile, TilePlace, Weights, accumulate, or_zero, total_of_parts, transposed
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang import Array, Kernel, Memory, TracedValue, Type, f32x4, i32, i32x4

ONES = 0x01010101


class Terms(Protocol):
    """The sums of one thread's tile, and what is added to them. Weights are [O,KH,KW,I], the node's input 1."""

    @property
    def source(self) -> Source:
        """The data."""

    @property
    def step(self) -> int:
        """Quads of inputs that are loaded and added at a time."""

    def parts(self) -> Array:
        """This thread's part of the sums, at p * tile.quads + c, of which whole() makes results when all are added."""

    def whole(self, total: TracedValue, q: Index) -> TracedValue:
        """The op's result where the parts of a sum for quad `q` of outputs add up to `total`."""

    def begin(self) -> None:
        """Set the sums to zero."""

    def load(self, source: Source, at: tuple[Index, Index, Index, Index], ok: TracedValue | None) -> TracedValue:
        """The channels of step number i of a pixel (b, y, x, i); what adds nothing where not `ok`."""

    def add(self, rows: Sequence[TracedValue], tap: tuple[Index, Index], i: Index, quads: Sequence[Index]) -> None:
        """Add the products of what was loaded for each pixel with the weights of a tap (ky, kx) for step `i` of the
        inputs (of a group), for each of these quads of outputs."""

    def totals(self, place: TilePlace) -> list[TracedValue]:
        """The op's result for pixel p and quad c of the tile, at p * tile.quads + c. Reached by the whole workgroup."""


def sum_type(op: Op) -> Type:
    """Of four of the results that a convolution, a product or a softmax gives."""
    integers = (
        IntegerConv2D, IntegerDepthwiseConv2D, IntegerInvertedConv2D, IntegerSeparableConv2D, IntegerTransposeConv2D,
        IntegerSqueeze, IntegerExcite, IntegerMatMul, IntegerSoftmax, IntegerAttention,
    )  # fmt: skip
    return i32x4 if isinstance(op, integers) else f32x4


def open_terms(ctx: KernelContext, k: Kernel, tile: ThreadTile, operands: Operands) -> Terms:
    """What the node's op, a convolution, adds up."""
    if isinstance(ctx.node.op, (IntegerConv2D, IntegerTransposeConv2D)):
        return _Integers(ctx, ctx.node.op, k, tile, operands)
    return _Floats(ctx, k, tile, operands)


class Columns(Protocol):
    """The weights of one tap: for four inputs, the quad of outputs each contributes to."""

    def __call__(self, ky: Index, kx: Index, iq: Index, q: Index) -> Sequence[TracedValue]: ...


class _Floats:
    """Sums are float32."""

    step = 1

    def __init__(self, ctx: KernelContext, k: Kernel, tile: ThreadTile, operands: Operands) -> None:
        self.k, self.tile = k, tile
        self.columns = _columns_of(ctx, k, operands)
        self.source = open_source(ctx, k, ctx.node.inputs[0], operands)
        self.lanes = min(ctx.value(ctx.node.inputs[1]).shape[3], 4)

    def parts(self) -> Array:
        return self.sums

    def whole(self, total: TracedValue, q: Index) -> TracedValue:
        return total

    def begin(self) -> None:
        self.sums: Array = self.k.array(self.tile.pixels * self.tile.quads, self.k.const(0.0, f32x4))

    def load(self, source: Source, at: tuple[Index, Index, Index, Index], ok: TracedValue | None) -> TracedValue:
        return or_zero(self.k, ok, source.quad(*at))

    def add(self, rows: Sequence[TracedValue], tap: tuple[Index, Index], iq: Index, quads: Sequence[Index]) -> None:
        accumulate(self.k, self.sums, rows, [self.columns(*tap, iq, q) for q in quads], self.lanes)

    def totals(self, place: TilePlace) -> list[TracedValue]:
        return total_of_parts(self.k, self.tile, place.part, self.sums)


def _columns_of(ctx: KernelContext, k: Kernel, operands: Operands) -> Columns:
    """The weights [O,KH,KW,I] of the node, a constant or a runtime value."""
    value = ctx.value(ctx.node.inputs[1])
    outputs, kh, kw, inputs = value.shape
    depth = -(-inputs // 4)
    if value.data is not None:
        array = np.zeros((kh, kw, depth * 4, outputs), np.float32)
        array[:, :, :inputs] = value.data.transpose(1, 2, 3, 0)
        weights = Weights(ctx, k, array, operands)

        def constant(ky: Index, kx: Index, iq: Index, q: Index) -> Sequence[TracedValue]:
            rows = [(ky, kw * depth * 4), (kx, depth * 4), (iq, 4)]
            return [weights(rows, q, lane) for lane in range(4)]

        return constant
    source = open_source(ctx, k, value.id, operands)

    def runtime(ky: Index, kx: Index, iq: Index, q: Index) -> Sequence[TracedValue]:
        rows = [q * 4 + j for j in range(4)]
        if outputs % 4:  # the surplus lanes are never stored
            rows = [min(r, outputs - 1) if isinstance(r, int) else k.min(r, outputs - 1) for r in rows]
        return transposed(k, [source.quad(row, ky, kx, iq) for row in rows])

    return runtime


class _Integers:
    """Sums are int32, of products of what is stored: data and weights as signed bytes, four channels a word.

    With s = sum(x * w), the sum of (x - zx) * (w - zw) is s - zx * sum(w) - zw * sum(x) + count * zx * zw. What is
    outside counts as zx. Of a transposed convolution each thread meets some of the taps: it adds up their weights."""

    def __init__(
        self,
        ctx: KernelContext,
        op: IntegerConv2D | IntegerTransposeConv2D,
        k: Kernel,
        tile: ThreadTile,
        operands: Operands,
    ) -> None:
        self.k, self.tile, self.op, self.operands = k, tile, op, operands
        value = ctx.value(ctx.node.inputs[1])
        assert value.data is not None
        self.outputs, self.kh, self.kw, self.inputs = value.shape
        self.depth, self.quads = -(-self.inputs // 4), -(-self.outputs // 4)
        packed = np.zeros((self.kh, self.kw, self.depth * 4, self.quads * 4), np.int8)
        packed[:, :, : self.inputs, : self.outputs] = value.data.transpose(1, 2, 3, 0)
        words = packed.reshape(self.kh, self.kw, self.depth, 4, self.quads * 4).swapaxes(3, 4)
        operands["weights"] = np.ascontiguousarray(words).view(np.int32).reshape(-1)
        self.weights = k.buffer("weights", i32x4, operands["weights"].size // 4, access="read")
        self.source = open_source(ctx, k, ctx.node.inputs[0], operands)
        self.zero = op.zero_point - (128 if self.source.view.dtype is DType.UINT8 else 0)
        self.of_weights = packed.sum(axis=(0, 1, 2), dtype=np.int64)  # of each output
        self.of_some = isinstance(op, IntegerTransposeConv2D)
        grouped = isinstance(op, IntegerConv2D) and op.groups > 1
        self.step = 4 if self.source.has_words and not self.of_some and not grouped else 1

    def begin(self) -> None:
        k, tile = self.k, self.tile
        self.sums: Array = k.array(tile.pixels * tile.quads, k.const(0, i32x4))
        self.of_data: Array | None = k.array(tile.pixels, k.const(0, i32)) if self.op.weights_zero_point else None
        self.met: Array | None = k.array(tile.quads, k.const(0, i32x4)) if self.of_some and self.zero else None

    def load(self, source: Source, at: tuple[Index, Index, Index, Index], ok: TracedValue | None) -> TracedValue:
        k, word = self.k, source.words(*at) if self.step == 4 else source.word(*at)
        return word if ok is None else k.select(ok, word, k.const(_word(self.zero), word.type))

    def add(self, rows: Sequence[TracedValue], tap: tuple[Index, Index], i: Index, quads: Sequence[Index]) -> None:
        for j in range(self.step):
            self._add_quad([row[j] for row in rows], tap, address(j, [(i, self.step)]), quads)

    def _add_quad(
        self, rows: Sequence[TracedValue], tap: tuple[Index, Index], iq: Index, quads: Sequence[Index]
    ) -> None:
        k, (ky, kx) = self.k, tap
        n, stride = len(quads), self.depth * self.quads
        columns = [
            self.weights[address(0, [(ky, self.kw * stride), (kx, stride), (iq, self.quads), (q, 1)])] for q in quads
        ]
        zeros = k.const(_word(self.zero), i32)
        if self.met is not None:
            for c, column in enumerate(columns):
                self.met[c] = k.dot4(k.splat(zeros, 4), column, self.met[c])
        for p, row in enumerate(rows):
            if self.of_data is not None:
                total = k.dot4(row, self._ones(iq), self.of_data[p])
                self.of_data[p] = total if self.met is None else total - k.dot4(zeros, self._ones(iq), k.const(0, i32))
            for c, column in enumerate(columns):
                self.sums[p * n + c] = k.dot4(k.splat(row, 4), column, self.sums[p * n + c])

    def parts(self) -> Array:
        k, n = self.k, self.tile.quads
        if self.of_data is not None:
            for p in range(self.tile.pixels):
                less = k.splat(self.of_data[p] * self.op.weights_zero_point, 4)
                for c in range(n):
                    self.sums[p * n + c] = self.sums[p * n + c] - less
        if self.met is not None:
            for i in range(len(self.sums)):
                self.sums[i] = self.sums[i] - self.met[i % n]
        return self.sums

    def whole(self, total: TracedValue, q: Index) -> TracedValue:
        offsets = self._offsets()
        return total if offsets is None else total + offsets[q]

    def totals(self, place: TilePlace) -> list[TracedValue]:
        totals = total_of_parts(self.k, self.tile, place.part, self.parts())
        memory = self._offsets()
        if memory is None:
            return totals
        offsets = [memory[q] for q in place.q]
        return [total + offsets[i % len(offsets)] for i, total in enumerate(totals)]

    def _offsets(self) -> Memory | None:
        """What is added to the sums of each quad of outputs."""
        if not self.zero or self.met is not None:
            return None
        if "offsets" not in self.operands:
            count = self.kh * self.kw * self.inputs
            terms = count * self.zero * self.op.weights_zero_point - self.zero * self.of_weights
            self.operands["offsets"] = terms.astype(np.int32)
            self.offsets = self.k.buffer("offsets", i32x4, self.quads, access="read")
        return self.offsets

    def _ones(self, iq: Index) -> TracedValue:
        """A word with ones for the channels of quad `iq` that there are."""
        k, rest = self.k, self.inputs % 4
        some, last = k.const(ONES >> 8 * (4 - rest) if rest else ONES, i32), is_last(iq, self.depth)
        if rest == 0 or last is False:
            return k.const(ONES, i32)
        return some if last is True else k.select(last, some, k.const(ONES, i32))


def _word(byte: int) -> int:
    """Four times the same signed byte, as an int32."""
    return int(np.full(4, byte, np.int8).view(np.int32)[0])
