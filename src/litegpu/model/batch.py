"""The same model for another batch size, by changing the shapes and the constant operands that hold the old one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from litegpu.errors import OptionError, TensorError
from litegpu.model.mapping import check_mapped
from litegpu.model.ops import Repeating, find
from litegpu.model.ops.batch_node import BatchNode, Place, Repeat
from litegpu.model.reader import read_model
from litegpu.model.serialize import write_model
from litegpu.model.shape_values import with_known_shapes
from litegpu.model.types import Model, Operator, Subgraph, Tensor


def with_batch(model: Model | bytes, batch: int, *, inputs: Collection[int] | None = None) -> Model:
    """The model with `batch` in place of the leading dimension of its inputs and of all that is computed from them.

    Each row of a batch gives what the original gives for it. Shapes in constant operands and options (RESHAPE, SLICE,
    BROADCAST_TO, TRANSPOSE_CONV ...) follow, and so do those that SHAPE and what stands behind it compute; tensors keep
    their numbers, and constants that other nodes share are copied. What does not depend on the inputs but has to have
    their rows, as a class token has, is repeated. `inputs`: numbers of the input tensors that carry the batch; by
    default those whose leading dimension is the first input's.

    Raises:
        ModelError: the bytes are no model.
        OptionError: `batch` is no positive integer.
        TensorError: an input cannot carry the batch, or a node does not keep its rows apart (it is named).
    """
    model = read_model(model) if isinstance(model, bytes) else model
    if isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or batch < 1:
        raise OptionError(f"batch is {batch!r}; it must be a positive integer")
    carriers, old = _carriers(model.main, inputs)
    if old == batch:
        return model
    check_mapped(model.content)
    main = rebatched(with_known_shapes(model.main), carriers, old, int(batch))
    changed = model.with_main(main)
    return dataclasses.replace(read_model(write_model(changed)), path=model.path)


def rebatched(graph: Subgraph, carriers: Sequence[int], old: int, new: int) -> Subgraph:
    """The graph with another batch in its inputs `carriers`, whose leading dimension is `old`. Raises TensorError."""
    repeated: dict[int, Place] = {}
    while True:
        try:
            return _Rebatching(graph, carriers, old, new, repeated).run()
        except Repeat as wish:
            repeated[wish.tensor] = wish.place


def _carriers(graph: Subgraph, inputs: Collection[int] | None) -> tuple[list[int], int]:
    """The inputs that carry the batch, and its size so far."""
    ranked = [i for i in graph.inputs if graph.tensors[i].shape]
    chosen = ranked if inputs is None else list(inputs)
    for i in chosen:
        if i not in ranked:
            raise TensorError(f"tensor {i} is no input with a leading dimension; those are {ranked}")
    if not chosen:
        raise TensorError("the model has no input with a leading dimension, so it has no batch")
    old = graph.tensors[chosen[0]].shape[0]
    same = [i for i in chosen if graph.tensors[i].shape[0] == old]
    if inputs is not None and same != chosen:
        shapes = ", ".join(f"'{graph.tensors[i].name}' {list(graph.tensors[i].shape)}" for i in chosen)
        raise TensorError(f"the inputs have different leading dimensions: {shapes}; name those that carry the batch")
    return same, old


class _Rebatching:
    """One graph on its way from one batch size to another. `places` has the tensors that depend on the batch;
    `repeated` those that do not and are computed for each of it all the same."""

    def __init__(
        self, graph: Subgraph, carriers: Sequence[int], old: int, new: int, repeated: dict[int, Place]
    ) -> None:
        self.graph, self.old, self.new, self.repeated = graph, old, new, repeated
        self.tensors = list(graph.tensors)
        self.places: dict[int, Place] = {}
        self.users: Mapping[int, int] = Counter(i for operator in graph.operators for i in operator.inputs) + Counter(
            graph.outputs
        )
        self._copies: dict[tuple[int, bytes], int] = {}
        for i in carriers:
            self.put(i, Place())

    def run(self) -> Subgraph:
        operators = tuple(self._visit(operator) for operator in self.graph.operators)
        for i in self.graph.outputs:
            place = self.places.get(i, Place())
            if place == Place():
                continue
            if place.cause:
                raise TensorError(f"the batch cannot become {self.new}: {place.cause}")
            raise TensorError(
                f"output {i} '{self.tensors[i].name}' has {place.outer} rows for each of the batch "
                "(SPACE_TO_BATCH_ND without BATCH_TO_SPACE_ND), so it has no batch of its own"
            )
        return dataclasses.replace(self.graph, tensors=tuple(self.tensors), operators=operators)

    def put(self, tensor: int, place: Place) -> None:
        """The tensor has the batch there."""
        self.places[tensor] = place
        self.tensors[tensor] = _with_extent(self.graph.tensors[tensor], place.axis, place.size(self.new))

    def constant(self, tensor: int, data: np.ndarray) -> int:
        """The number of a constant like `tensor` with other values: itself if nobody else reads it."""
        original = self.graph.tensors[tensor]
        changed = dataclasses.replace(original, data=data, shape=data.shape, shape_signature=data.shape)
        if self.users[tensor] == 1:
            self.tensors[tensor] = changed
            return tensor
        key = (tensor, data.tobytes())
        if key not in self._copies:
            self._copies[key] = number = len(self.tensors)
            self.tensors.append(dataclasses.replace(changed, index=number, name=f"{original.name}_batch_{self.new}"))
        return self._copies[key]

    def _visit(self, operator: Operator) -> Operator:
        wanted = [self.repeated[t] for t in operator.outputs if t in self.repeated]
        if not wanted and not any(i in self.places for i in operator.inputs):
            return operator
        node = BatchNode(self, operator)
        if wanted and not any(i in self.places for i in operator.inputs):
            place = _of_repeated(node, wanted[0])
        else:
            place = _of_operator(node)
        if place is not None:
            for i in (output for output in operator.outputs if output >= 0):
                tensor = self.graph.tensors[i]
                if len(tensor.shape) <= place.axis or tensor.shape[place.axis] != place.size(self.old):
                    node.refuse(
                        f"its output '{tensor.name}' of shape {list(tensor.shape)} does not begin with the batch"
                    )
                self.put(i, place)
        return dataclasses.replace(operator, inputs=tuple(node.inputs), options=node.options)


def _with_extent(tensor: Tensor, axis: int, extent: int) -> Tensor:
    """The tensor with another extent along an axis; one that the file leaves open stays open."""
    signature = tensor.shape_signature
    if signature[axis] != -1:
        signature = (*signature[:axis], extent, *signature[axis + 1 :])
    return dataclasses.replace(
        tensor, shape=(*tensor.shape[:axis], extent, *tensor.shape[axis + 1 :]), shape_signature=signature
    )


def _of_operator(node: BatchNode) -> Place | None:
    """Where the outputs of a node that reads the batch have it (None: nowhere); the node's operands are changed. Raises
    TensorError or Repeat."""
    known = find(node.operator)
    if known is None or known.batch is None:
        node.refuse("it is not known to treat the rows of a batch alike")
    return known.batch(node)


def _of_repeated(node: BatchNode, place: Place) -> Place | None:
    """The same for a node whose inputs do not depend on the batch, and whose outputs have to have it at `place`."""
    known = find(node.operator)
    repeating = Repeating() if known is None else known.repeating
    if repeating.sizes is not None and repeating.sizes(node, place):
        return place
    repeated = False
    for i in node.given if repeating.data is None else [repeating.data]:
        before = (repeating.before or _same_axis)(node, i, place)
        if before is not None:
            node.repeat(i, before)
            repeated = True
    cannot = "its output does not depend on the batch, and cannot be repeated for it"
    node.require(repeated, cannot)
    found = _of_operator(node)
    node.require(found == place, cannot)
    return found


def _same_axis(node: BatchNode, i: int, place: Place) -> Place | None:
    """The place in input i that broadcasts to `place` of the output."""
    shape = node.shape(i)
    axis = place.axis - (len(node.output) - len(shape))
    return place.at(axis) if axis >= 0 and shape[axis] == place.size(node.owner.old) else None
