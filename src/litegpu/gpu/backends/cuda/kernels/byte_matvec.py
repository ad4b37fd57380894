"""Convolution of bytes with few output pixels, in the extreme vector times matrix: to load the weights is the work."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.source import label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS
from litegpu.gpu.graph import DType
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Rows that the kernel can do, and chunks of 16 bytes of an output that a thread has under way.
MOST_ROWS, MOST_EARLY = 8, 4
#: Compute capability, times ten, that has the instruction.
LEAST_CAPABILITY = 61


def takes(layer: Layer, capability: int) -> bool:
    """Of layers of bytes, those whose few rows can be loaded in pieces, by signed weights."""
    rows = math.prod(layer.shape[:3])
    return (
        capability >= LEAST_CAPABILITY and rows <= MOST_ROWS and layer.vector > 0 and layer.pitch is not None
        and bool(np.all((layer.weights >= -128) & (layer.weights <= 127)))
    )  # fmt: skip


def packed_layer(
    weights: np.ndarray, outputs: int, depth: int, zero_point: int, unsigned: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Weights [O,1,1,I] as bytes [outputs, depth], zeros where there are none, and what is to be added to the sums of
    their products with bytes: of these less the zero point, or less 128 if they are `unsigned`."""
    packed = np.zeros((outputs, depth), np.int8)
    packed[: weights.shape[0], : weights.shape[3]] = weights.reshape(weights.shape[0], -1)
    less = zero_point - 128 * unsigned
    return packed, (-less * packed.sum(axis=1, dtype=np.int64)).astype(np.int32)


def launch(ctx: KernelContext, layer: Layer) -> Launch:
    """The layer; see byte_matvec.cu for the constants."""
    rows, outputs, depth = math.prod(layer.shape[:3]), layer.shape[3], layer.source.quads * 4
    units, chunks, quads = ctx.features.compute_units or USUAL_UNITS, -(-depth // 16), -(-outputs // 4)
    lanes = 4 if chunks <= 4 else next((n for n in (8, 16) if n * MOST_EARLY >= chunks), 32)
    threads = next((n for n in (128, 64) if quads * lanes >= units * n), 32)
    unsigned = layer.source.dtype is DType.UINT8
    packed, corrections = packed_layer(layer.weights, quads * 4, chunks * 16, layer.op.zero_point or 0, unsigned)
    constants: dict[str, int | str] = {
        "LANES": lanes, "THREADS": threads, "EARLY": min(MOST_EARLY, -(-chunks // lanes)), "ROWS": rows,
        "QUADS": quads, "DEPTH": depth, "CHUNKS": chunks, "VECTOR": layer.vector, "OFFSET": layer.source.offset,
        "PITCH": layer.pitch or 0, "UNSIGNED": int(unsigned),
    }  # fmt: skip
    operands: Operands = {"x": layer.source, "w": packed, "corrections": corrections}
    return native_launch(
        ctx, "vector_of_bytes", ("byte_matvec.cu",), constants, operands, label=label_of(ctx),
        workgroup=(threads, 1, 1), dispatch=(-(-quads // (threads // lanes)), 1, 1), variant=f"{lanes} of {threads}",
        ahead=True,
    )  # fmt: skip
