"""Convolutions of bytes by products of one warp each (compute capability 7.5, and from 8.0 on), equal in every element
to the definition in NumPy; on other devices they are forced."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected
from gpu.backends.cuda.kernels.test_specialized import WHOLE_NUMBERS, layer_of_bytes

from litegpu.gpu.backends.cuda.kernels import integer, overlapped, stem, tile
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import KernelCode, Program

pytestmark = pytest.mark.timeout(600)

CASES = {
    **WHOLE_NUMBERS,
    "no four channels side by side": ((2, 7, 6, 5), (12, 1, 1, 5), Conv2D(zero_point=9), DType.INT8),
    "unsigned, four at once": ((1, 6, 5, 20), (24, 3, 3, 20), Conv2D(padding=(1, 1), zero_point=77), DType.UINT8),
    "unsigned, eight at once": ((1, 6, 5, 24), (24, 1, 1, 24), Conv2D(), DType.UINT8),
    "many pixels": ((3, 20, 20, 64), (72, 3, 3, 64), Conv2D(padding=(1, 1), zero_point=-128), DType.INT8),
    "one channel": ((1, 9, 9, 1), (8, 3, 3, 1), Conv2D(padding=(1, 1), zero_point=3), DType.UINT8),
}
HOPPER = Features(float16=True, native="cuda", capability=90, compute_units=132)
#: One warp and more along each axis, shallow and deep steps, two to four stages.
TILES = ("16x32x64-1x1x4-3", "32x32x64-2x2x1-2", "64x64x32-2x2x1-4", "128x64x64-4x2x1-3", "64x48x16-4x1x1-2")


def network(case: str) -> tuple[Graph, np.ndarray]:
    """One layer, and bytes of all values for it."""
    shape, weights, op, kind = CASES[case]
    return layer_of_bytes(shape, weights, op, kind)


def force(monkeypatch: pytest.MonkeyPatch, name: str = "") -> None:
    """Let nothing else be chosen, and only the tile of that name, if there is one."""
    monkeypatch.setattr(stem, "ranked", lambda *_: [])
    if name:
        chosen = next(t for t in tile.candidates(True) if str(t) == name)
        monkeypatch.setattr(integer, "ranked", lambda product, units: [chosen])


def as_if(features: Features, capability: int) -> Features:
    return dataclasses.replace(features, capability=capability)


def built(graph: Graph, features: Features) -> Program:
    program = build_program(graph, features, "cuda", half=False)
    assert {k.name for k in program.kernels} == {"byte_convolution"}
    return program


def check(device: Any, program: Program, graph: Graph, numbers: np.ndarray) -> None:
    got = first_output(device, program, [numbers], graph.values[graph.outputs[0]].shape, np.int32)
    assert np.array_equal(got, expected(graph, {graph.inputs[0]: numbers}))


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_cases(device: Any, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    force(monkeypatch, TILES[list(CASES).index(case) % len(TILES)])
    graph, numbers = network(case)
    check(device, built(graph, as_if(device.features, 80)), graph, numbers)


@pytest.mark.cuda
@pytest.mark.parametrize("name", TILES)
def test_tiles(device: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    force(monkeypatch, name)
    graph, numbers = network("unsigned")
    check(device, built(graph, as_if(device.features, 89)), graph, numbers)


def test_one_channel_is_gathered() -> None:
    """Where the kernel of first layers would multiply four. (One H200: 49x10 to 64 outputs, batch 64, 9.9 us so.)"""
    for channels in (1, 3):
        graph, _ = layer_of_bytes((64, 49, 10, channels), (64, 10, 4, channels), Conv2D((2, 2)), DType.INT8)
        names = {k.name for k in build_program(graph, HOPPER, "cuda", half=True).kernels}
        assert ("byte_convolution" in names) == (channels == 1)


def test_turing_has_smaller_tiles() -> None:
    """And the same kernels otherwise."""
    old, new = tile.candidates(True, 75), tile.candidates(True, 80)
    most = [max(t.shared_bytes(True) for t in tiles) for tiles in (old, new)]
    assert set(old) < set(new) and most[0] <= 64 << 10 < most[1]


@pytest.fixture
def no_overlap(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the devices that these instructions are for: kernels do not start before those in front of them have ended,
    which a text for them does not wait for."""
    monkeypatch.setattr(device, "programmatic", False)


def for_turing(program: Program) -> Program:
    """The program with the instructions of compute capability 7.5, which a newer device runs as well."""

    def old(code: KernelCode) -> KernelCode:
        older = ("--gpu-architecture=compute_75", "--undefine-macro=PROGRAMMATIC_LAUNCH")
        return dataclasses.replace(code, options=(*code.options, *older))

    return dataclasses.replace(program, kernels=tuple(old(code) for code in program.kernels))


@pytest.mark.cuda
@pytest.mark.usefixtures("no_overlap")
@pytest.mark.parametrize("case", ["points", "unsigned", "window, zero point", "four channels at once"])
def test_bytes_with_the_instructions_of_turing(device: Any, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    force(monkeypatch)
    graph, numbers = network(case)
    check(device, for_turing(built(graph, as_if(device.features, 75))), graph, numbers)


@pytest.mark.cuda
@pytest.mark.usefixtures("no_overlap")
def test_halves_with_the_instructions_of_turing(device: Any) -> None:
    """The kernel of float16 convolutions too: smaller products, and copies through registers."""
    rng = np.random.default_rng(2)
    builder = GraphBuilder()
    x, out = builder.value((2, 12, 12, 48), DType.FLOAT32), builder.value((2, 12, 12, 40), DType.FLOAT32)
    weights = builder.constant(rng.normal(0, 0.1, (40, 3, 3, 48)).astype(np.float32))
    builder.node(Conv2D(padding=(1, 1)), [x, weights], out)
    graph = builder.graph([x], [out])
    program = build_program(graph, as_if(device.features, 75), "cuda", half=True)
    assert {k.name for k in program.kernels} & {"tensor_convolution", "window_convolution"}
    numbers = rng.normal(0, 1, (2, 12, 12, 48)).astype(np.float32)
    got = first_output(device, for_turing(program), [numbers], (2, 12, 12, 40))
    want = expected(graph, {x: numbers})
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("shape, weights, op, kind", [
    ((1, 7, 7, 960), (40, 1, 1, 960), Conv2D(zero_point=5), DType.INT8),
    ((1, 9, 9, 384), (64, 1, 1, 384), Conv2D(zero_point=77), DType.UINT8),
    ((1, 13, 13, 64), (32, 3, 3, 64), Conv2D((2, 2), padding=(1, 1), zero_point=-3), DType.INT8),
])  # fmt: skip
def test_few_rows_where_kernels_overlap(
    device: Any, monkeypatch: pytest.MonkeyPatch, shape, weights, op: Conv2D, kind: DType
) -> None:
    """There warps that divide the depth of small tiles take less time than warpgroups that wait for a large one."""
    monkeypatch.setattr(overlapped, "will_overlap", lambda graph: True)
    graph, numbers = layer_of_bytes(shape, weights, op, kind)
    check(device, built(graph, as_if(device.features, 90)), graph, numbers)


def test_many_rows_are_of_warpgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features(float16=True, native="cuda", capability=90, compute_units=132)
    for batch, name in ((1, "byte_convolution"), (64, "specialized_convolution")):
        monkeypatch.setattr(overlapped, "will_overlap", lambda graph, few=batch == 1: few)
        graph, _ = layer_of_bytes((batch, 14, 14, 384), (64, 1, 1, 384), Conv2D(), DType.INT8)
        assert [k.name for k in build_program(graph, features, "cuda", half=True).kernels] == [name]
