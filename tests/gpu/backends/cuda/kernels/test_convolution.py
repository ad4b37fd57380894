"""The convolutions in CUDA C++ against the definition in NumPy: every tile, and every way to read the input."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import (
    convolution,
    float_convolution,
    halo,
    patch,
    persistent,
    specialized,
    stem,
    window,
)
from litegpu.gpu.backends.cuda.kernels.layer import Layer
from litegpu.gpu.backends.cuda.kernels.tile import (
    TF32_CAPABILITIES,
    WARPGROUP_CAPABILITY,
    TileProduct,
    WorkgroupTile,
    candidates,
    cost,
    ranked,
    tf32_candidates,
    tf32_warpgroup_candidates,
)
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, GraphBuilder, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

pytestmark = pytest.mark.cuda
PLAIN = Conv2D()


@pytest.fixture(autouse=True)
def without_later_kernels(monkeypatch) -> None:
    """Those of specialized.cu, persistent.cu, halo.cu, stem.cu, patch.cu and float_convolution.cu have tests of their
    own."""
    monkeypatch.setattr(float_convolution, "ranked", lambda layer, capability, units: [])
    monkeypatch.setattr(patch, "ranked", lambda layer, capability, units: [])
    monkeypatch.setattr(halo, "ranked", lambda layer, capability, units: [])
    monkeypatch.setattr(persistent, "ranked", lambda layer, capability, units: [])
    monkeypatch.setattr(specialized, "ranked", lambda layer, capability, units: [])
    monkeypatch.setattr(stem, "ranked", lambda layer, units: [])


def network(shape, weights, op=PLAIN, *, residual=False, seed=0):
    """x -> relu -> convolution + bias (+ what relu gave) -> relu6, so that the convolution's own input and output are
    intermediates; the output's width and height follow from SAME-like padding."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    b, h, w, c = shape
    outputs, kh, kw, _ = weights
    x = builder.value(shape, DType.FLOAT32)
    inner = builder.value(shape, DType.FLOAT32)
    builder.node(Conv2D(), [x, builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))], inner)
    size = [
        (n * u + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, u, p, k, d, s in zip((h, w), op.upsample, op.padding, (kh, kw), op.dilation, op.stride, strict=True)
    ]
    out = builder.value((b, *size, outputs), DType.FLOAT32)
    matrix = builder.constant(rng.standard_normal(weights) / np.sqrt(kh * kw * c))
    bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
    expression = apply("add", RESULT, Arg(1))
    operands = [bias]
    if residual:
        expression, operands = apply("add", expression, Arg(2)), [bias, inner]
    builder.node(op, [inner, matrix], out, expression, operands)
    return builder.graph([x], [out]), rng.standard_normal(shape).astype(np.float32)


def run(device, graph, values: Mapping[int, np.ndarray], half: bool, kernel: str) -> np.ndarray:
    program = build_program(graph, device.features, "cuda", half=half)
    names = {program.kernels[d.kernel].name for d in program.dispatches}
    own = {"tensor_convolution", "window_convolution"} if half else {"tiled_convolution"}
    assert (not kernel or kernel in names) and (kernel not in own | {""} or names <= own), names
    return first_output(device, program, [values[v] for v in graph.inputs], graph.values[graph.outputs[0]].shape)


def expected(graph, values: Mapping[int, np.ndarray]) -> np.ndarray:
    known = {i: v.data for i, v in graph.values.items() if v.data is not None} | dict(values)
    for node in graph.nodes:
        known[node.output] = evaluate_node(node, known, graph)
    return known[graph.outputs[0]]


def check(device, graph, x: np.ndarray, half: bool, kernel: str = "") -> None:
    values = {graph.inputs[0]: x}
    got = run(device, graph, values, half, kernel or ("tensor_convolution" if half else "tiled_convolution"))
    want = expected(graph, values)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= (2e-3 if half else 1e-6) * np.linalg.norm(want)


def some(tiles: tuple[WorkgroupTile, ...]) -> list[WorkgroupTile]:
    """One depth and number of stages for every division into rows, columns and warps, these changing along the way."""
    by_shape: dict[tuple, list[WorkgroupTile]] = {}
    for tile in tiles:
        by_shape.setdefault((tile.rows, tile.columns, tile.warps, tile.warpgroups, tile.tf32), []).append(tile)
    return [group[i % len(group)] for i, group in enumerate(by_shape.values())]


def use_tile(monkeypatch, tile: WorkgroupTile) -> None:
    monkeypatch.setattr(convolution, "ranked", lambda product, units: [tile])
    monkeypatch.setattr(window, "ranked", lambda layer, units: [])


@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("case", ["points", "window"])
def test_tiles(device, monkeypatch, half: bool, case: str) -> None:
    """Partly filled tiles in every direction, depths that are one step and several."""
    if case == "points":
        graph, x = network((2, 9, 8, 72), (44, 1, 1, 72), residual=False)
    else:
        graph, x = network((1, 9, 7, 12), (20, 3, 3, 12), Conv2D((2, 1), (1, 2), (1, 2)))
    tiles = candidates(half, device.features.capability)
    if not half and device.features.capability in TF32_CAPABILITIES:
        tiles += tf32_candidates()
        tiles += tf32_warpgroup_candidates() if device.features.capability == WARPGROUP_CAPABILITY else ()
    for tile in some(tiles):
        use_tile(monkeypatch, tile)
        try:
            check(device, graph, x, half)
        except Exception as error:
            raise AssertionError(f"tile {tile}: {error}") from error


@pytest.mark.parametrize("half, rows, columns, depth, warps, stages, warpgroups", [
    (True, 32, 32, 16, (1, 1, 1), 2, False), (True, 32, 64, 64, (1, 2, 2), 3, False),
    (True, 64, 32, 32, (2, 1, 2), 4, False), (True, 64, 64, 32, (2, 2, 1), 3, False),
    (True, 64, 32, 32, (4, 1, 1), 3, True),
    (False, 16, 32, 16, (1, 2, 2), 3, False), (False, 32, 16, 8, (2, 1, 1), 2, False),
])  # fmt: skip
def test_some_tiles(device, monkeypatch, half: bool, rows, columns, depth, warps, stages, warpgroups: bool) -> None:
    """Warps that divide rows, columns and depth, more steps than stages: few enough for the emulated driver."""
    use_tile(monkeypatch, WorkgroupTile(rows, columns, depth, warps, stages, warpgroups))
    graph, x = network((2, 5, 9, 136), (44, 1, 1, 136), residual=False)
    check(device, graph, x, half)
    graph, x = network((2, 5, 7, 20), (20, 3, 3, 20), Conv2D((2, 1), (1, 2), (1, 2)))
    check(device, graph, x, half)


@pytest.mark.parametrize("case", ["points", "window", "gathered"])
@pytest.mark.parametrize(
    "tile",
    [
        (32, 32, 16, (2, 2, 1), 3), (16, 16, 64, (1, 1, 4), 2), (64, 32, 32, (2, 1, 2), 4),
        (64, 32, 16, (4, 1, 1), 3, True), (128, 64, 32, (8, 1, 1), 2, True), (128, 128, 32, (4, 1, 1), 3, True),
        (192, 64, 16, (12, 1, 1), 4, True),
    ],
    ids=str,
)  # fmt: skip
def test_floats_by_tensor_cores(device, monkeypatch, case: str, tile: tuple) -> None:
    """As exact as others are: within 1e-6 of products in float64."""
    _require_tf32(device)
    rows, columns, depth, warps, stages, *warpgroups = tile
    use_tile(monkeypatch, WorkgroupTile(rows, columns, depth, warps, stages, bool(warpgroups), True))
    if warpgroups and device.features.capability != WARPGROUP_CAPABILITY:
        pytest.skip("no warpgroups")
    if case == "points":
        graph, x = network((2, 5, 9, 136), (44, 1, 1, 136), residual=False)
    else:
        graph, x = network((2, 5, 7, 3 if case == "gathered" else 20), (20, 3, 3, 3 if case == "gathered" else 20))
    program = build_program(graph, device.features, "cuda", half=False)
    assert "#define TF32 1" in program.kernels[program.dispatches[-1].kernel].source
    check(device, graph, x, False)


@pytest.mark.parametrize("warpgroups", [False, True])
def test_long_sums_by_tensor_cores(device, monkeypatch, warpgroups: bool) -> None:
    """Tensor cores do not round what they add up: of products of one sign nothing may be lost with each."""
    _require_tf32(device)
    use_tile(monkeypatch, _tf32_tile(device, warpgroups))
    builder, rng = GraphBuilder(), np.random.default_rng(0)
    x, out = builder.value((1, 2, 8, 2048), DType.FLOAT32), builder.value((1, 2, 8, 16), DType.FLOAT32)
    builder.node(Conv2D(), [x, builder.constant(rng.uniform(0.5, 1, (16, 1, 1, 2048)).astype(np.float32))], out)
    check(device, builder.graph([x], [out]), rng.uniform(0.5, 1, (1, 2, 8, 2048)).astype(np.float32), False)


@pytest.mark.parametrize("warpgroups", [False, True])
def test_whole_numbers_by_tensor_cores(device, monkeypatch, warpgroups: bool) -> None:
    """Sums of quanta below 2^24 are exact: what is left of such numbers is too small to count."""
    _require_tf32(device)
    use_tile(monkeypatch, _tf32_tile(device, warpgroups))
    builder, rng = GraphBuilder(), np.random.default_rng(0)
    weights = rng.integers(-127, 128, (20, 3, 3, 24)).astype(np.float32)
    x, out = builder.value((2, 6, 7, 24), DType.FLOAT32), builder.value((2, 4, 5, 20), DType.FLOAT32)
    builder.node(Conv2D(), [x, builder.constant(weights)], out)
    graph, data = builder.graph([x], [out]), rng.integers(-255, 256, (2, 6, 7, 24)).astype(np.float32)
    program = build_program(graph, device.features, "cuda", half=False)
    np.testing.assert_array_equal(
        first_output(device, program, [data], (2, 4, 5, 20)), expected(graph, {x: data}), strict=True
    )


@pytest.mark.parametrize("warpgroups", [False, True])
def test_infinities_by_tensor_cores(device, monkeypatch, warpgroups: bool) -> None:
    """Whose parts of TF32 are none: infinite, or NaN by 0, of both signs and of NaN, as they are in float32."""
    _require_tf32(device)
    use_tile(monkeypatch, _tf32_tile(device, warpgroups))
    builder = GraphBuilder()
    weights = np.ones((4, 1, 1, 16), np.float32)
    weights[1, ..., 3], weights[2, ..., 3], weights[3, ..., 3] = -1.0, 0.0, 1.5 + 2**-20
    x, out = builder.value((1, 1, 5, 16), DType.FLOAT32), builder.value((1, 1, 5, 4), DType.FLOAT32)
    builder.node(Conv2D(), [x, builder.constant(weights)], out)
    data = np.ones((1, 1, 5, 16), np.float32)
    data[0, 0, 0, 3], data[0, 0, 1, 3], data[0, 0, 2, 3] = np.inf, -np.inf, np.nan
    data[0, 0, 3, 3], data[0, 0, 3, 4] = np.inf, -np.inf
    graph = builder.graph([x], [out])
    found = first_output(device, build_program(graph, device.features, "cuda", half=False), [data], (1, 1, 5, 4))
    inf, nan = np.inf, np.nan
    want = [[inf, -inf, nan, inf], [-inf, inf, nan, -inf], [nan] * 4, [nan, -inf, nan, nan], [16, 14, 15, 16.5]]
    np.testing.assert_allclose(found[0, 0], np.array(want, np.float32), rtol=1e-6)


def _tf32_tile(device, warpgroups: bool) -> WorkgroupTile:
    if not warpgroups:
        return WorkgroupTile(16, 16, 16, (1, 1, 1), 2, tf32=True)
    if device.features.capability != WARPGROUP_CAPABILITY:
        pytest.skip("no warpgroups")
    return WorkgroupTile(64, 32, 16, (4, 1, 1), 2, True, True)


def _require_tf32(device) -> None:
    if device.features.capability not in TF32_CAPABILITIES:
        pytest.skip("tensor cores are no quicker there")


@pytest.mark.parametrize(
    "channels, warps, warpgroups", [(136, (1, 1, 2), False), (20, (2, 2, 1), False), (136, (4, 1, 1), True)]
)
def test_points_of_floats(device, monkeypatch, channels: int, warps, warpgroups: bool) -> None:
    """A 1x1 layer that reads floats, as behind a mean: more steps than stages, and a last chunk of four channels."""
    builder, rng = GraphBuilder(), np.random.default_rng(0)
    x, out = builder.value((1, 5, 9, channels), DType.FLOAT32), builder.value((1, 5, 9, 44), DType.FLOAT32)
    builder.node(Conv2D(), [x, builder.constant(rng.standard_normal((44, 1, 1, channels)) / np.sqrt(channels))], out)
    use_tile(monkeypatch, WorkgroupTile(64, 32, 32, warps, 3, warpgroups))
    graph = builder.graph([x], [out])
    program = build_program(graph, device.features, "cuda", half=True)
    assert "#define ACCESS FLOATS" in program.kernels[program.dispatches[-1].kernel].source
    check(device, graph, rng.standard_normal((1, 5, 9, channels)).astype(np.float32), True)


@pytest.mark.parametrize("op", [Conv2D((2, 2)), Conv2D((1, 2)), Conv2D(padding=(1, 1)), Conv2D(upsample=(2, 2))])
def test_strided_points(device, op: Conv2D) -> None:
    """One tap at every second pixel is no plain matrix product; nor are padded or enlarged pixels."""
    graph, x = network((2, 6, 8, 16), (9, 1, 1, 16), op)
    for half in (True, False):
        check(device, graph, x, half)


@pytest.mark.parametrize("i", [5, 30])
@pytest.mark.parametrize("channels, border", [(8, "zero"), (20, "reflect"), (5, "symmetric")])
def test_some_blocks(device, monkeypatch, i: int, channels: int, border: str) -> None:
    """The kernel for windows, each workgroup with several blocks: few enough for the emulated driver."""
    block = window.candidates()[i]
    op = Conv2D((1 + i % 2, 1), (1, 2), (1, 2), border=border, upsample=(2, 3) if border == "symmetric" else (1, 1))
    size = (9, 40) if border == "zero" else (5, 9)
    graph, x = network((2, *size, channels), (20, 3, 3, channels), op)
    monkeypatch.setattr(window, "ranked", lambda layer, units: [block])
    monkeypatch.setattr(window, "cost", lambda layer, block, units: 0)
    monkeypatch.setattr(window, "RESIDENT", 0.01)  # so that there are few workgroups
    check(device, graph, x, True, "window_convolution")


@pytest.mark.parametrize("half, windowed", [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("channels", [12, 5])
def test_some_pixels_are_nan(device, monkeypatch, half: bool, windowed: bool, channels: int) -> None:
    """They spoil the windows that they are in, and nothing beside them: channels past the last one are another pixel's,
    which no weight of zero makes harmless."""
    monkeypatch.setattr(window, "ranked", lambda layer, units: [window.candidates()[5]] if windowed else [])
    monkeypatch.setattr(window, "cost", lambda layer, block, units: 0)
    graph, x = network((2, 5, 9, channels), (9, 3, 3, channels), Conv2D((1, 2), (1, 1), (1, 1)))
    x[0, 2, 4], x[1, 0, 0], x[1, 4, 8] = np.nan, np.nan, np.nan
    values = {graph.inputs[0]: x}
    got = run(device, graph, values, half, "window_convolution" if windowed else "")
    want = expected(graph, values)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    assert np.linalg.norm(got[finite] - want[finite]) <= (2e-3 if half else 1e-6) * np.linalg.norm(want[finite])


@pytest.mark.parametrize("largest", [65504, 65600])
def test_weights_that_float16_does_not_hold(device, largest: float) -> None:
    """What is above 65504 would be infinite as float16: then the language's kernel has float32 weights."""
    graph, x = network((1, 4, 5, 8), (8, 3, 3, 8), Conv2D(padding=(1, 1)))
    weights = graph.values[graph.nodes[-1].inputs[1]].data
    assert weights is not None
    weights[0, 0, 0, 0] = largest
    program = build_program(graph, device.features, "cuda", half=True)
    native = program.kernels[program.dispatches[-1].kernel].name in ("tensor_convolution", "window_convolution")
    assert native == (largest == 65504)
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.isfinite(got).all() and np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.slow
@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("shape", [(1, 5, 5, 3), (2, 14, 14, 64), (1, 17, 3, 136)])
def test_all_tiles(device, monkeypatch, half: bool, shape) -> None:
    graph, x = network(shape, (17, 3, 3, shape[3]), Conv2D((1, 1), (1, 1), (1, 1)))
    for tile in candidates(half, device.features.capability):
        use_tile(monkeypatch, tile)
        check(device, graph, x, half)


@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 4, 5, 8, 12, 17, 32])
@pytest.mark.parametrize("taps", [(1, 1), (3, 2)])
def test_channels(device, half: bool, channels: int, taps) -> None:
    graph, x = network((3, 5, 6, channels), (channels, *taps, channels), residual=taps == (1, 1))
    check(device, graph, x, half)


@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("op", [
    Conv2D((1, 1), (1, 1), (1, 1)), Conv2D((2, 2), (1, 1), (1, 0)), Conv2D((1, 3), (2, 1), (2, 1)),
    Conv2D((3, 3), (1, 1), (0, 0)), Conv2D((1, 1), (4, 3), (4, 3)),
])  # fmt: skip
def test_windows(device, half: bool, op: Conv2D) -> None:
    for channels in (3, 16):
        graph, x = network((2, 13, 11, channels), (9, 3, 3, channels), op)
        check(device, graph, x, half)


@pytest.mark.parametrize("border", ["zero", "reflect", "symmetric"])
def test_blocks(device, monkeypatch, border: str) -> None:
    """The kernel for windows: every block, channels that are whole chunks, half of one, and neither."""
    monkeypatch.setattr(window, "cost", lambda layer, block, units: 0)
    for i, block in enumerate(window.candidates()):
        channels, stride, dilation = ((8, 20, 5, 32)[i % 4], 1 + i % 2, 1 + i // 2 % 2)
        op = Conv2D((stride, 1), (1, dilation), (1, dilation), border=border, upsample=((1, 1), (2, 3))[i // 4 % 2])
        graph, x = network((2, 5, 9, channels), (10 if block.columns == 8 else 20, 3, 3, channels), op)
        monkeypatch.setattr(window, "ranked", lambda layer, units, block=block: [block])
        monkeypatch.setattr(convolution, "cost", lambda product, tile, units: 1)
        try:
            check(device, graph, x, True, "window_convolution")
        except Exception as error:
            raise AssertionError(f"{block}, {channels} channels, {op}: {error}") from error


@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
def test_borders_by_tiles(device, monkeypatch, half: bool) -> None:
    monkeypatch.setattr(window, "ranked", lambda layer, units: [])
    for channels, border in ((3, "reflect"), (16, "reflect"), (8, "symmetric")):
        for op in (
            Conv2D((1, 1), (1, 1), (2, 1), border=border),
            Conv2D(padding=(1, 2), border=border, upsample=(2, 2)),
        ):
            graph, x = network((2, 6, 7, channels), (9, 5, 3, channels), op)
            check(device, graph, x, half)


def test_chosen_tiles_fit_the_product() -> None:
    few = TileProduct(49, 1024, 1024, True)
    many = TileProduct(64 * 112 * 112, 64, 32, True)
    assert ranked(few, 132)[0].rows < ranked(many, 132)[0].rows
    for product in (few, many, TileProduct(1, 1, 1, False), TileProduct(10**6, 3, 648, True)):
        costs = [cost(product, tile, 132) for tile in ranked(product, 132)]
        assert costs and costs == sorted(costs)


@pytest.mark.cuda
@pytest.mark.parametrize("stride", [(4, 4), (1, 2), (3, 4)])
@pytest.mark.parametrize("taps, padding", [((11, 11), (2, 2)), ((7, 7), (3, 3)), ((5, 7), (0, 0)), ((2, 9), (1, 5))])
@pytest.mark.parametrize("channels", [3, 4, 1])
def test_joined_pixels(device, monkeypatch, stride, taps, padding, channels: int) -> None:
    """Windows that move by two or four pixels read these as one; odd borders shift the window within them."""
    found: list[Layer] = []

    def joined(layer: Layer, features) -> Layer:
        wider = layer.joined_pixels
        found.extend([wider] if wider is not None else [])
        return wider or layer

    monkeypatch.setattr(convolution, "_of_wider_pixels", joined)
    op = Conv2D(stride, (2 if taps[0] == 2 else 1, 1), padding)
    graph, x = network((2, 23, 32, channels), (24, *taps, channels), op)
    values = {graph.inputs[0]: x}
    got, want = run(device, graph, values, True, ""), expected(graph, values)
    assert np.isfinite(got).all() and np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)
    (one,) = found
    assert one.weights.shape[3] == 4 * stride[1] and one.op.stride == (stride[0], 1)


def test_which_pixels_are_joined() -> None:
    def layer(width: int = 32, stride: int = 4, taps: int = 7, channels: int = 3, **options) -> Layer:
        shape = (1, 32, width, channels)
        op = Conv2D((stride, stride), padding=(3, 3), **options)
        return Layer(op, padded(0, shape, DType.FLOAT16), np.zeros((8, taps, taps, channels)), (1, 8, 8, 8), True)

    assert layer().joined_pixels is not None
    stays = [layer(30), layer(33, 3), layer(stride=1), layer(taps=4), layer(channels=8), layer(dilation=(1, 2))]
    assert all(one.joined_pixels is None for one in [*stays, layer(border="reflect")])
    assert dataclasses.replace(layer(), half=False).joined_pixels is None


def test_wider_pixels_where_estimates_say_so() -> None:
    """AlexNet's first layer and overlapping patches of a transformer's."""
    for taps, padding in ((11, 2), (7, 3)):
        size = (224 + 2 * padding - taps) // 4 + 1
        op, view = Conv2D((4, 4), padding=(padding, padding)), padded(0, (64, 224, 224, 3), DType.FLOAT16)
        one = Layer(op, view, np.ones((64, taps, taps, 3), np.float32), (64, size, size, 64), True)
        features = Features(float16=True, native="cuda", capability=90, compute_units=132)
        assert convolution._of_wider_pixels(one, features).source.shape == (64, 224, 56, 16)
