"""Buffers of the user's for the inputs and outputs of a partition: what lies between their format and the tensor's."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from litegpu.errors import TensorError
from litegpu.gpu.backends.abilities import Binder, UserBuffer
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.delegate import images
from litegpu.gpu.delegate.images import ImageInput
from litegpu.gpu.program import Program
from litegpu.model.types import Model, Tensor


class Bindable(Protocol):
    """What a kernel has for its buffers. `adapters`: programs that convert, by what they convert."""

    device: Device
    adapters: dict[Any, Program]

    @property
    def binder(self) -> Binder: ...


def describe(tensor: Tensor) -> str:
    return f"tensor {tensor.index} ({tensor.name!r})"


def bind(
    kernel: Bindable, kind: str, i: int, tensor: Tensor, buffer: Any, *, stream: Any = None,
    image: ImageInput | None = None,
) -> None:  # fmt: skip
    """See GpuKernel.bind."""
    if image is not None and kind != "input":
        raise TensorError(f"{describe(tensor)} is an output: image= is for inputs")
    what = f"{kind} {describe(tensor)}"
    found = kernel.binder.examine(buffer, what, output=kind == "output", stream=stream)
    kernel.binder.bind(kind, i, found.resource, what, _between(kernel, kind, tensor, found, image, what))


def _between(
    kernel: Bindable, kind: str, tensor: Tensor, found: UserBuffer, image: ImageInput | None, what: str
) -> Program | None:
    """What converts between what a buffer holds and the tensor; None if they are the same."""
    if found.pixels is not None:
        pixels, image = found.pixels, image or ImageInput()
        image = image.swapped() if pixels.swapped else image
        return _image_program(kernel, tensor, pixels.width, pixels.height, image, pixels.row)
    if image is not None:
        return _image_program(kernel, tensor, *_image_size(found, image, what), image)
    if found.shape is not None and found.shape not in (tensor.shape, (math.prod(tensor.shape),)):
        raise TensorError(f"{what} has shape {list(tensor.shape)}; the buffer has {list(found.shape)}")
    holds_real = found.nbytes == 4 * math.prod(tensor.shape) if found.dtype is None else found.dtype == np.float32
    if not (holds_real and images.is_quantized(tensor)):
        return None
    make = images.quantizing if kind == "input" else images.dequantizing  # float32 buffers hold the real numbers
    return _program(kernel, (make.__name__, tensor.index), lambda: make(tensor))


def _image_program(
    kernel: Bindable, tensor: Tensor, width: int, height: int, image: ImageInput, row: int | None = None
) -> Program:
    key = ("image", tensor.index, width, height, row, repr(image))
    return _program(kernel, key, lambda: images.image_reading(tensor, width, height, image, row))


def _program(kernel: Bindable, key: Any, make: Any) -> Program:
    found = kernel.adapters.get(key)
    if found is None:
        model: Model = make()
        found = kernel.adapters[key] = images.compiled(model, kernel.device.features, kernel.device.target)
    return found


def _image_size(found: UserBuffer, image: ImageInput, what: str) -> tuple[int, int]:
    """(width, height) of the image in a buffer."""
    if found.shape is None:
        if image.size is None:
            raise TensorError(f"{what}: a buffer does not tell the image's size: give ImageInput(size=(width, height))")
        return image.size
    shape = found.shape
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 3 or shape[2] != 4 or found.dtype != np.uint8:
        raise TensorError(
            f"{what}: an image is uint8 of shape height, width, 4; the buffer is {found.dtype} {list(shape)}"
        )
    return shape[1], shape[0]
