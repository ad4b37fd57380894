"""Checks made in Python before a driver sees a Program or an array; messages name the kernel or the tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.errors import DeviceError, TensorError, blame
from litegpu.gpu.graph import DType
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Dispatch, KernelCode, Port, Program

#: What an array of each type is for the host.
NUMPY = {dtype: np.dtype(np.int32 if dtype is DType.BOOL else dtype.value) for dtype in DType}


def check_program(program: Program, features: Features, device: str) -> None:
    """Raise DeviceError, naming the kernel, if `program` contradicts itself or needs more than `features` allow."""
    for kernel in program.kernels:
        problem = _kernel_problem(kernel, features)
        if problem is not None:
            users = [d for d in program.dispatches if program.kernels[d.kernel] is kernel]
            error = DeviceError(f"kernel {kernel.name!r} does not fit {device}: {problem}")
            raise blame(error, tuple(n for d in users for n in d.sources))
    for dispatch in program.dispatches:
        problem = _dispatch_problem(program, dispatch, features)
        if problem is not None:
            name = program.kernels[dispatch.kernel].name
            error = DeviceError(f"kernel {name!r} ({dispatch.label}) does not fit {device}: {problem}")
            raise blame(error, dispatch.sources)
    for region in program.regions:
        if region.flag < 0 or region.flag % 4 or region.flag + 4 > program.arena_size:
            raise DeviceError(f"a region's flag at {region.flag} is not in the arena of {program.arena_size} bytes")
        if not 0 <= region.first <= region.end <= len(program.dispatches) or region.kind not in ("if", "while"):
            raise DeviceError(f"a region {region.kind!r} of dispatches {region.first} to {region.end} is none")
    for port in (*program.inputs, *program.outputs, *program.variables):
        if port.offset < 0 or port.offset % 4 or port.offset + port.nbytes > program.arena_size:
            raise DeviceError(
                f"tensor {port.name!r}: {port.nbytes} bytes at {port.offset} are not in the arena of "
                f"{program.arena_size} bytes"
            )


def check_array(ports: Sequence[Port], index: int, kind: str, array: np.ndarray) -> None:
    """Raise TensorError unless port `index` exists and `array` can be copied to it (`kind` "input") or from it
    ("output") byte by byte."""
    if not 0 <= index < len(ports):
        raise TensorError(f"{kind} {index} does not exist: the program has {len(ports)} {kind}s")
    port = ports[index]
    dtype = NUMPY[port.dtype]
    if array.dtype != dtype or array.nbytes != port.nbytes or not array.flags.c_contiguous:
        raise TensorError(
            f"{kind} {index} ({port.name}) is a C-contiguous {dtype.name} array of shape {port.shape}, "
            f"{port.nbytes} bytes; got {array.dtype} of shape {array.shape}, {array.nbytes} bytes"
            f"{'' if array.flags.c_contiguous else ', not contiguous'}"
        )
    if kind == "output" and not array.flags.writeable:
        raise TensorError(f"output {index} ({port.name}): the array to read into is read-only")


def check_has_run(has_run: bool, index: int) -> None:
    """Raise DeviceError where output `index` is asked for before there is one."""
    if not has_run:
        raise DeviceError(f"output {index} was read before the first run: call run() first")


# ----------------------------------------------------------------------------------------------


def _kernel_problem(kernel: KernelCode, features: Features) -> str | None:
    threads = math.prod(kernel.workgroup)
    if threads > features.max_threads:
        return f"{threads} threads per workgroup, at most {features.max_threads} are possible"
    if len(kernel.access) > features.max_buffers:
        return f"{len(kernel.access)} buffers, at most {features.max_buffers} are possible"
    unknown = set(kernel.access) - {"read", "read_write"}
    return f"unknown access {sorted(unknown)}" if unknown else None


def _dispatch_problem(program: Program, dispatch: Dispatch, features: Features) -> str | None:
    access = program.kernels[dispatch.kernel].access
    if len(dispatch.bindings) != len(access):
        return f"{len(dispatch.bindings)} bindings for {len(access)} buffers"
    if max(dispatch.groups) > features.max_groups:
        return f"{dispatch.groups} workgroups, at most {features.max_groups} per dimension are possible"
    sizes = {"arena": program.arena_size, "constants": program.constants.nbytes}
    for i, binding in enumerate(dispatch.bindings):
        place = f"binding {i} ({binding.size} bytes at {binding.offset} of the {binding.space})"
        if binding.space not in sizes or binding.size <= 0 or binding.offset + binding.size > sizes[binding.space]:
            return f"{place} is out of bounds"
        if binding.offset % features.storage_alignment:
            return f"{place} is not aligned to {features.storage_alignment} bytes"
        if binding.size > features.max_binding_bytes:
            return f"{place} is too large: at most {features.max_binding_bytes} bytes can be bound"
        if (access[i] == "read_write") != (binding.space == "arena"):
            return f"{place} has access {access[i]!r}: the arena is bound read_write and the constants read"
    return None
