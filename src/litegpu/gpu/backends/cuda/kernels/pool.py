"""The largest of windows of bytes, by instructions that compare two at once."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import channels_at_once
from litegpu.gpu.backends.cuda.kernels.runs import RunEpilogue
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.evaluate.expressions import evaluate_expr
from litegpu.gpu.graph import DType, Node, Pool2D
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.view import View

THREADS = 128
#: Taps of a window that are written out, and threads of a multiprocessor that hide how long loads take.
MOST_TAPS, ENOUGH_THREADS = 49, 512
_LIMITS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}


def build(ctx: KernelContext) -> list[Launch] | None:
    """None but for the largest of bytes that are stored as they are; see pool.cu for the constants."""
    op = ctx.node.op
    assert isinstance(op, Pool2D)
    source, result = ctx.views[ctx.node.inputs[0]], ctx.views[ctx.node.output]
    if op.kind != "max" or source.dtype not in _LIMITS or result.dtype is not source.dtype:
        return None
    if not _fits(op, source, result) or not _is_stored_alike(ctx.node, source.dtype):
        return None
    batch, high, wide, _ = ctx.output.shape
    (kh, kw), (sy, sx), (py, px) = op.window, op.stride, op.padding
    chunk, across = _division(ctx, source, result)
    chunks, blocks, rows = -(-source.quads * 4 // chunk), -(-wide // across), batch * high
    constants: dict[str, int | str] = {
        "UNSIGNED": int(source.dtype is DType.UINT8), "CHUNK": chunk, "ACROSS": across, "CHUNKS": chunks,
        "BLOCKS": blocks, "ROWS": rows, "THREADS": THREADS, "H": source.shape[1], "W": source.shape[2],
        "OUT_H": high, "OUT_W": wide, "KERNEL_H": kh, "KERNEL_W": kw, "STRIDE_Y": sy, "STRIDE_X": sx,
        "PADDING_Y": py, "PADDING_X": px, **_places("FROM", source), **_places("TO", result),
    }  # fmt: skip
    if op.outside is not None:
        constants["OUTSIDE"] = f"0x{int(op.outside) & 255:02x}u * 0x01010101u"
    stored = RunEpilogue(0, np.zeros(0, np.int32), (), {}, {"results": result}, ("signed char* results",), False)
    operands: Operands = {"x": source}
    return [
        native_launch(
            ctx, "largest_of_bytes", ("pool.cu",), constants, operands, label="max_pool_2d",
            workgroup=(THREADS, 1, 1), dispatch=(-(-rows * blocks * chunks // THREADS), 1, 1), runs=stored,
            variant=f"{chunk}x{across}",
        )
    ]  # fmt: skip


def _fits(op: Pool2D, source: View, result: View) -> bool:
    """Whether all windows are written out, each with a pixel of the input, and chunks lie apart from others."""
    for size, outputs, kernel, stride, padding in zip(
        source.shape[1:3], result.shape[1:3], op.window, op.stride, op.padding, strict=True
    ):
        if padding >= kernel or (outputs - 1) * stride - padding >= size:
            return False
    whole = op.outside is None or source.shape[3] % 4 == 0  # else what is behind the last channel would not stay zero
    places = all(view.vector and view.whole_quads for view in (source, result))
    return places and whole and math.prod(op.window) <= MOST_TAPS


def _is_stored_alike(node: Node, kind: DType) -> bool:
    """Whether the epilogue leaves every byte as it is."""
    if node.operands:
        return False
    low, high = _LIMITS[kind]
    every = np.arange(low, high + 1, dtype=np.int32).reshape(-1, 1, 1, 1)
    return bool(np.array_equal(np.broadcast_to(evaluate_expr(node.epilogue, [every]), every.shape), every))


def _division(ctx: KernelContext, source: View, result: View) -> tuple[int, int]:
    """Bytes of channels and outputs of a thread: as many as leave enough threads."""
    units = ctx.features.compute_units or USUAL_UNITS
    most = min(channels_at_once(view, (16, 8)) for view in (source, result))
    options = [(chunk, across) for chunk in (16, 8, 4) if chunk <= most for across in (4, 2, 1)]
    pixels = math.prod(result.shape[:2])
    for chunk, across in options:
        if pixels * -(-result.shape[2] // across) * -(-source.quads * 4 // chunk) >= units * ENOUGH_THREADS:
            return chunk, across
    return options[-1]


def _places(name: str, view: View) -> dict[str, int | str]:
    b, y, x, _ = view.strides
    return {f"{name}_B": b, f"{name}_Y": y, f"{name}_X": x, f"{name}_OFFSET": view.offset}
