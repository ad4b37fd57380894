"""Attention on tensor cores: one kernel that never stores the logits, in float16 with float32 sums."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels import warpgroup_attention
from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.matmul import copied
from litegpu.gpu.backends.cuda.kernels.source import float_text, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, most_shared_bytes
from litegpu.gpu.graph import Attention, DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch, quickest
from litegpu.gpu.view import View

#: Numbers of a query, and of a value, that a warp keeps in registers.
MOST_WIDTH = 128
#: From so many keys on it is quicker than a thread for each key, and than separate products where those are float32.
LEAST_KEYS = 33
#: Keys that a workgroup takes at a time.
STEP = 64
#: Of them under way at once, at most.
MOST_STAGES = 4
_THREADS = 128


def fits(depth: int, columns: int, keys: int) -> bool:
    """Whether the kernel does attention of these sizes, in float16."""
    return depth <= MOST_WIDTH and columns <= MOST_WIDTH and keys >= LEAST_KEYS


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch, by the kernel that is estimated, or measured, to be the fastest; None in float32, for sizes that do
    not fit, and for operands that are constant (but for the mask)."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    if not ctx.half or any(ctx.value(v).is_constant for v in node.inputs[:3]):
        return None
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    keys, depth = k.shape[2:]
    if not fits(depth, v.shape[3], keys) or not {x.dtype for x in (q, k, v)} <= set(LOAD):
        return None
    operands: Operands = {"q": q, "k": k, "v": v}
    mask: dict[str, int | str] = {"MASKED": 0, "MASK_PARAMETER": ""}
    if len(node.inputs) > 3:
        found = _mask(ctx, node.inputs[3], operands)
        if found is None:
            return None
        mask = found
    units, sizes = ctx.features.compute_units or USUAL_UNITS, warpgroup_attention.sizes_of(ctx)
    tiles = [] if sizes is None else warpgroup_attention.ranked(sizes, ctx.features.capability, units)
    if ctx.tuner is not None:
        launches = [warpgroup_attention.launch(ctx, tile, mask, operands) for tile in tiles[: ctx.tuner.most - 1]]
        return [quickest(ctx.tuner, [_launch(ctx, mask, operands), *launches])]
    if sizes is not None and tiles and warpgroup_attention.cost(sizes, tiles[0], units) < _cost(ctx, units):
        return [warpgroup_attention.launch(ctx, tiles[0], mask, operands)]
    return [_launch(ctx, mask, operands)]


def _division(ctx: KernelContext, units: int) -> tuple[int, int]:
    """How many warps of a workgroup divide the queries (the others divide the keys), and how many workgroups."""
    batch, heads, queries, _ = ctx.output.shape
    divisions = [(w, -(-queries // (16 * w)) * batch * heads) for w in (4, 2, 1)]
    return next((d for d in divisions if d[1] >= units), divisions[-1])


def _cost(ctx: KernelContext, units: int) -> float:
    """Estimated microseconds of attention.cu on a device of `units` multiprocessors, from seven measurements."""
    down, groups = _division(ctx, units)
    keys, depth = ctx.views[ctx.node.inputs[1]].shape[2:]
    steps = -(-keys // STEP)
    each = steps * (0.25 + 0.1875 * down) * (depth + ctx.output.shape[3]) / 128
    return float(1.7 + max(0.75 * steps, -(-groups // units) * each))


def _launch(ctx: KernelContext, mask: dict[str, int | str], operands: Operands) -> Launch:
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Attention)
    q, k, v = (ctx.views[i] for i in node.inputs[:3])
    batch, heads, queries, columns = ctx.output.shape
    keys, depth = k.shape[2:]
    units = ctx.features.compute_units or USUAL_UNITS
    down, groups = _division(ctx, units)
    across = _THREADS // 32 // down
    padded_depth, padded_columns = (max(16, 1 << (n - 1).bit_length()) for n in (depth, columns))
    rows = 16 * down
    stage = 2 * STEP * (padded_depth + padded_columns)
    fitting = (most_shared_bytes(ctx.features.capability) - 2 * rows * padded_depth) // stage
    # with one workgroup on a multiprocessor nothing else hides how long copies take
    stages = max(2, min(MOST_STAGES, -(-keys // STEP), fitting)) if groups <= units else 2
    tiles = 2 * rows * padded_depth + stages * stage
    sums = 4 * across * rows * (padded_columns + 8 + 2)
    constants: dict[str, int | str] = {
        "WARPS_M": down, "WARPS_K": across, "STEP": STEP, "STAGES": stages, "DP": padded_depth,
        "EP": padded_columns, "HEADS": heads, "QUERIES": queries, "KEYS": keys,
        "QUADS": -(-columns // 4), "TILES": groups // (batch * heads),
        "SCALE": float_text(op.scale * math.log2(math.e)), "BETA": float_text(op.beta * math.log2(math.e)),
        **_side("Q", q), **_side("K", k), **_side("V", v), **mask,
    }  # fmt: skip
    return native_launch(
        ctx, "flash_attention", ("device.cu", "attention.cu"), constants, operands, label="attention",
        workgroup=(_THREADS, 1, 1), dispatch=(groups, 1, 1), shared_bytes=max(tiles, sums),
        variant=f"{down}x{across}",
    )  # fmt: skip


def _side(name: str, view: View) -> dict[str, int | str]:
    kind, load = LOAD[view.dtype]
    floats = view.dtype is DType.FLOAT32 and view.vector and view.whole_quads
    along = 1 if floats else copied(view, True, False)
    batch, head, row, column = view.strides
    return {
        f"{name}_TYPE": kind, f"{name}_LOAD(value)": load, f"{name}_COPY": along,
        f"{name}_WIDTH": view.quads * 4 if along else view.shape[3], f"{name}_OFFSET": view.offset,
        f"{name}_PITCH_BATCH": batch if view.shape[0] > 1 else 0,
        f"{name}_PITCH_HEAD": head if view.shape[1] > 1 else 0,
        f"{name}_PITCH_ROW": row, f"{name}_PITCH_COLUMN": column,
    }  # fmt: skip


def _mask(ctx: KernelContext, value: int, operands: Operands) -> dict[str, int | str] | None:
    """What the kernel must know of the mask, which becomes an operand; None for types that it does not read."""
    data = ctx.value(value).data
    if data is not None:
        array = np.ascontiguousarray(data, np.float32)
        operands["mask"] = array
        kind, load, offset = "float", "value", 0
        shape = array.shape
        strides = tuple(s // array.itemsize for s in array.strides)
    else:
        view = ctx.views[value]
        if view.dtype not in LOAD:
            return None
        operands["mask"] = view
        (kind, load), offset, shape, strides = LOAD[view.dtype], view.offset, view.shape, view.strides
    pitches = [stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True)]
    names = ("BATCH", "HEAD", "ROW", "COLUMN")
    return {
        "MASKED": 1, "MASK_PERIOD": shape[0], "MASK_PARAMETER": f", const {kind}* mask", "MASK_LOAD(value)": load,
        "MASK_OFFSET": offset,
        **{f"MASK_PITCH_{name}": pitch for name, pitch in zip(names, pitches, strict=True)},
    }  # fmt: skip
