"""Energy of NVIDIA GPUs, from the driver's library NVML, called through ctypes."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from typing import Any, Protocol, Self

from litegpu.tools.benchmark.result import Energy

#: What is shorter says little: the driver's counter moves every 20 to 100 ms.
SHORTEST_SECONDS = 0.5
_SAMPLED_EVERY = 0.05
_NVIDIA = ("nvidia", "geforce", "quadro", "tesla", "rtx")


class PowerMeter(Protocol):
    """A device that tells about its power; None for what it does not tell."""

    def millijoules(self) -> int | None:
        """A counter that only grows."""

    def milliwatts(self) -> int | None:
        """The present power."""


class NvmlMeter:
    """One GPU, found by its UUID, else by its name if no other has the same. Raises OSError where there is no NVML, and
    LookupError where it does not know the GPU."""

    def __init__(self, uuid: str | None, name: str) -> None:
        library = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
        self._nvml = ctypes.CDLL(library)
        if self._nvml.nvmlInit_v2():
            raise OSError("NVML does not start")
        self._handle = ctypes.c_void_p()
        if uuid is not None:
            if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle)):
                raise LookupError(f"NVML does not know {uuid}")
            return
        count = ctypes.c_uint()
        self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for i in range(count.value):
            handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if self._nvml.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(handle)):
                continue
            self._nvml.nvmlDeviceGetName(handle, text, len(text))
            if text.value.decode(errors="replace") in name or name in text.value.decode(errors="replace"):
                found.append(handle)
        if len(found) != 1:
            raise LookupError(f"NVML knows {len(found)} devices named {name}")
        self._handle = found[0]

    def millijoules(self) -> int | None:
        value = ctypes.c_ulonglong()
        failed = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value))
        return None if failed else int(value.value)

    def milliwatts(self) -> int | None:
        value = ctypes.c_uint()
        failed = self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(value))
        return None if failed else int(value.value)


def meter_of(device: Any) -> tuple[PowerMeter | None, str]:
    """What measures an opened device (None: the CPU), or None and the reason."""
    if device is None:
        return None, "energy is measured of NVIDIA GPUs only, not of the CPU"
    name = device.info.name
    uuid = device.found.uuid if device.target == "cuda" else None
    if uuid is None and not any(word in name.lower() for word in _NVIDIA):
        return None, f"{name} does not report power: only NVIDIA's driver is asked"
    try:
        return NvmlMeter(uuid, name), ""
    except (OSError, LookupError, AttributeError) as error:
        return None, f"the driver does not tell the power of {name}: {error}"


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
            return Energy(joules, self.seconds, inferences, "NVML's counter"), ""
        watts = _mean_power(self._samples)
        return Energy(watts * self.seconds, self.seconds, inferences, "NVML's power, sampled"), ""

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
