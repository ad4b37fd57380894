"""What an interpreter's resource variables hold between inferences, whichever of its signatures runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.background import Patient
from litegpu.chatter import quiet
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.protocol import SharesMemory
from litegpu.errors import InvokeError, LiteGpuError
from litegpu.model.cut import cut
from litegpu.model.reader import DTYPES
from litegpu.model.state import Initializer, Key, StatefulModel, StateTensor
from litegpu.model.types import Tensor

log = logging.getLogger("litegpu")


@dataclass(frozen=True, eq=False)
class DeviceValue:
    """A value in memory of a device, in some form (see protocol.SharesMemory). `owner`: whose last inference computed
    it; `fetch` gives it to the host, and `settle` waits until it is there. Both raise DeviceError."""

    memory: Any
    form: object
    device: object
    owner: object
    fetch: Callable[[], np.ndarray]
    settle: Callable[[], None]


class Variables:
    """Zero at first. What CALL_ONCE assigns is assigned before the first inference of a subgraph that has it;
    reset_all_variables() of the official runtime leaves them as they are, and so does this."""

    def __init__(self) -> None:
        self._values: dict[Key, np.ndarray | DeviceValue] = {}
        self._initialized: set[int] = set()

    def initialize(self, stateful: StatefulModel, options: OfficialOptions) -> None:
        """Run what is to be run once. Raises InvokeError with the runtime's text."""
        for one in stateful.initializers:
            if one.called not in self._initialized:
                self._values.update(_assigned(stateful, one, options))
                self._initialized.add(one.called)

    def value(self, key: Key, tensor: Tensor) -> np.ndarray:
        """The present value, as `tensor` has it. Raises InvokeError if it was given another shape or type."""
        self.bring(key)
        found = self._values.get(key)
        if not isinstance(found, np.ndarray):
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

    def on_device(self, key: Key, device: object = None) -> DeviceValue | None:
        """The present value, if it is on this device, or on any."""
        found = self._values.get(key)
        return found if isinstance(found, DeviceValue) and device in (None, found.device) else None

    def leave(self, key: Key, value: DeviceValue) -> None:
        """The present value is there."""
        self._values[key] = value

    def bring(self, key: Key) -> None:
        """Have a value on the host."""
        found = self._values.get(key)
        if isinstance(found, DeviceValue):
            self._values[key] = found.fetch()

    def bring_from(self, owner: object) -> None:
        """The same for what `owner` has computed, which is about to go; what a lost device has is zero from then on."""
        for key, value in list(self._values.items()):
            if isinstance(value, DeviceValue) and value.owner is owner:
                try:
                    self.bring(key)
                except LiteGpuError as error:
                    log.debug("The variable '%s' is lost: %s", key[1], error)
                    del self._values[key]


@dataclass(frozen=True, eq=False)
class Home:
    """Where a variable is on a device: the inputs that it is, and the output, by kernels and their numbers for them."""

    device: object
    inputs: tuple[tuple[SharesMemory, int], ...]
    output: tuple[SharesMemory, int] | None

    def reads(self, there: DeviceValue, before: Tensor) -> bool:
        """Whether the kernels read values of this form: numbers of 64 bits are one word or two."""
        return all(kernel.memory_form("input", i, before) == there.form for kernel, i in self.inputs)

    def take(self, there: DeviceValue | None, before: Tensor, after: Tensor) -> None:
        """Let the kernels use the memory in which the value is; without one the inputs come from the host. What they
        give in another form goes to memory of their own."""
        for kernel, i in self.inputs:
            kernel.share("input", i, before, None if there is None else there.memory)
        if self.output is not None and there is not None:
            kernel, i = self.output
            if kernel.memory_form("output", i, after) == there.form:
                kernel.share("output", i, after, there.memory)


def home(state: StateTensor, uses: Sequence[tuple[object, Sequence[int], Sequence[int]]]) -> Home | None:
    """Where a variable stays on a device, if all that use it are there and nothing else needs it. `uses`: kernels with
    their inputs and outputs."""
    kernels: list[SharesMemory] = []
    inputs, output = [], None
    for kernel, read, made in uses:
        if state.after in read:
            return None
        if state.before not in read and state.after not in made:
            continue
        if not isinstance(kernel, SharesMemory) or kernel.memory_of is None:
            return None
        kernels.append(kernel)
        if state.before in read:
            inputs.append((kernel, read.index(state.before)))
        if state.after in made:
            output = kernel, made.index(state.after)
    if not kernels or any(kernel.memory_of is not kernels[0].memory_of for kernel in kernels):
        return None
    if state.after >= 0 and output is None:
        return None
    return Home(kernels[0].memory_of, tuple(inputs), output)


def _assigned(stateful: StatefulModel, one: Initializer, options: OfficialOptions) -> dict[Key, np.ndarray]:
    graph = stateful.model.subgraphs[one.subgraph]
    content = cut(stateful.model, one.subgraph, [o.index for o in graph.operators], graph.inputs, graph.outputs)
    try:
        interpreter: Any = options.plain().create(content=content)
        with quiet():
            interpreter.allocate_tensors()
        Patient().call(interpreter.invoke)
    except (RuntimeError, ValueError) as error:
        raise InvokeError(f"subgraph {one.called}, which initializes variables, fails: {error}") from None
    details = interpreter.get_output_details()
    return {key: np.array(interpreter.get_tensor(d["index"])) for key, d in zip(one.keys, details, strict=True)}
