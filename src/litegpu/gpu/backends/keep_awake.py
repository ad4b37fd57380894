"""Keeping a GPU awake between inferences, so that its clocks do not fall."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("litegpu")

#: Seconds without an inference after which the device is given something small to do, again and again ...
INTERVAL = 2e-3
#: ... for so long after the last inference: a program that stopped needs no fast GPU.
PATIENCE = 2.0


class KeepAwake:
    """Calls `nudge`, which gives the device something small to do, while inferences come at intervals of up to
    PATIENCE. A thread that holds no lock while it sleeps; it begins with the first used()."""

    def __init__(self, nudge: Callable[[], None]) -> None:
        self._nudge = nudge
        self._last = 0.0
        self._wanted = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def used(self) -> None:
        """An inference has just ended."""
        self._last = time.monotonic()
        if not self._wanted.is_set():
            self._wanted.set()
        if self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._work, name="litegpu keep-awake", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it; may be called twice."""
        self._stopped = True
        self._wanted.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _work(self) -> None:
        while not self._stopped:
            self._wanted.wait()
            idle = time.monotonic() - self._last
            if idle > PATIENCE:
                self._wanted.clear()
                if time.monotonic() - self._last <= PATIENCE:  # there was one just now
                    self._wanted.set()
                continue
            if idle >= INTERVAL and not self._stopped:
                try:
                    self._nudge()
                except Exception as error:
                    log.debug("The GPU is no longer kept awake: %s", error)
                    return
            time.sleep(INTERVAL)
