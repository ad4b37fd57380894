"""A CUDA device and what is made on it: sessions, tuners, and memory for users."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver

from litegpu import fork
from litegpu.errors import OptionError
from litegpu.gpu.backends.cuda.array import CudaBuffer, MemoryPool
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.compile import adopt_images
from litegpu.gpu.backends.cuda.copy import Pinned, with_helpers
from litegpu.gpu.backends.cuda.info import CudaDeviceInfo, CudaVersions
from litegpu.gpu.backends.cuda.registered import Registered
from litegpu.gpu.backends.cuda.result_pool import ResultPool
from litegpu.gpu.backends.cuda.session import CudaSession
from litegpu.gpu.backends.cuda.session_base import Pools
from litegpu.gpu.program import Program

if TYPE_CHECKING:
    from litegpu.gpu.backends.cuda.tune import CudaTuner

#: Of each kernel that the option `tuning` lets measure.
CANDIDATES = {"fast": 8, "full": 64}
WAITS = ("active", "passive", "do_not_wait")


class CudaDevice(CudaDeviceBase):
    """What programs run on; satisfies contract.Device."""

    target = "cuda"

    def __init__(self, found: CudaDeviceInfo, versions: CudaVersions) -> None:
        super().__init__(found, versions)
        self._tuners: dict[str, CudaTuner] = {}
        self._pools = Pools(MemoryPool(self), ResultPool(self), Registered(self))

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> CudaSession:
        """A session of `program`. `wait`: "active" (the default) spins in run() until the device is done, "passive"
        sleeps, except where that takes less than 2 ms, "do_not_wait" lets run() return at once and read() wait.
        `validation`: kernels are launched one by one and awaited, so that errors name them. Raises DeviceError naming
        the kernel that did not compile or that the device refused."""
        fork.check()
        wait = wait or WAITS[0]
        if wait not in WAITS:
            raise OptionError(f"unknown wait {wait!r}: use {', '.join(WAITS)}")
        self.free_what_was_left()
        return CudaSession(self, self._pools, program, wait, validation)

    def buffer(self, shape: tuple[int, ...], dtype: np.dtype[Any], stream: int | None = None) -> CudaBuffer:
        """Memory that is written on `stream` (the legacy default stream, which always exists, if None) and that other
        libraries can read; its content is anything."""
        return self._pools.device.buffer(shape, dtype, stream)

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Host memory that copies to and from the device start at without a detour; its content is anything."""
        size = math.prod(shape) * dtype.itemsize
        return np.asarray(Pinned(self, max(size, 1)))[:size].view(dtype).reshape(shape)

    def free_bytes(self) -> int | None:
        with self.context:
            error, free, _ = driver.cuMemGetInfo()
        return int(free) if error == driver.CUresult.CUDA_SUCCESS else None

    def tuner(self, level: str) -> CudaTuner | None:
        """Measures up to 8 ("fast") or 64 ("full") candidates for each kernel that has any, in the program; of 64
        those that are the fastest by themselves. Not at all for "off"."""
        if level == "off":
            return None
        from litegpu.gpu.backends.cuda.tune import CudaTuner

        with self._lock:
            if level not in self._tuners:
                self._tuners[level] = CudaTuner(self, CANDIDATES[level])
            return self._tuners[level]

    def images(self, program: Program) -> list[bytes]:
        """See contract.Device."""
        return self.compile(with_helpers(program), self.overlap(program).waits)

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """See contract.Device."""
        kernels = with_helpers(program)
        if len(kernels) == len(images):
            adopt_images(kernels, images, self.found.capability, programmatic=self.overlap(program).waits)

    @property
    def way(self) -> object:
        """Whether kernels may overlap."""
        return self.programmatic
