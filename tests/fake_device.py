"""A device in memory that notes what it is asked for: for tests of what stands above the runtimes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.backends.contract import DeviceInfo, KernelTime
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program


class FakeSession:
    """Every output is the sum of all that was written last, plus the output's number; it is there once run() ended, or
    with wait "do_not_wait" once it is read."""

    def __init__(self, device: FakeDevice, program: Program, wait: str | None, validation: bool) -> None:
        self.device, self.program, self.wait, self.validation = device, program, wait, validation
        self.written: dict[int, np.ndarray] = {}
        self.calls: list[str] = []
        self.memory: dict[int, np.ndarray] = {}  # offered for inputs
        self.closed, self.total = 0, 0.0
        self.inside, self.go = threading.Event(), threading.Event()
        self.go.set()

    def input_memory(self, index: int) -> np.ndarray | None:
        return self.memory.get(index)

    def write(self, index: int, array: np.ndarray) -> None:
        assert array.dtype == NUMPY[self.program.inputs[index].dtype] and array.flags.c_contiguous
        self.calls.append(f"write {index}")
        self.written[index] = array.copy()

    def run(self, wait: bool = True) -> None:
        self.calls.append("run")
        self.inside.set()
        assert self.go.wait(60)
        self.total = sum(float(array.sum()) for array in {**self.memory, **self.written}.values())

    def read(self, index: int, out: np.ndarray) -> None:
        self.calls.append(f"read {index}")
        out[...] = self.total + index

    def reset_variables(self) -> None:
        self.calls.append("reset")

    def bind(self, kind: str, index: int, buffer: Any, what: str, adapter: Program | None = None) -> None:
        self.calls.append(f"{'unbind' if buffer is None else 'bind'} {kind} {index}")

    def profile(self) -> Sequence[KernelTime]:
        self.calls.append("profile")
        return []

    def close(self, *, wait: bool = True) -> None:
        self.closed += 1

    @property
    def allocations(self) -> int:
        return 0

    @property
    def stats(self) -> Mapping[str, float]:
        return {}


class FakeDevice:
    """Satisfies litegpu.gpu.backends.contract.Device."""

    target = "wgsl"

    def __init__(self, features: Features | None = None) -> None:
        self.features = features or Features(float16=True)
        self.info = DeviceInfo("fake", "vulkan", "1.0", False)
        self.lost = False
        self.sessions: list[FakeSession] = []
        self.levels: list[str] = []
        self.nudges = 0

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> FakeSession:
        self.sessions.append(FakeSession(self, program, wait, validation))
        return self.sessions[-1]

    def nudge(self) -> None:
        self.nudges += 1

    def tuner(self, level: str) -> None:
        self.levels.append(level)

    def images(self, program: Program) -> list[bytes]:
        return []

    def adopt(self, program: Program, images: Sequence[bytes]) -> None:
        pass
