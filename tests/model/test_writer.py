"""The writer: round trips, partitions, and the builder's checks, against the official runtime."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError, OptionError
from litegpu.model import ModelBuilder, TensorType, cut, quantized, read_model, schema, write_model
from litegpu.model.types import Model, Sparsity

# hair_segmentation needs custom operators that the official runtime lacks; the other is an HTML page.
NOT_RUNNABLE = ("hair_segmentation.tflite", "malformed.tflite")


def _facts(model: Model) -> list:
    facts: list = [model.description, model.version, dict(model.metadata), model.signatures]
    for subgraph in model.subgraphs:
        facts += [subgraph.name, subgraph.inputs, subgraph.outputs]
        for tensor in subgraph.tensors:
            quantization = tensor.quantization
            facts += [tensor.name, tensor.type, tensor.shape, tensor.shape_signature, tensor.is_variable]
            facts.append(None if tensor.data is None else tensor.data.tobytes())
            if quantization is not None:
                facts += [quantization.scales.tolist(), quantization.zero_points.tolist(), quantization.dimension]
                facts += [None if v is None else v.tolist() for v in (quantization.minimum, quantization.maximum)]
        for operator in subgraph.operators:
            facts += [operator.name, operator.code, operator.version, operator.inputs, operator.outputs]
            facts += [dict(operator.options), operator.options_type, operator.custom_options, operator.intermediates]
    return facts


def test_round_trip_of_small_models(small_models, run_official):
    for content in small_models.values():
        model = read_model(content)
        written = write_model(model)
        assert _facts(read_model(written)) == _facts(model)
        if len(model.subgraphs) == 1:
            for mine, theirs in zip(run_official(written), run_official(content), strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_round_trip_of_real_models(models_dir, run_official):
    for path in sorted(models_dir.glob("*.tflite")):
        if path.name == "malformed.tflite":
            continue
        model = read_model(path)
        written = write_model(model)
        assert _facts(read_model(written)) == _facts(model), path.name
        if path.name not in NOT_RUNNABLE:
            for mine, theirs in zip(run_official(written), run_official(path.read_bytes()), strict=True):
                np.testing.assert_array_equal(mine, theirs, err_msg=path.name)


def test_writes_17_mb_in_a_second(models_dir):
    model = read_model(models_dir / "mobilenet_v1_1.0_224_random.tflite")
    start = time.process_time()
    write_model(model)
    assert time.process_time() - start < 1


def test_constants_are_aligned(small_models):
    written = write_model(read_model(small_models["network"]))
    for tensor in read_model(written).main.tensors:
        if tensor.data is not None:
            start = np.frombuffer(written, np.uint8).__array_interface__["data"][0]
            assert (tensor.data.__array_interface__["data"][0] - start) % 16 == 0


def test_shared_constants_stay_shared(small_models):
    model = read_model(small_models["network"])
    model_twice = read_model(write_model(model))
    used = [tensor.buffer for tensor in model_twice.main.tensors if tensor.data is not None]
    builder = ModelBuilder()
    x = builder.input("x", (4,))
    shared = np.ones(4, np.float32)
    first, second = builder.constant(shared), builder.constant(shared)
    builder.output(builder.op("ADD", [builder.op("MUL", [x, first], (4,)), second], (4,)))
    tensors = read_model(builder.build()).main.tensors
    assert tensors[first].buffer == tensors[second].buffer
    assert len(set(used)) == len(used)


def test_partitions_put_together_give_the_whole(models_dir, run_official):
    """Cut in two at every third node, run in sequence, compared with the whole."""
    from ai_edge_litert.interpreter import Interpreter

    path = models_dir / "deeplabv3_257_mv_gpu.tflite"
    model = read_model(path)
    main = model.main
    (whole,) = run_official(path.read_bytes())
    nodes = range(len(main.operators))
    produced = {output: operator.index for operator in main.operators for output in operator.outputs}
    for split in (1, 17, 40, 69):
        first, second = list(nodes[:split]), list(nodes[split:])
        crossing = sorted(
            {i for n in second for i in main.operators[n].inputs if i in produced and produced[i] < split}
        )
        values = {}
        for part, inputs, outputs in (
            (first, main.inputs, crossing),
            (second, (*main.inputs, *crossing), main.outputs),
        ):
            content = cut(model, 0, part, inputs, outputs)
            interpreter = Interpreter(model_content=content, num_threads=1)
            interpreter.allocate_tensors()
            for details, index in zip(interpreter.get_input_details(), inputs, strict=True):
                assert details["name"] == main.tensors[index].name
                if index in main.inputs:
                    values[index] = np.random.default_rng(0).uniform(0, 1, details["shape"]).astype(np.float32)
                interpreter.set_tensor(details["index"], values[index])
            interpreter.invoke()
            for details, index in zip(interpreter.get_output_details(), outputs, strict=True):
                values[index] = interpreter.get_tensor(details["index"])
        np.testing.assert_allclose(values[main.outputs[0]], whole, rtol=1e-5, atol=1e-5)


def test_cut_keeps_only_what_it_needs(models_dir):
    model = read_model(models_dir / "mobilenet_v1_1.0_224_random.tflite")
    operator = model.main.operators[3]
    content = cut(model, 0, [3], [operator.inputs[0]], operator.outputs)
    small = read_model(content)
    assert len(small.main.tensors) == 4 and len(small.main.operators) == 1
    assert len(content) < 2000 + sum(t.data.nbytes for t in small.main.tensors if t.data is not None)


def test_cut_with_other_shapes(small_models):
    model = read_model(small_models["network"])
    operator = model.main.operators[0]
    x, y = operator.inputs[0], operator.outputs[0]
    small = read_model(cut(model, 0, [0], [x], [y], shapes={x: (2, 8, 8, 3), y: (2, 8, 8, 4)}))
    assert small.main.tensors[small.main.inputs[0]].shape == (2, 8, 8, 3)
    assert small.main.tensors[small.main.outputs[0]].shape_signature == (2, 8, 8, 4)


def test_cut_takes_called_subgraphs_along(small_models, run_official):
    model = read_model(small_models["control_flow"])
    branch = model.main.operators[2]
    assert branch.name == "IF"
    content = cut(model, 0, [2], branch.inputs, branch.outputs)
    assert [subgraph.name for subgraph in read_model(content).subgraphs] == ["main", "t", "e"]
    run_official(content)


def test_cut_refuses_what_is_not_provided(small_models):
    model = read_model(small_models["network"])
    with pytest.raises(ModelError, match="operator 1 DEPTHWISE_CONV_2D reads tensor"):
        cut(model, 0, [1], [], model.main.operators[1].outputs)
    with pytest.raises(ModelError, match=r"output tensor .* is not made"):
        cut(model, 0, [0], model.main.inputs, model.main.outputs)


def test_options_are_checked():
    builder = ModelBuilder()
    x = builder.input("x", (1, 4, 4, 1))
    with pytest.raises(OptionError, match="did you mean 'stride_h'"):
        builder.op("MAX_POOL_2D", [x], (1, 4, 4, 1), {"strideh": 1})
    with pytest.raises(OptionError, match="did you mean 'SAME'"):
        builder.op("MAX_POOL_2D", [x], (1, 4, 4, 1), {"padding": "SAM"})
    with pytest.raises(OptionError, match="did you mean 'CONV_2D'"):
        builder.op("CONV2D", [x], (1, 4, 4, 1))
    with pytest.raises(ModelError, match="tensor 7"):
        builder.op("RELU", [7], (1, 4, 4, 1))
    builder.output(builder.op("MAX_POOL_2D", [x], (1, 4, 4, 1), {"stride_h": 2**40}))
    with pytest.raises(ModelError, match="stride_h cannot hold"):
        builder.build()


def test_every_operators_options_table_is_known():
    """The tables that no operator claims, and the operators without one, are those of the schema's design."""
    operators = schema.enum_values("BuiltinOperator")
    claimed = {schema.options_table(name) for name in operators}
    tables = set(schema.enum_values("BuiltinOptions")) | set(schema.enum_values("BuiltinOptions2"))
    assert tables - claimed == {"NONE"}
    assert {"CONV_2D", "MEAN", "UNPACK", "AVERAGE_POOL_2D", "STABLEHLO_COMPOSITE", "LSTM", "TOPK_V2"} <= {
        name for name in operators if schema.options_table(name)
    }
    assert schema.options_table("MEAN") == "ReducerOptions" and schema.options_table("L2_POOL_2D") == "Pool2DOptions"


def test_options_reach_the_official_runtime(run_official):
    """Results that come out right only if each option arrived in the field where the runtime looks for it."""
    x = np.random.default_rng(0).uniform(0, 1, (1, 4, 4, 4)).astype(np.float32) - np.float32(0.5)
    cases: list[tuple[str, dict[str, Any], Callable[[np.ndarray], np.ndarray]]] = [
        ("LEAKY_RELU", {"alpha": 0.5}, lambda x: np.where(x < 0, x / 2, x)),
        ("MEAN", {"keep_dims": True}, lambda x: x.mean(axis=3, keepdims=True)),
        ("CUMSUM", {"reverse": True}, lambda x: x[..., ::-1].cumsum(axis=3)[..., ::-1]),
        ("PACK", {"axis": 1, "values_count": 1}, lambda x: x[:, None]),
        (
            "DEPTH_TO_SPACE",
            {"block_size": 2},
            lambda x: x.reshape(1, 4, 4, 2, 2, 1).transpose(0, 1, 3, 2, 4, 5).reshape(1, 8, 8, 1),
        ),
        ("SQUEEZE", {"squeeze_dims": [0]}, lambda x: x[0]),
        ("GELU", {"approximate": True}, lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ]
    for operator, options, expected in cases:
        builder = ModelBuilder()
        tensor = builder.op("SUB", [builder.input("x", x.shape), builder.constant(np.float32(0.5))], x.shape)
        extra = [builder.constant(np.array(3, np.int32))] if operator in ("MEAN", "CUMSUM") else []
        builder.output(builder.op(operator, [tensor, *extra], expected(x).shape, options))
        (result,) = run_official(builder.build())
        np.testing.assert_allclose(result, expected(x), rtol=1e-6, atol=1e-6, err_msg=operator)


def test_variables_keep_their_value():
    from ai_edge_litert.interpreter import Interpreter

    builder = ModelBuilder()
    x = builder.input("x", (1, 2))
    state = builder.variable("state", (1, 6))
    weights = [builder.constant(np.ones(shape, np.float32)) for shape in ((3, 2), (3, 2))]
    builder.output(
        builder.op("SVDF", [x, weights[0], weights[1], None, state], (1, 3), {"rank": 1}),
    )
    content = builder.build()
    assert read_model(content).main.tensors[state].is_variable
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    results = []
    for _ in range(2):
        interpreter.set_tensor(x, np.ones((1, 2), np.float32))
        interpreter.invoke()
        results.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).copy())
    assert not np.array_equal(*results)


def test_custom_operators_round_trip():
    builder = ModelBuilder()
    x = builder.input("x", (1, 2))
    builder.output(*builder.custom("MyOp", [x], [((1, 2), TensorType.FLOAT32)], b"options"))
    (operator,) = read_model(write_model(read_model(builder.build()))).main.operators
    assert operator.is_custom and operator.name == "MyOp" and operator.custom_options == b"options"


def test_sparse_constants_round_trip(run_official):
    """A 2x4 matrix with compressed rows, as DENSIFY takes it."""
    sparsity = Sparsity(
        traversal_order=(0, 1),
        block_map=(),
        dimensions=(("dense", 2), ("csr", np.array([0, 2, 3], np.int32), np.array([0, 3, 1], np.int32))),
    )
    builder = ModelBuilder()
    x = builder.input("x", (4, 4))
    values = np.array([1, 2, 3], np.float32)
    weights = builder.constant(values, sparsity=sparsity, shape=(2, 4))
    weights = builder.op("DENSIFY", [weights], (2, 4))
    builder.output(builder.op("FULLY_CONNECTED", [x, weights, builder.constant(np.zeros(2, np.float32))], (4, 2)))
    dense = np.array([[1, 0, 0, 2], [0, 3, 0, 0]], np.float32)
    inputs = np.random.default_rng(0).uniform(0, 1, (4, 4)).astype(np.float32)
    for content in (builder.build(), write_model(read_model(builder.build()))):
        np.testing.assert_allclose(run_official(content)[0], inputs @ dense.T, rtol=1e-6)


def test_per_channel_quantization_round_trip():
    builder = ModelBuilder()
    x = builder.input("x", (1, 4), TensorType.INT8, quantization=quantized(0.5, 1))
    weights = builder.constant(np.ones((3, 4), np.int8), quantization=quantized([0.1, 0.2, 0.3], 0, 0))
    y = builder.op("FULLY_CONNECTED", [x, weights, None], (1, 3), quantization=quantized(1.0))
    builder.output(y)
    tensor = read_model(builder.build()).main.tensors[weights]
    assert tensor.quantization is not None
    np.testing.assert_array_equal(tensor.quantization.scales, np.array([0.1, 0.2, 0.3], np.float32))
    assert tensor.quantization.dimension == 0


def test_bfloat16_is_rounded_to_nearest_even():
    """0x3f80 is 1.0, 0x3f81 the next bfloat16."""
    bits = [0x3F800000, 0x3F807FFF, 0x3F808000, 0x3F808001, 0x3F818000, 0xBF818000, 0x7F7FFFFF, 0x7F800000, 0x7F800001]
    builder = ModelBuilder()
    builder.output(builder.op("ABS", [builder.input("x", (1,))], (1,)))
    number = builder.constant(np.array(bits, np.uint32).view(np.float32), type=TensorType.BFLOAT16)
    data = read_model(builder.build(), verify=False).main.tensors[number].data
    expected = [0x3F80, 0x3F80, 0x3F80, 0x3F81, 0x3F82, 0xBF82, 0x7F80, 0x7F80, 0x7FC0]
    assert np.ascontiguousarray(data).view(np.uint16).tolist() == expected
