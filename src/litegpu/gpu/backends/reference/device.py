"""The one device of the reference backend: this process, computing in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.errors import OptionError
from litegpu.gpu.backends.reference.base import ReferenceDeviceBase
from litegpu.gpu.backends.reference.session import ReferenceSession
from litegpu.gpu.program import Program

_WAITS = ("passive", "active", "do_not_wait")


class ReferenceDevice(ReferenceDeviceBase):
    """What programs run on; satisfies contract.Device."""

    target = "tree"

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
