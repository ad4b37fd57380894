"""Attention by products of four warps together, in CUDA C++, against NumPy: each tile, and odd sizes of everything."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
from first_output import first_output
from gpu.backends.cuda.kernels.test_attention import network

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import warpgroup_attention
from litegpu.gpu.backends.cuda.kernels.attention_operands import diagonal_of, packed_mask
from litegpu.gpu.backends.cuda.kernels.warpgroup_attention import AttentionTile, Sizes, candidates, last_steps, ranked
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lang.features import Features

FEATURES = Features(
    float16=True, subgroups=True, subgroup_size=32, max_threads=1024, max_shared_bytes=48 << 10, max_buffers=64,
    max_groups=(1 << 31) - 1, max_binding_bytes=1 << 40, compute_units=100, native="cuda", capability=90,
)  # fmt: skip
#: Tile, and what network() takes.
CASES: dict[str, tuple[AttentionTile, dict[str, Any]]] = {
    "one step": (AttentionTile(1, 64, 1, 1), dict(m=64, n=64, d=64, e=64)),
    "odd": (AttentionTile(1, 48, 1, 4), dict(lead=(2, 3), m=5, n=33, d=8, e=16)),
    "one query": (AttentionTile(1, 64, 3, 1), dict(lead=(1, 2), m=1, n=200, d=64, e=64)),
    "two teams": (AttentionTile(2, 112, 2, 2), dict(lead=(1, 2), m=197, n=197, d=64, e=64)),
    "a team without queries": (AttentionTile(2, 64, 3, 1), dict(lead=(1, 2), m=140, n=300, d=16, e=32)),
    "places filled again": (AttentionTile(2, 48, 3, 1), dict(lead=(2, 1), m=100, n=460, d=32, e=32)),
    "windows": (
        AttentionTile(1, 64, 1, 5), dict(lead=(3, 2), m=49, n=49, d=32, e=32, mask=(1, 2, 49, 49), constant=True),
    ),
    "wide": (AttentionTile(1, 48, 3, 1), dict(m=20, n=100, d=128, e=128)),
    "80 wide": (AttentionTile(1, 80, 2, 1), dict(m=70, n=150, d=80, e=80)),
    "shared keys": (AttentionTile(1, 80, 1, 2), dict(lead=(2, 2), m=9, n=65, d=16, e=16, shared=(1, 1))),
    "shared heads": (AttentionTile(1, 96, 1, 2), dict(lead=(2, 3), m=9, n=65, d=16, e=16, shared=(2, 1))),
    "heads of groups": (AttentionTile(1, 96, 1, 2), dict(lead=(2, 6), m=9, n=65, d=16, e=16, shared=(2, 2))),
    "mask": (AttentionTile(1, 80, 1, 2), dict(lead=(2, 2), m=9, n=65, d=16, e=16, mask=(2, 1, 9, 65))),
    "repeated mask": (AttentionTile(1, 80, 1, 2), dict(lead=(6, 2), m=9, n=65, d=16, e=16, mask=(3, 2, 9, 65))),
    "repeated constant mask": (
        AttentionTile(1, 80, 1, 2), dict(lead=(6, 2), m=9, n=65, d=16, e=16, mask=(2, 1, 9, 65), constant=True),
    ),
    "row mask": (AttentionTile(1, 128, 1, 2), dict(lead=(1, 2), m=20, n=65, d=16, e=16, mask=(1, 1, 1, 65))),
    "constant mask": (
        AttentionTile(1, 48, 2, 2), dict(lead=(2, 2), m=20, n=65, d=16, e=16, mask=(2, 2, 20, 65), constant=True),
    ),
    "constant row mask": (
        AttentionTile(1, 48, 2, 2), dict(lead=(2, 2), m=70, n=65, d=16, e=16, mask=(2, 1, 1, 65), constant=True),
    ),
    "keys that count for nothing": (
        AttentionTile(1, 64, 4, 1), dict(lead=(1, 2), m=20, n=200, d=16, e=16, mask=(1, 1, 1, 200), off=150),
    ),
    "the same, constant": (
        AttentionTile(1, 64, 4, 1),
        dict(lead=(1, 2), m=20, n=200, d=16, e=16, mask=(1, 1, 1, 200), off=150, constant=True),
    ),
    "causal": (
        AttentionTile(1, 64, 3, 1), dict(lead=(1, 2), m=260, n=260, d=32, e=32, mask=(1, 1, 260, 260), constant=True,
                                         causal=-np.inf),
    ),
    "causal, two teams": (
        AttentionTile(2, 48, 3, 1), dict(lead=(1, 2), m=260, n=260, d=32, e=32, mask=(1, 1, 260, 260), constant=True,
                                         causal=-30000.0),
    ),
    "causal alone": (
        AttentionTile(1, 48, 3, 1), dict(lead=(2, 2), m=260, n=260, d=32, e=32, mask=(1, 1, 260, 260), constant=True,
                                         causal=-1e9, beyond=0),
    ),
    "causal alone, teams": (
        AttentionTile(4, 64, 3, 1), dict(lead=(1, 3), m=290, n=290, d=16, e=32, mask=(1, 1, 290, 290), constant=True,
                                         causal=-np.inf, beyond=0),
    ),
    "keys before the first query": (
        AttentionTile(2, 80, 3, 1), dict(lead=(1, 2), m=130, n=201, d=16, e=16, mask=(1, 1, 130, 201), constant=True,
                                         causal=-1e9, beyond=71),
    ),
    "fused": (AttentionTile(1, 80, 1, 2), dict(m=20, n=65, d=16, e=16, fused=True)),
    "persistent": (AttentionTile(2, 128, 2, 1, True), dict(lead=(3, 4), m=128, n=128, d=64, e=64)),
    "persistent, two steps": (AttentionTile(2, 64, 3, 1, True), dict(lead=(2, 5), m=100, n=100, d=32, e=48)),
    "persistent, places filled at once": (AttentionTile(1, 48, 2, 2, True), dict(lead=(3, 4), m=70, n=140, d=32, e=32)),
    "persistent, a team without queries": (
        AttentionTile(2, 64, 4, 1, True), dict(lead=(1, 5), m=140, n=200, d=16, e=32),
    ),
    "persistent, one step, mask": (
        AttentionTile(1, 80, 2, 1, True),
        dict(lead=(3, 2), m=65, n=65, d=16, e=16, mask=(3, 2, 65, 65), constant=True),
    ),
    "persistent, mask of steps": (
        AttentionTile(1, 48, 3, 1, True),
        dict(lead=(2, 3), m=70, n=130, d=16, e=16, mask=(2, 1, 70, 130), constant=True, off=100),
    ),
    "persistent, mask of keys": (
        AttentionTile(1, 64, 3, 1, True), dict(lead=(4, 2), m=64, n=128, d=64, e=64, mask=(4, 1, 1, 128)),
    ),
    "persistent, computed mask": (
        AttentionTile(1, 48, 3, 1, True), dict(lead=(4, 2), m=33, n=97, d=16, e=16, mask=(4, 1, 33, 97)),
    ),
    "persistent, shared heads": (
        AttentionTile(1, 96, 2, 1, True), dict(lead=(2, 6), m=9, n=65, d=16, e=16, shared=(2, 2)),
    ),
    "persistent, fused": (AttentionTile(1, 80, 2, 1, True), dict(lead=(3, 3), m=20, n=65, d=16, e=16, fused=True)),
}  # fmt: skip


def built(tile: AttentionTile, graph: Any, features: Features) -> Any:
    """A program whose attention has that tile."""
    with (
        mock.patch.object(warpgroup_attention, "ranked", lambda *_: [tile]),
        mock.patch.object(warpgroup_attention, "cost", lambda *_: 0.0),
    ):
        program = build_program(graph, features, "cuda", half=True)
    assert program.kernels[program.dispatches[-1].kernel].name == "warpgroup_attention"
    return program


def compare(device: Any, tile: AttentionTile, options: dict[str, Any]) -> None:
    graph, data = network(**options, inner="qkv")
    units = 2 if tile.persistent else device.features.compute_units  # that each workgroup has several tiles
    program = built(tile, graph, dataclasses.replace(device.features, capability=90, compute_units=units))
    persistent = program.dispatches[-1].groups[0] < math.prod(graph.values[graph.outputs[0]].shape[:2])
    assert persistent >= tile.persistent
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 4e-3 * np.linalg.norm(want)


def needs_warpgroups(device: Any) -> None:
    if device.features.capability != 90:
        pytest.skip("no warpgroup products")


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(device: Any, case: str) -> None:
    needs_warpgroups(device)
    compare(device, *CASES[case])


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(12))
def test_random_sizes(device: Any, seed: int) -> None:
    """Of the tiles that fit one, for sizes and a mask that are drawn."""
    needs_warpgroups(device)
    rng = np.random.default_rng(seed)
    b, h = (int(n) for n in rng.integers(1, 4, 2))
    m, n = int(rng.integers(1, 260)), int(rng.integers(33, 400))
    d, e = (8 * int(rng.integers(1, 17)) for _ in range(2))
    options: dict[str, Any] = dict(lead=(b, h), m=m, n=n, d=d, e=e)
    if seed % 3:
        options["mask"] = (*(size if rng.random() < 0.5 else 1 for size in (b, h, m)), n)
        options["constant"] = seed % 3 == 2
    tiles = [t for t in ranked(Sizes(b * h, m, n, d, e, "mask" in options), 90, 132) if not t.persistent]
    compare(device, tiles[int(rng.integers(len(tiles)))], options)


@pytest.mark.cuda
@pytest.mark.parametrize("constant", [False, True])
def test_nan_and_rows_without_keys(device: Any, constant: bool) -> None:
    needs_warpgroups(device)
    graph, data = network(lead=(1, 1), m=20, n=70, d=16, e=16, mask=(1, 1, 20, 70), inner="qkv", constant=constant)
    if constant:
        (masked,) = (v.data for v in graph.values.values() if v.data is not None and v.data.shape == (1, 1, 20, 70))
        masked[0, 0, 3] = -np.inf
    else:
        data[3][0, 0, 3] = -np.inf
    data[0][0, 0, 5, 2] = np.nan
    program = built(AttentionTile(1, 48, 2, 2), graph, device.features)
    got = first_output(device, program, data, (1, 1, 20, 16))
    bad = np.asarray(np.isnan(got).all(axis=-1))[0, 0]
    assert bad[3] and bad[5] and bad.sum() == 2 and np.isfinite(got[0, 0, ~bad]).all()


def test_causal_masks() -> None:
    """Those that hide nothing but what comes later; each other one is read."""
    mask = np.where(np.tri(5, 9, 2, dtype=bool), 0.0, -1e9).astype(np.float32)[None, None]
    assert diagonal_of(mask, 1.44, 5, 9) == 2
    assert diagonal_of(np.broadcast_to(mask, (2, 3, 5, 9)), 1.44, 5, 9) == 2
    assert diagonal_of(np.zeros((1, 1, 5, 5), np.float32), 1.0, 5, 5) is None
    assert diagonal_of(np.where(mask == 0, 0.0, -100.0), 1.44, 5, 9) is None  # which is little
    assert diagonal_of(mask[..., :6], 1.44, 5, 6) is None  # the last query sees keys that there are not
    for at in ((0, 0, 0, 0), (0, 0, 3, 1), (0, 0, 4, 8)):
        other = mask.copy()
        other[at] = 0.5
        assert diagonal_of(other, 1.44, 5, 9) is None
    assert diagonal_of(np.where(mask == 0, 0.0, np.nan).astype(np.float32), 1.44, 5, 9) is None
    assert diagonal_of(mask[:, :, :1], 1.44, 5, 9) is None


@pytest.mark.parametrize("shape", [(1, 1, 20, 65), (2, 3, 1, 65), (2, 1, 70, 1)])
def test_packed_mask(shape: tuple[int, ...]) -> None:
    """Each thread finds at its place what its logits need, and minus infinity beyond the last key."""
    rows, keys, step = 70 if shape[2] == 70 else 20, 65, 48
    mask = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    packed = packed_mask(mask, 2.0, step, rows, keys)
    assert packed is not None
    want = np.broadcast_to(2 * mask, (*shape[:2], rows, keys)).astype(np.float16)
    for row, key in itertools.product(range(rows), range(96)):
        lane, word = row % 8 * 4 + key % 8 // 2, key // 8 % 2 * 2 + row // 8 % 2
        got = packed[:, :, row // 16, key // step, key % step // 16, lane, word * 2 + key % 2]
        assert np.array_equal(got, want[:, :, row, key] if key < keys else np.full(shape[:2], -np.inf))


def test_last_steps() -> None:
    """Of a causal mask each workgroup needs the steps up to its last query; a row that hides all keys needs them all,
    as does a number that hides too little."""
    tile = AttentionTile(1, 48, 3, 1)
    late = np.triu(np.ones((150, 150), bool), 1)

    def found(low: float, hidden_row: int | None = None) -> list[int]:
        mask = np.where(late, np.float32(low), np.float32(0))
        if hidden_row is not None:
            mask[hidden_row] = low
        return list(map(int, last_steps(mask[None, None], 1.44, tile, 150, 150)))

    assert found(-np.inf) == found(-30000.0) == found(-np.inf, 3) == [2, 3, 4]
    assert found(-30000.0, 3) == [4, 3, 4] and found(-100.0) == [4, 4, 4] == found(np.nan)
    row = np.zeros((2, 1, 1, 150), np.float32)
    row[0, ..., 40:] = row[1, ..., 60:] = -np.inf
    assert list(last_steps(row, 1.0, tile, 150, 150)) == [2, 2, 2]


def test_masks_that_are_no_halves_stay_as_they_are() -> None:
    assert packed_mask(np.full((1, 1, 1, 40), -1e9, np.float32), 1.0, 48, 20, 40) is None
    assert packed_mask(np.full((1, 1, 1, 40), -np.inf, np.float32), 1.0, 48, 20, 40) is not None


@pytest.mark.parametrize("lead", [(64, 3), (16, 6), (4, 12), (1, 24)], ids=str)
def test_windows_with_masks(lead: tuple[int, int]) -> None:
    """Swin's at batch 1, whose masks have a row for each query: 2.5 to 3.4 us in the network, by attention.cu 4.1 to
    5.9."""
    options: dict[str, Any] = dict(lead=lead, m=49, n=49, d=32, e=32, mask=(1, lead[1], 49, 49), constant=True)
    features = dataclasses.replace(FEATURES, compute_units=132)
    program = build_program(network(**options, inner="qkv")[0], features, "cuda", half=True)
    assert program.kernels[program.dispatches[-1].kernel].name == "warpgroup_attention"


def test_tiles_fit() -> None:
    """For usual sizes there are tiles, whose keys are hardly more than there are; other devices have none."""
    for queries, depth in itertools.product((49, 128, 197, 384, 512, 1024), (32, 64, 80, 128)):
        sizes = Sizes(64, queries, queries, depth, depth)
        best = ranked(sizes, 90, 132)[0]
        assert sizes.steps(best) * best.step <= 1.35 * queries
        assert ranked(sizes, 80, 132) == [] == ranked(sizes, 100, 132)
    assert len(set(map(str, candidates()))) == len(candidates())


@pytest.mark.parametrize("case", ["two teams", "places filled again", "windows", "80 wide", "wide", "mask", "causal"])
def test_compiles(case: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    tile, options = CASES[case]
    program = built(tile, network(**options, inner="qkv")[0], FEATURES)
    kernels = [k for k in program.kernels if k.name == "warpgroup_attention"]
    assert kernels and compile_kernels(kernels, 90, programmatic=True)
