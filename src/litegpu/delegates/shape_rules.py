"""What shape an operator's results have, one function for each family, as the official kernels' Prepare() finds it.

Only shapes and constant operands are looked at; nothing is allocated, so sizes that the CPU could not hold are no
obstacle. A rule that is given what it does not expect raises Unexpected, and the official runtime decides
(delegates/shapes.py); one whose answer depends on values that the model computes raises Computed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.lower.slicing import strided
from litegpu.gpu.lower.window import SAME, VALID, output_size
from litegpu.model.types import Operator, Subgraph, TensorType

Shape = tuple[int, ...]


class Unexpected(Exception):
    """The operator is not as the rule for its kind wants it."""


class Computed(Exception):
    """Values that the model computes decide the shape."""


class Node:
    """An operator as its rule sees it. `shapes` has those of the tensors so far, constants left out."""

    def __init__(self, subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> None:
        self.operator, self._tensors, self._shapes = operator, subgraph.tensors, shapes

    def require(self, condition: bool, reason: str = "") -> None:
        if not condition:
            raise Unexpected(reason)

    def has(self, i: int) -> bool:
        return i < len(self.operator.inputs) and self.operator.inputs[i] >= 0

    @property
    def count(self) -> int:
        """How many inputs there are."""
        return len(self.operator.inputs)

    def shape(self, i: int) -> Shape:
        self.require(self.has(i))
        index = self.operator.inputs[i]
        return self._shapes.get(index, self._tensors[index].shape)

    def integers(self, i: int) -> tuple[int, ...]:
        """The values of input i, a constant."""
        self.require(self.has(i))
        tensor = self._tensors[self.operator.inputs[i]]
        if tensor.data is None:
            raise Computed
        values = tensor.data
        known = tensor.type in (TensorType.INT32, TensorType.INT64, TensorType.INT16, TensorType.INT8)
        self.require(known and tensor.sparsity is None and values.size == math.prod(tensor.shape))
        return tuple(int(n) for n in np.ravel(values))

    def integer(self, i: int) -> int:
        values = self.integers(i)
        self.require(len(values) == 1)
        return values[0]

    def option(self, name: str, default: Any = 0) -> Any:
        value = self.operator.options.get(name, default)
        return default if value is None else value

    def axis(self, axis: int, rank: int) -> int:
        self.require(-rank <= axis < rank)
        return axis % rank

    def struct(self, count: int) -> tuple[int, ...]:
        """The first int32 fields of the C struct that custom options are the image of."""
        options = self.operator.custom_options
        self.require(len(options) >= 4 * count)
        return struct.unpack_from(f"<{count}i", options)

    @property
    def declared(self) -> Shape:
        """The output's shape in the file, for custom operators which say nowhere else what they make of the inputs as
        they are in the file; only the batch, if it leads both, may differ from it."""
        inputs = [i for i in self.operator.inputs if i >= 0]
        given = [(self._shapes.get(i, self._tensors[i].shape), self._tensors[i].shape) for i in inputs]
        output = self._tensors[self.operator.outputs[0]].shape
        if all(now == then for now, then in given):
            return output
        self.require(all(now[1:] == then[1:] and now and then[:1] == output[:1] for now, then in given))
        leads = {now[0] for now, _ in given}
        self.require(len(leads) == 1)
        return (leads.pop(), *output[1:])


Rule = Callable[[Node], Sequence[Shape]]


def shapes_of_results(subgraph: Subgraph, operator: Operator, shapes: Mapping[int, Shape]) -> Sequence[Shape] | None:
    """The shapes of the outputs, None if there is no rule for the operator. Raises Unexpected or Computed."""
    rule = RULES.get(operator.name)
    if rule is None or (operator.is_custom is not (operator.name in _CUSTOM)):
        return None
    found = rule(Node(subgraph, operator, shapes))
    if len(found) != len(operator.outputs) or any(n < 0 for shape in found for n in shape):
        raise Unexpected
    return found


RULES: dict[str, Rule] = {}


def _rule(names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names.split(), rule))
        return rule

    return register


# ------------------------------------------------------------------------------------------ element by element


@_rule("""ABS CAST CEIL COS CUMSUM DENSIFY DEQUANTIZE ELU EXP FAKE_QUANT FLOOR GELU HARD_SWISH L2_NORMALIZATION
    LEAKY_RELU LOCAL_RESPONSE_NORMALIZATION LOG LOG_SOFTMAX LOGICAL_NOT LOGISTIC NEG QUANTIZE RELU RELU6 RELU_0_TO_1
    RELU_N1_TO_1 REVERSE_V2 ROUND RSQRT SIGN SIN SOFTMAX SQRT SQUARE TANH ZEROS_LIKE""")
def _same(node: Node) -> list[Shape]:
    return [node.shape(0)]


@_rule("ADD_N")
def _alike(node: Node) -> list[Shape]:
    node.require(len({node.shape(i) for i in range(node.count)}) == 1)
    return [node.shape(0)]


@_rule("""ADD ATAN2 DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR MAXIMUM
    MINIMUM MUL NOT_EQUAL POW SELECT_V2 SQUARED_DIFFERENCE SUB""")
def _broadcast(node: Node) -> list[Shape]:
    return [_together(node, [node.shape(i) for i in range(node.count)])]


@_rule("PRELU")
def _prelu(node: Node) -> list[Shape]:
    node.require(_together(node, [node.shape(0), node.shape(1)]) == node.shape(0))
    return [node.shape(0)]


@_rule("SELECT")
def _select(node: Node) -> list[Shape]:
    condition, x, y = (node.shape(i) for i in range(3))
    node.require(x == y and (condition in (x, ()) or condition == x[:1]))
    return [x]


def _together(node: Node, shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcasting."""
    rank = max(len(s) for s in shapes)
    result = []
    for sizes in zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True):
        others = set(sizes) - {1}
        node.require(len(others) <= 1)
        result.append(others.pop() if others else 1)
    return tuple(result)


# ---------------------------------------------------------------------------------------- windows and products


@_rule("CONV_2D")
def _conv_2d(node: Node) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(x) == len(weights) == 4 and weights[3] > 0 and x[3] % weights[3] == 0)
    return [_windows(node, x, weights[1:3], weights[0])]


@_rule("DEPTHWISE_CONV_2D")
def _depthwise_conv_2d(node: Node) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(x) == len(weights) == 4 and weights[0] == 1 and x[3] > 0 and weights[3] % x[3] == 0)
    return [_windows(node, x, weights[1:3], weights[3])]


@_rule("AVERAGE_POOL_2D L2_POOL_2D MAX_POOL_2D")
def _pool_2d(node: Node) -> list[Shape]:
    x = node.shape(0)
    node.require(len(x) == 4)
    return [_windows(node, x, (int(node.option("filter_height")), int(node.option("filter_width"))), x[3])]


def _windows(node: Node, x: Shape, window: Sequence[int], channels: int) -> Shape:
    stride = int(node.option("stride_h", 1)), int(node.option("stride_w", 1))
    dilation = int(node.option("dilation_h_factor", 1)), int(node.option("dilation_w_factor", 1))
    return _placed(node, x, window, stride, dilation, int(node.option("padding", SAME)), channels)


def _placed(
    node: Node, x: Shape, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int], padding: int,
    channels: int,
) -> Shape:  # fmt: skip
    node.require(padding in (SAME, VALID) and min(*stride, *dilation, *window) > 0)
    places = [
        output_size(n, k, s, d, padding) for n, k, s, d in zip(x[1:3], window, stride, dilation, strict=True)
    ]  # fmt: skip
    node.require(min(places) > 0)
    return (x[0], *places, channels)


@_rule("TRANSPOSE_CONV")
def _transpose_conv(node: Node) -> list[Shape]:
    sizes, weights, x = node.integers(0), node.shape(1), node.shape(2)
    node.require(len(sizes) == len(weights) == len(x) == 4 and weights[3] == x[3] and sizes[3] == weights[0])
    return [sizes]


@_rule("FULLY_CONNECTED")
def _fully_connected(node: Node) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(weights) == 2 and weights[1] > 0 and math.prod(x) % weights[1] == 0)
    node.require(len(node.operator.outputs) == 1)
    if node.option("keep_num_dims", False):
        node.require(len(x) > 0 and x[-1] == weights[1])
        return [(*x[:-1], weights[0])]
    return [(math.prod(x) // weights[1], weights[0])]


@_rule("BATCH_MATMUL")
def _batch_matmul(node: Node) -> list[Shape]:
    x, y = node.shape(0), node.shape(1)
    node.require(len(x) >= 2 and len(y) >= 2)
    rows, depth = (x[-1], x[-2]) if node.option("adj_x", False) else (x[-2], x[-1])
    other, columns = (y[-1], y[-2]) if node.option("adj_y", False) else (y[-2], y[-1])
    node.require(depth == other)
    return [(*_together(node, [x[:-2], y[:-2]]), rows, columns)]


@_rule("LSTM UNIDIRECTIONAL_SEQUENCE_LSTM")
def _lstm(node: Node) -> list[Shape]:
    node.require(node.count >= 20 and len(node.operator.outputs) == 1)
    x, cells, recurrent = node.shape(0), node.shape(2), node.shape(8)
    node.require(len(x) == (2 if node.operator.name == "LSTM" else 3) and len(recurrent) == len(cells) == 2)
    batch = x[1] if len(x) == 3 and node.option("time_major", False) else x[0]
    kept = math.prod(node.shape(18)), math.prod(node.shape(19))
    node.require(kept == (batch * recurrent[1], batch * cells[0]) and x[-1] == cells[1])
    return [(*x[:-1], recurrent[1])]


# ---------------------------------------------------------------------------------- reductions, sizes, indices


@_rule("MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD SUM")
def _reduce(node: Node) -> list[Shape]:
    x = node.shape(0)
    node.require(len(x) > 0)
    axes = {node.axis(a, len(x)) for a in node.integers(1)}
    if node.option("keep_dims", False):
        return [tuple(1 if i in axes else n for i, n in enumerate(x))]
    return [tuple(n for i, n in enumerate(x) if i not in axes)]


@_rule("ARG_MAX ARG_MIN")
def _arg(node: Node) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(node.integer(1), len(x))
    return [x[:axis] + x[axis + 1 :]]


@_rule("TOPK_V2")
def _top(node: Node) -> list[Shape]:
    x, k = node.shape(0), node.integer(1)
    node.require(len(x) > 0 and 0 <= k <= x[-1])
    return [(*x[:-1], k)] * 2


@_rule("RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR")
def _resize(node: Node) -> list[Shape]:
    x, size = node.shape(0), node.integers(1)
    node.require(len(x) == 4 and len(size) == 2 and min(size) > 0)
    return [(x[0], *size, x[3])]


@_rule("GATHER")
def _gather(node: Node) -> list[Shape]:
    x, indices = node.shape(0), node.shape(1)
    axis = node.axis(int(node.option("axis")), len(x))
    batch = int(node.option("batch_dims"))
    batch += len(indices) if batch < 0 else 0
    node.require(0 <= batch <= min(axis, len(indices)) and x[:batch] == indices[:batch])
    return [(*x[:axis], *indices[batch:], *x[axis + 1 :])]


@_rule("GATHER_ND")
def _gather_nd(node: Node) -> list[Shape]:
    x, indices = node.shape(0), node.shape(1)
    node.require(len(x) > 0 and len(indices) > 0 and 0 < indices[-1] <= len(x))
    return [(*indices[:-1], *x[indices[-1] :])]


@_rule("SCATTER_ND")
def _scatter_nd(node: Node) -> list[Shape]:
    indices, updates, sizes = node.shape(0), node.shape(1), node.integers(2)
    node.require(len(indices) > 0 and 0 < indices[-1] <= len(sizes))
    node.require(updates == (*indices[:-1], *sizes[indices[-1] :]))
    return [sizes]


@_rule("ONE_HOT")
def _one_hot(node: Node) -> list[Shape]:
    indices, depth = node.shape(0), node.integer(1)
    axis = node.axis(int(node.option("axis", -1)), len(indices) + 1)
    return [(*indices[:axis], depth, *indices[axis:])]


@_rule("EMBEDDING_LOOKUP")
def _embedding(node: Node) -> list[Shape]:
    ids, table = node.shape(0), node.shape(1)
    node.require(len(ids) == 1 and len(table) >= 2)
    return [(*ids, *table[1:])]


@_rule("SHAPE")
def _shape(node: Node) -> list[Shape]:
    return [(len(node.shape(0)),)]


@_rule("RANK")
def _rank(node: Node) -> list[Shape]:
    return [()]


@_rule("FILL")
def _fill(node: Node) -> list[Shape]:
    node.require(len(node.shape(0)) == 1 and node.shape(1) == ())
    return [node.integers(0)]


# --------------------------------------------------------------------------------------------- rearrangement


@_rule("RESHAPE")
def _reshape(node: Node) -> list[Shape]:
    x = node.shape(0)
    if node.has(1) and len(node.shape(1)) == 1:
        sizes = list(node.integers(1))
    else:
        node.require(not node.has(1))
        sizes = [int(n) for n in node.option("new_shape", ())]
        if sizes == [0]:  # an old way to write a scalar
            sizes = []
    node.require(sizes.count(-1) <= 1)
    if -1 in sizes:
        others = math.prod(n for n in sizes if n != -1)
        node.require(others > 0 and math.prod(x) % others == 0)
        sizes[sizes.index(-1)] = math.prod(x) // others
    node.require(math.prod(sizes) == math.prod(x))
    return [tuple(sizes)]


@_rule("SQUEEZE")
def _squeeze(node: Node) -> list[Shape]:
    x = node.shape(0)
    axes = {node.axis(int(a), len(x)) for a in node.option("squeeze_dims", ())}
    node.require(all(x[a] == 1 for a in axes))
    return [tuple(n for i, n in enumerate(x) if not (i in axes if axes else n == 1))]


@_rule("EXPAND_DIMS")
def _expand_dims(node: Node) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(node.integer(1), len(x) + 1)
    return [(*x[:axis], 1, *x[axis:])]


@_rule("TRANSPOSE")
def _transpose(node: Node) -> list[Shape]:
    x = node.shape(0)
    order = [node.axis(a, len(x)) for a in node.integers(1)]
    node.require(sorted(order) == list(range(len(x))))
    return [tuple(x[a] for a in order)]


@_rule("TILE")
def _tile(node: Node) -> list[Shape]:
    x, multiples = node.shape(0), node.integers(1)
    node.require(len(x) == len(multiples))
    return [tuple(n * m for n, m in zip(x, multiples, strict=True))]


@_rule("BROADCAST_TO")
def _broadcast_to(node: Node) -> list[Shape]:
    x, sizes = node.shape(0), node.integers(1)
    node.require(len(node.shape(1)) == 1 and len(x) <= len(sizes) and _together(node, [x, sizes]) == sizes)
    return [sizes]


@_rule("SPACE_TO_DEPTH")
def _space_to_depth(node: Node) -> list[Shape]:
    x, block = node.shape(0), int(node.option("block_size"))
    node.require(len(x) == 4 and block > 0 and x[1] % block == x[2] % block == 0)
    return [(x[0], x[1] // block, x[2] // block, x[3] * block * block)]


@_rule("DEPTH_TO_SPACE")
def _depth_to_space(node: Node) -> list[Shape]:
    x, block = node.shape(0), int(node.option("block_size"))
    node.require(len(x) == 4 and block > 0 and x[3] % (block * block) == 0)
    return [(x[0], x[1] * block, x[2] * block, x[3] // (block * block))]


@_rule("SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND")
def _space_and_batch(node: Node) -> list[Shape]:
    x, block, pairs = node.shape(0), node.integers(1), node.integers(2)
    m = len(block)
    node.require(len(x) in (3, 4) and m == len(x) - 2 and len(pairs) == 2 * m and min(block) > 0 and min(pairs) >= 0)
    margins = [before + after for before, after in zip(pairs[::2], pairs[1::2], strict=True)]
    space, area = x[1 : 1 + m], math.prod(block)
    if node.operator.name == "BATCH_TO_SPACE_ND":
        node.require(x[0] % area == 0)
        sizes = [n * b - crop for n, b, crop in zip(space, block, margins, strict=True)]
        node.require(min(sizes) >= 0)
        return [(x[0] // area, *sizes, *x[1 + m :])]
    padded = [n + margin for n, margin in zip(space, margins, strict=True)]
    node.require(all(n % b == 0 for n, b in zip(padded, block, strict=True)))
    return [(x[0] * area, *(n // b for n, b in zip(padded, block, strict=True)), *x[1 + m :])]


@_rule("CONCATENATION")
def _concatenation(node: Node) -> list[Shape]:
    shapes = [node.shape(i) for i in range(node.count)]
    axis = node.axis(int(node.option("axis")), len(shapes[0]))
    rest = {s[:axis] + s[axis + 1 :] for s in shapes}
    node.require(len(rest) == 1 and len({len(s) for s in shapes}) == 1)
    return [(*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])]


@_rule("PACK")
def _pack(node: Node) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(int(node.option("axis")), len(x) + 1)
    node.require(all(node.shape(i) == x for i in range(node.count)))
    return [(*x[:axis], node.count, *x[axis:])]


# ------------------------------------------------------------------------------------------ slices and padding


@_rule("SLICE")
def _slice(node: Node) -> list[Shape]:
    x, begin, size = node.shape(0), node.integers(1), node.integers(2)
    node.require(len(x) == len(begin) == len(size))
    result = tuple(n - b if s == -1 else s for n, b, s in zip(x, begin, size, strict=True))
    node.require(all(b >= 0 and s >= 0 and b + s <= n for n, b, s in zip(x, begin, result, strict=True)))
    return [result]


@_rule("STRIDED_SLICE")
def _strided_slice(node: Node) -> list[Shape]:
    given = [node.integers(i) for i in (1, 2, 3)]
    node.require(len({len(g) for g in given}) == 1)
    return [strided(node, node.shape(0), given)[3]]


@_rule("SPLIT")
def _split(node: Node) -> list[Shape]:
    x, count = node.shape(1), len(node.operator.outputs)
    axis = node.axis(node.integer(0), len(x))
    node.require(count > 0 and x[axis] % count == 0)
    return [(*x[:axis], x[axis] // count, *x[axis + 1 :])] * count


@_rule("SPLIT_V")
def _split_v(node: Node) -> list[Shape]:
    x, sizes = node.shape(0), list(node.integers(1))
    axis = node.axis(node.integer(2), len(x))
    node.require(sizes.count(-1) <= 1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x[axis] - (sum(sizes) + 1)
    node.require(sum(sizes) == x[axis])
    return [(*x[:axis], n, *x[axis + 1 :]) for n in sizes]


@_rule("UNPACK")
def _unpack(node: Node) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(int(node.option("axis")), len(x))
    node.require(x[axis] == len(node.operator.outputs))
    return [x[:axis] + x[axis + 1 :]] * x[axis]


@_rule("MIRROR_PAD PAD PADV2")
def _pad(node: Node) -> list[Shape]:
    x, margins = node.shape(0), node.integers(1)
    node.require(node.shape(1) == (len(x), 2) and min(margins, default=0) >= 0)
    return [tuple(n + a + b for n, a, b in zip(x, margins[::2], margins[1::2], strict=True))]


# ------------------------------------------------------------------------------------------- custom operators


_CUSTOM = frozenset(
    """Convolution2DTransposeBias Landmarks2TransformMatrix Landmarks2TransformMatrixV2 MaxPoolingWithArgmax2D
    MaxUnpooling2D Resampler TransformLandmarks TransformTensor TransformTensorBilinear""".split()  # noqa: SIM905
)


@_rule("MaxPoolingWithArgmax2D")
def _pool_with_argmax(node: Node) -> list[Shape]:
    x = node.shape(0)
    padding, stride_w, stride_h, width, height = node.struct(5)
    node.require(len(x) == 4 and padding in (1, 2))
    kind = SAME if padding == 1 else VALID
    return [_placed(node, x, (height, width), (stride_h, stride_w), (1, 1), kind, x[3])] * 2


@_rule("Convolution2DTransposeBias")
def _transpose_bias(node: Node) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    padding, stride_w, stride_h = node.struct(3)
    node.require(len(x) == len(weights) == 4 and padding in (0, 1, 2) and min(stride_h, stride_w) > 0)
    sizes = []
    for n, k, s in zip(x[1:3], weights[1:3], (stride_h, stride_w), strict=True):
        cut = max(0, k - (n - 1) % s - 1) if padding == 1 else 0
        sizes.append((n - 1) * s + k - cut)
    return [(x[0], *sizes, weights[0])]


@_rule("Resampler")
def _resampler(node: Node) -> list[Shape]:
    image, warp = node.shape(0), node.shape(1)
    node.require(len(image) == len(warp) == 4)
    return [(*warp[:3], image[3])]


@_rule("TransformLandmarks")
def _landmarks(node: Node) -> list[Shape]:
    return [node.shape(0)]


@_rule("Landmarks2TransformMatrix Landmarks2TransformMatrixV2 MaxUnpooling2D TransformTensor TransformTensorBilinear")
def _declared(node: Node) -> list[Shape]:
    return [node.declared]
