"""OpenVINO itself: imported when a model needs it, one Core for the process, and its devices."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import platform
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litegpu import fork
from litegpu.errors import DelegateLoadError, DeviceError

_ADVICE = "pip install litegpu[openvino]"

#: What Linux calls the instructions that add products of bytes in 32 bits.
_EXACT = {"avx512_vnni", "avx_vnni", "amx_int8"}

_opening = threading.Lock()


def is_installed() -> bool:
    """Whether the package is there, without importing it."""
    return importlib.util.find_spec("openvino") is not None


def require_installed() -> None:
    """Raises DelegateLoadError, with what to install, if the package is not there."""
    if not is_installed():
        raise DelegateLoadError(f"The OpenVINO delegate needs the package openvino: {_ADVICE}")


def core() -> Any:
    """The openvino.Core of this process. Raises DelegateLoadError if the package cannot be imported, ForkError in a
    process that was forked from one that had used it: its threads are in the parent alone."""
    fork.check()
    with _opening:
        return _core()


@functools.cache
def _core() -> Any:
    require_installed()
    try:
        with _without_telemetry():
            import openvino
    except Exception as error:  # a library that does not fit this system
        raise DelegateLoadError(f"The package openvino cannot be imported: {error}; {_ADVICE}") from error
    fork.gpu_is_used()
    core = openvino.Core()
    if not adds_bytes_exactly():  # 8-bit layers in real numbers, rounded to their quanta, also where AUTO takes the CPU
        core.set_property("CPU", {"LP_TRANSFORMS_MODE": False})
    return core


@functools.cache
def adds_bytes_exactly() -> bool:
    """Whether this processor multiplies bytes and adds the products up in 32 bits. Others of x86 add pairs in 16 bits
    first, which end at 32767, and OpenVINO's kernels of 8 bits give other numbers there without a word."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i386", "i686"):
        return True
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False  # not known
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return not _EXACT.isdisjoint(flags)


@contextlib.contextmanager
def _without_telemetry() -> Iterator[None]:
    """The import of openvino sends an event over the network, from a process that it forks. It does without where the
    package openvino_telemetry is not installed, and so it is told, unless somebody else has imported it before."""
    name = "openvino_telemetry"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@functools.cache
def front_end() -> Any:
    """What reads .tflite files."""
    core()
    from openvino.frontend import FrontEndManager

    found = FrontEndManager().load_by_framework("tflite")
    if found is None:
        raise DelegateLoadError(f"This OpenVINO has no front end for .tflite files: {_ADVICE}")
    return found


def version() -> str:
    """Such as "2026.4.1"."""
    core()
    import openvino

    return str(openvino.__version__).partition("-")[0]


def require_device(name: str) -> None:
    """Raises DeviceError, with what there is, if OpenVINO has no such device here."""
    there: list[str] = list(core().available_devices)
    kind = name.partition(":")[0]
    if kind in ("AUTO", "MULTI", "HETERO", "BATCH") or any(name in (d, d.partition(".")[0]) for d in there):
        return
    listed = ", ".join(f"{d} ({full_name(d)})" for d in there) or "none"
    raise DeviceError(f"OpenVINO has no device {name!r} here; it has {listed}, and AUTO")


def full_name(device: str) -> str:
    """What the device calls itself."""
    try:
        return str(core().get_property(device, "FULL_DEVICE_NAME")).strip()
    except Exception:  # virtual devices have none
        return device


def known_properties(device: str) -> frozenset[str]:
    """The names of the properties that the device has."""
    return frozenset(str(name) for name in core().get_property(device, "SUPPORTED_PROPERTIES"))


@fork.in_child
def _forget() -> None:
    global _opening
    _opening = threading.Lock()
