"""The simplest shape of kernel: one thread computes four channels of one output pixel."""

from __future__ import annotations

import math
from collections.abc import Callable

from litegpu.gpu.kernels.access import Operands, Position, Sink, open_sink
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Kernel, trace

WORKGROUP = 64

#: What one thread does: from the kernel, the operands and the sink, at a position of the output.
Body = Callable[[Kernel, Operands, Sink, Position], None]


def per_quad(ctx: KernelContext, name: str, body: Body) -> Launch:
    """A launch of `body` for every quad of the output."""
    operands: Operands = {}
    shape = ctx.output.shape
    total = math.prod(shape[:3]) * -(-shape[3] // 4)
    workgroup = min(WORKGROUP, ctx.features.max_threads)
    groups = -(-total // workgroup)

    def kernel(k: Kernel) -> None:
        i = k.group_id() * workgroup + k.local_id()
        with k.If(True if groups * workgroup == total else i < total):
            body(k, operands, open_sink(ctx, k, operands), Position(shape, flat=i))

    return Launch(trace(kernel, name, (workgroup, 1, 1), (groups, 1, 1)), operands, name)
