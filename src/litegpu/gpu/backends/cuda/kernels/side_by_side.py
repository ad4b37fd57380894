"""Kernels that neither wait for one another nor write the same, as one: their workgroups lie side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.kernels.context import Launch, NativeBuffer, NativeKernel
from litegpu.gpu.view import View

_ENTRY = re.compile(r'extern "C" __global__ void\s+__launch_bounds__\((\w+)(?:, (\w+))?\)')
_DEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)
#: Workgroups of a cluster must not be torn apart, and some of such kernels would wait for others.
_CLUSTERS = re.compile(r"^#define (?:SPLIT|NORM_PARTS) (?!1$)", re.MULTILINE)
#: A pointer of any kind, which becomes what a part declares.
_ANY = "struct Any { void* p; template <class T> __device__ operator T*() const { return (T*)p; } };"


def can_join(launches: Sequence[Launch]) -> bool:
    """Whether these are native kernels whose workgroups are alike, one behind the other, each for itself."""
    kernels = [launch.kernel for launch in launches]
    return all(
        isinstance(k, NativeKernel) and k.dispatch[1:] == (1, 1) and k.workgroup == kernels[0].workgroup
        and len(_ENTRY.findall(k.source)) == 1 and not _CLUSTERS.search(k.source)
        and not re.search(r"blockIdx\.[yz]|gridDim", k.source)
        for k in kernels
    )  # fmt: skip


def side_by_side(launches: Sequence[Launch]) -> Launch:
    """One launch of all of them, which can_join(): the workgroups of the first come first. Each kernel is a namespace
    of the text, with macros of its own."""
    kernels = [launch.kernel for launch in launches if isinstance(launch.kernel, NativeKernel)]
    parts, calls, parameters = [], [], []
    buffers: list[NativeBuffer] = []
    operands: dict[str, View | np.ndarray] = {}
    rounds: list[str] = []
    begin = 0
    for i, (launch, kernel) in enumerate(zip(launches, kernels, strict=True)):
        names = [f"part{i}_{buffer.name}" for buffer in kernel.buffers]
        parts.append(_part(i, kernel, begin))
        begin += kernel.dispatch[0]
        calls.append(f"  if (blockIdx.x < {begin}) return part{i}::{kernel.name}({_given(names)});")
        parameters += [f"void* {name}" for name in names]
        buffers += [NativeBuffer(n, b.access) for n, b in zip(names, kernel.buffers, strict=True)]
        operands |= {n: launch.operands[b.name] for n, b in zip(names, kernel.buffers, strict=True)}
        rounds += [f"part{i}_{name}" for name in launch.rounds]
    name = f"{kernels[0].name}_parts"
    threads = "part0::LAUNCH_THREADS, part0::LAUNCH_RESIDENT"
    entry = [
        _ANY,
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}({", ".join(parameters)}) {{',
        *calls,
        "}",
    ]
    joined = NativeKernel(
        name, "\n".join([*parts, *entry]) + "\n", kernels[0].workgroup, (begin, 1, 1), tuple(buffers),
        max(k.shared_bytes for k in kernels), tuple(dict.fromkeys(o for k in kernels for o in k.options)),
    )  # fmt: skip
    variant = " | ".join(dict.fromkeys(launch.variant for launch in launches))
    return Launch(
        joined, operands, launches[0].label, variant, rounds=rounds, narrow=any(launch.narrow for launch in launches)
    )


def _part(i: int, kernel: NativeKernel, begin: int) -> str:
    """The kernel's text as a namespace with a function in place of the entry, for workgroups from `begin` on."""
    found = _ENTRY.search(kernel.source)
    assert found is not None
    threads, resident = found[1], found[2] or "1"
    body = _ENTRY.sub("static __device__ __forceinline__ void", kernel.source)
    body = body.replace("blockIdx.x", f"(blockIdx.x - {begin}u)")
    bounds = f"constexpr int LAUNCH_THREADS = {threads}, LAUNCH_RESIDENT = {resident};"
    macros = dict.fromkeys(_DEFINED.findall(kernel.source))
    return "\n".join([f"namespace part{i} {{", body, bounds, "}", *(f"#undef {macro}" for macro in macros)])


def _given(names: Sequence[str]) -> str:
    return ", ".join(f"Any{{{name}}}" for name in names)
