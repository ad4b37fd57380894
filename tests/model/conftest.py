"""Small models that between them hold most operators, and the official runtime to run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from litegpu.model import ModelBuilder, TensorType, quantized

F = TensorType.FLOAT32


@pytest.fixture(scope="session")
def small_models() -> Mapping[str, bytes]:
    """Name -> bytes of a model."""
    return {build.__name__.lstrip("_"): build() for build in (_network, _shapes, _integer, _control_flow)}


@pytest.fixture(scope="session")
def run_official() -> Callable[[bytes], list[np.ndarray]]:
    """Runs a model on the official runtime with seeded inputs; its outputs."""
    return _run_official


def _run_official(content: bytes) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    random = np.random.default_rng(0)
    for details in interpreter.get_input_details():
        values = random.uniform(0, 1 if details["dtype"] == np.float32 else 100, details["shape"])
        interpreter.set_tensor(details["index"], values.astype(details["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(details["index"]) for details in interpreter.get_output_details()]


def _network() -> bytes:
    model = ModelBuilder("conv")
    random = np.random.default_rng(0)
    x = model.input("x", (1, 8, 8, 3))
    y = model.op(
        "CONV_2D",
        [x, model.constant(_normal(random, 4, 3, 3, 3)), model.constant(_normal(random, 4))],
        (1, 8, 8, 4),
        dict(stride_h=1, stride_w=1, padding="SAME", fused_activation_function="RELU6"),
    )
    y = model.op(
        "DEPTHWISE_CONV_2D",
        [y, model.constant(_normal(random, 1, 3, 3, 4)), model.constant(_normal(random, 4))],
        (1, 4, 4, 4),
        dict(stride_h=2, stride_w=2, padding="SAME", depth_multiplier=1),
    )
    y = model.op(
        "MAX_POOL_2D", [y], (1, 2, 2, 4), dict(stride_h=2, stride_w=2, filter_width=2, filter_height=2, padding="VALID")
    )
    y = model.op("RESHAPE", [y, model.constant([1, 16])], (1, 16), dict(new_shape=[1, 16]))
    y = model.op(
        "FULLY_CONNECTED", [y, model.constant(_normal(random, 5, 16)), model.constant(_normal(random, 5))], (1, 5)
    )
    y = model.op("SOFTMAX", [y], (1, 5), dict(beta=1.0))
    model.output(y)
    model.signature("serving_default", {"x": x}, {"y": y})
    return model.build()


def _shapes() -> bytes:
    model = ModelBuilder("shapes")
    random = np.random.default_rng(0)
    x = model.input("x", (1, 4, 6, 4))
    constant = model.constant
    outs = []
    outs.append(model.op("TRANSPOSE", [x, constant([0, 2, 1, 3])], (1, 6, 4, 4)))
    outs.append(model.op("PAD", [x, constant([[0, 0], [1, 1], [2, 0], [0, 0]])], (1, 6, 8, 4)))
    outs.append(
        model.op("MIRROR_PAD", [x, constant([[0, 0], [1, 1], [2, 0], [0, 0]])], (1, 6, 8, 4), dict(mode="REFLECT"))
    )
    outs.append(
        model.op(
            "STRIDED_SLICE", [x, constant([0, 1, 0, 0]), constant([1, 3, 6, 4]), constant([1, 1, 2, 1])], (1, 2, 3, 4)
        )
    )
    outs.append(model.op("SLICE", [x, constant([0, 1, 0, 0]), constant([1, 2, -1, 4])], (1, 2, 6, 4)))
    outs += model.op_multi("SPLIT", [constant(3), x], [((1, 4, 6, 2), F)] * 2, dict(num_splits=2))
    outs += model.op_multi(
        "SPLIT_V", [x, constant([1, 3]), constant(3)], [((1, 4, 6, 1), F), ((1, 4, 6, 3), F)], dict(num_splits=2)
    )
    outs.append(model.op("CONCATENATION", [x, x], (1, 4, 6, 8), dict(axis=3)))
    outs.append(model.op("PACK", [x, x], (2, 1, 4, 6, 4), dict(axis=0, values_count=2)))
    outs += model.op_multi("UNPACK", [x], [((4, 6, 4), F)], dict(axis=0, num=1))
    outs.append(model.op("GATHER", [x, constant([0, 2])], (1, 2, 6, 4), dict(axis=1)))
    outs.append(model.op("TILE", [x, constant([1, 2, 1, 1])], (1, 8, 6, 4)))
    outs.append(model.op("MEAN", [x, constant([1, 2])], (1, 4)))
    outs.append(model.op("ARG_MAX", [x, constant(3)], (1, 4, 6)))
    outs.append(model.op("RESIZE_BILINEAR", [x, constant([8, 8])], (1, 8, 8, 4), dict(half_pixel_centers=True)))
    outs.append(model.op("SPACE_TO_DEPTH", [x], (1, 2, 3, 16), dict(block_size=2)))
    outs.append(model.op("DEPTH_TO_SPACE", [x], (1, 8, 12, 1), dict(block_size=2)))
    outs.append(model.op("SPACE_TO_BATCH_ND", [x, constant([2, 2]), constant([[0, 0], [0, 0]])], (4, 2, 3, 4)))
    outs.append(
        model.op(
            "TRANSPOSE_CONV",
            [constant([1, 8, 12, 2]), constant(_normal(random, 2, 2, 2, 4)), x],
            (1, 8, 12, 2),
            dict(stride_h=2, stride_w=2, padding="SAME"),
        )
    )
    outs.append(model.op("SQUEEZE", [x], (4, 6, 4), dict(squeeze_dims=[0])))
    outs.append(model.op("EXPAND_DIMS", [x, constant(0)], (1, 1, 4, 6, 4)))
    outs.append(model.op("PRELU", [x, constant(_normal(random, 1, 1, 4))], (1, 4, 6, 4)))
    outs.append(model.op("ADD", [x, constant(_normal(random, 4))], (1, 4, 6, 4)))
    outs.append(model.op("BATCH_MATMUL", [x, constant(_normal(random, 1, 4, 4, 3))], (1, 4, 6, 3)))
    outs.append(model.op("CAST", [x], (1, 4, 6, 4), dict(in_data_type="FLOAT32", out_data_type="INT32")))
    outs.append(model.op("CUMSUM", [x, constant(3)], (1, 4, 6, 4)))
    outs.append(
        model.op("ONE_HOT", [constant([0, 2]), constant(3), constant(1.0), constant(0.0)], (2, 3), dict(axis=-1))
    )
    outs += model.op_multi("TOPK_V2", [x, constant(2)], [((1, 4, 6, 2), F), ((1, 4, 6, 2), TensorType.INT32)])
    outs.append(model.op("GATHER_ND", [x, constant([[0, 1], [0, 2]])], (2, 6, 4)))
    outs.append(
        model.op("SCATTER_ND", [constant([[1], [2]]), constant(_normal(random, 2, 3)), constant([4, 3])], (4, 3))
    )
    outs.append(model.op("REVERSE_V2", [x, constant([3])], (1, 4, 6, 4)))
    outs.append(model.op("BROADCAST_TO", [constant(_normal(random, 4)), constant([2, 4])], (2, 4)))
    outs.append(model.op("FILL", [constant([2, 2]), constant(1.0)], (2, 2)))
    model.output(*outs)
    return model.build()


def _integer() -> bytes:
    model = ModelBuilder("int8")
    random = np.random.default_rng(0)
    q = quantized(0.05, 3)
    x = model.input("x", (1, 4, 4, 2), TensorType.INT8, quantization=q)
    w = model.constant(
        random.integers(-100, 100, (3, 3, 3, 2)).astype(np.int8),
        quantization=quantized([0.01, 0.02, 0.03], [0, 0, 0], 0),
    )
    bias = model.constant(np.array([1, 2, 3], np.int32), quantization=quantized([0.0005, 0.001, 0.0015], [0, 0, 0], 0))
    y = model.op(
        "CONV_2D",
        [x, w, bias],
        (1, 4, 4, 3),
        dict(stride_h=1, stride_w=1, padding="SAME"),
        quantization=quantized(0.1, -5),
        version=3,
    )
    y = model.op(
        "AVERAGE_POOL_2D",
        [y],
        (1, 2, 2, 3),
        dict(stride_h=2, stride_w=2, filter_width=2, filter_height=2, padding="VALID"),
        quantization=quantized(0.1, -5),
        version=2,
    )
    y = model.op("ADD", [y, y], (1, 2, 2, 3), quantization=quantized(0.2, -5), version=2)
    y = model.op("SOFTMAX", [y], (1, 2, 2, 3), dict(beta=1.0), quantization=quantized(1 / 256, -128), version=2)
    y = model.op("DEQUANTIZE", [y], (1, 2, 2, 3), version=2)
    y = model.op("QUANTIZE", [y], (1, 2, 2, 3), type=TensorType.UINT8, quantization=quantized(1 / 256, 0))
    model.output(y)
    return model.build()


def _control_flow() -> bytes:
    model = ModelBuilder("flow")
    i = model.input("i", (), TensorType.INT32)
    x = model.input("x", (2,))
    g = model.subgraph("cond")
    a = g.input("i", (), TensorType.INT32)
    v = g.input("v", (2,))
    g.output(g.op("LESS", [a, g.constant(5)], ()))
    h = model.subgraph("body")
    a = h.input("i", (), TensorType.INT32)
    v = h.input("v", (2,))
    h.output(h.op("ADD", [a, h.constant(1)], ()), h.op("MUL", [v, h.constant(np.float32(2))], (2,)))
    o = model.op_multi(
        "WHILE", [i, x], [((), TensorType.INT32), ((2,), F)], dict(cond_subgraph_index=1, body_subgraph_index=2)
    )
    for n, op in (("t", "ADD"), ("e", "MUL")):
        g = model.subgraph(n)
        a = g.input("a", (2,))
        g.output(g.op(op, [a, a], (2,)))
    p = model.op("LESS", [i, model.constant(3)], ())
    o += model.op_multi("IF", [p, o[1]], [((2,), F)], dict(then_subgraph_index=3, else_subgraph_index=4))
    model.output(*o)
    return model.build()


def _normal(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.normal(size=shape).astype(np.float32)
