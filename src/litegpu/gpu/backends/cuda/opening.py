"""The CUDA runtime: finds NVIDIA devices, opens them, and says why there are none."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from litegpu import fork, native
from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import driver_library, nvrtc
from litegpu.gpu.backends.cuda.info import CudaDeviceInfo, CudaVersions
from litegpu.gpu.backends.cuda.requirements import LEAST_CAPABILITY

if TYPE_CHECKING:
    from litegpu.gpu.backends.cuda.device import CudaDevice

__all__ = ["CudaDeviceInfo", "available", "list_devices", "open_device", "versions", "warn_unusable"]

#: The oldest NVIDIA bindings that have what is called.
_LEAST_BINDINGS = (12, 8)


def available() -> str | None:
    """Why no CUDA device can be used, with what to do about it; None if one can. Never raises."""
    try:
        list_devices()
    except DeviceError as error:
        return str(error)
    return None


def open_device(device: int | str | None = None) -> CudaDevice:
    """A device, opened once per process and shared; thread-safe. `device`: its index, "cuda:1", its UUID or the
    beginning of that, or a part of its name (the default is the first).

    Raises DeviceError that names the cause: no driver, one that is too old for what is installed, the extra is missing,
    no device, or one that a kernel's error has made useless, which lasts as long as the process.
    """
    fork.check()
    with _lock:
        info = _choose(list_devices(), device)
        opened = _opened.get(info.uuid)
        if opened is None:
            from litegpu.gpu.backends.cuda.device import CudaDevice

            opened = _opened[info.uuid] = CudaDevice(info, versions())
            native.prepare()
        opened.check()
        return opened


def warn_unusable(error: DeviceError) -> None:
    """Say, once per process, why CUDA is not used, if the machine has NVIDIA's driver; else that is no surprise."""
    global _warned
    with _lock:
        if not _warned and driver_is_installed():
            _warned = True
            _log.warning("CUDA is not used: %s. `litegpu doctor` says more.", error)


def driver_is_installed() -> bool:
    """Whether NVIDIA's driver library can be loaded, working or not."""
    return driver_library.is_installed()


def list_devices() -> list[CudaDeviceInfo]:
    """The devices that can be used, at least one. Raises DeviceError as open_device() does."""
    driver = _driver()
    versions()
    from litegpu.gpu.backends.cuda.driver import checked

    count = checked(driver.cuDeviceGetCount(), "cuDeviceGetCount")
    if not count:
        raise _no_device()
    found = [_describe(driver, index) for index in range(count)]
    new = [device for device in found if device.capability >= LEAST_CAPABILITY]
    if not new:
        raise DeviceError(
            f"{found[0]} is too old: CUDA is used from compute capability {LEAST_CAPABILITY / 10} on, WebGPU on all"
        )
    return new


def versions() -> CudaVersions:
    """Raises DeviceError if the driver, its bindings or NVRTC is missing, or one does not go with the driver."""
    driver = _driver()
    from cuda.bindings import __version__ as bindings

    from litegpu.gpu.backends.cuda.driver import checked

    newest = driver_library.version(int(checked(driver.cuDriverGetVersion(), "cuDriverGetVersion")))
    supported = ".".join(map(str, newest))
    if newest[0] < 12:
        raise DeviceError(
            f"the NVIDIA driver is too old: it supports CUDA {supported}; {driver_library.install_advice(newest[0])}"
        )
    made_for = tuple(map(int, bindings.split(".")[:2]))
    if made_for[0] > newest[0]:
        raise DeviceError(
            f"the NVIDIA driver is too old for the installed cuda-bindings {bindings}: it supports CUDA {supported}; "
            f"{driver_library.install_advice(newest[0])}, or update the driver, to "
            f"{driver_library.DRIVERS.get((made_for[0], 0), 'the newest')} or later"
        )
    if made_for < _LEAST_BINDINGS:
        raise DeviceError(f"cuda-bindings {bindings} are too old: {driver_library.install_advice(newest[0])}")
    return CudaVersions(supported, str(nvrtc.chosen()), bindings)


# ----------------------------------------------------------------------------------------------

_log = logging.getLogger("litegpu")
_lock = threading.RLock()


@fork.in_child
def _forked() -> None:
    global _lock
    _lock = threading.RLock()


_warned = False
_opened: dict[str, CudaDevice] = {}


def _driver() -> Any:
    """The driver's bindings after cuInit()."""
    fork.check()
    try:
        from cuda.bindings import driver
    except ImportError as error:
        present = driver_library.driver_version()
        advice = driver_library.install_advice(None if present is None else present[0])
        raise DeviceError(f"the CUDA bindings for Python are missing: {advice} ({error})") from error
    try:
        (result,) = driver.cuInit(0)
    except Exception as error:
        raise DeviceError(
            f"there is no NVIDIA driver: its library libcuda cannot be loaded ({_first_line(error)})"
        ) from error
    if result == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        raise _no_device()
    if result != driver.CUresult.CUDA_SUCCESS:
        from litegpu.gpu.backends.cuda.driver import error_text

        raise DeviceError(f"the NVIDIA driver does not start (cuInit): {error_text(result)}")
    fork.gpu_is_used()
    return driver


def _no_device() -> DeviceError:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hint = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    return DeviceError(f"the NVIDIA driver shows no GPU{hint}")


def _describe(driver: Any, index: int) -> CudaDeviceInfo:
    from litegpu.gpu.backends.cuda.driver import checked

    device = checked(driver.cuDeviceGet(index), "cuDeviceGet")
    attribute = driver.CUdevice_attribute

    def ask(which: Any) -> int:
        return int(checked(driver.cuDeviceGetAttribute(which, device), "cuDeviceGetAttribute"))

    digits = bytes(checked(driver.cuDeviceGetUuid(device), "cuDeviceGetUuid").bytes).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return CudaDeviceInfo(
        index=index,
        name=checked(driver.cuDeviceGetName(256, device), "cuDeviceGetName").split(b"\0")[0].decode(),
        uuid="GPU-" + "-".join(parts),
        capability=10 * ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        + ask(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        memory=int(checked(driver.cuDeviceTotalMem(device), "cuDeviceTotalMem")),
    )


def _choose(devices: list[CudaDeviceInfo], wanted: int | str | None) -> CudaDeviceInfo:
    if wanted is None or wanted == "":
        return devices[0]
    text = str(wanted).strip().lower()
    number = text.removeprefix("cuda").removeprefix(":") or "0"
    if number.isdecimal():
        matching = [d for d in devices if d.index == int(number)]
    else:
        matching = [d for d in devices if d.uuid.startswith(text.replace("gpu-", "GPU-"))]
        matching = matching or [d for d in devices if text in d.name.lower()]
    if not matching:
        raise DeviceError(f"there is no CUDA device {wanted!r}; found: {'; '.join(map(str, devices))}")
    return matching[0]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
