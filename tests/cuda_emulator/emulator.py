"""Runs the CUDA tests without a GPU: a libcuda of ours, and kernels compiled by g++ for the host.

`install()` before anything opens a device. Slow, and no substitute for a GPU, but the printed text and every call of
the driver's API are the same; only machine code, timing and overlap differ.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.functions import ROUGH_FUNCTIONS
from litegpu.gpu.backends.cuda.halves import HALF_CONVERSIONS
from litegpu.gpu.backends.cuda.kernels.source import text_of
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH
from litegpu.gpu.program import KernelCode

VARIABLE = "LITEGPU_CUDA_EMULATOR"
HERE = Path(__file__).parent
#: Of kernels, and of what all of them include. Vectors that are not aligned end the process, as they do on a GPU.
_OPTIONS = ["-O1", "-march=native", "-w", "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"]

#: What the header defines must stay so.
_OF_HEADER = "|".join(re.findall(r"^ *#define (\w+)", (HERE / "device.h").read_text(), re.MULTILINE))
_UNDEFINED = re.compile(rf"^#undef ({_OF_HEADER})$", re.MULTILINE)

_LAUNCH = """
#ifdef SPLIT
#define CLUSTER SPLIT
#endif
#if defined(NORM_PARTS) && NORM_PARTS > 1
#undef CLUSTER
#define CLUSTER NORM_PARTS
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
extern "C" void emulated_launch(void** p, const unsigned* groups, const unsigned* size, unsigned shared_bytes) {
  emulator::launch([](void** p) { emulator::call(NAME, p); }, p, {groups[0], groups[1], groups[2]},
                   {size[0], size[1], size[2]}, shared_bytes, SWITCHING, CLUSTER);
}
"""


def install() -> None:
    """Make the emulated driver the one that this process finds, and g++ its compiler. Needs g++ on Linux."""
    _header()  # before threads need it
    library = _compiled((HERE / "libcuda.cpp").read_text(), ["-O1", "-Wl,-soname,libcuda.so.1", "-ldl"], "driver")
    global driver
    driver = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)  # found from now on under its name, libcuda.so.1
    from litegpu.gpu.backends.cuda import base

    base.compile_kernels = compile_kernels  # type: ignore[attr-defined] # which it imports


def objects() -> int:
    """What the driver holds for its users: memory, modules, streams, graphs, events."""
    driver.emulated_objects.restype = ctypes.c_size_t
    return int(driver.emulated_objects())


driver: ctypes.CDLL


def compile_kernels(kernels: Sequence[KernelCode], capability: int, *, programmatic: bool = False) -> list[bytes]:
    """In place of litegpu.gpu.backends.cuda.compile.compile_kernels: an image is the path of a shared library."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(_compile, kernels))


def _compile(kernel: KernelCode) -> bytes:
    source = (
        kernel.source.replace(HALF_CONVERSIONS, "")
        .replace(ROUGH_FUNCTIONS, "")
        .replace(PROGRAMMATIC_LAUNCH, "")
        .replace(text_of("device.cu"), "")
        .replace(text_of("warpgroup.cu"), "")
        .replace(text_of("tf32.cu"), "")
        .replace(text_of("kept.cu"), "")
        .replace(text_of("cluster.cu"), "")
        .replace(text_of("pipeline.cu"), "")
        .replace(text_of("remote.cu"), "")
        .replace(text_of("bulk.cu"), "")
        .replace(text_of("diagonal.cu"), "")
        .replace(text_of("diagonal_bytes.cu"), "")
        .replace(text_of("panels.cu"), "")
    )  # in the header
    source = _UNDEFINED.sub("", source)  # by kernels of several parts, after each of these
    if 'asm("cvt' in source or 'asm("fma' in source:
        raise DeviceError(f"kernel {kernel.name!r} has PTX, which the emulator cannot run")
    switching = "true" if "__syncthreads()" in source or "__shfl" in source else "false"
    text = f'#include "{_header()}"\n{source}' + _LAUNCH.replace("NAME", kernel.name).replace("SWITCHING", switching)
    try:
        return str(_compiled(text, _OPTIONS, kernel.name)).encode() + b"\0"
    except DeviceError as error:
        raise DeviceError(f"kernel {kernel.name!r} did not compile: {error}") from None


@functools.cache
def _header() -> Path:
    """A copy of device.h whose compiled form, which saves a third of the time, lies beside it."""
    text = (HERE / "device.h").read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / "litegpu-cuda-emulator" / digest
    ready = folder / "device.h.gch"
    if not ready.exists():
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"device-{os.getpid()}.h"
        draft.write_text(text)
        draft.replace(folder / "device.h")
        made = folder / f"device-{os.getpid()}.gch"
        _run(["-x", "c++-header", str(folder / "device.h"), "-o", str(made), *_OPTIONS], "")
        made.replace(ready)
    return folder / "device.h"


def _compiled(source: str, options: list[str], name: str) -> Path:
    """A shared library of C++ text, kept in the temporary folder."""
    digest = hashlib.sha256("\0".join([source, *options]).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / "litegpu-cuda-emulator"
    folder.mkdir(exist_ok=True)
    library = folder / f"{name}-{digest}.so"
    if not library.exists():
        draft = folder / f"{name}-{digest}-{os.getpid()}-{threading.get_ident()}.so"
        _run(["-x", "c++", "-", "-x", "none", "-o", str(draft), *options], source)
        draft.replace(library)
    return library


def _run(arguments: list[str], source: str) -> None:
    command = ["g++", "-std=c++17", "-shared", "-fPIC", *arguments]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(done.stderr)
