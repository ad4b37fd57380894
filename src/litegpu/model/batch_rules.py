"""Which operators keep the rows of a batch apart, and which of their operands hold its size: one rule for each kind.

A rule changes the operands of a node that reads the batch and says where its outputs have it (None: nowhere), or
refuses. `of_repeated` is for nodes that do not read the batch and have to be computed for each of it all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from litegpu.model.batch_node import Node, Place

Rule = Callable[[Node], Place | None]


def of_operator(node: Node) -> Place | None:
    """Where the outputs have the batch; the node's operands are changed. Raises TensorError or Repeat."""
    rule = (_CUSTOM if node.operator.is_custom else _RULES).get(node.operator.name)
    if rule is None:
        node.refuse("it is not known to treat the rows of a batch alike")
    return rule(node)


def of_repeated(node: Node, place: Place) -> Place | None:
    """The same for a node whose inputs do not depend on the batch, and whose outputs have to have it at `place`."""
    old, new = node.extent(place)
    name = node.operator.name
    if name in ("BROADCAST_TO", "FILL"):
        sizes = 1 if name == "BROADCAST_TO" else 0
        from_one = name == "FILL" or _padded(node.shape(0), len(node.output))[place.axis] == 1
        if from_one:
            values = node.integers(sizes)
            node.rewrite(sizes, [*values[: place.axis], new, *values[place.axis + 1 :]])
            return place
    if name == "TILE" and node.shape(0)[place.axis] == 1 and (place.inner == place.outer == 1 or old == 1):
        values = node.integers(1)
        node.rewrite(1, [*values[: place.axis], new, *values[place.axis + 1 :]])
        return place
    repeated = False
    for i in _data(node):
        before = _before(node, i, place)
        if before is not None:
            node.repeat(i, before)
            repeated = True
    cannot = "its output does not depend on the batch, and cannot be repeated for it"
    node.require(repeated, cannot)
    found = of_operator(node)
    node.require(found == place, cannot)
    return found


def _data(node: Node) -> list[int]:
    """The inputs that hold values rather than axes, sizes, tables or weights."""
    first = {"SPLIT": 1, "TRANSPOSE_CONV": 2, "GATHER": 1, "GATHER_ND": 1}.get(node.operator.name, 0)
    several = _RULES.get(node.operator.name) in (_broadcast, _all, _concatenation, _pack)
    return node.given if several else [first]


def _before(node: Node, i: int, place: Place) -> Place | None:
    """Where input i would have to have the batch for the output to have it at `place`; None if it need not."""
    shape, output = node.shape(i), node.output
    match node.operator.name:
        case "RESHAPE" | "SQUEEZE" | "EXPAND_DIMS":
            return node.reinterpreted(place, output, shape)
        case "TRANSPOSE":
            return place.at(node.integers(1)[place.axis] % len(shape))
        case "PACK":
            axis = int(node.option("axis")) % len(output)
            return place.at(place.axis - (axis < place.axis))
        case "GATHER" | "GATHER_ND" | "EMBEDDING_LOOKUP":
            return place
    axis = place.axis - (len(output) - len(shape))
    return place.at(axis) if axis >= 0 and shape[axis] == place.size(node.owner.old) else None


def _padded(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + tuple(shape)


# ------------------------------------------------------------------------------------------ element by element


def _pointwise(node: Node) -> Place:
    return node.only(0)


def _images(node: Node) -> Place:
    return node.lead(0)


def _last_axis(node: Node) -> Place:
    place, rank = node.only(0), node.rank(0)
    node.require(rank > 1, "it works along the batch axis, the only one")
    node.off_batch(-1, place, rank, "works along")
    return place


def _broadcast(node: Node) -> Place:
    return _aligned(node, len(node.output))


def _aligned(node: Node, rank: int) -> Place:
    """NumPy broadcasting where all that depends on the batch has it along the same axis of `rank`."""
    found: list[Place] = []
    for i in node.given:
        place = node.place(i)
        if place is None:
            continue
        moved = place.at(place.axis + rank - node.rank(i))
        if found and moved != found[0]:
            node.require(
                moved.axis == found[0].axis,
                f"the batch of its input {i} {list(node.shape(i))} meets another axis of the rest",
            )
            node.refuse("its inputs have different numbers of rows")
        found.append(moved)
    place = found[0]
    for i in node.given:
        axis = place.axis - (rank - node.rank(i))
        if node.place(i) is None and axis >= 0 and node.shape(i)[axis] != 1:
            node.repeat(i, place.at(axis))
    return place


def _all(node: Node) -> Place:
    """Every input has the batch at the same place; what does not depend on it is repeated."""
    place = next(p for i in node.given if (p := node.place(i)) is not None)
    for i in node.given:
        if node.place(i) is None:
            node.repeat(i, place)
        node.require(node.place(i) == place, "its inputs have different numbers of rows")
    return place


def _select(node: Node) -> Place:
    """The condition may be a scalar, or choose rows."""
    places = [node.place(i) for i in (1, 2, 0)]
    place = next(p for p in places if p is not None)
    for i in (1, 2):
        if node.place(i) is None:
            node.repeat(i, place)
    if node.rank(0) == 0:
        node.require(node.place(0) is None, "its condition depends on the batch")
    elif node.rank(0) == node.rank(1) or place.axis == 0:
        if node.place(0) is None:
            node.repeat(0, place)
    else:
        node.require(node.place(0) is None, "its condition depends on the batch")
    node.require(
        len({p for i in node.given if (p := node.place(i)) is not None}) == 1, "its inputs have different rows"
    )
    return place


# --------------------------------------------------------------------------------------------- joining and taking


def _concatenation(node: Node) -> Place:
    rank = len(node.output)
    axis = int(node.option("axis")) % rank
    for i in node.given:
        place = node.place(i)
        node.require(place is None or place.axis != axis, "it joins along the batch axis")
    return _all(node)


def _pack(node: Node) -> Place:
    axis = int(node.option("axis")) % len(node.output)
    place = _all(node)
    if axis <= place.axis:
        return place.at(place.axis + 1, f"{node.called}: it joins along an axis before the batch axis")
    return place


def _unpack(node: Node) -> Place:
    place = node.only(0)
    axis = node.off_batch(int(node.option("axis")), place, node.rank(0), "takes apart")
    return place.at(place.axis - (axis < place.axis))


def _split(node: Node) -> Place:
    data, axis = (1, 0) if node.operator.name == "SPLIT" else (0, 2)
    place = node.only(data)
    node.off_batch(node.integers(axis)[0], place, node.rank(data), "splits")
    return place


def _reduction(node: Node) -> Place:
    place, rank = node.only(0), node.rank(0)
    axes = {node.off_batch(axis, place, rank, "reduces") for axis in node.integers(1)}
    keeps = bool(node.option("keep_dims", False)) and not node.operator.name.startswith("ARG_")
    return place if keeps else place.at(place.axis - sum(axis < place.axis for axis in axes))


def _along(verb: str) -> Rule:
    """Works along the axes in constant input 1, which stay."""

    def rule(node: Node) -> Place:
        place = node.only(0)
        for axis in node.integers(1):
            node.off_batch(axis, place, node.rank(0), verb)
        return place

    return rule


# ------------------------------------------------------------------------------------------------- rearrangement


def _pad(node: Node) -> Place:
    place = node.only(0)
    margins = node.integers(1)
    node.require(margins[2 * place.axis : 2 * place.axis + 2] == [0, 0], "it pads the batch axis")
    return place


def _transpose(node: Node) -> Place:
    place, rank = node.only(0), node.rank(0)
    axis = [a % rank for a in node.integers(1)].index(place.axis)
    return place.at(axis, "" if axis == place.axis else f"{node.called}: it moves the batch axis")


def _tile(node: Node) -> Place:
    place = node.only(0)
    node.require(node.integers(1)[place.axis] == 1, "it repeats the batch")
    return place


def _reshape(node: Node) -> Place:
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


def _squeeze(node: Node) -> Place:
    place, shape = node.only(0), node.shape(0)
    dims = node.option("squeeze_dims", ())
    axes = {int(a) % len(shape) for a in dims} if len(dims) else {i for i, n in enumerate(shape) if n == 1}
    node.require(place.axis not in axes, "it removes the batch axis")
    node.require(bool(axes) or node.owner.new > 1, "without squeeze_dims it would remove a batch of 1")
    node.options["squeeze_dims"] = tuple(sorted(axes))
    return place.at(place.axis - sum(axis < place.axis for axis in axes))


def _expand_dims(node: Node) -> Place:
    place, rank = node.only(0), node.rank(0) + 1
    axis = node.integers(1)[0] % rank
    if axis <= place.axis:
        return place.at(place.axis + 1, f"{node.called}: it puts an axis before the batch axis")
    return place


def _broadcast_to(node: Node) -> Place:
    place, sizes = node.only(0), node.integers(1)
    place = place.at(place.axis + len(sizes) - node.rank(0))
    old, new = node.extent(place)
    node.require(sizes[place.axis] == old, "it repeats the batch")
    if math.prod(sizes[: place.axis]) == 1 or len(sizes) == node.rank(0):
        node.rewrite(1, [*sizes[: place.axis], new, *sizes[place.axis + 1 :]])
        return place
    return node.refuse("it puts axes before the batch axis")


def _space_to_batch(node: Node) -> Place:
    place = node.lead(0)
    return Place(0, place.outer * math.prod(node.integers(1)), place.inner, place.cause)


def _batch_to_space(node: Node) -> Place:
    place, area = node.lead(0), math.prod(node.integers(1))
    node.require(area > 0 and place.outer % area == 0, "it turns the batch into space")
    return Place(0, place.outer // area, place.inner, place.cause)


# ------------------------------------------------------------------------------------------------------ slices


def _slice(node: Node) -> Place:
    place = node.only(0)
    axis, (old, new) = place.axis, node.extent(place)
    begin, size = node.integers(1), node.integers(2)
    node.require(begin[axis] == 0 and size[axis] in (-1, old), "it cuts the batch")
    node.rewrite(2, [*size[:axis], size[axis] if size[axis] == -1 else new, *size[axis + 1 :]])
    return place


def _strided_slice(node: Node) -> Place:
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


# ----------------------------------------------------------------------------------------- products and lookups


def _dense(node: Node) -> Place:
    place, x, depth = node.only(0), node.shape(0), node.shape(1)[1]
    if node.option("keep_num_dims", False):
        node.off_batch(-1, place, len(x), "multiplies along")
        return place
    found = node.reinterpreted(place, x, (math.prod(x) // depth, depth))
    node.require(found.axis == 0, "it multiplies along the batch axis")
    return found


def _matmul(node: Node) -> Place:
    rank = len(node.output)
    turned = [bool(node.option(name, False)) for name in ("adj_x", "adj_y")]
    places = [None if (p := node.place(i)) is None else p.at(p.axis + rank - node.rank(i)) for i in (0, 1)]
    if all(p is None or p.axis < rank - 2 for p in places):
        return _aligned(node, rank)
    x, y = places
    if y is None and x is not None and x.axis == rank - (1 if turned[0] else 2):
        return x.at(rank - 2)
    if x is None and y is not None and y.axis == rank - (2 if turned[1] else 1):
        return y.at(rank - 1, f"{node.called}: it puts the batch behind")
    return node.refuse("it multiplies along the batch axis")


def _transposed_convolution(node: Node) -> Place:
    place = node.lead(2)
    node.rewrite(0, [node.extent(place)[1], *node.integers(0)[1:]])
    return place


def _gather(node: Node) -> Place:
    axis = int(node.option("axis")) % node.rank(0)
    batch_dims = int(node.option("batch_dims"))
    if batch_dims:
        place = _all(node)
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


def _lookup(node: Node) -> Place:
    """Rows of a table that does not depend on the batch: EMBEDDING_LOOKUP (ids, table) and GATHER_ND (table, ids)."""
    if node.operator.name == "EMBEDDING_LOOKUP":
        return node.only(0)
    place = node.only(1)
    node.require(place.axis < node.rank(1) - 1, "its indices have no batch axis")
    return place


def _one_hot(node: Node) -> Place:
    place = node.only(0)
    axis = int(node.option("axis", -1)) % len(node.output)
    if axis <= place.axis:
        return place.at(place.axis + 1, f"{node.called}: it puts an axis before the batch axis")
    return place


def _lstm(node: Node) -> Place:
    """What it keeps from one inference to the next has a row for each sequence, which no other node reads."""
    place = node.only(0)
    sequences = 1 if node.rank(0) == 3 and node.option("time_major", False) else 0
    node.require(place.axis == sequences and place == Place(sequences), "its sequences are not the rows of the batch")
    for i in (18, 19):
        node.require(node.has(i) and node.tensor(i).is_variable, "it has no variables of its own for what it keeps")
        shape, index = node.shape(i), node.operator.inputs[i]
        node.require(
            shape[0] == node.owner.old and node.owner.users[index] == 1, "its variables have no row for each sequence"
        )
        node.owner.put(index, Place())
    return place


def _nowhere(node: Node) -> None:
    return None


_KINDS: tuple[tuple[Rule, str], ...] = (
    (_pointwise, """ABS CAST CEIL COS DEQUANTIZE ELU EXP FAKE_QUANT FLOOR GELU HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT
        LOGISTIC NEG QUANTIZE RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT SIGN SIN SQRT SQUARE TANH ZEROS_LIKE"""),
    (_images, """AVERAGE_POOL_2D CONV_2D CONV_3D DEPTHWISE_CONV_2D DEPTH_TO_SPACE L2_POOL_2D
        LOCAL_RESPONSE_NORMALIZATION MAX_POOL_2D RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR SPACE_TO_DEPTH"""),
    (_dense, "FULLY_CONNECTED"),
    (_last_axis, "L2_NORMALIZATION LOG_SOFTMAX SOFTMAX TOPK_V2"),
    (_broadcast, """ADD ATAN2 DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR
        MAXIMUM MINIMUM MUL NOT_EQUAL POW PRELU SELECT_V2 SQUARED_DIFFERENCE SUB"""),
    (_all, "ADD_N"),
    (_select, "SELECT"),
    (_concatenation, "CONCATENATION"),
    (_pack, "PACK"),
    (_reduction, "ARG_MAX ARG_MIN MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD SUM"),
    (_along("sums up"), "CUMSUM"),
    (_along("reverses"), "REVERSE_V2"),
    (_split, "SPLIT SPLIT_V"),
    (_unpack, "UNPACK"),
    (_pad, "MIRROR_PAD PAD PADV2"),
    (_transpose, "TRANSPOSE"),
    (_tile, "TILE"),
    (_reshape, "RESHAPE"),
    (_squeeze, "SQUEEZE"),
    (_expand_dims, "EXPAND_DIMS"),
    (_slice, "SLICE"),
    (_strided_slice, "STRIDED_SLICE"),
    (_broadcast_to, "BROADCAST_TO"),
    (_transposed_convolution, "CONV_3D_TRANSPOSE TRANSPOSE_CONV"),
    (_matmul, "BATCH_MATMUL"),
    (_gather, "GATHER"),
    (_lookup, "EMBEDDING_LOOKUP GATHER_ND"),
    (_one_hot, "ONE_HOT"),
    (_space_to_batch, "SPACE_TO_BATCH_ND"),
    (_batch_to_space, "BATCH_TO_SPACE_ND"),
    (_lstm, "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM"),
    (_nowhere, "RANK"),
)  # fmt: skip

_RULES = {name: rule for rule, names in _KINDS for name in names.split()}
_CUSTOM: dict[str, Rule] = {
    "Convolution2DTransposeBias": _images,
    "MaxPoolingWithArgmax2D": _images,
    "MaxUnpooling2D": _all,
    "Resampler": _all,
}
