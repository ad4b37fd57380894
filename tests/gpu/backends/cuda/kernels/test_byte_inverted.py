"""What byte_inverted.cu computes, against NumPy: every element equal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from byte_network import whole_network
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import byte_inverted, byte_inverted_cost, byte_rests, widening
from litegpu.gpu.backends.cuda.passes import inverted as passes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    Arg,
    DType,
    Elementwise,
    Graph,
    GraphBuilder,
    IntegerDepthwiseConv2D,
    apply,
)
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132)


@pytest.fixture(autouse=True)
def _always(monkeypatch) -> None:
    """Join whatever can be joined, all three if that is possible."""
    monkeypatch.setattr(passes, "_quickest", lambda graph, some, last, features: [*some, last] if last else some)
    monkeypatch.setattr(widening, "pays", lambda shape, size, graph, features: False)


def check(device, graph: Graph, x: np.ndarray) -> None:
    (want,) = evaluate_graph(graph, [x])
    assert np.unique(want).size > 20
    program = build_program(graph, device.features, "cuda", half=True)
    assert [k.name for k in program.kernels] == ["byte_inverted_convolution"]
    np.testing.assert_array_equal(first_output(device, program, [x], want.shape, x.dtype.type), want)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape, channels, outputs, stride, taps", [
    ((2, 7, 9, 16), 48, 16, (1, 1), (3, 3)), ((1, 9, 8, 8), 36, 0, (2, 2), (3, 3)),
    ((2, 6, 5, 12), 40, 24, (2, 2), (5, 5)), ((1, 8, 11, 5), 21, 12, (1, 1), (3, 3)),
    ((1, 7, 7, 40), 96, 0, (1, 1), (5, 5)), ((1, 13, 12, 24), 144, 8, (2, 1), (2, 3)),
    ((1, 11, 16, 70), 150, 36, (1, 2), (3, 5)), ((1, 5, 7, 3), 17, 8, (3, 1), (1, 4)),
    ((1, 9, 20, 16), 32, 16, (1, 1), (7, 1)),
])  # fmt: skip
def test_inverted(device, shape, channels, outputs: int, stride, taps, dtype: DType) -> None:
    op = IntegerDepthwiseConv2D(stride, (1, 1), (taps[0] // 2, taps[1] // 2))
    residual = outputs == shape[3]
    graph, x = whole_network(
        shape, channels, op, taps=taps, outputs=outputs, dtype=dtype, residual=residual, seed=taps[0]
    )
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape, first, channels, outputs, stride", [
    ((2, 22, 32, 3), ((3, 3), (2, 2), (0, 0)), 32, 16, (1, 1)),
    ((1, 19, 24, 3), ((3, 3), (2, 2), (1, 1)), 16, 0, (2, 2)),
    ((1, 9, 20, 3), ((3, 3), (1, 1), (1, 1)), 24, 12, (1, 1)),
    ((2, 13, 16, 4), ((2, 3), (2, 1), (1, 0)), 48, 24, (2, 2)),
    ((1, 12, 12, 1), ((4, 4), (2, 3), (1, 1)), 20, 8, (1, 1)),
    ((3, 36, 28, 3), ((3, 3), (2, 2), (0, 0)), 40, 40, (1, 1)),
    ((1, 10, 17, 4), ((4, 3), (3, 2), (2, 1)), 32, 16, (1, 1)),
])  # fmt: skip
def test_first_layer(device, shape, first, channels, outputs: int, stride, dtype: DType) -> None:
    op = IntegerDepthwiseConv2D(stride, (1, 1), (1, 1))
    graph, x = whole_network(shape, channels, op, outputs=outputs, dtype=dtype, seed=channels, first=first)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape, outputs, stride, taps, padding", [
    ((2, 11, 12, 32), 16, (1, 1), (3, 3), (1, 1)), ((1, 10, 9, 20), 24, (2, 2), (3, 3), (0, 1)),
    ((1, 9, 9, 13), 12, (1, 1), (5, 5), (2, 2)), ((1, 6, 14, 72), 72, (2, 2), (3, 3), (1, 1)),
    ((1, 7, 8, 8), 40, (3, 2), (4, 2), (3, 0)), ((1, 9, 18, 24), 8, (1, 2), (3, 7), (1, 3)),
])  # fmt: skip
def test_separable(device, monkeypatch, shape, outputs: int, stride, taps, padding, dtype: DType) -> None:
    """Without anything in front; outside of the picture is the zero point, with one slice of channels or two ready."""
    op = IntegerDepthwiseConv2D(stride, (1, 1), padding)
    graph, x = whole_network(shape, shape[3], op, taps=taps, outputs=outputs, dtype=dtype, expands=False, seed=outputs)
    usual = byte_inverted_cost.ranked
    for buffers in (1, 2):

        def some(*args, n=buffers) -> list[byte_inverted_cost.ByteInvertedBlock]:
            return [b for b in usual(*args) if b.buffers == n][:1] or list(usual(*args))

        monkeypatch.setattr(byte_inverted, "ranked", some)
        check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("shape, channels, outputs, stride, taps, first", [
    ((2, 7, 9, 16), 48, 16, (1, 1), (3, 3), None), ((2, 6, 5, 12), 40, 24, (2, 2), (5, 5), None),
    ((1, 13, 12, 24), 144, 0, (2, 1), (2, 3), None), ((1, 11, 16, 70), 150, 36, (1, 2), (3, 5), None),
    ((2, 11, 12, 32), 0, 16, (1, 1), (3, 3), None), ((1, 10, 9, 20), 0, 24, (2, 2), (3, 3), None),
    ((2, 22, 32, 3), 32, 16, (1, 1), (3, 3), ((3, 3), (2, 2), (0, 0))),
    ((1, 12, 12, 1), 20, 8, (1, 1), (3, 3), ((4, 4), (2, 3), (1, 1))),
])  # fmt: skip
def test_weights_that_are_no_bytes(device, shape, channels: int, outputs: int, stride, taps, first, dtype) -> None:
    """Bytes and rests, of all three layers."""
    op = IntegerDepthwiseConv2D(stride, (1, 1), (taps[0] // 2, taps[1] // 2))
    for outlying in (1, byte_rests.MOST_RESTS):
        graph, x = whole_network(
            shape, channels or shape[3], op, taps=taps, outputs=outputs, dtype=dtype, residual=outputs == shape[3],
            expands=channels > 0, seed=outlying, first=first, outlying=outlying,
        )  # fmt: skip
        check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("expands", [True, False])
def test_one_scale_for_all_channels(device, expands: bool) -> None:
    op = IntegerDepthwiseConv2D(padding=(1, 1))
    graph, x = whole_network((1, 7, 9, 16), 48 if expands else 16, op, outputs=16, expands=expands, alike=True)
    check(device, graph, x)


@pytest.mark.cuda
@pytest.mark.parametrize("expands", [True, False])
@pytest.mark.parametrize("above", [(3, 0, 100, 77), (200, 31, 0, 0), (128, 255, 254, 3)])
@pytest.mark.parametrize("changes, near, limits", [
    ({}, True, 0), ({"narrower": 37}, True, 1), ({"steep": 1e4}, True, 2), ({"far": 1 << 22}, False, 0),
    ({"far": (1 << 22) + 9, "narrower": 60, "steep": 1e4}, False, 2),
])  # fmt: skip
def test_sums_and_limits(device, changes, near: bool, limits: int, above, expands: bool) -> None:
    """Sums that are the last bits of a float and others, bytes that end where saturation does and elsewhere, some
    never below their zero point."""
    op = IntegerDepthwiseConv2D(padding=(1, 1))
    graph, x = whole_network(
        (1, 6, 8, 16), 32 if expands else 16, op, outputs=16, expands=expands, above=above, seed=5, **changes
    )
    (want,) = evaluate_graph(graph, [x])
    program = build_program(graph, device.features, "cuda", half=True)
    (kernel,) = program.kernels
    for name, point in zip(["EXPANDED"] * expands + ["MIDDLE"], above[1 if expands else 2 :], strict=False):
        expected = {
            "NEAR": near,
            "POSITIVE": point == 0,
            "LIMITS": limits if point else min(limits, int("narrower" in changes)),
        }
        for what, value in expected.items():
            assert f"#define {name}_{what} {int(value)}\n" in kernel.source
    np.testing.assert_array_equal(first_output(device, program, [x], want.shape, np.int8), want)


@pytest.mark.cuda
@pytest.mark.parametrize("outputs", [0, 20])
def test_blocks(device, monkeypatch, outputs: int) -> None:
    """Many of the blocks that may be chosen, for a layer of several tiles and slices each way."""
    stride = 2 if outputs else 1
    op = IntegerDepthwiseConv2D((stride, stride), (1, 1), (1, 1))
    graph, x = whole_network((1, 30, 33, 20), 72, op, outputs=outputs)
    usual = byte_inverted_cost.ranked
    seen: dict[tuple[int, ...], list[byte_inverted_cost.ByteInvertedBlock]] = {}

    def all_of(*args) -> list[byte_inverted_cost.ByteInvertedBlock]:
        for block in usual(*args):
            seen.setdefault((block.rows, block.slice, block.buffers, block.parts), []).append(block)
        return list(usual(*args))

    monkeypatch.setattr(byte_inverted, "ranked", all_of)
    build_program(graph, device.features, "cuda", half=True)
    for i, group in enumerate(list(seen.values())):
        block = group[i * 7 % len(group)]
        monkeypatch.setattr(byte_inverted, "ranked", lambda *_, block=block: [block])
        try:
            check(device, graph, x)
        except Exception as error:
            raise AssertionError(f"{block}: {error}") from error


@pytest.mark.cuda
def test_many_tiles_of_a_warp(device, monkeypatch) -> None:
    """More than sixteen, of which one word knows what lies outside of the picture."""
    op = IntegerDepthwiseConv2D((2, 2), (1, 1), (1, 1))
    graph, x = whole_network((2, 71, 67, 16), 32, op, outputs=24)
    usual, chosen = byte_inverted_cost.ranked, []

    def largest(shape, *args) -> list[byte_inverted_cost.ByteInvertedBlock]:
        chosen.append((shape, max(usual(shape, *args), key=lambda block: -(-block.tiles(shape) // block.warps))))
        return [chosen[-1][1]]

    monkeypatch.setattr(byte_inverted, "ranked", largest)
    check(device, graph, x)
    assert all(-(-block.tiles(shape) // block.warps) > 16 for shape, block in chosen)


def test_joined_only_what_the_kernel_computes() -> None:
    op = IntegerDepthwiseConv2D(padding=(1, 1))

    def joined(graph: Graph, features: Features = CUDA) -> list[str]:
        optimised = optimise(graph, features, half=False)
        x = np.random.default_rng(1).integers(-128, 128, graph.values[graph.inputs[0]].shape).astype(np.int8)
        for got, want in zip(evaluate_graph(optimised, [x]), evaluate_graph(graph, [x]), strict=True):
            np.testing.assert_array_equal(got, want)
        return [type(n.op).__name__ for n in optimised.nodes]

    assert joined(whole_network((1, 5, 6, 8), 32, op, outputs=16)[0]) == ["IntegerInvertedConv2D"]
    assert joined(whole_network((1, 5, 6, 8), 32, op)[0]) == ["IntegerInvertedConv2D"]
    apart = ["IntegerConv2D", "IntegerDepthwiseConv2D", "IntegerConv2D"]
    assert joined(whole_network((1, 5, 6, 8), 32, op, outputs=16)[0], Features()) == apart
    wide, _ = whole_network((1, 3, 3, 8), 2000, op, outputs=4)  # 2000 * 64 * 155: past what float32 holds, not int32
    assert joined(wide) == ["IntegerInvertedConv2D"]
    assert joined(whole_network((1, 3, 3, 8), 60000, op, outputs=4)[0]) == ["IntegerInvertedConv2D", "IntegerConv2D"]
    biased, _ = whole_network((1, 3, 3, 8), 32, op)
    values = dict(biased.values)
    bias = values[biased.nodes[0].operands[0]]
    values[bias.id] = dataclasses.replace(bias, data=np.full((1, 1, 1, 32), 1 << 23, np.int32))
    assert joined(dataclasses.replace(biased, values=values)) == apart[:2]
    other = dataclasses.replace(biased.nodes[1], op=dataclasses.replace(op, zero_point=-100))
    assert joined(dataclasses.replace(biased, nodes=(biased.nodes[0], other))) == apart[:2]
    assert joined(whole_network((1, 5, 6, 32), 32, op, outputs=16, expands=False)[0]) == ["IntegerSeparableConv2D"]
    alone, _ = whole_network((1, 5, 6, 32), 32, op, expands=False)
    assert joined(alone) == ["IntegerDepthwiseConv2D"]
    dilated = dataclasses.replace(op, dilation=(2, 2))
    assert joined(whole_network((1, 9, 9, 32), 32, dilated, outputs=16, expands=False)[0]) == apart[1:]
    for outlying, kinds in ((byte_rests.MOST_RESTS, ["IntegerInvertedConv2D"]), (byte_rests.MOST_RESTS + 1, apart)):
        assert joined(whole_network((1, 5, 6, 8), 32, op, outputs=16, outlying=outlying)[0]) == kinds
    values = dict(alone.values)
    taps = values[alone.nodes[0].inputs[1]]
    values[taps.id] = dataclasses.replace(taps, data=np.full(taps.shape, 128, np.int32))  # no signed byte
    assert joined(dataclasses.replace(alone, values=values)) == ["IntegerDepthwiseConv2D"]


def test_what_is_read_by_no_convolution_alone_is_not_joined() -> None:
    """What reads the window is elementwise, and has operands but no inputs."""
    graph, x = whole_network((1, 5, 6, 32), 32, IntegerDepthwiseConv2D(padding=(1, 1)), expands=False)
    builder = GraphBuilder(dict(graph.values), list(graph.nodes))
    (made,) = graph.outputs
    more = builder.constant(np.arange(3, dtype=np.int32).reshape(3, 1, 1, 1))
    compared = builder.value((3, 5, 6, 32), DType.BOOL)
    builder.node(Elementwise(), (), compared, apply("lt", Arg(0), Arg(1)), [made, more])
    graph = builder.graph(graph.inputs, [compared])
    for half in (False, True):
        optimised = optimise(graph, CUDA, half=half)
        assert "IntegerDepthwiseConv2D" in [type(n.op).__name__ for n in optimised.nodes]
        np.testing.assert_array_equal(evaluate_graph(optimised, [x])[0], evaluate_graph(graph, [x])[0])


def test_joined_only_where_it_is_quicker(monkeypatch) -> None:
    monkeypatch.undo()

    def kinds(batch: int, size: int, stride: int, inputs: int, channels: int, outputs: int) -> list[str]:
        op = IntegerDepthwiseConv2D((stride, stride), (1, 1), (1, 1))
        graph, _ = whole_network(
            (batch, size, size, inputs or channels), channels, op, outputs=outputs, expands=inputs > 0
        )
        return [type(node.op).__name__ for node in optimise(graph, CUDA, half=True).nodes]

    apart = ["IntegerConv2D", "IntegerDepthwiseConv2D", "IntegerConv2D"]
    for layers in ((112, 2, 16, 96, 24), (56, 1, 24, 144, 24), (28, 1, 32, 192, 32)):
        assert kinds(64, *layers) == ["IntegerInvertedConv2D"]
    assert kinds(64, 112, 1, 0, 32, 16) == ["IntegerSeparableConv2D"]
    for layers in ((112, 2, 16, 96, 24), (28, 1, 32, 192, 32), (7, 1, 160, 960, 160)):
        assert kinds(1, *layers) == ["IntegerInvertedConv2D"]  # by clusters
    assert kinds(1, 7, 1, 160, 960, 320) == apart
    monkeypatch.setattr(widening, "pays", lambda shape, size, graph, features: False)
    assert kinds(1, 112, 2, 16, 96, 24) == apart
    assert kinds(64, 7, 1, 160, 960, 160) == apart
    assert kinds(1, 112, 1, 0, 32, 16) == apart[1:]


def test_a_first_layer_where_kernels_overlap(monkeypatch) -> None:
    """Joined with both behind it, but only to few outputs."""
    monkeypatch.undo()
    op, first = IntegerDepthwiseConv2D(padding=(1, 1)), ((3, 3), (2, 2), (0, 0))
    for outputs, joined in ((16, True), (64, False)):
        graph, _ = whole_network((1, 64, 64, 3), 32, op, outputs=outputs, first=first)
        kinds = [type(node.op).__name__ for node in optimise(graph, CUDA, half=True).nodes]
        assert kinds == (
            ["IntegerInvertedConv2D"] if joined else ["IntegerConv2D", "IntegerDepthwiseConv2D", "IntegerConv2D"]
        )


@pytest.mark.parametrize("taps", [5, 11])
def test_a_first_layer_that_no_block_fits(monkeypatch, taps: int) -> None:
    """Many columns that a window reads fill the registers or the shared memory."""
    monkeypatch.undo()
    op = IntegerDepthwiseConv2D((2, 2), (1, 1), (taps // 2, taps // 2))
    graph, _ = whole_network((1, 40, 40, 4), 64, op, taps=(taps, taps), outputs=16, first=((3, 3), (2, 2), (1, 1)))
    kernels = build_program(graph, CUDA, "cuda", half=True).kernels
    assert ("byte_inverted_convolution" in [k.name for k in kernels]) == (taps == 5)
