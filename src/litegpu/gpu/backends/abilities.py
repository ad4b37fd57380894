"""What backends, devices and sessions may be able to do besides what contract.py asks of all: ask with isinstance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from litegpu.gpu.backends.contract import Device

if TYPE_CHECKING:  # see contract.py
    from litegpu.gpu.graph import Graph
    from litegpu.gpu.program import Program


@runtime_checkable
class ArrayPlace(Protocol):
    """A backend whose memory other libraries have arrays in."""

    def holds(self, value: Any) -> bool:
        """Whether `value` is an array in memory that the backend's devices read. Raises nothing, and imports
        no library: who has an array of one has imported it."""


@runtime_checkable
class Turning(Protocol):
    """A backend whose kernels can go through their workgroups backwards."""

    def turned(self, source: str) -> str:
        """The kernel of this text, each workgroup of which does what its counterpart from the other end did."""


@runtime_checkable
class Contracting(Protocol):
    """A backend whose compiler makes one operation, rounded once, of a product and a sum, unless it is told."""

    uncontracted: tuple[str, ...]  #: the compiler's options


@runtime_checkable
class Counting(Protocol):
    """A backend whose halves keep the smallest numbers as they are, so that what is stored counts these."""

    def counting(self, graph: Graph, halves: Collection[int]) -> Graph:
        """The graph with whole numbers as such counts, where that is less work; `halves` are stored as float16."""


@runtime_checkable
class PinnedMemory(Protocol):
    """A device that copies faster from memory of its choice."""

    def pinned(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Host memory that copies to and from the device start at; its content is anything."""


@runtime_checkable
class ListedDevices(Protocol):
    """A backend that may have several devices."""

    def list_devices(self) -> Sequence[str]:
        """What open_device() is to be given as a name for each, without software devices if there are others. Raises
        DeviceError if none can be used."""


class PowerMeter(Protocol):
    """Something that tells about the power of one device; None for what it does not tell."""

    source: str  # what tells it, for people

    def millijoules(self) -> int | None:
        """A counter that only grows."""

    def milliwatts(self) -> int | None:
        """The present power."""


@runtime_checkable
class PowerReader(Protocol):
    """A backend that knows of the power of devices, perhaps of other backends' as well."""

    def power_meter(self, device: Device) -> PowerMeter:
        """What measures the device; raises DeviceError that says why nothing does."""


@runtime_checkable
class FreeMemory(Protocol):
    """A device that tells how much of its memory is free."""

    def free_bytes(self) -> int | None:
        """Now, of all processes; None if the driver does not say."""


@runtime_checkable
class SessionSize(Protocol):
    """A device on which sessions take more than a program's arena and constants."""

    def session_bytes(self, program: Program) -> int:
        """What a session of the program takes on it."""


@runtime_checkable
class BufferMaker(Protocol):
    """A device with an object, of a library that users know, that makes buffers which can be bound."""

    @property
    def buffer_maker(self) -> Any:
        """The object."""


@runtime_checkable
class Recompiles(Protocol):
    """A device that compiles a program in several ways."""

    @property
    def way(self) -> object:
        """The present one: its repr is part of the cache's key."""


@runtime_checkable
class Opener(Protocol):
    """A delegate, say, that runs on one device."""

    def open_device(self) -> Device:
        """The device; raises DeviceError if there is none."""


@runtime_checkable
class InputLender(Protocol):
    """A session whose inputs can be written where run() reads them."""

    def input_memory(self, index: int) -> np.ndarray | None:
        """Program input `index`, flat: what is written there needs no write(). None if run() may return before it has
        been read. Stays valid after close(), then without effect."""


@runtime_checkable
class InputKeeper(Protocol):
    """A session that still has what it was given."""

    def given(self, index: int) -> np.ndarray:
        """Program input `index` as it was written last, flat, until it is written again."""


@runtime_checkable
class InputRounder(Protocol):
    """An InputKeeper that may round what kernels round in any case."""

    def keep_exact(self, exact: bool) -> None:
        """Whether given() has to give what is written from now on to the bit. Else it may have been rounded to float16,
        but for what that would make infinite."""


@runtime_checkable
class ResultGiver(Protocol):
    """A session that hands out its outputs as arrays of the caller's, copied once or not at all on the host."""

    def order(self, outputs: Collection[int]) -> None:
        """From the next run on these outputs are on their way to the host right behind it; others when they are asked
        for."""

    def give(self, index: int) -> np.ndarray:
        """Program output `index` of the last run, flat: an array of the caller's, that nothing changes. Waits."""

    def watch(self, watched: bool) -> None:
        """Whether from the next run on finite() can be asked."""

    def finite(self, look: Callable[[list[np.ndarray]], bool]) -> bool:
        """Whether all floats of the last run's outputs are finite; `look` tells that of arrays. Waits."""

    def settle(self) -> None:
        """Wait for what was started."""


@runtime_checkable
class Caller(Protocol):
    """A session that does all of an inference at once, which takes less of Python."""

    def call(
        self, arrays: Mapping[int, np.ndarray], outputs: Sequence[int], look: Callable[[list[np.ndarray]], bool]
    ) -> list[np.ndarray] | None:
        """Write these inputs, run, wait, and give these outputs, as Session and ResultGiver do. Gives None in place of
        outputs if finite(look) can be asked and denies it."""


@dataclass(frozen=True, eq=False)
class PlainOutputs:
    """Which outputs a PlainCaller is to give, as arrays of these shapes and types."""

    places: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]


@runtime_checkable
class PlainCaller(Protocol):
    """A Caller that is quicker still for plain arrays."""

    def call_plain(
        self, arrays: Sequence[np.ndarray | None], wanted: PlainOutputs
    ) -> list[np.ndarray] | Literal[False] | None:
        """An inference on these inputs, of the ports' types and sizes, or (None) those that lie in input_memory().
        False if results that are watched are not finite; None, with nothing done, if it has to be done another way.
        `wanted` should be the same object each time."""


@dataclass(frozen=True)
class NativeRun:
    """An inference for native code, all in numbers. Addresses of functions: `push` and `pop` make a context current;
    `copy_in` (device, host, bytes, stream), `fill` (device, value, bytes, stream), `launch` (graph, stream) and
    `copy_out` (host, device, bytes, stream) put something on a stream; `query` (stream) gives 0 when all that is done,
    600 before; `write` (stream, place, number, flags), which may be missing (0), lets the device write a number of 32
    bits, to the word at `ended` on the host. What follows `wait_event` (stream, event, flags) on a stream comes behind
    what was on another one at the last `record` (event, stream); `event`: one of the session's. Whatever else one of
    them gives is an error. `inputs` and `outputs`: places on the device."""

    FUNCTIONS: ClassVar = (
        "push", "pop", "launch", "copy_in", "copy_out", "fill", "query", "write", "wait_event", "record",
    )  # fmt: skip

    push: int
    pop: int
    launch: int
    copy_in: int
    copy_out: int
    fill: int
    query: int
    write: int
    wait_event: int
    record: int
    context: int
    stream: int
    graph: int
    ended: int
    event: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@runtime_checkable
class NativeRunner(Protocol):
    """A session whose inferences native code can make, without Python."""

    @property
    def rounded_inputs(self) -> Collection[int]:
        """Inputs in float32 that may come as float16, without any difference."""

    def native_run(self, halves: Collection[int] = ()) -> NativeRun | None:
        """How, as long as the session is open and nothing is bound; None if it needs Python for them. Who uses it sees
        to it that nobody else uses the session meanwhile. `halves`: of `rounded_inputs`, those that come as float16."""


@runtime_checkable
class WholeTimer(Protocol):
    """A session that can time all kernels of an inference together."""

    def time_graph(self) -> float:
        """Seconds of the device, without copies of inputs and outputs. Raises DeviceError if it cannot."""


@dataclass(frozen=True)
class PixelFormat:
    """The form of an image, RGBA with 8 bits a channel: `row` pixels from the beginning of one row to that of the next
    where kernels read it. `swapped`: red and blue."""

    width: int
    height: int
    row: int
    swapped: bool


@dataclass(frozen=True, eq=False)
class UserBuffer:
    """Memory of the user's that may be bound, as Binder.examine() found it. `resource`: as Binder.bind() takes it.
    `shape`, `dtype`: None where it is bytes that do not say what they mean. `pixels`: of what is an image in any case.
    """

    resource: Any
    nbytes: int
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    pixels: PixelFormat | None = None


@runtime_checkable
class Binder(Protocol):
    """A session whose inputs and outputs may be memory of the user's on the device."""

    def examine(self, buffer: Any, what: str, *, output: bool, stream: Any = None) -> UserBuffer:
        """What the user's buffer is. `stream`: the user's word for when it is written. Raises TensorError if
        it is nothing that can be bound, DeviceError if it is of another device; `what` names the tensor in errors."""

    def bind(self, kind: str, index: int, resource: Any, what: str, adapter: Program | None = None) -> None:
        """Let what examine() gave stand for a port (`kind` "input" or "output") in every inference from the
        next on; None ends that. `adapter`: a program with one input and one output, between the buffer's format and
        the port's. Raises TensorError if it does not fit."""

    def is_bound(self, kind: str, index: int) -> bool:
        """Whether something of the user's stands for the port."""

    def output_buffer(self, index: int, shape: tuple[int, ...]) -> Any:
        """Memory for output `index`, of a tensor of this shape, that can be bound to it and that other
        libraries, or other programs of the same device, can read. It belongs to the caller."""

    def fill_bound_output(self, index: int) -> None:
        """Copy the last inference's output, if there was one, to what was bound to it since."""


@runtime_checkable
class ArrayBinder(Binder, Protocol):
    """One that takes arrays of other libraries, and gives results as arrays of theirs."""

    def replace(self, kind: str, index: int, array: Any) -> bool:
        """bind(), but quick, for a plain array in place of one that is bound and alike; False, with nothing
        done, if that does not apply."""

    def empty_outputs(self, example: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """For each output a new array of such a shape, to be bound: of the library that `example` is of, or
        one that in_library() converts. To be written on the stream that the next inference is ordered with."""

    def in_library(self, example: Any, array: Any) -> Any:
        """An array of empty_outputs() as one of the library that `example` is of; nothing is copied."""

    def expect_tensors(self, tensors: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> None:
        """These inputs, by place, and new outputs of these shapes are bound to all ports: calls with others like them
        may follow."""

    def call_tensors(self, tensors: Sequence[Any]) -> list[Any] | None:
        """An inference on such inputs, which is not waited for: its outputs, by place, as empty_outputs() makes them;
        None, with nothing done, where that does not apply."""

    def run(self, *, wait: bool = True) -> None:
        """As Session.run(); without `wait` it returns at once in any case."""


@dataclass(frozen=True)
class CallRates:
    """How long things take, fitted to measurements. Seconds: of a call, of an operator, of one operation of each kind
    (floating point, then quantized integers), of one byte that an operator reads or writes, and of one byte of the
    model's inputs and outputs."""

    call: float
    operator: float
    product: tuple[float, float]
    depthwise: tuple[float, float]
    other: tuple[float, float]
    byte: float
    port_byte: float


@runtime_checkable
class Predicts(Protocol):
    """A backend that says what a call of its devices takes, for who has to choose without measuring."""

    rates: CallRates
