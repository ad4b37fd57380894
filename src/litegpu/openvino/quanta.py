"""8-bit convolutions in whole numbers: between two roundings OpenVINO then adds integers, and rounds as the CPU does.

The front end writes a quantized convolution as one of real numbers, FakeQuantize -> Convolution -> Add -> FakeQuantize,
with each weight and bias multiplied by its scale. OpenVINO's CPU runs that in 8 bits too, but its sums are real
numbers, so that one result in 10^5 or 10^6 is rounded to the other neighbour; a deep network makes much of these. Here
the values between are the stored numbers less their zero points, and one factor of each channel, that of the official
runtime (XNNPACK: scale of the input times scale of the weights over scale of the output, in float32), is the range of
the second FakeQuantize. OpenVINO also runs it faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_CONVOLUTIONS = ("Convolution", "GroupConvolution")
_LEVELS = 256
#: Of a bias, in steps. From 2^24 on its float32 is not exact, as in channels that give one number whatever they read.
_LARGEST = 2.0**31


@dataclass(frozen=True, eq=False)
class _Block:
    """`weights`: the stored numbers; `scales`: of them, by output channel; `bias`: real numbers by output channel."""

    convolution: Any
    before: Any  # FakeQuantize
    after: Any
    add: Any
    weights: np.ndarray
    scales: np.ndarray
    bias: np.ndarray


def in_quanta(model: Any) -> int:
    """Change an openvino.Model, in place; how many convolutions were changed."""
    blocks = [block for node in model.get_ordered_ops() if (block := _block(node)) is not None]
    names = {block.convolution.get_friendly_name() for block in blocks}
    sources = {
        block.before.get_friendly_name(): block.before
        for block in blocks
        if {reader.get_friendly_name() for reader in _readers(block.before)} <= names
    }
    steps = {name: _grid(node, 3, 4) for name, node in sources.items()}
    changed = [block for block in blocks if block.before.get_friendly_name() in sources]
    for block in changed:
        grid = steps[block.before.get_friendly_name()]
        assert grid is not None  # as _block() has seen
        _change(block, grid[0])
    for name, node in sources.items():
        grid = steps[name]
        assert grid is not None
        _set(node, 3, np.array([grid[1]]), 4)
        _set(node, 4, np.array([grid[1] + _LEVELS - 1]), 4)
    return len(changed)


def _change(block: _Block, step: np.float32) -> None:
    from openvino import opset13 as ops

    grid = _grid(block.after, 1, 2)
    assert grid is not None
    factor = step * block.scales / grid[0]  # float32, in this order
    stored = ops.convert(ops.constant(block.weights), "f32")
    ones = np.ones((len(block.weights), *(1,) * (block.weights.ndim - 1)), np.float32)
    block.convolution.input(1).replace_source_output(ops.multiply(stored, ops.constant(ones)).output(0))
    rank = len(block.add.output(0).get_shape())
    _set(block.add, 1, np.rint(block.bias / (step * block.scales).astype(np.float64)), rank)
    block.after.input(0).replace_source_output(block.add.output(0))  # whose range is that of the activation
    # 255 / (255 / factor) is the factor again for six channels of seven, and for the others a neighbour in float32
    _set(block.after, 1, grid[1] / factor.astype(np.float64), rank)
    _set(block.after, 2, (grid[1] + _LEVELS - 1) / factor.astype(np.float64), rank)


def _set(node: Any, place: int, values: np.ndarray, rank: int) -> None:
    """A constant by channel as an input of a node."""
    from openvino import opset13 as ops

    shaped = np.asarray(values, np.float32).reshape(1, -1, *(1,) * (rank - 2))
    node.input(place).replace_source_output(ops.constant(shaped).output(0))


# -------------------------------------------------------------------------------------------------------- looking


def _block(node: Any) -> _Block | None:
    """What a convolution stands in, if that is what can be changed."""
    if node.get_type_name() not in _CONVOLUTIONS or _source(node, 0).get_type_name() != "FakeQuantize":
        return None
    before, add = _source(node, 0), _only_reader(node)
    weights = _weights(_source(node, 1))
    if weights is None or weights[0].dtype != np.int8 or add is None or add.get_type_name() != "Add":
        return None
    if node.get_type_name() == "GroupConvolution" and weights[0].shape[1:3] != (1, 1):
        return None  # OpenVINO 2026.4.1 gets sums of bytes wrong where a group has several channels
    if not node.output(0).get_partial_shape().is_static or _grid(before, 3, 4) is None:
        return None
    after = _only_reader(add)
    activation = None
    if after is not None and after.get_type_name() in ("Clamp", "Relu"):
        activation, after = after, _only_reader(after)
    if after is None or after.get_type_name() != "FakeQuantize" or not _within(after, activation):
        return None
    if any(reader.get_type_name() in ("Add", "Subtract") for reader in _readers(after)):
        return None  # in real numbers OpenVINO fuses the sum, which is then faster
    channels = int(add.output(0).get_shape()[1])
    scales = _by_channel(weights[1], channels)
    bias = _constant(_source(add, 1))
    if scales is None or bias is None or bias.size not in (1, channels) or not (scales > 0).all():
        return None
    grid = _grid(before, 3, 4)
    assert grid is not None
    bias = np.broadcast_to(bias.reshape(-1), channels)
    if (np.abs(bias / (grid[0] * scales).astype(np.float64)) > _LARGEST).any():
        return None
    return _Block(node, before, after, add, weights[0], scales, bias)


def _grid(node: Any, low_at: int, high_at: int) -> tuple[np.float32, int] | None:
    """(step, first number) of a range of a FakeQuantize: it is that many steps from zero. None if it is no such range,
    or one by channel."""
    low, high = _constant(_source(node, low_at)), _constant(_source(node, high_at))
    if node.get_attributes()["levels"] != _LEVELS or low is None or high is None or low.size != 1 or high.size != 1:
        return None
    step = (float(high.item()) - float(low.item())) / (_LEVELS - 1)
    if not step > 0:
        return None
    first = float(low.item()) / step
    return (np.float32(step), round(first)) if abs(first - round(first)) < 1e-2 else None


def _within(node: Any, activation: Any) -> bool:
    """Whether a FakeQuantize has a grid, which lies within what an activation lets pass."""
    grid = _grid(node, 1, 2)
    if grid is None:
        return False
    if activation is None:
        return True
    step, first = grid
    if activation.get_type_name() == "Relu":
        return first >= 0
    bounds = activation.get_attributes()
    low, high = float(bounds["min"]) / step, float(bounds["max"]) / step
    return bool(first >= low - 1e-2 and first + _LEVELS - 1 <= high + 1e-2)


def _weights(node: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """(stored numbers, their scales in the same shape) of a constant expression, None if it is none."""
    kind = node.get_type_name()
    if kind == "Multiply" and _source(node, 0).get_type_name() == "Convert":
        stored, scales = _constant(_source(_source(node, 0), 0)), _constant(_source(node, 1))
        return None if stored is None or scales is None else (stored, np.broadcast_to(scales, stored.shape))
    if kind not in ("Transpose", "Reshape", "Unsqueeze"):
        return None
    found, places = _weights(_source(node, 0)), _constant(_source(node, 1))
    if found is None or places is None:
        return None
    return _moved(found[0], kind, places), _moved(found[1], kind, places)


def _moved(array: np.ndarray, kind: str, places: np.ndarray) -> np.ndarray:
    numbers = [int(n) for n in np.atleast_1d(places)]
    if kind == "Transpose":
        return array.transpose(numbers)
    if kind == "Unsqueeze":
        return np.expand_dims(array, tuple(numbers))
    return array.reshape([array.shape[i] if n == 0 else n for i, n in enumerate(numbers)])


def _by_channel(scales: np.ndarray, channels: int) -> np.ndarray | None:
    """The scale of each output channel, None where it differs within one."""
    rows = scales.reshape(channels, -1)
    return rows[:, 0].astype(np.float32) if (rows == rows[:, :1]).all() else None


def _source(node: Any, place: int) -> Any:
    return node.input_value(place).get_node()


def _constant(node: Any) -> np.ndarray | None:
    return np.asarray(node.data) if node.get_type_name() == "Constant" else None


def _readers(node: Any) -> Sequence[Any]:
    return [one.get_node() for one in node.output(0).get_target_inputs()]


def _only_reader(node: Any) -> Any:
    readers = _readers(node)
    return readers[0] if len(readers) == 1 else None
