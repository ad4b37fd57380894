"""Small networks whose batch is hard to follow, as converters write them: each a function that builds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from litegpu.model import ModelBuilder, TensorType

CONV = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1, "padding": "SAME"}
I32 = TensorType.INT32


class Network(ModelBuilder):
    """ModelBuilder with layers, and seeded weights."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(5)

    def weights(self, *shape: int) -> int:
        return self.constant((self.random.normal(size=shape) * 0.3).astype(np.float32))

    def sizes(self, values: Sequence[int]) -> int:
        return self.constant(np.array(values, np.int32))

    def reshape(self, x: int, *shape: int) -> int:
        return self.op("RESHAPE", [x, self.sizes(shape)], shape, {"new_shape": shape})

    def transpose(self, x: int, order: tuple[int, ...], *shape: int) -> int:
        return self.op("TRANSPOSE", [x, self.sizes(order)], shape)

    def dense(self, x: int, source: tuple[int, ...], units: int, *, flat: bool = False) -> int:
        w, b = self.weights(units, source[-1]), self.weights(units)
        if flat:  # as older converters do: to a matrix and back
            rows = int(np.prod(source[:-1]))
            y = self.op("FULLY_CONNECTED", [self.reshape(x, rows, source[-1]), w, b], (rows, units))
            return self.reshape(y, *source[:-1], units)
        return self.op("FULLY_CONNECTED", [x, w, b], (*source[:-1], units), {"keep_num_dims": True})

    def norm(self, x: int, shape: tuple[int, ...]) -> int:
        reduced = (*shape[:-1], 1)
        axis = self.sizes([len(shape) - 1])
        mean = self.op("MEAN", [x, axis], reduced, {"keep_dims": True})
        square = self.op("SQUARED_DIFFERENCE", [x, mean], shape)
        variance = self.op("MEAN", [square, axis], reduced, {"keep_dims": True})
        deviation = self.op("RSQRT", [self.op("ADD", [variance, self.weights_like(1e-3)], reduced)], reduced)
        return self.op("MUL", [self.op("SUB", [x, mean], shape), deviation], shape)

    def weights_like(self, value: float) -> int:
        return self.constant(np.float32(value))


def vision_transformer(token: str, batch: int = 1, *, fused: bool = True, flat: bool = False) -> bytes:
    """A class token in front of the patches, made in one of several ways, position embeddings, attention whose queries,
    keys and values come of one product (`fused`: the batch is not in front then), and heads joined to the batch."""
    b, n, d, heads = Network(), 4, 8, 2
    x = b.input("image", (batch, 8, 8, 3))
    patches = b.op(
        "CONV_2D", [x, b.weights(d, 4, 4, 3), b.weights(d)], (batch, 2, 2, d), CONV | {"stride_h": 4, "stride_w": 4}
    )
    patches = b.reshape(patches, batch, n, d)
    match token:
        case "constant":
            first = b.constant(np.repeat(b.random.normal(size=(1, 1, d)), batch, 0).astype(np.float32))
        case "broadcast":
            first = b.op("BROADCAST_TO", [b.weights(1, 1, d), b.sizes([batch, 1, d])], (batch, 1, d))
        case "broadcast and reshaped":
            wide = b.op("BROADCAST_TO", [b.weights(1, d), b.sizes([batch, d])], (batch, d))
            first = b.reshape(wide, batch, 1, d)
        case "tiled":
            first = b.op("TILE", [b.weights(1, 1, d), b.sizes([batch, 1, 1])], (batch, 1, d))
        case "computed":
            filled = b.op("FILL", [b.sizes([batch, 1, d]), b.weights_like(1)], (batch, 1, d))
            first = b.op("MUL", [filled, b.weights(1, 1, d)], (batch, 1, d))
    joined = b.op("CONCATENATION", [first, patches], (batch, n + 1, d), {"axis": 1})
    n += 1
    shape = (batch, n, d)
    y = b.op("ADD", [joined, b.weights(1, n, d)], shape)
    z = b.norm(y, shape)
    each = (batch, heads, n, d // heads)
    if fused:
        qkv = b.reshape(b.dense(z, shape, 3 * d, flat=flat), batch, n, 3, heads, d // heads)
        qkv = b.transpose(qkv, (2, 0, 3, 1, 4), 3, *each)
        q, k, v = b.op_multi("UNPACK", [qkv], [(each, TensorType.FLOAT32)] * 3, {"num": 3, "axis": 0})
    else:
        q, k, v = (
            b.transpose(b.reshape(b.dense(z, shape, d, flat=flat), batch, n, heads, d // heads), (0, 2, 1, 3), *each)
            for _ in range(3)
        )
        q, k, v = (b.reshape(t, batch * heads, n, d // heads) for t in (q, k, v))
    lead = each[:2] if fused else (batch * heads,)
    logits = b.op("BATCH_MATMUL", [q, k], (*lead, n, n), {"adj_y": True})
    weights = b.op("SOFTMAX", [logits], (*lead, n, n), {"beta": 1.0})
    values = b.op("BATCH_MATMUL", [weights, v], (*lead, n, d // heads))
    if not fused:
        values = b.reshape(values, *each)
    values = b.reshape(b.transpose(values, (0, 2, 1, 3), batch, n, heads, d // heads), *shape)
    y = b.op("ADD", [y, b.dense(values, shape, d, flat=flat)], shape)
    picked = [y, *(b.sizes(v) for v in ([0, 0, 0], [batch, 1, d], [1, 1, 1]))]
    cls = b.op("STRIDED_SLICE", picked, (batch, d), {"shrink_axis_mask": 2, "begin_mask": 5, "end_mask": 4})
    b.output(b.op("FULLY_CONNECTED", [cls, b.weights(5, d), b.weights(5)], (batch, 5)))
    return b.build()


def sized_by_shape(token: str, batch: int = 1) -> bytes:
    """As converters write what was exported for any batch: SHAPE, STRIDED_SLICE and PACK before what needs sizes."""
    b, n, d = Network(), 4, 8
    x = b.input("image", (batch, 8, 8, 3), shape_signature=(-1, 8, 8, 3))

    def sizes(*behind: int) -> int:
        shape = b.op("SHAPE", [x], (4,), {"out_type": "INT32"}, type=I32)
        picked = [shape, *(b.sizes([v]) for v in (0, 1, 1))]
        first = b.op("STRIDED_SLICE", picked, (), {"shrink_axis_mask": 1}, type=I32)
        numbers = [first, *(b.constant(np.array(v, np.int32)) for v in behind)]
        return b.op("PACK", numbers, (len(numbers),), {"values_count": len(numbers), "axis": 0}, type=I32)

    y = b.op(
        "CONV_2D", [x, b.weights(d, 4, 4, 3), b.weights(d)], (batch, 2, 2, d), CONV | {"stride_h": 4, "stride_w": 4}
    )
    y = b.op("RESHAPE", [y, sizes(n, d)], (batch, n, d))
    match token:
        case "broadcast":
            first = b.op("BROADCAST_TO", [b.weights(1, 1, d), sizes(1, d)], (batch, 1, d))
        case "broadcast arguments":
            shape = b.op("BROADCAST_ARGS", [b.sizes([1, 1, d]), sizes(1, d)], (3,), type=I32)
            first = b.op("BROADCAST_TO", [b.weights(1, 1, d), shape], (batch, 1, d))
        case "tiled":
            first = b.op("TILE", [b.weights(1, 1, d), sizes(1, 1)], (batch, 1, d))
        case "filled":
            filled = b.op("FILL", [sizes(1, d), b.weights_like(1)], (batch, 1, d))
            first = b.op("MUL", [filled, b.weights(1, 1, d)], (batch, 1, d))
    y = b.op("CONCATENATION", [first, y], (batch, n + 1, d), {"axis": 1})
    y = b.op("RESHAPE", [b.norm(y, (batch, n + 1, d)), sizes((n + 1) * d)], (batch, (n + 1) * d))
    b.output(b.op("FULLY_CONNECTED", [y, b.weights(5, (n + 1) * d), b.weights(5)], (batch, 5)))
    return b.build()


def framed(way: str, batch: int = 1) -> bytes:
    """Frames of 4 samples, 2 apart, of 12: pieces of 2 are gathered by places that RANGE gives, as tf.signal.frame has
    it, for sizes of which SHAPE's are taken apart in one of several ways."""
    b = Network()
    x = b.input("audio", (batch, 12), shape_signature=(-1, 12))
    shape = b.op("SHAPE", [x], (2,), {"out_type": "INT32"}, type=I32)
    zero, one, two = (b.constant(np.array(n, np.int32)) for n in range(3))
    parts = [((1,), I32)] * 2
    if way == "SPLIT_V":
        outer, inner, _ = b.op_multi(
            "SPLIT_V", [shape, b.sizes([1, -1, 0]), zero], [*parts, ((0,), I32)], {"num_splits": 3}
        )
    elif way == "SPLIT":
        outer, inner = b.op_multi("SPLIT", [zero, shape], parts, {"num_splits": 2})
    else:
        taken = b.op_multi("UNPACK", [shape], [((), I32)] * 2, {"num": 2, "axis": 0})
        outer, inner = (b.op("EXPAND_DIMS", [n, zero], (1,), type=I32) for n in taken)
    samples = b.op("RESHAPE", [inner, b.sizes([])], (), type=I32)
    pieces = b.op("FLOOR_DIV", [samples, two], (), type=I32)
    behind = b.op("PACK", [pieces, two], (2,), {"values_count": 2, "axis": 0}, type=I32)
    y = b.op("RESHAPE", [x, b.op("CONCATENATION", [outer, behind], (3,), {"axis": 0}, type=I32)], (batch, 6, 2))
    frames = b.op("SUB", [pieces, one], (), type=I32)
    firsts = b.op("RANGE", [zero, frames, one], (5,), type=I32)
    column = b.op("PACK", [frames, one], (2,), {"values_count": 2, "axis": 0}, type=I32)
    places = b.op(
        "ADD",
        [b.op("RESHAPE", [firsts, column], (5, 1), type=I32), b.constant(np.array([[0, 1]], np.int32))],
        (5, 2),
        type=I32,
    )
    y = b.op("GATHER", [y, places], (batch, 5, 2, 2), {"axis": 1})
    row = b.op("PACK", [frames, b.constant(np.array(4, np.int32))], (2,), {"values_count": 2, "axis": 0}, type=I32)
    y = b.op("RESHAPE", [y, b.op("CONCATENATION", [outer, row], (3,), {"axis": 0}, type=I32)], (batch, 5, 4))
    b.output(b.dense(y, (batch, 5, 4), 3))
    return b.build()


def windowed_transformer(batch: int = 1) -> bytes:
    """Swin: attention in shifted windows, with a mask for each window and a bias for each head."""
    b, h, s, d, heads = Network(), 8, 4, 6, 2
    windows, n = (h // s) ** 2, s * s
    x = b.input("image", (batch, h, h, d))
    y = b.op(
        "SLICE",
        [x, b.sizes([0, 2, 0, 0]), b.sizes([-1, h - 2, h, d])],
        (batch, h - 2, h, d),
    )
    top = b.op(
        "SLICE",
        [x, b.sizes([0, 0, 0, 0]), b.sizes([batch, 2, h, d])],
        (batch, 2, h, d),
    )
    y = b.op("CONCATENATION", [y, top], (batch, h, h, d), {"axis": 1})
    y = b.transpose(b.reshape(y, batch, h // s, s, h // s, s, d), (0, 1, 3, 2, 4, 5), batch, h // s, h // s, s, s, d)
    y = b.reshape(y, batch * windows, n, d)
    shape = (batch * windows, n, d)
    each, square = (batch * windows, heads, n, d // heads), (batch * windows, heads, n, n)
    q, k, v = (
        b.transpose(
            b.reshape(b.dense(y, shape, d), batch * windows, n, heads, d // heads),
            (0, 2, 1, 3),
            batch * windows,
            heads,
            n,
            d // heads,
        )
        for _ in range(3)
    )
    logits = b.op("BATCH_MATMUL", [q, k], square, {"adj_y": True})
    logits = b.op("ADD", [logits, b.weights(1, heads, n, n)], square)
    logits = b.reshape(logits, batch, windows, heads, n, n)
    logits = b.op("ADD", [logits, b.weights(1, windows, 1, n, n)], (batch, windows, heads, n, n))
    logits = b.reshape(logits, *square)
    mask = np.repeat(b.random.normal(size=(1, windows, 1, 1, n)), batch, 0).astype(np.float32)
    logits = b.op("ADD", [logits, b.constant(mask.reshape(batch * windows, 1, 1, n))], square)
    values = b.op("BATCH_MATMUL", [b.op("SOFTMAX", [logits], square, {"beta": 1.0}), v], each)
    y = b.reshape(b.transpose(values, (0, 2, 1, 3), batch * windows, n, heads, d // heads), *shape)
    y = b.transpose(b.reshape(y, batch, h // s, h // s, s, s, d), (0, 1, 3, 2, 4, 5), batch, h // s, s, h // s, s, d)
    b.output(b.op("ADD", [b.reshape(y, batch, h, h, d), x], (batch, h, h, d)))
    return b.build()


def recurrent(batch: int = 1, *, time_major: bool = False, state: bool = False) -> bytes:
    """An LSTM, its steps in front or behind the batch, and a classifier of the last step; perhaps what it keeps."""
    b, steps, size, cells = Network(), 5, 3, 4
    x = b.input("x", (batch, steps, size))
    shape = (steps, batch, size) if time_major else (batch, steps, size)
    y = b.transpose(x, (1, 0, 2), *shape) if time_major else x
    gates = [b.weights(cells, size) for _ in range(4)] + [b.weights(cells, cells) for _ in range(4)]
    kept = [b.variable("output state", (batch, cells)), b.variable("cell state", (batch, cells))]
    inputs = [y, *gates, None, None, None, *(b.weights(cells) for _ in range(4)), None, None, *kept]
    y = b.op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        inputs,
        (*shape[:2], cells),
        {"fused_activation_function": "TANH", "time_major": time_major},
    )
    if time_major:
        y = b.transpose(y, (1, 0, 2), batch, steps, cells)
    picked = [y, *(b.sizes(v) for v in ([0, steps - 1, 0], [batch, steps, cells], [1, 1, 1]))]
    last = b.op("STRIDED_SLICE", picked, (batch, cells), {"shrink_axis_mask": 2})
    b.output(b.op("FULLY_CONNECTED", [last, b.weights(3, cells), b.weights(3)], (batch, 3)))
    if state:
        b.output(b.op("ABS", [kept[0]], (batch, cells)))
    return b.build()


def squeeze_excite(batch: int = 1) -> bytes:
    """A gate for each channel, computed through matrices and through images of one pixel."""
    b, shape = Network(), (batch, 6, 6, 8)
    x = b.input("image", shape)
    y = b.op("CONV_2D", [x, b.weights(8, 3, 3, 8), b.weights(8)], shape, CONV)
    axes = b.sizes([1, 2])
    flat = b.dense(b.op("MEAN", [y, axes], (batch, 8)), (batch, 8), 2)
    gate = b.reshape(b.op("LOGISTIC", [b.dense(flat, (batch, 2), 8)], (batch, 8)), batch, 1, 1, 8)
    y = b.op("MUL", [y, gate], shape)
    pixel = b.op("MEAN", [y, axes], (batch, 1, 1, 8), {"keep_dims": True})
    pixel = b.op("CONV_2D", [pixel, b.weights(8, 1, 1, 8), b.weights(8)], (batch, 1, 1, 8), CONV)
    y = b.op("MUL", [y, b.op("LOGISTIC", [pixel], (batch, 1, 1, 8))], shape)
    b.output(b.op("FULLY_CONNECTED", [y, b.weights(3, 288), b.weights(3)], (batch, 3)))
    return b.build()


def detection_heads(batch: int = 1) -> bytes:
    """Boxes and scores of two levels, joined, and decoded with anchors, some of which the file has for every image."""
    b = Network()
    x = b.input("image", (batch, 8, 8, 4))
    y = b.op(
        "MAX_POOL_2D", [x], (batch, 4, 4, 4), {"stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    )
    boxes: list[int] = []
    scores: list[int] = []
    total = 0
    for level, size in ((x, 8), (y, 4)):
        count = size * size * 2
        total += count
        for found, channels in ((boxes, 4), (scores, 3)):
            head = b.op(
                "CONV_2D",
                [level, b.weights(2 * channels, 1, 1, 4), b.weights(2 * channels)],
                (batch, size, size, 2 * channels),
                CONV,
            )
            found.append(b.reshape(head, batch, count, channels))
    box = b.op("CONCATENATION", boxes, (batch, total, 4), {"axis": 1})
    score = b.op("LOGISTIC", [b.op("CONCATENATION", scores, (batch, total, 3), {"axis": -2})], (batch, total, 3))
    halves = [((batch, total, 2), TensorType.FLOAT32)] * 2
    centre, extent = b.op_multi("SPLIT", [b.constant(np.int32(2)), box], halves, {"num_splits": 2})
    anchors = np.repeat(b.random.uniform(0.1, 1, (1, total, 2)), batch, 0).astype(np.float32)
    centre = b.op("ADD", [centre, b.weights(total, 2)], (batch, total, 2))
    extent = b.op("MUL", [b.op("TANH", [extent], (batch, total, 2)), b.constant(anchors)], (batch, total, 2))
    extent = b.op("CONCATENATION", [extent, b.constant(anchors)], (batch, total, 4), {"axis": 2})
    highest = b.op("REDUCE_MAX", [score, b.sizes([2])], (batch, total))
    results = [((batch, 5), TensorType.FLOAT32), ((batch, 5), I32)]
    best = b.op_multi("TOPK_V2", [highest, b.constant(np.int32(5))], results)[0]
    b.output(b.op("CONCATENATION", [centre, extent], (batch, total, 6), {"axis": 2}), score, best)
    return b.build()


NETWORKS: dict[str, Callable[[int], bytes]] = {
    **{
        f"vision transformer, class token {token}": partial(vision_transformer, token)
        for token in ("constant", "broadcast", "broadcast and reshaped", "tiled", "computed")
    },
    "vision transformer by matrices": lambda batch: vision_transformer("broadcast", batch, flat=True),
    "vision transformer, heads joined to the batch": lambda batch: vision_transformer("tiled", batch, fused=False),
    "vision transformer, both": lambda batch: vision_transformer("constant", batch, fused=False, flat=True),
    **{
        f"sizes by SHAPE, class token {token}": partial(sized_by_shape, token)
        for token in ("broadcast", "broadcast arguments", "tiled", "filled")
    },
    **{f"frames of audio, sizes by {way}": partial(framed, way) for way in ("SPLIT_V", "SPLIT", "UNPACK")},
    "windowed transformer": windowed_transformer,
    "recurrent": recurrent,
    "recurrent, time first": lambda batch: recurrent(batch, time_major=True),
    "squeeze and excite": squeeze_excite,
    "detection heads": detection_heads,
}
