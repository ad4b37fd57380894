"""A table of 256 numbers, for each number that a byte can hold."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.graph import Lookup
from litegpu.gpu.kernels.access import Operands, Position, Sink, declare_table, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.per_quad import per_quad
from litegpu.gpu.lang import Kernel, f32, i32, u32x4


def build(ctx: KernelContext) -> list[Launch]:
    """One thread per output quad."""
    op = ctx.node.op
    assert isinstance(op, Lookup)
    table = ctx.value(ctx.node.inputs[1]).data
    assert table is not None
    kind = f32 if table.dtype.kind == "f" else i32

    def body(k: Kernel, operands: Operands, sink: Sink, at: Position) -> None:
        source = open_source(ctx, k, ctx.node.inputs[0], operands)
        numbers = table.reshape(-1).astype(np.float32 if kind.is_float else np.int32)
        memory = declare_table(k, "table", numbers, kind, operands)
        found = source.read(at, spread=False) - constant(k, op.lowest, i32)
        places = k.bitcast(found, u32x4)
        sink.write(at, k.vec(*(memory[k.min(places[j], 255)] for j in range(4))))

    return [per_quad(ctx, "lookup", body)]
