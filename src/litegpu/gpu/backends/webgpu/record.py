"""Recording an inference through wgpu's checked API, plain or with timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import wgpu

from litegpu.gpu.backends.webgpu import native
from litegpu.gpu.backends.webgpu.base import WebGpuDeviceBase
from litegpu.gpu.backends.webgpu.inference import RecordedInference, Step
from litegpu.gpu.backends.webgpu.replay import read_back

#: WebGPU's limit for one query set; a dispatch needs two.
_QUERIES_PER_SET = 4096


class Timer:
    """Timestamps around each of `count` passes."""

    def __init__(self, device: WebGpuDeviceBase, count: int) -> None:
        self._device = device
        self.count = count
        self._sets = [
            device.handle.create_query_set(
                label="timestamps", type="timestamp", count=min(_QUERIES_PER_SET, 2 * count - first)
            )
            for first in range(0, 2 * count, _QUERIES_PER_SET)
        ]
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        self._ticks = device.handle.create_buffer(label="timestamps", size=max(16 * count, 16), usage=usage)

    def writes(self, step: int) -> dict[str, Any]:
        """The `timestamp_writes` of the pass of dispatch number `step`."""
        which, first = divmod(2 * step, _QUERIES_PER_SET)
        return {
            "query_set": self._sets[which],
            "beginning_of_pass_write_index": first,
            "end_of_pass_write_index": first + 1,
        }

    def resolve(self, encoder: Any) -> None:
        for i, queries in enumerate(self._sets):
            encoder.resolve_query_set(queries, 0, queries.count, self._ticks, 8 * _QUERIES_PER_SET * i)

    def seconds(self) -> list[float]:
        """Seconds of each pass in the last finished inference that was recorded with this timer."""
        if not self.count:
            return []
        ticks = read_back(self._device, self._ticks, 0, 16 * self.count).view(np.uint64).reshape(-1, 2)
        period = native.timestamp_period(self._device.handle.queue) * 1e-9
        # ticks are unsigned: devices may reset the counter between two passes, which must not look like centuries
        return [float(end - start) * period if end > start else 0.0 for start, end in ticks.tolist()]

    def close(self) -> None:
        self._ticks.destroy()
        for queries in self._sets:
            queries.destroy()


def record(device: Any, inference: RecordedInference, timer: Timer | None = None) -> Any:
    """A wgpu command buffer of one inference; raises wgpu's GPUError for what the device refuses. With a timer of as
    many passes as there are dispatches each has one of its own, else all share one, and nothing looks at results."""
    encoder = device.create_command_encoder(label="litegpu inference")
    for copy in inference.uploads:
        encoder.copy_buffer_to_buffer(inference.upload, copy.source, inference.arena, copy.target, copy.size)
    if timer is None:
        record_steps(encoder, (*inference.steps, *inference.looks))
    else:
        steps = inference.steps
        passes = [[step] for step in steps] if timer.count == len(steps) else [steps]
        for i, members in enumerate(passes):
            _record_pass(encoder.begin_compute_pass(timestamp_writes=timer.writes(i)), members)
        timer.resolve(encoder)
    for copy in inference.downloads:
        encoder.copy_buffer_to_buffer(inference.arena, copy.source, inference.download, copy.target, copy.size)
    return encoder.finish()


def rehearse(device: Any, steps: Sequence[Step]) -> Any:
    """record() of no copies and of dispatches without workgroups: what can be wrong with them is found, and nothing is
    done."""
    encoder = device.create_command_encoder(label="litegpu rehearsal")
    record_steps(encoder, [replace(step, groups=(0, 0, 0)) for step in steps])
    return encoder.finish()


def record_steps(encoder: Any, steps: Sequence[Step]) -> None:
    """Put the dispatches into one pass."""
    _record_pass(encoder.begin_compute_pass(), steps)


def _record_pass(compute: Any, steps: Sequence[Step]) -> None:
    for step in steps:
        compute.set_pipeline(step.pipeline)
        compute.set_bind_group(0, step.bind_group)
        compute.dispatch_workgroups(*step.groups)
    compute.end()
