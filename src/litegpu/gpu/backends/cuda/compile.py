"""Compiling kernels with NVRTC: in threads, once per process for equal texts, for one architecture."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from litegpu import debug, fork
from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import nvrtc
from litegpu.gpu.backends.cuda.requirements import PROGRAMMATIC
from litegpu.gpu.backends.in_threads import in_threads
from litegpu.gpu.program import KernelCode

#: The compute capability with instructions that later ones lack; an "a" in the target's name turns them on.
PARTICULAR = 90


def compile_kernels(kernels: Sequence[KernelCode], capability: int, *, programmatic: bool = False) -> list[bytes]:
    """An image (cubin, or PTX where NVRTC is older than the device) of each kernel that the driver can load, in order.

    `capability`: of the device, as 10 * major + minor. `programmatic`: define PROGRAMMATIC_LAUNCH. Equal texts are
    compiled once per process. Thread-safe. Raises DeviceError with NVRTC's log for the first kernel that does not
    compile.
    """
    jobs = [(k.name, k.source, compile_options(k, capability, programmatic)) for k in kernels]
    in_threads(_settle, [job for job in dict.fromkeys(jobs) if job not in _images])
    return [_images[job] for job in jobs]


def adopt_images(
    kernels: Sequence[KernelCode], images: Sequence[bytes], capability: int, *, programmatic: bool = False
) -> None:
    """Take images that compile_kernels() gave, perhaps in another process, as what these kernels compile to."""
    for kernel, image in zip(kernels, images, strict=True):
        _images.setdefault((kernel.name, kernel.source, compile_options(kernel, capability, programmatic)), image)


def compile_options(kernel: KernelCode, capability: int, programmatic: bool = False) -> tuple[str, ...]:
    """NVRTC's options for a kernel. Its own come last and may name another architecture."""
    options = ["--std=c++17"]
    if not any(option.startswith(("--gpu-architecture", "-arch")) for option in kernel.options):
        options.append(f"--gpu-architecture={architecture(capability)}")
    if programmatic and capability >= PROGRAMMATIC.capability:
        options.append("--define-macro=PROGRAMMATIC_LAUNCH")
    if debug.level():
        options.append("--generate-line-info")
    return (*options, *kernel.options)


def architecture(capability: int) -> str:
    """The target for a device: its own machine code, or PTX for the newest that NVRTC knows if the device is newer."""
    known = supported_capabilities()
    if capability in known:
        return f"sm_{capability}a" if capability == PARTICULAR else f"sm_{capability}"
    if capability < known[0]:
        raise DeviceError(
            f"the device has compute capability {capability / 10}, and NVRTC {nvrtc_version()} begins at "
            f"{known[0] / 10}: install an older one"
        )
    return f"compute_{max(c for c in known if c <= capability)}"


def supported_capabilities() -> list[int]:
    """Compute capabilities that NVRTC has machine code for, ascending, as 10 * major + minor."""
    return nvrtc.chosen().capabilities


def nvrtc_version() -> str:
    return str(nvrtc.chosen())


# ----------------------------------------------------------------------------------------------

_Job = tuple[str, str, tuple[str, ...]]  # name, text, options
_images: dict[_Job, bytes] = {}
_locks: dict[_Job, threading.Lock] = {}  # each held while its job is worked on


@fork.in_child
def _forked() -> None:
    _locks.clear()


def _settle(job: _Job) -> None:
    with _locks.setdefault(job, threading.Lock()):
        if job not in _images:
            _images[job] = _compile(*job)


def _compile(name: str, source: str, options: tuple[str, ...]) -> bytes:
    return nvrtc.chosen().compile(name, source, options)
