"""The reference backend's device as its sessions know it: what it can do, and the kernels that were read."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np

from litegpu import fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import DeviceInfo
from litegpu.gpu.backends.reference.text import read_tree
from litegpu.gpu.lang import Features, Kernel, KernelError
from litegpu.gpu.program import KernelCode


class ReferenceDeviceBase:
    """Its limits are the least that any device has, so that what runs here fits all of them. Uses no driver, so that it
    works in forked processes as well."""

    features = Features(float16=True, subgroups=True, subgroup_size=32, timestamps=True)

    def __init__(self) -> None:
        self.info = DeviceInfo("NumPy", "reference", f"NumPy {np.__version__}", True)
        self.lost = False  # never by itself: tests set it
        self._lock = threading.Lock()
        fork.follow(self)
        self._kernels: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.info.name} (reference)"

    def check(self) -> None:
        """Raises DeviceError if the device is lost."""
        if self.lost:
            raise DeviceError(f"{self} was lost, with everything that was on it: load the model again")

    def kernels(self, codes: Sequence[KernelCode]) -> list[Kernel]:
        """The kernels to be interpreted, in order; sessions share those of equal texts."""
        with self._lock:
            return [self._kernel(code) for code in codes]

    def _kernel(self, code: KernelCode) -> Kernel:
        kernel = self._kernels.get(code.source)
        if kernel is None:
            try:
                kernel = read_tree(code.source)
            except KernelError as error:
                raise DeviceError(f"kernel {code.name!r} did not compile on {self}: {error}") from error
            self._kernels[code.source] = kernel
        return kernel
