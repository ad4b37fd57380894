"""Every rule of a batch, along every axis: rows agree with a batch of one, or the node is refused and says why.

A case builds the same network for any batch. For another batch it has to become what it is when built for that one,
and give, row by row, what the official runtime computes for a batch of one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType

import numpy as np
import pytest
from agreement import official, run
from batch_networks import Network, recurrent

from litegpu.errors import TensorError
from litegpu.model import ModelBuilder, TensorType, quantized, read_model, with_batch, write_model

F, I32 = TensorType.FLOAT32, TensorType.INT32
REST = (4, 6)  # the extents beside the batch
RANK = 3
OTHER_BATCHES = ((1, 3), (2, 3), (2, 1))

Made = list[tuple[int, tuple[int, ...]]]  # tensors and their shapes
Build = Callable[[Network, int, tuple[int, ...], int], Made]


@dataclass(frozen=True)
class Case:
    """`build(network, x, shape of x, batch)` adds the op to an x whose batch lies along `place`; `why`: it is refused
    with these words; `old`: the batches for which it means what it says."""

    name: str
    place: int
    build: Build
    why: str = ""
    old: tuple[int, ...] = (1, 2)

    def content(self, batch: int) -> bytes:
        b = Network()
        shape = (*REST[: self.place], batch, *REST[self.place :])
        x = b.op("NEG", [b.input("x", (batch, *REST))], (batch, *REST))
        if self.place:
            order = tuple([*range(1, self.place + 1), 0, *range(self.place + 1, RANK)])
            x = b.transpose(x, order, *shape)
        made = self.build(b, x, shape, batch)
        b.output(*(self._in_front(b, tensor, shape, i) for i, (tensor, shape) in enumerate(made)))
        return b.build()

    def _in_front(self, b: Network, tensor: int, shape: tuple[int, ...], output: int) -> int:
        """The batch of an output brought to its front, which is where it is another for another batch."""
        if self.why:
            return tensor
        one, other = (self._shape(batch, output) for batch in (7, 11))
        (axis,) = (i for i, (m, n) in enumerate(zip(one, other, strict=True)) if m != n)
        if not axis:
            return tensor
        order = (axis, *(i for i in range(len(shape)) if i != axis))
        kind = b._tensors[tensor].type
        return b.op("TRANSPOSE", [tensor, b.sizes(order)], tuple(shape[i] for i in order), type=kind)

    def _shape(self, batch: int, output: int) -> tuple[int, ...]:
        b = Network()
        shape = (*REST[: self.place], batch, *REST[self.place :])
        return self.build(b, b.input("x", shape), shape, batch)[output][1]


# ----------------------------------------------------------------------------------------------------- the cases


def _one(name: str, others: Callable[..., Sequence[int]], result: Callable[..., np.ndarray],
         options: dict | None = None, kind: TensorType = F) -> Build:  # fmt: skip
    """An op that reads x first; `others`, from (network, batch), are its further inputs, and `result` says which shape
    comes of an array like x."""

    def build(b: Network, x: int, shape: tuple[int, ...], batch: int) -> Made:
        made = tuple(result(np.zeros(shape, np.int8)).shape)
        return [(b.op(name, [x, *others(b, batch)], made, options or {}, type=kind), made)]

    return build


def _along_axes() -> Iterator[Case]:
    for place, axis in itertools.product(range(RANK), range(-RANK, RANK)):
        cut = axis % RANK == place

        def why(words: str, cut: bool = cut) -> str:
            return words if cut else ""

        def scalar(b: Network, n: int, axis: int = axis) -> list[int]:
            return [b.constant(np.int32(axis))]

        def vector(b: Network, n: int, axis: int = axis) -> list[int]:
            return [b.sizes([axis])]

        for name, keep in (("SUM", False), ("SUM", True), ("REDUCE_MAX", True), ("MEAN", False)):
            yield Case(f"{name} keep {keep} {axis}", place,
                       _one(name, vector, lambda v, a=axis, k=keep: v.sum(a, keepdims=k), {"keep_dims": keep}),
                       why("reduces the batch axis"))  # fmt: skip
        yield Case(f"ARG_MAX {axis}", place,
                   _one("ARG_MAX", scalar, lambda v, a=axis: v.argmax(a), {"output_type": "INT32"}, I32),
                   why("reduces the batch axis"))  # fmt: skip
        yield Case(f"CUMSUM {axis}", place, _one("CUMSUM", scalar, lambda v: v), why("sums up the batch axis"))
        yield Case(f"REVERSE_V2 {axis}", place, _one("REVERSE_V2", vector, lambda v: v), why("reverses the batch axis"))
        yield Case(f"CONCATENATION {axis}", place, _joined(axis), why("joins along the batch axis"))
        yield Case(f"UNPACK {axis}", place, _unpacked(axis), why("takes apart the batch axis"))
        for operator in ("SPLIT", "SPLIT_V"):
            yield Case(f"{operator} {axis}", place, _split(operator, axis), why("splits the batch axis"), (2,))
        for rank in range(3):
            indices = np.zeros((1, 2, 3)[:rank], np.int32)
            yield Case(f"GATHER {axis} by rank {rank}", place,
                       _one("GATHER", lambda b, n, i=indices: [b.constant(i)],
                            lambda v, a=axis, i=indices: v.take(i, a), {"axis": axis}),
                       why("picks rows of the batch"))  # fmt: skip
    for place, axis in itertools.product(range(RANK), range(-RANK - 1, RANK + 1)):
        yield Case(f"PACK {axis}", place, _packed(axis))
        yield Case(f"EXPAND_DIMS {axis}", place,
                   _one("EXPAND_DIMS", lambda b, n, a=axis: [b.constant(np.int32(a))],
                        lambda v, a=axis: np.expand_dims(v, a)))  # fmt: skip
        yield Case(f"ONE_HOT {axis}", place, _one_hot(axis))
    for place, axis, before in itertools.product(range(RANK), range(RANK), (False, True)):
        margins = np.zeros((RANK, 2), np.int32)
        margins[axis, int(not before)] = 1
        yield Case(f"PAD {axis} {'before' if before else 'behind'}", place,
                   _one("PAD", lambda b, n, m=margins: [b.constant(m)], lambda v, m=margins: np.pad(v, m)),
                   "pads the batch axis" if axis == place else "")  # fmt: skip
    for place, axis in itertools.product(range(RANK), range(RANK)):
        counts = np.where(np.arange(RANK) == axis, 2, 1)
        yield Case(f"TILE {axis}", place, _one("TILE", lambda b, n, c=counts: [b.sizes(c)],
                                               lambda v, c=counts: np.tile(v, c)),
                   "repeats the batch" if axis == place else "")  # fmt: skip
    for place, order in itertools.product(range(RANK), itertools.permutations(range(RANK))):
        build = _one("TRANSPOSE", lambda b, n, o=order: [b.sizes(o)], lambda v, o=order: v.transpose(o))
        yield Case(f"TRANSPOSE {order}", place, build)
    for place, name in itertools.product(range(RANK), ("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION")):
        options = {"beta": 1.0} if name == "SOFTMAX" else {}
        yield Case(name, place, _one(name, lambda b, n: [], lambda v: v, options),
                   "works along the batch axis" if place == RANK - 1 else "")  # fmt: skip


def _joined(axis: int) -> Build:
    def build(b: Network, x: int, shape: tuple[int, ...], batch: int) -> Made:
        made = tuple(np.concatenate([np.zeros(shape)] * 2, axis).shape)
        return [(b.op("CONCATENATION", [x, x], made, {"axis": axis}), made)]

    return build


def _packed(axis: int) -> Build:
    def build(b: Network, x: int, shape: tuple[int, ...], batch: int) -> Made:
        made = tuple(np.stack([np.zeros(shape)] * 2, axis).shape)
        return [(b.op("PACK", [x, x], made, {"axis": axis, "values_count": 2}), made)]

    return build


def _unpacked(axis: int) -> Build:
    def build(b: Network, x: int, shape: tuple[int, ...], batch: int) -> Made:
        made = tuple(np.delete(shape, axis).tolist())
        count = shape[axis]
        parts = b.op_multi("UNPACK", [x], [(made, F)] * count, {"axis": axis, "num": count})
        return [(part, made) for part in parts]

    return build


def _split(operator: str, axis: int) -> Build:
    def build(b: Network, x: int, shape: tuple[int, ...], batch: int) -> Made:
        half = shape[axis] // 2
        made = tuple(half if i == axis % RANK else n for i, n in enumerate(shape))
        where = b.constant(np.int32(axis))
        inputs = [where, x] if operator == "SPLIT" else [x, b.sizes([half, half]), where]
        return [(part, made) for part in b.op_multi(operator, inputs, [(made, F)] * 2, {"num_splits": 2})]

    return build


def _one_hot(axis: int) -> Build:
    def build(b: Network, x: int, shape: tuple[int, ...], batch: int) -> Made:
        made = tuple(np.expand_dims(np.zeros(shape), axis).shape)
        at = axis % (RANK + 1)
        made = (*made[:at], 5, *made[at + 1 :])
        operands = [_numbers(b, x, shape, 5), b.constant(np.int32(5)), b.weights_like(1), b.weights_like(0)]
        # The option counts from 0 on, -1 stands for the last axis.
        return [(b.op("ONE_HOT", operands, made, {"axis": -1 if axis == -1 else at}), made)]

    return build


def _numbers(b: Network, x: int, shape: tuple[int, ...], count: int) -> int:
    """Integers from 0 to count - 1 that depend on x, which lies between -1 and 0."""
    scaled = b.op("MUL", [x, b.weights_like(0.1 - count)], shape)
    return b.op("CAST", [scaled], shape, {"in_data_type": "FLOAT32", "out_data_type": "INT32"}, type=I32)


def _slices() -> Iterator[Case]:
    for place, axis, rest in itertools.product(range(RANK), range(RANK), (False, True)):
        for begin, less in ((0, 0), (0, 1), (1, 1)):  # at the axis; the others are whole

            def build(b: Network, x: int, shape: tuple[int, ...], n: int,
                      axis: int = axis, rest: bool = rest, begin: int = begin, less: int = less) -> Made:  # fmt: skip
                made = tuple(extent - less * (i == axis) for i, extent in enumerate(shape))
                sizes = [-1 if rest and not (less and not begin and i == axis) else e for i, e in enumerate(made)]
                begins = [begin * (i == axis) for i in range(RANK)]
                return [(b.op("SLICE", [x, b.sizes(begins), b.sizes(sizes)], made), made)]

            yield Case(f"SLICE {axis} from {begin}, {less} less, {'rest' if rest else 'size'}", place, build,
                       "it cuts the batch" if less and axis == place else "", (2,) if less else (1, 2))  # fmt: skip


#: An entry of an index: a slice, one element, a new axis or an ellipsis; "batch" stands for all of the batch.
Entry = slice | int | None | EllipsisType | str


def _strided(entries: Sequence[Entry], whole: tuple[int, int, bool, bool], *, pick: Entry = "batch") -> Build:
    """STRIDED_SLICE by an index of NumPy's. `whole`: what is added to begin and end of the batch, and their masks."""

    def build(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        begin: list[int] = []
        end: list[int] = []
        strides: list[int] = []
        masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0)
        index: list = []
        for e, given in enumerate(entries):
            entry = pick if given == "batch" else given
            values = (0, 0, 1)
            if entry == "batch":
                values = (whole[0], n + whole[1], 1)
                masks["begin_mask"] |= whole[2] << e
                masks["end_mask"] |= whole[3] << e
                entry = slice(None)
            elif isinstance(entry, slice):
                values = (entry.start, entry.stop if entry.stop is not None else n - 1, entry.step or 1)
                entry = slice(values[0], values[1], values[2])
            elif isinstance(entry, int):
                masks["shrink_axis_mask"] |= 1 << e
                values = (entry, entry + 1, 1)
            else:
                masks["new_axis_mask" if entry is None else "ellipsis_mask"] |= 1 << e
            for found, value in zip((begin, end, strides), values, strict=True):
                found.append(value)
            index.append(entry)
        made = tuple(np.zeros(shape)[tuple(index)].shape)
        return [(b.op("STRIDED_SLICE", [x, *(b.sizes(v) for v in (begin, end, strides))], made, masks), made)]

    return build


def _strided_slices() -> Iterator[Case]:
    part, stepped = slice(1, 3), slice(0, 4, 2)
    indices: list[list[Entry]] = [[None, "batch"], [..., None], [], [None, None, ..., part]]
    around: tuple[Entry, ...] = (part, stepped, 1)
    before: tuple[Entry, ...] = (part, 1, None)
    for p in range(RANK):
        for others in itertools.product(around, repeat=RANK - 1):
            indices.append([*others[:p], "batch", *others[p:]])
        for others in itertools.product(before, repeat=p):
            indices.append([*others, "batch"])
    indices += [[..., "batch"], [..., "batch", 1], [..., "batch", part, None], [1, ..., "batch"], [None, ..., "batch"],
                [1, ...], [part, ..., 2], ["batch", ..., 1], ["batch", None, ..., part]]  # fmt: skip
    ways = [(0, 0, False, False), (0, 9, False, False), (1, -1, True, True), (0, -1, False, True), (1, 0, True, False)]
    wrong: list[tuple[str, Entry, str]] = [
        ("less", slice(0, None), "cuts the batch"),
        ("second", slice(1, 2), "cuts the batch"),
        ("every second", slice(0, 2, 2), "cuts the batch"),
        ("one", 0, "takes one row of the batch"),
    ]
    for number, index in enumerate(indices):
        for place in range(RANK):
            if not _reaches(index, place):
                continue
            way = ways[(number + place) % len(ways)]
            yield Case(f"STRIDED_SLICE {_shown(index)} {way}", place, _strided(index, way))
            if "batch" in index and number % 3 == 0:
                for name, entry, why in wrong:
                    yield Case(f"STRIDED_SLICE {_shown(index)} {name}", place,
                               _strided(index, way, pick=entry), why, (2,))  # fmt: skip
    for way in ways:
        yield Case(f"STRIDED_SLICE all {way}", 0, _strided(["batch"], way))


def _reaches(index: Sequence[Entry], place: int) -> bool:
    """Whether "batch" stands for the axis `place`, or, without it, the axis stays whole."""
    kinds: list[object] = [e for e in index if e is not None]
    if ... in kinds:
        at = kinds.index(...)
        kinds[at : at + 1] = ["whole"] * (RANK - len(kinds) + 1)
    kinds += ["whole"] * (RANK - len(kinds))
    return len(kinds) == RANK and kinds[place] == ("batch" if "batch" in index else "whole")


def _shown(index: Sequence[Entry]) -> str:
    return ",".join("..." if e is ... else str(e) for e in index)


def _squeezes() -> Iterator[Case]:
    for place, axis, form in itertools.product(range(RANK), range(RANK + 1), ("from 0", "from the end", "none named")):

        def build(b: Network, x: int, shape: tuple[int, ...], n: int, axis: int = axis, form: str = form) -> Made:
            made = tuple(np.expand_dims(np.zeros(shape), axis).shape)
            x = b.op("EXPAND_DIMS", [x, b.constant(np.int32(axis))], made)
            dims = {"from 0": [axis], "from the end": [axis - RANK - 1], "none named": []}[form]
            dims = [axis] if n == 1 else dims  # none named would mean the batch of one as well
            return [(b.op("SQUEEZE", [x], shape, {"squeeze_dims": dims}), shape)]

        yield Case(f"SQUEEZE {axis} {form}", place, build, "", (2,) if form == "none named" else (1, 2))

    def removed(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        return [(b.op("SQUEEZE", [x], tuple(e for e in shape if e > 1)), shape)]

    for place in range(RANK):
        yield Case("SQUEEZE of the batch", place, removed, "it removes the batch axis", (1,))


def _products() -> Iterator[Case]:
    """x on either side of a constant, its batch along each axis."""
    for place, side, turned in itertools.product(range(RANK), (0, 1), (False, True)):

        def build(b: Network, x: int, shape: tuple[int, ...], n: int, side: int = side, turned: bool = turned) -> Made:
            rows, columns = (shape[2], shape[1]) if turned else shape[1:]
            lead = shape[0] if shape[0] != n else 1
            if side == 0:
                constant, made = b.weights(lead, columns, 5), (shape[0], rows, 5)
            else:
                constant, made = b.weights(lead, 5, rows), (shape[0], 5, columns)
            operands = [x, constant] if side == 0 else [constant, x]
            return [(b.op("BATCH_MATMUL", operands, made, {"adj_y" if side else "adj_x": turned}), made)]

        summed = (1 if turned else 2) if side == 0 else (2 if turned else 1)
        yield Case(f"BATCH_MATMUL side {side} turned {turned}", place, build,
                   "multiplies along the batch axis" if place == summed else "")  # fmt: skip
    for place in range(RANK):

        def kept(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
            made = (*shape[:-1], 5)
            operands = [x, b.weights(5, shape[-1]), b.weights(5)]
            return [(b.op("FULLY_CONNECTED", operands, made, {"keep_num_dims": True}), made)]

        def flat(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
            made = (*shape[:-1], 5)
            operands = [x, b.weights(5, shape[-1]), b.weights(5)]
            y = b.op("FULLY_CONNECTED", operands, (math.prod(shape[:-1]), 5))
            return [(b.reshape(y, *made), made)]

        last = place == RANK - 1
        yield Case("FULLY_CONNECTED", place, kept, "multiplies along the batch axis" if last else "")
        yield Case("FULLY_CONNECTED of a matrix", place, flat, "multiplies along the batch axis" if last else "", (2,))

    def transposed_convolution(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        made = (n, 8, 12, 2)
        x = b.reshape(x, n, *REST, 1)
        operands = [b.sizes(made), b.weights(2, 2, 2, 1), x]
        return [(b.op("TRANSPOSE_CONV", operands, made, {"stride_h": 2, "stride_w": 2, "padding": "SAME"}), made)]

    yield Case("TRANSPOSE_CONV", 0, transposed_convolution)


def _lookups() -> Iterator[Case]:
    for place, axis in itertools.product(range(RANK), range(-3, 3)):

        def gathered(b: Network, x: int, shape: tuple[int, ...], n: int, axis: int = axis) -> Made:
            table = b.weights(5, 7, 8)
            made = tuple(np.zeros((5, 7, 8), np.int8).take(np.zeros(shape, np.int8), axis).shape)
            return [(b.op("GATHER", [table, _numbers(b, x, shape, 5)], made, {"axis": axis}, type=F), made)]

        yield Case(f"GATHER by x along {axis}", place, gathered)

    def each(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        best = b.op("ARG_MAX", [x, b.constant(np.int32(1))], (n, 6), {"output_type": "INT32"}, type=I32)
        return [(b.op("GATHER", [x, best], (n, 6, 6), {"axis": 1, "batch_dims": 1}), (n, 6, 6))]

    def found(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        indices = _numbers(b, b.reshape(x, n, 24, 1), (n, 24, 1), 5)
        return [(b.op("GATHER_ND", [b.weights(5, 3), indices], (n, 24, 3), type=F), (n, 24, 3))]

    def across(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        indices = b.constant(np.zeros((4, n), np.int32))
        return [(b.op("GATHER", [x, indices], (4, n, 6), {"axis": 1, "batch_dims": 1}), (4, n, 6))]

    yield Case("GATHER across the batch", 1, across, "the batch is none of its batch_dims", (2,))
    yield Case("GATHER of each its own", 0, each)
    yield Case("GATHER_ND", 0, found)


def _broadcasts() -> Iterator[Case]:
    for place, axis in itertools.product(range(RANK), range(RANK + 1)):

        def wide(b: Network, x: int, shape: tuple[int, ...], n: int, axis: int = axis) -> Made:
            one = tuple(np.expand_dims(np.zeros(shape), axis).shape)
            made = (*one[:axis], 3, *one[axis + 1 :])
            x = b.op("EXPAND_DIMS", [x, b.constant(np.int32(axis))], one)
            return [(b.op("BROADCAST_TO", [x, b.sizes(made)], made), made)]

        yield Case(f"BROADCAST_TO {axis}", place, wide)

    def deeper(b: Network, x: int, shape: tuple[int, ...], n: int) -> Made:
        return [(b.op("BROADCAST_TO", [x, b.sizes((1, 1, *shape))], (1, 1, *shape)), (1, 1, *shape))]

    yield Case("BROADCAST_TO of a higher rank", 0, deeper)
    for place, alike in itertools.product(range(RANK), (True, False)):
        for operator in ("ADD", "CONCATENATION"):

            def rows(b: Network, x: int, shape: tuple[int, ...], n: int,
                     place: int = place, alike: bool = alike, operator: str = operator) -> Made:  # fmt: skip
                first = b.random.normal(size=(*shape[:place], 1, *shape[place + 1 :])).astype(np.float32)
                values = first.repeat(n, place)
                if not alike:
                    values = values + np.arange(n, dtype=np.float32).reshape(-1, *[1] * (RANK - 1 - place))
                axis = (place + 1) % RANK
                made = shape
                if operator == "CONCATENATION":
                    made = tuple(e * (1 + (i == axis)) for i, e in enumerate(shape))
                options = {"axis": axis} if operator == "CONCATENATION" else {}
                return [(b.op(operator, [x, b.constant(values)], made, options), made)]

            yield Case(f"{operator} with rows that are {'alike' if alike else 'different'}", place, rows,
                       "" if alike else "has rows of its own",
                       (1, 2) if operator == "CONCATENATION" and alike else (2,))  # one row broadcasts  # fmt: skip
    for place, shape in itertools.product(range(RANK), ((1,), (6,), (4, 1), (1, 1, 6))):

        def smaller(b: Network, x: int, given: tuple[int, ...], n: int, shape: tuple[int, ...] = shape) -> Made:
            return [(b.op("MUL", [b.weights(*shape), x], given), given)]

        if all(extent in (1, axis) for extent, axis in
               zip(shape, (*REST[:place], 1, *REST[place:])[RANK - len(shape) :], strict=True)):  # fmt: skip
            yield Case(f"MUL by {shape}", place, smaller)


def _selections() -> Iterator[Case]:
    """By a condition in the file that is alike for all rows, or is not; in front it may be one for whole rows."""
    for place, alike, whole in itertools.product(range(RANK), (True, False), (False, True)):
        if whole and place:
            continue

        def chosen(b: Network, x: int, shape: tuple[int, ...], n: int,
                   place: int = place, alike: bool = alike, whole: bool = whole) -> Made:  # fmt: skip
            rest = () if whole else shape[place + 1 :]
            first = b.random.integers(0, 2, (*shape[:place], 1, *rest)).astype(bool)
            condition = first.repeat(n, place)
            if not alike:
                condition = condition ^ (np.arange(n).reshape(-1, *[1] * len(rest)) % 2 == 1)
            return [(b.op("SELECT", [b.constant(condition), x, b.op("SIN", [x], shape)], shape), shape)]

        name = f"SELECT by {'whole rows' if whole else 'rows'} that are {'alike' if alike else 'different'}"
        yield Case(name, place, chosen, "" if alike else "has rows of its own", (1, 2) if alike else (2,))


CASES = [
    replace(case, name=f"{case.name}, batch at {case.place}")
    for source in (_along_axes, _slices, _strided_slices, _squeezes, _products, _lookups, _broadcasts, _selections)
    for case in source()
]


# ----------------------------------------------------------------------------------------------------- the tests


def _agrees(case: Case, old: int, new: int) -> None:
    """What is built for `old` and becomes `new` is what is built for `new`, and keeps rows apart."""
    model = with_batch(case.content(old), new)
    got, wanted = model.main, read_model(case.content(new)).main
    for mine, theirs in zip(got.operators, wanted.operators, strict=True):
        for m, t in zip((*mine.inputs, *mine.outputs), (*theirs.inputs, *theirs.outputs), strict=True):
            tensor, other = got.tensors[m], wanted.tensors[t]
            where = f"{case.name}: {mine.name}, tensor {m} '{tensor.name}'"
            assert tensor.shape == other.shape, where
            if tensor.data is not None and mine.name != "STRIDED_SLICE":  # where an end may lie beyond the batch
                np.testing.assert_array_equal(tensor.data, other.data, where)
    values = np.random.default_rng(3).uniform(0, 1, (new, *REST)).astype(np.float32)
    single = official(case.content(1))
    rows = [run(single, [values[i : i + 1]]) for i in range(new)]
    for n, whole in enumerate(run(official(write_model(model)), [values])):
        joined = np.concatenate([row[n] for row in rows])
        assert whole.shape == joined.shape, case.name
        np.testing.assert_allclose(whole, joined, rtol=1e-5, atol=1e-6, err_msg=case.name)


OPERATORS = sorted({case.name.replace(",", " ").split()[0] for case in CASES})


@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_stay_apart_or_the_node_says_why_not(operator: str) -> None:
    known = [case for case in CASES if case.name.replace(",", " ").split()[0] == operator]
    assert any(not case.why for case in known)
    for case in known:
        for old, new in OTHER_BATCHES:
            if old not in case.old:
                continue
            if not case.why:
                _agrees(case, old, new)
                continue
            with pytest.raises(TensorError) as caught:
                with_batch(case.content(old), new)
            assert case.why in str(caught.value) and f"{operator} (node" in str(caught.value), case.name


# ---------------------------------------------------------------------------------------------------- reshapes


def _targets(size: int, rank: int) -> Iterator[tuple[int, ...]]:
    """All shapes of a size and a rank."""
    if rank == 1:
        yield (size,)
        return
    for first in range(1, size + 1):
        if size % first == 0:
            for rest in _targets(size // first, rank - 1):
                yield (first, *rest)


def _holder(place: int, batch: int, target: tuple[int, ...]) -> set[tuple[int, int, int]]:
    """Every (axis, outer, inner) for which an element of `target` is of the row that its index along the axis says,
    found by numbering the rows."""
    shape = (*REST[:place], batch, *REST[place:])
    numbers = np.broadcast_to(np.arange(batch).reshape([-1 if i == place else 1 for i in range(RANK)]), shape).reshape(
        target
    )
    found = set()
    for axis, size in enumerate(target):
        along = np.moveaxis(numbers, axis, 0).reshape(size, -1)
        if (along != along[:, :1]).any() or size % batch:
            continue
        for inner in range(1, size // batch + 1):
            pattern = np.tile(np.repeat(np.arange(batch), inner), size // batch // inner)
            if size % (batch * inner) == 0 and (pattern == along[:, 0]).all():
                found.add((axis, size // batch // inner, inner))
    return found


@pytest.mark.parametrize("place", range(RANK))
def test_reshapes_to_every_shape(place: int) -> None:
    """There and back again: kept where one axis of the new shape tells the rows apart, else refused."""
    old, kept, refused = 2, 0, 0
    for rank in (1, 2, 3, 4):
        for number, target in enumerate(_targets(old * math.prod(REST), rank)):
            holders = _holder(place, old, target)

            def build(b: Network, x: int, shape: tuple[int, ...], n: int,
                      target: tuple[int, ...] = target, holders: set = holders) -> Made:  # fmt: skip
                new = list(target)
                if holders:
                    axis, outer, inner = min(holders)
                    new[axis] = outer * n * inner
                elif n != old:
                    new[0] = new[0] * n  # never run
                y = b.op("EXP", [b.reshape(x, *new)], new)
                return [(b.reshape(y, *shape), shape)]

            case = Case(f"RESHAPE {place} to {target}", place, build, "" if holders else "mixes the batch")
            if holders:
                if rank < 4 or number % 7 == 0:
                    _agrees(case, old, 3)
                kept += 1
                continue
            refused += 1
            with pytest.raises(TensorError, match="mixes the batch"):
                with_batch(case.content(old), 3)
    assert kept > 20 and refused > 20


# --------------------------------------------------------------------------------------------------- constants


@pytest.mark.parametrize("scales", [0.5, (0.5, 0.5), (0.5, 0.25)])
def test_a_constant_with_a_scale_for_each_row_is_not_repeated(scales: float | tuple[float, ...]) -> None:
    """There would be no scales for the rows to come."""
    b = ModelBuilder()
    q = quantized(0.5)
    x = b.input("x", (2, 4), TensorType.INT8, quantization=q)
    rows = b.constant(np.ones((2, 4), np.int8), quantization=quantized(scales, 0, 0))
    b.output(b.op("ADD", [x, rows], (2, 4), quantization=q))
    if isinstance(scales, float):
        assert with_batch(b.build(), 3).main.tensors[rows].shape == (3, 4)
        return
    with pytest.raises(TensorError, match="has rows of its own"):
        with_batch(b.build(), 3)


@pytest.mark.parametrize("time_major", [False, True])
def test_state_that_another_node_reads_is_refused(time_major: bool) -> None:
    with_batch(recurrent(1, time_major=time_major), 3)
    with pytest.raises(TensorError, match="its variables have no row for each sequence"):
        with_batch(recurrent(1, time_major=time_major, state=True), 3)
