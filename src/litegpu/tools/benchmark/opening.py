"""A model opened as the flags say, ready to run, with the time that each part of that took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import litegpu
from litegpu.delegates.cpu import PLAIN
from litegpu.delegates.xnnpack import partitions_of
from litegpu.errors import DelegateError, LiteGpuError, OptionError
from litegpu.tools.benchmark import feeds
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.loop import setter
from litegpu.tools.benchmark.memory import DeviceMemory
from litegpu.tools.benchmark.result import Startup

_PRECISIONS = {"float16": "float16", "fp16": "float16", "float32": "float32", "fp32": "float32", "auto": "auto"}
_OPENCL = ("cl", "opencl")
_WAITS = ("passive", "active", "do_not_wait", "aggressive")


@dataclass(frozen=True)
class Opened:
    """`prepare` copies the inputs in and `run` makes one inference. `kernels` are the GPU's prepared partitions, and
    `delegates` the names of what was applied explicitly, with the number of its kernels and whether one is the whole
    model. `signature`: the key of the one that runs, if it is not the main subgraph."""

    interpreter: litegpu.Interpreter
    kernels: tuple[Any, ...]
    device: Any
    delegates: tuple[tuple[str, int, bool], ...]
    startup: Startup
    prepare: Callable[[], object]
    run: Callable[[], object]
    inputs: tuple[np.ndarray, ...]
    outputs: Callable[[], list[tuple[str, np.ndarray]]]
    device_memory: DeviceMemory

    @property
    def report(self) -> litegpu.DelegationReport:
        return self.interpreter.delegation_report()

    @property
    def device_name(self) -> str:
        """What runs most of it, for people."""
        if self.device is None or not self.report.delegated:
            return "CPU"
        info = self.device.info
        return f"{info.name} ({info.backend})"

    def close(self) -> None:
        self.interpreter.close()


def open_model(flags: BenchmarkFlags, content: bytes | None = None, announce: Callable[[str], object] = str) -> Opened:
    """Open flags.graph, or a model in memory. `announce` is told what has been done.

    Raises OptionError for flags that do not fit the model, DeviceError if there is no GPU but one was asked for,
    ModelError, InvokeError, and DelegateError under require_full_delegation."""
    clock = time.perf_counter
    start = clock()
    delegate = _GpuWatch(gpu_delegate(flags)) if flags.use_gpu else None
    device = delegate.open_device() if delegate is not None else None
    device_memory = DeviceMemory(device)
    external = _external(flags)
    opened = clock()
    given = [d for d in (delegate, external) if d is not None]
    interpreter = litegpu.Interpreter(
        model_path=None if content is not None else flags.graph,
        model_content=content,
        experimental_delegates=given or None,
        num_threads=flags.num_threads if flags.num_threads > 0 else None,
        experimental_op_resolver_type=PLAIN if flags.use_xnnpack is False else litegpu.OpResolverType.AUTO,
        experimental_disable_delegate_clustering=flags.disable_delegate_clustering,
    )
    try:
        loaded, checks = clock(), delegate.checking if delegate is not None else 0.0
        announce(f"Loaded model {flags.graph}")
        runner = _signature(interpreter, flags)
        details = interpreter.get_input_details() if runner is None else list(runner.get_input_details().values())
        for index, shape in feeds.resizes(flags, details):
            if runner is not None:
                raise OptionError("--input_layer_shape is for the main subgraph, not for other signatures")
            interpreter.resize_tensor_input(index, shape)
        allocating = clock()
        interpreter.allocate_tensors()
        ready = clock()
        startup = _startup(
            delegate, opened - start if given else 0.0, loaded - opened - checks, ready - allocating + checks
        )
        kernels = tuple(delegate.prepared) if delegate is not None else ()
        delegates = _applied(interpreter, delegate, external, flags)
        if flags.require_full_delegation and not any(whole for _, _, whole in delegates):
            raise DelegateError(f"Disallowed CPU fallback detected. {interpreter.delegation_report().summary()}")
        if runner is None:
            details = interpreter.get_input_details()
        arrays = feeds.arrays(flags, details)
    except BaseException:
        interpreter.close()
        raise
    names = [str(d["name"]) for d in interpreter.get_output_details()]

    def outputs() -> list[tuple[str, np.ndarray]]:
        if runner is not None:
            return [(name, np.asarray(value)) for name, value in runner(**by_name).items()]
        indices = [d["index"] for d in interpreter.get_output_details()]
        return [(n, np.asarray(interpreter.get_tensor(i))) for n, i in zip(names, indices, strict=True)]

    prepare: Callable[[], object] = setter(interpreter, [int(d["index"]) for d in details], arrays)
    run: Callable[[], object] = interpreter.invoke
    if runner is not None:
        by_name = dict(zip(runner.get_input_details(), arrays, strict=True))
        prepare, run = (lambda: None), (lambda: runner(**by_name))
    return Opened(interpreter, kernels, device, delegates, startup, prepare, run, tuple(arrays), outputs, device_memory)


def gpu_delegate(flags: BenchmarkFlags) -> litegpu.GpuDelegate:
    """The GPU delegate that the flags ask for; raises OptionError."""
    options: dict[str, Any] = {}
    if flags.gpu_precision:
        if flags.gpu_precision not in _PRECISIONS:
            raise OptionError(f"--gpu_precision is {flags.gpu_precision!r}; it must be float16, float32 or auto")
        options["precision"] = _PRECISIONS[flags.gpu_precision]
    else:
        options["precision_loss_allowed"] = flags.gpu_precision_loss_allowed
    if flags.gpu_backend in _OPENCL:
        raise OptionError(f"--gpu_backend={flags.gpu_backend}: there is no OpenCL here; use vulkan, or leave it out")
    if flags.gpu_wait_type:
        if flags.gpu_wait_type not in _WAITS:
            raise OptionError(f"--gpu_wait_type is {flags.gpu_wait_type!r}; it must be one of {', '.join(_WAITS)}")
        options["wait_type"] = flags.gpu_wait_type
    if flags.gpu_inference_for_sustained_speed:
        options["inference_preference"] = litegpu.InferencePreference.SUSTAINED_SPEED
    if flags.delegate_serialize_token and not flags.delegate_serialize_dir:
        raise OptionError("--delegate_serialize_token names a model in --delegate_serialize_dir: give that too")
    return litegpu.GpuDelegate(
        quantization_enabled=flags.gpu_experimental_enable_quant,
        backend={"opengl": "gl"}.get(flags.gpu_backend, flags.gpu_backend) or "auto",
        device=flags.gpu_device or None,
        tuning=flags.gpu_tuning,
        max_delegated_partitions=max(flags.max_delegated_partitions, 1),
        min_nodes_per_partition=flags.min_nodes_per_partition,
        first_delegate_node_index=flags.first_delegate_node_index,
        last_delegate_node_index=flags.last_delegate_node_index,
        serialization_dir=flags.delegate_serialize_dir or None,
        model_token=flags.delegate_serialize_token or None,
        **options,
    )


def signature_keys(flags: BenchmarkFlags) -> list[str]:
    """The keys of the model's signatures."""
    return [s.key for s in litegpu.read_model(flags.graph).signatures]


class _GpuWatch:
    """Hands everything on to the GPU delegate, and keeps the kernels that it prepares and the time that it takes."""

    def __init__(self, inner: litegpu.GpuDelegate) -> None:
        self._inner = inner
        self.prepared: list[Any] = []
        self.checking = 0.0
        self.preparing = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def check(self, *arguments: Any) -> str | None:
        started = time.perf_counter()
        try:
            return self._inner.check(*arguments)
        finally:
            self.checking += time.perf_counter() - started

    def prepare(self, partition: litegpu.Partition) -> litegpu.DelegateKernel:
        started = time.perf_counter()
        try:
            kernel = self._inner.prepare(partition)
        finally:
            self.preparing += time.perf_counter() - started
        self.prepared.append(kernel)
        return kernel


def _startup(delegate: _GpuWatch | None, device: float, load: float, allocate: float) -> Startup:
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


def _external(flags: BenchmarkFlags) -> Any:
    """The official runtime's object for a delegate in a shared library, None if there is none."""
    if not flags.external_delegate_path:
        return None
    path = flags.external_delegate_path
    if os.path.dirname(path) and not os.path.exists(path):
        raise OptionError(f"--external_delegate_path={path}: there is no such file")
    options = {}
    for item in filter(None, flags.external_delegate_options.split(";")):
        key, colon, value = item.partition(":")
        if not colon:
            raise OptionError(f"{item!r} in --external_delegate_options is not key:value")
        options[key] = value
    try:
        return litegpu.load_delegate(path, options)
    except (OSError, ValueError) as error:
        raise DelegateError(f"The delegate in {path} cannot be loaded: {error}") from None


def _signature(interpreter: litegpu.Interpreter, flags: BenchmarkFlags) -> litegpu.SignatureRunner | None:
    """What runs the chosen signature, None if that is the main subgraph; raises OptionError."""
    signatures = {s.key: s for s in interpreter._model.signatures}
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


def _applied(
    interpreter: litegpu.Interpreter, gpu: Any, external: Any, flags: BenchmarkFlags
) -> tuple[tuple[str, int, bool], ...]:
    """(name, kernels, whether one of them is the whole model) of each delegate that was asked for."""
    report = interpreter.delegation_report()
    found: list[tuple[str, int, bool]] = []
    if gpu is not None:
        count = sum(p.owner == "GPU" for p in report.partitions)
        found.append(("GPU", count, count == 1 and report.fully_delegated))
    name = "EXTERNAL" if external is not None else "XNNPACK" if flags.use_xnnpack else ""
    if name and interpreter._whole:
        try:
            kernels = partitions_of(interpreter._official)
        except (LiteGpuError, RuntimeError, ValueError):
            kernels = ()
        nodes: Sequence[int] = [n for kernel in kernels for n in kernel]
        found.append((name, len(kernels), len(kernels) == 1 and len(nodes) == len(report.nodes)))
    return tuple(found)
