"""CUDA as one of the backends; satisfies contract.Backend."""

from __future__ import annotations

from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.cuda import opening
from litegpu.gpu.backends.cuda.native import CudaNative
from litegpu.gpu.backends.cuda.printer import print_cuda
from litegpu.gpu.kernels import native
from litegpu.gpu.lang import Features, Kernel


class CudaBackend:
    def open_device(self, api: str | None, name: str | None, *, software: bool) -> Device:
        return opening.open_device(name)

    def is_passed_over(self, error: DeviceError) -> None:
        opening.warn_unusable(error)

    def print_kernel(self, kernel: Kernel, features: Features) -> str:
        return print_cuda(kernel, features)


BACKEND = CudaBackend()
native.register("cuda", CudaNative())
