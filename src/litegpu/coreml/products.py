"""Products of matrices."""

from __future__ import annotations

from typing import Any

from litegpu.coreml.node import MilNode, translates


@translates("FULLY_CONNECTED")
def _fully_connected(node: MilNode) -> Any:
    node.require(not node.option("weights_format"), "Core ML does not know shuffled weights")
    depth = node.shape(1)[-1]
    rows = node.mb.reshape(x=node.value(0), shape=[-1, depth])
    bias = node.constant(2, "biases").ravel() if node.has(2) else None
    if node.is_constant(1):
        given = {} if bias is None else {"bias": bias}
        made = node.mb.linear(x=rows, weight=node.constant(1, "weights"), **given)
    else:
        made = node.mb.matmul(x=rows, y=node.value(1), transpose_y=True)
        made = made if bias is None else node.mb.add(x=made, y=bias)
    return node.mb.reshape(x=made, shape=list(node.result()))


@translates("BATCH_MATMUL")
def _batch_matmul(node: MilNode) -> Any:
    return node.mb.matmul(
        x=node.value(0),
        y=node.value(1),
        transpose_x=bool(node.option("adj_x", False)),
        transpose_y=bool(node.option("adj_y", False)),
    )
