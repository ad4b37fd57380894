"""What a 1x1 convolution does with its input before it multiplies, as prologue.cu is told of it."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.channelwise import FREE
from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands

#: Factors are there for whole tiles: their number is a multiple of the largest depth of one.
WHOLE = 128
#: Numbers from zero on.
POSITIVE = (0.0, math.inf)


def files_of(layer: Layer) -> tuple[str, ...]:
    """Of this folder, what a kernel's file needs in front of it."""
    return () if layer.prologue is None else ("prologue.cu",)


def constants_of(layer: Layer) -> dict[str, int | str]:
    """As prologue.cu calls them, PIXELS excepted."""
    prologue, gate = layer.prologue, layer.gate
    if prologue is None:
        return dict.fromkeys(("PROLOGUE_BUFFERS", "PROLOGUE_PARAMETER", "PROLOGUE_ARGUMENT"), "")
    factors, (low, high) = _factors(layer), prologue.bounds
    found: dict[str, int | str] = {
        "SCALED": int(factors is not None), "GATED": int(gate is not None), "POSITIVE": int((low, high) == POSITIVE),
        "CLAMPED": int((low, high) != FREE), "LOWEST": _literal(low), "HIGHEST": _literal(high),
        "IMAGE": layer.shape[1] * layer.shape[2],
    }  # fmt: skip
    parameters = ""
    if factors is not None:
        found["FACTORS"] = factors.shape[1]
        parameters += ", const float* __restrict__ channel_factors"
    if gate is not None:
        kind, load = LOAD[gate.dtype]
        parameters += f", const {kind}* gate"
        found |= {
            "GATE": kind, "LOAD_GATE(value)": load, "GATE_OFFSET": gate.offset, "GATE_CHANNELS": gate.shape[3],
            "GATE_PITCH_B": gate.strides[0] if gate.shape[0] > 1 else 0, "GATE_PITCH_C": gate.strides[3],
            "GATE_QUADS": int(gate.dtype is DType.FLOAT32 and gate.vector and gate.whole_quads),
        }  # fmt: skip
    arguments = ("nullptr" if factors is None else "channel_factors", "nullptr" if gate is None else "gate")
    made = f"(Prologue{{{', '.join(arguments)}}})"
    return found | {
        "PROLOGUE": made, "PROLOGUE_ARGUMENT": f", {made}", "PROLOGUE_PARAMETER": ", Prologue prologue",
        "PROLOGUE_BUFFERS": parameters,
    }  # fmt: skip


def operands_of(layer: Layer) -> Operands:
    """What the kernel's parameters PROLOGUE_BUFFERS are bound to."""
    factors, found = _factors(layer), Operands()
    if factors is not None:
        found["channel_factors"] = factors
    if layer.gate is not None:
        found["gate"] = layer.gate
    return found


def instructions(layer: Layer) -> float:
    """Of each element, about; none without a prologue."""
    if layer.prologue is None:
        return 0.0
    at_once = layer.prologue.bounds == POSITIVE and layer.gate is None and layer.half
    clamping = 0 if layer.prologue.bounds == FREE or at_once else 4
    return 2.5 + int(layer.prologue.scale is not None) + clamping + int(layer.gate is not None)


def _factors(layer: Layer) -> np.ndarray | None:
    """[2, channels]: the scales and the shifts, and zeros."""
    prologue, channels = layer.prologue, layer.weights.shape[3]
    if prologue is None or prologue.scale is None or prologue.shift is None:
        return None
    found = np.zeros((2, -(-channels // WHOLE) * WHOLE), np.float32)
    found[0, :channels], found[1, :channels] = prologue.scale, prologue.shift
    return found


def _literal(bound: float) -> str:
    """As a float of CUDA C++."""
    if math.isinf(bound):
        return "-__int_as_float(0x7f800000)" if bound < 0 else "__int_as_float(0x7f800000)"
    return f"{float(np.float32(bound)).hex()}f"
