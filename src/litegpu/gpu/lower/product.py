"""What convolutions and fully-connected layers have in common: data times weights, scales, bias and activation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import RESULT, Arg, DType, Expr, Literal, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower.activation import BOUNDS
from litegpu.gpu.lower.constants import QUANTIZED, Array, quanta
from litegpu.gpu.lower.context import NOT_KNOWN, OpContext
from litegpu.gpu.lower.fixed_point import multiplier_of
from litegpu.gpu.lower.integers import quanta_of, rounded_once
from litegpu.gpu.lower.quantization import Grid, grid_of
from litegpu.model.types import Tensor, TensorType

#: The power of two up to which products are rounded once.
_MOST_ONCE = 15
#: What the bias of quantized data and weights may be.
_INTEGERS = (TensorType.INT32, TensorType.INT64)


@dataclass(frozen=True, eq=False)
class Product:
    """The operands of a multiplication, and the epilogue that makes the operator's result of the sums."""

    ctx: OpContext
    data: int
    array: Array | None  # constant weights, in the shape that the model gives them
    epilogue: Expr
    operands: list[int]
    zeros: Zeros | None = None  # if it is one of bytes

    def weights(self, array: Array | None = None) -> int:
        """The value of the weights; `array` has the constant ones in another shape."""
        if self.array is None:
            return self.ctx.value(1)
        array = self.array if array is None else array
        return self.ctx.builder.constant(array, name=self.ctx.tensor(1).name, narrow=array.dtype == np.int8)


@dataclass(frozen=True)
class Zeros:
    """The zero points of data and weights that are bytes."""

    data: int
    weights: int


def product(
    ctx: OpContext,
    channels: int,
    *,
    axis: int = 0,
    data: int = 0,
    bias: int = 2,
    once: bool = False,
    by_gemm: bool = False,
) -> Product:
    """What an operator does whose input 1 has weights with the output's channels along `axis`; `data` and `bias`, which
    may be missing, are inputs too.

    Quantized weights stay whole numbers, whose scales multiply the sums. Where the data are quanta, so are the sums,
    which is exact, and become those of the output with one factor, as in XNNPACK's kernels; `once`: also where the
    runtime's reference kernel is asked for, which rounds as often. `by_gemm`: where XNNPACK declines, the runtime
    computes it by a product of matrices.
    """
    stored = ctx.lowering.constant_tensor(ctx.operator.inputs[1])
    if stored is None:
        return Product(ctx, ctx.value(data), None, *_finished(ctx, channels, bias, data, None, None, once))
    found = quanta(stored, axis, decode=not ctx.lowering.checking)
    whole = None if found is None else _of_bytes(ctx, channels, bias, data, stored, *found, once, by_gemm)
    if whole is not None:
        return whole
    x = ctx.quanta(data)
    if found is None:
        return Product(ctx, ctx.value(data), ctx.array(1), *_finished(ctx, channels, bias, data, None, None, once))
    given, made = grid_of(ctx.tensor(data)), grid_of(ctx.output)
    by_xnnpack = given is not None and made is not None and _by_xnnpack(ctx, stored, *found, given, made, once)
    unit = None if x is None or given is None else given.scale
    result = _finished(ctx, channels, bias, data, found[1], unit, once, by_xnnpack)
    return Product(ctx, ctx.value(data) if x is None else x, found[0], *result)


def _of_bytes(
    ctx: OpContext,
    channels: int,
    bias: int,
    data: int,
    weights: Tensor,
    array: Array,
    scales: Array,
    once: bool,
    by_gemm: bool,
) -> Product | None:
    """The product of what is stored, `array` being the weights' quanta, whose sums are whole numbers; None where data
    or result are no bytes."""
    kept, given, made = ctx.lowering.quantized, grid_of(ctx.tensor(data)), grid_of(ctx.output)
    code = int(ctx.option("fused_activation_function"))
    if not (kept.keeps_stored(given) and kept.keeps_stored(made)) or given is None or made is None:
        return None
    if code not in BOUNDS or np.max(np.abs(array), initial=0) > 255:
        return None
    ctx.lowering.ensure(ctx.tensor(data).index)
    low, high = (float(f(array, initial=0)) for f in (np.min, np.max))
    zero = 0 if low >= -128 and high <= 127 else -128 - int(low) if high - low <= 255 else None
    if zero is None:
        return None
    factors = _factors(scales, given, made)
    doubles = _ratios(ctx, data, given.scale, scales, made.scale, once)
    if _by_xnnpack(ctx, weights, array, scales, given, made, once):
        reach = _reach(ctx, bias, channels, array, factors, given)
        expr, operands = _rounded_once(ctx, bias, channels, factors, made, reach)
    else:
        ctx.require(by_gemm or not ctx.lowering.xnnpack, NOT_KNOWN)
        upwards = ctx.lowering.xnnpack
        expr, operands = in_fixed_point(ctx, bias, channels, doubles, made, upwards=upwards, once=once and not upwards)
    stored = (array + np.float32(zero)).astype(np.int8)
    return Product(ctx, kept.stored[ctx.tensor(data).index], stored, expr, operands, Zeros(given.zero, zero))


def _ratios(ctx: OpContext, data: int, given: float, scales: Array, made: float, dense: bool) -> Array:
    """What the runtime's own kernels make multipliers of: in convolutions of unsigned bytes, from the product of both
    scales as a float."""
    if ctx.tensor(data).type is TensorType.UINT8 and not dense:
        return (np.float32(given) * scales.astype(np.float32)).astype(np.float64) / float(made)
    return np.asarray(float(given) * scales.astype(np.float64) / float(made))


def _factors(scales: Array, given: Grid, made: Grid) -> Array:
    """What XNNPACK's kernels multiply sums by."""
    return np.asarray(np.float32(given.scale) * scales / np.float32(made.scale))


def _by_xnnpack(
    ctx: OpContext, weights: Tensor, array: Array, scales: Array, given: Grid, made: Grid, dense: bool
) -> bool:
    """Whether XNNPACK's kernels, if they are used, take such weights, `array` being their quanta, between bytes: of
    less than a byte it knows those of dense layers alone, two to a byte."""
    if not ctx.lowering.xnnpack or max(given.bits, made.bits) > 8:
        return False
    if QUANTIZED[weights.type] < 8 and (not dense or array.shape[-1] % 2):
        return False
    zeros = weights.quantization.zero_points if weights.quantization is not None else np.zeros(1)
    symmetric = weights.type is TensorType.UINT8 or not zeros.any()
    factors = _factors(scales, given, made)
    return symmetric and bool(np.all((factors >= 2.0**-32) & (factors < 256)))


def _reach(ctx: OpContext, bias: int, channels: int, array: Array, factors: Array, given: Grid) -> float:
    """What no sum of products with the weights' quanta `array` and bias, times its factor, is larger than."""
    axis = 0 if array.shape[0] == channels else array.ndim - 1
    if array.shape[axis] != channels:
        return math.inf
    sums = np.abs(array.astype(np.float64)).sum(axis=tuple(i for i in range(array.ndim) if i != axis))
    sums *= max(given.high - given.zero, given.zero - given.low)
    if ctx.has(bias):
        sums += np.abs(_integer_bias(ctx, bias, channels).reshape(-1).astype(np.float64))
    return float(np.max(sums * np.abs(factors.astype(np.float64).reshape(-1)), initial=0.0))


def _rounded_once(
    ctx: OpContext, bias: int, channels: int, factors: Array, grid: Grid, reach: float
) -> tuple[Expr, list[int]]:
    """The sums and the bias in whole numbers, times a float for all or for each channel, limited and rounded."""
    operands: list[int] = []
    expr: Expr = RESULT
    if ctx.has(bias):
        operands.append(ctx.builder.constant(_integer_bias(ctx, bias, channels).astype(np.int32)))
        expr = fn("add", expr, Arg(len(operands)))
    factor: Expr | float
    if factors.size == 1:
        factor = float(factors.reshape(()))
    else:
        operands.append(ctx.builder.constant(factors.astype(np.float32).reshape(-1)))
        factor = Arg(len(operands))
    code = int(ctx.option("fused_activation_function"))
    return rounded_once(ctx, grid, expr, factor, *BOUNDS[code], reach=reach), operands


def _finished(
    ctx: OpContext,
    channels: int,
    bias: int,
    data: int,
    scales: Array | None,
    unit: float | None,
    once: bool,
    by_xnnpack: bool = False,
) -> tuple[Expr, list[int]]:
    """The epilogue and its operands. `scales`: of weights that are quanta. `unit`: of data that are. `by_xnnpack`:
    whose limits the fused activation has."""
    expr: Expr = RESULT
    operands: list[int] = []

    def with_array(function: str, array: Array) -> Expr:
        """`function` of what there is so far and one number for all or for each channel."""
        if array.size == 1:
            return fn(function, expr, float(array.reshape(())))
        operands.append(ctx.builder.constant(array.astype(np.float32).reshape(-1)))
        return fn(function, expr, Arg(len(operands)))

    grid = grid_of(ctx.output)
    if unit is not None and grid is not None and scales is not None:
        ctx.unit = grid.scale
        if not ctx.lowering.xnnpack and grid.bits <= 8 and not once:
            factors = _ratios(ctx, data, unit, scales, grid.scale, once)
            return in_fixed_point(ctx, bias, channels, factors, grid, fn("to_int32", fn("round", RESULT)))
        if ctx.has(bias):
            expr = with_array("add", _integer_bias(ctx, bias, channels))
        expr = with_array("mul", np.float32(unit) * scales / np.float32(grid.scale))
        return ctx.activation(expr, by_xnnpack=by_xnnpack), operands
    if scales is not None:
        expr = with_array("mul", scales * np.float32(1.0 if unit is None else unit))
    if ctx.has(bias) and ctx.tensor(bias).type in _INTEGERS:
        expr = with_array("add", _integer_bias(ctx, bias, channels) * _quantum(ctx, data) * _quantum(ctx, 1))
    elif ctx.has(bias):
        fits = math.prod(ctx.shape(bias)) == channels and ctx.dtype(bias) is DType.FLOAT32
        ctx.require(fits, f"bias of shape {list(ctx.shape(bias))} and type {ctx.tensor(bias).type.name}")
        operands.append(ctx.reshaped(ctx.value(bias), (channels,)))
        expr = fn("add", expr, Arg(len(operands)))
    return ctx.activation(expr, by_xnnpack=by_xnnpack), operands


def in_fixed_point(
    ctx: OpContext,
    bias: int,
    channels: int,
    factors: Array,
    grid: Grid,
    expr: Expr = RESULT,
    *,
    upwards: bool = False,
    once: bool = False,
) -> tuple[Expr, list[int]]:
    """The sums, which are `expr`, and the bias in whole numbers, times a multiplier of 31 bits for all or for each
    channel. `upwards`: halves of the second rounding are, as in the products of matrices (ruy, on x86) that the
    runtime's own kernels use. `once`: there is but one, halves upwards, as in its reference kernel of dense layers."""
    operands: list[int] = []

    def argument(array: Array) -> Expr:
        if (array == array.flat[0]).all():
            return whole(int(array.flat[0]))
        operands.append(ctx.builder.constant(array.astype(np.int32).reshape(-1)))
        return Arg(len(operands))

    if ctx.has(bias):
        expr = fn("add", expr, argument(_integer_bias(ctx, bias, channels)))
    multipliers, shifts = np.array([multiplier_of(float(f)) for f in factors.reshape(-1)]).T
    if once:
        ctx.require(shifts.max(initial=0) <= _MOST_ONCE, NOT_KNOWN)
        expr = fn("fixed_mul_once", expr, argument(multipliers), argument(shifts))
    elif upwards:
        multiplier, shift = argument(multipliers), argument(shifts)
        left: Expr
        right: Expr
        half: Expr
        if isinstance(shift, Literal):
            by = int(shift.value)
            left, right, half = whole(max(by, 0)), whole(max(-by, 0)), whole((1 << max(-by, 0)) >> 1)
        else:  # of one array, as a device may have no more than eight buffers for a kernel
            left, right = fn("max", shift, whole(0)), fn("max", fn("neg", shift), whole(0))
            half = fn("shift_right", fn("shift_left", whole(1), right), whole(1))
        expr = fn("shift_right", fn("add", fn("fixed_mul", expr, multiplier, left), half), right)
    else:
        expr = fn("fixed_mul", expr, argument(multipliers), argument(shifts))
    code = int(ctx.option("fused_activation_function"))
    return quanta_of(ctx, grid, expr, *BOUNDS.get(code, BOUNDS[0])), operands


def _integer_bias(ctx: OpContext, bias: int, channels: int) -> Array:
    """A bias in units of the product of the quanta of data and weights, whatever its own quantization parameters say:
    so the CPU kernels take it."""
    t = ctx.tensor(bias)
    ctx.require(t.data is not None, f"the bias '{t.name}' is computed by the model: the GPU needs a constant")
    assert t.data is not None
    kept = ctx.lowering.quantized.keeps_stored(grid_of(ctx.output))
    whole = t.type in (_INTEGERS[:1] if kept else _INTEGERS) and t.data.size == channels
    ctx.require(whole, f"bias of shape {list(t.shape)} and type {t.type.name} for {channels} quantized channels")
    return t.data.reshape(-1).astype(np.float64)


def _quantum(ctx: OpContext, i: int) -> Array:
    """The scales of input i."""
    q = ctx.tensor(i).quantization
    quantized = q is not None and q.scales.size > 0
    ctx.require(quantized, f"a bias of whole numbers beside '{ctx.tensor(i).name}', which is not quantized")
    assert q is not None
    return q.scales.astype(np.float64)
