"""What each op computes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from litegpu.gpu.evaluate.expressions import NUMPY, Array, evaluate_expr
from litegpu.gpu.evaluate.windows import (
    conv2d,
    depthwise,
    integer_conv2d,
    integer_depthwise,
    integer_transpose_conv,
    pool,
    transpose_conv,
    wrapped,
)
from litegpu.gpu.graph import (
    ArgReduce,
    Attention,
    Concat,
    Conv2D,
    Copy,
    Custom,
    DepthwiseConv2D,
    DType,
    Excite,
    Gather,
    GroupNorm,
    InstanceNorm,
    IntegerAttention,
    IntegerConv2D,
    IntegerDepthwiseConv2D,
    IntegerExcite,
    IntegerInvertedConv2D,
    IntegerMatMul,
    IntegerSeparableConv2D,
    IntegerSoftmax,
    IntegerSqueeze,
    IntegerTransposeConv2D,
    InvertedConv2D,
    JoinedMoments,
    LayerNorm,
    Lookup,
    MatMul,
    MeanConv2D,
    Mirror,
    Moments,
    MomentsConv2D,
    Pad,
    PairConv2D,
    PointwiseConv2D,
    Pool2D,
    PooledConv2D,
    Reduce,
    Reshape,
    Resize2D,
    RowChain,
    RowMoments,
    SeparableConv2D,
    Shape,
    Slice,
    Softmax,
    Squeeze,
    Step,
    Take,
    Tile,
    Transpose,
    TransposeConv2D,
)
from litegpu.gpu.interpolation import XNNPACK_BITS, integer_table


def evaluate_op(op: Any, inputs: list[Array], shape: Shape) -> Array:
    """The op's own result, float32 unless it only moves elements or gives indices."""
    match op:
        case Conv2D():
            return conv2d(op, inputs[0], inputs[1], shape)
        case DepthwiseConv2D():
            return depthwise(op, inputs[0], inputs[1], shape)
        case SeparableConv2D(first, inner):
            sums = depthwise(first, inputs[0], inputs[1], (*shape[:3], inputs[1].shape[3]))
            middle = evaluate_expr(inner, [sums, *inputs[3:]])
            return conv2d(Conv2D(), np.broadcast_to(middle, sums.shape), inputs[2], shape)
        case PointwiseConv2D(moved=(_, *_) as steps):
            x, weights = inputs
            return evaluate_op(Copy(steps), [conv2d(Conv2D(), x, weights, (*x.shape[:3], len(weights)))], shape)
        case PointwiseConv2D(prologue, parts=count) if count:
            total = evaluate_expr(prologue, [inputs[0].sum(2, keepdims=True)])
            return conv2d(Conv2D(), total, inputs[1], shape)
        case MeanConv2D(_, inner, summed):
            x, weights, *others = inputs
            sums = conv2d(Conv2D(), x, weights, (*x.shape[:3], len(weights)))
            within = np.broadcast_to(evaluate_expr(inner, [sums, *others]), sums.shape)
            parts = np.zeros(shape, np.float32)  # all is in the first
            parts[:, :, :1] = within.sum((1, 2), keepdims=True) if summed else within.mean((1, 2), keepdims=True)
            return parts
        case PointwiseConv2D(behind=LayerNorm() as norm):
            sums = conv2d(Conv2D(), inputs[0], inputs[1], shape)
            for more in inputs[2:]:
                sums = sums + more
            return evaluate_op(norm, [sums], shape)
        case PointwiseConv2D(norm=LayerNorm() as norm, fetched=steps):
            (x, weights), (b, h, w, _) = inputs, shape
            if op.stride != (1, 1):
                x = x.reshape(b, h, op.stride[0], w, op.stride[1], -1).transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)
                weights = weights.reshape(len(weights), 1, 1, -1)
            rows = evaluate_op(norm, [x], x.shape)
            return conv2d(Conv2D(), evaluate_op(Copy(steps), [rows], (*shape[:3], rows.shape[3])), weights, shape)
        case PointwiseConv2D(prologue, stride):
            ready = np.broadcast_to(evaluate_expr(prologue, [inputs[0], *inputs[2:]]), inputs[0].shape)
            return conv2d(Conv2D(stride), ready, inputs[1], shape)
        case MomentsConv2D(norm, operand):
            x = inputs[0] if norm is None or operand else evaluate_op(norm, [inputs[0]], inputs[0].shape)
            return conv2d(Conv2D(), x, inputs[1], shape)
        case PairConv2D(inner, norm):
            x, weights, bias, last = inputs
            x = x if norm is None else evaluate_op(norm, [x], x.shape)
            within = conv2d(Conv2D(), x, weights, (*shape[:3], len(weights))) + bias
            return conv2d(Conv2D(), np.broadcast_to(evaluate_expr(inner, [within]), within.shape), last, shape)
        case PooledConv2D(conv):
            batch, height, width, channels = shape
            sums = conv2d(conv, inputs[0], inputs[1], (batch, 2 * height, 2 * width, channels))
            return pool(Pool2D("max", (2, 2), (2, 2)), sums, shape)
        case Squeeze():
            x, weights = inputs
            means = x.mean((1, 2), keepdims=True, dtype=np.float64).astype(np.float32)
            parts = np.zeros(shape, np.float32)  # all is in the first
            parts[:, :, :1] = conv2d(Conv2D(), means, weights, (len(x), 1, 1, len(weights)))
            return parts
        case Excite(inner, gate):
            x, parts, bias, weights, last = inputs
            within = evaluate_expr(inner, [parts.sum(2, keepdims=True) + bias])
            sums = conv2d(Conv2D(), within, weights, (len(x), 1, 1, len(weights))) + last
            return np.asarray(x * evaluate_expr(gate, [sums]))
        case InvertedConv2D():
            return _inverted(op, inputs, shape)
        case IntegerInvertedConv2D():
            return wrapped(_integer_inverted(op, inputs, shape))
        case IntegerSeparableConv2D():
            return wrapped(_integer_separable(op, inputs, shape))
        case IntegerSqueeze(mean, kind, zero_point):
            x, weights = inputs
            means = _bytes(evaluate_expr(mean, [x.sum((1, 2), keepdims=True, dtype=np.int32)]), kind)
            return integer_conv2d(IntegerConv2D(zero_point=zero_point), means, weights, shape)
        case IntegerExcite(gate, kind, zero_point, squeezed):
            x, weights, *operands = inputs
            if squeezed is not None:  # x is what is squeezed
                narrow, *operands = operands
                sums = evaluate_op(squeezed.squeeze, [x, narrow], (len(x), 1, 1, len(narrow)))
                x = _bytes(evaluate_expr(squeezed.inner, [sums, *operands[: squeezed.operands]]), squeezed.kind)
                operands = operands[squeezed.operands :]
            sums = integer_conv2d(IntegerConv2D(zero_point=zero_point), x, weights, (len(x), 1, 1, len(weights)))
            return np.broadcast_to(_bytes(evaluate_expr(gate, [sums, *operands]), kind), shape)
        case TransposeConv2D():
            return transpose_conv(op, inputs[0], inputs[1], shape)
        case IntegerConv2D():
            return integer_conv2d(op, inputs[0], inputs[1], shape)
        case IntegerDepthwiseConv2D():
            return integer_depthwise(op, inputs[0], inputs[1], shape)
        case IntegerTransposeConv2D():
            return integer_transpose_conv(op, inputs[0], inputs[1], shape)
        case MatMul():
            return _product(op, inputs[0], inputs[1]).astype(np.float32)
        case IntegerMatMul():
            return wrapped(_product(op, inputs[0] - float(op.zero_point), inputs[1] - float(op.other_zero_point)))
        case IntegerDepthwiseConv2D():
            return integer_depthwise(op, inputs[0], inputs[1], shape)
        case IntegerSoftmax(scale):
            return _integer_softmax(inputs[0], inputs[1].reshape(-1), np.float32(scale))
        case IntegerAttention():
            return _integer_attention(op, inputs)
        case Lookup(lowest):
            return np.asarray(inputs[1].reshape(-1)[inputs[0].astype(np.int64) - lowest])
        case Attention(scale, beta):
            q, k, v = (x.astype(np.float64) for x in inputs[:3])
            k, v = (np.repeat(x, shape[1] // x.shape[1], axis=1) for x in (k, v))
            logits = np.matmul(q, k.swapaxes(2, 3)) * scale
            if len(inputs) > 3:
                logits += np.tile(inputs[3], (len(logits) // len(inputs[3]), 1, 1, 1)) * beta
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            return np.asarray(np.matmul(weights / weights.sum(-1, keepdims=True), v), np.float32)
        case Pool2D():
            return pool(op, np.broadcast_to(evaluate_expr(op.prologue, inputs), inputs[0].shape), shape)
        case Resize2D():
            return _resize(op, inputs[0], shape)
        case Reduce():
            return _reduce(op, inputs)
        case RowChain(stages, result):
            known = list(inputs)
            for stage in stages:
                each = np.broadcast_to(evaluate_expr(stage.prologue, known), shape)
                total = _reduced(Reduce(stage.kind, (3,)), each)
                known.append(evaluate_expr(stage.epilogue, [*known, total]))
            return np.broadcast_to(evaluate_expr(result, known), shape)
        case ArgReduce():
            return _arg_reduce(op, inputs[0])
        case Softmax(beta):
            x = inputs[0].astype(np.float64)
            if x.size == 0:
                return x.astype(np.float32)
            e = np.exp(beta * (x - x.max(3, keepdims=True)))
            return np.asarray(e / e.sum(3, keepdims=True), np.float32)
        case LayerNorm(moved=(_, *_) as steps):
            plain = dataclasses.replace(op, moved=())
            return evaluate_op(Copy(steps), [evaluate_op(plain, inputs, inputs[0].shape)], shape)
        case LayerNorm(epsilon, centred):
            x = inputs[0].astype(np.float64)
            left = x - x.mean(3, keepdims=True) if centred else x
            return np.asarray(left / np.sqrt((left * left).mean(3, keepdims=True) + epsilon), np.float32)
        case Moments(parts):
            return _moments(inputs[0].astype(np.float64), parts)
        case RowMoments(columns):
            return _row_moments(inputs[0].astype(np.float64), columns)
        case JoinedMoments(pixels, groups):
            return _joined_moments(inputs[0].astype(np.float64), pixels, groups)
        case InstanceNorm(epsilon):
            x, moments = (a.astype(np.float64) for a in inputs)
            whole = _joined_moments(moments, x.shape[1] * x.shape[2], x.shape[3])
            deviation = np.sqrt(whole[:, :, 1:] / (x.shape[1] * x.shape[2]) + epsilon)
            return np.asarray((x - whole[:, :, :1]) / deviation, np.float32)
        case GroupNorm(groups, epsilon):
            x = inputs[0].astype(np.float64).reshape(*inputs[0].shape[:3], groups, -1)
            left = x - x.mean((1, 2, 4), keepdims=True)
            deviation = np.sqrt((left * left).mean((1, 2, 4), keepdims=True) + epsilon)
            return np.asarray((left / deviation).reshape(shape), np.float32)
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


def _integer_attention(op: IntegerAttention, inputs: list[Array]) -> Array:
    q, k, v, table, *operands = inputs
    of_q, of_k, of_v = op.zero_points
    sums = wrapped(_product(MatMul(transpose_b=True), q - float(of_q), k - float(of_k)))
    repeated = [np.tile(a, (len(q) // len(a), 1, 1, 1)) if 1 < len(a) < len(q) else a for a in operands]
    logits = np.broadcast_to(evaluate_expr(op.logits, [sums, *repeated]), sums.shape)
    weights = np.clip(_integer_softmax(logits, table.reshape(-1), np.float32(op.scale)), 0, 255)
    return wrapped(_product(MatMul(), weights.astype(np.float64), v - float(of_v)))


def _moments(x: Array, parts: int) -> Array:
    pixels = x.reshape(x.shape[0], -1, x.shape[3])
    size = -(-pixels.shape[1] // parts)
    pieces = [pixels[:, i * size : (i + 1) * size] for i in range(parts)]
    means = np.stack([piece.mean(1) for piece in pieces], 1)
    squares = [((piece - means[:, i, None]) ** 2).sum(1) for i, piece in enumerate(pieces)]
    return np.asarray(np.stack([means, np.stack(squares, 1)], 2), np.float32)


def _row_moments(x: Array, columns: int) -> Array:
    begins = range(0, x.shape[3], columns)
    sums = [np.add.reduceat(of, begins, axis=3) for of in (x, x * x)]
    return np.asarray(np.stack(sums, 4).reshape(*x.shape[:3], -1), np.float32)


def _joined_moments(moments: Array, pixels: int, groups: int) -> Array:
    """Of [B,parts,2,C]."""
    batch, parts, _, channels = moments.shape
    size = -(-pixels // parts)
    counts = np.full((parts, 1, 1), size)
    counts[-1] = pixels - size * (parts - 1)
    means, squares = moments.reshape(batch, parts, 2, groups, -1).swapaxes(0, 2)[:2].swapaxes(1, 2)
    each = channels // groups
    mean = (means * counts).sum((1, 3), keepdims=True) / (pixels * each)
    share = (squares + (means - mean) ** 2 * counts).sum((1, 3), keepdims=True) / each
    whole = [np.broadcast_to(a, (batch, 1, groups, each)).reshape(batch, 1, 1, channels) for a in (mean, share)]
    return np.asarray(np.concatenate(whole, 2), np.float32)


def _integer_softmax(x: Array, table: Array, scale: np.float32) -> Array:
    parts = table[x.max(3, keepdims=True) - x]
    total = np.add.accumulate(parts, axis=3, dtype=np.float32)[..., -1:]  # one after the other
    shares = parts * (np.float32(1) / (total * scale))
    return np.asarray(np.floor(shares + np.float32(0.5))).astype(np.int32)


def _inverted(op: InvertedConv2D, inputs: list[Array], shape: Shape) -> Array:
    x, weights, bias, taps, *projection = inputs
    wide = (*x.shape[:3], weights.shape[0])
    expanded = np.broadcast_to(evaluate_expr(op.expanded, [conv2d(Conv2D(), x, weights, wide) + bias]), wide)
    sums = depthwise(op.depthwise, expanded, taps, (*shape[:3], wide[3]))
    if not projection:
        return sums
    middle = np.broadcast_to(evaluate_expr(op.middle, [sums + projection[0]]), sums.shape)
    return conv2d(Conv2D(), middle, projection[1], shape)


def _integer_inverted(op: IntegerInvertedConv2D, inputs: list[Array], shape: Shape) -> Array:
    x, weights, bias, scale, taps, *projection = inputs
    first = op.first
    convolution = Conv2D(first.stride, padding=first.padding) if first else Conv2D()
    size = first.size if first else x.shape[1:3]
    sums = conv2d(convolution, x - np.float32(op.zero_point), weights, (x.shape[0], *size, weights.shape[0]))
    expanded = _requantized(sums, bias, scale, op.bounds[0])
    sums = depthwise(op.depthwise, expanded, taps, (*shape[:3], weights.shape[0]))
    if not projection:
        return sums
    middle = _requantized(sums, projection[0], projection[1], op.bounds[1])
    return integer_conv2d(IntegerConv2D(), middle, projection[2], shape)


def _integer_separable(op: IntegerSeparableConv2D, inputs: list[Array], shape: Shape) -> Array:
    x, taps, bias, scale, weights = inputs
    sums = depthwise(op.depthwise, x - np.float32(op.zero_point), taps, (*shape[:3], x.shape[3]))
    return integer_conv2d(IntegerConv2D(), _requantized(sums, bias, scale, op.bounds), weights, shape)


def _bytes(numbers: Array, kind: DType) -> Array:
    """What is stored of them in bytes, as numbers that are computed with."""
    limits = np.iinfo(NUMPY[kind])
    return np.clip(numbers, limits.min, limits.max).astype(np.int32)


def _requantized(sums: Array, bias: Array, scale: Array, bounds: tuple[float, float]) -> Array:
    return np.asarray(np.rint(np.clip((sums + bias).astype(np.float32) * scale, *bounds)))


def _product(op: MatMul | IntegerMatMul, a: Array, b: Array) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    a = a.swapaxes(2, 3) if op.transpose_a else a
    b = b.swapaxes(2, 3) if op.transpose_b else b
    return np.asarray(np.matmul(a, b))


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
    x = x.astype(np.float32) if op.kind == "bilinear" or x.dtype.kind == "f" else x.astype(np.int32)
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
    return x.astype(np.float32) if x.dtype.kind == "f" else x


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
    return _reduced(op, evaluate_expr(op.prologue, np.broadcast_arrays(*inputs)))


def _reduced(op: Reduce, x: Array) -> Array:
    if x.dtype == np.int32:
        return _reduce_integers(op, x)
    x = x.astype(np.float64)
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


def _reduce_integers(op: Reduce, x: Array) -> Array:
    """Numbers of 32 bits, which wrap; a mean is cut off."""
    wide = x.astype(np.int64)
    match op.kind:
        case "max":
            result = x.max(op.axes, keepdims=True)
        case "min":
            result = x.min(op.axes, keepdims=True)
        case "prod":
            result = wide.prod(op.axes, keepdims=True)
        case _:
            result = wide.sum(op.axes, keepdims=True)
    result = np.asarray(result).astype(np.int64).astype(np.int32)
    if op.kind == "mean":
        count = math.prod(x.shape[a] for a in op.axes)
        result = (np.abs(result) // count * np.sign(result)).astype(np.int32)
    return np.asarray(result)


def _gather(op: Gather, x: Array, indices: Array) -> Array:
    source = x.reshape(op.batch, op.outer, op.size, op.inner)
    wanted = indices.reshape(op.batch, 1, op.count, 1)
    inside = (wanted >= 0) & (wanted < op.size)
    if op.size == 0:
        return np.zeros((op.batch, op.outer, op.count, op.inner), x.dtype)
    found = np.take_along_axis(source, np.where(inside, wanted, 0).astype(np.int64), 2)
    return np.where(inside, found, np.zeros((), x.dtype))
