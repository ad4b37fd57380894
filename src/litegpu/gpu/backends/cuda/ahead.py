"""Starting the driver before it is needed: its own half second of native code, beside the imports of a quarter."""

from __future__ import annotations

import ctypes
import sys

from litegpu import fork


def begin(device: str | None) -> None:
    """Start the driver and a device's context, which whoever opens the device then finds there; for a thread. `device`:
    its number, if that is known. Whatever is wrong is told to those who open it. Imports nothing, as modules that two
    threads import at once may see each other half made."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return
    if library.cuInit(0):
        return
    fork.gpu_is_used()
    handle = ctypes.c_int()
    if not library.cuDeviceGet(ctypes.byref(handle), int(device) if device and device.isdecimal() else 0):
        library.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), handle)
