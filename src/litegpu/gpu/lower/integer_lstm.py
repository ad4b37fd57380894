"""LSTM layers of 8 bits in whole numbers, with 16 bits for gates and states, as TFLite's kernels of
UNIDIRECTIONAL_SEQUENCE_LSTM and LSTM compute them."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, Conv2D, Custom, DType, Reshape, Slice, Step, bhwc, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.kernels.integer_lstm import NUMBERS, Factor, IntegerLstm, fits
from litegpu.gpu.kernels.lstm import FORGET, GATES, INPUT, OUTPUT
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.constants import Array, Unsupported, quanta
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.fixed_point_functions import logistic_table, tanh_table
from litegpu.gpu.lower.quantization import Grid, grid_of
from litegpu.model.types import TensorType

#: The operands of the layer by their meaning, of the gates input, candidate, forget, output, and the intermediates that
#: have the scales of what is normalized.
_WEIGHTS, _RECURRENT, _BIASES, _NORMS = (1, 3, 2, 4), (5, 7, 6, 8), (12, 14, 13, 15), (20, 22, 21, 23)
_INTERMEDIATES, _HIDDEN = (0, 2, 1, 3), 4
_PEEPHOLES = {INPUT: 9, FORGET: 10, OUTPUT: 11}
_PROJECTION, _PROJECTION_BIAS, _OUTPUT_STATE, _CELL_STATE = 16, 17, 18, 19
#: Without normalization gates have so many bits behind the point.
_GATE = np.float32(2.0**-12)
#: Sums of so many products of two bytes are exact in float32.
_MOST_FEATURES = 512


def layer(ctx: OpContext, op: tuple[int, int, bool], steps: int, batch: int) -> None:
    """Lower a layer of `op`: units, outputs, whether it is time-major. Raises Unsupported."""
    units, outputs, time_major = op
    made, state, cell = grid_of(ctx.output), grid_of(ctx.tensor(_OUTPUT_STATE)), grid_of(ctx.tensor(_CELL_STATE))
    x = integers.operand(ctx, 0)
    if made is None or state is None or cell is None or x is None:
        raise Unsupported("quantization of only some of the input, the states and the result")
    ctx.require(len(ctx.operator.intermediates) > _HIDDEN, "an integer layer has five intermediate tensors")
    exponent = round(math.log2(cell.scale))
    ctx.require(
        cell.scale == 2.0**exponent and -15 <= exponent <= -9,
        f"the state's scale is {cell.scale}: 2**-15 to 2**-9 are taken",
    )
    beyond = ctx.has(_PEEPHOLES[FORGET]) and outputs > units
    ctx.require(not beyond, "peepholes and more outputs than units, where the CPU's kernel reads what is not there")
    coupled, normalized = not ctx.has(_WEIGHTS[INPUT]), ctx.has(_NORMS[FORGET])
    inner = [_grid(ctx, i) for i in (*_INTERMEDIATES, _HIDDEN)]
    known = all(grid is not None for grid in (inner if normalized else inner[_HIDDEN:]))
    ctx.require(known, "intermediate tensors of an integer layer have no scale")
    scales = [np.float32(g.scale) if normalized and g is not None else _GATE for g in inner[:GATES]]
    hidden = inner[_HIDDEN]
    assert hidden is not None
    projected, out = ctx.has(_PROJECTION), np.float32(state.scale)
    recurrent = [_factor(_scale(ctx, i) * out / s) for i, s in zip(_RECURRENT, scales, strict=True)]
    norms = [_scale(ctx, i) for i in _NORMS] if normalized else []
    lstm = IntegerLstm(
        units=units,
        outputs=outputs,
        time_major=time_major,
        coupled=coupled,
        state=exponent,
        recurrent=tuple(recurrent),
        hidden=_factor(np.float32(2.0**-15 / float(np.float32(hidden.scale)) * 2.0**-15)),
        hidden_zero=-hidden.zero if projected else hidden.zero,  # of what is projected the CPU's kernel takes it away
        zero=state.zero,
        peephole=tuple(
            _factor(np.float32(2.0**exponent * float(_scale(ctx, _PEEPHOLES.get(i, -1))) / float(s)))
            for i, s in enumerate(scales)
        ) if ctx.has(_PEEPHOLES[FORGET]) else (),
        norms=tuple(_factor(s) for s in norms),
        guards=tuple(max(1, int(np.float32(10000) * s)) for s in norms),
        projection=_factor(_scale(ctx, _PROJECTION) * np.float32(hidden.scale) / out) if projected else None,
        state_clip=_clip(ctx, "cell_clip", cell),
        output_clip=_clip(ctx, "proj_clip", made),
    )  # fmt: skip
    large = f"{units} units and {outputs} outputs do not fit in the shared memory of every device"
    ctx.require(fits(lstm), large)
    sizes = (steps, batch) if time_major else (batch, steps)
    gates = _gates(ctx, lstm, sizes, x, scales)
    constants = [_matrix(ctx, _RECURRENT, (units, outputs)), _tables(ctx, exponent)]
    values = [ctx.builder.constant(c) for c in constants]
    kept = [_kept(ctx, i) for i in (_OUTPUT_STATE, _CELL_STATE)]
    inputs = [gates, values[0], *kept, values[1], ctx.builder.constant(_peepholes(ctx, lstm, batch))]
    biases = [_whole(ctx, i, (units,)) for i in (*_NORMS, *_BIASES)] if normalized else [np.zeros(units)] * 2 * GATES
    inputs.append(ctx.builder.constant(np.stack(biases).astype(np.int32)))
    if projected:
        inputs.append(ctx.builder.constant(_whole(ctx, _PROJECTION, (outputs, units))))
        inputs.append(ctx.builder.constant(_whole(ctx, _PROJECTION_BIAS, (outputs,))))
    everything = ctx.add(Custom(lstm), inputs, ctx.intermediate((*sizes, outputs + units), DType.INT32))
    result = bhwc((*sizes, outputs))
    sequence: list[Step] = [Slice((0, 0, 0, 0), (1, 1, 1, 1), result), Reshape(result, bhwc(ctx.output.shape))]
    given = ctx.copy(everything, sequence, ctx.intermediate(ctx.output.shape, DType.INT32))
    number = fn("add", Arg(0), whole(state.zero - made.zero))
    ctx.elementwise(integers.quanta_of(ctx, made, number), [given], ctx.output_value())
    integers.settle(ctx, made)
    for i, first, size in ((_OUTPUT_STATE, 0, outputs), (_CELL_STATE, outputs, units)):
        begin = (0, steps - 1, 0, first) if time_major else (0, 0, steps - 1, first)
        last = (1, 1, batch, size) if time_major else (1, batch, 1, size)
        final: list[Step] = [Slice(begin, (1, 1, 1, 1), last), Reshape(last, (1, 1, batch, size))]
        end = ctx.copy(everything, final, ctx.intermediate((batch, size), DType.INT32))
        after = ctx.intermediate((batch, size), DType.FLOAT32)
        ctx.update(i, ctx.elementwise(fn("to_float32", Arg(0)), [end], after))


def _gates(
    ctx: OpContext, op: IntegerLstm, sizes: tuple[int, int], x: integers.QuantizedOperand, scales: list[np.float32]
) -> int:
    """Weights times input for all steps, with the biases unless these come after the normalization."""
    depth, count = ctx.shape(0)[-1], GATES * op.units
    weights = _matrix(ctx, _WEIGHTS, (op.units, depth)).reshape(count, 1, 1, depth)
    source = ctx.reshaped(integers.as_float(ctx, 0, x), (*sizes, depth))
    sums = []
    for first in range(0, depth, _MOST_FEATURES):
        part = weights[..., first : first + _MOST_FEATURES].astype(np.float32)
        shape = bhwc((*sizes, part.shape[-1]))
        begin = Slice((0, 0, 0, first), (1, 1, 1, 1), shape)
        piece = source
        if part.shape[-1] < depth:
            piece = ctx.copy(source, [begin], ctx.intermediate(shape, DType.FLOAT32))
        total = ctx.intermediate((*sizes, count), DType.INT32)
        exact = fn("to_int32", fn("round", RESULT))
        sums.append(ctx.add(Conv2D(), [piece, ctx.builder.constant(part)], total, exact))
    factors = [_factor(_scale(ctx, i) * np.float32(x.scale) / s) for i, s in zip(_WEIGHTS, scales, strict=True)]
    bias = np.zeros((GATES, op.units))
    if not op.norms:
        bias = np.stack([_whole(ctx, i, (op.units,)) for i in _BIASES])
    rows = [bias, *(np.repeat([f[j] for f in factors], op.units) for j in range(2))]
    known = [ctx.builder.constant(r.reshape(1, 1, 1, count).astype(np.int32)) for r in rows]
    number = Arg(0)
    expr = number if len(sums) == 1 else fn("add", Arg(0), Arg(1))
    for i in range(2, len(sums)):
        expr = fn("add", expr, Arg(i))
    n = len(sums)
    scaled = fn("fixed_mul", fn("add", expr, Arg(n)), Arg(n + 1), Arg(n + 2))
    limited = fn("min", fn("max", scaled, whole(-(2**15))), whole(2**15 - 1))
    return ctx.elementwise(limited, [*sums, *known], ctx.intermediate((*sizes, count), DType.INT32))


def _peepholes(ctx: OpContext, op: IntegerLstm, batch: int) -> Array:
    """[1, 3, sequences, units]. The CPU's kernel goes through the states of all sequences that it has at a time, which
    are all of a time-major layer, with rows as long as the output: beyond as many there are no peepholes."""
    if not op.peephole:
        return np.zeros((1, 3, 1, op.units), np.int32)
    together = batch if op.time_major else 1
    places = np.arange(together * op.units)
    rows = []
    for i in _PEEPHOLES.values():
        weights = _whole(ctx, i, (op.units,)).reshape(-1)
        rows.append(np.where(places < together * op.outputs, weights[places % op.outputs], 0))
    return np.stack(rows).reshape(1, 3, together, op.units).astype(np.int32)


def _tables(ctx: OpContext, exponent: int) -> Array:
    """Of the logistic function, and of tanh of gates and of states."""
    if ctx.lowering.checking:
        return np.zeros((3, NUMBERS), np.int32)
    return np.stack([logistic_table(3), tanh_table(3), tanh_table(15 + exponent)])


def _kept(ctx: OpContext, i: int) -> int:
    """What a variable holds, which are quanta, as floats."""
    value = ctx.intermediate(ctx.shape(i), DType.INT32)
    return ctx.elementwise(fn("to_int32", fn("round", Arg(0))), [ctx.variable(i)], value)


def _matrix(ctx: OpContext, which: tuple[int, ...], shape: tuple[int, int]) -> Array:
    return np.concatenate([_whole(ctx, i, shape) for i in which])


def _whole(ctx: OpContext, i: int, shape: tuple[int, ...]) -> Array:
    """The stored numbers of a constant, less the zero point, as int32; zeros if it is absent."""
    if not ctx.has(i):
        return np.zeros(shape, np.int32)
    t = ctx.tensor(i)
    ctx.require(t.data is not None, f"input {i}, '{t.name}', is computed by the model: a constant is taken")
    found = quanta(t, -1, decode=not ctx.lowering.checking) if t.type is not TensorType.INT32 else None
    ctx.require(found is not None or t.type is TensorType.INT32, f"input {i}, '{t.name}', has no scale of its own")
    array = t.data if found is None else found[0]
    assert array is not None
    ctx.require(
        math.prod(array.shape) == math.prod(shape), f"input {i} has shape {list(array.shape)}, not {list(shape)}"
    )
    return np.asarray(array.reshape(shape), np.int32)


def _scale(ctx: OpContext, i: int) -> np.float32:
    """Of an operand; 1 if it is absent."""
    if i < 0 or not ctx.has(i):
        return np.float32(1)
    q = ctx.tensor(i).quantization
    ctx.require(q is not None and q.scales.size == 1, f"input {i}, '{ctx.tensor(i).name}', has not one scale")
    assert q is not None
    return np.float32(q.scales[0])


def _grid(ctx: OpContext, i: int) -> Grid | None:
    """Of an intermediate."""
    t = ctx.lowering.subgraph.tensors[ctx.operator.intermediates[i]]
    q = t.quantization
    if q is None or not q.scales.size:
        return None
    return Grid(float(q.scales[0]), int(q.zero_points[0]) if q.zero_points.size else 0, -128, 127)


def _factor(real: np.float32) -> Factor:
    return multiplier_of(float(np.float32(real)))


def _clip(ctx: OpContext, name: str, grid: Grid) -> int:
    """In quanta of a grid, as the CPU's kernel has it; 0 for none."""
    limit = float(np.float32(ctx.option(name, 0.0)) / np.float32(grid.scale))
    return max(0, int(min(limit, 32767 if grid.bits == 16 else 127)))
