"""CUDA as one of the backends; satisfies contract.Backend, and what it can besides is in abilities.py."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from litegpu.errors import DeviceError
from litegpu.gpu.backends.abilities import CallRates, PowerMeter
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.cuda import opening
from litegpu.gpu.backends.cuda.place import is_in_cuda_memory
from litegpu.gpu.kernels import native

if TYPE_CHECKING:
    from litegpu.gpu.backends.diagnosis import Doctor
    from litegpu.gpu.graph import Graph
    from litegpu.gpu.lang import Features, Kernel


class CudaBackend:
    #: Of an H200; the launch of an inference and copies through pinned memory weigh most for small networks.
    rates = CallRates(68e-6, 0.9e-6, (6e-14, 6e-14), (6e-14, 2e-13), (2e-13, 6e-12), 5e-13, 1.4e-10)

    uncontracted = ("--fmad=false",)

    def open_device(self, api: str | None, name: str | None, *, software: bool) -> Device:
        return opening.open_device(name)

    def is_passed_over(self, error: DeviceError) -> None:
        opening.warn_unusable(error)

    def doctor(self) -> Doctor:
        from litegpu.gpu.backends.cuda.doctor import DOCTOR

        return DOCTOR

    def print_kernel(self, kernel: Kernel, features: Features) -> str:
        from litegpu.gpu.backends.cuda.printer import print_cuda  # kernels that were compiled before need no printer

        return print_cuda(kernel, features)

    def turned(self, source: str) -> str:
        from litegpu.gpu.backends.cuda.functions import TURNED

        return TURNED + source

    def counting(self, graph: Graph, halves: Collection[int]) -> Graph:
        from litegpu.gpu.backends.cuda.passes.counted import count_smallest

        return count_smallest(graph, halves)

    def list_devices(self) -> Sequence[str]:
        return [str(found.index) for found in opening.list_devices()]

    def power_meter(self, device: Device) -> PowerMeter:
        from litegpu.gpu.backends.cuda import energy

        return energy.power_meter(device)

    def holds(self, value: Any) -> bool:
        return is_in_cuda_memory(value)


@functools.cache
def _native() -> native.Native:
    from litegpu.gpu.backends.cuda.native import CudaNative

    return CudaNative()


BACKEND = CudaBackend()
native.register("cuda", _native)
