"""Attention on tensor cores, in CUDA C++, against NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.compile import compile_kernels
from litegpu.gpu.backends.cuda.kernels import attention, short_attention, warpgroup_attention
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Attention, Conv2D, DType, Expr, Graph, GraphBuilder, apply
from litegpu.gpu.lang.features import Features

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
    chosen = attention.AttentionDivision(1, across, step)
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


@pytest.mark.parametrize("capability", [80, 86, 89, 90, 100, 120])
@pytest.mark.parametrize("case", ["odd", "vision", "wide", "constant mask"])
def test_compiles(case: str, capability: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    features = Features(
        float16=True, subgroups=True, subgroup_size=32, max_threads=1024, max_shared_bytes=48 << 10, max_buffers=64,
        max_groups=(1 << 31) - 1, max_binding_bytes=1 << 40, compute_units=100, native="cuda", capability=capability,
    )  # fmt: skip
    program = build_program(network(**CASES[case])[0], features, "cuda", half=True)
    kernels = [k for k in program.kernels if k.name == "flash_attention"]
    assert kernels and kernels[0].shared_bytes <= 99 << 10
    assert compile_kernels(kernels, capability, programmatic=capability >= 90)
