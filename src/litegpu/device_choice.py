"""The words for devices, the same everywhere: "auto", "cpu", a backend, "<backend>:<index>" or "<backend>:<part of its
name>" for one of several, "<backend>:all" for all, and the names of other delegates, "<delegate>:<its device>"."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from litegpu.background import leave
from litegpu.delegate_registry import find, known_delegates, load_delegate, others
from litegpu.errors import DeviceError, ForkError, OptionError, SoftwareDeviceError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import ListedDevices

if TYPE_CHECKING:
    from litegpu.gpu.delegate.delegate import GpuDelegate

log = logging.getLogger("litegpu")

#: Backends of which a device was asked for before.
_begun: set[str] = set()
#: In place of a number: all devices of a backend.
ALL = "all"


def device_words(index: str = "<index>") -> tuple[str, ...]:
    """The words, for people; `index` stands for numbers. Of other packages' delegates nothing is said."""
    numbered = tuple(f"{name}:{index}" for name in registry.numbered())
    named = tuple(f"{name}:<part of a name>" for name in registry.named())
    return "auto", "cpu", *registry.ENTRIES, *numbered, *named, *others()


def every_device(device: str) -> tuple[str, ...]:
    """The words for each of the devices that "<backend>:all" asks for, without software devices where there are others;
    the device itself if it is another word. Raises DeviceError if there is none."""
    kind, _, one = device.partition(":")
    if one != ALL or kind not in registry.ENTRIES:
        return (device,)
    backend = registry.backend(kind)
    if not isinstance(backend, ListedDevices):
        raise OptionError(f"device is {device!r}, but {kind} has one device: give {kind!r}")
    return tuple(f"{kind}:{name}" for name in backend.list_devices())


def is_device(name: object) -> bool:
    """Whether this is one of the words."""
    if not isinstance(name, str):
        return False
    kind, colon, one = name.partition(":")
    if _is_kind(kind):
        told = (kind in registry.numbered() and (one.isdecimal() or one == ALL)) or (
            kind in registry.named() and bool(one.strip()) and "=" not in one  # webgpu:precision=float16 is a setting
        )
        return not colon or told
    return names_delegate(name)


def names_delegate(name: str) -> bool:
    """Whether it is the name of a delegate other than the GPU's, perhaps with a device of that one."""
    kind, colon, device = name.partition(":")
    if kind in ("", "gpu") or _is_kind(kind) or (colon and not device):
        return False
    return find(kind) is not None


def _is_kind(kind: str) -> bool:
    """Whether a device's word begins so: no package's delegate can be called that, and to look for one takes 30 ms."""
    return kind in ("auto", "cpu", *registry.ENTRIES)


def asked_for(device: str, precision: str, options: Mapping[str, Any], delegate: Any = None) -> Any:
    """The delegate that `load` is told of, None for the CPU: by the name of a device or delegate, by the path of a
    library, or itself. `precision` is told to a delegate by name unless it is float32, which all have.

    Raises OptionError, DeviceError, DelegateLoadError."""
    if delegate is None and not (is_device(device) and names_delegate(device)):
        return delegate_for(device, precision, options)
    if delegate is not None and device != "auto":
        raise OptionError(f"device is {device!r} and there is a delegate: give one of them")
    given = dict(options) if precision == "float32" else {"precision": precision, **options}
    if delegate is None:
        delegate, _, part = device.partition(":")
        given |= {"device": part} if part else {}
    if isinstance(delegate, str | os.PathLike):
        return load_delegate(delegate, given)
    if given:
        raise OptionError(f"{', '.join(given)}: the delegate is there already; give it the options")
    return delegate


def delegate_for(device: str, precision: str, options: Mapping[str, Any]) -> GpuDelegate | None:
    """The GPU delegate that a device's name asks for, None for the CPU. Raises OptionError, DeviceError.

    "auto" takes no software device, which computes on the CPU, only slower than the official runtime does: such a one
    has to be asked for, by "webgpu", by the options `backend` or `device`, or by LITEGPU_WEBGPU_ADAPTER."""
    if not is_device(device):
        *first, last = (f'"{word}"' for word in device_words())
        names = {known.name for known in known_delegates()} - {"gpu", *others()}
        more = f", or the delegate of a package: {', '.join(sorted(names))}" if names else ""
        raise OptionError(f"device is {device!r}; it must be {', '.join(first)} or {last}{more}")
    kind, _, index = device.partition(":")
    if index == ALL:
        one = f"{kind}:0" if kind in registry.numbered() else kind
        raise OptionError(f"device is {device!r}, which litegpu.load() and map take, and this does not: give {one!r}")
    if kind == "cpu":
        if options:
            raise OptionError(f"{', '.join(options)}: the CPU has no delegate options; give num_threads instead")
        return None
    if kind != "auto":
        options = {**backend_options(device), **options}
    if kind in registry.ENTRIES and kind not in _begun:
        _begun.add(kind)
        begin = registry.begin(kind, index or None)
        if begin is not None:
            leave(begin)  # beside the imports that follow
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


def backend_options(device: str) -> dict[str, Any]:
    """The GPU delegate's options for a backend, or a part of one, perhaps with a number or a name: "cuda:1"."""
    kind, _, one = device.partition(":")
    return {"backend": kind, **({"device": one} if one else {})}


def best_gpu() -> str:
    """The name of the GPU that GpuDelegate() takes, a software device too if there is nothing better: for who asks for
    a GPU and does not mind which. Raises DeviceError if there is none."""
    from litegpu.gpu.delegate.delegate import GpuDelegate

    return registry.name_of(GpuDelegate().open_device())
