"""Programmatic dependent launch: which kernels of a program overlap, and how a kernel waits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.gpu.program import Dispatch, Program

#: Set to 0, kernels do not overlap by programmatic dependent launch where the device can.
PROGRAMMATIC_VARIABLE = "LITEGPU_CUDA_PROGRAMMATIC"
#: A microsecond or less on a fast GPU: what starting a kernel costs.
LITTLE_BYTES = 3 << 20
#: Of a workgroup, with its share of the constants: up to here one multiprocessor may have all that fit. (H200: launches
#: of up to 9 KB gained 0.3 to 1 us each; 252 workgroups of 12, six of which fit, lost 4.2.)
LITTLE_GROUP_BYTES = 10 << 10
#: What a launch touches at most that is held to its share of workgroups by shared memory that none of them needs, so
#: that it may start early: what an early start gains does not grow with the work, and the cache that its loads go
#: through gets smaller. (H200: of launches of up to 17 MB each gained 0.3 to 1 us; six reductions, of which two read 38
#: and 58, lost 30 together, and a first layer of 35 MB 7.)
MOST_HELD_BYTES = 20 << 20
#: What launches of a program touch on average, up to which its kernels overlap: what an early start gains does not grow
#: with the work. (H200, batch 64: of nine networks with up to 29 MiB eight took 2 to 9% less and one 0.5% more; of
#: twelve with more nine 0 to 6% less, but pose_detection with 39, Xception with 106 and U-Net with 262 1 to 4% more.)
MOST_MEAN_BYTES = 32 << 20
#: How much of a multiprocessor's fast memory is shared memory rather than cache, in percent, where kernels overlap, and
#: what that is on an H200. The same for all: a kernel joins only one with the same division, and changing it empties
#: the multiprocessor.
SHARED_MEMORY_PERCENT, SHARED_BYTES = 50, 132 << 10
#: Shared memory of a multiprocessor that kernels may need nearly all of: there it is as much as there can be.
SMALL_SHARED_BYTES = 100 << 10

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
class Work:
    """Of a launch: its workgroups, the bytes that it touches beside constants, and those with constants."""

    groups: int
    touched: int
    all_bytes: int


@dataclass(frozen=True)
class Overlap:
    """Of a program: whether its kernels are compiled to wait by themselves. `latency`: whether all of them overlap,
    because starting and waiting is what takes time; then they divide the fast memory alike."""

    waits: bool = False
    latency: bool = False

    def starts_early(self, work: Work, resident: int, units: int) -> bool:
        """Whether a launch may overlap with the one in front of it, on so many multiprocessors, on each of which
        `resident` of its workgroups fit.

        Workgroups that start early go where places come free first. If more fit on a multiprocessor than its share,
        some have more and others fewer until the end, which costs more than the start of all but small workgroups."""
        even = resident <= _share(work, units)
        little = work.touched <= LITTLE_BYTES and work.all_bytes <= LITTLE_GROUP_BYTES * work.groups
        return self.waits and (self.latency or even or little)

    def held_to(self, work: Work, units: int) -> int:
        """Workgroups to which each multiprocessor should be held so that a launch that starts_early() refuses may start
        early nevertheless; 0 if it should not."""
        return _share(work, units) if self.waits and not self.latency and work.touched <= MOST_HELD_BYTES else 0


def _share(work: Work, units: int) -> int:
    """Workgroups of one multiprocessor where they are spread evenly."""
    return -(-work.groups // units)


#: No kernel starts before the one in front of it has ended.
ALONE = Overlap()


def overlap_of(program: Program) -> Overlap:
    """Where the device can. Kernels in loops are not known one behind the other."""
    if program.regions:
        return ALONE
    if latency_bound(program):
        return Overlap(True, True)
    sizes = [touched(dispatch) for dispatch in program.dispatches]
    return Overlap(True) if sum(sizes) <= MOST_MEAN_BYTES * len(sizes) else ALONE


def work_of(dispatch: Dispatch) -> Work:
    return Work(math.prod(dispatch.groups), touched(dispatch), sum(b.size for b in dispatch.bindings))


def latency_bound(program: Program) -> bool:
    """Whether most kernels touch so little memory that their time goes into starting and waiting: then it pays that all
    divide the fast memory alike (on an H200, MobileNet v1 80 to 70 us at batch 1), else it does not (DeepLab v3, batch
    64: 2.4 to 2.7 ms). Constants do not count, which kernels load before they wait (VGG-16 at batch 1: 223 to 200
    us)."""
    return mostly_little([touched(dispatch) for dispatch in program.dispatches])


def touched(dispatch: Dispatch) -> int:
    """Bytes of its bindings that are not constants."""
    return sum(b.size for b in dispatch.bindings if b.space != "constants")


def shared_memory_percent(shared_bytes: int) -> int:
    """SHARED_MEMORY_PERCENT on a device with so many bytes of shared memory in each multiprocessor."""
    return 100 if shared_bytes <= SMALL_SHARED_BYTES else SHARED_MEMORY_PERCENT


def mostly_little(sizes: Sequence[int], little: int | None = None) -> bool:
    """latency_bound() of the bytes that each kernel touches beside constants, or for so many."""
    return len(sizes) > 0 and statistics.median(sizes) <= (LITTLE_BYTES if little is None else little)
