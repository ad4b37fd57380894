"""Values whose rows are normalised while they are added to those of a product: the residual sums of networks that
normalise behind them."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels.source import Traced, float_text
from litegpu.gpu.graph import LayerNorm
from litegpu.gpu.kernels.access import Operands, Position, open_source
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.lang import Kernel, TracedValue, f32, f32x4, u32

#: Bytes of shared memory for each row of a tile.
ROW_BYTES = 8


def constants_of(norm: LayerNorm | None, depth: int, place: int) -> dict[str, int | str]:
    """As added_norm.cu calls them; `place`: bytes of shared memory in front."""
    if norm is None:
        return {}
    return {
        "ADDED_CENTRED": int(norm.centred), "ADDED_DEPTH": f"{depth}", "ADDED_EPSILON": float_text(norm.epsilon),
        "ADDED_PLACE": place,
    }  # fmt: skip


def files_of(norm: LayerNorm | None) -> tuple[str, ...]:
    """Of this folder, what a kernel's file needs in front of it, behind device.cu."""
    return () if norm is None else ("added_norm.cu",)


def functions_of(ctx: KernelContext, norm: LayerNorm | None) -> list[Traced]:
    """Those that added_norm.cu calls; of a PointwiseConv2D with `added`, whose last inputs are the value and what its
    channels are multiplied with."""
    if norm is None:
        return []
    value, scale = ctx.node.inputs[2:]
    shape = ctx.output.shape

    def added(k: Kernel, operands: Operands, pixel: TracedValue, quad: TracedValue) -> TracedValue:
        return open_source(ctx, k, value, operands).read(Position(shape, pixel=pixel, q=quad))

    def sum_with(k: Kernel, operands: Operands, *parameters: TracedValue) -> TracedValue:
        pixel, quad, total, factor, shift = parameters
        scales = open_source(ctx, k, scale, operands).broadcast(0, 0, 0, quad)
        v = added(k, operands, pixel, quad)
        return total + (v * k.splat(factor, 4) + k.splat(shift, 4)) * scales

    return [
        Traced(ctx, "added", (u32, u32), added),
        Traced(ctx, "sum_with", (u32, u32, f32x4, f32, f32), sum_with),
    ]
