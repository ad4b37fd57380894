"""Arrays in CUDA memory that are not ours, by DLPack or __cuda_array_interface__, and such arrays of our own."""

from __future__ import annotations

import functools
import math
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from litegpu import fork
from litegpu.errors import DeviceError, TensorError
from litegpu.gpu.backends.cuda import dlpack
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import SUCCESS, checked

#: The stream that CUDA calls 0: the two protocols write 1, as 0 could mean others.
LEGACY_STREAM = 1
#: Blocks of one size and stream that are kept for the next inference.
_KEPT_BLOCKS = 8
_LARGEST_KEPT = 64 << 20


class CudaArray(NamedTuple):
    """Somebody's dense row-major array. `owner` keeps the memory alive.

    `stream()` is the stream that the array's library works on now, where that can be known; else `order(stream)`, if
    there is one, makes `stream` wait for whatever may still write the array.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: Any
    stream: Callable[[], int] | None = None
    order: Callable[[int], object] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def import_array(
    device: CudaDeviceBase, array: Any, what: str, working: int, *, stream: Any = None, writable: bool = False
) -> CudaArray:
    """`array` if it lies on `device`, dense; `what` names it in errors. `working`: the stream that is going to use it
    (work that DLPack arrays wait for is put in front of it). `stream`: the stream on which the user works with the
    array, if that is not the one of its library. Raises TensorError, or DeviceError for another device."""
    if isinstance(array, CudaBuffer) and array.memory.device is device:
        stream = array.stream if stream is None else stream_handle(stream)
        return CudaArray(array.memory.address, array.shape, array.dtype, array, lambda: stream)
    if stream is None and is_torch_tensor(array):
        plain = from_torch(device, array)
        if plain is not None:
            return plain
    if hasattr(array, "__dlpack_device__") and hasattr(array, "__dlpack__"):
        found = _from_dlpack(device, array, what, working)
    elif hasattr(array, "__cuda_array_interface__"):
        found = _from_interface(array, what)
    else:
        raise TensorError(
            f"{what}: a {type(array).__name__} object is no array in CUDA memory: it has neither __dlpack__ nor "
            "__cuda_array_interface__"
        )
    described, owner, known, order = found
    if described.strides is not None and not _dense(described.shape, described.strides):
        raise TensorError(
            f"{what}: the array of shape {list(described.shape)} has strides {list(described.strides)}, in elements; "
            "it must be dense and row-major: make it contiguous first"
        )
    if writable and described.read_only:
        raise TensorError(f"{what}: the array is read-only")
    try:
        dtype = np.dtype(described.dtype)
    except TypeError:
        raise TensorError(f"{what}: elements of type {described.dtype} are not supported") from None
    if math.prod(described.shape):
        _check_memory(device, described.address, what)
    if stream is not None:
        handle = stream_handle(stream)
        known, order = (lambda: handle), None
    return CudaArray(described.address, described.shape, dtype, owner, known, None if known else order)


def is_torch_tensor(array: Any) -> bool:
    """Whether `array` is a tensor of PyTorch, which then has been imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def from_torch(device: CudaDeviceBase, tensor: Any) -> CudaArray | None:
    """A plain dense PyTorch tensor on the device, without the detour by DLPack, which takes ten times as long; else
    None."""
    index = device.found.index
    if not tensor.is_cuda or tensor.get_device() != index or not tensor.is_contiguous():
        return None
    dtype = _torch_types().get(tensor.dtype)
    if dtype is None or tensor.is_neg():  # (complex numbers, which may be conjugates, are none of the types)
        return None
    return CudaArray(tensor.data_ptr(), tuple(tensor.shape), dtype, tensor, torch_stream(index))


def empty_like(example: Any, shape: tuple[int, ...], dtype: np.dtype[Any], pool: MemoryPool, stream: int) -> Any:
    """A new array of the library that `example` is of, or a CudaBuffer for `like()` to convert, to be written on
    `stream`, the one that the library works on."""
    if is_torch_tensor(example):
        kind = torch_type(dtype)
        if kind is not None:
            return sys.modules["torch"].empty(shape, dtype=kind, device=example.device)
    return pool.buffer(shape, dtype, stream)


def like(example: Any, buffer: Any) -> Any:
    """`buffer` as an array of the library that `example` is of, if that reads DLPack; nothing is copied."""
    if not isinstance(buffer, CudaBuffer):
        return buffer
    name = type(example).__module__.partition(".")[0]
    if name in ("jax", "jaxlib"):
        name = "jax.dlpack"
    convert = getattr(sys.modules.get(name), "from_dlpack", None)
    return buffer if convert is None else convert(buffer)


def stream_handle(stream: Any) -> int:
    """The number of a stream: a number itself, or an object of PyTorch, CuPy, Numba or NVIDIA's own bindings."""
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        stream = (protocol() if callable(protocol) else protocol)[1]
    for name in ("cuda_stream", "ptr", "handle", "value"):
        stream = getattr(stream, name, stream)
    try:
        return int(stream) or LEGACY_STREAM
    except (TypeError, ValueError):
        raise TensorError(f"a {type(stream).__name__} object is no CUDA stream") from None


class CudaBuffer:
    """An array in memory of litegpu's, for other libraries: `torch.from_dlpack(buffer)`, `cupy.asarray(buffer)`.
    `stream` is the one on which it is written; consumers on others are made to wait for that."""

    def __init__(self, memory: PooledMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory = memory
        self.shape = shape
        self.dtype = dtype
        self.stream = memory.stream

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.memory.device.found.index

    def __dlpack__(
        self, *, stream: int | None = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """A capsule. `stream`: the consumer's (None is the legacy default stream, -1 asks for no order)."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a litegpu buffer can only be shared where it is")
        if stream != -1:
            self.memory.device.make_wait(stream or LEGACY_STREAM, self.stream)
        return dlpack.capsule(self.memory.address, self.__dlpack_device__(), self.shape, self.dtype, self.memory)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.memory.address, False),
            "strides": None,
            "version": 3,
            "stream": self.stream,
        }

    def __repr__(self) -> str:
        return f"<CudaBuffer {self.dtype} {list(self.shape)} on {self.memory.device}>"


class PooledMemory:
    """Device memory that goes back to its pool when nobody has it any more."""

    def __init__(self, pool: MemoryPool, address: int, size: int, stream: int) -> None:
        self.device = pool.device
        self.address, self.size, self.stream = address, size, stream
        self._pool = pool

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self._pool.give_back(self.address, self.size, self.stream)


class MemoryPool:
    """Blocks for outputs. A block is used again for the stream on which it was written: what was put on that stream
    to read the old content comes before."""

    def __init__(self, device: CudaDeviceBase) -> None:
        self.device = device
        self._free: dict[tuple[int, int], deque[int]] = {}

    def buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int | None = None) -> CudaBuffer:
        """See CudaDevice.buffer()."""
        fork.check()
        return CudaBuffer(self.take(math.prod(shape) * dtype.itemsize, stream or LEGACY_STREAM), shape, dtype)

    def take(self, size: int, stream: int) -> PooledMemory:
        blocks = self._free.get((size, stream))
        try:
            address = blocks.pop() if blocks else None
        except IndexError:  # another thread took it
            address = None
        if address is None:
            with self.device.context:
                address = int(checked(driver.cuMemAlloc(max(size, 16)), f"{size} bytes for an output"))
        return PooledMemory(self, address, size, stream)

    def give_back(self, address: int, size: int, stream: int) -> None:
        if self.device.lost:
            return
        blocks = self._free.setdefault((size, stream), deque())
        if len(blocks) >= _KEPT_BLOCKS or size > _LARGEST_KEPT:
            with self.device.context:
                driver.cuMemFree(address)
        else:
            blocks.append(address)


# ----------------------------------------------------------------------------------------------

_Found = tuple[dlpack.Described, Any, Callable[[], int] | None, Callable[[int], object] | None]


@functools.cache
def _torch_types() -> dict[Any, np.dtype[Any]]:
    names = ("float32", "float16", "uint8", "int8", "int16", "int32", "int64", "float64", "bool")
    return {getattr(sys.modules["torch"], name): np.dtype(name) for name in names}


@functools.cache
def torch_type(dtype: np.dtype[Any]) -> Any:
    return next((kind for kind, known in _torch_types().items() if known == dtype), None)


@functools.cache
def torch_stream(index: int | None) -> Callable[[], int]:
    """Asks PyTorch for the current stream of the calling thread."""
    cuda = sys.modules["torch"].cuda
    raw = getattr(sys.modules["torch"]._C, "_cuda_getCurrentRawStream", None)
    if raw is None or index is None:
        return lambda: int(cuda.current_stream(index).cuda_stream) or LEGACY_STREAM
    return lambda: raw(index) or LEGACY_STREAM


def _from_dlpack(device: CudaDeviceBase, array: Any, what: str, working: int) -> _Found:
    kind, index = (int(n) for n in array.__dlpack_device__())
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        where = "host memory: use set_tensor()" if kind == dlpack.CPU else f"memory of DLPack device type {kind}"
        raise DeviceError(f"{what}: the array is in {where}, and the model runs on {device}")
    if index != device.found.index:
        raise DeviceError(f"{what}: the array is on cuda:{index}, and the model runs on {device}")

    def order(stream: int) -> Any:
        return _export(array, what, stream)

    made = order(working)
    return dlpack.describe(made), (array, made), _library_stream(array, index), order


def _export(array: Any, what: str, stream: int) -> Any:
    try:
        try:
            return array.__dlpack__(stream=stream, max_version=(1, 0))
        except TypeError:  # an exporter from before DLPack 1.0
            return array.__dlpack__(stream=stream)
    except Exception as error:
        raise TensorError(f"{what}: the array cannot be shared by DLPack: {error}") from error


def _from_interface(array: Any, what: str) -> _Found:
    try:
        interface = array.__cuda_array_interface__
        address, read_only = interface["data"]
        shape, dtype = tuple(int(n) for n in interface["shape"]), np.dtype(interface["typestr"])
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(n // dtype.itemsize for n in strides)
        if interface.get("mask") is not None:
            raise TensorError("masked arrays are not supported")
    except Exception as error:
        raise TensorError(f"{what}: __cuda_array_interface__ cannot be used: {error}") from error
    described = dlpack.Described(int(address or 0), (dlpack.CUDA, 0), shape, strides, dtype.name, bool(read_only))
    stream = interface.get("stream")
    known = _library_stream(array, None)
    if known is None and stream is not None:
        handle = int(stream) or LEGACY_STREAM
        known = lambda: handle  # noqa: E731
    return described, array, known, None


def _library_stream(array: Any, index: int | None) -> Callable[[], int] | None:
    """The current stream of the thread that asks, in libraries that have such a thing. They are not imported: who has
    an array of a library has imported it."""
    name = type(array).__module__.partition(".")[0]
    module = sys.modules.get(name)
    if module is not None and name == "torch":
        return torch_stream(index)
    if module is not None and name == "cupy":
        return lambda: int(module.cuda.get_current_stream().ptr) or LEGACY_STREAM
    return None


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _check_memory(device: CudaDeviceBase, address: int, what: str) -> None:
    """Raise unless the driver knows the address as memory of the device."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    with device.context:
        error, ordinal = driver.cuPointerGetAttribute(attribute, address)
    if error != SUCCESS:
        raise TensorError(f"{what}: address {address:#x} is no CUDA memory: was the array freed?")
    if int(ordinal) != device.found.index:
        raise DeviceError(f"{what}: the array is on cuda:{int(ordinal)}, and the model runs on {device}")
