"""Lowering: .tflite operators become nodes of the GPU graph, or a reason why they cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.errors import blame
from litegpu.gpu.graph import Graph
from litegpu.gpu.lower.constants import Unsupported
from litegpu.gpu.lower.lowering import Lowering
from litegpu.gpu.lower.registry import Entry, supported_ops
from litegpu.model.types import Operator, Subgraph, TensorType

__all__ = ["Entry", "LoweredGraph", "Unsupported", "check_operator", "lower_partition", "supported_ops"]


@dataclass(frozen=True, eq=False)
class LoweredGraph:
    """A partition as a GPU graph.

    `inputs` and `outputs` pair the tensors at the border, in the order that was asked for, with the graph's values.
    `output_types` are the outputs' types in the model: BOOL leaves the GPU as int32 of 0 and 1, INT64 as int32.
    `variables` are the tensors that keep their values: the graph's last inputs are those before an inference, its last
    outputs those after it.
    """

    graph: Graph
    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, int], ...]
    output_types: tuple[TensorType, ...]
    variables: tuple[int, ...] = ()


def lower_partition(
    subgraph: Subgraph,
    nodes: Sequence[Operator],
    inputs: Sequence[int],
    outputs: Sequence[int],
    *,
    in_numpy: bool = False,
    xnnpack: bool = True,
    integer: bool = False,
) -> LoweredGraph:
    """Lower `nodes` (in an order in which they can run), given which runtime tensors enter and leave. Quantized ones
    cross the border as they are stored. `in_numpy`: the graph is only going to be evaluated (gpu/evaluate).
    `xnnpack`: whether integers are to be rounded as XNNPACK rounds them, or as the runtime's own kernels do.
    `integer`: tensors of 8 bits stay bytes, and are computed with in whole numbers, as the runtime does.

    Raises Unsupported with the reason for the first operator that the GPU cannot run.
    """
    lowering = Lowering(subgraph, in_numpy=in_numpy, xnnpack=xnnpack, integer=integer)
    entering = tuple((t, lowering.enter(t)) for t in inputs)
    for operator in nodes:
        try:
            lowering.lower(operator)
        except Unsupported as reason:
            error = Unsupported(f"operator {operator.index} ({operator.name}): {reason}")
            raise blame(error, (operator.index,)) from None
    leaving = tuple((t, lowering.leave(t)) for t in outputs)
    variables = tuple(lowering.variables)
    before, after = ([table[t] for t in variables] for table in (lowering.variables, lowering.updates))
    graph = lowering.builder.graph([*(v for _, v in entering), *before], [*(v for _, v in leaving), *after])
    types = tuple(subgraph.tensors[t].type for t in outputs)
    return LoweredGraph(graph, entering, leaving, types, variables)


def check_operator(
    subgraph: Subgraph, operator: Operator, *, quantization: bool = True, integer: bool = False
) -> str | None:
    """The reason why the GPU cannot run `operator`, or None: it is lowered on its own, without decoding constants.
    `integer` is as for lower_partition(). Without `quantization`, operators on quantized tensors are refused (constants
    may be quantized)."""
    try:
        Lowering(subgraph, checking=True, quantization=quantization, integer=integer).lower(operator)
    except Unsupported as reason:
        return str(reason)
    return None
