"""Copy kernels: every step alone and random chains, by quads and by elements, in every layout."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node, lay_out

from litegpu.gpu.graph import (
    RESULT,
    Copy,
    DType,
    Expr,
    GraphBuilder,
    Mirror,
    Pad,
    Reshape,
    Shape,
    Slice,
    Step,
    Take,
    Tile,
    Transpose,
    apply,
)
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.movement import moves_quads, shapes_along
from litegpu.gpu.lang.features import Features

NONE = (0, 0, 0, 0)
ONE = (1, 1, 1, 1)


def check_copy(steps: tuple[Step, ...], shape: Shape, epilogue: Expr = RESULT, dtype: DType = DType.FLOAT32,
               layouts: tuple[str, str] = ("padded", "padded")) -> None:  # fmt: skip
    builder = GraphBuilder()
    target = shapes_along(steps, shape)[-1]
    x, y = builder.value(shape, dtype), builder.value(target, dtype)
    builder.node(Copy(steps), [x], y, epilogue)
    views = {x: LAYOUTS[layouts[0]](0, shape, dtype), y: LAYOUTS[layouts[1]](1, target, dtype)}
    data = np.arange(1, math.prod(shape) + 1).reshape(shape)
    check_node(builder, {x: data % 2 if dtype is DType.BOOL else data}, views=views, interpret=True)


SINGLE: list[tuple[Shape, tuple[Step, ...], bool]] = [  # shape, steps, whether quads stay together
    ((2, 3, 5, 6), (), True),
    ((2, 3, 4, 8), (Pad((0, 1, 2, 0), (1, 0, 2, 0), 3.0),), True),
    ((2, 3, 4, 8), (Pad((0, 0, 0, 4), (0, 0, 0, 8), 3.0),), True),
    ((2, 3, 4, 3), (Pad((0, 1, 2, 1), (1, 0, 2, 2), -1.0),), False),
    ((2, 3, 4, 3), (Pad((0, 0, 0, 0), (0, 0, 0, 5)),), False),
    ((1, 5, 5, 5), (Pad((0, -1, -2, 0), (0, -1, 1, 0)),), True),
    ((2, 4, 5, 12), (Slice((1, 1, 0, 4), ONE, (1, 2, 5, 5)),), True),
    ((2, 4, 5, 12), (Slice((0, 0, 0, 3), ONE, (2, 4, 5, 6)),), False),
    ((2, 7, 6, 5), (Slice((1, 6, 5, 0), (-1, -2, -3, 1), (2, 4, 2, 5)),), True),
    ((1, 2, 2, 9), (Slice((0, 0, 0, 8), (1, 1, 1, -2), (1, 2, 2, 5)),), False),
    ((2, 3, 4, 5), (Transpose((0, 2, 1, 3)),), True),
    ((2, 3, 4, 5), (Transpose((3, 1, 0, 2)),), False),
    ((2, 3, 4, 5), (Transpose((0, 3, 1, 2)),), False),
    ((1, 4, 5, 6), (Mirror((0, 2, 3, 0), (0, 3, 1, 0)),), True),
    ((1, 4, 5, 6), (Mirror((0, 2, 3, 0), (0, 4, 5, 0), True),), True),
    ((2, 3, 2, 4), (Mirror((1, 0, 0, 3), (1, 2, 1, 2)),), False),
    ((2, 3, 2, 4), (Mirror((2, 0, 0, 3), (1, 2, 1, 4), True),), False),
    ((2, 3, 2, 5), (Tile((2, 1, 3, 1)),), True),
    ((2, 3, 2, 8), (Tile((1, 2, 1, 3)),), True),
    ((2, 3, 2, 5), (Tile((1, 1, 1, 3)),), False),
    ((2, 1, 2, 1), (Tile((1, 3, 1, 7)),), False),
    ((2, 5, 3, 6), (Take(1, (3, 4, 0, 1, 2)),), True),
    ((2, 5, 3, 6), (Take(1, (4, 0, 0, 3)),), True),
    ((2, 5, 3, 6), (Take(3, (5, 1, 0)),), False),
    ((2, 5, 3, 6), (Take(2, (2, 1, 0)),), True),
    ((1, 2, 3, 20), (Reshape((1, 2, 3, 20), (1, 6, 5, 4)),), True),
    ((1, 2, 3, 20), (Reshape((1, 2, 3, 20), (2, 3, 10, 2)),), False),
    ((1, 4, 6, 3), (Reshape((1, 4, 6, 3), (1, 1, 1, 72)),), False),
    ((2, 4, 6, 5), (Reshape((2, 4, 6, 5), (1, 2, 24, 5)),), True),
    ((2, 1, 1, 9), (Reshape((2, 1, 1, 9), (3, 3, 2, 1)),), False),
]


@pytest.mark.parametrize(("shape", "steps", "quads"), SINGLE)
def test_single_steps(shape: Shape, steps: tuple[Step, ...], quads: bool) -> None:
    assert moves_quads(steps, shapes_along(steps, shape)) == quads
    for layout in ("padded", "packed"):
        check_copy(steps, shape, layouts=(layout, "padded"))
        check_copy(steps, shape, layouts=("padded", layout))


def space_to_depth(shape: Shape, block: int) -> tuple[Step, ...]:
    b, h, w, c = shape
    split = (b, h // block, block, w // block, block, c)
    mixed = (b, h // block, w // block, block, block, c)
    return (
        Reshape(shape, split),
        Transpose((0, 1, 3, 2, 4, 5)),
        Reshape(mixed, (b, h // block, w // block, block * block * c)),
    )


def depth_to_space(shape: Shape, block: int) -> tuple[Step, ...]:
    b, h, w, c = shape
    rest = c // (block * block)
    mixed = (b, h, w, block, block, rest)
    split = (b, h, block, w, block, rest)
    return (
        Reshape(shape, mixed),
        Transpose((0, 1, 3, 2, 4, 5)),
        Reshape(split, (b, h * block, w * block, rest)),
    )


@pytest.mark.parametrize("channels", (1, 3, 4, 8))
def test_space_to_depth_and_back(channels: int) -> None:
    steps = space_to_depth((2, 4, 6, channels), 2)
    assert moves_quads(steps, shapes_along(steps, (2, 4, 6, channels))) == (channels % 4 == 0)
    check_copy(steps, (2, 4, 6, channels))
    check_copy(depth_to_space((2, 3, 2, 4 * channels), 2), (2, 3, 2, 4 * channels))


def test_two_pads_keep_their_own_fills() -> None:
    for channels in (3, 4):
        pads = (Pad((0, 1, 0, 0), (0, 1, 0, 0), 5.0), Pad((0, 1, 2, 0), (0, 0, 0, 0), 7.0))
        check_copy(pads, (1, 2, 3, channels))


@pytest.mark.parametrize(("source", "target"), list(itertools.product(LAYOUTS, LAYOUTS)))
@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.INT32, DType.BOOL))
def test_layouts(source: str, target: str, dtype: DType) -> None:
    for channels in (3, 8):
        epilogue = apply("exp", apply("mul", RESULT, -1.0)) if dtype is DType.FLOAT32 else RESULT
        check_copy((), (2, 3, 4, channels), epilogue, dtype, (source, target))
        check_copy((Pad((0, 1, 0, 0), (0, 0, 1, 0)),), (1, 3, 4, channels), epilogue, dtype, (source, target))


def test_between_float16_and_float32() -> None:
    shape = (1, 3, 4, 5)
    for kinds in itertools.permutations((DType.FLOAT16, DType.FLOAT32)):
        builder = GraphBuilder()
        x, y = (builder.value(shape, DType.FLOAT32) for _ in range(2))
        builder.node(Copy(()), [x], y)
        views = {v: LAYOUTS["padded"](i, shape, t) for i, (v, t) in enumerate(zip((x, y), kinds, strict=True))}
        check_node(builder, {x: np.arange(60).reshape(shape)}, views=views, interpret=True)


def test_of_a_constant() -> None:
    builder = GraphBuilder()
    x = builder.constant(np.arange(30, dtype=np.float32).reshape(1, 2, 3, 5))
    y = builder.value((1, 3, 2, 5), DType.FLOAT32)
    builder.node(Copy((Transpose((0, 2, 1, 3)),)), [x], y)
    check_node(builder, {}, interpret=True)


def random_step(rng: np.random.Generator, shape: Shape) -> Step:
    rank = len(shape)
    kind = rng.integers(7)
    if kind == 0 and rank == 4:
        before, after = (tuple(int(i) for i in rng.integers(0, 3, 4)) for _ in range(2))
        return Pad(before, after, float(rng.integers(0, 9)))
    if kind == 1:
        return Transpose(tuple(int(i) for i in rng.permutation(rank)))
    if kind == 2:
        stride = [int(rng.choice([1, 1, 2, -1])) for _ in shape]
        target = [int(rng.integers(1, -(-n // abs(s)) + 1)) for n, s in zip(shape, stride, strict=True)]
        begin = [n - 1 if s < 0 else n - 1 - s * (t - 1) for n, s, t in zip(shape, stride, target, strict=True)]
        return Slice(tuple(begin), tuple(stride), tuple(target))
    if kind == 3 and min(shape) > 1:
        return Mirror(tuple(int(rng.integers(0, n)) for n in shape), tuple(int(rng.integers(0, n)) for n in shape))
    if kind == 4 and math.prod(shape) < 400:
        return Tile(tuple(int(i) for i in rng.integers(1, 3, rank)))
    if kind == 5:
        axis = int(rng.integers(rank))
        return Take(axis, tuple(int(i) for i in rng.integers(0, shape[axis], rng.integers(1, 6))))
    total, target = math.prod(shape), []
    for _ in range(int(rng.integers(3, 6))):
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        target.append(int(rng.choice(divisors)))
        total //= target[-1]
    return Reshape(shape, (*target, total))


@pytest.mark.parametrize("seed", range(60))
def test_random_chains(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (*tuple(int(rng.choice([1, 2, 3, 4])) for _ in range(3)), int(rng.choice([1, 3, 4, 8, 12])))
    steps: list[Step] = []
    for _ in range(int(rng.integers(1, 5))):
        current = shapes_along(steps, shape)[-1]
        if math.prod(current) < 3000:
            steps.append(random_step(rng, current))
    last = shapes_along(steps, shape)[-1]
    if len(last) != 4:
        total = math.prod(last)
        c = math.gcd(total, 12)
        steps.append(Reshape(last, (1, 1, total // c, c)))
    check_copy(tuple(steps), shape)


@pytest.mark.parametrize("dtype", (DType.FLOAT32, DType.INT32))
@pytest.mark.parametrize(
    ("shape", "steps", "tiled"),
    [
        ((2, 3, 40, 68), (Transpose((0, 1, 3, 2)),), True),
        ((2, 3, 33, 130), (Transpose((3, 1, 0, 2)),), True),
        ((2, 70, 3, 33), (Transpose((0, 3, 2, 1)),), True),  # the source ends in a quad of one
        ((1, 5, 20, 36), (Reshape((1, 5, 20, 36), (5, 20, 36)), Transpose((0, 2, 1)),
                          Reshape((5, 36, 20), (5, 6, 6, 20))), False),
        ((1, 5, 20, 36), (Slice((0, 1, 2, 4), ONE, (1, 3, 18, 20)), Transpose((0, 1, 3, 2))), True),
        ((1, 5, 20, 36), (Slice((0, 1, 2, 3), ONE, (1, 3, 18, 20)), Transpose((0, 1, 3, 2))), False),  # between quads
        ((2, 3, 12, 68), (Transpose((0, 1, 3, 2)),), False),
    ],
)  # fmt: skip
def test_transpositions_by_tiles(shape: Shape, steps: tuple[Step, ...], tiled: bool, dtype: DType) -> None:
    """Tiles that overhang on both sides; with an epilogue, and an output without padding."""
    builder = GraphBuilder()
    x, y = builder.value(shape, dtype), builder.value(shapes_along(steps, shape)[-1], dtype)
    builder.node(Copy(steps), [x], y, apply("add", RESULT, RESULT))
    graph = builder.graph([x], [y])
    (launch,) = build(KernelContext(graph, graph.nodes[0], lay_out(graph), Features()))
    assert launch.kernel.name == ("transposition" if tiled else "copy")
    data = np.arange(1, math.prod(shape) + 1).reshape(shape)
    check_node(builder, {x: data}, interpret=True)
    check_node(builder, {x: data}, packed_values=(y,))
