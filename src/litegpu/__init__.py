"""Run .tflite models on any GPU from Python, with the official Interpreter API and the CPU for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litegpu.delegates.options import (
    ExperimentalFlags,
    GpuDelegateOptions,
    InferencePreference,
    InferencePriority,
    WaitType,
)
from litegpu.delegates.protocol import Delegate as DelegateProtocol
from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.delegates.report import DelegationReport
from litegpu.errors import (
    DelegateError,
    DeviceError,
    InvokeError,
    LiteGpuError,
    ModelError,
    OptionError,
    TensorError,
)
from litegpu.interpreter import (
    Delegate,
    Interpreter,
    InterpreterWithCustomOps,
    OpResolverType,
    SignatureRunner,
    load_delegate,
)
from litegpu.model.bundle import BundledModel, list_models
from litegpu.model.reader import read_model
from litegpu.session import LoadedModel, load

if TYPE_CHECKING:
    from litegpu.delegates.gpu import GpuDelegate
    from litegpu.gpu.adapter import ImageInput
    from litegpu.gpu.custom import register_op, unregister_op
    from litegpu.tools.advise import advise
    from litegpu.tools.benchmark import benchmark, compare_benchmarks

__version__ = "0.1.0"

__all__ = [
    "BundledModel",
    "Delegate",
    "DelegateError",
    "DelegateKernel",
    "DelegateProtocol",
    "DelegationReport",
    "DeviceError",
    "ExperimentalFlags",
    "GpuDelegate",
    "GpuDelegateOptions",
    "ImageInput",
    "InferencePreference",
    "InferencePriority",
    "Interpreter",
    "InterpreterWithCustomOps",
    "InvokeError",
    "LiteGpuError",
    "LoadedModel",
    "ModelError",
    "OpResolverType",
    "OptionError",
    "Partition",
    "SignatureRunner",
    "TensorError",
    "WaitType",
    "advise",
    "benchmark",
    "compare_benchmarks",
    "list_models",
    "load",
    "load_delegate",
    "read_model",
    "register_op",
    "unregister_op",
]


def __getattr__(name: str) -> Any:
    """The GPU delegate brings the kernels with it, so it is imported when it is first asked for; so are the tools."""
    if name == "GpuDelegate":
        from litegpu.delegates import gpu

        return gpu.GpuDelegate
    if name == "ImageInput":
        from litegpu.gpu import adapter

        return adapter.ImageInput
    if name in ("register_op", "unregister_op"):
        from litegpu.gpu import custom

        return getattr(custom, name)
    if name == "advise":
        from litegpu.tools import advise

        return advise.advise
    if name in ("benchmark", "compare_benchmarks"):
        from litegpu.tools import benchmark

        return getattr(benchmark, name)
    raise AttributeError(f"module 'litegpu' has no attribute {name!r}")
