"""One configuration from start to end: load, warm up, time, profile, and say so."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from litegpu.boundary import typed
from litegpu.errors import OptionError
from litegpu.tools.benchmark.benchmark_text import Log, log_result
from litegpu.tools.benchmark.energy import EnergyWatch
from litegpu.tools.benchmark.files import (
    example_message,
    profile_content,
    raw_outputs,
    result_message,
    runtime_message,
)
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.measurement import Measurement
from litegpu.tools.benchmark.parse import flags_from
from litegpu.tools.benchmark.profile import profile
from litegpu.tools.benchmark.result import BenchmarkResult
from litegpu.tools.benchmark.state import state_text
from litegpu.tools.outputs import all_of, require_writable
from litegpu.whole_file import write_whole


@typed
def benchmark(model: str | os.PathLike[str] | BenchmarkFlags, **flags: Any) -> BenchmarkResult:
    """Load, warm up and time a model, as `litegpu benchmark` does, and print nothing.

        result = litegpu.benchmark("model.tflite", use_gpu=True, num_runs=200, enable_op_profiling=True)
        print(result.inference.median, result.inference.percentile(99), result.throughput)
        for kernel in result.profile.kernels: ...

    flags: those of the command line, by their names.

    Raises OptionError for flags that are wrong or do not fit the model, DeviceError if there is no GPU but one was
    asked for, ModelError, InvokeError, and DelegateError under require_full_delegation.
    """
    return run(flags_from(model, flags), Log(silent=True))


def run(flags: BenchmarkFlags, log: Log, problems: list[str] | None = None) -> BenchmarkResult:
    """benchmark(), with the official tool's lines in the log, and its files. What cannot be written is added to
    `problems`; without these it is an OptionError."""
    check_files(flags)
    if flags.dry_run:
        flags = replace(flags, warmup_runs=0, warmup_min_secs=-1.0, num_runs=0, min_secs=-1.0)
    with Measurement(flags, log) as measurement:
        if flags.print_preinvoke_state:
            log.plain(state_text(measurement.opened, flags))
        measurement.warm_up()
        with EnergyWatch(measurement.meter) as watch:
            inference = measurement.runs("timed runs", flags.num_runs, flags.min_secs)
        energy, note = watch.energy(inference.count) if measurement.meter is not None else (None, "")
        profiled = profile(measurement.opened) if flags.enable_op_profiling and not flags.dry_run else None
        result = measurement.result(inference, energy, note, profiled)
        log_result(log, result)

        def state_afterwards() -> None:
            if flags.print_postinvoke_state:
                log.plain(state_text(measurement.opened, flags))

        try:
            all_of(
                lambda: _give_profile(log, result) if profiled is not None else None,
                state_afterwards,
                lambda: _write_outputs(measurement),
                lambda: _write_runtime_info(measurement, result),
                lambda: _write_result(log, result),
            )
        except OptionError as error:
            if problems is None:
                raise
            problems.append(str(error))
    return result


def check_files(flags: BenchmarkFlags) -> None:
    """Raises OptionError if a file cannot be written, or is missing for what needs one."""
    if flags.enable_op_profiling and flags.op_profiling_output_mode == "proto" and not flags.op_profiling_output_file:
        raise OptionError("--op_profiling_output_mode=proto needs --op_profiling_output_file=FILE")
    for path in (
        flags.op_profiling_output_file,
        flags.profiling_output_csv_file,
        flags.output_filepath,
        flags.output_proto_filepath,
        flags.result_file_path,
        flags.model_runtime_info_output_file if flags.export_model_runtime_info else "",
    ):
        if path:
            require_writable(path, read=[flags.graph])


def _give_profile(log: Log, result: BenchmarkResult) -> None:
    """To the log or to a file, as the flags say."""
    flags = result.flags
    mode, path = flags.op_profiling_output_mode, flags.op_profiling_output_file
    if flags.profiling_output_csv_file:
        mode, path = "csv", flags.profiling_output_csv_file
    content = profile_content(result, mode)
    if path:
        write_whole(path, content)
        log.info(f"Saved the op profile to: {path}")
    else:
        log.plain(str(content).rstrip("\n"))


def _write_outputs(measurement: Measurement) -> None:
    flags, opened = measurement.flags, measurement.opened
    if (flags.output_filepath or flags.output_proto_filepath) and not flags.dry_run:
        outputs = opened.outputs()
        if flags.output_filepath:
            write_whole(flags.output_filepath, raw_outputs(outputs))
        if flags.output_proto_filepath:
            write_whole(flags.output_proto_filepath, example_message(outputs))


def _write_runtime_info(measurement: Measurement, result: BenchmarkResult) -> None:
    flags = result.flags
    if flags.export_model_runtime_info:
        graph = measurement.opened.interpreter.graph
        content = runtime_message(graph, result.delegation, Path(flags.graph).name)
        write_whole(flags.model_runtime_info_output_file, content)


def _write_result(log: Log, result: BenchmarkResult) -> None:
    path = result.flags.result_file_path
    if path:
        log.info(f"Saving benchmark result to: {path}")
        write_whole(path, result_message(result))
        log.info(f"Saved benchmark result to: {path}")
