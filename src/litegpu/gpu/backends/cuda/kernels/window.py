"""Convolution with a window of several taps on tensor cores: each input pixel is copied once for all its taps."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_SHARED_BYTES, USUAL_UNITS
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Workgroups on a multiprocessor: each walks over its share of the blocks.
RESIDENT = 2
#: Of the estimates, in a microsecond.
CYCLES = 1070


@dataclass(frozen=True)
class WindowBlock:
    """A workgroup computes `columns` outputs of y x x pixels at a time; its warps divide pixels and outputs."""

    y: int
    x: int
    columns: int
    warps: tuple[int, int]

    def __str__(self) -> str:
        return f"window {self.y}x{self.x}x{self.columns}-{self.warps[0]}x{self.warps[1]}"

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1]


@functools.cache
def candidates() -> tuple[WindowBlock, ...]:
    sizes = [(8, 8), (4, 16), (8, 16), (16, 16), (8, 32)]
    return tuple(
        WindowBlock(y, x, columns, (m, n))
        for y, x in sizes
        for columns in (8, 16, 32, 64)
        for m, n in ((4, 1), (2, 2), (8, 1), (4, 2))
        if y * x % (16 * m) == 0 and columns % (8 * n) == 0 and y * x * columns // (m * n) <= 16 * 4 * 32
    )


def ranked(layer: Layer, units: int) -> list[WindowBlock]:
    """The candidates that fit, the cheapest first; none for windows of one tap and for float32."""
    if not layer.half or layer.weights.shape[1:3] == (1, 1):
        return []
    outputs = layer.shape[3]
    fitting = [
        b for b in candidates()
        if shared_bytes(layer, b) <= MOST_SHARED_BYTES and (b.columns < 2 * outputs or b.columns == 8)
    ]  # fmt: skip
    return sorted(fitting, key=lambda b: cost(layer, b, units))


def launch(ctx: KernelContext, layer: Layer, block: WindowBlock, where: Where | None = None) -> Launch:
    """The convolution by blocks; see window.cu for the constants."""
    weights = packed(layer, block.columns)
    batch, out_h, out_w, outputs = layer.shape
    columns, down, across = weights.shape[0] // block.columns, -(-out_h // block.y), -(-out_w // block.x)
    groups = min(batch * down * across, max(1, RESIDENT * (ctx.features.compute_units or USUAL_UNITS) // columns))
    source, load = layer.load
    constants: dict[str, int | str] = {
        **layer.constants(), "SOURCE": source, "LOAD(value)": load, "VECTOR": layer.vector,
        "BY": block.y, "BX": block.x, "BN": block.columns, "WARPS_M": block.warps[0], "WARPS_N": block.warps[1],
        "TILES_N": columns, "TILES_Y": down, "TILES_X": across, "BATCH": batch, "GROUPS": groups,
        "QUADS": -(-outputs // 4), "DEPTH": weights.shape[1], "SHARED_BYTES": shared_bytes(layer, block),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": weights}
    return native_launch(
        ctx, "window_convolution", ("device.cu", "turned.cu", "border.cu", "window.cu"), constants, operands,
        label=label_of(ctx),
        workgroup=(block.threads, 1, 1), dispatch=(groups * columns, 1, 1),
        shared_bytes=shared_bytes(layer, block), variant=str(block), where=where,
    )  # fmt: skip


def packed(layer: Layer, columns: int) -> np.ndarray:
    """The weights as [outputs, taps * channels], channels in chunks of eight, both in whole tiles."""
    outputs, kh, kw, inputs = layer.weights.shape
    channels = -(-inputs // 8) * 8
    result = np.zeros((-(-outputs // columns) * columns, _depth(layer)), np.float16)
    rows = np.zeros((outputs, kh * kw, channels), np.float16)
    rows[..., :inputs] = layer.weights.reshape(outputs, kh * kw, inputs)
    result[:outputs, : kh * kw * channels] = rows.reshape(outputs, -1)
    return result


def shared_bytes(layer: Layer, block: WindowBlock) -> int:
    """Two halos, the offsets of the taps, and the weights, as window.cu lays them out."""
    depth = _depth(layer)
    before = 2 * _halo_bytes(layer, block) + depth // 8 * 4
    return -(-before // 16) * 16 + block.columns * (depth // 8 | 1) * 16


def cost(layer: Layer, block: WindowBlock, units: int) -> float:
    """Estimated microseconds: the weights once, then for each block the larger of copying its halo and multiplying.
    (Fitted to 600 measurements on an H200.)"""
    units = units or USUAL_UNITS
    batch, out_h, out_w, outputs = layer.shape
    columns = -(-outputs // block.columns)
    blocks = batch * -(-out_h // block.y) * -(-out_w // block.x)
    groups = min(blocks, max(1, RESIDENT * units // columns))
    share = -(-groups * columns // units)  # workgroups on a multiprocessor
    steps, pixels = _depth(layer) // 16, block.y * block.x
    warps = block.warps[0] * block.warps[1]
    copied = (_halo_bytes(layer, block) / 32 + 100) * (1 if layer.vector else 6 * math.sqrt(4 / warps))
    products = pixels * block.columns * 16 / 1024 * max(1.0, 4 / (warps * share))
    fragments = pixels * block.warps[1] / 16 * 4  # loaded from shared memory
    multiplied = steps * max(30.0, max(products, fragments) + 0.5 * min(products, fragments))
    once = (900 if layer.vector else 2200) + block.columns * _depth(layer) * 2 / 32 * share
    each = max(copied, multiplied) + 200 + pixels * block.columns / 64
    return (once + -(-blocks // groups) * each * max(1, share)) / CYCLES


def _depth(layer: Layer) -> int:
    _, kh, kw, inputs = layer.weights.shape
    return int(-(-kh * kw * (-(-inputs // 8)) // 4) * 32)


def _halo_bytes(layer: Layer, block: WindowBlock) -> int:
    _, kh, kw, inputs = layer.weights.shape
    op = layer.op
    y = (block.y - 1) * op.stride[0] + (kh - 1) * op.dilation[0] + 1
    x = (block.x - 1) * op.stride[1] + (kw - 1) * op.dilation[1] + 1
    return int(y * x * (-(-inputs // 8) | 1) * 16)
