"""The verifier's findings: each says what, where and what to do."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError
from litegpu.model import Model, ModelBuilder, TensorType, quantized, read_model, verify_model, write_model
from litegpu.model.types import Operator
from litegpu.model.verifier import _scalars


@pytest.fixture
def network(small_models) -> Model:
    return read_model(small_models["network"])


def change(model: Model, *, tensor: int | None = None, operator: int | None = None, graph=None, **values) -> Model:
    """The model with one tensor, operator or the main graph changed."""
    main = model.main
    if tensor is not None:
        tensors = list(main.tensors)
        tensors[tensor] = dataclasses.replace(tensors[tensor], **values)
        main = dataclasses.replace(main, tensors=tuple(tensors))
    elif operator is not None:
        operators = list(main.operators)
        operators[operator] = dataclasses.replace(operators[operator], **values)
        main = dataclasses.replace(main, operators=tuple(operators))
    else:
        main = dataclasses.replace(main, **values)
    return dataclasses.replace(model, subgraphs=(main, *model.subgraphs[1:]))


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "negative extent": (dict(tensor=0, shape=(1, -8, 8, 3)), r"tensor 0 'x' has a negative extent"),
    "too many elements": (dict(tensor=0, shape=(2**16, 2**16, 1, 1)), r"tensor 0 'x' .* more than 2147483647"),
    "rank": (dict(tensor=0, shape=(1,) * 12, shape_signature=(1,) * 12), r"tensor 0 'x' has rank 12"),
    "signature": (dict(tensor=0, shape_signature=(1, 2)), r"tensor 0 'x' has shape .* signature \[1, 2\]"),
    "large": (dict(tensor=0, shape=(1, 2**23, 8, 3), shape_signature=(1, 2**23, 8, 3)), r"201326592 elements"),
    "variable constant": (dict(tensor=1, is_variable=True), r"tensor 1 .* is a variable"),
    "graph input": (dict(inputs=(99,)), r"input tensor 99 does not exist"),
    "graph output": (dict(outputs=(99,)), r"output tensor 99 does not exist"),
    "no writer": (dict(operators=()), r"output tensor \d+ '.*' is written by no operator"),
    "operator input": (dict(operator=1, inputs=(99, 4, 5)), r"operator 1 DEPTHWISE_CONV_2D uses tensor 99"),
    "operator output": (dict(operator=1, outputs=(-1,)), r"operator 1 DEPTHWISE_CONV_2D lacks an output"),
    "arity": (dict(operator=5, inputs=()), r"operator 5 SOFTMAX: it has 0 inputs, but takes 1"),
    "missing input": (dict(operator=0, inputs=(0, -1, 2)), r"operator 0 CONV_2D: it lacks its input 1"),
    "options": (dict(operator=0, options_type="AddOptions"), r"operator 0 CONV_2D has AddOptions.*Conv2DOptions"),
    "writes a constant": (dict(operator=0, outputs=(1,)), r"operator 0 CONV_2D writes tensor 1 .* a constant"),
    "writes an input": (dict(operator=0, outputs=(0,)), r"operator 0 CONV_2D writes tensor 0 'x'.* a graph input"),
    "stride": (dict(operator=2, options={"stride_w": 0, "stride_h": 1}), r"operator 2 MAX_POOL_2D: its option stride"),
    "calls": (dict(operator=0, subgraphs=(7,)), r"operator 0 CONV_2D calls subgraph 7"),
    "calls itself": (dict(operator=0, subgraphs=(0,)), r"in a circle"),
    "scales": (dict(tensor=0, quantization=quantized([0.1, 0.2])), r"tensor 0 'x' .* has 2 scales along dimension 0"),
    "scale": (dict(tensor=0, type=TensorType.INT8, quantization=quantized(float("nan"))), r"tensor 0 'x' has a scale"),
    "dimension": (dict(tensor=0, quantization=quantized([0.1, 0.2], 0, 9)), r"along dimension 9"),
}


@pytest.mark.parametrize("name", CASES)
def test_finds(network, name):
    values, message = CASES[name]
    with pytest.raises(ModelError, match=message) as caught:
        verify_model(change(network, **values))
    assert "convert" in str(caught.value) or "split" in str(caught.value)


def test_custom_operators_may_lack_outputs_unless_the_official_runtime_knows_that_they_do_not(network):
    operators = network.main.operators

    def with_custom(name: str) -> Model:
        added = Operator(len(operators), name, 32, 1, inputs=(-1,), outputs=(-1,), is_custom=True)
        return change(network, operators=(*operators, added))

    verify_model(with_custom("FakeOp"))
    assert read_model(bytes(write_model(with_custom("FakeOp")))).main.operators[-1].outputs == (-1,)
    for known in ("TFLite_Detection_PostProcess", "MaxPoolingWithArgmax2D"):
        with pytest.raises(ModelError, match=rf"operator {len(operators)} {known} lacks an output"):
            verify_model(with_custom(known))


def test_cycle_and_wrong_order(network):
    reordered = (network.main.operators[1], network.main.operators[0], *network.main.operators[2:])
    with pytest.raises(ModelError, match=r"operator 1 DEPTHWISE_CONV_2D reads tensor 3 .* before anything has written"):
        verify_model(change(network, operators=reordered))
    output = network.main.operators[-1].outputs[0]
    with pytest.raises(ModelError, match="cycle"):
        verify_model(change(network, operator=0, inputs=(output, 1, 2)))


def test_written_twice(network):
    second = network.main.operators[1]
    with pytest.raises(ModelError, match=r"operator 1 DEPTHWISE_CONV_2D writes tensor 6 .* written by operator 1"):
        verify_model(change(network, operators=(network.main.operators[0], second, second)))


def test_signatures(network):
    (signature,) = network.signatures
    changed = dataclasses.replace(network, signatures=(dataclasses.replace(signature, subgraph=3),))
    with pytest.raises(ModelError, match="signature 'serving_default' is of subgraph 3"):
        verify_model(changed)
    for values in ({"inputs": {"x": 2}}, {"outputs": {"y": 99}}):  # the official modify_model_interface leaves such
        verify_model(dataclasses.replace(network, signatures=(dataclasses.replace(signature, **values),)))


def test_scales_of_float_tensors_mean_nothing(network):
    verify_model(change(network, tensor=0, quantization=quantized(float("nan"))))


def test_zero_point_beyond_its_type():
    builder = ModelBuilder()
    x = builder.input("x", (1, 2), TensorType.INT8, quantization=quantized(0.1, 300))
    builder.output(builder.op("DEQUANTIZE", [x], (1, 2)))
    with pytest.raises(ModelError, match="tensor 0 'x' has a zero point beyond its type INT8"):
        read_model(builder.build())


def test_the_file_is_named_and_verification_can_be_left_out(network, tmp_path):
    path = tmp_path / "wrong.tflite"
    path.write_bytes(write_model(change(network, operator=5, inputs=())))
    with pytest.raises(ModelError, match=r"wrong\.tflite': subgraph 0 'main': operator 5 SOFTMAX: it has 0 inputs"):
        read_model(path)
    assert read_model(path, verify=False).main.operators[5].inputs == ()


def test_absent_bias_is_allowed():
    builder = ModelBuilder()
    x = builder.input("x", (1, 4))
    builder.output(builder.op("FULLY_CONNECTED", [x, builder.constant(np.ones((2, 4), np.float32)), None], (1, 2)))
    read_model(builder.build())


def test_every_model_at_hand_passes_quickly(models_dir):
    for path in sorted(models_dir.glob("*.tflite")):
        if path.name == "malformed.tflite":
            continue
        model = read_model(path, verify=False)
        start = time.process_time()
        verify_model(model)
        assert time.process_time() - start < 0.1, path.name


def calling(
    kind: str, inner: TensorType = TensorType.FLOAT32, result: TensorType = TensorType.FLOAT32, inputs: int = 1
) -> bytes:
    """A model whose operator `kind` calls subgraphs, the first with inputs of type `inner` and a result of `result`,
    the others with those of float32."""
    model = ModelBuilder()
    x, p = model.input("x", (2,)), model.input("p", (), TensorType.BOOL)
    bodies = [model.subgraph(name) for name in ("first", "second")]
    for graph, (given, made) in zip(bodies, ((inner, result), (TensorType.FLOAT32,) * 2), strict=True):
        values = [graph.input(f"a{i}", (2,), given) for i in range(inputs)]
        if kind == "WHILE" and graph is bodies[1]:
            graph.output(graph.op("LESS", [values[0], values[0]], (2,), type=TensorType.BOOL))
        else:
            graph.output(graph.op("CAST", values[:1], (2,), type=made))
    calls: dict[str, tuple[list[int], dict[str, Any]]] = {
        "IF": ([p, x], dict(then_subgraph_index=1, else_subgraph_index=2)),
        "WHILE": ([x], dict(cond_subgraph_index=2, body_subgraph_index=1)),
        "STABLEHLO_COMPOSITE": ([x], dict(name="odml.thing", decomposition_subgraph_index=1, version=1)),
    }
    operands, options = calls[kind]
    model.output(model.op(kind, operands, (2,), options, type=TensorType.FLOAT32))
    return model.build()


@pytest.mark.parametrize("kind", ["IF", "WHILE", "STABLEHLO_COMPOSITE"])
def test_what_is_handed_to_subgraphs_is_of_their_types(kind):
    """The official runtime copies it into memory of another size: it crashes, or its heap is damaged."""
    read_model(calling(kind))
    with pytest.raises(ModelError, match=rf"{kind} has tensor 0 'x' of type FLOAT32 where subgraph 1 .* of type INT8"):
        read_model(calling(kind, inner=TensorType.INT8))
    with pytest.raises(ModelError, match=rf"{kind} has tensor .* of type FLOAT32 where subgraph 1 .* of type FLOAT64"):
        read_model(calling(kind, result=TensorType.FLOAT64))
    with pytest.raises(ModelError, match=rf"{kind} has 1 inputs for subgraph \d, which has 2"):
        read_model(calling(kind, inputs=2))


@pytest.mark.parametrize("kind", ["IF", "STABLEHLO_COMPOSITE"])
@pytest.mark.parametrize("name", ["SHAPE", "RANK"])
def test_what_follows_from_shapes_is_not_handed_out(kind, name):
    """The official runtime frees it twice; behind another operator it is a value like all others."""

    def model(behind: bool) -> bytes:
        b, shape = ModelBuilder(), (1,) if name == "SHAPE" else ()
        x, p = b.input("x", (2,)), b.input("p", (), TensorType.BOOL)
        for title in ("first", "second"):
            body = b.subgraph(title)
            found = body.op(name, [body.input("a", (2,))], shape, type=TensorType.INT32)
            zero = body.constant(np.zeros(shape, np.int32))
            body.output(body.op("ADD", [found, zero], shape, type=TensorType.INT32) if behind else found)
        options: dict[str, Any] = dict(then_subgraph_index=1, else_subgraph_index=2)
        if kind != "IF":
            options = dict(name="odml.thing", decomposition_subgraph_index=1, version=1)
        b.output(b.op(kind, [p, x] if kind == "IF" else [x], shape, options, type=TensorType.INT32))
        return b.build()

    read_model(model(behind=True))
    with pytest.raises(ModelError, match=rf"subgraph 1 hands out what .*{name} gives"):
        read_model(model(behind=False))


@pytest.mark.parametrize("type_", [TensorType.BOOL, TensorType.FLOAT16, TensorType.INT4])
def test_diagonals_of_types_that_the_runtime_ends_the_process_on(type_):
    def model(type_: TensorType) -> bytes:
        b = ModelBuilder()
        b.output(b.op("MATRIX_DIAG", [b.input("x", (4,), type_)], (4, 4), type=type_))
        return b.build()

    read_model(model(TensorType.INT16))
    with pytest.raises(
        ModelError, match=f"MATRIX_DIAG: its input 0, .* is of type {type_.name}, which it does not take"
    ):
        read_model(model(type_))


def test_indices_of_a_stablehlo_gather_have_an_axis():
    def model(shape: tuple[int, ...]) -> bytes:
        b = ModelBuilder()
        options = dict(
            offset_dims=[0], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=0, slice_sizes=[1, 3]
        )
        x, at = b.input("x", (4, 3)), b.input("at", shape, TensorType.INT32)
        b.output(b.op("STABLEHLO_GATHER", [x, at], (3,), options))
        return b.build()

    read_model(model((1,)))
    with pytest.raises(ModelError, match="its indices have no axis"):
        read_model(model(()))


@pytest.mark.parametrize("name", ["ARG_MAX", "SUM"])
def test_a_number_of_a_huge_vector(name):
    def vector(length: int) -> bytes:
        model = ModelBuilder()
        x = model.input("x", (length,), TensorType.INT8, quantization=quantized(0.1))
        type_ = dict(type=TensorType.INT64) if name == "ARG_MAX" else dict(quantization=quantized(0.1))
        model.output(model.op(name, [x, model.constant([0] if name == "SUM" else 0)], (), **type_))
        return model.build()

    read_model(vector(2**26))
    with pytest.raises(ModelError, match="has 2147483647 elements, but what it is computed from"):
        read_model(vector(2**31 - 1))


def choosing(kind: str, **types: TensorType) -> bytes:
    """IF or WHILE whose subgraphs have each their own types: by default float32, which is what is handed in.

    first, second: inputs of the subgraphs; made, other: their results; result: what comes out.
    """
    f = TensorType.FLOAT32
    of = {"first": f, "second": f, "made": f, "other": f, "result": f} | types
    model = ModelBuilder()
    x, p = model.input("x", (2,)), model.input("p", (), TensorType.BOOL)
    first, second = model.subgraph("first"), model.subgraph("second")
    first.output(first.op("CAST", [first.input("a", (2,), of["first"])], (2,), type=of["made"]))
    b = second.input("b", (2,), of["second"])
    if kind == "WHILE":
        second.output(second.op("LESS", [b, b], (2,), type=TensorType.BOOL))
        operands, options = [x], dict(cond_subgraph_index=2, body_subgraph_index=1)
    else:
        second.output(second.op("CAST", [b], (2,), type=of["other"]))
        operands, options = [p, x], dict(then_subgraph_index=1, else_subgraph_index=2)
    model.output(model.op(kind, operands, (2,), options, type=of["result"]))
    return model.build()


@pytest.mark.parametrize("kind, types, called", [
    ("IF", {}, None), ("WHILE", {}, None),
    ("IF", {"made": TensorType.INT32, "other": TensorType.INT32, "result": TensorType.INT32}, None),
    ("IF", {"second": TensorType.INT32}, 2), ("IF", {"other": TensorType.INT32}, 2),
    ("IF", {"result": TensorType.INT32}, 1), ("WHILE", {"second": TensorType.INT32}, 2),
    ("WHILE", {"made": TensorType.INT32, "result": TensorType.INT32}, 1), ("WHILE", {"result": TensorType.INT32}, 1),
])  # fmt: skip
def test_every_subgraph_is_held_against_what_it_is_handed(kind, types, called):
    """Both of IF; of WHILE the condition, and the body's results also against what goes in again."""
    if called is None:
        read_model(choosing(kind, **types))
        return
    with pytest.raises(ModelError, match=rf"{kind} has tensor \d+ '.*' of type .* where subgraph {called} has"):
        read_model(choosing(kind, **types))


@pytest.mark.parametrize("name, axes, rank, options, whole", [
    ("SUM", [0], 1, {}, True), ("SUM", [-1], 1, {}, True), ("SUM", [0, -1], 2, {}, True), ("SUM", [0], 2, {}, False),
    ("SUM", [-2, 1], 2, {}, True), ("SUM", [1, -1], 2, {}, False), ("SUM", [0], 1, dict(keep_dims=True), False),
    ("SUM", None, 1, {}, False), ("ARG_MAX", [0], 1, {}, True), ("ARG_MAX", [0], 2, {}, False),
    ("ABS", None, 1, {}, False),
])  # fmt: skip
def test_which_results_are_numbers(name, axes, rank, options, whole):
    """A result without a shape in the file: known to be a number, or just not stated."""
    model = ModelBuilder()
    x = model.input("x", (1,) * rank)
    given = (
        [] if name == "ABS" else [model.input("axes", (1,), TensorType.INT32) if axes is None else model.constant(axes)]
    )
    type_: dict[str, Any] = dict(type=TensorType.INT64) if name == "ARG_MAX" else {}
    y = model.op(name, [x, *given], (), options, **type_)
    model.output(y)
    main = read_model(model.build(), verify=False).main
    assert _scalars(main.operators[0], main) == ((y,) if whole else ())
