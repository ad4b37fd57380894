"""BIDIRECTIONAL_SEQUENCE_LSTM and BIDIRECTIONAL_SEQUENCE_RNN, as two layers of one direction."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.ranks import Draft
from litegpu.gpu.lower.registry import lowers

#: Of the LSTM: where the operands of a layer begin, how many there are, and its states.
_OPERANDS, _FIRST, _STATES = 17, (1, 18), ((35, 36), (37, 38))
_AUXILIARY = 39


@lowers("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_sequence_lstm(ctx: OpContext) -> None:
    given = ctx.operator.inputs
    _refuse_more(ctx, given[_AUXILIARY:])
    layers = [
        (given[0], *given[first : first + _OPERANDS], *(given[i] for i in states))
        for first, states in zip(_FIRST, _STATES, strict=True)
    ]
    _both(ctx, layers, state=-2)


@lowers("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_sequence_rnn(ctx: OpContext) -> None:
    given = ctx.operator.inputs
    _refuse_more(ctx, given[9:])
    _both(ctx, [(given[0], *given[1:5]), (given[0], *given[5:9])], state=-1)


def _refuse_more(ctx: OpContext, inputs: Sequence[int]) -> None:
    ctx.require(all(i < 0 for i in inputs), "an auxiliary input")


def _both(ctx: OpContext, layers: Sequence[tuple[int, ...]], state: int) -> None:
    """One layer on the input, one on its steps in the other order, whose results are turned around again. `state`:
    which of a layer's operands holds what it gave."""
    name = f"UNI{ctx.operator.name.removeprefix('BI')}"
    x, options = ctx.shape(0), {k: v for k, v in ctx.operator.options.items() if k != "merge_outputs"}
    along = 0 if options.get("time_major", False) else 1
    draft = Draft(ctx.lowering.subgraph, ctx.operator)
    merged = bool(ctx.option("merge_outputs", False))
    ctx.require(merged or len(ctx.outputs) == 2, f"{len(ctx.outputs)} outputs where the operator has 2")
    sizes = [draft.tensors[layer[state]].shape[-1] for layer in layers]
    if merged:
        ctx.check_shape((*x[:-1], sum(sizes)))
        parts = [draft.stand_in(ctx.output, (*x[:-1], n)) for n in sizes]
    else:
        parts = [tensor.index for tensor in ctx.outputs]
    turned = draft.stand_in(draft.tensors[layers[1][0]], x)
    backward = draft.stand_in(draft.tensors[parts[1]], (*x[:-1], sizes[1]))
    draft.reverse(layers[1][0], turned, along)
    draft.before.append(draft.made(name, layers[0], parts[0], options))
    draft.before.append(draft.made(name, (turned, *layers[1][1:]), backward, options))
    draft.reverse(backward, parts[1], along)
    if merged:
        draft.join(parts, ctx.output.index, len(x) - 1)
    ctx.lowering.add_instead(draft.parts())
