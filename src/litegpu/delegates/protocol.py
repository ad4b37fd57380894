"""What an accelerator implements to take parts of a graph, and what it is handed. What `Delegate` and `DelegateKernel`
have is needed; each of the other protocols is an ability that a delegate or a kernel may have: ask with isinstance."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from litegpu.model.types import Model, Operator, Subgraph, Tensor

if TYPE_CHECKING:
    _Meta = ABCMeta
else:
    _Meta = type(Protocol)


class Ability(_Meta):
    """isinstance() with such a protocol asks the object for each member, and methods have to be callable. Python's own
    check does neither: from 3.12 on it overlooks what a wrapper forwards by __getattr__."""

    def __instancecheck__(cls, thing: object) -> bool:
        return not lacking(thing, cls)


def lacking(thing: object, protocol: type) -> tuple[str, ...]:
    """The names of the protocol's members that the object has not."""
    return tuple(name for name in members(protocol) if not _has(thing, name, callable(vars(protocol).get(name))))


def members(protocol: type) -> tuple[str, ...]:
    """The names of what a protocol declares, attributes first."""
    return *protocol.__annotations__, *(name for name in vars(protocol) if name not in _OF_ALL and name[:2] != "__")


def _has(thing: object, name: str, method: bool) -> bool:
    try:
        value = getattr(thing, name)
    except AttributeError:
        return False
    return callable(value) or not method


@runtime_checkable
class _Nothing(Protocol):
    pass


_OF_ALL = frozenset(vars(_Nothing))


@dataclass(frozen=True, eq=False)
class Partition:
    """Nodes of one subgraph that run together. `inputs` and `outputs` are the runtime tensors that cross its border
    (tensor indices; constants excluded), in ascending order of first use and of production; a tensor that is a graph
    output or is read outside the partition is an output even if it is also consumed inside. `xnnpack`: whether the CPU
    would run it with XNNPACK's kernels, which round integers in other ways than the official runtime's own."""

    model: Model
    subgraph: Subgraph
    nodes: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    xnnpack: bool = True


# ------------------------------------------------------------------------------------------------ kernels


@runtime_checkable
class DelegateKernel(Protocol, metaclass=Ability):
    """A prepared partition."""

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """One inference. `inputs` follow Partition.inputs, with the shapes and dtypes of the tensors, and may be reused
        by the caller afterwards; the results follow Partition.outputs, in the tensors' dtypes and shapes, and belong to
        the caller until the next invoke of this kernel."""

    def close(self) -> None:
        """Free everything; may be called twice."""


@runtime_checkable
class ResetsVariables(Protocol, metaclass=Ability):
    """A kernel of a delegate that keeps variables: such a one has to have this."""

    def reset_variables(self) -> None:
        """Set the variables to zero."""


@runtime_checkable
class LendsInputs(Protocol, metaclass=Ability):
    """A kernel with memory of its own for inputs."""

    def input_memory(self, i: int) -> np.ndarray | None:
        """An array of input i's shape and type, zeros at first, that invoke() takes without copying if it is given that
        very array; None if there is none. set_tensor then writes there."""


@runtime_checkable
class TakesInputs(Protocol, metaclass=Ability):
    """A kernel that can have an input where it computes before invoke(), so that it is copied once."""

    def take_input(self, i: int, array: np.ndarray, own: np.ndarray) -> bool:
        """Copy `array` to where invoke() needs input i, if that can be done now: invoke() then does not read `own`,
        which it is given for that input, until return_inputs(). False: `own` counts."""

    def return_inputs(self) -> None:
        """Have all that take_input() took in its own array, which counts from now on."""


@runtime_checkable
class Rests(Protocol, metaclass=Ability):
    """A kernel of a delegate that is asked about what it has prepared."""

    def rest(self, resting: bool) -> None:
        """Whether the kernel's interpreter rests, while another one with the same delegate does the work."""

    def held_bytes(self, sessions: int) -> int:
        """About as much memory as it holds, on the host and on the device, with so many sessions."""


@runtime_checkable
class FinishesLater(Protocol, metaclass=Ability):
    """A kernel whose invoke() may return before its results are there."""

    def finish(self) -> None:
        """Have the results of invoke() ready; the next invoke() begins with it. Called again if Ctrl-C has interrupted
        it."""


@runtime_checkable
class HasNotes(Protocol, metaclass=Ability):
    """A kernel that has something to say in the delegation report."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines."""


@runtime_checkable
class Abandons(Protocol, metaclass=Ability):
    """A kernel that can be closed while its device works."""

    def abandon(self) -> None:
        """As close(), without waiting, for callers who were interrupted."""


@runtime_checkable
class KeepsOutputs(Protocol, metaclass=Ability):
    """A kernel that can leave results on its device."""

    def leave(self, outputs: Sequence[int]) -> None:
        """Of these outputs, by their places, those that are bound to the user's memory are in the arrays of invoke()
        only after ensure_readable()."""

    def ensure_readable(self, i: int) -> None:
        """Have output `i` of the last inference in its array."""

    def output_buffer(self, i: int, tensor: Tensor) -> Any:
        """The user's memory that is bound to output `i`, which is this tensor, or else new memory, bound by this."""


@runtime_checkable
class GivesOutputs(Protocol, metaclass=Ability):
    """A kernel that hands out outputs as arrays of the caller's own, if they are wanted at all."""

    @property
    def results(self) -> Sequence[np.ndarray]:
        """The arrays that invoke() gives, which are always the same."""

    def defer(self, outputs: Sequence[int]) -> None:
        """Of these outputs, the arrays that invoke() gives are filled only by ensure_readable()."""

    def ensure_readable(self, i: int) -> None:
        """Have output i of the last inference in its array."""

    def give(self, i: int) -> np.ndarray:
        """Output i of the last inference, in the tensor's shape and type, as an array that nothing changes."""


@runtime_checkable
class SharesMemory(Protocol, metaclass=Ability):
    """A kernel whose inputs and outputs may lie in memory of its device that other kernels there use as well."""

    @property
    def memory_of(self) -> object | None:
        """The device; None if it takes no such memory."""

    def share(self, kind: str, i: int, tensor: Tensor, memory: Any) -> None:
        """Let memory, which may be the same for an input and an output, stand for input or output i (`kind` "input" or
        "output"), that is this tensor; None ends that. What is shared is not copied to or from the host."""

    def memory_form(self, kind: str, i: int, tensor: Tensor) -> object:
        """How the memory for an input or output has its elements: what has another form cannot be shared."""

    def output_buffer(self, i: int, tensor: Tensor) -> Any:
        """Memory that stands for output i from now on."""

    @property
    def results(self) -> Sequence[np.ndarray]:
        """The arrays that invoke() gives, which are always the same."""

    def ensure_readable(self, i: int) -> None:
        """Have output `i` of the last inference in its array."""


@runtime_checkable
class OnGpu(Protocol, metaclass=Ability):
    """A kernel that may be on a GPU that forked processes cannot reach."""

    uses_gpu: bool


# ------------------------------------------------------------------------------------------------ delegates


@runtime_checkable
class Delegate(Protocol, metaclass=Ability):
    """An accelerator. One object may serve several interpreters."""

    name: str  # "GPU", for the report
    max_delegated_partitions: int  # the largest so many are kept; 0 means all
    min_nodes_per_partition: int
    first_delegate_node_index: int  # nodes outside first..last are left alone (to bisect a wrong op)
    last_delegate_node_index: int

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        """None if the delegate runs this node, else the reason why not, as a sentence for the user. Must be complete:
        prepare() of any set of accepted nodes is expected to succeed."""

    def prepare(self, partition: Partition) -> DelegateKernel:
        """Build the partition for the tensors' present shapes (those of partition.subgraph); called again after a
        resize. An exception means fallback to the CPU with a warning, or an error under strict: of all nodes, or only
        of those whose numbers it has in a tuple `nodes`; prepare() is then called for what is left."""


@runtime_checkable
class KeepsVariables(Protocol, metaclass=Ability):
    """A delegate that may be offered operators that read variables: tensors that keep their value from one inference to
    the next, zero at first. They are no inputs or outputs of a partition: its kernel keeps them, and resets them
    (ResetsVariables)."""

    keeps_variables: bool


@runtime_checkable
class TakesUnknown(Protocol, metaclass=Ability):
    """A delegate that is offered nodes whose shapes only the run decides."""

    takes_unknown: bool


@runtime_checkable
class TakesBounds(Protocol, metaclass=Ability):
    """A delegate that computes tensors whose number of rows the data decide with as many as there can be (bounded.py),
    and how many of them count."""

    takes_bounds: bool


@runtime_checkable
class Rehearses(Protocol, metaclass=Ability):
    """A delegate that can tell without a device that it will not prepare something: for previews."""

    def rehearse(self, partition: Partition) -> None:
        """Raises what prepare() would, so far as that can be told at once."""


@runtime_checkable
class NamesDevice(Protocol, metaclass=Ability):
    """A delegate that can say what it runs on."""

    def device_name(self) -> str:
        """For people: "Intel(R) Core(TM) Ultra 7 (OpenVINO CPU)"."""


@runtime_checkable
class OfficialDelegate(Protocol, metaclass=Ability):
    """A delegate in a shared library, as the official load_delegate() gives it: not one of these."""

    def _get_native_delegate_pointer(self) -> Any:
        """The official runtime's structure."""
