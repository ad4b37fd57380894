"""Runs a model by one of its signatures, with keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from litegpu.boundary import typed_errors
from litegpu.chatter import quiet
from litegpu.delegates.demand import check_demand, check_input_shape
from litegpu.errors import OptionError, TensorError

if TYPE_CHECKING:
    from litegpu.interpreter import Interpreter


@typed_errors
class SignatureRunner:
    """Runs one signature of a model: called with keyword arrays it gives {output name: array}. Every call resizes the
    inputs to what it is given."""

    def __init__(self, interpreter: Interpreter | None = None, signature_key: str | None = None) -> None:
        if interpreter is None:
            raise OptionError("None interpreter provided.")
        if not signature_key:
            raise OptionError("None signature_key provided.")
        signatures = interpreter._get_full_signature_list()
        if signature_key not in signatures:
            raise TensorError(f'Invalid signature_key provided: "{signature_key}".')
        self._interpreter = interpreter
        self._signature_key = signature_key
        self._signature_def: dict[str, dict[str, int]] = signatures[signature_key]
        self._inputs: dict[str, int] = self._signature_def["inputs"]
        self._outputs = self._signature_def["outputs"].items()  # as the official class keeps them
        self._subgraph_index = next(s.subgraph for s in interpreter._model.signatures if s.key == signature_key)
        self._official: tuple[Any, Any] | None = None

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        """Raises TensorError (a ValueError) for wrong names, counts and types, InvokeError (a RuntimeError)."""
        if len(kwargs) != len(self._inputs):
            raise TensorError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(self._inputs)} vs provided {len(kwargs)}"
            )
        for name in kwargs:
            if name not in self._inputs:
                raise TensorError(f"Invalid Input name ({name}) for SignatureDef")
        return cast("dict[str, Any]", self._interpreter._exclusively(lambda: self._run(kwargs)))

    def _run(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All of a cycle, in which no other thread uses the interpreter."""
        interpreter = self._interpreter
        cycle = interpreter._turns.mine
        interpreter._turns.beginning(cycle, checked=False)
        cycle.sets.clear()
        if interpreter._whole:
            return self._run_whole(kwargs)
        for name, value in kwargs.items():
            interpreter._resize(self._inputs[name], value.shape)
        if interpreter._plan is None:
            interpreter.allocate_tensors()
            if interpreter._whole:
                return self._run_whole(kwargs)
        plan = interpreter._plan
        assert plan is not None
        for name, value in kwargs.items():
            interpreter.set_tensor(self._inputs[name], value)
        plan.invoke()
        cycle.sets.clear()
        return {name: interpreter.get_tensor(index) for name, index in self._outputs}

    def _run_whole(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        interpreter = self._interpreter
        if self._official is None or self._official[0] is not interpreter._official:
            whole = interpreter._official
            self._official = whole, whole.get_signature_runner(self._signature_key)
        native = {
            name: value.astype(value.dtype.newbyteorder("="))
            if type(value) is np.ndarray and not value.dtype.isnative
            else value
            for name, value in kwargs.items()
        }
        shapes = {self._inputs[name]: np.shape(value) for name, value in native.items()}
        for shape in shapes.values():
            check_input_shape(shape)
        check_demand(interpreter._model.subgraphs[self._subgraph], shapes)
        interpreter._refuse_aborting()
        try:
            with quiet():
                results: dict[str, Any] = self._official[1](**native)
        except (RuntimeError, ValueError) as error:
            raise interpreter._allocation_error(error) from None
        return results

    def get_input_details(self) -> dict[str, Any]:
        """Input name -> detail dictionary."""
        return self._details(self._inputs)

    def get_output_details(self) -> dict[str, Any]:
        """Output name -> detail dictionary."""
        return self._details(dict(self._outputs))

    def _details(self, names: Mapping[str, int]) -> dict[str, Any]:
        return {name: self._interpreter._get_tensor_details(index, self._subgraph) for name, index in names.items()}

    @property
    def _subgraph(self) -> int:
        return next(s.subgraph for s in self._interpreter._model.signatures if s.key == self._signature_key)
