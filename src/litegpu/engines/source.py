"""A model file that is opened once, whatever is done with it later."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from litegpu.cached import cached_property
from litegpu.delegates.cpu import OfficialOptions
from litegpu.errors import DelegateError, ModelError
from litegpu.model.cut import described
from litegpu.model.inline import inline_composites
from litegpu.model.inputs import is_given
from litegpu.model.mapping import check_mapped
from litegpu.model.ops.operands import OBJECTS
from litegpu.model.reader import read_model
from litegpu.model.types import Model, Operator, Tensor, TensorType


class ModelSource:
    """What was opened: `model`, and official interpreters for it.

    The file is mapped, not copied, and the official runtime maps it once more, by its path. If that has come to lead
    to another file meanwhile (a model that was replaced under a running program), it gets the bytes that were mapped
    at first, so that all that was decided about the model holds."""

    def __init__(self, model: Model, path: str | None = None, identity: tuple[int, ...] = ()) -> None:
        """`path`: of the file that the model is the whole of, and its `identity` when it was read."""
        self.model = model
        self._path = path
        self._identity = identity

    @classmethod
    def open(cls, path: str | None, content: bytes | None) -> Self:
        """Raises ModelError: nothing can be opened, or is no model. `path` may lead into a bundle."""
        if path is None:
            assert content is not None
            return cls(read_model(content))
        identity = _identity(path)
        model = read_model(path)
        return cls(model, path, identity) if len(model.content) == _size(identity) else cls(model)

    def entering(self, subgraph: int) -> Self:
        """The same model, of which another subgraph is run. Its official interpreters describe that subgraph's tensors,
        and run nothing."""
        return type(self)(inline_composites(replace(self.model, entry=subgraph)))

    @classmethod
    def changed(cls, content: bytes) -> Self:
        """Of a model that was made of an opened one."""
        return cls(read_model(content))

    def create(self, options: OfficialOptions) -> Any:
        """A new official interpreter. Raises ModelError or DelegateError with the runtime's text."""
        self.check_present()
        try:
            if self._path is not None and _is_utf8(self._path) and _identity(self._path) == self._identity:
                created = options.create(self._path)
                if _identity(self._path) == self._identity:
                    return created
            return options.create(content=self._present_content)
        except RuntimeError as error:
            raise DelegateError(str(error)) from None
        except ValueError as error:
            raise ModelError(str(error)) from None

    def check_present(self) -> None:
        """Raises ModelError if the file has been cut since it was opened, before anything reads what is gone."""
        check_mapped(self.model.content)

    @cached_property
    def _present_content(self) -> bytes:
        """Checked once more where the file was written into instead of replaced: what was mapped is what is there now.
        Raises ModelError if that is no model any more."""
        content = self._content
        if self._path is not None and _identity(self._path)[1:3] == self._identity[1:3]:
            read_model(content)
        return content

    @cached_property
    def _content(self) -> bytes:
        content = described(self.model) if self.model.entry else self.model.content
        return content if isinstance(content, bytes) else bytes(content)

    # ------------------------------------------------------------------------------- what is asked of the model

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Of all subgraphs."""
        return tuple(operator for subgraph in self.model.subgraphs for operator in subgraph.operators)

    def tensor(self, index: int, subgraph_index: int | None = None) -> Tensor | None:
        """None if there is none of this number. Without a subgraph, of the one that is run."""
        subgraph_index = self.model.entry if subgraph_index is None else subgraph_index
        if not 0 <= subgraph_index < len(self.model.subgraphs):
            return None
        tensors = self.model.subgraphs[subgraph_index].tensors
        return tensors[index] if 0 <= index < len(tensors) else None

    def is_computed(self, index: int) -> bool:
        """Whether a tensor of the main subgraph exists, and is no constant."""
        computed = self._computed
        return 0 <= index < len(computed) and computed[index]

    @cached_property
    def _computed(self) -> tuple[bool, ...]:
        return tuple(not tensor.is_constant for tensor in self.model.main.tensors)

    @cached_property
    def has_given_inputs(self) -> bool:
        """Whether an input has a value in the file."""
        return any(is_given(self.model, i) for i in self.model.main.inputs)

    def is_result(self, index: int) -> bool:
        """Whether an inference changes the tensor."""
        return self.is_computed(index) and index not in self.model.main.inputs

    def has_no_view(self, index: int) -> bool:
        """Whether it holds strings or handles."""
        tensor = self.tensor(index)
        return tensor is not None and tensor.type in OBJECTS

    @cached_property
    def read(self) -> frozenset[int]:
        """The tensors of the main subgraph that its operators read, or that it gives."""
        main = self.model.main
        return frozenset(t for operator in main.operators for t in operator.inputs).union(main.outputs)

    def string_inputs(self) -> set[int]:
        """Inputs that have nothing the official runtime could read until they are set."""
        main = self.model.main
        return {i for i in main.inputs if main.tensors[i].type is TensorType.STRING and not main.tensors[i].is_constant}


def input_shapes(official: Any) -> Mapping[int, tuple[int, ...]]:
    """The present shapes of an official interpreter's inputs."""
    inner = official._interpreter  # get_input_details() fails for names that are no text
    return {int(i): tuple(int(n) for n in inner.TensorSize(int(i), 0)) for i in inner.InputIndices()}


def _identity(path: str) -> tuple[int, ...]:
    """Of the file that the path leads to at present: another one, or another state of it, has another."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns


def _size(identity: tuple[int, ...]) -> int:
    return identity[0] if identity else -1


def _is_utf8(path: str) -> bool:
    """Whether the official runtime can have the path: not where bytes of it are no UTF-8, or none in this locale."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
