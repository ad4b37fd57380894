"""What kernels of attention are told of their operands: where queries, keys and values lie, and masks."""

from __future__ import annotations

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.matmul import copied
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.view import View

#: Rows of which packed masks have whole multiples: the queries of four warps.
ROWS = 64
#: What a logit may have added, as a power of two, without anything being left beside others.
HIDDEN = -2e4


def side(name: str, view: View) -> dict[str, int | str]:
    """Where the queries, keys or values lie, and how many numbers of a row can be read at once."""
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


def given_mask(ctx: KernelContext, value: int, operands: Operands) -> dict[str, int | str] | None:
    """What a kernel must know of the mask, which becomes an operand; None for types that none reads."""
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
        "MASKED": 1, "MASK_CONSTANT": int(data is not None), "MASK_PERIOD": shape[0], "MASK_LOAD(value)": load,
        "MASK_PARAMETER": f", const {kind}* mask", "MASK_OFFSET": offset,
        **{f"MASK_PITCH_{name}": pitch for name, pitch in zip(names, pitches, strict=True)},
    }  # fmt: skip


def written_mask(
    operands: Operands, diagonal: int | None, factor: float, step: int, queries: int, keys: int
) -> tuple[Operands, dict[str, int | str]]:
    """The operands with the mask, of whose logits `factor` times is added, as a kernel of `step` keys at a time reads
    it, and constants for that: a constant mask is packed where it can be, that of a diagonal alone is no operand."""
    constant = operands.get("mask")
    if diagonal is not None:
        others = {name: operand for name, operand in operands.items() if name != "mask"}
        return others, {"MASK": 0, "MASK_PARAMETER": "", "CAUSAL": 1, "DIAGONAL": diagonal}
    packed = packed_mask(constant, factor, step, queries, keys) if isinstance(constant, np.ndarray) else None
    if packed is None:
        return operands, {"MASK": 0 if constant is None else "GIVEN", "CAUSAL": 0}
    return {**operands, "mask": packed}, {
        "MASK": "PACKED", "MASK_PARAMETER": ", const uint4* mask", "CAUSAL": 0,
        "MASK_PITCH_BATCH": packed.shape[1] * packed.shape[2] if packed.shape[0] > 1 else 0,
        "MASK_PITCH_HEAD": packed.shape[2] if packed.shape[1] > 1 else 0,
    }  # fmt: skip


def packed_mask(mask: np.ndarray, factor: float, step: int, queries: int, keys: int) -> np.ndarray | None:
    """A constant mask [B, H, M or 1, N or 1] times `factor` as halves in the order in which threads need them: [B, H,
    blocks of 16 rows, steps, blocks of 16 keys, lanes, 8], for all rows and keys of whole tiles. None for values that
    are no halves."""
    with np.errstate(over="ignore"):
        scaled = np.float32(mask) * np.float32(factor)
        halves = scaled.astype(np.float16)
    if not np.array_equal(np.isinf(scaled), np.isinf(halves)):
        return None
    lead = halves.shape[:2]
    rows, across = -(-queries // ROWS) * ROWS, -(-keys // step) * step
    whole = np.full((*lead, rows, across), -np.inf, np.float16)
    whole[:, :, :queries, :keys] = halves
    # row: 16 r + 8 half + g; key: step s, 16 n + 8 block + 2 t + e; a lane is g, t and has block, half, e
    parts = whole.reshape(*lead, rows // 16, 2, 8, across // step, step // 16, 2, 4, 2)
    return np.ascontiguousarray(parts.transpose(0, 1, 2, 5, 6, 4, 8, 7, 3, 9)).reshape(
        *lead, rows // 16, across // step, step // 16, 32, 8
    )


def diagonal_of(mask: np.ndarray, factor: float, queries: int, keys: int) -> int | None:
    """The number that a query sees keys up to beyond its own, if a constant mask [B, H, M or 1, N or 1] times `factor`
    says that and nothing else; None for other masks."""
    if mask.shape[2:] != (queries, keys) or not mask.size:
        return None
    beyond = int(np.count_nonzero(mask[0, 0, 0] == 0)) - 1
    if not 0 <= beyond <= keys - queries:
        return None
    seen = np.arange(keys) <= np.arange(queries)[:, None] + beyond
    with np.errstate(over="ignore", invalid="ignore"):
        hidden = mask * np.float32(factor) <= HIDDEN
    return beyond if bool(np.all(np.where(seen, mask == 0, hidden))) else None
