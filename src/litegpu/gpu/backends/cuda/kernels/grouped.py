"""Convolution in groups of few channels on tensor cores: each input pixel is copied once for all taps and outputs."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer, is_half, residuals_of
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import Conv2D
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Inputs of a bundle of groups, and steps of 16 along its depth, whose weights a warp keeps in its registers.
MOST_INPUTS, MOST_STEPS = 64, 40
#: Shared memory of a workgroup: all that the oldest devices have, and on others three of them fit.
MOST_BYTES = 64 << 10
#: Of the estimates: a multiprocessor's cycles in a microsecond, and bytes that it copies in one; what the part of a
#: pixel that a workgroup copies costs more, in bytes: its ends lie within what is moved at once, 32 bytes.
CYCLES, COPIED, ENDS = 1700, 32, 128
#: Microseconds until the first inputs have arrived.
LATENCY = 1.2


@dataclass(frozen=True)
class GroupedBlock:
    """A workgroup of `warps` computes y x x pixels of so many bundles."""

    y: int
    x: int
    bundles: int
    warps: int

    def __str__(self) -> str:
        return f"{self.y}x{self.x}x{self.bundles}-{self.warps}"


def bundle_of(inputs: int, outputs: int, groups: int) -> int:
    """How many groups of so many inputs and outputs are done together, as if in one: the least with which both are
    multiples of 8; 0 if there is none."""
    sizes = (n for n in range(1, groups + 1) if groups % n == 0 and n * inputs % 8 == n * outputs % 8 == 0)
    n = next(sizes, 0)
    return n if n * inputs <= MOST_INPUTS else 0


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None in float32, for groups of many or odd channels, and inputs that cannot be copied eight channels
    at a time."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Conv2D)
    weights = ctx.value(node.inputs[1]).data
    if weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    source = ctx.views[node.inputs[0]]
    layer = Layer(op, source, weights, ctx.output.shape, bool(is_half(ctx, source, weights)), residuals_of(ctx))
    blocks = ranked(layer, ctx.features.compute_units)
    if not blocks:
        return None
    return [offered([launch(ctx, layer, block) for block in blocks[: ctx.most]])]


def ranked(layer: Layer, units: int) -> list[GroupedBlock]:
    """The candidates, the cheapest first; none if the kernel cannot do the layer."""
    if not layer.half or layer.vector != 8 or not _bundle(layer) or _steps(layer) > MOST_STEPS:
        return []
    return sorted(candidates(layer), key=lambda block: (cost(layer, block, units), -block.warps))


def candidates(layer: Layer) -> list[GroupedBlock]:
    _, out_h, out_w, _ = layer.shape
    count = _bundles(layer)
    widths = {-(-out_w // n) for n in (1, 2, 4, 8) if n == 1 or out_w >= 16 * n}
    heights = {-(-out_h // -(-out_h // n)) for n in (1, 2, 3, 4, 6, 8, 16)}
    bundles = {-(-count // -(-count // n)) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)}
    found = [GroupedBlock(y, x, n, w) for y, x, n, w in itertools.product(heights, widths, bundles, (4, 8))]
    return [block for block in found if shared_bytes(layer, block) <= MOST_BYTES and block.y * block.x <= 512]


def shared_bytes(layer: Layer, block: GroupedBlock) -> int:
    """Of the copied inputs, behind 16 zero bytes."""
    return 16 + math.prod(_copied(layer, block)) * (_across(layer, block) | 1) * 16


def cost(layer: Layer, block: GroupedBlock, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors. (From counts of instructions and bytes; not fitted
    to measurements.)"""
    units, steps, columns = units or USUAL_UNITS, _steps(layer), _outputs(layer) // 8
    tiles = -(-block.y * block.x // 16)
    copied = math.prod(_copied(layer, block)) * (_across(layer, block) * 16 + ENDS) / COPIED / CYCLES
    products = block.bundles * columns * tiles
    issued = products * (5 * steps + 25) / CYCLES
    alone = LATENCY + copied + -(-products // block.warps) * (20 * steps + 120) / CYCLES
    groups = math.prod(_workgroups(layer, block))
    resident = max(1, min((227 << 10) // (shared_bytes(layer, block) + 1024), 64 // block.warps, 32))
    share = -(-groups // units)
    return float(max(alone * max(1.0, share / resident), LATENCY + share * max(copied, issued)))


def packed(layer: Layer) -> np.ndarray:
    """The weights as the lanes of warps hold them: [bundles, outputs / 8, steps, 32, 4] halves, with zeros between
    groups and where the depth is no multiple of 16."""
    outputs, kh, kw, inner = layer.weights.shape
    n, made = _bundle(layer), outputs // layer.op.groups
    bundles, steps = _bundles(layer), _steps(layer)
    dense = np.zeros((bundles, n, made, kh * kw, n, inner), np.float16)
    grouped = layer.weights.reshape(bundles, n, made, kh * kw, inner)
    for i in range(n):
        dense[:, i, :, :, i] = grouped[:, i]
    rows = np.zeros((bundles, n * made, steps * 16), np.float16)
    rows[..., : kh * kw * n * inner] = dense.reshape(bundles, n * made, -1)
    # of 8 outputs and 16 of the depth, lane 4 * output + i has numbers 2i, 2i + 1, and 8 more of each
    tiles = rows.reshape(bundles, n * made // 8, 8, steps, 2, 4, 2)
    return np.ascontiguousarray(tiles.transpose(0, 1, 3, 2, 5, 4, 6)).reshape(bundles, n * made // 8, steps, 32, 4)


def launch(ctx: KernelContext, layer: Layer, block: GroupedBlock) -> Launch:
    """The convolution with the given block; see grouped.cu for the constants."""
    groups = _workgroups(layer, block)
    units = block.bundles * _outputs(layer) // 8
    constants: dict[str, int | str] = {
        **layer.constants(), "KERNEL_H": layer.weights.shape[1], "IN": _inputs(layer), "OUT": _outputs(layer),
        "ALL": _bundles(layer), "BUNDLES": block.bundles, "TY": block.y, "TX": block.x, "WARPS": block.warps,
        "GROUPS_C": groups[0], "GROUPS_X": groups[1], "GROUPS_Y": groups[2],
        "SLICES": min(-(-block.y * block.x // 16), -(-2 * block.warps // units)),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": packed(layer)}
    return native_launch(
        ctx, "grouped_convolution", ("device.cu", "grouped.cu"), constants, operands, label="conv_2d",
        workgroup=(32 * block.warps, 1, 1), dispatch=(math.prod(groups), 1, 1),
        shared_bytes=shared_bytes(layer, block), variant=str(block),
    )  # fmt: skip


def _bundle(layer: Layer) -> int:
    return bundle_of(layer.weights.shape[3], layer.weights.shape[0] // layer.op.groups, layer.op.groups)


def _bundles(layer: Layer) -> int:
    return layer.op.groups // _bundle(layer)


def _inputs(layer: Layer) -> int:
    """Of a bundle, as `_outputs`."""
    return int(layer.weights.shape[3]) * _bundle(layer)


def _outputs(layer: Layer) -> int:
    return int(layer.weights.shape[0]) // _bundles(layer)


def _steps(layer: Layer) -> int:
    """Of 16 along the depth."""
    return -(-math.prod(layer.weights.shape[1:3]) * _inputs(layer) // 16)


def _across(layer: Layer, block: GroupedBlock) -> int:
    """Chunks of eight channels of a pixel."""
    return block.bundles * _inputs(layer) // 8


def _copied(layer: Layer, block: GroupedBlock) -> tuple[int, int]:
    """Rows and columns of inputs that a workgroup copies."""
    op, (_, kh, kw, _) = layer.op, layer.weights.shape
    return (
        (block.y - 1) * op.stride[0] + (kh - 1) * op.dilation[0] + 1,
        (block.x - 1) * op.stride[1] + (kw - 1) * op.dilation[1] + 1,
    )


def _workgroups(layer: Layer, block: GroupedBlock) -> tuple[int, int, int, int]:
    """Along bundles, columns, rows and images."""
    batch, out_h, out_w, _ = layer.shape
    return -(-_bundles(layer) // block.bundles), -(-out_w // block.x), -(-out_h // block.y), batch
