"""The steps of an LSTM on tensor cores, in CUDA C++, against the definition in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cuda_devices import GPUS, taken
from gpu.backends.cuda.kernels.test_lstm import check, network
from gpu.kernels.run_launch import lay_out

from litegpu.gpu.backends.cuda.kernels import recurrent, tensor_lstm
from litegpu.gpu.backends.cuda.kernels.tensor_lstm import TensorLstmDivision
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Graph
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.program import KernelCode

H200 = GPUS["H200"]
#: Units and how they are divided: alone and in clusters, warps of several groups, several tiles, weights in registers
#: alone and in shared memory too, a last warp or group without units, a cluster's last workgroup with fewer.
DIVISIONS = [
    (24, TensorLstmDivision(1, 3, 1, 1, 1, 1)),
    (28, TensorLstmDivision(1, 2, 2, 2, 1, 1)),
    (28, TensorLstmDivision(2, 1, 2, 1, 1, 1)),
    (50, TensorLstmDivision(2, 2, 2, 4, 2, 1)),
    (100, TensorLstmDivision(4, 4, 1, 2, 4, 2)),
    (100, TensorLstmDivision(1, 5, 3, 1, 4, 3)),
    (120, TensorLstmDivision(8, 2, 1, 1, 4, 1)),
]


@pytest.fixture(autouse=True)
def wherever_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "TENSOR_PAYS", float("inf"))


def checked(device, network: tuple[Graph, list[np.ndarray]]) -> None:
    check(device, network, True, name="tensor_lstm")


def divided(monkeypatch: pytest.MonkeyPatch, division: TensorLstmDivision) -> None:
    monkeypatch.setattr(tensor_lstm, "division", lambda *_: division)


@pytest.mark.cuda
@pytest.mark.parametrize("inner", [False, True], ids=["outer", "inner"])
@pytest.mark.parametrize("time_major", [False, True])
def test_layouts(device, time_major: bool, inner: bool) -> None:
    """Gates and results in float32 and in float16."""
    checked(device, network(12, 5, 3, time_major, inner=inner, clip=0.5 if inner else 0.0))


@pytest.mark.cuda
@pytest.mark.parametrize("number", range(len(DIVISIONS)))
def test_divisions(device, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    units, division = DIVISIONS[number]
    if division.cluster > 1 and device.features.capability < 90:
        pytest.skip("needs compute capability 9.0")
    divided(monkeypatch, division)
    checked(device, network(units, 4, 2 * division.sequences + 3, number % 2 == 0, inner=True, clip=0.3 * number))


@pytest.mark.cuda
@pytest.mark.parametrize("units", [2, 8, 50, 64])
@pytest.mark.parametrize("batch", [2, 8, 17, 70])
def test_sizes(device, units: int, batch: int) -> None:
    checked(device, network(units, 3, batch, True))


@pytest.mark.cuda
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("units", [24, 136])
def test_steps(device, steps: int, units: int) -> None:
    if units > 128 and device.features.capability < 90:
        pytest.skip("needs compute capability 9.0")
    checked(device, network(units, steps, 5, False))


@pytest.mark.cuda
def test_units_that_only_it_takes_are_not_left_to_the_language(device) -> None:
    checked(device, network(50, 3, 1, True))


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.parametrize(("units", "batch"), [(128, 8), (256, 9), (512, 11)])
def test_many_steps(device, units: int, batch: int) -> None:
    """What is exchanged is rounded to float16 in each."""
    if units > 128 and device.features.capability < 90:
        pytest.skip("needs compute capability 9.0")
    checked(device, network(units, 128, batch, True, inner=True))


@pytest.mark.parametrize("name", GPUS)
def test_every_division_fits_on_the_device(name: str) -> None:
    for units in range(2, 641, 14):
        for found in tensor_lstm.divisions(units, GPUS[name].capability):
            assert found.cluster * found.groups_each * 8 >= units > (found.cluster - 1) * found.groups_each * 8
            assert found.chunks * 32 >= units and 1 <= found.in_registers <= found.chunks
            assert found.shared_bytes <= GPUS[name].shared << 10 and found.threads <= 512, (units, str(found))


@pytest.mark.parametrize(("units", "division"), DIVISIONS, ids=str)
def test_every_weight_has_its_place(units: int, division: TensorLstmDivision) -> None:
    weights = np.arange(4 * units * units, dtype=np.float32) % 2000 + 1
    kept = tensor_lstm.packed(weights, units, division).astype(np.float32)
    np.testing.assert_array_equal(np.sort(kept[kept > 0]), np.sort(weights))


def test_sequences_of_a_cluster() -> None:
    """More where there are more than all clusters have at once."""
    few, more, many = (tensor_lstm.division(512, 90, batch, 132) for batch in (64, 256, 512))
    assert few and more and many
    assert (few.cluster, few.sequences, more.sequences, many.sequences) == (8, 8, 16, 32)
    assert tensor_lstm.division(640, 90, 64, 132) is None and tensor_lstm.division(256, 80, 64, 108) is None
    alone = tensor_lstm.division(128, 80, 64, 108)
    assert alone and alone.cluster == 1


def launches(units: int, batch: int, half: bool = True, most: int = 1, scale: float = 1.0) -> list[Launch] | None:
    graph, _ = network(units, 4, batch, True)
    (node,) = graph.nodes
    weights = graph.values[node.inputs[1]]
    assert weights.data is not None
    values = graph.values | {node.inputs[1]: replace(weights, data=weights.data * scale)}
    graph = replace(graph, values=values)
    return recurrent.build(KernelContext(graph, node, lay_out(graph), H200.features, half, most))


def names(units: int, batch: int, half: bool = True, scale: float = 1.0) -> list[str]:
    return [launch.kernel.name for launch in launches(units, batch, half, 1, scale) or ()]


def test_which_kernel_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert names(256, 1) == ["lstm_cluster"] and names(256, 8) == ["tensor_lstm"]
    assert names(12, 2) == ["lstm_cluster"] and names(512, 64) == ["tensor_lstm"]
    assert names(50, 1) == ["tensor_lstm"]
    assert names(256, 8, half=False) == ["lstm_cluster"] and names(50, 8, half=False) == []
    assert names(256, 8, scale=1e6) == ["lstm_cluster"]  # weights that are no halves


def test_both_are_offered_to_be_measured() -> None:
    offered = launches(256, 8, most=8)
    assert offered is not None and len(offered) == 1
    assert [launch.kernel.name for launch in (offered[0], *offered[0].others)] == ["tensor_lstm", "lstm_cluster"]


def kernel(units: int, batch: int, capability: int) -> KernelCode:
    """As it is planned for a GPU of that compute capability."""
    features = next(gpu.features for gpu in GPUS.values() if gpu.capability == capability)
    program = build_program(network(units, 16, batch, True, inner=True)[0], features, "cuda", half=True)
    (found,) = (k for k in program.kernels if k.name == "tensor_lstm")
    return found


@pytest.mark.parametrize(("units", "batch", "capability"), [
    (24, 8, 75), (128, 8, 75), (50, 70, 80), (128, 64, 80), (24, 8, 90), (128, 64, 90), (256, 8, 90), (512, 64, 90),
    (512, 256, 90), (512, 1024, 90), (384, 1024, 100), (256, 64, 120),
])  # fmt: skip
def test_the_kernel_compiles(units: int, batch: int, capability: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from litegpu.gpu.backends.cuda import nvrtc

    compiler = nvrtc.chosen()
    if capability not in compiler.capabilities:
        pytest.skip(f"NVRTC {compiler} has no code for {capability}")
    code = kernel(units, batch, capability)
    found = taken(compiler, code, capability)
    assert found.spilled == 0 and found.registers * code.workgroup[0] <= 64 << 10


@pytest.mark.slow
@pytest.mark.parametrize("units", [40, 136, 264, 392, 512, 560])
def test_every_division_keeps_its_weights_in_registers(monkeypatch: pytest.MonkeyPatch, units: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from litegpu.gpu.backends.cuda import nvrtc

    compiler = nvrtc.chosen()
    for division in tensor_lstm.divisions(units, 90):
        divided(monkeypatch, division)
        found = taken(compiler, kernel(units, 2 * division.sequences, 90), 90)
        assert found.spilled <= 16, f"{division}: {found}"
