"""Spectra, sounds and strings."""

from __future__ import annotations

from litegpu.model.ops.record import Op
from litegpu.model.types import TensorType

# fmt: off
OPS = (
    Op(
        "AudioSpectrogram", "x -> .  ; window_size:2..1048576 stride:1..2147483647", custom=True,
        stays="it keeps sound from call to call in the process, and is cheap beside what follows",
    ),
    Op("COMPLEX_ABS", "x -> .", makes=TensorType.FLOAT32, stays="not yet"),
    Op("IMAG", "x -> .", makes=TensorType.FLOAT32, moves="elements", stays="not yet"),
    Op(
        "LSH_PROJECTION", "hash:float32 x:any weight?:float32 -> .:int32",
        stays="hashes of bytes, which the GPU has no fast way for",
    ),
    Op(
        "Mfcc", "x rate -> .  ; filterbank_channel_count:1..65536 dct_coefficient_count:1..65536", custom=True,
        stays="a few thousand operations in double precision, which is cheap beside what follows",
    ),
    Op("REAL", "x -> .", makes=TensorType.FLOAT32, moves="elements", stays="not yet"),
    Op("RFFT2D", "x size{2}:int32 -> .", makes=TensorType.COMPLEX64, stays="not yet"),
    Op("SKIP_GRAM", "x:string -> .:string", stays="strings"),
)
# fmt: on
