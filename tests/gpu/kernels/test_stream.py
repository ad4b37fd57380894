"""Kernels whose threads store several quads each: on devices known to be small enough for that."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node, lay_out

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Copy,
    DType,
    Elementwise,
    Gather,
    GraphBuilder,
    Pad,
    Resize2D,
    Shape,
    Transpose,
    apply,
)
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.movement import shapes_along
from litegpu.gpu.kernels.stream import choose_stretch
from litegpu.gpu.lang import Kernel, tree
from litegpu.gpu.lang.features import Features

ONE_UNIT = Features(compute_units=1)


@pytest.mark.parametrize(
    ("shape", "threads", "quads"),
    [
        ((2, 32, 64, 16), 256, 4),  # 4 workgroups of whole pixels, nothing left over
        ((1, 61, 73, 12), 255, 4),  # the last workgroup has surplus threads
        ((3, 16, 37, 10), 222, 4),  # the last quad of a pixel has two channels
        ((1, 4, 1, 2500), 256, 2),  # more quads in a pixel than threads
        ((1, 43, 1, 528), 132, 4),
        ((1, 57, 77, 3), 256, 4),
        ((1, 61, 53, 21), 252, 4),  # as an output: by way of shared memory
        ((1, 2, 8, 16), 64, 1),
    ],
)
def test_broadcast_operands(shape: Shape, threads: int, quads: int) -> None:
    """Dense, one number a channel, a gate for each image's channels, one number a pixel, and the stored value twice."""
    b, h, w, c = shape
    found = choose_stretch(math.prod(shape[:3]) * -(-c // 4), -(-c // 4), 5, ONE_UNIT)
    assert (found.threads, found.quads) == (threads, quads)
    rng = np.random.default_rng(1)
    builder = GraphBuilder()
    x, gate, pixel = (builder.value(s, DType.FLOAT32) for s in (shape, (b, 1, 1, c), (b, h, w, 1)))
    bias, y = builder.constant(rng.standard_normal(c)), builder.value(shape, DType.FLOAT32)
    expr = apply("add", apply("mul", Arg(0), Arg(1)), apply("mul", Arg(3), apply("add", Arg(0), Arg(2))))
    builder.node(Elementwise(), [], y, expr, [x, gate, bias, pixel])
    data = {v: rng.standard_normal(builder.values[v].shape) for v in (x, gate, pixel)}
    check_node(builder, data, features=ONE_UNIT, interpret=True)
    check_node(builder, data, features=ONE_UNIT, packed_values=(x, y), interpret=True)


@pytest.mark.parametrize(
    "step", (Pad((0, 1, 1, 0), (0, 1, 2, 0), 3.0), Transpose((0, 2, 1, 3)), Transpose((0, 1, 3, 2)))
)
def test_copies(step: Pad | Transpose) -> None:
    shape = (1, 40, 52, 12)
    builder = GraphBuilder()
    x, y = builder.value(shape, DType.FLOAT32), builder.value(shapes_along((step,), shape)[-1], DType.FLOAT32)
    builder.node(Copy((step,)), [x], y, apply("add", RESULT, 1.0))
    check_node(builder, {x: np.random.default_rng(2).standard_normal(shape)}, features=ONE_UNIT, interpret=True)


def test_nothing_is_stored_before_all_was_loaded() -> None:
    """Compilers move no load above a store, and so would wait for each."""
    builder = GraphBuilder()
    x, z, y = (builder.value((1, 64, 64, 16), DType.FLOAT32) for _ in range(3))
    builder.node(Elementwise(), [], y, apply("add", Arg(0), Arg(1)), [x, z])
    graph = builder.graph([x, z], [y])
    (launch,) = build(KernelContext(graph, graph.nodes[0], lay_out(graph), ONE_UNIT))
    assert isinstance(launch.kernel, Kernel)
    kinds = [
        "store" if isinstance(s, tree.Store) else "load"
        for s in launch.kernel.body.statements
        if isinstance(s, tree.Store) or (isinstance(s, tree.Bind) and s.value.op == "load")
    ]
    assert kinds == ["load"] * 8 + ["store"] * 4


@pytest.mark.parametrize("channels", (21, 8))
@pytest.mark.parametrize("kind", ("bilinear", "nearest"))
def test_resizes(kind: str, channels: int) -> None:
    """To an output of the user's: whole pixels through shared memory where they are not whole quads."""
    builder = GraphBuilder()
    x, y = (builder.value((1, *size, channels), DType.FLOAT32) for size in ((9, 11), (45, 44)))
    builder.node(Resize2D(kind, align_corners=kind == "bilinear"), [x], y)
    data = {x: np.random.default_rng(3).standard_normal((1, 9, 11, channels))}
    check_node(builder, data, features=ONE_UNIT, packed_values=(y,), interpret=True)
    graph = builder.graph([x], [y])
    (launch,) = build(KernelContext(graph, graph.nodes[0], lay_out(graph, packed_values=(y,)), ONE_UNIT))
    assert isinstance(launch.kernel, Kernel)
    assert bool(launch.kernel.shared_memories) == (channels == 21)


def test_gathers() -> None:
    builder = GraphBuilder()
    x, i = builder.value((1, 1, 30, 16), DType.FLOAT32), builder.value((1, 1, 1, 1100), DType.INT32)
    y = builder.value((1, 1, 1100, 16), DType.FLOAT32)
    builder.node(Gather(batch=1, outer=1, size=30, inner=16, count=1100), [x, i], y)
    rng = np.random.default_rng(4)
    data = {x: rng.standard_normal((1, 1, 30, 16)), i: rng.integers(0, 30, (1, 1, 1, 1100))}
    check_node(builder, data, features=ONE_UNIT, interpret=True)
