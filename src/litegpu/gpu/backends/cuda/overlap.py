"""Programmatic dependent launch: which kernels of a program overlap, and how a kernel waits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.program import Program

#: Set to 0, kernels do not overlap by programmatic dependent launch where the device can.
PROGRAMMATIC_VARIABLE = "LITEGPU_CUDA_PROGRAMMATIC"
#: A microsecond or less on a fast GPU: what starting a kernel costs.
LITTLE_BYTES = 3 << 20
#: How much of a multiprocessor's fast memory is shared memory rather than cache, in percent, where kernels overlap, and
#: what that is on an H200. The same for all: a kernel joins only one with the same division, and changing it empties
#: the multiprocessor.
SHARED_MEMORY_PERCENT, SHARED_BYTES = 50, 132 << 10
#: Workgroups of a launch from which on it overlaps in other programs. (H200, batch 64.)
MANY_GROUPS = 0

#: Programmatic dependent launch (sm_90): this kernel may start before those that it depends on have ended, and lets
#: its dependents start early. Nothing that another kernel writes may be touched before wait_for_predecessors().
PROGRAMMATIC_LAUNCH = """#ifdef PROGRAMMATIC_LAUNCH
#define launch_dependents() asm volatile("griddepcontrol.launch_dependents;" ::: "memory")
#define wait_for_predecessors() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define launch_dependents()
#define wait_for_predecessors()
#endif"""
#: The statement that waits. A text without it is never started before what it depends on has ended.
WAIT = "wait_for_predecessors();"


@dataclass(frozen=True)
class Overlap:
    """Of a program: whether kernels are compiled to wait by themselves, and launches that overlap with what is in front
    of them those of `least` workgroups and more. `percent`: how the fast memory is divided, -1: as the driver sees fit.
    `latency`: whether they overlap because starting and waiting is what takes time."""

    waits: bool = False
    least: float = math.inf
    percent: int = -1
    latency: bool = False


#: No kernel starts before the one in front of it has ended.
ALONE = Overlap()


def overlap_of(program: Program) -> Overlap:
    """Where the device can. Kernels in loops are not known one behind the other."""
    if program.regions:
        return ALONE
    if latency_bound(program):
        return Overlap(True, 0, SHARED_MEMORY_PERCENT, True)
    return Overlap(True, MANY_GROUPS)


def latency_bound(program: Program) -> bool:
    """Whether most kernels touch so little memory that their time goes into starting and waiting: then it pays that all
    divide the fast memory alike (on an H200, MobileNet v1 80 to 70 us at batch 1), else it does not (DeepLab v3, batch
    64: 2.4 to 2.7 ms). Constants do not count, which kernels load before they wait (VGG-16 at batch 1: 223 to 200
    us)."""
    touched = [[b.size for b in d.bindings if b.space != "constants"] for d in program.dispatches]
    return mostly_little([sum(sizes) for sizes in touched])


def mostly_little(touched: list[int]) -> bool:
    """latency_bound() of the bytes that each kernel touches beside constants."""
    found, count = sorted(touched), len(touched)
    return count > 0 and found[(count - 1) // 2] + found[count // 2] <= 2 * LITTLE_BYTES  # the median
