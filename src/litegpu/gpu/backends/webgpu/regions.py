"""Programs with regions on WebGPU: the host reads each flag, and submits what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.inference import RecordedInference, Step
from litegpu.gpu.backends.webgpu.record import record_steps
from litegpu.gpu.backends.webgpu.replay import read_back
from litegpu.gpu.program import Program, RegionBlock, blocks


def run_regions(
    device: WebGpuDeviceBase, program: Program, inference: RecordedInference, submit: Callable[[Sequence[Any]], None]
) -> None:
    """Submit all dispatches of an inference, between the copies of its ports; waits for the device at each flag. Raises
    DeviceError."""
    waiting: list[Step] = []

    def flush() -> None:
        if waiting:
            encoder = device.handle.create_command_encoder(label="litegpu part of an inference")
            record_steps(encoder, waiting)
            submit([encoder.finish()])
            waiting.clear()

    def is_set(flag: int) -> bool:
        flush()
        return bool(read_back(device, inference.arena, flag, 4).any())

    def walk(order: Sequence[int | RegionBlock]) -> None:
        for one in order:
            if isinstance(one, int):
                waiting.append(inference.steps[one])
                continue
            while is_set(one.region.flag):
                walk(one.inside)
                if one.region.kind == "if":
                    break

    walk(blocks(program))
    flush()
