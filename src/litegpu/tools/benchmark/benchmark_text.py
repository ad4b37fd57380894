"""The log: the official tool's lines in their order, and between them what it does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.memory import resident_memory
from litegpu.tools.benchmark.opening import Opened
from litegpu.tools.benchmark.result import BenchmarkResult
from litegpu.tools.statistics import number

_ALWAYS_SHOWN = ("verbose", "graph", "signature_to_run_for")


class Log:
    """Lines with the official prefixes; errors on stderr, the others on stdout."""

    def __init__(self, silent: bool = False) -> None:
        self.silent = silent

    def info(self, text: str) -> None:
        self.plain(f"INFO: {text}")

    def warn(self, text: str) -> None:
        self.plain(f"WARN: {text}")

    def plain(self, text: str) -> None:
        if not self.silent:
            print(text, flush=True)


def log_parameters(log: Log, flags: BenchmarkFlags, given: Sequence[str]) -> None:
    """Those that were given, or all if --verbose is."""
    for field in sorted(fields(flags), key=lambda f: f.name != "verbose"):
        if flags.verbose or field.name in given or field.name in _ALWAYS_SHOWN:
            value = getattr(flags, field.name)
            if isinstance(value, bool) or value is None:
                value = int(value is True)
            log.info(f"{field.metadata['label']}: [{number(value) if isinstance(value, float) else value}]")


def log_delegation(log: Log, opened: Opened) -> None:
    """The official sentence about each delegate that was asked for, and what the report says."""
    for name, count, whole in opened.delegates:
        if count == 0:
            log.info(
                f"Though {name} delegate is explicitly applied, the model graph will not be executed by the delegate."
            )
            continue
        share, kernels = ("completely", "") if whole else ("partially", f" w/ {count} delegate kernels")
        log.info(
            f"Explicitly applied {name} delegate, and the model graph will be {share} executed by the delegate"
            f"{kernels}."
        )
    if opened.report.delegates:
        log.info(opened.report.summary())


def log_result(log: Log, result: BenchmarkResult) -> None:
    """Figures beyond the official ones, then the official closing lines."""
    for line in more_lines(result):
        log.info(line)
    log.info(
        f"Inference timings in us: Init: {result.init}, First inference: {result.first_inference}, "
        f"Warmup (avg): {number(result.warmup.average)}, Inference (avg): {number(result.inference.average)}"
    )
    log.info("Note: the tool itself takes memory too, so the next line is an approximation; GPU memory is not in it.")
    log.info(
        "Memory footprint delta from the start of the tool (MB): "
        f"init={number(result.memory.init)} overall={number(result.memory.overall)}"
    )
    if result.flags.report_peak_memory_footprint:
        log.info(f"Overall peak memory footprint (MB) via periodic monitoring: {number(result.memory.peak)}")
        resident = resident_memory()
        if resident is not None:
            whole, anonymous, files = resident
            log.info("Memory status at the end of exeution:")
            log.info(f"- VmRSS              : {whole} MB")
            log.info(f"+ RssAnnon           : {anonymous} MB")
            log.info(f"+ RssFile + RssShmem : {files} MB")


def software_line(device: str) -> str:
    """What to know about the times of a GPU that is a program."""
    return f"{device} is a program on the CPU: its times say nothing about a GPU's"


def more_lines(result: BenchmarkResult) -> list[str]:
    """Spread, throughput, start-up, device memory and energy."""
    timing, rows = result.inference, []
    if timing.count:
        rows.append(
            f"Inference in us: median={timing.median:.1f} p90={timing.percentile(90):.1f} "
            f"p95={timing.percentile(95):.1f} p99={timing.percentile(99):.1f} std={timing.deviation:.1f}, "
            f"throughput: {number(result.throughput)} {'rows' if result.batch else 'inferences'}/s"
        )
    if result.is_software:
        rows.append(software_line(result.device))
    parts = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in result.startup.parts().items() if seconds)
    rows.append(f"Start-up in ms: {parts}")
    if result.memory.device:
        used = result.memory.device_used
        told = f"; the device's free memory fell by {used:.1f}" if used is not None else ""
        rows.append(f"Device memory in MB: {result.memory.device:.1f} allocated{told}")
    if result.energy is not None:
        energy = result.energy
        rows.append(
            f"Energy: {energy.per_inference * 1e3:.3g} mJ per inference at {energy.watts:.0f} W, the whole device, "
            f"idle power included ({energy.source})"
        )
    elif result.energy_note and result.device != "CPU":
        rows.append(f"Energy: not measured: {result.energy_note}")
    return rows
