"""The official Python API (`ai_edge_litert.interpreter`) with delegates of our own and CPU fallback.

Changing the import is the whole migration: names, arguments, dictionaries, dtypes and kinds of errors are the official
ones, and errors are LiteGpuError as well. Where nothing is delegated the whole model runs in one official interpreter
object. One Interpreter serves one thread at a time (turns.py); invoke() releases the GIL.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import numbers
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
from ai_edge_litert import interpreter as official
from ai_edge_litert.interpreter import Delegate, OpResolverType, load_delegate

from litegpu import debug, fork
from litegpu.background import Background, InferenceFuture, Patient
from litegpu.blame import described
from litegpu.boundary import typed_errors, typed_method
from litegpu.chatter import quiet
from litegpu.delegates import cpu
from litegpu.delegates.aborts import refuse_aborting
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.demand import check_demand, check_input_shape
from litegpu.delegates.partitioner import ON_CPU, Division, FailedDelegate, NarrowedDelegate, divide, whole_on_cpu
from litegpu.delegates.plan import Plan, PrepareError, rehearsed
from litegpu.delegates.protocol import Delegate as DelegateProtocol
from litegpu.delegates.protocol import OfficialDelegate, lacking
from litegpu.delegates.report import CPU, DelegationReport
from litegpu.delegates.shapes import infer
from litegpu.delegates.values import ValueChecks
from litegpu.errors import (
    DelegateError,
    DelegateTypeError,
    ForkError,
    InvokeError,
    LiteGpuError,
    ModelError,
    OptionError,
    TensorError,
)
from litegpu.model.bundle import bundled_content
from litegpu.model.inline import inline_composites
from litegpu.model.inputs import is_given, without_value
from litegpu.model.ops.operands import OBJECTS
from litegpu.model.reader import read_model
from litegpu.model.types import Operator, Subgraph, TensorType
from litegpu.model.writer import write_model
from litegpu.signature import SignatureRunner
from litegpu.turns import Cycle, Turns, alone, exclusive, lost_results, wait_until_free

__all__ = [
    "Delegate",
    "Interpreter",
    "InterpreterWithCustomOps",
    "OpResolverType",
    "SignatureRunner",
    "load_delegate",
]

log = logging.getLogger("litegpu")

R = TypeVar("R")

FALLBACKS = ("strict", "warn", "silent")

#: Nodes that a delegate may fail to prepare before it is not asked any more.
_MOST_LEFT_OUT = 64


def _with_own_operators(method: Callable[[Interpreter], R]) -> Callable[[Interpreter], R]:
    """A method in which the operators are registered that were when the model was opened."""

    @functools.wraps(method)
    def within(self: Interpreter) -> R:
        with self._own_operators():
            return method(self)

    return within


@typed_errors
class Interpreter:
    """Runs a .tflite model. See `ai_edge_litert.interpreter.Interpreter` for the arguments that are not named here.

    model_path: a file, or a model in a bundle (`hands.task/hand_detector.tflite`), or a bundle of one model.
    experimental_delegates: objects of the litegpu delegate protocol, asked in order, and objects of `load_delegate`,
        which the official runtime gets for the parts that it runs.
        Composite operators count as what they stand for, and operators are numbered accordingly.
    experimental_preserve_all_tensors: values inside a delegate's partition stay unreadable all the same.
    fallback: "warn" logs what stays on the CPU, "silent" does not, "strict" raises DelegateError unless the delegates
        took every node.

    Raises:
        ModelError (a ValueError): the bytes are not a model that can be run.
        OptionError (a ValueError): an argument has an impossible value.
        DelegateError (a RuntimeError): under "strict", with the report in the message.
        DelegateTypeError (an AttributeError): an object is not a delegate.
    """

    _plan: Plan | None = None
    _leave_outputs = False
    _operators: dict[str, Any] | None = None  # what was registered when the model was opened
    _opened_with: OfficialOptions | None = None  # the official interpreter that there is
    _is_resized = False
    _has_run = False
    _value_checks: ValueChecks | None = None

    def __init__(
        self,
        model_path: str | bytes | os.PathLike[Any] | None = None,
        model_content: bytes | None = None,
        experimental_delegates: Iterable[Any] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        experimental_compress_quantization_zero_points: bool = False,
        experimental_disable_delegate_node_fusion: bool = False,
        experimental_force_delegate_node_profiling: bool = False,
        *,
        fallback: str = "warn",
    ) -> None:
        self._official: Any = _Closed()
        if not hasattr(self, "_custom_op_registerers"):
            self._custom_op_registerers: Sequence[Any] = []
        self._background = Background()
        self._patient = Patient()
        self._turns = Turns()
        fork.follow(self)
        self._report = DelegationReport((), (), ())
        _check_arguments(model_path, model_content, num_threads, experimental_op_resolver_type, fallback)
        delegates = list(experimental_delegates or ())
        self._path = os.fsdecode(model_path) if model_path else None
        self._content = model_content if self._path is None else None
        bundled = bundled_content(self._path) if self._path is not None else None
        if bundled is not None:
            self._path, self._content = None, bytes(bundled)
        self._model = read_model(self._path if self._content is None else self._content)  # type: ignore[arg-type]
        for subgraph in self._model.subgraphs:
            check_demand(subgraph)
        self._missing_strings = self._string_inputs()
        self._fallback = fallback
        self._options = OfficialOptions(
            delegates=tuple(d for d in delegates if _is_official(d)),
            num_threads=num_threads,
            op_resolver_type=experimental_op_resolver_type,
            preserve_all_tensors=experimental_preserve_all_tensors,
            disable_delegate_clustering=experimental_disable_delegate_clustering,
            default_delegate_latest_features=experimental_default_delegate_latest_features,
            compress_quantization_zero_points=experimental_compress_quantization_zero_points,
            disable_delegate_node_fusion=experimental_disable_delegate_node_fusion,
            force_delegate_node_profiling=experimental_force_delegate_node_profiling,
            custom_op_registerers=tuple(self._custom_op_registerers),
        )
        self._freed: dict[int, Any] = {}  # inputs with values in the file that were set all the same, and to what
        # Under the official name, for those who look there.
        self._delegates = experimental_delegates if isinstance(experimental_delegates, list) else delegates
        self._asked: list[DelegateProtocol] = [d for d in delegates if not _is_official(d)]
        inlined = inline_composites(self._model) if self._asked else self._model
        if inlined is not self._model:
            self._path, self._content = None, bytes(write_model(inlined))
            self._model = read_model(self._content)
        if any(o.is_custom for o in self._model.main.operators):
            from litegpu.delegates.reference import for_missing_ops
            from litegpu.gpu.custom.registration import known

            self._operators = dict(known())

            self._asked += for_missing_ops(self._model, self._options, alone=not self._asked)
        self._open()

    # ------------------------------------------------------------------------------------------------ running

    @exclusive
    def allocate_tensors(self) -> None:
        """Prepare to run with the present input shapes; delegates compile here. If nothing changed since the last call
        nothing happens. Raises InvokeError (a RuntimeError) if the model or its shapes are refused."""
        self._check_demand()
        if self._whole:
            self._fit_options()
            self._refuse_aborting()
            try:
                with quiet():
                    self._official.allocate_tensors()
            except (RuntimeError, ValueError) as error:
                raise self._allocation_error(error) from None
            if self._is_resized:
                self._missing_strings, self._has_run = self._string_inputs(), False
        else:
            self._ensure_safe()
            if self._plan is None:
                self._prepare()
        for index, value in self._freed.items():
            self._set_value(index, value)

    @exclusive
    def invoke(self) -> None:
        """One inference. Raises InvokeError (a RuntimeError) if it fails or the tensors are not allocated."""
        self._infer(self._turns.mine)

    def invoke_async(self) -> InferenceFuture:
        """Begin one inference and return at once: a future that is done when the outputs can be read, for `await`,
        `concurrent.futures`, or its own result(), which raises what invoke() would. Any other method of this
        interpreter, one that sets the next inputs as well, waits for the inference first; to have several run at once,
        use several interpreters, or LoadedModel.stream()."""
        self._settle()
        cycle = self._turns.mine

        def work() -> None:
            alone(self._turns, self._infer, cycle)
            if self._plan is not None:
                self._plan.settle()

        return self._background.start(typed_method(work))

    def _infer(self, cycle: Cycle) -> None:
        """One inference of the thread whose `cycle` this is."""
        self._turns.beginning(cycle)
        self._invoke()
        cycle.sets.clear()

    def _invoke(self) -> None:
        if self._plan is None:
            if self._missing_strings:
                raise InvokeError(
                    f"Inputs {sorted(self._missing_strings)} are strings, which have to be set before invoke()"
                )
            self._check_values()
            try:
                self._patient.call(self._official.invoke)
            except (RuntimeError, ValueError) as error:
                raise self._runtime_error(error) from None
            self._has_run = True
        else:
            self._ensure_safe()
            self._plan.invoke()

    @exclusive
    def _exclusively(self, work: Callable[[], Any]) -> Any:
        """`work()` while no other thread uses this interpreter."""
        return work()

    def _own_operators(self) -> contextlib.AbstractContextManager[None]:
        if self._operators is None:
            return contextlib.nullcontext()
        from litegpu.gpu.custom.registration import keeping

        return keeping(self._operators)

    def _settle(self) -> None:
        """Wait for what runs in the background."""
        self._background.settle()
        self._patient.settle()

    @exclusive
    def resize_tensor_input(self, input_index: int, tensor_size: Any, strict: bool = False) -> None:
        """Give an input another shape; allocate_tensors() has to follow. With `strict` only dimensions that are -1 in
        the shape signature may change. Raises InvokeError (a RuntimeError)."""
        self._ensure_safe()
        self._turns.rewriting(self._turns.mine)
        self._resize(input_index, tensor_size, strict)
        self._is_resized = True

    @exclusive
    def reset_all_variables(self) -> None:
        """Set the variables to zero: what recurrent ops keep from one inference to the next. Where delegates run
        nodes, the variables' values cannot be read."""
        if self._plan is not None:
            self._ensure_safe()
            self._plan.reset_variables()
            return
        try:
            self._official.reset_all_variables()
        except (RuntimeError, ValueError) as error:
            raise self._runtime_error(error) from None

    # ------------------------------------------------------------------------------------------------ tensors

    @exclusive
    def set_tensor(self, tensor_index: int, value: Any) -> None:
        """Copy `value` into a tensor. Element type and shape must be the tensor's own; byte order, alignment and
        strides need not. An input that has a value in the file keeps that until it is set. Raises TensorError (a
        ValueError)."""
        self._turns.setting(tensor_index, self._safe_to_run)
        if type(value) is np.ndarray and not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        if is_given(self._model, tensor_index):
            self._free_input(tensor_index)
        if tensor_index in self._freed:
            self._set_value(tensor_index, value)
            self._freed[tensor_index] = np.array(value)
            return
        self._set_value(tensor_index, value)

    def _set_value(self, tensor_index: int, value: Any) -> None:
        if self._plan is not None and self._is_computed(tensor_index):
            self._plan.set_input(tensor_index, value)
            return
        if self._is_constant(tensor_index):
            name = self._model.main.tensors[tensor_index].name
            raise TensorError(f"Tensor {tensor_index} '{name}' is a constant of the model, which cannot be set")
        try:
            self._official.set_tensor(tensor_index, value)
        except ValueError as error:
            raise TensorError(str(error)) from None
        self._missing_strings.discard(tensor_index)

    @exclusive
    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Any:
        """A copy of a tensor's value: an array, or a NumPy scalar for rank 0. What exists only inside a partition
        cannot be read. Raises TensorError (a ValueError)."""
        if not self._turns.may_read(tensor_index) and subgraph_index == 0 and self._is_result(tensor_index):
            raise lost_results(tensor_index)
        if self._plan is not None and subgraph_index == 0 and self._is_computed(tensor_index):
            return self._plan.value(tensor_index).copy()[()]
        self._require_readable(tensor_index, subgraph_index)
        try:
            return self._official.get_tensor(tensor_index, subgraph_index)
        except ValueError as error:
            raise TensorError(str(error)) from None

    def tensor(self, tensor_index: int) -> Callable[[], Any]:
        """A function that gives a writable view of a tensor. While a view or a slice of one is alive, allocate_tensors,
        invoke and resize_tensor_input raise InvokeError; the function itself may be kept."""

        return typed_method(lambda: self._view(tensor_index))

    @exclusive
    def _view(self, tensor_index: int) -> Any:
        if tensor_index in self._model.main.inputs:
            self._turns.setting(tensor_index, self._safe_to_run, view=True)
        elif not self._turns.may_read(tensor_index) and self._is_result(tensor_index):
            raise lost_results(tensor_index)
        if self._plan is not None and self._is_computed(tensor_index):
            return self._plan.view(tensor_index)
        if self._type_of(tensor_index) in OBJECTS:
            raise TensorError(f"Tensor {tensor_index} holds strings or handles, of which there is no view")
        try:
            view = self._official.tensor(tensor_index)()
        except ValueError as error:
            raise TensorError(str(error)) from None
        if self._is_constant(tensor_index):
            view.flags.writeable = False  # it is the file's memory
        return view

    # --------------------------------------------------------------------------------------- memory on the GPU

    @exclusive
    def set_allow_buffer_handle_output(self, allow: bool) -> None:
        """Whether outputs that are bound to buffers on the GPU (GpuDelegate.bind_buffer_to_tensor) are left there by
        invoke(). False at first: then invoke() also copies them to the host. Otherwise get_tensor() and
        ensure_tensor_data_is_readable() copy them when they are asked for."""
        self._leave_outputs = bool(allow)
        if self._plan is not None:
            self._plan.leave_outputs(self._leave_outputs)

    @exclusive
    def ensure_tensor_data_is_readable(self, tensor_index: int) -> None:
        """Copy a tensor's value to the host if it is only on the GPU. Raises TensorError (a ValueError)."""
        if self._plan is not None and self._is_computed(tensor_index):
            self._plan.value(tensor_index)

    @exclusive
    def get_output_buffer(self, tensor_index: int) -> Any:
        """The buffer on the GPU that holds an output: the one that was bound to it, or else one of litegpu's, which is
        bound by this and which other libraries can read (`__dlpack__`, `__cuda_array_interface__`). The same one after
        every invoke(), with new content. Raises TensorError if the output is not computed on such a device."""
        found = self._plan.output_kernel(tensor_index) if self._plan is not None else None
        if found is None:
            raise TensorError(f"Tensor {tensor_index} is no output that a GPU computes, or tensors are not allocated")
        kernel, position = found
        return kernel.output_buffer(position, self._subgraph.tensors[tensor_index])

    # ------------------------------------------------------------------------------------------------ details

    def get_input_details(self) -> list[dict[str, Any]]:
        """One dictionary per input: name, index, shape, shape_signature, dtype, quantization and so on."""
        return self._current(self._official.get_input_details())

    def get_output_details(self) -> list[dict[str, Any]]:
        """One dictionary per output, as for get_input_details()."""
        return self._current(self._official.get_output_details())

    def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]:
        """One dictionary per tensor of a subgraph. Raises TensorError (a ValueError) if there is no such subgraph."""
        try:
            details = self._official.get_tensor_details(subgraph_index)
        except ValueError as error:
            raise TensorError(str(error)) from None
        return self._current(details, subgraph_index)

    def num_subgraphs(self) -> int:
        return int(self._official.num_subgraphs())

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Signature key -> {"inputs": names, "outputs": names}."""
        found: dict[str, dict[str, list[str]]] = self._official.get_signature_list()
        return found

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A callable for one signature; the key may be left out if the model has exactly one. Raises TensorError (a
        ValueError)."""
        if signature_key is None:
            keys = list(self.get_signature_list())
            if len(keys) != 1:
                raise TensorError(
                    f"SignatureDef signature_key is None and model has {len(keys)} Signatures. None is only allowed "
                    "when the model has 1 SignatureDef"
                )
            signature_key = keys[0]
        return SignatureRunner(interpreter=self, signature_key=signature_key)

    @property
    def experimental_compress_quantization_zero_points(self) -> bool:
        return self._options.compress_quantization_zero_points

    # -------------------------------------------------------------------------------------------- delegation

    @exclusive
    def modify_graph_with_delegate(self, delegate: Any) -> None:
        """Ask one more delegate, after the earlier ones, for what they left. Tensors that were allocated are allocated
        again, and the inputs keep shapes and values. Raises DelegateError under "strict", DelegateTypeError."""
        self._ensure_safe()
        shapes = self._input_shapes()
        values = self._input_values()
        before = self._options, list(self._asked)
        if _is_official(delegate):
            self._options = replace(self._options, delegates=(*self._options.delegates, delegate))
        else:
            self._asked.append(delegate)
        self._drop_plan()
        try:
            self._open()
        except DelegateError:
            self._options, self._asked = before
            self._open()
            raise
        finally:
            self._restore(shapes, None)
        self._restore({}, values)

    def _restore(self, shapes: Mapping[int, tuple[int, ...]], values: Mapping[int, Any] | None) -> None:
        """Give the inputs of a graph that was opened again their shapes, and their values if they were allocated."""
        for index, shape in shapes.items():
            self._resize(index, shape)
        if values is not None:
            self.allocate_tensors()
            for index, value in values.items():
                self._set_value(index, value)

    def _free_input(self, index: int) -> None:
        """Open the graph again with input `index`, which has a value in the file, as one that can be set."""
        shapes, values = self._input_shapes(), self._input_values()
        if values is None:
            return  # not allocated: the official runtime says so
        content, data = without_value(self._model, index), self._model.main.tensors[index].data
        self._drop_plan()
        self._path, self._content = None, content
        self._model = read_model(content)
        self._freed[index] = np.array(data)
        self._open()
        fixed = {i for i in shapes if i in self._freed or is_given(self._model, i)}
        self._restore(
            {i: s for i, s in shapes.items() if i not in fixed}, {i: v for i, v in values.items() if i not in fixed}
        )

    def delegation_report(self) -> DelegationReport:
        """Which node runs where, and why those on the CPU do. Before allocate_tensors() it is what is intended."""
        if self._plan is not None and self._plan.notes != self._report.notes:  # an inference may add some
            self._report = replace(self._report, notes=self._plan.notes)
        return self._report

    @exclusive
    def preview_delegation(self) -> DelegationReport:
        """What allocate_tensors() would delegate with the present input shapes, if every delegate can prepare what it
        accepts. Nothing is prepared, so no device is needed. Raises InvokeError if the shapes are refused."""
        if not self._whole and self._plan is None:
            division, refused = self._divide_inferred()
            while (failure := rehearsed(division, self._asked)) is not None:
                self._give_up(failure, logging.DEBUG)
                division = self._divide(self._subgraph, refused, announce=False)
        return self._report

    def close(self) -> None:
        """Free what the delegates hold, once the call that another thread is in has ended; any later use raises
        InvokeError. May be called twice."""
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        """close(); without `wait`, what is under way is freed when it has ended."""
        self._background.close(wait=wait)
        if wait:
            wait_until_free(self._turns)
        self._drop_plan(wait=wait)
        self._whole = True
        self._official = _Closed()

    def _forked(self) -> None:
        """In the child of a fork: what another thread was doing with the official interpreter never ends there."""
        self._background.forked()
        if not self._turns.forked() or isinstance(self._official, _Closed):
            return
        if self._plan is not None and self._plan.forked():
            return
        shapes = self._input_shapes()
        self._drop_plan()
        self._official = self._resized(self._options if self._whole else self._options.plain(), shapes)
        self.allocate_tensors()

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(f"cannot pickle or copy a {name!r} object: open the model again where it is needed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(wait=kind is None or issubclass(kind, Exception))  # Ctrl-C does not wait

    def __del__(self) -> None:
        if sys.is_finalizing():  # what it would free may be gone
            return
        background = getattr(self, "_background", None)
        if background is not None:
            background.close(wait=False)
        self._drop_plan(wait=False)

    # ------------------------------------------------------- officially private, and used by many all the same

    @property
    def _interpreter(self) -> Any:
        """The binding's own object, which Google's tools use, of the official interpreter that describes the tensors
        and, without delegates, runs the model."""
        return self._official._interpreter

    @property
    def _signature_defs(self) -> dict[str, Any]:
        return self.get_signature_list()

    def _get_full_signature_list(self) -> dict[str, Any]:
        found: dict[str, Any] = self._official._get_full_signature_list()
        return found

    def _get_tensor_details(self, tensor_index: int, subgraph_index: int) -> dict[str, Any]:
        if not 0 <= subgraph_index < len(self._model.subgraphs):
            raise TensorError(
                f"subgraph_index is {subgraph_index}, but there are {len(self._model.subgraphs)} subgraphs"
            )
        try:
            detail = self._official._get_tensor_details(tensor_index, subgraph_index)
        except ValueError as error:
            text = str(error)
            if (
                "no shape" not in text and not self._whole
            ):  # which is what one behind the model's is to the official one
                text = f"Tensor with no shape found. {text}"
            raise TensorError(text) from None
        return self._current([detail], subgraph_index)[0]

    def _get_op_details(self, op_index: int) -> dict[str, Any]:
        try:
            detail: dict[str, Any] = self._official._get_op_details(op_index)
        except ValueError as error:
            raise TensorError(str(error)) from None
        return detail

    def _get_ops_details(self) -> list[dict[str, Any]]:
        details: list[dict[str, Any]] = self._official._get_ops_details()
        return details

    def _native_handle(self) -> int:
        return int(self._official._native_handle())

    def _safe_to_run(self) -> bool:
        return not (self._plan is not None and self._plan.viewed) and bool(self._official._safe_to_run())

    def _ensure_safe(self) -> None:
        if not self._safe_to_run():
            raise InvokeError(
                "There is at least 1 reference to internal data\n      in the interpreter in the form of a numpy array "
                "or slice. Be sure to\n      only hold the function returned from tensor() if you are using raw\n      "
                "data access."
            )

    # ------------------------------------------------------------------- what the official interpreter is for
    #
    # `_whole`: `_official` has the caller's options and runs everything; the wrapper only translates errors.
    # Otherwise it has no delegates and describes the tensors, and `_plan`, made by allocate_tensors() and dropped by a
    # resize, runs. `_official` itself is never allocated then, so between those two it gives the right errors for
    # set_tensor() and invoke().

    def _open(self) -> None:
        """Decide from the shapes in the file what goes where, and open the official interpreter that this needs."""
        self._reported = ""
        self._division: Division | None = None
        self._subgraph = self._model.main
        undividable = cpu.undividable(self._model) if self._asked else {}
        if not self._asked or undividable:
            self._whole = True
            asked = [d.name for d in self._asked if d.name != CPU]
            self._announce(whole_on_cpu(self._model.main, asked, undividable))
            self._official = self._create(self._options.fitting((), self._every_operator()))
        else:
            self._whole = False
            self._divide(self._model.main, {})
            self._official = self._create(self._options.plain())

    def _every_operator(self) -> tuple[Operator, ...]:
        return tuple(operator for subgraph in self._model.subgraphs for operator in subgraph.operators)

    def _create(self, options: OfficialOptions) -> Any:
        self._opened_with = options
        try:
            return options.create(self._path, self._content)
        except RuntimeError as error:
            raise DelegateError(str(error)) from None
        except ValueError as error:
            raise ModelError(str(error)) from None

    def _divide(self, subgraph: Subgraph, refused: Mapping[int, str], *, announce: bool = True) -> Division:
        model = self._model
        if len(subgraph.tensors) > len(model.main.tensors):  # values that were folded
            model = replace(model, subgraphs=(subgraph, *model.subgraphs[1:]))
        division = divide(model, subgraph, self._asked, refused)
        self._division, self._subgraph = division, subgraph
        self._announce(division.report, aloud=announce)
        return division

    def _announce(self, report: DelegationReport, *, aloud: bool = True) -> None:
        """Keep the report, refuse it under "strict", and log it if it tells something new."""
        news = report.delegates != () and report != self._report
        self._report = report
        if not report.delegates:
            return
        complete = report.fully_delegated
        if self._fallback == "strict" and not complete:
            details = "\n".join(report.warnings())
            raise DelegateError(f'Not every op was delegated, and fallback is "strict". {report.summary()}\n{details}')
        if news:
            level = logging.WARNING if self._fallback == "warn" and not complete else logging.INFO
            if not aloud or self._fallback == "silent":
                level = logging.DEBUG
            for line in report.warnings():
                log.log(level, "%s", line)
            log.log(level, "%s", report.summary())
            debug.say(debug.PARTITIONS, "%s", report)

    @_with_own_operators
    def _prepare(self) -> None:
        """Learn every tensor's shape, divide again if that changed something, and have the partitions prepared."""
        if any(isinstance(d, NarrowedDelegate) for d in self._asked):  # of other shapes perhaps
            self._asked = [d.whole if isinstance(d, NarrowedDelegate) else d for d in self._asked]
            self._division = None
        division, refused = self._divide_inferred()
        subgraph = self._subgraph
        unknown = {t for node in refused for t in subgraph.operators[node].outputs}
        while division.delegated:
            self._require_kernels(division)
            try:
                plan = Plan(subgraph, division, self._asked, self._options, unknown)
                plan.leave_outputs(self._leave_outputs)
                self._report = replace(self._report, notes=plan.notes)
                self._plan = plan  # last: an interrupted preparation is made anew
                return
            except PrepareError as failure:
                if isinstance(failure.cause, ForkError):
                    raise failure.cause from None
                self._give_up(failure)
                division = self._divide(subgraph, refused, announce=False)
        self._official = self._resized(self._options, self._input_shapes())
        self._whole = True
        self.allocate_tensors()

    @_with_own_operators
    def _divide_inferred(self) -> tuple[Division, dict[int, str]]:
        """The division of the subgraph with its true shapes, and which nodes' shapes are unknown: see Inferred."""
        found = infer(self._model, self._options, self._input_shapes())
        division = self._division
        if division is None or found.refused or found.subgraph is not self._subgraph:
            division = self._divide(found.subgraph, found.refused)
        return division, found.refused

    def _require_kernels(self, division: Division) -> None:
        """Raises InvokeError naming every op on the CPU that the official runtime has no kernel for."""
        left = [o for owner, partition in division.partitions if owner == ON_CPU for o in partition.nodes]
        missing = cpu.unresolved_custom_ops(self._model, self._subgraph, left, self._options)
        if missing:
            raise InvokeError(cpu.unresolved_message(missing))

    def _give_up(self, failure: PrepareError, loud: int = logging.WARNING) -> None:
        """Stop asking a delegate that failed while preparing, or only for the nodes that it blames."""
        delegate, cause = self._asked[failure.position], failure.cause
        text = described(cause)
        if self._fallback == "strict":
            raise DelegateError(
                f"Delegate {delegate.name} failed to prepare a partition of {len(failure.nodes)} nodes, and fallback "
                f'is "strict". {text}'
            ) from cause
        level = loud if self._fallback == "warn" else logging.DEBUG
        known = delegate.reasons if isinstance(delegate, NarrowedDelegate) else {}
        if failure.blamed and len(known) < _MOST_LEFT_OUT:
            numbers = ", ".join(map(str, failure.blamed))
            log.log(
                level, "Delegate %s cannot take ops number %s, which run on the CPU. %s", delegate.name, numbers, text
            )
            whole = delegate.whole if isinstance(delegate, NarrowedDelegate) else delegate
            reasons = known | dict.fromkeys(failure.blamed, f"The delegate failed to prepare it: {text}")
            self._asked[failure.position] = NarrowedDelegate(whole, reasons)
            return
        log.log(level, "Delegate %s failed to prepare and is left out; its ops run on the CPU. %s", delegate.name, text)
        self._asked[failure.position] = FailedDelegate(delegate.name, cause)

    def _resize(self, index: int, shape: Any, strict: bool = False) -> None:
        if index in self._freed:  # the official runtime takes it for a constant
            raise InvokeError("Attempting to resize a fixed-size tensor.")
        check_input_shape(shape)
        before = None if self._whole and not self._divisible else self._input_shapes()
        try:
            self._official.resize_tensor_input(index, shape, strict)
        except (RuntimeError, ValueError) as error:
            raise self._runtime_error(error) from None
        if before is None:
            return
        shapes = self._input_shapes()
        inner = index not in before  # which asks for another allocation, as officially
        if shapes != before or inner or (self._plan is not None and not self._plan.takes(shapes)):
            self._drop_plan()
            if self._whole:  # the delegates may take the model in its new shape
                self._official = self._resized(self._options.plain(), shapes)
                self._whole = False

    def _fit_options(self) -> None:
        """Have the official interpreter that the shapes of the inputs need; see OfficialOptions.fitting()."""
        shapes = self._input_shapes()
        fitting = self._options.fitting(shapes.values(), self._every_operator())
        if self._opened_with is None or fitting.op_resolver_type != self._opened_with.op_resolver_type:
            self._official = self._resized(fitting, shapes)

    def _resized(self, options: OfficialOptions, shapes: Mapping[int, tuple[int, ...]]) -> Any:
        self._reported = ""
        interpreter = self._create(options)
        for index, shape in shapes.items():
            interpreter.resize_tensor_input(index, shape)
        return interpreter

    def _check_demand(self) -> None:
        """Raises InvokeError if the model asks for more than the limits with the present shapes of its inputs."""
        if self._is_resized:
            try:
                check_demand(self._model.main, self._input_shapes())
            except ModelError as error:
                raise InvokeError(str(error)) from None

    def _check_values(self) -> None:
        """Raises InvokeError if inputs have values that the official runtime would crash on."""
        if self._value_checks is None:
            main = self._model.main
            self._value_checks = ValueChecks(main, main.inputs, main.operators)
        checks = self._value_checks
        if checks.inputs and self._is_allocated():
            checks.check(self._official.get_tensor, self._input_shapes())

    def _is_allocated(self) -> bool:
        """Whether the official interpreter has memory for its inputs, of those that it can give a view of."""
        try:
            for index in self._model.main.inputs:
                if self._type_of(index) not in OBJECTS:
                    self._official.tensor(index)()
        except ValueError:
            return False
        return True

    def _string_inputs(self) -> set[int]:
        """Inputs that have nothing the official runtime could read until they are set."""
        main = self._model.main
        return {i for i in main.inputs if main.tensors[i].type is TensorType.STRING and not main.tensors[i].is_constant}

    @property
    def _divisible(self) -> bool:
        return self._division is not None

    def _input_shapes(self) -> dict[int, tuple[int, ...]]:
        inner = self._official._interpreter  # get_input_details() fails for names that are no text
        return {int(i): tuple(int(n) for n in inner.TensorSize(int(i), 0)) for i in inner.InputIndices()}

    def _input_values(self) -> dict[int, Any] | None:
        """Copies of the inputs' values; None if they are not allocated."""
        try:
            return {i: self.get_tensor(i) for i in self._input_shapes()}
        except TensorError:
            return None

    def _drop_plan(self, *, wait: bool = True) -> None:
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.close(wait=wait)

    def _is_result(self, index: int) -> bool:
        """Whether an inference changes the tensor."""
        return self._is_computed(index) and index not in self._model.main.inputs

    def _type_of(self, index: int, subgraph_index: int = 0) -> TensorType | None:
        if not 0 <= subgraph_index < len(self._model.subgraphs):
            return None
        tensors = self._model.subgraphs[subgraph_index].tensors
        return tensors[index].type if 0 <= index < len(tensors) else None

    def _require_readable(self, index: int, subgraph_index: int) -> None:
        """Raises TensorError for strings that are not there yet: the official runtime would follow a null pointer."""
        if self._type_of(index, subgraph_index) is not TensorType.STRING:
            return
        tensor = self._model.subgraphs[subgraph_index].tensors[index]
        given = subgraph_index == 0 and index in self._model.main.inputs and index not in self._missing_strings
        made = subgraph_index == 0 and self._has_run and index not in self._model.main.inputs
        if not (tensor.is_constant or given or made):
            raise TensorError(f"Tensor {index} '{tensor.name}' holds no strings yet; set the inputs and invoke() first")

    def _is_constant(self, index: int) -> bool:
        tensors = self._model.main.tensors
        return 0 <= index < len(tensors) and tensors[index].is_constant and index not in self._freed

    def _is_computed(self, index: int) -> bool:
        """Whether the plan knows about the tensor: it exists, and is no constant."""
        tensors = self._model.main.tensors
        return 0 <= index < len(tensors) and not tensors[index].is_constant

    def _current(self, details: list[dict[str, Any]], subgraph_index: int = 0) -> list[dict[str, Any]]:
        """`details` with the shapes that tensors have for the inputs as they were last allocated, or that only the last
        run could tell."""
        if subgraph_index == 0 and not self._whole:
            plan, tensors, inputs = self._plan, self._subgraph.tensors, self._model.main.inputs
            for detail in details:
                index = detail["index"]
                shape = plan.shape(index) if plan is not None else None
                known = index < len(tensors) and not tensors[index].is_constant
                if shape is None and known and (plan is not None or index not in inputs):
                    shape = tensors[index].shape
                if shape is not None and tuple(detail["shape"]) != shape:
                    if -1 not in detail["shape_signature"]:  # the file has none then
                        detail["shape_signature"] = np.array(shape, np.int32)
                    detail["shape"] = np.array(shape, np.int32)
        return details

    # ------------------------------------------------------------------------------------------------ errors

    def _fresh_text(self, error: Exception) -> str:
        """The text without what earlier errors left in the official reporter, which never forgets."""
        text = str(error)
        if isinstance(error, ValueError) or "reference to internal data" in text:  # not from the reporter
            return text
        fresh = text.removeprefix(self._reported)
        self._reported = text
        return fresh or text

    def _runtime_error(self, error: Exception) -> Exception:
        if isinstance(error, LiteGpuError):
            return error
        return (InvokeError if isinstance(error, RuntimeError) else TensorError)(self._fresh_text(error))

    def _refuse_aborting(self) -> None:
        """Raises InvokeError if the official runtime, which gets the whole model, would abort on it."""
        resolver = (self._opened_with or self._options).op_resolver_type
        for subgraph in self._model.subgraphs:
            refuse_aborting(subgraph.operators, subgraph.tensors, subgraph.outputs, resolver)

    def _allocation_error(self, error: Exception) -> Exception:
        if cpu.is_unresolved(str(error)):
            main = self._model.main
            missing = cpu.unresolved_custom_ops(self._model, main, main.operators, self._options)
            if missing:
                self._fresh_text(error)
                return InvokeError(cpu.unresolved_message(missing))
        return self._runtime_error(error)


class InterpreterWithCustomOps(Interpreter):
    """Interpreter that also registers kernels for custom ops: names of C symbols, or functions that are called with the
    address of the op resolver, as in the official class."""

    def __init__(self, custom_op_registerers: Iterable[Any] | None = None, **kwargs: Any) -> None:
        self._custom_op_registerers = list(custom_op_registerers or ())
        super().__init__(**kwargs)


class _Closed:
    """What a closed Interpreter has in place of an official one."""

    def __getattr__(self, name: str) -> Any:
        raise InvokeError("The interpreter is closed. Make a new one.")


def _is_official(delegate: Any) -> bool:
    """Raises DelegateTypeError if it is neither an official delegate nor one of the litegpu protocol."""
    if isinstance(delegate, OfficialDelegate):
        return True
    missing = lacking(delegate, DelegateProtocol)
    if not missing:
        _check_delegate(delegate)
        return False
    raise DelegateTypeError(
        f"{type(delegate).__name__!r} object is not a delegate: it lacks {', '.join(missing)} of "
        "litegpu.delegates.protocol.Delegate, and has no '_get_native_delegate_pointer' (see load_delegate)"
    )


def _check_delegate(delegate: Any) -> None:
    """Raises DelegateTypeError if what a delegate has is of the wrong type."""
    kinds: dict[str, type] = {name: numbers.Integral for name in DelegateProtocol.__annotations__} | {"name": str}
    for name, kind in kinds.items():
        value = getattr(delegate, name)
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "a str" if kind is str else "an int"
            raise DelegateTypeError(f"{type(delegate).__name__!r} object: its {name} is {value!r}; it must be {what}")


def _check_arguments(path: Any, content: Any, num_threads: Any, resolver: Any, fallback: str) -> None:
    """Raises OptionError or TypeError with the official texts."""
    if fallback not in FALLBACKS:
        raise OptionError(f"fallback is {fallback!r}; it must be one of {', '.join(FALLBACKS)}")
    if not isinstance(resolver, official.OpResolverType):
        raise OptionError(f"Unrecognized passed in op resolver type: {resolver}")
    if num_threads is not None:
        if not isinstance(num_threads, int):
            raise OptionError("type of num_threads should be int")
        if num_threads < 1:
            raise OptionError("num_threads should >= 1")
    if not path and not content:
        raise OptionError("`model_path` or `model_content` must be specified.")
    if path and content:
        raise OptionError("Can't both provide `model_path` and `model_content`")
    if content and not isinstance(content, bytes):
        raise TypeError(f"model_content must be bytes, not {type(content).__name__}")
