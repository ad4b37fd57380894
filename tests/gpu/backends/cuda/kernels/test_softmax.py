"""Softmax of bytes in CUDA C++: sums to the last bit as they are where one number is added after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from agreement import official, on_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from first_output import first_output
from gpu.kernels.test_integer_softmax import softmax_model

from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, DType, Graph, GraphBuilder, IntegerSoftmax, apply, whole
from litegpu.gpu.lang.features import Features
from litegpu.model.types import TensorType

KERNEL = "softmax_of_bytes"


def network(shape: tuple[int, ...], kind: DType, table: np.ndarray, scale: float) -> Graph:
    """The last bits of shares in units of `scale`: those of small units show the last bits of sums."""
    g = GraphBuilder()
    x, y = g.value(shape, kind), g.value(shape, kind)
    operands = [x, g.constant(table.astype(np.float32).reshape(1, 1, 1, 256))]
    low = 0 if kind is DType.UINT8 else -128
    g.node(IntegerSoftmax(scale), operands, y, apply("add", apply("bit_and", RESULT, whole(255)), whole(low)))
    return g.graph([x], [y])


def added(x: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parts, and their sums: one addition after the other, rounded each time."""
    wide = x.astype(np.int32)
    parts = table.astype(np.float32)[wide.max(axis=-1, keepdims=True) - wide]
    return parts, np.add.accumulate(parts, axis=-1, dtype=np.float32)[..., -1:]


def expected(x: np.ndarray, table: np.ndarray, scale: float) -> np.ndarray:
    parts, total = added(x, table)
    share = np.float32(1) / (total * np.float32(scale))
    made = np.floor((parts * share).astype(np.float32) + np.float32(0.5)).astype(np.int32)
    return ((made & 255) + np.iinfo(x.dtype).min).astype(x.dtype)


def check(device, x: np.ndarray, table: np.ndarray) -> None:
    kind = DType.UINT8 if x.dtype == np.uint8 else DType.INT8
    # the last bits of sums show in shares of almost as many bits as an int has
    for scale in (1 / 256, 2.0**-28 / float(added(x, table)[1].min())):
        program = build_program(network(x.shape, kind, table, scale), device.features, "cuda", half=True)
        assert [program.kernels[d.kernel].name for d in program.dispatches] == [KERNEL]
        got, want = first_output(device, program, [x], x.shape, x.dtype), expected(x, table, scale)
        np.testing.assert_array_equal(got, want, err_msg=str(scale))


def powers(step: float) -> np.ndarray:
    return np.exp(-step * np.arange(256)).astype(np.float32)


#: Of the differences: what has few digits lies half-way between two sums often.
TABLES = {
    "usual": powers(0.07), "flat": powers(0.004), "steep": powers(0.9), "ones": np.ones(256, np.float32),
    "few digits": np.rint(powers(0.02) * 2**18) / 2**18, "ends": powers(3.0),
}  # fmt: skip
SHAPES = [
    (1, 1, 1, 1000),
    (1, 1, 7, 12),
    (3, 1, 67, 8),
    (1, 1, 66, 64),
    (1, 1, 9000, 20),
    (1, 2, 3, 68),
    (2, 3, 100, 92),
    (1, 1, 1, 4),
    (1, 1, 3, 2048),
    (1, 1, 5, 132),
]


@pytest.mark.cuda
@pytest.mark.parametrize(("shape", "table"), [(s, t) for s in SHAPES for t in TABLES if s == SHAPES[0] or t == "usual"])
def test_rows(device, shape: tuple[int, ...], table: str) -> None:
    dtype = np.uint8 if shape[2] == 7 else np.int8
    limits = np.iinfo(dtype)
    x = np.random.default_rng(math.prod(shape)).integers(limits.min, limits.max + 1, shape).astype(dtype)
    x[..., : shape[3] // 2] //= 2  # what comes first is less
    check(device, x, TABLES[table])


@pytest.mark.cuda
def test_sums_that_pass_powers_of_two_where_lanes_begin(device) -> None:
    """A thousand equal numbers, and the same behind numbers of which next to nothing is left."""
    table = TABLES["ones"].copy()
    table[200:] = 2.0**-30
    x = np.full((1, 1, 3, 1024), 127, np.int8)
    x[0, 0, 1, :512], x[0, 0, 2, 3:500] = -128, -100
    check(device, x, table)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(7, 10), (1, 1001), (600, 21)])
def test_rows_of_odd_lengths(device, shape: tuple[int, ...]) -> None:
    """Beside the official runtime."""
    content, x = softmax_model(shape, TensorType.INT8)
    want = run(official(content, OpResolverType.BUILTIN), [x])[0]
    with on_gpu(content, arithmetic="integer", backend="cuda") as gpu:
        np.testing.assert_array_equal(run(gpu, [x])[0], want)


@pytest.mark.cuda
def test_longer_rows_have_the_kernel_of_the_language(device) -> None:
    graph = network((1, 1, 1, 2052), DType.INT8, TABLES["usual"], 1 / 256)
    program = build_program(graph, device.features, "cuda", half=True)
    assert [program.kernels[d.kernel].name for d in program.dispatches] == ["integer_softmax"]


def test_short_rows_have_a_thread_each_or_a_few_lanes() -> None:
    """Of up to 64 channels, by how many there are; longer ones have a warp or more."""
    features = Features(float16=True, native="cuda", capability=90, compute_units=132)
    for channels, rows, workgroup, groups in (
        (64, 65, 64, 17),
        (12, 65, 64, 5),
        (12, 10**5, 256, 391),
        (68, 65, 128, 17),
    ):
        graph = network((1, 1, rows, channels), DType.INT8, TABLES["usual"], 1 / 256)
        program = build_program(graph, features, "cuda", half=True)
        (dispatch,) = program.dispatches
        assert (program.kernels[dispatch.kernel].workgroup[0], dispatch.groups[0]) == (workgroup, groups)
