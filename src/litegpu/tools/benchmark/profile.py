"""Where the time of an inference goes: the GPU's time kernel by kernel and op by op, the host's part by part."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.delegates.plan import PartTime
from litegpu.errors import DeviceError
from litegpu.gpu.backends.abilities import WholeTimer
from litegpu.gpu.backends.contract import KernelTime
from litegpu.tools.benchmark.opening import Opened
from litegpu.tools.benchmark.result import KernelRow, OpRow, PartRow, Profile

_RUNS = 10
_SECONDS = 3.0  # start no further profiled inference after so long


def profile(opened: Opened) -> Profile:
    """Profile a model that has run, in inferences of their own."""
    parts = _parts(opened)
    names = {node.index: node.op for node in opened.report.nodes}
    if not opened.kernels:
        return Profile(parts, (), (), note="no op runs on the GPU: only its kernels can be timed one by one")
    try:
        rounds = _rounds(opened.kernels)
    except DeviceError as error:
        return Profile(parts, (), (), note=str(error))
    kernels = tuple(
        KernelRow(i, times[0].label, tuple(times[0].sources), tuple(t.seconds * 1e3 for t in times))
        for i, times in enumerate(zip(*rounds, strict=True))
    )
    return Profile(parts, kernels, by_op(kernels, names), _whole(opened.kernels))


def by_op(kernels: Sequence[KernelRow], names: Mapping[int, str]) -> tuple[OpRow, ...]:
    """The kernels' times, added up for the nodes that they compute: nodes that share a kernel share a row."""
    group: dict[int, int] = {}  # node -> the node that stands for its group

    def find(node: int) -> int:
        while group.setdefault(node, node) != node:
            node = group[node]
        return node

    for kernel in kernels:
        for node in kernel.nodes[1:]:
            group[find(node)] = find(kernel.nodes[0])
    found: dict[int | None, tuple[set[int], list[float]]] = {}
    for kernel in kernels:
        nodes, times = found.setdefault(find(kernel.nodes[0]) if kernel.nodes else None, (set(), []))
        nodes.update(kernel.nodes)
        times.append(kernel.average)
    return tuple(
        OpRow(tuple(names[n] for n in sorted(nodes)), tuple(sorted(nodes)), sum(times), len(times))
        for nodes, times in found.values()
    )


def _rounds(kernels: Sequence[Any]) -> list[list[KernelTime]]:
    start = time.perf_counter()
    rounds: list[list[KernelTime]] = []
    while not rounds or (len(rounds) < _RUNS and time.perf_counter() - start < _SECONDS):
        rounds.append([found for kernel in kernels for found in kernel.profile()])
    return rounds


def _whole(kernels: Sequence[Any]) -> float | None:
    """Milliseconds of all kernels of an inference together, where the device can tell."""
    sessions = [kernel.session for kernel in kernels]
    timers = [session for session in sessions if isinstance(session, WholeTimer)]
    return sum(timer.time_graph() for timer in timers) * 1e3 if len(timers) == len(sessions) else None


def _parts(opened: Opened) -> tuple[PartRow, ...]:
    plan = opened.interpreter.plan
    starts: list[float] = []
    found: list[list[PartTime]] = []
    start = time.perf_counter()
    while not starts or (len(starts) < _RUNS and time.perf_counter() - start < _SECONDS):
        opened.prepare()
        begin = time.perf_counter()
        if plan is None:
            opened.run()
            nodes = tuple(node.index for node in opened.report.nodes)
            times = [PartTime("CPU", nodes, begin, time.perf_counter() - begin)]
        else:
            with plan.timed() as times:
                opened.run()
        starts.append(begin)
        found.append(times)
    return tuple(
        PartRow(
            part[0].owner,
            part[0].nodes,
            sum(p.start - begin for p, begin in zip(part, starts, strict=True)) * 1e3 / len(starts),
            tuple(p.seconds * 1e3 for p in part),
        )
        for part in zip(*found, strict=True)
    )
