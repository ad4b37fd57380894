"""Functions of one 8-bit number, as the official runtime itself computes them: a result for each of 256 numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from litegpu.chatter import quiet
from litegpu.delegates.cpu import PLAIN, OfficialOptions
from litegpu.gpu.graph import Lookup
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.integers import stored
from litegpu.gpu.lower.quantization import STORED, grid_of
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Quantization, Subgraph, Tensor

Array = np.ndarray[Any, np.dtype[Any]]

_KNOWN: dict[tuple[object, ...], Array] = {}
_MOST_KNOWN = 256


def looked_up(ctx: OpContext) -> bool:
    """Lower an operator of one operand by a table, which takes no more than the operator itself on 256 numbers; False
    unless operand and result are bytes."""
    kept, given, made = ctx.lowering.quantized, grid_of(ctx.tensor(0)), grid_of(ctx.output)
    if not (kept.keeps_stored(given) and kept.keeps_stored(made)) or ctx.tensor(0).is_constant or given is None:
        return False
    if ctx.lowering.checking:
        table = np.zeros(256, np.int32)
    else:
        table = _table(ctx.operator, ctx.tensor(0), ctx.output, ctx.lowering.xnnpack)
    add_lookup(ctx, 0, table)
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
    options = OfficialOptions() if xnnpack else OfficialOptions(op_resolver_type=PLAIN)
    grid = grid_of(given)
    assert grid is not None
    numbers = np.arange(grid.low, grid.high + 1).astype(STORED[given.type].value).reshape(1, 256)
    try:
        interpreter = options.create(content=write_model(model))
        with quiet():
            interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], numbers)
        interpreter.invoke()
        result = np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    except (RuntimeError, ValueError) as error:
        raise Unsupported(f"the official runtime does not compute it on '{given.name}': {error}") from None
    return result.reshape(-1)


def _row(i: int, tensor: Tensor) -> Tensor:
    scale, zero = _parameters(tensor)
    quantization = Quantization(np.array([scale], np.float32), np.array([zero], np.int64))
    return Tensor(i, f"t{i}", tensor.type, (1, 256), (1, 256), 0, quantization=quantization)
