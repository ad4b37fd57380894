"""Operators that cut or extend tensors: slices, splits, unpacking, padding."""

from __future__ import annotations

import math

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import MAX_RANK, Tensors, require
from litegpu.model.ops.record import ANY, STATIC, Gpu, Op, Repeating
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.strides import computed_slice, strided
from litegpu.model.types import Operator


def _slice_shape(node: ShapeNode) -> list[Shape]:
    x, size = node.shape(0), node.integers(2)
    if not node.is_constant(1) and min(size, default=0) >= 0:
        node.require(len(x) == len(size) and all(s <= n for s, n in zip(size, x, strict=True)))
        return [size]
    begin = node.integers(1)
    node.require(len(x) == len(begin) == len(size))
    result = tuple(n - b if s == -1 else s for n, b, s in zip(x, begin, size, strict=True))
    node.require(all(b >= 0 and s >= 0 and b + s <= n for n, b, s in zip(x, begin, result, strict=True)))
    return [result]


def _strided_slice_shape(node: ShapeNode) -> list[Shape]:
    if not node.is_constant(1) and node.is_constant(3):
        taken = computed_slice(node, node.shape(0), node.integers(3))
        return [tuple(n for axis, n in enumerate(node.shape(0)) if axis not in taken)]
    given = [node.integers(i) for i in (1, 2, 3)]
    node.require(len({len(g) for g in given}) == 1)
    return [strided(node, node.shape(0), given)[3]]


def _split_shape(node: ShapeNode) -> list[Shape]:
    x, count = node.shape(1), len(node.operator.outputs)
    axis = node.axis(node.integer(0), len(x))
    node.require(count > 0 and x[axis] % count == 0)
    return [(*x[:axis], x[axis] // count, *x[axis + 1 :])] * count


def _split_v_shape(node: ShapeNode) -> list[Shape]:
    x, sizes = node.shape(0), list(node.integers(1))
    axis = node.axis(node.integer(2), len(x))
    node.require(sizes.count(-1) <= 1)
    if -1 in sizes:
        sizes[sizes.index(-1)] = x[axis] - (sum(sizes) + 1)
    node.require(sum(sizes) == x[axis])
    return [(*x[:axis], n, *x[axis + 1 :]) for n in sizes]


def _unpack_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    axis = node.axis(int(node.option("axis")), len(x))
    node.require(x[axis] == len(node.operator.outputs))
    return [x[:axis] + x[axis + 1 :]] * x[axis]


def _pad_shape(node: ShapeNode) -> list[Shape]:
    x, margins = node.shape(0), node.integers(1)
    node.require(node.shape(1) == (len(x), 2) and min(margins, default=0) >= 0)
    return [tuple(n + a + b for n, a, b in zip(x, margins[::2], margins[1::2], strict=True))]


def _slice_batch(node: BatchNode) -> Place:
    place = node.only(0)
    axis, (old, new) = place.axis, node.extent(place)
    begin, size = node.integers(1), node.integers(2)
    node.require(begin[axis] == 0 and size[axis] in (-1, old), "it cuts the batch")
    node.rewrite(2, [*size[:axis], size[axis] if size[axis] == -1 else new, *size[axis + 1 :]])
    return place


def _strided_slice_batch(node: BatchNode) -> Place:
    """Bit e of a mask is about entry e of begin, end and strides."""
    place, rank = node.only(0), node.rank(0)
    begin, end, strides = (node.integers(i) for i in (1, 2, 3))
    masks = {name: int(node.option(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}

    def bit(mask: str, entry: int) -> bool:
        return bool(masks[mask] >> entry & 1)

    entries = range(len(begin))
    own = sum(not bit("ellipsis", e) and not bit("new_axis", e) for e in entries)
    axis = made = 0  # the next axes of the input and of the output
    for entry in entries:
        if bit("ellipsis", entry):
            if axis <= place.axis < axis + rank - own:
                return place.at(made + place.axis - axis)
            axis, made = axis + rank - own, made + rank - own
        elif bit("new_axis", entry):
            made += 1
        elif axis == place.axis:
            node.require(not bit("shrink_axis", entry), "it takes one row of the batch")
            old, new = node.extent(place)
            whole = (bit("begin", entry) or begin[entry] == 0) and strides[entry] == 1
            stop = end[entry] + (begin[entry] if node.option("offset", False) else 0)
            node.require(whole and (bit("end", entry) or stop >= old), "it cuts the batch")
            if not bit("end", entry):
                node.rewrite(2, [*end[:entry], new, *end[entry + 1 :]])
            return place.at(made, f"{node.called}: it puts an axis before the batch axis" if made > axis else "")
        else:
            axis, made = axis + 1, made + (not bit("shrink_axis", entry))
    return place.at(made + place.axis - axis)


def _unpack_batch(node: BatchNode) -> Place:
    place = node.only(0)
    axis = node.off_batch(int(node.option("axis")), place, node.rank(0), "takes apart")
    return place.at(place.axis - (axis < place.axis))


def _split_batch(node: BatchNode) -> Place:
    data, axis = (1, 0) if node.operator.name == "SPLIT" else (0, 2)
    place = node.only(data)
    node.off_batch(node.integers(axis)[0], place, node.rank(data), "splits")
    return place


def _pad_batch(node: BatchNode) -> Place:
    place = node.only(0)
    margins = node.integers(1)
    node.require(margins[2 * place.axis : 2 * place.axis + 2] == [0, 0], "it pads the batch axis")
    return place


def _split_hazard(operator: Operator, tensors: Tensors) -> None:
    name = "num" if operator.name == "UNPACK" else "num_splits"
    count = operator.options.get(name, 0)
    require(count == len(operator.outputs), f"its option {name} is {count}, but it has {len(operator.outputs)} outputs")


def _strided_slice_hazard(operator: Operator, tensors: Tensors) -> None:
    options, source = operator.options, tensors[operator.inputs[0]]
    begin, end, strides = (tensors[index] for index in operator.inputs[1:])
    count, rank = math.prod(begin.shape), len(source.shape)
    new = options.get("new_axis_mask", 0)
    require(0 <= new < 1 << count, f"its option new_axis_mask is {new}, but it has {count} indices")
    require(
        count <= rank + bin(new).count("1") <= MAX_RANK or not source.has_rank,
        f"it has {count} indices and new_axis_mask {new} for an input of shape {list(source.shape)}",
    )
    if not options.get("offset", False):
        return
    # The second index is a size then, which is added to the first and never held against the extent.
    masks = [name for name in ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask") if options.get(name, 0)]
    require(not masks, f"its option offset is set beside {', '.join(masks)}")
    require(count == rank or not source.has_rank, f"its option offset goes with {rank} indices, it has {count}")
    if end.data is None or source.shape_signature != source.shape:
        return
    sizes = end.data.reshape(-1).tolist()
    least = 0 if options.get("shrink_axis_mask", 0) else -(2**31)
    starts = [0] * count if begin.data is None else begin.data.reshape(-1).tolist()
    steps = [1] * count if strides.data is None else strides.data.reshape(-1).tolist()
    require(
        len(sizes) == len(starts) == len(steps) == count
        and min(sizes, default=0) >= least
        and all(
            step > 0 and -extent <= start and (start + extent if start < 0 else start) + size <= extent
            for start, size, step, extent in zip(starts, sizes, steps, source.shape, strict=False)
        ),
        f"it takes {sizes} elements from {starts} on by steps of {steps} from shape {list(source.shape)}",
    )


# fmt: off
OPS = (
    Op(
        "MIRROR_PAD", "x margins{16}:int32|int64 -> =x", shape=_pad_shape, batch=_pad_batch, moves="elements",
        gpu=Gpu(3, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="moved", notes="REFLECT and SYMMETRIC"),
    ),
    Op(
        "PAD", "x margins{16}:int32|int64|int8|int16|bool -> .", shape=_pad_shape, batch=_pad_batch, moves="elements",
        gpu=Gpu(6, inputs=(ANY, STATIC), counts=2, quanta="linear", grids="alike", notes="constant paddings"),
    ),
    Op(
        "PADV2", "x margins{16}:int32|int64|int8|int16|bool v -> .", shape=_pad_shape, batch=_pad_batch,
        moves="elements",
        gpu=Gpu(6, inputs=(ANY, STATIC, ANY), counts=3, grids="alike",
            notes="constant paddings; constant or runtime value"),
    ),
    Op(
        "SLICE", "x:any begin{8}:int32|int64 size{8}:int32|int64 -> =x", shape=_slice_shape, batch=_slice_batch,
        folds="values", moves="elements",
        gpu=Gpu(8, inputs=(ANY, STATIC, STATIC), counts=3, quanta="linear", grids="moved",
            notes="constant size; constant or runtime begin"),
    ),
    Op(
        "SPLIT", "axis{1}:int32 x:any -> .+", shape=_split_shape, sizes_from=0, batch=_split_batch,
        repeating=Repeating(1), hazard=_split_hazard, folds="values", passes_strings=True, moves="elements",
        gpu=Gpu(5, inputs=(STATIC, ANY), outputs=ANY, counts=2, quanta="linear", grids="moved", notes="constant axis"),
    ),
    Op(
        "SPLIT_V", "x:any sizes axis{1}:int32 -> .+", shape=_split_v_shape, batch=_split_batch, hazard=_split_hazard,
        folds="values", passes_strings=True, moves="elements",
        gpu=Gpu(3, inputs=(ANY, STATIC, STATIC), counts=3, quanta="linear", grids="moved",
            notes="constant sizes and axis"),
    ),
    Op(
        "STRIDED_SLICE", "x:any begin{8}:int32|int64 end{8}:=begin strides{8}:=begin -> =x", shape=_strided_slice_shape,
        batch=_strided_slice_batch, hazard=_strided_slice_hazard, folds="values", moves="elements",
        gpu=Gpu(8, inputs=(ANY, STATIC, STATIC, STATIC), counts=4, quanta="linear", grids="moved",
            notes="constant begin, end and strides (negative ones too), all masks; or single elements at computed "
            "places (INT32)"),
    ),
    Op(
        "UNPACK", "x:any -> .+", shape=_unpack_shape, batch=_unpack_batch, hazard=_split_hazard, folds="values",
        passes_strings=True, gpu=Gpu(6, inputs=(ANY,), quanta="linear", grids="moved"), moves="elements",
    ),
)
# fmt: on
