"""Operators that move elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.coreml.node import MilNode, as_list, translates
from litegpu.model.ops.strides import strided


@translates("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
def _reshape(node: MilNode) -> Any:
    return node.mb.reshape(x=node.value(0), shape=list(node.result()))


@translates("TRANSPOSE")
def _transpose(node: MilNode) -> Any:
    return node.mb.transpose(x=node.value(0), perm=node.axes(1, len(node.shape(0))))


@translates("CONCATENATION")
def _concatenation(node: MilNode) -> Any:
    axis = int(node.option("axis")) % len(node.result())
    return node.mb.concat(values=[node.value(i) for i in range(node.count())], axis=axis)


@translates("PACK")
def _pack(node: MilNode) -> Any:
    axis = int(node.option("axis")) % len(node.result())
    return node.mb.stack(values=[node.value(i) for i in range(node.count())], axis=axis)


@translates("UNPACK")
def _unpack(node: MilNode) -> Any:
    x = node.shape(0)
    axis = int(node.option("axis")) % len(x)
    return [node.mb.reshape(x=part, shape=list(node.result())) for part in _parts(node, 0, [1] * x[axis], axis)]


@translates("SPLIT")
def _split(node: MilNode) -> Any:
    (axis,) = node.axes(0, len(node.shape(1)))
    return _parts(node, 1, [node.result(i)[axis] for i in range(node.results())], axis)


@translates("SPLIT_V")
def _split_v(node: MilNode) -> Any:
    (axis,) = node.axes(2, len(node.shape(0)))
    return _parts(node, 0, [node.result(i)[axis] for i in range(node.results())], axis)


def _parts(node: MilNode, i: int, sizes: list[int], axis: int) -> list[Any]:
    if len(sizes) == 1:
        return [node.mb.identity(x=node.value(i))]
    return list(as_list(node.mb.split(x=node.value(i), split_sizes=sizes, axis=axis)))


@translates("SLICE")
def _slice(node: MilNode) -> Any:
    begin = node.integers(1, "begins")
    end = [b + n for b, n in zip(begin, node.result(), strict=True)]
    return node.mb.slice_by_index(x=node.value(0), begin=begin, end=end)


@translates("STRIDED_SLICE")
def _strided_slice(node: MilNode) -> Any:
    given = [node.integers(i, what) for i, what in ((1, "begins"), (2, "ends"), (3, "strides"))]
    begin, stride, size, result = strided(node, node.shape(0), given)
    end = [b + s * n for b, s, n in zip(begin, stride, size, strict=True)]
    made = node.mb.slice_by_index(
        x=node.value(0),
        begin=list(begin),
        end=[max(e, 0) for e in end],
        stride=list(stride),
        end_mask=[s < 0 and e < 0 for e, s in zip(end, stride, strict=True)],  # to the very first element
    )
    return node.mb.reshape(x=made, shape=list(result))


@translates("PAD", "PADV2")
def _pad(node: MilNode) -> Any:
    value = node.constant(2, "values to pad with").ravel()[0] if node.has(2) else 0
    return node.mb.pad(
        x=node.value(0), pad=node.integers(1, "paddings"), mode="constant", constant_val=np.float32(value)
    )


@translates("MIRROR_PAD")
def _mirror_pad(node: MilNode) -> Any:
    """Of images by MIL's own operation, which reflects along the last two axes only, and never repeats the border; else
    by indices."""
    x, pads = node.value(0), np.reshape(node.integers(1, "paddings"), (-1, 2))
    if len(pads) == 4 and not node.option("mode") and not pads[[0, 3]].any():
        made = node.mb.pad(x=node.channels_first(0), pad=pads[1:3].ravel().astype(np.int32), mode="reflect")
        return node.channels_last(made)
    for axis, (n, pad) in enumerate(zip(node.shape(0), pads, strict=True)):
        if pad.any():
            mode = "symmetric" if node.option("mode") else "reflect"
            indices = np.pad(np.arange(n), tuple(pad), mode=mode).astype(np.int32)  # type: ignore[call-overload]
            x = node.mb.gather(x=x, indices=indices, axis=axis)
    return x


@translates("TILE")
def _tile(node: MilNode) -> Any:
    return node.mb.tile(x=node.value(0), reps=node.integers(1, "multiples"))


@translates("BROADCAST_TO")
def _broadcast_to(node: MilNode) -> Any:
    result = node.result()
    x = (1,) * (len(result) - len(node.shape(0))) + node.shape(0)
    aligned = node.mb.reshape(x=node.value(0), shape=list(x))
    return node.mb.tile(x=aligned, reps=[o // n for n, o in zip(x, result, strict=True)])


@translates("REVERSE_V2")
def _reverse(node: MilNode) -> Any:
    return node.mb.reverse(x=node.value(0), axes=node.axes(1, len(node.shape(0))))


@translates("GATHER")
def _gather(node: MilNode) -> Any:
    node.require(not node.option("batch_dims"), "Core ML's gathering knows no batch dimensions")
    axis = int(node.option("axis")) % len(node.shape(0))
    indices = node.constant(1, "indices")
    node.require(bool(np.all((indices >= 0) & (indices < node.shape(0)[axis]))), "an index is out of range")
    return node.mb.gather(x=node.value(0), indices=indices.astype(np.int32), axis=axis)


@translates("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def _blocks(node: MilNode) -> Any:
    node.require(int(node.option("block_size")) > 1, "blocks of one element are not Core ML's")
    move = node.mb.space_to_depth if node.name == "SPACE_TO_DEPTH" else node.mb.depth_to_space
    return node.channels_last(move(x=node.channels_first(0), block_size=int(node.option("block_size"))))
