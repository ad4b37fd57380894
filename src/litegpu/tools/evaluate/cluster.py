"""An evaluation on Ray: its items in shards, each worker with a model and decoding processes of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from litegpu.model.reader import read_model
from litegpu.tools.distribute import WorkerContext, WorkerDied, map_shards
from litegpu.tools.evaluate.choice import open_model
from litegpu.tools.evaluate.decoding import Decoder
from litegpu.tools.evaluate.image_list import Item
from litegpu.tools.evaluate.shard import Job, Placement, Record, map_shard, placement

_MOST_SHARD = 256  # items; at the beginning of each the model waits for the first to be decoded
_SHARDS_PER_WORKER = 8  # at least, so that none has much to do when the others are done


@dataclass(frozen=True, eq=False)
class Answer:
    """The records of one shard, and where they were made."""

    records: tuple[Record, ...]
    placement: Placement


@dataclass(frozen=True)
class EvaluationFactory:
    """What makes the workers, for map_shards(). The job's model is sent as bytes; its `workers` are the decoding
    processes of each worker, as many as its share of the cores if that is negative."""

    job: Job

    def __call__(self, context: WorkerContext) -> _Worker:
        return _Worker(self.job, context)


class OnRay:
    """Runs a job on a Ray cluster; `placement` is known when the first records are there."""

    def __init__(self, job: Job, address: str, actors: int | None) -> None:
        self._job = replace(job, model=bytes(read_model(job.model).content))
        self._address, self._actors = address, actors
        self.placement: Placement | None = None

    def groups(self, items: Sequence[Item]) -> Iterator[list[Record]]:
        """The records of all items, some at a time, as they come: whoever keeps them keeps all that is known. An item
        whose workers died has an error."""
        size = _shard_size(len(items), self._job.batch, self._actors)
        shards = [tuple(items[i : i + size]) for i in range(0, len(items), size)] or [()]
        outcomes = map_shards(
            EvaluationFactory(self._job), shards, ray=self._address, workers=self._actors,
            gpus=self._job.choice.on_gpu, concurrency=1, patience=self._job.patience, in_order=False,
        )  # fmt: skip
        try:
            for outcome in outcomes:
                if isinstance(outcome.error, WorkerDied):
                    yield [Record(item.name, item.stamp, {}, str(outcome.error)) for item in outcome.shard]
                elif outcome.error is not None:
                    raise outcome.error
                else:
                    self.placement = self.placement or outcome.value.placement
                    yield list(outcome.value.records)
        finally:
            outcomes.close()


class _Worker:
    """One shard at a time."""

    def __init__(self, job: Job, context: WorkerContext) -> None:
        self._job = job
        self._opened = open_model(job.model, job.choice, job.batch)
        self._placement = placement(self._opened)
        cores = context.threads if context.threads > 1 else 0
        self._decoder = Decoder(
            job.prepare, self._opened.batch, cores if job.workers < 0 else job.workers, patience=job.patience
        )
        self._lock = threading.Lock()
        self.description = self._placement.device

    def __call__(self, items: Sequence[Item]) -> Answer:
        with self._lock:
            records = tuple(map_shard(self._job, items, self._opened, self._decoder))
        return Answer(records, self._placement)

    def close(self) -> None:
        self._decoder.close()
        self._opened.loaded.close()


def _shard_size(items: int, batch: int, actors: int | None) -> int:
    """Whole batches, as many as divide the work evenly."""
    even = items // (_SHARDS_PER_WORKER * (actors or 1))
    return max(batch, min(_MOST_SHARD, even) // batch * batch)
