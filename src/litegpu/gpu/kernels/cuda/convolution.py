"""Convolution on tensor cores (float16 weights and inputs, float32 sums), or in exact float32, as a matrix product."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import Conv2D, DType, Reshape
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import Context, Launch
from litegpu.gpu.kernels.cuda.source import native_launch
from litegpu.gpu.kernels.cuda.tile import Product, Tile, ranked
from litegpu.gpu.view import View, follow

_LOAD = {DType.FLOAT16: ("unsigned short", "half_to_float(value)"), DType.FLOAT32: ("float", "value")}


def build(ctx: Context) -> list[Launch] | None:
    """One launch; None for groups, weights that are not constant or do not fit the type, and other kinds of input."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Conv2D)
    weights = ctx.value(node.inputs[1]).data
    if op.groups > 1 or weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    source = ctx.views[node.inputs[0]]
    half = ctx.half and bool(np.all(np.abs(weights) <= np.finfo(np.float16).max))
    if source.dtype not in _LOAD or (source.dtype is DType.FLOAT16 and not half):
        return None
    layer = Layer(op, source, weights, ctx.output.shape, half)
    tiles = ranked(layer.product, ctx.features.compute_units)
    if ctx.tuner is None:
        return [launch(ctx, layer, tiles[0])]
    launches = [launch(ctx, layer, tile) for tile in tiles[: ctx.tuner.most]]
    times = ctx.tuner.times(launches)
    return [launches[times.index(min(times))]]


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution: what of it the kernel must know."""

    op: Conv2D
    source: View
    weights: np.ndarray  # [O, KH, KW, I]
    shape: tuple[int, ...]  # of the output
    half: bool

    @property
    def per_chunk(self) -> int:
        """Elements in the 16 bytes that are copied at once."""
        return 8 if self.half else 4

    @property
    def vector(self) -> int:
        """Channels that can be copied at once: those of a whole chunk, half a chunk, or none."""
        view, n = self.source, self.per_chunk
        if (view.dtype is DType.FLOAT16) != self.half or not (view.vector and view.whole_quads):
            return 0
        strides = [s for s, size in zip(view.strides[:3], view.shape[:3], strict=True) if size > 1]
        aligned = not any(k % n for k in (*strides, view.offset, view.quads * 4))
        return n if aligned else 4

    @property
    def pitch(self) -> int | None:
        """The distance from pixel to pixel, if output pixel p needs input pixel p alone and there is one."""
        b, h, w, c = self.source.shape
        plain: bool = self.weights.shape[1:3] == (1, 1) and self.op.stride == (1, 1) and self.op.padding == (0, 0)
        if not plain or (h, w) != self.shape[1:3]:
            return None
        flat = follow(self.source, (Reshape((b, h, w, c), (1, 1, b * h * w, c)),))
        return None if flat is None else flat.strides[2]

    @property
    def access(self) -> str:
        if not self.vector:
            return "GATHER"
        return "WINDOW" if self.pitch is None else "POINTS"

    @property
    def depth(self) -> int:
        """Products of an output: taps times channels, these in whole chunks if they are copied as such."""
        _, kh, kw, inputs = self.weights.shape
        n = self.per_chunk if self.vector else 1
        return int(kh * kw * (-(-inputs // n) * n))

    @property
    def product(self) -> Product:
        return Product(math.prod(self.shape[:3]), self.shape[3], self.depth, self.half, self.vector == 0)

    def packed(self, tile: Tile) -> np.ndarray:
        """The weights as [outputs, depth], both in whole tiles."""
        outputs, kh, kw, inputs = self.weights.shape
        channels = self.depth // (kh * kw)
        columns, depth = -(-outputs // tile.columns) * tile.columns, -(-self.depth // tile.depth) * tile.depth
        result = np.zeros((columns, depth), np.float16 if self.half else np.float32)
        window = result[:outputs, : self.depth].reshape(outputs, kh, kw, channels)
        window[..., :inputs] = self.weights
        result[:outputs, : self.depth] = window.reshape(outputs, -1)
        return result


def launch(ctx: Context, layer: Layer, tile: Tile) -> Launch:
    """The convolution with the given tile; see convolution.cu for the constants."""
    op, view = layer.op, layer.source
    weights = layer.packed(tile)
    rows, columns = -(-layer.product.rows // tile.rows), weights.shape[0] // tile.columns
    source, load = _LOAD[view.dtype]
    _, kh, kw, inputs = layer.weights.shape
    constants: dict[str, int | str] = {
        "HALF": int(layer.half), "SOURCE": source, "LOAD(value)": load, "VECTOR": layer.vector,
        "BM": tile.rows, "BN": tile.columns, "BK": tile.depth, "STAGES": tile.stages,
        "WARPS_M": tile.warps[0], "WARPS_N": tile.warps[1], "WARPS_K": tile.warps[2],
        "TILES_N": columns, "PIXELS": layer.product.rows, "QUADS": -(-layer.shape[3] // 4),
        "OUT_H": layer.shape[1], "OUT_W": layer.shape[2], "H": view.shape[1], "W": view.shape[2],
        "CHANNELS": view.quads * 4 if layer.vector else inputs, "KERNEL_W": kw, "TAPS": kh * kw,
        "STRIDE_Y": op.stride[0], "STRIDE_X": op.stride[1],
        "DILATION_Y": op.dilation[0], "DILATION_X": op.dilation[1],
        "PADDING_Y": op.padding[0], "PADDING_X": op.padding[1],
        "OFFSET": view.offset, "PITCH_B": view.strides[0], "PITCH_Y": view.strides[1],
        "PITCH_X": view.strides[2] if layer.access != "POINTS" else layer.pitch or 0, "PITCH_C": view.strides[3],
        "DEPTH": weights.shape[1], "ACCESS": layer.access,
    }  # fmt: skip
    operands: Operands = {"x": view, "w": weights}
    return native_launch(
        ctx, "tensor_convolution" if layer.half else "tiled_convolution", ("device.cu", "convolution.cu"),
        constants, operands, label="conv_2d", workgroup=(tile.threads, 1, 1), dispatch=(rows * columns, 1, 1),
        shared_bytes=tile.shared_bytes(layer.half), variant=str(tile),
    )  # fmt: skip
