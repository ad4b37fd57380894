"""Inferences in the background: one at a time, in a thread of their own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Generator
from typing import Any


class InferenceFuture(concurrent.futures.Future[None]):
    """Done when the inference is; its result is None. Works with `concurrent.futures` (wait, as_completed, callbacks)
    and with `await`. An inference that has begun cannot be cancelled."""

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self).__await__()


class Background:
    """Runs what it is given, one after the other, in a thread that exists from the first time on."""

    def __init__(self) -> None:
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._running: InferenceFuture | None = None
        self._worker: int | None = None

    def start(self, work: Callable[[], None]) -> InferenceFuture:
        """The future of `work`, which begins when what is running is done."""
        self.settle()
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, "litegpu inference")
        future = self._running = InferenceFuture()
        self._executor.submit(self._run, work, future)
        return future

    def settle(self) -> None:
        """Wait until nothing runs. Whether it failed is for those to know who have the future."""
        running = self._running
        if running is None or threading.get_ident() == self._worker:
            return
        concurrent.futures.wait([running])
        self._running = None

    def close(self) -> None:
        """End the thread; may be called twice."""
        self.settle()
        executor, self._executor = self._executor, None
        if executor is not None:
            # the inference itself may hold the last reference to what this belongs to
            executor.shutdown(wait=threading.get_ident() != self._worker)

    def _run(self, work: Callable[[], None], future: InferenceFuture) -> None:
        self._worker = threading.get_ident()
        if not future.set_running_or_notify_cancel():
            return
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
