"""A partition on a device: arrays in, arrays out, waiting or not."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from litegpu import debug, fork
from litegpu.errors import DeviceError, InvokeError, LiteGpuError
from litegpu.gpu.backends.abilities import (
    ArrayBinder,
    Binder,
    Caller,
    InputKeeper,
    InputLender,
    InputRounder,
    NativeRun,
    NativeRunner,
    PlainCaller,
    PlainOutputs,
    ResultGiver,
)
from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.backends.contract import Device, KernelTime, Session
from litegpu.gpu.backends.keep_awake import KeepAwake
from litegpu.gpu.delegate import binding
from litegpu.gpu.delegate.options import WaitType
from litegpu.gpu.delegate.second_attempt import SecondAttempt, all_finite
from litegpu.gpu.graph.parts import as_parts, as_typed, has_parts, of_parts
from litegpu.gpu.program import Port, Program
from litegpu.model.reader import DTYPES
from litegpu.model.types import Tensor, TensorType


class GpuKernel:
    """A partition on a device. `types` and `shapes` are those of the outputs. With WaitType.DO_NOT_WAIT the arrays that
    invoke() gives are filled by finish(), which the next invoke() calls as well."""

    uses_gpu = True

    def __init__(
        self,
        device: Device,
        program: Program,
        types: Sequence[TensorType],
        shapes: Sequence[tuple[int, ...]],
        input_shapes: Sequence[tuple[int, ...]] = (),
        *,
        wait: WaitType = WaitType.PASSIVE,
        validation: bool = False,
        attempt: SecondAttempt | None = None,
        why: str = "",
    ) -> None:
        self.device = device
        self.program = program
        self.types, self.shapes, self.input_shapes = types, shapes, input_shapes
        self.wait, self.validation = wait, validation
        self._lock: threading.Lock | fork.Refusal = threading.Lock()
        fork.follow(self)
        self._lent: dict[int, np.ndarray] = {}  # inputs in the session's own memory
        self._taken: dict[int, np.ndarray] = {}  # inputs that the session has already, and the arrays that do not
        self._pending = False
        self._attempt = attempt  # None for programs in float32
        self._why = why  # it has the arithmetic that it has, for the report
        self._kept: dict[int, np.ndarray] = {}  # the inputs of an inference that is not waited for
        self._given: Sequence[np.ndarray] | None = None  # those of one that is
        self._twin: Session | None = None  # a session in float32, whose results were no better so far
        self._says_timings = debug.level() >= debug.TIMINGS  # asked here, as it takes a microsecond
        self.closed = False
        self.resting = False
        self.bound: dict[tuple[str, int], Any] = {}  # the user's buffers, by "input" or "output" and place
        self.adapters: dict[Any, Program] = {}  # compiled for buffers in other formats
        self._left: frozenset[int] = frozenset()  # outputs that stay on the GPU if they are bound
        self._deferred: frozenset[int] = frozenset()  # outputs that are read when they are asked for
        self._ordered: Sequence[int] | None = None  # what the session was told to bring
        self._asked: tuple[int, ...] = ()  # outputs that are handed out after each inference, as it seems ...
        self._ready: dict[int, np.ndarray] = {}  # ... and those that lie ready for that
        self._stale: set[int] = set()  # those whose arrays are older than the last inference
        ports = program.outputs
        self._parted = [_parts_of(p, s) for p, s in zip(program.inputs, input_shapes, strict=False)]
        self._staged = [np.empty((*s, *_parts_of(p, s)), NUMPY[p.dtype]) for s, p in zip(shapes, ports, strict=True)]
        self._results = [_result(a, s, DTYPES[t]) for a, s, t in zip(self._staged, shapes, types, strict=True)]
        self._awake = KeepAwake(device.nudge) if wait is WaitType.AGGRESSIVE else None
        self._take(self._open(program))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the report is to say about the partition."""
        about = (self._why,) if self._why else ()
        if self._attempt is not None and self._attempt.settled:
            return (*about, "a partition runs in float32, as its results in float16 were not finite")
        return about + tuple(f"'{name}' stays in float32: {reason}" for name, reason in self.program.in_float32)

    def another(self, *, waits: bool = False) -> GpuKernel:
        """The same partition with memory of its own; `waits`: as this one does, else not at all."""
        awake = WaitType.ACTIVE if self.wait is WaitType.AGGRESSIVE else self.wait
        return GpuKernel(
            self.device, self.program, self.types, self.shapes, self.input_shapes,
            wait=awake if waits else WaitType.DO_NOT_WAIT, validation=self.validation, attempt=self._attempt,
            why=self._why,
        )  # fmt: skip

    @property
    def busy(self) -> bool:
        """Whether a call would have to wait for another thread's."""
        return self._lock.locked()

    @property
    def watched(self) -> bool:
        """Whether results that are not finite are looked at once more."""
        return self._attempt is not None and self._attempt.watching

    @property
    def rounded_inputs(self) -> Collection[int]:
        """See abilities.NativeRunner."""
        return self.session.rounded_inputs if isinstance(self.session, NativeRunner) else ()

    def native_run(self, types: Sequence[np.dtype[Any]], halves: Collection[int] = ()) -> NativeRun | None:
        """See abilities.NativeRunner, where inputs of these types and the outputs cross the border as they are, and
        nothing has to be done around an inference; what is `watched` is left to the caller."""
        session, ports = self.session, (self.program.inputs, self.program.outputs)
        if not isinstance(session, NativeRunner) or not self._at_once or self._awake is not None or self._says_timings:
            return None
        kinds = (types, [DTYPES[t] for t in self.types])
        shapes = (self.input_shapes, self.shapes)
        for some, dtypes, sizes in zip(ports, kinds, shapes, strict=True):
            for port, dtype, shape in zip(some, dtypes, sizes, strict=True):
                if NUMPY[port.dtype] != dtype or port.nbytes != math.prod(shape) * dtype.itemsize:
                    return None
        return session.native_run(halves) if not self.validation and not self.bound else None

    def _open(self, program: Program) -> Session:
        wait = "active" if self.wait is WaitType.AGGRESSIVE else self.wait.value
        return self.device.session(program, wait, validation=self.validation)

    def _take(self, session: Session) -> None:
        """Run in this session; what it can is asked here, as calls with arrays are too short for it."""
        self.session = session
        self._ordered = None
        self._binder = session if isinstance(session, Binder) else None
        self._array_binder = session if isinstance(session, ArrayBinder) else None
        self._keeper = session if isinstance(session, InputKeeper) else None
        self._caller = session if isinstance(session, Caller) else None
        self._at_once = self._caller is not None and self.wait is not WaitType.DO_NOT_WAIT
        plain = isinstance(session, PlainCaller) and self._at_once and self._awake is None and not self._says_timings
        self._plain_caller = session if plain and isinstance(session, PlainCaller) else None
        self._plain_outputs: dict[Sequence[int], PlainOutputs | None] = {}
        self._plain_inputs = [
            (shape, NUMPY[port.dtype]) for shape, port in zip(self.input_shapes, self.program.inputs, strict=False)
        ]
        self._every = range(len(self._results))
        self._giver = session if isinstance(session, ResultGiver) else None
        self._watch()

    @property
    def binder(self) -> Binder:
        """The session, for buffers of the user's; raises DeviceError if it takes none."""
        if self._binder is None:
            raise DeviceError(f"{self.device.info.name} ({self.device.info.backend}) takes no buffers of the user's")
        return self._binder

    @property
    def array_binder(self) -> ArrayBinder:
        """The session, for arrays of other libraries; raises DeviceError if it takes none."""
        if self._array_binder is None:
            raise DeviceError(f"{self.device.info.name} ({self.device.info.backend}) takes no libraries' arrays")
        return self._array_binder

    def rest(self, resting: bool) -> None:
        """See protocol.Rests."""
        self.resting = resting

    def held_bytes(self, sessions: int) -> int:
        """See protocol.Rests."""
        program = self.program
        ports = sum(port.nbytes for port in (*program.inputs, *program.outputs))
        return program.constants.nbytes + sessions * (program.arena_size + ports)

    def input_memory(self, i: int) -> np.ndarray | None:
        """See protocol.LendsInputs."""
        memory = self.session.input_memory(i) if isinstance(self.session, InputLender) else None
        if memory is None or memory.size != math.prod(self.input_shapes[i]):
            return None
        self._lent[i] = memory.reshape(self.input_shapes[i])
        return self._lent[i]

    def take_input(self, i: int, array: np.ndarray, own: np.ndarray) -> bool:
        """See protocol.TakesInputs."""
        with self._lock:
            if not self._takes(i, array):
                self._return_inputs()
                return False
            try:
                self._taken.pop(i, None)
                self._follow()
                self.session.write(i, array)
            except DeviceError:
                return False  # invoke() says so
            except BaseException:  # an interrupt: half of it may have been written
                own[...] = array
                raise
            self._taken[i] = own
            return True

    def _takes(self, i: int, array: np.ndarray) -> bool:
        """Whether the session may have input `i` from now on."""
        if self._caller is not None or self._keeper is None or self.wait is WaitType.DO_NOT_WAIT:
            return False
        if ("input", i) in self.bound or any(self._parted[i : i + 1]):
            return False
        return array.dtype == NUMPY[self.program.inputs[i].dtype]

    def return_inputs(self) -> None:
        """See protocol.TakesInputs."""
        with self._lock:
            self._return_inputs()

    def _return_inputs(self) -> None:
        for i, own in list(self._taken.items()):
            assert self._keeper is not None
            own[...] = self._keeper.given(i).reshape(own.shape)
            del self._taken[i]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        with self._lock:
            if self._attempt is not None:
                self._follow()
            wanted = self._asked
            if self._ready:  # what nobody has read since
                wanted = self._asked = tuple(i for i in wanted if i not in self._ready)
                self._ready.clear()
            lent = self._lent
            if self._at_once and not self.bound and len(self._deferred) == len(self._results):
                self._given = inputs
                try:
                    found = self._run_plain(inputs, wanted)
                    if found is None:
                        found = self._called({i: a for i, a in enumerate(inputs) if a is not lent.get(i)}, wanted)
                    if isinstance(found, list):
                        self._ready.update(zip(wanted, found, strict=True))
                    else:
                        self._pending = True
                        self._finish()
                finally:
                    self._given = None
                return self._results
            for i, array in enumerate(inputs):
                if array is not lent.get(i) and array is not self._taken.get(i) and ("input", i) not in self.bound:
                    self._taken.pop(i, None)
                    self.write(i, array)
                    self._keep(i, array)
            self._given = None if self.wait is WaitType.DO_NOT_WAIT else inputs
            try:
                self._order(wanted)
                self.session.run()
                self._stale.clear()
                if self._awake is not None:
                    self._awake.used()
                self._pending = True
                if self.wait is not WaitType.DO_NOT_WAIT:
                    self._finish()
            finally:
                self._given = None  # views of a CPU partition's memory, which could not run again
            return self._results

    def write(self, i: int, array: np.ndarray) -> None:
        """Copy an array to input `i`, for the next inference."""
        self.session.write(i, self._written(i, array))

    def _written(self, i: int, array: np.ndarray) -> np.ndarray:
        """As sessions take it. Raises InvokeError for integers beyond 32 bits where the GPU computes with those."""
        if i < len(self._parted) and self._parted[i]:
            return as_parts(array)
        return _as_written(array)

    def run_bound(self) -> None:
        """One inference whose inputs are all bound, or were written before. Returns at once, and leaves the outputs,
        which are bound, where they are."""
        with self._lock:
            self._stale.update(range(len(self._results)))
            self.array_binder.run(wait=False)

    def call_tensors(self, tensors: Sequence[Any]) -> list[Any] | None:
        """See abilities.ArrayBinder."""
        if self._array_binder is None or self._pending:
            return None
        with self._lock:
            found = self._array_binder.call_tensors(tensors)
            if found is not None:
                self._ready.clear()
                self._stale.update(range(len(self._results)))
            return found

    def bind(self, kind: str, i: int, tensor: Tensor, buffer: Any, **how: Any) -> None:
        """Let `buffer` stand for input or output `i` (`kind` says which), that is `tensor`. Raises TensorError or
        DeviceError if it does not fit."""
        with self._lock:
            self._finish()
            self._return_inputs()
            shape = self.bound_shape(kind, i, tensor)
            if shape != tensor.shape and getattr(buffer, "shape", None) != tensor.shape:
                tensor = dataclasses.replace(tensor, shape=shape)  # else the elements lie there as they are
            try:
                binding.bind(self, kind, i, tensor, buffer, **how)
                self.bound[kind, i] = buffer
            except BaseException:
                self._agree(kind, i)
                raise

    def bound_shape(self, kind: str, i: int, tensor: Tensor) -> tuple[int, ...]:
        """That of a buffer for input or output `i`: where elements have two parts these are another last axis."""
        port = (self.program.inputs if kind == "input" else self.program.outputs)[i]
        return (*tensor.shape, *_parts_of(port, tensor.shape))

    def rebind(self, kind: str, i: int, buffer: Any) -> bool:
        """bind(), but quick, for a buffer as plain as the one that is bound and a kernel that is not waited for; False
        if that does not apply."""
        with self._lock:
            if self._pending or not self.array_binder.replace(kind, i, buffer):
                return False
            self.bound[kind, i] = buffer  # if this is not reached, it holds the former one, as plain
            return True

    def unbind(self, kind: str, i: int) -> None:
        """Go back to host memory for input or output `i`."""
        with self._lock:
            self._finish()
            if kind == "output" and i in self._stale:
                self._read(i)
            if (kind, i) in self.bound:
                try:
                    self.binder.bind(kind, i, None, "")
                    del self.bound[kind, i]
                except BaseException:
                    self._agree(kind, i)
                    raise

    def _agree(self, kind: str, i: int) -> None:
        """After a change of what is bound to a port was broken off: have `bound` and the session agree. An input that
        only one of them takes for bound would be neither written nor copied."""
        if self._binder is None:
            return
        ours, sessions = (kind, i) in self.bound, self._binder.is_bound(kind, i)
        if ours and not sessions:
            del self.bound[kind, i]
        elif sessions and not ours:
            self._binder.bind(kind, i, None, "")

    def output_buffer(self, i: int, tensor: Tensor) -> Any:
        """What is bound to output `i`, or else memory of our own, which is bound by this."""
        fork.check()
        if ("output", i) not in self.bound:
            buffer = self.binder.output_buffer(i, self.bound_shape("output", i, tensor))
            self.bind("output", i, tensor, buffer)
            self.binder.fill_bound_output(i)
        return self.bound["output", i]

    @property
    def memory_of(self) -> object | None:
        """See protocol.SharesMemory."""
        return None if self._binder is None else self.device

    def share(self, kind: str, i: int, tensor: Tensor, memory: Any) -> None:
        """See protocol.SharesMemory."""
        if memory is None:
            self.unbind(kind, i)
        elif self.bound.get((kind, i)) is not memory:
            self.bind(kind, i, tensor, memory)

    def memory_form(self, kind: str, i: int, tensor: Tensor) -> object:
        """See protocol.SharesMemory."""
        port = (self.program.inputs if kind == "input" else self.program.outputs)[i]
        return tensor.type, port.dtype, self.bound_shape(kind, i, tensor)

    def leave(self, outputs: Iterable[int]) -> None:
        """Of these outputs, those that are bound are copied to the arrays only by ensure_readable()."""
        self._left = frozenset(outputs)

    @property
    def results(self) -> Sequence[np.ndarray]:
        """See protocol.GivesOutputs."""
        return self._results

    def defer(self, outputs: Iterable[int]) -> None:
        """See protocol.GivesOutputs."""
        self._deferred = frozenset(outputs)

    def give(self, i: int) -> np.ndarray:
        """See protocol.GivesOutputs."""
        with self._lock:
            if i in self._ready:
                return self._ready.pop(i)
            self._finish()
            if i in self._stale:
                if self._giver is not None:
                    if i not in self._asked:
                        self._asked = (*self._asked, i)
                    return self._given_by(self._giver, i)
                self._read(i)
            return self._results[i].copy()

    def ensure_readable(self, i: int) -> None:
        """Have output `i` of the last inference in its array."""
        with self._lock:
            self._finish()
            self._ready.pop(i, None)  # from now on the array has it, and may be written to
            if i in self._stale:
                self._read(i)

    def finish(self) -> None:
        """Wait for the inference that was started, if any, and fill the arrays that invoke() gave."""
        with self._lock:  # also where nothing is pending yet: another thread's inference may be under way
            self._finish()

    def _finish(self) -> None:
        if not self._pending:
            return
        giver = self._giver
        for i in range(len(self._results)):
            bound = ("output", i) in self.bound
            if (i in self._left) if bound else (giver is not None and i in self._deferred):
                self._stale.add(i)
            else:
                self._read(i)
        if giver is not None and any(("output", i) not in self.bound for i in self._stale):
            giver.settle()  # but not for what stays on the GPU
        better = self._second_attempt(self._on_host)
        for i, array in enumerate(better or ()):
            self._staged[i][...] = array.reshape(self._staged[i].shape)
            self._convert(i)
        self._pending = False
        if self._says_timings:
            debug.say(debug.TIMINGS, "%s", dict(self.session.stats))

    def _on_host(self) -> list[np.ndarray]:
        """The results of the last inference, but for those that are to stay on the GPU."""
        for i in [i for i in self._stale if ("output", i) not in self.bound]:
            self._read(i)
        return [a for i, a in enumerate(self._staged) if i not in self._stale]

    def _read(self, i: int) -> None:
        self.session.read(i, self._staged[i])
        self._convert(i)
        self._stale.discard(i)

    def _convert(self, i: int) -> None:
        """Fill the array that is handed out of the one that was read."""
        staged, result = self._staged[i], self._results[i]
        if result.dtype != staged.dtype and result.shape == staged.shape:
            np.copyto(result, staged, casting="unsafe")

    def call(self, inputs: Mapping[int, np.ndarray], outputs: Sequence[int]) -> list[np.ndarray]:
        """One inference on these inputs, by place: these outputs, as arrays of the caller's. For kernels that wait."""
        with self._lock:
            self._given = [inputs[i] for i in range(len(inputs))]
            try:
                if self._at_once and not self.bound:
                    self._follow()
                    found = self._called(inputs, outputs)
                    if found is not None:
                        return found
                else:
                    self._begin(inputs, outputs)
                return self._collect(outputs)
            finally:
                self._given = None

    def call_plain(self, inputs: Sequence[Any], outputs: Sequence[int]) -> list[np.ndarray] | None:
        """call(), but quick, for arrays of the inputs' types and shapes; None, with nothing done, where that does not
        apply."""
        if self._plain_caller is None:
            return None
        with self._lock:
            found = self._run_plain(inputs, outputs)
            if found is not False:
                return found
            self._given = inputs
            try:
                return self._collect(outputs)
            finally:
                self._given = None

    def _run_plain(self, inputs: Sequence[Any], outputs: Sequence[int]) -> list[np.ndarray] | Literal[False] | None:
        """See PlainCaller.call_plain()."""
        caller, attempt = self._plain_caller, self._attempt
        if caller is None or self.bound or len(inputs) != len(self._plain_inputs):
            return None
        if attempt is not None and attempt.settled and self.program is not attempt.program:
            return None
        lent = self._lent
        if lent:
            inputs = [None if a is lent.get(i) else a for i, a in enumerate(inputs)]
        for array, (shape, dtype) in zip(inputs, self._plain_inputs, strict=True):
            if type(array) is np.ndarray and array.shape == shape and array.dtype == dtype:
                continue
            if array is not None or not lent:
                return None
        try:
            wanted = self._plain_outputs[outputs]
        except KeyError:
            wanted = self._plain_outputs[outputs] = self._wanted_plain(outputs)
        if wanted is None:
            return None
        self._stale.update(self._every)
        return caller.call_plain(inputs, wanted)

    def _wanted_plain(self, outputs: Sequence[int]) -> PlainOutputs | None:
        """None if the ports' arrays are not those that are given out."""
        shapes, dtypes = [self.shapes[i] for i in outputs], [DTYPES[self.types[i]] for i in outputs]
        for i, shape, dtype in zip(outputs, shapes, dtypes, strict=True):
            port = self.program.outputs[i]
            if NUMPY[port.dtype] != dtype or math.prod(shape) * dtype.itemsize != port.nbytes:
                return None
        return PlainOutputs(tuple(outputs), tuple(shapes), tuple(dtypes))

    def _called(self, inputs: Mapping[int, np.ndarray], outputs: Sequence[int]) -> list[np.ndarray] | None:
        """An inference in one go, by a session that can, after these inputs are written; None if results are not
        finite, which the session has then."""
        caller = self._caller
        assert caller is not None
        self._ordered = outputs
        self._stale.update(range(len(self._results)))
        found = caller.call({i: self._written(i, array) for i, array in inputs.items()}, outputs, all_finite)
        if self._awake is not None:
            self._awake.used()
        if self._says_timings:
            debug.say(debug.TIMINGS, "%s", dict(self.session.stats))
        if found is None:
            return None
        shapes, types = self.shapes, self.types
        return [as_typed(a, shapes[i], DTYPES[types[i]]) for i, a in zip(outputs, found, strict=True)]

    def begin(self, inputs: Mapping[int, np.ndarray], outputs: Sequence[int]) -> None:
        """Start an inference on these inputs, by place, which may be changed afterwards; collect() gives the outputs
        that are wanted. For kernels that do not wait."""
        with self._lock:
            self._begin(inputs, outputs)

    def collect(self, outputs: Sequence[int]) -> list[np.ndarray]:
        """Outputs of the inference that was started, as arrays of the caller's; waits for it."""
        with self._lock:
            return self._collect(outputs)

    def _begin(self, inputs: Mapping[int, np.ndarray], outputs: Sequence[int]) -> None:
        self._follow()
        self._return_inputs()
        for i, array in inputs.items():
            self.write(i, array)
            self._keep(i, array)
        self._order(outputs)
        self._stale.update(range(len(self._results)))
        self.session.run()
        self._pending = True

    def _order(self, outputs: Sequence[int]) -> None:
        """Have these outputs come along with the next inference."""
        if self._giver is not None and outputs is not self._ordered and outputs != self._ordered:
            self._giver.order(outputs)
            self._ordered = outputs

    def _collect(self, outputs: Sequence[int]) -> list[np.ndarray]:
        giver = self._giver
        found = None if giver is not None else self._read_all(self.session)
        better = self._second_attempt(lambda: found or self._read_all(self.session)) or found
        self._pending = False
        if giver is not None and better is None:
            return [self._given_by(giver, i) for i in outputs]
        assert better is not None
        return [as_typed(better[i], self.shapes[i], DTYPES[self.types[i]]) for i in outputs]

    def _given_by(self, giver: ResultGiver, i: int) -> np.ndarray:
        return as_typed(giver.give(i), self.shapes[i], DTYPES[self.types[i]])

    def _read_all(self, session: Session) -> list[np.ndarray]:
        found = []
        for i, (port, shape) in enumerate(zip(self.program.outputs, self.shapes, strict=True)):
            found.append(np.empty((*shape, *_parts_of(port, shape)), NUMPY[port.dtype]))
            session.read(i, found[-1])
        return found

    # ------------------------------------------------------------------------------------------- float32 after all

    def _watch(self) -> None:
        """Have the session look at results as long as that is wanted."""
        if self._giver is not None:
            self._giver.watch(self._attempt is not None and self._attempt.watching)
        if isinstance(self.session, InputRounder):  # results of a second attempt are the caller's, or only warn of it
            self.session.keep_exact(self._attempt is not None and self._attempt.stays and self._attempt.watching)

    def _second_attempt(self, fetch: Callable[[], list[np.ndarray]]) -> list[np.ndarray] | None:
        """The results of float32 on the same inputs, if those of float16, which `fetch` gives, are not finite and these
        are; then the kernel goes on with it. See SecondAttempt, which is without memory and inputs of its own."""
        attempt = self._attempt
        if attempt is None or not attempt.watching:
            return None
        reads_all = not any(kind == "output" for kind, _ in self.bound)
        if self._giver is not None and reads_all and self._giver.finite(all_finite):
            return None
        results = fetch()
        if all_finite(results):
            return None
        try:
            return self._made_again(attempt, results)
        finally:
            self._watch()

    def _made_again(self, attempt: SecondAttempt, results: list[np.ndarray]) -> list[np.ndarray] | None:
        self._return_inputs()
        inputs = self._last_inputs()
        if self.program.variables:
            attempt.give_up("the model keeps variables, which the inference has changed")
        elif self.bound:
            attempt.give_up("buffers are bound to it")
        elif inputs is None:
            attempt.give_up("the inference was not waited for")
        else:
            try:
                return self._in_float32(attempt, results, inputs)
            except LiteGpuError as error:
                attempt.give_up(f"that failed: {error}")
        return None

    def _in_float32(
        self, attempt: SecondAttempt, results: list[np.ndarray], inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray] | None:
        twin, self._twin = self._twin or self._open(attempt.program), None
        try:
            for i, array in enumerate(inputs):
                twin.write(i, self._written(i, array))
            twin.run()
            found = self._read_all(twin)
            better = attempt.judge(results, found)
        except BaseException:
            twin.close()
            raise
        if better and attempt.stays:
            self._go_on_with(attempt.program, twin)
            return found
        if attempt.watching:
            self._twin = twin
        else:
            twin.close()
        return None

    def _follow(self) -> None:
        """Change over to float32 where a copy of this kernel had to."""
        attempt = self._attempt
        if attempt is not None and attempt.settled and self.program is not attempt.program and not self.bound:
            self._go_on_with(attempt.program, self._open(attempt.program))

    def _go_on_with(self, program: Program, session: Session) -> None:
        self._return_inputs()
        self._ready.clear()
        self._lent.clear()  # the memory that was lent is still written to, but copied from now on
        self._kept.clear()
        before, self.program = self.session, program
        self._take(session)
        before.close()

    def _keep(self, i: int, array: np.ndarray) -> None:
        """Have input `i` for a second attempt, where the caller may change it before the results are there."""
        attempt = self._attempt
        if self.wait is not WaitType.DO_NOT_WAIT or attempt is None or not (attempt.stays and attempt.watching):
            return
        if self._keeper is not None:  # the session has it
            return
        kept = self._kept.get(i)
        if kept is None or kept.shape != array.shape or kept.dtype != array.dtype:
            kept = self._kept[i] = np.empty(array.shape, array.dtype)
        np.copyto(kept, array)

    def _last_inputs(self) -> Sequence[np.ndarray] | None:
        """What the last inference was made from; None if that is not known any more."""
        if self.wait is not WaitType.DO_NOT_WAIT:
            return self._given
        count = len(self.program.inputs)
        if self._keeper is not None:
            return [self._keeper.given(i) for i in range(count)]
        return [self._kept[i] for i in range(count)] if len(self._kept) == count else None

    def reset_variables(self) -> None:
        """Set the variables to zero."""
        with self._lock:
            self._finish()
            self.session.reset_variables()

    def profile(self) -> Sequence[KernelTime]:
        """GPU time of each kernel in one inference on the inputs of the last invoke()."""
        with self._lock:
            self._finish()
            return self.session.profile()

    def _forked(self) -> None:
        self._lock = fork.Refusal() if fork.is_forbidden() else threading.Lock()

    def close(self, *, wait: bool = True) -> None:
        """Free everything; without `wait`, what the device still works with is freed later, when it is done."""
        self.closed = True
        if fork.is_forbidden():  # what is bound stays alive, as freeing it would touch the GPU
            return
        self.bound.clear()
        self._ready.clear()
        if self._awake is not None:
            self._awake.stop()
        self.session.close(wait=wait)
        if self._twin is not None:
            self._twin.close(wait=wait)

    def abandon(self) -> None:
        """close() without waiting for the device."""
        self.close(wait=False)


def _parts_of(port: Port, shape: tuple[int, ...]) -> tuple[int, ...]:
    """What a port's array has behind the axes of its tensor: another one, where the elements have two parts."""
    return (2,) if has_parts(port.shape, shape) else ()


def _result(staged: np.ndarray, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """What is handed out of an array that a session fills: the same memory where that is possible."""
    if staged.shape != shape:
        return of_parts(staged, shape, dtype)
    return staged if staged.dtype == dtype else np.empty(shape, dtype)


#: What small types cross the border as.
_WIDENED: dict[np.dtype[Any], type] = {
    np.dtype(np.bool_): np.int32,
    np.dtype(np.uint16): np.int32,
    np.dtype(np.float16): np.float32,
}


def _as_written(array: np.ndarray) -> np.ndarray:
    """As sessions take it. Raises InvokeError for integers beyond 32 bits."""
    if array.dtype == np.int64:
        narrow = array.astype(np.int32)
        if not np.array_equal(narrow, array):
            raise InvokeError(
                f"an input of INT64 holds {int(array.min())} to {int(array.max())}: the GPU computes with 32 bits, so "
                "run this model without the GPU delegate"
            )
        return np.ascontiguousarray(narrow)
    if array.dtype == np.uint32:
        return np.ascontiguousarray(array).view(np.int32)
    wide = _WIDENED.get(array.dtype)
    return np.ascontiguousarray(array, wide)
