"""Runs a model by one of its signatures, with keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from litegpu.arguments import chosen_outputs
from litegpu.boundary import typed_errors
from litegpu.delegates.plan import Plan
from litegpu.engines.engine import Engine, Setup
from litegpu.engines.entries import Entries
from litegpu.engines.whole import Whole, native
from litegpu.errors import OptionError, TensorError
from litegpu.model.types import Model
from litegpu.turns import Cycle, Turns


class Runs(Protocol):
    """What a runner uses of an interpreter."""

    _engine: Engine
    _entries: Entries
    _setup: Setup
    _turns: Turns

    @property
    def model(self) -> Model: ...

    @property
    def plan(self) -> Plan | None: ...

    @property
    def runs_whole(self) -> bool: ...

    def allocate_tensors(self) -> None: ...

    def set_tensor(self, tensor_index: int, value: Any) -> None: ...

    def get_tensor(self, tensor_index: int) -> Any: ...

    def _resize(self, index: int, shape: Any) -> None: ...

    def _exclusively(self, work: Callable[[], Any]) -> Any: ...

    def _timed(self, work: Callable[[], Any]) -> Any: ...

    def _get_full_signature_list(self) -> dict[str, Any]: ...

    def _get_tensor_details(self, tensor_index: int, subgraph_index: int) -> dict[str, Any]: ...


@typed_errors
class SignatureRunner:
    """Runs one signature of a model: called with keyword arrays it gives {output name: array}. Every call resizes the
    inputs to what it is given. `outputs=["scores"]` names those that are wanted (unless an input has that name): the
    others are not copied."""

    def __init__(self, interpreter: Runs | None = None, signature_key: str | None = None) -> None:
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
        self._subgraph_index = next(s.subgraph for s in interpreter.model.signatures if s.key == signature_key)

        self._official: tuple[Any, Any] | None = None  # an interpreter and its runner

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        """Raises TensorError (a ValueError) for wrong names, counts and types, InvokeError (a RuntimeError)."""
        wanted = dict(self._outputs)
        if "outputs" in kwargs and "outputs" not in self._inputs:
            wanted = self._wanted(kwargs.pop("outputs"))
        if len(kwargs) != len(self._inputs):
            raise TensorError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(self._inputs)} vs provided {len(kwargs)}"
            )
        for name in kwargs:
            if name not in self._inputs:
                raise TensorError(f"Invalid Input name ({name}) for SignatureDef")
        return cast("dict[str, Any]", self._interpreter._exclusively(lambda: self._run(kwargs, wanted)))

    def _wanted(self, outputs: str | Iterable[str] | None) -> dict[str, int]:
        known = dict(self._outputs)
        return {name: known[name] for name in chosen_outputs(outputs, known)}

    def _run(self, kwargs: Mapping[str, Any], wanted: Mapping[str, int]) -> dict[str, Any]:
        """All of a cycle, in which no other thread uses the interpreter."""
        interpreter = self._interpreter
        cycle = interpreter._turns.mine
        interpreter._turns.beginning(cycle, checked=False)
        cycle.sets.clear()
        if self._subgraph_index != 0 and interpreter._setup.asked:
            return self._run_entry(kwargs, wanted, cycle)
        if not interpreter.runs_whole:
            for name, value in kwargs.items():
                interpreter._resize(self._inputs[name], value.shape)
            if interpreter.plan is None:
                interpreter.allocate_tensors()
        engine = interpreter._engine
        if isinstance(engine, Whole):
            return self._whole(engine, kwargs, wanted)
        for name, value in kwargs.items():
            interpreter.set_tensor(self._inputs[name], value)
        interpreter._timed(engine.invoke)
        cycle.sets.clear()
        return {name: interpreter.get_tensor(index) for name, index in wanted.items()}

    def _run_entry(self, kwargs: Mapping[str, Any], wanted: Mapping[str, int], cycle: Cycle) -> dict[str, Any]:
        """The same of a subgraph that is not the main one."""
        interpreter, subgraph = self._interpreter, self._subgraph_index
        given = {name: native(value) for name, value in kwargs.items()}
        values = {self._inputs[name]: value for name, value in given.items()}
        engine = interpreter._entries.engine(subgraph, values, interpreter._engine)
        if isinstance(engine, Whole):
            return self._whole(engine, given, wanted)
        for index, value in values.items():
            engine.set(index, value)
        interpreter._timed(engine.invoke)
        cycle.sets.clear()
        return {name: engine.get(index, subgraph) for name, index in wanted.items()}

    def _whole(self, engine: Whole, given: Mapping[str, Any], wanted: Mapping[str, int]) -> dict[str, Any]:
        """The same by the official runtime."""
        runner = self._runner(engine)
        found: dict[str, Any] = self._interpreter._timed(
            lambda: engine.run_signature(runner, self._subgraph_index, self._inputs, given)
        )
        return {name: found[name] for name in wanted}

    def _runner(self, engine: Whole) -> Any:
        """The official runner, which is kept here: while one is alive, the official interpreter counts as in use."""
        engine.renew()
        if self._official is None or self._official[0] is not engine.official:
            self._official = engine.official, engine.official.get_signature_runner(self._signature_key)
        return self._official[1]

    def get_input_details(self) -> dict[str, Any]:
        """Input name -> detail dictionary."""
        return self._details(self._inputs)

    def get_output_details(self) -> dict[str, Any]:
        """Output name -> detail dictionary."""
        return self._details(dict(self._outputs))

    def _details(self, names: Mapping[str, int]) -> dict[str, Any]:
        found = {
            name: self._interpreter._get_tensor_details(index, self._subgraph_index) for name, index in names.items()
        }
        divided = self._interpreter._entries.existing(self._subgraph_index)
        if divided is not None and divided.plan is not None:
            divided.described(list(found.values()), self._subgraph_index)
        return found
