"""Operators that move elements, none of which changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import Tensors, require, values_of
from litegpu.model.ops.record import ANY, MANY, STATIC, Gpu, Op, Repeating
from litegpu.model.ops.rules import EACH, images, rows_alike, together
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator, TensorType

_SIZE = "1..16777215"
_BYTES = frozenset({TensorType.UINT8})


def _reshape_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    if node.has(1) and len(node.shape(1)) == 1:
        sizes = list(node.integers(1))
    else:
        node.require(not node.has(1))
        sizes = [int(n) for n in node.option("new_shape", ())]
        if sizes == [0]:  # an old way to write a scalar
            sizes = []
    node.require(sizes.count(-1) <= 1)
    if -1 in sizes:
        others = math.prod(n for n in sizes if n != -1)
        node.require(others > 0 and math.prod(x) % others == 0)
        sizes[sizes.index(-1)] = math.prod(x) // others
    node.require(math.prod(sizes) == math.prod(x))
    return [tuple(sizes)]


def _squeeze_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    axes = {node.axis(int(a), len(x)) for a in node.option("squeeze_dims", ())}
    node.require(all(x[a] == 1 for a in axes))
    return [tuple(n for i, n in enumerate(x) if not (i in axes if axes else n == 1))]


def _expand_dims_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(node.integer(1), len(x) + 1)
    return [(*x[:axis], 1, *x[axis:])]


def _transpose_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    order = [node.axis(a, len(x)) for a in node.integers(1)]
    node.require(sorted(order) == list(range(len(x))))
    return [tuple(x[a] for a in order)]


def _tile_shape(node: ShapeNode) -> list[Shape]:
    x, multiples = node.shape(0), node.integers(1)
    node.require(len(x) == len(multiples))
    return [tuple(n * m for n, m in zip(x, multiples, strict=True))]


def _broadcast_to_shape(node: ShapeNode) -> list[Shape]:
    x, sizes = node.shape(0), node.integers(1)
    node.require(len(node.shape(1)) == 1 and len(x) <= len(sizes) and together(node, [x, sizes]) == sizes)
    return [sizes]


def _space_to_depth_shape(node: ShapeNode) -> list[Shape]:
    x, block = node.shape(0), int(node.option("block_size"))
    node.require(len(x) == 4 and block > 0 and x[1] % block == x[2] % block == 0)
    return [(x[0], x[1] // block, x[2] // block, x[3] * block * block)]


def _depth_to_space_shape(node: ShapeNode) -> list[Shape]:
    x, block = node.shape(0), int(node.option("block_size"))
    node.require(len(x) == 4 and block > 0 and x[3] % (block * block) == 0)
    return [(x[0], x[1] * block, x[2] * block, x[3] // (block * block))]


def _space_and_batch_shape(node: ShapeNode) -> list[Shape]:
    x, block, pairs = node.shape(0), node.integers(1), node.integers(2)
    m = len(block)
    node.require(len(x) in (3, 4) and m == len(x) - 2 and len(pairs) == 2 * m and min(block) > 0 and min(pairs) >= 0)
    margins = [before + after for before, after in zip(pairs[::2], pairs[1::2], strict=True)]
    space, area = x[1 : 1 + m], math.prod(block)
    if node.operator.name == "BATCH_TO_SPACE_ND":
        node.require(x[0] % area == 0)
        sizes = [n * b - crop for n, b, crop in zip(space, block, margins, strict=True)]
        node.require(min(sizes) >= 0)
        return [(x[0] // area, *sizes, *x[1 + m :])]
    padded = [n + margin for n, margin in zip(space, margins, strict=True)]
    node.require(all(n % b == 0 for n, b in zip(padded, block, strict=True)))
    return [(x[0] * area, *(n // b for n, b in zip(padded, block, strict=True)), *x[1 + m :])]


def _concatenation_shape(node: ShapeNode) -> list[Shape]:
    shapes = [node.shape(i) for i in range(node.count)]
    axis = node.axis(int(node.option("axis")), len(shapes[0]))
    rest = {s[:axis] + s[axis + 1 :] for s in shapes}
    node.require(len(rest) == 1 and len({len(s) for s in shapes}) == 1)
    return [(*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])]


def _pack_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(int(node.option("axis")), len(x) + 1)
    node.require(all(node.shape(i) == x for i in range(node.count)))
    return [(*x[:axis], node.count, *x[axis:])]


def _dilated_shape(node: ShapeNode) -> list[Shape]:
    x, factors = node.shape(0), node.integers(1)
    node.require(len(x) == len(factors))
    return [tuple((n - 1) * factor + 1 for n, factor in zip(x, factors, strict=True))]


def _concatenation_batch(node: BatchNode) -> Place:
    rank = len(node.output)
    axis = int(node.option("axis")) % rank
    for i in node.given:
        place = node.place(i)
        node.require(place is None or place.axis != axis, "it joins along the batch axis")
    return rows_alike(node)


def _pack_batch(node: BatchNode) -> Place:
    axis = int(node.option("axis")) % len(node.output)
    place = rows_alike(node)
    if axis <= place.axis:
        return place.at(place.axis + 1, f"{node.called}: it joins along an axis before the batch axis")
    return place


def _transpose_batch(node: BatchNode) -> Place:
    place, rank = node.only(0), node.rank(0)
    axis = [a % rank for a in node.integers(1)].index(place.axis)
    return place.at(axis, "" if axis == place.axis else f"{node.called}: it moves the batch axis")


def _tile_batch(node: BatchNode) -> Place:
    place = node.only(0)
    node.require(node.integers(1)[place.axis] == 1, "it repeats the batch")
    return place


def _reshape_batch(node: BatchNode) -> Place:
    source, target = node.shape(0), node.output
    place = node.reinterpreted(node.only(0), source, target)
    old, new = node.extent(place)

    def renewed(sizes: Sequence[int]) -> list[int]:
        fits = len(sizes) == len(target) and sizes[place.axis] == old
        return [*sizes[: place.axis], new, *sizes[place.axis + 1 :]] if fits else list(sizes)

    if node.has(1):
        node.rewrite(1, renewed(node.integers(1)))
    if node.options.get("new_shape") is not None:
        node.options["new_shape"] = tuple(renewed([int(n) for n in node.options["new_shape"]]))
    return place


def _squeeze_batch(node: BatchNode) -> Place:
    place, shape = node.only(0), node.shape(0)
    dims = node.option("squeeze_dims", ())
    axes = {int(a) % len(shape) for a in dims} if len(dims) else {i for i, n in enumerate(shape) if n == 1}
    node.require(place.axis not in axes, "it removes the batch axis")
    node.require(bool(axes) or node.owner.new > 1, "without squeeze_dims it would remove a batch of 1")
    node.options["squeeze_dims"] = tuple(sorted(axes))
    return place.at(place.axis - sum(axis < place.axis for axis in axes))


def _expand_dims_batch(node: BatchNode) -> Place:
    place, rank = node.only(0), node.rank(0) + 1
    axis = node.integers(1)[0] % rank
    if axis <= place.axis:
        return place.at(place.axis + 1, f"{node.called}: it puts an axis before the batch axis")
    return place


def _broadcast_to_batch(node: BatchNode) -> Place:
    place, sizes = node.only(0), node.integers(1)
    place = place.at(place.axis + len(sizes) - node.rank(0))
    old, new = node.extent(place)
    node.require(sizes[place.axis] == old, "it repeats the batch")
    if math.prod(sizes[: place.axis]) == 1 or len(sizes) == node.rank(0):
        node.rewrite(1, [*sizes[: place.axis], new, *sizes[place.axis + 1 :]])
        return place
    return node.refuse("it puts axes before the batch axis")


def _space_to_batch(node: BatchNode) -> Place:
    place = node.lead(0)
    return Place(0, place.outer * math.prod(node.integers(1)), place.inner, place.cause)


def _batch_to_space(node: BatchNode) -> Place:
    place, area = node.lead(0), math.prod(node.integers(1))
    node.require(area > 0 and place.outer % area == 0, "it turns the batch into space")
    return Place(0, place.outer // area, place.inner, place.cause)


def _dilated_hazard(operator: Operator, tensors: Tensors) -> None:
    factors = tensors[operator.inputs[1]]
    if factors.data is not None:
        require(bool((factors.data > 0).all()), f"its dilations {values_of(factors)} are not positive")


def _before_reshape(node: BatchNode, i: int, place: Place) -> Place:
    return node.reinterpreted(place, node.output, node.shape(i))


def _before_transpose(node: BatchNode, i: int, place: Place) -> Place:
    return place.at(node.integers(1)[place.axis] % len(node.shape(i)))


def _before_pack(node: BatchNode, i: int, place: Place) -> Place:
    axis = int(node.option("axis")) % len(node.output)
    return place.at(place.axis - (axis < place.axis))


def _repeats_broadcast(node: BatchNode, place: Place) -> bool:
    shape = node.shape(0)
    padded = (1,) * (len(node.output) - len(shape)) + tuple(shape)
    if padded[place.axis] != 1:
        return False
    node.resize(1, place)
    return True


def _repeats_tile(node: BatchNode, place: Place) -> bool:
    if node.shape(0)[place.axis] != 1 or not (place.inner == place.outer == 1 or node.extent(place)[0] == 1):
        return False
    node.resize(1, place)
    return True


def _second_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 2


# fmt: off
OPS = (
    Op(
        "BATCH_TO_SPACE_ND", "x block{3}:int32 crops{6}:int32 -> .", shape=_space_and_batch_shape,
        batch=_batch_to_space, moves="elements",
        gpu=Gpu(4, inputs=(ANY, STATIC, STATIC), counts=3, ranks=(3, 4), quanta="linear", grids="moved",
            notes="constant blocks and crops"),
    ),
    Op(
        "BROADCAST_TO", "x:any shape{8}:int32|int64 -> .", shape=_broadcast_to_shape, batch=_broadcast_to_batch,
        repeating=Repeating(sizes=_repeats_broadcast), folds="values", passes_strings=True, version=_second_version,
        moves="elements",
        gpu=Gpu(4, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="moved", notes="constant shape"),
    ),
    Op(
        "CONCATENATION", "x+:any -> .", shape=_concatenation_shape, batch=_concatenation_batch, repeating=EACH,
        folds="values", passes_strings=True, moves="elements",
        gpu=Gpu(7, inputs=(ANY,), counts=(1, MANY), quanta="linear", grids="moved", rescales=_BYTES, notes="any axis"),
    ),
    Op(
        "DEPTH_TO_SPACE", f"x -> .  ; block_size:{_SIZE}", shape=_depth_to_space_shape, batch=images, moves="elements",
        gpu=Gpu(2, inputs=(ANY,), ranks=(4, 4), quanta="linear", grids="moved"),
    ),
    Op(
        "DILATE", "x factors padding -> .", shape=_dilated_shape, hazard=_dilated_hazard, moves="elements",
        without="it may spread the batch",
        gpu=Gpu(1, inputs=(ANY, STATIC, ANY), outputs=ANY, counts=3, quantized=False,
            notes="constant factors and padding value"),
    ),
    Op(
        "EXPAND_DIMS", "x:any axis{1}:int32|int64 -> =x", shape=_expand_dims_shape, batch=_expand_dims_batch,
        repeating=Repeating(0, _before_reshape), folds="values", moves="shape", by_rows="all",
        gpu=Gpu(1, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="moved"),
    ),
    Op(
        "PACK", "x+:any -> .", shape=_pack_shape, batch=_pack_batch, repeating=Repeating(None, _before_pack),
        folds="values", passes_strings=True, moves="elements",
        gpu=Gpu(5, inputs=(ANY,), counts=(1, MANY), quanta="linear", grids="moved", notes="results up to rank 4"),
    ),
    Op(
        "RESHAPE", "x:any|variant shape^{8}:int32|int64 -> =x", shape=_reshape_shape, batch=_reshape_batch,
        repeating=Repeating(0, _before_reshape), folds="values", moves="shape", by_rows="all",
        gpu=Gpu(2, inputs=(ANY, STATIC), counts=(1, 2), quanta="linear", grids="moved", notes="constant shape"),
    ),
    Op(
        "SPACE_TO_BATCH_ND", "x block{3}:int32 margins{6}:int32 -> .", shape=_space_and_batch_shape,
        batch=_space_to_batch, moves="elements",
        gpu=Gpu(4, inputs=(ANY, STATIC, STATIC), counts=3, ranks=(3, 4), quanta="linear", grids="alike",
            notes="constant blocks and paddings"),
    ),
    Op(
        "SPACE_TO_DEPTH", f"x -> .  ; block_size:{_SIZE}", shape=_space_to_depth_shape, batch=images, moves="elements",
        gpu=Gpu(2, inputs=(ANY,), ranks=(4, 4), quanta="linear", grids="moved"),
    ),
    Op(
        "SQUEEZE", "x:any -> =x", shape=_squeeze_shape, batch=_squeeze_batch, repeating=Repeating(0, _before_reshape),
        folds="values", gpu=Gpu(2, inputs=(ANY,), quanta="linear", grids="moved"), moves="shape", by_rows="all",
    ),
    Op(
        "TILE", "x:any n{8}:int32|int64 -> =x", shape=_tile_shape, batch=_tile_batch,
        repeating=Repeating(sizes=_repeats_tile), folds="values", moves="elements",
        gpu=Gpu(3, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="moved", notes="constant multiples"),
    ),
    Op(
        "TRANSPOSE", "x:any axes{8}:int32|int64 -> =x", shape=_transpose_shape, batch=_transpose_batch,
        repeating=Repeating(0, _before_transpose), folds="values", moves="elements",
        gpu=Gpu(9, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="moved", notes="constant permutation"),
    ),
)
# fmt: on
