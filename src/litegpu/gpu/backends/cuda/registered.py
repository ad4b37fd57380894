"""Inputs that the device reads where they are: large arrays of the caller's that come again and again."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable

import numpy as np
from cuda.bindings import driver

from litegpu import fork
from litegpu.background import interrupt_soon, leave
from litegpu.gpu.backends.cuda.base import CudaDeviceBase
from litegpu.gpu.backends.cuda.driver import SUCCESS

#: To register memory takes as long as several copies of it, and now and then half a second: so nobody waits for that.
_TIMES = 4
#: Of less than some megabytes one in so many inferences asks: it takes longer than several copies of those, and to
#: remember an array takes a tenth of what it would gain.
EVERY = 7
#: All memory that is registered for a device, in bytes.
_MOST_BYTES = 1 << 30
#: Arrays that are remembered, so that those that come once leave nothing behind.
_REMEMBERED = 64


class Registered:
    """Of one device. Memory is registered, in the background, as long as the array that owns it lives: before it is
    freed, a weak reference tells. `held`: bytes that are registered, or will be."""

    def __init__(self, device: CudaDeviceBase) -> None:
        self._device = device
        self._seen: dict[int, _Owner] = {}
        self._forks = fork.count()
        self.held = 0
        self._lock: threading.RLock | fork.Refusal = threading.RLock()  # an array may be freed while it is held
        fork.follow(self)

    def has(self, array: np.ndarray) -> bool:
        """Whether the device can read `array`, which owns its memory, where it is: quick, and learns nothing."""
        owner = self._seen.get(id(array))
        return owner is not None and owner.held > 0 and owner.root() is array and self._forks == fork.count()

    def known(self, array: np.ndarray) -> bool:
        """Whether the device can read `array` where it is."""
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        if root.base is not None or not root.flags.owndata:
            return False  # of somebody who may free it in ways that nobody tells
        if self._forks != fork.count():  # parent and child share pages, and get others when they write
            self._forks = fork.count()
            for one in list(self._seen.values()):
                self.forget(one)
        owner = self._seen.get(id(root))
        if owner is None or owner.root() is not root:
            self._remember(root)
            return False
        owner.times += 1
        if owner.times == _TIMES and self.held + root.nbytes <= _MOST_BYTES:
            self._count(root.nbytes)
            leave(functools.partial(self._register, owner, root))
        return owner.held > 0

    def _register(self, owner: _Owner, root: np.ndarray) -> None:
        """`root` lives meanwhile."""
        forks = fork.count()
        with contextlib.ExitStack() as undone:
            undone.callback(self._count, -root.nbytes)
            if self._device.lost:
                return
            with self._device.context:
                (error,) = driver.cuMemHostRegister(owner.address, root.nbytes, 0)
                if error != SUCCESS:
                    return
                if forks != fork.count() or self._seen.get(owner.key) is not owner:
                    driver.cuMemHostUnregister(owner.address)
                    return
            undone.pop_all()
            owner.held = root.nbytes

    def _remember(self, root: np.ndarray) -> None:
        for one in list(self._seen.values()):
            if one.root() is None:  # Ctrl-C came just as it was freed
                self.forget(one)
        if len(self._seen) >= _REMEMBERED:
            for one in list(self._seen.values())[: _REMEMBERED // 2]:
                if not one.held:
                    self._seen.pop(one.key, None)
        if len(self._seen) < _REMEMBERED:
            self._seen[id(root)] = _Owner(self, root)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.held += nbytes

    def _forked(self) -> None:
        self._lock = fork.Refusal()

    def forget(self, owner: _Owner) -> None:
        """Before the memory is freed, in any thread. May be called again if it was interrupted."""
        if owner.held and not self._device.lost and not fork.is_forbidden():
            with self._device.context:
                driver.cuMemHostUnregister(owner.address)
            held, owner.held = owner.held, 0
            self._count(-held)
        owner.held = 0
        self._seen.pop(owner.key, None)


class _Owner:
    """An array that owns memory, without keeping it. `held`: its bytes that are registered."""

    def __init__(self, registered: Registered, root: np.ndarray) -> None:
        self.key, self.address = id(root), root.ctypes.data
        self.times, self.held = 1, 0
        self._registered = registered
        self.root = weakref.ref(root, self._freed)

    def _freed(self, _: object, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """What is raised here is printed and lost, Ctrl-C too; and memory that stays registered would not be what is
        there the next time."""
        try:
            if not finalizing():
                self._registered.forget(self)
        except KeyboardInterrupt:
            self._registered.forget(self)
            interrupt_soon()
