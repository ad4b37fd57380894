"""One shard of an evaluation: inputs -> decoded -> model -> a record for each input, with nothing written anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.delegates.report import DelegationReport
from litegpu.report import GraphNode, graph_nodes
from litegpu.tools.distribute.scheduler import PATIENCE
from litegpu.tools.evaluate.choice import DelegateChoice, OpenedModel, open_model
from litegpu.tools.evaluate.decoding import Decoder, Prepare, decoded_batches
from litegpu.tools.evaluate.image_list import Item

#: The outputs of one item (each with a leading dimension of 1) and the facts about it -> what is kept, as plain values.
Read = Callable[[Sequence[np.ndarray], Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Record:
    """What came of one input. `result` is what `Read` made of the outputs; with an `error` there is none.

    Times are microseconds: of reading and preprocessing, and of the inference (a share of the batch's).
    """

    name: str
    stamp: tuple[int, int] | None
    result: Mapping[str, Any]
    error: str = ""
    preprocessing_us: int = 0
    inference_us: int = 0


@dataclass(frozen=True)
class Job:
    """What is done with every input; plain data and functions of modules, so that it can be sent to other machines.

    model: the .tflite file, or its bytes. batch: inputs at once, if the model can take them so.
    workers: decoding processes, 0 for none. patience: seconds without an answer after which one is replaced.
    """

    model: str | bytes
    choice: DelegateChoice
    prepare: Prepare
    read: Read
    batch: int = 1
    workers: int = 0
    patience: float = PATIENCE


@dataclass(frozen=True, eq=False)
class Placement:
    """Where a job's model runs: the device's name, what it took of the model (`graph`, for a page), and the batch."""

    device: str
    delegation: DelegationReport
    graph: tuple[GraphNode, ...]
    batch: int
    note: str = ""


def map_shard(
    job: Job, items: Iterable[Item], opened: OpenedModel | None = None, decoder: Decoder | None = None
) -> Iterator[Record]:
    """A record for each item, in order. `opened`: the job's model if it is open already, and `decoder`: what decodes
    for it; both stay open then.

    Raises LiteGpuError if the model cannot be opened or fails; an input that cannot be read is a record with an error.
    """
    model = opened or open_model(job.model, job.choice, job.batch)
    try:
        if decoder is None:
            batches = decoded_batches(items, job.prepare, model.batch, job.workers, patience=job.patience)
        else:
            batches = decoder.batches(items)
        for decoded in batches:
            if all(row.error for row in decoded.rows):
                yield from (_failed(row.item, row.error, row.seconds) for row in decoded.rows)
                continue
            outputs, seconds = _inference(model, decoded.array)
            share = int(seconds / len(decoded.rows) * 1e6)
            for i, row in enumerate(decoded.rows):
                if row.error:
                    yield _failed(row.item, row.error, row.seconds)
                    continue
                own = outputs if model.batch == 1 else [array[i : i + 1] for array in outputs]
                result = job.read(own, row.facts)
                yield Record(row.item.name, row.item.stamp, result, "", int(row.seconds * 1e6), share)
    finally:
        if opened is None:
            model.loaded.close()


def placement(opened: OpenedModel) -> Placement:
    """Where an opened model runs."""
    loaded = opened.loaded
    graph = graph_nodes(loaded.interpreter.graph, loaded.report)
    return Placement(loaded.hardware, loaded.report, tuple(graph), opened.batch, opened.note)


def _inference(model: OpenedModel, array: np.ndarray) -> tuple[list[np.ndarray], float]:
    interpreter = model.loaded.interpreter
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], array)
    start = time.perf_counter()
    interpreter.invoke()
    seconds = time.perf_counter() - start
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()], seconds


def _failed(item: Item, error: str, seconds: float) -> Record:
    return Record(item.name, item.stamp, {}, error, int(seconds * 1e6))
