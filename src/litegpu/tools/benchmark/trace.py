"""A trace in Chrome's format, for Perfetto and chrome://tracing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.tools.benchmark.result import BenchmarkResult, KernelRow, Profile

_HOST, _GPU = 1, 2
_STARTUP, _INFERENCES, _PARTS, _KERNELS = 1, 2, 3, 1
_GAP = 1e3  # microseconds before the profiled inference


def trace(result: BenchmarkResult) -> dict[str, Any]:
    """The start-up and every inference, when they happened, and after them one profiled inference: the host's parts,
    and the GPU's kernels one behind the other, as long as each is on average."""
    events = [
        *_names(_HOST, "host", {_STARTUP: "start-up", _INFERENCES: "inferences", _PARTS: "a profiled inference"}),
        *_names(_GPU, f"GPU: {result.device}", {_KERNELS: "kernels of a profiled inference (each timed on its own)"}),
    ]
    at = 0.0
    for name, seconds in result.startup.parts().items():
        if seconds:
            events.append(_event(name, _HOST, _STARTUP, at, seconds * 1e6))
            at += seconds * 1e6
    for what, timing in (("warm-up", result.warmup), ("inference", result.inference)):
        for i, (seconds, end) in enumerate(zip(timing.seconds, timing.ends, strict=True)):
            start = (end - seconds - result.began) * 1e6
            events.append(_event(f"{what} {i}", _HOST, _INFERENCES, start, seconds * 1e6))
            at = max(at, start + seconds * 1e6)
    if result.profile is not None:
        events += _profiled(result.profile, at + _GAP)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"model": result.flags.graph, "device": result.device, "label": result.label},
    }


def _profiled(profile: Profile, at: float) -> list[dict[str, Any]]:
    events = []
    of_part = _kernels_by_part(profile)
    for i, part in enumerate(profile.parts):
        start = at + part.start * 1e3
        nodes = {"nodes": list(part.nodes)}
        events.append(_event(f"{part.owner} partition {i}", _HOST, _PARTS, start, part.average * 1e3, nodes))
        for kernel in of_part[i]:
            nodes = {"nodes": list(kernel.nodes), "order": [kernel.order]}
            events.append(_event(kernel.kernel, _GPU, _KERNELS, start, kernel.average * 1e3, nodes))
            start += kernel.average * 1e3
    return events


def _kernels_by_part(profile: Profile) -> list[list[KernelRow]]:
    """The kernels of each part; those for no node in particular belong to where the kernel before them is."""
    places = [i for i, part in enumerate(profile.parts) if part.owner != "CPU"]
    found: list[list[KernelRow]] = [[] for _ in profile.parts]
    place = places[0] if places else 0
    for kernel in profile.kernels:
        place = next((i for i in places if not set(kernel.nodes).isdisjoint(profile.parts[i].nodes)), place)
        found[place].append(kernel)
    return found


def _names(process: int, name: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    found = [{"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}]
    for thread, text in threads.items():
        found.append({"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": text}})
    return found


def _event(
    name: str, process: int, thread: int, start: float, duration: float, more: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    event = {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": round(start, 3), "dur": round(duration, 3)}
    return {**event, "args": more} if more else event
