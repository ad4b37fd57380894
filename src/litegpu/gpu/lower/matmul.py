"""FULLY_CONNECTED and BATCH_MATMUL."""

from __future__ import annotations

import math

import numpy as np

from litegpu.gpu.graph import RESULT, Conv2D, IntegerConv2D, IntegerMatMul, MatMul
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import fixed_point, integers
from litegpu.gpu.lower.activation import BOUNDS
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.product import in_fixed_point, product
from litegpu.gpu.lower.quantization import grid_of
from litegpu.gpu.lower.registry import lowers
from litegpu.gpu.lower.wide_product import wide_product


@lowers("FULLY_CONNECTED")
def fully_connected(ctx: OpContext) -> None:
    ctx.require(int(ctx.option("weights_format")) == 0, "shuffled weights (weights_format 1) are not taken")
    x, weights = ctx.shape(0), ctx.shape(1)
    ctx.require(len(weights) == 2 and min(weights) > 0, f"weights of shape {list(weights)}: they must have rank 2")
    units, depth = weights
    elements = math.prod(x)
    ctx.require(elements % depth == 0, f"an input of shape {list(x)} does not divide into rows of {depth}")
    if ctx.option("keep_num_dims", False):
        ctx.require(bool(x) and x[-1] == depth, f"keep_num_dims needs a last size of {depth}, the input has {list(x)}")
        ctx.check_shape((*x[:-1], units))
    elif math.prod(ctx.output.shape) != elements // depth * units or ctx.output.shape[-1:] != (units,):
        raise Unsupported(f"output of shape {list(ctx.output.shape)} for {elements // depth} rows of {units} units")
    if _by_computed_weights(ctx, elements // depth, units, depth):
        return
    rows = x if x and x[-1] == depth else (elements // depth, depth)
    wide = wide_product(ctx, units, (*rows[:-1], units), short=False)
    if wide is not None:
        array = wide.weights.astype(np.int8).reshape(units, 1, 1, depth)
        filters = ctx.builder.constant(array, name=ctx.tensor(1).name, narrow=True)
        wide.put(ctx, IntegerConv2D(), (*rows[:-1], units), filters, lambda v: ctx.reshaped(v, rows))
        return
    p = product(ctx, units, once=True, by_gemm=True)
    if p.array is not None:
        source = ctx.reshaped(p.data, rows)
        filters = p.weights(p.array.reshape(units, 1, 1, depth))
        zeros = p.zeros
        op = Conv2D() if zeros is None else IntegerConv2D(zero_point=zeros.data, weights_zero_point=zeros.weights)
        ctx.finish(op, [source, filters], (*rows[:-1], units), p.epilogue, p.operands)
        return
    source = ctx.reshaped(p.data, (elements // depth, depth))
    shape = (elements // depth, units)
    ctx.finish(MatMul(transpose_b=True), [source, p.weights()], shape, p.epilogue, p.operands)


def _by_computed_weights(ctx: OpContext, rows: int, units: int, depth: int) -> bool:
    """The product of what is stored and weights that the model computes, bytes too, as the runtime's own kernel has it;
    False for anything else."""
    if ctx.is_constant(1) or not all(integers.is_stored(ctx, i) for i in (0, 1, None)):
        return False
    x, weights, made = (grid_of(t) for t in (ctx.tensor(0), ctx.tensor(1), ctx.output))
    code = int(ctx.option("fused_activation_function"))
    if x is None or weights is None or made is None or code not in BOUNDS or not ctx.lowering.xnnpack:
        return False
    operands = [ctx.reshaped(integers.stored(ctx, i), shape) for i, shape in enumerate(((rows, depth), (units, depth)))]
    factor = np.array([x.scale * weights.scale / made.scale])
    epilogue, constants = in_fixed_point(ctx, 2, units, factor, made, upwards=True)
    op = IntegerMatMul(transpose_b=True, zero_point=x.zero, other_zero_point=weights.zero)
    ctx.finish(op, operands, (rows, units), epilogue, constants)
    return True


@lowers("BATCH_MATMUL")
def batch_matmul(ctx: OpContext) -> None:
    x, y = ctx.shape(0), ctx.shape(1)
    ctx.require(min(len(x), len(y)) >= 2, f"operands of shapes {list(x)} and {list(y)}: both must have rank 2 to 4")
    adj_x, adj_y = bool(ctx.option("adj_x", False)), bool(ctx.option("adj_y", False))
    m, k = x[-2:][::-1] if adj_x else x[-2:]
    depth, n = y[-2:][::-1] if adj_y else y[-2:]
    ctx.require(k == depth, f"operands of shapes {list(x)} and {list(y)} do not multiply")
    try:
        batch = np.broadcast_shapes(x[:-2], y[:-2])
    except ValueError:
        raise Unsupported(f"the leading axes of {list(x)} and {list(y)} do not broadcast") from None
    ctx.check_shape((*batch, m, n))
    if _of_quanta(ctx, MatMul(adj_x, adj_y), (*batch, m, n)):
        return
    if ctx.is_constant(1) and not adj_x and math.prod(y[:-2]) == 1:
        # The same matrix for all rows: a convolution with windows of one pixel.
        matrix = ctx.array(1).reshape(y[-2:])
        filters = (matrix if adj_y else matrix.T).reshape(n, 1, 1, k)
        ctx.finish(Conv2D(), [ctx.value(0), ctx.builder.constant(filters, name=ctx.tensor(1).name)], (*batch, m, n))
        return
    ctx.finish(MatMul(adj_x, adj_y), [ctx.value(0), ctx.value(1)], (*batch, m, n))


def _of_quanta(ctx: OpContext, op: MatMul, shape: tuple[int, ...]) -> bool:
    """The product of two 8-bit tensors: sums of products of quanta, which float32 holds exactly below 2**24, scaled in
    fixed point. False for anything else."""
    x, y, made = integers.operand(ctx, 0), integers.operand(ctx, 1), grid_of(ctx.output)
    if x is None or y is None or made is None or max(g.bits for g in (x.grid, y.grid, made)) > 8:
        return False
    factor = float(x.scale * y.scale) / made.scale
    kept = ctx.lowering.quantized
    if all(kept.keeps_stored(g) for g in (x.grid, y.grid, made)):
        whole = IntegerMatMul(op.transpose_a, op.transpose_b, x.grid.zero, y.grid.zero)
        if ctx.lowering.xnnpack and y.grid.zero == 0:  # as it wants weights to be
            epilogue = integers.rounded_once(ctx, made, RESULT, float(x.scale * y.scale / np.float32(made.scale)))
        else:
            epilogue = integers.quanta_of(ctx, made, fixed_point.times(RESULT, factor))
        ctx.finish(whole, [integers.stored(ctx, i) for i in (0, 1)], shape, epilogue)
        return True
    sums = fn("to_int32", fn("round", RESULT))
    inputs = [integers.as_float(ctx, i, o) for i, o in enumerate((x, y))]
    ctx.finish(op, inputs, shape, integers.quanta_of(ctx, made, fixed_point.times(sums, factor)))
    integers.settle(ctx, made)
    return True
