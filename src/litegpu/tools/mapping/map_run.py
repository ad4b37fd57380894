"""Runs a map from its inputs to its output, and reports what became of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from litegpu.background import Background
from litegpu.device_choice import every_device
from litegpu.errors import LiteGpuError, OptionError
from litegpu.model.reader import read_model
from litegpu.tools.console import print_table, progress
from litegpu.tools.distribute import Outcome, map_shards
from litegpu.tools.distribute.scheduler import PATIENCE
from litegpu.tools.images import Normalization
from litegpu.tools.mapping.batched import Interface, default_batch, interface_of, plan_batch
from litegpu.tools.mapping.output import Output
from litegpu.tools.mapping.sources import Chunk, open_source
from litegpu.tools.mapping.worker import ChunkResult, MapFactory

_CHUNK_ITEMS = 64
_CHUNK_BYTES = 32 << 20
_LISTED_FAILURES = 20


@dataclass(frozen=True)
class Failure:
    """An input without a result."""

    index: int
    input: str
    error: str


@dataclass(frozen=True)
class MapReport:
    """What became of a map. Of `inputs`, `resumed` were answered by an earlier run; of the others `failed` have an
    error instead of results, the first of which are `failures`. `retried` inputs were given to a second worker because
    the first died. `batch` inputs were computed at a time; `batch_note` says why not more. `seconds` include
    the start."""

    model: str
    output: str
    inputs: int
    resumed: int
    failed: int
    failures: tuple[Failure, ...]
    retried: int
    batch: int
    batch_note: str
    workers: tuple[str, ...]
    seconds: float

    @property
    def throughput(self) -> float:
        """Inputs answered per second by this run."""
        return (self.inputs - self.resumed) / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self) | {"throughput": self.throughput}


def map_model(
    model: str | os.PathLike[str],
    inputs: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    device: str = "auto",
    precision: str = "float32",
    arithmetic: str = "auto",
    batch: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    patience: float = PATIENCE,
    on_error: str = "fail",
    resume: bool = False,
    overwrite: bool = False,
    normalization: Normalization | None = None,
    dequantize: bool = False,
    columns: Mapping[str, str] | None = None,
    num_threads: int | None = None,
) -> MapReport:
    """Run a model on every input and write one row of Parquet for each, in their order.

    inputs: folders (images and .npy files, one item each), image files, .npy files (an item, or rows of items), Parquet
        files, and .txt files with the name of a file in each line.
    output: a Parquet file (NAME.parquet) or a folder of them.
    device, precision, num_threads: as for `litegpu.load`. With "cuda:all" there is a process for each GPU.
    arithmetic: as for GpuDelegate.
    batch: inputs computed at a time, where the model can be had for that; by default up to 64.
    workers, ray, patience: as for `map_shards`; with Ray, every machine must see the inputs under the same paths.
    on_error: "fail" raises OptionError when an input turns out to be unusable, and keeps the rows that were computed;
        "skip" records the error in its row.
    resume: compute only the rows that an interrupted run has not written; the model, the inputs and the options must
        be the same. overwrite: remove what is there.
    normalization: of pixels; by default a guess by the input's type.
    dequantize: store real numbers instead of quantized ones.
    columns: input's name -> column of Parquet; "" is the name of the only input.

    Raises LiteGpuError; what is wrong with the model, the options, the output or a name of an input is found before
    work starts.
    """
    begun = time.perf_counter()
    if on_error not in ("skip", "fail"):
        raise OptionError(f'on_error is {on_error!r}; it must be "skip" or "fail"')
    if num_threads is not None and num_threads < 1:
        raise OptionError(f"num_threads is {num_threads}; it must be at least 1")
    devices = () if ray is not None else every_device(device)
    if len(devices) > 1 and workers is None:
        workers = len(devices)
    interface = interface_of(os.fspath(model))
    source = open_source(inputs, interface, columns or {})
    plan = plan_batch(os.fspath(model), interface, default_batch(interface, source.count) if batch is None else batch)
    content = bytes(read_model(os.fspath(model)).content)
    factory = MapFactory(
        model=content,
        interface=interface,
        plan=plan,
        device=device,
        precision=precision,
        arithmetic=arithmetic,
        num_threads=num_threads,
        normalization=normalization,
        dequantize=dequantize,
    )
    ports = factory.stored()
    origin = {
        "model": hashlib.sha256(content).hexdigest(),
        "inputs": source.digest,
        "count": source.count,
        "options": f"{precision} {arithmetic} {normalization} {dequantize}",
    }
    with contextlib.closing(Output(output, ports, origin)) as table:
        resumed = table.open(resume=resume, overwrite=overwrite)
        run = _Run(table, on_error)
        if resumed < source.count:
            chunks = source.chunks(_chunk_size(interface, plan.batch), table.missing(source.count))
            outcomes = map_shards(
                factory, chunks, workers=workers, ray=ray, gpus=device != "cpu", patience=patience, in_order=False,
                stop=run.stop, processes=len(devices) > 1,
            )  # fmt: skip
            _apart(lambda: run.all_of(outcomes, source.count), run.stop)
        if table.rows != source.count:
            raise OptionError(
                f"There were {source.count} inputs at first and {table.rows} in the end: something changed them "
                "meanwhile"
            )
        table.finish()
    return MapReport(
        model=os.fspath(model),
        output=os.fspath(output),
        inputs=source.count,
        resumed=resumed,
        failed=run.failed,
        failures=tuple(run.failures),
        retried=run.retried,
        batch=plan.batch,
        batch_note=plan.note,
        workers=tuple(run.workers),
        seconds=time.perf_counter() - begun,
    )


def print_report(report: MapReport) -> None:
    """The report for people, on stdout."""
    done = report.inputs - report.resumed
    print(
        f"{report.output}: {report.inputs} rows" + (f", {report.resumed} of an earlier run" if report.resumed else "")
    )
    print(f"{done} inputs in {report.seconds:.1f} s, {report.throughput:.1f} per second, in batches of {report.batch}")
    if report.batch_note:
        print(f"not in larger batches: {report.batch_note}")
    for worker in report.workers:
        print(f"worker: {worker}")
    if report.retried:
        print(f"{report.retried} inputs were answered by a second worker, because the first died")
    if report.failed:
        print(f"\n{report.failed} {'input has' if report.failed == 1 else 'inputs have'} an error and no results:")
        print_table(("index", "input", "error"), [(str(f.index), f.input, f.error) for f in report.failures])
        if report.failed > len(report.failures):
            print(f"and {report.failed - len(report.failures)} more")


def _apart(work: Callable[[], None], stop: threading.Event) -> None:
    """Do the work in a thread of its own, which no signal interrupts in the middle of what it keeps. An interruption of
    this one sets `stop`, and waits until the work has ended for that."""
    thread = Background()
    try:
        thread.start(work).result()
    except BaseException:
        stop.set()
        thread.settle()
        raise
    finally:
        thread.close(wait=False)


class _Run:
    """What has happened so far. `stop`: whether to end, with what is finished by then."""

    def __init__(self, table: Output, on_error: str) -> None:
        self._table = table
        self._on_error = on_error
        self._fatal: Failure | None = None
        self.stop = threading.Event()
        self.failed = 0
        self.failures: list[Failure] = []
        self.retried = 0
        self.workers: dict[str, None] = {}

    def all_of(self, outcomes: Iterator[Outcome], count: int) -> None:
        """Write the rows of all chunks as they come. What ends it early is raised when all that is finished is kept."""
        problem: Exception | None = None
        with progress() as bar:
            task = bar.add_task("map", total=count, completed=self._table.rows)
            try:
                for outcome in outcomes:
                    try:
                        self._add(outcome)
                    except LiteGpuError as error:
                        problem = problem or error
                        self.stop.set()
                    bar.update(task, completed=self._table.rows)
                    bar.refresh()
            finally:
                self._table.flush()
        if problem is not None:
            raise problem
        if self._fatal is not None:
            raise OptionError(
                f"Input {self._fatal.index}, {self._fatal.input}: {self._fatal.error}. What was computed is written: "
                "correct it and give --resume, or give --on-error=skip, which records the error and goes on"
            )

    def _add(self, outcome: Outcome) -> None:
        """The rows of a chunk."""
        chunk: Chunk = outcome.shard
        result: ChunkResult = outcome.value
        if outcome.error is not None:
            result = self._without_results(chunk, outcome.error)
        failures = [Failure(chunk.start + i, chunk.names[i], error) for i, error in enumerate(result.errors) if error]
        if failures and self._on_error == "fail":
            for at, good in result.good():
                self._table.append(chunk.start + at, chunk.names[at : at + len(good.errors)], good)
            self._fatal = min(failures[0], self._fatal or failures[0], key=lambda failure: failure.index)
            self.stop.set()
        else:
            self._table.append(chunk.start, chunk.names, result)
            self._note(failures)
        self.workers.setdefault(outcome.worker)
        if outcome.attempts > 1:
            self.retried += len(chunk.names)

    def _without_results(self, chunk: Chunk, error: Exception) -> ChunkResult:
        """What stands for a chunk that workers died of; any other exception is raised: it is no input's fault."""
        from litegpu.tools.distribute import WorkerDied

        if isinstance(error, LiteGpuError) and not isinstance(error, WorkerDied):
            raise error
        if not isinstance(error, WorkerDied):
            raise LiteGpuError(f"{chunk.names[0]} and what follows: {type(error).__name__}: {error}") from error
        return self._table.nothing(len(chunk.names), str(error))

    def _note(self, failures: Sequence[Failure]) -> None:
        self.failed += len(failures)
        self.failures = sorted([*self.failures, *failures], key=lambda failure: failure.index)[:_LISTED_FAILURES]


def _chunk_size(interface: Interface, batch: int) -> int:
    """Inputs given to a worker at a time: whole batches, about 64 inputs but no more than 32 MiB of arrays."""
    fitting = max(1, _CHUNK_BYTES // max(1, interface.bytes))
    batches = max(1, min(_CHUNK_ITEMS, fitting) // batch)
    return batches * batch
