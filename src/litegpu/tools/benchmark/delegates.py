"""The delegates that the flags ask for, and what came of them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from litegpu.delegate_registry import with_values
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.xnnpack import partitions_of
from litegpu.device_choice import names_delegate
from litegpu.errors import LiteGpuError, OptionError
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.options import InferencePreference
from litegpu.interpreter import load_delegate
from litegpu.tools.benchmark.flags import BenchmarkFlags

if TYPE_CHECKING:
    from litegpu.delegates.protocol import DelegateKernel, Partition
    from litegpu.interpreter import Interpreter

_PRECISIONS = {"float16": "float16", "fp16": "float16", "float32": "float32", "fp32": "float32", "auto": "auto"}
_OPENCL = ("cl", "opencl")
_WAITS = ("passive", "active", "do_not_wait", "aggressive")


def gpu_delegate(flags: BenchmarkFlags) -> GpuDelegate:
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
        options["inference_preference"] = InferencePreference.SUSTAINED_SPEED
    if flags.delegate_serialize_token and not flags.delegate_serialize_dir:
        raise OptionError("--delegate_serialize_token names a model in --delegate_serialize_dir: give that too")
    return GpuDelegate(
        quantization_enabled=flags.gpu_experimental_enable_quant,
        arithmetic=flags.gpu_arithmetic,
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


class GpuWatch:
    """Hands everything on to the GPU delegate, and keeps the kernels that it prepares and the time that it takes."""

    def __init__(self, inner: GpuDelegate) -> None:
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

    def prepare(self, partition: Partition) -> DelegateKernel:
        started = time.perf_counter()
        try:
            kernel = self._inner.prepare(partition)
        finally:
            self.preparing += time.perf_counter() - started
        self.prepared.append(kernel)
        return kernel


def external_delegate(flags: BenchmarkFlags) -> Any:
    """A delegate by name, or the official runtime's object for one in a shared library; None if there is none."""
    if not flags.external_delegate_path:
        return None
    path = flags.external_delegate_path
    if os.path.dirname(path) and not os.path.exists(path):
        raise OptionError(f"--external_delegate_path={path}: there is no such file")
    options: dict[str, Any] = {}
    for item in filter(None, flags.external_delegate_options.split(";")):
        key, colon, value = item.partition(":")
        if not colon:
            raise OptionError(f"{item!r} in --external_delegate_options is not key:value")
        options[key] = value
    if not names_delegate(path):
        return load_delegate(path, options)
    name, _, device = path.partition(":")
    return load_delegate(name, with_values(options) | ({"device": device} if device else {}))


def applied(
    interpreter: Interpreter, gpu: Any, external: Any, flags: BenchmarkFlags
) -> tuple[tuple[str, int, bool], ...]:
    """(name, kernels, whether one of them is the whole model) of each delegate that was asked for."""
    report = interpreter.delegation_report()
    found: list[tuple[str, int, bool]] = []
    if gpu is not None:
        count = sum(p.owner == "GPU" for p in report.partitions)
        found.append(("GPU", count, count == 1 and report.fully_delegated))
    if isinstance(external, Delegate):
        count = sum(p.owner == external.name for p in report.partitions)
        found.append((external.name, count, count == 1 and report.fully_delegated))
        external = None
    name = "EXTERNAL" if external is not None else "XNNPACK" if flags.use_xnnpack else ""
    if name and interpreter.runs_whole:
        try:
            kernels = partitions_of(interpreter.official)
        except (LiteGpuError, RuntimeError, ValueError):
            kernels = ()
        nodes: Sequence[int] = [n for kernel in kernels for n in kernel]
        found.append((name, len(kernels), len(kernels) == 1 and len(nodes) == len(report.nodes)))
    return tuple(found)
