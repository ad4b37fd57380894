"""Attention on tensor cores, in CUDA C++, against NumPy."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import attention, float_attention, short_attention, warpgroup_attention
from litegpu.gpu.backends.cuda.kernels.attention_division import AttentionDivision
from litegpu.gpu.backends.cuda.kernels.float_attention import FEW, MANY, TOGETHER
from litegpu.gpu.backends.cuda.kernels.side_by_side import can_join
from litegpu.gpu.backends.cuda.kernels.tile import TF32_CAPABILITIES
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Attention, Conv2D, DType, Expr, Graph, GraphBuilder, apply
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program

CASES: dict[str, dict[str, Any]] = {
    "one tile": dict(m=16, n=64, d=16, e=16),
    "odd": dict(lead=(2, 3), m=5, n=33, d=8, e=12),
    "odd channels": dict(m=3, n=40, d=5, e=3),
    "few queries": dict(lead=(1, 2), m=1, n=200, d=64, e=64),
    "many queries": dict(lead=(1, 40), m=70, n=50, d=32, e=32),
    "vision": dict(lead=(1, 2), m=197, n=197, d=64, e=64),
    "wide": dict(m=20, n=100, d=100, e=128),
    "few keys": dict(lead=(2, 2), m=9, n=7, d=120, e=128),
    "intermediates": dict(lead=(1, 2), m=33, n=70, d=24, e=40, inner="qkv"),
    "odd intermediates": dict(m=10, n=70, d=20, e=9, inner="qkv"),
    "shared keys": dict(lead=(2, 2), m=9, n=65, d=16, e=16, shared=(1, 1)),
    "shared heads": dict(lead=(2, 3), m=9, n=65, d=16, e=16, shared=(2, 1)),
    "heads of groups": dict(lead=(2, 6), m=9, n=65, d=16, e=16, shared=(2, 2)),
    "mask": dict(lead=(2, 2), m=9, n=65, d=16, e=16, mask=(2, 1, 9, 65)),
    "repeated mask": dict(lead=(6, 2), m=9, n=65, d=16, e=16, mask=(3, 2, 9, 65)),
    "row mask": dict(lead=(1, 2), m=20, n=65, d=16, e=16, mask=(1, 1, 1, 65)),
    "constant mask": dict(lead=(1, 2), m=20, n=65, d=16, e=16, mask=(1, 2, 20, 65), constant=True),
    "keys that count for nothing": dict(lead=(1, 2), m=20, n=200, d=16, e=16, mask=(1, 1, 1, 200), off=150),
    "fused": dict(m=20, n=65, d=16, e=16, fused=True),
    "learnt queries": dict(lead=(1, 2), m=33, n=65, d=16, e=16, learnt="q"),
    "learnt keys": dict(m=9, n=40, d=5, e=3, learnt="kv"),
}  # fmt: skip
#: Warps down and across, keys of a step, workgroups that divide the keys; with what.
DIVIDED: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "one query": ((1, 4, 64, 8), dict(lead=(2, 2), m=1, n=512, d=64, e=64)),
    "one query of halves": ((1, 4, 64, 8), dict(lead=(1, 2), m=1, n=500, d=64, e=64, inner="qkv")),
    "two parts": ((2, 2, 64, 2), dict(lead=(1, 2), m=37, n=197, d=64, e=64, inner="qkv")),
    "four parts": ((1, 4, 64, 4), dict(lead=(2, 2), m=20, n=199, d=24, e=40)),
    "three of eight without keys": ((1, 4, 64, 8), dict(m=20, n=600, d=16, e=16)),
    "many rows": ((4, 1, 64, 2), dict(m=70, n=300, d=100, e=128)),
    "rings": ((1, 4, 64, 2), dict(lead=(1, 2), m=9, n=500, d=32, e=32, inner="qkv")),
    "at once": ((1, 8, 128, 2), dict(lead=(1, 2), m=40, n=197, d=64, e=64)),
    "odd channels": ((1, 4, 64, 4), dict(m=3, n=205, d=5, e=3)),
    "shared heads": ((1, 4, 64, 2), dict(lead=(2, 3), m=9, n=129, d=16, e=16, shared=(2, 1))),
    "mask": ((1, 4, 64, 4), dict(lead=(2, 2), m=9, n=260, d=16, e=16, mask=(2, 1, 9, 260))),
    "row mask": ((1, 4, 64, 2), dict(lead=(2, 2), m=20, n=333, d=16, e=16, mask=(2, 1, 1, 333), inner="qkv")),
    "constant mask": ((1, 4, 64, 2), dict(lead=(1, 2), m=20, n=130, d=16, e=16, mask=(1, 2, 20, 130), constant=True)),
    "causal": ((2, 2, 64, 4), dict(m=90, n=250, d=16, e=16, mask=(1, 1, 90, 250), causal=-np.inf, beyond=3)),
    "parts that count for nothing": ((1, 4, 64, 4), dict(m=20, n=250, d=16, e=16, mask=(1, 1, 1, 250), off=150)),
    "fused": ((1, 4, 64, 2), dict(m=20, n=165, d=16, e=16, fused=True)),
    "learnt queries": ((1, 4, 64, 8), dict(m=33, n=470, d=16, e=16, learnt="q", inner="kv")),
}  # fmt: skip


def network(
    lead: tuple[int, int] = (1, 1), m: int = 1, n: int = 1, d: int = 1, e: int = 1, *, inner: str = "",
    shared: tuple[int, int] | None = None, mask: tuple[int, ...] | None = None, constant: bool = False, off: int = 0,
    fused: bool = False, causal: float = 0.0, beyond: int | None = None, learnt: str = "",
) -> tuple[Graph, list[np.ndarray]]:  # fmt: skip
    """Those of q, k and v that are named in `inner` are doubled first, as intermediates, those in `learnt` constant;
    the first `off` keys are masked out, and by `causal` those that come after a query, or more than `beyond` after it:
    then that is all."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    inputs, data, factors = [], [], []
    for name, shape in (("q", (*lead, m, d)), ("k", (*(shared or lead), n, d)), ("v", (*(shared or lead), n, e))):
        values = rng.standard_normal(shape).astype(np.float32)
        if name in learnt:
            factors.append(builder.constant(values))
            continue
        x = source = builder.value(shape, DType.FLOAT32)
        if name in inner:
            eye = builder.constant(2 * np.eye(shape[3], dtype=np.float32).reshape(shape[3], 1, 1, shape[3]))
            source = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
        inputs.append(x)
        factors.append(source)
        data.append(values)
    if mask is not None:
        values = rng.standard_normal(mask).astype(np.float32)
        values[..., :off] = -np.inf
        if beyond is not None:
            values[...] = 0.0
        if causal:
            values[..., np.triu(np.ones((m, n), bool), 1 + (beyond or 0))] = causal
        if constant:
            factors.append(builder.constant(values))
        else:
            inputs.append(builder.value(mask, DType.FLOAT32))
            factors.append(inputs[-1])
            data.append(values)
    out = builder.value((*lead, m, e), DType.FLOAT32)
    expression: Expr = RESULT
    operands: list[int] = []
    if fused:
        operands = [builder.constant(rng.standard_normal((1, 1, 1, e)).astype(np.float32))]
        expression = apply("max", apply("add", RESULT, Arg(1)), 0.0)
    builder.node(Attention(d**-0.5, 0.7), factors, out, expression, operands)
    return builder.graph(inputs, [out]), data


@pytest.mark.cuda
@pytest.mark.parametrize("units", [1, 1000])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_numpy(device: Any, monkeypatch: pytest.MonkeyPatch, case: str, units: int) -> None:
    """`units`: a device of so many multiprocessors divides the work differently."""
    monkeypatch.setattr(short_attention, "divisions", lambda *_: [])
    graph, data = network(**CASES[case])
    features = dataclasses.replace(device.features, compute_units=units)
    program = build_program(graph, features, "cuda", half=True)
    assert program.kernels[program.dispatches[-1].kernel].name.endswith("_attention")
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 4e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("across, step", [(4, 256), (8, 256), (16, 256), (2, 224)])
@pytest.mark.parametrize("case", ["vision", "keys that count for nothing", "few queries", "constant mask"])
def test_all_keys_at_once(device: Any, monkeypatch: pytest.MonkeyPatch, case: str, across: int, step: int) -> None:
    chosen = AttentionDivision(1, across, step)
    monkeypatch.setattr(attention, "divisions", lambda ctx, units: [chosen])
    monkeypatch.setattr(warpgroup_attention, "ranked", lambda *_: [])
    test_agrees_with_numpy(device, monkeypatch, case, 1000)


@pytest.mark.cuda
def test_nan_and_rows_without_keys(device: Any) -> None:
    graph, data = network(lead=(1, 1), m=20, n=70, d=16, e=16, mask=(1, 1, 20, 70))
    data[3][0, 0, 3] = -np.inf
    data[0][0, 0, 5, 2] = np.nan
    session = device.session(build_program(graph, device.features, "cuda", half=True))
    got = np.empty((1, 1, 20, 16), np.float32)
    for i, values in enumerate(data):
        session.write(i, values)
    session.run()
    session.read(0, got)
    session.close()
    bad = np.asarray(np.isnan(got).all(axis=-1))[0, 0]
    assert bad[3] and bad[5] and bad.sum() == 2 and np.isfinite(got[0, 0, ~bad]).all()


DIVIDED_FLOATS = [dataclasses.replace(FEW[i], split=n) for i, n in ((0, 2), (2, 4), (3, 8), (4, 2))]
FLOATS = {f"floats {name}": options for name, options in CASES.items()} | {
    "keys that are not read at once": dict(lead=(1, 2), m=40, n=300, d=64, e=64),
    "wide intermediates": dict(lead=(2, 1), m=70, n=90, d=128, e=100, inner="qkv"),
    "odd rows": dict(lead=(1, 2), m=33, n=70, d=7, e=33, inner="qv"),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", FLOATS)
def test_floats_are_exact(device: Any, case: str) -> None:
    """On tensor cores, by TF32."""
    needs_tf32(device)
    agrees_in_float32(device, FLOATS[case])


@pytest.mark.cuda
@pytest.mark.parametrize("division", [*FEW, *MANY, *TOGETHER, *DIVIDED_FLOATS], ids=str)
@pytest.mark.parametrize("case", ["floats vision", "floats repeated mask"])
def test_floats_divided_in_every_way(device: Any, monkeypatch: pytest.MonkeyPatch, case: str, division: Any) -> None:
    needs_tf32(device)
    if division.warpgroups or division.split > 1:
        needs_clusters(device)
    monkeypatch.setattr(float_attention, "divisions", lambda ctx, units: [division])
    agrees_in_float32(device, FLOATS[case])


@pytest.mark.cuda
@pytest.mark.parametrize("division", [FEW[3], MANY[1], TOGETHER[0]], ids=str)
@pytest.mark.parametrize("where", ["q", "k", "v", "all hidden"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_floats_that_are_no_numbers(
    device: Any, monkeypatch: pytest.MonkeyPatch, where: str, bad: float, division: AttentionDivision
) -> None:
    """What NumPy gives for them, in the same places."""
    needs_tf32(device)
    if division.warpgroups:
        needs_clusters(device)
    monkeypatch.setattr(float_attention, "divisions", lambda ctx, units: [division])
    graph, data = network(lead=(1, 2), m=20, n=70, d=16, e=16, mask=(1, 1, 20, 70))
    if where == "all hidden":
        data[3][0, 0, 3] = -np.inf if np.isinf(bad) else bad
    else:
        data["qkv".index(where)][0, 1, 5, 2] = bad
    program = build_program(graph, device.features, "cuda", half=False)
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    with np.errstate(all="ignore"):
        want = evaluate_graph(graph, data)[0]
    assert not np.isfinite(want).all() or (where, bad) == ("k", -np.inf)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def needs_tf32(device: Any) -> None:
    if device.features.capability not in TF32_CAPABILITIES:
        pytest.skip("no TF32 here")


def agrees_in_float32(device: Any, options: dict[str, Any]) -> None:
    graph, data = network(**options)
    program = build_program(graph, device.features, "cuda", half=False)
    kernel = program.kernels[program.dispatches[-1].kernel]
    assert kernel.name == "flash_attention" and "#define TF32 1" in kernel.source
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def divide(monkeypatch: pytest.MonkeyPatch, down: int, across: int, step: int, split: int) -> None:
    """Such a division, whatever the estimates say."""
    monkeypatch.setattr(attention, "divisions", lambda ctx, units: [AttentionDivision(down, across, step, split)])
    monkeypatch.setattr(short_attention, "divisions", lambda *_: [])
    monkeypatch.setattr(warpgroup_attention, "ranked", lambda *_: [])


@pytest.mark.cuda
@pytest.mark.parametrize("case", DIVIDED)
def test_keys_divided_by_a_cluster(device: Any, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    needs_clusters(device)
    sizes, options = DIVIDED[case]
    divide(monkeypatch, *sizes)
    graph, data = network(**options)
    program = build_program(graph, device.features, "cuda", half=True)
    assert split_of(program) == sizes[3]
    got = first_output(device, program, data, graph.values[graph.outputs[0]].shape)
    want = evaluate_graph(graph, data)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= 4e-3 * np.linalg.norm(want)


@pytest.mark.cuda
@pytest.mark.parametrize("split", [2, 4])
def test_nan_in_one_of_the_parts(device: Any, monkeypatch: pytest.MonkeyPatch, split: int) -> None:
    """Of a key, a value or a query, and of rows that see nothing."""
    needs_clusters(device)
    divide(monkeypatch, 1, 4, 64, split)
    graph, data = network(lead=(1, 3), m=20, n=230, d=16, e=16, mask=(1, 1, 20, 230))
    want = np.zeros((1, 3, 20, 16), bool)
    data[0][0, 2, 5, 2], want[0, 2, 5] = np.nan, True
    data[1][0, 0, 70, 1], want[0, 0] = np.nan, True
    data[2][0, 1, 229, 7], want[0, 1, :, 7] = np.nan, True
    data[3][0, 0, 3], want[0, :, 3] = -np.inf, True
    program = build_program(graph, device.features, "cuda", half=True)
    assert split_of(program) == split
    np.testing.assert_array_equal(np.isnan(first_output(device, program, data, want.shape)), want)


def needs_clusters(device: Any) -> None:
    if device.features.capability != 90:
        pytest.skip("no clusters")


def split_of(program: Program) -> int:
    """Workgroups that divide the keys."""
    kernel = program.kernels[program.dispatches[-1].kernel]
    found = re.search(r"^#define SPLIT (\d+)$", kernel.source, re.MULTILINE)
    return int(found[1]) if kernel.name == "flash_attention" and found else 0


def features_of(capability: int, units: int) -> Features:
    return Features(
        float16=True, subgroups=True, subgroup_size=32, max_threads=1024, max_shared_bytes=48 << 10, max_buffers=64,
        max_groups=(1 << 31) - 1, max_binding_bytes=1 << 40, compute_units=units, native="cuda", capability=capability,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options, capability, split",
    [
        (dict(lead=(1, 8), m=1, n=512, d=64, e=64), 90, 8),
        (dict(lead=(1, 8), m=1, n=512, d=64, e=64), 80, 1),
        (dict(lead=(1, 8), m=1, n=512, d=64, e=64), 100, 1),
        (dict(lead=(1, 8), m=1, n=512, d=64, e=64, inner="qkv", mask=(1, 1, 1, 512)), 90, 8),
        (dict(lead=(1, 20), m=1, n=512, d=64, e=64), 90, 4),
        (dict(lead=(1, 60), m=1, n=512, d=64, e=64), 90, 2),
        (dict(lead=(4, 40), m=1, n=512, d=64, e=64), 90, 1),
        (dict(m=256, n=3136, d=64, e=64, learnt="q", inner="kv"), 90, 8),
        (dict(lead=(1, 12), m=128, n=128, d=64, e=64, inner="qkv"), 90, 1),
        (dict(lead=(1, 3), m=197, n=197, d=64, e=64, inner="qkv"), 90, 1),
    ],
)
def test_which_keys_are_divided(options: dict[str, Any], capability: int, split: int) -> None:
    """Those of few queries, one of a language model or Perceiver's 256, as far as there are multiprocessors; not those
    of many heads, nor so few that what a cluster takes is more."""
    program = build_program(network(**options)[0], features_of(capability, 132), "cuda", half=True)
    assert split_of(program) == split


@pytest.mark.parametrize(
    "options, capability, kind",
    [
        (dict(lead=(64, 3), m=197, n=197, d=64, e=64), 90, "8x1x32w"),
        (dict(lead=(64, 48), m=49, n=49, d=32, e=32), 90, "4x1x64w"),
        (dict(lead=(1, 12), m=128, n=128, d=64, e=64), 90, "1x8x128"),
        (dict(lead=(1, 8), m=1, n=512, d=64, e=64), 90, "1x8x128/4"),
        (dict(lead=(64, 3), m=197, n=197, d=64, e=64), 80, "2x1x32"),
        (dict(lead=(1, 8), m=1, n=512, d=64, e=64), 80, "1x8x128"),
    ],
)
def test_how_floats_are_divided(options: dict[str, Any], capability: int, kind: str) -> None:
    """By four warps together where there are many queries, by clusters where they are few."""
    program = build_program(network(**options)[0], features_of(capability, 132), "cuda", half=False)
    found = dict(re.findall(r"^#define (\w+) (\d+)$", program.kernels[-1].source, re.MULTILINE))
    down, across, step, split = (int(found[name]) for name in ("WARPS_M", "WARPS_K", "STEP", "SPLIT"))
    division = AttentionDivision(
        down, across, step, split, int(found["BLOCKS"]), found["RESTS_KEPT"] == "1", found["WARPGROUPS"] == "1"
    )
    assert len(program.kernels) == 1 and str(division) == kind


@pytest.mark.parametrize("capability", [86, 89, 100, 120])
def test_floats_elsewhere_are_products_and_a_softmax(capability: int) -> None:
    """As long as there is no TF32."""
    features = features_of(capability, 100)
    assert not attention.fits(64, 64, features, half=False) and attention.fits(64, 64, features, half=True)


@pytest.mark.parametrize("inner, estimate", [("", 12.5), ("qkv", 7.7)])
def test_floats_take_longer_than_halves(monkeypatch: pytest.MonkeyPatch, inner: str, estimate: float) -> None:
    """The first is what 512 keys took in eight steps."""
    one, costs = AttentionDivision(1, 4, 64), []

    def divisions(ctx: KernelContext, units: int) -> list[AttentionDivision]:
        costs.append(attention._cost(ctx, one, units))
        return [one]

    monkeypatch.setattr(attention, "divisions", divisions)
    build_program(network((1, 8), 1, 512, 64, 64, inner=inner)[0], features_of(90, 132), "cuda", half=True)
    assert costs == pytest.approx([estimate] * len(costs), abs=0.1) and costs


def test_clusters_are_joined_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[Launch] = []
    launch = attention._launch

    def kept(*args: Any) -> Launch:
        launches.append(launch(*args))
        return launches[-1]

    monkeypatch.setattr(attention, "_launch", kept)
    for split in (1, 2):
        divide(monkeypatch, 1, 4, 64, split)
        build_program(network(m=1, n=512, d=64, e=64)[0], features_of(90, 132), "cuda", half=True)
    assert can_join([launches[0]] * 2) and not can_join([launches[-1]] * 2)


@pytest.mark.parametrize("case", ["one query", "many rows", "at once", "mask"])
def test_clusters_compile(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    sizes, options = DIVIDED[case]
    divide(monkeypatch, *sizes)
    program = build_program(network(**options)[0], features_of(90, 132), "cuda", half=True)
    assert split_of(program) == sizes[3]
    assert compile_kernels([program.kernels[program.dispatches[-1].kernel]], 90, programmatic=True)


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("case", ["odd", "vision", "wide", "constant mask"])
def test_compiles(case: str, capability: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    program = build_program(network(**CASES[case])[0], features_of(capability, 100), "cuda", half=True)
    kernels = [k for k in program.kernels if k.name == "flash_attention"]
    assert kernels and kernels[0].shared_bytes <= 99 << 10
    assert compile_kernels(kernels, capability, programmatic=capability >= 90)


@pytest.mark.parametrize("case, capability", [("vision", 80), ("wide", 80), ("mask", 90), ("wide", 90)])
def test_floats_compile(case: str, capability: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    program = build_program(network(**CASES[case])[0], features_of(capability, 100), "cuda", half=False)
    kernels = [k for k in program.kernels if k.name == "flash_attention"]
    assert kernels and compile_kernels(kernels, capability, programmatic=capability >= 90)
