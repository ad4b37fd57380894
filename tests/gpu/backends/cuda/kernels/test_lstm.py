"""The steps of an LSTM by a cluster, in CUDA C++, against the definition in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_devices import GPUS

from litegpu.gpu.backends.cuda.kernels import lstm, recurrent
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Conv2D, Copy, Custom, DType, Graph, GraphBuilder, Slice, apply
from litegpu.gpu.kernels.lstm import Lstm
from litegpu.gpu.lang.features import Features


@pytest.fixture(scope="module")
def device(device):
    if device.features.capability < 90:
        pytest.skip("needs compute capability 9.0")
    return device


def network(
    units: int, steps: int, batch: int, time_major: bool, clip: float = 0.0, inner: bool = False
) -> tuple[Graph, list[np.ndarray]]:
    """An LSTM whose gates and results are the graph's own or, with `inner`, intermediates, which may be float16."""
    rng = np.random.default_rng(units + steps)
    builder = GraphBuilder()
    shape = (1, steps, batch, 4 * units) if time_major else (1, batch, steps, 4 * units)
    gates = x = builder.value(shape, DType.FLOAT32)
    if inner:
        eye = builder.constant(np.eye(4 * units, dtype=np.float32).reshape(4 * units, 1, 1, 4 * units))
        gates = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32))
    weights = builder.constant(rng.standard_normal((4 * units, units)) / np.sqrt(units))
    output, state = (builder.value((1, 1, batch, units), DType.FLOAT32) for _ in range(2))
    op = Lstm(units, units, time_major, apply("tanh", RESULT), cell_clip=clip)
    result = builder.value((*shape[:3], 2 * units), DType.FLOAT32)
    builder.node(Custom(op), [gates, weights, output, state], result)
    if inner:
        part = builder.value((*shape[:3], units), DType.FLOAT32)
        builder.node(Copy((Slice((0, 0, 0, units // 2), (1, 1, 1, 1), (*shape[:3], units)),)), [result], part)
        result = part
    data = [rng.standard_normal(builder.values[v].shape).astype(np.float32) for v in (x, output, state)]
    return builder.graph([x, output, state], [result]), data


def check(
    device, network: tuple[Graph, list[np.ndarray]], half: bool = False, units: int = 0, name: str = "lstm_cluster"
) -> None:
    """`units`: as many multiprocessors as the device is said to have. `name`: of the kernel."""
    graph, data = network
    features = replace(device.features, compute_units=units) if units else device.features
    program = build_program(graph, features, "cuda", half=half)
    assert name in {k.name for k in program.kernels}
    session = device.session(program)
    got = np.empty(graph.values[graph.outputs[0]].shape, np.float32)
    try:
        for i, values in enumerate(data):
            session.write(i, values)
        for _ in range(2):
            session.run()
        session.read(0, got)
    finally:
        session.close()
    want = evaluate_graph(graph, data)[0]
    assert np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= (5e-3 if half else 2e-6) * np.linalg.norm(want)


@pytest.fixture(autouse=True)
def without_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr(recurrent, "TENSOR_PAYS", 0.0)


@pytest.mark.cuda
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
def test_layouts(device, half: bool, time_major: bool, inner: bool) -> None:
    check(device, network(12, 5, 3, time_major, inner=inner, clip=0.5 if inner else 0.0), half)


@pytest.mark.cuda
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 8])
@pytest.mark.parametrize("lanes", [1, 4, 8])
def test_divisions(device, monkeypatch: pytest.MonkeyPatch, cluster: int, lanes: int, half: bool) -> None:
    """Units that do not divide evenly: some workgroups have fewer. Weights in registers, or also in shared memory."""
    units = 28
    chunks = -(-units // (4 * lanes))
    for in_registers in {chunks, max(1, chunks // 2)}:
        found = lstm.LstmDivision(cluster, lanes, -(-units // cluster), chunks, in_registers, half)
        monkeypatch.setattr(lstm, "division", lambda units, capability, half, found=found: found)
        check(device, network(units, 4, 2, True, inner=half), half)


@pytest.mark.cuda
@pytest.mark.parametrize("batch", [3, 7, 11])
def test_many_sequences(device, batch: int) -> None:
    """Several for each cluster, and numbers that do not divide evenly."""
    check(device, network(20, 3, batch, True), units=2)


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize(("units", "half"), [(256, False), (256, True), (384, False), (512, True)])
def test_many_units(device, units: int, half: bool) -> None:
    check(device, network(units, 128, 1, True, inner=half), half)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("units", [4, 32, 64, 100, 128, 200, 256, 384])
def test_every_size_fits(units: int, half: bool) -> None:
    found = lstm.division(units, 90, half)
    assert found is not None and found.cluster * found.units_each >= units
    assert found.chunks * found.lanes * 4 >= units and found.threads <= 512
    assert found.in_registers <= 64 // (2 if found.half else 4) and found.shared_weights <= 200 << 10
    weights = np.arange(4 * units * units, dtype=np.float32) % 2000 + 1
    kept = lstm.packed(weights, units, found).astype(np.float32)
    np.testing.assert_array_equal(np.sort(kept[kept > 0]), np.sort(weights))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", GPUS)
def test_every_division_fits_on_the_device(name: str, half: bool) -> None:
    """Blackwell of desktops has clusters and less shared memory than Hopper."""
    for units in range(4, 641, 12):
        found = lstm.division(units, GPUS[name].capability, half)
        if found is not None:
            shared = found.shared_weights + found.shared_outputs(lstm.MOST_SEQUENCES)
            assert shared <= GPUS[name].shared << 10, (units, str(found))


def test_up_to_256_units_fit_in_registers() -> None:
    for units in range(128, 257, 32):
        found = lstm.division(units, 90)
        assert found is not None and found.shared_weights == 0, units


def test_what_does_not_fit_is_left_to_the_language() -> None:
    assert lstm.division(512, 90, True) is not None and lstm.division(512, 90) is None
    assert lstm.division(128, 80) is None and lstm.division(64, 80) is not None


@pytest.mark.parametrize(("units", "capability", "half"), [
    (64, 80, False), (64, 90, True), (256, 90, False), (256, 90, True), (384, 90, False), (512, 90, True),
    (256, 100, False), (256, 120, True),
])  # fmt: skip
def test_the_kernel_compiles(units: int, capability: int, half: bool) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from litegpu.gpu.backends.cuda.compile import compile_kernels

    graph, _ = network(units, 16, 1, True, inner=True)
    features = Features(float16=True, max_buffers=32, native="cuda", capability=capability, compute_units=132)
    program = build_program(graph, features, "cuda", half=half)
    kernels = [k for k in program.kernels if k.name == "lstm_cluster"]
    assert len(kernels) == 1
    assert all(compile_kernels(kernels, capability, programmatic=capability >= 90))
