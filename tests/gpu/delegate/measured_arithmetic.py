"""What 8-bit networks took on an H200 in whole numbers and as floats (float16), in us of GPU time: (network, batch) ->
both, of the same file. With names of the zoo, its quantized network. What `auto` takes is fitted to these. (Where the
GPU is done before the next inference is launched, as with kws, ad01 and resnet8 at batch 1, sums of their kernels.)"""

from __future__ import annotations

MEASURED: dict[tuple[str, int], tuple[float, float]] = {
    ("ad01_int8", 1): (10.3, 12.7),
    ("ad01_int8", 64): (20.3, 20.3),
    ("kws_ref_model", 64): (24.9, 25.7),
    ("mobilenet_v1_0.25_128_quant", 1): (39.4, 33.7),
    ("mobilenet_v1_0.25_128_quant", 4): (42.3, 37.3),
    ("mobilenet_v1_0.25_128_quant", 16): (46.4, 46.2),
    ("mobilenet_v1_0.25_128_quant", 64): (77.1, 84.0),
    ("mobilenet_v1_0.75_192_quant", 1): (48.1, 45.5),
    ("mobilenet_v1_0.75_192_quant", 4): (69.7, 65.3),
    ("mobilenet_v1_0.75_192_quant", 16): (123.1, 136.3),
    ("mobilenet_v1_0.75_192_quant", 64): (283.2, 342.2),
    ("mobilenet_v1_1.0_224_random_int8", 1): (45.9, 53.0),
    ("mobilenet_v1_1.0_224_random_int8", 64): (334.0, 562.0),
    ("mobilenet_v2_1.0_224_quant", 1): (88.3, 84.5),
    ("mobilenet_v2_1.0_224_quant", 4): (114.0, 134.0),
    ("mobilenet_v2_1.0_224_quant", 16): (188.4, 254.5),
    ("mobilenet_v2_1.0_224_quant", 64): (432.6, 599.8),
    ("posenet_mobilenet_v1_100_257_int8", 1): (55.5, 67.6),
    ("posenet_mobilenet_v1_100_257_int8", 64): (462.5, 880.4),
    ("pretrainedResnet_quant", 1): (22.9, 23.1),
    ("pretrainedResnet_quant", 64): (31.4, 42.1),
    ("vww_96_int8", 1): (40.0, 35.5),
    ("vww_96_int8", 4): (41.2, 37.7),
    ("vww_96_int8", 16): (41.5, 43.9),
    ("vww_96_int8", 64): (54.6, 68.3),
    ("efficientnet_b0", 1): (241.9, 208.0),
    ("efficientnet_b0", 64): (1992.0, 2560.0),
    ("efficientnet_v2_b0", 1): (233.5, 211.0),
    ("mobilenet_v2", 1): (77.0, 84.0),
    ("mobilenet_v2", 64): (342.2, 716.4),
    ("mobilenet_v3", 1): (115.0, 120.3),
    ("mobilenet_v3", 64): (573.9, 794.7),
    ("resnet50", 1): (131.2, 168.8),
    ("shufflenet_v2", 1): (123.4, 106.2),
    ("squeezenet", 1): (47.8, 68.7),
    ("text_encoder", 1): (256.2, 227.9),
}
