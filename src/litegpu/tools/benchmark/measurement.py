"""One configuration while it is measured: the opened model, and what is read before, between and after the runs."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from litegpu.tools.benchmark.benchmark_text import Log, log_delegation
from litegpu.tools.benchmark.energy import meter_of
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.loop import InterruptedRuns, Rule, progress_bar, timed_runs
from litegpu.tools.benchmark.memory import allocated_on_device, peak_memory
from litegpu.tools.benchmark.opening import Opened, open_model
from litegpu.tools.benchmark.result import BenchmarkResult, Energy, MemoryUse, Profile
from litegpu.tools.benchmark.timing import Timing
from litegpu.tools.statistics import number


class Measurement:
    """Opens the model, and tells the log what the official tool tells about that. Raises what open_model() does."""

    def __init__(
        self,
        flags: BenchmarkFlags,
        log: Log,
        *,
        label: str = "",
        batch: int | None = None,
        content: bytes | None = None,
    ) -> None:
        """`content`: the model's bytes, if they are not those of the file; `batch` is what was made of its batch."""
        self.flags, self.label, self._log, self._batch = flags, label, log, batch
        self._start_memory = peak_memory()
        self.began = time.perf_counter()
        self.opened: Opened = open_model(flags, content, log.info)
        self._init_memory = peak_memory()
        for i, (name, _, _) in enumerate(self.opened.delegates):
            if i == 0:
                log.info(f"{name} delegate created.")
        log_delegation(log, self.opened)
        self.megabytes = _bytes_of(flags.graph, content, self.opened) / 1e6
        log.info(f"The input model file size (MB): {number(self.megabytes)}")
        log.info(f"Initialized session in {number(self.opened.startup.total * 1e3)}ms.")
        self.warmup = Timing(())
        self.meter, self.meter_note = meter_of(self.opened.device)

    def rule(self, runs: int, at_least: float) -> Rule:
        flags = self.flags
        return Rule(runs, at_least, flags.max_secs, max(flags.run_delay, 0.0), flags.pace)

    def warm_up(self) -> None:
        """The runs before those that count."""
        flags = self.flags
        self.warmup = self.runs("warm-up", flags.warmup_runs, flags.warmup_min_secs)

    def runs(self, what: str, runs: int, at_least: float) -> Timing:
        """Runs, announced and summarised in the log."""
        self._log.info(
            f"Running benchmark for at least {runs} iterations and at least {number(at_least)} seconds but terminate "
            f"if exceeding {number(self.flags.max_secs)} seconds."
        )
        with progress_bar(f"{what} {self.label}".rstrip()) as redraw:
            try:
                timing = timed_runs(self.opened.prepare, self.opened.run, self.rule(runs, at_least), redraw)
            except InterruptedRuns as interrupt:
                self._log.warn(f"Interrupted: the figures are of the {interrupt.timing.count} {what} until then")
                self._log.info(str(interrupt.timing.official))
                raise
        self._log.info(str(timing.official))
        self._log.plain("")
        return timing

    def result(
        self, inference: Timing, energy: Energy | None, energy_note: str, profile: Profile | None = None
    ) -> BenchmarkResult:
        """What was found; after the runs."""
        peak = peak_memory()
        opened = self.opened
        return BenchmarkResult(
            label=self.label,
            flags=self.flags,
            device=opened.device_name,
            is_software=opened.is_software,
            delegation=opened.report,
            model_megabytes=self.megabytes,
            startup=opened.startup,
            warmup=self.warmup,
            inference=inference,
            memory=MemoryUse(
                init=self._init_memory - self._start_memory,
                overall=peak - self._start_memory,
                peak=peak,
                device=allocated_on_device(opened.kernels),
                device_used=opened.device_memory.used(),
            ),
            energy=energy,
            energy_note=energy_note or ("" if energy is not None else self.meter_note),
            profile=profile,
            batch=self._batch,
            input_bytes=sum(array.nbytes for array in opened.inputs if array.dtype.kind not in "SO"),
            began=self.began,
            graph=opened.interpreter.graph,
        )

    def close(self) -> None:
        self.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _bytes_of(path: str, content: bytes | None, opened: Opened) -> int:
    """Of the model: of its file, if that is not a bundle of several."""
    if content is not None:
        return len(content)
    return Path(path).stat().st_size if Path(path).is_file() else len(opened.interpreter.model.content)
