"""Functions of one number of 8 or 16 bits, as the official runtime itself computes them: a result for each number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import OpResolverType

from litegpu.chatter import quiet
from litegpu.delegates.aborts import refuse_aborting
from litegpu.delegates.cpu import PLAIN, OfficialOptions
from litegpu.errors import InvokeError
from litegpu.gpu.graph import Arg, DType, Gather, Lookup, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.integers import Unary, is_stored, stored
from litegpu.gpu.lower.quantization import STORED, grid_of
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Quantization, Subgraph, Tensor, TensorType

Array = np.ndarray[Any, np.dtype[Any]]

Bounds = tuple[float | None, float | None]

_KNOWN: dict[tuple[object, ...], Array] = {}
_MOST_KNOWN = 256


def unary(ctx: OpContext, rule: Unary | None = None, bounds: Bounds = (None, None)) -> bool:
    """Lower an operator of one operand in whole numbers, within these real numbers; False if it is not known in them.

    Bytes are looked up in a table, for which the operator itself is run on all 256 numbers that there are; or `rule`
    stands for it, which other kernels can do on the way, if it gives the same.
    """
    if not (is_stored(ctx, 0) and is_stored(ctx, None)):
        return integers.unary(ctx, rule, bounds) or _of_words(ctx)
    table = np.zeros(256, np.int32)
    if not ctx.lowering.checking:
        table = _table(ctx.operator, ctx.tensor(0), ctx.output, ctx.lowering.xnnpack)
    found = integers.unary_expression(ctx, rule, bounds)
    grid = grid_of(ctx.tensor(0))
    assert grid is not None
    if found is not None:
        from litegpu.gpu.evaluate import evaluate_expr

        results = evaluate_expr(found[0], [np.arange(grid.low, grid.high + 1, dtype=np.int32)])
        if np.array_equal(results, table) or ctx.lowering.checking:
            ctx.elementwise(found[0], [found[1]], ctx.output_value())
            return True
    add_lookup(ctx, 0, table)
    return True


def _of_words(ctx: OpContext) -> bool:
    """Lower an operator on 16 bits, in whole numbers, as a table of the 65536 that there are; False for others."""
    if (
        not ctx.lowering.integer
        or ctx.tensor(0).type is not TensorType.INT16
        or ctx.output.type is not TensorType.INT16
    ):
        return False
    x, made = integers.operand(ctx, 0), grid_of(ctx.output)
    if x is None or made is None:
        return False
    table = np.zeros(1 << 16, np.int32)
    if not ctx.lowering.checking:
        table = _table(ctx.operator, ctx.tensor(0), ctx.output, ctx.lowering.xnnpack).astype(np.int32) - made.zero
    places = ctx.intermediate(ctx.output.shape, DType.INT32)
    ctx.elementwise(fn("add", x.expr(Arg(0)), whole(x.grid.zero - x.grid.low)), [x.value], places)
    gather = Gather(1, 1, table.size, 1, math.prod(ctx.output.shape))
    values = [ctx.builder.constant(table.reshape(1, 1, 1, -1)), places]
    integers.finish(
        ctx, Arg(0), [ctx.add(gather, values, ctx.intermediate(ctx.output.shape, DType.INT32))], activation=False
    )
    return True


def add_lookup(ctx: OpContext, i: int, table: Array) -> None:
    """The output is what `table` has for each number of input i."""
    grid = grid_of(ctx.tensor(i))
    assert grid is not None
    ctx.gives_stored = True
    values = [stored(ctx, i), ctx.builder.constant(table.astype(np.int32).reshape(1, 1, 1, 256))]
    ctx.add(Lookup(grid.low), values, ctx.output_value())


def _table(operator: Operator, given: Tensor, made: Tensor, xnnpack: bool) -> Array:
    key = (
        operator.name, operator.version, tuple(sorted(operator.options.items())), given.type, made.type, xnnpack,
        _parameters(given), _parameters(made),
    )  # fmt: skip
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = _computed(operator, given, made, xnnpack)
    return _KNOWN[key]


def _parameters(tensor: Tensor) -> tuple[float, int]:
    grid = grid_of(tensor)
    assert grid is not None
    return grid.scale, grid.zero


def _computed(operator: Operator, given: Tensor, made: Tensor, xnnpack: bool) -> Array:
    """The operator alone in a model, run by the official runtime."""
    tensors = tuple(_row(i, t) for i, t in enumerate((given, made)))
    alone = dataclasses.replace(operator, index=0, inputs=(0,), outputs=(1,), intermediates=())
    model = Model((Subgraph(0, "", tensors, (alone,), (0,), (1,)),), (), "", 3, {}, b"")
    options = OfficialOptions()
    if not xnnpack or _aborts(alone, tensors, options.op_resolver_type):
        options = OfficialOptions(op_resolver_type=PLAIN)
        if _aborts(alone, tensors, PLAIN):
            raise Unsupported(f"the official runtime would end the process on '{given.name}'")
    grid = grid_of(given)
    assert grid is not None
    numbers = np.arange(grid.low, grid.high + 1).reshape(1, -1)
    failure: Exception | None = None
    for least in (grid.low, grid.zero, grid.zero + 1):  # the CPU gives an error for roots of negative numbers
        try:
            interpreter = options.create(content=write_model(model))
            with quiet():
                interpreter.allocate_tensors()
            given_numbers = np.clip(numbers, least, grid.high).astype(STORED[given.type].value)
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], given_numbers)
            interpreter.invoke()
            return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])).reshape(-1)
        except (RuntimeError, ValueError) as error:
            failure = error
    raise Unsupported(f"the official runtime does not compute it on '{given.name}': {failure}")


def _aborts(operator: Operator, tensors: Sequence[Tensor], resolver: OpResolverType) -> bool:
    """Whether these kernels would end the process, as XNNPACK's do on scales that are no normal numbers."""
    try:
        refuse_aborting((operator,), tensors, operator.outputs, resolver)
    except InvokeError:
        return True
    return False


def _row(i: int, tensor: Tensor) -> Tensor:
    scale, zero = _parameters(tensor)
    quantization = Quantization(np.array([scale], np.float32), np.array([zero], np.int64))
    count = 1 << 8 * tensor.type.nbytes
    return Tensor(i, f"t{i}", tensor.type, (1, count), (1, count), 0, quantization=quantization)
