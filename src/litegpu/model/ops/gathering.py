"""Operators that look up, or put, elements by their indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import Tensors, require
from litegpu.model.ops.record import ANY, INT16, INT32, MAX_RANK, STATIC, Gpu, Op, Repeating
from litegpu.model.ops.rules import rows_alike, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator, TensorType


def _gather_shape(node: ShapeNode) -> list[Shape]:
    x, indices = node.shape(0), node.shape(1)
    axis = node.axis(int(node.option("axis")), len(x))
    batch = int(node.option("batch_dims"))
    batch += len(indices) if batch < 0 else 0
    node.require(0 <= batch <= min(axis, len(indices)) and x[:batch] == indices[:batch])
    return [(*x[:axis], *indices[batch:], *x[axis + 1 :])]


def _gather_nd_shape(node: ShapeNode) -> list[Shape]:
    x, indices = node.shape(0), node.shape(1)
    node.require(len(x) > 0 and len(indices) > 0 and 0 < indices[-1] <= len(x))
    return [(*indices[:-1], *x[indices[-1] :])]


def _scatter_nd_shape(node: ShapeNode) -> list[Shape]:
    indices, updates, sizes = node.shape(0), node.shape(1), node.integers(2)
    node.require(len(indices) > 0 and 0 < indices[-1] <= len(sizes))
    node.require(updates == (*indices[:-1], *sizes[indices[-1] :]))
    return [sizes]


def _one_hot_shape(node: ShapeNode) -> list[Shape]:
    indices, depth = node.shape(0), node.integer(1)
    axis = node.axis(int(node.option("axis", -1)), len(indices) + 1)
    return [(*indices[:axis], depth, *indices[axis:])]


def _embedding_shape(node: ShapeNode) -> list[Shape]:
    ids, table = node.shape(0), node.shape(1)
    node.require(len(ids) == 1 and len(table) >= 2)
    return [(*ids, *table[1:])]


def _sparse_shape(node: ShapeNode) -> list[Shape]:
    return [node.integers(1)]


def _table_shape(node: ShapeNode) -> list[Shape]:
    wanted, keys, values = node.shape(0), node.shape(1), node.shape(2)
    node.require(len(wanted) == 1 and len(keys) == 1 and values[:1] == keys)
    return [(*wanted, *values[1:]), wanted]


def _gather_batch(node: BatchNode) -> Place:
    axis = int(node.option("axis")) % node.rank(0)
    batch_dims = int(node.option("batch_dims"))
    if batch_dims:
        place = rows_alike(node)
        batch_dims %= node.rank(1) + 1
        node.require(place.axis < batch_dims, "the batch is none of its batch_dims")
        return place
    data, indices = node.place(0), node.place(1)
    if data is not None:
        node.only(0)
        node.require(data.axis != axis, "it picks rows of the batch")
        return data if data.axis < axis else data.at(data.axis + node.rank(1) - 1)
    assert indices is not None
    place = indices.at(indices.axis + axis)
    return place.at(place.axis, f"{node.called}: it puts other axes before the batch axis") if axis else place


def _lookup_batch(node: BatchNode) -> Place:
    """Rows of a table that does not depend on the batch: EMBEDDING_LOOKUP (ids, table) and GATHER_ND (table, ids)."""
    if node.operator.name == "EMBEDDING_LOOKUP":
        return node.only(0)
    place = node.only(1)
    node.require(place.axis < node.rank(1) - 1, "its indices have no batch axis")
    return place


def _one_hot_batch(node: BatchNode) -> Place:
    place = node.only(0)
    axis = int(node.option("axis", -1)) % len(node.output)
    if axis <= place.axis:
        return place.at(place.axis + 1, f"{node.called}: it puts an axis before the batch axis")
    return place


def _embedding_hazard(operator: Operator, tensors: Tensors) -> None:
    """Rows are handed out as they are, or widened to floats."""
    rows, result = tensors[operator.inputs[1]], tensors[operator.outputs[0]]
    require(
        result.type is rows.type
        or (result.type is TensorType.FLOAT32 and rows.type not in (TensorType.INT32, TensorType.INT16)),
        f"its rows are of type {rows.type.name}, its output of {result.type.name}",
    )


def _sparse_lookup_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel writes where the indices say, however large the result is."""
    indices, shape = tensors[operator.inputs[1]].data, tensors[operator.inputs[2]].data
    if indices is None or shape is None or indices.ndim != 2 or indices.shape[1] != shape.size:
        return
    require(
        bool(np.all((shape >= 0) & (shape < 2**24)) and np.all((indices >= 0) & (indices < shape.reshape(1, -1)))),
        f"its indices exceed the shape {shape.tolist()}",
    )


def _same_place(node: BatchNode, i: int, place: Place) -> Place:
    return place


def _gather_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 5 if options["batch_dims"] else 1


# fmt: off
OPS = (
    Op(
        "DYNAMIC_UPDATE_SLICE", "x u at{8}:int32|int64 -> .", shape=same_shape, moves="elements",
        without="it puts a part into a whole, at one place for all of a batch",
        gpu=Gpu(6, inputs=(ANY, ANY, INT32), outputs=ANY, counts=3, quanta="linear", grids="moved", ranks=(1, MAX_RANK),
            notes="constant or runtime places"),
    ),
    Op(
        "EMBEDDING_LOOKUP", "at:int32 x:bytes|int4|int2 -> .", shape=_embedding_shape,
        batch=_lookup_batch, repeating=Repeating(0, _same_place), hazard=_embedding_hazard, has_weights=True,
        makes_like=1, moves="elements",
        gpu=Gpu(5, inputs=(INT32, ANY), outputs=ANY, counts=2, notes="a number out of range gives 0"),
    ),
    Op(
        "EMBEDDING_LOOKUP_SPARSE", "at:int32 indices:int32 shape{8}:int32 weights:float32 x:float32 -> .:float32",
        hazard=_sparse_lookup_hazard,
        stays="ragged rows, of which no current converter writes any",
    ),
    Op(
        "GATHER", "x:any at -> .", shape=_gather_shape, batch=_gather_batch, repeating=Repeating(1, _same_place),
        folds="values", passes_strings=True, version=_gather_version, moves="elements", by_rows="second",
        gpu=Gpu(8, inputs=(ANY, INT32), counts=2, quanta="linear", grids="moved", small=INT16,
            notes="constant or runtime indices of any rank, batch_dims; a runtime index out of range gives 0"),
    ),
    Op(
        "GATHER_ND", "x:any at -> .", shape=_gather_nd_shape, batch=_lookup_batch, repeating=Repeating(1, _same_place),
        folds="values", passes_strings=True, moves="elements", by_rows="second",
        gpu=Gpu(6, inputs=(ANY, INT32), counts=2, quanta="linear", grids="moved", small=INT16,
            notes="constant or runtime indices; of runtime indices only the row-major place that they give has "
            "to exist"),
    ),
    Op(
        "HASHTABLE_LOOKUP", "at:int32 keys:int32 x:any -> =x .:uint8", shape=_table_shape, moves="elements",
        without="its keys are a table, and its input is no batch",
        gpu=Gpu(1, inputs=(INT32, INT32, ANY), outputs=ANY, counts=3, quantized=False, ranks=(1, 1)),
    ),
    Op(
        "ONE_HOT", "at depth{1}:int32 on off -> .", shape=_one_hot_shape, batch=_one_hot_batch, makes_like=2,
        moves="elements",
        gpu=Gpu(1, inputs=(INT32, STATIC, ANY, ANY), outputs=ANY, counts=4, exact=True,
            notes="constant depth, any axis; on and off values constant or runtime"),
    ),
    Op(
        "SCATTER_ND", "at x shape{8} -> .", shape=_scatter_nd_shape, makes_like=1,
        without="its indices choose the rows that it writes",
        gpu=Gpu(1, inputs=(INT32, ANY, STATIC), outputs=ANY, counts=3, quantized=False,
            notes="constant shape; equal indices add up"),
    ),
    Op(
        "SPARSE_TO_DENSE", "at shape{8} v d -> .", shape=_sparse_shape, makes_like=2, moves="elements",
        without="its indices choose the places that it writes",
        gpu=Gpu(3, inputs=(INT32, STATIC, ANY, ANY), outputs=ANY, counts=4, quantized=False,
            notes="constant sizes; constant or runtime indices"),
    ),
)
# fmt: on
