"""Pieces of models at random: one operator of the sweeps, a layer with a state, a branch, a loop or a variable."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

import numpy as np
from agreement import PLAIN
from control_models import Body, Shapes, below, branch, handle, loop, once, scalar
from control_models import random as normal
from gpu.test_lstm import INTEGERS as INTEGER_LAYERS
from gpu.test_lstm import LAYERS as LSTM_LAYERS
from gpu.test_lstm import Layer, basic, integer
from gpu.test_random import OPERATORS as CHANCE
from gpu.test_random import drawn
from gpu.test_rnn import LAYERS as RNN_LAYERS
from gpu.test_rnn import integer_svdf
from op_cases import CASES, INTEGER_CASES, OpCase, Shape
from quantized_cases import operators, quantized_case

from litegpu.delegates.aborts import refuse_aborting
from litegpu.errors import LiteGpuError
from litegpu.gpu.lower import supported_ops
from litegpu.model import ModelBuilder, read_model, write_model
from litegpu.model.builder import SubgraphBuilder
from litegpu.model.reader import DTYPES
from litegpu.model.types import Quantization, TensorType
from small_models.sized import sized

F32, I32, BOOL = TensorType.FLOAT32, TensorType.INT32, TensorType.BOOL
#: Operators of the sweeps that take tensors of five axes or more.
HIGH = [e.op.name for e in supported_ops() if e.op.name in CASES and e.gpu.ranks[1] > 4 and not e.op.custom]
QUANTIZED = ("int8", "uint8", "int16")

#: How a model computes, and how many of a hundred do so.
STYLES = {
    "float": 44, "halves": 8, "hybrid": 8, "int8": 12, "uint8": 5, "int16": 6, "integers": 7, "recurrent": 4,
    "control": 6,
}  # fmt: skip


def draw(rng: random.Random, style: str, known: Sequence[Shape]) -> OpCase | None:
    """A piece for a model of that style, whose shapes are some of the `known` ones where it can; None if the official
    runtime has no such piece."""
    if style not in QUANTIZED and rng.random() < 0.06:
        return sized(rng, known)
    if style == "control" and rng.random() < 0.5:
        return _CONTROL[rng.choice(list(_CONTROL))](rng, known)
    if style == "recurrent" and rng.random() < 0.6:
        return _layer(rng)
    if style in QUANTIZED and rng.random() < 0.85:
        return quantized_case(rng.choice(operators(style)), style, rng.getrandbits(30), known=known)
    if style == "hybrid" and rng.random() < 0.6:
        return hybrid(rng, known)
    if rng.random() < (0.6 if style == "integers" else 0.04):
        return retyped(rng, known)
    if rng.random() < (0.8 if style == "integers" else 0.1):
        return INTEGER_CASES[rng.choice(list(INTEGER_CASES))](_fork(rng), known=known)
    if rng.random() < 0.2:
        name = rng.choice(HIGH)
        return CASES[name](_fork(rng), most=rng.choice((5, 6)), known=known)
    return CASES[rng.choice(list(CASES))](_fork(rng), known=known)


def _fork(rng: random.Random) -> random.Random:
    return random.Random(rng.getrandbits(64))


# ------------------------------------------------------------------------------------------------------ other types

#: Types that the official kernels take for floats or INT32, and how many of a hundred such pieces have them.
OTHERS = {
    TensorType.INT64: 30, TensorType.INT32: 20, TensorType.FLOAT16: 15, TensorType.INT16: 8, TensorType.INT8: 7,
    TensorType.UINT8: 7, TensorType.BOOL: 4, TensorType.UINT32: 4, TensorType.COMPLEX64: 4, TensorType.UINT16: 1,
}  # fmt: skip
_SMALL = {TensorType.INT8, TensorType.UINT8, TensorType.INT16}
#: Kernels that multiply or divide small integers by a scale, which these have not.
_SCALED = {
    *("AVERAGE_POOL_2D", "BATCH_MATMUL", "ELU", "EXP", "GELU", "HARD_SWISH", "LEAKY_RELU", "MAX_POOL_2D", "MEAN"),
    *("RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "RESIZE_BILINEAR", "SOFTMAX", "SUM", "TANH", "NOT_EQUAL", "DIV"),
    *("SQUARED_DIFFERENCE", "SUB", "LOGISTIC", "LOG_SOFTMAX", "L2_NORMALIZATION", "CONV_2D", "SQRT", "PRELU", "LOG"),
    *("DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "RSQRT"),
}  # fmt: skip
#: Operators whose results have types of their own, whatever their operands have.
_OWN_TYPES = {"CAST", "BITCAST", "BUCKETIZE", "RANK", "SHAPE", "RANGE", "ARG_MAX", "ARG_MIN", "ONE_HOT", "TOPK_V2"}


def retyped(rng: random.Random, known: Sequence[Shape]) -> OpCase | None:
    """An operator of the sweeps with tensors of another type in the place of those of floats, or of INT32."""
    name, type_ = rng.choice(list(CASES)), rng.choices(list(OTHERS), list(OTHERS.values()))[0]
    ranks = dict(most=rng.choice((5, 6))) if name in HIGH and rng.random() < 0.2 else {}
    case = CASES[name](_fork(rng), known=known, **ranks)
    model = read_model(case.content)
    source = F32 if any(t.type is F32 for t in model.main.tensors) else I32
    if type_ in (TensorType.INT8, TensorType.UINT8) and name in ("MUL", "ADD", "EQUAL"):  # as those above
        return None
    whole = name == "BITCAST" or (source is I32 and (name in _OWN_TYPES or type_ is TensorType.INT64))
    if len(model.main.operators) != 1 or (type_ in _SMALL and name in _SCALED) or source is type_ or whole:
        return None
    dtype = DTYPES[type_]

    def stored(array: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(abs(array) if dtype.kind == "u" else array).astype(dtype)

    tensors = tuple(
        dataclasses.replace(t, type=type_, data=None if t.data is None else stored(t.data)) if t.type is source else t
        for t in model.main.tensors
    )
    (operator,) = model.main.operators
    kinds = {k: int(type_) for k in ("in_data_type", "out_data_type") if operator.options.get(k, -1) == int(source)}
    operators = (dataclasses.replace(operator, options={**operator.options, **kinds}),)
    changed = model.with_main(dataclasses.replace(model.main, tensors=tensors, operators=operators))
    inputs = [
        stored(a) if model.main.tensors[i].type is source else a
        for i, a in zip(model.main.inputs, case.inputs, strict=True)
    ]
    content = write_model(changed)
    try:
        found = read_model(content).main
        refuse_aborting(found.operators, found.tensors, found.outputs, PLAIN)
    except LiteGpuError:
        return None
    return OpCase(f"{type_.name} {case.name}", content, inputs)


# --------------------------------------------------------------------------------------------------------- weights

#: Operators whose constant weights may be of 8 bits beside activations that are floats: their place, and the axis of
#: the output channels, None where there is one scale for all.
HYBRID = {
    "CONV_2D": (1, 0), "DEPTHWISE_CONV_2D": (1, 3), "FULLY_CONNECTED": (1, 0), "BATCH_MATMUL": (1, None),
    "EMBEDDING_LOOKUP": (1, None),
}  # fmt: skip


def hybrid(rng: random.Random, known: Sequence[Shape]) -> OpCase | None:
    """An operator with weights of 8 bits, as a dynamic-range model has."""
    if rng.random() < 0.2:
        layer = Layer(hybrid=True, units=rng.choice((4, 16)), outputs=rng.choice((0, 5)))
        return OpCase("hybrid LSTM", layer.model(), [layer.data(rng.getrandbits(30))])
    name = rng.choice(list(HYBRID))
    place, axis = HYBRID[name]
    for _ in range(20):
        case = CASES[name](_fork(rng), known=known)
        model = read_model(case.content)
        (operator,) = model.main.operators
        weights = model.main.tensors[operator.inputs[place]]
        if weights.data is None or weights.type is not F32:
            continue
        rest = tuple(i for i in range(weights.data.ndim) if i != axis) if axis is not None else None
        largest = np.atleast_1d(np.abs(weights.data).max(axis=rest))
        q = Quantization(
            np.maximum(largest / 127, 1e-6).astype(np.float32), np.zeros(largest.size, np.int64), axis or 0
        )
        along = [-1 if i == axis else 1 for i in range(weights.data.ndim)]
        stored = np.rint(weights.data / q.scales.reshape(along if axis is not None else [1] * weights.data.ndim))
        tensors = list(model.main.tensors)
        tensors[weights.index] = dataclasses.replace(
            weights, type=TensorType.INT8, data=stored.astype(np.int8), quantization=q
        )
        changed = model.with_main(dataclasses.replace(model.main, tensors=tuple(tensors)))
        return OpCase(f"hybrid {case.name}", write_model(changed), case.inputs)
    return None


# ---------------------------------------------------------------------------------------------- layers with a state


def _layer(rng: random.Random) -> OpCase:
    """An LSTM, another recurrent layer, or seeded chance."""
    seed, kind = rng.getrandbits(30), rng.choice(("lstm", "lstm", "integer", "basic", "svdf", "rnn", "chance"))
    data = np.random.default_rng(seed)
    match kind:
        case "lstm":
            layer = rng.choice(list(LSTM_LAYERS.values()))
            layer = dataclasses.replace(layer, units=min(layer.units, 40), batch=rng.choice((1, 2, 3)))
            return OpCase(f"lstm {layer}", layer.model(), [layer.data(seed)])
        case "integer":
            layer = rng.choice(list(INTEGER_LAYERS.values()))
            x = data.integers(-128, 128, layer.shape).astype(np.int8)
            return OpCase(f"integer lstm {layer}", integer(layer), [x])
        case "basic":
            batch, depth, units = rng.choice((1, 3)), rng.choice((4, 5)), rng.choice((7, 8))
            shapes = [(batch, depth), (batch, units), (batch, units)]
            arrays = [data.standard_normal(s).astype(np.float32) for s in shapes]
            variables = rng.random() < 0.5
            content = basic(batch, depth, units, variables, rng.random() < 0.5)
            return OpCase("basic lstm", content, arrays[:1] if variables else arrays)
        case "svdf":
            content, inputs = integer_svdf(rng.choice((1, 2)), rng.randint(1, 6), bias=True)
            return OpCase("integer svdf", content, inputs[0])
        case "rnn":
            name = rng.choice(list(RNN_LAYERS))
            content, inputs = RNN_LAYERS[name]()
            return OpCase(f"rnn {name}", content, inputs[0])
        case _:
            shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 3)))
            content = drawn(rng.choice(CHANCE), shape, rng.randint(1, 99), rng.randint(1, 99))
            return OpCase("chance", content, [normal(*shape, seed=seed)])


# -------------------------------------------------------------------------------------------------- control flow

Known = Sequence[Shape]


def _state_shape(rng: random.Random, known: Known) -> Shape:
    fitting = [s for s in known if len(s) > 0 and np.prod(s) <= 2000]
    return rng.choice(fitting) if fitting else tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))


def _steps(rng: random.Random, shape: Shape) -> Body:
    """A few operators that keep a shape and do not grow what they are given."""
    names = [rng.choice(("TANH", "LOGISTIC", "MUL", "ADD", "SUB", "FULLY_CONNECTED", "SIN", "SOFTMAX", "REVERSE_V2"))
             for _ in range(rng.randint(1, 3))]  # fmt: skip
    seed = rng.getrandbits(30)

    def body(graph: SubgraphBuilder, state: list[int]) -> list[int]:
        x = state[-1]
        for i, name in enumerate(names):
            match name:
                case "MUL" | "ADD" | "SUB":
                    x = graph.op(
                        name, [x, graph.constant(normal(shape[-1], seed=seed + i, scale=0.7))], shape, type=F32
                    )
                case "FULLY_CONNECTED":
                    n = shape[-1]
                    weights = graph.constant(normal(n, n, seed=seed + i, scale=n**-0.5))
                    options = dict(keep_num_dims=len(shape) != 2)
                    x = graph.op(name, [x, weights, None], shape, options, type=F32)
                case "SOFTMAX":
                    x = graph.op(name, [x], shape, dict(beta=1.0))
                case "REVERSE_V2":
                    x = graph.op(name, [x, graph.constant(np.array([0], np.int32))], shape, type=F32)
                case _:
                    x = graph.op(name, [x], shape)
        return [graph.op("TANH", [x], shape)]

    return body


def _data(rng: random.Random, shape: Shape) -> np.ndarray:
    return normal(*shape, seed=rng.getrandbits(30))


def _if(rng: random.Random, known: Known) -> OpCase:
    model, shape = ModelBuilder(), _state_shape(rng, known)
    if rng.random() < 0.5:
        predicate, given = model.input("p", (), BOOL), [np.array(rng.random() < 0.5)]
        x = model.input("x", shape)
    else:  # far from where it turns
        x, given = model.input("x", shape), []
        total = model.op("REDUCE_MAX", [x, model.constant(np.arange(len(shape), dtype=np.int32))], (), type=F32)
        limit = scalar(model, rng.choice((-3.0, 9.0)), np.float32)
        predicate = model.op("GREATER", [total, limit], (), type=BOOL)
    results: Shapes = [(shape, F32)]
    made = branch(model, model, predicate, [x], results, results, _steps(rng, shape), _steps(rng, shape))
    model.output(*made)
    return OpCase("IF", model.build(), [*given, _data(rng, shape)])


def _while(rng: random.Random, known: Known) -> OpCase:
    model, shape = ModelBuilder(), _state_shape(rng, known)
    steps, limit = _steps(rng, shape), rng.randint(1, 6)
    given: list[np.ndarray] = []
    if rng.random() < 0.5:
        start, given = model.input("start", (), I32), [np.array(rng.randint(0, limit), np.int32)]
    else:
        start = scalar(model, 0)
    x = model.input("x", shape)

    def body(graph: SubgraphBuilder, state: list[int]) -> Sequence[int]:
        return [graph.op("ADD", [state[0], scalar(graph, 1)], ()), *steps(graph, state)]

    made = loop(model, model, [start, x], [((), I32), (shape, F32)], below(limit), body)
    model.output(*made)
    return OpCase("WHILE", model.build(), [*given, _data(rng, shape)])


def _variable(rng: random.Random, known: Known) -> OpCase:
    model, shape, name = ModelBuilder(), _state_shape(rng, known), f"variable {rng.getrandbits(40)}"
    once(model, model, {name: _data(rng, shape)})
    x, variable = model.input("x", shape), handle(model, name)
    before = model.op("READ_VARIABLE", [variable], shape, type=F32)
    mixed = model.op(rng.choice(("ADD", "SUB", "MAXIMUM")), [before, x], shape, type=F32)
    after = _steps(rng, shape)(model, [mixed])[0]
    model.node("ASSIGN_VARIABLE", [variable, after], [])
    model.output(rng.choice((before, mixed, after)))
    return OpCase("variable", model.build(), [_data(rng, shape)])


_CONTROL: dict[str, Callable[[random.Random, Known], OpCase]] = {"IF": _if, "WHILE": _while, "variable": _variable}


# ------------------------------------------------------------------------------------------------- between pieces


def converted(operator: str, shape: Shape, given: tuple[TensorType, Quantization | None],
              made: tuple[TensorType, Quantization | None]) -> bytes:  # fmt: skip
    """A model of one operator with one operand that leaves the shape alone."""
    b = ModelBuilder()
    x = b.input("x", shape, given[0], quantization=given[1])
    b.output(b.op(operator, [x], shape, type=made[0], quantization=made[1]))
    return b.build()


def reshaped(shape: Shape, target: Shape, type_: TensorType, quantization: Quantization | None) -> bytes:
    b = ModelBuilder()
    x = b.input("x", shape, type_, quantization=quantization)
    sizes = b.constant(np.array(target, np.int32))
    b.output(b.op("RESHAPE", [x, sizes], target, dict(new_shape=target), type=type_, quantization=quantization))
    return b.build()
