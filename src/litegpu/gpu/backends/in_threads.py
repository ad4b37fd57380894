"""Long native calls, such as compilers', in threads: the one that waits for them can be interrupted."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item], most: int | None = None) -> list[Result]:
    """`work(item)` of each item, in their order, in up to `most` threads (one for each processor). Raises the first
    error.

    Never in the caller's own thread, where a native call would keep signals for as long as it takes: when the caller is
    interrupted, what has begun ends by itself and the rest is left out. A ThreadPoolExecutor waits for its threads when
    it is left, and its locks, which are Python code, can stay locked after a signal; the queues here are C code, where
    a signal comes before or after."""
    todo = deque(enumerate(items))
    count = len(todo)
    answers: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def labour() -> None:
        while True:
            try:
                place, item = todo.popleft()
            except IndexError:
                return
            try:
                answers.put((place, work(item), None))
            except BaseException as error:
                answers.put((place, None, error))

    results: list[Any] = [None] * count
    try:
        for _ in range(min(count, most or os.cpu_count() or 1)):
            threading.Thread(target=labour, name="litegpu native call").start()
        for _ in range(count):
            place, results[place], error = answers.get()
            if error is not None:
                raise error
    finally:
        todo.clear()
    return results
