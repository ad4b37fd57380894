"""The arithmetic of a partition's 8-bit tensors by what both ways take on the device, where tuning measures."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from litegpu.errors import LiteGpuError
from litegpu.gpu.backends.abilities import WholeTimer
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.delegate.arithmetic import FLOAT, INTEGER
from litegpu.gpu.program import Program

log = logging.getLogger("litegpu")

#: Of so many measurements the least counts.
_ROUNDS = 3


def quicker(device: Device, build: Callable[[bool], Program], estimated: bool) -> Program:
    """The program that takes less time of build(True), in whole numbers, and build(False), as real numbers, with a
    note for the report; build(`estimated`) as it is where the device does not time programs, or the other cannot be
    made. Raises what build(estimated) raises."""
    program = build(estimated)
    try:
        seconds = _seconds(device, program)
        if seconds is None:
            return program
        other = build(not estimated)
        others = _seconds(device, other)
    except LiteGpuError as error:
        if device.lost:
            raise
        log.debug("arithmetic is not measured: %s", error)
        return program
    if others is None:
        return program
    took = {estimated: seconds, not estimated: others}
    taken = min(took, key=took.__getitem__)
    note = (
        f"{INTEGER if taken else FLOAT}: both were timed, and an inference took {took[taken] * 1e6:.1f} us, "
        f"{took[not taken] * 1e6:.1f} us {'as real numbers' if taken else 'in whole numbers'}"
    )
    return dataclasses.replace(program if taken == estimated else other, note=note)


def _seconds(device: Device, program: Program) -> float | None:
    """Of an inference on the device, None where it does not tell."""
    session = device.session(program)
    try:
        return min(session.time_graph() for _ in range(_ROUNDS)) if isinstance(session, WholeTimer) else None
    finally:
        session.close()
