"""Inferred shapes against those that the official runtime allocates."""

from __future__ import annotations

import contextlib
import math
import random
import struct
from typing import Any

import numpy as np
import pytest
from agreement import PLAIN
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter
from op_cases import CASES

import litegpu
from litegpu.delegates import cpu
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.protocol import Partition
from litegpu.delegates.shapes import infer
from litegpu.delegates.short_bias import completed
from litegpu.model.reader import read_model
from litegpu.model.shapes import Computed, Unexpected, shapes_of_results
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

OPTIONS = OfficialOptions(num_threads=1)
I32 = TensorType.INT32


def official_shapes(content: bytes, inputs: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    interpreter = OfficialInterpreter(model_content=content, experimental_op_resolver_type=PLAIN, num_threads=1)
    for index, shape in inputs.items():
        interpreter.resize_tensor_input(index, shape)
    interpreter.allocate_tensors()
    main = read_model(content).main
    details = {d["index"]: d for d in interpreter.get_tensor_details()}
    return {t.index: tuple(details[t.index]["shape"].tolist()) for t in main.tensors if not t.is_constant}


def check(content: bytes, inputs: dict[int, tuple[int, ...]], *, by_rules: bool = True) -> bool:
    """Whether the official runtime accepts these shapes; then ours are the same, and if `by_rules`, no operator was
    asked about."""
    main = read_model(content).main
    try:
        wanted = official_shapes(content, inputs)
    except (RuntimeError, ValueError):
        with contextlib.suppress(litegpu.InvokeError):  # not always: the CPU partition raises, if it gets the operator
            infer(read_model(content), OPTIONS, inputs)
        return False
    for operator in main.operators if by_rules else ():
        found = shapes_of_results(main, operator, wanted)
        assert list(found or ()) == [wanted[t] for t in operator.outputs], f"{operator.name} {inputs}"
    inferred = infer(read_model(content), OPTIONS, inputs).subgraph
    assert {i: inferred.tensors[i].shape for i in wanted} == wanted
    return True


@pytest.mark.parametrize("op", CASES)
def test_as_in_the_file(op: str) -> None:
    for seed in range(12):
        case = CASES[op](random.Random(f"shapes {op} {seed}"))
        assert check(case.content, {i: read_model(case.content).main.tensors[i].shape for i in _inputs(case.content)})


def _inputs(content: bytes) -> tuple[int, ...]:
    main = read_model(content).main
    return tuple(i for i in main.inputs if not main.tensors[i].is_constant)


#: Those of which no resize makes another valid model.
FIXED = frozenset({"TRANSPOSE_CONV", "BROADCAST_TO", "DENSIFY"})


#: Those whose results get their shapes only when the official runtime runs.
WHEN_RUN = frozenset(
    {"SEGMENT_SUM", *(f"UNSORTED_SEGMENT_{kind}" for kind in ("MAX", "MIN", "PROD", "SUM")), "SPARSE_TO_DENSE"}
)


@pytest.mark.parametrize("op", sorted(set(CASES) - FIXED - WHEN_RUN))
def test_resized(op: str) -> None:
    accepted = 0
    for seed in range(16):
        rng = random.Random(f"resized {op} {seed}")
        content = CASES[op](rng).content
        main = read_model(content).main
        shapes = {i: list(main.tensors[i].shape) for i in _inputs(content)}
        axis, size = rng.randint(0, 3), rng.choice((1, 2, 4, 6, 12))
        for shape in shapes.values():
            if seed % 2 == 0 and shape:
                shape[0] *= rng.choice((2, 4)) if len(shapes) == 1 else 2
            elif axis < len(shape):
                shape[axis] = size
        accepted += check(content, {i: tuple(shape) for i, shape in shapes.items()}, by_rules=False)
    if any(read_model(CASES[op](random.Random(f"resized {op} {s}")).content).main.tensors[0].shape for s in range(3)):
        assert accepted, "no resize was valid: nothing is shown"


def built(operator: str, inputs: list[Any], shape: tuple[int, ...], options: dict[str, Any] | None = None) -> bytes:
    b = ModelBuilder()
    operands = [
        b.input(f"x{n}", i) if isinstance(i, tuple) else None if i is None else b.constant(i)
        for n, i in enumerate(inputs)
    ]
    b.output(b.op(operator, operands, shape, options))
    return b.build()


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


CONV = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
DILATED = {"stride_h": 2, "stride_w": 3, "dilation_h_factor": 2, "dilation_w_factor": 2, "padding": "VALID"}
POOL = {"stride_h": 5, "stride_w": 4, "filter_height": 9, "filter_width": 9, "padding": "SAME"}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


ODD = {
    "empty": built("ADD", [(0, 3), (1, 3)], (0, 3)),
    "rank 6": built("ADD", [(2, 1, 3, 1, 2, 1), (1, 2)], (2, 1, 3, 1, 2, 2)),
    "scalar": built("MUL", [(), (2, 3)], (2, 3)),
    "reshape to a scalar": built("RESHAPE", [(1, 1)], (), {"new_shape": ()}),
    "reshape empty": built("RESHAPE", [(0, 3), i32(3, 0)], (3, 0)),
    "reshape with -1": built("RESHAPE", [(4, 6), i32(-1, 3, 2)], (4, 3, 2)),
    "reshape with options alone": built("RESHAPE", [(4, 6)], (8, 3), {"new_shape": (-1, 3)}),
    "reduce twice": built("SUM", [(2, 3, 4), i32(1, -2, 1)], (2, 4)),
    "reduce by no axis": built("SUM", [(2, 3, 4), i32()], (2, 3, 4)),
    "reduce rank 5": built("MEAN", [(2, 3, 4, 5, 6), i32(0, 4)], (1, 3, 4, 5, 1), {"keep_dims": True}),
    "squeeze all": built("SQUEEZE", [(1, 3, 1)], (3,)),
    "squeeze one": built("SQUEEZE", [(1, 3, 1)], (1, 3), {"squeeze_dims": (-1,)}),
    "slice to the end": built("SLICE", [(4, 5), i32(1, 2), i32(-1, 0)], (3, 0)),
    "slice rank 5": built("SLICE", [(2, 3, 4, 5, 6), i32(0, 1, 0, 0, 1), i32(1, 2, -1, 5, 1)], (1, 2, 4, 5, 1)),
    "strides": built("STRIDED_SLICE", [(7, 5), i32(5, 0), i32(0, 9), i32(-2, 3)], (3, 2)),
    "shrink": built("STRIDED_SLICE", [(7, 5), i32(-1, 0), i32(0, 2), i32(1, 1)], (2,), {"shrink_axis_mask": 1}),
    "new axis": built("STRIDED_SLICE", [(7, 5), i32(0, 1), i32(0, 3), i32(1, 1)], (1, 2, 5), {"new_axis_mask": 1}),
    "ellipsis": built("STRIDED_SLICE", [(7, 5, 3), i32(0, 1), i32(0, 3), i32(1, 1)], (7, 5, 2), {"ellipsis_mask": 1}),
    "tile to nothing": built("TILE", [(2, 3), i32(0, 2)], (0, 6)),
    "pad rank 5": built("PAD", [(1, 2, 3, 1, 2), np.array([[0, 1]] * 5, np.int32)], (2, 3, 4, 2, 3)),
    "window larger than the image": built("MAX_POOL_2D", [(1, 3, 3, 2)], (1, 1, 1, 2), POOL),
    "dilated": built("CONV_2D", [(1, 9, 9, 2), ones(3, 3, 3, 2), ones(3)], (1, 3, 2, 3), DILATED),
    "groups": built("CONV_2D", [(1, 4, 4, 6), ones(4, 1, 1, 3), ones(4)], (1, 4, 4, 4), CONV),
    "matmul of other ranks": built("BATCH_MATMUL", [(2, 1, 3, 4), (5, 4, 6)], (2, 5, 3, 6)),
    "matmul turned": built("BATCH_MATMUL", [(5, 4, 3), (5, 6, 4)], (5, 3, 6), {"adj_x": True, "adj_y": True}),
    "dense layers over rank 4": built("FULLY_CONNECTED", [(1, 2, 2, 6), ones(5, 12), None], (2, 5)),
    "dense layers that keep the rank": built(
        "FULLY_CONNECTED", [(1, 2, 2, 6), ones(5, 6), None], (1, 2, 2, 5), {"keep_num_dims": True}
    ),
    "split in one": built("SPLIT_V", [(7,), i32(7), np.int32(0)], (7,), {"num_splits": 1}),
    "unpack": built("UNPACK", [(1, 3)], (3,), {"num": 1, "axis": 0}),
    "split with -1": built("SPLIT_V", [(7, 2), i32(-1), np.int32(-2)], (7, 2), {"num_splits": 1}),
    "space to batch rank 3": built("SPACE_TO_BATCH_ND", [(2, 5, 3), i32(2), np.array([[0, 1]], np.int32)], (4, 3, 3)),
    "fill": built("FILL", [i32(2, 3), np.float32(1)], (2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_parameters(name: str) -> None:
    content = ODD[name]
    assert check(content, {i: read_model(content).main.tensors[i].shape for i in _inputs(content)})


def test_what_is_refused_is_refused_in_the_words_of_the_official_runtime() -> None:
    content = built("ADD", [(2, 3), (2, 3)], (2, 3))
    with pytest.raises(litegpu.InvokeError, match=r"broadcast|dim") as error:
        infer(read_model(content), OPTIONS, {0: (2, 3), 1: (2, 4)})
    assert "Node number 0 (ADD)" in str(error.value)


def test_nothing_is_allocated_for_what_has_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not where the official runtime would refuse its own buffers, or need more memory than there is."""
    b = ModelBuilder()
    x = b.input("x", (1, 384, 384, 3))
    w = b.constant(np.ones((32, 9, 9, 3), np.float32))
    options = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1, "padding": "SAME"}
    y = b.op("CONV_2D", [x, w, None], (1, 384, 384, 32), options)
    y = b.op("MEAN", [b.op("RELU", [y], (1, 384, 384, 32)), b.constant(i32(1, 2))], (1, 32))
    b.output(y)
    monkeypatch.setattr(cpu, "ask_shapes", lambda *_: pytest.fail("the official runtime was asked"))
    found = infer(read_model(b.build()), OPTIONS, {x: (256, 384, 384, 3)})
    assert found.subgraph.tensors[y].shape == (256, 32) and not found.refused
    with pytest.raises(litegpu.InvokeError, match=r"more than 2147483647 elements. Use a smaller batch"):
        infer(read_model(b.build()), OPTIONS, {x: (2048, 384, 384, 3)})


def test_operators_without_a_rule_are_asked_about_alone() -> None:
    b = ModelBuilder()
    x = b.input("x", (2, 5))
    y = b.op("RELU", [b.op("CUMSUM", [x, b.constant(np.int32(1))], (2, 5))], (2, 5))
    r = b.op("REVERSE_SEQUENCE", [y, b.constant(i32(2, 3))], (2, 5), {"seq_dim": 1, "batch_dim": 0})
    kept = b.op(
        "WHERE",
        [b.op("GREATER", [r, b.constant(np.float32(0))], (2, 5), type=TensorType.BOOL)],
        (1, 2),
        type=TensorType.INT64,
    )
    b.output(b.op("ABS", [r], (2, 5)), kept)  # fmt: skip
    found = infer(read_model(b.build()), OPTIONS, {x: (2, 7)})
    assert found.subgraph.tensors[r].shape == (2, 7)
    where = next(o.index for o in found.subgraph.operators if o.name == "WHERE")
    assert list(found.refused) == [where] and "decides" in found.refused[where]


def test_computed_sizes_are_known_once_they_follow_from_shapes() -> None:
    b = ModelBuilder()
    x = b.input("x", (-1, 4, 6))
    batch = b.op(
        "STRIDED_SLICE",
        [b.op("SHAPE", [x], (3,), type=I32), b.constant(i32(0)), b.constant(i32(1)), b.constant(i32(1))],
        (),
        {"shrink_axis_mask": 1},
        type=I32,
    )
    shape = b.op("PACK", [batch, b.constant(np.int32(24))], (2,), {"axis": 0, "values_count": 2}, type=I32)
    y = b.op("RESHAPE", [x, shape], (1, 24))
    b.output(b.op("ABS", [y], (1, 24)))  # fmt: skip
    main = read_model(b.build()).main
    with pytest.raises(Computed):
        shapes_of_results(main, next(o for o in main.operators if o.name == "RESHAPE"), {x: (5, 4, 6)})
    found = infer(read_model(b.build()), OPTIONS, {x: (5, 4, 6)})
    assert found.subgraph.tensors[y].shape == (5, 24) and not found.refused


def test_details_follow_the_shapes(numpy_delegate) -> None:
    """Of inner tensors as well, as if the official runtime had allocated them."""
    b = ModelBuilder()
    x = b.input("x", (-1, 4))
    b.output(b.op("MUL", [b.op("ADD", [x, x], (-1, 4)), x], (-1, 4)))
    content = b.build()
    ours = litegpu.Interpreter(model_content=content, experimental_delegates=[numpy_delegate()])
    theirs = OfficialInterpreter(model_content=content, experimental_op_resolver_type=PLAIN)
    for interpreter in (ours, theirs):
        interpreter.resize_tensor_input(0, (3, 4))
        interpreter.allocate_tensors()
    assert ours.delegation_report().fully_delegated
    for mine, official in zip(ours.get_tensor_details(), theirs.get_tensor_details(), strict=True):
        for key in ("shape", "shape_signature"):
            np.testing.assert_array_equal(mine[key], official[key])
            assert mine[key].dtype == official[key].dtype


def short_bias(size: int = 1) -> tuple[bytes, int, int]:
    b = ModelBuilder()
    x = b.input("x", (1, 4, 4, 2))
    w, bias = b.constant(np.ones((3, 2, 2, 2), np.float32)), b.constant(np.ones(size, np.float32))
    options = {"stride_h": 2, "stride_w": 2, "padding": "VALID"}
    y = b.op("TRANSPOSE_CONV", [b.constant(i32(1, 8, 8, 3)), w, x, bias], (1, 8, 8, 3), options)
    b.output(b.op("ABS", [y], (1, 8, 8, 3)))
    return b.build(), x, y


def test_a_bias_that_xnnpack_alone_accepts() -> None:
    """The plain kernel refuses a TRANSPOSE_CONV whose bias has one element for several channels."""
    content, x, y = short_bias()
    with pytest.raises((RuntimeError, ValueError)):
        official_shapes(content, {})
    found = infer(read_model(content), OPTIONS, {x: (1, 4, 4, 2)})
    assert math.prod(found.subgraph.tensors[y].shape) == 192
    main = read_model(content).main
    with pytest.raises(Unexpected):
        shapes_of_results(main, main.operators[0], {x: (1, 4, 4)})


def test_a_bias_that_is_too_short_goes_on_in_the_file(numpy_delegate) -> None:
    """XNNPACK reads what follows it; a partition reads the same."""
    content, x, _ = short_bias()
    value = np.random.default_rng(0).standard_normal((1, 4, 4, 2)).astype(np.float32)
    results = []
    delegate = numpy_delegate(ops=("ABS",))
    delegate.prepare = lambda partition: Absolute()
    ours = litegpu.Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    for interpreter in (OfficialInterpreter(model_content=content), ours):
        interpreter.allocate_tensors()
        interpreter.set_tensor(x, value)
        interpreter.invoke()
        results.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    assert ours.delegation_report().counts["CPU"] == 1
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("size, read", [(1, 3), (2, 3), (3, 3), (5, 5)])
def test_a_bias_that_is_long_enough_stays(size: int, read: int) -> None:
    """Of a convolution to three channels."""
    content, _, _ = short_bias(size)
    model = read_model(content)
    main = model.main
    whole = Partition(model, main, main.operators, tuple(main.inputs), tuple(main.outputs))
    found = completed(whole)
    assert (found is whole) == (size == read)
    assert found.subgraph.tensors[main.operators[0].inputs[3]].shape == (read,)


class Absolute:
    """ABS for the example delegate."""

    def invoke(self, inputs: Any) -> Any:
        return [np.abs(inputs[0])]

    def close(self) -> None:
        pass


# ------------------------------------------------------------------------------- every rule, and what it refuses


def several(operator: str, inputs: list[Any], shapes: list[tuple[int, ...]], options: dict[str, Any] | None = None,
            type_: TensorType = TensorType.FLOAT32) -> bytes:  # fmt: skip
    b = ModelBuilder()
    operands = [
        b.input(f"x{n}", i) if isinstance(i, tuple) else None if i is None else b.constant(i)
        for n, i in enumerate(inputs)
    ]
    b.output(*b.op_multi(operator, operands, [(shape, type_) for shape in shapes], options or {}))
    return b.build()


def lstm(steps: int, batch: int, projected: int | None, *, time_major: bool) -> bytes:
    """Four cells, whose results are as many or projected."""
    b = ModelBuilder()
    size, cells = 3, 4
    made = projected or cells
    lead = (steps, batch) if time_major else (batch, steps)
    x = b.input("x", (*lead, size))
    gates = [b.constant(ones(cells, size)) for _ in range(4)] + [b.constant(ones(cells, made)) for _ in range(4)]
    biases = [b.constant(ones(cells)) for _ in range(4)]
    projection = b.constant(ones(made, cells)) if projected else None
    kept = [b.variable("output state", (batch, made)), b.variable("cell state", (batch, cells))]
    inputs = [x, *gates, None, None, None, *biases, projection, None, *kept]
    options = {"fused_activation_function": "TANH", "time_major": time_major}
    b.output(b.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (*lead, made), options))
    return b.build()


WINDOW = {"stride_h": 1, "stride_w": 2, "filter_height": 2, "filter_width": 3, "padding": "VALID"}
TRUE = np.array([True, False])
LEGAL = {
    "select by rows": built("SELECT", [TRUE, (2, 3), (2, 3)], (2, 3)),
    "select by a scalar": built("SELECT", [np.array(True), (2, 3), (2, 3)], (2, 3)),
    "slope of fewer": built("PRELU", [(2, 3, 4), ones(3, 1)], (2, 3, 4)),
    "an empty extent and one": built("MUL", [(0, 1), (1, 3)], (0, 3)),
    "depth multiplier": built("DEPTHWISE_CONV_2D", [(1, 5, 4, 2), ones(1, 2, 3, 6), ones(6)], (1, 5, 4, 6),
                              CONV | {"depth_multiplier": 3, "padding": "SAME"}),
    "a pool that is no square": built("AVERAGE_POOL_2D", [(1, 5, 8, 2)], (1, 4, 3, 2), WINDOW),
    "other strides": built("CONV_2D", [(1, 5, 8, 2), ones(3, 2, 3, 2), ones(3)], (1, 4, 3, 3),
                           {"stride_h": 1, "stride_w": 2, "padding": "VALID", "dilation_h_factor": 1,
                            "dilation_w_factor": 1}),
    "adj_y alone": built("BATCH_MATMUL", [(2, 3, 4), (2, 5, 4)], (2, 3, 5), {"adj_y": True}),
    "adj_x alone": built("BATCH_MATMUL", [(2, 4, 3), (2, 4, 5)], (2, 3, 5), {"adj_x": True}),
    "all of them on top": several("TOPK_V2", [(2, 3), np.int32(3)], [(2, 3)] * 2),
    "gather from each": built("GATHER", [(2, 3, 4), np.zeros((2, 5), np.int32)], (2, 5, 4),
                              {"axis": 1, "batch_dims": 1}),
    "gather from each, from the end": built("GATHER", [(2, 3, 4), np.zeros((2, 5), np.int32)], (2, 5, 4),
                                            {"axis": 1, "batch_dims": -1}),
    "gather from each of each": built("GATHER", [(2, 3, 4), np.zeros((2, 3), np.int32)], (2, 3),
                                      {"axis": -1, "batch_dims": 2}),
    "gather rows": built("GATHER_ND", [(2, 3, 4), np.zeros((5, 1), np.int32)], (5, 3, 4)),
    "gather elements": built("GATHER_ND", [(2, 3), np.zeros((5, 2), np.int32)], (5,)),
    "scatter rows": built("SCATTER_ND", [np.zeros((2, 1), np.int32), (2, 3), i32(4, 3)], (4, 3)),
    "one hot in front": built("ONE_HOT", [i32(0, 1), np.int32(3), np.float32(1), np.float32(0)], (3, 2), {"axis": 0}),
    "one hot behind": built("ONE_HOT", [i32(0, 1), np.int32(3), np.float32(1), np.float32(0)], (2, 3), {"axis": -1}),
    "a scalar as it was once written": built("RESHAPE", [(1, 1)], (), {"new_shape": (0,)}),
    "pack behind": built("PACK", [(2, 3), (2, 3)], (2, 3, 2), {"axis": -1, "values_count": 2}),
    "pack from the end": built("PACK", [(2, 3), (2, 3)], (2, 2, 3), {"axis": -2, "values_count": 2}),
    "expand behind": built("EXPAND_DIMS", [(2, 3), np.int32(-1)], (2, 3, 1)),
    "depth to space": built("DEPTH_TO_SPACE", [(1, 2, 3, 8)], (1, 4, 6, 2), {"block_size": 2}),
    "space to depth": built("SPACE_TO_DEPTH", [(1, 4, 6, 2)], (1, 2, 3, 8), {"block_size": 2}),
    "crops": built("BATCH_TO_SPACE_ND", [(6, 2, 2, 1), i32(2, 3), np.array([[1, 0], [0, 2]], np.int32)], (1, 3, 4, 1)),
    "margins": built("PAD", [(2, 3), np.array([[1, 2], [3, 4]], np.int32)], (5, 10)),
    "what is left of a split": several("SPLIT_V", [(7, 2), i32(2, -1, 1), np.int32(0)], [(2, 2), (4, 2), (1, 2)],
                                       {"num_splits": 3}),
    "lstm": lstm(5, 2, None, time_major=False),
    "lstm, steps first": lstm(5, 2, None, time_major=True),
    "lstm, projected": lstm(5, 2, 6, time_major=False),
    "lstm, projected, steps first": lstm(5, 2, 3, time_major=True),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_what_rules_accept(name: str) -> None:
    content = LEGAL[name]
    assert check(content, {i: read_model(content).main.tensors[i].shape for i in _inputs(content)})


ILLEGAL = {
    "a slope that is larger": built("PRELU", [(1, 3), ones(2, 3)], (2, 3)),
    "extents that do not broadcast": built("ADD", [(2, 3), (3, 3)], (3, 3)),
    "an empty extent and two": built("ADD", [(0, 3), (2, 3)], (0, 3)),
    "select of other shapes": built("SELECT", [TRUE, (2, 3), (2, 1)], (2, 3)),
    "select by columns": built("SELECT", [np.array([True, False, True]), (2, 3), (2, 3)], (2, 3)),
    "parts of channels": built("CONV_2D", [(1, 4, 4, 5), ones(4, 1, 1, 3), None], (1, 4, 4, 4), CONV),
    "a multiplier that is none": built("DEPTHWISE_CONV_2D", [(1, 4, 4, 2), ones(1, 1, 1, 3), None], (1, 4, 4, 3),
                                       CONV | {"depth_multiplier": 1}),
    "a window beyond the image": built("MAX_POOL_2D", [(1, 1, 8, 2)], (1, 0, 3, 2), WINDOW),
    "depths that differ": built("BATCH_MATMUL", [(2, 3, 4), (2, 5, 6)], (2, 3, 6)),
    "more than there are": several("TOPK_V2", [(2, 3), np.int32(4)], [(2, 4)] * 2),
    "gather of other batches": built("GATHER", [(2, 3, 4), np.zeros((3, 5), np.int32)], (2, 5, 4),
                                     {"axis": 1, "batch_dims": 1}),
    "batches behind the axis": built("GATHER", [(2, 2, 4), np.zeros((2, 2), np.int32)], (2, 4),
                                     {"axis": 1, "batch_dims": 2}),
    "indices deeper than the data": built("GATHER_ND", [(2, 3), np.zeros((5, 3), np.int32)], (5,)),
    "updates of another shape": built("SCATTER_ND", [np.zeros((2, 1), np.int32), (2, 4), i32(4, 3)], (4, 3)),
    "two extents that are left": built("RESHAPE", [(4, 6), i32(-1, 4, -1)], (2, 4, 3)),
    "no whole extent is left": built("RESHAPE", [(4, 6), i32(-1, 5)], (4, 5)),
    "other elements": built("RESHAPE", [(4, 6), i32(5, 5)], (5, 5)),
    "squeeze of three": built("SQUEEZE", [(1, 3, 1)], (1, 1), {"squeeze_dims": (1,)}),
    "transpose twice": built("TRANSPOSE", [(2, 3), i32(1, 1)], (3, 3)),
    "tile of another rank": built("TILE", [(2, 3), i32(2)], (4, 3)),
    "broadcast to less": built("BROADCAST_TO", [(2, 3), i32(1, 3)], (1, 3)),
    "blocks of space": built("SPACE_TO_DEPTH", [(1, 3, 4, 1)], (1, 1, 2, 4), {"block_size": 2}),
    "blocks of batches": built("BATCH_TO_SPACE_ND", [(5, 2, 2, 1), i32(2, 2), np.zeros((2, 2), np.int32)],
                               (1, 4, 4, 1)),
    "joined beside the axis": built("CONCATENATION", [(2, 3), (3, 3)], (2, 6), {"axis": 1}),
    "joined ranks": built("CONCATENATION", [(2, 3), (2, 3, 1)], (4, 3), {"axis": 0}),
    "packed shapes": built("PACK", [(2, 3), (3, 2)], (2, 2, 3), {"axis": 0, "values_count": 2}),
    "beyond the end": built("SLICE", [(4, 5), i32(1, 2), i32(4, 2)], (4, 2)),
    "begins behind the end": built("SLICE", [(4, 5), i32(5, 2), i32(-1, 2)], (0, 2)),
    "split in parts": several("SPLIT", [np.int32(0), (5, 2)], [(2, 2)] * 2, {"num_splits": 2}),
    "split into more": several("SPLIT_V", [(5, 2), i32(2, 4), np.int32(0)], [(2, 2), (4, 2)], {"num_splits": 2}),
    "split in two rests": several("SPLIT_V", [(5, 2), i32(-1, -1), np.int32(0)], [(2, 2), (3, 2)], {"num_splits": 2}),
    "negative margins": built("PAD", [(2, 3), np.array([[0, 0], [-1, 0]], np.int32)], (2, 2)),
    "an axis beyond": built("SUM", [(2, 3), i32(2)], (2,)),
    "an axis beyond, from the end": built("SUM", [(2, 3), i32(-3)], (2,)),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_rules_refuse(name: str) -> None:
    """Whatever the official runtime refuses, and what it has to be asked about; never an answer of another shape."""
    content = ILLEGAL[name]
    main = read_model(content, verify=False).main
    with pytest.raises(Unexpected):
        shapes_of_results(main, main.operators[0], {})


def custom(
    name: str, inputs: list[tuple[int, ...]], shape: tuple[int, ...], options: bytes = b"", count: int = 1
) -> Any:
    b = ModelBuilder()
    operands = [b.input(f"x{n}", given) for n, given in enumerate(inputs)]
    b.output(*b.custom(name, operands, [(shape, TensorType.FLOAT32)] * count, options))
    return b.model().main


def fields(*values: int) -> bytes:
    """The C struct that custom options are the image of."""
    return struct.pack(f"<{len(values)}i", *values)


@pytest.mark.parametrize(
    "name, inputs, options, shape",
    [  # padding (1 is SAME, 2 VALID), strides of width and height, width and height of the window
        ("MaxPoolingWithArgmax2D", [(1, 6, 9, 2)], fields(2, 3, 1, 3, 2), (1, 5, 3, 2)),
        ("MaxPoolingWithArgmax2D", [(1, 6, 9, 2)], fields(1, 2, 4, 3, 2), (1, 2, 5, 2)),
        (
            "Convolution2DTransposeBias",
            [(2, 4, 5, 3), (7, 2, 3, 3), (7,)],
            fields(1, 2, 2),
            (2, 8, 9, 7),
        ),  # as MediaPipe cuts it
        ("Convolution2DTransposeBias", [(2, 4, 5, 3), (7, 2, 3, 3), (7,)], fields(2, 2, 1), (2, 5, 11, 7)),
        ("Convolution2DTransposeBias", [(2, 4, 5, 3), (7, 3, 4, 3), (7,)], fields(1, 1, 1), (2, 4, 5, 7)),
        ("Resampler", [(2, 4, 5, 3), (2, 6, 7, 2)], b"", (2, 6, 7, 3)),
    ],
)
def test_custom_operators(name: str, inputs: list[tuple[int, ...]], options: bytes, shape: tuple[int, ...]) -> None:
    """By hand: the official runtime has no kernels for them that could be asked."""
    count = 2 if name == "MaxPoolingWithArgmax2D" else 1
    main = custom(name, inputs, shape, options, count)
    assert shapes_of_results(main, main.operators[0], {}) == [shape] * count


def test_custom_operators_that_follow_the_batch_alone() -> None:
    """Which say nowhere what they make of their inputs: other sizes are not known."""
    main = custom("MaxUnpooling2D", [(1, 2, 3, 4), (1, 2, 3, 4)], (1, 4, 6, 4))
    (operator,) = main.operators
    assert list(shapes_of_results(main, operator, {}) or ()) == [(1, 4, 6, 4)]
    grown = {i: (5, 2, 3, 4) for i in operator.inputs}
    assert list(shapes_of_results(main, operator, grown) or ()) == [(5, 4, 6, 4)]
    for shapes in ({i: (1, 2, 5, 4) for i in operator.inputs}, {operator.inputs[0]: (5, 2, 3, 4)}):
        with pytest.raises(Unexpected):
            shapes_of_results(main, operator, shapes)


def test_samples_are_as_many_as_a_constant_says() -> None:
    """What follows goes to the GPU, though the official runtime tells the size while it runs alone."""
    model = ModelBuilder()
    x = model.input("x", (2, 5))
    drawn = model.op("MULTINOMIAL", [x, model.constant(np.array(7, np.int32))], (2, 7), dict(seed=1, seed2=2))
    real = model.op(
        "CAST", [drawn], (2, 7), dict(in_data_type="INT64", out_data_type="FLOAT32"), type=TensorType.FLOAT32
    )
    model.output(model.op("TANH", [real], (2, 7)))
    delegate = litegpu.GpuDelegate(backend="reference", max_delegated_partitions=0)
    interpreter = litegpu.Interpreter(model_content=model.build(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    owners = {n.op: n.owner for n in interpreter.delegation_report().nodes}
    assert owners == {"MULTINOMIAL": "CPU", "CAST": "GPU", "TANH": "GPU"}
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.zeros((2, 5), np.float32))
    interpreter.invoke()
    assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).shape == (2, 7)


@pytest.mark.parametrize("declared", [(), (1,), (1, 1), (1, 1, 1, 1, 1), (7,)])
@pytest.mark.parametrize("shapes", [((1,), (1, 1)), ((), (1,)), ((1, 1, 1, 1, 1), (1, 1, 1, 1, 1))])
@pytest.mark.parametrize("op", ["SELECT", "SELECT_V2"])
def test_a_choice_of_one_element_keeps_the_shape_in_the_file(
    op: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], declared: tuple[int, ...]
) -> None:
    condition, operand = shapes
    model = ModelBuilder()
    tensors = [model.input("p", condition, TensorType.BOOL), model.input("x", operand), model.input("y", operand)]
    model.output(model.op(op, tensors, declared, type=TensorType.FLOAT32))
    arrays = [np.ones(condition, np.bool_), np.full(operand, 2, np.float32), np.full(operand, 3, np.float32)]
    delegate = litegpu.GpuDelegate(backend="reference", max_delegated_partitions=0)
    mine = litegpu.Interpreter(model_content=model.build(), experimental_delegates=[delegate])
    theirs = OfficialInterpreter(model_content=model.build(), experimental_op_resolver_type=PLAIN)
    found = []
    for interpreter in (mine, theirs):
        interpreter.allocate_tensors()
        for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))
    assert mine.delegation_report().fully_delegated
    np.testing.assert_array_equal(found[0], found[1], strict=True)


def test_concatenations_do_without_what_is_empty() -> None:
    """It has no bytes that a GPU could be given."""
    b = ModelBuilder()
    x, nothing = b.input("x", (2, 3)), b.input("nothing", (0, 3))
    given = b.constant(np.zeros((0, 3), np.float32))
    b.output(b.op("CONCATENATION", [nothing, x, given, x], (4, 3), dict(axis=0)))
    delegate = litegpu.GpuDelegate(backend="reference")
    interpreter = litegpu.Interpreter(model_content=b.build(), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    assert interpreter.delegation_report().fully_delegated
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    interpreter.set_tensor(0, value)
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(3), np.concatenate([value, value]))
