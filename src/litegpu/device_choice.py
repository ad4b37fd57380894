"""The words for devices, the same everywhere: "auto", "cpu", a backend, "<backend>:<index>" if it has several."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from litegpu.errors import DeviceError, ForkError, OptionError, SoftwareDeviceError
from litegpu.gpu.backends import registry

if TYPE_CHECKING:
    from litegpu.gpu.delegate.delegate import GpuDelegate

log = logging.getLogger("litegpu")


def device_words(index: str = "<index>") -> tuple[str, ...]:
    """The words, for people; `index` stands for numbers."""
    numbered = tuple(f"{name}:{index}" for name in registry.numbered())
    return "auto", "cpu", *registry.ENTRIES, *numbered


def is_device(name: object) -> bool:
    """Whether this is one of the words."""
    if not isinstance(name, str):
        return False
    kind, colon, index = name.partition(":")
    if colon:
        return kind in registry.numbered() and index.isdecimal()
    return kind in ("auto", "cpu", *registry.ENTRIES)


def delegate_for(device: str, precision: str, options: Mapping[str, Any]) -> GpuDelegate | None:
    """The GPU delegate that a device's name asks for, None for the CPU. Raises OptionError, DeviceError.

    "auto" takes no software device, which computes on the CPU, only slower than the official runtime does: such a one
    has to be asked for, by "webgpu", by the options `backend` or `device`, or by LITEGPU_WEBGPU_ADAPTER."""
    if not is_device(device):
        *first, last = (f'"{word}"' for word in device_words())
        raise OptionError(f"device is {device!r}; it must be {', '.join(first)} or {last}")
    kind, _, index = device.partition(":")
    if kind == "cpu":
        if options:
            raise OptionError(f"{', '.join(options)}: the CPU has no delegate options; give num_threads instead")
        return None
    if kind != "auto":
        options = {"backend": kind, **({"device": index} if index else {}), **options}
    from litegpu.gpu.delegate.delegate import GpuDelegate

    delegate = GpuDelegate(precision=precision, **options)
    delegate.takes_software = kind != "auto"
    try:
        delegate.open_device()
    except ForkError:
        raise
    except DeviceError as error:
        if kind != "auto":
            raise
        level = logging.WARNING if isinstance(error, SoftwareDeviceError) else logging.INFO
        log.log(level, "No GPU can be used, running on the CPU: %s", error)
        return None
    return delegate


def best_gpu() -> str:
    """The name of the GPU that GpuDelegate() takes, a software device too if there is nothing better: for who asks for
    a GPU and does not mind which. Raises DeviceError if there is none."""
    from litegpu.gpu.delegate.delegate import GpuDelegate

    return registry.name_of(GpuDelegate().open_device())
