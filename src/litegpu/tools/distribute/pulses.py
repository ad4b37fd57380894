"""Signs of life of Ray actors: who has stopped answering is told apart from who has much to do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

_LOOKS = 4  # a worker is asked so often before it counts as silent


@dataclass
class _Pulse:
    """Of one actor. `asked`: what it was asked last, None once it has answered; `silence`: seconds since then that
    somebody watched. `process` and `machine` are known from its first answer on."""

    actor: Any
    asked: Any = None
    silence: float = 0.0
    process: int = 0
    machine: str = ""


class Pulses:
    """Asks each actor, in a thread of its own there, again and again. An actor counts as silent after `patience`
    seconds without an answer, but not before its first one: Ray may take its time to place it, and to start it. Only
    time in which this process was looking counts, so that neither a slow consumer nor a suspended computer is taken for
    silence."""

    def __init__(self, ray: Any, patience: float) -> None:
        self.patience = patience
        self.interval = patience / _LOOKS
        self._ray = ray
        self._found: dict[int, _Pulse] = {}
        self._looked = time.monotonic()

    @property
    def asked(self) -> list[Any]:
        """References to answers that are due."""
        return [pulse.asked for pulse in self._found.values() if pulse.asked is not None]

    def begin(self, worker: int, actor: Any) -> None:
        """Watch an actor, under the number of its worker."""
        self._found[worker] = _Pulse(actor)
        self._ask(self._found[worker])

    def look(self) -> None:
        """Take the answers that have come, and ask again those who were silent for a while."""
        now = time.monotonic()
        watched, self._looked = min(now - self._looked, self.interval), now
        due = self.asked
        ready, _ = self._ray.wait(due, num_returns=len(due), timeout=0) if due else ([], [])
        answered = set(ready)
        for pulse in self._found.values():
            if pulse.asked in answered:
                with contextlib.suppress(self._ray.exceptions.RayError):  # a death is told by what it was working on
                    pulse.process, pulse.machine = self._ray.get(pulse.asked)
                pulse.asked, pulse.silence = None, 0.0
                continue
            pulse.silence += watched
            if pulse.asked is None and pulse.silence >= self.interval:
                self._ask(pulse)

    def silent(self) -> list[int]:
        """The workers that have not answered for too long."""
        return [
            worker
            for worker, pulse in self._found.items()
            if pulse.process and pulse.asked is not None and pulse.silence > self.patience
        ]

    def kill(self, worker: int) -> None:
        """End the process of a worker on this machine: one that is stopped does not hear what Ray tells it."""
        pulse = self._found[worker]
        if pulse.process and pulse.machine == self._ray.get_runtime_context().get_node_id():
            with contextlib.suppress(OSError):
                os.kill(pulse.process, signal.SIGKILL)

    def _ask(self, pulse: _Pulse) -> None:
        pulse.asked = pulse.actor.pulse.options(concurrency_group="pulse").remote()
