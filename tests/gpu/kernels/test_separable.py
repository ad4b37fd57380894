"""A depthwise convolution and the 1x1 convolution behind it in one kernel of the language."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.layouts import LAYOUTS
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, DepthwiseConv2D, DType, GraphBuilder, SeparableConv2D, Shape, apply
from litegpu.gpu.lang.features import Features

RELU6 = apply("min", apply("max", apply("add", RESULT, Arg(1)), 0.0), 6.0)


def separable(
    shape: Shape, outputs: int, depthwise: DepthwiseConv2D, out: tuple[int, int], taps: tuple[int, int] = (3, 3)
) -> tuple[GraphBuilder, dict[int, np.ndarray]]:
    rng, builder, channels = np.random.default_rng(0), GraphBuilder(), shape[3]
    x, y = builder.value(shape, DType.FLOAT32), builder.value((shape[0], *out, outputs), DType.FLOAT32)
    first = builder.constant(rng.standard_normal((1, *taps, channels)))
    weights = builder.constant(rng.standard_normal((outputs, 1, 1, channels)) / channels)
    biases = [builder.constant(rng.standard_normal(n)) for n in (channels, outputs)]
    builder.node(SeparableConv2D(depthwise, RELU6), [x, first, weights, biases[0]], y, RELU6, [biases[1]])
    return builder, {x: rng.standard_normal(shape)}


SAME = DepthwiseConv2D(padding=(1, 1))
CASES = {
    "same": ((1, 7, 9, 16), 24, SAME, (7, 9)),
    "batch": ((3, 5, 5, 8), 12, SAME, (5, 5)),
    "stride": ((2, 9, 11, 12), 20, DepthwiseConv2D((2, 2), (1, 1), (1, 1)), (5, 6)),
    "dilation": ((1, 12, 10, 8), 8, DepthwiseConv2D((1, 1), (2, 2), (2, 2)), (12, 10)),
    "odd channels": ((1, 6, 7, 21), 19, SAME, (6, 7)),
    "deep": ((1, 7, 7, 256), 64, SAME, (7, 7)),
    "wide": ((1, 4, 4, 64), 300, SAME, (4, 4)),
    "one pixel": ((1, 3, 3, 64), 40, DepthwiseConv2D(), (1, 1)),
}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("units", [0, 2, 132])
@pytest.mark.parametrize("case", CASES)
def test_cases(case: str, units: int, half: bool) -> None:
    """With sums that one thread adds up, and several."""
    builder, inputs = separable(*CASES[case])
    features = Features(compute_units=units, float16=half, max_shared_bytes=32768)
    check_node(builder, inputs, half=half, features=features, interpret=True, tolerance=3e-3 if half else 2e-6)


def test_other_windows() -> None:
    builder, inputs = separable((1, 9, 8, 8), 8, DepthwiseConv2D(padding=(2, 0)), (9, 8), (5, 1))
    check_node(builder, inputs, interpret=True, tolerance=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    builder, inputs = separable((2, 3, 4, 21), 13, SAME, (3, 4))
    (x,), y = inputs, builder.nodes[0].output
    views = {v: LAYOUTS[layout](i, builder.values[v].shape, DType.FLOAT32) for i, v in enumerate((x, y))}
    check_node(builder, inputs, views=views, tolerance=2e-6, interpret=True)
