"""Where tuning measures, both arithmetics of 8-bit tensors are built and timed; the quicker is taken and reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice, FakeSession
from gpu.delegate.test_arithmetic import layer

from litegpu import GpuDelegate, Interpreter
from litegpu.errors import DeviceError
from litegpu.gpu.build import build_program
from litegpu.gpu.cache_entry import CacheEntry, decode, encode
from litegpu.gpu.delegate.measured import quicker
from litegpu.gpu.lang import KernelError
from litegpu.gpu.program import MemoryReport, Program

PROGRAM = Program((), (), np.zeros(0, np.uint8), 0, (), (), MemoryReport(0, 0, 0))
#: What stands for a program in whole numbers and one as real numbers.
WAYS = {True: dataclasses.replace(PROGRAM, arena_size=1), False: dataclasses.replace(PROGRAM, arena_size=2)}


class TimedSession(FakeSession):
    device: TimedDevice

    def time_graph(self) -> float:
        seconds = self.device.seconds[self.program.arena_size]
        if isinstance(seconds, Exception):
            raise seconds
        return seconds


class TimedDevice(FakeDevice):
    """Takes so many seconds for programs with so large an arena; measures kernels where it is to."""

    def __init__(self, seconds: dict[int, Any]) -> None:
        super().__init__()
        self.seconds = seconds

    def session(self, program: Program, wait: str | None = None, *, validation: bool = False) -> FakeSession:
        self.sessions.append(TimedSession(self, program, wait, validation))
        return self.sessions[-1]

    def tuner(self, level: str) -> Any:
        return None if level == "off" else object()


@pytest.mark.parametrize("estimated", [True, False])
@pytest.mark.parametrize("integer", [True, False])
def test_the_quicker_is_taken(integer: bool, estimated: bool) -> None:
    device = TimedDevice({1: 2e-5 if integer else 3e-5, 2: 3e-5 if integer else 2e-5})
    found = quicker(device, WAYS.__getitem__, estimated)
    assert dataclasses.replace(found, note="") == WAYS[integer]
    assert ("whole numbers, as on the CPU" in found.note) == integer
    other = "as real numbers" if integer else "in whole numbers"
    assert found.note.endswith(f"both were timed, and an inference took 20.0 us, 30.0 us {other}")
    assert all(session.closed for session in device.sessions)


def test_what_is_estimated_is_taken_where_nothing_can_be_measured() -> None:
    def build(integer: bool) -> Program:
        if not integer:
            raise KernelError("too much shared memory")
        return WAYS[True]

    refused = DeviceError("known only when it runs")
    assert quicker(FakeDevice(), WAYS.__getitem__, False) is WAYS[False]
    assert quicker(TimedDevice({2: refused}), WAYS.__getitem__, False) is WAYS[False]
    assert quicker(TimedDevice({2: 1e-5, 1: refused}), WAYS.__getitem__, False) is WAYS[False]
    assert quicker(TimedDevice({1: 1e-5}), build, True) is WAYS[True]
    with pytest.raises(KernelError):
        quicker(TimedDevice({1: 1e-5}), build, False)


def test_a_lost_device_is_not_passed_over() -> None:
    device = TimedDevice({2: DeviceError("lost")})
    device.lost = True
    with pytest.raises(DeviceError):
        quicker(device, WAYS.__getitem__, False)


def opened(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, op: str = "FULLY_CONNECTED", **options: Any
) -> tuple[list[bool], str]:
    """In which arithmetics a program was built, and what the report says."""
    given: list[bool] = []

    def noted(*arguments: Any, **named: Any) -> Program:
        given.append(named["integer"])
        return dataclasses.replace(
            build_program(*arguments, **{**named, "tuner": None}), arena_size=1 if named["integer"] else 2
        )

    monkeypatch.setattr(GpuDelegate, "open_device", lambda self: device)
    monkeypatch.setattr("litegpu.gpu.build.build_program", noted)
    delegate = GpuDelegate(precision_loss_allowed=True, **options)
    one = Interpreter(model_content=layer(op), experimental_delegates=[delegate], fallback="strict")
    one.allocate_tensors()
    return given, " ".join(one.delegation_report().notes)


def test_tuning_measures_once_for_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = TimedDevice({1: 2e-5, 2: 3e-5})
    options = {"tuning": "fast", "serialization_dir": str(tmp_path)}
    given, said = opened(device, monkeypatch, **options)
    assert sorted(given) == [False, True] and "an inference took 20.0 us" in said
    given, again = opened(device, monkeypatch, **options)
    assert given == [] and again == said


@pytest.mark.parametrize("options", [
    {}, {"tuning": "fast", "arithmetic": "integer"}, {"tuning": "fast", "arithmetic": "float"},
])  # fmt: skip
def test_nothing_is_measured_where_there_is_nothing_to_choose(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    given, said = opened(TimedDevice({}), monkeypatch, **options)
    assert len(given) == 1 and "timed" not in said


def test_what_is_known_as_real_numbers_alone_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    given, said = opened(TimedDevice({}), monkeypatch, "LOG_SOFTMAX", tuning="fast")
    assert given == [False] and "timed" not in said


def test_the_note_is_part_of_the_entry() -> None:
    entry = CacheEntry({}, dataclasses.replace(PROGRAM, note="in whole numbers"), ())
    assert decode(b"".join(encode(entry))).program.note == "in whole numbers"
