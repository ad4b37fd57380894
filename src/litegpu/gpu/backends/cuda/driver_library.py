"""The driver's library without NVIDIA's bindings: whether it is there, for which CUDA, and what goes with it."""

from __future__ import annotations

import ctypes
import sys

NAME = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
#: The first driver for each version of CUDA that something here needs.
DRIVERS = {(12, 0): "525", (12, 3): "545", (13, 0): "580"}
#: The extra that a driver of a major version of CUDA, or a newer one, runs.
_EXTRAS = {13: "litegpu[cuda]", 12: "litegpu[cuda12]"}


def is_installed() -> bool:
    """Whether the driver's library can be loaded, working or not."""
    try:
        ctypes.CDLL(NAME)
    except OSError:
        return False
    return True


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the installed driver supports; None where there is none. Does not start the driver."""
    number = ctypes.c_int()
    if not is_installed() or ctypes.CDLL(NAME).cuDriverGetVersion(ctypes.byref(number)):
        return None
    return version(number.value)


def version(number: int) -> tuple[int, int]:
    """(12, 4) of CUDA's 12040."""
    return number // 1000, number % 1000 // 10


def install_advice(major: int | None) -> str:
    """What to install for a driver of this major version of CUDA; None: of an unknown one."""
    if major is None:
        choices = (f"{extra} (driver {DRIVERS[known, 0]} or later)" for known, extra in _EXTRAS.items())
        return f"pip install {', or '.join(choices)}"
    if major < min(_EXTRAS):
        return f"update the driver, to {DRIVERS[min(_EXTRAS), 0]} or later"
    return f"pip install {_EXTRAS[min(major, max(_EXTRAS))]}"
