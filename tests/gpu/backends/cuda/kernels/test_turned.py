"""Kernels that go through their workgroups backwards, beside themselves."""

from __future__ import annotations

import dataclasses

import depthwise_network
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels import test_attention as attention
from gpu.backends.cuda.kernels import test_columns as columns
from gpu.backends.cuda.kernels import test_lstm as lstm
from gpu.backends.cuda.kernels import test_matmul as matmul
from gpu.backends.cuda.kernels import test_persistent as persistent
from gpu.backends.cuda.kernels import test_pingpong as pingpong
from gpu.backends.cuda.kernels import test_places as places
from gpu.backends.cuda.kernels import test_specialized as specialized
from gpu.backends.cuda.kernels import test_stem as stem
from gpu.backends.cuda.kernels import test_warpgroup_attention as warpgroup_attention
from gpu.backends.cuda.kernels import test_wide_stem as wide_stem
from gpu.backends.cuda.kernels.test_convolution import network

from litegpu.gpu import turning
from litegpu.gpu.backends.cuda.kernels import recurrent
from litegpu.gpu.backends.cuda.kernels.pingpong import candidates
from litegpu.gpu.backends.cuda.kernels.specialized import SpecializedTile
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType, MatMul

NETWORKS = {
    "convolution": lambda: network((3, 20, 20, 40), (72, 3, 3, 40), Conv2D(padding=(1, 1)), residual=True),
    "window": lambda: network((1, 64, 64, 16), (16, 3, 3, 16), Conv2D(padding=(1, 1))),
    "walking": lambda: network((5, 40, 41, 16), (32, 3, 3, 16), Conv2D(padding=(1, 1))),
    "divided": lambda: network((1, 4, 4, 512), (512, 3, 3, 512), Conv2D(padding=(1, 1))),
    "depthwise": lambda: depthwise_network.network((2, 17, 15, 24), (3, 3)),
    "matmul": lambda: matmul.network((1, 2, 64, 72), (1, 2, 40, 72), MatMul(False, True), inner="ab"),
    "attention": lambda: attention.network(**attention.CASES["vision"]),
    "few keys": lambda: attention.network((2, 3), 40, 20, 16, 16),
    "lstm": lambda: lstm.network(128, 4, 2, True),
    "lstm of many": lambda: lstm.network(128, 4, 20, True),
}


@pytest.mark.cuda
@pytest.mark.parametrize("name", NETWORKS)
def test_turned_kernels_give_the_same_bits(device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Those of the language, and native ones, workgroups of clusters among them."""
    graph, data, *_ = NETWORKS[name]()
    data = data if isinstance(data, list) else [data]
    shape = graph.values[graph.outputs[0]].shape
    features = dataclasses.replace(device.features, cache_bytes=0)
    if name == "lstm":
        monkeypatch.setattr(recurrent, "TENSOR_PAYS", 0.0)
    results = []
    for turn in (False, True):
        monkeypatch.setattr(turning, "turned", lambda launches, cache_bytes, turn=turn: [turn] * len(launches))
        program = build_program(graph, features, "cuda", half=True)
        assert all(("turned_block" in k.source) == turn for k in program.kernels)
        results.append(first_output(device, program, data, shape).tobytes())
    assert results[0] == results[1]


@pytest.mark.cuda
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("tile", candidates()[::3], ids=str)
def test_turned_pingpong(device, monkeypatch: pytest.MonkeyPatch, tile, groups: int) -> None:
    turn_all(monkeypatch)
    pingpong.test_tiles(device, monkeypatch, "residual", tile, groups)


@pytest.mark.cuda
@pytest.mark.parametrize("case", list(warpgroup_attention.CASES)[-10::2])
def test_turned_attention(device, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    turn_all(monkeypatch)
    warpgroup_attention.test_agrees_with_numpy(device, case)


WALKING = {
    "columns": lambda device, patch: columns.test_some_tiles(device, patch, "points", columns.SOME[0]),
    "persistent": lambda device, patch: persistent.test_some_tiles(device, patch, "points", persistent.SOME[0]),
    "specialized": lambda device, patch: specialized.check(device, patch, "points", SpecializedTile(128, 64, 2, 4, 1)),
    "stem": lambda device, patch: stem.test_cases(device, patch, "4x4 patches"),
    "wide stem": lambda device, patch: wide_stem.test_cases(device, patch, "7x7, stride 2", DType.FLOAT32),
    "places": lambda device, patch: places.test_agrees_with_numpy(device, "two teams, many units"),
}


def turn_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turning, "turned", lambda launches, cache_bytes: [True] * len(launches))


@pytest.mark.cuda
@pytest.mark.parametrize("name", WALKING)
def test_workgroups_that_walk_turn_as_well(device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What each goes through by itself, against the definition in NumPy."""
    turn_all(monkeypatch)
    WALKING[name](device, monkeypatch)
