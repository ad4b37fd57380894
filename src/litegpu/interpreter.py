"""The official Python API (`ai_edge_litert.interpreter`) with delegates of our own and CPU fallback.

Changing the import is the whole migration: names, arguments, dictionaries, dtypes and kinds of errors are the official
ones, and errors are LiteGpuError as well. What runs is an engine (engines/); this is what the caller sees of it. One
Interpreter serves one thread at a time (turns.py); invoke() releases the GIL.
"""

from __future__ import annotations

import contextlib
import numbers
import operator
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from ai_edge_litert import interpreter as official
from ai_edge_litert.interpreter import Delegate, OpResolverType

from litegpu import fork
from litegpu.background import Background, InferenceFuture
from litegpu.boundary import typed_errors, typed_method
from litegpu.delegate_registry import load_delegate
from litegpu.delegates.cpu import OfficialOptions, is_unresolved
from litegpu.delegates.demand import check_demand, check_input_shape
from litegpu.delegates.plan import Plan
from litegpu.delegates.protocol import Delegate as DelegateProtocol
from litegpu.delegates.protocol import OfficialDelegate, Rests, lacking
from litegpu.delegates.report import DelegationReport
from litegpu.engines.announcing import FALLBACKS, Announcer
from litegpu.engines.divided import Divided
from litegpu.engines.engine import CLOSED, Engine, Setup
from litegpu.engines.entries import Entries
from litegpu.engines.opening import open_engine
from litegpu.engines.source import ModelSource
from litegpu.engines.whole import native
from litegpu.errors import (
    DelegateError,
    DelegateTypeError,
    InvokeError,
    ModelError,
    OpenShapeError,
    OptionError,
    TensorError,
)
from litegpu.model.inline import inline_composites
from litegpu.model.inputs import is_given, open_inputs, without_value
from litegpu.model.loops import check_loops
from litegpu.model.mapping import check_mapped
from litegpu.model.types import Model, Subgraph
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

    _engine: Engine = CLOSED
    _entries: Entries = CLOSED
    _leaves_outputs = False
    _duration: int | None = None
    _is_resized = False
    _awaits_sizes = False
    _custom_op_registerers: Sequence[Any] = ()

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
        self._custom_op_registerers = list(self._custom_op_registerers)
        self._background = Background()
        self._turns = Turns()
        fork.follow(self)
        self._announcer = Announcer(fallback)
        _check_arguments(model_path, model_content, num_threads, experimental_op_resolver_type, fallback)
        delegates = list(experimental_delegates or ())
        source = ModelSource.open(
            os.fsdecode(model_path) if model_path else None, None if model_path else model_content
        )
        for subgraph in source.model.subgraphs:
            check_demand(subgraph)
        check_loops(source.model)
        options = OfficialOptions(
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
        # Under the official name, for those who look there.
        self._delegates = experimental_delegates if isinstance(experimental_delegates, list) else delegates
        asked = [d for d in delegates if not _is_official(d)]
        inlined = inline_composites(source.model) if asked else source.model
        if inlined is not source.model:
            source = ModelSource.changed(bytes(write_model(inlined)))
        operators = None
        if any(o.is_custom for o in source.model.main.operators):
            from litegpu.gpu.custom.registration import known
            from litegpu.gpu.delegate.missing_ops import for_missing_ops

            operators = dict(known())
            asked += for_missing_ops(source.model, options, alone=not asked)
        self._setup = Setup(source, options, asked, self._announcer, operators)
        self._open()

    def _open(self) -> None:
        self._entries.close(wait=True)
        self._entries = Entries(self._setup)
        self._engine.close(wait=True)
        self._engine = open_engine(self._setup)
        self._engine.leave_outputs(self._leaves_outputs)

    # ------------------------------------------------------------------------------------------------ running

    @exclusive
    def allocate_tensors(self) -> None:
        """Prepare to run with the present input shapes; delegates compile here. If nothing changed since the last call
        nothing happens. Raises InvokeError (a RuntimeError) if the model or its shapes are refused."""
        try:
            self._setup.source.check_present()
            if self._is_resized:
                check_demand(self.model.main, self._engine.input_shapes())
        except ModelError as error:
            raise InvokeError(str(error)) from None
        try:
            self._engine = self._engine.allocate()
        except InvokeError as error:
            told = self._with_open_sizes(error)
            self._awaits_sizes |= told is not error
            try:
                raise told from error.__cause__
            finally:
                del told  # its traceback has this frame
        self._awaits_sizes = False
        for index, value in self._setup.freed.items():
            self._engine.set(index, value)

    @property
    def awaits_sizes(self) -> bool:
        """Whether it could not be allocated as the file leaves sizes of inputs open, and does not run in those that it
        has in their place."""
        return self._awaits_sizes

    def _with_open_sizes(self, error: InvokeError) -> InvokeError:
        """The error of an allocation, or one that tells, if the caller may still have to say how large inputs are."""
        inputs = open_inputs(self.model)
        if self._is_resized or not inputs or is_unresolved(str(error)):
            return error
        sizes = ", ".join(f"'{t.name}' {list(t.shape_signature)}" for t in inputs)
        present = ", ".join(str(list(t.shape)) for t in inputs)
        return OpenShapeError(
            f"{error} The sizes of {sizes} are open, and it does not run in those of the file, {present}: give others, "
            "with resize_tensor_input() or the tools' --input-shape"
        )

    @exclusive
    def invoke(self) -> None:
        """One inference. Raises InvokeError (a RuntimeError) if it fails or the tensors are not allocated."""
        self._infer(self._turns.mine)

    def invoke_async(self) -> InferenceFuture[None]:
        """Begin one inference and return at once: a future that is done when the outputs can be read, for `await`,
        `concurrent.futures`, or its own result(), which raises what invoke() would. Any other method of this
        interpreter, one that sets the next inputs as well, waits for the inference first; to have several run at once,
        use several interpreters, or LoadedModel.stream()."""
        self._settle()
        cycle = self._turns.mine

        def work() -> None:
            alone(self._turns, self._infer, cycle)
            self._engine.finish()

        return self._background.start(typed_method(work))

    def _infer(self, cycle: Cycle) -> None:
        """One inference of the thread whose `cycle` this is."""
        self._turns.beginning(cycle)
        self._timed(self._engine.invoke)
        cycle.sets.clear()

    def _timed(self, work: Callable[[], Any]) -> Any:
        """An inference, whose duration is kept."""
        begin = time.perf_counter_ns()
        result = work()
        self._duration = time.perf_counter_ns() - begin
        return result

    @property
    def last_inference_duration_ns(self) -> int | None:
        """Nanoseconds that the last inference took, of invoke(), invoke_async() or a signature's runner, by any thread;
        None before the first. With the copies of inputs and outputs that belong to it; results that are awaited later,
        as wait_type="do_not_wait" has it, are not. `litegpu benchmark` gives figures to rely on."""
        return self._duration

    @exclusive
    def _exclusively(self, work: Callable[[], Any]) -> Any:
        """`work()` while no other thread uses this interpreter."""
        return work()

    def _settle(self) -> None:
        """Wait for what runs in the background."""
        if self._background.running is not None:
            self._background.settle()
        if self._engine.waits:
            self._engine.settle()
        if self._entries.is_used:
            self._entries.settle()

    @exclusive
    def resize_tensor_input(self, input_index: int, tensor_size: Any, strict: bool = False) -> None:
        """Give an input another shape; allocate_tensors() has to follow. With `strict` only dimensions that are -1 in
        the shape signature may change. Raises InvokeError (a RuntimeError)."""
        self._engine.ensure_safe()
        self._turns.rewriting(self._turns.mine)
        self._resize(input_index, tensor_size, strict)
        self._is_resized = True

    def _resize(self, index: int, shape: Any, strict: bool = False) -> None:
        if index in self._setup.freed:  # the official runtime takes it for a constant
            raise InvokeError("Attempting to resize a fixed-size tensor.")
        check_input_shape(shape)
        self._engine = self._engine.resize(index, shape, strict)

    @exclusive
    def reset_all_variables(self) -> None:
        """Set the variables to zero: what recurrent ops keep from one inference to the next. Where delegates run
        nodes, the variables' values cannot be read."""
        self._engine.reset_variables()
        self._entries.reset_variables()

    # ------------------------------------------------------------------------------------------------ tensors

    @exclusive
    def set_tensor(self, tensor_index: int, value: Any) -> None:
        """Copy `value` into a tensor. Element type and shape must be the tensor's own; byte order, alignment and
        strides need not. An input that has a value in the file keeps that until it is set. Raises TensorError (a
        ValueError)."""
        tensor_index = operator.index(tensor_index)
        self._turns.setting(tensor_index, self._engine.is_safe)
        value = native(value)
        freed = self._setup.freed
        if self._setup.source.has_given_inputs and is_given(self.model, tensor_index):
            self._engine.ensure_safe()
            self._free_input(tensor_index)
        self._engine.set(tensor_index, value)
        if tensor_index in freed:
            freed[tensor_index] = np.array(value)

    @exclusive
    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Any:
        """A copy of a tensor's value: an array, or a NumPy scalar for rank 0. What exists only inside a partition
        cannot be read. Raises TensorError (a ValueError)."""
        tensor_index, subgraph_index = operator.index(tensor_index), operator.index(subgraph_index)
        cycle = self._turns.reading(tensor_index)
        if cycle is None and subgraph_index == 0 and self._is_result(tensor_index):
            raise lost_results(tensor_index)
        value = self._engine.get(tensor_index, subgraph_index)
        if cycle is not None and subgraph_index == 0:
            cycle.read.add(tensor_index)
        return value

    def _is_result(self, index: int) -> bool:
        return self._setup.source.is_result(index)

    def tensor(self, tensor_index: int) -> Callable[[], Any]:
        """A function that gives a writable view of a tensor. While a view or a slice of one is alive, allocate_tensors,
        invoke and resize_tensor_input raise InvokeError; the function itself may be kept."""

        return typed_method(lambda: self._view(tensor_index))

    @exclusive
    def _view(self, tensor_index: int) -> Any:
        tensor_index, cycle = operator.index(tensor_index), None
        if tensor_index in self.model.main.inputs:
            self._turns.setting(tensor_index, self._engine.is_safe, view=True)
        else:
            cycle = self._turns.reading(tensor_index)
            if cycle is None and self._is_result(tensor_index):
                raise lost_results(tensor_index)
        view = self._engine.view(tensor_index)
        if cycle is not None:
            cycle.read.add(tensor_index)
        return view

    # --------------------------------------------------------------------------------------- memory on the GPU

    @exclusive
    def set_allow_buffer_handle_output(self, allow: bool) -> None:
        """Whether outputs that are bound to buffers on the GPU (GpuDelegate.bind_buffer_to_tensor) are left there by
        invoke(). False at first: then invoke() also copies them to the host. Otherwise get_tensor() and
        ensure_tensor_data_is_readable() copy them when they are asked for."""
        self._leaves_outputs = bool(allow)
        self._engine.leave_outputs(self._leaves_outputs)

    @exclusive
    def ensure_tensor_data_is_readable(self, tensor_index: int) -> None:
        """Copy a tensor's value to the host if it is only on the GPU. Raises TensorError (a ValueError)."""
        self._engine.ensure_readable(tensor_index)

    @exclusive
    def get_output_buffer(self, tensor_index: int) -> Any:
        """The buffer on the GPU that holds an output: the one that was bound to it, or else one of litegpu's, which is
        bound by this and which other libraries can read (`__dlpack__`, `__cuda_array_interface__`). The same one after
        every invoke(), with new content. Raises TensorError if the output is not computed on such a device."""
        return self._engine.output_buffer(tensor_index)

    # ------------------------------------------------------------------------------------------------ details

    def get_input_details(self) -> list[dict[str, Any]]:
        """One dictionary per input: name, index, shape, shape_signature, dtype, quantization and so on."""
        return self._engine.described(self._official.get_input_details(), 0)

    def get_output_details(self) -> list[dict[str, Any]]:
        """One dictionary per output, as for get_input_details()."""
        return self._engine.described(self._official.get_output_details(), 0)

    def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]:
        """One dictionary per tensor of a subgraph. Raises TensorError (a ValueError) if there is no such subgraph."""
        official = self._official
        try:
            details = official.get_tensor_details(subgraph_index)
        except ValueError as error:
            raise TensorError(str(error)) from None
        return self._engine.described(details, subgraph_index)

    def num_subgraphs(self) -> int:
        """How many subgraphs the model has; the main one is number 0."""
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
        """As it was given to the constructor."""
        return self._setup.options.compress_quantization_zero_points

    # -------------------------------------------------------------------------------------------- delegation

    @exclusive
    def modify_graph_with_delegate(self, delegate: Any) -> None:
        """Ask one more delegate, after the earlier ones, for what they left. Tensors that were allocated are allocated
        again, and the inputs keep shapes and values. Raises DelegateError under "strict", DelegateTypeError."""
        self._engine.ensure_safe()
        shapes = self._engine.input_shapes()
        values = self._input_values()
        before = self._setup
        if _is_official(delegate):
            options = replace(before.options, delegates=(*before.options.delegates, delegate))
            self._setup = replace(before, options=options)
        else:
            self._setup = replace(before, asked=[*before.asked, delegate])
        try:
            self._open()
        except DelegateError:
            self._setup = before
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
                self._engine.set(index, value)

    def _input_values(self) -> dict[int, Any] | None:
        """Copies of the inputs' values; None if they are not allocated."""
        try:
            return {i: self.get_tensor(i) for i in self._engine.input_shapes()}
        except TensorError:
            return None

    def _free_input(self, index: int) -> None:
        """Open the graph again with input `index`, which has a value in the file, as one that can be set."""
        shapes, values = self._engine.input_shapes(), self._input_values()
        if values is None:
            return  # not allocated: the official runtime says so
        content, data = without_value(self.model, index), self.model.main.tensors[index].data
        self._setup = replace(self._setup, source=ModelSource.changed(content))
        self._setup.freed[index] = np.array(data)
        self._open()
        fixed = {i for i in shapes if i in self._setup.freed or is_given(self.model, i)}
        self._restore(
            {i: s for i, s in shapes.items() if i not in fixed}, {i: v for i, v in values.items() if i not in fixed}
        )

    def delegation_report(self, signature_key: str | None = None) -> DelegationReport:
        """Which node runs where, and why those on the CPU do: of the main subgraph, or of that of a signature. Before
        allocate_tensors(), or the signature's first run, it is what is intended."""
        subgraph = 0 if signature_key is None else self._subgraph_of(signature_key)
        if subgraph != 0:
            found: DelegationReport = self._exclusively(lambda: self._entries.report(subgraph))
            return found
        if self.plan is not None:
            self._announcer.note(self.plan.notes)
        return self._announcer.report

    def _subgraph_of(self, signature_key: str) -> int:
        for signature in self.model.signatures:
            if signature.key == signature_key:
                return signature.subgraph
        raise TensorError(f'Invalid signature_key provided: "{signature_key}".')

    @exclusive
    def preview_delegation(self) -> DelegationReport:
        """What allocate_tensors() would delegate with the present input shapes, if every delegate can prepare what it
        accepts. Nothing is prepared, so no device is needed. Raises InvokeError if the shapes are refused."""
        self._setup.source.check_present()
        try:
            self._engine.preview()
        except InvokeError as error:
            raise self._with_open_sizes(error) from error.__cause__
        return self._announcer.report

    # --------------------------------------------------------------------------------------- for tools of all kinds

    @property
    def model(self) -> Model:
        """The model as it is run: composite operators replaced by what they stand for, if delegates are asked."""
        return self._setup.source.model

    @property
    def graph(self) -> Subgraph:
        """The main subgraph with the shapes that its tensors have, as far as allocate_tensors() has told, and with
        values that follow from shapes as constants; operators have the numbers of the reports."""
        return self._engine.graph

    @property
    def plan(self) -> Plan | None:
        """The prepared partitions, whose times it tells; None before allocate_tensors(), and if the official runtime
        runs the model as a whole."""
        return self._engine.plan if isinstance(self._engine, Divided) else None

    @property
    def official(self) -> Any:
        """The official interpreter that describes the tensors and, where `runs_whole`, runs the model."""
        return self._official

    @property
    def runs_whole(self) -> bool:
        """Whether the official runtime runs the model as a whole."""
        return not isinstance(self._engine, Divided)

    def set_aside(self, aside: bool) -> None:
        """Whether it rests, while another interpreter with the same delegates does the work: then what these are asked
        about is not about it."""
        for kernel in self._resting:
            kernel.rest(aside)

    def held_bytes(self, sessions: int = 1) -> int:
        """About as much memory as the model holds, where delegates run it in so many sessions."""
        copies = 1 if self.delegation_report().fully_delegated else 2  # the CPU has packed weights of its own
        return copies * len(self.model.content) + sum(kernel.held_bytes(sessions) for kernel in self._resting)

    @property
    def _resting(self) -> list[Rests]:
        return [kernel for kernel in (self.plan.kernels if self.plan is not None else ()) if isinstance(kernel, Rests)]

    def own_operators(self) -> contextlib.AbstractContextManager[None]:
        """Within it those of the user's operators are registered that were when the model was opened."""
        return self._setup.own_operators()

    def close(self) -> None:
        """Free what the delegates hold, once the call that another thread is in has ended; any later use raises
        InvokeError. May be called twice."""
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        """close(); without `wait`, what is under way is freed when it has ended."""
        self._background.close(wait=wait)
        if wait:
            wait_until_free(self._turns)
        engine, self._engine = self._engine, CLOSED
        engine.close(wait=wait)
        entries, self._entries = self._entries, CLOSED
        entries.close(wait=wait)

    def _forked(self) -> None:
        """In the child of a fork: what another thread was doing with the official interpreter never ends there."""
        self._background.forked()
        if self._turns.forked():
            self._entries.forked()
            if not self._engine.forked():
                self._engine.reopened()
                self.allocate_tensors()

    def __reduce__(self) -> Any:
        name = type(self).__name__
        raise TypeError(f"cannot pickle or copy a {name!r} object: open the model again where it is needed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(wait=kind is None or issubclass(kind, Exception))  # Ctrl-C does not wait

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if finalizing():  # what it would free may be gone
            return
        background = getattr(self, "_background", None)
        if background is not None:
            background.close(wait=False)
        self._engine.close(wait=False)
        self._entries.close(wait=False)

    # ------------------------------------------------------- officially private, and used by many all the same

    @property
    def _official(self) -> Any:
        official = self._engine.official
        check_mapped(self.model.content)  # where it reads names and signatures
        return official

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
        count = len(self.model.subgraphs)
        if not 0 <= subgraph_index < count:
            raise TensorError(f"subgraph_index is {subgraph_index}, but there are {count} subgraphs")
        official = self._official
        try:
            detail = official._get_tensor_details(tensor_index, subgraph_index)
        except ValueError as error:
            text = str(error)
            if "no shape" not in text and not self.runs_whole:
                text = f"Tensor with no shape found. {text}"  # what one behind the model's is to the official one
            raise TensorError(text) from None
        return self._engine.described([detail], subgraph_index)[0]

    def _get_op_details(self, op_index: int) -> dict[str, Any]:
        official = self._official
        try:
            detail: dict[str, Any] = official._get_op_details(op_index)
        except ValueError as error:
            raise TensorError(str(error)) from None
        return detail

    def _get_ops_details(self) -> list[dict[str, Any]]:
        details: list[dict[str, Any]] = self._official._get_ops_details()
        return details

    def _native_handle(self) -> int:
        return int(self._official._native_handle())

    def _safe_to_run(self) -> bool:
        return self._engine.is_safe()

    def _ensure_safe(self) -> None:
        self._engine.ensure_safe()


class InterpreterWithCustomOps(Interpreter):
    """Interpreter that also registers kernels for custom ops: names of C symbols, or functions that are called with the
    address of the op resolver, as in the official class."""

    def __init__(self, custom_op_registerers: Iterable[Any] | None = None, **kwargs: Any) -> None:
        self._custom_op_registerers = list(custom_op_registerers or ())
        super().__init__(**kwargs)


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
