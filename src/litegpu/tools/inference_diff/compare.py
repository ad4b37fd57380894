"""Runs a model on a reference and on what is tested, on the same inputs, and measures how far the outputs are apart."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.delegate_registry import known_delegates, library_of, load_delegate
from litegpu.delegates.elsewhere import recognised
from litegpu.delegates.protocol import NamesDevice, OfficialDelegate
from litegpu.device_choice import asked_for, backend_options, names_delegate
from litegpu.errors import DelegateError, DelegateLoadError, InvokeError, OptionError
from litegpu.gpu.delegate.options import GpuDelegateOptions
from litegpu.interpreter import Interpreter, OpResolverType
from litegpu.model.types import Model, Subgraph
from litegpu.tools.console import progress
from litegpu.tools.entered import entered
from litegpu.tools.inference_diff.difference_inputs import Feed, file_feeds, gaussian_feeds
from litegpu.tools.inference_diff.measures import (
    Difference,
    Histogram,
    OutputDifference,
    histogram,
    measure,
    summarise,
)
from litegpu.tools.inference_diff.per_op import PerOpReport, analyse
from litegpu.tools.inference_diff.recording import RecordingDelegate, Staging
from litegpu.tools.json_text import plain
from litegpu.tools.statistics import Statistics, microseconds

if TYPE_CHECKING:
    from litegpu.delegates.protocol import Delegate as DelegateProtocol
    from litegpu.delegates.report import DelegationReport

DELEGATES = ("gpu", "xnnpack", "cpu")
REFERENCES = ("auto", "xnnpack", "builtin", "reference")
RUNS = 50
#: Both sides are invoked so often on each input; the outputs of the last are compared (the official tool's habit).
_INVOKES = 3
_RESOLVERS = {
    "xnnpack": OpResolverType.AUTO,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "cpu": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}


@dataclass(frozen=True)
class DiffOptions:
    """What is compared with what.

    delegate: "gpu"; "xnnpack": the CPU as the official runtime uses it; "cpu": its plain built-in kernels; or the name
        of another delegate, perhaps with a device of its: "openvino:GPU".
    precision: of the GPU delegate or another one.
    arithmetic, backend, quantization, max_delegated_partitions: of the GPU delegate; 0 partitions means 1.
    num_threads: of the CPU part of what is tested; the reference always has one.
    reference: the kernels of the reference: "xnnpack" (the official runtime's default), "builtin" (without XNNPACK),
        "reference" (the slow ones that define the ops), or "auto": xnnpack, but builtin where XNNPACK is tested.
    num_runs: by default 50, or as many as the files in `inputs` have samples.
    inputs: files (see feeds.file_feeds); by default random values by `seed`.
    max_relative_error: of any output; what is above fails.
    per_op, tolerance: also compare op by op, where a relative L2 error above `tolerance` deviates (by default 1e-5 in
        float32, 1e-2 in float16).
    signature: the key of one of several; by default that of the file's first graph.
    shapes: of the inputs, as for tools.entered.entered().
    """

    delegate: str = "gpu"
    precision: str = "float32"
    arithmetic: str = "auto"
    backend: str = "auto"
    quantization: bool = True
    max_delegated_partitions: int = 0
    num_threads: int = 1
    reference: str = "auto"
    num_runs: int | None = None
    inputs: tuple[str, ...] = ()
    seed: int = 0
    max_relative_error: float | None = None
    per_op: bool = False
    tolerance: float | None = None
    signature: str | None = None
    shapes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_delegate(self.delegate)
        if self.reference not in REFERENCES:
            raise OptionError(f"reference is {self.reference!r}; it must be one of {', '.join(REFERENCES)}")
        for name in ("num_runs", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name} is {value}; it must be 1 or more")
        for name in ("max_relative_error", "tolerance"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise OptionError(f"{name} is {value}; it must be 0 or more")
        if self.per_op and self.delegate != "gpu":
            raise OptionError("op by op is a comparison with the GPU: use delegate gpu")
        if self.tolerance is not None and not self.per_op:
            raise OptionError("the tolerance says which op deviates: ask for the comparison op by op as well")

    @property
    def reference_kernels(self) -> str:
        if self.reference != "auto":
            return self.reference
        return "builtin" if self.delegate == "xnnpack" else "xnnpack"


@dataclass(frozen=True, eq=False)
class DiffReport:
    """What came out. `device` is the GPU's name, or "CPU"; `is_software`: the GPU is emulated on the CPU; `half`:
    float16 was really used; `graph`: the model's, as it was divided. Latencies are microseconds of each invoke, after
    one warm-up. `interrupted`: Ctrl-C came before the last run, and nothing is said op by op."""

    model: str
    options: DiffOptions
    device: str
    is_software: bool
    half: bool
    delegation: DelegationReport
    inputs: str
    graph: Subgraph
    num_runs: int
    reference_latency: Statistics
    test_latency: Statistics
    outputs: tuple[OutputDifference, ...]
    per_op: PerOpReport | None = None
    interrupted: bool = False

    @property
    def worst(self) -> float:
        """The largest relative L2 error of any output in any run."""
        return max((o.relative_l2 for o in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether no output is beyond max_relative_error."""
        limit = self.options.max_relative_error
        return limit is None or self.worst <= limit

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "model": self.model,
            "options": asdict(self.options) | {"reference": self.options.reference_kernels},
            "device": self.device,
            "is_software": self.is_software,
            "float16": self.half,
            "delegation": self.delegation.as_dict(),
            "inputs": self.inputs,
            "num_runs": self.num_runs,
            "reference_latency_us": _latency(self.reference_latency),
            "test_latency_us": _latency(self.test_latency),
            "outputs": [o.as_dict() for o in self.outputs],
            "worst_relative_l2": plain(self.worst),
            "passed": self.passed,
            "interrupted": self.interrupted,
            "per_op": self.per_op.as_dict() if self.per_op else None,
        }


def inference_diff(model: str | os.PathLike[str], options: DiffOptions | None = None) -> DiffReport:
    """Compare a model's outputs, and with `per_op` what its ops compute.

    Raises LiteGpuError for everything that can go wrong; DeviceError where no GPU works and DelegateError where it
    takes no op of the model: the difference would be none, and mean nothing. InterruptedDifference after Ctrl-C.
    """
    options = options or DiffOptions()
    recording = _gpu(options) if options.delegate == "gpu" else None
    other = _other(options)
    content = entered(model, options.signature, options.shapes)
    with contextlib.ExitStack() as stack:
        try:
            reference = stack.enter_context(contextlib.closing(_opened(content, _RESOLVERS[options.reference_kernels])))
        except InvokeError as error:
            raise InvokeError(
                f"The official CPU runtime, which is the reference, cannot run {os.fspath(model)}: {error}"
            ) from None
        test = stack.enter_context(
            contextlib.closing(_opened(content, _resolver(options), options.num_threads, recording or other))
        )
        report = test.delegation_report()
        if recording is not None and not report.delegated:
            raise DelegateError(
                f"The GPU takes no op of {os.fspath(model)}, so nothing is compared: {report.summary()}"
            )
        if other is not None and not isinstance(other, OfficialDelegate) and not report.delegated:
            raise DelegateError(
                f"{other.name} takes no op of {os.fspath(model)}, so nothing is compared: {report.summary()}"
            )
        feeds, count, described = _feeds(reference, options)
        runs = _Runs(reference, test)
        worst: Feed | None = None
        interrupted = False
        with progress() as bar:
            task = bar.add_task("runs", total=count)
            try:
                for feed in feeds:
                    if runs.add(feed):
                        worst = feed
                    bar.update(task, advance=1, refresh=True)
            except KeyboardInterrupt:  # what was compared is told
                if not runs.count:
                    raise
                interrupted = True
        by_op = options.per_op and not interrupted
        plain_outputs = _invoked(test, worst, 1)[0] if by_op and worst is not None else []
        programs = list(recording.programs) if recording is not None else []
        divided = test.model.with_main(test.graph)
    per_op = None
    if by_op:
        assert recording is not None and worst is not None
        per_op = analyse(
            divided,
            report,
            programs,
            worst,
            plain_outputs,
            open_reference=lambda content: _opened(
                content, _RESOLVERS[options.reference_kernels], delegate=_own_format(divided)
            ),
            open_test=_opener(options),
            tolerance=options.tolerance if options.tolerance is not None else _tolerance(recording),
        )
    name, is_software = (_name(other), False) if recording is None else recording.device
    found = DiffReport(
        model=os.fspath(model),
        options=options,
        device=name,
        is_software=is_software,
        half=recording is not None and recording.half,
        delegation=report,
        inputs=described,
        graph=divided.main,
        num_runs=runs.count,
        reference_latency=microseconds(runs.reference_seconds),
        test_latency=microseconds(runs.test_seconds),
        outputs=runs.outputs(),
        per_op=per_op,
        interrupted=interrupted,
    )
    if interrupted:
        raise InterruptedDifference(found)
    return found


class InterruptedDifference(KeyboardInterrupt):
    """Ctrl-C among the runs; `report`: of those that were over."""

    def __init__(self, report: DiffReport) -> None:
        super().__init__()
        self.report = report


class _Runs:
    """Both sides, and what was measured so far."""

    def __init__(self, reference: Interpreter, test: Interpreter) -> None:
        self.reference, self.test = reference, test
        self.reference_seconds: list[float] = []
        self.test_seconds: list[float] = []
        self.count = 0
        self._details = reference.get_output_details()
        self._found: list[list[Difference]] = [[] for _ in self._details]
        self._histograms: list[Histogram | None] = [None for _ in self._details]
        self._shapes: list[tuple[int, ...]] = [() for _ in self._details]
        self._worst = -1.0

    def add(self, feed: Feed) -> bool:
        """One run; whether it is the worst so far."""
        if self.count == 0:
            _invoked(self.reference, feed, 1)
            _invoked(self.test, feed, 1)
        want, seconds = _invoked(self.reference, feed, _INVOKES)
        got, test_seconds = _invoked(self.test, feed, _INVOKES)
        measured = [
            (measure(test, reference, detail), histogram(test, reference, detail))
            for test, reference, detail in zip(got, want, self._details, strict=True)
        ]
        self.reference_seconds += seconds  # nothing is kept of a run that is interrupted
        self.test_seconds += test_seconds
        self.count += 1
        largest = 0.0
        for i, ((found, errors), reference) in enumerate(zip(measured, want, strict=True)):
            self._found[i].append(found)
            before = self._histograms[i]
            self._histograms[i] = errors if before is None else before + errors
            self._shapes[i] = reference.shape
            largest = max(largest, found.relative_l2)
        worse = largest > self._worst
        self._worst = max(self._worst, largest)
        return worse

    def outputs(self) -> tuple[OutputDifference, ...]:
        return tuple(
            summarise(detail, shape, found, errors)
            for detail, shape, found, errors in zip(
                self._details, self._shapes, self._found, self._histograms, strict=True
            )
            if errors is not None
        )


def _invoked(interpreter: Interpreter, feed: Feed, times: int) -> tuple[list[np.ndarray], list[float]]:
    """The outputs after the last of several inferences from zeroed variables, and the seconds of each."""
    interpreter.reset_all_variables()
    for detail, array in zip(interpreter.get_input_details(), feed, strict=True):
        interpreter.set_tensor(detail["index"], array)
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        interpreter.invoke()
        seconds.append(time.perf_counter() - start)
    return [np.asarray(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()], seconds


def _opened(
    model: str | os.PathLike[str] | bytes,
    resolver: OpResolverType,
    num_threads: int = 1,
    delegate: DelegateProtocol | None = None,
) -> Interpreter:
    content = model if isinstance(model, bytes) else None
    interpreter = Interpreter(
        model_path=None if isinstance(model, bytes) else model,
        model_content=content,
        experimental_delegates=[delegate] if delegate is not None else None,
        num_threads=num_threads,
        experimental_op_resolver_type=resolver,
        fallback="silent",
    )
    try:
        interpreter.allocate_tensors()
    except BaseException:
        interpreter.close()
        raise
    return interpreter


def _gpu(options: DiffOptions, staging: Staging | None = None) -> RecordingDelegate:
    delegate = RecordingDelegate(
        GpuDelegateOptions(
            precision=options.precision,
            arithmetic=options.arithmetic,
            **backend_options(options.backend),
            quantization_enabled=options.quantization,
            max_delegated_partitions=max(options.max_delegated_partitions, 1),
        ),
        staging,
    )
    delegate.open_device()  # a missing GPU is an error here, not a reason to compare the CPU with itself
    return delegate


def _check_delegate(name: str) -> None:
    """Raises OptionError if nothing is compared by this name."""
    if name in DELEGATES or names_delegate(name):
        return
    foreign = recognised(name)
    try:
        if foreign is not None:
            library_of(foreign)
            return
    except DelegateLoadError as error:
        raise DelegateLoadError(f"Unsupported TFLite delegate: {name}. {error}") from None
    others = {known.name for known in known_delegates()}.difference(DELEGATES)
    listed = ", ".join((*DELEGATES, *sorted(others)))
    raise OptionError(f"Unsupported TFLite delegate: {name}; use one of {listed}")


def _other(options: DiffOptions) -> Any:
    """A delegate that is neither the GPU's nor the CPU itself."""
    if options.delegate in DELEGATES:
        return None
    if names_delegate(options.delegate):
        return asked_for(options.delegate, options.precision, {})
    return load_delegate(options.delegate)


def _name(other: Any) -> str:
    if other is None:
        return "CPU"
    return other.device_name() if isinstance(other, NamesDevice) else str(getattr(other, "name", "external delegate"))


def _own_format(model: Model) -> DelegateProtocol | None:
    """Runs on the reference's side the ops whose inner tensors the official runtime has in another format."""
    from litegpu.gpu.delegate.missing_ops import OWN_FORMAT, ReferenceDelegate

    names = OWN_FORMAT & {o.name for o in model.main.operators}
    return ReferenceDelegate(names) if names else None


def _opener(options: DiffOptions) -> Callable[[bytes, Staging], tuple[Interpreter, RecordingDelegate]]:
    def opened(content: bytes, staging: Staging) -> tuple[Interpreter, RecordingDelegate]:
        recording = _gpu(options, staging)
        return _opened(content, _resolver(options), options.num_threads, recording), recording

    return opened


def _resolver(options: DiffOptions) -> OpResolverType:
    """Of the CPU kernels of what is tested; those that are left to the CPU beside a GPU are the reference's own."""
    on_cpu = options.delegate in _RESOLVERS
    return _RESOLVERS[options.delegate if on_cpu else options.reference_kernels]


def _tolerance(recording: RecordingDelegate) -> float:
    from litegpu.tools.agreement import TOLERANCES

    return TOLERANCES["float16" if recording.half else "float32"]


def _feeds(interpreter: Interpreter, options: DiffOptions) -> tuple[Iterable[Feed], int, str]:
    details = interpreter.get_input_details()
    if options.inputs:
        feeds = file_feeds(details, options.inputs)
        feeds = feeds[: options.num_runs]
        return feeds, len(feeds), f"{len(feeds)} of the user's own"
    count = options.num_runs or RUNS
    model: Model = interpreter.model
    return gaussian_feeds(details, model.main, count, options.seed), count, f"random, seed {options.seed}"


def _latency(statistics: Statistics) -> dict[str, float]:
    values: Sequence[int] = statistics.values
    return {
        "count": len(values),
        "avg": statistics.average,
        "std": statistics.deviation,
        "min": min(values, default=0),
        "max": max(values, default=0),
    }
