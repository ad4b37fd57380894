"""A table of bytes for bytes, in CUDA C++."""

from __future__ import annotations

import math

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import lookup
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Copy, DType, Expr, Graph, GraphBuilder, Lookup, Slice, apply, whole
from litegpu.gpu.lang.features import Features

KERNEL = "lookup_of_bytes"
TABLE = np.random.default_rng(0).integers(0, 256, 256)
DTYPES = {DType.INT8: np.int8, DType.UINT8: np.uint8}
CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132, max_buffers=64, max_buffer_bytes=1 << 34)


def table_of(kind: DType) -> np.ndarray:
    return (TABLE + np.iinfo(DTYPES[kind]).min).astype(np.int32)


def network(shape: tuple[int, ...], kind: DType, made: DType, epilogue: Expr = RESULT) -> Graph:
    g = GraphBuilder()
    x = g.value(shape, kind)
    operands = [x, g.constant(table_of(made).reshape(1, 1, 1, 256))]
    return g.graph([x], [g.node(Lookup(np.iinfo(DTYPES[kind]).min), operands, g.value(shape, made), epilogue)])


@pytest.mark.cuda
@pytest.mark.parametrize(("kind", "made"), [(a, b) for a in DTYPES for b in DTYPES])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4), (2, 3, 5, 12), (1, 16, 16, 16), (3, 7, 9, 32), (1, 64, 65, 16)])
@pytest.mark.parametrize("many", [False, True])
def test_bytes(device, monkeypatch, shape: tuple[int, ...], kind: DType, made: DType, many: bool) -> None:
    if many:
        monkeypatch.setattr(lookup, "RESIDENT", 0)
    x = np.random.default_rng(math.prod(shape)).integers(0, 256, shape).astype(np.uint8).view(DTYPES[kind])
    program = build_program(network(shape, kind, made), device.features, "cuda", half=True)
    assert [program.kernels[d.kernel].name for d in program.dispatches] == [KERNEL]
    got = first_output(device, program, [x], shape, DTYPES[made])
    np.testing.assert_array_equal(got, table_of(made)[x.astype(int) - np.iinfo(x.dtype).min])


@pytest.mark.cuda
def test_what_is_beyond_a_byte_is_its_limit(device) -> None:
    """As where one is stored."""
    g = GraphBuilder()
    x, table = g.value((1, 2, 8, 16), DType.INT8), np.linspace(-400, 400, 256).astype(np.int32)
    y = g.node(Lookup(-128), [x, g.constant(table.reshape(1, 1, 1, 256))], g.value((1, 2, 8, 16), DType.INT8))
    program = build_program(g.graph([x], [y]), device.features, "cuda", half=True)
    assert [program.kernels[d.kernel].name for d in program.dispatches] == [KERNEL]
    given = np.arange(-128, 128).astype(np.int8).reshape(1, 2, 8, 16)
    got = first_output(device, program, [given], given.shape, np.int8)
    np.testing.assert_array_equal(got.reshape(-1), np.clip(table, -128, 127))


@pytest.mark.cuda
def test_a_part_of_what_another_kernel_made(device) -> None:
    """Which begins at no multiple of sixteen bytes."""
    g = GraphBuilder()
    x = g.value((3, 5, 7, 4), DType.INT8)
    first, second = (g.constant(table_of(DType.INT8)[::step].reshape(1, 1, 1, 256)) for step in (1, -1))
    y = g.node(Lookup(-128), [x, first], g.value((3, 5, 7, 4), DType.INT8))
    part = g.node(Copy((Slice((1, 0, 0, 0), (1, 1, 1, 1), (2, 5, 7, 4)),)), [y], g.value((2, 5, 7, 4), DType.INT8))
    z = g.node(Lookup(-128), [part, second], g.value((2, 5, 7, 4), DType.INT8))
    program = build_program(g.graph([x], [z]), device.features, "cuda", half=True)
    assert KERNEL in [program.kernels[d.kernel].name for d in program.dispatches]
    given = np.random.default_rng(0).integers(-128, 128, (3, 5, 7, 4)).astype(np.int8)
    table = table_of(DType.INT8)
    want = table[::-1][table[given[1:].astype(int) + 128] + 128]
    np.testing.assert_array_equal(first_output(device, program, [given], want.shape, np.int8), want)


def test_where_there_is_room_between_pixels_the_language_does_it() -> None:
    for shape, kind, epilogue, name in (
        ((1, 1, 1, 6), DType.INT8, RESULT, "lookup"),
        ((1, 4, 4, 8), DType.INT8, RESULT, KERNEL),
        ((1, 4, 4, 8), DType.INT8, apply("min", RESULT, whole(5)), KERNEL),  # which is in the table then
    ):
        program = build_program(network(shape, kind, DType.INT8, epilogue), CUDA, "cuda", half=True)
        assert [program.kernels[d.kernel].name for d in program.dispatches] == [name]


def test_threads_have_several_pieces_where_all_would_not_be_resident_at_once() -> None:
    for batch, groups in ((1, 49), (128, 128 * 49 // 4)):
        program = build_program(network((batch, 112, 112, 16), DType.INT8, DType.INT8), CUDA, "cuda", half=True)
        assert program.dispatches[0].groups == (groups, 1, 1)
