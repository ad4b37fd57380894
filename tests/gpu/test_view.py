"""Views: what `follow` promises is where the elements really lie."""

from __future__ import annotations

import random

import numpy as np
import pytest

from litegpu.gpu.evaluate import apply_step
from litegpu.gpu.graph import DType, Reshape, Shape, Slice, Step, Tile, Transpose, step_shape
from litegpu.gpu.view import View, follow, packed, padded


def fill(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Memory in which every element of `view` is a distinct number, padding is zero, and the values of the view."""
    memory = np.full(view.size, -1.0)
    index = indices(view)
    memory[index] = np.arange(1, index.size + 1).reshape(index.shape)
    if view.zero_padded and view.shape[3] % 4:
        for lane in range(view.shape[3], view.quads * 4):
            memory[index[..., 0] + lane] = 0
    return memory, memory[index]


def indices(view: View) -> np.ndarray:
    """For each element of the view, where it lies in memory."""
    grid = np.indices(view.shape)
    return view.offset + sum(g * s for g, s in zip(grid, view.strides, strict=True))


def random_steps(rnd: random.Random, shape: Shape) -> tuple[Step, ...]:
    steps: list[Step] = []
    for _ in range(rnd.randint(1, 4)):
        match rnd.randrange(4):
            case 0:
                step: Step = Transpose(tuple(rnd.sample(range(len(shape)), len(shape))))
            case 1:
                begin, stride, target = [], [], []
                for n in shape:
                    b, k = rnd.randrange(n), rnd.choice([1, 1, 1, 2, 3])
                    begin.append(b)
                    stride.append(k)
                    target.append(rnd.randint(1, (n - b - 1) // k + 1))
                step = Slice(tuple(begin), tuple(stride), tuple(target))
            case 2:
                step = Tile(tuple(rnd.choice([1, 1, 1, 3]) for _ in shape))
            case _:
                factors = [f for n in shape for f in _factors(n)]
                target = [1] * rnd.randint(1, 5)
                for i, f in enumerate(factors):
                    target[min(i * len(target) // len(factors), len(target) - 1)] *= f
                step = Reshape(tuple(shape), tuple(target))
        steps.append(step)
        shape = step_shape(step, shape)
    n = int(np.prod(shape))
    if len(shape) != 4:
        steps.append(Reshape(tuple(shape), rnd.choice([(1, 1, 1, n), (1, 1, n, 1)])))
    return tuple(steps)


def _factors(n: int) -> list[int]:
    return next(([p, *_factors(n // p)] for p in (2, 3, 5, 7, 17) if n % p == 0), [n] if n > 1 else [])


@pytest.mark.parametrize("layout", [padded, packed])
@pytest.mark.parametrize("seed", range(150))
def test_follow(seed: int, layout) -> None:
    rnd = random.Random(seed)
    shape = (*(rnd.choice([1, 2, 3, 4, 6]) for _ in range(3)), rnd.choice([1, 3, 4, 5, 8, 12, 17]))
    view = layout(0, shape, DType.FLOAT32)
    memory, values = fill(view)
    steps = random_steps(rnd, shape)
    moved = follow(view, steps)
    if moved is None:
        return
    for step in steps:
        values = apply_step(step, values)
    assert moved.shape == values.shape
    np.testing.assert_array_equal(memory[indices(moved)], values)
    if moved.vector and moved.whole_quads and moved.shape[3] % 4:
        lanes = [memory[indices(moved)[..., 0] + lane] for lane in range(moved.shape[3], moved.quads * 4)]
        assert not np.any(lanes), "lanes promised to be zero are not"
    if moved.dense:
        quads = memory.reshape(-1, 4)[moved.offset // 4 :][
            : moved.shape[0] * moved.shape[1] * moved.shape[2] * moved.quads
        ]
        got = quads.reshape(*moved.shape[:3], moved.quads * 4)[..., : moved.shape[3]]
        np.testing.assert_array_equal(got, values)


def test_most_movements_that_numpy_does_without_a_copy_are_views() -> None:
    view = padded(0, (2, 6, 4, 8), DType.FLOAT32)
    assert follow(view, (Reshape((2, 6, 4, 8), (1, 2, 24, 8)),)) is not None
    assert follow(view, (Reshape((2, 6, 4, 8), (1, 1, 1, 384)),)) is not None
    assert follow(view, (Transpose((0, 2, 1, 3)),)) is not None
    assert follow(view, (Transpose((0, 2, 1, 3)), Reshape((2, 4, 6, 8), (1, 2, 24, 8)))) is None
    unaligned = padded(0, (2, 6, 4, 5), DType.FLOAT32)
    assert follow(unaligned, (Reshape((2, 6, 4, 5), (1, 1, 12, 20)),)) is None
    assert follow(unaligned, (Reshape((2, 6, 4, 5), (1, 1, 48, 5)),)) is not None


@pytest.mark.parametrize("seed", range(300))
def test_vectors_are_where_a_view_says(seed: int) -> None:
    """A view that is read by vectors has every quad of channels at a multiple of four, one channel beside the other;
    one that is dense has them one behind the other; and whole quads own their lanes."""
    rnd = random.Random(seed)
    shape = (*(rnd.choice([1, 2, 3, 4, 8]) for _ in range(3)), rnd.choice([1, 2, 3, 4, 6, 8, 12]))
    make = padded if rnd.random() < 0.6 else packed
    view: View | None = make(0, shape, DType.FLOAT32)
    root = view
    for _ in range(rnd.randint(0, 2)):
        assert view is not None
        begin = [rnd.randrange(n) for n in view.shape]
        target = tuple(rnd.randint(1, n - b) for n, b in zip(view.shape, begin, strict=True))
        view = follow(view, (Slice(tuple(begin), (1, 1, 1, 1), target),))
    assert view is not None and root is not None
    index = indices(view)
    assert index.min() >= 0 and index.max() < view.size
    if view.vector:
        assert not (index[..., 0] % 4).any() and (index == index[..., :1] + np.arange(view.shape[3])).all()
    if view.dense:
        quads = index[..., ::4].reshape(-1) // 4
        assert (quads == view.offset // 4 + np.arange(quads.size)).all()
    if view.zero_padded and view.shape[3] % 4:  # what lies behind the last channel is padding of the root's, too
        memory, _ = fill(root)
        for lane in range(view.shape[3], view.quads * 4):
            assert not memory[index[..., 0] + lane].any()


@pytest.mark.parametrize("offset, stride, vector", [
    (0, 8, True), (4, 8, True), (2, 8, False), (1, 8, False), (0, 6, False), (4, 4, True), (0, 2, False),
])  # fmt: skip
def test_vectors_begin_at_multiples_of_four(offset: int, stride: int, vector: bool) -> None:
    view = View(0, (1, 1, 3, 4), (64, 64, stride, 1), DType.FLOAT32, offset, size=64)
    assert view.vector == vector
    rows = View(0, (2, 3, 1, 4), (64, stride, 1, 1), DType.FLOAT32, offset, size=128)
    assert rows.vector == vector
    assert not View(0, (1, 1, 3, 4), (64, 64, 8, 2), DType.FLOAT32, 0, size=64).vector
    assert not View(0, (1, 1, 3, 4), (64, 64, 8, 1), DType.FLOAT32, 0, size=62).vector


@pytest.mark.parametrize("count", range(1, 10))
def test_memory_of_narrow_types_is_whole_words(count: int) -> None:
    for dtype in (DType.INT8, DType.UINT8, DType.INT16):
        assert packed(0, (1, 1, 1, count), dtype).size == -(-count // 4) * 4
    assert packed(0, (1, 1, 1, count), DType.FLOAT32).size == count
    assert padded(0, (1, 1, 1, count), DType.FLOAT32).size == -(-count // 4) * 4
    assert packed(0, (1, 1, 1, count), DType.INT8, written=True).zero_padded  # one pixel has the rest of its last group
    assert packed(0, (1, 1, 1, count), DType.INT8).zero_padded == (count % 4 == 0)
    assert packed(0, (1, 1, 2, count), DType.INT8, written=True).zero_padded == (count % 4 == 0)


def test_axes_that_were_one_for_a_while() -> None:
    """Heads of a part of the channels, within the batch while they go to the front."""
    places, batch, heads, size = 5, 3, 2, 4
    source = (1, places, batch, 24)
    steps: list[Step] = [
        Slice((0, 0, 0, 8), (1, 1, 1, 1), (1, places, batch, heads * size)),
        Reshape((1, places, batch, heads * size), (places, batch * heads, size)),
        Transpose((1, 0, 2)),
    ]
    apart = Reshape((batch * heads, places, size), (batch, heads, places, size))
    view = follow(padded(0, source, DType.FLOAT16), (*steps, apart))
    assert view is not None
    assert view.strides == (24, size, batch * 24, 1) and view.offset == 8
    together = Reshape((batch * heads, places, size), (1, batch * heads, places, size))
    assert follow(padded(0, source, DType.FLOAT16), (*steps, together)) is None
