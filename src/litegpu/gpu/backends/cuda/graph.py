"""CUDA graphs: what is put on a stream while it is captured, replayed with one call."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from litegpu.gpu.backends.cuda.base import LoadedKernel
from litegpu.gpu.backends.cuda.driver import checked


@dataclass(frozen=True)
class GraphLaunch:
    """One dispatch. `params` holds the pointers to the arguments, `arguments` the device addresses themselves. `early`:
    whether it gains by being started before the kernel in front of it has ended, where it can be."""

    kernel: LoadedKernel
    groups: tuple[int, int, int]
    workgroup: tuple[int, int, int]
    shared_bytes: int
    label: str
    params: Any
    arguments: Any
    early: bool = True

    def enqueue(self, stream: Any, overlap: bool = False) -> None:
        """Put the kernel on the stream. `overlap`: where its text waits for the kernel in front of it by itself, it may
        start before that has ended. One whose text does not is started after it, whoever wrote it."""
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = self.groups
        config.blockDimX, config.blockDimY, config.blockDimZ = self.workgroup
        config.sharedMemBytes = self.shared_bytes
        config.hStream = stream
        if overlap and self.early and self.kernel.waits:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        checked(
            driver.cuLaunchKernelEx(config, self.kernel.function, ctypes.addressof(self.params), 0),
            f"{self.kernel.device}: launch of kernel {self.kernel.name!r} ({self.label})",
        )


def make_launch(
    kernel: LoadedKernel,
    groups: tuple[int, int, int],
    workgroup: tuple[int, int, int],
    shared_bytes: int,
    label: str,
    addresses: list[int],
) -> GraphLaunch:
    """A launch whose parameters are device pointers."""
    arguments = (ctypes.c_uint64 * len(addresses))(*addresses)
    first, size = ctypes.addressof(arguments), ctypes.sizeof(ctypes.c_uint64)
    params = (ctypes.c_void_p * len(addresses))(*(first + i * size for i in range(len(addresses))))
    return GraphLaunch(kernel, groups, workgroup, shared_bytes, label, params, arguments)


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
