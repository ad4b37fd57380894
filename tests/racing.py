"""Work in several threads at once, for tests: all begin together, and what one of them raises is raised."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence


def race(work: Callable[[int], object], threads: int = 16, seconds: float = 120) -> None:
    """`work(number)` in so many threads; raises what the first of them raised, or if one takes longer."""
    at_once([functools.partial(work, number) for number in range(threads)], seconds)


def at_once(works: Sequence[Callable[[], object]], seconds: float = 120) -> None:
    """The same for different work."""
    start, failures = threading.Barrier(len(works)), []

    def run(work: Callable[[], object]) -> None:
        try:
            start.wait(60)
            work()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in running), "a thread hangs"
    if failures:
        raise failures[0]
