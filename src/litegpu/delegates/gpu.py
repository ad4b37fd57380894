"""The GPU delegate: takes every node that lowers to the GPU graph and runs each partition as one Program."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from litegpu import debug
from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.build import build_program, describe
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.gpu.runtime.base import Device, KernelTime, Session
from litegpu.gpu.runtime.check import NUMPY
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Operator, Subgraph, TensorType

log = logging.getLogger("litegpu")

BACKENDS = ("auto", "cuda", "webgpu", "vulkan", "metal", "d3d12", "gl")


TUNING = ("off", "fast", "full")


@dataclass(frozen=True)
class GpuDelegateOptions:
    """How the GPU delegate works.

    precision_loss_allowed: store activations and weights as float16 (sums stay in float32); needs a device with 16-bit
        floats, else float32 is used with one warning.
    quantization_enabled: take 8-bit and 16-bit nodes too, computing with the real numbers that they stand for; without
        it they stay on the CPU (constants may be quantized in any case).
    backend: "auto" (CUDA where an NVIDIA GPU and the extra litegpu[cuda] are there, else WebGPU), "cuda", "webgpu" (the
        best device of any of its APIs), or one of these: "vulkan", "metal", "d3d12", "gl".
    device: a part of the device's name, to choose among several; with CUDA also its index ("1", "cuda:1") or UUID.
    max_delegated_partitions: the largest so many partitions are taken; 0 means all.
    min_nodes_per_partition: partitions with fewer nodes stay on the CPU.
    tuning: "off" (kernels are chosen by estimates), "fast" or "full" (a few or many candidates are compiled and timed
        on the device when a model is prepared: seconds, or minutes; only with CUDA does it make a difference). Never
        changes what is computed beyond the order of sums.
    first_delegate_node_index, last_delegate_node_index: nodes outside stay on the CPU (to bisect a wrong op).
    """

    precision_loss_allowed: bool = False
    quantization_enabled: bool = True
    backend: str = "auto"
    device: str | None = None
    tuning: str = "off"
    max_delegated_partitions: int = 1
    min_nodes_per_partition: int = 0
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = sys.maxsize

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise OptionError(f"backend {self.backend!r} is unknown: use one of {', '.join(BACKENDS)}")
        if self.tuning not in TUNING:
            raise OptionError(f"tuning {self.tuning!r} is unknown: use one of {', '.join(TUNING)}")
        for name in ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be 0 or more")


class GpuDelegate:
    """Runs what it can of a model on a GPU through CUDA or WebGPU (Vulkan, Metal, Direct3D 12 or OpenGL).

    `GpuDelegate(GpuDelegateOptions(...))` or `GpuDelegate(precision_loss_allowed=True, ...)`. The device is opened when
    the first partition is prepared, and shared by all delegates of a process that ask for the same one.
    """

    name = "GPU"
    keeps_variables = True

    def __init__(self, options: GpuDelegateOptions | None = None, **changes: object) -> None:
        known = [f.name for f in fields(GpuDelegateOptions)]
        for name in changes:
            if name not in known:
                raise OptionError(_unknown_option(name, known))
        if options is not None and changes:
            raise OptionError("give either a GpuDelegateOptions object or keyword options, not both")
        self.options = options if options is not None else GpuDelegateOptions(**changes)  # type: ignore[arg-type]
        self.max_delegated_partitions = self.options.max_delegated_partitions
        self.min_nodes_per_partition = self.options.min_nodes_per_partition
        self.first_delegate_node_index = self.options.first_delegate_node_index
        self.last_delegate_node_index = self.options.last_delegate_node_index
        self._warned_float16 = False

    def __repr__(self) -> str:
        return f"GpuDelegate({self.options!r})"

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        """The reason why the GPU does not take the node, or None: the same code decides that later lowers it."""
        return check_operator(subgraph, operator, quantization=self.options.quantization_enabled)

    def prepare(self, partition: Partition) -> DelegateKernel:
        """Compile a partition; raises DeviceError if there is no device, KernelError if it does not fit it."""
        device = self.open_device()
        half = self.options.precision_loss_allowed
        if half and not device.features.float16:
            half = False
            if not self._warned_float16:
                self._warned_float16 = True
                log.warning("%s has no 16-bit floats (WebGPU feature shader-f16): running in float32", device.info.name)
        lowered = lower_partition(partition.subgraph, partition.nodes, partition.inputs, partition.outputs)
        program = build_program(
            lowered.graph,
            device.features,
            device.target,
            half=half,
            tuner=device.tuner(self.options.tuning),
            variables=len(lowered.variables),
        )
        debug.say(debug.GRAPH, "%s", describe(program))
        for kernel in program.kernels:
            debug.say(debug.KERNELS, "%s", kernel.source)
        types = [partition.subgraph.tensors[i].type for i in partition.outputs]
        shapes = [partition.subgraph.tensors[i].shape for i in partition.outputs]
        inputs = [partition.subgraph.tensors[i].shape for i in partition.inputs]
        return GpuKernel(device, device.session(program), types, shapes, inputs)

    def open_device(self) -> Device:
        """The device that the options ask for; raises DeviceError with advice if there is none. Where "auto" would take
        CUDA but cannot, although the machine has NVIDIA's driver, a warning says why, once per process."""
        backend, name = self.options.backend, self.options.device
        if backend in ("auto", "cuda"):
            from litegpu.gpu.runtime import cuda

            try:
                return cuda.open_device(name)
            except DeviceError as error:
                if backend == "cuda":
                    raise
                cuda.warn_unusable(error)
        from litegpu.gpu.runtime.webgpu import open_device

        return open_device("auto" if backend == "webgpu" else backend, name)


@dataclass
class GpuKernel:
    """A partition on a device: arrays in, arrays out."""

    device: Device
    session: Session
    types: Sequence[TensorType]  # of the outputs
    shapes: Sequence[tuple[int, ...]]
    input_shapes: Sequence[tuple[int, ...]] = ()
    _staged: list[np.ndarray] = field(default_factory=list)
    _results: list[np.ndarray] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lent: dict[int, np.ndarray] = field(default_factory=dict)  # inputs in the session's own memory

    def input_memory(self, i: int) -> np.ndarray | None:
        """See protocol.DelegateKernel.close."""
        offer = getattr(self.session, "input_memory", None)
        memory = offer(i) if offer is not None else None
        if memory is None or memory.size != math.prod(self.input_shapes[i]):
            return None
        self._lent[i] = memory.reshape(self.input_shapes[i])
        return self._lent[i]

    def __post_init__(self) -> None:
        ports = self.session.program.outputs
        self._staged = [np.empty(s, NUMPY[p.dtype]) for s, p in zip(self.shapes, ports, strict=True)]
        self._results = [
            a if DTYPES[t] == a.dtype else np.empty(a.shape, DTYPES[t])
            for a, t in zip(self._staged, self.types, strict=True)
        ]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        with self._lock:
            for i, array in enumerate(inputs):
                if array is self._lent.get(i):
                    continue
                if array.dtype == np.bool_:
                    array = array.astype(np.int32)
                self.session.write(i, np.ascontiguousarray(array))
            self.session.run()
            for i, (staged, result) in enumerate(zip(self._staged, self._results, strict=True)):
                self.session.read(i, staged)
                if result is not staged:
                    np.copyto(result, staged, casting="unsafe")
            debug.say(debug.TIMINGS, "%s", dict(self.session.stats))
            return self._results

    def reset_variables(self) -> None:
        """Set the variables to zero."""
        with self._lock:
            self.session.reset_variables()

    def profile(self) -> Sequence[KernelTime]:
        """GPU time of each kernel in one inference on the inputs of the last invoke()."""
        with self._lock:
            return self.session.profile()

    def close(self) -> None:
        self.session.close()


def _unknown_option(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1)
    advice = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
    return f"GpuDelegate has no option {name!r}: {advice}"
