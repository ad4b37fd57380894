"""Attention of few keys, in CUDA C++, against NumPy: each division, each way to read, and odd sizes of everything."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output
from gpu.backends.cuda.kernels.test_attention import network

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import short_attention
from litegpu.gpu.backends.cuda.kernels.short_attention import ShortDivision, divisions, registers
from litegpu.gpu.backends.cuda.kernels.warpgroup_attention import Sizes
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lang.features import Features

#: Division, and what network() takes.
CASES: dict[str, tuple[ShortDivision, dict[str, Any]]] = {
    "one tile": (ShortDivision(1, 1), dict(m=16, n=16, d=32, e=32)),
    "one of everything": (ShortDivision(1, 1), dict(m=1, n=1, d=1, e=1)),
    "odd": (ShortDivision(1, 4), dict(lead=(2, 3), m=7, n=15, d=8, e=16)),
    "one query": (ShortDivision(1, 4), dict(lead=(3, 3), m=1, n=7, d=64, e=64)),
    "blocks": (ShortDivision(4, 4), dict(lead=(2, 5), m=64, n=64, d=8, e=8)),
    "a block that is missing": (ShortDivision(4, 2), dict(lead=(2, 2), m=33, n=41, d=24, e=24)),
    "parts": (ShortDivision(2, 8), dict(lead=(3, 3), m=70, n=17, d=16, e=16)),
    "as many parts as blocks": (ShortDivision(1, 4), dict(lead=(1, 3), m=49, n=49, d=32, e=32)),
    "spans": (ShortDivision(2, 4), dict(lead=(1, 3), m=20, n=24, d=40, e=72)),
    "wide": (ShortDivision(1, 2), dict(lead=(1, 3), m=17, n=16, d=128, e=128)),
    "narrow values": (ShortDivision(3, 2), dict(lead=(2, 2), m=47, n=33, d=64, e=4)),
    "narrow keys": (ShortDivision(2, 2), dict(lead=(2, 2), m=31, n=9, d=4, e=64)),
    "four at once": (ShortDivision(2, 4), dict(lead=(2, 3), m=20, n=17, d=20, e=12)),
    "odd channels": (ShortDivision(2, 4), dict(lead=(2, 3), m=20, n=17, d=5, e=3)),
    "more odd channels": (ShortDivision(1, 4), dict(lead=(2, 3), m=20, n=30, d=37, e=29)),
    "shared keys": (ShortDivision(1, 2), dict(lead=(2, 2), m=9, n=63, d=16, e=16, shared=(1, 1))),
    "shared heads": (ShortDivision(1, 2), dict(lead=(2, 3), m=9, n=25, d=16, e=16, shared=(2, 1))),
    "heads of groups": (ShortDivision(1, 2), dict(lead=(2, 6), m=9, n=25, d=16, e=16, shared=(2, 2))),
    "mask": (ShortDivision(2, 4), dict(lead=(2, 2), m=19, n=25, d=16, e=16, mask=(2, 1, 19, 25))),
    "mask of heads": (ShortDivision(1, 4), dict(lead=(2, 2), m=19, n=25, d=16, e=16, mask=(2, 2, 19, 25))),
    "repeated mask": (ShortDivision(2, 4), dict(lead=(6, 2), m=19, n=25, d=16, e=16, mask=(3, 2, 19, 25))),
    "row mask": (ShortDivision(2, 4), dict(lead=(3, 2), m=20, n=17, d=16, e=16, mask=(3, 1, 1, 17))),
    "mask of queries": (ShortDivision(2, 4), dict(lead=(3, 2), m=20, n=17, d=16, e=16, mask=(3, 1, 20, 1))),
    "constant mask": (
        ShortDivision(3, 4), dict(lead=(2, 2), m=37, n=41, d=16, e=16, mask=(2, 2, 37, 41), constant=True),
    ),
    "repeated constant mask": (
        ShortDivision(1, 4), dict(lead=(6, 2), m=19, n=64, d=16, e=16, mask=(2, 1, 19, 64), constant=True),
    ),
    "constant row mask": (
        ShortDivision(4, 4), dict(lead=(2, 2), m=70, n=17, d=8, e=8, mask=(2, 1, 1, 17), constant=True),
    ),
    "keys that count for nothing": (
        ShortDivision(2, 4), dict(lead=(1, 2), m=20, n=60, d=16, e=16, mask=(1, 1, 1, 60), off=50),
    ),
    "the same, constant": (
        ShortDivision(2, 4), dict(lead=(1, 2), m=20, n=60, d=16, e=16, mask=(1, 1, 1, 60), off=50, constant=True),
    ),
    "causal": (
        ShortDivision(2, 4), dict(lead=(1, 2), m=60, n=60, d=32, e=32, mask=(1, 1, 60, 60), constant=True,
                                  causal=-np.inf),
    ),
    "a mask that is no halves": (
        ShortDivision(2, 4), dict(lead=(1, 2), m=60, n=60, d=32, e=32, mask=(1, 1, 60, 60), constant=True,
                                  causal=-1e9),
    ),
    "causal alone": (
        ShortDivision(2, 4), dict(lead=(2, 2), m=50, n=50, d=8, e=8, mask=(1, 1, 50, 50), constant=True,
                                  causal=-1e9, beyond=0),
    ),
    "keys before the first query": (
        ShortDivision(1, 4), dict(lead=(2, 2), m=7, n=33, d=16, e=16, mask=(1, 1, 7, 33), constant=True,
                                  causal=-1e9, beyond=26),
    ),
    "fused": (ShortDivision(2, 4), dict(lead=(2, 2), m=20, n=15, d=16, e=16, fused=True)),
    "fused and wide": (ShortDivision(1, 4), dict(lead=(2, 2), m=20, n=15, d=16, e=40, fused=True)),
    "fused and narrow": (ShortDivision(2, 4), dict(lead=(2, 2), m=20, n=15, d=16, e=7, fused=True)),
}  # fmt: skip


def built(division: ShortDivision, graph: Any, features: Features) -> Any:
    """A program whose attention is divided like that."""
    with (
        mock.patch.object(short_attention, "divisions", lambda *_: [division]),
        mock.patch.object(short_attention, "cost", lambda *_: 0.0),
    ):
        program = build_program(graph, features, "cuda", half=True)
    assert program.kernels[program.dispatches[-1].kernel].name == "short_attention"
    return program


def compare(device: Any, division: ShortDivision, options: dict[str, Any]) -> None:
    graph, data = network(**options)
    program = built(division, graph, device.features)
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("inner", ["qkv", "", "kv"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(device: Any, case: str, inner: str) -> None:
    """`inner`: what is float16; the others are float32, as inputs are."""
    division, options = CASES[case]
    compare(device, division, dict(options, inner=inner))


@pytest.mark.cuda
@pytest.mark.parametrize("seed", range(16))
def test_random_sizes(device: Any, seed: int) -> None:
    """Of the divisions one, for sizes and a mask that are drawn."""
    rng = np.random.default_rng(seed)
    b, h = (int(n) for n in rng.integers(1, 4, 2))
    m, n, d, e = (int(n) for n in rng.integers(1, 65, 4))
    options: dict[str, Any] = dict(lead=(b, h), m=m, n=n, d=d, e=e, inner="qkv")
    if seed % 3:
        options["mask"] = (*(size if rng.random() < 0.5 else 1 for size in (b, h, m)), n)
        options["constant"] = seed % 3 == 2
    found = divisions(Sizes(b * h, m, n, d, e, "mask" in options), int(rng.choice([1, 132])))
    compare(device, found[int(rng.integers(len(found)))], options)


@pytest.mark.cuda
@pytest.mark.parametrize("constant", [False, True])
def test_nan_and_rows_without_keys(device: Any, constant: bool) -> None:
    """Nor do numbers of one head reach another, which lies beside it."""
    graph, data = network(lead=(1, 2), m=20, n=41, d=8, e=8, mask=(1, 1, 20, 41), inner="qkv", constant=constant)
    if constant:
        (masked,) = (v.data for v in graph.values.values() if v.data is not None and v.data.shape == (1, 1, 20, 41))
        masked[0, 0, 3] = -np.inf
    else:
        data[3][0, 0, 3] = -np.inf
    data[0][0, 0, 5, 2] = np.nan
    data[2][0, 1, 40] = np.nan
    got = first_output(device, built(ShortDivision(2, 2), graph, device.features), data, (1, 2, 20, 8))
    bad = np.isnan(got).all(axis=-1)[0]
    assert list(np.flatnonzero(bad[0])) == [3, 5] and np.isfinite(got[0, 0, ~bad[0]]).all()
    assert bad[1].all()


@pytest.mark.parametrize("gpu", ["H200", "A100"])
@pytest.mark.parametrize(
    "lead, m, n, d",
    [((64, 12), 16, 16, 32), ((448, 16), 64, 64, 8), ((64, 8), 41, 41, 24), ((1, 12), 16, 16, 64), ((1, 4), 1, 7, 16)],
    ids=str,
)
def test_chosen_for_few_keys(gpu: str, lead: tuple[int, int], m: int, n: int, d: int) -> None:
    program = build_program(network(lead, m, n, d, d, inner="qkv")[0], GPUS[gpu].features, "cuda", half=True)
    assert program.kernels[program.dispatches[-1].kernel].name == "short_attention"


def test_not_for_many_keys_or_queries() -> None:
    for lead, m, n, d in (((64, 12), 65, 65, 32), ((64, 1), 1000, 64, 64), ((8, 8), 64, 64, 128)):
        program = build_program(network(lead, m, n, d, d)[0], GPUS["H200"].features, "cuda", half=True)
        assert program.kernels[program.dispatches[-1].kernel].name in ("flash_attention", "warpgroup_attention")


def test_divisions() -> None:
    """All queries have a block; workgroups are small where there are few, and none has more warps than are needed."""
    for queries in (1, 16, 17, 49, 64, 100):
        for positions in (1, 12, 768):
            sizes = Sizes(positions, queries, 16, 32, 32)
            for one in divisions(sizes, 132):
                assert 16 * one.blocks * one.parts(sizes) >= queries
                assert one.groups(sizes) * one.warps >= positions * one.parts(sizes)
                assert one.warps == 1 or one.groups(sizes) >= 132
    assert registers(Sizes(1, 64, 64, 64, 64, True)) <= short_attention.MOST_REGISTERS
    assert not divisions(Sizes(1, 64, 64, 128, 128), 132)


@pytest.mark.parametrize("capability", [75, 80, 86, 90, 100, 120])
@pytest.mark.parametrize("case", ["blocks", "odd channels", "wide", "constant mask"])
def test_compiles(case: str, capability: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    division, options = CASES[case]
    features = dataclasses.replace(GPUS["A100"].features, capability=capability)
    program = built(division, network(**options, inner="qkv")[0], features)
    kernels = [k for k in program.kernels if k.name == "short_attention"]
    assert kernels and compile_kernels(kernels, capability, programmatic=capability >= 90)
