"""The short way in: `load()` opens a model on a device and gives an object that is called with arrays."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from litegpu import fork
from litegpu.arguments import by_name, chosen_outputs, converted, count
from litegpu.background import leave
from litegpu.boundary import typed, typed_errors
from litegpu.delegates.protocol import NamesDevice
from litegpu.delegates.report import DelegationReport
from litegpu.device_choice import asked_for, every_device
from litegpu.errors import InvokeError, LiteGpuError, OpenShapeError, OptionError, TensorError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import Opener, PinnedMemory
from litegpu.gpu.delegate.array_place import backend_of, is_on_gpu
from litegpu.interpreter import Interpreter
from litegpu.model.batch import with_batch
from litegpu.model.entry import signature_of, with_entry
from litegpu.model.mapping import check_mapped
from litegpu.model.reader import read_model
from litegpu.model.state import has_resources
from litegpu.replicas import Spread
from litegpu.slots import (
    InterpreterSlot,
    KernelSlot,
    Slot,
    Slots,
    Wanted,
    called_within,
    may_be_several,
    most_on_cpu,
    most_on_gpu,
    within_memory,
)
from litegpu.turns import is_within
from litegpu.variants import Variant, Variants, shapes_of

if TYPE_CHECKING:
    from litegpu.batching import Batcher
    from litegpu.choosing.auto import Auto
    from litegpu.choosing.choice import Choice
    from litegpu.gpu.backends.contract import Device
    from litegpu.gpu.delegate.call import GpuCall
    from litegpu.gpu.delegate.delegate import GpuDelegate

log = logging.getLogger("litegpu")

#: Shapes of inputs, by the tensors' indices.
Sizes = Mapping[int, tuple[int, ...]]

PRECISIONS = ("float32", "float16", "auto")


@typed
def load(
    path: str | os.PathLike[str] | bytes,
    device: str = "auto",
    precision: str = "float32",
    *,
    delegate: Any = None,
    fallback: str = "warn",
    num_threads: int | None = None,
    signature: str | None = None,
    **delegate_options: Any,
) -> LoadedModel:
    """Open a model, ready to be called.

    path: a .tflite file, or its content as bytes.
    device: "auto" (a GPU if one works and is expected to be quicker for this model, or was measured to be by `litegpu
        advise --measure`; else the CPU: `choice` tells), "cpu", or one kind of GPU, or a DeviceError: "webgpu", "cuda",
        "cuda:1" (the second NVIDIA GPU), "cuda:all" (all of them, over which calls, streams and batches are spread),
        "webgpu:Radeon" (whose name has that in it). A software device, such as Mesa's llvmpipe, is slower than the CPU:
        "auto" passes it over, with a line in the log; "webgpu" takes it if there is nothing better. "reference" needs
        none at all, and takes seconds for what others do in milliseconds. The name of another delegate, "openvino", or
        that of an installed package, perhaps with a device of it: "openvino:GPU".
    precision: "float32", "float16" (GPU storage in half precision; relative error about 1e-3), or "auto" (float16 but
        for what that would spoil; calibration=[[array, ...], ...] makes it better informed).
    delegate: in place of a device, what `load_delegate` takes ("openvino", a shared library), or a delegate itself.
    fallback: what happens to ops that the GPU cannot run: "warn", "silent" or "strict", as for Interpreter.
    num_threads: of the CPU part.
    signature: the key of the one that is to be called, of a model with several; its inputs and outputs have their names
        there. Variables that signatures share are each loaded model's own.
    delegate_options: further options of the delegate, such as backend="vulkan" or max_delegated_partitions=4.

    Raises ModelError, OptionError, DeviceError, DelegateLoadError, DelegateError (under "strict") or InvokeError,
    and TensorError if there is no such signature.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}")
    words = (device,) if delegate is not None or not isinstance(device, str) else every_device(device)
    if words != (device,):
        return _on_each(words, functools.partial(
            load, path, precision=precision, fallback=fallback, num_threads=num_threads, signature=signature,
            **delegate_options,
        ))  # fmt: skip

    if signature is not None:
        model = read_model(path)
        entry = signature_of(model, signature).subgraph
        path = with_entry(model, entry) if entry else path

    def opened(source: str | os.PathLike[str] | bytes, asked: Any, threads: int | None) -> Interpreter:
        content = source if isinstance(source, bytes) else None
        return Interpreter(
            model_path=None if content else source,
            model_content=content,
            experimental_delegates=[asked] if asked is not None else None,
            num_threads=threads,
            fallback=fallback,
        )

    def allocated(interpreter: Interpreter, sizes: Sizes = MappingProxyType({})) -> Interpreter:
        try:
            for index, shape in sizes.items():
                interpreter.resize_tensor_input(index, shape)
            interpreter.allocate_tensors()
        except OpenShapeError as error:
            log.debug("The first call has to tell the sizes. %s", error)
        except BaseException:
            interpreter.close()
            raise
        return interpreter

    if device == "auto" and delegate is None and fallback != "strict" and not delegate_options:
        from litegpu.choosing.auto import Auto

        auto = Auto(path, precision, num_threads, opened)
        return LoadedModel(
            allocated(auto.open(path)),
            auto.delegate,
            lambda content, sizes, taken=None: allocated(
                auto.open(content) if taken is None else auto.open_as(content, taken), sizes
            ),
            auto,
            signature,
            num_threads,
        )
    asked = asked_for(device, precision, delegate_options, delegate)
    first = allocated(opened(path, asked, num_threads))
    return LoadedModel(
        first,
        asked,
        lambda content, sizes, taken=None: allocated(opened(content, asked, num_threads), sizes),
        signature=signature,
        num_threads=num_threads,
    )


def _on_each(devices: Sequence[str], opened: Callable[[str], LoadedModel]) -> LoadedModel:
    """The model on each of the devices, behind the first of them."""
    models: list[LoadedModel] = []
    try:
        for device in devices:
            models.append(opened(device=device))  # type: ignore[call-arg]
            models[-1]._word = device
    except BaseException:
        for model in models:
            model._close(wait=False)
        raise
    models[0]._spread = Spread(models)
    return models[0]


@typed_errors
class LoadedModel:
    """A model on a device. Call it with one array per input, in order or by name; it gives the output's array, or a
    dictionary of arrays by name if the model has several outputs. The arrays belong to the caller.

    Any number of threads may share it: every call gets its own results, also where batches differ. Where threads find
    it busy, it comes to run a few inferences at once, on the GPU or on the CPU's cores, if it keeps no variables; the
    others wait.

    Names are those of the signature that was asked for, or of the model's only one, else of the tensors; a name that
    several outputs share gets ":1", ":2" ... appended from the second on. Also a context manager; close() frees the
    device's memory.

    `interpreter` runs the model; after a call with another batch it may be another one: what was opened for the sizes
    of sixteen calls stays open for others like them, within 512 MiB. `reopen` opens an interpreter of the bytes of a
    model with some inputs' sizes (Sizes); where device="auto" is not to choose again, with what it took (Auto.taken).
    `num_threads`: that one inference uses on the CPU.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        delegate: Any = None,
        reopen: Callable[..., Interpreter] | None = None,
        auto: Auto | None = None,
        signature: str | None = None,
        num_threads: int | None = None,
    ) -> None:
        self.interpreter = interpreter
        self._asked = delegate
        self._auto = auto
        self._device: Device | None = None if self._delegate is None else self._delegate.open_device()
        self._gpu = "cpu" if self._device is None else registry.name_of(self._device)
        self._reopen = reopen
        self._signature = signature
        self._num_threads = num_threads
        self._slots: Slots | None = None
        self._variants = Variants()
        self._choices: dict[tuple[bool, tuple[str, ...]], Wanted] = {}
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        given, made = _signature_names(interpreter, signature)
        self._inputs = _named(inputs, made | given)
        self._outputs = _named(outputs, given | made)
        self._names = tuple(self._inputs)
        self._output_names = tuple(self._outputs)
        self._ranks = tuple(len(d["shape"]) for d in inputs)
        #: Held by what changes the model; inferences run in the slots, which are ended for such.
        self._lock = threading.RLock()
        self._changing = False  # under the lock: a call is in the middle of what another one must not see
        fork.follow(self)
        self._word = ""  # for the device, where there are several
        self._spread: Spread | None = None  # over this model and the same on other devices
        self._closed = False
        #: Also after a resize that was broken off, whose shapes nobody knows, and before the first call where the file
        #: leaves sizes open that it does not run without.
        self._resizing = interpreter.awaits_sizes
        self._details, self._expected = self._learnt(interpreter)
        self._gpu_call: GpuCall | None = None  # how the last call was made, if it was on arrays on the GPU

    @property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """Name -> detail dictionary (shape, dtype, quantization ...), in the order of positional arguments."""
        with self._reading:
            return self._learnt(self.interpreter)[0]

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """Name -> detail dictionary, in the model's order."""
        with self._reading:
            details = {d["index"]: d for d in self.interpreter.get_output_details()}
        return {name: details[index] for name, index in self._outputs.items()}

    @property
    def _reading(self) -> contextlib.AbstractContextManager[object]:
        """The lock, unless this thread is in the midst of a call, for whose end the lock's holder may wait."""
        return contextlib.nullcontext() if self._has_me else self._lock

    @property
    def _has_me(self) -> bool:
        """Whether this thread is in the midst of a call, which something has interrupted."""
        places = (self._slots, *(variant.slots for variant in self._variants))
        return any(slots.has_me for slots in places if slots is not None)

    @property
    def report(self) -> DelegationReport:
        """What runs where."""
        return self.interpreter.delegation_report()

    @property
    def _delegate(self) -> GpuDelegate | None:
        """The GPU's, if that may be used."""
        asked: Any = self._asked if self._auto is None else self._auto.delegate
        return asked if isinstance(asked, Opener) else None  # type: ignore[return-value]

    @property
    def _used(self) -> Any:
        """The delegate that the model was opened with; None for the CPU."""
        return self._asked if self._auto is None else self._auto.used

    @property
    def choice(self) -> Choice | None:
        """What device="auto" chose and why. None where there was no choice: without a GPU, if nothing was measured, or
        with a device by name."""
        return None if self._auto is None else self._auto.choice

    @property
    def delegate(self) -> GpuDelegate | None:
        """The GPU delegate that was asked; None if the model was loaded for the CPU or another delegate."""
        return self._delegate

    @property
    def device(self) -> str:
        """What is really used: "cuda", "webgpu" or "reference" if the GPU delegate runs any op, the name of another
        delegate if that does ("openvino"), else "cpu"."""
        used = self._used
        if used is None or not self.report.delegated:
            return "cpu"
        return self._gpu if used is self._delegate else str(used.name).lower()

    @property
    def hardware(self) -> str:
        """The same for people: "NVIDIA H200 (cuda)", "2 x NVIDIA H200 (cuda)", "CPU"."""
        found = Counter(one._hardware() for one in self.replicas)
        return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in found.items())

    def _hardware(self) -> str:
        used = self._used
        if used is None or not self.report.delegated:
            return "CPU"
        if isinstance(used, Opener):
            info = used.open_device().info
            return f"{info.name} ({info.backend})"
        return used.device_name() if isinstance(used, NamesDevice) else str(used.name)

    @property
    def last_inference_duration_ns(self) -> int | None:
        """Nanoseconds that the last inference took, its arrays being there already; None before the first. Those of
        stream() and of arrays on the GPU, which nobody waits for, do not count."""
        return self.interpreter.last_inference_duration_ns

    @property
    def is_software(self) -> bool:
        """Whether what is used is a GPU that is a program on the CPU."""
        if self._delegate is None or self.device != self._gpu:
            return False
        return self._delegate.open_device().info.is_software

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One inference. Values are converted to the input's type where that loses nothing (Python numbers are rounded
        to it); an input whose batch, or another dimension that the model leaves open, differs resizes the model.

        `model(x, y)`, `model(left=x, right=y)`, `model({"left": x, "right": y})` and `model([x, y])` are the same. For
        a single input, a list is the value itself if it is as deep as the input has dimensions, and `[x]` if one
        deeper.

        `model(x, outputs=["scores"])` gives a dictionary of these outputs alone, `model(x, outputs="scores")` one
        output's array; the others are not copied from the GPU. (Not for models with an input of that name.)

        Arrays in CUDA memory (PyTorch, CuPy, JAX, Numba) are not copied to the host: the outputs are arrays of the same
        library on the same device, ready for what is put on the library's current stream. The model must then run on
        that device as a whole.

        Raises TensorError for a wrong name, number, type or shape, InvokeError if the inference fails.
        """
        if not kwargs:
            if self._spread is not None and all(type(value) is np.ndarray for value in args):
                return self._spread.call_plain(args, lambda: self._arguments(args, {}))
            found = self._call_like_before(args) if self._spread is None else None
            if found is not None:
                return self._as_result(found)
        wanted = self._wanted(kwargs.pop("outputs")) if kwargs and _chooses(kwargs, self._inputs) else None
        values = self._arguments(args, kwargs)
        return self._call(values, wanted) if self._spread is None else self._spread.call(values, wanted)

    def _call(self, values: Mapping[str, Any], wanted: Wanted | None) -> Any:
        """One inference on this device."""
        if any(is_on_gpu(value) for value in values.values()):
            return self._call_on_gpu(values, wanted)
        return self._infer(self._converted(values), wanted)

    def stream(
        self, items: Iterable[Any], ahead: int = 3, *, outputs: str | Sequence[str] | None = None
    ) -> Iterator[Any]:
        """The results for many items, in their order, at the rate of the slowest part rather than of all in turn:
        while the GPU works on some items, others are uploaded and downloaded, and the caller's own code around it runs.

            for frame, scores in zip(frames, model.stream(prepared(f) for f in frames)): ...

        items: each what a call takes: an array, a list or tuple of arrays, or a dictionary by name. Drawn by the thread
            that draws results, at most `ahead` before their own result; of each in flight the device holds one more set
            of activations. Arrays may be changed once the next item is drawn, except those of empty_input(), which
            large inputs are best made in. Another batch drains what is in flight and resizes the model.
        outputs: those that are wanted, as for a call.

        What the items raise comes after the results of the items before; what the model raises comes in its item's
        place. Stopping early, or an error, ends it all; an own close() of the items is called. Models that are not
        wholly on the GPU, or that keep variables, have one inference in flight, in a thread."""
        from litegpu.stream import stream

        return stream(self, items, ahead, self._wanted(outputs))

    def batcher(
        self,
        max_batch: int = 64,
        max_delay_ms: float = 2.0,
        *,
        sizes: Sequence[int] | None = None,
        max_waiting: int | None = None,
        when_full: str = "wait",
        nan_policy: str = "propagate",
        ahead: int | None = None,
    ) -> Batcher:
        """The model for many callers: calls from threads and asyncio tasks run together in batches, and each caller
        gets its own rows. See Batcher for its calls; it has memory of its own, and is to be closed.

            with model.batcher() as batcher: ...

        What waits is run at once where a session is idle and no more can be expected, as for a caller who is alone;
        else rows are collected, while all sessions are busy or until as many are there as were together lately, or none
        has come for as long as a batch takes.

        max_batch: rows of a batch at most. max_delay_ms: what a row may wait for others while a session is idle.
        sizes: batches that are prepared now, by default powers of two up to max_batch; rows run in the next larger one.
        max_waiting: rows that may wait, by default four batches; when_full: whether a further call is to "wait" for
            room or to "raise" QueueFullError.
        nan_policy: "propagate", or "raise" TensorError for a call with NaN or infinity.
        ahead: batches under way at a time on each GPU, where it runs all of the model; by default 4 for calls in C,
            else 2.

        Raises TensorError if the rows of the model's batches do not stay apart, and says which operator mixes them;
        OptionError, and what load() raises."""
        from litegpu.batching import Batcher

        return Batcher(
            self, max_batch, max_delay_ms, sizes=sizes, max_waiting=max_waiting, when_full=when_full,
            nan_policy=nan_policy, ahead=ahead,
        )  # fmt: skip

    @property
    def replicas(self) -> tuple[LoadedModel, ...]:
        """The model on each of its devices: with "cuda:all" several, of which this is the first."""
        return (self,) if self._spread is None else tuple(cast("Sequence[LoadedModel]", self._spread.models))

    def empty_input(self, name: str | None = None, batch: int | None = None) -> np.ndarray:
        """A new array for an input (the only one, if no name is given), of its shape, perhaps with another batch, and
        its type; its content is anything. With CUDA it lies in pinned memory: large arrays (from 2 MB) then go to the
        GPU without being copied on the host first, which stream() is twice as fast for. What was given to stream() must
        not be changed before its result has come. Raises TensorError for an unknown name, OptionError for no batch."""
        if name is None and len(self._inputs) > 1:
            raise TensorError(f"The model has {len(self._inputs)} inputs, so give a name: {', '.join(self._inputs)}")
        if name is not None and name not in self._inputs:
            raise TensorError(f"There is no input '{name}'; the model has {', '.join(self._inputs)}")
        shape, dtype = self._expected[name or next(iter(self._inputs))]
        if batch is not None:
            shape = (count("batch", batch, 0), *shape[1:])
        if self._delegate is None or self.device != self._gpu:
            return np.empty(shape, dtype)
        device = self._delegate.open_device()
        return device.pinned(shape, dtype) if isinstance(device, PinnedMemory) else np.empty(shape, dtype)

    def _infer(self, arrays: Mapping[str, np.ndarray], wanted: Wanted | None = None) -> Any:
        """One inference on arrays of the inputs' types; the outputs."""
        names = self._output_names if wanted is None else wanted.names
        while True:
            slots = self._slots
            if slots is None or not slots.take(arrays):
                slots = self._opened_slots(arrays)
            results = slots.infer(arrays, names)
            if results is not None:
                return self._as_result(results, wanted)
            self._check_open()  # else another thread has changed the model

    def _opened_slots(self, arrays: Mapping[str, np.ndarray]) -> Slots:
        """Those for inputs of such shapes."""
        self._check_not_within()
        with self._lock:
            self._check_open()
            try:
                self._changing = True
                slots = self._slots
                if slots is None or not slots.take(arrays):
                    if slots is not None and not slots.usable:
                        self._end_slots()
                    self._resize(arrays)
                    self._unbind()
                    slots = self._slots
                    if slots is None:
                        shapes = {name: shape for name, (shape, _) in self._expected.items()}
                        slots = self._slots = Slots(shapes, *self._first_slot(shapes), owner=self.interpreter)
                    if self._closed:  # by a handler, in the meantime
                        slots.refuse()
                return slots
            finally:
                self._changing = False

    def _check_not_within(self) -> None:
        """Before the lock, whose holder may wait for the call: raises InvokeError in the midst of a call of this thread
        that what may change the model would wait for, or spoil."""
        if self._has_me or (self._changing and self._holds_lock):
            self._check_open()
            raise called_within()

    def _first_slot(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Slot, Callable[[], Slot], int]:
        """The slot in which there is nothing but what is open, what opens another one, and how many there may be."""
        from litegpu.stream import only_kernel

        route = only_kernel(self)
        if route is not None:
            kernel, inputs, places = route.kernel, route.inputs, route.places
            assert self.interpreter.plan is not None
            self.interpreter.plan.ran_outside()
            most = most_on_gpu(kernel.program)
            dtypes = [self._expected[name][1] for name in inputs]
            return (
                KernelSlot(kernel, inputs, places, dtypes, self._took, own=False),
                lambda: KernelSlot(kernel.another(waits=True), inputs, places, dtypes, self._took, own=True),
                most,
            )

        interpreter, taken = self.interpreter, None if self._auto is None else self._auto.taken

        def another() -> Slot:  # of this interpreter, whichever the model has by then
            assert self._reopen is not None
            check_mapped(interpreter.model.content)
            with interpreter.own_operators():
                other = self._reopen(bytes(interpreter.model.content), self._sizes(interpreter, shapes), taken)
            other.set_aside(True)
            return InterpreterSlot(other, self._inputs, self._outputs, own=True)

        return InterpreterSlot(interpreter, self._inputs, self._outputs, own=False), another, self._most_interpreters()

    def _most_interpreters(self) -> int:
        """How many interpreters of the model as it is open now pay."""
        used = self._used
        if self._reopen is None or (used is not None and not isinstance(used, Opener)):
            return 1  # a delegate of others may not be for several at once
        threads = self._num_threads
        if self._auto is not None and self._auto.choice is not None:
            threads = self._auto.choice.candidate.num_threads or threads
        most = most_on_cpu(self.interpreter.model, threads)
        return most if self.device == "cpu" else min(most, within_memory(self.interpreter.held_bytes()))

    def _took(self, nanoseconds: int) -> None:
        self.interpreter._duration = nanoseconds

    def _end_slots(self) -> None:
        """Wait for the inferences that are under way; those that come meanwhile wait for `_lock`."""
        slots = self._slots
        if slots is not None:
            slots.end()
            self._slots = None

    def _call_like_before(self, args: Sequence[Any]) -> list[Any] | None:
        """One inference on arrays like those of the last call, in the inputs' order; None, with nothing done, if they
        are not, or it has to be done another way."""
        slots = self._slots
        if slots is not None:
            if len(args) == 1 and type(args[0]) is dict:
                given = args[0]
                if len(given) != len(self._names) or not all(name in given for name in self._names):
                    return None
                args = [given[name] for name in self._names]
            return slots.quick(args)
        if self._gpu_call is None:
            return None
        with self._lock:
            call = self._gpu_call
            if call is None or self._closed or self._changing or self._slots is not None:
                return None
            try:
                self._changing = True
                return call.quick(args)
            finally:
                self._changing = False

    def _call_on_gpu(self, values: Mapping[str, Any], wanted: Wanted | None) -> Any:
        """One inference on arrays on the GPU, some perhaps on the host."""
        self._check_not_within()
        with self._lock:
            self._check_open()
            try:
                self._changing = True
                self._end_slots()
                call = self._gpu_call
                if call is None or not call.takes(values):
                    call = self._gpu_call = self._prepared_gpu_call(values)
                results = call.run(values)
            finally:
                self._changing = False
        if wanted is not None:
            found = dict(zip(self._outputs, results, strict=True))
            results = [found[name] for name in wanted.names]
        return self._as_result(results, wanted)

    def _forked(self) -> None:
        self._lock, self._changing = threading.RLock(), False
        self._slots = None  # other threads' inferences go on in the parent
        self._variants.forked()

    def _check_open(self) -> None:
        if self._closed:
            raise InvokeError("The model is closed: load it again.")

    def _prepared_gpu_call(self, values: Mapping[str, Any]) -> GpuCall:
        from litegpu.gpu.delegate.call import prepare

        delegate = self._delegate
        backend = next(name for name in map(backend_of, values.values()) if name is not None)
        if delegate is None or self.device != backend:
            raise TensorError(
                f"An input is in the memory of a GPU, but the model runs on {self.device}: use "
                f'device="{backend}", or give arrays in host memory'
            )
        shapes = {}
        for name, value in values.items():
            shape = value.shape if is_on_gpu(value) else np.shape(value)
            dtype = np.dtype(self._details[name]["dtype"])
            shapes[name] = np.broadcast_to(np.zeros((), dtype), tuple(int(n) for n in shape))
            converted(name, shapes[name], self._details[name])  # raises if it can never fit
        if has_resources(self.interpreter.model):
            raise TensorError(
                "An input is in the memory of a GPU, but the model keeps variables: give arrays in host memory"
            )
        self._resize(shapes)
        self._end_slots()  # of when it was open for these before
        if not self.report.fully_delegated:
            raise TensorError(
                "An input is in the memory of a GPU, but parts of the model run on the CPU: give arrays in host "
                f"memory, or bind buffers to what the GPU runs. {self.report.summary()}"
            )
        details = self._details
        return prepare(
            delegate, values, self._inputs, self._outputs, lambda name, value: converted(name, value, details[name])
        )

    @property
    def _label(self) -> str:
        """The device as errors name it."""
        return f"{self._word} ({self._hardware()})" if self._word else self._hardware()

    @property
    def _is_lost(self) -> bool:
        """Whether the device is of no use any more."""
        return self._device is not None and self._device.lost

    def _for_batch(self, batch: int) -> LoadedModel:
        """The model opened once more, for another batch. Raises TensorError if its rows do not stay apart."""
        with self._lock:
            self._check_open()
            if self._reopen is None:
                raise InvokeError("The model was not opened by load(), so it cannot be opened for another batch")
            with self.interpreter.own_operators():
                # a copy in any case: what is prepared is told apart by the bytes that it was made of
                content = bytes(bytearray(with_batch(self.interpreter.model, batch).content))
                return LoadedModel(
                    self._reopen(content, {}), self._asked, self._reopen, self._auto, self._signature, self._num_threads
                )

    def _unbind(self) -> None:
        """Go back to host memory after a call on arrays on the GPU."""
        if self._gpu_call is not None:
            self._gpu_call.unbind()
            self._gpu_call = None

    def close(self) -> None:
        """Free what the device holds, when the call that is running, if any, has ended; later calls raise InvokeError.
        May be called twice, and in a signal handler or a finalizer in the midst of a call: then that is not waited for,
        gives its result, and what the device holds is freed soon after."""
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        for other in self.replicas[1:]:
            other._close(wait=wait)
        if wait and self._interrupts_call:
            self._closed = True
            for slots in (self._slots, *(variant.slots for variant in self._variants)):
                if slots is not None:
                    slots.refuse()
            leave(functools.partial(self._close, wait=True))
            return
        with self._lock:
            self._closed = True
            if wait:
                self._end_slots()
            self._slots = None
            self._reopen = None
            self._gpu_call = None
            self._variants.end(wait=wait)
            self.interpreter._close(wait=wait)

    @property
    def _interrupts_call(self) -> bool:
        """Whether this thread is in the midst of a call of the model."""
        interpreters = (self.interpreter, *(variant.interpreter for variant in self._variants))
        return self._holds_lock or self._has_me or any(is_within(one._turns) for one in interpreters)

    @property
    def _holds_lock(self) -> bool:
        """Whether this thread does."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(wait=kind is None or issubclass(kind, Exception))  # Ctrl-C does not wait

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle or copy a LoadedModel: load() the model again where it is needed")

    def __repr__(self) -> str:
        if not hasattr(self, "_gpu"):
            return "<LoadedModel, not opened>"
        return f"<LoadedModel on {self.device}{', closed' if self._closed else ''}: {self.report.summary()}>"

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return by_name(self._names, self._ranks, args, kwargs)

    def _converted(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The values in the inputs' types."""
        arrays = {}
        for name, value in values.items():
            if type(value) is np.ndarray and (value.shape, value.dtype) == self._expected[name]:
                arrays[name] = value  # as nearly always, and this takes a tenth of the time
            else:
                arrays[name] = converted(name, value, self._details[name])
        return arrays

    def _wanted(self, outputs: str | Iterable[str] | None) -> Wanted | None:
        """The outputs that a call asks for, None for all; raises TensorError for names that the model does not have."""
        if outputs is None:
            return None
        one, names = isinstance(outputs, str), chosen_outputs(outputs, self._outputs)
        return self._choices.setdefault((one, names), Wanted(names, one))

    def _as_result(self, arrays: Sequence[Any], wanted: Wanted | None = None) -> Any:
        """The outputs as a call gives them."""
        if wanted is not None:
            return arrays[0] if wanted.one else dict(zip(wanted.names, arrays, strict=True))
        return arrays[0] if len(arrays) == 1 else dict(zip(self._outputs, arrays, strict=True))

    def _learnt(self, interpreter: Interpreter) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Of the inputs, by name, their details, and their shapes and types."""
        found = {d["index"]: d for d in interpreter.get_input_details()}
        details = {name: found[index] for name, index in self._inputs.items()}
        return details, {name: (tuple(d["shape"].tolist()), np.dtype(d["dtype"])) for name, d in details.items()}

    def _resize(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Be open for the shapes of these: as it was before, or anew. `_slots` are None if there are none for these."""
        before = {name: shape for name, (shape, _) in self._expected.items()}
        changed = [name for name, array in arrays.items() if self._resizing or array.shape != before[name]]
        if not changed:
            return
        known, present = not self._resizing, self._present()
        if known:
            found = self._variants.take(shapes_of(arrays, self._names))
            if found is not None:
                self._turn_to(found, present)
                return
            check_mapped(self.interpreter.model.content)  # first, as the model can go on with the present shapes
        several = known and may_be_several(self.interpreter.model)
        other = self._opened_for(arrays, several)
        if other is not None and several:
            taken = None if self._auto is None else self._auto.taken
            self._turn_to(Variant(other, None, *self._learnt(other), taken), present)
            return
        self._end_slots()
        self._resizing = True
        if other is None:
            self._resize_inputs({name: arrays[name].shape for name in changed}, before)
        else:
            former, self.interpreter = self.interpreter, other
            former.close()
        self._details, self._expected = self._learnt(self.interpreter)
        self._resizing = False

    def _resize_inputs(self, shapes: Mapping[str, tuple[int, ...]], before: Mapping[str, tuple[int, ...]]) -> None:
        """The official resize; with the shapes from before if it fails."""
        try:
            for name, shape in shapes.items():
                self.interpreter.resize_tensor_input(self._inputs[name], shape)
            self.interpreter.allocate_tensors()
        except (InvokeError, TensorError) as error:
            awaits_sizes = self.interpreter.awaits_sizes
            for name in shapes:
                self.interpreter.resize_tensor_input(self._inputs[name], before[name])
            if not awaits_sizes:
                self.interpreter.allocate_tensors()
                self._resizing = False
            shapes_text = ", ".join(f"'{n}' {list(before[n])} to {list(shape)}" for n, shape in shapes.items())
            raise TensorError(f"The model cannot be resized ({shapes_text}): {error}") from error

    def _opened_for(self, arrays: Mapping[str, np.ndarray], several: bool) -> Interpreter | None:
        """Another interpreter, for the shapes of `arrays`; None where the present one is to be resized, if it can.
        `several`: there may be both.

        For another batch the model is made anew, if that is all that differs from the file and leaves rows apart. The
        official resize fails where a constant holds the batch, or, worse, mixes the rows; it is left to models whose
        batch is open, and to other changes."""
        batch, model, auto = self._other_batch(arrays), self.interpreter.model, self._auto
        if self._reopen is None or (batch is None and (not several or self.interpreter.runs_whole)):
            return None  # the official runtime alone resizes sooner than it opens
        taken, sizes = None if auto is None else auto.taken, cast("Sizes", {})
        found: Interpreter | None = None
        try:
            if batch is None:  # a copy, as what is prepared is told apart by the bytes that it was made of
                content = bytes(bytearray(model.content))
                sizes = self._sizes(self.interpreter, {name: array.shape for name, array in arrays.items()})
            else:
                content = bytes(with_batch(model, batch[0], inputs=batch[1]).content)
            with self.interpreter.own_operators():
                other = self._reopen(content, sizes)
                if several and self._variants and not _as_delegated(other, self.interpreter):
                    other.close()
                    self._variants.clear()  # whose memory it may lack
                    other = self._reopen(content, sizes)
            if other.awaits_sizes:
                other.close()
            else:
                found = other
        except LiteGpuError as error:
            log.debug("Not opened for other sizes: %s", error)
        finally:
            if found is None and auto is not None and taken is not None:
                auto.take(taken)
        return found

    def _other_batch(self, arrays: Mapping[str, np.ndarray]) -> tuple[int, list[int]] | None:
        """The batch of `arrays` and the tensors that have it, if it is all that differs from the file, and not open
        there."""
        batches, changed = set(), []
        for name, array in arrays.items():
            tensor = self.interpreter.model.main.tensors[self._inputs[name]]
            if array.shape != tensor.shape:
                if array.shape[1:] != tensor.shape[1:] or tensor.shape_signature[0] == -1:
                    return None
                changed.append(tensor.index)
                batches.add(len(array))
        return (batches.pop(), changed) if len(batches) == 1 else None

    def _sizes(self, interpreter: Interpreter, shapes: Mapping[str, tuple[int, ...]]) -> Sizes:
        """Those of the shapes that are not those of the interpreter's file."""
        tensors = interpreter.model.main.tensors
        return {index: shapes[n] for n, index in self._inputs.items() if shapes[n] != tensors[index].shape}

    def _present(self) -> Variant:
        """As the model is open now."""
        taken = None if self._auto is None else self._auto.taken
        return Variant(self.interpreter, self._slots, self._details, self._expected, taken)

    def _turn_to(self, variant: Variant, present: Variant) -> None:
        """Be open as `variant` is, and keep what there is at `present`."""
        self._unbind()
        self.interpreter, self._slots = variant.interpreter, variant.slots
        self._details, self._expected = variant.details, variant.expected
        if self._auto is not None and variant.taken is not None:
            self._auto.take(variant.taken)
        self._variants.keep(tuple(shape for shape, _ in present.expected.values()), present)


def _as_delegated(one: Interpreter, other: Interpreter) -> bool:
    """Whether delegates have as much of it."""
    return one.delegation_report().fully_delegated or not other.delegation_report().fully_delegated


def _chooses(kwargs: Mapping[str, Any], inputs: Mapping[str, int]) -> bool:
    """Whether `outputs` says which outputs are wanted, rather than being an input."""
    return "outputs" in kwargs and "outputs" not in inputs


def _signature_names(interpreter: Interpreter, key: str | None) -> tuple[dict[int, str], dict[int, str]]:
    """Tensor index -> name of the input, and of the output, of the signature `key`, or if the model has one, of its
    main subgraph."""
    signatures = [one for one in interpreter.model.signatures if key in (None, one.key)]
    if len(signatures) != 1 or signatures[0].subgraph != 0:
        return {}, {}
    given, made = ({i: name for name, i in names.items()} for names in (signatures[0].inputs, signatures[0].outputs))
    return given, made


def _named(details: list[dict[str, Any]], names: Mapping[int, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for d in details:
        name = stem = names.get(d["index"], d["name"])
        number = 0
        while name in found:
            number += 1
            name = f"{stem}:{number}"
        found[name] = int(d["index"])
    return found
