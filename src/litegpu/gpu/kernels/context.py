"""What a kernel family is given (Context) and what it gives back (Launch)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from litegpu.gpu.graph import Graph, Node, Value
from litegpu.gpu.lang import Kernel
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode, RowMap
from litegpu.gpu.view import View


@dataclass(frozen=True)
class KernelContext:
    """One node to build kernels for. `views` says where every non-constant value of the graph lies."""

    graph: Graph
    node: Node
    views: Mapping[int, View]
    features: Features
    half: bool = False  # float16 may be used for storage
    most: int = 1  # launches to give where several do the same work, of which one will be chosen by measuring

    def value(self, i: int) -> Value:
        return self.graph.values[i]

    @property
    def output(self) -> Value:
        return self.graph.values[self.node.output]

    @property
    def streams(self) -> bool:
        """Whether the results are the program's, which none of its kernels reads, and more than the device's cache
        holds, where they would only take the place of what is read again."""
        view = self.views[self.node.output]
        if not 0 < self.features.cache_bytes < view.size * view.dtype.nbytes:
            return False

        def here(values: Collection[int]) -> bool:
            return any(v in self.views and self.views[v].root == view.root for v in values)

        return here(self.graph.outputs) and not any(here(node.reads) for node in self.graph.nodes)


@dataclass(frozen=True)
class NativeBuffer:
    """A buffer of a kernel in the target's own language."""

    name: str
    access: str  # "read" (nothing writes it during the whole program) or "read_write"


@dataclass(frozen=True)
class NativeKernel:
    """A kernel in the target's own language: what stands in place of a traced Kernel."""

    name: str  # entry point
    source: str
    workgroup: tuple[int, int, int]
    dispatch: tuple[int, int, int]
    buffers: tuple[NativeBuffer, ...]
    shared_bytes: int = 0  # to give at launch
    options: tuple[str, ...] = ()  # of the compiler
    maps: tuple[RowMap, ...] = ()  # arguments behind those of the buffers

    @property
    def code(self) -> KernelCode:
        """As programs have it."""
        access = tuple(buffer.access for buffer in self.buffers)
        return KernelCode(self.name, self.source, self.workgroup, access, self.shared_bytes, self.options, self.maps)


@dataclass(frozen=True)
class Launch:
    """A kernel and, by the names of its buffers, what each is bound to.

    A View binds the whole memory of view.root; an array is a constant in its final layout.
    Kernel names must not depend on the layer, so that equal layers share one text.
    """

    kernel: Kernel | NativeKernel
    operands: Mapping[str, View | np.ndarray]
    label: str
    variant: str = ""  # which of several kernels for the same work, for people
    #: Others that do the same work, of those that were asked for; by the estimates none is quicker.
    others: tuple[Launch, ...] = ()
    #: Traces the same into another kernel with as many threads in a workgroup, and collects what its buffers are bound
    #: to; None where that cannot be done.
    part: Callable[[Kernel, dict[str, View | np.ndarray]], None] | None = None
    #: Buffers whose float32 it rounds to float16 before it does anything with them.
    rounds: Collection[str] = ()
    #: It stores less than a line of the device's cache at a time: where the rest of the line is still to be read from
    #: memory, by others, either waits.
    narrow: bool = False


@runtime_checkable
class Builds(Protocol):
    """What the definition of a Custom node is for kernels; the rest of it is graph.Definition."""

    def build(self, ctx: KernelContext) -> list[Launch]:
        """The kernels of ctx.node."""
