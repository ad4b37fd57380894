"""Small valid models that between them hold every operator that the official runtime has a kernel for."""

from __future__ import annotations

import functools
import os
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from op_cases import CASES
from quantized_cases import KINDS, operators, quantized_case

from litegpu.model import ModelBuilder, TensorType, quantized
from litegpu.model.types import Sparsity

F, I32, I64, I8, U8, I16, BOOL = (
    TensorType.FLOAT32, TensorType.INT32, TensorType.INT64, TensorType.INT8, TensorType.UINT8, TensorType.INT16,
    TensorType.BOOL,
)  # fmt: skip
STRING, RESOURCE, COMPLEX = TensorType.STRING, TensorType.RESOURCE, TensorType.COMPLEX64

Make = Callable[[ModelBuilder], None]


def seed_names() -> list[str]:
    """One name for each seed model; `seed_model` makes its bytes. LITEGPU_FUZZ_FILES names files to be used instead."""
    if files := os.environ.get("LITEGPU_FUZZ_FILES"):
        return [f"file {path}" for path in files.split(os.pathsep)]
    named = [f"op {name} {k}" for name in CASES for k in range(3)]
    named += [f"{kind} {name}" for kind in KINDS for name in operators(kind)]
    return named + [f"further {name}" for name in _FURTHER]


@functools.lru_cache(maxsize=1024)
def seed_model(name: str) -> bytes:
    """The bytes of a seed model; b"" where the official runtime has no such quantized operator."""
    kind, operator, *rest = name.split(" ")
    if kind == "file":
        return Path(name.removeprefix("file ")).read_bytes()
    if kind == "further":
        model = ModelBuilder()
        _FURTHER[operator](model)
        return model.build()
    if kind == "op":
        return CASES[operator](random.Random(f"{operator} {rest[0]}")).content
    case = quantized_case(operator, kind, 0)
    return b"" if case is None else case.content


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


_FURTHER: dict[str, Make] = {}


def _further(make: Make) -> Make:
    _FURTHER[make.__name__.lstrip("_")] = make
    return make


def _simple(name: str, operands: list[Any], outputs: list[tuple[tuple[int, ...], TensorType]],
            options: Mapping[str, Any] | None = None, label: str = "") -> None:  # fmt: skip
    """Operands are arrays for constants, and (shape, type) for inputs of the graph."""

    def make(model: ModelBuilder) -> None:
        tensors: list[int | None] = []
        for number, operand in enumerate(operands):
            match operand:
                case None:
                    tensors.append(None)
                case tuple():
                    tensors.append(model.input(f"x{number}", *operand))
                case list():
                    tensors.append(model.constant(operand, type=STRING))
                case _:
                    tensors.append(model.constant(operand))
        if name in _CUSTOM:
            model.output(*model.custom(name, tensors, outputs, _CUSTOM[name]))
        else:
            model.output(*model.op_multi(name, tensors, outputs, options))

    _FURTHER[name + label] = make


def _flex(**values: Any) -> bytes:
    from flatbuffers import flexbuffers

    return bytes(flexbuffers.Dumps(values))


_CUSTOM: Mapping[str, bytes] = {
    "AudioSpectrogram": _flex(window_size=64, stride=32, magnitude_squared=False),
    "Mfcc": _flex(upper_frequency_limit=4000, lower_frequency_limit=20, filterbank_channel_count=40,
                  dct_coefficient_count=13),
    "TFLite_Detection_PostProcess": _flex(
        max_detections=4, max_classes_per_detection=1, detections_per_class=2, use_regular_nms=False,
        nms_score_threshold=0.1, nms_iou_threshold=0.5, num_classes=3, y_scale=10.0, x_scale=10.0, h_scale=5.0,
        w_scale=5.0),
    "MaxPoolingWithArgmax2D": struct.pack("<6i", 1, 2, 2, 2, 2, 0),
    "MaxUnpooling2D": struct.pack("<6i", 1, 2, 2, 2, 2, 0),
    "Convolution2DTransposeBias": struct.pack("<3i", 1, 2, 2),
}  # fmt: skip

_simple("BITCAST", [((2, 3), F)], [((2, 3), I32)])
_simple("BITWISE_XOR", [((2, 3), I32), ((2, 3), I32)], [((2, 3), I32)])
_simple("RIGHT_SHIFT", [((2, 3), I32), ((2, 3), I32)], [((2, 3), I32)])
_simple("BROADCAST_ARGS", [np.array([2, 1], np.int32), np.array([3], np.int32)], [((2,), I32)])
_simple("BROADCAST_ARGS", [((2,), I32), ((1,), I32)], [((2,), I32)], label="_run")
_simple("BUCKETIZE", [((3, 4), F)], [((3, 4), I32)], {"boundaries": [0.0, 0.5, 2.0]})
_simple("COMPLEX_ABS", [((2, 3), COMPLEX)], [((2, 3), F)])
_simple("REAL", [((2, 3), COMPLEX)], [((2, 3), F)])
_simple("IMAG", [((2, 3), COMPLEX)], [((2, 3), F)])
_simple("RFFT2D", [((1, 4, 8), F), np.array([4, 8], np.int32)], [((1, 4, 5), COMPLEX)])
_simple("CONV_3D", [((1, 4, 5, 6, 2), F), _normal(2, 2, 2, 2, 3), _normal(3)], [((1, 4, 5, 6, 3), F)],
        dict(stride_d=1, stride_h=1, stride_w=1, padding="SAME"))  # fmt: skip
_simple("CONV_3D_TRANSPOSE", [np.array([1, 4, 5, 6, 2], np.int32), _normal(2, 2, 2, 2, 3), ((1, 4, 5, 6, 3), F)],
        [((1, 4, 5, 6, 2), F)], dict(stride_d=1, stride_h=1, stride_w=1, padding="SAME"))  # fmt: skip
_simple("DILATE", [((3, 4), F), np.array([2, 3], np.int32), np.array(0, np.float32)], [((5, 10), F)])
_simple("DYNAMIC_UPDATE_SLICE", [((4, 5), F), ((2, 2), F), ((2,), I32)], [((4, 5), F)])
_simple("EMBEDDING_LOOKUP", [((3,), I32), _normal(5, 4)], [((3, 4), F)])
_simple("EMBEDDING_LOOKUP_SPARSE",
        [np.array([0, 2], np.int32), np.array([[0, 0], [1, 0]], np.int32), np.array([2, 1], np.int32),
         np.array([1, 2], np.float32), _normal(5, 4)], [((2, 4), F)])  # fmt: skip
_simple("FAKE_QUANT", [((2, 3), F)], [((2, 3), F)], dict(min=-1.0, max=1.0, num_bits=8))
_simple("FILL", [np.array([2, 3], np.int32), np.array(1, np.float32)], [((2, 3), F)])
_simple("FILL", [((2,), I32), np.array(1, np.float32)], [((2, 3), F)], label="_run")
_simple("RANGE", [np.array(0, np.int32), np.array(9, np.int32), np.array(2, np.int32)], [((5,), I32)])
_simple("RANGE", [((), F), ((), F), ((), F)], [((5,), F)], label="_run")
_simple("HASHTABLE_LOOKUP", [((3,), I32), np.array([1, 2, 3], np.int32), _normal(3, 2)], [((3, 2), F), ((3,), U8)])
_simple("L2_POOL_2D", [((1, 6, 6, 3), F)], [((1, 3, 3, 3), F)],
        dict(stride_h=2, stride_w=2, filter_height=2, filter_width=2, padding="SAME"))  # fmt: skip
_simple("LOCAL_RESPONSE_NORMALIZATION", [((1, 3, 3, 6), F)], [((1, 3, 3, 6), F)],
        dict(radius=2, bias=1.0, alpha=0.5, beta=0.5))  # fmt: skip
_simple("LSH_PROJECTION", [_normal(3, 2), ((4,), I32), _normal(4)], [((3,), I32)], dict(type="SPARSE"))
_simple("MATRIX_DIAG", [((2, 3), F)], [((2, 3, 3), F)])
_simple("MATRIX_SET_DIAG", [((2, 3, 3), F), ((2, 3), F)], [((2, 3, 3), F)])
_simple("MULTINOMIAL", [((2, 5), F), np.array(4, np.int32)], [((2, 4), I64)], dict(seed=1, seed2=2))
_simple("RANDOM_UNIFORM", [np.array([2, 3], np.int32)], [((2, 3), F)], dict(seed=1, seed2=2))
_simple("RANDOM_STANDARD_NORMAL", [((2,), I32)], [((2, 3), F)], dict(seed=1, seed2=2))
_NMS = [((6, 4), F), ((6,), F), np.array(3, np.int32), np.array(0.5, np.float32), np.array(0.1, np.float32)]
_simple("NON_MAX_SUPPRESSION_V4", _NMS, [((3,), I32), ((), I32)])
_simple("NON_MAX_SUPPRESSION_V5", [*_NMS, np.array(0.5, np.float32)], [((3,), I32), ((3,), F), ((), I32)])
_simple("RANK", [((2, 3), F)], [((), I32)])
_simple("SHAPE", [((2, 3), F)], [((2,), I32)], dict(out_type="INT32"))
_simple("REDUCE_ALL", [((2, 3), BOOL), np.array([1], np.int32)], [((2,), BOOL)])
_simple("REDUCE_ANY", [((2, 3), BOOL), ((1,), I32)], [((2,), BOOL)], dict(keep_dims=True))
_simple("REDUCE_WINDOW",
        [((4, 6), F), np.array(0, np.float32), np.array([2, 2], np.int64), np.array([2, 2], np.int64),
         np.array([1, 1], np.int64)], [((2, 3), F)], dict(reduce_function="ADD"))  # fmt: skip
_simple("REVERSE_SEQUENCE", [((3, 4), F), np.array([1, 2, 3], np.int32)], [((3, 4), F)], dict(seq_dim=1, batch_dim=0))
_simple("RNN", [((2, 3), F), _normal(4, 3), _normal(4, 4), _normal(4), ((2, 4), F)], [((2, 4), F)])
_simple("SEGMENT_SUM", [((4, 3), F), np.array([0, 0, 1, 2], np.int32)], [((3, 3), F)])
for _name in ("MAX", "MIN", "PROD", "SUM"):
    _simple(f"UNSORTED_SEGMENT_{_name}", [((4, 3), F), ((4,), I32), np.array(3, np.int32)], [((3, 3), F)])
_simple("SKIP_GRAM", [[b"the quick brown fox"]], [((3,), STRING)], dict(ngram_size=2, max_skip_size=1))
_simple("SPARSE_TO_DENSE", [((2, 2), I32), np.array([4, 5], np.int32), ((2,), F), np.array(0, np.float32)],
        [((4, 5), F)])  # fmt: skip
_simple("UNIQUE", [((6,), I32)], [((6,), I32), ((6,), I32)], dict(idx_out_type="INT32"))
_simple("WHERE", [((2, 3), BOOL)], [((4, 2), I64)])
_simple("WHERE", [((2, 3), F)], [((4, 2), I64)], label="_float")
_simple("ZEROS_LIKE", [((2, 3), F)], [((2, 3), F)])
_simple("DEQUANTIZE", [_normal(3, 4).astype(np.float16)], [((3, 4), F)], label="_f16")
_simple("GATHER_ND", [[b"ab", b"c", b"def"], np.array([[1]], np.int32)], [((1,), STRING)], label="_strings")
_simple("SQUEEZE", [((1, 2), STRING)], [((2,), STRING)], dict(squeeze_dims=[0]), label="_strings")
_simple("CONCATENATION", [[b"ab", b"c"], [b"q"]], [((3,), STRING)], dict(axis=0), label="_strings")
_simple("STRIDED_SLICE", [[b"ab", b"c"], *(np.array([n], np.int32) for n in (0, 2, 1))], [((2,), STRING)],
        label="_strings")  # fmt: skip
_simple("EQUAL", [[b"ab", b"c"], [b"q"]], [((2,), BOOL)], label="_strings")
_simple("CAST", [((2, 3), F)], [((2, 3), I8)], dict(in_data_type="FLOAT32", out_data_type="INT8"), label="_i8")
_simple("AudioSpectrogram", [((128, 1), F)], [((1, 3, 33), F)])
_simple("Mfcc", [((1, 3, 33), F), np.array(8000, np.int32)], [((1, 3, 13), F)])
_simple("TFLite_Detection_PostProcess", [((1, 6, 4), F), ((1, 6, 4), F), _normal(6, 4)],
        [((1, 4, 4), F), ((1, 4), F), ((1, 4), F), ((1,), F)])  # fmt: skip
_simple("MaxPoolingWithArgmax2D", [((1, 4, 4, 3), F)], [((1, 2, 2, 3), F), ((1, 2, 2, 3), F)])
_simple("MaxUnpooling2D", [((1, 2, 2, 3), F), ((1, 2, 2, 3), F)], [((1, 4, 4, 3), F)])
_simple("Convolution2DTransposeBias", [((1, 4, 4, 3), F), _normal(2, 2, 2, 3), _normal(2)], [((1, 8, 8, 2), F)])
for _name, _shape in (("ABS", (2, 3)), ("CBRT", (2, 3)), ("LOGISTIC", (4,)), ("TANH", (4,)), ("NEGATE", (4,))):
    _simple(f"STABLEHLO_{_name}", [(_shape, F)], [(_shape, F)])
for _name in ("ADD", "MULTIPLY", "MAXIMUM", "SUBTRACT", "DIVIDE", "MINIMUM", "REMAINDER", "POWER"):
    _simple(f"STABLEHLO_{_name}", [((2, 3), F), ((2, 3), F)], [((2, 3), F)])
for _name in ("AND", "OR", "SHIFT_LEFT"):
    _simple(f"STABLEHLO_{_name}", [((2, 3), I32), ((2, 3), I32)], [((2, 3), I32)])
_simple("STABLEHLO_CLAMP", [((3,), F), ((3,), F), ((3,), F)], [((3,), F)])
_simple("STABLEHLO_SELECT", [((3,), BOOL), ((3,), F), ((3,), F)], [((3,), F)])
_simple("STABLEHLO_BROADCAST_IN_DIM", [((3,), F)], [((2, 3), F)], dict(broadcast_dimensions=[1]))
_simple("STABLEHLO_COMPARE", [((3,), F), ((3,), F)], [((3,), BOOL)], dict(comparison_direction=4))
_simple("STABLEHLO_CONCATENATE", [((2, 3), F), ((2, 3), F)], [((4, 3), F)], dict(dimension=0))
_simple("STABLEHLO_GATHER", [((4, 5), F), ((3, 1), I32)], [((3, 5), F)],
        dict(offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1,
             slice_sizes=[1, 5]))  # fmt: skip
_simple("STABLEHLO_IOTA", [], [((2, 3), F)], dict(iota_dimension=1))
_simple("STABLEHLO_PAD", [((3,), F), np.array(0, np.float32)], [((6,), F)],
        dict(edge_padding_low=[1], edge_padding_high=[2], interior_padding=[0]))  # fmt: skip
_simple("STABLEHLO_SLICE", [((4, 5), F)], [((2, 5), F)],
        dict(start_indices=[1, 0], limit_indices=[3, 5], strides=[1, 1]))  # fmt: skip
_simple("STABLEHLO_TRANSPOSE", [((4, 5), F)], [((5, 4), F)], dict(permutation=[1, 0]))
_simple("STABLEHLO_DYNAMIC_SLICE", [((4, 5), F), ((), I32), ((), I32)], [((2, 2), F)], dict(slice_sizes=[2, 2]))
_simple("STABLEHLO_DYNAMIC_UPDATE_SLICE", [((4, 5), F), ((2, 2), F), ((), I32), ((), I32)], [((4, 5), F)])
_simple("STABLEHLO_DOT_GENERAL", [((2, 3), F), ((3, 4), F)], [((2, 4), F)],
        dict(lhs_contracting_dimensions=[1], rhs_contracting_dimensions=[0]))  # fmt: skip
_simple("STABLEHLO_CONVERT", [((2, 3), F)], [((2, 3), I32)])
_simple("STABLEHLO_RESHAPE", [((2, 3), F)], [((3, 2), F)])
_simple("STABLEHLO_RNG_BIT_GENERATOR", [((2,), TensorType.UINT64)],
        [((2,), TensorType.UINT64), ((3,), TensorType.UINT32)])  # fmt: skip


def _svdf(model: ModelBuilder) -> None:
    x = model.input("x", (2, 3))
    state = model.variable("state", (2, 4 * 5))
    w, t = model.constant(_normal(4, 3)), model.constant(_normal(4, 5))
    model.output(model.op("SVDF", [x, w, t, model.constant(_normal(2)), state], (2, 2), dict(rank=2)))


def _sequence_rnn(model: ModelBuilder) -> None:
    x = model.input("x", (2, 3, 4))
    operands = [x, *(model.constant(_normal(*s)) for s in ((5, 4), (5, 5), (5,))), model.variable("h", (2, 5))]
    model.output(model.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, (2, 3, 5)))


def _bidirectional_rnn(model: ModelBuilder) -> None:
    operands: list[int | None] = [model.input("x", (2, 3, 4))]
    for name, units in (("f", 5), ("b", 6)):
        operands += [model.constant(_normal(*s)) for s in ((units, 4), (units, units), (units,))]
        operands.append(model.variable(name, (2, units)))
    outputs = [((2, 3, 5), F), ((2, 3, 6), F)]
    model.output(*model.op_multi("BIDIRECTIONAL_SEQUENCE_RNN", [*operands, None, None, None], outputs))


def _lstm_operands(model: ModelBuilder, depth: int, units: int, batch: int) -> list[int | None]:
    operands: list[int | None] = [model.constant(_normal(units, depth)) for _ in range(4)]
    operands += [model.constant(_normal(units, units)) for _ in range(4)]
    operands += [None, None, None]
    operands += [model.constant(_normal(units)) for _ in range(4)]
    operands += [None, None, model.variable("h", (batch, units)), model.variable("c", (batch, units))]
    return [*operands, None, None, None, None]


def _sequence_lstm(model: ModelBuilder) -> None:
    x = model.input("x", (2, 3, 4))
    operands = _lstm_operands(model, 4, 5, 2)
    model.output(model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", [x, *operands], (2, 3, 5), dict(fused_activation_function=4)))


def _lstm(model: ModelBuilder) -> None:
    x = model.input("x", (2, 4))
    operands = _lstm_operands(model, 4, 5, 2)[:-4]
    model.output(model.op("LSTM", [x, *operands], (2, 5), dict(fused_activation_function=4)))


def _basic_lstm(model: ModelBuilder) -> None:
    x, h, c = model.input("x", (2, 4)), model.variable("h", (2, 5)), model.variable("c", (2, 5))
    operands = [x, h, model.constant(_normal(20, 9)), model.constant(_normal(20)), c]
    outputs = [((2, 5), F), ((2, 5), F), ((2, 9), F), ((2, 20), F)]
    model.output(*model.op_multi("LSTM", operands, outputs, dict(fused_activation_function=4, kernel_type="BASIC")))


def _normalized_lstm(model: ModelBuilder) -> None:
    _quantized_lstm(model, normalized=True)


def _quantized_lstm(model: ModelBuilder, normalized: bool = False) -> None:
    q = quantized(0.02, 3)
    w = quantized(0.01, 0)
    x = model.input("x", (1, 3, 4), I8, quantization=q)
    rng = np.random.default_rng(0)

    def weights(rows: int, columns: int) -> int:
        return model.constant(rng.integers(-100, 100, (rows, columns)).astype(np.int8), quantization=w)

    def bias() -> int:
        return model.constant(rng.integers(-100, 100, 5).astype(np.int32), quantization=quantized(0.0002, 0))

    operands: list[int | None] = [weights(5, 4) for _ in range(4)]
    operands += [weights(5, 5) for _ in range(4)] + [None, None, None] + [bias() for _ in range(4)] + [None, None]
    h = model.tensor((1, 5), I8, "h", quantization=quantized(0.0078125, 0), is_variable=True)
    c = model.tensor((1, 5), I16, "c", quantization=quantized(2**-11, 0), is_variable=True)
    inner = [model.tensor((), I16, quantization=quantized(2**-12, 0)) for _ in range(4)]
    inner.append(model.tensor((), I8, quantization=quantized(0.0078125, 0)))
    norms: list[int | None] = [None] * 4
    if normalized:
        norms = [model.constant(rng.integers(-9000, 32767, 5).astype(np.int16), quantization=w) for _ in norms]
    y = model.op("UNIDIRECTIONAL_SEQUENCE_LSTM", [x, *operands, h, c, *norms], (1, 3, 5),
                 dict(fused_activation_function=4, cell_clip=10.0), quantization=quantized(0.0078125, 0),
                 intermediates=inner)  # fmt: skip
    model.output(y)


def _bidirectional_lstm(model: ModelBuilder) -> None:
    x = model.input("x", (2, 3, 4))
    half: list[list[int | None]] = []
    for name in ("f", "b"):
        half.append([model.constant(_normal(*s)) for s in ((5, 4),) * 4 + ((5, 5),) * 4])
        half[-1] += [None, None, None, *(model.constant(_normal(5)) for _ in range(4)), None, None]
        half[-1] += [model.variable(name + "h", (2, 5)), model.variable(name + "c", (2, 5))]
    operands = [x, *half[0][:17], *half[1][:17], *half[0][17:], *half[1][17:], *[None] * 9]
    model.output(
        *model.op_multi(
            "BIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            [((2, 3, 5), F), ((2, 3, 5), F)],
            dict(fused_activation_function=4, time_major=False),
        )
    )


def _variables(model: ModelBuilder) -> None:
    x = model.input("x", (2, 3))
    handle = model.op("VAR_HANDLE", [], (), dict(shared_name="v"), type=RESOURCE)
    model.node("ASSIGN_VARIABLE", [handle, x], [])
    model.output(model.op("ADD", [model.op("READ_VARIABLE", [handle], (2, 3), type=F), x], (2, 3)))


def _call_once(model: ModelBuilder) -> None:
    start = model.subgraph("start")
    handle = start.op("VAR_HANDLE", [], (), dict(shared_name="v"), type=RESOURCE)
    start.node("ASSIGN_VARIABLE", [handle, start.constant(_normal(2, 3))], [])
    x = model.input("x", (2, 3))
    model.node("CALL_ONCE", [], [], dict(init_subgraph_index=1))
    handle = model.op("VAR_HANDLE", [], (), dict(shared_name="v"), type=RESOURCE)
    model.output(model.op("ADD", [model.op("READ_VARIABLE", [handle], (2, 3), type=F), x], (2, 3)))
    model.signature("serving_default", {"x": x}, {"y": model.graph().outputs[0]})


def _hashtable(model: ModelBuilder) -> None:
    start = model.subgraph("start")
    options = dict(table_id=1, key_dtype="INT64", value_dtype="STRING")
    table = start.op("HASHTABLE", [], (1,), options, type=RESOURCE)
    keys, values = start.constant(np.array([1, 2], np.int64)), start.constant([b"a", b"bc"], type=STRING)
    start.node("HASHTABLE_IMPORT", [table, keys, values], [])
    x = model.input("x", (3,), I64)
    model.node("CALL_ONCE", [], [], dict(init_subgraph_index=1))
    table = model.op("HASHTABLE", [], (1,), options, type=RESOURCE)
    model.output(model.op("HASHTABLE_FIND", [table, x, model.constant([b"?"], type=STRING)], (3,), type=STRING))
    model.output(model.op("HASHTABLE_SIZE", [table], (1,), type=I64))


def _control_flow(model: ModelBuilder) -> None:
    i, x = model.input("i", (), I32), model.input("x", (2,))
    cond, body, then, other = (model.subgraph(n) for n in ("cond", "body", "then", "else"))
    a = cond.input("i", (), I32)
    cond.input("v", (2,))
    cond.output(cond.op("LESS", [a, cond.constant(5)], ()))
    a, v = body.input("i", (), I32), body.input("v", (2,))
    body.output(body.op("ADD", [a, body.constant(1)], ()), body.op("MUL", [v, body.constant(np.float32(2))], (2,)))
    looped = model.op_multi("WHILE", [i, x], [((), I32), ((2,), F)], dict(cond_subgraph_index=1, body_subgraph_index=2))
    for graph, op in ((then, "ADD"), (other, "MUL")):
        a = graph.input("a", (2,))
        graph.output(graph.op(op, [a, a], (2,)))
    p = model.op("LESS", [i, model.constant(3)], ())
    options = dict(then_subgraph_index=3, else_subgraph_index=4)
    model.output(looped[0], *model.op_multi("IF", [p, looped[1]], [((2,), F)], options))


def _composite(model: ModelBuilder) -> None:
    body = model.subgraph("body")
    a = body.input("a", (2, 3))
    body.output(body.op("TANH", [body.op("MUL", [a, a], (2, 3))], (2, 3)))
    options = dict(name="odml.thing", decomposition_subgraph_index=1, version=1)
    y = model.op("STABLEHLO_COMPOSITE", [model.input("x", (2, 3))], (2, 3), options)
    model.output(model.op("NEG", [y], (2, 3)))


def _bodies(model: ModelBuilder) -> None:
    """What is put into a tensor, and windows of it, with subgraphs that say what is done there."""
    x = model.input("x", (4, 5))
    for number, name in enumerate(("STABLEHLO_ADD", "STABLEHLO_MAXIMUM", "")):
        graph = model.subgraph(f"body{number}")
        a, b = graph.input("a", ()), graph.input("b", ())
        graph.output(graph.op(name, [a, b], ()) if name else b)
    places = model.input("places", (3, 1), I32)
    options = dict(
        update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1
    )
    y = x
    for called in (1, 3):
        y = model.op("STABLEHLO_SCATTER", [y, places, model.constant(_normal(3, 5))], (4, 5),
                     options | dict(update_computation_subgraph_index=called))  # fmt: skip
    windows = dict(window_dimensions=[2, 2], window_strides=[1, 2], base_dilations=[1, 1], window_dilations=[1, 1],
                   padding=[1, 0, 0, 1], body_subgraph_index=2)  # fmt: skip
    model.output(model.op("STABLEHLO_REDUCE_WINDOW", [y, model.constant(np.array(0, np.float32))], (4, 3), windows))


def _sparse(model: ModelBuilder) -> None:
    w = np.array([[1, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4]], np.float32)
    csr = ("csr", np.array([0, 2, 2, 4], np.int32), np.array([0, 2, 1, 3], np.int32))
    sparsity = Sparsity((0, 1), (), (("dense", 3), csr))
    x = model.input("x", (2, 4))
    sparse = model.constant(w[w != 0], sparsity=sparsity, shape=(3, 4))
    model.output(model.op("FULLY_CONNECTED", [x, model.op("DENSIFY", [sparse], (3, 4)), None], (2, 3)))


def _sparse_weights(model: ModelBuilder) -> None:
    w = np.zeros((8, 16), np.float32)
    w[::2, ::4] = 1
    rows = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4][:9], np.int32)
    sparsity = Sparsity((0, 1, 2), (1,), (("dense", 8), ("csr", rows * 4, np.tile(np.arange(4), 4).astype(np.int32)),
                                          ("dense", 4)))  # fmt: skip
    sparse = model.constant(np.ones(64, np.float32), sparsity=sparsity, shape=(8, 16))
    model.output(model.op("FULLY_CONNECTED", [model.input("x", (2, 16)), sparse, None], (2, 8)))


def _network(model: ModelBuilder) -> None:
    q = quantized(0.05, 3)
    x = model.input("x", (1, 8, 8, 2))
    x8 = model.op("QUANTIZE", [x], (1, 8, 8, 2), type=I8, quantization=q)
    rng = np.random.default_rng(0)
    w = model.constant(
        rng.integers(-100, 100, (3, 3, 3, 2)).astype(np.int8), quantization=quantized([0.01] * 3, [0] * 3)
    )
    b = model.constant(np.array([1, 2, 3], np.int32), quantization=quantized([0.0005] * 3, [0] * 3))
    y = model.op("CONV_2D", [x8, w, b], (1, 8, 8, 3), dict(stride_h=1, stride_w=1, padding="SAME"), version=3,
                 quantization=quantized(0.1, -5))  # fmt: skip
    y = model.op("AVERAGE_POOL_2D", [y], (1, 4, 4, 3), dict(
        stride_h=2, stride_w=2, filter_width=2, filter_height=2, padding="VALID"), version=2,
        quantization=quantized(0.1, -5))  # fmt: skip
    y = model.op("RESHAPE", [y, model.constant([-1, 48])], (1, 48), quantization=quantized(0.1, -5))
    w = model.constant(rng.integers(-100, 100, (9, 48)).astype(np.int8), quantization=quantized(0.01, 0))
    y = model.op("FULLY_CONNECTED", [y, w, None], (1, 9), version=6, quantization=quantized(0.2, 0))
    y = model.op("SOFTMAX", [y], (1, 9), dict(beta=1.0), quantization=quantized(1 / 256, -128), version=2)
    y = model.op("DEQUANTIZE", [y], (1, 9), version=2, type=F)
    model.output(y)
    model.signature("serving_default", {"x": x}, {"y": y})
    model.metadata("TFLITE_METADATA", b"\x00" * 40)
    model.metadata("min_runtime_version", b"1.5.0\x00")


def _half_weights(model: ModelBuilder) -> None:
    x = model.input("x", (1, 8, 9, 12))
    w = model.op("DEQUANTIZE", [model.constant(_normal(4, 3, 3, 12).astype(np.float16))], (4, 3, 3, 12), type=F)
    b = model.op("DEQUANTIZE", [model.constant(_normal(4).astype(np.float16))], (4,), type=F)
    model.output(model.op("CONV_2D", [x, w, b], (1, 8, 9, 4), dict(stride_h=1, stride_w=1, padding="SAME")))


def _hybrid(model: ModelBuilder) -> None:
    x = model.input("x", (2, 16))
    w = model.constant(
        np.random.default_rng(0).integers(-100, 100, (8, 16)).astype(np.int8), quantization=quantized(0.01, 0)
    )
    y = model.op("FULLY_CONNECTED", [x, w, model.constant(_normal(8))], (2, 8), version=9, type=F)
    w4 = model.constant(np.random.default_rng(0).integers(-7, 7, (6, 8)), type=TensorType.INT4,
                        quantization=quantized([0.01] * 6, [0] * 6))  # fmt: skip
    model.output(model.op("FULLY_CONNECTED", [y, w4, None], (2, 6), version=12, type=F))


def _shape_arithmetic(model: ModelBuilder) -> None:
    x = model.input("x", (2, 3, 4))
    shape = model.op("SHAPE", [x], (3,), dict(out_type="INT32"))
    first = model.op("STRIDED_SLICE", [shape, *(model.constant([n]) for n in (0, 1, 1))], (), dict(shrink_axis_mask=1))
    packed = model.op("PACK", [first, model.constant(12)], (2,), dict(values_count=2))
    y = model.op("RESHAPE", [x, packed], (2, 12))
    filled = model.op("FILL", [packed, model.constant(np.float32(2))], (2, 12))
    tiled = model.op("TILE", [filled, model.constant([1, 2])], (2, 24))
    model.output(model.op("CONCATENATION", [y, filled, tiled], (2, 48), dict(axis=1)), shape)


def _dynamic(model: ModelBuilder) -> None:
    x, sizes = model.input("x", (2, 3)), model.input("sizes", (2,), I32)
    for name in ("RESHAPE", "TILE", "BROADCAST_TO"):
        y = model.op(name, [x, sizes], (2, 3))
        model.output(model.op("RELU", [y], (2, 3)))


def _rows(model: ModelBuilder) -> None:
    x = model.input("x", (1, 4), F)
    y = model.op("BATCH_MATMUL", [model.op("RESHAPE", [x, model.constant([1, 1, 4])], (1, 1, 4)),
                                  model.constant(_normal(1, 4, 5))], (1, 1, 5))  # fmt: skip
    model.output(model.op("RESHAPE", [y, model.constant([-1, 5])], (1, 5)))


for _make in (
    *(_svdf, _sequence_rnn, _bidirectional_rnn, _sequence_lstm, _lstm, _basic_lstm, _quantized_lstm),
    *(_bidirectional_lstm, _variables, _call_once, _hashtable, _control_flow, _composite, _sparse, _sparse_weights),
    *(_bodies, _normalized_lstm),
    *(_network, _half_weights, _hybrid, _shape_arithmetic, _dynamic, _rows),
):  # fmt: skip
    _further(_make)
