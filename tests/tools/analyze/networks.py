"""Small networks with one costly pattern each, or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from batch_networks import CONV, Network

from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.model import TensorType
from litegpu.tools.analyze import rates
from litegpu.tools.analyze.examined import Examined, examine


class Drawn(Network):
    """A Network with convolutions of one pixel."""

    def conv(self, x: int, source: Sequence[int], channels: int, activation: str = "NONE") -> int:
        shape = (*source[:-1], channels)
        weights = [self.weights(channels, 1, 1, source[-1]), self.weights(channels)]
        return self.op("CONV_2D", [x, *weights], shape, {**CONV, "fused_activation_function": activation})


def examined(build: Callable[[Drawn], int], delegate: GpuDelegate | None = None) -> Examined:
    """A network as it would be run on an H200."""
    b = Drawn()
    b.output(build(b))
    return examine(b.build(), delegate or GpuDelegate(), None, rates.H200)


def plain(b: Drawn) -> int:
    """Nothing to complain of."""
    x = b.input("x", (1, 8, 8, 4))
    return b.conv(b.conv(x, (1, 8, 8, 4), 16, "RELU"), (1, 8, 8, 16), 8)


def image(b: Drawn) -> int:
    x = b.input("image", (1, 8, 8, 3))
    return b.conv(x, (1, 8, 8, 3), 16)


def quantized_image(b: Drawn) -> int:
    """Read in another type."""
    x = b.op("CAST", [b.input("image", (1, 8, 8, 3), TensorType.INT32)], (1, 8, 8, 3),
             {"in_data_type": 2, "out_data_type": 0})  # fmt: skip
    return b.conv(x, (1, 8, 8, 3), 16)


def odd(b: Drawn) -> int:
    x = b.input("x", (1, 8, 8, 4))
    return b.conv(b.conv(x, (1, 8, 8, 4), 17), (1, 8, 8, 17), 8)


def odd_classes(b: Drawn) -> int:
    """An odd number of what the model tells apart."""
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 17)
    return b.op("SOFTMAX", [y], (1, 8, 8, 17), {"beta": 1.0})


def reshaped(b: Drawn) -> int:
    """Six channels have two of padding, so their rows cannot be read as others."""
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 6)
    return b.conv(b.reshape(y, 1, 8, 6, 8), (1, 8, 6, 8), 8)


def in_seven_axes(b: Drawn, y: int) -> int:
    """To more axes than a GPU takes, and back."""
    wide = (1, 1, 1, 1, 8, 8, 8)
    y = b.op("BROADCAST_TO", [y, b.constant(np.array(wide, np.int32))], wide)
    return b.op("RESHAPE", [y, b.constant(np.array((1, 8, 8, 8), np.int32))], (1, 8, 8, 8))


def island(b: Drawn) -> int:
    """Two operators that no GPU runs, between convolutions."""
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 8)
    return b.conv(in_seven_axes(b, y), (1, 8, 8, 8), 8)


def island_at_the_end(b: Drawn) -> int:
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 8)
    return in_seven_axes(b, y)


def new_version(b: Drawn) -> int:
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 8)
    return b.op("REVERSE_V2", [y, b.sizes([1])], (1, 8, 8, 8), version=4)


def wide_indices(b: Drawn) -> int:
    x = b.input("x", (1, 8, 16))
    return b.op("ARG_MAX", [x, b.constant(np.int32(2))], (1, 8), {"output_type": 4}, type=TensorType.INT64)


def narrow_indices(b: Drawn) -> int:
    x = b.input("x", (1, 8, 16))
    return b.op("ARG_MAX", [x, b.constant(np.int32(2))], (1, 8), {"output_type": 2}, type=TensorType.INT32)


def open_sizes(b: Drawn) -> int:
    x = b.input("x", (1, 8, 8, 4), shape_signature=(-1, 8, 8, 4))
    return b.conv(x, (1, 8, 8, 4), 8)


def decided_when_run(b: Drawn) -> int:
    x = b.input("x", (1, 8))
    sizes = b.input("sizes", (2,), TensorType.INT32)
    return b.op("EXP", [b.op("RESHAPE", [x, sizes], (1, 8))], (1, 8))


def activation(b: Drawn) -> int:
    """That could be an option of the convolution; litegpu fuses it."""
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 8)
    return b.op("RELU", [y], (1, 8, 8, 8))


def exponential(b: Drawn) -> int:
    """Of what comes from far away."""
    y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 8)
    return b.op("SOFTMAX", [y], (1, 8, 8, 8), {"beta": 1.0})
