"""Measuring kernels that do the same work, to take the fastest."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu import debug
from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import CudaError, checked
from litegpu.gpu.backends.cuda.graph import make_launch
from litegpu.gpu.backends.cuda.timing import launch_seconds
from litegpu.gpu.kernels.context import Launch, NativeKernel
from litegpu.gpu.program import KernelCode
from litegpu.gpu.view import View

log = logging.getLogger("litegpu")

_ALIGNMENT = 256
_FILLER = 0x2E  # two such bytes are the half 0.097, four the float 4e-11: small numbers, none of them special


class CudaTuner:
    """Times launches on a device; satisfies kernels.context.Tuner. What was once measured is known from then on.

    `most`: how many candidates are measured.
    """

    def __init__(self, device: CudaDeviceBase, most: int) -> None:
        self.device = device
        self.most = most
        self._known: dict[tuple[str, ...], list[float]] = {}

    def times(self, launches: Sequence[Launch]) -> list[float]:
        """Seconds of each launch by itself; infinite for one that does not run on this device."""
        kernels = [_native(launch) for launch in launches]
        key = tuple(k.source for k in kernels)
        if key not in self._known:
            codes = [
                KernelCode(k.name, k.source, k.workgroup, tuple(b.access for b in k.buffers), k.shared_bytes, k.options)
                for k in kernels
            ]
            loaded = self._load(codes)
            self._known[key] = [
                math.inf if one is None else self._time(launch, code, one)
                for launch, code, one in zip(launches, codes, loaded, strict=True)
            ]
            for seconds, launch in sorted(zip(self._known[key], launches, strict=True), key=lambda pair: pair[0]):
                debug.say(debug.TIMINGS, "tuning %s: %.2f us %s", launch.label, seconds * 1e6, launch.variant)
        return self._known[key]

    def _load(self, codes: list[KernelCode]) -> list[Any]:
        try:
            return list(self.device.kernels(codes))
        except DeviceError:  # which of them?
            found: list[Any] = []
            for code in codes:
                try:
                    found += self.device.kernels([code])
                except DeviceError as error:
                    log.debug("not a candidate: %s", error)
                    found.append(None)
            return found

    def _time(self, launch: Launch, code: KernelCode, loaded: Any) -> float:
        kernel = _native(launch)
        operands = [launch.operands[b.name] for b in kernel.buffers]
        sizes = [_size(operand) for operand in operands]
        with self.device.context:
            stream = checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)), "cuStreamCreate")
            memory = 0
            try:
                memory = int(checked(driver.cuMemAlloc(sum(sizes)), "cuMemAlloc"))
                checked(driver.cuMemsetD8Async(memory, _FILLER, sum(sizes), stream), "cuMemsetD8Async")
                addresses = [memory + sum(sizes[:i]) for i in range(len(sizes))]
                one = make_launch(
                    loaded, kernel.dispatch, kernel.workgroup, kernel.shared_bytes, launch.label, addresses
                )
                return launch_seconds(stream, one)
            except CudaError as error:
                raise DeviceError(
                    f"kernel {code.name!r} ({launch.label}) failed while it was timed: {error}"
                ) from error
            finally:
                if memory:
                    driver.cuMemFree(memory)
                driver.cuStreamDestroy(stream)


def _native(launch: Launch) -> NativeKernel:
    assert isinstance(launch.kernel, NativeKernel)
    return launch.kernel


def _size(operand: View | np.ndarray) -> int:
    n = operand.size * operand.dtype.nbytes if isinstance(operand, View) else operand.nbytes
    return -(-n // _ALIGNMENT) * _ALIGNMENT
