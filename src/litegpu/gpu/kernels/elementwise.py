"""An expression over operands that are broadcast against each other."""

from __future__ import annotations

from litegpu.gpu.kernels.access import Operands, Position, Sink
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Kernel


def build(ctx: KernelContext) -> list[Launch]:
    """The epilogue is all there is to do; dense operands are read by the linear index of the quad."""

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        sink.write(at)

    return [per_quad(ctx, "elementwise", body)]
