"""The same model for another batch size, by changing the shapes and the constant operands that hold the old one."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

import numpy as np

from litegpu.errors import OptionError, TensorError
from litegpu.model.reader import read_model
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Subgraph, Tensor


def with_batch(model: Model | bytes, batch: int, *, inputs: Collection[int] | None = None) -> Model:
    """The model with `batch` in place of the leading dimension of its inputs and of all that is computed from them.

    Each row of a batch gives what the original gives for it. Shapes in constant operands and options (RESHAPE, SLICE,
    BROADCAST_TO, TRANSPOSE_CONV ...) follow; tensors keep their numbers, and constants that other nodes share are
    copied. `inputs`: numbers of the input tensors that carry the batch; by default those whose leading dimension is the
    first input's.

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
    main = _Rebatching(model.main, carriers, old, int(batch)).run()
    changed = dataclasses.replace(model, subgraphs=(main, *model.subgraphs[1:]))
    return dataclasses.replace(read_model(write_model(changed)), path=model.path)


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
    """One graph on its way from one batch size to another.

    `factors` says of each tensor that depends on the batch how many times the batch its leading dimension is: 1 but
    between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND, where row j * batch + b is piece j of image b.
    """

    def __init__(self, graph: Subgraph, carriers: Sequence[int], old: int, new: int) -> None:
        self.graph, self.old, self.new = graph, old, new
        self.tensors = list(graph.tensors)
        self.factors: dict[int, int] = {}
        self.users = Counter(i for operator in graph.operators for i in operator.inputs) + Counter(graph.outputs)
        self._copies: dict[tuple[int, bytes], int] = {}
        for i in carriers:
            self.tensors[i] = _with_lead(graph.tensors[i], new)
            self.factors[i] = 1

    def run(self) -> Subgraph:
        operators = tuple(self._visit(operator) for operator in self.graph.operators)
        for i in self.graph.outputs:
            if self.factors.get(i, 1) != 1:
                raise TensorError(
                    f"output {i} '{self.tensors[i].name}' has {self.factors[i]} rows for each of the batch "
                    "(SPACE_TO_BATCH_ND without BATCH_TO_SPACE_ND), so it has no batch of its own"
                )
        return dataclasses.replace(self.graph, tensors=tuple(self.tensors), operators=operators)

    def constant(self, tensor: int, values: Sequence[int]) -> int:
        """The number of a constant like `tensor` with other values: itself if nobody else reads it."""
        original = self.graph.tensors[tensor]
        assert original.data is not None
        data = np.asarray(values, original.data.dtype).reshape(original.data.shape)
        if self.users[tensor] == 1:
            self.tensors[tensor] = dataclasses.replace(original, data=data)
            return tensor
        key = (tensor, data.tobytes())
        if key not in self._copies:
            self._copies[key] = number = len(self.tensors)
            name = f"{original.name}_batch_{self.new}"
            self.tensors.append(dataclasses.replace(original, index=number, name=name, data=data))
        return self._copies[key]

    def _visit(self, operator: Operator) -> Operator:
        if not any(i in self.factors for i in operator.inputs):
            return operator
        node = _Node(self, operator)
        rule = None if operator.is_custom else _RULES.get(operator.name)
        if rule is None:
            node.refuse("it is not known to treat the rows of a batch alike")
        factor = rule(node)
        if factor:
            for i in operator.outputs:
                tensor = self.graph.tensors[i]
                lead = tensor.shape[0] if tensor.shape else None
                if lead != factor * self.old:
                    node.refuse(
                        f"its output '{tensor.name}' of shape {list(tensor.shape)} does not begin with the batch"
                    )
                self.tensors[i] = _with_lead(tensor, factor * self.new)
                self.factors[i] = factor
        return dataclasses.replace(operator, inputs=tuple(node.inputs), options=node.options)


class _Node:
    """An operator that reads the batch, seen by the rule for its kind; shapes are those of the old batch."""

    def __init__(self, owner: _Rebatching, operator: Operator) -> None:
        self.owner, self.operator = owner, operator
        self.inputs = list(operator.inputs)
        self.options: dict[str, Any] = dict(operator.options)

    def refuse(self, reason: str) -> NoReturn:
        raise TensorError(
            f"the batch cannot become {self.owner.new}: {self.operator.name} (node {self.operator.index}): {reason}"
        )

    def require(self, condition: bool, reason: str) -> None:
        if not condition:
            self.refuse(reason)

    def factor(self, i: int) -> int:
        """How many times the batch leads input i, 0 if the input does not depend on the batch or is absent."""
        return self.owner.factors.get(self.operator.inputs[i], 0) if i < len(self.operator.inputs) else 0

    def shape(self, i: int) -> tuple[int, ...]:
        return self.owner.graph.tensors[self.operator.inputs[i]].shape

    def rank(self, i: int) -> int:
        return len(self.shape(i))

    @property
    def output_rank(self) -> int:
        return len(self.owner.graph.tensors[self.operator.outputs[0]].shape)

    def option(self, name: str, default: Any = 0) -> Any:
        value = self.options.get(name, default)
        return default if value is None else value

    def only(self, i: int) -> int:
        """The factor of input i, the only one that may depend on the batch."""
        for other in range(len(self.operator.inputs)):
            self.require(other == i or not self.factor(other), f"its input {other} depends on the batch")
        return self.factor(i)

    def integers(self, i: int) -> list[int]:
        """The values of constant input i."""
        tensor = self.owner.graph.tensors[self.operator.inputs[i]]
        if tensor.data is None:
            self.refuse(f"its input {i} is computed, so it cannot be told what it does with the batch")
        return [int(n) for n in np.ravel(tensor.data)]

    def rewrite(self, i: int, values: Sequence[int]) -> None:
        """Gives constant input i other values."""
        if list(values) != self.integers(i):
            self.inputs[i] = self.owner.constant(self.operator.inputs[i], values)

    def off_batch(self, axis: int, rank: int, verb: str) -> None:
        """`axis` of a tensor of `rank` is not the batch."""
        self.require(axis % rank != 0 if rank else False, f"it {verb} the batch axis")


def _with_lead(tensor: Tensor, lead: int) -> Tensor:
    """The tensor with another leading dimension; one that the file leaves open stays open."""
    signature = tensor.shape_signature
    if signature[0] != -1:
        signature = (lead, *signature[1:])
    return dataclasses.replace(tensor, shape=(lead, *tensor.shape[1:]), shape_signature=signature)


# ------------------------------------------------------------------------------------------------------- rules
# Each says that an operator keeps the rows of its batched inputs apart, changes the operands that hold the batch, and
# gives the factor of the outputs (0 if they do not depend on the batch).


def _rows(node: _Node) -> int:
    return node.only(0)


def _last_axis(node: _Node) -> int:
    node.require(node.rank(0) > 1, "it works along the batch axis, the only one")
    return node.only(0)


def _broadcast(node: _Node) -> int:
    return _aligned(node, node.output_rank)


def _aligned(node: _Node, rank: int) -> int:
    """NumPy broadcasting where the batch stays the first of `rank` axes."""
    found = set()
    for i, tensor in enumerate(node.operator.inputs):
        if tensor < 0:
            continue
        if node.factor(i):
            node.require(
                node.rank(i) == rank, f"the batch of its input {i} {list(node.shape(i))} meets another axis of the rest"
            )
            found.add(node.factor(i))
        else:
            shape = node.shape(i)
            node.require(
                len(shape) < rank or shape[0] == 1, f"its input {i} {list(shape)} has rows of its own for the batch"
            )
    node.require(len(found) == 1, "its inputs have different numbers of rows")
    return found.pop()


def _all(node: _Node) -> int:
    """Every input is batched."""
    found = {node.factor(i) for i in range(len(node.operator.inputs))}
    node.require(0 not in found, f"its input {_free(node)} does not depend on the batch, so it has too few rows")
    node.require(len(found) == 1, "its inputs have different numbers of rows")
    return found.pop()


def _free(node: _Node) -> int:
    return next((i for i in range(len(node.operator.inputs)) if not node.factor(i)), -1)


def _concatenation(node: _Node) -> int:
    node.off_batch(int(node.option("axis")), node.output_rank, "joins along")
    return _all(node)


def _unpack(node: _Node) -> int:
    node.off_batch(int(node.option("axis")), node.rank(0), "takes apart")
    return node.only(0)


def _split(node: _Node) -> int:
    data, axis = (1, 0) if node.operator.name == "SPLIT" else (0, 2)
    node.off_batch(node.integers(axis)[0], node.rank(data), "splits")
    return node.only(data)


def _along(verb: str) -> Callable[[_Node], int]:
    """Works along the axes in constant input 1."""

    def rule(node: _Node) -> int:
        for axis in node.integers(1):
            node.off_batch(axis, node.rank(0), verb)
        return node.only(0)

    return rule


def _pad(node: _Node) -> int:
    node.require(node.integers(1)[:2] == [0, 0], "it pads the batch axis")
    return node.only(0)


def _transpose(node: _Node) -> int:
    node.require(node.integers(1)[0] % node.rank(0) == 0, "it moves the batch axis")
    return node.only(0)


def _tile(node: _Node) -> int:
    node.require(node.integers(1)[0] == 1, "it repeats the batch")
    return node.only(0)


def _reshape(node: _Node) -> int:
    factor = node.only(0)
    lead = factor * node.owner.old
    after = factor * node.owner.new

    def renewed(sizes: Sequence[int]) -> list[int]:
        return [after, *sizes[1:]] if len(sizes) == node.output_rank and sizes[0] == lead else list(sizes)

    output = node.owner.graph.tensors[node.operator.outputs[0]].shape
    node.require(
        bool(output) and output[0] == lead and math.prod(output) == math.prod(node.shape(0)),
        f"from {list(node.shape(0))} to {list(output)} it mixes the batch with other axes",
    )
    if len(node.operator.inputs) > 1 and node.operator.inputs[1] >= 0:
        node.rewrite(1, renewed(node.integers(1)))
    if "new_shape" in node.options and node.options["new_shape"] is not None:
        node.options["new_shape"] = tuple(renewed([int(n) for n in node.options["new_shape"]]))
    return factor


def _squeeze(node: _Node) -> int:
    shape = node.shape(0)
    dims = node.option("squeeze_dims", ())
    axes = {int(a) % len(shape) for a in dims} if len(dims) else {i for i, n in enumerate(shape) if n == 1}
    node.require(0 not in axes, "it removes the batch axis")
    node.require(bool(axes) or node.owner.new > 1, "without squeeze_dims it would remove a batch of 1")
    node.options["squeeze_dims"] = tuple(sorted(axes))
    return node.only(0)


def _expand_dims(node: _Node) -> int:
    node.off_batch(node.integers(1)[0], node.rank(0) + 1, "puts an axis before")
    return node.only(0)


def _slice(node: _Node) -> int:
    factor = node.only(0)
    begin, size = node.integers(1), node.integers(2)
    node.require(begin[0] == 0 and size[0] in (-1, factor * node.owner.old), "it cuts the batch")
    node.rewrite(2, [size[0] if size[0] == -1 else factor * node.owner.new, *size[1:]])
    return factor


def _strided_slice(node: _Node) -> int:
    """Bit 0 of a mask is about the first entry of begin, end and strides, which is the batch's."""
    factor = node.only(0)
    begin, end, strides = (node.integers(i) for i in (1, 2, 3))
    first = {name: int(node.option(f"{name}_mask")) & 1 for name in ("begin", "end", "ellipsis", "new_axis")}
    if first["ellipsis"]:
        others = len(begin) - 1 - (int(node.option("new_axis_mask")) >> 1).bit_count()
        node.require(others < node.rank(0), "its ellipsis stands for no axis, so that it cuts the batch")
        return factor
    node.require(not first["new_axis"], "it puts an axis before the batch axis")
    node.require(not int(node.option("shrink_axis_mask")) & 1, "it takes one row of the batch")
    lead = factor * node.owner.old
    whole = (first["begin"] or begin[0] == 0) and strides[0] == 1 and (first["end"] or end[0] >= lead)
    node.require(bool(whole), "it cuts the batch")
    if not first["end"]:
        node.rewrite(2, [factor * node.owner.new, *end[1:]])
    return factor


def _broadcast_to(node: _Node) -> int:
    factor = node.only(0)
    sizes = node.integers(1)
    node.require(len(sizes) == node.rank(0), "it puts axes before the batch axis")
    node.require(sizes[0] == factor * node.owner.old, "it repeats the batch")
    node.rewrite(1, [factor * node.owner.new, *sizes[1:]])
    return factor


def _transposed_convolution(node: _Node) -> int:
    factor = node.only(2)
    node.rewrite(0, [factor * node.owner.new, *node.integers(0)[1:]])
    return factor


def _matmul(node: _Node) -> int:
    if node.output_rank > 2:
        return _aligned(node, node.output_rank)
    node.require(not node.option("adj_x", False), "it multiplies along the batch axis")
    return node.only(0)


def _gather(node: _Node) -> int:
    axis = int(node.option("axis")) % node.rank(0)
    if node.option("batch_dims"):
        return _all(node)
    if node.factor(0):
        node.require(axis != 0, "it picks rows of the batch")
        return node.only(0)
    node.require(axis == 0, "it puts other axes before the batch axis")
    return node.only(1)


def _lookup(node: _Node) -> int:
    """Rows of a table that does not depend on the batch: EMBEDDING_LOOKUP (ids, table) and GATHER_ND (table, ids)."""
    ids = 1 if node.operator.name == "GATHER_ND" else 0
    node.require(node.operator.name != "GATHER_ND" or node.rank(1) > 1, "its indices have no batch axis")
    return node.only(ids)


def _one_hot(node: _Node) -> int:
    node.require(int(node.option("axis", -1)) % node.output_rank != 0, "it puts an axis before the batch axis")
    return node.only(0)


def _space_to_batch(node: _Node) -> int:
    return node.only(0) * math.prod(node.integers(1))


def _batch_to_space(node: _Node) -> int:
    factor, area = node.only(0), math.prod(node.integers(1))
    node.require(area > 0 and factor % area == 0, "it turns the batch into space")
    return factor // area


def _rank(node: _Node) -> int:
    return 0


_KINDS: tuple[tuple[Callable[[_Node], int], str], ...] = (
    (_rows, """ABS AVERAGE_POOL_2D CAST CEIL CONV_2D CONV_3D COS DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE ELU EXP
        FAKE_QUANT FLOOR FULLY_CONNECTED GELU HARD_SWISH L2_POOL_2D LEAKY_RELU LOCAL_RESPONSE_NORMALIZATION LOG
        LOGICAL_NOT LOGISTIC MAX_POOL_2D NEG QUANTIZE RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 RESIZE_BILINEAR
        RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SIGN SIN SPACE_TO_DEPTH SQRT SQUARE TANH ZEROS_LIKE"""),
    (_last_axis, "L2_NORMALIZATION LOG_SOFTMAX SOFTMAX TOPK_V2"),
    (_broadcast, """ADD ATAN2 DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR
        MAXIMUM MINIMUM MUL NOT_EQUAL POW PRELU SELECT_V2 SQUARED_DIFFERENCE SUB"""),
    (_all, "ADD_N SELECT"),
    (_concatenation, "CONCATENATION PACK"),
    (_along("reduces"), "ARG_MAX ARG_MIN MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD SUM"),
    (_along("sums up"), "CUMSUM"),
    (_along("reverses"), "REVERSE_V2"),
    (_split, "SPLIT SPLIT_V"),
    (_unpack, "UNPACK"),
    (_pad, "MIRROR_PAD PAD PADV2"),
    (_transpose, "TRANSPOSE"),
    (_tile, "TILE"),
    (_reshape, "RESHAPE"),
    (_squeeze, "SQUEEZE"),
    (_expand_dims, "EXPAND_DIMS"),
    (_slice, "SLICE"),
    (_strided_slice, "STRIDED_SLICE"),
    (_broadcast_to, "BROADCAST_TO"),
    (_transposed_convolution, "CONV_3D_TRANSPOSE TRANSPOSE_CONV"),
    (_matmul, "BATCH_MATMUL"),
    (_gather, "GATHER"),
    (_lookup, "EMBEDDING_LOOKUP GATHER_ND"),
    (_one_hot, "ONE_HOT"),
    (_space_to_batch, "SPACE_TO_BATCH_ND"),
    (_batch_to_space, "BATCH_TO_SPACE_ND"),
    (_rank, "RANK"),
)  # fmt: skip

_RULES = {name: rule for rule, names in _KINDS for name in names.split()}
