"""Rows that a kernel normalises by moments of them that another one has stored, and those that it stores itself: what a
kernel that has told.cu needs."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels import row_norm
from litegpu.gpu.backends.cuda.kernels.layer import Layer, RowNorm
from litegpu.gpu.kernels.access import Operands, pixel_pitch
from litegpu.gpu.view import View

#: Bytes of shared memory for a row.
ROW = 8


def is_in(layer: Layer) -> bool:
    """Whether a layer needs it."""
    return layer.told is not None or layer.tells is not None


def shared_bytes(layer: Layer, rows: int) -> int:
    """Of so many rows of a workgroup."""
    return 0 if layer.told is None else rows * ROW


def constants_of(layer: Layer, at: int) -> dict[str, int | str]:
    """As told.cu calls them, with rows at `at` in shared memory."""
    if not is_in(layer):
        return {}
    told, tells = layer.told, layer.tells
    constants: dict[str, int | str] = {"TOLD": int(told is not None), "TELLS": int(tells is not None), "TOLD_AT": at}
    buffers = []
    if told is not None:
        constants |= {"TOLD_PARTS": told.parts, **_place("TOLD", told.moments)}
        constants |= row_norm.constants_of(RowNorm(told.op, told.depth, told.scale))
        buffers.append("const float* told")
    if tells is not None:
        constants |= _place("TELLS", tells)
        buffers.append("float* tells")
    constants |= {
        "TOLD_BUFFERS": "".join(f", {buffer}" for buffer in buffers),
        "TOLD_ROWS": "nullptr" if told is None else "told", "TELLS_ROWS": "nullptr" if tells is None else "tells",
    }  # fmt: skip
    return constants


def operands_of(layer: Layer) -> Operands:
    told: Operands = {} if layer.told is None else {"told": layer.told.moments}
    return told | ({} if layer.tells is None else {"tells": layer.tells})


def files_of(layer: Layer) -> tuple[str, ...]:
    """Of this folder, what a kernel's file needs in front of it, behind runs.cu."""
    return ("row_norm.cu", "told.cu") if layer.told is not None else ("told.cu",) if layer.tells is not None else ()


def _place(name: str, view: View) -> dict[str, int | str]:
    return {f"{name}_PITCH": f"{pixel_pitch(view)}u", f"{name}_OFFSET": f"{view.offset}u"}
