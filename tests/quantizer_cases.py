"""Small networks of our own writer, quantized by ai-edge-quantizer in the ways that it knows."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings

import numpy as np

from litegpu.model.writer import ModelBuilder

INPUT = (1, 8, 8, 4)
#: Recipes of ai-edge-quantizer, and whether the activations are quantized when the model runs on the CPU: then the GPU,
#: which leaves them real, differs by that.
RECIPES = {
    "static_wi8_ai8": False,
    "static_wi8_ai16": False,
    "dynamic_wi8_afp32": True,
    "dynamic_wi4_afp32": True,
    "dynamic_wi4b32_afp32": True,
    "dynamic_wi2c_afp32": True,
    "weight_only_wi8_afp32": False,
    "weight_only_wi4_afp32": False,
    "float16": False,
}


@functools.cache
def float_network() -> bytes:
    """Convolutions, a residual sum, pooling and fully-connected layers, with the sizes that blocks of 32 divide."""
    b = ModelBuilder()
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> int:
        scale = 1 / np.sqrt(np.prod(shape[1:]))
        return b.constant((rng.standard_normal(shape) * scale).astype(np.float32))

    def bias(n: int) -> int:
        return b.constant((rng.standard_normal(n) * 0.1).astype(np.float32))

    window = dict(stride_h=1, stride_w=1, padding="SAME", fused_activation_function="RELU6")
    x = b.input("x", INPUT)
    y = b.op("CONV_2D", [x, weights(32, 3, 3, 4), bias(32)], (1, 8, 8, 32), window)
    z = b.op("DEPTHWISE_CONV_2D", [y, weights(1, 3, 3, 32), bias(32)], (1, 8, 8, 32), window | {"depth_multiplier": 1})
    z = b.op("CONV_2D", [z, weights(32, 1, 1, 32), bias(32)], (1, 8, 8, 32), window)
    z = b.op("ADD", [z, y], (1, 8, 8, 32))
    whole = dict(filter_height=8, filter_width=8, stride_h=1, stride_w=1, padding="VALID")
    z = b.op("AVERAGE_POOL_2D", [z], (1, 1, 1, 32), whole)
    z = b.op("RESHAPE", [z, b.constant(np.array([1, 32], np.int32))], (1, 32))
    z = b.op("FULLY_CONNECTED", [z, weights(64, 32), bias(64)], (1, 64), {"fused_activation_function": "RELU"})
    z = b.op("FULLY_CONNECTED", [z, weights(10, 64), bias(10)], (1, 10))
    b.output(z)
    b.signature("serving_default", {"x": x}, {"y": z})
    return b.build()


def network_input(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(INPUT).astype(np.float32)


@functools.cache
def quantized_network(recipe: str) -> bytes:
    """The network in the recipe's form; raises ImportError without ai-edge-quantizer."""
    from ai_edge_quantizer import qtyping, quantizer
    from ai_edge_quantizer import recipe as recipes

    with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        warnings.simplefilter("ignore")
        q = quantizer.Quantizer(bytearray(float_network()), getattr(recipes, recipe, list)())
        if recipe == "float16":
            tensor = qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT)
            config = qtyping.OpQuantizationConfig(
                weight_tensor_config=tensor, compute_precision=qtyping.ComputePrecision.FLOAT, explicit_dequantize=True
            )
            for name in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
                q.update_quantization_recipe(
                    ".*", qtyping.TFLOperationName[name], config, recipes.AlgorithmName.FLOAT_CASTING
                )
        samples = {"serving_default": [{"x": network_input(seed)} for seed in range(4)]}
        calibration = q.calibrate(samples) if q.need_calibration else None
        return bytes(q.quantize(calibration).quantized_model)
