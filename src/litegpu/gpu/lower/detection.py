"""TFLite_Detection_PostProcess and NON_MAX_SUPPRESSION: which of the boxes that a detector found are objects."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.custom.suppression import MOST_BOXES, MOST_CHOSEN, MOST_LOWERED, Suppression
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    ArgReduce,
    Concat,
    Custom,
    DType,
    Expr,
    Gather,
    Literal,
    Reduce,
    Slice,
    Transpose,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.ordering import highest
from litegpu.gpu.lower.quantization import STORED, grid_of
from litegpu.gpu.lower.registry import lowers, lowers_as
from litegpu.model.ops.checks import flexbuffer_options
from litegpu.model.types import Tensor

#: Entries of the tables by which boxes of bytes are decoded.
_MOST_LOOKED_UP = 1 << 22
#: Detections of each class, where the options say nothing.
_OF_EACH_CLASS = 100
_NONE = Literal(0, DType.INT32)
_FOUND = fn("ge", Arg(0), _NONE)


@lowers("TFLite_Detection_PostProcess")
def detection_postprocess(ctx: OpContext) -> None:
    """The fast kind takes each box by its best class alone, and gives it as its best classes; the regular one goes
    through the boxes class by class."""
    options = flexbuffer_options(ctx.operator)
    boxes, scores, anchors = (ctx.shape(i) for i in range(3))
    ctx.require(boxes[0] == scores[0] == 1, f"a batch of {boxes[0]}: the operator takes one image")
    count, classes = boxes[1], int(options.get("num_classes", 0))
    most = int(options.get("max_detections", 0))
    asked = int(options.get("max_classes_per_detection", 0))
    regular = bool(options.get("use_regular_nms", 0))
    ctx.require(
        1 <= asked <= (1 if regular else classes),
        f"{asked} classes of each detection: of {classes} 1 to {classes} are taken, with use_regular_nms 1",
    )
    ctx.require(
        0 < most <= MOST_BOXES and count <= MOST_BOXES, f"{most} of {count} boxes: up to {MOST_BOXES} are taken"
    )
    fits = scores[1] == count and 0 <= scores[2] - classes <= 1 and boxes[2] >= 4 and anchors[0] >= count
    ctx.require(fits, f"scores of shape {list(scores)} and anchors of {list(anchors)} for boxes of {list(boxes)}")
    given = most * asked
    made = ((1, given, 4), (1, given), (1, given), (1,))
    ctx.require(len(ctx.outputs) == len(made), f"{len(ctx.outputs)} outputs where the operator has {len(made)}")
    for shape, output in zip(made, ctx.outputs, strict=True):
        ctx.check_shape(shape, output)

    scales = [float(options.get(f"{name}_scale", 0.0)) for name in "yxhw"]
    ctx.require(all(math.isfinite(s) and s != 0 for s in scales), f"scales {scales}")
    decoded = _decoded(ctx, count, scales)
    row = (1, 1, count, classes)
    begin = Slice((0, 0, 0, scores[2] - classes), (1, 1, 1, 1), row)
    own = ctx.copy(ctx.value(1), [begin], ctx.intermediate(row, DType.FLOAT32))
    op = Suppression(options.get("nms_score_threshold", 0.0), options.get("nms_iou_threshold", 0.0))
    if regular:
        each = min(int(options.get("detections_per_class", _OF_EACH_CLASS)), most)
        _class_by_class(ctx, op, decoded, own, most, each)
    else:
        _by_best_class(ctx, op, decoded, own, most, asked)


def _by_best_class(ctx: OpContext, op: Suppression, decoded: int, own: int, most: int, each: int) -> None:
    """The boxes that their best classes leave, each as its `each` best classes. `own`: scores [1,1,N,classes]."""
    _, _, count, classes = ctx.builder.values[own].shape
    column, table = (1, 1, count, 1), (1, 1, count, each)
    best = ctx.add(Reduce("max", (3,)), [own], ctx.intermediate(column, DType.FLOAT32))
    if each == 1:
        which, rated = ctx.add(ArgReduce("max", 3), [own], ctx.intermediate(column, DType.INT32)), best
    else:
        places = highest(ctx, own, count, classes, each)
        rated = ctx.add(Gather(count, 1, classes, 1, each), [own, places], ctx.intermediate(table, DType.FLOAT32))
        which = ctx.reshaped(places, table)
    chosen = ctx.add(Custom(op), [decoded, best], ctx.intermediate((1, 1, 1, most), DType.INT32))
    where = chosen
    if each > 1:
        several = ctx.elementwise(fn("add", Arg(0), Arg(1)), [ctx.reshaped(chosen, (1, 1, most, 1)), _zeros(ctx, each)],
                                  ctx.intermediate((1, 1, most, each), DType.INT32))  # fmt: skip
        where = ctx.reshaped(several, (1, 1, 1, most * each))

    places_of, kinds, values, number = ctx.outputs
    ctx.add(Gather(1, 1, count, 4, most * each), [decoded, where], ctx.output_value(places_of))
    row_of_classes = ctx.intermediate((1, 1, 1, most * each), DType.INT32)
    found = ctx.add(Gather(1, 1, count, each, most), [which, chosen], row_of_classes)
    ctx.elementwise(fn("to_float32", Arg(0)), [found], ctx.output_value(kinds))
    ctx.add(Gather(1, 1, count, each, most), [rated, chosen], ctx.output_value(values))
    _count(ctx, chosen, number)  # of boxes, however many classes each has


def _class_by_class(ctx: OpContext, op: Suppression, decoded: int, own: int, most: int, each: int) -> None:
    """The best of what is left of each class, `each` boxes of it at most: of equal scores the first class's, and of one
    class the first box's. `own`: scores [1,1,N,classes]."""
    _, _, count, classes = ctx.builder.values[own].shape
    some = classes * each
    ctx.require(each > 0 and some <= MOST_BOXES, f"{each} boxes of {classes} classes: {MOST_BOXES} are taken")
    across = (1, classes, count, 1)
    scores = ctx.copy(own, [Transpose((0, 3, 2, 1))], ctx.intermediate(across, DType.FLOAT32))
    kept = ctx.add(Custom(op), [decoded, scores], ctx.intermediate((1, classes, 1, each), DType.INT32))
    row = (1, 1, 1, some)
    indices = ctx.reshaped(kept, row)
    rated = ctx.add(Gather(classes, 1, count, 1, each), [scores, kept], ctx.intermediate(row, DType.FLOAT32))
    least = Literal(-math.inf)
    waiting = ctx.elementwise(fn("select", _FOUND, Arg(1), least), [indices, rated],
                              ctx.intermediate(row, DType.FLOAT32))  # fmt: skip
    first = Suppression(float(np.finfo(np.float32).min), 0.0)
    chosen = (1, 1, 1, most)
    best = ctx.add(Custom(first), [ctx.reshaped(waiting, (1, 1, some, 1))], ctx.intermediate(chosen, DType.INT32))

    places, kinds, values, number = ctx.outputs
    box = ctx.add(Gather(1, 1, some, 1, most), [indices, best], ctx.intermediate(chosen, DType.INT32))
    box = ctx.elementwise(fn("select", _FOUND, Arg(1), Literal(-1, DType.INT32)), [best, box],
                          ctx.intermediate(chosen, DType.INT32))  # fmt: skip
    ctx.add(Gather(1, 1, count, 4, most), [decoded, box], ctx.output_value(places))
    of_class = fn("to_float32", fn("div", Arg(0), Literal(each, DType.INT32)))
    ctx.elementwise(fn("select", _FOUND, of_class, 0.0), [best], ctx.output_value(kinds))
    ctx.add(Gather(1, 1, some, 1, most), [rated, best], ctx.output_value(values))
    _count(ctx, best, number)


def _count(ctx: OpContext, chosen: int, number: Tensor) -> None:
    known = fn("select", fn("ge", RESULT, _NONE), 1.0, 0.0)
    ctx.add(Reduce("sum", (3,), known), [chosen], ctx.output_value(number))


def _zeros(ctx: OpContext, count: int) -> int:
    return ctx.builder.constant(np.zeros((1, 1, 1, count), np.int32))


def _decoded(ctx: OpContext, count: int, scales: list[float]) -> int:
    """The corners of the boxes, [1,1,N,4], from centres and sizes relative to the anchors'."""

    looked_up = _looked_up(ctx, count, scales)
    if looked_up is not None:
        centres, halves = ([_channel(ctx, looked_up, count, first + axis) for axis in (0, 1)] for first in (0, 2))
        ends = [
            ctx.elementwise(
                fn(function, Arg(0), Arg(1)), [centre, half], ctx.intermediate((1, 1, count, 1), DType.FLOAT32)
            )
            for function in ("sub", "add")
            for centre, half in zip(centres, halves, strict=True)
        ]
        return ctx.add(Concat(3), ends, ctx.intermediate((1, 1, count, 4), DType.FLOAT32))

    def part(i: int, channel: int) -> int:
        return _channel(ctx, ctx.value(i), count, channel)

    corners: dict[tuple[int, int], int] = {}
    for axis in (0, 1):
        operands = [part(0, axis), part(0, axis + 2), part(2, axis), part(2, axis + 2)]
        centre = fn("add", fn("mul", fn("div", Arg(0), scales[axis]), Arg(3)), Arg(2))
        half = fn("mul", fn("mul", fn("exp", fn("div", Arg(1), scales[axis + 2])), 0.5), Arg(3))
        for end, function in enumerate(("sub", "add")):
            corner: Expr = fn(function, centre, half)
            corners[end, axis] = ctx.elementwise(corner, operands, ctx.intermediate((1, 1, count, 1), DType.FLOAT32))
    inputs = [corners[end, axis] for end in (0, 1) for axis in (0, 1)]
    return ctx.add(Concat(3), inputs, ctx.intermediate((1, 1, count, 4), DType.FLOAT32))


def _looked_up(ctx: OpContext, count: int, scales: list[float]) -> int | None:
    """Centres and half sizes [1,1,N,4] of boxes that are bytes in whole numbers, from tables: of each byte for each
    anchor that differs from others, in 64 bits and rounded once, as the CPU has it. None for others."""
    stored = _bytes_of(ctx)
    if stored is None or not ctx.is_constant(2):
        return None
    tensor = ctx.lowering.subgraph.tensors[stored]
    grid = grid_of(tensor)
    assert grid is not None
    anchors = ctx.array(2).reshape(-1, ctx.shape(2)[-1])[:count].astype(np.float64)
    known = np.float32(grid.scale) * (np.arange(grid.low, grid.high + 1) - grid.zero).astype(np.float32)
    tables, bases, size = [], [], 0
    for centre in (True, False):
        for axis in (0, 1):
            of = anchors[:, [axis, axis + 2]] if centre else anchors[:, [axis + 2]]
            kinds, which = np.unique(of, axis=0, return_inverse=True)
            part = known.astype(np.float64) / np.float64(np.float32(scales[axis if centre else axis + 2]))
            with np.errstate(over="ignore"):
                table = part * kinds[:, 1:] + kinds[:, :1] if centre else 0.5 * np.exp(part) * kinds
                tables.append(table.astype(np.float32).reshape(-1))
            bases.append(size + which.reshape(-1) * known.size - grid.low)
            size += tables[-1].size
    if size > _MOST_LOOKED_UP:
        return None
    shape = (1, 1, count, 4)
    first = Slice((0, 0, 0, 0), (1, 1, 1, 1), shape)
    given = ctx.copy(ctx.lowering.quantized.stored[stored], [first], ctx.intermediate(shape, STORED[tensor.type]))
    base = ctx.builder.constant(np.stack(bases, 1).astype(np.int32).reshape(shape))
    places = ctx.elementwise(fn("add", Arg(0), Arg(1)), [given, base], ctx.intermediate(shape, DType.INT32))
    entries = ctx.builder.constant(np.concatenate(tables).reshape(1, 1, 1, -1))
    return ctx.add(Gather(1, 1, size, 1, count * 4), [entries, places], ctx.intermediate(shape, DType.FLOAT32))


def _bytes_of(ctx: OpContext) -> int | None:
    """The tensor of bytes that the boxes are, or whose real numbers."""
    kept, tensor = ctx.lowering.quantized, ctx.operator.inputs[0]
    if kept.keeps_stored(grid_of(ctx.tensor(0))) and not ctx.is_constant(0):
        ctx.lowering.ensure(tensor)
    tensor = kept.numbers_of.get(tensor, tensor)
    return tensor if tensor in kept.stored else None


@lowers_as(NON_MAX_SUPPRESSION_V4=False, NON_MAX_SUPPRESSION_V5=True)
def non_max_suppression(ctx: OpContext, with_scores: bool) -> None:
    """Zeros stand behind the boxes that are kept."""
    boxes, scores = ctx.shape(0), ctx.shape(1)
    count = boxes[0]
    ctx.require(len(boxes) == 2 and boxes[1] == 4 and scores == (count,), f"{list(scores)} scores of {list(boxes)}")
    (most,) = ctx.integers(2, "the number of boxes")
    ctx.require(
        0 < most <= MOST_BOXES and count <= MOST_BOXES, f"{most} of {count} boxes: up to {MOST_BOXES} are taken"
    )
    overlap, least = (_number(ctx, i) for i in (3, 4))
    sigma = _number(ctx, 5) if with_scores else 0.0
    fits = sigma <= 0 or (count <= MOST_LOWERED and most <= MOST_CHOSEN)
    ctx.require(fits, f"{most} of {count} boxes with a sigma: {MOST_CHOSEN} of {MOST_LOWERED} are taken")
    kept, *others = ctx.outputs
    for output in (kept, *others[:-1]):
        ctx.check_shape((most,), output)
    corners = ctx.reshaped(ctx.value(0), (count, 4))
    order = [_channel(ctx, corners, count, i) for i in range(4)]
    sorted_ = []
    for function, (first, second) in (("min", (0, 2)), ("min", (1, 3)), ("max", (0, 2)), ("max", (1, 3))):
        side = ctx.intermediate((1, 1, count, 1), DType.FLOAT32)
        sorted_.append(ctx.elementwise(fn(function, Arg(0), Arg(1)), [order[first], order[second]], side))
    upright = ctx.add(Concat(3), sorted_, ctx.intermediate((1, 1, count, 4), DType.FLOAT32))
    rated = ctx.reshaped(ctx.value(1), (1, 1, count, 1))
    op = Suppression(least, overlap, reaching=True, sigma=max(sigma, 0.0))
    rows = 2 if sigma > 0 else 1
    chosen = both = ctx.add(Custom(op), [upright, rated], ctx.intermediate((1, 1, rows, most), DType.INT32))
    if sigma > 0:
        row = (1, 1, 1, most)
        cuts = [Slice((0, 0, i, 0), (1, 1, 1, 1), row) for i in range(2)]
        chosen, bits = (ctx.copy(both, [cut], ctx.intermediate(row, DType.INT32)) for cut in cuts)
        ctx.elementwise(fn("bits_to_float32", Arg(0)), [bits], ctx.output_value(others[0]))
    none = Literal(0, DType.INT32)
    ctx.elementwise(fn("max", Arg(0), none), [chosen], ctx.output_value(kept))
    if with_scores and sigma <= 0:
        ctx.add(Gather(1, 1, count, 1, most), [rated, chosen], ctx.output_value(others[0]))
    number = fn("select", fn("ge", RESULT, none), Literal(1, DType.INT32), none)
    ctx.add(Reduce("sum", (3,), number), [chosen], ctx.output_value(others[-1]))


def _channel(ctx: OpContext, value: int, count: int, i: int) -> int:
    step = Slice((0, 0, 0, i), (1, 1, 1, 1), (1, 1, count, 1))
    return ctx.copy(value, [step], ctx.intermediate((1, 1, count, 1), DType.FLOAT32))


def _number(ctx: OpContext, i: int) -> float:
    ctx.require(ctx.is_constant(i), f"input {i}, '{ctx.tensor(i).name}', is computed by the model: a constant is taken")
    data = ctx.lowering.constant_tensor(ctx.operator.inputs[i])
    assert data is not None and data.data is not None  # also while constants are not decoded
    return float(data.data.reshape(-1)[0])
