"""`litegpu benchmark` under load: a model, or its batcher, and what many callers see of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from litegpu.batching import BatcherStatistics
from litegpu.errors import InvokeError, OptionError
from litegpu.gpu.backends import registry
from litegpu.session import LoadedModel, load
from litegpu.tools.benchmark import benchmark_inputs
from litegpu.tools.benchmark.delegates import external_delegate, gpu_delegate
from litegpu.tools.benchmark.flags import BenchmarkFlags, LoadFlags
from litegpu.tools.benchmark.load_loop import (
    Calls,
    Stability,
    arrivals,
    closed_loop,
    open_loop,
    stability,
    stream_loop,
    submitted_loop,
)
from litegpu.tools.benchmark.loop import Rule

PERCENTILES = (50, 90, 95, 99, 99.9)


@dataclass(frozen=True)
class LoadResult:
    """What many callers saw. `rows`: of a call. `statistics`: the batcher's, during the measurement and the warm-up.
    `is_software`: the device is a program on the CPU."""

    model: str
    device: str
    load: LoadFlags
    rows: int
    calls: Calls
    stability: Stability | None
    statistics: BatcherStatistics | None
    is_software: bool = False

    @property
    def throughput(self) -> float:
        """Calls answered per second."""
        return len(self.calls.ends) / self.calls.seconds if self.calls.seconds else 0.0

    @property
    def milliseconds(self) -> np.ndarray:
        """Latencies."""
        return 1e3 * self.calls.latencies

    def percentile(self, percent: float) -> float:
        """Milliseconds."""
        return float(np.percentile(self.milliseconds, percent)) if self.calls.ends else 0.0

    @property
    def is_overload(self) -> bool:
        """Whether more arrived than could be answered."""
        return bool(self.calls.left) or (self.stability is not None and self.stability.is_overload)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        latencies = self.milliseconds
        return {
            "model": self.model,
            "device": self.device,
            "is_software": self.is_software,
            "mode": self.load.mode,
            "threads": self.load.callers,
            "streams": self.load.streams,
            "arrival_rate": self.load.arrival_rate,
            "batcher": None if self.statistics is None else self.statistics.as_dict(),
            "rows": self.rows,
            "calls": len(latencies),
            "failed": dict(self.calls.failures),
            "not_begun": self.calls.left,
            "seconds": self.calls.seconds,
            "throughput": self.throughput,
            "latency_ms": {
                "mean": float(latencies.mean()) if len(latencies) else 0.0,
                **{f"p{p:g}": self.percentile(p) for p in PERCENTILES},
                "max": float(latencies.max()) if len(latencies) else 0.0,
            },
            "overload": self.is_overload if self.load.arrival_rate else None,
        }


def under_load(flags: BenchmarkFlags, asked: LoadFlags) -> LoadResult:
    """Raises OptionError, what load() and batcher() raise, and what the calls raised if none was answered."""
    asked.check()
    with _opened(flags) as model:
        arrays = _inputs(flags, model)
        rule = Rule(max(flags.num_runs, 1), flags.min_secs, flags.max_secs)
        warm = Rule(max(flags.warmup_runs, 1), flags.warmup_min_secs, flags.max_secs)
        if asked.batcher:
            with model.batcher(asked.max_batch, asked.max_delay_ms) as batcher:
                closed_loop(lambda: batcher(*arrays), asked.callers or 1, warm)
                if asked.arrival_rate:
                    times = arrivals(asked.arrival_rate, rule)
                    calls = submitted_loop(lambda: batcher.submit(*arrays), times, rule.at_most)
                else:
                    calls = closed_loop(lambda: batcher(*arrays), asked.callers, rule)
                statistics = batcher.statistics
        else:
            calls, statistics = _of_model(model, arrays, asked, rule, warm), None
        device, is_software = model.hardware, model.is_software
    if not calls.ends:
        raise calls.error or InvokeError("No call was answered: give --max_secs more time")
    rows = len(arrays[0]) if arrays[0].ndim else 1
    return LoadResult(
        flags.graph,
        device,
        asked,
        rows,
        calls,
        stability(calls) if asked.arrival_rate else None,
        statistics,
        is_software,
    )


def _of_model(model: LoadedModel, arrays: list[np.ndarray], asked: LoadFlags, rule: Rule, warm: Rule) -> Calls:
    item = tuple(arrays)
    if asked.streams:
        stream_loop(model.stream, item, asked.streams, warm)
        return stream_loop(model.stream, item, asked.streams, rule)
    closed_loop(lambda: model(*arrays), asked.callers, warm)
    if asked.arrival_rate:
        return open_loop(lambda: model(*arrays), asked.callers, arrivals(asked.arrival_rate, rule), rule.at_most)
    return closed_loop(lambda: model(*arrays), asked.callers, rule)


@contextlib.contextmanager
def _opened(flags: BenchmarkFlags) -> Iterator[LoadedModel]:
    """The model, on what the flags say."""
    common: dict[str, Any] = {
        "num_threads": flags.num_threads if flags.num_threads > 0 else None,
        "signature": flags.signature_to_run_for or None,
        "fallback": "strict" if flags.require_full_delegation else "warn",
    }
    if flags.use_gpu and flags.gpu_device == "all":
        options = gpu_delegate(replace(flags, gpu_device="")).options
        precision = options.precision or ("float16" if options.half else "float32")
        model = load(
            flags.graph, f"{flags.gpu_backend or registry.numbered()[0]}:all", precision, wait_type=options.wait_type,
            serialization_dir=options.serialization_dir, **common,
        )  # fmt: skip
    elif flags.use_gpu:
        model = load(flags.graph, delegate=gpu_delegate(flags), **common)
    elif flags.external_delegate_path:
        model = load(flags.graph, delegate=external_delegate(flags), **common)
    else:
        model = load(flags.graph, "cpu", **common)
    with model:
        yield model


def _inputs(flags: BenchmarkFlags, model: LoadedModel) -> list[np.ndarray]:
    details = [dict(detail) for detail in model.inputs.values()]
    shapes = dict(benchmark_inputs.resizes(flags, details))
    for detail in details:
        detail["shape"] = np.asarray(shapes.get(int(detail["index"]), detail["shape"]))
    arrays = [np.asarray(array) for array in benchmark_inputs.arrays(flags, details)]
    if not arrays:
        raise OptionError("The model has no inputs")
    return arrays
