"""NVIDIA's GPUs as their data sheets and CUDA's tables of compute capabilities describe them, and what kernels take of
one, which NVRTC tells on any machine."""

from __future__ import annotations

import ctypes
import math
import re
from dataclasses import dataclass
from typing import Any

from litegpu.gpu.backends.cuda.compile import compile_options
from litegpu.gpu.backends.cuda.info import features_of
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode

#: 32-bit registers of a multiprocessor, and of a workgroup at most, on all of them.
REGISTERS = 64 << 10
THREADS = 1024


@dataclass(frozen=True)
class Gpu:
    """`units`: multiprocessors. `cache`: MiB of the second-level cache. `memory`: GiB. `shared`: KiB of shared memory
    of a workgroup, at most."""

    capability: int
    units: int
    cache: int
    memory: int
    shared: int

    @property
    def features(self) -> Features:
        """As an opened device of the kind has them."""
        return features_of(
            self.capability, self.memory << 30, threads=THREADS, units=self.units, cache_bytes=self.cache << 20
        )


GPUS = {
    "GTX 1650": Gpu(75, 14, 1, 4, 64),
    "T4": Gpu(75, 40, 4, 16, 64),
    "A100": Gpu(80, 108, 40, 40, 163),
    "RTX 3050": Gpu(86, 20, 2, 8, 99),
    "RTX 3090": Gpu(86, 82, 6, 24, 99),
    "Jetson Orin": Gpu(87, 16, 4, 32, 163),
    "L4": Gpu(89, 58, 48, 24, 99),
    "RTX 4090": Gpu(89, 128, 72, 24, 99),
    "H200": Gpu(90, 132, 50, 140, 227),
    "B200": Gpu(100, 148, 126, 180, 227),
    "B300": Gpu(103, 148, 126, 270, 227),
    "Jetson Thor": Gpu(110, 20, 32, 128, 227),
    "RTX 5090": Gpu(120, 170, 96, 32, 99),
    "GB10": Gpu(121, 48, 24, 120, 99),
}


def faults(kernel: KernelCode, gpu: Gpu) -> list[str]:
    """Why a GPU of the kind would not start the kernel, without compiling it."""
    threads = math.prod(kernel.workgroup)
    found = []
    if threads > THREADS:
        found.append(f"{kernel.name} has {threads} threads")
    if kernel.shared_bytes > gpu.shared << 10:
        found.append(f"{kernel.name} has {kernel.shared_bytes} bytes of shared memory")
    return found


@dataclass(frozen=True)
class Taken:
    """What a compiled kernel takes: registers of a thread, bytes that each thread keeps in memory because there are too
    few, its own arrays there, and bytes of shared memory beside those that the launch gives."""

    registers: int
    spilled: int
    stack: int
    shared: int

    def faults(self, kernel: KernelCode, gpu: Gpu) -> list[str]:
        """Why a GPU of the kind would not start the kernel."""
        threads = -(-math.prod(kernel.workgroup) // 32) * 32
        found = faults(kernel, gpu)
        if self.shared + kernel.shared_bytes > max(48, gpu.shared if kernel.shared_bytes else 0) << 10:
            found.append(f"{kernel.name} has {self.shared} + {kernel.shared_bytes} bytes of shared memory")
        if -(-self.registers // 8) * 8 * threads > REGISTERS:
            found.append(f"{kernel.name} has {self.registers} registers in each of {threads} threads")
        return found


def taken(compiler: Any, kernel: KernelCode, capability: int) -> Taken:
    """Of a kernel that `compiler`, an Nvrtc, makes machine code of. Raises AssertionError with its log if it cannot."""
    options = (*compile_options(kernel, capability, programmatic=True), "--ptxas-options=--verbose")
    calls, program = compiler._calls, ctypes.c_void_p()
    compiler._call(
        "nvrtcCreateProgram", ctypes.byref(program), kernel.source.encode(), f"{kernel.name}.cu".encode(), 0, None, None
    )
    try:
        texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = calls.nvrtcCompileProgram(program, len(options), texts)
        log = compiler._read("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        assert not failed, f"{kernel.name} for {capability}:\n{log}"
    finally:
        calls.nvrtcDestroyProgram(ctypes.byref(program))

    def most(pattern: str) -> int:
        return max((int(number) for number in re.findall(pattern, log)), default=0)

    assert "Used " in log, log
    spilled = most(r"(\d+) bytes spill stores") + most(r"(\d+) bytes spill loads")
    return Taken(most(r"Used (\d+) registers"), spilled, most(r"(\d+) bytes stack frame"), most(r"(\d+) bytes smem"))
