"""Products whose results, with a bias and perhaps a residual, are normalised before they are stored: what a kernel that
has normed.cu needs."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels.layer import NormBehind
from litegpu.gpu.backends.cuda.kernels.source import float_text
from litegpu.gpu.kernels.access import Operands, pack, pixel_pitch

#: Workgroups that have a row together at most, and columns of each, as were measured.
MOST_PARTS, WIDTHS = 2, (256, 192)


def parts_of(outputs: int, columns: int) -> int:
    """Workgroups that have a row together, if each has so many columns; 0 if they cannot."""
    parts = outputs // columns
    return parts if columns in WIDTHS and outputs == parts * columns and parts <= MOST_PARTS else 0


def fits(outputs: int) -> bool:
    """Whether workgroups can have rows of so many results."""
    return any(parts_of(outputs, columns) for columns in WIDTHS)


def constants_of(norm: NormBehind | None, parts: int) -> dict[str, int | str]:
    """As normed.cu calls them."""
    if norm is None:
        return {}
    constants: dict[str, int | str] = {
        "NORM_PARTS": parts, "CENTRED": int(norm.op.centred), "NORM_DEPTH": f"{norm.depth}.0f",
        "EPSILON": float_text(norm.op.epsilon), "RESIDUAL": int(norm.residual is not None),
        "NORM_BUFFERS": ", const float4* __restrict__ norm_bias", "NORM_RESIDUAL": "nullptr",
    }  # fmt: skip
    if norm.residual is not None:
        constants |= {
            "NORM_BUFFERS": f"{constants['NORM_BUFFERS']}, const uint2* norm_residual",
            "NORM_RESIDUAL": "norm_residual", "RESIDUAL_PITCH": f"({pixel_pitch(norm.residual)}u / 4)",
            "RESIDUAL_OFFSET": f"({norm.residual.offset}u / 4)",
        }  # fmt: skip
    return constants


def operands_of(norm: NormBehind | None) -> Operands:
    if norm is None:
        return {}
    residual: Operands = {} if norm.residual is None else {"norm_residual": norm.residual}
    return {"norm_bias": pack(norm.bias), **residual}


def files_of(norm: NormBehind | None) -> tuple[str, ...]:
    """Of this folder, what a kernel's file needs in front of it, behind runs.cu."""
    return () if norm is None else ("normed.cu",)
