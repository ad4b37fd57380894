"""A model opened as the flags say, ready to run, with the time that each part of that took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.delegates.cpu import PLAIN
from litegpu.delegates.protocol import NamesDevice
from litegpu.errors import DelegateError, InvokeError, OptionError
from litegpu.interpreter import Interpreter, OpResolverType
from litegpu.model.reader import read_model
from litegpu.tools.benchmark import benchmark_inputs
from litegpu.tools.benchmark.delegates import GpuWatch, applied, external_delegate, gpu_delegate
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.loop import setter
from litegpu.tools.benchmark.memory import DeviceMemory
from litegpu.tools.benchmark.result import Startup

if TYPE_CHECKING:
    from litegpu.delegates.report import DelegationReport
    from litegpu.interpreter import SignatureRunner

Outputs = list[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class Opened:
    """`prepare` copies the inputs in and `run` makes one inference. `kernels` are the GPU's prepared partitions, and
    `delegates` the names of what was applied explicitly, with the number of its kernels and whether one is the whole
    model. `signature`: the key of the one that runs, if it is not the main subgraph."""

    interpreter: Interpreter
    kernels: tuple[Any, ...]
    device: Any
    delegates: tuple[tuple[str, int, bool], ...]
    startup: Startup
    prepare: Callable[[], object]
    run: Callable[[], object]
    inputs: tuple[np.ndarray, ...]
    outputs: Callable[[], Outputs]
    device_memory: DeviceMemory
    external: Any = None

    @property
    def report(self) -> DelegationReport:
        return self.interpreter.delegation_report()

    @property
    def device_name(self) -> str:
        """What runs most of it, for people."""
        if not self.report.delegated:
            return "CPU"
        if self.device is None:
            return self.external.device_name() if isinstance(self.external, NamesDevice) else self.external.name
        info = self.device.info
        return f"{info.name} ({info.backend})"

    @property
    def is_software(self) -> bool:
        """Whether the device is a program on the CPU."""
        return bool(self.report.delegated and self.device is not None and self.device.info.is_software)

    def close(self) -> None:
        self.interpreter.close()


def open_model(flags: BenchmarkFlags, content: bytes | None = None, announce: Callable[[str], object] = str) -> Opened:
    """Open flags.graph, or a model in memory. `announce` is told what has been done.

    Raises OptionError for flags that do not fit the model, DeviceError if there is no GPU but one was asked for,
    ModelError, InvokeError, and DelegateError under require_full_delegation."""
    clock = time.perf_counter
    start = clock()
    gpu = GpuWatch(gpu_delegate(flags)) if flags.use_gpu else None
    device = gpu.open_device() if gpu is not None else None
    device_memory = DeviceMemory(device)
    external = external_delegate(flags)
    opened = clock()
    given = [d for d in (gpu, external) if d is not None]
    interpreter = Interpreter(
        model_path=None if content is not None else flags.graph,
        model_content=content,
        experimental_delegates=given or None,
        num_threads=flags.num_threads if flags.num_threads > 0 else None,
        experimental_op_resolver_type=PLAIN if flags.use_xnnpack is False else OpResolverType.AUTO,
        experimental_disable_delegate_clustering=flags.disable_delegate_clustering,
    )
    try:
        loaded, checks = clock(), gpu.checking if gpu is not None else 0.0
        announce(f"Loaded model {flags.graph}")
        runner = _signature(interpreter, flags)
        allocating = _allocated(interpreter, runner, flags)
        device_seconds = opened - start if given else 0.0
        startup = _startup(gpu, device_seconds, loaded - opened - checks, allocating + checks)
        delegates = applied(interpreter, gpu, external, flags)
        if flags.require_full_delegation and not any(whole for _, _, whole in delegates):
            raise DelegateError(f"Disallowed CPU fallback detected. {interpreter.delegation_report().summary()}")
        arrays = tuple(benchmark_inputs.arrays(flags, _inputs(interpreter, runner)))
        prepare, run, outputs = _ways(interpreter, runner, arrays)
    except BaseException:
        interpreter.close()
        raise
    kernels = tuple(gpu.prepared) if gpu is not None else ()
    return Opened(
        interpreter, kernels, device, delegates, startup, prepare, run, arrays, outputs, device_memory, external
    )


def signature_keys(flags: BenchmarkFlags) -> list[str]:
    """The keys of the model's signatures."""
    return [s.key for s in read_model(flags.graph).signatures]


def _startup(delegate: GpuWatch | None, device: float, load: float, allocate: float) -> Startup:
    preparing = delegate.preparing if delegate is not None else 0.0
    stats = [kernel.session.stats for kernel in delegate.prepared] if delegate is not None else []
    compiling, upload = (sum(s.get(part, 0.0) for s in stats) for part in ("compile", "upload"))
    return Startup(
        total=device + load + allocate,
        device=device,
        load=load,
        partition=allocate - preparing,
        build=preparing - compiling - upload,
        compile=compiling,
        upload=upload,
    )


def _signature(interpreter: Interpreter, flags: BenchmarkFlags) -> SignatureRunner | None:
    """What runs the chosen signature, None if that is the main subgraph; raises OptionError."""
    signatures = {s.key: s for s in interpreter.model.signatures}
    wanted = flags.signature_to_run_for
    if not wanted:
        if len(signatures) > 1:
            raise OptionError(f"The model has several signatures: give --signature_to_run_for, {_one_of(signatures)}")
        return None
    if wanted not in signatures:
        have = _one_of(signatures) if signatures else "the model has no signatures"
        raise OptionError(f"--signature_to_run_for={wanted} is not in the model: {have}")
    return interpreter.get_signature_runner(wanted) if signatures[wanted].subgraph else None


def _one_of(keys: Any) -> str:
    return f"one of {', '.join(keys)}"


def _inputs(interpreter: Interpreter, runner: SignatureRunner | None) -> list[dict[str, Any]]:
    """The detail dictionaries of what is fed."""
    return interpreter.get_input_details() if runner is None else list(runner.get_input_details().values())


def _allocated(interpreter: Interpreter, runner: SignatureRunner | None, flags: BenchmarkFlags) -> float:
    """Give the inputs the shapes of the flags and allocate; the seconds of the latter."""
    resizes = benchmark_inputs.resizes(flags, _inputs(interpreter, runner))
    if resizes and runner is not None:
        raise OptionError("--input_layer_shape is for the main subgraph, not for other signatures")
    for index, shape in resizes:
        interpreter.resize_tensor_input(index, shape)
    start = time.perf_counter()
    try:
        interpreter.allocate_tensors()
    except InvokeError as error:
        advice = " (other batch sizes of a model whose batch is fixed are made by --batch_sizes)" if resizes else ""
        raise InvokeError(f"{error}{advice}") from None
    return time.perf_counter() - start


def _ways(
    interpreter: Interpreter, runner: SignatureRunner | None, arrays: Sequence[np.ndarray]
) -> tuple[Callable[[], object], Callable[[], object], Callable[[], Outputs]]:
    """What copies the inputs in, makes one inference, and gives the outputs by name."""
    if runner is not None:
        by_name = dict(zip(runner.get_input_details(), arrays, strict=True))
        return (
            lambda: None,
            lambda: runner(**by_name),
            lambda: [(n, np.asarray(v)) for n, v in runner(**by_name).items()],
        )

    def outputs() -> Outputs:
        details = interpreter.get_output_details()
        return [(str(d["name"]), np.asarray(interpreter.get_tensor(d["index"]))) for d in details]

    indices = [int(d["index"]) for d in interpreter.get_input_details()]
    return setter(interpreter, indices, arrays), interpreter.invoke, outputs
