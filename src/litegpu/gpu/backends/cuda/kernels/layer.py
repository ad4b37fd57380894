"""What the native kernels must know of a convolution."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.cached import cached_property
from litegpu.gpu.backends.cuda.kernels.channelwise import Channelwise
from litegpu.gpu.graph import RESULT, Apply, Conv2D, DType, Expr, LayerNorm, Reshape, Step, fits_half
from litegpu.gpu.kernels.blocking import fit_bytes
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.view import View, follow

#: How an element of the input is declared, and how it becomes a float.
LOAD = {DType.FLOAT16: ("unsigned short", "half_to_float(value)"), DType.FLOAT32: ("float", "value")}
#: The same for stored numbers, from which the zero point is still to be subtracted.
NARROW = {DType.INT8: "signed char", DType.UINT8: "unsigned char", DType.INT16: "short"}
#: Of epilogues, those that take many instructions.
_FUNCTIONS = {"erf", "exp", "expm1", "log", "sigmoid", "sin", "cos", "tanh"}
#: What is outside, as border.cu calls it.
BORDER = {"zero": "ZERO", "reflect": "REFLECT", "symmetric": "SYMMETRIC"}


def is_half(ctx: KernelContext, source: View, weights: np.ndarray) -> bool | None:
    """Whether a convolution of `source` is to be done in float16 (with float32 sums) or else in float32; None if the
    native kernels can do neither."""
    half = ctx.half and fits_half(weights)
    if source.dtype in NARROW:
        return half
    return None if source.dtype not in LOAD or (source.dtype is DType.FLOAT16 and not half) else half


def residuals_of(ctx: KernelContext) -> int:
    """How many values as large as the output the node's epilogue reads."""
    shape = ctx.output.shape
    return sum(not ctx.value(v).is_constant and ctx.value(v).shape == shape for v in ctx.node.operands)


def has_functions(expr: Expr) -> bool:
    """Whether an epilogue has functions that take many instructions."""
    return isinstance(expr, Apply) and (expr.fn in _FUNCTIONS or any(map(has_functions, expr.args)))


def channels_at_once(view: View, lengths: Sequence[int]) -> int:
    """The first of these numbers of channels beyond four by which a view of whole quads can be gone through, else 4."""
    strides = [s for s, size in zip(view.strides[:3], view.shape[:3], strict=True) if size > 1]
    places = (*strides, view.offset, view.quads * 4)
    return next((k for k in lengths if k > 4 and not any(place % k for place in places)), 4)


@dataclass(frozen=True)
class RowNorm:
    """`op` over `depth` channels. The weights that belong to it are those of row_norm.folded(), without the factor
    `scale`."""

    op: LayerNorm
    depth: int
    scale: float


@dataclass(frozen=True, eq=False)
class NormBehind:
    """`op` over `depth` channels of a layer's results with a bias [1,1,1,O] and perhaps a residual."""

    op: LayerNorm
    bias: np.ndarray
    residual: View | None
    depth: int


@dataclass(frozen=True, eq=False)
class ToldNorm:
    """`op` over `depth` channels of rows whose sums, and those of their squares, of so many `parts` each, are told in
    `moments`: of the input's (the weights are those of row_norm.folded(), without the factor `scale`) or, of the
    epilogue's operands, of number `operand`."""

    op: LayerNorm
    depth: int
    parts: int
    moments: View
    operand: int = 0
    scale: float = 1.0


def _difference(dtype: DType, zero_point: int) -> str:
    """A stored number less the zero point, as a float. Its bits, those of a number from 0 on, become the last ones of
    2^23 and that number: of conversions a multiprocessor does a quarter as many."""
    bits, signed = 8 * dtype.nbytes, dtype is not DType.UINT8
    kind, half = {8: "unsigned char", 16: "unsigned short"}[bits], 1 << (bits - 1) if signed else 0
    return f"(__uint_as_float(({kind})(value) ^ 0x{0x4B000000 | half:08x}u) - {(1 << 23) + half + zero_point}.0f)"


def stored_constants(dtype: DType, zero_point: int) -> dict[str, int | str]:
    """For stored.cu: numbers of 8 bits less the zero point as halves, which have them exactly. The bits of a number
    from 0 on become the last ones of 1024 and that number. Nothing for other types, nor a zero point beyond them."""
    half = {DType.INT8: 128, DType.UINT8: 0}.get(dtype)
    if half is None or not -half <= zero_point < 256 - half:
        return {}
    minus = int(np.float16(-(1024 + half + zero_point)).view(np.uint16))
    return {
        "BYTE_BITS": f"0x{(0x6400 | half) * 0x10001:08x}u", "BYTE_MINUS": f"0x{minus * 0x10001:08x}u",
        "BYTE_ZERO": zero_point & 255,
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution: what of it the kernel must know."""

    op: Conv2D
    source: View
    weights: np.ndarray  # [O, KH, KW, I]
    shape: tuple[int, ...]  # of the output
    half: bool
    residuals: int = 0  # values as large as the output that the epilogue reads
    whole_numbers: bool = False  # input and weights are bytes, and sums int32; `half` is False then
    prologue: Channelwise | None = None  # what is done with the input first, of convolutions 1x1 without padding
    gate: View | None = None  # the prologue's
    run: int = 0  # channels of bytes that the threads which multiplied can store at once (runs.py)
    floats: int = 0  # the same of results in float32
    norm: RowNorm | None = None  # of the input's rows, of convolutions 1x1; the weights are those that it folded
    parts: int = 1  # pixels of the input that are added up first, of convolutions of one pixel with few results
    summed: Expr = RESULT  # of what they are added up to
    fetched: tuple[Step, ...] = ()  # how the input's rows are moved first, of convolutions 1x1 without padding
    behind: NormBehind | None = None  # of what the layer gives
    side: int = 1  # of squares of the output, of which the largest number alone is stored
    told: ToldNorm | None = None  # of rows whose moments the kernel that stored them has summed up
    tells: View | None = None  # where the moments of the results are stored, by columns of a tile
    functions: bool = False  # has_functions() of the epilogue, of those that estimates are to know it of

    @property
    def load(self) -> tuple[str, str]:
        """How an element of the input is declared, and how `value` becomes a float."""
        if self.source.dtype not in NARROW:
            return LOAD[self.source.dtype]
        return NARROW[self.source.dtype], _difference(self.source.dtype, self.op.zero_point or 0)

    @cached_property
    def tf32(self) -> bool:
        """Whether tensor cores may multiply it as products of TF32: floats, and weights that are all numbers."""
        return not self.half and not self.whole_numbers and bool(np.isfinite(self.weights).all())

    @property
    def rounds(self) -> tuple[str, ...]:
        """Of the kernels that pack the input, `x`, as halves before anything is done with it: that, if it is."""
        return ("x",) if self.half and self.prologue is None and self.norm is None else ()

    @property
    def per_chunk(self) -> int:
        """Elements in the 16 bytes that are copied at once."""
        return 16 // self.size

    @property
    def size(self) -> int:
        """Bytes of an element as it is multiplied."""
        return 1 if self.whole_numbers else 2 if self.half else 4

    @property
    def vector(self) -> int:
        """Channels that can be copied at once: those of a whole chunk, of half a chunk, four, or none."""
        view, n = self.source, self.per_chunk
        kinds = {DType.FLOAT16} if self.half else {DType.FLOAT32}
        if self.whole_numbers:
            kinds = {DType.INT8, DType.UINT8}
        if view.dtype not in kinds or not (view.vector and view.whole_quads):
            return 0
        return channels_at_once(view, (n, n // 2))

    @property
    def pitch(self) -> int | None:
        """The distance from pixel to pixel, if output pixel p needs input pixel p alone and there is one."""
        b, h, w, c = self.source.shape
        plain: bool = (
            self.op.upsample == (1, 1)
            and self.weights.shape[1:3] == (1, 1)
            and self.op.stride == (1, 1)
            and self.op.padding == (0, 0)
        )
        if not plain or ((h, w) != self.shape[1:3] and not self.fetched):
            return None
        flat = follow(self.source, (Reshape((b, h, w, c), (1, 1, b * h * w, c)),))
        return None if flat is None else flat.strides[2]

    @property
    def access(self) -> str:
        if not self.vector:
            view = self.source
            floats = self.half and view.dtype is DType.FLOAT32 and view.vector and view.whole_quads
            return "FLOATS" if floats and self.pitch is not None else "GATHER"
        return "WINDOW" if self.pitch is None else "POINTS"

    @property
    def depth(self) -> int:
        """Products of an output: taps times channels, these in whole chunks if they are copied as such."""
        _, kh, kw, inputs = self.weights.shape
        n = self.per_chunk if self.vector else 1
        return int(kh * kw * (-(-inputs // n) * n))

    @cached_property
    def whole(self) -> bool:
        """Whether the weights are bytes, and loading them takes longest."""
        return fit_bytes(math.prod(self.shape[:3]), self.weights)

    @property
    def stored(self) -> int:
        """Pixels of the output that are stored."""
        return math.prod(self.shape[:3]) // self.side**2

    def corrections(self, columns: int) -> np.ndarray:
        """What makes sums of products with stored bytes those with them less their zero point, where all taps are
        inside or read the zero point: int32, as many as `columns`, zero behind the outputs."""
        found = np.zeros(columns, np.int32)
        sums = self.weights.reshape(self.weights.shape[0], -1).sum(axis=1, dtype=np.int32)
        found[: len(sums)] = -(self.op.zero_point or 0) * sums
        return found

    @property
    def outside(self) -> np.ndarray:
        """The byte that is read outside of the input, for a whole chunk."""
        return np.full(16, self.op.zero_point or 0, np.int16).astype(np.uint8).view(np.int8)

    @cached_property
    def whole_pixels(self) -> Layer:
        """The same of as many channels as pixels have where the last ones are padded with zeros, as of a picture whose
        channels were in front: weights of these are zero."""
        view, missing = self.source, self.source.quads * 4 - self.source.shape[3]
        if not missing or not (view.vector and view.zero_padded and view.dtype is DType.FLOAT16) or self.op.groups > 1:
            return self
        source = dataclasses.replace(view, shape=(*view.shape[:3], view.quads * 4))
        return dataclasses.replace(self, source=source, weights=np.pad(self.weights, [(0, 0)] * 3 + [(0, missing)]))

    @cached_property
    def joined_pixels(self) -> Layer | None:
        """The same of fewer and wider pixels: where a window is moved by two or four pixels of four channels at a time,
        as many side by side are one pixel with the channels of all. A step has whole chunks then, and there are fewer
        of them. None for what is no such window."""
        layer, op = self.whole_pixels, self.op
        view, (outputs, kh, kw, channels) = layer.source, layer.weights.shape
        joined, rest = op.stride[1], view.shape[2] % op.stride[1]
        alone = layer.prologue is None and layer.norm is None and op.groups == 1 and not layer.fetched
        plain = alone and op.upsample == (1, 1) and op.border == "zero" and op.dilation[1] == 1
        if not plain or not layer.half or joined not in (2, 4) or rest or kw <= joined or channels != 4:
            return None
        if view.dtype is not DType.FLOAT16 or view.strides[2:] != (4, 1) or not layer.vector:
            return None
        padding = -(-op.padding[1] // joined)
        before = padding * joined - op.padding[1]
        across = -(-(before + kw) // joined)
        weights = np.zeros((outputs, kh, across * joined, channels), layer.weights.dtype)
        weights[:, :, before : before + kw] = layer.weights
        b, h, w, _ = view.shape
        return dataclasses.replace(
            layer,
            op=dataclasses.replace(op, stride=(op.stride[0], 1), padding=(op.padding[0], padding)),
            source=dataclasses.replace(
                view, shape=(b, h, w // joined, 4 * joined), strides=(*view.strides[:2], 4 * joined, 1)
            ),
            weights=weights.reshape(outputs, kh, across, joined * channels),
        )

    def constants(self) -> dict[str, int | str]:
        """Those that all kernels have: the window, the input's size and view, the output's size."""
        op, view = self.op, self.source
        _, kh, kw, inputs = self.weights.shape
        height, width = view.shape[1:3] if self.fetched else self.shape[1:3]  # where rows are found
        return {
            "OUT_H": height, "OUT_W": width,
            "H": view.shape[1] * op.upsample[0], "W": view.shape[2] * op.upsample[1],
            "UPSAMPLE_Y": op.upsample[0], "UPSAMPLE_X": op.upsample[1], "BORDER": BORDER[op.border],
            "CHANNELS": view.quads * 4 if self.vector else inputs, "KERNEL_W": kw, "TAPS": kh * kw,
            "STRIDE_Y": op.stride[0], "STRIDE_X": op.stride[1],
            "DILATION_Y": op.dilation[0], "DILATION_X": op.dilation[1],
            "PADDING_Y": op.padding[0], "PADDING_X": op.padding[1], "OFFSET": view.offset,
            "PITCH_B": view.strides[0], "PITCH_Y": view.strides[1], "PITCH_X": view.strides[2],
            "PITCH_C": view.strides[3],
        }  # fmt: skip
