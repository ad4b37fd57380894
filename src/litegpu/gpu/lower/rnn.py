"""RNN, UNIDIRECTIONAL_SEQUENCE_RNN and SVDF: layers whose state is what they gave, or were given, before."""

from __future__ import annotations

import math

from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, DType, Reduce, Reshape, Slice, Step
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import svdf_integers
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers

#: Steps, each of which is a kernel of its own.
MOST_STEPS = 256
_STATE = 4


@lowers("RNN")
def rnn(ctx: OpContext) -> None:
    x, units = ctx.shape(0), ctx.shape(1)[0]
    ctx.check_shape((x[0], units))
    _steps(ctx, 1, x[0], time_major=True)


@lowers("UNIDIRECTIONAL_SEQUENCE_RNN")
def unidirectional_sequence_rnn(ctx: OpContext) -> None:
    x, units, time_major = ctx.shape(0), ctx.shape(1)[0], bool(ctx.option("time_major", False))
    ctx.check_shape((*x[:-1], units))
    steps, batch = x[:2] if time_major else x[1::-1]
    _steps(ctx, steps, batch, time_major=time_major)


def _steps(ctx: OpContext, steps: int, batch: int, *, time_major: bool) -> None:
    """What the input gives is one product for all steps; then step after step adds what the last one gave."""
    depth, units = ctx.shape(0)[-1], ctx.shape(1)[0]
    ctx.require(steps <= MOST_STEPS, f"{steps} steps: up to {MOST_STEPS} are taken")
    shapes = [ctx.shape(i) for i in range(1, 5)]
    wanted = [(units, depth), (units, units), (units,), (batch, units)]
    ctx.require(shapes == wanted, f"weights, bias and state of shapes {shapes}, not {wanted}")
    layout = (steps, batch) if time_major else (batch, steps)
    filters, recurrent = (_filters(ctx, i, (units, n)) for i, n in ((1, depth), (2, units)))
    gates = ctx.intermediate((*layout, units), DType.FLOAT32)
    source = ctx.reshaped(ctx.value(0), (*layout, depth))
    ctx.add(Conv2D(), [source, filters], gates, fn("add", RESULT, Arg(1)), [ctx.reshaped(ctx.value(3), (units,))])
    hidden, made = ctx.variable(_STATE), []
    place = (1, 1, batch, units) if time_major else (1, batch, 1, units)
    for step in range(steps):
        begin = (0, step, 0, 0) if time_major else (0, 0, step, 0)
        own: list[Step] = [Slice(begin, (1, 1, 1, 1), place), Reshape(place, (1, 1, batch, units))]
        gate = ctx.copy(gates, own, ctx.intermediate((batch, units), DType.FLOAT32))
        result = ctx.intermediate((batch, units), DType.FLOAT32)
        hidden = ctx.add(Conv2D(), [hidden, recurrent], result, ctx.activation(fn("add", RESULT, Arg(1))), [gate])
        made.append(ctx.reshaped(hidden, place))
    joined = made[0]
    if steps > 1:
        axis = 1 if time_major else 2
        joined = ctx.add(Concat(axis), made, ctx.intermediate((*layout, units), DType.FLOAT32))
    ctx.copy(ctx.reshaped(joined, ctx.output.shape), [], ctx.output_value())
    ctx.update(_STATE, hidden)


@lowers("SVDF")
def svdf(ctx: OpContext) -> None:
    """Each filter keeps what it gave for the last inputs, and weighs that."""
    (batch, depth), (count, width), (filters, memory) = ctx.shape(0), ctx.shape(1), ctx.shape(2)
    rank = int(ctx.option("rank"))
    ctx.require(rank > 0 and count % rank == 0, f"{count} filters do not divide into ranks of {rank}")
    units = count // rank
    fits = width == depth and filters == count and ctx.shape(_STATE) == (batch, memory * count)
    ctx.require(fits, f"weights of shapes {[ctx.shape(1), ctx.shape(2)]} and a state of {list(ctx.shape(_STATE))}")
    ctx.check_shape((batch, units))
    whole_numbers = svdf_integers.layer(ctx) if grid_of(ctx.tensor(0)) is not None else None
    if whole_numbers is None:
        now = ctx.add(
            Conv2D(), [ctx.value(0), _filters(ctx, 1, (count, depth))], ctx.intermediate((batch, count), DType.FLOAT32)
        )
    else:
        now = whole_numbers.features()
    state = _moved_on(ctx, now, (batch, count, memory))
    seen = ctx.reshaped(state, (batch, units, rank, memory))
    if whole_numbers is not None:
        whole_numbers.finish(seen)
        return
    weights = ctx.reshaped(ctx.value(2), (units, rank, memory))
    expr, operands = fn("add", RESULT, 0.0), []
    if ctx.has(3):
        ctx.require(math.prod(ctx.shape(3)) == units, f"a bias of shape {list(ctx.shape(3))} for {units} units")
        expr, operands = fn("add", RESULT, Arg(1)), [ctx.reshaped(ctx.value(3), (units, 1, 1))]
    op = Reduce("sum", (2, 3), fn("mul", Arg(0), Arg(1)))
    ctx.finish(op, [seen, weights], (batch, units, 1, 1), ctx.activation(expr), operands)


def _moved_on(ctx: OpContext, now: int, sizes: tuple[int, int, int]) -> int:
    """What the filters gave for the last inputs, with what they give for this one behind; the variable keeps it."""
    batch, count, memory = sizes
    flat, kept = (1, 1, batch, memory * count), (1, batch, count, memory)
    state = ctx.reshaped(now, (batch, count, 1))
    if memory > 1:
        later = (1, batch, count, memory - 1)
        before: list[Step] = [Reshape(flat, kept), Slice((0, 0, 0, 1), (1, 1, 1, 1), later)]
        shifted = ctx.copy(ctx.variable(_STATE), before, ctx.intermediate(later, DType.FLOAT32))
        state = ctx.add(Concat(3), [shifted, state], ctx.intermediate(kept, DType.FLOAT32))
    else:
        ctx.variable(_STATE)
    ctx.update(_STATE, ctx.reshaped(state, (batch, memory * count)))
    return state


def _filters(ctx: OpContext, i: int, shape: tuple[int, int]) -> int:
    ctx.require(ctx.is_constant(i), f"input {i}, '{ctx.tensor(i).name}', is computed by the model: a constant is taken")
    return ctx.builder.constant(ctx.array(i).reshape(shape[0], 1, 1, shape[1]), name=ctx.tensor(i).name)
