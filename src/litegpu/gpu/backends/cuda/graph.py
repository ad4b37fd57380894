"""CUDA graphs: what is put on a stream while it is captured, replayed with one call."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuda.bindings import driver

from litegpu.gpu.backends.cuda.base import LoadedKernel
from litegpu.gpu.backends.cuda.driver import checked
from litegpu.gpu.program import RowMap

#: Of the driver's tensor map.
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64


@dataclass(frozen=True)
class GraphLaunch:
    """One dispatch. `params` holds the pointers to the arguments, `arguments` the device addresses themselves. `early`:
    whether it gains by being started before the kernel in front of it has ended, where it can be. `streamed`: the
    number of an argument, and how many bytes there the second-level cache lets go of first."""

    kernel: LoadedKernel
    groups: tuple[int, int, int]
    workgroup: tuple[int, int, int]
    shared_bytes: int
    label: str
    params: Any
    arguments: Any
    early: bool = True
    streamed: tuple[int, int] | None = None
    maps: tuple[Any, ...] = ()  # arguments behind the addresses, kept

    def enqueue(self, stream: Any, overlap: bool = False) -> None:
        """Put the kernel on the stream. `overlap`: where its text waits for the kernel in front of it by itself, it may
        start before that has ended. One whose text does not is started after it, whoever wrote it."""
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.groups
        config.blockDimX, config.blockDimY, config.blockDimZ = self.workgroup
        config.sharedMemBytes = self.shared_bytes
        config.hStream = stream
        attributes = [_starts_early()] if overlap and self.early and self.kernel.waits else []
        if self.streamed is not None:
            argument, size = self.streamed
            attributes.append(_streaming(self.arguments[argument], size))
        if attributes:
            config.attrs = attributes
            config.numAttrs = len(attributes)
        checked(
            driver.cuLaunchKernelEx(config, self.kernel.function, ctypes.addressof(self.params), 0),
            f"{self.kernel.device}: launch of kernel {self.kernel.name!r} ({self.label})",
        )

    def moved(self, argument: int, address: int) -> GraphLaunch:
        """The same with another address for one of its arguments."""
        addresses = [*self.arguments]
        addresses[argument] = address
        made = make_launch(self.kernel, self.groups, self.workgroup, self.shared_bytes, self.label, addresses)
        return replace(self, params=made.params, arguments=made.arguments, maps=made.maps)


def _starts_early() -> Any:
    """The launch attribute by which a kernel may start before the one in front of it has ended."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def _streaming(address: int, size: int) -> Any:
    """The launch attribute by which the second-level cache lets go of these bytes first."""
    attribute, window = driver.CUlaunchAttribute(), driver.CUaccessPolicyWindow()
    window.base_ptr, window.num_bytes, window.hitRatio = address, size, 1.0
    window.hitProp = window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
    attribute.value.accessPolicyWindow = window
    return attribute


def make_launch(
    kernel: LoadedKernel,
    groups: tuple[int, int, int],
    workgroup: tuple[int, int, int],
    shared_bytes: int,
    label: str,
    addresses: list[int],
) -> GraphLaunch:
    """A launch whose parameters are device pointers, and the maps that its kernel has."""
    arguments = (ctypes.c_uint64 * len(addresses))(*addresses)
    first, size = ctypes.addressof(arguments), ctypes.sizeof(ctypes.c_uint64)
    places = [first + i * size for i in range(len(addresses))]
    maps = tuple(encoded(one, addresses[one.binding]) for one in kernel.maps)
    places += [ctypes.addressof(one) for one in maps]
    params = (ctypes.c_void_p * len(places))(*places)
    return GraphLaunch(kernel, groups, workgroup, shared_bytes, label, params, arguments, maps=maps)


def encoded(rows: RowMap, address: int) -> Any:
    """The driver's tensor map of rows of what lies at an address, as bytes that live as long as the answer."""
    kinds, wide, narrow = driver.CUtensorMapDataType, driver.cuuint64_t, driver.cuuint32_t
    kind = {1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8, 2: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16}[rows.size]
    answer = driver.cuTensorMapEncodeTiled(
        kind, 2, address + rows.offset, [wide(rows.shape[1]), wide(rows.shape[0])], [wide(rows.pitch)],
        [narrow(rows.box[1]), narrow(rows.box[0])], [narrow(1), narrow(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    found = checked(answer, f"tensor map of {rows.shape[0]} rows of {rows.shape[1]}")
    room = (ctypes.c_ubyte * (_MAP_BYTES + _MAP_ALIGNMENT))()
    own = (ctypes.c_ubyte * _MAP_BYTES).from_buffer(room, -ctypes.addressof(room) % _MAP_ALIGNMENT)
    ctypes.memmove(own, found.getPtr(), _MAP_BYTES)
    return own


def captured(stream: Any, enqueue: Callable[[], object]) -> Any:
    """A graph, not instantiated, of what `enqueue` puts on `stream`. Relaxed: what other threads or this one's garbage
    collector free or allocate meanwhile has nothing to do with it. The device's context must be current."""
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    try:  # from here on: a stream that is left capturing is of no use to anyone
        checked(driver.cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture")
        enqueue()
    except BaseException:
        _, graph = driver.cuStreamEndCapture(stream)
        if graph is not None and int(graph):
            driver.cuGraphDestroy(graph)
        raise
    return checked(driver.cuStreamEndCapture(stream), "cuStreamEndCapture")


_NOWHERE: Mapping[int, int] = types.MappingProxyType({})


class CudaGraph:
    """An instantiated graph. The device's context must be current in every method."""

    executable: Any = None
    launches: Sequence[GraphLaunch] = ()  # whose arguments the owner wants kept
    elsewhere: Mapping[int, int] = _NOWHERE  # outputs that it writes to arrays of the user's -> addresses

    def __init__(self, stream: Any, enqueue: Callable[[], object]) -> None:
        """Of what `enqueue` puts on `stream`."""
        graph = captured(stream, enqueue)
        try:
            self.executable = checked(driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        finally:
            driver.cuGraphDestroy(graph)
        checked(driver.cuGraphUpload(self.executable, stream), "cuGraphUpload")

    def launch(self, stream: Any) -> None:
        checked(driver.cuGraphLaunch(self.executable, stream), "cuGraphLaunch")

    def close(self) -> None:
        executable, self.executable = self.executable, None  # destroyed once, whatever comes between
        if executable is not None:
            driver.cuGraphExecDestroy(executable)
