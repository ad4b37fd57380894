"""Tries one way to run a model, in a process of its own: `python -m litegpu.tools.advise.trial`, told by JSON on its
standard input. Whatever a driver does there, the process that asks goes on."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

BATCH = 64
_SECONDS = 0.4  # at least as long, unless _RUNS are enough
_RUNS = 200


def main() -> None:
    """Reads an order; writes a line of JSON, as Measured.as_dict()."""
    order = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no result
    found = run(order)
    out.write(json.dumps(found) + "\n")
    out.flush()
    os._exit(0)  # drivers and threads need not end well


def run(order: dict[str, Any]) -> dict[str, Any]:
    """All that can be measured; `problem` tells what ended it.

    order: {"model", "candidate", "batch", "began", "outputs"}, and perhaps "seconds", how long each time is measured
    for at least, and "longest", seconds that a call in batches may be expected to take, else it is left out."""
    from litegpu.choosing.candidate import Candidate, Measured
    from litegpu.errors import LiteGpuError

    measured = Measured(Candidate(**order["candidate"]))
    try:
        found: dict[str, Any] = measure(measured, order).as_dict()
        return found
    except (LiteGpuError, MemoryError, RuntimeError, ValueError) as error:
        return replace(measured, problem=f"{type(error).__name__}: {str(error).splitlines()[0][:300]}").as_dict()


def measure(measured: Any, order: dict[str, Any]) -> Any:
    import numpy as np

    from litegpu.device_choice import asked_for
    from litegpu.errors import LiteGpuError
    from litegpu.gpu.backends.abilities import FreeMemory, Opener
    from litegpu.session import load
    from litegpu.tools.inputs import made_up_inputs

    candidate = measured.candidate
    seconds = float(order.get("seconds", _SECONDS))
    device, free = None, None
    if not candidate.is_cpu:
        asked = asked_for(candidate.device, candidate.precision, candidate.gpu_options)
        device = asked.open_device() if isinstance(asked, Opener) else None
        free = device.free_bytes() if isinstance(device, FreeMemory) else None
    options = {"num_threads": candidate.num_threads} if candidate.is_cpu else {"precision": candidate.precision}
    options |= candidate.gpu_options
    with load(order["model"], candidate.device, fallback="silent", **options) as model:
        interpreter = model.interpreter
        report = model.report
        if not candidate.is_cpu and not report.delegated:  # the figures would be the CPU's
            why = next((node.reason for node in report.nodes if node.reason), "it takes none of the model's ops")
            return replace(measured, problem=f"DelegateError: {why}")
        arrays = dict(
            zip(model.inputs, made_up_inputs(interpreter.get_input_details(), interpreter.graph), strict=True)
        )
        outputs = _as_list(model(**arrays))
        measured = replace(measured, start=time.time() - order["began"], memory=peak_bytes())
        if order.get("outputs"):
            np.savez(order["outputs"], *[np.asarray(o) for o in outputs])
        measured = replace(measured, delegated=report.delegated / max(1, len(report.nodes)))
        if device is not None:
            measured = replace(measured, name=device.info.name, driver=device.info.driver)
        measured = replace(measured, latency=timed(lambda: model(**arrays), seconds))
        after = device.free_bytes() if isinstance(device, FreeMemory) else None
        if free is not None and after is not None:
            measured = replace(measured, device_memory=max(0, free - after))
        batch, longest = int(order.get("batch", BATCH)), float(order.get("longest", math.inf))
        if candidate.is_cpu and batch * measured.latency > longest:
            why = f"it would take about {batch * measured.latency:.3g} s"
            return replace(measured, batch=batch, batch_problem=why, memory=peak_bytes())
        try:
            many = {name: repeated(array, batch) for name, array in arrays.items()}
            model(**many)
            measured = replace(measured, batch=batch, batch_latency=timed(lambda: model(**many), seconds))
        except (LiteGpuError, ValueError, MemoryError) as error:
            measured = replace(measured, batch=batch, batch_problem=str(error).splitlines()[0][:300])
    return replace(measured, memory=peak_bytes())


def timed(call: Callable[[], Any], seconds: float = _SECONDS) -> float:
    """Median seconds of a call, after some that do not count."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds / 4:
        call()
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - begin < seconds and len(times) < _RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return median(times)


def peak_bytes() -> int | None:
    """That the process has taken at most; None where the system does not tell."""
    from litegpu.tools.benchmark.memory import peak_memory

    return int(peak_memory() * 2**20) or None


def repeated(array: Any, batch: int) -> Any:
    """An input of one row as one of `batch` rows. Raises ValueError where it has no rows of one."""
    import numpy as np

    if array.ndim == 0 or array.shape[0] != 1:
        raise ValueError(f"an input of shape {list(array.shape)} has no rows of one")
    return np.repeat(array, batch, axis=0)


def _as_list(result: Any) -> list[Any]:
    return list(result.values()) if isinstance(result, dict) else [result]


if __name__ == "__main__":
    main()
