"""Which backends there are: a line for each. They are loaded when they are asked for."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import Backend, Device


@dataclass(frozen=True)
class BackendEntry:
    """`language`: what its kernels are printed in, a device's `target`. `apis`: names of parts of it that a device can
    be asked for by. `numbered`: whether devices have numbers, as in "cuda:1"; `named`: whether
    a part of a device's name stands there, as in "webgpu:Radeon". `widespread`: nearly every machine has a
    device of it. `automatic`: whether "auto" tries it. `last_resorts`: parts that are only taken where no other has a
    device. `libraries`: packages that it stands on and that come with litegpu; their loggers have their names.
    `ahead`: a module whose begin() starts the driver while others are imported."""

    module: str
    language: str
    apis: tuple[str, ...] = ()
    numbered: bool = False
    named: bool = False
    widespread: bool = False
    automatic: bool = True
    last_resorts: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    ahead: str | None = None


#: By name, in the order in which "auto" tries them.
ENTRIES: Mapping[str, BackendEntry] = {
    "cuda": BackendEntry(
        "litegpu.gpu.backends.cuda.backend", "cuda", numbered=True, ahead="litegpu.gpu.backends.cuda.ahead"
    ),
    "webgpu": BackendEntry(
        "litegpu.gpu.backends.webgpu.backend",
        "wgsl",
        ("vulkan", "metal", "d3d12", "gl"),
        named=True,
        widespread=True,
        last_resorts=("gl",),
        libraries=("wgpu",),
    ),
    "reference": BackendEntry("litegpu.gpu.backends.reference.backend", "tree", automatic=False),
}


def words() -> tuple[str, ...]:
    """What open_device() takes: "auto", the backends, and their parts."""
    return "auto", *ENTRIES, *(api for entry in ENTRIES.values() for api in entry.apis)


def listed() -> str:
    """The words but "auto", as a text for people."""
    *first, last = words()[1:]
    return f"{', '.join(first)} or {last}"


def libraries() -> tuple[str, ...]:
    """The packages that backends stand on and that always come with litegpu."""
    return tuple(library for entry in ENTRIES.values() for library in entry.libraries)


def numbered() -> tuple[str, ...]:
    """The backends whose devices have numbers."""
    return tuple(name for name, entry in ENTRIES.items() if entry.numbered)


def named() -> tuple[str, ...]:
    """The backends whose devices are told apart by parts of their names."""
    return tuple(name for name, entry in ENTRIES.items() if entry.named)


def owner(word: str) -> str:
    """The backend that a word of words(), but "auto", asks for."""
    return next(name for name, entry in ENTRIES.items() if word == name or word in entry.apis)


def entry_of(word: str) -> BackendEntry:
    """What is registered of the backend that a word asks for."""
    return ENTRIES[owner(word)]


def words_for(api: str) -> tuple[str, ...]:
    """Those of words() by which a device of this part of a backend may be opened."""
    return "auto", *(name for name, entry in ENTRIES.items() if api in entry.apis), api


def widespread() -> str:
    """The language of a backend that nearly every machine has a device of."""
    return next(entry.language for entry in ENTRIES.values() if entry.widespread)


def backend(name: str) -> Backend:
    """The backend of this name."""
    found: Backend = importlib.import_module(ENTRIES[name].module).BACKEND
    return found


def begin(name: str, device: str | None) -> Callable[[], None] | None:
    """What starts the backend's driver, in a thread, before a device of it is opened; None if that takes no time."""
    module = ENTRIES[name].ahead
    return None if module is None else functools.partial(importlib.import_module(module).begin, device)


def every() -> Iterator[tuple[str, Backend]]:
    """All backends, by name: loaded, for what not all of them can (abilities.py)."""
    for name in ENTRIES:
        yield name, backend(name)


def name_of(device: Device) -> str:
    """The name of the backend that the device is of."""
    return _printing(device.target)


def of_language(language: str) -> Backend:
    """The backend whose kernels are printed in this language."""
    return backend(_printing(language))


def open_device(word: str = "auto", name: str | None = None, *, software: bool = True) -> Device:
    """The device that a word of words() asks for. With "auto" a backend that has none is passed over for the next.

    name: a part of the device's name, to choose among several. software: whether a device that computes on the CPU will
    do, though nothing names it.

    Raises DeviceError, of the last backend that was tried, if there is none."""
    for last, (found, api) in _candidates(word):
        try:
            return found.open_device(api, name, software=software)
        except DeviceError as error:
            if last:
                raise
            found.is_passed_over(error)
    raise DeviceError(f"there is no backend {word!r}")


def _printing(language: str) -> str:
    return next(name for name, entry in ENTRIES.items() if entry.language == language)


def _candidates(word: str) -> Iterator[tuple[bool, tuple[Backend, str | None]]]:
    """(whether it is the last one, (backend, the part of it that is asked for))."""
    if word == "auto":
        tried = [name for name, entry in ENTRIES.items() if entry.automatic]
        for name in tried:
            yield name == tried[-1], (backend(name), None)
        return
    for name, entry in ENTRIES.items():
        if word == name or word in entry.apis:
            yield True, (backend(name), word if word in entry.apis else None)
