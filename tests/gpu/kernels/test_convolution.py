"""Convolution kernels against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from gpu.kernels.run_launch import check_node

from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, GraphBuilder, apply
from litegpu.gpu.lang.features import Features


def convolve(shape, kernel, outputs, *, stride=(1, 1), dilation=(1, 1), same=True, groups=1, runtime=False,
             fused=False, packed=False, seed=0, **options):  # fmt: skip
    rng = np.random.default_rng(seed)
    b, h, w, c = shape
    extent = [(n - 1) * d + 1 for n, d in zip(kernel, dilation, strict=True)]
    if same:
        out = [-(-n // s) for n, s in zip((h, w), stride, strict=True)]
        total = [max(0, (o - 1) * s + e - n) for o, s, e, n in zip(out, stride, extent, (h, w), strict=True)]
    else:
        out = [(n - e) // s + 1 for n, s, e in zip((h, w), stride, extent, strict=True)]
        total = [0, 0]
    builder = GraphBuilder()
    x = builder.value(shape, DType.FLOAT32)
    weights = rng.standard_normal((outputs, *kernel, c // groups)).astype(np.float32)
    inputs = {x: rng.standard_normal(shape)}
    if runtime:
        v = builder.value(weights.shape, DType.FLOAT32)
        inputs[v] = weights
    else:
        v = builder.constant(weights)
    y = builder.value((b, *out, outputs), DType.FLOAT32)
    op = Conv2D(stride, dilation, (total[0] // 2, total[1] // 2), groups)
    if fused:
        bias = builder.constant(rng.standard_normal(outputs))
        residual = builder.value((b, *out, outputs), DType.FLOAT32)
        inputs[residual] = rng.standard_normal((b, *out, outputs))
        biased = apply("add", RESULT, Arg(1))
        relu6 = apply("min", apply("max", biased, 0.0), 6.0)
        builder.node(op, [x, v], y, apply("add", relu6, Arg(2)), [bias, residual])
    else:
        builder.node(op, [x, v], y)
    return check_node(
        builder, inputs, packed_values=(x, y) if packed else (), interpret=np.prod(shape) < 1000, **options
    )


@pytest.mark.parametrize("channels", [1, 3, 4, 5, 17])
@pytest.mark.parametrize("outputs", [1, 3, 4, 17])
def test_channels_1x1(channels: int, outputs: int) -> None:
    convolve((2, 5, 7, channels), (1, 1), outputs, fused=True)
    convolve((1, 5, 7, channels), (1, 1), outputs, packed=True)


@pytest.mark.parametrize("channels", [1, 3, 4, 5, 17])
@pytest.mark.parametrize("same", [True, False])
def test_channels_3x3(channels: int, same: bool) -> None:
    convolve((2, 7, 9, channels), (3, 3), 9, same=same, fused=True)
    convolve((1, 7, 9, channels), (3, 3), 5, same=same, packed=True, stride=(2, 2))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (1, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 2), (3, 1)])
def test_windows(stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    for kernel in ((2, 3), (5, 1), (1, 4)):
        convolve((1, 13, 14, 6), kernel, 8, stride=stride, dilation=dilation)
        convolve((2, 13, 14, 8), kernel, 7, stride=stride, dilation=dilation, same=False)


def test_large_windows_loop() -> None:
    convolve((1, 21, 23, 4), (9, 15), 6)
    convolve((1, 24, 40, 16), (3, 11), 24)


def test_strided_1x1() -> None:
    convolve((2, 9, 8, 12), (1, 1), 20, stride=(2, 2))
    convolve((2, 9, 8, 12), (1, 1), 20, stride=(2, 3), same=False)


@pytest.mark.parametrize(
    "groups, inputs, outputs", [(2, 8, 8), (3, 12, 24), (2, 6, 10), (5, 5, 20), (3, 12, 6), (7, 7, 7)]
)
def test_groups(groups: int, inputs: int, outputs: int) -> None:
    convolve((2, 6, 5, inputs), (3, 3), outputs, groups=groups, fused=True)
    convolve((1, 6, 5, inputs), (1, 1), outputs, groups=groups)


@pytest.mark.parametrize("channels", [3, 8, 17])
def test_runtime_weights(channels: int) -> None:
    convolve((2, 6, 5, channels), (3, 3), 7, runtime=True)
    convolve((2, 6, 5, channels), (1, 1), 12, runtime=True, fused=True)


@pytest.mark.parametrize("channels, outputs", [(1024, 1001), (70, 3), (512, 512)])
def test_fully_connected(channels: int, outputs: int) -> None:
    convolve((1, 1, 1, channels), (1, 1), outputs)
    convolve((3, 1, 1, channels), (1, 1), outputs, packed=True)


@pytest.mark.parametrize("units", [1, 16, 200])
def test_blocks_of_all_sizes(units: int) -> None:
    """Devices of few units get large blocks, those of many get sums that several threads share."""
    features = Features(compute_units=units)
    convolve((1, 21, 23, 36), (1, 1), 260, features=features)
    convolve((1, 21, 23, 24), (3, 3), 132, features=features)
    convolve((1, 7, 7, 512), (1, 1), 40, features=features)
    convolve((2, 7, 7, 130), (3, 3), 41, features=features, fused=True)
    convolve((2, 7, 7, 64), (3, 3), 40, features=features, runtime=True)


@pytest.mark.parametrize("channels", [4, 8, 24, 27, 128, 144])
@pytest.mark.parametrize("together", [24, 96])
def test_loads_of_several_steps_together(channels: int, together: int) -> None:
    """Where these divide the sum, be it split among threads or not."""
    for units in (0, 132):
        features = Features(compute_units=units, loads_together=together)
        convolve((1, 5, 7, channels), (1, 1), 40, features=features, fused=True)
        convolve((1, 9, 9, channels), (1, 1), 12, features=features, groups=1 if channels % 16 else 2)
        convolve((1, 6, 9, channels), (3, 3), 20, features=features)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("outputs", [3, 16])
@pytest.mark.parametrize("stride, dilation", [((1, 1), (1, 1)), ((2, 1), (1, 2)), ((1, 2), (2, 1))])
def test_neighbours_of_a_column(stride: tuple[int, int], dilation: tuple[int, int], outputs: int, same: bool) -> None:
    """Threads have several pixels, and the last ones some past the end."""
    features = Features(compute_units=1)
    convolve((1, 9, 25, 4), (3, 3), outputs, stride=stride, dilation=dilation, same=same, features=features)
    convolve((2, 23, 41, 3), (3, 2), outputs, stride=stride, dilation=dilation, same=same, features=features)
    convolve((2, 23, 41, 9), (5, 7), outputs, stride=stride, dilation=dilation, same=same, features=features)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_float16_storage(kernel: tuple[int, int]) -> None:
    convolve((2, 9, 9, 17), kernel, 10, fused=True, half=True)


def test_not_finite() -> None:
    """What is not finite reaches the pixels whose windows hold it, and no others."""
    for kernel, channels in (((1, 1), 5), ((3, 3), 5), ((3, 3), 4)):
        builder = GraphBuilder()
        x = builder.value((1, 8, 8, channels), DType.FLOAT32)
        y = builder.value((1, 8, 8, 6), DType.FLOAT32)
        data = np.ones((1, 8, 8, channels), np.float32)
        data[0, 0, 0, 4 % channels], data[0, 7, 5, 1] = np.nan, np.inf
        pad = kernel[0] // 2
        builder.node(Conv2D(padding=(pad, pad)), [x, builder.constant(np.ones((6, *kernel, channels)))], y)
        result = check_node(builder, {x: data})
        reached = min(8, pad + 1) ** 2
        assert np.isnan(result[..., 0]).sum() == reached


@pytest.mark.parametrize("border", ["zero", "reflect", "symmetric"])
@pytest.mark.parametrize("upsample", [(1, 1), (2, 3)])
def test_borders_and_enlargements(border: str, upsample: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for channels, padding, stride in ((3, (2, 1), (1, 1)), (8, (1, 2), (2, 1)), (5, (0, 0), (1, 3))):
        shape, taps = (2, 5, 6, channels), (5, 3)
        size = [
            (n * u + 2 * p - k) // s + 1
            for n, u, p, k, s in zip(shape[1:3], upsample, padding, taps, stride, strict=True)
        ]
        builder = GraphBuilder()
        x = builder.value(shape, DType.FLOAT32)
        weights = builder.constant(rng.standard_normal((6, *taps, channels)))
        y = builder.value((2, *size, 6), DType.FLOAT32)
        op = Conv2D(stride, (1, 1), padding, upsample=upsample, border=border)
        builder.node(op, [x, weights], y)
        check_node(builder, {x: rng.standard_normal(shape)}, interpret=channels == 3)
