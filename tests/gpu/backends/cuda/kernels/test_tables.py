"""Bytes that are looked up by those who compute them, by each kernel that computes bytes, equal in every element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels import test_byte_depthwise, test_runs
from gpu.backends.cuda.kernels.test_convolution import expected
from gpu.backends.cuda.kernels.test_halo import only as only_halo
from gpu.backends.cuda.kernels.test_persistent import only
from gpu.backends.cuda.kernels.test_runs import scaled
from gpu.backends.cuda.kernels.test_specialized import stored

from litegpu.gpu.backends.cuda.kernels import byte_depthwise, halo, integer, persistent, specialized, stem, wide_stem
from litegpu.gpu.backends.cuda.kernels.halo import HaloTile
from litegpu.gpu.backends.cuda.kernels.persistent import StayingTile
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, DType, Elementwise, Graph, GraphBuilder, IntegerConv2D, Lookup, apply, whole

HOPPER = ("persistent", "halo", "specialized", "wide stem")


def looked_up(graph: Graph, kind: DType) -> Graph:
    """The graph with its output looked up: bytes in no order, the last of them at the first place."""
    rng, builder = np.random.default_rng(9), GraphBuilder.of(graph)
    lowest = 0 if kind is DType.UINT8 else -128
    (before,) = graph.outputs
    table = builder.constant((rng.permutation(256) + lowest).astype(np.int32).reshape(1, 1, 1, 256))
    after = builder.value(graph.values[before].shape, kind)
    return builder.graph(graph.inputs, [builder.node(Lookup(lowest), [before, table], after)])


def layer(shape: tuple[int, ...], weights: tuple[int, ...], op: IntegerConv2D, kind: DType) -> tuple[Graph, np.ndarray]:
    rng, builder = np.random.default_rng(4), GraphBuilder()
    x = builder.value(shape, kind)
    counts = zip(shape[1:3], op.padding, weights[1:3], op.stride, strict=True)
    size = [(n + 2 * p - k) // s + 1 for n, p, k, s in counts]
    out = builder.value((shape[0], *size, weights[0]), kind)
    matrix = builder.constant(rng.integers(-127, 128, weights).astype(np.int8), narrow=True)
    bias = builder.constant(rng.integers(-999, 999, (1, 1, 1, weights[0])).astype(np.int32))
    factor = builder.constant(rng.choice([0.0078125, 0.0031, 1e-3], (1, 1, 1, weights[0])).astype(np.float32))
    builder.node(op, [x, matrix], out, scaled(apply("add", RESULT, Arg(1)), op.zero_point, kind), [bias, factor])
    return builder.graph([x], [out]), stored(rng, shape, kind)


def elementwise(kind: DType) -> tuple[Graph, np.ndarray]:
    """A sum that leaves the range of bytes, which it is limited to before it is looked up."""
    builder, shape = GraphBuilder(), (2, 5, 7, 12)
    x, out = builder.value(shape, kind), builder.value(shape, kind)
    builder.node(Elementwise(), [], out, apply("add", apply("add", Arg(0), Arg(0)), whole(9)), [x])
    return builder.graph([x], [out]), stored(np.random.default_rng(0), shape, kind)


PADDED = IntegerConv2D(padding=(1, 1), zero_point=5)
STRIDED = IntegerConv2D((2, 2), padding=(1, 1), zero_point=5)
CASES: dict[str, Callable[[DType], tuple[Graph, Any]]] = {
    "persistent": lambda kind: test_runs.network((2, 37, 8, 64), 64, kind, residual=True),
    "halo": lambda kind: test_runs.network((2, 9, 13, 32), 64, kind, residual=False, taps=3),
    "specialized": lambda kind: layer((1, 9, 11, 96), (52, 1, 1, 96), IntegerConv2D(zero_point=5), kind),
    "wide stem": lambda kind: layer((1, 21, 32, 3), (32, 3, 3, 3), STRIDED, kind),
    "stem": lambda kind: layer((1, 21, 32, 3), (12, 3, 3, 3), STRIDED, kind),
    "one warp each": lambda kind: layer((1, 6, 5, 20), (24, 3, 3, 20), PADDED, kind),
    "few rows": lambda kind: layer((1, 1, 3, 64), (12, 1, 1, 64), IntegerConv2D(zero_point=5), kind),
    "depthwise": lambda kind: test_byte_depthwise.network("3x3, stride 2", kind),
    "depthwise, 5x5": lambda kind: test_byte_depthwise.network("5x5", kind),
    "elementwise": elementwise,
}
KERNELS = {
    "persistent": "persistent_convolution", "halo": "halo_convolution", "specialized": "specialized_convolution",
    "wide stem": "wide_stem", "stem": "stem_convolution", "one warp each": "byte_convolution",
    "few rows": "vector_of_bytes", "depthwise": "byte_depthwise", "depthwise, 5x5": "byte_depthwise",
    "elementwise": "elementwise",
}  # fmt: skip


def choose(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """The kernel that is tested, where others would do."""
    if case == "persistent":
        only(monkeypatch, StayingTile(64, 64, 2, 2, 2, 0))
    elif case == "halo":
        only_halo(monkeypatch, HaloTile(64, 64, 2, 2, 2))
    elif case.startswith("depthwise"):
        monkeypatch.setattr(byte_depthwise, "cost", lambda layer, block, units: -1.0)
    else:
        kinds = {"specialized": specialized, "wide stem": wide_stem, "stem": stem}
        for name, module in {**kinds, "persistent": persistent, "halo": halo}.items():
            if name != case:
                monkeypatch.setattr(module, "ranked", lambda *_: [])
        if case == "one warp each":
            monkeypatch.setattr(integer, "WARPGROUP_CAPABILITY", 0)  # as on others


@pytest.mark.cuda
@pytest.mark.parametrize("kind", [DType.INT8, DType.UINT8])
@pytest.mark.parametrize("case", CASES)
def test_kernels(device: Any, monkeypatch: pytest.MonkeyPatch, case: str, kind: DType) -> None:
    if case in HOPPER and device.features.capability != 90:
        pytest.skip("needs warpgroup products")
    choose(monkeypatch, case)
    graph, numbers = CASES[case](kind)
    graph = looked_up(graph, kind)
    numbers = numbers if isinstance(numbers, list) else [numbers]
    program = build_program(graph, device.features, "cuda", half=False)
    assert [program.kernels[d.kernel].name for d in program.dispatches] == [KERNELS[case]]
    want = expected(graph, dict(zip(graph.inputs, numbers, strict=True)))
    got = first_output(device, program, numbers, want.shape, numbers[0].dtype)
    assert len(np.unique(want)) > 15
    np.testing.assert_array_equal(got, want)
