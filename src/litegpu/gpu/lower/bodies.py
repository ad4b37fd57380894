"""STABLEHLO_SCATTER and STABLEHLO_REDUCE_WINDOW, whose bodies are subgraphs, and REDUCE_WINDOW."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import (
    Arg,
    Custom,
    DType,
    Expr,
    Gather,
    Pad,
    Reduce,
    Reshape,
    Shape,
    Step,
    Take,
    Transpose,
    bhwc,
    step_shape,
    whole,
)
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.kernels.scatter import Scatter
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.movement import spread
from litegpu.gpu.lower.registry import lowers
from litegpu.model.bodies import ASSIGNED
from litegpu.model.types import TensorType

#: Places times what is put there that is looked through, and elements of windows one behind the other.
MOST_LOOKS, MOST_ELEMENTS = 1 << 28, 1 << 26
_TYPES = (TensorType.FLOAT32, TensorType.INT32, TensorType.BOOL, TensorType.INT8, TensorType.UINT8, TensorType.INT16)
#: ReduceWindowFunction of the schema.
_WINDOW_FUNCTIONS = {1: "add", 2: "mul", 3: "min", 4: "max", 5: "all", 6: "any"}
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
#: Of truths.
_LOGIC = {"add": "or", "max": "or", "any": "or", "mul": "and", "min": "and", "all": "and"}


def _body(ctx: OpContext) -> str:
    """The function of the body."""
    name = ctx.operator.body
    ctx.require(
        bool(name), "its body is not one operator that is known: a sum, a product, an extreme, both of two truths"
    )
    _check_types(ctx, name)
    return name


def _check_types(ctx: OpContext, name: str) -> None:
    kind = ctx.output.type
    ctx.require(kind in _TYPES, f"the output is {kind.name}, which its body is not known for")
    ctx.require(name not in ("all", "any") or kind is TensorType.BOOL, f"the logic of {kind.name}")


def _combined(name: str, truths: bool) -> Expr:
    if name == ASSIGNED:
        return Arg(1)
    return fn(f"logical_{_LOGIC[name]}" if truths else name, Arg(0), Arg(1))


@lowers("STABLEHLO_SCATTER")
def scatter(ctx: OpContext) -> None:
    """Where each update belongs, and then the updates one after the other."""
    x, given, updates = (ctx.shape(i) for i in range(3))
    ctx.check_shape(x)
    name = _body(ctx)
    ctx.require(name != "all", "scattering with this body, which the CPU does not either")
    ctx.require(ctx.dtype(0) is ctx.dtype(2), "inputs of different types are not taken together")
    count = math.prod(updates)
    looks = count * math.prod(x)
    ctx.require(looks <= MOST_LOOKS, f"{count} updates of {math.prod(x)} places are too many")
    places = _places(ctx, x, given, updates)
    operands = [
        ctx.reshaped(ctx.value(0), (1, 1, 1, math.prod(x))),
        places,
        ctx.reshaped(ctx.value(2), (1, 1, 1, count)),
    ]
    op = Custom(Scatter(_combined(name, ctx.dtype(0) is DType.BOOL)))
    result = ctx.add(op, operands, ctx.intermediate((1, 1, 1, math.prod(x)), ctx.dtype(0)))
    ctx.copy(ctx.reshaped(result, ctx.builder.values[ctx.value(0)].shape), [], ctx.output_value())


def _places(ctx: OpContext, x: Shape, given: Shape, updates: Shape) -> int:
    """The place of each update in its own order, -1 for those that lie outside."""
    windows, inserted = _numbers(ctx, "update_window_dims"), _numbers(ctx, "inserted_window_dims")
    order, vector = _numbers(ctx, "scatter_dims_to_operand_dims"), int(ctx.option("index_vector_dim"))
    width = given[vector] if vector < len(given) else 1
    batch = tuple(n for i, n in enumerate(given) if i != vector)
    axes = [a for a in range(len(x)) if a not in inserted]
    known = all(0 <= d < len(updates) for d in windows) and all(0 <= a < len(x) for a in (*inserted, *order))
    ctx.require(known and len(axes) == len(windows) and len(order) == width, "dimension numbers do not fit the shapes")
    outer = [d for d in range(len(updates)) if d not in windows]
    ctx.require(tuple(updates[d] for d in outer) == batch, f"updates of {list(updates)} for indices of {list(given)}")
    ctx.require(all(updates[d] <= x[a] for d, a in zip(windows, axes, strict=True)), "windows larger than the operand")
    count, rows = math.prod(updates), math.prod(batch)
    coordinates = np.indices(updates).reshape(len(updates), -1) if updates else np.zeros((0, 1), np.int64)
    row = np.ravel_multi_index(tuple(coordinates[d] for d in outer), batch) if batch else np.zeros(count, np.int64)
    within = {a: coordinates[d] for d, a in zip(windows, axes, strict=True)}
    strides = [math.prod(x[i + 1 :]) for i in range(len(x))]
    fixed = sum((within[a] * strides[a] for a in within), np.zeros(count, np.int64))
    place = _constant(ctx, fixed)
    last = (*(i for i in range(len(given)) if i != vector), *((vector,) if vector < len(given) else ()))
    for k, axis in enumerate(order):
        steps: list[Step] = [Reshape(bhwc(given), given), Transpose(last)]
        steps += [Reshape(tuple(given[i] for i in last), (rows, width)), Take(1, (k,))]
        steps.append(Reshape((rows, 1), (1, 1, 1, rows)))
        start = ctx.copy(ctx.value(1), steps, ctx.intermediate((1, 1, 1, rows), DType.INT32))
        if not np.array_equal(row, np.arange(rows)):
            spread_out = ctx.intermediate((1, 1, 1, count), DType.INT32)
            start = ctx.add(Gather(1, 1, rows, 1, count), [start, _constant(ctx, row)], spread_out)
        offset = within.get(axis, np.zeros(count, np.int64))
        here = fn("add", Arg(1), Arg(2))
        inside = fn("logical_and", fn("ge", here, whole(0)), fn("lt", here, whole(x[axis])))
        inside = fn("logical_and", inside, fn("ge", Arg(0), whole(0)))
        moved = fn("add", Arg(0), fn("mul", Arg(1), whole(strides[axis])))
        # a start that is far outside wraps around, and is not taken
        near = fn("logical_and", fn("gt", Arg(1), whole(-x[axis])), fn("lt", Arg(1), whole(x[axis])))
        expr = fn("select", fn("logical_and", inside, near), moved, whole(_NOWHERE))
        operands = [place, start, _constant(ctx, offset)]
        place = ctx.elementwise(expr, operands, ctx.intermediate((1, 1, 1, count), DType.INT32))
    return place


_NOWHERE = -(1 << 30)


def _constant(ctx: OpContext, numbers: np.ndarray) -> int:
    return ctx.builder.constant(numbers.astype(np.int32).reshape(1, 1, 1, -1))


@lowers("STABLEHLO_REDUCE_WINDOW")
def stablehlo_reduce_window(ctx: OpContext) -> None:
    name = _body(ctx)
    ctx.require(name != ASSIGNED, "a body that takes no sum, product or extreme")
    x = ctx.shape(0)
    ones = [1] * len(x)
    size, stride = _numbers(ctx, "window_dimensions"), _numbers(ctx, "window_strides") or ones
    apart, inner = _numbers(ctx, "window_dilations") or ones, _numbers(ctx, "base_dilations") or ones
    padding = _numbers(ctx, "padding") or [0] * (2 * len(x))
    ctx.require(len(padding) == 2 * len(x), f"paddings {list(padding)} for shape {list(x)}")
    _reduce_windows(ctx, name, (size, stride, apart, inner), (padding[::2], padding[1::2]))


@lowers("REDUCE_WINDOW")
def reduce_window(ctx: OpContext) -> None:
    name = _WINDOW_FUNCTIONS.get(int(ctx.option("reduce_function")), "")
    ctx.require(bool(name), "a function that is not known")
    _check_types(ctx, name)
    x = ctx.shape(0)
    size, stride, apart = (
        ctx.integers(i, what) for i, what in ((2, "the sizes"), (3, "the strides"), (4, "the steps"))
    )
    _reduce_windows(ctx, name, (size, stride, apart, [1] * len(x)), ([0] * len(x), [0] * len(x)))


def _reduce_windows(
    ctx: OpContext, name: str, windows: Sequence[Sequence[int]], padding: tuple[Sequence[int], Sequence[int]]
) -> None:
    """One axis after another: `windows` are the sizes, strides, steps within a window and steps between elements, of
    which only that of padding is not an element; what pads is what it begins with."""
    x, (size, stride, apart, inner) = ctx.shape(0), windows
    fits = all(len(n) == len(x) for n in (*windows, *padding)) and min((*size, *stride, *apart, *inner), default=1) > 0
    ctx.require(fits, f"windows of {list(size)} in steps of {list(stride)} do not fit shape {list(x)}")
    ctx.require(ctx.is_constant(1), "what it begins with is computed by the model: the GPU needs a constant")
    ctx.require(ctx.dtype(0) is ctx.dtype(1) and math.prod(ctx.shape(1)) == 1, "what it begins with is not one number")
    begin, truths = ctx.array(1).reshape(()), ctx.dtype(0) is DType.BOOL
    kind = DType.INT32 if truths else ctx.dtype(0)
    source = ctx.value(0)
    if truths:
        source = ctx.elementwise(fn("to_int32", Arg(0)), [source], ctx.intermediate(bhwc(x), DType.INT32))
        name = "max" if _LOGIC[name] == "or" else "min"
    steps, shape = spread(x, inner, float(begin))
    pad = Pad(tuple(padding[0]), tuple(padding[1]), float(begin))
    shape = step_shape(pad, shape)
    ctx.require(abs(float(begin)) < 2**24 or kind is DType.FLOAT32, f"it begins with {begin}")
    source = ctx.copy(
        source, [Reshape(bhwc(x), x), *steps, pad, Reshape(shape, bhwc(shape))], ctx.intermediate(bhwc(shape), kind)
    )
    for axis, n in enumerate(size):
        count = (shape[axis] - (n - 1) * apart[axis] - 1) // stride[axis] + 1
        ctx.require(count > 0, f"a window of {n} in {shape[axis]} elements")
        outer, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        ctx.require(outer * count * n * after <= MOST_ELEMENTS, f"{count} windows of {n} elements are too many")
        indices = tuple(o * stride[axis] + i * apart[axis] for o in range(count) for i in range(n))
        flat, taken = (outer, shape[axis], after), (outer, count * n, after)
        rows: Shape = (outer * count, n, 1, after) if n > 1 else (outer, count, 1, after)
        here = ctx.builder.values[source].shape
        moved: list[Step] = [Reshape(here, flat), Take(1, indices), Reshape(taken, rows)]
        source = ctx.copy(source, moved, ctx.intermediate(rows, kind))
        if n > 1:
            op = Reduce(_REDUCTIONS[name], (1,))
            source = ctx.add(op, [source], ctx.intermediate((outer * count, 1, 1, after), kind))
        shape = (*shape[:axis], count, *shape[axis + 1 :])
    ctx.check_shape(shape)
    result = ctx.reshaped(source, ctx.builder.values[ctx.value(0)].shape if shape == x else bhwc(shape))
    first = ctx.builder.constant(np.asarray(begin, np.int32 if truths else ctx.array(1).dtype).reshape(1, 1, 1, 1))
    expr: Expr = fn(name, Arg(0), Arg(1))
    ctx.elementwise(fn("to_bool", expr) if truths else expr, [result, first], ctx.output_value())


def _numbers(ctx: OpContext, name: str) -> tuple[int, ...]:
    given = ctx.option(name, ())
    return tuple(int(n) for n in ([] if given is None else given))
