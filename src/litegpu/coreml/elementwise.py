"""Operators on elements, and what is computed along axes: activations, sums, softmax."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.coreml.node import MilNode, translates

_BINARY = {
    "ADD": "add",
    "SUB": "sub",
    "MUL": "mul",
    "DIV": "real_div",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "POW": "pow",
    "FLOOR_DIV": "floor_div",
    "FLOOR_MOD": "mod",
}
_UNARY = {
    "ABS": "abs",
    "COS": "cos",
    "SIN": "sin",
    "EXP": "exp",
    "FLOOR": "floor",
    "CEIL": "ceil",
    "ROUND": "round",
    "SQRT": "sqrt",
    "SQUARE": "square",
    "SIGN": "sign",
    "TANH": "tanh",
    "LOGISTIC": "sigmoid",
    "RELU": "relu",
    "RELU6": "relu6",
}
_REDUCTIONS = {
    "MEAN": "reduce_mean",
    "SUM": "reduce_sum",
    "REDUCE_MAX": "reduce_max",
    "REDUCE_MIN": "reduce_min",
    "REDUCE_PROD": "reduce_prod",
}
_CLIPPED = {"RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}


@translates(*_BINARY)
def _binary(node: MilNode) -> Any:
    return getattr(node.mb, _BINARY[node.name])(x=node.value(0), y=node.value(1))


@translates("SQUARED_DIFFERENCE")
def _squared_difference(node: MilNode) -> Any:
    return node.mb.square(x=node.mb.sub(x=node.value(0), y=node.value(1)))


@translates("ADD_N")
def _add_n(node: MilNode) -> Any:
    total = node.value(0)
    for i in range(1, node.count()):
        total = node.mb.add(x=total, y=node.value(i))
    return total


@translates(*_UNARY)
def _unary(node: MilNode) -> Any:
    return getattr(node.mb, _UNARY[node.name])(x=node.value(0))


@translates(*_CLIPPED)
def _clipped(node: MilNode) -> Any:
    low, high = map(np.float32, _CLIPPED[node.name])
    return node.mb.clip(x=node.value(0), alpha=low, beta=high)


@translates("NEG")
def _neg(node: MilNode) -> Any:
    return node.mb.mul(x=node.value(0), y=np.float32(-1))


@translates("LOG")
def _log(node: MilNode) -> Any:
    return node.mb.log(x=node.value(0), epsilon=np.float32(0))  # MIL would add 1e-45


@translates("RSQRT")
def _rsqrt(node: MilNode) -> Any:
    return node.mb.rsqrt(x=node.value(0), epsilon=np.float32(0))  # MIL would add 1e-12


@translates("LEAKY_RELU")
def _leaky_relu(node: MilNode) -> Any:
    return node.mb.leaky_relu(x=node.value(0), alpha=np.float32(node.option("alpha", 0.0)))


@translates("ELU")
def _elu(node: MilNode) -> Any:
    return node.mb.elu(x=node.value(0), alpha=np.float32(1))


@translates("GELU")
def _gelu(node: MilNode) -> Any:
    mode = "TANH_APPROXIMATION" if node.option("approximate", False) else "EXACT"
    return node.mb.gelu(x=node.value(0), mode=mode)


@translates("HARD_SWISH")
def _hard_swish(node: MilNode) -> Any:
    x = node.value(0)
    gate = node.mb.sigmoid_hard(x=x, alpha=np.float32(1 / 6), beta=np.float32(0.5))
    return node.mb.mul(x=x, y=gate)


@translates("PRELU")
def _prelu(node: MilNode) -> Any:
    x, alpha, shape = node.value(0), node.value(1), node.shape(0)
    of_channels = node.is_constant(1) and node.shape(1)[-1:] == shape[-1:] and alpha.size == shape[-1]
    if of_channels and len(shape) == 4:
        made = node.mb.prelu(x=node.channels_first(0), alpha=alpha.ravel())
        return node.channels_last(made)
    below = node.mb.minimum(x=x, y=np.float32(0))
    return node.mb.add(x=node.mb.relu(x=x), y=node.mb.mul(x=below, y=alpha))


@translates("SOFTMAX")
def _softmax(node: MilNode) -> Any:
    x, beta = node.value(0), float(node.option("beta", 1.0))
    if beta != 1:
        x = node.mb.mul(x=x, y=np.float32(beta))
    return node.mb.softmax(x=x, axis=-1)


@translates("LOG_SOFTMAX")
def _log_softmax(node: MilNode) -> Any:
    x = node.value(0)
    return node.mb.sub(x=x, y=node.mb.reduce_log_sum_exp(x=x, axes=[-1], keep_dims=True))


@translates("L2_NORMALIZATION")
def _l2_normalization(node: MilNode) -> Any:
    x = node.value(0)
    norm = node.mb.reduce_l2_norm(x=x, axes=[-1], keep_dims=True)
    return node.mb.real_div(x=x, y=node.mb.maximum(x=norm, y=np.float32(1e-6)))


@translates(*_REDUCTIONS)
def _reduction(node: MilNode) -> Any:
    axes = sorted(set(node.axes(1, len(node.shape(0)))))
    node.require(bool(axes), "Core ML does not reduce along no axis")
    reduce = getattr(node.mb, _REDUCTIONS[node.name])
    return reduce(x=node.value(0), axes=axes, keep_dims=bool(node.option("keep_dims", False)))


@translates("CUMSUM")
def _cumsum(node: MilNode) -> Any:
    (axis,) = node.axes(1, len(node.shape(0)))
    return node.mb.cumsum(
        x=node.value(0),
        axis=axis,
        exclusive=bool(node.option("exclusive", False)),
        reverse=bool(node.option("reverse", False)),
    )
