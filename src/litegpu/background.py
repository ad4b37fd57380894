"""Inferences in the background: one at a time, in a thread of their own."""

from __future__ import annotations

import _thread
import atexit
import concurrent.futures
import contextlib
import functools
import gc
import logging
import math
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from queue import SimpleQueue
from types import FrameType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from litegpu import fork
from litegpu.errors import InvokeError

#: How long a thread that waits for another's inference may sleep before it looks again.
_LOOK_AGAIN = 0.25
#: Signals may be kept waiting as long as this.
_MOMENT = 0.2


R = TypeVar("R")


class InferenceFuture(concurrent.futures.Future[R], Generic[R]):
    """Done when the inference is; its result is None, for a call of a batcher the outputs. Works with
    `concurrent.futures` (wait, as_completed, callbacks)
    and with `await`. An inference that has begun cannot be cancelled."""

    def __init__(self) -> None:
        super().__init__()
        # Future waits with a condition of Python code: a signal can leave its lock taken, and the inference's thread
        # would wait for it for ever. This lock is taken and given back by C code, and open when the future is done.
        self._open = threading.Lock()
        self._open.acquire()
        self.worker: int | None = None  # the thread that it runs in

    def result(self, timeout: float | None = None) -> R:
        try:
            self.wait(timeout)
            return super().result(0)
        finally:
            del self  # what it raises has this frame, and belongs to the future

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.wait(timeout)
        return super().exception(0)

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[R]], object]) -> None:
        """As the original one. Whatever `fn` raises in one of litegpu's threads is logged: a SystemExit would end that
        thread, and with it the calls of others."""
        super().add_done_callback(_outlived(fn))

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._opened()
        return cancelled

    def set_result(self, result: R) -> None:
        super().set_result(result)
        self._opened()

    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(exception)
        self._opened()

    def wait(self, timeout: float | None = None) -> None:
        """Return when the inference is done or cancelled, or the time is over; signals get through."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._state not in _DONE:
            left = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, deadline - time.monotonic())
            if left <= 0:
                return
            if self._open.acquire(timeout=left):
                self._opened()

    def _opened(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open
            self._open.release()

    def __await__(self) -> Generator[Any, None, R]:
        import asyncio  # which takes 30 ms

        return asyncio.wrap_future(self).__await__()


_DONE = ("FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED")


def _outlived(callback: Callable[[Any], object]) -> Callable[[Any], object]:
    """A callback that does not end the thread which calls it; the original Future sees to Exceptions alone."""

    def call(future: concurrent.futures.Future[Any]) -> None:
        try:
            callback(future)
        except Exception:
            raise
        except BaseException:
            if threading.current_thread() is threading.main_thread():  # Ctrl-C
                raise
            logging.getLogger("concurrent.futures").exception("exception calling callback for %r", future)

    return call


class Background:
    """Runs what it is given, one after the other, in a thread that exists from the first time on.

    Whatever raises in the middle of start() or settle(), nothing is under way that settle() does not know of."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], InferenceFuture[None]] | None] | None = None
        self.running: InferenceFuture[None] | None = None  # as far as settle() has not waited for it
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> InferenceFuture[None]:
        """The future of `work`, which begins when what is running is done."""
        self.settle()
        future: InferenceFuture[None] = InferenceFuture()
        future.add_done_callback(functools.partial(_forget, weakref.ref(self)))
        self.running = future
        try:
            self._begun().put((work, future))
        except BaseException:
            future.cancel()  # unless it runs already
            raise
        return future

    def settle(self) -> None:
        """Wait until nothing runs. Whether it failed is for those to know who have the future."""
        running = self.running
        if running is None or threading.get_ident() == running.worker or threading.current_thread() is self._thread:
            return
        running.wait()
        self.running = None

    def close(self, *, wait: bool = True) -> None:
        """End the thread, when what is running is done, and without `wait` do not wait for that; may be called
        twice."""
        if wait:
            self.settle()
        thread, self._thread = self._thread, None
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.put(None)
        # the inference itself may hold the last reference to what this belongs to
        if wait and thread is not None and thread is not threading.current_thread():
            thread.join()

    def forked(self) -> None:
        """In the child of a fork: the thread is in the parent alone, and so is what it does."""
        running, self.running, self._jobs, self._thread = self.running, None, None, None
        if running is not None and not running.done():
            running._condition = threading.Condition()  # the thread may have held its lock
            running.set_exception(
                InvokeError("The process was forked while the inference ran: it goes on in the parent")
            )

    def _begun(self) -> SimpleQueue[tuple[Callable[[], None], InferenceFuture[None]] | None]:
        jobs = self._jobs
        if jobs is None:
            jobs = SimpleQueue()
            # not a thread that the end of the process waits for, as it ends with the last reference to this only
            thread = threading.Thread(target=_labour, args=(jobs,), name="litegpu inference", daemon=True)
            thread.start()
            self._jobs, self._thread = jobs, thread
            _living.add(self)
        return jobs


class Patient:
    """Calls of native code that may take long and tell nothing meanwhile, one at a time.

    On the main thread signals would have to wait for their end; so there a call that took long the last time, or may
    for all that is known, is made in a thread, which the main thread waits for. When that is interrupted the call goes
    on, and the next one, and settle(), waits for its end."""

    def __init__(self) -> None:
        self._background = Background()
        self._seconds = math.inf  # that the last call took
        fork.follow(self)

    def call(self, work: Callable[[], None]) -> None:
        """`work()`, and what it raises."""
        self._background.settle()
        if self._seconds < _MOMENT or threading.current_thread() is not threading.main_thread():
            self._timed(work)
        else:
            self._background.start(lambda: self._timed(work)).result()
            self._background.close()

    def settle(self) -> None:
        """Wait for a call that an interruption has left."""
        self._background.settle()

    def __del__(self) -> None:
        if hasattr(self, "_background"):
            self._background.close(wait=False)

    def _forked(self) -> None:
        self._background.forked()

    def _timed(self, work: Callable[[], None]) -> None:
        start = time.perf_counter()
        work()
        self._seconds = time.perf_counter() - start


def _forget(background: weakref.ref[Background], done: concurrent.futures.Future[Any]) -> None:
    """Nothing runs any more: what it raised may have a frame that whatever has the background is in."""
    its = background()
    if its is not None and its.running is done:
        its.running = None


_living: WeakSet[Background] = WeakSet()


#: Threads that finish what an interruption has left.
_left: set[threading.Thread] = set()
#: Functions that Python calls as something is freed: ours, and those of its own modules; seconds in which one returns.
_FINALIZERS = ("__del__", "_freed")
_WEAK, _OF_WEAK, _SOON = ("weakref", "_weakrefset"), ("remove", "_remove", "_cb", "__call__"), 0.001
#: Seconds for which an interrupt that was raised is watched: whether something has swallowed it; and after which a
#: signal that Python has not seen is sent again, a few times.
_WATCHED, _UNSEEN = 0.25, (0.05, 0.1, 0.2, 0.4, 0.8)


def leave(work: Callable[[], None]) -> None:
    """Do in a thread what nobody here waits for, but the end of the process does."""

    def finish() -> None:
        try:
            work()
        finally:
            _left.discard(threading.current_thread())

    thread = threading.Thread(target=finish, name="litegpu finishing", daemon=True)
    _left.add(thread)
    thread.start()


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether it runs in a finalizer, in what a weak reference calls, or in what is called as garbage is collected (JAX
    has such a function): what is raised there is printed, and lost."""
    of_collector = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        name = frame.f_code.co_name
        if name in _FINALIZERS or (name in _OF_WEAK and frame.f_globals.get("__name__") in _WEAK):
            return True
        if frame.f_code in of_collector:
            return True
        frame = frame.f_back
    return False


def interrupt_soon() -> None:
    """Raise KeyboardInterrupt in the main thread once that is in no finalizer any more: for one that has caught it.
    Where it is swallowed all the same, as one may begin just then, it is raised again."""
    unseen = _looks_for_interrupt()

    def interrupt() -> None:
        main, lost = threading.main_thread(), threading.Event()
        before = sys.unraisablehook

        def told(unraisable: Any) -> None:
            if unraisable.exc_type is KeyboardInterrupt and threading.current_thread() is main:
                lost.set()
            else:
                before(unraisable)

        sys.unraisablehook = told
        try:
            raise_it(main.ident or 0)
            # A signal that comes just as the main thread begins to wait does not end the wait, nor is it seen before.
            for seconds in _UNSEEN:
                if not unseen(seconds):
                    break
                raise_it(main.ident or 0)
            while lost.wait(_WATCHED):
                lost.clear()
                raise_it(main.ident or 0)
        finally:
            if sys.unraisablehook is told:
                sys.unraisablehook = before

    def raise_it(main: int) -> None:
        # Twice, as the main thread lets us look just before it waits for something.
        clear = 0
        while clear < 2:
            clear = 0 if in_finalizer(sys._current_frames().get(main)) else clear + 1
            time.sleep(_SOON)
        if hasattr(signal, "pthread_kill") and callable(signal.getsignal(signal.SIGINT)):
            signal.pthread_kill(main, signal.SIGINT)  # which ends a sleep as well
        else:
            _thread.interrupt_main()

    leave(interrupt)


def _looks_for_interrupt() -> Callable[[float], bool]:
    """A function that waits for so many seconds, at most, until the main thread has handled the next interrupt, as it
    would without this: whether it has not, for all that can be known."""
    usual, seen = signal.getsignal(signal.SIGINT), threading.Event()
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        return lambda _: False

    def handle(number: int, frame: FrameType | None) -> None:
        seen.set()
        if signal.getsignal(signal.SIGINT) is handle:
            signal.signal(signal.SIGINT, usual)
        usual(number, frame)

    try:
        signal.signal(signal.SIGINT, handle)
    except ValueError:  # in a subinterpreter
        return lambda _: False
    return lambda seconds: not seen.wait(seconds) and signal.getsignal(signal.SIGINT) is handle


@atexit.register
def settle_all() -> None:
    """Native code must not be at work while the process is taken down."""
    for one in list(_living):
        one.settle()
    for thread in list(_left):
        thread.join()


def _labour(jobs: SimpleQueue[tuple[Callable[[], None], InferenceFuture[None]] | None]) -> None:
    while (job := jobs.get()) is not None:
        _run(*job)
        del job  # the last reference, perhaps, to what the jobs come from


def _run(work: Callable[[], None], future: InferenceFuture[None]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    future.worker = threading.get_ident()
    try:
        work()
    except BaseException as error:
        future.set_exception(error)
        del future  # likewise
    else:
        future.set_result(None)
