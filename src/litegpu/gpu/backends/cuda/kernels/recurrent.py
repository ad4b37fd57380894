"""Which kernel takes the steps of an LSTM."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels import lstm, tensor_lstm
from litegpu.gpu.backends.cuda.kernels.lstm_layer import is_plain, steps_and_batch, weights_of
from litegpu.gpu.backends.cuda.kernels.offer import offered
from litegpu.gpu.graph import Custom, fits_half
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.lstm import Lstm

#: How much of the other kernel's estimate that of the products on tensor cores may be (two networks were measured).
TENSOR_PAYS = 0.8


def build(ctx: KernelContext) -> list[Launch] | None:
    """The launch for a plain layer whose weights fit into a cluster; None leaves it to the language."""
    assert isinstance(ctx.node.op, Custom)
    op = ctx.node.op.definition
    if not isinstance(op, Lstm) or not is_plain(ctx, op):
        return None
    half = ctx.half and fits_half(weights_of(ctx))
    capability, units = ctx.features.capability, ctx.features.compute_units
    _, batch = steps_and_batch(ctx, op)
    plain = lstm.division(op.units, capability, half)
    tensor = tensor_lstm.division(op.units, capability, batch, units) if half else None
    if plain is None or tensor is None:
        made = [lstm.launch(ctx, op, plain)] if plain else [tensor_lstm.launch(ctx, op, tensor)] if tensor else []
        return made or None
    if batch == 1:
        return [lstm.launch(ctx, op, plain)]
    pays = tensor_lstm.cycles(tensor, batch, units) <= TENSOR_PAYS * lstm.cycles(plain, batch, units)
    both = [lstm.launch(ctx, op, plain), tensor_lstm.launch(ctx, op, tensor)]
    return [offered((both[::-1] if pays else both)[: ctx.most])]
