"""Where calls of one model run, from any number of threads: in as many sessions at once as pay."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from litegpu import native
from litegpu.errors import InvokeError, LiteGpuError
from litegpu.model.ops import find
from litegpu.model.state import keeps_values
from litegpu.model.types import Model

log = logging.getLogger("litegpu")

if TYPE_CHECKING:
    from litegpu.gpu.delegate.kernel import GpuKernel
    from litegpu.gpu.program import Program
    from litegpu.interpreter import Interpreter

#: A few sessions of a GPU do what more would, but to wait for one's lock costs more than a session: the lock changes
#: hands, and Python's with it. So each thread comes to have its own, within this much memory for activations.
_MOST_ON_GPU, _LEAST_ON_GPU, _GPU_BYTES = 16, 4, 512 << 20
#: Interpreters have packed copies of the weights: within this much of those, but so many in any case.
_LEAST_ON_CPU, _CPU_BYTES = 8, 1 << 30
#: Operators that keep something, or draw random numbers: several interpreters would each have their own.
_STATEFUL = frozenset(
    {"VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT",
     "HASHTABLE_SIZE", "CALL_ONCE", "RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL"}
)  # fmt: skip


class Wanted(NamedTuple):
    """Some of a model's outputs, of which the array is given if it is `one`, else a dictionary."""

    names: tuple[str, ...]
    one: bool


class Slot(Protocol):
    """One inference at a time."""

    @property
    def usable(self) -> bool:
        """Whether it has not been closed, by who has used the interpreter itself."""

    @property
    def busy(self) -> bool:
        """Whether a call would have to wait for another one."""

    def infer(self, arrays: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        """These outputs of an inference on the inputs, by name, as arrays of the caller's."""

    def quick(self, arrays: Sequence[Any]) -> list[np.ndarray] | None:
        """infer() of all outputs, for what may be arrays of the inputs' shapes and types, in their order; None, with
        nothing done, if they are not, or the slot has no quicker way."""

    def close(self) -> None:
        """Free what the slot alone has."""


#: Told how many nanoseconds an inference took.
Note = Callable[[int], object]


class KernelSlot:
    """A kernel that runs the whole model. `inputs`, `outputs`: its number of each, by name. `dtypes`: of the inputs."""

    def __init__(
        self,
        kernel: GpuKernel,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        dtypes: Sequence[np.dtype[Any]],
        note: Note,
        own: bool,
    ) -> None:
        from litegpu.gpu.backends.check import NUMPY  # with the GPU graph, which has nothing to do without a GPU

        self._kernel, self._inputs, self._outputs, self._own = kernel, inputs, outputs, own
        places = tuple(inputs.values())
        self._places = tuple(outputs.values())
        self._plain = [NUMPY[kernel.program.inputs[i].dtype] for i in places] == list(dtypes)
        self._order = None if places == tuple(sorted(places)) else [places.index(i) for i in range(len(places))]
        self._note = note
        self._wanted: tuple[Sequence[str], tuple[int, ...]] = (), ()

    @property
    def usable(self) -> bool:
        return not self._kernel.closed

    @property
    def busy(self) -> bool:
        return self._kernel.busy

    def infer(self, arrays: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        names, places = self._wanted
        if names is not outputs:
            places = tuple(self._outputs[name] for name in outputs)
            self._wanted = outputs, places  # the same tuple again: the session need not be told
        begin = time.perf_counter_ns()
        found = self._kernel.call({place: arrays[name] for name, place in self._inputs.items()}, places)
        self._note(time.perf_counter_ns() - begin)
        return found

    def quick(self, arrays: Sequence[Any]) -> list[np.ndarray] | None:
        if not self._plain:
            return None
        if self._order is not None and len(arrays) == len(self._order):
            arrays = [arrays[i] for i in self._order]
        begin = time.perf_counter_ns()
        found = self._kernel.call_plain(arrays, self._places)
        if found is not None:
            self._note(time.perf_counter_ns() - begin)
        return found

    def close(self) -> None:
        if self._own:
            self._kernel.close()


class InterpreterSlot:
    """An interpreter, for models of which the CPU runs a part. `inputs`, `outputs`: the tensors' indices, by name."""

    def __init__(
        self, interpreter: Interpreter, inputs: Mapping[str, int], outputs: Mapping[str, int], own: bool
    ) -> None:
        self._interpreter, self._inputs, self._outputs, self._own = interpreter, inputs, outputs, own
        self._lock = threading.Lock()

    usable = True

    @property
    def busy(self) -> bool:
        return self._lock.locked()

    def quick(self, arrays: Sequence[Any]) -> list[np.ndarray] | None:
        return None

    def infer(self, arrays: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray]:
        with self._lock:
            for name, array in arrays.items():
                self._interpreter.set_tensor(self._inputs[name], array)
            self._interpreter.invoke()
            return [self._interpreter.get_tensor(self._outputs[name]) for name in outputs]

    def close(self) -> None:
        if self._own:
            self._interpreter.close()


class Slots:
    """The slots for inputs of some shapes. `another` makes one more; there are at most `most`. `owner` has what is in
    the first one, and frees it when nobody has it any more: not while a call is inside, whatever an interrupt has
    lost."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        first: Slot,
        another: Callable[[], Slot],
        most: int,
        owner: object = None,
    ) -> None:
        self.shapes = shapes
        self._owner = owner
        self._slots = [first]
        self._another = another
        self._most = most
        self._inside: dict[object, int] = {}  # calls that are under way, and their threads
        self._ended = False
        self._growing = threading.Lock()
        self._last: dict[int, Slot] = {}  # that a thread was in, where there are several, by its number
        self._turn = 0

    def __len__(self) -> int:
        return len(self._slots)

    def take(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether the arrays are of these shapes, and there is what can take them."""
        return self.usable and all(arrays[name].shape == shape for name, shape in self.shapes.items())

    def infer(self, arrays: Mapping[str, np.ndarray], outputs: Sequence[str]) -> list[np.ndarray] | None:
        """See Slot.infer(); None if the slots have ended."""
        token = object()
        try:
            slot = self._entered(token)
            return None if slot is None else slot.infer(arrays, outputs)
        finally:
            self._inside.pop(token, None)

    def quick(self, arrays: Sequence[Any]) -> list[np.ndarray] | None:
        """See Slot.quick(); None if the slots have ended as well."""
        token = object()
        try:
            slot = self._entered(token, arrays)
            return None if slot is None else slot.quick(arrays)
        finally:
            self._inside.pop(token, None)

    def _entered(self, token: object, arrays: Sequence[Any] | None = None) -> Slot | None:
        """The slot for a call that is inside from now on; None if the slots have ended, or there is none at once and
        `arrays`, in the inputs' order, are of other shapes, which no other slot is to be opened for."""
        thread = self._inside[token] = threading.get_ident()
        if self._ended:
            return None
        slot = self._last.get(thread, self._slots[0])
        if slot.busy or len(self._inside) > len(self._slots):
            if arrays is not None and [getattr(one, "shape", None) for one in arrays] != [*self.shapes.values()]:
                return None
            slot = self._last[thread] = self._chosen(slot)
        return slot

    @property
    def usable(self) -> bool:
        """Whether there is what can take calls."""
        return self._slots[0].usable

    @property
    def busy(self) -> bool:
        """Whether any call is inside."""
        return bool(self._inside)

    @property
    def has_me(self) -> bool:
        """Whether this thread is inside: something has interrupted its call that waits for the end of it in vain."""
        return threading.get_ident() in self._inside.values()

    def refuse(self) -> None:
        """Let nobody in any more."""
        self._ended = True

    def end(self) -> None:
        """Return when nobody is inside any more, and nobody gets in. The first slot stays, the others are closed."""
        self.refuse()
        while self._inside:
            time.sleep(1e-4)
        self._last.clear()
        while len(self._slots) > 1:
            self._slots[-1].close()
            self._slots.pop()

    def _chosen(self, last: Slot) -> Slot:
        """Where there are more calls than slots one more, else one that is free, the `last` one if that is, or the next
        one in turn. Threads that wait for a slot are not counted by slots that are busy: one of those who come back
        always finds the one that it has just let go of, while others are woken for it in vain."""
        if len(self._inside) > len(self._slots) < self._most and self._growing.acquire(blocking=False):
            try:
                self._slots.append(self._another())
                return self._slots[-1]
            except LiteGpuError as error:  # no memory for more
                log.debug("Not opened once more: %s", error)
                self._most = len(self._slots)
            finally:
                self._growing.release()
        for slot in (last, *self._slots):
            if not slot.busy:
                return slot
        if list(self._inside.values()).count(threading.get_ident()) > 1:  # its own call may be what is waited for
            raise called_within()
        self._turn += 1
        return self._slots[self._turn % len(self._slots)]


def called_within() -> InvokeError:
    """What a call gets that would wait for one underneath it."""
    return InvokeError(
        "This thread is in a call of the model already, which a signal handler or a finalizer has interrupted, and "
        "this one would have to wait for its end: have the handler set a flag, or give it a model of its own"
    )


def most_on_gpu(program: Program) -> int:
    """How many sessions of a program pay on a GPU."""
    if program.variables:
        return 1
    return max(_LEAST_ON_GPU, min(_MOST_ON_GPU, within_memory(program.arena_size)))


def within_memory(nbytes: int) -> int:
    """How many of so many bytes each there may be; one in any case."""
    return max(1, _GPU_BYTES // max(nbytes, 1))


def may_be_several(model: Model) -> bool:
    """Whether several interpreters of a model give what one does: it keeps nothing from one inference to the next."""
    operators = [operator for subgraph in model.subgraphs for operator in subgraph.operators]
    if any(op.name in _STATEFUL or find(op) is None for op in operators):  # one of the user's may keep something
        return False
    return not keeps_values(model)


def most_on_cpu(model: Model, num_threads: int | None) -> int:
    """How many interpreters of a model pay on this machine's processors."""
    if not may_be_several(model):
        return 1
    room = max(_LEAST_ON_CPU, _CPU_BYTES // max(len(model.content), 1))
    return max(1, min(room, native.processors() // (num_threads or 1)))
