"""NVRTC, CUDA's compiler: which of the installed ones is used, and its calls.

Called by ctypes rather than by NVIDIA's bindings: those load one of any version, and a machine may have several, as
PyTorch brings its own. A driver runs what the compilers of its own major version and of older ones make.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from litegpu.cached import cached_property
from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import driver_library

_WINDOWS = sys.platform == "win32"
#: Of each major version, the newest first: where NVIDIA's packages have it, below the folder "nvidia", and its name.
PLACES: dict[int, tuple[tuple[str, ...], str]] = (
    {
        13: (("cu13/bin/x86_64", "cu13/bin"), "nvrtc64_130_0.dll"),
        12: (("cuda_nvrtc/bin",), "nvrtc64_120_0.dll"),
    }
    if _WINDOWS
    else {13: (("cu13/lib",), "libnvrtc.so.13"), 12: (("cuda_nvrtc/lib",), "libnvrtc.so.12")}
)


class Nvrtc:
    """One compiler. Thread-safe."""

    def __init__(self, path: str) -> None:
        """`path`: of its library, or a name that the system finds. Raises OSError where there is none."""
        if sys.platform == "win32" and os.path.isabs(path):
            os.add_dll_directory(os.path.dirname(path))  # where its own parts are
        self.path = path
        self._calls = ctypes.CDLL(path)  # which lets go of Python's lock in every call
        self._calls.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value

    def __str__(self) -> str:
        return ".".join(map(str, self.version))

    @cached_property
    def capabilities(self) -> list[int]:
        """Compute capabilities that it has machine code for, ascending, as 10 * major + minor."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        found = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", found)
        return sorted(found)

    def compile(self, name: str, source: str, options: tuple[str, ...]) -> bytes:
        """The image of a kernel: PTX if the target is "compute_", else a cubin. Raises DeviceError with the log."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None)
        try:
            texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            with _same_locale():
                failed = self._calls.nvrtcCompileProgram(program, len(options), texts)
            if failed:
                log = self._read("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
                raise DeviceError(f"kernel {name!r} did not compile with {' '.join(options)}:\n{log}")
            return self._read("PTX" if any("=compute_" in option for option in options) else "CUBIN", program)
        finally:
            self._calls.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, text)
        return text.raw

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._calls, name)(*arguments)
        if error:
            raise DeviceError(f"{name} failed: {self._calls.nvrtcGetErrorString(error).decode()}")


@functools.cache
def chosen() -> Nvrtc:
    """The newest whose code the driver runs; the newest of all where there is no driver. Raises DeviceError."""
    version = driver_library.driver_version()
    return choose(None if version is None else version[0])


def choose(major: int | None) -> Nvrtc:
    """The newest of at most this major version of CUDA, that of the driver. Raises DeviceError that names what to
    install."""
    refused: list[str] = []
    for known in PLACES:
        path = None if major is not None and known > major else find(known)
        found = None if path is None else _loaded(path, refused)
        if found is not None:
            return found
    for known in PLACES:
        if major is not None and known > major and find(known) is not None:
            raise DeviceError(
                f"NVRTC, CUDA's compiler, is installed for CUDA {known}, and the NVIDIA driver is for CUDA {major}: "
                f"{driver_library.install_advice(major)}"
            )
    reasons = f" ({'; '.join(refused)})" if refused else ""
    raise DeviceError(f"NVRTC, CUDA's compiler, is missing: {driver_library.install_advice(major)}{reasons}")


def find(major: int) -> str | None:
    """The library of a major version: that of NVIDIA's package, else what the system or a CUDA toolkit has; None
    without."""
    folders, name = PLACES[major]
    for place in _packages():
        for folder in folders:
            if (place / folder / name).exists():
                return str(place / folder / name)
    return next(filter(_loads, _elsewhere(name)), None)


# ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _same_locale() -> Iterator[None]:
    """This thread's locale is what it was afterwards. NVRTC 12.4 leaves "C", and files would be opened as ASCII."""
    use = _use_locale()
    before = use(None) if use is not None else None
    try:
        yield
    finally:
        if use is not None:
            use(before)


@functools.cache
def _use_locale() -> Callable[[int | None], int] | None:
    """POSIX's uselocale(), which gives what was used and does nothing else for None; None on Windows."""
    use = None if _WINDOWS else getattr(ctypes.CDLL(None), "uselocale", None)
    if use is not None:
        use.argtypes, use.restype = [ctypes.c_void_p], ctypes.c_void_p
    return use


def _packages() -> Iterator[Path]:
    """The folders "nvidia" of all places that Python imports from."""
    spec = importlib.util.find_spec("nvidia")
    yield from map(Path, (spec and spec.submodule_search_locations) or ())


def _elsewhere(name: str) -> Iterator[str]:
    toolkits: Callable[[str], str | None] = os.environ.get
    yield name
    for root in filter(None, map(toolkits, ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"))):
        yield from (str(Path(root, folder, name)) for folder in ("lib64", "lib", "bin"))
    if not _WINDOWS:
        yield f"/usr/local/cuda/lib64/{name}"


def _loads(path: str) -> bool:
    if os.path.isabs(path) and not os.path.exists(path):
        return False
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


def _loaded(path: str, refused: list[str]) -> Nvrtc | None:
    try:
        return Nvrtc(path)
    except (OSError, DeviceError) as error:
        refused.append(f"{path}: {error}")
        return None
