"""The short way in: `load()` opens a model on a device and gives an object that is called with arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from litegpu.delegates.array_place import is_on_gpu
from litegpu.delegates.report import DelegationReport
from litegpu.errors import DeviceError, InvokeError, LiteGpuError, OptionError, TensorError
from litegpu.interpreter import Interpreter
from litegpu.model.batch import with_batch

if TYPE_CHECKING:
    from litegpu.delegates.gpu import GpuDelegate
    from litegpu.delegates.gpu_call import GpuCall

log = logging.getLogger("litegpu")

PRECISIONS = ("float32", "float16", "auto")


def load(
    path: str | os.PathLike[str] | bytes,
    device: str = "auto",
    precision: str = "float32",
    *,
    fallback: str = "warn",
    num_threads: int | None = None,
    **delegate_options: Any,
) -> LoadedModel:
    """Open a model, ready to be called.

    path: a .tflite file, or its content as bytes.
    device: "auto" (a GPU if one works, else the CPU), "cpu", or one kind of GPU, or a DeviceError: "webgpu", "cuda",
        "cuda:1" (the second NVIDIA GPU).
    precision: "float32", "float16" (GPU storage in half precision; relative error about 1e-3), or "auto" (float16 but
        for what that would spoil; calibration=[[array, ...], ...] makes it better informed).
    fallback: what happens to ops that the GPU cannot run: "warn", "silent" or "strict", as for Interpreter.
    num_threads: of the CPU part.
    delegate_options: further options of the GPU delegate, such as backend="vulkan" or max_delegated_partitions=4.

    Raises ModelError, OptionError, DeviceError, DelegateError (under "strict") or InvokeError.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}")
    delegate = _delegate(device, precision, delegate_options)

    def opened(source: str | os.PathLike[str] | bytes) -> Interpreter:
        content = source if isinstance(source, bytes) else None
        interpreter = Interpreter(
            model_path=None if content else source,
            model_content=content,
            experimental_delegates=[delegate] if delegate is not None else None,
            num_threads=num_threads,
            fallback=fallback,
        )
        try:
            interpreter.allocate_tensors()
        except BaseException:
            interpreter.close()
            raise
        return interpreter

    return LoadedModel(opened(path), delegate, opened)


class LoadedModel:
    """A model on a device. Call it with one array per input, in order or by name; it gives the output's array, or a
    dictionary of arrays by name if the model has several outputs. The arrays belong to the caller.

    Names are those of the signature if the model has exactly one, else of the tensors; a name that several outputs
    share gets ":1", ":2" ... appended from the second on. Also a context manager; close() frees the device's memory.

    `interpreter` runs the model; after a call with another batch it may be another one. `reopen` opens an interpreter
    of the bytes of a model for another batch.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        delegate: GpuDelegate | None = None,
        reopen: Callable[[bytes], Interpreter] | None = None,
    ) -> None:
        self.interpreter = interpreter
        self._delegate = delegate
        self._reopen = reopen
        inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
        names = _signature_names(interpreter)
        self._inputs = _named(inputs, names)
        self._outputs = _named(outputs, names)
        self._learn_inputs()
        self._gpu_call: GpuCall | None = None  # how the last call was made, if it was on arrays on the GPU

    @property
    def inputs(self) -> dict[str, dict[str, Any]]:
        """Name -> detail dictionary (shape, dtype, quantization ...), in the order of positional arguments."""
        details = {d["index"]: d for d in self.interpreter.get_input_details()}
        return {name: details[index] for name, index in self._inputs.items()}

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """Name -> detail dictionary, in the model's order."""
        details = {d["index"]: d for d in self.interpreter.get_output_details()}
        return {name: details[index] for name, index in self._outputs.items()}

    @property
    def report(self) -> DelegationReport:
        """What runs where."""
        return self.interpreter.delegation_report()

    @property
    def device(self) -> str:
        """What is really used: "cuda" or "webgpu" if any op runs on the GPU, else "cpu"."""
        if self._delegate is None or not self.report.delegated:
            return "cpu"
        return "cuda" if self._delegate.open_device().target == "cuda" else "webgpu"

    def __call__(self, *args: npt.ArrayLike, **kwargs: npt.ArrayLike) -> Any:
        """One inference. Values are converted to the input's type where that loses nothing (Python numbers are rounded
        to it); an input whose batch, or another dimension that the model leaves open, differs resizes the model.

        Arrays in CUDA memory (PyTorch, CuPy, JAX, Numba) are not copied to the host: the outputs are arrays of the same
        library on the same device, ready for what is put on the library's current stream. The model must then run on
        that device as a whole.

        Raises TensorError for a wrong name, number, type or shape, InvokeError if the inference fails.
        """
        values = self._arguments(args, kwargs)
        if any(is_on_gpu(value) for value in values.values()):
            return self._call_on_gpu(values)
        arrays = self._converted(values)
        self._resize(arrays)
        self._set_inputs(arrays)
        self.interpreter.invoke()
        return self._results()

    def stream(self, items: Iterable[Any], ahead: int = 3) -> Iterator[Any]:
        """The results for many items, in their order, at the rate of the slowest part rather than of all in turn:
        while the GPU works on some items, others are uploaded and downloaded, and the caller's own code around it runs.

            for frame, scores in zip(frames, model.stream(prepared(f) for f in frames)): ...

        items: each what a call takes: an array, a tuple of arrays, or a dictionary by name. Drawn by the thread that
            draws results, at most `ahead` before their own result; of each in flight the device holds one more set of
            activations. Arrays may be changed once the next item is drawn, except those of empty_input(), which large
            inputs are best made in. Another batch drains what is in flight and resizes the model.

        What the items raise comes after the results of the items before; what the model raises comes in its item's
        place. Stopping early, or an error, ends it all; an own close() of the items is called. Models that are not
        wholly on the GPU, or that keep variables, have one inference in flight, in a thread."""
        from litegpu.stream import stream

        return stream(self, items, ahead)

    def empty_input(self, name: str | None = None, batch: int | None = None) -> np.ndarray:
        """A new array for an input (the only one, if no name is given), of its shape, perhaps with another batch, and
        its type; its content is anything. With CUDA it lies in pinned memory: large arrays (from 2 MB) then go to the
        GPU without being copied on the host first, which stream() is twice as fast for. What was given to stream() must
        not be changed before its result has come. Raises TensorError for an unknown name."""
        if name is None and len(self._inputs) > 1:
            raise TensorError(f"The model has {len(self._inputs)} inputs, so give a name: {', '.join(self._inputs)}")
        if name is not None and name not in self._inputs:
            raise TensorError(f"There is no input '{name}'; the model has {', '.join(self._inputs)}")
        shape, dtype = self._expected[name or next(iter(self._inputs))]
        if batch is not None:
            shape = (batch, *shape[1:])
        if self.device != "cuda" or self._delegate is None:
            return np.empty(shape, dtype)
        device: Any = self._delegate.open_device()
        array: np.ndarray = device.pinned(shape, dtype)
        return array

    def _call_on_gpu(self, values: Mapping[str, Any]) -> Any:
        """One inference on arrays on the GPU, some perhaps on the host."""
        call = self._gpu_call
        if call is None or not call.takes(values):
            call = self._gpu_call = self._prepared_gpu_call(values)
        return self._as_result(call.run(values))

    def _prepared_gpu_call(self, values: Mapping[str, Any]) -> GpuCall:
        from litegpu.delegates.gpu_call import prepare

        delegate = self._delegate
        if delegate is None or self.device != "cuda":
            raise TensorError(
                f'An input is in the memory of a GPU, but the model runs on {self.device}: use device="cuda", or give '
                "arrays in host memory"
            )
        shapes = {}
        for name, value in values.items():
            shape = value.shape if is_on_gpu(value) else np.shape(value)
            dtype = np.dtype(self._details[name]["dtype"])
            shapes[name] = np.broadcast_to(np.zeros((), dtype), tuple(int(n) for n in shape))
            _converted(name, shapes[name], self._details[name])  # raises if it can never fit
        self._resize(shapes)
        if not self.report.fully_delegated:
            raise TensorError(
                "An input is in the memory of a GPU, but parts of the model run on the CPU: give arrays in host "
                f"memory, or bind buffers to what the GPU runs. {self.report.summary()}"
            )
        details = self._details
        return prepare(
            delegate, values, self._inputs, self._outputs, lambda name, value: _converted(name, value, details[name])
        )

    def _unbind(self) -> None:
        """Go back to host memory after a call on arrays on the GPU."""
        call, self._gpu_call = self._gpu_call, None
        if call is not None:
            call.unbind()

    def close(self) -> None:
        """Free what the device holds; later calls raise InvokeError."""
        self._reopen = None
        self.interpreter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<LoadedModel on {self.device}: {self.report.summary()}>"

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = list(self._inputs)

        def expected() -> str:
            return f"the model has {len(names)}: {', '.join(names)}"

        if len(args) > len(names):
            raise TensorError(f"{len(args)} inputs were given, but {expected()}")
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in self._inputs:
                raise TensorError(f"There is no input '{name}'; {expected()}")
            if name in values:
                raise TensorError(f"Input '{name}' was given twice, by position and by name")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise TensorError(f"Input '{missing[0]}' was not given; {expected()}")
        return values

    def _converted(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The values in the inputs' types."""
        arrays = {}
        for name, value in values.items():
            if type(value) is np.ndarray and (value.shape, value.dtype) == self._expected[name]:
                arrays[name] = value  # as nearly always, and this takes a tenth of the time
            else:
                arrays[name] = _converted(name, value, self._details[name])
        return arrays

    def _set_inputs(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._unbind()
        for name, array in arrays.items():
            self.interpreter.set_tensor(self._inputs[name], array)

    def _results(self) -> Any:
        """Of the last inference."""
        return self._as_result([self.interpreter.get_tensor(index) for index in self._outputs.values()])

    def _as_result(self, arrays: Sequence[Any]) -> Any:
        """The outputs as a call gives them."""
        return arrays[0] if len(arrays) == 1 else dict(zip(self._outputs, arrays, strict=True))

    def _learn_inputs(self) -> None:
        self._details = self.inputs
        self._expected = {name: (tuple(d["shape"].tolist()), np.dtype(d["dtype"])) for name, d in self._details.items()}

    def _resize(self, arrays: Mapping[str, np.ndarray]) -> None:
        before = {name: shape for name, (shape, _) in self._expected.items()}
        changed = [name for name, array in arrays.items() if array.shape != before[name]]
        if not changed:
            return
        if self._rebatch(arrays):
            self._learn_inputs()
            return
        try:
            for name in changed:
                self.interpreter.resize_tensor_input(self._inputs[name], arrays[name].shape)
            self.interpreter.allocate_tensors()
        except (InvokeError, TensorError) as error:
            for name in changed:
                self.interpreter.resize_tensor_input(self._inputs[name], before[name])
            self.interpreter.allocate_tensors()
            shapes = ", ".join(f"'{n}' {list(before[n])} to {list(arrays[n].shape)}" for n in changed)
            raise TensorError(f"The model cannot be resized ({shapes}): {error}") from error
        self._learn_inputs()

    def _rebatch(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Open the model for the batch of `arrays`, if that is all that differs from the file and leaves rows apart.

        The official resize fails where a constant holds the batch, or, worse, mixes the rows; it is left to models
        whose batch is open, and to other changes.
        """
        if self._reopen is None:
            return False
        model = self.interpreter._model
        batches = set()
        changed = []
        for name, array in arrays.items():
            tensor = model.main.tensors[self._inputs[name]]
            if array.shape != tensor.shape:
                if array.shape[1:] != tensor.shape[1:] or tensor.shape_signature[0] == -1:
                    return False
                changed.append(tensor.index)
                batches.add(len(array))
        if len(batches) != 1:
            return False
        try:
            interpreter = self._reopen(bytes(with_batch(model, batches.pop(), inputs=changed).content))
        except LiteGpuError as error:
            log.debug("Not opened for another batch: %s", error)
            return False
        self.interpreter.close()
        self.interpreter = interpreter
        return True


def _delegate(device: str, precision: str, options: Mapping[str, Any]) -> Any:
    """The GPU delegate that a device name asks for, None for the CPU."""
    if device == "cpu":
        if options:
            raise OptionError(f"{', '.join(options)}: the CPU has no delegate options; give num_threads instead")
        return None
    kind, _, index = device.partition(":")
    if kind not in ("auto", "webgpu", "cuda") or (device != kind and not (kind == "cuda" and index.isdecimal())):
        raise OptionError(f'device is {device!r}; it must be "auto", "cpu", "webgpu", "cuda" or "cuda:<index>"')
    if kind == "cuda":
        options = {"backend": "cuda", **({"device": index} if index else {}), **options}
    elif kind == "webgpu":
        options = {"backend": "webgpu", **options}
    from litegpu.delegates.gpu import GpuDelegate

    delegate = GpuDelegate(precision=precision, **options)
    try:
        delegate.open_device()
    except DeviceError as error:
        if device != "auto":
            raise
        log.info("No GPU can be used, running on the CPU. %s", error)
        return None
    return delegate


def _signature_names(interpreter: Interpreter) -> dict[int, str]:
    """Tensor index -> argument name, if the model has one signature, of its main subgraph."""
    signatures = interpreter._model.signatures
    if len(signatures) != 1 or signatures[0].subgraph != 0:
        return {}
    names = {**signatures[0].inputs, **signatures[0].outputs}
    return {index: name for name, index in names.items()}


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


def _converted(name: str, value: Any, detail: Mapping[str, Any]) -> np.ndarray:
    """`value` in the input's type, of a shape that the input has or can be resized to."""
    dtype = np.dtype(detail["dtype"])
    given = np.asarray(value)
    array = given
    if given.dtype != dtype and dtype.kind not in "SO":
        if given.dtype.kind not in ("biufc" if dtype.kind == "c" else "biuf"):
            raise TensorError(f"Input '{name}' is {dtype}, but the value is {given.dtype}")
        with np.errstate(all="ignore"):
            array = given.astype(dtype)
        rounds = not hasattr(value, "dtype") and given.dtype.kind in "iuf" and dtype.kind == "f"
        if not rounds and not np.array_equal(array, given, equal_nan=given.dtype.kind in "fc"):
            raise TensorError(
                f"Input '{name}' is {dtype}; converting the {given.dtype} value would change it. Convert it yourself, "
                f"with .astype({dtype}), or with the input's quantization {detail['quantization']}"
            )
    shape, signature = tuple(detail["shape"]), tuple(detail["shape_signature"])
    fits = len(array.shape) == len(shape) and all(
        got == now or axis == 0 or open_ == -1
        for axis, (got, now, open_) in enumerate(zip(array.shape, shape, signature, strict=True))
    )
    if not fits:
        raise TensorError(
            f"Input '{name}' has shape {[int(n) for n in shape]}, but the value has {list(array.shape)}. Only the "
            "first dimension (the batch) and those that are -1 in its shape_signature can differ"
        )
    return array
