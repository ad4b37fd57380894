"""Energy of GPUs, from what a backend knows of their power."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Self

from litegpu.errors import DeviceError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import PowerMeter, PowerReader
from litegpu.gpu.backends.contract import Device
from litegpu.tools.benchmark.result import Energy

#: What is shorter says little: the driver's counter moves every 20 to 100 ms.
SHORTEST_SECONDS = 0.5
_SAMPLED_EVERY = 0.05


def meter_of(device: Device | None) -> tuple[PowerMeter | None, str]:
    """What measures an opened device (None: the CPU), or None and the reason."""
    if device is None:
        return None, "energy is measured of NVIDIA GPUs only, not of the CPU"
    reason = "no backend knows of its power"
    for _, backend in registry.every():
        if isinstance(backend, PowerReader):
            try:
                return backend.power_meter(device), ""
            except DeviceError as error:
                reason = str(error)
    return None, reason


class EnergyWatch:
    """Measures from `with` to its end: by the device's counter of energy, else by its power, sampled in a thread."""

    def __init__(self, meter: PowerMeter | None) -> None:
        self._meter = meter
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._samples: list[tuple[float, int]] = []
        self._counted: tuple[int, int] | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._before = self._meter.millijoules() if self._meter is not None else None
        if self._meter is not None and self._before is None and self._sample():
            self._thread = threading.Thread(target=self._sampling, name="litegpu power", daemon=True)
            self._thread.start()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._sample()
        after = self._meter.millijoules() if self._meter is not None and self._before is not None else None
        if after is not None and self._before is not None:
            self._counted = self._before, after

    def energy(self, inferences: int) -> tuple[Energy | None, str]:
        """The energy, or None and the reason."""
        if self._meter is None or (self._counted is None and len(self._samples) < 2):
            return None, "the device does not report power"
        if self.seconds < SHORTEST_SECONDS or not inferences:
            return None, f"the runs were too short to measure energy: less than {SHORTEST_SECONDS:g} s"
        if self._counted is not None:
            joules = (self._counted[1] - self._counted[0]) * 1e-3
            return Energy(joules, self.seconds, inferences, f"{self._meter.source}'s counter"), ""
        watts = _mean_power(self._samples)
        return Energy(watts * self.seconds, self.seconds, inferences, f"{self._meter.source}'s power, sampled"), ""

    def _sampling(self) -> None:
        while not self._stop.wait(_SAMPLED_EVERY):
            self._sample()

    def _sample(self) -> bool:
        power = self._meter.milliwatts() if self._meter is not None else None
        if power is not None:
            self._samples.append((time.perf_counter(), power))
        return power is not None


def _mean_power(samples: list[tuple[float, int]]) -> float:
    """Watts, by the trapezoidal rule."""
    area = sum((t1 - t0) * (p0 + p1) / 2 for (t0, p0), (t1, p1) in itertools.pairwise(samples))
    elapsed = samples[-1][0] - samples[0][0]
    return (area / elapsed if elapsed else samples[0][1]) * 1e-3
