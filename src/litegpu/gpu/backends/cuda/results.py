"""The outputs of a CUDA session on their way to arrays of the caller's: large ones without a copy on the host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from litegpu.gpu.backends.cuda.base import LoadedKernel
from litegpu.gpu.backends.cuda.binding import Bindings
from litegpu.gpu.backends.cuda.copy import look_launch
from litegpu.gpu.backends.cuda.graph import GraphLaunch
from litegpu.gpu.backends.cuda.memory import SessionMemory
from litegpu.gpu.backends.cuda.result_pool import ResultPool
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Program
from litegpu.host_copy import copy_bytes


class Results:
    """Of one session, whose lock is held, and the device's context current, in every method but those that only set.

    Small outputs are in the session's pinned memory after every inference, as its graph copies them. Large ones are
    copied by themselves, right behind the graph where they are `ordered`, else when they are asked for: to a block that
    the caller then owns or, if the pool has none to give, to memory of the session's and from there to an ordinary
    array."""

    def __init__(
        self, program: Program, memory: SessionMemory, bindings: Bindings, pool: ResultPool, look: LoadedKernel | None
    ) -> None:
        """`look`: the kernel that looks for what is not finite, where there are outputs for it."""
        self._program = program
        self._memory = memory
        self._bindings = bindings
        self._pool = pool
        self.wanted: Collection[int] = ()  # as they were ordered
        self._ordered: tuple[int, ...] = ()
        self._coming: dict[int, np.ndarray | None] = {}  # blocks that are filled; None: the session's own memory
        self.watched = False  # whether the outputs of each inference are looked at, but for those that are bound
        self._looks: list[GraphLaunch] = []
        self._looked_at: list[int] = []  # the outputs that these look at
        for index in sorted(memory.results):
            port = program.outputs[index]
            if look is not None and port.dtype is DType.FLOAT32:
                word = memory.not_finite.ctypes.data
                self._looks.append(look_launch(look, word, memory.place(port), port.nbytes, f"look at {port.name!r}"))
                self._looked_at.append(index)
        self._small = {
            i: memory.output(i).view(np.float32)
            for i, port in enumerate(program.outputs)
            if port.dtype is DType.FLOAT32 and i not in memory.results
        }
        self._small_views = list(self._small.values())
        pool.users += 1

    def order(self, outputs: Collection[int]) -> None:
        """Of the following inferences, these outputs are copied at once."""
        self.wanted = outputs
        self._ordered = tuple(i for i in outputs if i in self._memory.results)

    def drop(self) -> None:
        """What was sent by an inference before the next one, and nobody took, is of no use."""
        if self._coming:
            self._coming.clear()

    @property
    def watched_views(self) -> list[np.ndarray]:
        """The small results that are looked at, as floats, if they are."""
        return self._small_views if self.watched else []

    @property
    def looks(self) -> list[GraphLaunch]:
        """What looks at the large ones, if they are looked at."""
        return self._looks if self.watched else []

    @property
    def follows(self) -> bool:
        """Whether after() has anything to do."""
        return bool(self._ordered or self._coming or (self.watched and self._looks))

    def after(self, stream: Any) -> None:
        """Put on `stream`, behind an inference, what is to follow it. Nothing else is under way."""
        if self.watched and self._looks:
            self._memory.not_finite[0] = 0
            for index, launch in zip(self._looked_at, self._looks, strict=True):
                if index not in self._bindings.outputs:
                    launch.enqueue(stream)
        if self._coming:
            for index in [i for i in self._coming if i not in self._ordered]:
                del self._coming[index]
        for index in self._ordered:
            if index not in self._bindings.outputs:
                self._send(index, stream)

    def give(self, index: int, stream: Any, wait: Callable[[], None]) -> np.ndarray:
        """Output `index` of the last inference, that has ended, as bytes of the caller's; `wait` waits for `stream`."""
        memory = self._memory
        if index not in memory.results:
            if index in self._bindings.outputs:
                memory.download(index)
            source = memory.output(index)
            copied = np.empty(source.size, np.uint8)
            copy_bytes(copied, source)
            return copied
        if index not in self._coming:
            self._send(index, stream)
            wait()
        block = self._coming.pop(index)
        if block is not None:
            return block
        found = np.empty(self._program.outputs[index].nbytes, np.uint8)
        copy_bytes(found, memory.output(index))
        return found

    def finite(self, look: Callable[[list[np.ndarray]], bool]) -> bool:
        """Whether the floats of the last inference's outputs are finite, but for those that are bound; `look` tells of
        arrays on the host."""
        if self._looks and self._memory.not_finite[0]:
            return False
        bound = self._bindings.outputs
        return look([view for i, view in self._small.items() if i not in bound] if bound else self._small_views)

    def close(self) -> None:
        self._coming.clear()
        self._looks.clear()
        self._small.clear()
        self._small_views.clear()
        self._pool.users -= 1
        if not self._pool.users:
            self._pool.trim()

    def _send(self, index: int, stream: Any) -> None:
        block = self._coming.get(index)
        if block is None:
            block = self._coming[index] = self._pool.take(self._program.outputs[index].nbytes)
        self._memory.send(index, self._memory.output(index) if block is None else block, stream)
