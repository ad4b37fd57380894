"""Transposed convolutions by phases, in CUDA C++, against the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends.cuda.kernels import transpose
from litegpu.gpu.backends.cuda.kernels.transpose import phases
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DType, GraphBuilder, TransposeConv2D, apply

KERNELS = {"tensor_convolution", "window_convolution", "tiled_convolution"}


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_phases_cover_every_product_once(taps: int, stride: int, padding: int) -> None:
    size, out = 5, 4 * stride + taps - padding
    wanted = {
        (i * stride - padding + k, i, k)
        for i in range(size)
        for k in range(taps)
        if 0 <= i * stride - padding + k < out
    }
    found = []
    for phase in phases(out, taps, stride, padding):
        for q in range(phase.size):
            for j, k in enumerate(phase.taps):
                i = q + j - phase.padding
                if 0 <= i < size:
                    found.append((phase.first + q * stride, i, k))
    assert sorted(found) == sorted(wanted)


@pytest.mark.cuda
@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("half", [True, False], ids=["float16", "float32"])
@pytest.mark.parametrize("case", [
    ((2, 2), (2, 2), (0, 0), 16, 12), ((3, 3), (2, 2), (1, 0), 8, 5), ((4, 4), (2, 2), (1, 1), 5, 17),
    ((2, 3), (3, 1), (0, 1), 3, 3), ((1, 1), (2, 3), (0, 0), 12, 4), ((2, 3), (2, 3), (0, 0), 24, 36),
    ((2, 2), (2, 2), (0, 0), 12, 6), ((5, 2), (1, 3), (2, 0), 20, 24),
])  # fmt: skip
def test_agrees(half: bool, case, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends.cuda.opening import available, open_device

    reason = available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")
    device = open_device()
    taps, stride, padding, inputs, outputs = case
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    shape = (2, 5, 6, inputs)
    x = builder.value(shape, DType.FLOAT32)
    eye = builder.constant(np.eye(inputs, dtype=np.float32).reshape(inputs, 1, 1, inputs))
    middle = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    size = [(n - 1) * s + k - p for n, s, k, p in zip(shape[1:3], stride, taps, padding, strict=True)]
    out = builder.value((2, *size, outputs), DType.FLOAT32)
    weights = builder.constant(rng.standard_normal((outputs, *taps, inputs)))
    bias = builder.constant(rng.standard_normal((1, 1, 1, outputs)))
    builder.node(
        TransposeConv2D(stride, padding), [middle, weights], out,
        apply("max", apply("add", RESULT, Arg(1)), 0.0), [bias],
    )  # fmt: skip
    graph = builder.graph([x], [out])
    seconds = [1.0, 2.0] if at_once else [2.0, 1.0]  # of all at once, and of one by one
    monkeypatch.setattr(transpose, "estimated", lambda *_: seconds)
    program = build_program(graph, device.features, "cuda", half=half)
    assert {k.name.removesuffix("_parts") for k in program.kernels} <= KERNELS
    one = taps == stride and padding == (0, 0) and outputs % 4 == 0  # windows side by side: a single product
    count = len(program.dispatches) - 1
    assert count == (1 if one or at_once else stride[0] * stride[1])
    assert any(k.name.endswith("_parts") for k in program.kernels) == (at_once and not one)
    values = rng.standard_normal(shape).astype(np.float32)
    session = device.session(program)
    try:
        session.write(0, values)
        session.run()
        got = np.empty(graph.values[out].shape, np.float32)
        session.read(0, got)
    finally:
        session.close()
    (want,) = evaluate_graph(graph, [values])
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= (2e-3 if half else 1e-6) * np.linalg.norm(want)
