"""`litegpu benchmark`: times a model with the flags, rules and closing lines of the official benchmark tool."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

import litegpu
from litegpu.errors import DelegateError, LiteGpuError, OptionError
from litegpu.tools.console import progress
from litegpu.tools.flags import BenchmarkFlags, parse_flags, suggestion, usage
from litegpu.tools.inputs import random_inputs
from litegpu.tools.statistics import Statistics, microseconds, number

_ALWAYS_SHOWN = ("verbose", "graph")
_PROFILED_RUNS = 10
_REDRAWN_AFTER = 0.2  # seconds between two steps of the progress bar

HELP = f"""Usage: litegpu benchmark --graph=MODEL [--flag=value ...]

Times a model as the official benchmark tool does: same flags, same rules, same closing lines.

  litegpu benchmark --graph=model.tflite                                        on the CPU, one thread
  litegpu benchmark --graph=model.tflite --use_gpu=true                         on the GPU, float16 allowed
  litegpu benchmark --graph=model.tflite --use_gpu=true --gpu_precision_loss_allowed=false
  litegpu benchmark --graph=model.tflite --num_runs=200 --json

Flags, with their defaults:
{usage()}
  --json=false                          bool   print one JSON object instead of the log
  --help                                       this text
"""


@dataclass(frozen=True)
class KernelRow:
    """Average GPU time of one kernel, over the profiled runs."""

    kernel: str
    nodes: tuple[int, ...]
    milliseconds: float


@dataclass(frozen=True)
class BenchmarkResult:
    """Microseconds and megabytes. `first_inference` is the first warm-up run, 0 if there was none."""

    flags: BenchmarkFlags
    delegation: litegpu.DelegationReport
    model_megabytes: float
    init: int
    warmup: Statistics
    inference: Statistics
    init_memory: float
    overall_memory: float
    kernels: tuple[KernelRow, ...] = ()

    @property
    def first_inference(self) -> int:
        return self.warmup.values[0] if self.warmup.values else 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        inference, warmup = self.inference, self.warmup
        return {
            "flags": asdict(self.flags),
            "delegation": self.delegation.as_dict(),
            "model_size_mb": self.model_megabytes,
            "init_us": self.init,
            "first_inference_us": self.first_inference,
            "warmup_us": {"count": len(warmup.values), "avg": warmup.average},
            "inference_us": {
                "count": len(inference.values),
                "avg": inference.average,
                "std": inference.deviation,
                "min": min(inference.values, default=0),
                "max": max(inference.values, default=0),
                "p5": inference.percentile(5),
                "median": inference.percentile(50),
                "p95": inference.percentile(95),
            },
            "memory_mb": {"init": self.init_memory, "overall": self.overall_memory},
            "kernels": [asdict(row) for row in self.kernels],
        }


def main(arguments: Sequence[str]) -> int:
    """The command: prints the log, or JSON, and returns the exit status."""
    import json

    wants_json = any(a in ("--json", "--json=true", "--json=1") for a in arguments)
    arguments = [a for a in arguments if a.partition("=")[0] != "--json"]
    if "--help" in arguments or "--help=true" in arguments:
        print(HELP, end="")
        return 0
    log = _Log(silent=wants_json)
    flags, given, unknown = parse_flags(arguments)
    if not flags.graph:
        raise OptionError("--graph is missing: litegpu benchmark --graph=MODEL (--help lists all flags)")
    log.info("STARTING!")
    if unknown:
        log.warn("Unconsumed cmdline flags: " + " ".join(f"{a}{suggestion(a)}" for a in unknown))
    _log_parameters(log, flags, given)
    try:
        result = benchmark(flags, log)
    except LiteGpuError:
        log.error("Benchmarking failed.")
        raise
    if wants_json:
        print(json.dumps(result.as_dict(), indent=2))
    return 0


def benchmark(flags: BenchmarkFlags, log: _Log | None = None) -> BenchmarkResult:
    """Load, warm up and time a model; the log gets the official tool's lines.

    Raises OptionError for flags that do not fit the model, ModelError, InvokeError, and DelegateError under
    require_full_delegation.
    """
    log = log or _Log(silent=True)
    if flags.dry_run:
        flags = replace(flags, warmup_runs=0, warmup_min_secs=-1, num_runs=0, min_secs=-1)
    start_memory = _peak_memory()
    start = time.perf_counter()
    interpreter, delegate = _opened(flags, log)
    with contextlib.closing(interpreter):
        _resize_inputs(interpreter, flags)
        interpreter.allocate_tensors()
        init = int((time.perf_counter() - start) * 1e6)
        report = interpreter.delegation_report()
        _log_delegation(log, flags, report)
        if flags.require_full_delegation and (not flags.use_gpu or not report.fully_delegated):
            raise DelegateError(f"Disallowed CPU fallback detected. {report.summary()}")
        megabytes = os.path.getsize(flags.graph) / 1e6
        log.info(f"The input model file size (MB): {number(megabytes)}")
        log.info(f"Initialized session in {number(init / 1e3)}ms.")
        init_memory = _peak_memory()
        feeds = _inputs(interpreter, flags)
        warmup = _run(interpreter, feeds, flags, log, "warm-up", flags.warmup_runs, flags.warmup_min_secs)
        inference = _run(interpreter, feeds, flags, log, "timed runs", flags.num_runs, flags.min_secs)
        kernels = _profile(delegate, log) if flags.enable_op_profiling and not flags.dry_run else ()
        result = BenchmarkResult(
            flags,
            report,
            megabytes,
            init,
            warmup,
            inference,
            init_memory - start_memory,
            _peak_memory() - start_memory,
            kernels,
        )
    _log_result(log, result)
    return result


class _Log:
    """Lines with the official prefixes; errors on stderr, the others on stdout."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent

    def info(self, text: str) -> None:
        self.plain(f"INFO: {text}")

    def warn(self, text: str) -> None:
        self.plain(f"WARN: {text}")

    def plain(self, text: str) -> None:
        if not self._silent:
            print(text, flush=True)

    def error(self, text: str) -> None:
        print(f"ERROR: {text}", file=sys.stderr)


def _log_parameters(log: _Log, flags: BenchmarkFlags, given: Sequence[str]) -> None:
    for field in sorted(fields(flags), key=lambda f: f.name != "verbose"):
        if flags.verbose or field.name in given or field.name in _ALWAYS_SHOWN:
            value = getattr(flags, field.name)
            shown = number(float(value)) if not isinstance(value, str) else value
            log.info(f"{field.metadata['label']}: [{shown}]")


class _RecordingDelegate:
    """Hands everything on to the GPU delegate, and keeps the kernels that it prepares, so that they can be profiled."""

    def __init__(self, inner: litegpu.GpuDelegate) -> None:
        self._inner = inner
        self.prepared: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def check(self, *arguments: Any) -> str | None:
        return self._inner.check(*arguments)

    def prepare(self, partition: litegpu.Partition) -> litegpu.DelegateKernel:
        kernel = self._inner.prepare(partition)
        self.prepared.append(kernel)
        return kernel


def _opened(flags: BenchmarkFlags, log: _Log) -> tuple[litegpu.Interpreter, _RecordingDelegate | None]:
    delegate = None
    if flags.use_gpu:
        gpu = litegpu.GpuDelegate(
            precision_loss_allowed=flags.gpu_precision_loss_allowed,
            quantization_enabled=flags.gpu_experimental_enable_quant,
            backend=flags.gpu_backend or "auto",
            max_delegated_partitions=max(flags.max_delegated_partitions, 1),
        )
        delegate = _RecordingDelegate(gpu)
    interpreter = litegpu.Interpreter(
        model_path=flags.graph,
        experimental_delegates=[delegate] if delegate else None,
        num_threads=flags.num_threads if flags.num_threads > 0 else None,
    )
    log.info(f"Loaded model {flags.graph}")
    if delegate:
        log.info("GPU delegate created.")
    return interpreter, delegate


def _log_delegation(log: _Log, flags: BenchmarkFlags, report: litegpu.DelegationReport) -> None:
    if not flags.use_gpu:
        return
    count = sum(1 for partition in report.partitions if partition.owner != "CPU")
    if count == 0:
        log.info("Though GPU delegate is explicitly applied, the model graph will not be executed by the delegate.")
    else:
        share = "completely" if report.fully_delegated and count == 1 else "partially"
        kernels = "" if share == "completely" else f" w/ {count} delegate kernels"
        log.info(
            f"Explicitly applied GPU delegate, and the model graph will be {share} executed by the delegate{kernels}."
        )
    log.info(report.summary())


def _log_result(log: _Log, result: BenchmarkResult) -> None:
    log.info(
        f"Inference timings in us: Init: {result.init}, First inference: {result.first_inference}, "
        f"Warmup (avg): {number(result.warmup.average)}, Inference (avg): {number(result.inference.average)}"
    )
    log.info("Note: the tool itself takes memory too, so the next line is an approximation; GPU memory is not in it.")
    log.info(
        "Memory footprint delta from the start of the tool (MB): "
        f"init={number(result.init_memory)} overall={number(result.overall_memory)}"
    )
    if result.kernels:
        total = sum(row.milliseconds for row in result.kernels)
        log.info("Operator-wise Profiling Info for Regular Benchmark Runs:")
        log.info("Delegate internal: one inference, each kernel timed by the GPU; this slows the whole down")
        log.plain(f"{'[avg ms]':>10}  {'[%]':>8}  [kernel and its nodes]")
        for row in sorted(result.kernels, key=lambda r: -r.milliseconds):
            share = row.milliseconds / total if total else 0
            log.plain(f"{row.milliseconds:10.3f}  {share:8.3%}  {row.kernel} {list(row.nodes)}")


def _resize_inputs(interpreter: litegpu.Interpreter, flags: BenchmarkFlags) -> None:
    details = interpreter.get_input_details()
    names = _names(flags, details)
    if not flags.input_layer_shape:
        return
    if not names:
        raise OptionError("--input_layer_shape needs --input_layer with the inputs' names")
    shapes = [_shape(text) for text in flags.input_layer_shape.split(":")]
    if len(shapes) != len(names):
        raise OptionError(f"--input_layer_shape has {len(shapes)} shapes for {len(names)} inputs")
    for detail, shape in zip(details, shapes, strict=True):
        if len(shape) != len(detail["shape"]) or min(shape) < 1:
            present = [int(n) for n in detail["shape"]]
            raise OptionError(f"Input '{detail['name']}' has shape {present}; it cannot become {shape}")
        if shape != [int(n) for n in detail["shape"]]:
            interpreter.resize_tensor_input(detail["index"], shape)


def _inputs(interpreter: litegpu.Interpreter, flags: BenchmarkFlags) -> list[np.ndarray]:
    details = interpreter.get_input_details()
    names = _names(flags, details)
    ranges, files = _ranges(flags), _files(flags)
    for name in (*ranges, *files):
        if name not in names:
            raise OptionError(f"'{name}' has a range or a file, but is not among --input_layer={flags.input_layer}")
    # Names on the command line may differ from the tensors': their order counts.
    by_tensor = {d["name"]: ranges[n] for d, n in zip(details, names, strict=False) if n in ranges}
    arrays = random_inputs(details, by_tensor)
    for i, name in enumerate(names):
        if name in files:
            arrays[i] = _from_file(files[name], details[i])
    return arrays


def _names(flags: BenchmarkFlags, details: Sequence[Mapping[str, Any]]) -> list[str]:
    names = flags.input_layer.split(",") if flags.input_layer else []
    if names and len(names) != len(details):
        raise OptionError(f"--input_layer names {len(names)} inputs, but the model has {len(details)}")
    return names


def _shape(text: str) -> list[int]:
    try:
        return [int(n) for n in text.split(",")]
    except ValueError:
        raise OptionError(f"{text!r} is not a shape such as 1,224,224,3") from None


def _ranges(flags: BenchmarkFlags) -> dict[str, tuple[int, int]]:
    ranges = {}
    for item in filter(None, flags.input_layer_value_range.split(":")):
        try:
            name, low, high = item.rsplit(",", 2)
            ranges[name] = (int(low), int(high))
        except ValueError:
            raise OptionError(f"{item!r} in --input_layer_value_range is not name,low,high") from None
        if ranges[name][0] > ranges[name][1]:
            raise OptionError(f"{item!r} in --input_layer_value_range: the low end is above the high end")
    return ranges


def _files(flags: BenchmarkFlags) -> dict[str, str]:
    files = {}
    for item in filter(None, flags.input_layer_value_files.split(",")):
        name, colon, path = item.replace("::", "\0").partition(":")  # "::" stands for a colon in a name or path
        if not colon:
            raise OptionError(f"{item!r} in --input_layer_value_files is not name:path")
        files[name.replace("\0", ":")] = path.replace("\0", ":")
    return files


def _from_file(path: str, detail: Mapping[str, Any]) -> np.ndarray:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"Cannot read the input values {path}: {error.strerror}") from None
    shape, dtype = [int(n) for n in detail["shape"]], np.dtype(detail["dtype"])
    wanted = int(np.prod(shape)) * dtype.itemsize
    if len(content) != wanted:
        raise OptionError(f"{path} has {len(content)} bytes, but input '{detail['name']}' takes {wanted}")
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _run(
    interpreter: litegpu.Interpreter,
    feeds: Sequence[np.ndarray],
    flags: BenchmarkFlags,
    log: _Log,
    what: str,
    runs: int,
    at_least: float,
) -> Statistics:
    """Runs while (fewer than `runs` or less than `at_least` seconds) and not beyond max_secs."""
    log.info(
        f"Running benchmark for at least {runs} iterations and at least {number(at_least)} seconds but terminate if "
        f"exceeding {number(flags.max_secs)} seconds."
    )
    targets = [detail["index"] for detail in interpreter.get_input_details()]
    seconds: list[float] = []
    start = time.perf_counter()
    with _steps(what) as step:
        while (
            len(seconds) < runs or time.perf_counter() < start + at_least
        ) and time.perf_counter() <= start + flags.max_secs:
            for target, array in zip(targets, feeds, strict=True):
                interpreter.set_tensor(target, array)
            begin = time.perf_counter()
            interpreter.invoke()
            seconds.append(time.perf_counter() - begin)
            if flags.run_delay > 0:
                time.sleep(flags.run_delay)
            step(min(len(seconds) / max(runs, 1), (time.perf_counter() - start) / max(at_least, 1e-9)))
    statistics = microseconds(seconds)
    log.info(str(statistics))
    log.plain("")
    return statistics


def _profile(delegate: _RecordingDelegate | None, log: _Log) -> tuple[KernelRow, ...]:
    if delegate is None or not delegate.prepared:
        log.warn("Nothing to profile: only the GPU's kernels are timed one by one, and no op runs there.")
        return ()
    profiles = [[time for kernel in delegate.prepared for time in kernel.profile()] for _ in range(_PROFILED_RUNS)]
    return tuple(
        KernelRow(times[0].label, tuple(times[0].sources), 1e3 * sum(t.seconds for t in times) / len(times))
        for times in zip(*profiles, strict=True)
    )


@contextlib.contextmanager
def _steps(what: str) -> Iterator[Any]:
    """A progress bar; what it yields takes the fraction done, and redraws seldom."""
    last = 0.0
    with progress() as bar:
        task = bar.add_task(what, total=1.0)

        def step(fraction: float) -> None:
            nonlocal last
            now = time.perf_counter()
            if now - last >= _REDRAWN_AFTER:
                last = now
                bar.update(task, completed=min(fraction, 1.0), refresh=True)

        yield step


def _peak_memory() -> float:
    """The largest resident set so far, in MB (2**20 bytes); 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak) / (2**20 if sys.platform == "darwin" else 2**10)
