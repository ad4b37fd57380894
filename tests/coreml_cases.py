"""What the tests of the Core ML delegate share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from litegpu.coreml.runtime import is_installed
from litegpu.model.builder import ModelBuilder

X = np.random.default_rng(0).normal(size=(1, 8, 8, 3)).astype(np.float32)


#: coremltools leaves its models' temporary folders to the garbage collector.
LEFT_FOLDERS = pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")


def coremltools_session() -> Iterator[None]:
    """Skip the test where the package is not installed; afterwards collect what its models leave."""
    if not is_installed():
        pytest.skip("coremltools is not installed: pip install litegpu[coreml]")
    yield
    gc.collect()


def network(half: bool = False) -> bytes:
    """Two convolutions and an op between that Core ML does not take, a pool, a product. `half`: weights of 16 bits."""
    rng = np.random.default_rng(1)
    b = ModelBuilder()

    def weights(*shape: int) -> int:
        values = rng.normal(0, 0.3, shape)
        if not half:
            return b.constant(values.astype(np.float32))
        return b.op("DEQUANTIZE", [b.constant(values.astype(np.float16))], shape)

    options = {"padding": "SAME", "stride_h": 1, "stride_w": 1, "fused_activation_function": "RELU6"}
    x = b.input("x", (1, 8, 8, 3))
    y = b.op("CONV_2D", [x, weights(6, 3, 3, 3), b.constant(np.ones(6, np.float32))], (1, 8, 8, 6), options)
    y = b.op("TANH", [y], (1, 8, 8, 6))
    y = b.op("CONV_2D", [y, weights(4, 1, 1, 6), b.constant(np.zeros(4, np.float32))], (1, 8, 8, 4), options)
    y = b.op("ATAN2", [y, b.constant(np.ones((1, 8, 8, 4), np.float32))], (1, 8, 8, 4))
    pool = {"padding": "VALID", "stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    y = b.op("MAX_POOL_2D", [y], (1, 4, 4, 4), {**pool, "fused_activation_function": "NONE"})
    y = b.op("FULLY_CONNECTED", [y, weights(5, 64), -1], (1, 5), {"fused_activation_function": "NONE"})
    b.output(b.op("SOFTMAX", [y], (1, 5), {"beta": 1.0}))
    return b.build()
