"""Pinned host memory that the device writes results to: an array of the caller's owns its block until it is gone.

Blocks are the process's own memory, made known to the driver: an array outlives its model, the device and the driver's
context, and a child of a fork has it as any other array.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cuda.bindings import driver

from litegpu import fork
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import SUCCESS
from litegpu.host_copy import make_present

#: Smaller results are copied sooner than a block is handed out.
LARGE_RESULT = 128 << 10
_PAGE = 4096
#: Blocks come in sizes of so many steps between two powers of two.
_STEPS = 8
#: A size may have so many blocks out before one of them has come back: to pin memory takes longer than to copy, and
#: pays by coming again, which for a caller who keeps all results it never does.
_ON_TRUST = 6
#: After so many that were refused one more is given, as who keeps some results may keep no others; after twice as many
#: the next, as long as none comes back.
_TRIAL = 16
#: A free block that as many requests have passed over is given up.
_PATIENCE = 512
#: All blocks of a device together, in bytes.
MOST_BYTES = 4 << 30


class ResultPool:
    """Of one device, for any thread. `held`: bytes of all blocks, with callers or free. Arrays may be let go of at
    any moment."""

    def __init__(self, device: CudaDeviceBase, most_bytes: int = MOST_BYTES) -> None:
        self.device = device
        self.most_bytes = most_bytes
        self.held = 0
        self.users = 0  # sessions; the last one trims
        self._sizes: dict[int, _Size] = {}
        self._returned: deque[_Block] = deque()
        self._requests = 0
        self._forks = fork.count()
        self._lock: threading.Lock | fork.Refusal = threading.Lock()
        fork.follow(self)

    def take(self, nbytes: int) -> np.ndarray | None:
        """`nbytes` of pinned memory, whose content is anything, for as long as the array or a view of it lives. None if
        that would be too much, or does not pay."""
        with self._lock:
            self._requests += 1
            self._sort()
            size = _rounded(nbytes)
            kind = self._sizes.setdefault(size, _Size())
            block = kind.free.pop() if kind.free else self._made(size, kind)
            if block is None:
                return None
            kind.out += 1
        return np.asarray(_Lease(self, block))[:nbytes]

    def come_back(self, block: _Block) -> None:
        """Nobody has the array of a block any more. For finalizers: neither waits nor calls the driver."""
        self._returned.append(block)

    def trim(self) -> None:
        """Give up the blocks that are free."""
        with self._lock:
            self._sort()
            for kind in self._sizes.values():
                while kind.free:
                    self._drop(kind.free.popleft())

    def _sort(self) -> None:
        """What came back is free again; what nobody has wanted for long is given up, and so is what a child of a fork
        has a part in: who of the two writes there first may get other pages than the device knows."""
        forks = fork.count()
        while self._returned:
            block = self._returned.popleft()
            kind = self._sizes[block.size]
            kind.out, kind.came_back, kind.trial = kind.out - 1, kind.came_back + 1, _TRIAL
            block.free_since = self._requests
            kind.free.append(block)
            if block.forks != forks:
                self._drop(kind.free.pop())
        oldest = self._requests - _PATIENCE if forks == self._forks else self._requests + 1
        self._forks = forks
        for kind in self._sizes.values():
            while kind.free and kind.free[0].free_since < oldest:
                self._drop(kind.free.popleft())

    def _made(self, size: int, kind: _Size) -> _Block | None:
        if kind.out >= _ON_TRUST + kind.came_back:
            kind.refused += 1
            if kind.refused < kind.trial:
                return None
            kind.refused, kind.trial = 0, 2 * kind.trial
        for other in self._sizes.values():  # rather than go without
            while other.free and self.held + size > self.most_bytes:
                self._drop(other.free.popleft())
        if self.held + size > self.most_bytes:
            return None
        memory = np.empty(size + _PAGE, np.uint8)
        start = -memory.ctypes.data % _PAGE
        block = _Block(memory[start : start + size], size)
        make_present(block.memory)  # by several threads: the driver does it with one
        with self.device.context:
            block.registered = True
            (error,) = driver.cuMemHostRegister(block.address, size, 0)
        if error != SUCCESS:  # no more memory may be locked, say
            block.registered = False
            return None
        self.held += size
        return block

    def _drop(self, block: _Block) -> None:
        self.held -= block.size
        if self.device.lost:
            fork.keep(block)  # the driver may take it for pinned as long as the process lives
        else:
            with self.device.context:
                driver.cuMemHostUnregister(block.address)
                block.registered = False

    def _forked(self) -> None:
        self._lock = fork.Refusal()


class _Block:
    """`memory`: of whole pages. `free_since`: how many requests there had been when it came back. `forks`: how many
    forks there had been when it was made. `registered`: whether the device may know it.

    One that is lost while the device knows it, on the way from hand to hand, where Ctrl-C came between, leaves its
    memory to nobody: what the device writes there would not be what others read there."""

    __slots__ = ("address", "forks", "free_since", "memory", "registered", "size")

    def __init__(self, memory: np.ndarray, size: int) -> None:
        self.memory, self.size = memory, size
        self.address = memory.ctypes.data
        self.free_since = 0
        self.forks = fork.count()
        self.registered = False

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "registered", False) and not finalizing():
            fork.keep(self.memory)


@dataclass(eq=False)
class _Size:
    """Blocks of one size. `out`: with callers; `came_back`: how often one did; `refused`: requests since the last block
    on trial; `trial`: after how many there is one."""

    free: deque[_Block] = field(default_factory=deque)
    out: int = 0
    came_back: int = 0
    refused: int = 0
    trial: int = _TRIAL


class _Lease:
    """What an array over a block, and every view of it, refers to."""

    __slots__ = ("__array_interface__", "_block", "_pool")

    def __init__(self, pool: ResultPool, block: _Block) -> None:
        self._pool, self._block = pool, block
        self.__array_interface__: dict[str, Any] = {
            "data": (block.address, False), "shape": (block.size,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self._pool.come_back(self._block)


def _rounded(nbytes: int) -> int:
    """The size of the block for so many bytes, at most an eighth more and a page."""
    step = max(_PAGE, 1 << max(0, (nbytes - 1).bit_length() - _STEPS.bit_length()))
    return -(-max(nbytes, 1) // step) * step
