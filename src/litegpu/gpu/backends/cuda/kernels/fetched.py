"""Rows of an input that a product reads where they lie before they are moved."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import Traced
from litegpu.gpu.kernels.access import Operands, Position
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.movement import Quad, no_table, origin, shapes_along
from litegpu.gpu.lang import Kernel, TracedValue, u32


def functions_of(ctx: KernelContext, layer: Layer) -> list[Traced]:
    """FETCHED(pixel): the row of the input that is in the place of `pixel` when they have been moved."""
    if not layer.fetched:
        return []
    shapes = shapes_along(layer.fetched, layer.source.shape)

    def fetched(k: Kernel, operands: Operands, pixel: TracedValue) -> TracedValue:
        at = Position(shapes[-1], pixel=pixel, q=0)
        b, y, x, _ = origin(k, layer.fetched, shapes, [at.b, at.y, at.x, Quad(0)], no_table).coordinates
        assert not isinstance(b, Quad) and not isinstance(y, Quad) and not isinstance(x, Quad)
        _, height, width, _ = layer.source.shape
        row = (b * height + y) * width + x
        return k.const(row, u32) if isinstance(row, int) else row

    return [Traced(ctx, "fetched", (u32,), fetched)]
