"""Pooling kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, DType, GraphBuilder, Pool2D, apply
from litegpu.gpu.lang.features import Features


def pool(kind, shape, window, stride, *, same=True, fused=False, packed=False, data=None, outside=None, **options):
    b, h, w, c = shape
    if same:
        out = [-(-n // s) for n, s in zip((h, w), stride, strict=True)]
        total = [max(0, (o - 1) * s + e - n) for o, s, e, n in zip(out, stride, window, (h, w), strict=True)]
    else:
        out = [(n - e) // s + 1 for n, s, e in zip((h, w), stride, window, strict=True)]
        total = [0, 0]
    builder = GraphBuilder()
    x = builder.value(shape, DType.FLOAT32)
    y = builder.value((b, *out, c), DType.FLOAT32)
    op = Pool2D(kind, window, stride, (total[0] // 2, total[1] // 2), outside=outside)
    builder.node(op, [x], y, apply("max", RESULT, 0.0) if fused else RESULT)
    data = np.random.default_rng(0).standard_normal(shape) - 1 if data is None else data
    return check_node(
        builder, {x: data}, packed_values=(x, y) if packed else (), interpret=np.prod(shape) < 1000, **options
    )


@pytest.mark.parametrize("kind", ["average", "squares", "max"])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 17])
def test_channels(kind: str, channels: int) -> None:
    pool(kind, (2, 7, 8, channels), (3, 2), (2, 2), fused=True)
    pool(kind, (1, 7, 8, channels), (2, 2), (1, 1), same=False, packed=True)
    pool(kind, (1, 9, 8, channels), (5, 6), (1, 3), half=True)


@pytest.mark.parametrize("kind", ["average", "squares", "max"])
@pytest.mark.parametrize("size", [(7, 7), (33, 33), (17, 5)])
def test_global(kind: str, size: tuple[int, int]) -> None:
    pool(kind, (2, *size, 37), size, (1, 1), same=False)
    pool(kind, (1, *size, 8), size, (2, 2))


def test_values_below_any_usual_start() -> None:
    pool("max", (1, 6, 6, 4), (3, 3), (2, 2), data=np.full((1, 6, 6, 4), -3e38))


def test_not_finite() -> None:
    data = np.ones((1, 6, 6, 5))
    data[0, 0, 0, 4], data[0, 5, 3, 2] = np.nan, np.inf
    assert np.isnan(pool("average", (1, 6, 6, 5), (2, 2), (2, 2), data=data)).sum() == 1
    result = pool("max", (1, 6, 6, 5), (2, 2), (2, 2), data=data)
    assert np.isinf(result).sum() == 1 and result[0, 0, 0, 4] == 1


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("window, padding", [((2, 2), (0, 0)), ((3, 2), (1, 1)), ((9, 9), (0, 0))])
def test_prologue(window: tuple[int, int], padding: tuple[int, int], half: bool) -> None:
    """What lies outside is no element, whatever the prologue would make of zero."""
    shape = (2, 9, 10, 8)
    rng, builder = np.random.default_rng(0), GraphBuilder()
    size = [(n + 2 * p - e) // e + 1 for n, p, e in zip(shape[1:3], padding, window, strict=True)]
    x, y = builder.value(shape, DType.FLOAT32), builder.value((2, *size, 8), DType.FLOAT32)
    factors = [builder.constant(rng.standard_normal((1, 1, 1, c))) for c in (8, 1)]
    prologue = apply("max", apply("add", apply("mul", RESULT, Arg(1)), Arg(2)), 0.0)
    builder.node(Pool2D("average", window, window, padding, prologue), [x, *factors], y, apply("neg", RESULT))
    check_node(builder, {x: rng.standard_normal(shape)}, interpret=True, half=half)


@pytest.mark.parametrize("kind", ["average", "squares", "max"])
@pytest.mark.parametrize(("window", "stride"), [((3, 3), (1, 1)), ((3, 3), (2, 2)), ((5, 5), (1, 1)), ((2, 3), (1, 2))])
def test_neighbours_share_columns(kind: str, window: tuple[int, int], stride: tuple[int, int]) -> None:
    """Where there are more pixels than threads are wanted, in rows that are no multiple of four."""
    pool(kind, (2, 9, 41, 12), window, stride, features=Features(compute_units=1), fused=True)


@pytest.mark.parametrize("units", [1, 300])
@pytest.mark.parametrize(("kind", "outside"), [("average", 0.0), ("max", 0.0), ("max", -0.5)])
def test_padding_that_counts(kind: str, outside: float, units: int) -> None:
    pool(kind, (1, 7, 30, 8), (3, 3), (1, 1), features=Features(compute_units=units), outside=outside)
