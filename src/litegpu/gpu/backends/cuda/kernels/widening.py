"""A widening block of few pixels, 1x1, depthwise and 1x1 convolution, by clusters of workgroups: see widening.cu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import byte_inverted, inverted
from litegpu.gpu.backends.cuda.kernels.byte_inverted import MAGIC, NEAR, ByteInvertedLayer, Stage
from litegpu.gpu.backends.cuda.kernels.byte_rests import held
from litegpu.gpu.backends.cuda.kernels.inverted import InvertedLayer
from litegpu.gpu.backends.cuda.kernels.inverted_cost import InvertedShape
from litegpu.gpu.backends.cuda.kernels.layer import LOAD, NARROW, Layer
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.overlapped import will_overlap
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.backends.cuda.kernels.squeeze import function
from litegpu.gpu.backends.cuda.kernels.tile import WARPGROUP_CAPABILITY
from litegpu.gpu.backends.cuda.kernels.widening_cost import (
    MOST_COLUMNS,
    WideningBlock,
    is_quicker,
    ranked,
    whole_depth,
    whole_outputs,
)
from litegpu.gpu.graph import DType, Graph
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang.features import Features

FILES = ("device.cu", "pipeline.cu", "remote.cu", "widening.cu")
#: The bits of MAGIC, which is half of the numbers that have such an exponent.
_MAGIC = int(np.float32(MAGIC).view(np.int32))
#: Channels that are copied at once, at least.
LANES = 8


def pays(shape: InvertedShape, size: int, graph: Graph, features: Features) -> bool:
    """Whether a block of elements of `size` bytes is best done by that kernel: where kernels overlap."""
    if features.capability != WARPGROUP_CAPABILITY or not will_overlap(graph):
        return False
    return shape.inputs % LANES == 0 and is_quicker(shape, size, features.compute_units)


def build(ctx: KernelContext) -> list[Launch]:
    """Of an InvertedConv2D: one launch, by this kernel or that of inverted.py."""
    layer = InvertedLayer.of(ctx)
    if not _is_best(ctx, layer.shape, 2, layer.window):
        return inverted.build(ctx)
    return _of_blocks(ctx, layer.shape, 2, lambda block: _halves(ctx, layer, block))


def build_bytes(ctx: KernelContext) -> list[Launch]:
    """Of an IntegerInvertedConv2D: one launch, by this kernel or that of byte_inverted.py."""
    layer = ByteInvertedLayer.of(ctx)
    weights = [s.weights for s in (layer.expansion, layer.middle) if s] + [np.asarray(layer.projection)]
    if not _is_best(ctx, layer.shape, 1, layer.window) or not all(np.array_equal(w, held(w)) for w in weights):
        return byte_inverted.build(ctx)
    return _of_blocks(ctx, layer.shape, 1, lambda block: _bytes(ctx, layer, block))


def _is_best(ctx: KernelContext, shape: InvertedShape, size: int, window: Layer) -> bool:
    """Whether the kernel can read the node's input, and is the one for the node."""
    aligned = window.source.dtype is not DType.FLOAT32 and window.vector >= LANES
    return aligned and pays(shape, size, ctx.graph, ctx.features)


def _of_blocks(
    ctx: KernelContext, shape: InvertedShape, size: int, make: Callable[[WideningBlock], Launch]
) -> list[Launch]:
    blocks = ranked(shape, size, ctx.features.compute_units)
    return [offered([make(block) for block in blocks[: ctx.most]])]


def _halves(ctx: KernelContext, layer: InvertedLayer, block: WideningBlock) -> Launch:
    op, shape = layer.op, layer.shape
    weights, bias, middle_bias, projection = layer.constants
    parts = _Parts(shape, block, 2)
    taps = layer.window.weights.reshape(-1, shape.channels).T.astype(np.float16)
    operands: Operands = {
        "x": layer.window.source,
        "w": parts.wide(weights.reshape(shape.channels, -1).astype(np.float16), (whole_depth(shape.inputs, 2),)),
        "bias": parts.wide(bias.reshape(-1).astype(np.float32)), "taps": parts.windows(taps[:, :, None]),
        "middle_bias": parts.wide(middle_bias.reshape(-1).astype(np.float32)),
        "projection": parts.projection(projection.reshape(shape.outputs, -1).astype(np.float16)),
    }  # fmt: skip
    constants: dict[str, int | str] = {"SOURCE": LOAD[layer.window.source.dtype][0]}
    inner = [function(ctx, "expanded", op.expanded), function(ctx, "middle", op.middle)]
    return _launch(ctx, layer.window, parts, constants, operands, inner)


def _bytes(ctx: KernelContext, layer: ByteInvertedLayer, block: WideningBlock) -> Launch:
    shape, view, first, middle = layer.shape, layer.window.source, layer.expansion, layer.middle
    assert first is not None and middle is not None and layer.projection is not None
    parts, before, between = _Parts(shape, block, 1), _offset(first), _offset(middle)
    first_near, first_begun = begun(first, first.zero_point)
    middle_near, middle_begun = begun(middle, before)
    kh, kw = shape.window
    taps = np.zeros((shape.channels, kh, MOST_COLUMNS), np.int8)
    taps[..., :kw] = layer.window.weights[0].transpose(2, 0, 1)
    correction = np.zeros(whole_outputs(shape), np.int32)
    correction[: shape.outputs] = -between * layer.projection.sum(1)
    operands: Operands = {
        "x": view, "w": parts.wide(first.weights.astype(np.int8), (whole_depth(shape.inputs, 1),)),
        "bias": parts.wide(first_begun),
        "taps": parts.windows(taps),
        "middle_bias": parts.wide(middle_begun),
        "projection": parts.projection(layer.projection.astype(np.int8)),
        "scale": parts.wide(_each(first, shape)), "middle_scale": parts.wide(_each(middle, shape)),
        "corrections": correction,
    }  # fmt: skip
    constants: dict[str, int | str] = {
        "SOURCE": NARROW[view.dtype], "UNSIGNED": int(view.dtype is DType.UINT8),
        "OUTSIDE": f"{(before & 255) * 0x101}u",
    }  # fmt: skip
    for name, stage, near in ("EXPANDED", first, first_near), ("MIDDLE", middle, middle_near):
        limits = {f"{name}_LOW": f"{stage.low!r}f", f"{name}_HIGH": f"{stage.high!r}f"}
        constants |= {**limits, f"{name}_OFFSET": f"({_offset(stage)})", f"{name}_NEAR": int(near)}
    return _launch(ctx, layer.window, parts, constants, operands, [])


def _offset(stage: Stage) -> int:
    """What makes the smallest number that of the least signed byte."""
    return -128 - round(stage.low)


def begun(stage: Stage, zero_point: int) -> tuple[bool, np.ndarray]:
    """Whether a float's bits hold all of the sums of weights with bytes, and what sums begin with."""
    more = stage.bias - float(zero_point) * stage.weights.sum(1)
    near = np.max(255 * np.abs(stage.weights).sum(1) + np.abs(more), initial=0.0) < NEAR
    return bool(near), (more + (_MAGIC if near else 0)).astype(np.int64).astype(np.int32)


def _each(stage: Stage, shape: InvertedShape) -> np.ndarray:
    """Scales of all channels."""
    return np.broadcast_to(stage.scale, (shape.channels,)).astype(np.float32)


@dataclass(frozen=True)
class _Parts:
    """How what belongs to wide channels is divided among the workgroups of a cluster, zeros where there are none."""

    shape: InvertedShape
    block: WideningBlock
    size: int

    def wide(self, data: np.ndarray, last: tuple[int, ...] = ()) -> np.ndarray:
        """[channels, ...] as [part, own channels, last...]."""
        own, split = self.block.own(self.shape), self.block.split
        each = -(-self.shape.channels // split)
        result = np.zeros((split, own, *(last or data.shape[1:])), data.dtype)
        for part in range(split):
            some = data[part * each : (part + 1) * each]
            whole = [(0, n - m) for n, m in zip(result.shape[1:], some.shape, strict=True)]
            result[part] = np.pad(some, whole)
        return result

    def windows(self, taps: np.ndarray) -> np.ndarray:
        """[channels, taps or rows, columns of a word] as [part, taps or rows, own channels, columns]."""
        return np.ascontiguousarray(self.wide(taps).transpose(0, 2, 1, 3)).reshape(-1)

    def projection(self, weights: np.ndarray) -> np.ndarray:
        """[outputs, channels] as [part, outputs in whole tiles, own channels in whole products]."""
        own, deep = self.block.own(self.shape), whole_depth(self.block.own(self.shape), self.size)
        whole = np.zeros((self.block.split, whole_outputs(self.shape), deep), weights.dtype)
        whole[:, : len(weights), :own] = self.wide(weights.T).transpose(0, 2, 1)
        return whole.reshape(-1)


def _launch(
    ctx: KernelContext,
    window: Layer,
    parts: _Parts,
    constants: dict[str, int | str],
    operands: Operands,
    inner: list[Traced],
) -> Launch:
    """See widening.cu for the constants."""
    shape, block, view = parts.shape, parts.block, window.source
    vector, own = window.vector, block.own(shape)
    down, across = -(-shape.out_size[0] // block.y), -(-shape.out_size[1] // block.x)
    shared = block.shared_bytes(shape, parts.size)
    settings: dict[str, int | str] = {
        **window.constants(), **constants, "WHOLE": int(parts.size == 1), "KERNEL_H": shape.window[0], "VECTOR": vector,
        "SPLIT": block.split, "BY": block.y, "BX": block.x, "BM": block.rows, "WARPS": block.warps, "OWN": own,
        "DEEP": whole_depth(own, parts.size), "DEPTH": whole_depth(shape.inputs, parts.size),
        "OUT": whole_outputs(shape),
        "TILES_Y": down, "TILES_X": across, "QUADS": -(-shape.outputs // 4), "CHANNELS": view.quads * 4,
        "SHARED_BYTES": shared,
    }  # fmt: skip
    return native_launch(
        ctx, "widening_block", FILES, settings, operands, label="inverted_conv_2d", workgroup=(block.threads, 1, 1),
        dispatch=(block.groups(shape), 1, 1), shared_bytes=shared, variant=str(block), inner=inner, ahead=True,
    )  # fmt: skip
