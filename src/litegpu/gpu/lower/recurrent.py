"""LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, Concat, Conv2D, Custom, DType, MatMul, Reshape, Slice, Step, bhwc
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.kernels.lstm import CANDIDATE, FORGET, GATES, INPUT, OUTPUT, Lstm, fits
from litegpu.gpu.lower import integer_lstm
from litegpu.gpu.lower.activation import ACTIVATIONS, FUSED, activate
from litegpu.gpu.lower.constants import Array, Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops.record import BIAS, FLOAT
from litegpu.model.types import TensorType

#: The operands of the layer by their meaning: of the gates input, candidate, forget, output.
_WEIGHTS, _RECURRENT = (1, 3, 2, 4), (5, 7, 6, 8)
_PEEPHOLES = (9, 10, 11)  # of the gates input, forget, output
_BIASES, _NORMS = (12, 14, 13, 15), (20, 22, 21, 23)
_PROJECTION, _PROJECTION_BIAS, _OUTPUT_STATE, _CELL_STATE = 16, 17, 18, 19
_BASIC, _TANH = 1, 4  # LSTMKernelType, ActivationFunctionType

_INPUTS = (*[FLOAT] * 12, *[BIAS] * 4, FLOAT, BIAS, FLOAT)


@lowers("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(ctx: OpContext) -> None:
    _layer(ctx, bool(ctx.option("time_major", False)))


@lowers("LSTM")
def lstm(ctx: OpContext) -> None:
    if int(ctx.option("kernel_type", 0)) == _BASIC:
        _basic(ctx)
    else:
        ctx.require(len(ctx.operator.inputs) >= 20, f"{len(ctx.operator.inputs)} inputs where the full kernel has 20")
        _layer(ctx, True)


def _layer(ctx: OpContext, time_major: bool) -> None:
    """A layer over input 0, [T,B,D], [B,T,D], or [B,D] for one step."""
    x = ctx.shape(0)
    steps, batch = (1, x[0]) if len(x) == 2 else x[:2] if time_major else x[1::-1]
    ctx.require(ctx.has(_WEIGHTS[FORGET]) and ctx.has(_RECURRENT[FORGET]), "weights of the forget gate are missing")
    units, outputs = ctx.shape(_WEIGHTS[FORGET])[0], ctx.shape(_OUTPUT_STATE)[-1]
    ctx.check_shape((*x[:-1], outputs))
    for i, size in ((_OUTPUT_STATE, outputs), (_CELL_STATE, units)):
        ctx.require(ctx.shape(i) == (batch, size), f"state {i} has shape {list(ctx.shape(i))}, not {[batch, size]}")
    coupled = not ctx.has(_WEIGHTS[INPUT])
    normalized = ctx.has(_NORMS[FORGET])
    code = int(ctx.option("fused_activation_function"))
    # With NONE the CPU kernel multiplies the output gate by what happens to be in its scratch memory.
    ctx.require(code in FUSED and code != 0, f"the activation {ACTIVATIONS.get(code, code)} is not taken")
    projected = ctx.has(_PROJECTION)
    ctx.require(projected or units == outputs, f"{outputs} outputs of {units} units need a projection")
    if _is_integer(ctx):
        integer_lstm.layer(ctx, (units, outputs, time_major), steps, batch)
        return
    op = Lstm(
        units=units,
        outputs=outputs,
        time_major=time_major,
        activation=activate(RESULT, code),
        coupled=coupled,
        peephole=ctx.has(_PEEPHOLES[1]),
        normalized=normalized,
        projected=projected,
        cell_clip=float(ctx.option("cell_clip", 0.0)),
        projection_clip=float(ctx.option("proj_clip", 0.0)),
    )
    ctx.require(fits(op), f"{units} units and {outputs} outputs do not fit in the shared memory of every device")

    weights = _rows(ctx, _WEIGHTS, (units, x[-1]))
    recurrent = _rows(ctx, _RECURRENT, (units, outputs))
    biases = np.concatenate([_bias(ctx, b, 0, w, units) for b, w in zip(_BIASES, _WEIGHTS, strict=True)])
    builder = ctx.builder
    filters = builder.constant(weights.reshape(GATES * units, 1, 1, x[-1]), name=ctx.tensor(_WEIGHTS[FORGET]).name)
    layout = (steps, batch) if time_major else (batch, steps)
    source = ctx.reshaped(ctx.value(0), (*layout, x[-1]))
    gates = ctx.intermediate((*layout, GATES * units), DType.FLOAT32)
    if normalized:
        ctx.add(Conv2D(), [source, filters], gates)
    else:
        bias = builder.constant(biases.reshape(-1))
        ctx.add(Conv2D(), [source, filters], gates, fn("add", RESULT, Arg(1)), [bias])
    states = [ctx.variable(i) for i in (_OUTPUT_STATE, _CELL_STATE)]
    inputs = [gates, builder.constant(recurrent.reshape(GATES * units, outputs)), *states]
    if op.peephole:
        peepholes = [np.zeros(units, np.float32) if coupled and i == _PEEPHOLES[0] else _constant(ctx, i, (units,))
                     for i in _PEEPHOLES]  # fmt: skip
        inputs.append(builder.constant(np.stack(peepholes)))
    if normalized:
        norms = _rows(ctx, _NORMS, (units,)).reshape(GATES, units)
        inputs.append(builder.constant(np.concatenate([norms, biases.reshape(GATES, units)])))
    if projected:
        inputs.append(builder.constant(_constant(ctx, _PROJECTION, (outputs, units))))
        inputs.append(builder.constant(_bias(ctx, _PROJECTION_BIAS, 0, _PROJECTION, outputs)))
    everything = ctx.add(Custom(op), inputs, ctx.intermediate((*layout, outputs + units), DType.FLOAT32))
    result = bhwc((*layout, outputs))
    sequence: list[Step] = [Slice((0, 0, 0, 0), (1, 1, 1, 1), result)]
    ctx.copy(everything, [*sequence, Reshape(result, bhwc(ctx.output.shape))], ctx.output_value())
    for i, first, size in ((_OUTPUT_STATE, 0, outputs), (_CELL_STATE, outputs, units)):
        begin = (0, steps - 1, 0, first) if time_major else (0, 0, steps - 1, first)
        last = (1, 1, batch, size) if time_major else (1, batch, 1, size)
        final: list[Step] = [Slice(begin, (1, 1, 1, 1), last), Reshape(last, (1, 1, batch, size))]
        ctx.update(i, ctx.copy(everything, final, ctx.intermediate((batch, size), DType.FLOAT32)))


def _basic(ctx: OpContext) -> None:
    """One step with all gates in one matrix (rows: input, candidate, forget, output), on [data, last output]. States
    that are no variables are ordinary inputs; the CPU kernel also writes to them, which only matters to who does not
    set them again."""
    ctx.require(len(ctx.operator.inputs) == 5, f"{len(ctx.operator.inputs)} inputs where the basic kernel has 5")
    ctx.require(len(ctx.outputs) == 4, f"{len(ctx.outputs)} outputs where the basic kernel has 4")
    (batch, depth), units = ctx.shape(0), ctx.shape(1)[-1]
    ctx.require(ctx.shape(1) == ctx.shape(4) == (batch, units), f"states of shapes {ctx.shape(1)} and {ctx.shape(4)}")
    wide = (GATES * units, depth + units)
    ctx.require(ctx.shape(2) == wide, f"weights of shape {list(ctx.shape(2))}, not {list(wide)}")
    ctx.require(math.prod(ctx.shape(3)) == GATES * units, f"bias of shape {list(ctx.shape(3))} for {units} units")
    for name in ("cell_clip", "proj_clip"):
        ctx.require(float(ctx.option(name, 0.0)) == 0, f"{name} with the basic kernel")
    for output, shape in zip(ctx.outputs, ((batch, units), (batch, units), (batch, depth + units), (batch, wide[0])),
                             strict=True):  # fmt: skip
        ctx.check_shape(shape, output)
    last_output, last_state = (ctx.variable(i) if ctx.tensor(i).is_variable else ctx.value(i) for i in (1, 4))
    hidden, state, joined, gates = (ctx.output_value(t) for t in ctx.outputs)
    ctx.add(Concat(3), [ctx.value(0), last_output], joined)
    if ctx.is_constant(3):
        bias = ctx.builder.constant(_bias(ctx, 3, 0, 2, GATES * units))
    else:
        ctx.require(ctx.dtype(3) is DType.FLOAT32, f"a bias of type {ctx.tensor(3).type.name} that the model computes")
        bias = ctx.reshaped(ctx.value(3), (GATES * units,))
    if ctx.is_constant(2):
        filters = ctx.builder.constant(ctx.array(2).reshape(GATES * units, 1, 1, depth + units))
        rows, columns = (1, 1, batch, depth + units), (1, 1, batch, GATES * units)
        assert ctx.builder.values[joined].shape == rows and ctx.builder.values[gates].shape == columns
        ctx.add(Conv2D(), [joined, filters], gates, fn("add", RESULT, Arg(1)), [bias])
    else:
        ctx.add(MatMul(transpose_b=True), [joined, ctx.value(2)], gates, fn("add", RESULT, Arg(1)), [bias])
    each = []
    for i in range(GATES):
        part = Slice((0, 0, 0, i * units), (1, 1, 1, 1), (1, 1, batch, units))
        each.append(ctx.copy(gates, [part], ctx.intermediate((batch, units), DType.FLOAT32)))
    into, forget = (fn("sigmoid", Arg(i)) for i in (INPUT, FORGET))
    new_state = fn("add", fn("mul", into, fn("tanh", Arg(CANDIDATE))), fn("mul", forget, Arg(3)))
    ctx.elementwise(new_state, [each[INPUT], each[CANDIDATE], each[FORGET], last_state], state)
    ctx.elementwise(fn("mul", fn("sigmoid", Arg(0)), fn("tanh", Arg(1))), [each[OUTPUT], state], hidden)
    for i, value in ((1, hidden), (4, state)):
        if ctx.tensor(i).is_variable:
            ctx.update(i, value)


def _is_integer(ctx: OpContext) -> bool:
    """Whether the layer is one of 8 bits, with 16 for the state. Raises Unsupported if it is of other types."""
    grids = {i: grid_of(ctx.tensor(i)) for i in (0, _OUTPUT_STATE, _CELL_STATE)}
    if all(grid is None for grid in grids.values()):
        return False
    types = [ctx.tensor(i).type for i in grids]
    ctx.require(
        all(grid is not None for grid in grids.values())
        and types == [TensorType.INT8, TensorType.INT8, TensorType.INT16],
        f"input and states are {', '.join(t.name for t in types)}: float layers and INT8, INT8, INT16 are taken",
    )
    ctx.require(int(ctx.option("fused_activation_function")) == _TANH, "an integer layer has the activation TANH")
    return True


def _bias(ctx: OpContext, i: int, data: int, weights: int, size: int) -> Array:
    """The constant bias i of `weights` on input `data`, zeros if it is absent. Whole numbers count products of their
    quanta."""
    if not ctx.has(i):
        return np.zeros(size, np.float32)
    bias = _constant(ctx, i, (size,))
    if ctx.tensor(i).type is not TensorType.INT32:
        return bias
    grid = grid_of(ctx.tensor(data))
    quantization = ctx.tensor(weights).quantization
    if grid is None or quantization is None or quantization.scales.size != 1:
        raise Unsupported(f"the bias {i} is INT32, and what it is added to has no scale")
    return np.asarray(bias * np.float32(grid.scale) * np.float32(quantization.scales[0]), np.float32)


def _rows(ctx: OpContext, which: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """The constants `which` of the four gates, each of `shape`, one below the other; zeros for absent ones."""
    return np.concatenate([_constant(ctx, i, shape) if ctx.has(i) else np.zeros(shape, np.float32) for i in which])


def _constant(ctx: OpContext, i: int, shape: tuple[int, ...]) -> Array:
    """The constant input i, of `shape`; recurrent weights may be the diagonal of a matrix."""
    ctx.require(ctx.is_constant(i), f"input {i}, '{ctx.tensor(i).name}', is computed by the model: a constant is taken")
    array = ctx.array(i)
    if array.ndim == 1 and len(shape) == 2 and shape == (array.size, array.size):
        array = np.diag(array)
    ctx.require(array.shape == shape, f"input {i} has shape {list(array.shape)}, not {list(shape)}")
    return np.asarray(array, np.float32)
