"""The one loop of all evaluations: a data set's images on each delegate, and what its metric makes of the records."""

from __future__ import annotations

from typing import Any, TypeVar

from litegpu.tools.evaluate.collecting import collect, fingerprint, prepare_output
from litegpu.tools.evaluate.data_set import DataSet, DelegateResult, EvaluationReport
from litegpu.tools.evaluate.records import model_digest
from litegpu.tools.evaluate.shard import Job

D = TypeVar("D", bound=DataSet[Any, Any])


def evaluate(data: D) -> EvaluationReport[D, Any]:
    """Evaluate a model on a data set, on the delegates of `data.running`. What can be wrong with the files was checked
    when the data set was made, what can be written is asked before the first inference.

    Nothing is written but the records, in `running.output`; a `Presentation` writes the rest.

    Raises OptionError (also for images that cannot be read), ModelError, DeviceError, InvokeError.
    """
    running, count = data.running, len(data.items)
    prepare_output(running, data.output_file)
    digest = model_digest(data.model.content)
    results: list[DelegateResult] = []
    for choice in running.choices:
        model, read = data.network(choice)
        job = Job(model, choice, data.prepare, read, running.batch_on(choice, count), running.workers_for(count))
        marks = fingerprint(data.kind, digest, job) | data.marks()
        results.append(data.measured(collect(job, data.items, running, marks)))
    first, *others = results
    return EvaluationReport(data, first, data.compared(first, others[0]) if others else None)
