"""Products of two computed values, in CUDA C++, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import matmul, tile
from litegpu.gpu.backends.cuda.kernels.tile import TF32_CAPABILITIES, WorkgroupTile
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Expr, GraphBuilder, MatMul, apply

HALF = pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])


def network(a: tuple[int, ...], b: tuple[int, ...], op: MatMul, *, inner: str = "", fused: bool = False,
            constant: str = ""):  # fmt: skip
    """a times b; those named in `inner` are doubled first, as intermediates, which float16 programs store in float16,
    the one named `constant` is one. `fused`: plus a row, then RELU."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    inputs, data, factors = [], [], []
    for name, shape in (("a", a), ("b", b)):
        if name == constant:
            factors.append(builder.constant(rng.standard_normal(shape).astype(np.float32)))
            continue
        x = source = builder.value(shape, DType.FLOAT32)
        if name in inner:
            eye = builder.constant(2 * np.eye(shape[3], dtype=np.float32).reshape(shape[3], 1, 1, shape[3]))
            source = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
        inputs.append(x)
        factors.append(source)
        data.append(rng.standard_normal(shape).astype(np.float32))
    rows, columns = a[3 if op.transpose_a else 2], b[2 if op.transpose_b else 3]
    out = builder.value((*np.broadcast_shapes(a[:2], b[:2]), rows, columns), DType.FLOAT32)
    expression: Expr = RESULT
    operands: list[int] = []
    if fused:
        operands = [builder.constant(rng.standard_normal((1, 1, 1, columns)).astype(np.float32))]
        expression = apply("max", apply("add", RESULT, Arg(1)), 0.0)
    builder.node(op, factors, out, expression, operands)
    return builder.graph(inputs, [out]), data


def check(device, network, half: bool) -> None:
    graph, data = network
    program = build_program(graph, device.features, "cuda", half=half)
    name = program.kernels[program.dispatches[-1].kernel].name
    assert name == ("tensor_matmul" if half else "tiled_matmul")
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= (2e-3 if half else 1e-6) * np.linalg.norm(want)


def shapes(op: MatMul, lead_a, lead_b, m: int, k: int, n: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a = (*lead_a, k, m) if op.transpose_a else (*lead_a, m, k)
    b = (*lead_b, n, k) if op.transpose_b else (*lead_b, k, n)
    return a, b


@pytest.mark.cuda
@HALF
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_layouts(device, half: bool, transpose_a: bool, transpose_b: bool) -> None:
    """Depths of one number to several steps, in whole chunks, half chunks and neither; the user's values and others."""
    op = MatMul(transpose_a, transpose_b)
    for k, inner in ((1, ""), (5, "ab"), (12, "ab"), (16, "a"), (72, "ab"), (67, "b")):
        check(device, network(*shapes(op, (1, 1), (1, 1), 18, k, 21), op, inner=inner, fused=k == 12), half)


@pytest.mark.cuda
@HALF
@pytest.mark.parametrize("leads", [((2, 3), (2, 3)), ((1, 3), (2, 1)), ((2, 1), (1, 1)), ((1, 1), (2, 3))])
def test_leading_axes(device, half: bool, leads) -> None:
    op = MatMul(False, True)
    lead_a, lead_b = leads
    check(device, network(*shapes(op, lead_a, lead_b, 17, 24, 9), op, inner="ab", fused=True), half)


@pytest.mark.cuda
@HALF
@pytest.mark.parametrize("constant", ["a", "b"])
@pytest.mark.parametrize("transposed", [False, True])
def test_constants(device, half: bool, constant: str, transposed: bool) -> None:
    """The same for all of the batch, as vectors for distances are, in chunks of the depth or not."""
    op = MatMul(False, transposed)
    leads = ((1, 3), (2, 3)) if constant == "a" else ((2, 3), (1, 3))
    for k, n in ((36, 21), (16, 24)):
        check(device, network(*shapes(op, *leads, 18, k, n), op, inner="ab", constant=constant), half)


@pytest.mark.cuda
@HALF
def test_tiles(device, monkeypatch, half: bool) -> None:
    """Tiles of every division among warps."""
    op = MatMul()
    given = matmul.ranked
    monkeypatch.setattr(tile, "suits", lambda candidate, product: True)
    by_division = {}

    def chosen(ctx, a, b):
        by_division.update({(t.warps, t.rows > t.columns, t.warpgroups, t.tf32): t for t in given(ctx, a, b)})
        return given(ctx, a, b)

    monkeypatch.setattr(matmul, "ranked", chosen)
    case = network(*shapes(op, (1, 2), (1, 2), 40, 72, 36), op, inner="ab")
    check(device, case, half)
    assert len(by_division) > 3
    for one in by_division.values():
        monkeypatch.setattr(matmul, "ranked", lambda ctx, a, b, one=one: [one])
        check(device, case, half)


def by_tensor_cores(device, monkeypatch) -> None:
    if device.features.capability not in TF32_CAPABILITIES:
        pytest.skip("tensor cores are no quicker there")
    one = WorkgroupTile(32, 32, 16, (2, 2, 1), 3, tf32=True)
    monkeypatch.setattr(matmul, "ranked", lambda ctx, a, b: [one])


@pytest.mark.cuda
@pytest.mark.parametrize("transpose_a, transpose_b", [(False, False), (True, False), (False, True)])
def test_floats_by_tensor_cores(device, monkeypatch, transpose_a: bool, transpose_b: bool) -> None:
    by_tensor_cores(device, monkeypatch)
    op = MatMul(transpose_a, transpose_b)
    check(device, network(*shapes(op, (2, 3), (2, 3), 37, 45, 50), op, inner="ab", fused=True), False)


@pytest.mark.cuda
def test_infinities_by_tensor_cores(device, monkeypatch) -> None:
    """Whose parts of TF32 are none, in either factor or both: infinite, or NaN by 0 and with those of another sign."""
    by_tensor_cores(device, monkeypatch)
    graph, _ = network((1, 1, 16, 20), (1, 1, 20, 16), MatMul())
    a, b = np.ones((1, 1, 16, 20), np.float32), np.ones((1, 1, 20, 16), np.float32)
    a[0, 0, :5, 3] = np.inf, -np.inf, np.nan, 0.0, 1.5 + 2**-20
    a[0, 0, 5, 3:5] = np.inf, -np.inf
    b[0, 0, 3, :5] = np.inf, -np.inf, 0.0, -(1 + 2**-20), np.nan
    program = build_program(graph, device.features, "cuda", half=False)
    got = first_output(device, program, [a, b], (1, 1, 16, 16))
    with np.errstate(invalid="ignore"):
        want = (a[0, 0, :, :, None].astype(np.float64) * b[0, 0, None]).sum(1)
    assert np.isinf(want).sum() > 20 and np.isnan(want).sum() > 20
    np.testing.assert_allclose(got[0, 0], want, rtol=1e-6)


@pytest.mark.cuda
def test_small_outputs_are_left_to_the_language(device) -> None:
    op = MatMul()
    for m, n in ((15, 100), (100, 7)):
        graph, _ = network(*shapes(op, (1, 1), (1, 1), m, 8, n), op)
        program = build_program(graph, device.features, "cuda", half=True)
        assert program.kernels[program.dispatches[-1].kernel].name == "matmul"
