"""The one device of the reference backend: this process, computing in NumPy."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence

import numpy as np

from litegpu import fork
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.backends.contract import DeviceInfo
from litegpu.gpu.backends.reference.session import ReferenceSession
from litegpu.gpu.backends.reference.text import read_tree
from litegpu.gpu.lang import Features, Kernel, KernelError
from litegpu.gpu.program import KernelCode, Program

_WAITS = ("passive", "active", "do_not_wait")


class ReferenceDevice:
    """Satisfies contract.Device. Its limits are the least that any device has, so that what runs here fits all of them.
    Uses no driver, so that it works in forked processes as well."""

    target = "tree"
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

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> ReferenceSession:
        """A session of `program`. What it computes is there when run() returns, whatever `wait` is; every call is
        checked, with and without `validation`. Raises DeviceError naming the kernel that cannot be read or bound."""
        if wait is not None and wait not in _WAITS:
            raise OptionError(f"unknown wait {wait!r}: use {', '.join(_WAITS)}")
        return ReferenceSession(self, program)

    def nudge(self) -> None:
        """It does not sleep."""

    def tuner(self, level: str) -> None:
        """There is one kernel for each op."""

    def images(self, program: Program) -> list[bytes]:
        """None: kernels are not compiled."""
        return []

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        """Nothing to adopt."""

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
