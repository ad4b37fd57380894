"""Spectra, sounds and strings."""

from __future__ import annotations

from litegpu.model.ops.record import Op
from litegpu.model.types import TensorType

# fmt: off
OPS = (
    Op("AudioSpectrogram", "x -> .  ; window_size:2..1048576 stride:1..2147483647", custom=True),
    Op("COMPLEX_ABS", "x -> .", makes=TensorType.FLOAT32),
    Op("IMAG", "x -> .", makes=TensorType.FLOAT32, moves="elements"),
    Op("LSH_PROJECTION", "hash:float32 x:any weight?:float32 -> .:int32"),
    Op("Mfcc", "x rate -> .  ; filterbank_channel_count:1..65536 dct_coefficient_count:1..65536", custom=True),
    Op("REAL", "x -> .", makes=TensorType.FLOAT32, moves="elements"),
    Op("RFFT2D", "x size{2}:int32 -> .", makes=TensorType.COMPLEX64),
    Op("SKIP_GRAM", "x:string -> .:string"),
)
# fmt: on
