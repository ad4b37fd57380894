"""Convolutions in groups on tensor cores, against the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected

from litegpu.gpu.backends.cuda.kernels import grouped
from litegpu.gpu.backends.cuda.kernels.grouped import GroupedBlock, bundle_of, candidates, packed, ranked
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, Graph, GraphBuilder, apply
from litegpu.gpu.view import padded

#: (batch, height, width), channels, groups, outputs, window; the layer
CASES = {
    "groups of 8": ((2, 9, 14), 40, 5, 40, (3, 3), Conv2D(padding=(1, 1))),
    "groups of 4, two together": ((1, 7, 7), 32, 8, 32, (3, 3), Conv2D(padding=(1, 1))),
    "groups of 16, stride 2": ((1, 12, 10), 48, 3, 48, (3, 3), Conv2D((2, 2), padding=(1, 1))),
    "groups of 24, twice the outputs": ((1, 5, 6), 72, 3, 144, (3, 3), Conv2D(padding=(1, 1))),
    "groups of 2, dilated": ((1, 11, 9), 16, 8, 16, (3, 2), Conv2D((1, 2), (2, 1), padding=(2, 0))),
    "pointwise": ((3, 4, 5), 64, 4, 32, (1, 1), Conv2D()),
}
SOME = (GroupedBlock(2, 14, 2, 4), GroupedBlock(7, 7, 4, 8), GroupedBlock(3, 5, 1, 4), GroupedBlock(1, 6, 3, 4))


def network(case: str) -> tuple[Graph, np.ndarray]:
    """1x1 -> convolution in groups + bias, relu -> 1x1: what is looked at are intermediates."""
    (b, h, w), channels, groups, outputs, (kh, kw), op = CASES[case]
    rng, builder = np.random.default_rng(0), GraphBuilder()
    op = Conv2D(op.stride, op.dilation, op.padding, groups)
    size = [
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip((h, w), op.padding, (kh, kw), op.dilation, op.stride, strict=True)
    ]
    x = builder.value((b, h, w, 8), DType.FLOAT32)
    y = builder.value((b, h, w, channels), DType.FLOAT32)
    builder.node(Conv2D(), [x, builder.constant(rng.standard_normal((channels, 1, 1, 8)) / 3)], y)
    weights = rng.standard_normal((outputs, kh, kw, channels // groups)) / np.sqrt(kh * kw * channels // groups)
    out = builder.value((b, *size, outputs), DType.FLOAT32)
    bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
    builder.node(op, [y, builder.constant(weights)], out, apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias])
    last = builder.value((b, *size, 8), DType.FLOAT32)
    builder.node(Conv2D(), [out, builder.constant(rng.standard_normal((8, 1, 1, outputs)))], last)
    return builder.graph([x], [last]), rng.standard_normal((b, h, w, 8)).astype(np.float32)


def check(device, monkeypatch, case: str, block: GroupedBlock | None) -> None:
    if block is not None:
        monkeypatch.setattr(grouped, "ranked", lambda layer, units: [block])
    graph, x = network(case)
    program = build_program(graph, device.features, "cuda", half=True)
    assert "grouped_convolution" in {k.name for k in program.kernels}
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.linalg.norm(got - want) <= 3e-3 * np.linalg.norm(want), block


@pytest.mark.cuda
@pytest.mark.parametrize("block", [None, *SOME], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_cases(device, monkeypatch, case: str, block: GroupedBlock | None) -> None:
    check(device, monkeypatch, case, block)


@pytest.mark.cuda
def test_infinite_inputs_reach_their_own_group_alone(device) -> None:
    """No zeros of other groups or of the padding are multiplied with them, where groups are not bundled."""
    graph, x = network("groups of 8")
    x[0, 4, 4] = np.float32(60000)
    program = build_program(graph, device.features, "cuda", half=True)
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    assert np.isfinite(got[1]).all()


def layer(channels: int, groups: int, size: int = 14, batch: int = 1) -> Layer:
    weights = np.random.default_rng(0).standard_normal((channels, 3, 3, channels // groups)).astype(np.float32)
    shape = (batch, size, size, channels)
    return Layer(Conv2D(padding=(1, 1), groups=groups), padded(0, shape, DType.FLOAT16), weights, shape, True)


def test_bundles_have_channels_in_eights() -> None:
    assert [bundle_of(n, n, 32) for n in (1, 2, 4, 6, 8, 16, 24, 64)] == [8, 4, 2, 4, 1, 1, 1, 1]
    assert bundle_of(4, 4, 3) == 0 and bundle_of(128, 128, 4) == 0 and bundle_of(8, 4, 4) == 2


def test_layers_that_the_kernel_cannot_do_have_no_candidates() -> None:
    assert ranked(layer(208, 26), 132)
    assert not ranked(layer(12, 3), 132), "12 channels are not copied in eights"
    assert not ranked(layer(512, 4), 132), "128 channels of a group are too many"


def test_large_batches_copy_more_at_a_time() -> None:
    few, many = (ranked(layer(208, 26, batch=batch), 132)[0] for batch in (1, 64))
    assert few.bundles * few.y * few.x < many.bundles * many.y * many.x
    assert len(candidates(layer(208, 26))) > 20


def test_packed_weights_are_those_of_the_lanes() -> None:
    one = layer(16, 2)
    found = packed(one)
    assert found.shape == (2, 1, 5, 32, 4)
    rows = one.weights.reshape(2, 8, 72)
    for lane in (0, 5, 31):
        depth = np.array([0, 1, 8, 9]) + lane % 4 * 2
        np.testing.assert_array_equal(found[1, 0, 2, lane], rows[1, lane // 4, 32 + depth].astype(np.float16))
    assert not found[:, :, 4, :, 2:].any(), "72 taps are no multiple of 16"
