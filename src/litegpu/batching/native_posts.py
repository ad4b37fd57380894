"""Calls of a batcher that tasks of asyncio await, through native code: no thread of Python's has a part in them.

native/posts.c copies rows, runs batches, and tells the event loop by a file that it watches; then one call of the loop
answers all who were in the batches that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from litegpu.background import leave
from litegpu.batching.native_rows import DONE, FULL, NEEDS_SLAB, OFF, Call, RowsFunctions

#: Calls that are fetched at a time.
_TOGETHER = 256
#: Seconds after which a task that waits for room looks again; it may be threads that make it.
_LOOK_AGAIN = 0.005


class PostedTo(Protocol):
    """What posts use of NativeCalls. `raises`: rather than wait for room."""

    rows: int
    functions: RowsFunctions
    raises: bool

    def new_call(self) -> Call: ...

    def spare(self, call: Call) -> None: ...

    def grow(self, home: int) -> None: ...

    def compute(self, number: int) -> None: ...


class _Inbox:
    """What one event loop is told, and the tasks of it that wait for room."""

    def __init__(self, posts: Posts, loop: asyncio.AbstractEventLoop) -> None:
        """Raises NotImplementedError if the loop watches no files."""
        self.hopeful: deque[asyncio.Future[None]] = deque()
        self._functions = posts.functions
        self.file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.address = 0
        try:
            self.address = self._functions.inbox(self.file)
            if not self.address:
                raise MemoryError("no memory for the batcher")
            loop.add_reader(self.file, posts.fetch, self)
        except BaseException:
            self.__del__()
            raise

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        address, self.address = self.address, 0
        if address:
            self._functions.free_inbox(address)
        if self.file >= 0:
            close(self.file)
            self.file = -1


class Posts:
    """Of one batcher; its methods are for threads with an event loop."""

    def __init__(self, calls: PostedTo, threads: int) -> None:
        self._calls = calls
        self.functions = calls.functions
        self._inboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Inbox] = WeakKeyDictionary()
        #: By the address of the call: what is to be told, and what has to live until then.
        self._posted: dict[int, tuple[asyncio.Future[int], _Inbox, Call, Sequence[Any], Sequence[Any]]] = {}
        self._found = ctypes.c_int64 * (2 * _TOGETHER)
        self.works = bool(self.functions.start_posts(calls.rows, threads))
        self._post = self.functions.poster(calls.rows)

    async def outcome(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, int]:
        """What a call with these arrays comes to, after which the outputs are filled or not, and the number of its
        batch; the number of FULL if it did not get in, and of OFF if it has to be made in Python."""
        loop = asyncio.get_running_loop()
        inbox = self._inboxes.get(loop)
        if inbox is None:
            try:
                inbox = self._inboxes[loop] = _Inbox(self, loop)
            except NotImplementedError:
                return OFF, 0
        call = self._calls.new_call()
        future: asyncio.Future[int] = loop.create_future()
        waited = False
        while True:
            if not waited and any(not told.done() for told in inbox.hopeful):  # they came first
                waited = await self._room(inbox, loop, waited)
            self._posted[call.address] = (future, inbox, call, inputs, outputs)
            found = self._post(call.address, inbox.address, *inputs, *outputs)
            if found == DONE:
                break
            del self._posted[call.address]
            if found == NEEDS_SLAB:
                self._calls.grow(call.told)
            elif found == FULL and not self._calls.raises:
                waited = await self._room(inbox, loop, waited)
            else:
                return found, 0
        found, serial = await future, call.serial
        self._calls.spare(call)
        return found, serial

    async def _room(self, inbox: _Inbox, loop: asyncio.AbstractEventLoop, waited: bool) -> bool:
        """Until there may be some. Who has waited before comes first. True."""
        told: asyncio.Future[None] = loop.create_future()
        (inbox.hopeful.appendleft if waited else inbox.hopeful.append)(told)
        timer = loop.call_later(_LOOK_AGAIN, _tell, told)
        try:
            await told
        finally:
            timer.cancel()
        return True

    def fetch(self, inbox: _Inbox) -> int:
        """Tell the loop's tasks what has come; how many these were."""
        found = self._found()
        count = self.functions.fetch(inbox.address, found, _TOGETHER)
        for i in range(0, 2 * count, 2):
            future = self._posted.pop(found[i])[0]
            if not future.done():
                future.set_result(found[i + 1])
        for _ in range(count):
            while inbox.hopeful and inbox.hopeful[0].done():
                inbox.hopeful.popleft()
            if inbox.hopeful:
                inbox.hopeful.popleft().set_result(None)
        number = self.functions.handed(self._calls.rows)
        if number >= 0:
            leave(functools.partial(self._calls.compute, number))
        return int(count)

    def close(self) -> None:
        """No call is under way any more: let the loops go."""
        for loop, inbox in list(self._inboxes.items()):
            with contextlib.suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._leave, loop, inbox)

    def _leave(self, loop: asyncio.AbstractEventLoop, inbox: _Inbox) -> None:
        while self.fetch(inbox):
            pass
        loop.remove_reader(inbox.file)


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
