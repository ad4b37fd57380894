"""The rates of the device that is here, measured with models of one kind of operator."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence

import numpy as np

from litegpu.errors import DeviceError
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.options import GpuDelegateOptions
from litegpu.interpreter import Interpreter
from litegpu.model.builder import ModelBuilder
from litegpu.tools.analyze.rates import DeviceRates

_COPIED = 4 << 20  # elements
_SIDE, _LAYERS = 512, 8  # of the matrices that are multiplied, and how many products follow each other
_REPEATS = 5


@functools.lru_cache(maxsize=8)
def measure_rates(name: str, options: GpuDelegateOptions) -> DeviceRates:
    """Of the device that `options` choose: the median times of a copy, of matrix products, and of hardly any work.
    float16 is taken to be as fast as float32, and the kernels' own times are read where the device tells them, else
    the host's. Once in a process. Raises DeviceError if there is no device."""
    idle, small = _times(_copy(256), options)
    copied, copying = _times(_copy(_COPIED), options)
    _, product = _times(_product(_SIDE), options)
    nbytes = 4 * _COPIED
    rate = 2 * _SIDE**3 * _LAYERS / product
    return DeviceRates(
        name=name,
        float32=rate,
        float16=rate,
        bandwidth=2 * nbytes / copying,  # read and written
        launch=small,
        link=2 * nbytes / max(copied - idle, 1e-9),  # there and back
        wait=idle,
        source="measured: a copy and matrix products in float32",
    )


def _copy(elements: int) -> bytes:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", (1, elements))], (1, elements)))
    return b.build()


def _product(side: int) -> bytes:
    b = ModelBuilder()
    x = b.input("x", (side, side))
    weights = b.constant(np.full((side, side), 1.0 / side, np.float32))
    for _ in range(_LAYERS):
        x = b.op("FULLY_CONNECTED", [x, weights, -1], (side, side))
    b.output(x)
    return b.build()


def _times(content: bytes, options: GpuDelegateOptions) -> tuple[float, float]:
    """Median seconds of an inference from array to array, and of its kernels."""
    delegate = GpuDelegate(options)
    with Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict") as interpreter:
        interpreter.allocate_tensors()
        (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
        array = np.ones(given["shape"], np.float32)
        host: list[float] = []
        device: list[float] = []
        for _ in range(_REPEATS + 1):
            start = time.perf_counter()
            interpreter.set_tensor(given["index"], array)
            interpreter.invoke()
            interpreter.get_tensor(made["index"])
            host.append(time.perf_counter() - start)
            device.append(_kernel_seconds(delegate) or host[-1])
    return _median(host), _median(device)


def _kernel_seconds(delegate: GpuDelegate) -> float | None:
    kernels = [prepared.kernel() for prepared in delegate.prepared]
    try:
        return sum(time.seconds for kernel in kernels if kernel is not None for time in kernel.profile())
    except DeviceError:
        return None


def _median(times: Sequence[float]) -> float:
    """Without the first, which warms up."""
    return max(statistics.median(times[1:]), 1e-9)
