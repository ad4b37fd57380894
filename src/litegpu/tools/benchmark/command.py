"""The command `litegpu benchmark`: reads the flags, runs what they ask for, prints and writes the results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from litegpu.errors import OptionError
from litegpu.tools.benchmark.benchmark_page import comparison_page, comparison_plots, result_page, result_plots
from litegpu.tools.benchmark.benchmark_text import Log, log_parameters
from litegpu.tools.benchmark.comparison import Comparison, InterruptedComparison, run_comparison
from litegpu.tools.benchmark.comparison_text import official_summary, print_comparison
from litegpu.tools.benchmark.configuration_run import check_files, run
from litegpu.tools.benchmark.configurations import Configuration, batch_sizes, configurations, performance_options
from litegpu.tools.benchmark.flags import BenchmarkFlags, ReportFlags
from litegpu.tools.benchmark.load import under_load
from litegpu.tools.benchmark.load_report import load_lines, load_page, load_plots
from litegpu.tools.benchmark.opening import signature_keys
from litegpu.tools.benchmark.parse import CommandLine, parse_flags, suggestion, usage
from litegpu.tools.benchmark.result import BenchmarkResult
from litegpu.tools.benchmark.trace import trace
from litegpu.tools.json_text import json_text
from litegpu.tools.outputs import all_of, require_folder, require_writable
from litegpu.whole_file import write_whole

HELP = f"""Usage: litegpu benchmark --graph=MODEL [--flag=value ...]

Times a model as the official benchmark tool does: same flags, same rules, same closing lines.

  litegpu benchmark --graph=model.tflite                                        on the CPU, one thread
  litegpu benchmark --graph=model.tflite --use_gpu=true                         on the GPU, float16 allowed
  litegpu benchmark --graph=model.tflite --use_gpu=true --gpu_precision=float32
  litegpu benchmark --graph=model.tflite --use_gpu=true --enable_op_profiling=true --trace=trace.json
  litegpu benchmark --graph=model.tflite --compare=cpu:threads=4,gpu,gpu:precision=float32 --html=report.html
  litegpu benchmark --graph=model.tflite --compare=cpu,gpu --batch_sizes=1,4,16 --json

Under load, from many callers at once (docs/guide/serving.md):

  litegpu benchmark --graph=model.tflite --use_gpu=true --threads_concurrent=16             16 threads, call after call
  litegpu benchmark --graph=model.tflite --use_gpu=true --threads_concurrent=16 --batcher=true      put into batches
  litegpu benchmark --graph=model.tflite --use_gpu=true --arrival_rate=2000 --batcher=true --html=load.html
  litegpu benchmark --graph=model.tflite --use_gpu=true --streams=3                         one thread, 3 in flight

Threads that call again as soon as they are answered (a closed loop) find the most that can be answered. Arrivals at a
rate (an open loop, as in MLPerf's server scenario) find how long callers wait who do not know of each other: a call's
latency counts from its scheduled arrival, so it has the time in which nobody could take it. If more arrive than are
answered the queue grows, and the percentiles with it, for as long as one measures: the tool says so. The rules for
warm-up, --num_runs, --min_secs and --max_secs hold for calls.

Flags, with their defaults:
{usage()}
  --help                                    this text

The exit status is 0, or 1 for an error and for a wrong value. Unknown flags are warned of, as officially.
"""

_ALONE = ("output_filepath", "output_proto_filepath", "result_file_path", "model_runtime_info_output_file")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status; raises LiteGpuError for what did not work."""
    if any(a in ("--help", "--help=true", "--help=1") for a in arguments):
        print(HELP, end="")
        return 0
    line = parse_flags(arguments)
    flags, report = line.flags, line.report
    if not flags.graph:
        strange = "".join(f"; there is no {a}{suggestion(a)}" for a in line.unknown)
        raise OptionError(f"--graph is missing: litegpu benchmark --graph=MODEL (--help lists all flags){strange}")
    if flags.list_signatures:
        return _list_signatures(flags)
    log = Log(silent=report.json)
    log.info("STARTING!")
    if line.unknown:
        log.warn("Unconsumed cmdline flags: " + " ".join(f"{a}{suggestion(a)}" for a in line.unknown))
    for answer in (*line.answers, *_idle(line)):
        log.warn(answer)
    if report.trace:
        flags = replace(flags, enable_op_profiling=True)
    log_parameters(log, flags, line.given)
    _check_files(flags, report)
    if line.load.is_asked:
        _load(line, flags, log)
    elif report.compare or report.perf_options_list or report.batch_sizes:
        _compare(line, flags, log)
    else:
        _single(flags, report, log)
    return 0


def _idle(line: CommandLine) -> list[str]:
    """What to say about flags of the GPU where it is not used."""
    if line.flags.use_gpu or line.report.compare or line.report.perf_options_list:
        return []
    return [f"--{name} has no effect without --use_gpu=true" for name in line.given if name.startswith("gpu_")]


def _list_signatures(flags: BenchmarkFlags) -> int:
    keys = signature_keys(flags)
    print(f"The Model contains {len(keys)} signature key(s).")
    for key in keys:
        print(f"-> Signature Key: {key}")
    return 0


def _check_files(flags: BenchmarkFlags, report: ReportFlags) -> None:
    """Raises OptionError for what could not be written afterwards."""
    check_files(flags)
    for path in (report.html, report.trace):
        if path:
            require_writable(path, read=[flags.graph])
    if report.plot:
        require_folder(report.plot)


def _single(flags: BenchmarkFlags, report: ReportFlags, log: Log) -> BenchmarkResult:
    problems: list[str] = []
    result = run(flags, log, problems)

    def tell_problems() -> None:
        if problems:
            raise OptionError("; ".join(problems))

    def write_plots() -> None:
        for name, plot in result_plots(result):
            plot.write(f"{report.plot}/{name}.png")

    all_of(
        lambda: print(json_text(result.as_dict())) if report.json else None,
        tell_problems,
        lambda: write_whole(report.trace, json.dumps(trace(result))) if report.trace else None,
        lambda: result_page(result).write(report.html) if report.html else None,
        lambda: write_plots() if report.plot else None,
    )
    return result


def _compare(line: CommandLine, flags: BenchmarkFlags, log: Log) -> Comparison:
    report = line.report
    _refuse_files(flags, report)
    official = bool(report.perf_options_list)
    if official:
        found = performance_options(flags, report.perf_options_list)
    elif report.compare:
        found = configurations(flags, report.compare)
    else:
        found = [Configuration("gpu" if flags.use_gpu else "cpu", flags)]
    try:
        comparison = run_comparison(
            found,
            batch_sizes(report.batch_sizes),
            log,
            shuffle=report.random_shuffle_benchmark_runs,
            pause=report.option_benchmark_run_delay,
            keep_going=official,
        )
    except InterruptedComparison as interrupt:
        comparison = interrupt.comparison

    def show() -> None:
        if report.json:
            print(json_text(comparison.as_dict()))
            return
        if official:
            for text in official_summary(comparison, [c.label for c in found]):
                log.plain(text)
        print_comparison(comparison)

    if comparison.interrupted:
        show()
        raise KeyboardInterrupt

    def write_plots() -> None:
        for name, plot in comparison_plots(comparison):
            plot.write(f"{report.plot}/{name}.png")

    all_of(
        show,
        lambda: comparison_page(comparison).write(report.html) if report.html else None,
        lambda: write_plots() if report.plot else None,
    )
    return comparison


def _load(line: CommandLine, flags: BenchmarkFlags, log: Log) -> None:
    report = line.report
    asked = [f"--{name}" for name in ("compare", "perf_options_list", "batch_sizes") if getattr(report, name)]
    if asked or flags.enable_op_profiling:
        raise OptionError(f"{(*asked, '--enable_op_profiling')[0]} is not for a benchmark under load: leave one out")
    _refuse_files(flags, report)
    result = under_load(flags, line.load)

    def tell() -> None:
        found, warnings = load_lines(result)
        for text in found:
            log.info(text)
        for text in warnings:
            log.warn(text)

    def write_plots() -> None:
        for name, plot in load_plots(result):
            plot.write(f"{report.plot}/{name}.png")

    all_of(
        lambda: print(json_text(result.as_dict())) if report.json else tell(),
        lambda: load_page(result).write(report.html) if report.html else None,
        lambda: write_plots() if report.plot else None,
    )


def _refuse_files(flags: BenchmarkFlags, report: ReportFlags) -> None:
    """Raises OptionError for flags that are about one run of one configuration."""
    asked = [name for name in _ALONE if getattr(flags, name)]
    asked += ["trace"] if report.trace else []
    asked += ["dry_run"] if flags.dry_run else []
    if asked:
        raise OptionError(
            f"--{asked[0]} is about the runs of one configuration: leave out --compare, --perf_options_list, "
            "--batch_sizes and what asks for load"
        )
    if report.compare and report.perf_options_list:
        raise OptionError("give either --compare or --perf_options_list, not both")
