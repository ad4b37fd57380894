"""The GPU delegate: takes every node that lowers to the GPU graph and runs each partition as one Program."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import logging
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from litegpu import debug, fork
from litegpu.boundary import typed_errors
from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.errors import DeviceError, LiteGpuError, OptionError, blame
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import BufferMaker
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.cache_entry import CacheEntry
from litegpu.gpu.cache_folder import CacheFolder, open_cache
from litegpu.gpu.control import check_control, is_control
from litegpu.gpu.delegate import fitting, prepared, slices
from litegpu.gpu.delegate.arithmetic import both_would_do, choose
from litegpu.gpu.delegate.cache_key import describe as describe_entry
from litegpu.gpu.delegate.cache_key import fingerprint
from litegpu.gpu.delegate.calibration import tensor_ranges
from litegpu.gpu.delegate.images import ImageInput
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.gpu.delegate.measured import quicker
from litegpu.gpu.delegate.options import GpuDelegateOptions
from litegpu.gpu.delegate.second_attempt import SecondAttempt, Told
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.gpu.program import Program
from litegpu.model import schema
from litegpu.model.types import Model, Operator, Subgraph

if TYPE_CHECKING:
    from litegpu.gpu.kernels.tuner import Tuner

__all__ = ["GpuDelegate", "GpuDelegateOptions", "GpuKernel"]

log = logging.getLogger("litegpu")


@typed_errors
class GpuDelegate:
    """Runs what it can of a model on a GPU through CUDA or WebGPU (Vulkan, Metal, Direct3D 12 or OpenGL).

    `GpuDelegate(GpuDelegateOptions(...))` or `GpuDelegate(precision_loss_allowed=True, ...)`. The device is opened when
    the first partition is prepared, and shared by all delegates of a process that ask for the same one.
    """

    name = "GPU"
    keeps_variables = True
    takes_bounds = True
    #: Whether open_device() may give a device that computes on the CPU, though nothing names it; else it raises
    #: SoftwareDeviceError.
    takes_software = True

    def __init__(self, options: GpuDelegateOptions | None = None, **changes: object) -> None:
        known = [f.name for f in fields(GpuDelegateOptions)]
        for name in changes:
            if name not in known:
                raise OptionError(_unknown_option(name, known))
        if not isinstance(options, GpuDelegateOptions | None):
            raise OptionError(f"options is {options!r}; it must be a GpuDelegateOptions object")
        if options is not None and changes:
            raise OptionError("give either a GpuDelegateOptions object or keyword options, not both")
        self.options = options if options is not None else GpuDelegateOptions(**changes)  # type: ignore[arg-type]
        self.max_delegated_partitions = self.options.max_delegated_partitions
        self.min_nodes_per_partition = self.options.min_nodes_per_partition
        self.first_delegate_node_index = self.options.first_delegate_node_index
        self.last_delegate_node_index = self.options.last_delegate_node_index
        self._warned_float16 = False
        self._calibrated: tuple[bytes | memoryview, dict[int, tuple[float, float]]] | None = None
        self._told: tuple[bytes | memoryview, Told] | None = None  # of results that are not finite
        #: What was prepared and may still be in use, oldest first; binding looks there.
        self.prepared: list[prepared.Prepared] = []
        schema.generated()  # every model needs it and it is large: here it delays no model's start
        self._fingerprint: tuple[bytes | memoryview, str] | None = None
        folder = self.options.serialization_dir
        self._cache: CacheFolder | None = open_cache(folder) if folder is not None else None

    def __repr__(self) -> str:
        options = getattr(self, "options", None)  # None where the constructor has failed
        return f"GpuDelegate({options!r})" if options is not None else "<GpuDelegate, not opened>"

    def __reduce__(self) -> Any:
        """A copy, in another process as well, is a delegate of its own; what a subclass adds is copied."""
        added = {name: value for name, value in vars(self).items() if name not in vars(GpuDelegate(self.options))}
        return copyreg.__newobj__, (type(self),), (self.options, added)  # type: ignore[attr-defined]

    def __setstate__(self, state: tuple[GpuDelegateOptions, dict[str, Any]]) -> None:
        GpuDelegate.__init__(self, state[0])
        vars(self).update(state[1])

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        """The reason why the GPU does not take the node, or None: the same code decides that later lowers it. What
        every device can bind is not asked of any."""
        check = functools.partial(
            check_operator, quantization=self.options.quantization, integer=self.options.arithmetic == "integer"
        )
        if is_control(operator):
            return check_control(model, subgraph, operator, check)
        reason = check(subgraph, operator)
        size, tensor = fitting.largest(subgraph, operator, self.options.half)
        if reason is not None or tensor is None or size <= self._limited(Features()).max_binding_bytes:
            return reason
        try:
            device = self.open_device()
        except DeviceError as error:
            features, name = Features(), f"any WebGPU device is sure to (none could be opened here: {error}), which"
        else:
            features, name = device.features, device.info.name
            if self.options.half and not features.float16:
                size, tensor = fitting.largest(subgraph, operator, False)
        assert tensor is not None
        limits = self._limited(features)
        half = self.options.half and features.float16
        if slices.fits_sliced(model, subgraph, operator, half, limits.max_binding_bytes):
            return None
        return fitting.too_large(size, tensor, limits, name)

    def rehearse(self, partition: Partition) -> None:
        """See protocol.Delegate: a partition that may be too large for one buffer is built, for the device or, where
        there is none, for one with the limits that all have."""
        most = fitting.together(partition, self.options.half)
        if most <= self._limited(Features()).max_buffer_bytes:
            return
        features, target = Features(float16=True), registry.widespread()
        with contextlib.suppress(DeviceError):
            device = self.open_device()
            features, target = device.features, device.target
        limits, half = self._limited(features), self.options.half and features.float16
        if most <= limits.max_buffer_bytes:
            return
        parts = [s.partition for s in slices.slices(partition, half, limits.max_binding_bytes)] or [partition]
        for part in parts:
            try:
                self._build(part, features, target, half, {})
                return
            except LiteGpuError:
                if part is parts[-1]:
                    raise

    def _limited(self, features: Features) -> Features:
        """What kernels may use of a device with these features: for tests of smaller ones. What overrides this must not
        use the cache."""
        return features

    def prepare(self, partition: Partition) -> DelegateKernel:
        """Compile a partition; raises DeviceError if there is no device, KernelError if it does not fit it. The error
        has the numbers of the nodes to blame in `nodes` where some of them are."""
        device = self.open_device()
        try:
            return self._prepare_sliced(partition, device)
        except Exception as error:
            if not fitting.blamed(error) and not device.lost and len(partition.nodes) > 1:
                blame(error, fitting.culprits(partition, lambda part: self._prepare_sliced(part, device).close()))
            raise

    def _prepare_sliced(self, partition: Partition, device: Device) -> DelegateKernel:
        """The partition, or as many rows of it at a time as the device can hold."""
        half = self.options.half and device.features.float16
        failure: Exception | None = None
        for part in slices.slices(partition, half, self._limited(device.features).max_binding_bytes):
            try:
                return slices.SlicedKernel(self._prepare(part.partition, device, whole=False), part, partition)
            except LiteGpuError as error:
                failure = error
        if failure is not None:
            raise failure
        return self._prepare(partition, device)

    def _prepare(self, partition: Partition, device: Device, *, whole: bool = True) -> GpuKernel:
        """`whole`: not a slice, which is neither kept in the cache nor found by those who bind buffers."""
        half = self.options.half
        if half and not device.features.float16:
            half = False
            if not self._warned_float16:
                self._warned_float16 = True
                log.warning("%s has no 16-bit floats (WebGPU feature shader-f16): running in float32", device.info.name)
        if whole:
            program = self._cached_program(partition, device, half)
        else:
            program = self._built(partition, device, half, self._ranges(partition.model))
        types = [partition.subgraph.tensors[i].type for i in partition.outputs]
        shapes = [partition.subgraph.tensors[i].shape for i in partition.outputs]
        inputs = [partition.subgraph.tensors[i].shape for i in partition.inputs]
        kernel = GpuKernel(
            device, program, types, shapes, inputs, wait=self.options.wait_type, validation=self.options.validation,
            attempt=self._second_attempt(partition, device) if half else None,
            why=program.note or choose(self.options.arithmetic, partition, device.features, half).why,
        )  # fmt: skip
        if whole:
            self.prepared = [p for p in self.prepared if p.alive]
            self.prepared.append(prepared.Prepared(weakref.ref(kernel), partition))
        return kernel

    def _cached_program(self, partition: Partition, device: Device, half: bool) -> Program:
        """The partition's program, from the cache if it is there; else built, and kept there if there is a cache."""
        ranges = self._ranges(partition.model)
        about = None
        if self._cache is not None:
            about = describe_entry(partition, device, self.options, half, ranges, self._token(partition.model))
        if self._cache is not None and about is not None:
            entry = self._cache.load(about["key"])
            if entry is not None:
                device.adopt(entry.program, entry.images)
                return entry.program
        program = self._built(partition, device, half, ranges)
        if self._cache is not None and about is not None:
            self._cache.store(about["key"], CacheEntry(about, program, tuple(device.images(program))))
        return program

    def _built(
        self, partition: Partition, device: Device, half: bool, ranges: Mapping[int, tuple[float, float]]
    ) -> Program:
        from litegpu.gpu.build import describe

        tuner = device.tuner(self.options.tuning_level)
        build = functools.partial(self._build, partition, device.features, device.target, half, ranges, tuner)
        if tuner is not None and both_would_do(self.options.arithmetic, partition):
            estimated = choose(self.options.arithmetic, partition, device.features, half).integer
            program = quicker(device, lambda integer: build(integer=integer), estimated)
        else:
            program = build()
        debug.say(debug.GRAPH, "%s", describe(program))
        for kernel in program.kernels:
            debug.say(debug.KERNELS, "%s", kernel.source)
        return program

    def _build(
        self,
        partition: Partition,
        features: Features,
        target: str,
        half: bool,
        ranges: Mapping[int, tuple[float, float]],
        tuner: Tuner | None = None,
        integer: bool | None = None,
    ) -> Program:
        """`integer`: whether bytes are computed with in whole numbers, None to go by the option."""
        from litegpu.gpu.build import build_program  # with all kernels and passes, which a cached program needs not

        if integer is None:
            integer = choose(self.options.arithmetic, partition, features, half).integer
        made = functools.partial(
            build_program, features=self._limited(features), target=target, half=half,
            tuner=tuner, auto=self.options.precision == "auto", integer=integer,
        )  # fmt: skip
        lower = functools.partial(lower_partition, xnnpack=partition.xnnpack, integer=integer)
        if any(is_control(o) for o in partition.nodes):
            from litegpu.gpu.control.linked import build_linked

            return build_linked(partition, lower, lambda graph, frame, kept: made(graph, variables=kept, frame=frame))
        lowered = lower(partition.subgraph, partition.nodes, partition.inputs, partition.outputs)
        return made(lowered.graph, variables=len(lowered.variables), ranges=ranges, staged=self._staged(partition))

    def _second_attempt(self, partition: Partition, device: Device) -> SecondAttempt:
        """In float32, if results in float16 are not finite."""
        if self._told is None or self._told[0] is not partition.model.content:
            self._told = partition.model.content, Told()
        stays = self.options.precision == "auto"
        return SecondAttempt(lambda: self._cached_program(partition, device, False), self._told[1], stays=stays)

    def _token(self, model: Model) -> str:
        """What names the model in the cache."""
        if self.options.model_token is not None:
            return self.options.model_token
        if self._fingerprint is None or self._fingerprint[0] is not model.content:
            self._fingerprint = model.content, fingerprint(model.content)
        return self._fingerprint[1]

    def bind_buffer_to_tensor(
        self, buffer: Any, tensor_index: int, *, stream: Any = None, image: ImageInput | None = None
    ) -> None:
        """Let memory on the GPU stand for an input or output of the delegated graph, from the next invoke() on; None
        for `buffer` ends that. After allocate_tensors(), and again after a resize.

        buffer: with CUDA, an array with `__dlpack__` or `__cuda_array_interface__` on the model's device, dense, of the
            tensor's type and shape (or all elements in one row); float32 also for quantized tensors, whose real numbers
            it then holds. With WebGPU, a wgpu.GPUBuffer of `wgpu_device` (of exactly the float32 size for that), or
            for images a wgpu.GPUTexture. Kept alive as long as it is bound. What the user does to it on the GPU before
            invoke(), or afterwards, is ordered with the inference; nothing needs to be synchronized.
        stream: the CUDA stream that the user works with the buffer on, if that is not the current one of the buffer's
            library.
        image: the buffer is an RGBA image of 8 bits, from which the input is made (textures always are).

        Raises DelegateError before the graph was delegated, TensorError and DeviceError, naming the tensor, for a
        buffer that does not fit. docs/guide/gpu_memory.md has more."""
        kernel, kind, place, tensor = prepared.find(self.prepared, tensor_index)
        if buffer is None:
            kernel.unbind(kind, place)
        else:
            kernel.bind(kind, place, tensor, buffer, stream=stream, image=image)

    def _staged(self, partition: Partition) -> tuple[Collection[int], Collection[int]]:
        """Positions of the partition's inputs and outputs that must not change the kernels next to them: for tools that
        look into a model by making inner tensors its inputs and outputs. What overrides this must not use the cache."""
        return (), ()

    def _ranges(self, model: Model) -> dict[int, tuple[float, float]]:
        """Of the model's tensors on the calibration inputs."""
        if not self.options.calibration:
            return {}
        if self._calibrated is None or self._calibrated[0] is not model.content:
            self._calibrated = model.content, tensor_ranges(model, self.options.calibration)
        return self._calibrated[1]

    @property
    def wgpu_device(self) -> Any:
        """The wgpu.GPUDevice that models run on, to make buffers and textures with that can be bound. Raises
        DeviceError if they do not run through WebGPU."""
        device = self.open_device()
        if not isinstance(device, BufferMaker):
            raise DeviceError(f'models run on {device}, not through WebGPU: give backend="webgpu"')
        return device.buffer_maker

    def open_device(self) -> Device:
        """The device that the options ask for; raises DeviceError with advice if there is none. Where "auto" would take
        CUDA but cannot, although the machine has NVIDIA's driver, a warning says why, once per process."""
        fork.check()
        backend, name = self.options.chosen_backend, self.options.device
        software = self.takes_software or backend != "auto" or name is not None
        return registry.open_device(backend, name, software=software)


#: What a model is opened with, rather than a delegate.
_OF_INTERPRETERS = ("fallback", "num_threads")


def _unknown_option(name: str, known: Sequence[str]) -> str:
    import difflib

    if name in _OF_INTERPRETERS:
        return f"GpuDelegate has no option {name!r}: it is an argument of litegpu.Interpreter and litegpu.load"
    near = difflib.get_close_matches(name, known, 1)
    advice = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(known)}"
    return f"GpuDelegate has no option {name!r}: {advice}"
