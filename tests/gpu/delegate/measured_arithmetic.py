"""What 8-bit networks took on an H200 in whole numbers and as floats (float16), in us of GPU time: (network, batch) ->
both, of the same file. With names of the zoo, its quantized network. What `auto` takes is fitted to these."""

from __future__ import annotations

MEASURED: dict[tuple[str, int], tuple[float, float]] = {
    ("ad01_int8", 64): (20.3, 20.3),
    ("kws_ref_model", 64): (24.9, 25.7),
    ("mobilenet_v1_0.25_128_quant", 1): (40.3, 33.6),
    ("mobilenet_v1_0.25_128_quant", 64): (77.1, 84.0),
    ("mobilenet_v1_0.75_192_quant", 1): (49.2, 45.4),
    ("mobilenet_v1_0.75_192_quant", 64): (283.2, 342.2),
    ("mobilenet_v1_1.0_224_random_int8", 1): (46.7, 53.1),
    ("mobilenet_v1_1.0_224_random_int8", 64): (334.0, 562.0),
    ("mobilenet_v2_1.0_224_quant", 1): (88.9, 85.2),
    ("mobilenet_v2_1.0_224_quant", 64): (432.6, 599.8),
    ("posenet_mobilenet_v1_100_257_int8", 1): (61.8, 69.1),
    ("posenet_mobilenet_v1_100_257_int8", 64): (462.5, 880.4),
    ("pretrainedResnet_quant", 1): (20.8, 23.1),
    ("pretrainedResnet_quant", 64): (31.4, 42.1),
    ("vww_96_int8", 1): (40.2, 35.0),
    ("vww_96_int8", 64): (54.6, 68.3),
}
