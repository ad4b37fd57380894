"""Delegates by name: litegpu's own, those that other packages bring, and shared libraries for the official runtime.

Another package adds one by an entry point of the group `litegpu.delegates`, whose value is a class, or a function, that
is called with the options and gives an object of litegpu's delegate protocol, or one of the official runtime's.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ai_edge_litert import interpreter as official

from litegpu.delegates.elsewhere import ELSEWHERE, Elsewhere, recognised
from litegpu.delegates.protocol import Delegate, OfficialDelegate, lacking
from litegpu.errors import DelegateLoadError, DelegateTypeError, LiteGpuError, OptionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "litegpu.delegates"

_LIBRARY = re.compile(r"[/\\]|\.(so|dylib|dll|pyd)\b", re.IGNORECASE)


@dataclass(frozen=True)
class KnownDelegate:
    """A name that load_delegate() takes. `source`: where it comes from, and what it is, for people."""

    name: str
    source: str
    factory: Callable[[], Callable[..., Any]]


def load_delegate(library: str | os.PathLike[str], options: Mapping[Any, Any] | None = None) -> Any:
    """A delegate, for `experimental_delegates`: one of litegpu's protocol, or of the official runtime's kind.

    library: "gpu" (GpuDelegate), "openvino" (Intel CPUs, GPUs and NPUs), "coreml" (Macs), or a name that another
        package has registered as an entry point of `litegpu.delegates`; else the shared library of an official external
        delegate (Coral Edge TPU, Arm NN ...), which the official runtime then uses for the parts of a model that it
        runs. "nnapi" and "hexagon" are looked for among the system's libraries.
    options: keyword arguments of the delegate that the name stands for; of a library, what the official function takes.

    Raises DelegateLoadError (which is also the OSError or ValueError of the official function) if there is no such
    name or library, or it cannot be loaded; OptionError for options that a delegate does not have."""
    given = dict(options or {})
    name = os.fspath(library)
    if isinstance(name, str) and not _LIBRARY.search(name):
        known = find(name)
        if known is not None:
            return _made(known, given)
        foreign = recognised(name)
        if foreign is not None:
            return _from_system(foreign, given)
    try:
        opened = ctypes.CDLL(os.fspath(library))
    except OSError as error:
        if isinstance(name, str) and not _LIBRARY.search(name):
            raise DelegateLoadError(unknown(name)) from None
        raise DelegateLoadError(f"The delegate's library cannot be opened: {error}") from error
    for needed in ("tflite_plugin_create_delegate", "tflite_plugin_destroy_delegate"):
        if not hasattr(opened, needed):
            raise DelegateLoadError(f"{name!s} is no external delegate: it has no function {needed}")
    return _loaded(name, given, f"The delegate in {name!s} cannot be loaded")


def find(name: str) -> KnownDelegate | None:
    """What a name stands for, None if nothing. Raises DelegateLoadError where several packages claim it."""
    if name in _OWN:
        return _own(name)
    claims = [point for point in _points() if point.name == name]
    if len({point.value for point in claims}) > 1:
        packages = " and ".join(sorted(_package(point) for point in claims))
        raise DelegateLoadError(f"Several packages have a delegate {name!r}: {packages}. Uninstall all but one")
    return _foreign(claims[0]) if claims else None


def known_delegates() -> tuple[KnownDelegate, ...]:
    """Every name that stands for something, litegpu's own first. None is imported."""
    others = {p.name: p for p in _points() if p.name not in _OWN}
    return *(_own(name) for name in _OWN), *(_foreign(others[name]) for name in sorted(others))


def others() -> tuple[str, ...]:
    """litegpu's own delegates but the GPU's."""
    return tuple(name for name in _OWN if name != "gpu")


def unknown(name: str) -> str:
    """What to say to who asks for a delegate that there is not."""
    known = known_delegates()
    import difflib

    near = difflib.get_close_matches(name, [*(one.name for one in known), *ELSEWHERE], 1)
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    listed = "; ".join(f"{one.name!r}: {one.source}" for one in known)
    return (
        f"There is no delegate {name!r}{guess}, and no library of that name. There are {listed}. Others come with "
        f"packages that register them (pip install ...; entry points of the group {GROUP!r}), or as a shared library, "
        "by its path"
    )


def library_of(foreign: Elsewhere) -> str:
    """The library of another system's delegate. Raises DelegateLoadError, with what replaces it, if it is not here."""
    for library in foreign.libraries:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return library
    raise DelegateLoadError(f"{foreign.title} is not here: {foreign.why}. Instead, {foreign.instead}.")


def is_here(name: str) -> bool:
    """Whether it is a delegate of another system whose library is here."""
    try:
        return name in ELSEWHERE and bool(library_of(ELSEWHERE[name]))
    except DelegateLoadError:
        return False


def with_values(options: Mapping[str, str]) -> dict[str, Any]:
    """Options of a delegate of this registry as a command line gives them: what reads as a boolean or a number is one,
    the rest is text."""
    return {name: _value(text) for name, text in options.items()}


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _points() -> Sequence[EntryPoint]:
    """What packages have registered."""
    from importlib import metadata  # takes 10 ms, which no import of litegpu is to wait for

    return tuple(metadata.entry_points(group=GROUP))


def _gpu() -> Callable[..., Any]:
    from litegpu.gpu.delegate.delegate import GpuDelegate

    return GpuDelegate


def _openvino() -> Callable[..., Any]:
    from litegpu.openvino.delegate import OpenVinoDelegate

    return OpenVinoDelegate


def _coreml() -> Callable[..., Any]:
    from litegpu.coreml.delegate import CoreMlDelegate

    return CoreMlDelegate


_OWN: Mapping[str, tuple[str, Callable[[], Callable[..., Any]]]] = {
    "gpu": ("litegpu's own, for GPUs by CUDA or WebGPU", _gpu),
    "openvino": ("for CPUs, GPUs and NPUs of Intel (pip install litegpu[openvino])", _openvino),
    "coreml": ("for Macs' Neural Engine, GPU and CPU (pip install litegpu[coreml])", _coreml),
}


def _own(name: str) -> KnownDelegate:
    source, factory = _OWN[name]
    return KnownDelegate(name, source, factory)


def _foreign(point: EntryPoint) -> KnownDelegate:
    def load() -> Any:
        try:
            return point.load()
        except Exception as error:  # any code of another package
            raise DelegateLoadError(
                f"The delegate {point.name!r} of the package {_package(point)} cannot be imported ({point.value}): "
                f"{type(error).__name__}: {error}"
            ) from error

    return KnownDelegate(point.name, f"of the package {_package(point)}", load)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _made(known: KnownDelegate, options: Mapping[Any, Any]) -> Any:
    """The delegate that a name stands for. Raises OptionError, DelegateLoadError, DelegateTypeError."""
    for key in options:
        if not isinstance(key, str):
            raise OptionError(f"Options of the delegate {known.name!r} have names, not {key!r}")
    factory = known.factory()
    try:
        delegate = factory(**options)
    except LiteGpuError:
        raise
    except TypeError as error:
        raise OptionError(f"Options of the delegate {known.name!r}: {error}") from error
    except Exception as error:  # any code of another package
        raise DelegateLoadError(
            f"The delegate {known.name!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    missing = lacking(delegate, Delegate)
    if missing and not isinstance(delegate, OfficialDelegate):
        raise DelegateTypeError(
            f"The delegate {known.name!r}, {known.source}, is a {type(delegate).__name__} that lacks "
            f"{', '.join(missing)} of litegpu.delegates.protocol.Delegate"
        )
    return delegate


def _from_system(foreign: Elsewhere, options: Mapping[Any, Any]) -> Any:
    """A delegate of another system, by the official loader, if its library is here."""
    library = library_of(foreign)
    return _loaded(library, options, f"{foreign.title} ({library}) cannot be used")


def _loaded(library: Any, options: Mapping[Any, Any], problem: str) -> Any:
    """What the official loader makes of a library that can be opened; raises DelegateLoadError."""
    try:
        return official.load_delegate(library, dict(options))
    except (OSError, ValueError) as error:
        raise DelegateLoadError(f"{problem}: {error}") from error
