"""What the nodes of a GPU graph compute, in NumPy: folds constants, and is the definition the kernels are tested by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.graph import (
    Apply,
    Arg,
    ArgReduce,
    Attention,
    Concat,
    Conv2D,
    Copy,
    Custom,
    DepthwiseConv2D,
    DType,
    Elementwise,
    Expr,
    Gather,
    Graph,
    Literal,
    MatMul,
    Mirror,
    Node,
    Pad,
    Pool2D,
    Reduce,
    Reshape,
    Resize2D,
    SeparableConv2D,
    Shape,
    Slice,
    Softmax,
    Step,
    Take,
    Tile,
    Transpose,
    TransposeConv2D,
)
from litegpu.gpu.interpolation import XNNPACK_BITS, integer_table

Array = np.ndarray[Any, np.dtype[Any]]

#: The arrays that hold values of each type; FLOAT16 is rounded to when written and computed with as float32.
NUMPY: dict[DType, np.dtype[Any]] = {dtype: np.dtype(dtype.value) for dtype in DType}


def evaluate_graph(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of `graph` (B,H,W,C) for `inputs` in the order of graph.inputs, reshaped to B,H,W,C."""
    values: dict[int, Array] = {i: v.data for i, v in graph.values.items() if v.data is not None}
    for i, array in zip(graph.inputs, inputs, strict=True):
        value = graph.values[i]
        values[i] = np.asarray(array, NUMPY[value.dtype]).reshape(value.shape)
    for node in graph.nodes:
        values[node.output] = evaluate_node(node, values, graph)
    return [values[i] for i in graph.outputs]


def evaluate_node(node: Node, values: Mapping[int, Array], graph: Graph) -> Array:
    """What `node` writes, given the arrays that it reads; sums are taken in float64 and rounded once."""
    output = graph.values[node.output]
    operands = [_computed(values[v]) for v in node.operands]
    with np.errstate(all="ignore"):
        if not isinstance(node.op, Elementwise):
            operands.insert(0, _evaluate_op(node.op, [_computed(values[v]) for v in node.inputs], output.shape))
        result = evaluate_expr(node.epilogue, operands)
        if output.dtype.is_narrow:
            limits = np.iinfo(NUMPY[output.dtype])
            result = np.clip(result, limits.min, limits.max)
        return np.broadcast_to(result, output.shape).astype(NUMPY[output.dtype])


def evaluate_expr(expr: Expr, args: Sequence[Array]) -> Array:
    """An expression over broadcastable arrays of float32, int32 and bool; Arg(i) is args[i]."""
    memo: dict[int, Array] = {}

    def visit(e: Expr) -> Array:
        if id(e) not in memo:
            match e:
                case Arg(i):
                    memo[id(e)] = args[i]
                case Literal(value, dtype):
                    memo[id(e)] = np.asarray(value, NUMPY[dtype])
                case Apply("min" | "max" as fn, (first, Literal() as bound)):
                    memo[id(e)] = _FUNCTIONS[fn](visit(bound), visit(first))
                case Apply(fn, arguments):
                    memo[id(e)] = np.asarray(_FUNCTIONS[fn](*(visit(a) for a in arguments)))
        return memo[id(e)]

    with np.errstate(all="ignore"):
        return visit(expr)


def apply_step(step: Step, x: Array) -> Array:
    """One movement step of a Copy."""
    match step:
        case Reshape(_, target):
            return x.reshape(target)
        case Transpose(perm):
            return x.transpose(perm)
        case Slice(begin, stride, target):
            for axis, (b, s, n) in enumerate(zip(begin, stride, target, strict=True)):
                x = np.take(x, b + s * np.arange(n), axis)
            return x
        case Pad(before, after, fill):
            crop = tuple(slice(max(-b, 0), n - max(-a, 0)) for b, n, a in zip(before, x.shape, after, strict=True))
            widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
            return np.pad(x[crop], widths, constant_values=np.asarray(fill).astype(x.dtype))
        case Mirror(before, after, symmetric):
            return np.pad(x, list(zip(before, after, strict=True)), mode="symmetric" if symmetric else "reflect")
        case Tile(multiples):
            return np.tile(x, multiples)
        case Take(axis, indices):
            return np.take(x, np.asarray(indices, np.int64), axis)


# ------------------------------------------------------------------------------------------- expressions


def _saturate(x: Array) -> Array:
    """Toward zero, out of range to the nearest int32, NaN to the largest."""
    if x.dtype.kind != "f":
        return x.astype(np.int32)
    limits = np.iinfo(np.int32)
    whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=limits.max, posinf=limits.max, neginf=limits.min))
    return np.clip(whole, limits.min, limits.max).astype(np.int32)


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """Computed in float64 and rounded once; integers as they are."""

    def rounded(*args: Array) -> Array:
        if args[0].dtype.kind != "f":
            return function(*args)
        return np.asarray(function(*(a.astype(np.float64) for a in args))).astype(np.float32)

    return rounded


def _erf(x: Array) -> Array:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


def _min(a: Array, b: Array) -> Array:
    """The smaller, or b if either is NaN."""
    return np.asarray(np.where(a < b, a, b))


def _max(a: Array, b: Array) -> Array:
    """The larger, or b if either is NaN."""
    return np.asarray(np.where(b < a, a, b))


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _floor_div(a: Array, b: Array) -> Array:
    """The quotient of floats in float64, rounded down, as TFLite's kernel has it."""
    if a.dtype.kind != "f":
        return np.asarray(np.floor_divide(a, b))
    return np.asarray(np.floor(a.astype(np.float64) / b)).astype(np.float32)


def _fixed_mul(x: Array, multiplier: Array, shift: Array) -> Array:
    """SaturatingRoundingDoublingHighMul and RoundingDivideByPOT of gemmlowp, after the shift to the left."""
    left, right = (np.maximum(s, 0) for s in (shift.astype(np.int64), -shift.astype(np.int64)))
    product = (x.astype(np.int64) << left).astype(np.int32).astype(np.int64) * multiplier.astype(np.int64)
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.sign(nudged) * (np.abs(nudged) >> 31)
    mask = (np.int64(1) << right) - 1
    return np.asarray((high >> right) + ((high & mask) > (mask >> 1) + (high < 0))).astype(np.int32)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": _min,
    "max": _max,
    "pow": _wide(np.power),
    "floor_div": _floor_div,
    "floor_mod": lambda a, b: np.mod(a, b),
    "atan2": _wide(np.arctan2),
    "shift_right": np.right_shift,
    "fixed_mul": _fixed_mul,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "neg": np.negative,
    "abs": np.abs,
    "exp": _wide(np.exp),
    "expm1": _wide(np.expm1),
    "log": _wide(np.log),
    "sqrt": _wide(np.sqrt),
    "rsqrt": _wide(lambda x: 1 / np.sqrt(x)),
    "sin": _wide(np.sin),
    "cos": _wide(np.cos),
    "tanh": _wide(np.tanh),
    "sigmoid": _wide(_sigmoid),
    "erf": _wide(_erf),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "to_float32": lambda x: x.astype(np.float32),
    "to_int32": _saturate,
    "to_bool": lambda x: x != 0,
    "select": np.where,
}


# --------------------------------------------------------------------------------------------------- ops


def _computed(x: Array) -> Array:
    if x.dtype == np.float16:
        return x.astype(np.float32)
    return x.astype(np.int32) if x.dtype.kind in "iu" else x


def _evaluate_op(op: Any, inputs: list[Array], shape: Shape) -> Array:
    """The op's own result, float32 unless it only moves elements or gives indices."""
    match op:
        case Conv2D():
            return _conv2d(op, inputs[0], inputs[1], shape)
        case DepthwiseConv2D():
            return _depthwise(op, inputs[0], inputs[1], shape)
        case SeparableConv2D(depthwise, inner):
            sums = _depthwise(depthwise, inputs[0], inputs[1], (*shape[:3], inputs[1].shape[3]))
            middle = evaluate_expr(inner, [sums, *inputs[3:]])
            return _conv2d(Conv2D(), np.broadcast_to(middle, sums.shape), inputs[2], shape)
        case TransposeConv2D():
            return _transpose_conv(op, inputs[0], inputs[1], shape)
        case MatMul(transpose_a, transpose_b):
            a, b = (x.astype(np.float64) for x in inputs)
            a = a.swapaxes(2, 3) if transpose_a else a
            b = b.swapaxes(2, 3) if transpose_b else b
            return np.asarray(np.matmul(a, b), np.float32)
        case Attention(scale, beta):
            q, k, v = (x.astype(np.float64) for x in inputs[:3])
            logits = np.matmul(q, k.swapaxes(2, 3)) * scale + (inputs[3] * beta if len(inputs) > 3 else 0)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            return np.asarray(np.matmul(weights / weights.sum(-1, keepdims=True), v), np.float32)
        case Pool2D():
            return _pool(op, inputs[0], shape)
        case Resize2D():
            return _resize(op, inputs[0], shape)
        case Reduce():
            return _reduce(op, inputs)
        case ArgReduce():
            return _arg_reduce(op, inputs[0])
        case Softmax(beta):
            x = inputs[0].astype(np.float64)
            if x.size == 0:
                return x.astype(np.float32)
            e = np.exp(beta * (x - x.max(3, keepdims=True)))
            return np.asarray(e / e.sum(3, keepdims=True), np.float32)
        case Copy(steps):
            x = inputs[0]
            for step in steps:
                x = apply_step(step, x)
            return x
        case Concat(axis):
            return np.concatenate(inputs, axis)
        case Gather():
            return _gather(op, inputs[0], inputs[1]).reshape(shape)
        case Custom(definition):
            return definition.evaluate(inputs, shape)
    raise TypeError(f"{op} is not an op of the GPU graph")


def _windows(
    x: Array, shape: Shape, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], fill: float,
) -> list[tuple[int, int, Array]]:  # fmt: skip
    """(ky, kx, the cell of `x` that each output pixel sees through that cell of the window)."""
    (oh, ow), (_, h, w, _) = shape[1:3], x.shape
    after = [
        max(0, (o - 1) * s + (k - 1) * d + 1 - n - p)
        for o, s, k, d, n, p in zip((oh, ow), stride, window, dilation, (h, w), padding, strict=True)
    ]
    x = np.pad(x, [(0, 0), (padding[0], after[0]), (padding[1], after[1]), (0, 0)], constant_values=fill)
    return [
        (ky, kx, x[:, ky * dilation[0] :: stride[0], kx * dilation[1] :: stride[1]][:, :oh, :ow])
        for ky, kx in itertools.product(range(window[0]), range(window[1]))
    ]


def _conv2d(op: Conv2D, x: Array, weights: Array, shape: Shape) -> Array:
    outputs, kh, kw, depth = weights.shape
    if op.zero_point is not None:
        x = x.astype(np.float32) - op.zero_point
    x = np.repeat(np.repeat(x, op.upsample[0], 1), op.upsample[1], 2)
    padding = op.padding
    if op.border != "zero":
        after = [
            max(0, (o - 1) * s + (k - 1) * d + 1 - n - p)
            for o, s, k, d, n, p in zip(
                shape[1:3], op.stride, (kh, kw), op.dilation, x.shape[1:3], padding, strict=True
            )
        ]
        x = np.pad(x, [(0, 0), *zip(padding, after, strict=True), (0, 0)], mode=op.border)  # type: ignore[call-overload]
        padding = (0, 0)
    total = np.zeros((op.groups, shape[0] * shape[1] * shape[2], outputs // op.groups))
    grouped = weights.astype(np.float64).reshape(op.groups, outputs // op.groups, kh, kw, depth)
    for ky, kx, cell in _windows(x.astype(np.float64), shape, (kh, kw), op.stride, op.dilation, padding, 0):
        columns = cell.reshape(-1, op.groups, depth).transpose(1, 0, 2)
        total += columns @ grouped[:, :, ky, kx].transpose(0, 2, 1)
    return total.transpose(1, 0, 2).reshape(shape).astype(np.float32)


def _depthwise(op: DepthwiseConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    total = np.zeros(shape)
    wide = weights.astype(np.float64)
    for ky, kx, cell in _windows(x.astype(np.float64), shape, wide.shape[1:3], op.stride, op.dilation, op.padding, 0):
        total += np.repeat(cell, op.multiplier, axis=3) * wide[0, ky, kx]
    return total.astype(np.float32)


def _transpose_conv(op: TransposeConv2D, x: Array, weights: Array, shape: Shape) -> Array:
    batch, h, w, _ = x.shape
    outputs, kh, kw, _ = weights.shape
    reach = [(n - 1) * s + k for n, s, k in zip((h, w), op.stride, (kh, kw), strict=True)]
    size = [max(r, p + o) for r, p, o in zip(reach, op.padding, shape[1:3], strict=True)]
    total = np.zeros((batch, size[0], size[1], outputs))
    wide = weights.astype(np.float64)
    for ky, kx in itertools.product(range(kh), range(kw)):
        rows = slice(ky, ky + (h - 1) * op.stride[0] + 1, op.stride[0])
        columns = slice(kx, kx + (w - 1) * op.stride[1] + 1, op.stride[1])
        total[:, rows, columns] += x.astype(np.float64) @ wide[:, ky, kx].T
    (top, left), (_, oh, ow, _) = op.padding, shape
    return total[:, top : top + oh, left : left + ow].astype(np.float32)


def _pool(op: Pool2D, x: Array, shape: Shape) -> Array:
    if op.kind == "max":
        lowest = float(np.finfo(np.float32).min)
        best = np.full(shape, lowest, np.float32)
        for _, _, cell in _windows(x, shape, op.window, op.stride, (1, 1), op.padding, lowest):
            best = np.where(best < cell, cell, best)
        return best
    total, count = np.zeros(shape), np.zeros((1, *shape[1:3], 1))
    arguments = (shape, op.window, op.stride, (1, 1), op.padding, 0)
    x = x * x if op.kind == "squares" else x
    for _, _, cell in _windows(x.astype(np.float64), *arguments):
        total += cell
    for _, _, cell in _windows(np.ones((1, *x.shape[1:3], 1)), *arguments):
        count += cell
    return (total / count).astype(np.float32)


def _resize_integers(op: Resize2D, x: Array, shape: Shape) -> Array:
    x = x.astype(np.int64)
    for axis in (1, 2):
        low, high, weight = integer_table(op, x.shape[axis], shape[axis])
        weight = weight.reshape([-1 if i == axis else 1 for i in range(4)])
        x = np.take(x, low, axis) * ((1 << op.bits) - weight) + np.take(x, high, axis) * weight
    half = 1 << (2 * op.bits - 1)
    away = np.sign(x) * ((np.abs(x) + half) >> 2 * op.bits)
    return np.asarray((x + half) >> 2 * op.bits if op.bits == XNNPACK_BITS else away).astype(np.int32)


def _resize(op: Resize2D, x: Array, shape: Shape) -> Array:
    if op.bits:
        return _resize_integers(op, x, shape)
    x = x.astype(np.float32)
    for axis in (1, 2):
        size, wanted = x.shape[axis], shape[axis]
        aligned = op.align_corners and wanted > 1
        scale = np.float32(size - 1) / np.float32(wanted - 1) if aligned else np.float32(size) / np.float32(wanted)
        out = np.arange(wanted, dtype=np.float32)
        if op.kind == "nearest":
            v = (out + np.float32(0.5 if op.half_pixel_centers else 0)) * scale
            index = np.floor(v + np.float32(0.5)) if op.align_corners else np.floor(v)
            x = np.take(x, np.clip(index.astype(np.int64), 0, size - 1), axis)
            continue
        v = (out + np.float32(0.5)) * scale - np.float32(0.5) if op.half_pixel_centers else out * scale
        low = np.floor(v)
        weight = (v - low).reshape([-1 if i == axis else 1 for i in range(4)]).astype(np.float64)
        near = np.take(x, np.clip(low.astype(np.int64), 0, size - 1), axis)
        far = np.take(x, np.clip(low.astype(np.int64) + 1, 0, size - 1), axis)
        x = near * (1 - weight) + far * weight
    return x.astype(np.float32)


def _arg_reduce(op: ArgReduce, x: Array) -> Array:
    """Numbers, even infinite ones, come before NaN; along the channels as TFLite's vector kernel has it
    (kernels/arg_reduce.py)."""
    x = x.astype(np.float64) if op.kind == "max" else -x.astype(np.float64)

    def best(a: Array, axis: int) -> Array:
        """The first largest number along an axis, NaN where there is none."""
        known = np.where(np.isnan(a), -np.inf, a).max(axis, keepdims=True, initial=-np.inf)
        return np.asarray(np.where(np.isnan(a).all(axis, keepdims=True), np.nan, known))

    top = best(x, op.axis)
    if op.axis == 3 and x.shape[3] >= 4:
        whole = x.shape[3] // 4 * 4
        lanes = best(x[..., :whole].reshape(*x.shape[:3], -1, 4), 3)[..., 0, :]
        left, right = (np.where(lanes[..., j + 1] > lanes[..., j], lanes[..., j + 1], lanes[..., j]) for j in (0, 2))
        first = np.where(right > left, right, left)[..., None]
        top = best(np.concatenate([first, x[..., whole:]], 3), 3)
        own = np.tile(lanes, whole // 4)  # the best of the lane that each element is in
        x = np.concatenate([np.where((first == top) & (own == top), x[..., :whole], np.nan), x[..., whole:]], 3)
    return np.asarray(np.argmax(x == top, op.axis, keepdims=True), np.int32)


def _reduce(op: Reduce, inputs: list[Array]) -> Array:
    x = evaluate_expr(op.prologue, np.broadcast_arrays(*inputs)).astype(np.float64)
    match op.kind:
        case "sum":
            result = x.sum(op.axes, keepdims=True)
        case "mean":
            result = x.sum(op.axes, keepdims=True) / math.prod(x.shape[a] for a in op.axes)
        case "prod":
            result = x.prod(op.axes, keepdims=True)
        case "max":
            lowest = float(np.finfo(np.float32).min)
            result = np.where(np.isnan(x), lowest, x).max(op.axes, keepdims=True, initial=lowest)
        case "min":
            highest = float(np.finfo(np.float32).max)
            result = np.where(np.isnan(x), highest, x).min(op.axes, keepdims=True, initial=highest)
    return np.asarray(result).astype(np.float32)


def _gather(op: Gather, x: Array, indices: Array) -> Array:
    source = x.reshape(op.batch, op.outer, op.size, op.inner)
    wanted = indices.reshape(op.batch, 1, op.count, 1)
    inside = (wanted >= 0) & (wanted < op.size)
    if op.size == 0:
        return np.zeros((op.batch, op.outer, op.count, op.inner), x.dtype)
    found = np.take_along_axis(source, np.where(inside, wanted, 0).astype(np.int64), 2)
    return np.where(inside, found, np.zeros((), x.dtype))
