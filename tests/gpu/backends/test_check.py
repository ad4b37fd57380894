"""Programs that a device cannot run are refused before a driver sees them, each for its own reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from litegpu.errors import DeviceError, TensorError
from litegpu.gpu.backends.check import check_array, check_program
from litegpu.gpu.graph import DType
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

FEATURES = Features(max_threads=64, max_buffers=3, max_groups=100, max_binding_bytes=1024, storage_alignment=256)
KERNEL = KernelCode("k", "text", (8, 8, 1), ("read_write", "read"))
DISPATCH = Dispatch(0, (100, 1, 1), (Binding("arena", 256, 1024), Binding("constants", 256, 256)), "conv", ())
PORT = Port("x", 0, (1, 1, 1, 4), DType.FLOAT32, 1264, 16)


def program(kernel: dict[str, Any] | None = None, dispatch: dict[str, Any] | None = None, **ports: Port) -> Program:
    """A program at the limits of FEATURES, changed."""
    kernels = (dataclasses.replace(KERNEL, **(kernel or {})),)
    dispatches = (dataclasses.replace(DISPATCH, **(dispatch or {})),)
    inputs, outputs, variables = ((ports.get(kind, PORT),) for kind in ("input", "output", "variable"))
    report = MemoryReport(1280, 1280, 1280)
    return Program(
        kernels, dispatches, np.zeros(512, np.uint8), 1280, inputs, outputs, report, variables=variables
    )  # fmt: skip


def bindings(arena: Binding = DISPATCH.bindings[0], constants: Binding = DISPATCH.bindings[1]) -> dict[str, Any]:
    return {"bindings": (arena, constants)}


def test_what_is_just_within_the_limits_is_taken() -> None:
    check_program(program(), FEATURES, "a device")
    three = ("read_write", "read", "read_write")
    more = (*DISPATCH.bindings, Binding("arena", 0, 256))
    check_program(program({"access": three}, {"bindings": more}), FEATURES, "a device")


@pytest.mark.parametrize("changed, reason", [
    (program({"workgroup": (65, 1, 1)}), "65 threads per workgroup, at most 64"),
    (program({"access": ("read",) * 4}), "4 buffers, at most 3"),
    (program({"access": ("read_write", "write")}), "unknown access"),
    (program(dispatch={"bindings": DISPATCH.bindings[:1]}), "1 bindings for 2 buffers"),
    (program(dispatch={"groups": (1, 101, 1)}), "at most 100 per dimension"),
    (program(dispatch=bindings(Binding("arena", 512, 1024))), "out of bounds"),
    (program(dispatch=bindings(constants=Binding("constants", 256, 272))), "out of bounds"),
    (program(dispatch=bindings(constants=Binding("nowhere", 0, 16))), "out of bounds"),
    (program(dispatch=bindings(Binding("arena", 0, 0))), "out of bounds"),
    (program(dispatch=bindings(Binding("arena", 128, 16))), "not aligned to 256"),
    (program(dispatch=bindings(Binding("arena", 0, 1040))), "too large: at most 1024"),
    (program({"access": ("read", "read")}), "the arena is bound read_write and the constants read"),
    (program({"access": ("read_write", "read_write")}), "the arena is bound read_write and the constants read"),
    *((program(**{kind: dataclasses.replace(PORT, offset=offset)}), "not in the arena")  # type: ignore[arg-type]
      for kind in ("input", "output", "variable") for offset in (1268, -4, 2)),
])  # fmt: skip
def test_what_is_beyond_them_is_refused(changed: Program, reason: str) -> None:
    with pytest.raises(DeviceError, match=reason):
        check_program(changed, FEATURES, "a device")


def test_arrays() -> None:
    good = np.zeros(4, np.float32)
    check_array([PORT], 0, "input", good)
    check_array([PORT], 0, "output", good.reshape(2, 2))
    fixed = np.zeros(4, np.float32)
    fixed.flags.writeable = False
    check_array([PORT], 0, "input", fixed)
    for index, kind, array in (
        (1, "input", good), (-1, "input", good), (0, "input", good.astype(np.int32)), (0, "input", good[:3]),
        (0, "input", np.zeros((2, 4), np.float32)[:, ::2]), (0, "output", fixed),
    ):  # fmt: skip
        with pytest.raises(TensorError, match=kind):
            check_array([PORT], index, kind, array)
