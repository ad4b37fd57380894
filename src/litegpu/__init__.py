"""Run .tflite models on any GPU from Python, with the official Interpreter API and the CPU for the rest."""

from __future__ import annotations

from litegpu import starting  # noqa: F401 (first, as the others take a while)

# isort: split

import logging
from typing import TYPE_CHECKING

from litegpu.delegates.protocol import Delegate as DelegateProtocol
from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.delegates.report import DelegationReport
from litegpu.errors import (
    DeadlineError,
    DelegateError,
    DeviceError,
    InvokeError,
    LiteGpuError,
    ModelError,
    OptionError,
    QueueFullError,
    TensorError,
)
from litegpu.gpu.delegate.options import (
    ExperimentalFlags,
    GpuDelegateOptions,
    InferencePreference,
    InferencePriority,
    WaitType,
)
from litegpu.interpreter import (
    Delegate,
    Interpreter,
    InterpreterWithCustomOps,
    OpResolverType,
    SignatureRunner,
    load_delegate,
)
from litegpu.later import attributes
from litegpu.model.bundle import BundledModel, list_models
from litegpu.model.reader import read_model
from litegpu.session import LoadedModel, load
from litegpu.version import __version__ as __version__
from litegpu.visible import VisibleLog

if TYPE_CHECKING:
    from litegpu.batching import Batcher
    from litegpu.external import external_delegate_path
    from litegpu.gpu.custom import register_op, unregister_op
    from litegpu.gpu.delegate.delegate import GpuDelegate
    from litegpu.gpu.delegate.images import ImageInput
    from litegpu.tools.advise import advise
    from litegpu.tools.analyze import analyze
    from litegpu.tools.benchmark import benchmark, compare_benchmarks

for _name in ("litegpu", "litegpu.debug"):
    logging.getLogger(_name).addFilter(VisibleLog())

__all__ = [
    "Batcher",
    "BundledModel",
    "DeadlineError",
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
    "QueueFullError",
    "SignatureRunner",
    "TensorError",
    "WaitType",
    "advise",
    "analyze",
    "benchmark",
    "compare_benchmarks",
    "external_delegate_path",
    "list_models",
    "load",
    "load_delegate",
    "read_model",
    "register_op",
    "unregister_op",
]


#: The GPU delegate brings the kernels with it, and there are the tools.
__getattr__ = attributes(
    __name__,
    {
        "batching": "Batcher",
        "gpu.delegate.delegate": "GpuDelegate",
        "gpu.delegate.images": "ImageInput",
        "gpu.custom": "register_op unregister_op",
        "external": "external_delegate_path",
        "tools.advise": "advise",
        "tools.analyze": "analyze",
        "tools.benchmark": "benchmark compare_benchmarks",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
