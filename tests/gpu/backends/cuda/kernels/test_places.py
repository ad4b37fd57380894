"""A constant matrix times each of many, in CUDA C++, against its definition."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import places
from litegpu.gpu.backends.cuda.kernels.places import PlacesSizes, PlacesTile, can, packed, ranked
from litegpu.gpu.backends.cuda.overlap import SHARED_BYTES
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder, MatMul, apply
from litegpu.gpu.lang.features import Features

FEATURES = Features(
    float16=True, subgroups=True, subgroup_size=32, max_threads=1024, max_shared_bytes=48 << 10, max_buffers=64,
    max_groups=(1 << 31) - 1, max_binding_bytes=1 << 40, compute_units=100, native="cuda", capability=90,
)  # fmt: skip
#: Tile, and of network(): positions (batch, heads), rows, depth, columns, whether something as large is added.
CASES: dict[str, tuple[PlacesTile, Any]] = {
    "all rows": (PlacesTile(4, 64, 3, 1), ((1, 3), 196, 196, 128, True)),
    "a team for each block": (PlacesTile(1, 32, 2, 2), ((2, 1), 196, 196, 96, False)),
    "two teams, many units": (PlacesTile(2, 64, 4, 1), ((1, 5), 100, 49, 192, True)),
    "few rows": (PlacesTile(1, 64, 2, 1), ((2, 2), 49, 200, 64, False)),
    "three teams": (PlacesTile(3, 32, 3, 1), ((1, 2), 150, 256, 64, True)),
}


def network(positions: tuple[int, int], rows: int, depth: int, columns: int, added: bool) -> tuple[Graph, np.ndarray]:
    """The middle of three nodes, so that what it reads and writes are intermediates."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    shape = (*positions, depth, columns)
    x, inner = builder.value(shape, DType.FLOAT32), builder.value(shape, DType.FLOAT32)
    eye = 2 * np.eye(columns, dtype=np.float32).reshape(columns, 1, 1, columns)
    builder.node(Conv2D(), [x, builder.constant(eye)], inner)
    matrix = builder.constant((rng.standard_normal((1, 1, rows, depth)) / depth**0.5).astype(np.float32))
    bias = builder.constant(rng.standard_normal((1, 1, rows, 1)).astype(np.float32))
    factor = builder.constant(rng.standard_normal((1, 1, 1, columns)).astype(np.float32))
    operands, expr = [bias, factor], apply("mul", apply("add", RESULT, Arg(1)), Arg(2))
    out = builder.value((*positions, rows, columns), DType.FLOAT32)
    if added:
        large = builder.value(out_shape := (*positions, rows, columns), DType.FLOAT32)
        data = builder.constant(rng.standard_normal(out_shape).astype(np.float32))
        builder.node(Elementwise(), [], large, apply("add", Arg(0), Arg(1)), [data, bias])
        operands, expr = [*operands, large], apply("add", expr, Arg(3))
    builder.node(MatMul(), [matrix, inner], out, expr, operands)
    last = builder.value((*positions, rows, 8), DType.FLOAT32)
    projected = builder.constant(rng.standard_normal((8, 1, 1, columns)) / columns**0.5)
    builder.node(Conv2D(), [out, projected], last)
    return builder.graph([x], [last]), rng.standard_normal(shape).astype(np.float32)


def built(tile: PlacesTile, graph: Graph, features: Features) -> Any:
    alone = mock.patch.object(places, "will_overlap", lambda graph: False)
    with alone, mock.patch.object(places, "ranked", lambda *_: [tile]):
        program = build_program(graph, features, "cuda", half=True)
    assert "places_product" in {k.name for k in program.kernels}
    return program


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(device: Any, case: str) -> None:
    if device.features.capability != 90:
        pytest.skip("no warpgroup products")
    tile, sizes = CASES[case]
    graph, x = network(*sizes)
    program = built(tile, graph, dataclasses.replace(device.features, compute_units=2))
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, [x])[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


def test_they_compile() -> None:
    kernels = []
    for tile, sizes in CASES.values():
        program = built(tile, network(*sizes)[0], FEATURES)
        kernels += [k for k in program.kernels if k.name == "places_product"]
    assert all(compile_kernels(kernels, 90))


def test_the_matrix_is_packed_as_threads_have_it() -> None:
    matrix = np.arange(70 * 20, dtype=np.float32).reshape(70, 20)
    found = packed(matrix, PlacesTile(1, 32, 2, 1))
    assert found.shape == (8, 2, 32, 8)
    # block 1, depth 16 to 19, lane 4 * 3 + 1: rows 19 and 27, depths 18 and 19, then 26 and 27, which there are not
    assert found[1, 1, 13].tolist() == [matrix[19, 18], matrix[19, 19], matrix[27, 18], matrix[27, 19], 0, 0, 0, 0]
    assert not found[5:].any()


def test_where_kernels_overlap_tiles_leave_room_for_others() -> None:
    graph, _ = network((1, 1), 196, 196, 384, True)
    (kernel,) = (k for k in build_program(graph, FEATURES, "cuda", half=True).kernels if k.name == "places_product")
    assert kernel.shared_bytes <= SHARED_BYTES - 1024


@pytest.mark.parametrize(
    "sizes", [PlacesSizes(64, 196, 196, 768, 1), PlacesSizes(1, 196, 196, 384), PlacesSizes(64, 49, 49, 512)]
)
def test_tiles_fill_the_device(sizes: PlacesSizes) -> None:
    best = ranked(sizes, 132)[0]
    assert can(sizes, 90) and not can(sizes, 80)
    assert sizes.groups(best, 132) * sizes.down(best) >= min(132, sizes.positions * sizes.columns // 32) // 2
    assert sizes.shared_bytes(best) <= 227 << 10


@pytest.mark.parametrize(
    "sizes", [PlacesSizes(1, 196, 300, 64), PlacesSizes(1, 20, 196, 64), PlacesSizes(1, 196, 196, 72)]
)
def test_what_is_left_to_others(sizes: PlacesSizes) -> None:
    """Deep matrices, few rows, columns that are no whole tiles."""
    assert not can(sizes, 90)
