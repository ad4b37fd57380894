"""Pinned host memory, and small copies between it and the device as kernels: these start sooner than copy engines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver

from litegpu.gpu.backends.cuda.base import CudaDeviceBase, LoadedKernel
from litegpu.gpu.backends.cuda.driver import checked
from litegpu.gpu.backends.cuda.graph import GraphLaunch, make_launch
from litegpu.gpu.backends.cuda.halves import HALF_CONVERSIONS, INLINE
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH
from litegpu.gpu.backends.cuda.result_pool import LARGE_RESULT
from litegpu.gpu.graph import DType
from litegpu.gpu.program import KernelCode, Program

#: Bytes up to which a kernel copies; more leave the multiprocessors alone, and take long in any case.
MOST_BYTES = 2 << 20
_THREADS = 256
#: Elements that a thread widens.
_WIDENED = 8

COPY = KernelCode(
    "copy_words",
    PROGRAMMATIC_LAUNCH
    + f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
copy_words(unsigned* to, const unsigned* from, unsigned long long words) {{
  const unsigned i = blockIdx.x * {_THREADS}u + threadIdx.x, rest = words / 4 * 4 + i;
  wait_for_predecessors();
  launch_dependents();
  if (i < words / 4) ((uint4*)to)[i] = ((const uint4*)from)[i];
  if (rest < words) to[rest] = from[rest];
}}
""",
    (_THREADS, 1, 1),
    ("read_write", "read_write"),
)

#: Makes float32 of the halves that they were rounded to on the host, as far as whole eights: the rest lies behind.
WIDEN = KernelCode(
    "widen_halves",
    f"""#define INLINE {INLINE}
{HALF_CONVERSIONS}
{PROGRAMMATIC_LAUNCH}
INLINE float low(unsigned pair) {{ return half_to_float((unsigned short)pair); }}
INLINE float high(unsigned pair) {{ return half_to_float((unsigned short)(pair >> 16)); }}
extern "C" __global__ void __launch_bounds__({_THREADS})
widen_halves(float* to, const unsigned short* from, unsigned long long count) {{
  const unsigned i = blockIdx.x * {_THREADS}u + threadIdx.x;
  const unsigned long long rest = count / {_WIDENED} * {_WIDENED} + i;
  wait_for_predecessors();
  launch_dependents();
  if (i < count / {_WIDENED}) {{
    const uint4 halves = ((const uint4*)from)[i];
    ((float4*)to)[i * 2ull] = float4{{low(halves.x), high(halves.x), low(halves.y), high(halves.y)}};
    ((float4*)to)[i * 2ull + 1] = float4{{low(halves.z), high(halves.z), low(halves.w), high(halves.w)}};
  }}
  if (rest < count) to[rest] = half_to_float(from[rest]);
}}
""",
    (_THREADS, 1, 1),
    ("read_write", "read"),
)

#: Looks for infinities and NaN among float32, which takes a hundredth of what it takes on the host.
LOOK = KernelCode(
    "find_not_finite",
    f"""
extern "C" __global__ void __launch_bounds__({_THREADS})
find_not_finite(unsigned* found, const unsigned* values, unsigned long long words, unsigned long long threads) {{
  bool any = false;
  for (unsigned long long i = blockIdx.x * {_THREADS}ull + threadIdx.x; i < words; i += threads)
    any |= (values[i] & 0x7f800000u) == 0x7f800000u;
  if (any) *found = 1;
}}
""",
    (_THREADS, 1, 1),
    ("read_write", "read"),
)
_MOST_GROUPS = 1024


class Helpers(NamedTuple):
    """What a session loads beside its program's kernels: what copies, and what looks for what is not finite, and widens
    inputs that come rounded, if it has such ports."""

    copy: LoadedKernel
    look: LoadedKernel | None
    widen: LoadedKernel | None


def with_helpers(program: Program) -> tuple[KernelCode, ...]:
    """The kernels that a session of the program loads: its own, then the helpers."""
    looked_at = any(port.dtype is DType.FLOAT32 and port.nbytes >= LARGE_RESULT for port in program.outputs)
    widened = any(port.rounded for port in program.inputs)
    return *program.kernels, COPY, *((LOOK,) if looked_at else ()), *((WIDEN,) if widened else ())


def told_apart(program: Program, kernels: Sequence[LoadedKernel]) -> tuple[Sequence[LoadedKernel], Helpers]:
    """Those of with_helpers(), loaded: the program's own, and the helpers."""
    count = len(program.kernels)
    codes = with_helpers(program)[count:]
    found = {code.name: kernel for code, kernel in zip(codes, kernels[count:], strict=True)}
    return kernels[:count], Helpers(found[COPY.name], found.get(LOOK.name), found.get(WIDEN.name))


def look_launch(kernel: LoadedKernel, found: int, values: int, nbytes: int, label: str) -> GraphLaunch:
    """Writes 1 to the word at `found` if not all of so many bytes of float32 are finite."""
    groups = min(-(-nbytes // (4 * _THREADS)), _MOST_GROUPS)
    return make_launch(
        kernel, (groups, 1, 1), LOOK.workgroup, 0, label, [found, values, nbytes // 4, groups * _THREADS]
    )


def copy_launch(kernel: LoadedKernel, target: int, source: int, nbytes: int, label: str) -> GraphLaunch:
    """`nbytes`, in whole words, between addresses that are multiples of 16; both sides have room for the last word."""
    words = -(-nbytes // 4)
    groups = -(-words // (4 * _THREADS))
    return make_launch(kernel, (groups, 1, 1), COPY.workgroup, 0, label, [target, source, words])


def widen_launch(kernel: LoadedKernel, target: int, source: int, count: int, label: str) -> GraphLaunch:
    """So many halves to float32, between addresses that are multiples of 16."""
    groups = max(1, -(-count // (_WIDENED * _THREADS)))
    return make_launch(kernel, (groups, 1, 1), WIDEN.workgroup, 0, label, [target, source, count])


class Pinned:
    """Pinned host memory, seen by NumPy as bytes, until the last array of it is gone."""

    def __init__(self, device: CudaDeviceBase, size: int) -> None:
        self.device = device
        self.address = 0
        with device.context:
            self.address = int(checked(driver.cuMemHostAlloc(size, 0), f"{size} bytes of pinned memory"))
        self.__array_interface__ = {"data": (self.address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.address and not self.device.lost and not finalizing():
            with self.device.context:
                driver.cuMemFreeHost(self.address)


def is_pinned(array: np.ndarray, device: CudaDeviceBase) -> bool:
    """Whether `array` lies in memory of a Pinned of the device."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, Pinned) and owner.device is device
