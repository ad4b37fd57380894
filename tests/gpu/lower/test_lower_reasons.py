"""What the GPU cannot run is refused, before anything is built, with a reason that says what and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.lower import Unsupported, check_operator, lower_partition
from litegpu.gpu.lower.spans import wide
from litegpu.model.types import Subgraph, TensorType
from litegpu.model.writer import ModelBuilder

F32, I32 = TensorType.FLOAT32, TensorType.INT32


def one(
    op: str, inputs: Sequence[Any], shape: tuple[int, ...], options: dict[str, Any] | None = None,
    type: TensorType = F32, version: int = 1,
) -> Subgraph:  # fmt: skip
    """A graph of one operator; inputs are shapes (float32), (shape, type) pairs or constant arrays."""
    b = ModelBuilder()
    tensors = []
    for i, given in enumerate(inputs):
        if isinstance(given, np.ndarray | np.generic):
            tensors.append(b.constant(given))
        elif given and isinstance(given[0], tuple):
            tensors.append(b.input(f"x{i}", *given))
        else:
            tensors.append(b.input(f"x{i}", given))
    b.output(b.op(op, tensors, shape=shape, options=options, type=type, version=version))
    return b.graph()


CASES = {
    "rank 7 input": (one("ABS", [(1, 1, 1, 1, 1, 2, 2)], (1, 1, 1, 1, 1, 2, 2)), "'x0' has rank 7"),
    "empty tensor": (one("ABS", [(0, 3)], (0, 3)), r"'x0' of shape \[0, 3\] is empty"),
    "empty result": (
        one("SLICE", [(2, 3), np.array([0, 0], np.int32), np.array([0, 3], np.int32)], (0, 3)),
        r"of shape \[0, 3\] is empty",
    ),
    "unknown operator": (one("MULTINOMIAL", [(2,)], (2,)), "MULTINOMIAL is not among those"),
    "quantized squares": (
        one("L2_POOL_2D", [((1, 1, 1, 2), TensorType.INT8)], (1, 1, 1, 2), type=TensorType.INT8), "input 0 is INT8"
    ),
    "segments with a gap": (
        one("SEGMENT_SUM", [(3, 2), np.array([0, 1, 3], np.int32)], (4, 2)), "the segments do not follow each other"
    ),
    "version": (one("RELU", [(2,)], (2,), version=9), "version 9: versions up to 3"),
    "int8 input": (one("RELU", [((2,), TensorType.INT8)], (2,), type=TensorType.INT8), "INT8 without quantization"),
    "int64 input": (one("EXP", [((2,), TensorType.INT64)], (2,)), "input 0 is INT64 where FLOAT32"),
    "int64 quotient": (
        one("FLOOR_DIV", [((2,), TensorType.INT64), ((2,), TensorType.INT64)], (2,), type=TensorType.INT64),
        "may be from -2147483648 to 2147483648: the GPU has 32 bits",
    ),
    "bfloat16 input": (one("ABS", [((2,), TensorType.BFLOAT16)], (2,)), "input 0 is BFLOAT16 where FLOAT32"),
    "int32 exponents": (one("EXP", [((2,), I32)], (2,), type=I32), "input 0 is INT32"),
    "int32 angles": (one("ATAN2", [((2,), I32), ((2,), I32)], (2,), type=I32), "input 0 is INT32"),
    "mixed types": (one("ADD", [(2,), ((2,), I32)], (2,)), "FLOAT32 and INT32 are not taken together"),
    "number of inputs": (one("ADD", [(2,)], (2,)), "1 inputs where the operator takes 2"),
    "no broadcast": (one("ADD", [(2,), (3,)], (3,)), "do not broadcast"),
    "output shape": (one("ABS", [(2,)], (3,)), r"has shape \[3\] where the operator gives \[2\]"),
    "activation": (one("ADD", [(2,), (2,)], (2,), dict(fused_activation_function=5)), "SIGN_BIT"),
    "runtime axes": (one("MEAN", [(2, 3), ((1,), I32)], (1, 3)), "the axes .* are computed by the model"),
    "runtime size": (one("RESIZE_BILINEAR", [(1, 2, 2, 1), ((2,), I32)], (1, 4, 4, 1)), "sizes .* computed"),
    "runtime shape": (one("RESHAPE", [(4,), ((2,), I32)], (2, 2)), "computed by the model"),
    "axis": (one("MEAN", [(2, 3), np.array([2], np.int32)], (2,)), "axis 2 is outside a tensor of rank 2"),
    "both corner rules": (
        one("RESIZE_BILINEAR", [(1, 2, 2, 1), np.array([4, 4], np.int32)], (1, 4, 4, 1),
            dict(align_corners=True, half_pixel_centers=True)),
        "align_corners with half_pixel_centers",
    ),
    "grouped runtime weights": (
        one("CONV_2D", [(1, 4, 4, 4), (4, 1, 1, 2), (4,)], (1, 4, 4, 4), dict(stride_h=1, stride_w=1), version=6),
        "one group only",
    ),
    "stride 0": (
        one("CONV_2D", [(1, 4, 4, 4), np.ones((4, 1, 1, 4), np.float32)], (1, 4, 4, 4), dict(stride_h=0, stride_w=1)),
        "not positive",
    ),
    "rank 3 convolution": (
        one("CONV_2D", [(4, 4, 4), np.ones((4, 1, 1, 4), np.float32)], (4, 4, 4), dict(stride_h=1, stride_w=1)),
        "rank 3: the operator takes rank 4",
    ),
    "shuffled weights": (one("FULLY_CONNECTED", [(1, 4), (4, 4)], (1, 4), dict(weights_format=1)), "shuffled"),
    "index out of range": (one("GATHER", [(4,), np.array([4], np.int32)], (1,)), "outside axis 0"),
    "padding too wide": (one("MIRROR_PAD", [(3,), np.array([[3, 0]], np.int32)], (6,)), "larger than shape"),
    "slice outside": (one("SLICE", [(3,), np.array([1], np.int32), np.array([3], np.int32)], (3,)), "outside shape"),
    "permutation": (one("TRANSPOSE", [(3, 2), np.array([0, 0], np.int32)], (3, 2)), "no permutation"),
    "runtime int8 dequantize": (one("DEQUANTIZE", [((2,), TensorType.INT8)], (2,)), "INT8 without quantization"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reason(name: str) -> None:
    graph, reason = CASES[name]
    found = check_operator(graph, graph.operators[0])
    assert found is not None
    with pytest.raises(Unsupported, match=reason):
        raise Unsupported(found)
    with pytest.raises(Unsupported, match=reason):
        lower_partition(graph, graph.operators, graph.inputs, graph.outputs)


def test_a_partition_names_the_operator() -> None:
    graph, _ = CASES["stride 0"]
    with pytest.raises(Unsupported, match=r"^operator 0 \(CONV_2D\): strides \[0, 1\] are not positive$"):
        lower_partition(graph, graph.operators, graph.inputs, graph.outputs)


def test_custom_operators_are_refused_by_name_even_if_a_builtin_is_called_so() -> None:
    graph = one("RELU", [(2,)], (2,))
    custom = dataclasses.replace(graph.operators[0], is_custom=True)
    assert check_operator(graph, custom) == "the custom operator RELU is not among those that the GPU runs"


def test_int64_is_computed_with_where_32_bits_hold_it() -> None:
    """A product of what a comparison tells and a small constant fits; one of unknown numbers may not, and is two words,
    as are these."""
    b = ModelBuilder()
    x, y = (b.input(name, (2, 3), TensorType.INT64) for name in "xy")
    told = b.op("CAST", [b.op("LESS", [x, y], shape=(2, 3), type=TensorType.BOOL)], shape=(2, 3), type=TensorType.INT64)
    small = b.op("MUL", [told, b.constant(np.array(1000, np.int64))], shape=(2, 3), type=TensorType.INT64)
    b.output(small, b.op("MUL", [x, y], shape=(2, 3), type=TensorType.INT64))
    graph = b.graph()
    assert [check_operator(graph, o) for o in graph.operators] == [None] * 4
    assert wide(graph) == {x, y, graph.outputs[1]}


def test_checking_does_not_decode_constants() -> None:
    """It must stay cheap however large the weights are."""
    b = ModelBuilder()
    weights = np.broadcast_to(np.float32(1), (1 << 12, 1 << 12))
    y = b.op("FULLY_CONNECTED", [b.input("x", (1, 1 << 12)), b.constant(weights)], shape=(1, 1 << 12))
    b.output(y)
    graph = b.graph()
    assert check_operator(graph, graph.operators[0]) is None
