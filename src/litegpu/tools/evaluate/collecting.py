"""A whole evaluation: what is known already is kept, the rest is computed, recorded and shown as it comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from litegpu.errors import InvokeError, OptionError
from litegpu.tools.console import progress
from litegpu.tools.distribute.scheduler import PATIENCE, require_patience
from litegpu.tools.evaluate.choice import DelegateChoice, OpenedModel, open_model
from litegpu.tools.evaluate.decoding import worker_count
from litegpu.tools.evaluate.image_list import Item
from litegpu.tools.evaluate.records import RecordFile, unfinished
from litegpu.tools.evaluate.shard import Job, Placement, Record, map_shard, placement
from litegpu.tools.outputs import require_folder, require_writable
from litegpu.tools.statistics import Statistics
from litegpu.version import __version__

_GPU_BATCH = 32
_SHOWN_EVERY = 0.2  # seconds


@dataclass(frozen=True)
class Running:
    """How an evaluation is run, whatever it measures.

    choice, compare: the delegate, and one to compare it with on the same images.
    batch: images at once; 0: 32 on a GPU, 1 on the CPU. workers: decoding processes; -1: one for each core.
    output: the folder for all that is written; without one nothing is, and nothing can be resumed.
    restart: forget what an interrupted evaluation left there. skip_errors: go on after images that cannot be read.
    ray: None for this process, or a Ray cluster as for map_shards(); all its machines must see the images under the
    same paths. actors: workers there, by default one for each GPU; `workers` are then the decoding processes of each.
    patience: seconds without a sign of life after which a worker process is replaced.
    """

    choice: DelegateChoice = field(default_factory=DelegateChoice)
    compare: DelegateChoice | None = None
    batch: int = 0
    workers: int = -1
    output: str | None = None
    restart: bool = False
    skip_errors: bool = False
    ray: str | None = None
    actors: int | None = None
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        require_patience(self.patience)
        if self.actors is not None and (self.actors < 1 or self.ray is None):
            raise OptionError("The actors must be 1 or more, and are those of --ray")
        if self.batch < 0:
            raise OptionError(f"The batch is {self.batch}; it must be 1 or more, or 0 for a suitable one")
        if self.workers < -1:
            raise OptionError(f"The workers are {self.workers}; they must be 0 or more, or -1 for one per core")
        if self.compare is not None and str(self.compare) == str(self.choice):
            raise OptionError(f"{self.choice} is compared with itself: name another delegate or precision")

    def batch_on(self, choice: DelegateChoice, items: int) -> int:
        """Images at once, of so many in all."""
        return self.batch or (min(_GPU_BATCH, items) if choice.on_gpu else 1)

    def workers_for(self, items: int) -> int:
        return worker_count(items) if self.workers < 0 else self.workers

    @property
    def choices(self) -> tuple[DelegateChoice, ...]:
        return (self.choice, self.compare) if self.compare else (self.choice,)


@dataclass(frozen=True, eq=False)
class Collected:
    """The records on one delegate, one for each item in the items' order. `reused` of them were known before;
    `seconds` is how long the others took, and `rate` their number per second once all was running (0 if too few).
    `problem`: why not all of the records are in the output folder."""

    choice: DelegateChoice
    placement: Placement
    records: tuple[Record, ...]
    reused: int
    seconds: float
    rate: float
    problem: str = ""

    @property
    def good(self) -> tuple[Record, ...]:
        return tuple(r for r in self.records if not r.error)

    @property
    def failed(self) -> tuple[Record, ...]:
        return tuple(r for r in self.records if r.error)

    @property
    def preprocessing(self) -> Statistics:
        return Statistics(tuple(r.preprocessing_us for r in self.good))

    @property
    def inference(self) -> Statistics:
        """Of one image: with a batch, its time divided by the images in it."""
        return Statistics(tuple(r.inference_us for r in self.good))

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "delegate": str(self.choice),
            "device": self.placement.device,
            "delegation": self.placement.delegation.summary(),
            "batch": self.placement.batch,
            "images": len(self.good),
            "reused": self.reused,
            "failed": {r.name: r.error for r in self.failed},
            "seconds": self.seconds,
            "images_per_second": self.rate,
            "preprocessing_us": _summary(self.preprocessing),
            "inference_us": _summary(self.inference),
        }


class ImageError(OptionError):
    """An image cannot be read, and the evaluation was told to stop at such."""


def prepare_output(running: Running, *files: str) -> None:
    """Make sure, before anything is computed, that the output folder and further files ("" for none) can be written.

    Raises OptionError.
    """
    if running.output is not None:
        require_folder(running.output)
    for file in filter(None, files):
        require_writable(file)


def fingerprint(task: str, digest: str, job: Job) -> dict[str, Any]:
    """What has to be the same for records to be of the same evaluation."""
    return {
        "task": task,
        "model": digest,
        "delegate": str(job.choice),
        "max_delegated_partitions": job.choice.max_delegated_partitions,
        "preprocessing": asdict(job.prepare),  # type: ignore[call-overload]
        "litegpu": __version__,
    }


def collect(job: Job, items: Sequence[Item], running: Running, marks: Mapping[str, Any]) -> Collected:
    """Run a job over all items, but for those whose records (of the same `marks`, a fingerprint) are in the output
    folder already.

    Raises ImageError for an input that is missing or cannot be read, unless such are to be skipped, or if none can
    be; whatever stops the
    evaluation, the records so far are kept.
    """
    missing = [item for item in items if item.stamp is None]
    if missing and not running.skip_errors:
        names = ", ".join(item.path for item in missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise ImageError(f"{len(missing)} images are missing: {names} (--on-error=skip goes on without them)")
    job = replace(job, patience=running.patience)
    with _record_file(running, job.choice, marks) as file:
        rest = unfinished(items, file)
        with _pipeline(job, running) as pipeline:
            start = first = time.perf_counter()
            fresh: dict[str, Record] = {}
            warm = 0
            for group in _shown(pipeline.groups(rest), len(items), len(items) - len(rest), str(job.choice)):
                if file is not None:
                    file.append(group)
                fresh |= {r.name: r for r in group}
                if not warm:
                    first, warm = time.perf_counter(), len(fresh)
                if not running.skip_errors:
                    _stop_at_errors(group, items)
            end = time.perf_counter()
            place = pipeline.placement
        if place is None:
            raise InvokeError("No worker answered: all of them died")
        known, problem = (file.records, file.problem) if file is not None else ({}, "")
        records = tuple(fresh.get(item.name) or known[item.name] for item in items)
    if records and all(r.error for r in records):
        raise ImageError(
            f"None of the {len(items)} images can be read, so there is nothing to measure; {items[0].path}: "
            f"{records[0].error}"
        )
    rate = (len(fresh) - warm) / (end - first) if len(fresh) > warm else 0.0
    return Collected(job.choice, place, records, len(items) - len(rest), end - start, rate, problem)


@contextlib.contextmanager
def _record_file(running: Running, choice: DelegateChoice, marks: Mapping[str, Any]) -> Iterator[RecordFile | None]:
    if running.output is None:
        yield None
        return
    path = Path(running.output, f"records-{str(choice).replace('/', '-').replace(':', '')}.jsonl")
    with RecordFile(path, marks, restart=running.restart) as file:
        yield file


class _Pipeline(Protocol):
    """What computes records. `placement` is known, at the latest, when all of them are there."""

    @property
    def placement(self) -> Placement | None: ...

    def groups(self, items: Sequence[Item]) -> Iterator[list[Record]]:
        """The records of all items as they come, some together."""


class _Here:
    """In this process."""

    def __init__(self, job: Job, opened: OpenedModel) -> None:
        self._job, self._opened = job, opened
        self.placement = placement(opened)

    def groups(self, items: Sequence[Item]) -> Iterator[list[Record]]:
        group: list[Record] = []
        for record in map_shard(self._job, items, self._opened):
            group.append(record)
            if len(group) == self._opened.batch:
                yield group
                group = []
        if group:
            yield group


@contextlib.contextmanager
def _pipeline(job: Job, running: Running) -> Iterator[_Pipeline]:
    if running.ray is not None:
        from litegpu.tools.evaluate.cluster import OnRay

        own = replace(job, workers=running.workers)
        yield OnRay(own, running.ray, running.actors)
        return
    opened = open_model(job.model, job.choice, job.batch)
    try:
        yield _Here(job, opened)
    finally:
        opened.loaded.close()


def _shown(groups: Iterator[list[Record]], total: int, done: int, what: str) -> Iterator[list[Record]]:
    """The same with a progress bar."""
    with progress() as bar:
        task = bar.add_task(what, total=total, completed=done)
        last = 0.0
        for group in groups:
            yield group
            done += len(group)
            now = time.perf_counter()
            if now - last >= _SHOWN_EVERY:
                last = now
                bar.update(task, completed=done, refresh=True)


def _stop_at_errors(group: Sequence[Record], items: Sequence[Item]) -> None:
    bad = next((r for r in group if r.error), None)
    if bad is not None:
        path = next(item.path for item in items if item.name == bad.name)
        raise ImageError(f"Cannot read the image {path}: {bad.error} (--on-error=skip goes on without it)")


def _summary(statistics: Statistics) -> dict[str, Any]:
    return {
        "avg": statistics.average,
        "std": statistics.deviation,
        **{name: statistics.percentile(p) for name, p in (("median", 50), ("p95", 95))},
    }
