"""A Program: everything a runtime needs to run a partition, as plain data that can be stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import DType, Shape


@dataclass(frozen=True)
class RowMap:
    """How bulk copies of the device find rows of a binding: a further argument of a native kernel, behind those of its
    bindings (CUDA: a tensor map of two dimensions, whose copies permute the chunks of 128 bytes)."""

    binding: int
    offset: int  # bytes from where the binding begins
    shape: tuple[int, int]  # rows, and elements of each
    pitch: int  # bytes from row to row
    box: tuple[int, int]  # what is copied at once
    size: int  # bytes of an element: 2, of halves, or 1


@dataclass(frozen=True)
class KernelCode:
    """One kernel's text for one target."""

    name: str  # entry point
    source: str  # in the language of the backend
    workgroup: tuple[int, int, int]
    access: tuple[str, ...]  # per binding, in order: "read" or "read_write"
    shared_bytes: int = 0  # of shared memory to give at launch, beside what the text declares: of native kernels
    options: tuple[str, ...] = ()  # further options of the compiler: of native kernels
    maps: tuple[RowMap, ...] = ()  # of native kernels


@dataclass(frozen=True)
class Binding:
    """A range of the arena or of the constants, in bytes; offsets are aligned to Features.storage_alignment."""

    space: str  # "arena" or "constants"
    offset: int
    size: int


@dataclass(frozen=True)
class Dispatch:
    """One launch of a kernel. `spent`: the largest of its bindings that it only reads and nothing does afterwards."""

    kernel: int  # index into Program.kernels
    groups: tuple[int, int, int]  # each at most Features.max_groups
    bindings: tuple[Binding, ...]
    label: str  # for profiles: the op and its .tflite nodes, e.g. "conv_2d [3,4]"
    sources: tuple[int, ...]  # .tflite node numbers
    spent: int | None = None


@dataclass(frozen=True)
class Region:
    """Dispatches `first` to `end` - 1, which run as the int32 at `flag` (bytes from the start of the arena) says: once
    "if" it is not 0, or "while" it is not 0, again and again."""

    kind: str
    first: int
    end: int
    flag: int


@dataclass(frozen=True)
class RegionBlock:
    """A region, and what it consists of: numbers of dispatches, and regions within it."""

    region: Region
    inside: tuple[int | RegionBlock, ...]


@dataclass(frozen=True)
class Port:
    """An input or output of the program: a packed row-major array somewhere in the arena.

    `dtype` is what lies in the arena (BOOL as int32, INT8 as bytes: the last word may have room to spare); `shape` is
    the logical B,H,W,C shape, or that of all elements in one row; `tensor` the .tflite tensor's index. `uses` are
    the places (dispatch, binding) where an input is read, or an output is written and read; None if something else
    depends on what lies there. `rounded`: all of an input's round its float32 to float16 first, so that it may be
    rounded before it comes.
    """

    name: str
    tensor: int
    shape: Shape
    dtype: DType
    offset: int  # bytes from the start of the arena
    nbytes: int
    uses: tuple[tuple[int, int], ...] | None = None
    rounded: bool = False


@dataclass(frozen=True)
class MemoryReport:
    """Bytes: of the arena, of all tensors without sharing, of the widest set of tensors that live at once."""

    arena: int
    unshared: int
    lower_bound: int


@dataclass(frozen=True)
class Program:
    kernels: tuple[KernelCode, ...]
    dispatches: tuple[Dispatch, ...]
    constants: np.ndarray  # uint8
    arena_size: int  # bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    memory: MemoryReport
    in_float32: tuple[tuple[str, str], ...] = ()  # values that float16 would spoil, by name, and why
    variables: tuple[Port, ...] = ()  # what stays in the arena from one inference to the next, zeros at first
    regions: tuple[Region, ...] = ()  # each before those within it
    note: str = ""  # for the report: what was measured when it was chosen


def blocks(program: Program) -> tuple[int | RegionBlock, ...]:
    """The numbers of a program's dispatches in the order in which they run, those of regions within these."""
    waiting = list(program.regions)

    def within(first: int, end: int) -> tuple[int | RegionBlock, ...]:
        found: list[int | RegionBlock] = []
        at = first
        while at < end:
            if waiting and waiting[0].first == at:
                region = waiting.pop(0)
                found.append(RegionBlock(region, within(region.first, region.end)))
                at = region.end
            else:
                found.append(at)
                at += 1
        return tuple(found)

    return within(0, len(program.dispatches))
