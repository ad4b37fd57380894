"""Two 1x1 convolutions in one kernel, on devices that have warpgroup products, which keeps in registers what is
between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import row_norm, row_tile
from litegpu.gpu.backends.cuda.kernels.inverted_cost import effort
from litegpu.gpu.backends.cuda.kernels.layer import Layer, residuals_of
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.backends.cuda.kernels.row_tile import TEAM, depth_of, slab_of
from litegpu.gpu.backends.cuda.kernels.source import Traced, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import MOST_WARPGROUP_SHARED_BYTES, USUAL_UNITS
from litegpu.gpu.graph import Conv2D, PairConv2D
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32x4

#: Channels of the input that a workgroup has place for, and of the output that a thread has registers for.
MOST_DEPTH, WIDTHS = 256, (32, 48, 64, 80, 96, 112, 128, 192)
#: Bytes that the memory moves in a microsecond.
MEMORY = 3.8e6
#: Instructions for an element by functions that are rounded to halves (GELU's).
MOST_EFFORT = 13.0


@dataclass(frozen=True)
class PairTile:
    """`teams` warpgroups have 64 rows each, and go through the channels between the convolutions in steps of `step`,
    whose weights come to `stages` places; `resident` workgroups share a multiprocessor."""

    teams: int
    step: int
    stages: int
    resident: int

    def __str__(self) -> str:
        return f"{self.teams}x64x{self.step}-{self.stages}-{self.resident}"

    @property
    def threads(self) -> int:
        return 128 * self.teams + 32


@dataclass(frozen=True)
class PairSizes:
    """`pixels` times `inputs` to `inner` to `outputs` channels; `effort`: instructions for each one of the inner."""

    pixels: int
    inputs: int
    inner: int
    outputs: int
    effort: float
    residuals: int = 0

    @property
    def depth(self) -> int:
        return depth_of(self.inputs)

    @property
    def columns(self) -> int:
        return next(n for n in WIDTHS if n >= self.outputs)

    @property
    def span(self) -> int:
        """Columns of sums that leave at a time."""
        return next(n for n in (64, 48, 32, 16) if self.columns % n == 0 and (n + 8) * 2 <= max(self.depth, 48))

    @property
    def blocks(self) -> int:
        return -(-self.pixels // TEAM)

    def steps(self, tile: PairTile) -> int:
        return -(-self.inner // tile.step)

    def step_bytes(self, tile: PairTile) -> int:
        return 2 * tile.step * (self.depth + self.columns) + 1024

    def groups(self, tile: PairTile, units: int) -> int:
        return min(-(-self.blocks // tile.teams), (units or USUAL_UNITS) * tile.resident)

    def shared_bytes(self, tile: PairTile, units: int) -> int:
        """As pair.cu lays it out."""
        rows, sums = TEAM * self.depth * 2, 4 * 16 * (self.span + 8) * 4
        buffers = 2 if self.blocks > self.groups(tile, units) * tile.teams else 1
        places = tile.stages * (self.step_bytes(tile) + 16)
        return places + tile.teams * (buffers * rows + (sums if sums > rows else 0))

    def fits(self, tile: PairTile, units: int) -> bool:
        registers = min(255, 65536 // (tile.resident * -(-tile.threads // 128) * 128)) // 8 * 8
        needed = self.columns // 2 + tile.step // 2 + tile.step // 4 + 24
        shared = tile.resident * (self.shared_bytes(tile, units) + 1024)
        places = tile.stages == self.steps(tile) or 2 <= tile.stages < min(5, self.steps(tile))
        return needed <= registers and shared <= MOST_WARPGROUP_SHARED_BYTES + 1024 and places


def ranked(sizes: PairSizes, units: int) -> list[PairTile]:
    """The tiles that fit, the cheapest first."""
    tiles = [
        PairTile(teams, step, stages, resident)
        for teams, residents in ((1, (4, 3, 2, 1)), (2, (2, 1)), (3, (1,)))
        for step in (32, 64)
        for stages in (2, 3, 4, -(-sizes.inner // step))
        for resident in residents
    ]
    fitting = [tile for tile in dict.fromkeys(tiles) if sizes.fits(tile, units)]
    return sorted(fitting, key=lambda tile: (cost(sizes, tile, units), tile.threads))


def cost(sizes: PairSizes, tile: PairTile, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: of a step what a team takes alone, or those that
    share a multiprocessor one after the other. (From 25 measurements of five pairs with GELU on an H200.)"""
    units = units or USUAL_UNITS
    groups, steps = sizes.groups(tile, units), sizes.steps(tile)
    rounds = -(-sizes.blocks // (groups * tile.teams))
    together = tile.teams * min(tile.resident, -(-groups // units))
    wide = tile.step * (sizes.depth + sizes.columns) / 64
    each = max(0.75 + 0.00125 * wide, together * (0.35 + 0.00165 * wide))
    computing = 1.5 + rounds * (0.3 + steps * each)
    moved = sizes.pixels * (sizes.inputs + sizes.outputs * (1 + sizes.residuals)) * 2 / MEMORY
    return float(1.0 + (computing**4 + moved**4) ** 0.25)


def build(ctx: KernelContext) -> list[Launch]:
    op, (x, *constants) = ctx.node.op, ctx.node.inputs
    assert isinstance(op, PairConv2D)
    weights, bias, last = (ctx.value(v).data for v in constants)
    assert weights is not None and bias is not None and last is not None  # as the pass sees to
    norm = None
    if op.norm is not None:
        norm, weights = row_norm.folded(op.norm, weights)
    layer = Layer(Conv2D(), ctx.views[x], weights, ctx.output.shape, True, residuals_of(ctx), norm=norm)
    sizes = sizes_of(op, layer.shape, weights.shape, layer.residuals)
    tiles = ranked(sizes, ctx.features.compute_units)
    return [offered([launch(ctx, layer, bias, last, tile) for tile in tiles[: ctx.most]])]


def sizes_of(op: PairConv2D, shape: tuple[int, ...], weights: tuple[int, ...], residuals: int) -> PairSizes:
    """Of an output of `shape`, and first weights [E,1,1,I]."""
    return PairSizes(
        math.prod(shape[:3]), weights[3], weights[0], shape[3], min(MOST_EFFORT, effort(op.inner)), residuals
    )


def launch(ctx: KernelContext, layer: Layer, bias: np.ndarray, last: np.ndarray, tile: PairTile) -> Launch:
    """Both convolutions, of which `layer` is the first one but for its shape, by the tile; see pair.cu for the
    constants."""
    op, view, units = ctx.node.op, layer.source, ctx.features.compute_units
    assert isinstance(op, PairConv2D)
    sizes = sizes_of(op, layer.shape, layer.weights.shape, layer.residuals)
    groups, shared = sizes.groups(tile, units), sizes.shared_bytes(tile, units)
    at_once = 8 if sizes.span >= 64 else 4
    constants: dict[str, int | str] = {
        **row_tile.constants_of(layer), "BN": sizes.columns, "AT_ONCE": at_once, "TEAMS": tile.teams,
        "STAGES": tile.stages, "RESIDENT": tile.resident, "STEP": tile.step, "STEPS": sizes.steps(tile),
        "COLUMNS": sizes.columns, "SPAN": sizes.span, "BLOCKS": sizes.blocks, "GROUPS": groups, "PIXELS": sizes.pixels,
        "QUADS": -(-sizes.outputs // 4), "SHARED_BYTES": shared,
    }  # fmt: skip
    operands: Operands = {"x": view, "w": packed(sizes, tile, layer.weights, bias, last)}

    def inner(k: Kernel, _: Operands, value: TracedValue) -> TracedValue:
        result = evaluate(k, op.inner, [value], rough=ctx.half)
        return result if result.type.lanes == 4 else k.splat(result, 4)

    files = (
        "device.cu", "turned.cu", "warpgroup.cu", "kept.cu", "pipeline.cu", "elements.cu", "rows.cu", "row_tile.cu"
    )  # fmt: skip
    return native_launch(
        ctx, "pair_convolution", (*files, *row_norm.files_of(layer.norm), "pair.cu"), constants, operands,
        label="pair_conv_2d", workgroup=(tile.threads, 1, 1), dispatch=(groups, 1, 1), shared_bytes=shared,
        variant=str(tile), pixels=at_once, inner=Traced(ctx, "inner", (f32x4,), inner),
    )  # fmt: skip


def packed(sizes: PairSizes, tile: PairTile, weights: np.ndarray, bias: np.ndarray, last: np.ndarray) -> np.ndarray:
    """All that a step needs as it lies in shared memory, halves: the weights of both convolutions as tiles, and the
    bias."""
    steps = sizes.steps(tile)
    inner = steps * tile.step
    first, second = np.zeros((inner, sizes.depth), np.float16), np.zeros((sizes.columns, inner), np.float16)
    first[: sizes.inner, : sizes.inputs] = weights.reshape(sizes.inner, sizes.inputs)
    second[: sizes.outputs, : sizes.inner] = last.reshape(sizes.outputs, sizes.inner)
    biases = np.zeros((steps, 256), np.float32)
    flat = np.zeros(inner, np.float32)
    flat[: sizes.inner] = np.broadcast_to(bias.reshape(-1), sizes.inner)
    biases[:, : tile.step] = flat.reshape(steps, tile.step)
    first = row_tile.in_slabs(first.reshape(steps, tile.step, sizes.depth), slab_of(sizes.inputs))
    second = row_tile.in_slabs(second.reshape(sizes.columns, steps, tile.step).transpose(1, 0, 2), tile.step)
    parts = [first.reshape(steps, -1), second.reshape(steps, -1), biases.view(np.float16)]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))
