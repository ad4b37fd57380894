"""Small programs between what a user has in GPU memory and what a program's port holds: numbers, or images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.errors import OptionError, TensorError
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.program import Program
from litegpu.model.builder import ModelBuilder, SubgraphBuilder, quantized
from litegpu.model.types import Model, Tensor, TensorType

QUANTIZED = (TensorType.INT8, TensorType.UINT8, TensorType.INT16)


@dataclass(frozen=True)
class ImageInput:
    """How an RGBA image of 8 bits per channel becomes a model's input: the part `crop` of it, resized bilinearly to
    the input's size (pixel centers at halves), and of each channel (value - mean) * scale.

    size: (width, height) of the image, needed where the buffer does not tell it.
    crop: (left, top, width, height) in pixels, the whole image if None.
    mean, scale: a number, or one for each channel of the model; the default maps 0..255 to -1..1. For a quantized
        input, these give the real numbers, which are then quantized.
    order: which channels of the image, by their places in "rgba", are the model's: "rgb" or "bgr"; four-channel models
        get the fourth in either case; for models with one channel the first of these.
    """

    size: tuple[int, int] | None = None
    crop: tuple[int, int, int, int] | None = None
    mean: float | Sequence[float] = 127.5
    scale: float | Sequence[float] = 1 / 127.5
    order: str = "rgb"

    def __post_init__(self) -> None:
        if self.order not in ("rgb", "bgr", "rgba", "bgra"):
            raise OptionError(f"order is {self.order!r}; it must be rgb, bgr, rgba or bgra")

    def swapped(self) -> ImageInput:
        """The same for an image whose red and blue are swapped."""
        return dataclasses.replace(self, order={"rgb": "bgr", "bgr": "rgb", "rgba": "bgra", "bgra": "rgba"}[self.order])


def is_quantized(tensor: Tensor) -> bool:
    """Whether whole numbers in the tensor stand for real ones, with one scale."""
    q = tensor.quantization
    return tensor.type in QUANTIZED and q is not None and q.scales.size == 1 and not q.block_size


def quantizing(tensor: Tensor) -> Model:
    """From float32 to the tensor's own numbers."""
    b = ModelBuilder()
    x = b.input("real", tensor.shape)
    b.output(b.op("QUANTIZE", [x], tensor.shape, type=tensor.type, quantization=tensor.quantization))
    return b.model()


def dequantizing(tensor: Tensor) -> Model:
    """From the tensor's own numbers to float32."""
    b = ModelBuilder()
    x = b.input("stored", tensor.shape, tensor.type, quantization=tensor.quantization)
    b.output(b.op("DEQUANTIZE", [x], tensor.shape, type=TensorType.FLOAT32))
    return b.model()


def image_reading(tensor: Tensor, width: int, height: int, image: ImageInput, row: int | None = None) -> Model:
    """From RGBA bytes, `row` pixels of memory per row of `width`, to the tensor. Raises TensorError."""
    what = f"tensor {tensor.index} ({tensor.name!r})"
    if len(tensor.shape) != 4 or tensor.shape[0] != 1 or tensor.shape[3] not in (1, 3, 4):
        raise TensorError(f"{what} is no image: its shape is {list(tensor.shape)}, not 1, height, width, 1 or 3 or 4")
    left, top, w, h = image.crop or (0, 0, width, height)
    if min(left, top) < 0 or min(w, h) < 1 or left + w > width or top + h > height:
        raise TensorError(f"{what}: crop {image.crop} is not within the image of {width} x {height}")
    _, rows, columns, channels = tensor.shape
    b = ModelBuilder()
    x = b.input("rgba", (1, height, row or width, 4), TensorType.UINT8, quantization=quantized(1.0, 0))
    swapped = image.order.startswith("b")
    first = 2 if channels == 1 and swapped else 0
    x = _sliced(b, x, (0, top, left, first), (1, h, w, channels))
    x = b.op("DEQUANTIZE", [x], (1, h, w, channels), type=TensorType.FLOAT32)
    if (h, w) != (rows, columns):
        size = b.constant(np.array([rows, columns], np.int32))
        x = b.op("RESIZE_BILINEAR", [x, size], (1, rows, columns, channels), {"half_pixel_centers": True})
    shape = (1, rows, columns, channels)
    if swapped and channels > 1:
        parts = [_sliced(b, x, (0, 0, 0, c), (1, rows, columns, 1)) for c in (2, 1, 0, 3)[:channels]]
        x = b.op("CONCATENATION", parts, shape, {"axis": 3})
    for op, values in (("SUB", image.mean), ("MUL", image.scale)):
        constant = np.broadcast_to(np.asarray(values, np.float32), (channels,)).copy()
        x = b.op(op, [x, b.constant(constant)], shape)
    if is_quantized(tensor):
        x = b.op("QUANTIZE", [x], shape, type=tensor.type, quantization=tensor.quantization)
    elif tensor.type is not TensorType.FLOAT32:
        raise TensorError(f"{what} holds {tensor.type.name}, which no image can be read into")
    b.output(x)
    return b.model()


def compiled(model: Model, features: Features, target: str) -> Program:
    """The model, which has one input and one output, for a device."""
    from litegpu.gpu.build import build_program

    graph = model.main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    return build_program(lowered.graph, features, target)


def _sliced(b: SubgraphBuilder, x: int, begin: tuple[int, ...], size: tuple[int, ...]) -> int:
    constants = [b.constant(np.array(values, np.int32)) for values in (begin, size)]
    of = b.graph().tensors[x]
    return b.op("SLICE", [x, *constants], size, type=of.type, quantization=of.quantization)
