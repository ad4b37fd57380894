"""The engine that runs a model as a whole on the CPU, in one official interpreter with the caller's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from litegpu.background import Patient
from litegpu.chatter import quiet
from litegpu.delegates import cpu
from litegpu.delegates.aborts import refuse_aborting
from litegpu.delegates.demand import check_demand, check_input_shape
from litegpu.delegates.values import ValueChecks
from litegpu.engines.engine import Engine, Setup, Shapes, resized
from litegpu.errors import InvokeError, TensorError
from litegpu.model.ops.operands import OBJECTS
from litegpu.model.state import keeps_values
from litegpu.model.types import Subgraph, TensorType


class Undecided(Protocol):
    """An engine whose delegates could take nothing in the shapes there were."""

    @property
    def graph(self) -> Subgraph: ...

    def in_shapes(self, shapes: Shapes) -> Engine:
        """It, for inputs of other shapes."""


class Whole(Engine):
    """`undecided`: what to go back to when a shape changes."""

    def __init__(self, setup: Setup, shapes: Shapes, undecided: Undecided | None = None) -> None:
        super().__init__(setup)
        self._undecided = undecided
        self._patient = Patient()
        self._value_checks: ValueChecks | None = None
        self._open(shapes)

    def _open(self, shapes: Shapes) -> None:
        self._options = self.setup.options.fitting(shapes.values(), self.setup.source.operators)
        self._official = resized(self.setup, self._options, shapes)
        self._reported = ""
        self._forget()

    def _forget(self) -> None:
        """New memory: strings have to be set again, and nothing is computed."""
        self._missing_strings = self.setup.source.string_inputs()
        self._has_run = self._is_resized = False

    @property
    def official(self) -> Any:
        return self._official

    @property
    def graph(self) -> Subgraph:
        return self.setup.source.model.main if self._undecided is None else self._undecided.graph

    # ------------------------------------------------------------------------------------------------ running

    def allocate(self) -> Engine:
        self.renew()
        shapes = self.input_shapes()
        fitting = self.setup.options.fitting(shapes.values(), self.setup.source.operators)
        if fitting.op_resolver_type != self._options.op_resolver_type:
            self._open(shapes)
        self._refuse_aborting()
        try:
            with quiet():
                self._official.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise self.refused_allocation(error) from None
        if self._is_resized:
            self._forget()
        return self

    def invoke(self) -> None:
        self.renew()
        if missing := self._missing_strings & self.setup.source.read:
            raise InvokeError(f"Inputs {sorted(missing)} are strings, which have to be set before invoke()")
        self._check_values()
        try:
            self._patient.call(self._official.invoke)
        except (RuntimeError, ValueError) as error:
            raise self.translated(error) from None
        self._has_run = True

    waits = True

    def settle(self) -> None:
        self._patient.settle()

    def reset_variables(self) -> None:
        try:
            self._official.reset_all_variables()
        except (RuntimeError, ValueError) as error:
            raise self.translated(error) from None

    def run_signature(
        self, runner: Any, subgraph: int, inputs: Mapping[str, int], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """One inference of a signature, whose inputs (name -> tensor of `subgraph`) are resized to what they are given.
        `runner`: the official one. Raises InvokeError or TensorError."""
        given = {name: native(value) for name, value in values.items()}
        shapes = {inputs[name]: np.shape(value) for name, value in given.items()}
        for shape in shapes.values():
            check_input_shape(shape)
        check_demand(self.setup.source.model.subgraphs[subgraph], shapes)
        self._refuse_aborting()
        try:
            with quiet():
                results: dict[str, Any] = runner(**given)
        except (RuntimeError, ValueError) as error:
            raise self.refused_allocation(error) from None
        return results

    # ------------------------------------------------------------------------------------------------ tensors

    def set(self, index: int, value: Any) -> None:
        self._set_official(index, value)
        self._missing_strings.discard(index)

    def get(self, index: int, subgraph_index: int) -> Any:
        self._require_readable(index, subgraph_index)
        return self._get_official(index, subgraph_index)

    def view(self, index: int) -> Any:
        return self._view_official(index)

    def resize(self, index: int, shape: Any, strict: bool) -> Engine:
        if self._undecided is None:
            self._resize_official(index, shape, strict)
            self._is_resized = True
            return self
        before = self.input_shapes()
        self._resize_official(index, shape, strict)
        self._is_resized = True
        shapes = self.input_shapes()
        changed = shapes != before or index not in before
        return self._undecided.in_shapes(shapes) if changed else self  # delegates may take it in its new shape

    def reopened(self) -> None:
        self._open(self.input_shapes())

    def renew(self) -> None:
        """Go on with another official interpreter, of the same inputs, in a child of a fork that lacks this one's
        threads; called before what needs them, so that results from before can be read. Raises ForkError."""
        if not cpu.lacks_threads(self._official):
            return
        if keeps_values(self.setup.source.model):
            cpu.refuse_to_renew()
        before, missing = self._official, self._missing_strings
        has_values = self._is_allocated() and not self._is_resized
        self._open(self.input_shapes())
        if not has_values:
            return
        with quiet():
            self._official.allocate_tensors()
        for index in self.input_shapes():
            if index not in missing and not self.is_constant(index):
                self._official.set_tensor(index, before.get_tensor(index))
        self._missing_strings = missing

    def described(self, details: list[dict[str, Any]], subgraph_index: int) -> list[dict[str, Any]]:
        return details

    # --------------------------------------------------------------------------- what the runtime would crash on

    def _refuse_aborting(self) -> None:
        for subgraph in self.setup.source.model.subgraphs:
            refuse_aborting(subgraph.operators, subgraph.tensors, subgraph.outputs, self._options.op_resolver_type)

    def _check_values(self) -> None:
        """Raises InvokeError if inputs have values that the official runtime would crash on."""
        if self._value_checks is None:
            main = self.setup.source.model.main
            self._value_checks = ValueChecks(main, main.inputs, main.operators)
        if self._value_checks.inputs and self._is_allocated():
            self._value_checks.check(self._official.get_tensor, self.input_shapes())

    def _is_allocated(self) -> bool:
        """Whether the official interpreter has memory for its inputs, of those that it can give a view of."""
        main = self.setup.source.model.main
        try:
            for index in main.inputs:
                if not 0 <= index < len(main.tensors) or main.tensors[index].type not in OBJECTS:
                    self._official.tensor(index)()
        except ValueError:
            return False
        return True

    def _require_readable(self, index: int, subgraph_index: int) -> None:
        """Raises TensorError for strings that are not there yet: the official runtime would follow a null pointer."""
        tensor = self.setup.source.tensor(index, subgraph_index)
        if tensor is None or tensor.type is not TensorType.STRING:
            return
        inputs = self.setup.source.model.main.inputs
        given = subgraph_index == 0 and index in inputs and index not in self._missing_strings
        made = subgraph_index == 0 and self._has_run and index not in inputs
        if not (tensor.is_constant or given or made):
            raise TensorError(f"Tensor {index} '{tensor.name}' holds no strings yet; set the inputs and invoke() first")


def native(value: Any) -> Any:
    """An array in the byte order of this machine; anything else as it is."""
    if type(value) is np.ndarray and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    return value
