"""Buffers of the user's for the inputs and outputs of a partition: which fit, and what lies between the formats."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError, DeviceError, TensorError
from litegpu.gpu.backends.check import NUMPY
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
    if kernel.device.target == "cuda":
        _bind_cuda(kernel, kind, i, tensor, buffer, stream, image)
    elif stream is not None:
        raise DeviceError(f"{describe(tensor)}: stream= is for CUDA; {kernel.device.info.name} has one queue")
    else:
        _bind_webgpu(kernel, kind, i, tensor, buffer, image)


def run_on_gpu(kernel: GpuKernel, inputs: Mapping[int, tuple[Tensor, Any]], outputs: Sequence[Tensor]) -> list[Any]:
    """One inference on arrays on the GPU, by place; the outputs, in their order, as arrays of the first one's library
    that belong to the caller. Does not wait: the results are for the stream that the library works on.

    Outputs of types that the GPU does not have (BOOL, INT64) are int32."""
    from litegpu.gpu.backends.cuda.array import empty_like, like

    session: Any = kernel.session
    for i, (tensor, array) in inputs.items():
        if not kernel.rebind("input", i, array):
            kernel.bind("input", i, tensor, array)
    example, stream = next(iter(inputs.values()))[1], session.next_stream
    buffers = [
        empty_like(example, tensor.shape, NUMPY[port.dtype], session.device, stream)
        for tensor, port in zip(outputs, kernel.program.outputs, strict=True)
    ]
    for i, (tensor, buffer) in enumerate(zip(outputs, buffers, strict=True)):
        if not kernel.rebind("output", i, buffer):
            kernel.bind("output", i, tensor, buffer)
    kernel.run_bound()
    return [like(example, buffer) for buffer in buffers]


def own_buffer(kernel: GpuKernel, i: int, tensor: Tensor) -> Any:
    """Memory for output `i` that other libraries, or with WebGPU other programs, can read."""
    if kernel.device.target != "cuda":
        session: Any = kernel.session
        return session.output_buffer(i)
    device: Any = kernel.device
    return device.buffer(tensor.shape, NUMPY[kernel.program.outputs[i].dtype])


def _bind_cuda(
    kernel: GpuKernel, kind: str, i: int, tensor: Tensor, buffer: Any, stream: Any, image: ImageInput | None
) -> None:
    from litegpu.gpu.backends.cuda.array import import_array

    session: Any = kernel.session
    what = f"{kind} {describe(tensor)}"
    array = import_array(session.device, buffer, what, session.stream, stream=stream, writable=kind == "output")
    if image is not None:
        height, width = _image_shape(array.shape, array.dtype, what)
        session.bind(kind, i, array, what, _image_program(kernel, tensor, width, height, image))
        return
    if array.shape not in (tensor.shape, (math.prod(tensor.shape),)):
        raise TensorError(f"{what} has shape {list(tensor.shape)}; the buffer has {list(array.shape)}")
    session.bind(kind, i, array, what, _conversion(kernel, kind, tensor, array.dtype))


def _bind_webgpu(kernel: GpuKernel, kind: str, i: int, tensor: Tensor, resource: Any, image: ImageInput | None) -> None:
    from litegpu.gpu.backends.webgpu import binding as webgpu

    session: Any = kernel.session
    what = f"{kind} {describe(tensor)}"
    webgpu.check_resource(session.device, resource, what, output=kind == "output")
    between = None
    if hasattr(resource, "create_view"):  # a texture
        image = image or ImageInput()
        if resource.dimension != "2d" or resource.depth_or_array_layers != 1 or resource.sample_count != 1:
            raise TensorError(f"{what}: the texture must be 2d, of one layer and one sample")
        if webgpu.FORMATS[resource.format]:
            image = image.swapped()
        width, height, row = resource.width, resource.height, webgpu.row_pixels(resource.width)
        between = _image_program(kernel, tensor, width, height, image, row)
    elif image is not None:
        if image.size is None:
            raise TensorError(f"{what}: a buffer does not tell the image's size: give ImageInput(size=(width, height))")
        webgpu.check_size(resource, 4 * math.prod(image.size), what)
        between = _image_program(kernel, tensor, *image.size, image)
    else:
        port = (kernel.program.inputs if kind == "input" else kernel.program.outputs)[i]
        if images.is_quantized(tensor) and resource.size == 4 * math.prod(tensor.shape):
            between = _conversion(kernel, kind, tensor, np.dtype(np.float32))
        webgpu.check_size(resource, port.nbytes, what)
    session.bind(kind, i, resource, what, between)


def _image_program(
    kernel: GpuKernel, tensor: Tensor, width: int, height: int, image: ImageInput, row: int | None = None
) -> Program:
    key = ("image", tensor.index, width, height, row, repr(image))
    return _program(kernel, key, lambda: images.image_reading(tensor, width, height, image, row))


def _conversion(kernel: GpuKernel, kind: str, tensor: Tensor, dtype: np.dtype[Any]) -> Program | None:
    """What lies between a buffer of `dtype` and the tensor: float32 buffers hold the real numbers of quantized ones."""
    if dtype != np.float32 or not images.is_quantized(tensor):
        return None
    make = images.quantizing if kind == "input" else images.dequantizing
    return _program(kernel, (make.__name__, tensor.index), lambda: make(tensor))


def _program(kernel: GpuKernel, key: Any, make: Any) -> Program:
    found = kernel.adapters.get(key)
    if found is None:
        model: Model = make()
        found = kernel.adapters[key] = images.compiled(model, kernel.device.features, kernel.device.target)
    return found


def _image_shape(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> tuple[int, int]:
    while len(shape) > 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 3 or shape[2] != 4 or dtype != np.uint8:
        raise TensorError(f"{what}: an image is uint8 of shape height, width, 4; the buffer is {dtype} {list(shape)}")
    return shape[0], shape[1]
