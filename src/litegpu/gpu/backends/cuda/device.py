"""An opened CUDA device: what it can do, and the kernels that are loaded on it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver

from litegpu import fork
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.backends.contract import DeviceInfo
from litegpu.gpu.backends.cuda.compile import PROGRAMMATIC_FROM, adopt_images, compile_kernels
from litegpu.gpu.backends.cuda.driver import CudaContext, checked, synchronize
from litegpu.gpu.backends.cuda.functions import WAIT
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode, Program

if TYPE_CHECKING:
    from litegpu.gpu.backends.cuda.array import CudaBuffer, MemoryPool
    from litegpu.gpu.backends.cuda.opening import CudaDeviceInfo, CudaVersions
    from litegpu.gpu.backends.cuda.session import CudaSession
    from litegpu.gpu.backends.cuda.tune import CudaTuner

#: Of each kernel that the option `tuning` lets measure.
CANDIDATES = {"fast": 8, "full": 64}
#: How much of a multiprocessor's fast memory is shared memory rather than cache, in percent, where kernels overlap.
#: The same for all: a kernel joins only one with the same division, and changing it empties the multiprocessor.
SHARED_MEMORY_PERCENT = 50
WAITS = ("active", "passive", "do_not_wait")
#: Set to 0, kernels do not overlap by programmatic dependent launch where the device can.
PROGRAMMATIC_VARIABLE = "LITEGPU_CUDA_PROGRAMMATIC"
#: What every device has without asking; a kernel may ask for more with KernelCode.shared_bytes.
_PLAIN_SHARED_BYTES = 48 << 10
_NUDGE_BYTES = 256
_MAX_BUFFERS = 64  # of 512 pointers that fit in a kernel's 4 KiB of parameters
_MAX_GROUPS = (1 << 31) - 1  # along x; what asks for more along y or z than 65535 does not get past the language


class CudaDevice:
    """An opened CUDA device; satisfies base.Device. Works in the device's primary context, which is made current only
    during calls. Sessions with equal kernels share the loaded code."""

    target = "cuda"

    def __init__(self, found: CudaDeviceInfo, versions: CudaVersions) -> None:
        self.found = found
        self.versions = versions
        self.handle = checked(driver.cuDeviceGet(found.index), "cuDeviceGet")
        self.context: CudaContext | fork.Refusal = CudaContext(self.handle)
        self.features = self._features()
        driver_text = f"CUDA {versions.driver}, NVRTC {versions.nvrtc}"
        self.info = DeviceInfo(found.name, "cuda", driver_text, False, found.uuid)
        self.lost = False
        #: Whether kernels may overlap by programmatic dependent launch where that should gain; sessions read it when
        #: they are built.
        self.programmatic = found.capability >= PROGRAMMATIC_FROM and os.environ.get(PROGRAMMATIC_VARIABLE) != "0"
        self._loaded: weakref.WeakValueDictionary[_Key, LoadedKernel] = weakref.WeakValueDictionary()
        self._tuners: dict[str, CudaTuner] = {}
        self._nudging: tuple[Any, int] | None = None  # a stream and some memory
        self._event: Any = None
        self._pool: MemoryPool | None = None
        self._lock: threading.Lock | fork.Refusal = threading.Lock()
        fork.follow(self)
        self._left: list[CudaSession] = []  # closed while the device worked for them

    def _forked(self) -> None:
        self.lost = True  # so that nothing is freed
        self._lock = self.context = fork.Refusal()

    def check(self) -> None:
        """Raises DeviceError if the device is lost: an error of a kernel spoils the context that all of the process,
        other libraries too, share."""
        if self.lost:
            raise DeviceError(
                f"{self} was lost by an earlier error of a kernel, and is of no use to this process: start the "
                "process anew"
            )

    def leave(self, session: CudaSession) -> None:
        """Free a closed session when the device is done with it: when another one is opened or closed."""
        self._left.append(session)

    def free_what_was_left(self) -> None:
        """Free the sessions of leave() that the device is done with."""
        for _ in range(len(self._left)):
            with contextlib.suppress(IndexError):  # another thread was sooner
                self._left.pop(0).close(wait=False)

    def __str__(self) -> str:
        return str(self.found)

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> CudaSession:
        """A session of `program`. `wait`: "active" (the default) spins in run() until the device is done, "passive"
        sleeps, except where that takes less than 2 ms, "do_not_wait" lets run() return at once and read() wait.
        `validation`: kernels are launched one by one and awaited, so that errors name them. Raises DeviceError naming
        the kernel that did not compile or that the device refused."""
        from litegpu.gpu.backends.cuda.session import CudaSession

        fork.check()
        wait = wait or WAITS[0]
        if wait not in WAITS:
            raise OptionError(f"unknown wait {wait!r}: use {', '.join(WAITS)}")
        self.free_what_was_left()
        return CudaSession(self, program, wait, validation)

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
        from litegpu.gpu.backends.cuda.binding import make_wait

        with self._lock, self.context:
            if self._event is None:
                flags = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
                self._event = checked(driver.cuEventCreate(flags), "cuEventCreate")
            make_wait(self._event, later, earlier)

    def buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int | None = None) -> CudaBuffer:
        """Memory that is written on `stream` (the legacy default stream, which always exists, if None) and that other
        libraries can read; its content is anything."""
        from litegpu.gpu.backends.cuda.array import LEGACY_STREAM, CudaBuffer, MemoryPool

        with self._lock:
            if self._pool is None:
                self._pool = MemoryPool(self)
        return CudaBuffer(self._pool.take(math.prod(shape) * dtype.itemsize, stream or LEGACY_STREAM), shape, dtype)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Host memory that copies to and from the device start at without a detour; its content is anything."""
        from litegpu.gpu.backends.cuda.copy import Pinned

        size = math.prod(shape) * dtype.itemsize
        return np.asarray(Pinned(self, max(size, 1)))[:size].view(dtype).reshape(shape)

    def free_bytes(self) -> int | None:
        with self.context:
            error, free, _ = driver.cuMemGetInfo()
        return int(free) if error == driver.CUresult.CUDA_SUCCESS else None

    def tuner(self, level: str) -> CudaTuner | None:
        """Measures up to 8 ("fast") or 64 ("full") candidates for each kernel that has any; not at all for "off"."""
        if level == "off":
            return None
        from litegpu.gpu.backends.cuda.tune import CudaTuner

        with self._lock:
            if level not in self._tuners:
                self._tuners[level] = CudaTuner(self, CANDIDATES[level])
            return self._tuners[level]

    def images(self, program: Program) -> list[bytes]:
        """See base.Device."""
        return compile_kernels(_needed(program), self.found.capability, programmatic=self.overlaps(program))

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """See base.Device."""
        kernels = _needed(program)
        if len(kernels) == len(images):
            adopt_images(kernels, images, self.found.capability, programmatic=self.overlaps(program))

    @property
    def way(self) -> object:
        """Whether kernels may overlap."""
        return self.programmatic

    def overlaps(self, program: Program) -> bool:
        """Whether the program's kernels overlap by programmatic dependent launch."""
        from litegpu.gpu.backends.cuda.session import latency_bound

        return self.programmatic and latency_bound(program)

    def program_kernels(self, program: Program) -> list[LoadedKernel]:
        """kernels() of the program, and last the one that copies."""
        return self.kernels(_needed(program), self.overlaps(program))

    def kernels(self, kernels: Sequence[KernelCode], programmatic: bool) -> list[LoadedKernel]:
        """The kernels compiled and loaded, in order; each is unloaded when no session uses it any more."""
        images = compile_kernels(kernels, self.found.capability, programmatic=programmatic)
        loaded = []
        with self._lock, self.context:
            for kernel, image in zip(kernels, images, strict=True):
                key = (kernel.name, kernel.shared_bytes, image, programmatic)
                one = self._loaded.get(key)
                if one is None:
                    one = self._loaded[key] = LoadedKernel(self, kernel, image, programmatic)
                loaded.append(one)
        return loaded

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name, such as "MULTIPROCESSOR_COUNT"."""
        which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(checked(driver.cuDeviceGetAttribute(which, self.handle), f"cuDeviceGetAttribute {name}"))

    def _features(self) -> Features:
        return Features(
            float16=True,
            subgroups=True,
            subgroup_size=32,
            timestamps=True,
            max_threads=self.attribute("MAX_THREADS_PER_BLOCK"),
            max_shared_bytes=_PLAIN_SHARED_BYTES,
            max_buffers=_MAX_BUFFERS,
            max_groups=_MAX_GROUPS,
            max_binding_bytes=self.found.memory,
            max_buffer_bytes=self.found.memory,
            storage_alignment=256,
            compute_units=self.attribute("MULTIPROCESSOR_COUNT"),
            native="cuda",
            capability=self.found.capability,
        )


def _needed(program: Program) -> tuple[KernelCode, ...]:
    """The kernels that a session of the program loads."""
    from litegpu.gpu.backends.cuda.copy import COPY

    return *program.kernels, COPY


_Key = tuple[str, int, bytes, bool]


class _Module:
    """A module of the driver's, unloaded when nothing refers to it any more."""

    def __init__(self, device: CudaDevice, image: bytes, what: str) -> None:
        self.handle: Any = None
        self._device = device
        # the driver reads PTX as text up to a zero
        self.handle = checked(driver.cuModuleLoadData(ctypes.create_string_buffer(image)), what)

    def __del__(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None and not sys.is_finalizing() and not self._device.lost:
            with self._device.context:
                driver.cuModuleUnload(handle)


class LoadedKernel:
    """A kernel on a device, ready to be launched; `programmatic`: it overlaps with its neighbours. `waits`: its text
    waits for those in front of it by itself, without which it must not be started before they have ended.

    It has no finalizer: while one ran, another thread could still get the kernel from the device's weak dictionary,
    and would launch what is being unloaded."""

    def __init__(self, device: CudaDevice, kernel: KernelCode, image: bytes, programmatic: bool) -> None:
        self.device = device
        self.name = kernel.name
        self.waits = programmatic and WAIT in kernel.source
        threads = kernel.workgroup[0] * kernel.workgroup[1] * kernel.workgroup[2]
        what = f"{device}: kernel {kernel.name!r}"
        self._module = _Module(device, image, f"{what} cannot be loaded")
        self.function = checked(
            driver.cuModuleGetFunction(self._module.handle, kernel.name.encode()), f"{what} is not in its own module"
        )
        attribute = driver.CUfunction_attribute
        if kernel.shared_bytes:
            wanted = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            checked(
                driver.cuFuncSetAttribute(self.function, wanted, kernel.shared_bytes),
                f"{what} cannot have {kernel.shared_bytes} bytes of shared memory",
            )
        if programmatic:
            wanted = attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            checked(driver.cuFuncSetAttribute(self.function, wanted, SHARED_MEMORY_PERCENT), what)
        # also makes a driver that loads lazily load the code now, which it must not while a graph is captured
        most = checked(
            driver.cuFuncGetAttribute(attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, self.function), what
        )
        if threads > most:
            raise DeviceError(f"{what} needs too many registers for its {threads} threads: at most {most} can run")
