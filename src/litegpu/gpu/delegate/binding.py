"""Buffers of the user's for the inputs and outputs of a partition: which fit, and what lies between the formats."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError, TensorError
from litegpu.gpu.backends.abilities import UserBuffer
from litegpu.gpu.delegate import images
from litegpu.gpu.delegate.images import ImageInput
from litegpu.gpu.program import Program
from litegpu.model.types import Model, Tensor

if TYPE_CHECKING:
    from litegpu.gpu.delegate.kernel import GpuKernel


@dataclass(frozen=True, eq=False)
class Prepared:
    """A partition that a delegate has prepared, as long as somebody uses it."""

    kernel: weakref.ref[GpuKernel]
    partition: Partition

    @property
    def alive(self) -> bool:
        kernel = self.kernel()
        return kernel is not None and not kernel.closed


def find(prepared: Sequence[Prepared], index: int) -> tuple[GpuKernel, str, int, Tensor]:
    """(kernel, "input" or "output", place, tensor) of the tensor that is to be bound.

    Raises DelegateError if nothing was delegated yet, or it is unclear which model is meant, TensorError if the tensor
    is no input or output of what was."""
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
        raise TensorError(f"bind_buffer_to_tensor: the tensor is given by its index, an int, not {index!r}")
    living = [p for p in prepared if p.alive]
    if not living:
        raise DelegateError(
            f"bind_buffer_to_tensor: tensor {index} cannot be bound before the graph is delegated: make an Interpreter "
            "with this delegate and call its allocate_tensors() first (and again after resize_tensor_input())"
        )
    if len({id(p.partition.model.content) for p in living}) > 1:
        raise DelegateError(
            f"bind_buffer_to_tensor: this delegate serves several interpreters, so tensor {index} could be of any: "
            "make a delegate for each"
        )
    tensors = living[0].partition.subgraph.tensors
    if not 0 <= index < len(tensors):
        raise TensorError(f"tensor {index} does not exist: the model has {len(tensors)}")
    tensor = tensors[index]
    name = describe(tensor)
    owners = [(p, kind) for p in living for kind in ("input", "output") if index in getattr(p.partition, f"{kind}s")]
    if not owners:
        raise TensorError(f"{name} is neither an input nor an output of what the GPU runs, so it cannot be bound")
    graph = living[0].partition.subgraph
    if len(owners) > 1:
        raise TensorError(f"{name} belongs to several partitions or interpreters, so it cannot be bound")
    if owners[0][1] == "input" and index not in graph.inputs:
        raise TensorError(f"{name} is computed on the CPU, so it cannot be bound")
    owner, kind = owners[0]
    inside = {o.index for o in owner.partition.nodes}
    if kind == "input" and any(index in o.inputs and o.index not in inside for o in graph.operators):
        raise TensorError(f"{name} is also read by operators on the CPU, so it cannot be bound")
    kernel = owner.kernel()
    assert kernel is not None
    return kernel, kind, getattr(owner.partition, f"{kind}s").index(index), tensor


def describe(tensor: Tensor) -> str:
    return f"tensor {tensor.index} ({tensor.name!r})"


def bind(
    kernel: GpuKernel, kind: str, i: int, tensor: Tensor, buffer: Any, *, stream: Any = None,
    image: ImageInput | None = None,
) -> None:  # fmt: skip
    """See GpuKernel.bind."""
    if image is not None and kind != "input":
        raise TensorError(f"{describe(tensor)} is an output: image= is for inputs")
    what = f"{kind} {describe(tensor)}"
    found = kernel.binder.examine(buffer, what, output=kind == "output", stream=stream)
    kernel.binder.bind(kind, i, found.resource, what, _between(kernel, kind, tensor, found, image, what))


def _between(
    kernel: GpuKernel, kind: str, tensor: Tensor, found: UserBuffer, image: ImageInput | None, what: str
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


def run_on_gpu(kernel: GpuKernel, inputs: Mapping[int, tuple[Tensor, Any]], outputs: Sequence[Tensor]) -> list[Any]:
    """One inference on arrays on the GPU, by place; the outputs, in their order, as arrays of the first one's library
    that belong to the caller. Does not wait: the results are for the stream that the library works on.

    Outputs of types that the GPU does not have (BOOL, INT64) are int32."""
    for i, (tensor, array) in inputs.items():
        if not kernel.rebind("input", i, array):
            kernel.bind("input", i, tensor, array)
    session, example = kernel.array_binder, next(iter(inputs.values()))[1]
    buffers = session.empty_outputs(example, [tensor.shape for tensor in outputs])
    for i, (tensor, buffer) in enumerate(zip(outputs, buffers, strict=True)):
        if not kernel.rebind("output", i, buffer):
            kernel.bind("output", i, tensor, buffer)
    kernel.run_bound()
    return [session.in_library(example, buffer) for buffer in buffers]


def _image_program(
    kernel: GpuKernel, tensor: Tensor, width: int, height: int, image: ImageInput, row: int | None = None
) -> Program:
    key = ("image", tensor.index, width, height, row, repr(image))
    return _program(kernel, key, lambda: images.image_reading(tensor, width, height, image, row))


def _program(kernel: GpuKernel, key: Any, make: Any) -> Program:
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
