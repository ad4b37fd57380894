"""The CUDA driver's calls as litegpu makes them: checked, and with the device's context current only meanwhile."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda.held import held_calls
from litegpu.gpu.backends.waiting import wait_until

SUCCESS = driver.CUresult.CUDA_SUCCESS
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
#: Data of a node's edges, an argument of the bindings of CUDA 13; those of CUDA 12 have another function with it.
_EDGES = () if hasattr(driver, "cuGraphAddNode_v2") else (None,)
#: A wait spins so long at most, so that a long one does not burn a core.
_LONGEST_SPIN = 1.0


class CudaError(DeviceError):
    """A call of the CUDA driver failed. `code` is the number of its CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def checked(answer: tuple[Any, ...], what: str) -> Any:
    """The value (None, or a tuple of several) of a driver call that worked; else CudaError, with `what` was done."""
    error, *values = answer
    if error != SUCCESS:
        raise CudaError(f"{what}: {error_text(error)}", int(error))
    return values[0] if len(values) == 1 else tuple(values) or None


def error_text(error: Any) -> str:
    """A CUresult for people: its name and what the driver says about it."""
    texts = []
    for ask in (driver.cuGetErrorName, driver.cuGetErrorString):
        answer, text = ask(error)
        if answer == SUCCESS and text:
            texts.append(text.decode() if isinstance(text, bytes) else str(text))
    return ": ".join(texts) or f"CUDA error {int(error)}"


def add_node(graph: Any, before: Sequence[Any], params: Any) -> Any:
    """Add a node to a graph behind others, and return it. `params`: CUgraphNodeParams, also written to."""
    answer = driver.cuGraphAddNode(graph, list(before) or None, *_EDGES, len(before), params)
    return checked(answer, "cuGraphAddNode")


def await_stream(stream: Any, spin: float = math.inf, expected: float = 0.0) -> Any:
    """The CUresult of what is on a stream, when it is done. Signals get through: on the main thread the driver is
    asked, for `spin` seconds without a pause, instead of told to wait; for `expected` see wait_until()."""
    if threading.get_ident() != threading.main_thread().ident:
        (error,) = driver.cuStreamSynchronize(stream)
        return error
    error = _NOT_READY

    def done() -> bool:
        nonlocal error
        (error,) = driver.cuStreamQuery(stream)
        return bool(error != _NOT_READY)

    wait_until(done, min(spin, _LONGEST_SPIN), expected)
    return error


def synchronize(stream: Any, what: str = "cuStreamSynchronize") -> None:
    """Return when what is on a stream is done; signals get through. Raises CudaError, with `what` was awaited."""
    checked((await_stream(stream),), what)


def make_wait(event: object, later: int, earlier: int) -> None:
    """Let what is put on the stream `later` from now on wait for what is on `earlier`."""
    checked(driver.cuEventRecord(event, driver.CUstream(earlier)), "cuEventRecord")
    checked(driver.cuStreamWaitEvent(driver.CUstream(later), event, 0), "cuStreamWaitEvent")


class CudaContext:
    """A device's primary context, the one that PyTorch and CuPy use as well.

    `with context:` makes it the current one of this thread, and afterwards the one before it; nests, and any number of
    threads may be inside."""

    def __init__(self, device: Any) -> None:
        self.handle = checked(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
        self.address = int(self.handle)
        self._calls = held_calls()

    def __enter__(self) -> CudaContext:
        error = self._calls.push_context(self.address)
        if error:
            raise CudaError(f"cuCtxPushCurrent: {error_text(driver.CUresult(error))}", error)
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.pop_context()
