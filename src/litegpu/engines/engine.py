"""What the two engines have in common."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from litegpu.delegates import cpu
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.variables import Variables
from litegpu.engines.announcing import Announcer
from litegpu.engines.source import ModelSource, input_shapes
from litegpu.errors import InvokeError, LiteGpuError, TensorError
from litegpu.model.types import Subgraph

if TYPE_CHECKING:
    from litegpu.gpu.custom.registration import Registration

Shapes = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Setup:
    """What an interpreter was opened with. `asked`: the delegates of litegpu's protocol; an engine puts others in the
    places of those that fail. `operators`: the user's own, as registered then. `freed`: inputs with values in the file
    that were set all the same, and to what. `variables`: of all signatures."""

    source: ModelSource
    options: OfficialOptions
    asked: list[Delegate]
    announcer: Announcer
    operators: dict[str, Registration] | None = None
    freed: dict[int, Any] = field(default_factory=dict)
    variables: Variables = field(default_factory=Variables)

    def own_operators(self) -> contextlib.AbstractContextManager[None]:
        """Within it those of the user's operators are registered that were when the model was opened."""
        if self.operators is None:
            return contextlib.nullcontext()
        from litegpu.gpu.custom.registration import keeping

        return keeping(self.operators)


class Engine(abc.ABC):
    """Runs a model. `official` describes the tensors, whoever computes them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._reported = ""  # what `official` has in its reporter, which never forgets
        self._gave_views = False  # of its tensors, since they were last looked for

    @property
    @abc.abstractmethod
    def official(self) -> Any: ...

    @property
    @abc.abstractmethod
    def graph(self) -> Subgraph:
        """The main subgraph, with the shapes that are known of its tensors."""

    @abc.abstractmethod
    def allocate(self) -> Engine:
        """Prepare to run with the present shapes; the engine that goes on. Raises InvokeError or DelegateError."""

    @abc.abstractmethod
    def invoke(self) -> None:
        """One inference; raises InvokeError."""

    #: Whether settle() may have anything to wait for.
    waits = False

    def settle(self) -> None:
        """Wait for a call of native code that an interruption has left."""
        return

    def finish(self) -> None:
        """Wait for results on their way."""
        return

    @abc.abstractmethod
    def reset_variables(self) -> None: ...

    @abc.abstractmethod
    def set(self, index: int, value: Any) -> None:
        """Copy a value into a tensor. Raises TensorError."""

    @abc.abstractmethod
    def get(self, index: int, subgraph_index: int) -> Any:
        """A copy of a tensor. Raises TensorError."""

    @abc.abstractmethod
    def view(self, index: int) -> Any:
        """A view of a tensor. Raises TensorError."""

    @abc.abstractmethod
    def resize(self, index: int, shape: Any, strict: bool) -> Engine:
        """Give an input another shape; the engine that goes on. Raises InvokeError."""

    @abc.abstractmethod
    def reopened(self) -> None:
        """Start anew, with the present shapes: what the official interpreter was doing never ends."""

    @abc.abstractmethod
    def described(self, details: list[dict[str, Any]], subgraph_index: int) -> list[dict[str, Any]]:
        """Official details of tensors, with shapes that only this engine knows."""

    # ---------------------------------------------------------------- what only partitions on a GPU do otherwise

    def preview(self) -> None:
        """Report what allocate() would delegate. Raises InvokeError if the shapes are refused."""
        return

    def leave_outputs(self, leave: bool) -> None:
        """Whether outputs in the user's GPU buffers are not copied to the host."""
        return

    def ensure_readable(self, index: int) -> None:
        """Copy a tensor to the host if it is only on the GPU."""
        return

    def output_buffer(self, index: int) -> Any:
        raise TensorError(f"Tensor {index} is no output that a GPU computes, or tensors are not allocated")

    def forked(self) -> bool:
        """In the child of a fork: whether the engine goes on as it is, its GPU parts refusing to work."""
        return False

    def close(self, *, wait: bool) -> None:
        """Free what delegates hold."""
        return

    # ------------------------------------------------------------------------------------------ shared by both

    def input_shapes(self) -> Shapes:
        return input_shapes(self.official)

    def is_safe(self) -> bool:
        """Whether no view of a tensor is alive."""
        if self._gave_views:
            self._gave_views = not self.official._safe_to_run()
        return not self._gave_views

    def ensure_safe(self) -> None:
        if not self.is_safe():
            raise InvokeError(
                "There is at least 1 reference to internal data\n      in the interpreter in the form of a numpy array "
                "or slice. Be sure to\n      only hold the function returned from tensor() if you are using raw\n      "
                "data access."
            )

    def is_constant(self, index: int) -> bool:
        tensor = self.setup.source.tensor(index)
        return tensor is not None and tensor.is_constant and index not in self.setup.freed

    def _set_official(self, index: int, value: Any) -> None:
        if self.is_constant(index):
            tensor = self.setup.source.tensor(index)
            assert tensor is not None
            raise TensorError(f"Tensor {index} '{tensor.name}' is a constant of the model, which cannot be set")
        try:
            self.official.set_tensor(index, value)
        except ValueError as error:
            raise TensorError(str(error)) from None

    def _get_official(self, index: int, subgraph_index: int) -> Any:
        try:
            return self.official.get_tensor(index, subgraph_index)
        except ValueError as error:
            raise TensorError(str(error)) from None

    def _view_official(self, index: int) -> Any:
        if self.setup.source.has_no_view(index):
            raise TensorError(f"Tensor {index} holds strings or handles, of which there is no view")
        self._gave_views = True
        try:
            view = self.official.tensor(index)()
        except ValueError as error:
            raise TensorError(str(error)) from None
        if self.is_constant(index):
            view.flags.writeable = False  # it is the file's memory
        return view

    def _resize_official(self, index: int, shape: Any, strict: bool) -> None:
        try:
            self.official.resize_tensor_input(index, shape, strict)
        except (RuntimeError, ValueError) as error:
            raise self.translated(error) from None

    # ------------------------------------------------------------------------------------------------- errors

    def translated(self, error: Exception) -> Exception:
        """An error of the official runtime as one of litegpu's."""
        if isinstance(error, LiteGpuError):
            return error
        return (InvokeError if isinstance(error, RuntimeError) else TensorError)(self._fresh(error))

    def refused_allocation(self, error: Exception) -> Exception:
        """The same for one of an allocation, which names the operators that nothing runs."""
        if cpu.is_unresolved(str(error)):
            model = self.setup.source.model
            missing = cpu.unresolved_custom_ops(model, model.main, model.main.operators, self.setup.options)
            if missing:
                self._fresh(error)
                return InvokeError(cpu.unresolved_message(missing))
        return self.translated(error)

    def _fresh(self, error: Exception) -> str:
        """The text without what earlier errors left in the official reporter."""
        text = str(error)
        if isinstance(error, ValueError) or "reference to internal data" in text:  # not from the reporter
            return text
        fresh = text.removeprefix(self._reported)
        self._reported = text
        return fresh or text or _SILENT


#: In place of a reason, which it does not give where memory is lacking.
_SILENT = (
    "The official runtime failed without saying why: perhaps there is too little memory for tensors of these shapes."
)


def resized(setup: Setup, options: OfficialOptions, shapes: Shapes) -> Any:
    """An official interpreter of inputs of these shapes."""
    official = setup.source.create(options)
    for index, shape in shapes.items():
        official.resize_tensor_input(index, shape)
    return official


class Closed:
    """What a closed interpreter has in place of an engine, and of an official interpreter."""

    waits = is_used = False

    def __getattr__(self, name: str) -> NoReturn:
        raise InvokeError("The interpreter is closed. Make a new one.")

    def settle(self) -> None: ...

    def close(self, *, wait: bool) -> None: ...

    def forked(self) -> bool:
        return True

    def preview(self) -> None: ...


#: One for all, typed as what it stands in for.
CLOSED: Any = Closed()
