"""A table of bytes for bytes: to move them is the work."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.runs import nothing_stored
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import RESULT, Lookup
from litegpu.gpu.kernels.access import byte_bounds
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View

#: Bytes that a thread loads at once, and how often where there are many: threads that all are resident together.
WIDTHS, EACH, RESIDENT = (16, 4), 4, 2048
THREADS = 256


def build(ctx: KernelContext) -> list[Launch] | None:
    """None where bytes and results do not lie one behind the other, alike; see lookup.cu for the constants."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Lookup)
    source, target, table = ctx.views.get(node.inputs[0]), ctx.views[node.output], ctx.value(node.inputs[1]).data
    bounds = byte_bounds(target.dtype)
    if source is None or table is None or bounds is None or node.epilogue != RESULT or not _are_alike(source, target):
        return None
    count = math.prod(source.shape)
    width = next(width for width in WIDTHS if not (count | source.offset | target.offset) % width)
    pieces, units = count // width, ctx.features.compute_units or USUAL_UNITS
    each = EACH if pieces >= EACH * RESIDENT * units else 1
    places = (np.arange(256) - op.lowest) % 256  # in the table, of the number that the bits of a byte are
    constants: dict[str, int | str] = {
        "WIDTH": width, "PIECES": pieces, "EACH": each, "THREADS": THREADS,
        "FROM": source.offset // width, "TO": target.offset // width,
    }  # fmt: skip
    numbers = (np.clip(table.reshape(-1)[places], *bounds).astype(np.int32) & 255).astype(np.uint8)
    return [
        native_launch(
            ctx, "lookup_of_bytes", ("lookup.cu",), constants, {"x": source, "table": numbers, "y": target},
            label="lookup", workgroup=(THREADS, 1, 1), dispatch=(-(-pieces // (each * THREADS)), 1, 1),
            runs=nothing_stored(),
        )
    ]  # fmt: skip


def _are_alike(source: View, target: View) -> bool:
    """Whether one byte follows another in both, all of them elements, in whole words."""
    return source.dense and target.dense and source.shape == target.shape and source.shape[3] % 4 == 0
