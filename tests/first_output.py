"""Runs a program once on a device, for tests of single kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.gpu.program import Program


def first_output(
    device: Any, program: Program, data: Sequence[np.ndarray], shape: Sequence[int], dtype: Any = np.float32
) -> np.ndarray:
    """Of `shape`, for inputs in their order; what the session does not write stays NaN, or 0x5a in each byte."""
    session = device.session(program)
    out = np.full(shape, np.nan, np.float32) if dtype is np.float32 else np.zeros(shape, dtype)
    if dtype is not np.float32:
        out.view(np.uint8)[...] = 0x5A
    try:
        for i, values in enumerate(data):
            session.write(i, values)
        session.run()
        session.read(0, out)
    finally:
        session.close()
    return out


def all_outputs(device: Any, program: Program, data: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Of a program whose outputs are floats, likewise."""
    session = device.session(program)
    outs = [np.full(port.shape, np.nan, np.float32) for port in program.outputs]
    try:
        for i, values in enumerate(data):
            session.write(i, values)
        session.run()
        for i, out in enumerate(outs):
            session.read(i, out)
    finally:
        session.close()
    return outs
