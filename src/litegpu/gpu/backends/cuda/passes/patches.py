"""Copies that join the channels of squares of pixels: what a convolution with a stride reads as windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.gpu.evaluate.ops import evaluate_op
from litegpu.gpu.graph import RESULT, Copy, Node, Shape

#: The longest sides of squares that are looked for.
MOST_SIDE = 4


def squares(node: Node | None, shape: Shape) -> Sequence[tuple[int, int]] | None:
    """The rows and columns, within a square, of the pixels whose channels a copy of a value of `shape` joins, in the
    order in which they are in its result; None if that is not what a node does."""
    if node is None or not isinstance(node.op, Copy) or node.epilogue != RESULT:
        return None
    batch, height, width, channels = shape
    for side in range(2, MOST_SIDE + 1):
        if height % side or width % side:
            continue
        pixels = np.arange(batch * height * width, dtype=np.int32).reshape(batch, height, width, 1)
        # Two channels tell whether these stay side by side.
        marked = np.concatenate([np.repeat(pixels * 2, channels - 1, 3), pixels * 2 + 1], 3)
        target = (batch, height // side, width // side, side * side * channels)
        try:
            found = evaluate_op(node.op, [marked], target)
        except ValueError:
            continue
        if found.shape != target:
            continue
        found = found.reshape(*target[:3], side * side, channels)
        if (found[..., :-1] % 2).any() or (found[..., -1] % 2 != 1).any() or (found // 2 != found[..., :1] // 2).any():
            return None
        first = found[0, 0, 0, :, 0] // 2
        order = [(int(p) // width, int(p) % width) for p in first]
        if sorted(order) != [(y, x) for y in range(side) for x in range(side)]:
            return None
        for i, (y, x) in enumerate(order):
            if (found[..., i, 0] // 2 != pixels[:, y::side, x::side, 0]).any():
                return None
        return order
    return None
