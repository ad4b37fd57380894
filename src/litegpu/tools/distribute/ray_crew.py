"""Workers that are Ray actors: one per GPU of the cluster, each in a process of its own, replaced when it dies."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from litegpu.errors import OptionError
from litegpu.tools.distribute.crew import Event, Factory, Finished, Lost, Started, WorkerContext, describe, portable
from litegpu.tools.distribute.pulses import Pulses

log = logging.getLogger("litegpu")

#: Seconds without any event after which the user is told about workers that Ray has not placed.
_PATIENCE = 30.0
_START = -1  # stands for a ticket


class RayCrew:
    """Actors of a Ray cluster, which is started on this machine if there is none. Satisfies crew.Crew."""

    def __init__(
        self, factory: Factory, *, address: str, workers: int | None, gpus: bool, concurrency: int, patience: float
    ) -> None:
        self._ray = _import_ray()
        self._is_ours = _join(self._ray, address)
        try:
            resources = self._ray.cluster_resources()
            cpus, found = max(1, int(resources.get("CPU", 1))), int(resources.get("GPU", 0)) if gpus else 0
            self.count = _count(workers, found, cpus, gpus)
            self._options = {
                # More workers than cores are placed all the same; the sum of their shares must not exceed the cores.
                "num_cpus": 1 if self.count <= cpus else math.floor(1000 * cpus / self.count) / 1000,
                "num_gpus": 1 if found else 0,
                "max_concurrency": concurrency,
                "max_restarts": 0,
                "max_task_retries": 0,
            }
            threads = max(1, cpus // self.count)
            self._contexts = [WorkerContext(i, self.count, threads) for i in range(self.count)]
            self._factory = self._ray.put(factory)
            self._actors: list[Any] = [None] * self.count
            self._under_way: dict[Any, tuple[int, int]] = {}  # reference -> worker, ticket
            self._warned = False
            self._idle = 0.0
            self._pulses = Pulses(self._ray, patience)
            for worker in range(self.count):
                self._start(worker)
        except BaseException:
            self.close()
            raise

    def submit(self, worker: int, ticket: int, shard: Any) -> None:
        self._under_way[self._actors[worker].work.remote(shard)] = worker, ticket

    def wait(self, timeout: float) -> Sequence[Event]:
        ready = self._ready(timeout)
        events: list[Event] = []
        lost: dict[int, str] = {}
        for reference in ready:
            worker, ticket = self._under_way.pop(reference)
            try:
                value, error = self._ray.get(reference)
            except self._ray.exceptions.RayError as failure:
                lost.setdefault(worker, _first_line(failure))
                continue
            if ticket != _START:
                events.append(Finished(worker, ticket, value, error))
            elif error is not None:
                events.append(Lost(worker, str(error), error))
            else:
                events.append(Started(worker, value))
        for worker in self._pulses.silent():
            lost.setdefault(worker, f"it gave no sign of life for {self._pulses.patience:g} s")
        for worker, cause in lost.items():
            log.warning("worker %d is replaced: %s", worker, cause)
            events.append(Lost(worker, cause))
            self.replace(worker)
        return events

    def replace(self, worker: int) -> None:
        self._pulses.kill(worker)
        self._ray.kill(self._actors[worker])  # it may be out of reach rather than dead
        self._under_way = {r: place for r, place in self._under_way.items() if place[0] != worker}
        self._start(worker)

    def _ready(self, timeout: float) -> list[Any]:
        """References to what has been done. Workers are asked for signs of life meanwhile."""
        awaited = 0.0
        while True:
            step = min(self._pulses.interval, max(0.0, timeout - awaited))
            begun = time.monotonic()
            ready, _ = self._ray.wait([*self._under_way, *self._pulses.asked], num_returns=1, timeout=step)
            awaited += time.monotonic() - begun
            self._pulses.look()
            if not self._pulses.silent() and not any(r in self._under_way for r in ready) and awaited < timeout:
                continue
            self._idle = 0.0 if ready else self._idle + awaited
            self._warn()
            found, _ = self._ray.wait(list(self._under_way), num_returns=len(self._under_way), timeout=0)
            return list(found)

    def close(self, *, wait: bool = True) -> None:
        for actor in getattr(self, "_actors", ()):
            if actor is not None:
                self._ray.kill(actor)
        self._under_way = {}
        if self._is_ours:
            self._ray.shutdown()

    def _start(self, worker: int) -> None:
        actor = self._ray.remote(concurrency_groups={"pulse": 1})(_Actor)
        self._actors[worker] = actor.options(**self._options).remote()
        reference = self._actors[worker].start.remote(self._factory, self._contexts[worker])
        self._under_way[reference] = worker, _START
        self._pulses.begin(worker, self._actors[worker])

    def _warn(self) -> None:
        if self._idle < _PATIENCE:
            return
        waiting = sum(ticket == _START for _, ticket in self._under_way.values())
        if waiting and not self._warned:
            self._warned = True
            log.warning(
                "Ray has not started %d of %d workers yet; it has %s and they need %s each",
                waiting, self.count, self._ray.available_resources(), self._options,
            )  # fmt: skip


class _Actor:
    """One worker in its process."""

    def __init__(self) -> None:
        self._function: Callable[[Any], Any] | None = None

    def start(self, factory: Factory, context: WorkerContext) -> tuple[str, Exception | None]:
        """What the worker is, and what the factory raised. Not in the constructor, whose errors Ray reports as a death
        of the actor."""
        ray = _import_ray()
        if ray.get_gpu_ids():  # Ray shows the process no other GPU
            context = replace(context, gpu=0)
        try:
            self._function = factory(context)
        except Exception as error:
            return "", portable(error)
        return describe(self._function), None

    def pulse(self) -> tuple[int, str]:
        """A sign of life, whatever the other threads are doing: the process, and the machine that it is on."""
        return os.getpid(), _import_ray().get_runtime_context().get_node_id()

    def work(self, shard: Any) -> tuple[Any, Exception | None]:
        """The result, or what the function raised."""
        assert self._function is not None
        try:
            return self._function(shard), None
        except Exception as error:
            return None, portable(error)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns about its own change
    try:
        import ray
    except ImportError as error:
        raise OptionError(f"Ray is not installed: pip install 'litegpu[ray]' ({error})") from None
    return ray


def _join(ray: Any, address: str) -> bool:
    """Connect to a cluster; true if that is a new one, to be ended afterwards."""
    if ray.is_initialized():
        return False
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        # Without an address Ray joins the cluster of RAY_ADDRESS or the one running on this machine, or starts one.
        if address in ("auto", "local"):
            ray.init(address=None if address == "auto" else "local", include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise OptionError(f"The Ray cluster {address!r} cannot be joined: {_first_line(error)}") from error
    return True


def _count(workers: int | None, found: int, cpus: int, gpus: bool) -> int:
    """How many workers: as asked for, one per GPU, one on GPUs that Ray does not know of, or one per core."""
    if workers is None:
        return found or (1 if gpus else cpus)
    if workers < 1:
        raise OptionError(f"workers is {workers}; it must be at least 1")
    if found and workers > found:
        raise OptionError(f"workers is {workers}, but Ray's cluster has {found} GPUs, and each worker needs one")
    return workers


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
