"""Where the conformance suite runs kernels: on the interpreter, and on every runtime through the Device protocol.

A new runtime joins the whole suite with one line in RUNNERS.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.cuda.printer import print_cuda
from litegpu.gpu.backends.webgpu.printer import print_wgsl
from litegpu.gpu.graph import DType
from litegpu.gpu.lang import Features, Kernel, interpret
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

CAPABILITIES = (75, 90)  # of NVIDIA devices: before and after the packed conversions of sm_80

Arrays = Mapping[str, np.ndarray]


class Interpreter:
    """Runs kernels with litegpu.gpu.lang.interpret."""

    features = Features(float16=True, subgroups=True, subgroup_size=32)
    subgroup_size = 32

    def run(self, kernel: Kernel, arrays: Arrays) -> None:
        interpret.run(kernel, arrays, self.subgroup_size)


class OnDevice:
    """Runs kernels on a device; buffers that are only read become constants, the others arena."""

    def __init__(self, device: Device, print_kernel: Callable[[Kernel, Features], str]) -> None:
        self.device, self.print_kernel = device, print_kernel
        self.features = device.features

    def run(self, kernel: Kernel, arrays: Arrays, features: Features | None = None) -> None:
        """Change `arrays` in place; `features` may withhold some of the device's."""
        program = self._program(kernel, arrays, features or self.features)
        session = self.device.session(program)
        try:
            written = [b for b in kernel.buffers if b.access == "read_write"]
            for i, b in enumerate(written):
                session.write(i, _words(arrays[b.name]).reshape(program.inputs[i].shape))
            session.run()
            for i, b in enumerate(written):
                out = np.zeros(program.outputs[i].shape, np.int32)
                session.read(i, out)
                array = arrays[b.name]
                array.reshape(-1).view(np.uint8)[...] = out.reshape(-1).view(np.uint8)[: array.nbytes]
        finally:
            session.close()

    def _program(self, kernel: Kernel, arrays: Arrays, features: Features) -> Program:
        align = self.features.storage_alignment
        constants: list[bytes] = []
        bindings: list[Binding] = []
        ports: list[Port] = []
        arena = constant_bytes = 0
        for b in kernel.buffers:
            words = _words(arrays[b.name])
            room = -(-words.nbytes // align) * align
            if b.access == "read":
                bindings.append(Binding("constants", constant_bytes, words.nbytes))
                constants.append(words.tobytes().ljust(room, b"\0"))
                constant_bytes += room
            else:
                bindings.append(Binding("arena", arena, words.nbytes))
                ports.append(Port(b.name, len(ports), (1, 1, 1, words.size), DType.INT32, arena, words.nbytes))
                arena += room
        code = KernelCode(
            kernel.name, self.print_kernel(kernel, features), kernel.workgroup, tuple(b.access for b in kernel.buffers)
        )
        return Program(
            kernels=(code,),
            dispatches=(Dispatch(0, kernel.dispatch, tuple(bindings), kernel.name, (0,)),),
            constants=np.frombuffer(b"".join(constants), np.uint8),
            arena_size=arena,
            inputs=tuple(ports),
            outputs=tuple(ports),
            memory=MemoryReport(arena, arena, arena),
        )


def _words(array: np.ndarray) -> np.ndarray:
    """The bytes as 32-bit words, the last filled up with zeros."""
    data = array.tobytes()
    return np.frombuffer(data.ljust(-(-len(data) // 4) * 4, b"\0"), np.int32)


@functools.cache
def webgpu() -> OnDevice:
    from litegpu.gpu.backends.webgpu.device import open_device

    try:
        return OnDevice(open_device(), print_wgsl)
    except DeviceError as error:
        pytest.skip(f"no WebGPU device: {error}")


@functools.cache
def reference() -> OnDevice:
    """The interpreter again, of kernels that went through text."""
    from litegpu.gpu.backends import registry

    return OnDevice(registry.open_device("reference"), registry.backend("reference").print_kernel)


class Compiled(Interpreter):
    """Compiles kernels for NVIDIA devices, with no device; what they compute is the interpreter's."""

    def __init__(self) -> None:
        from litegpu.gpu.backends.cuda import compile as cuda_compile

        cuda_compile.nvrtc_version()  # raises where the library is missing
        self.compile = cuda_compile.compile_kernels
        self.features = replace(self.features, max_threads=1024, max_shared_bytes=48 << 10, max_buffers=64)

    def run(self, kernel: Kernel, arrays: Arrays) -> None:
        code = KernelCode(kernel.name, print_cuda(kernel, self.features), kernel.workgroup, ())
        for capability in CAPABILITIES:
            assert self.compile([code], capability, programmatic=True)
        super().run(kernel, arrays)


@functools.cache
def nvrtc() -> Compiled:
    try:
        return Compiled()
    except Exception as error:  # of the loader of NVIDIA's libraries, or ImportError
        pytest.skip(f"no NVRTC (pip install litegpu[cuda]): {error}")


@functools.cache
def cuda() -> OnDevice:
    from litegpu.gpu.backends.cuda.opening import available, open_device

    reason = available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")
    return (EmulatedDevice if os.environ.get("LITEGPU_CUDA_EMULATOR") else OnDevice)(open_device(), print_cuda)


class EmulatedDevice(OnDevice):
    """The emulated GPU's processor traps where integer divisions have no specified result: leaves these out."""

    def run(self, kernel: Kernel, arrays: Arrays, features: Features | None = None) -> None:
        if kernel.name in ("test_div", "test_mod", "test_idiv", "test_irem") and arrays["b"].dtype.kind in "iu":
            a, b = arrays["a"], arrays["b"].copy()
            b[b == 0] = 1
            if b.dtype == np.int32:
                b[(a == -(2**31)) & (b == -1)] = 1
            arrays = {**arrays, "b": b}
        super().run(kernel, arrays, features)


RUNNERS: dict[str, Callable[[], Any]] = {
    "interpreter": Interpreter,
    "reference": reference,
    "webgpu": webgpu,
    "nvrtc": nvrtc,
    "cuda": cuda,
}
