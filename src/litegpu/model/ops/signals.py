"""Spectra, sounds and strings."""

from __future__ import annotations

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.record import COMPLEX, FLOAT, MAX_RANK, STATIC, Gpu, Op
from litegpu.model.ops.rules import pointwise, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import TensorType


def _spectrum_shape(node: ShapeNode) -> list[Shape]:
    x, sizes = node.shape(0), node.integers(1)
    node.require(len(x) >= len(sizes) == 2 and min(sizes) > 0)
    return [(*x[:-2], sizes[0], sizes[1] // 2 + 1)]


def _spectrum_batch(node: BatchNode) -> Place:
    place = node.only(0)
    node.require(place.axis < node.rank(0) - 2, "it transforms the batch axis")
    return place


_AS_FLOATS = "complex numbers as two floats"

# fmt: off
OPS = (
    Op(
        "AudioSpectrogram", "x -> .  ; window_size:2..1048576 stride:1..2147483647", custom=True,
        stays="it keeps sound from call to call in the process, and is cheap beside what follows",
    ),
    Op(
        "COMPLEX_ABS", "x -> .", makes=TensorType.FLOAT32, shape=same_shape, batch=pointwise,
        gpu=Gpu(1, inputs=(COMPLEX,), outputs=FLOAT, quantized=False, notes=_AS_FLOATS),
    ),
    Op(
        "IMAG", "x -> .", makes=TensorType.FLOAT32, moves="elements", shape=same_shape, batch=pointwise,
        gpu=Gpu(1, inputs=(COMPLEX,), outputs=FLOAT, quantized=False, notes=_AS_FLOATS),
    ),
    Op(
        "LSH_PROJECTION", "hash:float32 x:any weight?:float32 -> .:int32",
        stays="hashes of bytes, which the GPU has no fast way for",
    ),
    Op(
        "Mfcc", "x rate -> .  ; filterbank_channel_count:1..65536 dct_coefficient_count:1..65536", custom=True,
        stays="a few thousand operations in double precision, which is cheap beside what follows",
    ),
    Op(
        "REAL", "x -> .", makes=TensorType.FLOAT32, moves="elements", shape=same_shape, batch=pointwise,
        gpu=Gpu(1, inputs=(COMPLEX,), outputs=FLOAT, quantized=False, notes=_AS_FLOATS),
    ),
    Op(
        "RFFT2D", "x size{2}:int32 -> .", makes=TensorType.COMPLEX64, shape=_spectrum_shape, batch=_spectrum_batch,
        gpu=Gpu(1, inputs=(FLOAT, STATIC), outputs=COMPLEX, counts=2, ranks=(2, MAX_RANK), quantized=False,
            notes=_AS_FLOATS),
    ),
    Op("SKIP_GRAM", "x:string -> .:string", stays="strings"),
)
# fmt: on
