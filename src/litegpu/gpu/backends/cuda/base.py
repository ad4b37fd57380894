"""An opened CUDA device as its sessions know it: its context, and the kernels that are loaded on it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cuda.bindings import driver

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import DeviceInfo
from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.driver import CudaContext, checked, make_wait, synchronize
from litegpu.gpu.backends.cuda.info import CudaDeviceInfo, CudaVersions, features_of
from litegpu.gpu.backends.cuda.overlap import (
    ALONE,
    PROGRAMMATIC_VARIABLE,
    WAIT,
    Overlap,
    overlap_of,
    shared_memory_percent,
)
from litegpu.gpu.backends.cuda.requirements import CONDITIONAL, PROGRAMMATIC
from litegpu.gpu.program import KernelCode, Program, RowMap

_NUDGE_BYTES = 256
#: Of shared memory, as it is given out.
_SHARED_UNIT = 128


class _Closes(Protocol):
    def close(self, *, wait: bool = True) -> None:
        """See contract.Session."""


@dataclass(frozen=True)
class SharedMemory:
    """Bytes of a multiprocessor's shared memory: all; what a workgroup may have; what each takes besides."""

    multiprocessor: int
    workgroup: int
    reserved: int


class CudaDeviceBase:
    """An opened CUDA device. Works in the device's primary context, which is made current only during calls. Sessions
    with equal kernels share the loaded code, and those with equal constants these."""

    def __init__(self, found: CudaDeviceInfo, versions: CudaVersions) -> None:
        self.found = found
        self.versions = versions
        self.handle = checked(driver.cuDeviceGet(found.index), "cuDeviceGet")
        context = CudaContext(self.handle)
        self.context: CudaContext | fork.Refusal = context
        #: Of the context, for native code, which makes it current by itself.
        self.address = context.address
        self.features = features_of(
            found.capability, found.memory, threads=self.attribute("MAX_THREADS_PER_BLOCK"),
            units=self.attribute("MULTIPROCESSOR_COUNT"), cache_bytes=self.attribute("L2_CACHE_SIZE"),
        )  # fmt: skip
        driver_text = f"CUDA {versions.driver}, NVRTC {versions.nvrtc}"
        self.shared_memory = SharedMemory(
            self.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            self.attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        )
        #: Of what one launch can say how the second-level cache is to keep it; 0 where it cannot.
        self.access_window_bytes = self.attribute("MAX_ACCESS_POLICY_WINDOW_SIZE")
        self.shared_memory_percent = shared_memory_percent(self.shared_memory.multiprocessor)
        self.info = DeviceInfo(found.name, "cuda", driver_text, False, found.uuid)
        self.lost = False
        #: Whether kernels may overlap by programmatic dependent launch where that should gain; sessions read it when
        #: they are built.
        able = PROGRAMMATIC.is_met(versions, found.capability)
        self.programmatic = able and os.environ.get(PROGRAMMATIC_VARIABLE) != "0"
        #: Whether graphs may have conditional nodes; else the host reads each condition.
        self.conditional = CONDITIONAL.is_met(versions, found.capability)
        self._loaded: weakref.WeakValueDictionary[_Key, LoadedKernel] = weakref.WeakValueDictionary()
        self.constants: weakref.WeakValueDictionary[tuple[int, int], Any] = weakref.WeakValueDictionary()
        self.constants_lock: threading.Lock | fork.Refusal = threading.Lock()
        self._nudging: tuple[Any, int] | None = None  # a stream and some memory
        self._event: Any = None
        self._lock: threading.Lock | fork.Refusal = threading.Lock()
        fork.follow(self)
        self._left: list[_Closes] = []  # closed while the device worked for them

    def _forked(self) -> None:
        self.lost = True  # so that nothing is freed
        self._lock = self.constants_lock = self.context = fork.Refusal()

    def check(self) -> None:
        """Raises DeviceError if the device is lost: an error of a kernel spoils the context that all of the process,
        other libraries too, share."""
        if self.lost:
            raise DeviceError(
                f"{self} was lost by an earlier error of a kernel, and is of no use to this process: start the "
                "process anew"
            )

    def leave(self, session: _Closes) -> None:
        """Free a closed session when the device is done with it: when another one is opened or closed."""
        self._left.append(session)

    def free_what_was_left(self) -> None:
        """Free the sessions of leave() that the device is done with."""
        for _ in range(len(self._left)):
            with contextlib.suppress(IndexError):  # another thread was sooner
                self._left.pop(0).close(wait=False)

    def __str__(self) -> str:
        return str(self.found)

    def nudge(self) -> None:
        """Give the device something tiny to do."""
        with self._lock, self.context:
            if self._nudging is None:
                stream = checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)), "nudging")
                self._nudging = stream, int(checked(driver.cuMemAlloc(_NUDGE_BYTES), "nudging"))
            stream, memory = self._nudging
            checked(driver.cuMemsetD8Async(memory, 0, _NUDGE_BYTES, stream), "nudging")
            synchronize(stream, "nudging")

    def make_wait(self, later: int, earlier: int) -> None:
        """Let what is put on the stream `later` from now on wait for what is on `earlier`."""
        if later == earlier:
            return
        with self._lock, self.context:
            if self._event is None:
                flags = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
                self._event = checked(driver.cuEventCreate(flags), "cuEventCreate")
            make_wait(self._event, later, earlier)

    def overlap(self, program: Program) -> Overlap:
        """Which of the program's kernels overlap by programmatic dependent launch."""
        return overlap_of(program) if self.programmatic else ALONE

    def compile(self, kernels: Sequence[KernelCode], programmatic: bool) -> list[bytes]:
        """Images of the kernels, in order; see compile_kernels()."""
        return compile_kernels(kernels, self.found.capability, programmatic=programmatic)

    def kernels(self, kernels: Sequence[KernelCode], overlap: Overlap = ALONE) -> list[LoadedKernel]:
        """The kernels compiled and loaded, in order; each is unloaded when no session uses it any more."""
        images = self.compile(kernels, overlap.waits)
        loaded = []
        with self._lock, self.context:
            for kernel, image in zip(kernels, images, strict=True):
                key = (kernel.name, kernel.shared_bytes, kernel.maps, image, overlap)
                one = self._loaded.get(key)
                if one is None:
                    one = self._loaded[key] = LoadedKernel(self, kernel, image, overlap)
                loaded.append(one)
        return loaded

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name, such as "MULTIPROCESSOR_COUNT"."""
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(checked(driver.cuDeviceGetAttribute(which, self.handle), f"cuDeviceGetAttribute {name}"))


_Key = tuple[str, int, tuple[RowMap, ...], bytes, Overlap]


class _Module:
    """A module of the driver's, unloaded when nothing refers to it any more."""

    def __init__(self, device: CudaDeviceBase, image: bytes, what: str) -> None:
        self.handle: Any = None
        self._device = device
        # the driver reads PTX as text up to a zero
        self.handle = checked(driver.cuModuleLoadData(ctypes.create_string_buffer(image)), what)

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        handle, self.handle = self.handle, None
        if handle is not None and not finalizing() and not self._device.lost:
            with self._device.context:
                driver.cuModuleUnload(handle)


class LoadedKernel:
    """A kernel on a device, ready to be launched; `overlap`: how it may with its neighbours. `waits`: its text
    waits for those in front of it by itself, without which it must not be started before they have ended.

    It has no finalizer: while one ran, another thread could still get the kernel from the device's weak dictionary,
    and would launch what is being unloaded."""

    def __init__(self, device: CudaDeviceBase, kernel: KernelCode, image: bytes, overlap: Overlap) -> None:
        self.device = device
        self.name = kernel.name
        self.maps = kernel.maps
        self.waits = overlap.waits and WAIT in kernel.source
        threads = kernel.workgroup[0] * kernel.workgroup[1] * kernel.workgroup[2]
        what = f"{device}: kernel {kernel.name!r}"
        self._module = _Module(device, image, f"{what} cannot be loaded")
        self.function = checked(
            driver.cuModuleGetFunction(self._module.handle, kernel.name.encode()), f"{what} is not in its own module"
        )
        attribute = driver.CUfunction_attribute
        if kernel.shared_bytes:
            self._allow(kernel.shared_bytes, f"{what} cannot have {kernel.shared_bytes} bytes of shared memory")
        if overlap.waits:
            wanted = attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            percent = device.shared_memory_percent if overlap.latency else -1  # as the driver sees fit
            checked(driver.cuFuncSetAttribute(self.function, wanted, percent), what)
        # also makes a driver that loads lazily load the code now, which it must not while a graph is captured
        most = checked(
            driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, self.function), what
        )
        if threads > most:
            raise DeviceError(f"{what} needs too many registers for its {threads} threads: at most {most} can run")
        self._threads, self._what, self._held = threads, what, dict[int, int]()
        self.resident = 1  # workgroups that fit on a multiprocessor; known where it matters
        self._fixed_bytes = 0  # of shared memory, that the text declares; known likewise
        if overlap.waits and not overlap.latency:
            fixed = driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, self.function)
            self._fixed_bytes = int(checked(fixed, what))
            self._allow(device.shared_memory.workgroup - self._fixed_bytes, what)
            self.resident = self._fitting(kernel.shared_bytes)

    def shared_bytes_for(self, workgroups: int) -> int:
        """Shared memory of a workgroup with which so many fit on a multiprocessor, and no more; 0 if there is no
        such, or if the kernel does not wait by itself. The device's context must be current."""
        if not self.waits or not 0 < workgroups < self.resident:
            return 0
        if workgroups not in self._held:
            self._held[workgroups] = self._hold(workgroups)
        return self._held[workgroups]

    def _hold(self, workgroups: int) -> int:
        shared = self.device.shared_memory
        each = min(shared.multiprocessor // workgroups - shared.reserved, shared.workgroup)
        size = each // _SHARED_UNIT * _SHARED_UNIT - self._fixed_bytes
        return size if size > 0 and self._fitting(size) == workgroups else 0

    def _allow(self, shared_bytes: int, what: str) -> None:
        """Lets a launch have so much shared memory."""
        wanted = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(self.function, wanted, shared_bytes), what)

    def _fitting(self, shared_bytes: int) -> int:
        """Workgroups with so much shared memory that fit on a multiprocessor."""
        found = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, self._threads, shared_bytes)
        return int(checked(found, self._what))
