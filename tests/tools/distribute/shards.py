"""Work for the tests of map_shards(): importable, so that Ray's workers find it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.tools.distribute import WorkerContext


@dataclass(frozen=True)
class Squares:
    """Squares numbers; some shards take longer, some raise, some kill their worker."""

    raises: frozenset[int] = frozenset()
    kills: frozenset[int] = frozenset()
    delay: float = 0.0

    def __call__(self, context: WorkerContext) -> Callable[[int], tuple[int, np.ndarray]]:
        def square(number: int) -> tuple[int, np.ndarray]:
            time.sleep(self.delay * (number % 5))
            if number in self.kills:
                os._exit(7)
            if number in self.raises:
                raise ValueError(f"{number} is not wanted")
            return os.getpid(), np.full(100, number**2)

        return square


class Stuck:
    """A worker that never comes back from one shard, the first time that it is given to any. `done`: the others."""

    def __init__(self, shard: int) -> None:
        self.shard, self.calls, self.release = shard, 0, threading.Event()
        self.done: list[int] = []

    def __call__(self, context: WorkerContext) -> Callable[[int], int]:
        def work(number: int) -> int:
            if number == self.shard:
                self.calls += 1
                if self.calls == 1:
                    self.release.wait()
            self.done.append(number)
            return number

        return work


class Refusing:
    """A factory that fails in every worker."""

    def __call__(self, context: WorkerContext) -> Callable[[int], int]:
        raise LookupError(f"worker {context.index} has no model")


class Counting:
    """Records how many calls run at once."""

    description = "a counter"

    def __init__(self) -> None:
        self.lock, self.running, self.most, self.closed = threading.Lock(), 0, 0, False

    def __call__(self, number: int) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.01)
        with self.lock:
            self.running -= 1
        return number

    def close(self) -> None:
        self.closed = True
