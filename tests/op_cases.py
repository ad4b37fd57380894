"""Random one-operator models over each operator's parameter space, with inputs: the sweeps run them on GPU and CPU.

`CASES[op](random.Random(seed))` gives an OpCase. A new operator needs one function here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from litegpu.model.types import Quantization, TensorType
from litegpu.model.writer import ModelBuilder

Shape = tuple[int, ...]

F32, I32, I64, BOOL = TensorType.FLOAT32, TensorType.INT32, TensorType.INT64, TensorType.BOOL
CHANNELS = (1, 3, 4, 5, 8, 17)
ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6")  # a fused TANH is ignored by the CPU kernels
_TYPES = {np.dtype(np.float32): F32, np.dtype(np.int32): I32, np.dtype(np.int64): I64, np.dtype(np.bool_): BOOL}
_TYPES |= {
    np.dtype(np.float16): TensorType.FLOAT16,
    np.dtype(np.int8): TensorType.INT8,
    np.dtype(np.uint8): TensorType.UINT8,
    np.dtype(np.int16): TensorType.INT16,
}


@dataclass(frozen=True)
class OpCase:
    """A model of one operator (and what feeds it), and arrays for its inputs."""

    name: str
    content: bytes
    inputs: list[np.ndarray]


CASES: dict[str, Callable[..., OpCase]] = {}  # each given a random.Random
#: Further ones of the same operators, on integers, under names of their own.
INTEGER_CASES: dict[str, Callable[..., OpCase]] = {}

Make = Callable[["Draft"], OpCase]


def case(*names: str) -> Callable[[Make], Make]:
    """Register a generator for operators; Draft.operator tells it which one it is making."""

    def register(make: Make) -> Make:
        for name in names:
            table = INTEGER_CASES if " " in name else CASES
            operator = name.partition(" ")[0]
            table[name] = lambda rng, operator=operator, **given: make(Draft(operator, rng, **given))
        return make

    return register


@dataclass
class Draft:
    """One operator being made up: operands in order, then `build`."""

    operator: str
    rng: random.Random
    operands: list[tuple[str, Any, Quantization | None]] = field(default_factory=list)
    most: int = 4  # the highest rank; where it is above 4, only such ranks are drawn
    known: Sequence[Shape] = ()  # shapes that are drawn rather than others, where they fit

    def __post_init__(self) -> None:
        self.arrays = np.random.default_rng(self.rng.getrandbits(32))

    # ------------------------------------------------------------------------------------------- drawing

    def pick(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def chance(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def size(self, low: int = 1, high: int = 9) -> int:
        return self.rng.randint(low, high)

    def channels(self) -> int:
        return int(self.pick(*CHANNELS))

    def shape(self, low: int = 1, high: int = 4) -> Shape:
        """A shape of rank low to high, the last axis being channels."""
        least = self.most + high - 4 if self.most > 4 else low
        if (known := self._known(least, max(least, high))) is not None:
            return known
        if self.most > 4:
            rank = self.most + high - 4
            return (*(self.size(1, 3) for _ in range(rank - 1)), self.pick(1, 3, 4, 5))
        rank = self.rng.randint(low, high)
        return tuple(self.size(1, 6) for _ in range(rank - 1)) + ((self.channels(),) if rank else ())

    def _known(self, low: int, high: int) -> Shape | None:
        """One of the known shapes of these ranks."""
        fitting = [s for s in self.known if low <= len(s) <= high]
        return self.rng.choice(fitting) if fitting and self.chance(0.9) else None

    def image(self, high: int = 11) -> Shape:
        if (known := self._known(4, 4)) is not None and max(known[1:3]) <= high:
            return known
        return (self.pick(1, 1, 2, 3), self.size(1, high), self.size(1, high), self.channels())

    def floats(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        return (self.arrays.standard_normal(tuple(shape)) * scale).astype(np.float32)

    def positive(self, shape: Sequence[int]) -> np.ndarray:
        return self.arrays.uniform(0.1, 4.0, tuple(shape)).astype(np.float32)

    def integers(self, shape: Sequence[int], low: int = -4, high: int = 5) -> np.ndarray:
        return self.arrays.integers(low, high, tuple(shape)).astype(np.int32)

    def bools(self, shape: Sequence[int]) -> np.ndarray:
        return self.arrays.integers(0, 2, tuple(shape)).astype(np.bool_)

    def any_type(self, shape: Sequence[int], bools: bool = False) -> np.ndarray:
        """Mostly floats; operators that move elements take integers too, and some take bools."""
        if bools and self.chance(0.1):
            return self.bools(shape)
        if self.chance(0.1):
            return self.integers(shape, -1000, 1000).astype(np.int64)
        return self.integers(shape, -1000, 1000) if self.chance(0.15) else self.floats(shape)

    def activation(self) -> str:
        return str(self.pick(*ACTIVATIONS))

    def broadcast(self, shape: Shape) -> tuple[Shape, Shape]:
        """Two shapes that broadcast to `shape`."""

        def reduced() -> Shape:
            smaller = tuple(1 if self.chance(0.3) else n for n in shape)
            return smaller[self.rng.randint(0, len(shape)) if self.chance(0.3) else 0 :]

        left, right = shape, reduced()
        if self.chance(0.2):  # each side has sizes that the other lacks
            chosen = [self.chance() for _ in shape]
            left = tuple(n if c else 1 for n, c in zip(shape, chosen, strict=True))
            right = tuple(1 if c else n for n, c in zip(shape, chosen, strict=True))
        return (left, right) if self.chance() else (right, left)

    # ------------------------------------------------------------------------------------------ operands

    def runtime(self, array: np.ndarray) -> None:
        self.operands.append(("input", array, None))

    def constant(self, array: np.ndarray, quantization: Quantization | None = None) -> None:
        self.operands.append(("constant", array, quantization))

    def either(self, array: np.ndarray) -> None:
        """Constant or runtime."""
        (self.constant if self.chance() else self.runtime)(array)

    def again(self, operand: int) -> None:
        """The same tensor once more."""
        self.operands.append(("again", operand, None))

    def missing(self) -> None:
        self.operands.append(("missing", None, None))

    def ints(self, values: Any) -> None:
        """A constant int32 operand."""
        self.constant(np.asarray(values, np.int32))

    def pair(self, left: np.ndarray, right: np.ndarray) -> None:
        """Two operands, at most one of them constant."""
        constant = self.pick(None, None, 0, 1)
        for i, array in enumerate((left, right)):
            (self.constant if constant == i else self.runtime)(array)

    # ------------------------------------------------------------------------------------------- building

    def build(
        self,
        options: dict[str, Any] | None = None,
        types: Sequence[TensorType] | None = None,
        version: int | None = None,
        shape: Shape | None = None,
    ) -> OpCase:
        """The model; unless `shape` is given, output shapes are those that the official runtime works out."""
        first = next(a for kind, a, _ in self.operands if kind in ("input", "constant"))
        types = [_TYPES[first.dtype]] if types is None else types
        guess = (1,) * first.ndim  # some operators insist on the output's rank
        if shape is None:
            shapes = _inferred(self._model([guess] * len(types), types, options, version), len(types))
        else:
            shapes = [shape] * len(types)
        content = self._model(shapes, types, options, version)
        operands = [
            (k, a if k == "again" else None if a is None else (a.shape, str(a.dtype))) for k, a, _ in self.operands
        ]
        inputs = [a for kind, a, _ in self.operands if kind == "input"]
        return OpCase(f"{self.operator} {options or {}} of {operands} to {shapes}", content, inputs)

    def _model(
        self, shapes: Sequence[Shape], types: Sequence[TensorType], options: dict[str, Any] | None, version: int | None
    ) -> bytes:
        b = ModelBuilder()
        tensors: list[int | None] = []
        for i, (kind, array, quantization) in enumerate(self.operands):
            match kind:
                case "input":
                    tensors.append(b.input(f"input_{i}", array.shape, _TYPES[array.dtype]))
                case "constant":
                    tensors.append(b.constant(array, quantization=quantization))
                case "again":
                    tensors.append(tensors[array])
                case "missing":
                    tensors.append(None)
        outputs = list(zip(shapes, types, strict=True))
        b.output(*b.op_multi(self.operator, tensors, outputs, options, version=version))
        return b.build()


def _inferred(content: bytes, outputs: int) -> list[Shape]:
    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(model_content=content, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    return [tuple(int(n) for n in d["shape"]) for d in interpreter.get_output_details()[:outputs]]


# --------------------------------------------------------------------------------------------- elementwise


@case(
    "ABS", "COS", "ELU", "EXP", "FLOOR", "CEIL", "ROUND", "GELU", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6",
    "RELU_N1_TO_1", "RELU_0_TO_1", "SIN", "SIGN", "SQUARE", "TANH", "LEAKY_RELU",
)  # fmt: skip
def unary(d: Draft) -> OpCase:
    x = d.floats(d.shape(0), 3.0)
    if d.operator == "GELU" and x.size < 32:
        x = abs(x)  # a GELU far below 0 has few accurate digits, which show only where nothing larger is around
    if d.operator in ("FLOOR", "CEIL", "ROUND"):
        x = np.round(x * 2) / 2
    if d.operator == "SIGN":
        x = np.round(x)
    d.runtime(x)
    options = {"LEAKY_RELU": dict(alpha=d.pick(0.1, 1.5, -0.5)), "GELU": dict(approximate=d.chance())}
    return d.build(options.get(d.operator))


@case("ABS of integers", "NEG of integers", "SIGN of integers")
def unary_integers(d: Draft) -> OpCase:
    d.runtime(d.integers(d.shape(), -9, 9))
    return d.build()


@case("LOG", "SQRT", "RSQRT")
def unary_positive(d: Draft) -> OpCase:
    d.runtime(d.positive(d.shape()))
    return d.build()


@case("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW")
def arithmetic(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape(0))
    fused = d.operator in ("ADD", "SUB", "MUL", "DIV")
    options = dict(fused_activation_function=d.activation()) if fused else None
    if d.operator not in ("DIV", "POW", "SQUARED_DIFFERENCE") and d.chance(0.15):
        d.pair(d.integers(left), d.integers(right))
        return d.build(dict(fused_activation_function=d.pick("NONE", "RELU", "RELU6")) if fused else None)
    if d.operator == "POW":
        whole = d.chance(0.3)
        d.pair(
            d.floats(left) if whole else d.positive(left),
            d.integers(right, -2, 4).astype(np.float32) if whole else d.floats(right),
        )
    else:
        d.pair(d.floats(left), d.positive(right) if d.operator == "DIV" else d.floats(right))
    if left == right and d.chance(0.2):
        d.operands = [("input", d.floats(left) + 3, None), ("again", 0, None)]
    return d.build(options)


@case("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
def comparison(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape())
    a, b = d.integers(left, -2, 3), d.integers(right, -2, 3)
    integers = d.chance(0.3)
    d.pair(*((a, b) if integers else (a.astype(np.float32), b.astype(np.float32))))
    return d.build(types=[BOOL])


@case("DIV of integers", "FLOOR_DIV of integers", "FLOOR_MOD of integers", "MAXIMUM of integers", "LESS of integers")
def integer_arithmetic(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape())
    kind = np.int64 if d.operator in ("FLOOR_MOD", "MAXIMUM", "LESS") and d.chance() else np.int32
    divisor = d.integers(right, 1, 9) * d.pick(1, -1)
    d.pair(d.integers(left, -100, 100).astype(kind), divisor.astype(kind))
    return d.build(types=[BOOL] if d.operator == "LESS" else None)


@case("POW of integers")
def whole_powers(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape(0))
    d.pair(d.integers(left, -9, 10), d.integers(right, 0, 7))
    return d.build()


@case("FLOOR_DIV", "FLOOR_MOD")
def floored(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape(0))
    if d.chance(0.3):
        divisor = d.integers(right, -5, 6)
        d.pair(d.integers(left, -50, 51), np.where(divisor == 0, 7, divisor).astype(np.int32))
    else:
        d.pair(d.floats(left, 5.0), d.positive(right) * np.float32(d.pick(1, -1)))
    return d.build()


@case("ATAN2")
def angle(d: Draft) -> OpCase:
    shape = d.shape(0)
    d.pair(d.floats(shape), np.where(d.bools(shape), d.floats(shape), np.float32(1)))
    return d.build()


@case("LOGICAL_AND", "LOGICAL_OR")
def logical(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape())
    d.pair(d.bools(left), d.bools(right))
    return d.build()


@case("LOGICAL_NOT")
def logical_not(d: Draft) -> OpCase:
    d.runtime(d.bools(d.shape()))
    return d.build()


@case("ZEROS_LIKE")
def zeros(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.integers(shape) if d.chance(0.3) else d.floats(shape))
    return d.build()


@case("ADD_N")
def add_n(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.floats(shape))
    for _ in range(d.size(1, 8)):
        d.either(d.floats(shape))
    return d.build()


@case("PRELU")
def prelu(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.floats(shape))
    alpha = tuple(1 if d.chance(0.4) else n for n in shape[:-1]) + shape[-1:]
    d.either(d.floats(alpha[d.rng.randint(0, len(alpha) - 1) :] if d.chance() else alpha))
    return d.build()


@case("SELECT")
def select(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.bools(d.pick(shape, (shape[0],), () if max(shape) > 1 else shape)))
    d.pair(d.any_type(shape), d.floats(shape))
    if d.operands[1][1].dtype != d.operands[2][1].dtype:
        d.operands[2] = ("input", d.integers(shape).astype(d.operands[1][1].dtype), None)
    return d.build(types=[_TYPES[d.operands[1][1].dtype]])


@case("SELECT_V2")
def select_v2(d: Draft) -> OpCase:
    shape = d.shape()
    shapes = [shape, *d.broadcast(shape)]
    d.rng.shuffle(shapes)
    d.runtime(d.bools(shapes[0]))
    d.pair(d.floats(shapes[1]), d.floats(shapes[2]))
    return d.build(types=[F32], shape=shape)


@case("CAST of halves", "DEQUANTIZE of halves", "TRANSPOSE of halves")
def halves(d: Draft) -> OpCase:
    shape = d.shape()
    values = np.concatenate(
        [
            d.floats((40,)),
            np.array([0, -0.0, 65519, 65520, -1e6, 3e-8, 6e-8, 1e-5, 1 + 2**-11, 1 + 3 * 2**-11] * 3, np.float32),
        ]
    )
    x = d.arrays.choice(values, shape)
    if d.operator == "CAST" and d.chance():
        x = d.pick(x, d.integers(shape))
        d.runtime(x.astype(np.float32) if x.dtype == np.float32 else x)
        return d.build(dict(in_data_type=int(_TYPES[x.dtype]), out_data_type=1), [TensorType.FLOAT16])
    with np.errstate(over="ignore"):
        d.runtime(x.astype(np.float16))
    if d.operator == "TRANSPOSE":
        d.ints(d.rng.sample(range(len(shape)), len(shape)))
        return d.build()
    if d.operator == "DEQUANTIZE":
        return d.build(types=[F32])
    target = d.pick(F32, I32, BOOL)
    return d.build(dict(in_data_type=1, out_data_type=int(target)), [target])


@case("CAST of small integers")
def cast_small(d: Draft) -> OpCase:
    shape = d.shape()
    x = d.pick(d.floats(shape, 300), d.integers(shape, -70000, 70000), d.bools(shape))
    small = d.pick(np.int8, np.uint8, np.int16)
    if d.chance(0.4):
        x = d.integers(shape, -128, 128).astype(small)
    d.runtime(x)
    target = (
        d.pick(F32, I32, BOOL)
        if x.dtype == small and d.chance()
        else _TYPES[np.dtype(d.pick(np.int8, np.uint8, np.int16))]
    )
    return d.build(dict(in_data_type=int(_TYPES[x.dtype]), out_data_type=int(target)), [target])


@case("CAST")
def cast(d: Draft) -> OpCase:
    shape = d.shape()
    x = d.pick(d.floats(shape, 3), d.integers(shape), d.bools(shape), d.integers(shape).astype(np.int64))
    d.runtime(np.where(d.bools(shape), x, np.zeros((), x.dtype)))
    target = d.pick(F32, I32, BOOL) if x.dtype == np.float32 else d.pick(F32, I32, BOOL, I64)
    return d.build(dict(in_data_type=int(_TYPES[x.dtype]), out_data_type=int(target)), [target])


# ---------------------------------------------------------------------------------- convolutions and pools


def _window(d: Draft, shape: Shape, dilations: bool = True) -> tuple[tuple[int, int], dict[str, Any]]:
    """A kernel size, and options under which some window fits."""
    while True:
        kernel = (d.size(1, 5), d.size(1, 5)) if d.chance(0.8) else (1, 1)
        stride = (d.size(1, 3), d.size(1, 3)) if d.chance() else (1, 1)
        dilation = (d.size(1, 3), d.size(1, 3)) if dilations and stride == (1, 1) and d.chance(0.4) else (1, 1)
        padding = d.pick("SAME", "VALID")
        fits = all(n >= (k - 1) * s + 1 for n, k, s in zip(shape[1:3], kernel, dilation, strict=True))
        if padding == "SAME" or fits:
            break
    options = dict(stride_h=stride[0], stride_w=stride[1], padding=padding, fused_activation_function=d.activation())
    if dilations:
        options |= dict(dilation_h_factor=dilation[0], dilation_w_factor=dilation[1])
    return kernel, options


@case("CONV_2D")
def conv_2d(d: Draft) -> OpCase:
    x = d.image()
    groups = 1
    if d.chance(0.3):
        groups = d.pick(2, 3, 4)
        x = (*x[:3], groups * d.size(1, 5))
    outputs = groups * d.size(1, 5) if groups > 1 else d.channels()
    kernel, options = _window(d, x)
    d.runtime(d.floats(x))
    weights = d.floats((outputs, *kernel, x[3] // groups))
    (d.runtime if groups == 1 and d.chance(0.15) else d.constant)(weights)
    d.constant(d.floats((outputs,)))
    return d.build(options)


@case("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(d: Draft) -> OpCase:
    x = d.image()
    multiplier = d.pick(1, 1, 2, 3)
    kernel, options = _window(d, x)
    d.runtime(d.floats(x))
    weights = d.floats((1, *kernel, x[3] * multiplier))
    (d.runtime if d.chance(0.15) else d.constant)(weights)
    d.constant(d.floats((x[3] * multiplier,)))  # without a bias the CPU kernel crashes
    return d.build(options | dict(depth_multiplier=multiplier))


@case("TRANSPOSE_CONV")
def transpose_conv(d: Draft) -> OpCase:
    batch, h, w, depth = d.image(7)
    outputs, padding = d.channels(), d.pick("SAME", "VALID")
    kernel, stride = (d.size(1, 5), d.size(1, 5)), (d.size(1, 3), d.size(1, 3))
    if padding == "SAME":
        size = [n * s - d.rng.randint(0, s - 1) for n, s in zip((h, w), stride, strict=True)]
    else:
        size = [(n - 1) * s + k + d.rng.randint(0, s - 1) for n, s, k in zip((h, w), stride, kernel, strict=True)]
    d.ints([batch, *size, outputs])
    d.constant(d.floats((outputs, *kernel, depth)))
    d.runtime(d.floats((batch, h, w, depth)))
    options = dict(stride_h=stride[0], stride_w=stride[1], padding=padding)
    if d.chance():
        d.constant(d.floats((outputs,)))
        options |= dict(fused_activation_function=d.pick("NONE", "RELU", "RELU6"))
    return d.build(options, [F32])


@case("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D")
def pool_2d(d: Draft) -> OpCase:
    x = d.image()
    kernel, options = _window(d, x, dilations=False)
    d.runtime(d.floats(x, 300.0 if d.operator == "L2_POOL_2D" else 1.0))  # squares beyond what float16 holds
    return d.build(options | dict(filter_height=kernel[0], filter_width=kernel[1]))


@case("LOCAL_RESPONSE_NORMALIZATION")
def local_response_normalization(d: Draft) -> OpCase:
    d.runtime(d.floats(d.image(5), d.pick(1.0, 300.0)))
    powers = dict(alpha=d.pick(1e-4, 0.5, 1.0), beta=d.pick(0.0, 0.5, 0.75, 1.0, 1.5))
    return d.build(dict(radius=d.pick(0, 1, 2, 5, 1000), bias=d.pick(0.5, 1.0, 2.0)) | powers)


# ------------------------------------------------------------------------------------------ matrix products


@case("FULLY_CONNECTED")
def fully_connected(d: Draft) -> OpCase:
    x = d.shape(1, 4)
    flatten = d.chance(0.3)
    keep = not flatten and d.chance()
    depth = int(np.prod(x[1:])) if flatten and len(x) > 1 else x[-1]
    units = d.channels()
    d.runtime(d.floats(x))
    weights = d.floats((units, depth))
    (d.runtime if d.chance(0.25) else d.constant)(weights)
    if d.chance():
        d.constant(d.floats((units,)))
    else:
        d.missing()
    return d.build(dict(keep_num_dims=keep, fused_activation_function=d.pick("NONE", "RELU", "RELU6")))


@case("BATCH_MATMUL")
def batch_matmul(d: Draft) -> OpCase:
    m, k, n = d.size(1, 9), d.channels(), d.channels()
    batch = tuple(d.size(1, 3) for _ in range(d.rng.randint(0, 2) if d.most == 4 else d.most - 2))
    adj_x, adj_y = d.chance(0.4), d.chance(0.4)
    left, right = batch, batch
    if d.chance(0.4):
        right = tuple(1 if d.chance() else s for s in batch)[d.rng.randint(0, len(batch)) :]
    if d.chance(0.2):
        left, right = right, left
    d.pair(
        d.floats((*left, *((k, m) if adj_x else (m, k)))),
        d.floats((*right, *((n, k) if adj_y else (k, n)))),
    )
    return d.build(dict(adj_x=adj_x, adj_y=adj_y))


# ------------------------------------------------------------------------------ resizing, sums, normalization


@case("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(d: Draft) -> OpCase:
    d.runtime(d.floats(d.image()))
    d.ints([d.size(1, 17), d.size(1, 17)])
    mode = d.pick({}, dict(align_corners=True), dict(half_pixel_centers=True))
    return d.build(mode)


@case("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")
def reduce(d: Draft) -> OpCase:
    x = d.shape()
    if d.operator == "REDUCE_PROD":
        d.runtime(d.arrays.uniform(0.7, 1.4, x).astype(np.float32))  # the product of many stays in range
    else:
        d.runtime(d.floats(x) + np.float32(4))  # a sum near zero would have few accurate digits
    axes = d.rng.sample(range(len(x)), d.rng.randint(1, len(x)))
    d.ints([a - len(x) if d.chance(0.3) else a for a in axes])
    return d.build(dict(keep_dims=d.chance()))


@case("SUM of integers", "REDUCE_MAX of integers", "REDUCE_MIN of integers", "REDUCE_PROD of integers")
def reduce_integers(d: Draft) -> OpCase:
    x = d.shape()
    array = d.integers(x, -9, 10)
    d.runtime(array.astype(np.int64) if d.chance(0.3) and d.operator in ("REDUCE_MAX", "REDUCE_MIN") else array)
    d.ints(d.rng.sample(range(len(x)), d.rng.randint(1, len(x))))
    return d.build(dict(keep_dims=d.chance()))


@case("REDUCE_ALL", "REDUCE_ANY")
def reduce_bools(d: Draft) -> OpCase:
    x = d.shape()
    d.runtime(d.arrays.random(x) < d.pick(0.03, 0.5, 0.97))
    axes = d.rng.sample(range(len(x)), d.rng.randint(0, len(x)))
    d.ints([a - len(x) if d.chance(0.3) else a for a in axes + axes[: d.chance(0.2)]])  # one axis twice
    return d.build(dict(keep_dims=d.chance()))


@case("ARG_MAX", "ARG_MIN")
def arg_reduce(d: Draft) -> OpCase:
    x = d.shape()
    d.runtime(np.round(d.floats(x, 2)))  # with ties
    d.ints(d.rng.randint(-len(x), len(x) - 1))
    target = d.pick(I32, I64)
    return d.build(dict(output_type=int(target)), [target])


@case("SOFTMAX")
def softmax(d: Draft) -> OpCase:
    x = d.shape()
    d.runtime(d.floats(x if d.chance(0.7) else (*x[:-1], 301), 3))
    return d.build(dict(beta=d.pick(1.0, 0.5, 2.0)))


@case("L2_NORMALIZATION")
def l2_normalization(d: Draft) -> OpCase:
    d.runtime(d.floats(d.shape()))
    return d.build()


# --------------------------------------------------------------------------------------------- moving elements


@case("RESHAPE")
def reshape(d: Draft) -> OpCase:
    x = d.shape()
    factors = [n for n in x if n > 1]
    d.rng.shuffle(factors)
    target = [1] * d.rng.randint(1, d.most)
    for f in factors:
        target[d.rng.randrange(len(target))] *= f
    d.runtime(d.any_type(x, bools=True))
    d.ints([-1 if i == 0 and d.chance() else n for i, n in enumerate(target)])
    return d.build()


@case("SQUEEZE")
def squeeze(d: Draft) -> OpCase:
    x = tuple(1 if d.chance() else n for n in d.shape())
    ones = [i for i, n in enumerate(x) if n == 1]
    d.runtime(d.any_type(x))
    return d.build(dict(squeeze_dims=d.rng.sample(ones, d.rng.randint(0, len(ones)))))


@case("EXPAND_DIMS")
def expand_dims(d: Draft) -> OpCase:
    x = d.shape(1, 3)
    d.runtime(d.any_type(x, bools=True))
    d.ints(d.rng.randint(-len(x) - 1, len(x)))
    return d.build()


@case("TRANSPOSE")
def transpose(d: Draft) -> OpCase:
    x = d.shape()
    d.runtime(d.any_type(x, bools=True))
    d.ints(d.rng.sample(range(len(x)), len(x)))
    return d.build()


@case("TILE")
def tile(d: Draft) -> OpCase:
    x = d.shape()
    d.runtime(d.any_type(x, bools=True))
    d.ints([d.pick(1, 1, 2, 3) for _ in x])
    return d.build()


@case("PAD", "PADV2")
def pad(d: Draft) -> OpCase:
    x = d.shape()
    array = d.any_type(x)
    d.runtime(array)
    d.ints([[d.pick(0, 0, 1, 2, 3), d.pick(0, 0, 1, 2, 3)] for _ in x])
    if d.operator == "PADV2":
        d.constant((d.floats((1,)) * 9).astype(array.dtype).reshape(d.pick((), (1,))))
    return d.build()


@case("MIRROR_PAD")
def mirror_pad(d: Draft) -> OpCase:
    x, mode = d.shape(), d.pick("REFLECT", "SYMMETRIC")
    d.runtime(d.any_type(x))
    room = [n if mode == "SYMMETRIC" else n - 1 for n in x]
    d.ints([[d.rng.randint(0, min(r, 3)), d.rng.randint(0, min(r, 3))] for r in room])
    return d.build(dict(mode=mode))


@case("SLICE")
def slice_(d: Draft) -> OpCase:
    x = d.shape()
    begin = [d.rng.randrange(n) for n in x]
    size = [-1 if d.chance(0.3) else d.rng.randint(1, n - b) for n, b in zip(x, begin, strict=True)]
    d.runtime(d.any_type(x, bools=True))
    d.ints(begin)
    d.ints(size)
    return d.build(shape=tuple(n - b if s == -1 else s for n, b, s in zip(x, begin, size, strict=True)))


@case("STRIDED_SLICE")
def strided_slice(d: Draft) -> OpCase:
    while True:
        x = d.shape(1, 4)
        ellipsis = d.rng.randrange(len(x)) if d.chance(0.2) else None
        entries = d.rng.randint(1, len(x)) if ellipsis is None else d.rng.randint(ellipsis + 1, len(x))
        begin, end, stride = [], [], []
        masks = dict.fromkeys(("begin_mask", "end_mask", "shrink_axis_mask", "new_axis_mask"), 0)
        for i in range(entries):
            n = x[i]
            step = d.pick(1, 1, 2, 3, -1, -2)
            first, last = d.rng.randint(-n, n - 1), d.rng.randint(-n - 2, n + 2)
            if d.chance(0.2):
                masks["begin_mask"] |= 1 << i
            if d.chance(0.3):
                masks["end_mask"] |= 1 << i
            if i != ellipsis and d.chance(0.15):
                masks["shrink_axis_mask"] |= 1 << i
                step = 1
            begin.append(first)
            end.append(last)
            stride.append(step)
        if len(x) < d.most and ellipsis is None and d.chance(0.2):
            at = d.rng.randint(0, entries)
            for values, value in ((begin, 0), (end, 1), (stride, 1)):
                values.insert(at, value)
            masks = {m: (v & ((1 << at) - 1)) | (v >> at << (at + 1)) for m, v in masks.items()}
            masks["new_axis_mask"] |= 1 << at
        index = _numpy_index(begin, end, stride, masks, ellipsis)
        if np.zeros(x)[index].size:
            break
    options = masks | dict(ellipsis_mask=0 if ellipsis is None else 1 << ellipsis)
    if ellipsis is None and entries == len(x) and not masks["new_axis_mask"] and d.chance(0.3):
        # Ends count from the begins. The CPU kernel reads outside the input for negative begins and strides.
        options |= dict(offset=True, begin_mask=0, end_mask=0)
        begin = [b % n for b, n in zip(begin, x, strict=True)]
        end = [d.rng.randint(1, n - b) for b, n in zip(begin, x, strict=True)]
        stride = [abs(s) for s in stride]
    d.runtime(d.any_type(x, bools=True))
    d.ints(begin)
    d.ints(end)
    d.ints(stride)
    return d.build(options)


def _numpy_index(
    begin: list[int], end: list[int], stride: list[int], masks: dict[str, int], ellipsis: int | None
) -> tuple[Any, ...]:
    index: list[Any] = []
    for i, (b, e, s) in enumerate(zip(begin, end, stride, strict=True)):
        if i == ellipsis:
            index.append(Ellipsis)
        elif masks["new_axis_mask"] >> i & 1:
            index.append(None)
        elif masks["shrink_axis_mask"] >> i & 1:
            index.append(b)
        else:
            first = None if masks["begin_mask"] >> i & 1 else b
            index.append(slice(first, None if masks["end_mask"] >> i & 1 else e, s))
    return tuple(index)


@case("SPLIT")
def split(d: Draft) -> OpCase:
    x = list(d.shape())
    axis, count = d.rng.randrange(len(x)), d.size(1, 4)
    x[axis] = count * d.pick(1, 2, 3, 4)
    d.ints(axis - (len(x) if d.chance(0.3) else 0))
    array = d.any_type(x)
    d.runtime(array)
    return d.build(dict(num_splits=count), [_TYPES[array.dtype]] * count)


@case("SPLIT_V")
def split_v(d: Draft) -> OpCase:
    x = list(d.shape())
    axis, sizes = d.rng.randrange(len(x)), [d.size(1, 5) for _ in range(d.size(1, 4))]
    x[axis] = sum(sizes)
    if d.chance(0.3):
        sizes[d.rng.randrange(len(sizes))] = -1
    array = d.any_type(x)
    d.runtime(array)
    d.ints(sizes)
    d.ints(axis)
    return d.build(dict(num_splits=len(sizes)), [_TYPES[array.dtype]] * len(sizes))


@case("CONCATENATION")
def concatenation(d: Draft) -> OpCase:
    x = d.shape()
    axis = d.rng.randrange(len(x))
    make = d.integers if d.chance(0.1) else d.floats
    d.runtime(make(x))
    for _ in range(d.size(1, 4)):
        other = tuple(d.channels() if i == axis else n for i, n in enumerate(x))
        (d.constant if d.chance(0.2) else d.runtime)(make(other))
    if d.chance(0.2):
        d.again(0)
    return d.build(dict(axis=axis - (len(x) if d.chance(0.3) else 0)))


@case("PACK")
def pack(d: Draft) -> OpCase:
    x, count = d.shape(1, 3), d.size(1, 4)
    make = d.integers if d.chance(0.1) else d.floats
    d.runtime(make(x))
    for _ in range(count - 1):
        d.either(make(x))
    return d.build(dict(axis=d.rng.randint(-len(x) - 1, len(x)), values_count=count))


@case("UNPACK")
def unpack(d: Draft) -> OpCase:
    x = tuple(min(n, 5) for n in d.shape(1, 4))
    axis = d.rng.randint(-len(x), len(x) - 1)
    array = d.floats(x) if d.chance(0.8) else d.integers(x)
    d.runtime(array)
    return d.build(dict(axis=axis, num=x[axis]), [_TYPES[array.dtype]] * x[axis])


@case("GATHER")
def gather(d: Draft) -> OpCase:
    x = d.shape()
    axis = d.rng.randrange(len(x))
    batch_dims = d.rng.randint(0, axis) if d.chance(0.3) else 0
    room = d.most - (len(x) - 1)  # ranks that the indices may add
    extra = tuple(d.size(1, 4) for _ in range(d.rng.randint(0 if batch_dims == 0 else 1, max(1, min(room, 2)))))
    d.runtime(d.any_type(x, bools=True))
    d.either(d.integers((*x[:batch_dims], *extra), 0, x[axis]))
    return d.build(dict(axis=axis - (len(x) if d.chance(0.2) else 0), batch_dims=batch_dims))


@case("SPACE_TO_DEPTH")
def space_to_depth(d: Draft) -> OpCase:
    block = d.pick(2, 2, 3, 4)
    d.runtime(d.any_type((d.pick(1, 2), block * d.size(1, 4), block * d.size(1, 4), d.channels())))
    return d.build(dict(block_size=block))


@case("DEPTH_TO_SPACE")
def depth_to_space(d: Draft) -> OpCase:
    block = d.pick(2, 2, 3)
    d.runtime(d.any_type((d.pick(1, 2), d.size(1, 5), d.size(1, 5), block * block * d.pick(1, 3, 4, 5))))
    return d.build(dict(block_size=block))


@case("SPACE_TO_BATCH_ND")
def space_to_batch(d: Draft) -> OpCase:
    block = [d.size(1, 3) for _ in range(d.pick(1, 2))]
    pads = [(d.size(0, 2), d.size(0, 2)) for _ in block]
    sizes = []
    for i, (k, (p, q)) in enumerate(zip(block, pads, strict=True)):
        cells = d.size(1, 4) * k
        while cells <= p + q:
            cells += k
        sizes.append(cells - p - q)
        pads[i] = (p, q)
    d.runtime(d.any_type((d.size(1, 3), *sizes, d.channels())))
    d.ints(block)
    d.ints(pads)
    return d.build()


@case("BATCH_TO_SPACE_ND")
def batch_to_space(d: Draft) -> OpCase:
    block = [d.size(1, 3) for _ in range(d.pick(1, 2))]
    sizes = [d.size(1, 5) for _ in block]
    crops = []
    for k, n in zip(block, sizes, strict=True):
        first = d.rng.randint(0, min(2, k * n - 1))
        crops.append((first, d.rng.randint(0, min(2, k * n - 1 - first))))
    d.runtime(d.any_type((d.size(1, 2) * int(np.prod(block)), *sizes, d.channels())))
    d.ints(block)
    d.ints(crops)
    return d.build()


# ------------------------------------------------------------------------------------- NaN and infinities

#: One-operator models whose inputs hold NaN, infinities and zeros, where all CPU kernels agree on the result.
SPECIAL_VALUES: dict[str, Callable[[], OpCase]] = {}

_NAN, _INF = np.nan, np.inf
_LEFT = np.array([_NAN, 1, -2, _NAN, _INF, -_INF, 0, 3, 2, _NAN, -1, 1, _NAN, _NAN, _INF, 0.5], np.float32).reshape(
    1, 2, 2, 4
)
_RIGHT = np.array([0, _NAN, 3, _NAN, _NAN, 5, _INF, -_INF, 1, 0, _NAN, -5, 7, -7, _INF, 0], np.float32).reshape(
    1, 2, 2, 4
)


def _special(name: str, operator: str, operands: int, options: dict[str, Any] | None = None,
             constants: Sequence[np.ndarray] = (), type: TensorType = F32) -> None:  # fmt: skip
    def make() -> OpCase:
        d = Draft(operator, random.Random(0))
        for array in (_LEFT, _RIGHT)[:operands]:
            d.runtime(array)
        for array in constants:
            d.constant(array)
        return d.build(options, [type])

    SPECIAL_VALUES[name] = make


for _name in (
    "ABS", "ELU", "EXP", "FLOOR", "CEIL", "ROUND", "GELU", "HARD_SWISH", "LOGISTIC", "LOG", "NEG", "RELU", "RELU6",
    "RELU_N1_TO_1", "RELU_0_TO_1", "RSQRT", "SIGN", "SQRT", "SQUARE", "TANH", "SOFTMAX", "L2_NORMALIZATION",
):  # fmt: skip
    _special(_name, _name, 1, dict(beta=1.0) if _name == "SOFTMAX" else None)
# ADD, SUB, MUL, DIV: XNNPACK keeps infinities, as the GPU does; the other CPU kernels cut them to the largest float.
for _name in ("MAXIMUM", "MINIMUM", "POW", "SQUARED_DIFFERENCE", "PRELU"):
    _special(_name, _name, 2)
for _name in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
    _special(_name, _name, 2, type=BOOL)
for _name in ("MEAN", "SUM", "REDUCE_PROD"):
    _special(_name, _name, 1, dict(keep_dims=True), [np.array([3], np.int32)])
_special("LEAKY_RELU", "LEAKY_RELU", 1, dict(alpha=0.1))
_special(  # all channels are in all windows: the CPU's running sum never loses what it has met
    "LOCAL_RESPONSE_NORMALIZATION", "LOCAL_RESPONSE_NORMALIZATION", 1, dict(radius=3, bias=1.0, alpha=0.5, beta=0.75)
)
_special("GELU approximate", "GELU", 1, dict(approximate=True))
_special("ADD RELU6", "ADD", 2, dict(fused_activation_function="RELU6"))
_special("CAST to INT32", "CAST", 1, dict(in_data_type=int(F32), out_data_type=int(I32)), type=I32)
_special("CAST to BOOL", "CAST", 1, dict(in_data_type=int(F32), out_data_type=int(BOOL)), type=BOOL)
for _name in ("RELU", "RELU6"):
    _special(
        f"CONV_2D {_name}", "CONV_2D", 1, dict(stride_h=1, stride_w=1, fused_activation_function=_name),
        [np.eye(4, dtype=np.float32).reshape(4, 1, 1, 4), np.zeros(4, np.float32)],
    )  # fmt: skip


# ------------------------------------------------------------------------------------- order along an axis


@case("LOG_SOFTMAX")
def log_softmax(d: Draft) -> OpCase:
    d.runtime(d.floats(d.shape(), 4.0))
    return d.build()


@case("REVERSE_V2")
def reverse(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.any_type(shape))
    first = d.rng.randrange(len(shape))
    d.ints(range(first, d.rng.randint(first + 1, len(shape))))  # the official kernel takes axes in a row
    return d.build()


@case("CUMSUM")
def cumsum(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.integers(shape, -1000, 1000) if d.chance(0.2) else d.floats(shape))
    axis = d.rng.randrange(len(shape))
    d.ints(axis - len(shape) if d.chance(0.3) else axis)
    return d.build(dict(exclusive=d.chance(), reverse=d.chance()))


@case("TOPK_V2")
def top_k(d: Draft) -> OpCase:
    shape = d.shape()
    x = np.round(d.floats(shape) * 2)  # with equals
    d.runtime(x.astype(np.int32) if d.chance(0.2) else x)
    d.ints(d.size(1, shape[-1]))
    return d.build(types=[_TYPES[d.operands[0][1].dtype], I32])


@case("BROADCAST_TO")
def broadcast_to(d: Draft) -> OpCase:
    shape = d.shape()
    smaller = tuple(1 if d.chance(0.4) else n for n in shape)[d.rng.randint(0, len(shape) - 1) :]
    d.runtime(d.any_type(smaller))
    d.ints(shape)
    return d.build()


# ---------------------------------------------------------------------------------------- choice by indices


def _indices(d: Draft, sizes: Shape, shape: Shape) -> np.ndarray:
    columns = [d.arrays.integers(0, n, shape) for n in sizes]
    return np.stack(columns, -1).astype(np.int32)


@case("GATHER_ND")
def gather_nd(d: Draft) -> OpCase:
    shape = d.shape(1, 4)
    depth = d.rng.randint(1, len(shape))
    d.runtime(d.any_type(shape))
    lead = tuple(d.size(1, 4) for _ in range(d.rng.randint(1, max(1, min(3, d.most - (len(shape) - depth))))))
    d.either(_indices(d, shape[:depth], lead))
    return d.build()


@case("SCATTER_ND")
def scatter_nd(d: Draft) -> OpCase:
    shape = d.shape(1, 4)
    depth = d.rng.randint(1, len(shape))
    lead = (d.size(1, 6),)
    indices = _indices(d, shape[:depth], lead)
    updates = (*lead, *shape[depth:])
    d.either(indices)
    d.runtime(d.any_type(updates))
    d.ints(shape)
    return d.build(types=[_TYPES[d.operands[1][1].dtype]])


@case("ONE_HOT")
def one_hot(d: Draft) -> OpCase:
    shape = tuple(d.size(1, 5) for _ in range(d.rng.randint(1, 3) if d.most == 4 else d.most - 1))
    depth = d.size(1, 9)
    d.runtime(d.integers(shape, -1, depth + 1))
    d.ints(depth)
    value = d.pick(np.float32, np.int32)
    for number in (2, -3):
        d.either(np.array(number, value))
    return d.build(dict(axis=d.pick(-1, *range(len(shape) + 1))), [_TYPES[np.dtype(value)]])


# --------------------------------------------------------------------------------- values of shapes and sizes


@case("SHAPE", "RANK")
def shapes(d: Draft) -> OpCase:
    d.runtime(d.any_type(d.shape()))
    target = d.pick(I32, I64) if d.operator == "SHAPE" else I32
    return d.build(dict(out_type=int(target)) if d.operator == "SHAPE" else None, [target])


@case("FILL")
def fill(d: Draft) -> OpCase:
    shape = d.shape()
    d.ints(shape)
    value = d.any_type((), bools=True)
    d.runtime(value)
    return d.build(types=[_TYPES[value.dtype]], shape=shape)


@case("RANGE")
def range_(d: Draft) -> OpCase:
    start, delta = d.rng.randint(-5, 5), d.pick(1, 2, -3)
    limit = start + delta * d.size(1, 9) - d.pick(0, 1) * (1 if delta > 0 else -1)
    whole = d.chance() or start == limit
    limit = limit if limit != start else start + delta
    for number in (start, limit, delta):
        d.constant(np.array(number, np.int32) if whole else np.array(number * 0.3, np.float32))
    return d.build()


@case("MATRIX_DIAG")
def matrix_diag(d: Draft) -> OpCase:
    d.runtime(d.any_type(d.shape(1, 3)))
    return d.build()


@case("MATRIX_SET_DIAG")
def matrix_set_diag(d: Draft) -> OpCase:
    shape = d.shape(2, 4)
    make = d.pick(d.floats, d.integers)
    d.runtime(make(shape))
    d.either(make((*shape[:-2], min(shape[-2:]))))
    return d.build()


@case("FAKE_QUANT")
def fake_quant(d: Draft) -> OpCase:
    d.runtime(d.floats(d.shape(), 3.0))
    low = d.pick(0.0, -1.0, -6.0)
    return d.build(dict(min=low, max=low + d.pick(1.0, 6.0), num_bits=d.pick(4, 8)))


@case("BUCKETIZE")
def bucketize(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.integers(shape) if d.chance(0.3) else np.round(d.floats(shape, 2)))
    bounds = sorted(d.rng.sample(range(-4, 5), d.size(1, 6)))
    return d.build(dict(boundaries=[float(b) for b in bounds]), [I32])


@case("DILATE")
def dilate(d: Draft) -> OpCase:
    x = d.shape()
    array = d.any_type(x)
    d.runtime(array)
    factors = [d.pick(1, 1, 2, 3) for _ in x]
    d.ints(factors)
    d.constant(np.array(d.pick(0, -2), array.dtype))
    return d.build(shape=tuple((n - 1) * f + 1 for n, f in zip(x, factors, strict=True)))


# ------------------------------------------------------------------------------------------ rows and segments


@case("SEGMENT_SUM")
def segment_sum(d: Draft) -> OpCase:
    x = d.shape()
    steps = d.arrays.integers(0, 2, x[0])
    steps[0] = 0
    d.runtime(d.integers(x) if d.chance(0.3) else d.floats(x))
    d.ints(np.cumsum(steps))
    return d.build(shape=(int(steps.sum()) + 1, *x[1:]))


@case("UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_MIN", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_SUM")
def unsorted_segments(d: Draft) -> OpCase:
    x, count = d.shape(), d.size(1, 5)
    d.runtime(d.integers(x) if d.chance(0.3) else d.arrays.uniform(0.7, 1.4, x).astype(np.float32))
    rows = x[: d.rng.randint(1, min(2, len(x)))]
    d.either(d.integers(rows, 0, count))
    d.ints(count)
    return d.build(shape=(count, *x[len(rows) :]))


@case("EMBEDDING_LOOKUP")
def embedding_lookup(d: Draft) -> OpCase:
    table = d.shape(2, 4)
    d.runtime(d.integers((d.size(1, 6),), 0, table[0]))
    d.either(d.floats(table))
    return d.build(types=[F32])


@case("HASHTABLE_LOOKUP")
def hashtable_lookup(d: Draft) -> OpCase:
    table = d.shape(1, 2)
    keys = np.sort(d.arrays.choice(40, table[0], replace=False)).astype(np.int32)
    d.runtime(np.where(d.bools((5,)), d.arrays.choice(keys, 5), d.integers((5,), 0, 40)).astype(np.int32))
    d.constant(keys)
    d.either(d.floats(table))
    return d.build(types=[F32, TensorType.UINT8])


@case("SPARSE_TO_DENSE")
def sparse_to_dense(d: Draft) -> OpCase:
    shape = tuple(d.size(1, 5) for _ in range(d.rng.randint(1, 4)))
    count = d.size(1, 4)
    indices = _indices(d, shape, (count,))
    indices = indices[np.lexsort(indices.T[::-1])]
    if len(shape) == 1 and d.chance():
        indices = indices[:, 0]
    d.either(indices)
    d.ints(shape)
    make = d.pick(d.floats, d.integers)
    d.either(make((count,) if d.chance(0.7) else ()))
    d.either(make(()))
    return d.build(types=[_TYPES[d.operands[2][1].dtype]])


@case("DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(d: Draft) -> OpCase:
    x = d.shape()
    part = tuple(
        n if d.chance(0.4) or (len([m for m in x if m > 1]) > 3 and i < 2) else d.size(1, n) for i, n in enumerate(x)
    )
    make = d.pick(d.floats, d.floats, d.integers)
    d.runtime(make(x))
    d.either(make(part))
    d.either(d.integers((len(x),), -1, 5))
    return d.build()


@case("REVERSE_SEQUENCE")
def reverse_sequence(d: Draft) -> OpCase:
    x = d.shape(2, 4)
    batch, along = d.rng.sample(range(len(x)), 2)
    d.runtime(d.any_type(x))
    d.either(d.integers((x[batch],), 1, x[along] + 1))
    return d.build(dict(batch_dim=batch, seq_dim=along))


@case("CONV_3D")
def conv_3d(d: Draft) -> OpCase:
    x = (d.pick(1, 2), d.size(3, 6), d.size(3, 7), d.size(3, 7), d.pick(1, 3, 4))
    kernel, outputs = tuple(d.size(1, 3) for _ in range(3)), d.pick(1, 4, 5)
    options: dict[str, Any] = {f"stride_{a}": d.size(1, 2) for a in "dhw"}
    options |= {
        f"dilation_{a}_factor": 1 if options[f"stride_{a}"] > 1 or k == 3 else d.size(1, 2)
        for a, k in zip("dhw", kernel, strict=True)
    }
    d.runtime(d.floats(x))
    d.either(d.floats((*kernel, x[4], outputs)))
    if d.chance():
        d.constant(d.floats((outputs,)))
    return d.build(options | dict(padding=d.pick("SAME", "VALID"), fused_activation_function=d.activation()))


@case("CONV_3D_TRANSPOSE")
def conv_3d_transpose(d: Draft) -> OpCase:
    batch, depth, outputs = d.pick(1, 2), d.pick(1, 3, 4), d.pick(1, 4, 5)
    sizes, kernel = [d.size(2, 4) for _ in range(3)], [d.size(1, 3) for _ in range(3)]
    strides, padding = [d.size(1, 2) for _ in range(3)], d.pick("SAME", "VALID")
    if padding == "SAME":
        made = [n * s - d.rng.randint(0, s - 1) for n, s in zip(sizes, strides, strict=True)]
    else:
        made = [(n - 1) * s + k for n, s, k in zip(sizes, strides, kernel, strict=True)]
    d.ints([batch, *made, outputs])
    d.either(d.floats((*kernel, outputs, depth)))
    d.runtime(d.floats((batch, *sizes, depth)))
    if d.chance():
        d.constant(d.floats((outputs,)))
    options = {f"stride_{a}": s for a, s in zip("dhw", strides, strict=True)}
    options |= {f"dilation_{a}_factor": 1 for a in "dhw"}
    return d.build(options | dict(padding=padding, fused_activation_function=d.activation()), [F32])


# --------------------------------------------------------------------------------------------- bits, StableHLO


@case("BITCAST")
def bitcast(d: Draft) -> OpCase:
    shape = d.shape()
    d.runtime(d.floats(shape) if d.chance() else d.floats(shape).view(np.int32))
    return d.build(types=[F32 if d.operands[0][1].dtype == np.int32 else I32])


@case("BITWISE_XOR", "RIGHT_SHIFT")
def bitwise(d: Draft) -> OpCase:
    left, right = d.broadcast(d.shape(1))
    high = 35 if d.operator == "RIGHT_SHIFT" else 1 << 30
    d.pair(d.integers(left, -(1 << 30), 1 << 30), d.integers(right, -2 if high == 35 else -high, high))
    return d.build()


@case("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
def stablehlo_binary(d: Draft) -> OpCase:
    shape, make = d.shape(1), d.pick(d.floats, d.integers)
    d.pair(make(shape), make(shape))
    return d.build(shape=shape)


@case("STABLEHLO_AND", "STABLEHLO_SHIFT_LEFT")
def stablehlo_bits(d: Draft) -> OpCase:
    shape = d.shape(1)
    if d.operator == "STABLEHLO_AND" and d.chance():
        d.pair(d.bools(shape), d.bools(shape))
    else:
        d.pair(d.integers(shape, -1000, 1000), d.integers(shape, 0, 20))
    return d.build(shape=shape)


@case("STABLEHLO_PAD")
def stablehlo_pad(d: Draft) -> OpCase:
    x = d.shape(1)
    array = d.any_type(x)
    d.runtime(array)
    d.constant(np.array(d.pick(0, 3), array.dtype))
    inner = [d.pick(0, 0, 1, 2) for _ in x]
    whole = [n + (n - 1) * i for n, i in zip(x, inner, strict=True)]
    low = [d.rng.randint(-(n - 1) // 3 if n > 3 else 0, 2) for n in whole]
    high = [d.rng.randint(-(n - 1) // 3 if n > 3 else 0, 2) for n in whole]
    options = dict(edge_padding_low=low, edge_padding_high=high, interior_padding=inner)
    return d.build(options, shape=tuple(n + a + b for n, a, b in zip(whole, low, high, strict=True)))


@case("STABLEHLO_GATHER")
def stablehlo_gather(d: Draft) -> OpCase:
    x = tuple(d.size(1, 5) for _ in range(d.rng.randint(1, 4)))
    width = d.rng.randint(1, len(x))
    order = d.rng.sample(range(len(x)), width)
    sizes = [d.size(1, n) for n in x]
    collapsed = sorted(d.rng.sample(range(len(x)), d.rng.randint(0, len(x) - 1)))
    for axis in collapsed:
        sizes[axis] = 1
    batch = tuple(d.size(1, 3) for _ in range(d.rng.randint(0, 2)))
    vector = d.rng.randint(0, len(batch))
    indices = np.stack([d.integers(batch, 0, x[a]) for a in order], axis=vector)
    kept = [n for i, n in enumerate(sizes) if i not in collapsed]
    rank = len(batch) + len(kept)
    offsets = sorted(d.rng.sample(range(rank), len(kept)))
    rest, slices = iter(batch), iter(kept)
    shape = tuple(next(slices) if i in offsets else next(rest) for i in range(rank))
    d.runtime(d.floats(x))
    d.either(indices)
    return d.build(
        dict(offset_dims=offsets, collapsed_slice_dims=collapsed, start_index_map=order, index_vector_dim=vector,
             slice_sizes=sizes), shape=shape,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------ spectra


@case("RFFT2D", "COMPLEX_ABS", "REAL", "IMAG")
def spectrum(d: Draft) -> OpCase:
    """Complex numbers stay within the GPU's part of a model: a transform, and what makes real numbers of it."""
    lengths = (d.pick(1, 1, 2, 8), d.pick(2, 16, 64))
    lead = tuple(d.size(1, 3) for _ in range(d.rng.randint(0, 2) if d.most == 4 else d.most - 2))
    x = d.floats((*lead, *(max(1, n - d.pick(0, 0, 1)) if d.chance() else n for n in lengths)))
    second = d.pick("COMPLEX_ABS", "REAL") if d.operator == "RFFT2D" else d.operator
    made = (*lead, lengths[0], lengths[1] // 2 + 1)
    b = ModelBuilder()
    tensors = [b.input("x", x.shape), b.constant(np.array(lengths, np.int32))]
    spectrum = b.op("RFFT2D", tensors, made, type=TensorType.COMPLEX64)
    b.output(b.op(second, [spectrum], made))
    return OpCase(f"{second} of RFFT2D {lengths} of {x.shape}", b.build(), [x])


@case("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def suppression(d: Draft) -> OpCase:
    """Corners in either order, and scores that all differ: of equal ones the official kernel takes whichever."""
    count, most = d.size(1, 40), d.size(1, 12)
    corners = d.arrays.uniform(0, 1, (count, 2)).astype(np.float32)
    sizes = d.arrays.uniform(-0.6, 0.6, (count, 2)).astype(np.float32)
    d.runtime(np.concatenate([corners, corners + sizes], 1))
    d.runtime((d.arrays.permutation(count) / np.float32(count)).astype(np.float32))
    d.ints(most)
    for number in (d.pick(0.2, 0.5), d.pick(0.0, 0.3)):
        d.constant(np.array(number, np.float32))
    if d.operator == "NON_MAX_SUPPRESSION_V4":
        return _suppressed(d, [((most,), I32), ((), I32)])
    d.constant(np.array(0, np.float32))
    return _suppressed(d, [((most,), I32), ((most,), F32), ((), I32)])


def _suppressed(d: Draft, outputs: list[tuple[Shape, TensorType]]) -> OpCase:
    b = ModelBuilder()
    tensors = [b.input("x", a.shape) if kind == "input" else b.constant(a) for kind, a, _ in d.operands]
    b.output(*b.op_multi(d.operator, tensors, outputs))
    return OpCase(f"{d.operator} of {tensors}", b.build(), [a for kind, a, _ in d.operands if kind == "input"])
