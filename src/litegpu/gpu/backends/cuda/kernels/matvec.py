"""Convolution with few output pixels, in the extreme matrix times vector: to load the weights is the work."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import LOAD, Layer
from litegpu.gpu.backends.cuda.kernels.prologue import constants_of, files_of, instructions, operands_of
from litegpu.gpu.backends.cuda.kernels.source import Traced, Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import RESULT, DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Kernel, TracedValue, f32

#: Output pixels that the kernel can compute.
MOST_ROWS = 8


@dataclass(frozen=True)
class MatvecDivision:
    """`lanes` threads share four outputs; a workgroup has `threads`."""

    lanes: int
    threads: int

    def __str__(self) -> str:
        return f"vector {self.lanes} of {self.threads}"


CANDIDATES = tuple(
    MatvecDivision(lanes, threads)
    for lanes in (8, 16, 32, 64, 128, 256, 512)
    for threads in (32, 64, 128, 256, 512)
    if lanes <= threads and (threads <= 128 or lanes == threads or (lanes, threads) == (64, 512))
)


def ranked(layer: Layer, units: int) -> list[MatvecDivision]:
    """The candidates that make sense, the cheapest first; none if there are too many rows, or a norm
    of these."""
    if math.prod(layer.shape[:3]) > MOST_ROWS or layer.norm is not None:
        return []
    chunks, quads = _chunks(layer), _quads(layer)
    sensible = [
        d for d in CANDIDATES
        if (d.lanes < 2 * chunks or d.lanes == 8) and (d.threads < 2 * quads * d.lanes or d.threads == 32)
    ]  # fmt: skip
    return sorted(sensible, key=lambda d: (cost(layer, d, units), d.threads))


def launch(ctx: KernelContext, layer: Layer, division: MatvecDivision, where: Where | None = None) -> Launch:
    """The convolution with the given division; see matvec.cu for the constants."""
    source, load = layer.load
    piece = _piece(layer)
    per_group = division.threads // division.lanes
    constants: dict[str, int | str] = {
        **layer.constants(), "WEIGHTS": _weights_type(layer).__name__.upper(), "SOURCE": source, "LOAD(value)": load,
        "HALF_SOURCE": int(layer.source.dtype is DType.FLOAT16), "PIECE": piece, "CHANNELS": _channels(layer),
        "LANES": division.lanes, "THREADS": division.threads, "EARLY": _early(layer, division),
        "ROWS": math.prod(layer.shape[:3]), "QUADS": _quads(layer), "CHUNKS": _chunks(layer), "DEPTH": _depth(layer),
        "PIXELS": math.prod(layer.shape[:3]), "PARTS": layer.parts, **constants_of(layer),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": packed(layer), **operands_of(layer)}

    def summed(k: Kernel, _: Operands, total: TracedValue) -> TracedValue:
        return evaluate(k, layer.summed, [total])

    files = ("chunk.cu", "border.cu", *files_of(layer), "matvec.cu")
    return native_launch(
        ctx, "vector_convolution", files, constants, operands, label=label_of(ctx),
        workgroup=(division.threads, 1, 1), dispatch=(-(-_quads(layer) // per_group), 1, 1), variant=str(division),
        where=where, inner=() if layer.summed == RESULT else Traced(ctx, "summed", (f32,), summed), ahead=True,
    )  # fmt: skip


def packed(layer: Layer) -> np.ndarray:
    """The weights as [outputs, depth], outputs in whole quads and the depth in whole chunks."""
    outputs, kh, kw, inputs = layer.weights.shape
    rows = np.zeros((outputs, kh * kw, _channels(layer)), _weights_type(layer))
    rows[..., :inputs] = layer.weights.reshape(outputs, kh * kw, inputs)
    result = np.zeros((_quads(layer) * 4, _chunks(layer) * _per_chunk(layer)), rows.dtype)
    result[:outputs, : _depth(layer)] = rows.reshape(outputs, -1)
    return result


#: Cycles of a multiprocessor in a microsecond; cycles until a load arrives; bytes that it can load in a cycle.
CYCLES, LATENCY, BYTES = 1700, 600, 40
#: Microseconds of a kernel that does nothing.
LEAST = 0.9
#: Of weights of so many bytes, which come from memory, the more have to be on their way for the same rate: with so many
#: it is half of the most. (25088 to 4096 on an H200: 55.9 us with 64 KB on their way, 48.4 with 128. Estimates of other
#: kernels know nothing of memory: beside them it is that of the second cache that counts.)
LARGE, ON_THEIR_WAY = 4 << 20, 24.4e3
#: So many times as long where several workgroups share a multiprocessor: those that start early, beside the kernel in
#: front, are not spread evenly (the same layer in VGG-16 60.2 us).
UNEVEN = 1.1
#: Registers of a multiprocessor, and those of a thread, about: so many workgroups share one, 32 at most.
REGISTERS, EACH = 65536, 100


def cost(layer: Layer, division: MatvecDivision, units: int) -> float:
    """Estimated microseconds on a device of `units` multiprocessors: the longest of waiting for memory, issuing
    instructions and moving the weights, then adding up what the lanes have. (Fitted to large layers only.)"""
    units = units or USUAL_UNITS
    lanes, threads = division.lanes, division.threads
    rows, n = math.prod(layer.shape[:3]), _per_chunk(layer)
    steps, early = -(-_chunks(layer) // lanes), _early(layer, division)
    share = -(-_quads(layer) // (threads // lanes) // units) or 1  # workgroups on a multiprocessor
    index = 4 if layer.weights.shape[1:3] == (1, 1) and layer.op.upsample == (1, 1) else 20
    convert = 0 if _weights_type(layer) is np.float32 else 4 * n
    each = 4 * n + n // _piece(layer) * index + n * instructions(layer)
    issues = steps * (convert + 12 + rows * each) + 60
    alone = LATENCY * (1 + max(0, steps - early) / early) + LATENCY / 2 + 1.5 * issues
    issued = share * (threads // 32) * issues / 4
    loaded = share * threads // lanes * 4 * _chunks(layer) * 16
    moved = loaded / BYTES
    if _quads(layer) * 4 * _chunks(layer) * 16 >= LARGE:
        resident = share / -(-share // min(32, max(1, REGISTERS // (threads * EACH))))
        moved *= 1 + ON_THEIR_WAY / (resident * threads * early * 64)
        moved *= UNEVEN if share > 1 else 1.0
    shuffles = 4 * (rows - 1 + max(0.0, math.log2(min(lanes, 32) / rows)))
    added = 25 * math.log2(min(lanes, 32)) + share * (threads // 32) * shuffles
    across = 80 + 12 * (lanes // 32) if lanes > 32 else 0
    return float(LEAST + (max(alone, issued, moved) + added + across) / CYCLES)


def _piece(layer: Layer) -> int:
    """Channels of the input that can be loaded at once."""
    view = layer.source
    if view.dtype not in LOAD or not (view.vector and view.whole_quads):
        return 1
    if view.dtype is not DType.FLOAT16:
        return 4
    return 8 if layer.vector == 8 else 4


def _channels(layer: Layer) -> int:
    """Channels of a tap, in whole pieces."""
    piece = _piece(layer)
    return int(-(-layer.weights.shape[3] // piece) * piece)


def _depth(layer: Layer) -> int:
    _, kh, kw, _ = layer.weights.shape
    return int(kh * kw * _channels(layer))


def _chunks(layer: Layer) -> int:
    return -(-_depth(layer) // _per_chunk(layer))


def _weights_type(layer: Layer) -> type:
    """How the weights are stored: those that are small whole numbers as bytes."""
    return np.int8 if layer.whole else np.float16 if layer.half else np.float32


def _per_chunk(layer: Layer) -> int:
    """Weights in the 16 bytes that are loaded at once."""
    return 16 // np.dtype(_weights_type(layer)).itemsize


def _quads(layer: Layer) -> int:
    return -(-layer.shape[3] // 4)


def _early(layer: Layer, division: MatvecDivision) -> int:
    """Chunks of each output that a thread loads ahead: what registers allow."""
    steps = -(-_chunks(layer) // division.lanes)
    light = division.threads <= 256 or division.lanes < division.threads
    few = math.prod(layer.shape[:3]) <= 2 and light and not layer.whole
    return min(steps, 4 if few else 2)
