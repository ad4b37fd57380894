"""Products of matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import Tensors, require
from litegpu.model.ops.record import BIAS, FLOAT, MAX_RANK, Gpu, Op
from litegpu.model.ops.rules import aligned, together, weighed
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator, Tensor, TensorType


def _dense_shape(node: ShapeNode) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(weights) == 2 and weights[1] > 0 and math.prod(x) % weights[1] == 0)
    node.require(len(node.operator.outputs) == 1)
    if node.option("keep_num_dims", False):
        node.require(len(x) > 0 and x[-1] == weights[1])
        return [(*x[:-1], weights[0])]
    return [(math.prod(x) // weights[1], weights[0])]


def _product_shape(node: ShapeNode) -> list[Shape]:
    x, y = node.shape(0), node.shape(1)
    node.require(len(x) >= 2 and len(y) >= 2)
    rows, depth = (x[-1], x[-2]) if node.option("adj_x", False) else (x[-2], x[-1])
    other, columns = (y[-1], y[-2]) if node.option("adj_y", False) else (y[-2], y[-1])
    node.require(depth == other)
    return [(*together(node, [x[:-2], y[:-2]]), rows, columns)]


def _dense_batch(node: BatchNode) -> Place:
    place, x, depth = node.only(0), node.shape(0), node.shape(1)[1]
    if node.option("keep_num_dims", False):
        node.off_batch(-1, place, len(x), "multiplies along")
        return place
    found = node.reinterpreted(place, x, (math.prod(x) // depth, depth))
    node.require(found.axis == 0, "it multiplies along the batch axis")
    return found


def _product_batch(node: BatchNode) -> Place:
    rank = len(node.output)
    turned = [bool(node.option(name, False)) for name in ("adj_x", "adj_y")]
    places = [None if (p := node.place(i)) is None else p.at(p.axis + rank - node.rank(i)) for i in (0, 1)]
    if all(p is None or p.axis < rank - 2 for p in places):
        return aligned(node, rank)
    x, y = places
    if y is None and x is not None and x.axis == rank - (1 if turned[0] else 2):
        return x.at(rank - 2)
    if x is None and y is not None and y.axis == rank - (2 if turned[1] else 1):
        return y.at(rank - 1, f"{node.called}: it puts the batch behind")
    return node.refuse("it multiplies along the batch axis")


def _product_hazard(operator: Operator, tensors: Tensors) -> None:
    """The output is of the operands' type, or holds the sums of bytes."""
    first, second = (tensors[index] for index in operator.inputs)
    result = tensors[operator.outputs[0]]
    require(
        result.type is first.type
        or (first.type is TensorType.INT8 and second.type is TensorType.INT8 and result.type is TensorType.INT32),
        f"its inputs are of types {first.type.name} and {second.type.name}, its output of {result.type.name}",
    )


def _product_aborts(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    for index in (*operator.inputs, *operator.outputs):
        tensor = tensors[index]
        if tensor.quantization is not None and (tensor.quantization.scales == 0).any():
            return f"'{tensor.name}' has scale 0"
    first = tensors[operator.inputs[0]]  # a scale that is no normal number crashes XNNPACK there, and only there
    if first.quantization is not None and (first.quantization.scales < np.finfo(np.float32).tiny).any():
        return f"'{first.name}' has a scale of {float(first.quantization.scales.min()):g}"
    return None


def _product_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    if not given or not given[0]:
        return None
    return results * given[0][-2 if options.get("adj_x") and len(given[0]) > 1 else -1]


def _dense_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    if len(given) < 3 or given[2] is None:
        return 6
    return 5 if options["keep_num_dims"] else 1


# fmt: off
OPS = (
    Op(
        "BATCH_MATMUL", "a b -> .:float32|float16|int8|int16|int32", shape=_product_shape, work=_product_work,
        batch=_product_batch, hazard=_product_hazard, aborts=_product_aborts, has_weights=True, multiplies=True,
        gpu=Gpu(4, inputs=(FLOAT, FLOAT), counts=2, ranks=(2, MAX_RANK), joins="matrices", quanta="reads",
            notes="adj_x, adj_y, broadcasting of the leading axes; either side constant or runtime"),
    ),
    Op(
        "FULLY_CONNECTED", "x w b? -> . .^", shape=_dense_shape, work=weighed, batch=_dense_batch, has_weights=True,
        version=_dense_version, multiplies=True, by_rows="all",
        gpu=Gpu(14, inputs=(FLOAT, FLOAT, BIAS), counts=(2, 3), quanta="reads",
            notes="any input rank (leading sizes are flattened), keep_num_dims; constant or runtime weights"),
    ),
)
# fmt: on
