"""What a file may say at most: each limit of the verifier is met, and passed by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from mutation.seeds import seed_model

from litegpu.errors import ModelError
from litegpu.model import ModelBuilder, TensorType, flexbuffer, quantized, read_model, verify_model, write_model
from litegpu.model.encodings import check_sparsity
from litegpu.model.ops import BUILTIN, CUSTOM
from litegpu.model.ops.checks import flexbuffer_options
from litegpu.model.types import Model, Operator, Quantization, Sparsity, Tensor

T = TensorType
NONE = np.zeros(0, np.float32)


def small(type_: TensorType = T.FLOAT32, shape: tuple[int, ...] = (2, 3)) -> Model:
    """NEG of an input."""
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", shape, type_)], shape, type=type_))
    return b.model()


def changed(model: Model, *, tensor: dict[str, Any] | None = None, operator: dict[str, Any] | None = None,
            **graph: Any) -> Model:  # fmt: skip
    """With other values in the first tensor, the first operator, or the graph."""
    main = model.main
    tensors = (dataclasses.replace(main.tensors[0], **(tensor or {})), *main.tensors[1:])
    operators = (dataclasses.replace(main.operators[0], **(operator or {})), *main.operators[1:])
    main = dataclasses.replace(main, tensors=tensors, operators=operators)
    return dataclasses.replace(model, subgraphs=(dataclasses.replace(main, **graph), *model.subgraphs[1:]))


def blocks(scales: int, zero_points: int = -1, size: int = 4) -> Quantization:
    return Quantization(NONE, NONE.astype(np.int64), block_size=size, scales_tensor=scales,
                        zero_points_tensor=zero_points)  # fmt: skip


def shape(*extents: int) -> dict[str, Any]:
    return dict(tensor=dict(shape=extents, shape_signature=extents))


def scaled(*arguments: Any) -> dict[str, Any]:
    return dict(tensor=dict(quantization=quantized(*arguments)))


LONG = Quantization(np.array([1, 1], np.float32), np.zeros(1, np.int64))
PASSES: dict[str, dict[str, Any]] = {
    "rank 8": shape(*[1] * 8),
    "an empty tensor": shape(0, 2**28),
    "an open extent": dict(tensor=dict(shape_signature=(-1, 3))),
    "scales of blocks in the last tensor": dict(tensor=dict(quantization=blocks(1, 1))),
    "scales of blocks without zero points": dict(tensor=dict(quantization=blocks(0))),
    "scales along the last dimension": scaled([1, 2, 3], 0, 1),
    "the last tensor as an output": dict(outputs=(1,)),
    "an intermediate": dict(operator=dict(intermediates=(1, -1))),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rank 9": (shape(*[1] * 9), "has rank 9"),
    "an empty tensor": (shape(0, 2**28 + 1), "more than .* elements"),
    "elements": (shape(2**16, 2**15), "more than .* elements"),
    "an open extent": (dict(tensor=dict(shape_signature=(-2, 3))), r"shape signature \[-2, 3\]"),
    "a signature of another rank": (dict(tensor=dict(shape_signature=(2,))), r"shape signature \[2\]"),
    "scales of blocks": (dict(tensor=dict(quantization=blocks(2))), "has its scales in tensor 2 of 2"),
    "zero points of blocks": (dict(tensor=dict(quantization=blocks(1, 2))), "has its scales in tensor 2 of 2"),
    "blocks without scales": (dict(tensor=dict(quantization=blocks(-1, 1))), "in blocks without scales"),
    "blocks of negative size": (dict(tensor=dict(quantization=blocks(1, 1, -1))), "in blocks without scales"),
    "a zero point too few": (dict(tensor=dict(quantization=LONG)), "2 scales, but 1 zero points"),
    "a zero point too many": (dict(tensor=dict(quantization=dataclasses.replace(
        LONG, zero_points=np.zeros(3, np.int64)))), "2 scales, but 3 zero points"),
    "scales along a dimension": (scaled([1, 2], 0, 2), "along dimension 2"),
    "scales along dimension -1": (scaled([1, 2, 3], 0, -1), "along dimension -1"),
    "a scale too few": (scaled([1, 2], 0, 1), "2 scales along dimension 1"),
    "an input": (dict(inputs=(2,)), "input tensor 2 does not exist, there are 2"),
    "an output": (dict(outputs=(2,)), "output tensor 2 does not exist, there are 2"),
    "a negative output": (dict(outputs=(-1,)), "output tensor -1 does not exist"),
    "an operand": (dict(operator=dict(inputs=(2,))), "uses tensor 2, but there are 2"),
    "a result": (dict(operator=dict(outputs=(2,))), "uses tensor 2, but there are 2"),
    "an intermediate": (dict(operator=dict(intermediates=(2,))), "uses tensor 2, but there are 2"),
    "a negative operand": (dict(operator=dict(inputs=(-2,))), "uses tensor -2"),
    "a call": (dict(operator=dict(subgraphs=(1,))), "calls subgraph 1, but there are 1"),
    "a negative call": (dict(operator=dict(subgraphs=(-1,))), "calls subgraph -1"),
    "an operand too many": (dict(operator=dict(inputs=(0, 0))), "it has 2 inputs, but takes 1"),
    "a result too many": (dict(operator=dict(outputs=(1, 1))), "already written|it has 2 outputs"),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
def test_what_passes(name: str) -> None:
    verify_model(changed(small(), **PASSES[name]))


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not(name: str) -> None:
    values, words = REFUSED[name]
    with pytest.raises(ModelError, match=words):
        verify_model(changed(small(), **values))


RANGES = {T.INT8: (-128, 127), T.UINT8: (0, 255), T.INT16: (-(2**15), 2**15 - 1), T.UINT16: (0, 2**16 - 1),
          T.INT32: (-(2**31), 2**31 - 1), T.INT4: (-8, 7), T.UINT4: (0, 15), T.INT2: (-2, 1)}  # fmt: skip


@pytest.mark.parametrize("type_", RANGES)
def test_zero_points_and_scales_of_integers(type_: TensorType) -> None:
    low, high = RANGES[type_]
    model = small()

    def verify(scale: float, zero_point: int) -> None:
        verify_model(changed(model, tensor=dict(type=type_, quantization=quantized(scale, zero_point)),
                             operators=(), outputs=model.main.inputs))  # fmt: skip

    for value in (low, 0, high):
        verify(0.5, value)
    for value in (low - 1, high + 1):
        with pytest.raises(ModelError, match="zero point beyond its type"):
            verify(0.5, value)
    for scale in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ModelError, match="not a positive number"):
            verify(scale, 0)


def calling(*calls: tuple[int, ...]) -> Model:
    """A model whose subgraphs call those that are named: the calls of the main one come first."""
    model = small()
    (negate,) = model.main.operators

    def graph(index: int, called: tuple[int, ...]) -> Any:
        return dataclasses.replace(model.main, index=index, operators=(dataclasses.replace(negate, subgraphs=called),))

    return dataclasses.replace(model, subgraphs=tuple(graph(i, called) for i, called in enumerate(calls)))


@pytest.mark.parametrize("calls", [((),), ((1, 2), (2,), ()), ((2,), (), (1,)), ((1, 1), ()), ((), (2,), ())])
def test_calls_that_end(calls: tuple[tuple[int, ...], ...]) -> None:
    verify_model(calling(*calls))


@pytest.mark.parametrize(
    "calls, stuck", [(((0,),), [0]), (((1,), (0,)), [0, 1]), (((1,), (2,), (1,)), [0, 1, 2]),
                     (((), (2,), (1,)), [1, 2]), (((1,), (2,), (3,), (1,)), [0, 1, 2, 3])]
)  # fmt: skip
def test_calls_that_never_end(calls: tuple[tuple[int, ...], ...], stuck: list[int]) -> None:
    with pytest.raises(ModelError, match=rf"subgraphs \[{', '.join(map(str, stuck))}\] call each other"):
        verify_model(calling(*calls))


def variable(b: Any, value: int | None, name: str = "v") -> None:
    """Reads the variable, or assigns to it."""
    handle = b.op("VAR_HANDLE", [], (), {"shared_name": name, "container": ""}, type=T.RESOURCE)
    if value is None:
        b.output(b.op("READ_VARIABLE", [handle], (2,), type=T.FLOAT32))
    else:
        b.op_multi("ASSIGN_VARIABLE", [handle, value], [])


@pytest.mark.parametrize("assigned", ["before", "behind", "in another", "never", "another", "read in another"])
def test_variables_are_assigned_before_they_are_read(assigned: str) -> None:
    b = ModelBuilder()
    x = b.input("x", (2,))
    if assigned in ("before", "another"):
        variable(b, x, "v" if assigned == "before" else "w")
    variable(b, None)
    if assigned == "behind":
        variable(b, x)
    other = b.subgraph("other")
    y = other.input("y", (2,))
    variable(other, {"in another": y}.get(assigned), "v" if assigned in ("in another", "read in another") else "w")
    if assigned not in ("in another", "read in another"):
        variable(other, y, "w")
    model = read_model(b.build(), verify=False)
    if assigned not in ("in another", "read in another"):  # leaves no reader of another variable behind
        main, rest = model.subgraphs
        model = dataclasses.replace(model, subgraphs=(main, dataclasses.replace(
            rest, operators=(), outputs=rest.inputs)))  # fmt: skip
    if assigned in ("before", "in another"):
        verify_model(model)
        return
    with pytest.raises(ModelError, match="reads the variable 'v', to which nothing has assigned"):
        verify_model(model)


@pytest.mark.parametrize("side", ["source", "result"])
def test_a_tensor_far_larger_than_what_it_comes_of_and_goes_into(side: str) -> None:
    """Either side may be as large as it is."""
    b = ModelBuilder()
    huge = (1, 2**23, 24)
    x = b.input("x", huge if side == "source" else (2,))
    y = b.op("ABS", [x], huge)
    b.output(b.op("NEG", [y], huge if side == "result" else (2,)))
    verify_model(b.model())
    small_sides = ModelBuilder()
    y = small_sides.op("ABS", [small_sides.input("x", (2,))], huge)
    small_sides.output(small_sides.op("NEG", [y], (2,)))
    with pytest.raises(ModelError, match="201326592 elements, but what it is computed from and goes into has 2"):
        verify_model(small_sides.model())


# ---------------------------------------------------------------------------------------- strings and sparsity


def words(*values: int, rest: bytes = b"") -> bytes:
    return np.array(values, "<i4").tobytes() + rest


@pytest.mark.parametrize(
    "content, fits",
    [
        (words(2, 16, 18, 19, rest=b"abc"), True),
        (words(2, 16, 16, 16), True),
        (words(2, 16, 18, 20, rest=b"abc"), False),  # ends behind the bytes
        (words(2, 12, 18, 19, rest=b"abc"), False),  # begins in the table
        (words(2, 18, 16, 19, rest=b"abc"), False),  # goes backwards
        (words(3, 16, 18, 19, rest=b"abc"), False),  # says another count
        (words(1, 16, 18, 19, rest=b"abc"), False),
        (words(2, 16, 18), False),  # a table that is cut off
    ],
)
def test_strings(content: bytes, fits: bool) -> None:
    b = ModelBuilder()
    strings = b.constant([b"ab", b"c"], type=T.STRING)
    b.output(b.op("GATHER", [strings, b.constant([1])], (1,)))
    model = b.model()
    data = np.frombuffer(content, np.uint8)
    tensors = tuple(dataclasses.replace(t, data=data) if t.index == strings else t for t in model.main.tensors)
    model = dataclasses.replace(model, subgraphs=(dataclasses.replace(model.main, tensors=tensors),))
    if fits:
        verify_model(model)
        return
    with pytest.raises(ModelError, match="strings has bytes that hold others"):
        verify_model(model)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def csr(segments: tuple[int, ...], indices: tuple[int, ...]) -> Sparsity:
    return Sparsity((0, 1), (), (("dense", 2), ("csr", i32(*segments), i32(*indices))))


@pytest.mark.parametrize(
    "sparsity, problem",
    [
        (csr((0, 2, 3), (0, 3, 3)), ""),
        (csr((0, 0, 0), ()), ""),
        (csr((0, 2, 3), (0, 4, 3)), "indices beyond its shape"),
        (csr((0, 2, 3), (0, -1, 3)), "indices beyond its shape"),
        (csr((1, 2, 3), (0, 3, 3)), "indices beyond its shape"),
        (csr((0, 2, 2), (0, 3, 3)), "indices beyond its shape"),
        (csr((0, 4, 3), (0, 3, 3)), "indices beyond its shape"),
        (csr((0, 3), (0, 3, 3)), "indices beyond its shape"),
        (Sparsity((0, 1), (), (("dense", 3), ("dense", 4))), "levels of 3 where its shape has 2"),
        (Sparsity((0, 0), (), (("dense", 2), ("dense", 4))), "dimensions do not fit"),
        (Sparsity((0, 1, 2), (2,), (("dense", 2), ("dense", 2), ("dense", 2))), "dimensions do not fit"),
        (Sparsity((0, 1, 2), (1,), (("dense", 2), ("dense", 2), ("dense", 2))), ""),
        (Sparsity((0, 1, 2), (1,), (("dense", 2), ("dense", 1), ("dense", 3))), "no whole number of sparse blocks"),
        (Sparsity((0, 1, 2), (1,), (("dense", 2), ("dense", 2), ("dense", 0))), "blocks have no size"),
    ],
)
def test_sparse_encodings(sparsity: Sparsity, problem: str) -> None:
    constant = Tensor(0, "w", T.FLOAT32, (2, 4), (2, 4), 1, np.zeros(4, np.uint8), sparsity=sparsity)
    if not problem:
        check_sparsity(constant)
        return
    with pytest.raises(ModelError, match=problem):
        check_sparsity(constant)


# ------------------------------------------------------------------------------------- operators and their operands


def built(name: str, operands: list[Any], outputs: list[tuple[tuple[int, ...], TensorType]],
          options: dict[str, Any] | None = None) -> Model:  # fmt: skip
    """Operands: None, a shape of an input, or a constant."""
    b = ModelBuilder()
    given = [None if o is None else b.input(f"x{n}", o) if isinstance(o, tuple) else b.constant(o)
             for n, o in enumerate(operands)]  # fmt: skip
    b.output(*b.op_multi(name, given, outputs, options or {}))
    return b.model()


def detections(boxes: tuple[int, ...]) -> Model:
    """TFLite_Detection_PostProcess with boxes of that shape."""
    model = read_model(seed_model("further TFLite_Detection_PostProcess"))
    (first,) = model.main.operators
    tensors = list(model.main.tensors)
    at = first.inputs[0]
    tensors[at] = dataclasses.replace(tensors[at], shape=boxes, shape_signature=boxes)
    main = dataclasses.replace(model.main, tensors=tuple(tensors))
    return dataclasses.replace(model, subgraphs=(main, *model.subgraphs[1:]))


F, I = T.FLOAT32, T.INT32  # noqa: E741
NEAR: dict[str, tuple[Model, Model, str]] = {  # what passes, what does not, and why
    "REVERSE_V2": (
        built("REVERSE_V2", [(2, 3), i32(1)], [((2, 3), F)]),
        built("REVERSE_V2", [(2, 3), i32(2)], [((2, 3), F)]),
        "exceed rank 2",
    ),
    "REVERSE_V2 from the end": (
        built("REVERSE_V2", [(2, 3), i32(-2)], [((2, 3), F)]),
        built("REVERSE_V2", [(2, 3), i32(-3)], [((2, 3), F)]),
        "exceed rank 2",
    ),
    "SPLIT": (
        built("SPLIT", [np.int32(0), (2, 3)], [((1, 3), F)] * 2, {"num_splits": 2}),
        built("SPLIT", [np.int32(0), (2, 3)], [((1, 3), F)] * 2, {"num_splits": 1}),
        "num_splits is 1, but it has 2 outputs",
    ),
    "UNPACK": (
        built("UNPACK", [(2, 3)], [((3,), F)] * 2, {"num": 2}),
        built("UNPACK", [(2, 3)], [((3,), F)] * 2, {"num": 3}),
        "num is 3, but it has 2 outputs",
    ),
    "LOCAL_RESPONSE_NORMALIZATION": (
        built("LOCAL_RESPONSE_NORMALIZATION", [(1, 2, 2, 3)], [((1, 2, 2, 3), F)], {"radius": 0}),
        built("LOCAL_RESPONSE_NORMALIZATION", [(1, 2, 2, 3)], [((1, 2, 2, 3), F)], {"radius": -1}),
        "radius is -1",
    ),
    "DILATE": (
        built("DILATE", [(2, 3), i32(1, 2), np.float32(0)], [((2, 5), F)]),
        built("DILATE", [(2, 3), i32(1, 0), np.float32(0)], [((2, 1), F)]),
        "are not positive",
    ),
    "BROADCAST_ARGS": (
        built("BROADCAST_ARGS", [i32(2, 3), i32(3)], [((2,), I)]),
        built("BROADCAST_ARGS", [i32(2, 3), i32(2)], [((2,), I)]),
        "do not broadcast",
    ),
    "STRIDED_SLICE by offset": (
        built("STRIDED_SLICE", [(2, 5), i32(0, 3), i32(2, 2), i32(1, 1)], [((2, 2), F)], {"offset": True}),
        built("STRIDED_SLICE", [(2, 5), i32(0, 3), i32(2, 3), i32(1, 1)], [((2, 2), F)], {"offset": True}),
        "from shape",
    ),
    "STRIDED_SLICE by offset from the end": (
        built("STRIDED_SLICE", [(2, 5), i32(0, -2), i32(2, 2), i32(1, 1)], [((2, 2), F)], {"offset": True}),
        built("STRIDED_SLICE", [(2, 5), i32(0, -2), i32(2, 3), i32(1, 1)], [((2, 2), F)], {"offset": True}),
        "from shape",
    ),
    "RESIZE_NEAREST_NEIGHBOR": (
        built("RESIZE_NEAREST_NEIGHBOR", [(1, 2, 2, 1), i32(1, 1)], [((1, 1, 1, 1), F)]),
        built("RESIZE_NEAREST_NEIGHBOR", [(1, 2, 2, 1), i32(1, 0)], [((1, 1, 0, 1), F)]),
        "it resizes to",
    ),
    "MATRIX_SET_DIAG": (
        built("MATRIX_SET_DIAG", [(2, 3, 4), (2, 3)], [((2, 3, 4), F)]),
        built("MATRIX_SET_DIAG", [(2, 3, 4), (2, 4)], [((2, 3, 4), F)]),
        "is not that of matrices",
    ),
    "a window's stride": (
        built("MAX_POOL_2D", [(1, 2, 2, 1)], [((1, 2, 2, 1), F)],
              {"stride_h": 2**24 - 1, "stride_w": 1, "filter_height": 1, "filter_width": 1}),
        built("MAX_POOL_2D", [(1, 2, 2, 1)], [((1, 2, 2, 1), F)],
              {"stride_h": 2**24, "stride_w": 1, "filter_height": 1, "filter_width": 1}),
        "stride_h is 16777216, it must be 1 to 16777215",
    ),
    "an operand of another's type": (
        built("MATRIX_SET_DIAG", [(2, 3), (2,)], [((2, 3), F)]),
        built("MATRIX_SET_DIAG", [(2, 3), i32(1, 2)], [((2, 3), F)]),
        "the type of tensor 0, FLOAT32, is needed",
    ),
    "an operand's rank": (
        detections((1, 6, 4)),
        detections((1, 6, 4, 1)),
        "shape .* it needs rank 3",
    ),
    "an omitted bias": (
        built("FULLY_CONNECTED", [(1, 2), np.ones((3, 2), np.float32)], [((1, 3), F)]),
        built("FULLY_CONNECTED", [(1, 2)], [((1, 3), F)]),
        "it has 1 inputs, but takes 2 to 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_operators_near_to_their_limits(name: str) -> None:
    passes, refused, words_ = NEAR[name]
    verify_model(passes)
    with pytest.raises(ModelError, match=words_):
        verify_model(refused)
    with pytest.raises(ModelError, match=words_):
        read_model(write_model(refused))


def layers(absent: set[int], operator: str = "UNIDIRECTIONAL_SEQUENCE_LSTM") -> Model:
    """An LSTM, or one in both directions, whose inputs `absent` are."""
    count = 24 if operator == "UNIDIRECTIONAL_SEQUENCE_LSTM" else 48
    kept = (18, 19) if count == 24 else (35, 36, 37, 38)
    b = ModelBuilder()
    inputs: list[int | None] = []
    for i in range(count):
        if i == 0 or (i == 39 and i not in absent):
            inputs.append(b.input(f"x{i}", (2, 1, 3)))
        elif i in absent or (count == 24 and i >= 20):
            inputs.append(None)
        elif i in kept:
            inputs.append(b.variable(f"kept {i}", (1, 4)))
        else:
            inputs.append(b.constant(np.zeros(4 if i in (9, 10, 11, 12, 13, 14, 15, 17) else (4, 3), np.float32)))
    outputs = [((2, 1, 4), F)] * (1 if count == 24 else 2)
    b.output(*b.op_multi(operator, inputs, outputs, {"fused_activation_function": "TANH"}))
    return b.model()


def ordered(operator: str, problem: str, absent: set[int]) -> None:
    """The ranks of these weights do not matter: what the gates lack is said before, or is not what is said."""
    model = layers(absent, operator)
    (node,) = model.main.operators
    check = BUILTIN[operator].hazard
    assert check is not None
    if problem:
        with pytest.raises(ModelError, match=problem):
            check(node, model.main.tensors)
    else:
        check(node, model.main.tensors)


@pytest.mark.parametrize(
    "absent, problem",
    [
        (set(), ""),
        ({1, 5, 12}, ""),
        ({10, 11}, ""),
        *(({i}, "only a part of its input gate") for i in (1, 5, 12)),
        *(({i}, "only a part of its peepholes") for i in (10, 11)),
        *(({i}, rf"it lacks its inputs \[{i}\]") for i in (2, 3, 4, 6, 7, 8, 13, 14, 15)),
    ],
)
@pytest.mark.parametrize("first", [None, 0, 17])
def test_gates_are_whole(absent: set[int], problem: str, first: int | None) -> None:
    """In each layer of an LSTM in both directions as in one direction."""
    if first is None:
        ordered("UNIDIRECTIONAL_SEQUENCE_LSTM", problem, absent)
        return
    both = {first + i for i in absent} | set(range(39, 48))
    moved = problem
    if absent and "lacks" in problem:
        moved = rf"it lacks its inputs \[{first + min(absent)}\]"
    ordered("BIDIRECTIONAL_SEQUENCE_LSTM", moved, both)


def test_auxiliary_weights_have_their_input() -> None:
    ordered("BIDIRECTIONAL_SEQUENCE_LSTM", "", set())
    ordered("BIDIRECTIONAL_SEQUENCE_LSTM", "", set(range(39, 48)))
    ordered("BIDIRECTIONAL_SEQUENCE_LSTM", "auxiliary input", {39})
    ordered("BIDIRECTIONAL_SEQUENCE_LSTM", "auxiliary input", {39, *range(40, 47)})


def detection(anchors: int, boxes: int = 6, classes: int = 3, scores: int = 6) -> tuple[Operator, list[Tensor]]:
    model = read_model(seed_model("further TFLite_Detection_PostProcess"))
    (node,) = model.main.operators
    tensors = list(model.main.tensors)
    for position, extents in ((0, (1, boxes, 4)), (1, (1, scores, classes)), (2, (anchors, 4))):
        tensors[node.inputs[position]] = dataclasses.replace(tensors[node.inputs[position]], shape=extents)
    return node, tensors


def test_detections_have_an_anchor_for_each_box() -> None:
    check = CUSTOM["TFLite_Detection_PostProcess"].hazard
    assert check is not None
    node, tensors = detection(6)
    classes = int(flexbuffer_options(node)["num_classes"])
    for anchors, named, scores, problem in (
        (6, classes, 6, ""), (7, classes, 6, ""), (6, classes + 1, 6, ""), (5, classes, 6, "anchors"),
        (6, classes + 2, 6, "scores"), (6, classes - 1, 6, "scores"), (6, classes, 5, "scores"),
    ):  # fmt: skip
        node, tensors = detection(anchors, classes=named, scores=scores)
        if not problem:
            check(node, tensors)
            continue
        with pytest.raises(ModelError, match=f"its {problem}"):
            check(node, tensors)


@pytest.mark.parametrize(
    "size, fits", [((1, 3), True), ((2, 3), True), ((1, 4), False), ((3, 1), False), ((0, 3), False)]
)
def test_slices_of_a_stablehlo_gather(size: tuple[int, int], fits: bool) -> None:
    b = ModelBuilder()
    x, where = b.input("x", (2, 3)), b.input("i", (5, 1), I)
    options = dict(offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,), index_vector_dim=1,
                   slice_sizes=size, indices_are_sorted=False)  # fmt: skip
    b.output(b.op("STABLEHLO_GATHER", [x, where], (5, *size), options))
    if fits:
        verify_model(b.model())
        return
    with pytest.raises(ModelError, match=r"slices|elements|empty"):
        verify_model(b.model())


def test_an_offset_before_the_content() -> None:
    """Python would count a negative place from the end."""
    with pytest.raises(ValueError, match="leads to byte -200 of 3"):
        flexbuffer.numbers(bytes([200, 9 << 2, 1]))


def test_a_map_has_as_many_keys_as_values() -> None:
    """The official decoder reads a key for each value, whatever is behind the last."""
    content = bytearray([*b"a\0", 1, 3, 1, 1, 1, 5, 1 << 2, 2, 9 << 2, 1])  # a key, keys, values, types, the root
    assert flexbuffer.numbers(bytes(content)) == {"a": 5.0}
    content[2] = 2
    with pytest.raises(ValueError, match="a map of 1 entries"):
        flexbuffer.numbers(bytes(content))
