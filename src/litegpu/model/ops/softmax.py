"""SOFTMAX and LOG_SOFTMAX."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.model.ops.checks import EIGHT_BIT, Tensors, require, scale_of
from litegpu.model.ops.record import Gpu, Op
from litegpu.model.ops.rules import last_axis, same_shape
from litegpu.model.types import Operator, Tensor, TensorType


def _softmax_hazard(operator: Operator, tensors: Tensors) -> None:
    source, result = tensors[operator.inputs[0]], tensors[operator.outputs[0]]
    require(
        result.type is source.type or (source.type in EIGHT_BIT and result.type is TensorType.INT16),
        f"its input is of type {source.type.name}, its output of {result.type.name}",
    )
    empty = source.type is TensorType.FLOAT32 and source.shape[-1:] == (0,)
    require(not empty, f"its input of shape {list(source.shape)} has rows of no elements")


def _log_softmax_hazard(operator: Operator, tensors: Tensors) -> None:
    shape = tensors[operator.inputs[0]].shape
    require(len(shape) > 0 and shape[-1] > 0, f"its input of shape {list(shape)} has no last dimension to go along")


def _softmax_aborts(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    """The reference kernel writes beta times the scale as a multiplier beyond one."""
    source = tensors[operator.inputs[0]]
    beta = float(operator.options.get("beta", 0.0)) if operator.name == "SOFTMAX" else 1.0
    if source.type in EIGHT_BIT and not beta * scale_of(source) * 2**26 > 1:
        return f"its beta is {beta:g} where '{source.name}' has scale {scale_of(source):g}"
    return None


# fmt: off
OPS = (
    Op(
        "LOG_SOFTMAX", "x -> .", shape=same_shape, batch=last_axis, hazard=_log_softmax_hazard, aborts=_softmax_aborts,
        aborts_in="reference", gpu=Gpu(2, notes="along the last axis"),
    ),
    Op(
        "SOFTMAX", "x -> .", shape=same_shape, batch=last_axis, hazard=_softmax_hazard, aborts=_softmax_aborts,
        aborts_in="reference", gpu=Gpu(4, notes="along the last axis, any beta", largest=1),
    ),
)
# fmt: on
