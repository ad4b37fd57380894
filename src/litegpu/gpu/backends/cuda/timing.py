"""Device time of kernels on a stream; the device's context is current in every function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu.gpu.backends.cuda.driver import checked, synchronize
from litegpu.gpu.backends.cuda.graph import CudaGraph, GraphLaunch
from litegpu.gpu.backends.cuda.record import Recorder

#: Each kernel is timed in a graph of so many launches of it, so often.
_LAUNCHES_TIMED, _ROUNDS_TIMED = 20, 5
#: How often the first so many kernels are launched together to be timed, and how often that is done.
_PREFIX_REPEATS, _PREFIX_ROUNDS = 20, 5


class Stopwatch:
    """Device time between two points of a stream."""

    def __init__(self) -> None:
        self._events = [checked(driver.cuEventCreate(0), "cuEventCreate") for _ in range(2)]

    def seconds(self, stream: Any, enqueue: Callable[[], None]) -> float:
        """How long the device works on what `enqueue` puts on the stream."""
        start, stop = self._events
        checked(driver.cuEventRecord(start, stream), "cuEventRecord")
        enqueue()
        checked(driver.cuEventRecord(stop, stream), "cuEventRecord")
        synchronize(stream)
        return float(checked(driver.cuEventElapsedTime(start, stop), "cuEventElapsedTime")) * 1e-3

    def close(self) -> None:
        while self._events:
            driver.cuEventDestroy(self._events.pop())


def launch_seconds(stream: Any, launch: GraphLaunch) -> float:
    """Of one launch: the median of several graphs of it repeated, so with warm caches and including the gap to the next
    kernel."""

    def enqueue() -> None:
        for _ in range(_LAUNCHES_TIMED):
            launch.enqueue(stream)

    graph, watch = CudaGraph(stream, enqueue), Stopwatch()
    try:
        graph.launch(stream)
        rounds = [watch.seconds(stream, lambda: graph.launch(stream)) for _ in range(_ROUNDS_TIMED)]
        return float(np.median(rounds)) / _LAUNCHES_TIMED
    finally:
        watch.close()
        graph.close()


def graph_seconds(stream: Any, graph: CudaGraph, repeats: int) -> float:
    """Of one launch of a graph: launched back to back, the mean of `repeats` after some to warm up."""

    def launch(times: int) -> None:
        for _ in range(times):
            graph.launch(stream)

    watch = Stopwatch()
    try:
        watch.seconds(stream, lambda: launch(max(3, repeats // 10)))
        return watch.seconds(stream, lambda: launch(repeats)) / repeats
    finally:
        watch.close()


def added_seconds(stream: Any, recorder: Recorder) -> list[float]:
    """Of each kernel of a program: how much longer the graph of all up to it takes than that of those before it."""
    ends = []
    for count in range(1, len(recorder.launches) + 1):
        graph = recorder.timed_kernels(count)
        try:
            ends.append(min(graph_seconds(stream, graph, _PREFIX_REPEATS) for _ in range(_PREFIX_ROUNDS)))
        finally:
            graph.close()
    later = np.maximum.accumulate([0.0, *ends])  # what is left of the noise takes no time
    return [float(seconds) for seconds in np.diff(later)]
