"""The times of a model's ops on the device that is here, by the profile of `litegpu benchmark`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from litegpu.delegates.report import CPU
from litegpu.gpu.delegate.options import GpuDelegateOptions
from litegpu.tools.analyze.estimate import divided
from litegpu.tools.analyze.examined import Examined
from litegpu.tools.benchmark import benchmark
from litegpu.tools.benchmark.result import Profile

_FLAGS = {"num_runs": 5, "min_secs": 0.3, "warmup_min_secs": 0.2, "enable_op_profiling": True, "use_gpu": True}


def measured_times(
    model: str | os.PathLike[str] | bytes, options: GpuDelegateOptions, found: Examined
) -> tuple[dict[int, float], float, tuple[str, ...]]:
    """Node -> seconds, the median seconds of an inference, and notes. Nodes that share a kernel, or a partition on the
    CPU, share its time as they would by their estimates. Raises what benchmark() does."""
    flags = _FLAGS | {
        "gpu_backend": "" if options.backend == "auto" else options.backend,
        "gpu_device": options.device or "",
        "gpu_precision": options.precision or "float32",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite" if isinstance(model, bytes) else Path(model)
        if isinstance(model, bytes):
            path.write_bytes(model)
        result = benchmark(path, **flags)
    profile = result.profile or Profile((), (), ())
    notes = (f"kernels were not timed one by one: {profile.note}",) if profile.note else ()
    return node_times(profile, found), result.inference.median * 1e-6, notes


def node_times(profile: Profile, found: Examined) -> dict[int, float]:
    """Node -> seconds of its share in its kernels, or in its partition on the CPU."""
    times: dict[int, float] = {}

    def share(nodes: tuple[int, ...], seconds: float) -> None:
        for n, part in _by_estimate(seconds, nodes, found).items():
            times[n] = times.get(n, 0.0) + part

    for row in profile.ops:
        share(row.nodes, row.milliseconds * 1e-3)
    for part in profile.parts:
        if part.owner == CPU:
            share(part.nodes, part.average * 1e-3)
    return times


def _by_estimate(seconds: float, nodes: tuple[int, ...], found: Examined) -> Mapping[int, float]:
    whole = sum(found.times[n].estimated for n in nodes)
    if whole:
        return {n: seconds * found.times[n].estimated / whole for n in nodes}
    return divided(seconds, nodes, found.costs)
