"""What a 1x1 convolution does with its input before it multiplies, as prologue.cu is told of it."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.channelwise import FREE
from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands

#: Factors are there for whole tiles: their number is a multiple of the usual depths of these, and of larger ones.
WHOLE = 128
#: A scale from which on the smallest half is nothing beside it.
LEAST_SCALE = 2.0**-10
#: Numbers from zero on.
POSITIVE = (0.0, math.inf)


def files_of(layer: Layer) -> tuple[str, ...]:
    """Of this folder, what a kernel's file needs in front of it."""
    return () if layer.prologue is None else ("prologue.cu",)


def constants_of(layer: Layer, factors_at: int | None = None, step: int = WHOLE) -> dict[str, int | str]:
    """As prologue.cu calls them, PIXELS excepted. `factors_at`: where in shared memory there is room for
    factors_bytes(), of a kernel that does its work on pairs of halves."""
    prologue, gate = layer.prologue, layer.gate
    if prologue is None:
        return dict.fromkeys(("PROLOGUE_BUFFERS", "PROLOGUE_PARAMETER", "PROLOGUE_ARGUMENT"), "")
    scaled, (low, high) = prologue.scale is not None, prologue.bounds
    found: dict[str, int | str] = {
        "SCALED": int(scaled), "GATED": int(gate is not None), "POSITIVE": int((low, high) == POSITIVE),
        "CLAMPED": int((low, high) != FREE), "LOWEST": _literal(low), "HIGHEST": _literal(high),
        "IMAGE": layer.shape[1] * layer.shape[2], "FACTORS": _whole_channels(layer, step),
        "HALVES": int(factors_at is not None), "FACTORS_AT": factors_at or 0,
    }  # fmt: skip
    parameters = ", const float* __restrict__ channel_factors" if scaled else ""
    if gate is not None:
        kind, load = LOAD[gate.dtype]
        parameters += f", const {kind}* gate"
        found |= {
            "GATE": kind, "LOAD_GATE(value)": load, "GATE_OFFSET": gate.offset, "GATE_CHANNELS": gate.shape[3],
            "GATE_PITCH_B": gate.strides[0] if gate.shape[0] > 1 else 0, "GATE_PITCH_C": gate.strides[3],
            "GATE_QUADS": int(gate.dtype is DType.FLOAT32 and gate.vector and gate.whole_quads),
        }  # fmt: skip
    arguments = ("channel_factors" if scaled else "nullptr", "nullptr" if gate is None else "gate")
    made = f"(Prologue{{{', '.join(arguments)}}})"
    return found | {
        "PROLOGUE": made, "PROLOGUE_ARGUMENT": f", {made}", "PROLOGUE_PARAMETER": ", Prologue prologue",
        "PROLOGUE_BUFFERS": parameters,
    }  # fmt: skip


def operands_of(layer: Layer, halves: bool = False, step: int = WHOLE) -> Operands:
    """What the kernel's parameters PROLOGUE_BUFFERS are bound to."""
    prologue, found = layer.prologue, Operands()
    if prologue is not None and prologue.scale is not None and prologue.shift is not None:
        factors = np.zeros((2, _whole_channels(layer, step)), np.float32)
        channels = layer.weights.shape[3]
        factors[0, :channels], factors[1, :channels] = prologue.scale, prologue.shift
        found["channel_factors"] = _in_halves(factors) if halves else factors
    if layer.gate is not None:
        found["gate"] = layer.gate
    return found


def factors_bytes(layer: Layer, step: int = WHOLE) -> int:
    """Of shared memory, for kernels that do their work on pairs of halves."""
    return 8 * _whole_channels(layer, step) if layer.prologue is not None and layer.prologue.scale is not None else 0


def instructions(layer: Layer) -> float:
    """Of each element, about; none without a prologue."""
    prologue, gated = layer.prologue, layer.gate is not None
    if prologue is None:
        return 0.0
    if not layer.half:
        return 2.0 + int(prologue.scale is not None) + 4 * int(prologue.bounds != FREE) + int(gated)
    clamping = 0 if prologue.bounds in (FREE, POSITIVE) else 1
    return 0.9 + 1.5 * int(prologue.scale is not None) + clamping + int(gated)


def _whole_channels(layer: Layer, step: int) -> int:
    """For steps of so many channels."""
    whole = max(WHOLE, step)
    return -(-int(layer.weights.shape[3]) // whole) * whole


def _in_halves(factors: np.ndarray) -> np.ndarray:
    """Scales and shifts [2, channels] as [channels / 8, 4, 8]: each in its first digits, and what it has beside those.
    Of the same sign, so that an infinity times both stays one."""
    first = factors.astype(np.float16)
    larger = np.abs(first.astype(np.float32)) > np.abs(factors)
    first = np.where(larger, np.nextafter(first, np.float16(0)), first)
    rest = (factors - first.astype(np.float32)).astype(np.float16)
    least = np.copysign(np.finfo(np.float16).smallest_subnormal, factors).astype(np.float16)
    rest = np.where((rest == 0) & (np.abs(factors) >= LEAST_SCALE), least, rest)
    parts = np.stack([first[0], rest[0], first[1], rest[1]])
    return np.ascontiguousarray(parts.reshape(4, -1, 8).transpose(1, 0, 2))


def _literal(bound: float) -> str:
    """As a float of CUDA C++."""
    if math.isinf(bound):
        return "-__int_as_float(0x7f800000)" if bound < 0 else "__int_as_float(0x7f800000)"
    return f"{float(np.float32(bound)).hex()}f"
