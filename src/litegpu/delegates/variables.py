"""What an interpreter's resource variables hold between inferences, whichever of its signatures runs."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from litegpu.chatter import quiet
from litegpu.delegates.cpu import OfficialOptions
from litegpu.errors import InvokeError
from litegpu.model.cut import cut
from litegpu.model.reader import DTYPES
from litegpu.model.state import Initializer, Key, StatefulModel
from litegpu.model.types import Tensor

log = logging.getLogger("litegpu")


class Variables:
    """Zero at first. What CALL_ONCE assigns is assigned before the first inference of a subgraph that has it;
    reset_all_variables() of the official runtime leaves them as they are, and so does this."""

    def __init__(self) -> None:
        self._values: dict[Key, np.ndarray] = {}
        self._initialized: set[int] = set()

    def initialize(self, stateful: StatefulModel, options: OfficialOptions) -> None:
        """Run what is to be run once. Raises InvokeError with the runtime's text."""
        for one in stateful.initializers:
            if one.called not in self._initialized:
                self._values.update(_assigned(stateful, one, options))
                self._initialized.add(one.called)

    def value(self, key: Key, tensor: Tensor) -> np.ndarray:
        """The present value, as `tensor` has it. Raises InvokeError if it was given another shape or type."""
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = np.zeros(tensor.shape, DTYPES[tensor.type])
        if found.shape != tensor.shape or found.dtype != DTYPES[tensor.type]:
            raise InvokeError(
                f"the variable '{key[1]}' holds {found.dtype} {list(found.shape)}, and is read as {tensor.type.name} "
                f"{list(tensor.shape)}"
            )
        return found

    def assign(self, key: Key, value: np.ndarray) -> None:
        """Keep a copy."""
        self._values[key] = np.array(value)


def _assigned(stateful: StatefulModel, one: Initializer, options: OfficialOptions) -> dict[Key, np.ndarray]:
    graph = stateful.model.subgraphs[one.subgraph]
    content = cut(stateful.model, one.subgraph, [o.index for o in graph.operators], graph.inputs, graph.outputs)
    try:
        interpreter: Any = options.plain().create(content=content)
        with quiet():
            interpreter.allocate_tensors()
            interpreter.invoke()
    except (RuntimeError, ValueError) as error:
        raise InvokeError(f"subgraph {one.called}, which initializes variables, fails: {error}") from None
    details = interpreter.get_output_details()
    return {key: np.array(interpreter.get_tensor(d["index"])) for key, d in zip(one.keys, details, strict=True)}
