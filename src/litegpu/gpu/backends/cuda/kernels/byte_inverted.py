"""What inverted.py does, of bytes: see byte_inverted.cu."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.functions import packing
from litegpu.gpu.backends.cuda.kernels import byte_rests
from litegpu.gpu.backends.cuda.kernels.byte_inverted_cost import ByteInvertedBlock, ranked
from litegpu.gpu.backends.cuda.kernels.inverted import in_order, padded, reordered
from litegpu.gpu.backends.cuda.kernels.inverted_cost import InvertedShape, StemShape
from litegpu.gpu.backends.cuda.kernels.layer import NARROW, Layer
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.graph import Conv2D, DType, FirstWindow, IntegerInvertedConv2D, IntegerSeparableConv2D
from litegpu.gpu.kernels.access import Operands, byte_bounds
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View

#: The last bits of it as a float are a whole number that was added to it; and numbers for which that is so.
MAGIC, NEAR = 12582912.0, 1 << 22
#: The bits of 2**23 as a float, which end in whole numbers from zero on that are added.
FUSED = 0x4B000000
FILES = ("device.cu", "diagonal_bytes.cu", "byte_stages.cu", "byte_inverted.cu")
#: Settings of stages that there are not.
NONE = {"NEAR": 0, "FUSED": 0, "POSITIVE": 0}


@dataclass(frozen=True, eq=False)
class Stage:
    """Sums of `weights` [outputs, inputs or taps] with bytes less `zero_point`, those of int8 or uint8, and what makes
    bytes of them: the whole number nearest to (sum + bias) * scale, from `low` to `high`; then `offset` more."""

    weights: np.ndarray
    bias: np.ndarray
    scale: np.ndarray
    low: float
    high: float
    zero_point: int
    unsigned: bool = False

    @property
    def positive(self) -> bool:
        """Whether the bytes are unsigned ones, which begin with zero as the numbers do."""
        return self.low == 0

    @property
    def offset(self) -> int:
        """What makes the smallest number that of the least byte."""
        return 0 if self.positive else -128 - round(self.low)

    def _more(self) -> np.ndarray:
        """What is added to sums of products with the bytes as they are."""
        return np.asarray(self.bias - float(self.zero_point) * self.weights.sum(1))

    def _largest(self) -> np.ndarray:
        """Of the absolute values of sums of products with the bytes as they are."""
        return np.asarray(np.abs(self.weights).sum(1) * float(255 if self.unsigned else 128))

    @property
    def near(self) -> bool:
        return bool(np.max(self._largest(), initial=0.0) < NEAR and np.max(np.abs(self._more()), initial=0.0) < NEAR)

    @property
    def limits(self) -> int:
        """See byte_inverted.cu."""
        most = (self._largest() + np.abs(self._more())) * np.abs(self.scale)
        if not self.positive and not np.max(most, initial=0.0) < NEAR / 2:
            return 2
        return int(round(self.high) - round(self.low) < 255)

    @property
    def fused(self) -> bool:
        """Whether one instruction takes off what sums begin with and scales them: see byte_stages.cu."""
        return self.near and self.positive and bool(np.all(self.scale >= 0))

    def begun(self) -> np.ndarray:
        """int32: what is added to sums; if they are `near` the bits of a float, or if `fused` what they begin with."""
        if self.fused:
            return _int32(self._more() + FUSED)
        return (self._more() - MAGIC).astype(np.float32).view(np.int32) if self.near else _int32(self._more())

    def settings(self, name: str) -> dict[str, int | str]:
        return {
            f"{name}_NEAR": int(self.near), f"{name}_FUSED": int(self.fused),
            f"{name}_POSITIVE": int(self.positive), f"{name}_LIMITS": self.limits,
            f"{name}_LOW": f"{self.low!r}f", f"{name}_HIGH": f"{self.high!r}f", f"{name}_OFFSET": f"({self.offset})",
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class ByteInvertedLayer:
    """What the kernel must know of a node. `window`: the depthwise convolution, as if of the node's own input;
    `expansion` and `middle`: what makes the bytes that it reads, and of its sums those that `projection`
    [outputs, channels] is multiplied with; `correction`: what the node's sums begin with."""

    window: Layer
    zero_point: int  # of the input
    expansion: Stage | None
    middle: Stage | None
    projection: np.ndarray | None
    correction: np.ndarray
    shape: InvertedShape
    first: FirstWindow | None = None

    @classmethod
    def of(cls, ctx: KernelContext) -> ByteInvertedLayer:
        op, node = ctx.node.op, ctx.node
        assert isinstance(op, (IntegerInvertedConv2D, IntegerSeparableConv2D))
        data = [ctx.value(v).data for v in node.inputs[1:]]
        constants = [np.asarray(d, np.float64) for d in data if d is not None]
        expands = isinstance(op, IntegerInvertedConv2D)
        taps = constants.pop(3 if expands else 0)
        view = ctx.views[node.inputs[0]]
        plain = Conv2D(op.depthwise.stride, op.depthwise.dilation, op.depthwise.padding)
        window = Layer(plain, view, taps, ctx.output.shape, False, whole_numbers=True)
        unsigned = byte_bounds(view.dtype) == (0, 255)
        columns = taps.reshape(-1, taps.shape[3]).T
        bounds = list(op.bounds) if isinstance(op, IntegerInvertedConv2D) else [op.bounds]
        kind, expansion, depth = (op.zero_point, unsigned), None, 0
        if expands:
            weights, bias, scale = (constants.pop(0) for _ in range(3))
            matrix = weights.reshape(len(weights), -1)
            expansion = Stage(matrix, bias.reshape(-1), scale.reshape(-1), *bounds.pop(0), *kind)
            kind, depth = (expansion.offset, expansion.positive), matrix.shape[1]
        middle, projection = None, None
        correction = np.asarray(-float(kind[0]) * columns.sum(1))
        if constants:
            bias, scale, last = constants
            middle = Stage(columns, bias.reshape(-1), scale.reshape(-1), *bounds.pop(0), *kind)
            projection = last.reshape(len(last), -1)
            correction = np.asarray(-float(middle.offset) * projection.sum(1))
        size, stem = view.shape[1:3], None
        if isinstance(op, IntegerInvertedConv2D) and op.first and expansion:
            size, stem = op.first.size, stem_of(view, weights.shape, op.first.stride)
            depth = stem.depth
            expansion = dataclasses.replace(expansion, weights=_of_runs(weights, stem))
        shapes = [(view.shape[0], *size, depth), taps.shape, taps.shape, taps.shape]
        shapes += [v.shape for v in constants[2:] * 2]
        shape = InvertedShape.of(op.depthwise.stride, (0.0, 0.0), shapes, ctx.output.shape, stem)
        first = op.first if isinstance(op, IntegerInvertedConv2D) else None
        return cls(window, op.zero_point, expansion, middle, projection, _int32(correction), shape, first)


def stem_of(view: View, weights: tuple[int, ...], stride: tuple[int, int]) -> StemShape:
    """Of a first layer that reads `view`, with weights [E, KH, KW, I]."""
    _, kh, kw, inputs = weights
    line = view.shape[2] * view.strides[2]
    stem = StemShape((kh, kw), stride, view.strides[2], 16)
    places = [line, view.offset, *(s for s, n in zip(view.strides[:2], view.shape[:2], strict=True) if n > 1)]
    copied = next((n for n in (16, 8, 4) if not any(place % n for place in places)), 0)
    if copied and view.strides[3] == 1 and view.strides[2] >= inputs and stem.fits:
        return dataclasses.replace(stem, copied=copied)
    return StemShape((kh, kw), stride, inputs, 0)


def _of_runs(weights: np.ndarray, stem: StemShape) -> np.ndarray:
    """[E, KH, KW, I] as [E, depth], in the order of a place's bytes."""
    count, kh, kw, inputs = weights.shape
    whole_pixels = np.zeros((count, kh, kw, stem.pixel))
    whole_pixels[..., :inputs] = weights
    runs = whole_pixels.reshape(count, kh, -1)
    whole = runs.shape[2] // 4 * 4
    found = np.zeros((count, stem.depth))
    found[:, : kh * whole] = runs[:, :, :whole].reshape(count, -1)
    if whole < runs.shape[2]:
        found[:, kh * whole : kh * whole + kh] = runs[:, :, whole]
    return found


def build(ctx: KernelContext) -> list[Launch]:
    layer = ByteInvertedLayer.of(ctx)
    blocks = ranked(layer.shape, ctx.features.capability, ctx.features.compute_units)
    return [offered([launch(ctx, layer, block) for block in blocks[: ctx.most]])]


def launch(ctx: KernelContext, layer: ByteInvertedLayer, block: ByteInvertedBlock) -> Launch:
    """All of the node by blocks; see byte_inverted.cu for the constants."""
    window, shape, view = layer.window, layer.shape, layer.window.source
    batch, out_h, out_w, outputs = window.shape
    across, down = -(-out_w // block.x), -(-out_h // block.y)
    slices, resident = -(-shape.channels // (block.slice * block.parts)), block.resident(shape, ctx.features.capability)
    wide = slices * block.parts * block.slice
    constants: dict[str, int | str] = {
        **{f"{stage}_{name}": value for stage in ("EXPANDED", "MIDDLE") for name, value in NONE.items()},
        **window.constants(), "SOURCE": NARROW[view.dtype],
        "UNSIGNED": int(view.dtype is DType.UINT8), "VECTOR": window.vector,
        "CHANNELS": view.quads * 4 if window.vector else view.shape[3], "KERNEL_H": shape.window[0],
        "BY": block.y, "BX": block.x, "TY": block.rows, "WARPS": block.warps, "SLICE": block.slice, "SLICES": slices,
        "PARTS": block.parts, "BUFFERS": block.buffers, "RESIDENT": resident, "DEPTH": shape.depth,
        "TILES_Y": down, "TILES_X": across, "QUADS": -(-outputs // 4), "PROJECTS": int(shape.outputs > 0),
        "OUT_TILES": shape.out_tiles, "SHARED_BYTES": block.shared_bytes(shape),
        "EXPANDS": int(layer.expansion is not None),
        "OUTSIDE": f"{(layer.zero_point & 255) * 0x1010101}u", "STEM": int(layer.first is not None),
    }  # fmt: skip
    if layer.first and shape.stem:
        stem, first = shape.stem, layer.first
        constants |= {
            "H": first.size[0], "W": first.size[1], "IN_H": view.shape[1], "IN_W": view.shape[2],
            "STEM_H": stem.window[0], "STEM_W": stem.window[1], "PIXEL": stem.pixel, "VECTOR": stem.copied,
            "STEM_STRIDE_Y": stem.stride[0], "STEM_STRIDE_X": stem.stride[1],
            "STEM_PADDING_Y": first.padding[0], "STEM_PADDING_X": first.padding[1],
        }  # fmt: skip

    expansion, middle = layer.expansion, layer.middle
    order = natural() if expansion else in_planes()

    def channelwise(data: np.ndarray, order: np.ndarray) -> np.ndarray:
        whole = np.zeros(wide, data.dtype)
        whole[: len(data)] = data
        return reordered(whole, 0, order)

    operands: Operands = {
        "x": view, "taps": tap_words(window, wide, expansion is not None),
        "middle_bias": channelwise(middle.begun() if middle else layer.correction, order),
    }  # fmt: skip
    rests = {"WINDOW_RESTS": byte_rests.of_window(window.weights, order)}
    if expansion is not None:
        constants |= expansion.settings("EXPANDED")
        rests["EXPANSION_RESTS"] = byte_rests.of_expansion(expansion.weights, stored())
        rows = padded(byte_rests.held(expansion.weights), wide, -(-shape.depth // 32) * 32)
        operands |= {
            "expansion": factors(reordered(rows, 0, expanded()), block.slice, 2),
            "bias": channelwise(expansion.begun(), stored()),
            "scale": channelwise(expansion.scale.astype(np.float32), stored()),
        }
    if middle is not None and layer.projection is not None:
        constants |= middle.settings("MIDDLE")
        columns = 8 * shape.out_tiles
        rests["PROJECTION_RESTS"] = byte_rests.of_projection(layer.projection, order)
        rows = in_order(reordered(padded(byte_rests.held(layer.projection), columns, wide), 1, order), 0)
        operands |= {
            "middle_scale": channelwise(middle.scale.astype(np.float32), order),
            "projection": factors(rows, columns, 1),
            "corrections": np.concatenate([layer.correction, np.zeros(columns - len(layer.correction), np.int32)]),
        }
    constants |= {name: rest for name, rest in rests.items() if rest}
    return native_launch(
        ctx, "byte_inverted_convolution", FILES, constants, operands,
        label="inverted_conv_2d", workgroup=(32 * block.warps, 1, 1),
        dispatch=(batch * down * across * block.parts, 1, 1), shared_bytes=block.shared_bytes(shape),
        variant=str(block), needed=(packing("s8"), packing("u8")), ahead=True,
    )  # fmt: skip


def _int32(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.int64).astype(np.int32)


@functools.cache
def natural() -> np.ndarray:
    """Of 16 channels, the one at each place: see byte_inverted.cu. As a lane has those that were expanded."""
    return np.arange(16)


@functools.cache
def in_planes() -> np.ndarray:
    """As it has those that were not."""
    lane, plane, i = np.ogrid[:4, :2, :2]
    return np.asarray(8 * plane + 2 * lane + i).reshape(16)


@functools.cache
def expanded() -> np.ndarray:
    """As columns of two products, from which a lane takes four that follow one another in a plane."""
    product, plane, half, i = np.ogrid[:2, :2, :2, :2]
    return np.asarray(8 * half + 4 * product + 2 * plane + i).reshape(16)


@functools.cache
def stored() -> np.ndarray:
    """As a lane has these."""
    return np.ascontiguousarray(expanded().reshape(2, 4, 2).swapaxes(0, 1)).reshape(16)


def factors(matrix: np.ndarray, columns: int, halves: int) -> np.ndarray:
    """[outputs, depth] as lanes hold it, the right factor of products of 16 x 8 x 16 times `halves`: [slice of
    `columns` outputs, step of the depth, 16 outputs, lane, eight of these, half, 4]."""
    slices, steps = matrix.shape[0] // columns, matrix.shape[1] // (16 * halves)
    parts = matrix.astype(np.int8).reshape(slices, columns // 16, 2, 8, steps, halves, 4, 4)
    # .., eight, g, step, half, q, i
    return np.ascontiguousarray(parts.transpose(0, 4, 1, 3, 6, 2, 5, 7)).reshape(-1)


def tap_words(window: Layer, wide: int, expanded: bool) -> np.ndarray:
    """The weights as [eight of the kernel's channels, word, column of a pair, channel, byte of the word]; all bytes are
    [row of the window, turn, pair of columns]."""
    _, kh, kw, channels = window.weights.shape
    turns = 2 if window.op.stride[1] == 1 else 1
    pairs = kw // 2 + 1 if turns == 2 else (kw + 1) // 2
    taps = np.zeros((wide, 2, kh, turns, pairs), np.int8)
    for column, turn, pair in itertools.product(range(2), range(turns), range(pairs)):
        if 0 <= (kx := 2 * pair + column - turn) < kw:
            taps[:channels, column, :, turn, pair] = byte_rests.held(window.weights[0, :, kx]).T
    count = kh * turns * pairs
    words = np.zeros((wide, 2, -(-count // 4) * 4), np.int8)
    words[..., :count] = taps.reshape(wide, 2, count)
    planes = in_order(words, 0) if expanded else words
    return np.ascontiguousarray(planes.reshape(wide // 8, 8, 2, -1, 4).transpose(0, 3, 2, 1, 4)).reshape(-1)
