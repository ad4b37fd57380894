"""Integer operators give the numbers of the CPU's kernels for all that 8 bits can hold, with XNNPACK and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.gpu.evaluate import evaluate_expr, evaluate_graph
from litegpu.gpu.graph import Arg
from litegpu.gpu.interpolation import BUILTIN_BITS, XNNPACK_BITS
from litegpu.gpu.lower import check_operator, fixed_point, lower_partition
from litegpu.model import read_model
from litegpu.model.types import Quantization, TensorType
from litegpu.model.writer import ModelBuilder, quantized

DTYPES: dict[str, type[np.integer]] = {"int8": np.int8, "uint8": np.uint8, "int16": np.int16}
UNARY = ("ABS", "HARD_SWISH", "LEAKY_RELU", "NEG", "QUANTIZE", "RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1")
BINARY = ("ADD", "SUB", "MUL", "DIV", "SQUARED_DIFFERENCE", "PRELU")
COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
WITHOUT = {
    "uint8": {"ABS", "NEG", "SQUARED_DIFFERENCE"},
    "int16": {"HARD_SWISH", "RELU_0_TO_1", "RELU_N1_TO_1", "DIV", "SQUARED_DIFFERENCE", "PRELU"},
}
CASES = [(k, op) for k in DTYPES for op in (*UNARY, *BINARY, *COMPARISONS) if op not in WITHOUT.get(k, ())]
#: The resolvers that a user may choose, and whether XNNPACK is used. The optimized kernels differ from the reference
#: ones where SIMD instructions round otherwise (QUANTIZE, ADD of int16): those are compared with the latter.
KERNELS = {"xnnpack": OpResolverType.AUTO, "builtin": OpResolverType.BUILTIN_REF}


def parameters(rng: np.random.Generator, kind: str, scale: float) -> Quantization:
    limits = np.iinfo(DTYPES[kind])
    return quantized(scale, 0 if kind == "int16" else int(rng.integers(limits.min, limits.max + 1)))


def every_number(kind: str) -> np.ndarray:
    limits = np.iinfo(DTYPES[kind])
    return np.arange(limits.min, limits.max + 1).astype(DTYPES[kind])


def operands(rng: np.random.Generator, kind: str) -> list[np.ndarray]:
    """Every pair of 8-bit numbers; of 16 bits many, also small ones."""
    if kind != "int16":
        return [a.reshape(1, -1) for a in np.meshgrid(*[every_number(kind)] * 2, indexing="ij")]
    arrays = [rng.integers(-32768, 32768, (1, 20_000)) for _ in range(2)]
    for every, array in zip((3, 4), arrays, strict=True):
        array[:, ::every] = rng.integers(-50, 50, array[:, ::every].shape)
    return [a.astype(np.int16) for a in arrays]


def model(kind: str, op: str, seed: int) -> tuple[bytes, list[np.ndarray]]:
    """One operator with scales drawn at random, far apart now and then, and its inputs."""
    rng = np.random.default_rng(seed)
    type_, reach = TensorType[kind.upper()], (1.5, 7.0)[seed % 2]
    b = ModelBuilder()
    first = parameters(rng, kind, float(10 ** rng.uniform(-3, -1.5)))
    scale = float(first.scales[0])
    if op in UNARY:
        ratio = 1.0 if op == "NEG" else float(2 ** rng.uniform(-reach, reach))
        x = b.input("x", (1, every_number(kind).size), type_, quantization=first)
        options: dict[str, Any] = {"alpha": float(rng.uniform(-0.5, 1.5))} if op == "LEAKY_RELU" else {}
        made = parameters(rng, kind, scale * ratio)
        b.output(b.op(op, [x], (1, every_number(kind).size), options, type=type_, quantization=made))
        return b.build(), [every_number(kind).reshape(1, -1)]
    second = parameters(rng, kind, min(0.9, scale * float(2 ** rng.uniform(-reach, reach))))
    other = float(second.scales[0])
    arrays = operands(rng, kind)
    x, y = (b.input(n, arrays[0].shape, type_, quantization=q) for n, q in (("x", first), ("y", second)))
    if op in COMPARISONS:
        b.output(b.op(op, [x, y], arrays[0].shape, type=TensorType.BOOL))
        return b.build(), arrays
    made_scale = {
        "MUL": scale * other * 2 ** rng.uniform(0, 14),
        "SQUARED_DIFFERENCE": max(scale, other) ** 2 * 2 ** rng.uniform(3, 12),
        "DIV": scale / other * 2 ** rng.uniform(-5, 3),
    }.get(op, max(scale, other) * 2 ** rng.uniform(-1, 3))
    made = parameters(rng, kind, float(made_scale))
    activation = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")[seed % 4]
    options = {"fused_activation_function": activation} if op in ("ADD", "SUB", "MUL", "DIV") else {}
    if op == "DIV":  # the CPU refuses zeros
        zero = int(second.zero_points[0])
        arrays[1][arrays[1] == zero] = zero + (1 if zero < np.iinfo(DTYPES[kind]).max else -1)
    b.output(b.op(op, [x, y], arrays[0].shape, options, type=type_, quantization=made))
    return b.build(), arrays


def evaluated(content: bytes, inputs: Sequence[np.ndarray], kernels: str) -> list[np.ndarray]:
    graph = read_model(content).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, xnnpack=kernels == "xnnpack")
    return [
        a.reshape(graph.tensors[t].shape)
        for a, t in zip(evaluate_graph(lowered.graph, inputs), graph.outputs, strict=True)
    ]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("kind", "op"), CASES)
def test_every_number(kind: str, op: str, kernels: str) -> None:
    for seed in range(2):
        if (kind, op, kernels) == ("int16", "ADD", "xnnpack"):
            kernels = "builtin"
        content, inputs = model(kind, op, seed)
        (want,) = run(official(content, KERNELS[kernels]), inputs)
        np.testing.assert_array_equal(evaluated(content, inputs, kernels)[0], want, err_msg=f"seed {seed}")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "op"), CASES)
def test_every_number_with_many_scales(kind: str, op: str) -> None:
    for seed in range(2, 30):
        content, inputs = model(kind, op, seed)
        kernels = "builtin" if (kind, op) == ("int16", "ADD") else "xnnpack"
        (want,) = run(official(content, KERNELS[kernels]), inputs)
        np.testing.assert_array_equal(evaluated(content, inputs, kernels)[0], want, err_msg=f"seed {seed}")


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("op", ["HARD_SWISH", "LEAKY_RELU", "ADD", "DIV", "GREATER", "EQUAL"])
def test_every_number_on_gpu(op: str, half: bool) -> None:
    require_gpu()
    for seed in (4, 5):
        content, inputs = model("int8", op, seed)
        with on_gpu(content, precision_loss_allowed=half) as gpu:
            assert gpu.delegation_report().fully_delegated
            got, want = run(gpu, inputs)[0], run(official(content, OpResolverType.AUTO), inputs)[0]
        np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}")


@pytest.mark.cuda
@pytest.mark.parametrize(("kind", "op"), [c for c in CASES if c != ("int16", "ADD")])
def test_every_number_on_cuda(kind: str, op: str) -> None:
    content, inputs = model(kind, op, 6)
    with on_gpu(content, backend="cuda") as gpu:
        np.testing.assert_array_equal(run(gpu, inputs)[0], run(official(content, OpResolverType.AUTO), inputs)[0])


@pytest.mark.parametrize("op", ["ADD", "MUL", "GREATER"])
def test_a_constant_operand(op: str) -> None:
    rng = np.random.default_rng(1)
    b = ModelBuilder()
    x = b.input("x", (256, 1), TensorType.INT8, quantization=quantized(0.05, 3))
    y = b.constant(rng.integers(-128, 128, (1, 7)).astype(np.int8), quantization=quantized(0.02, -9))
    made = {"type": TensorType.BOOL} if op == "GREATER" else {"type": TensorType.INT8, "quantization": quantized(0.04)}
    b.output(b.op(op, [x, y], (256, 7), **made))
    content, inputs = b.build(), [every_number("int8").reshape(256, 1)]
    (want,) = run(official(content, OpResolverType.AUTO), inputs)
    np.testing.assert_array_equal(evaluated(content, inputs, "xnnpack")[0], want)


# ---------------------------------------------------------------------------------------------- resizing


def resizing(kind: str, seed: int) -> tuple[bytes, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    q = parameters(rng, kind, 0.1)
    channels = int(rng.integers(1, 9))
    given, made = ((1, int(rng.integers(1, n)), int(rng.integers(1, n)), channels) for n in (12, 25))
    options = [{}, {"align_corners": True}, {"half_pixel_centers": True}][seed % 3]
    x = b.input("x", given, TensorType[kind.upper()], quantization=q)
    size = b.constant(np.array(made[1:3], np.int32))
    b.output(b.op("RESIZE_BILINEAR", [x, size], made, options, type=TensorType[kind.upper()], quantization=q))
    limits = np.iinfo(DTYPES[kind])
    return b.build(), [rng.integers(limits.min, limits.max + 1, given).astype(DTYPES[kind])]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("kind", DTYPES)
def test_resizing(kind: str, kernels: str) -> None:
    differing, elements = 0, 0
    for seed in range(30):
        content, inputs = resizing(kind, seed)
        got = evaluated(content, inputs, kernels)[0]
        (want,) = run(official(content, KERNELS[kernels]), inputs)
        if (kind, kernels) == ("uint8", "builtin"):  # in floating point, where sums of four are taken in some order
            assert np.abs(got.astype(int) - want).max(initial=0) <= 1
            differing, elements = differing + int((got != want).sum()), elements + want.size
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"seed {seed}")
    assert differing <= 0.005 * elements


@pytest.mark.parametrize("kind", DTYPES)
def test_resizing_on_gpu(kind: str) -> None:
    require_gpu()
    for resolver in (OpResolverType.AUTO, OpResolverType.BUILTIN_REF):
        if (kind, resolver) == ("uint8", OpResolverType.BUILTIN_REF):
            continue
        for seed in range(30, 36):
            content, inputs = resizing(kind, seed)
            with on_gpu(content, resolver=resolver) as gpu:
                assert gpu.delegation_report().fully_delegated
                np.testing.assert_array_equal(run(gpu, inputs)[0], run(official(content, resolver), inputs)[0])


def test_the_kernels_bits_differ() -> None:
    assert (XNNPACK_BITS, BUILTIN_BITS) == (11, 10)


# ---------------------------------------------------------------------------------------------- chains


def test_attention() -> None:
    """softmax(q k^T) v in int8: scores, weights and result equal the CPU's."""
    require_gpu()
    rng = np.random.default_rng(0)
    b = ModelBuilder()
    grid = quantized(0.03, 5)
    q, k, v = (b.input(name, (2, 30, 16), TensorType.INT8, quantization=grid) for name in "qkv")
    made: dict[str, Any] = {"type": TensorType.INT8}
    scores = b.op("BATCH_MATMUL", [q, k], (2, 30, 30), {"adj_y": True}, quantization=quantized(0.15, 7), **made)
    weights = b.op("SOFTMAX", [scores], (2, 30, 30), {"beta": 1.0}, quantization=quantized(1 / 256, -128), **made)
    mixed = b.op("BATCH_MATMUL", [weights, v], (2, 30, 16), quantization=quantized(0.02, -3), **made)
    b.output(scores, weights, mixed)
    content = b.build()
    inputs = [rng.integers(-128, 128, (2, 30, 16)).astype(np.int8) for _ in range(3)]
    with on_gpu(content) as gpu:
        assert gpu.delegation_report().fully_delegated
        for got, want in zip(run(gpu, inputs), run(official(content, OpResolverType.AUTO), inputs), strict=True):
            np.testing.assert_array_equal(got, want)


# ---------------------------------------------------------------------------------------------- other grids

#: name -> input shape, output shape, options, constant operands, how many inputs
MOVES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], list[Any], int]] = {
    "RESHAPE": ((4, 6), (24,), {}, [[24]], 1),
    "TRANSPOSE": ((4, 6), (6, 4), {}, [[1, 0]], 1),
    "TILE": ((4, 6), (8, 6), {}, [[2, 1]], 1),
    "SPACE_TO_DEPTH": ((1, 4, 6, 3), (1, 2, 3, 12), {"block_size": 2}, [], 1),
    "DEPTH_TO_SPACE": ((1, 2, 3, 12), (1, 4, 6, 3), {"block_size": 2}, [], 1),
    "SLICE": ((4, 6), (2, 3), {}, [[1, 2], [2, 3]], 1),
    "STRIDED_SLICE": ((4, 6), (2, 6), {}, [[0, 0], [4, 6], [2, 1]], 1),
    "GATHER": ((5, 4), (3, 4), {"axis": 0}, [[0, 4, 2]], 1),
    "REVERSE_V2": ((5, 4), (5, 4), {}, [[0]], 1),
    "BROADCAST_TO": ((1, 4), (5, 4), {}, [[5, 4]], 1),
    "CONCATENATION": ((5, 4), (5, 8), {"axis": 1}, [], 2),
    "SQUEEZE": ((1, 4), (4,), {"squeeze_dims": [0]}, [], 1),
    "MAXIMUM": ((5, 4), (5, 4), {}, [], 2),
}


@pytest.mark.parametrize("given", [quantized(0.1, 3), None])
@pytest.mark.parametrize("made", [quantized(0.25, -9), None])
@pytest.mark.parametrize("op", MOVES)
def test_what_is_moved_stays_as_it_is_stored(op: str, given: Quantization | None, made: Quantization | None) -> None:
    """However the two sides are quantized: the CPU moves bytes, or refuses."""
    shape, out, options, constants, count = MOVES[op]
    b = ModelBuilder()
    inputs = [b.input(f"x{i}", shape, TensorType.INT8, quantization=given) for i in range(count)]
    numbers = [b.constant(np.array(c, np.int32)) for c in constants]
    b.output(b.op(op, [*inputs, *numbers], out, options, type=TensorType.INT8, quantization=made))
    content, rng = b.build(), np.random.default_rng(0)
    arrays = [rng.integers(-128, 128, shape).astype(np.int8) for _ in inputs]
    graph = read_model(content).main
    refused = [check_operator(graph, o) for o in graph.operators] != [None]
    try:
        (want,) = run(official(content, OpResolverType.BUILTIN_REF), arrays)
    except RuntimeError:
        return
    assert not refused
    np.testing.assert_array_equal(evaluated(content, arrays, "xnnpack")[0], want)


@pytest.mark.parametrize(("scale", "taken"), [(0.1, True), (0.1000005, True), (0.11, False)])
def test_pooling_wants_scales_that_are_nearly_the_same(scale: float, taken: bool) -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 4, 4, 2), TensorType.INT8, quantization=quantized(0.1, 3))
    options = dict(filter_height=2, filter_width=2, stride_h=1, stride_w=1, padding="SAME")
    made: dict[str, Any] = {"type": TensorType.INT8, "quantization": quantized(scale, 3)}
    b.output(b.op("MAX_POOL_2D", [x], (1, 4, 4, 2), options, **made))
    content, inputs = b.build(), [np.arange(-16, 16, dtype=np.int8).reshape(1, 4, 4, 2) * 8]
    graph = read_model(content).main
    assert [check_operator(graph, o) is None for o in graph.operators] == [taken]
    if taken:
        np.testing.assert_array_equal(evaluated(content, inputs, "xnnpack")[0], run(official(content), inputs)[0])


def test_what_is_moved_stays_as_it_is_stored_on_gpu() -> None:
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", (1, 8, 8, 3), TensorType.UINT8)
    made: dict[str, Any] = {"type": TensorType.UINT8, "quantization": quantized(0.25, 127)}
    b.output(b.op("SPACE_TO_DEPTH", [x], (1, 4, 4, 12), {"block_size": 2}, **made))
    array = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3)).astype(np.uint8)
    with on_gpu(b.build()) as gpu:
        assert gpu.delegation_report().fully_delegated
        np.testing.assert_array_equal(run(gpu, [array])[0], run(official(b.build()), [array])[0])


# ---------------------------------------------------------------------------------------------- fixed point


@pytest.mark.parametrize("real", [0.0, 1.0, 0.5, 0.9999999999, 3.7, 1e-3, 2.0**-31, 1e-12, 2.0**29, 1e12, -0.3])
def test_multipliers(real: float) -> None:
    multiplier, shift = fixed_point.multiplier_of(real)
    if 2.0**-32 < abs(real) < 2.0**30:
        assert abs(multiplier) * 2.0 ** (shift - 31) == pytest.approx(abs(real), rel=2**-30)
        assert 2**30 <= abs(multiplier) < 2**31
    elif abs(real) >= 2.0**30:
        assert (multiplier, shift) == (2**31 - 1, 30)
    else:
        assert multiplier == 0


@pytest.mark.parametrize(
    ("x", "real", "want"),
    [(5, 0.5, 3), (-5, 0.5, -2), (6, 0.25, 2), (-6, 0.25, -2), (-2, 0.25, -1), (7, 2.0, 14), (-7, 2.0, -14)],
)
def test_halves_are_rounded_twice(x: int, real: float, want: int) -> None:
    """Of the product upwards, then of the shift away from zero."""
    assert evaluate_expr(fixed_point.times(Arg(0), real), [np.array([x], np.int32)]).tolist() == [want]


@pytest.mark.parametrize("scale", [1e-38, 1e-45])
def test_tables_of_what_xnnpack_crashes_on_come_from_the_other_kernels(scale: float) -> None:
    """A scale that is no normal number ends the process in XNNPACK, and the table is made by running the operator."""
    require_gpu()
    b, shape = ModelBuilder(), (1, 16, 16, 1)
    x = b.input("x", shape, TensorType.UINT8, quantization=quantized(scale, 121))
    b.output(b.op("QUANTIZE", [x], shape, type=TensorType.UINT8, quantization=quantized(0.025, 121)))
    numbers = np.arange(256, dtype=np.uint8).reshape(shape)
    (found,) = run(on_gpu(b.build(), arithmetic="integer"), [numbers])
    np.testing.assert_array_equal(found, run(official(b.build()), [numbers])[0])
