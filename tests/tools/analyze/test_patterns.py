"""Each pattern, in a model that has it and in one that has not, and what its gain is made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from tools.analyze import networks
from tools.analyze.networks import Drawn, examined

from litegpu.choosing.predict import on_one_core
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.lower import registry, supported_ops
from litegpu.model.costs import op_costs
from litegpu.model.ops import BUILTIN
from litegpu.tools.analyze import patterns
from litegpu.tools.analyze.finding import Finding, Pattern
from litegpu.tools.analyze.rates import H200

Build = Callable[[Drawn], int]


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU knows REVERSE_V2 up to version 3, as if converters wrote newer ones than it has kernels for."""
    supported_ops()
    key = "REVERSE_V2", False
    entry = registry._REGISTRY[key]
    known = dataclasses.replace(entry, gpu=dataclasses.replace(entry.gpu, max_version=3))
    monkeypatch.setitem(registry._REGISTRY, key, known)
    monkeypatch.setitem(BUILTIN, "REVERSE_V2", dataclasses.replace(entry.op, gpu=known.gpu))


#: Pattern -> a network that has it, the nodes where, and networks that have not.
CASES: dict[str, tuple[Pattern, Build, tuple[int, ...], tuple[Build, ...]]] = {
    "copies": (patterns.copies, networks.reshaped, (1,), (networks.plain, networks.image)),
    "channels": (patterns.odd_channels, networks.odd, (0,), (networks.plain, networks.odd_classes)),
    "image": (patterns.three_channel_inputs, networks.image, (0,), (networks.plain,)),
    "image in another type": (patterns.three_channel_inputs, networks.quantized_image, (1,), (networks.plain,)),
    "versions": (patterns.versions, networks.new_version, (1,), (networks.plain, networks.island)),
    "int64": (patterns.int64, networks.wide_indices, (0,), (networks.narrow_indices,)),
    "dynamic": (patterns.dynamic_shapes, networks.open_sizes, (0,), (networks.plain,)),
    "dynamic, decided by values": (patterns.dynamic_shapes, networks.decided_when_run, (0, 1), (networks.reshaped,)),
    "float16": (patterns.float16_risks, networks.exponential, (0,), (networks.plain,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_has_it(name: str) -> None:
    pattern, build, nodes, _ = CASES[name]
    (found,) = pattern(examined(build))
    assert found.nodes == nodes and found.pattern == name.split(",")[0].split(" ")[0]
    assert found.gain >= 0 and found.how and found.advice


@pytest.mark.parametrize("name", CASES)
def test_models_that_have_not(name: str) -> None:
    pattern, _, _, others = CASES[name]
    for other in others:
        assert pattern(examined(other)) == [], other.__name__


def test_islands() -> None:
    """With as many partitions as there are: by default a delegate takes one, and the rest stays on the CPU."""
    several = GpuDelegate(max_delegated_partitions=0)
    model = examined(networks.island, several)
    (found,) = patterns.islands(model)
    reasons = [n.reason for n in model.report.nodes if n.reason]
    assert found.nodes == (1, 2) and len(reasons) == 2 and reasons[0] in found.what
    moved = 2 * 4 * 8 * 8 * 8
    assert found.gain >= moved / H200.link + H200.wait
    assert patterns.islands(examined(networks.island_at_the_end, several)) == []
    assert patterns.islands(examined(networks.plain, several)) == []


def test_activations_that_nothing_fuses() -> None:
    """litegpu's GPU delegate does, if it has both."""
    (found,) = patterns.activations(model := examined(networks.activation, GpuDelegate(last_delegate_node_index=0)))
    assert found.nodes == (1,) and found.gain == model.times[1].estimated > 0
    assert patterns.activations(examined(networks.activation)) == []
    assert patterns.activations(examined(networks.plain, GpuDelegate(last_delegate_node_index=0))) == []


def only(found: list[Finding]) -> Finding:
    (one,) = found
    return one


def test_gains_are_made_from_bytes_and_rates() -> None:
    image = only(patterns.three_channel_inputs(examined(networks.image)))
    assert image.gain == pytest.approx(2 * 4 * 8 * 8 * 3 / H200.bandwidth)
    copies = only(patterns.copies(examined(networks.reshaped)))
    assert copies.gain == pytest.approx(2 * 4 * 8 * 8 * 6 / H200.bandwidth + H200.launch)
    wide = only(patterns.int64(examined(networks.wide_indices)))
    assert wide.gain == pytest.approx(8 * 8 / H200.bandwidth)
    risk = only(patterns.float16_risks(examined(networks.exponential)))
    assert risk.gain == pytest.approx(4 * 8 * 8 * 8 / H200.bandwidth)


def test_the_gain_of_odd_channels_is_the_padded_share() -> None:
    model = examined(networks.odd)
    found = only(patterns.odd_channels(model))
    assert found.gain == pytest.approx((1 - 16 / 20) * (model.times[0].limit + model.times[1].limit))


def test_what_the_cpu_runs_would_win_its_time_less_the_gpus() -> None:
    model = examined(networks.new_version)
    cost = op_costs(model.graph)[1]
    on_cpu = on_one_core(model.graph, 1, cost)
    on_gpu = H200.limit(cost.flops, cost.bytes) + H200.launch
    assert model.times[1].estimated == pytest.approx(on_cpu)
    assert only(patterns.versions(model)).gain == pytest.approx(max(0.0, on_cpu - on_gpu))


def test_all_of_them_the_largest_gain_first() -> None:
    model = examined(networks.odd_classes)
    found = patterns.find_patterns(model)
    assert [f.gain for f in found] == sorted((f.gain for f in found), reverse=True)
    assert {f.pattern for f in found} == {"float16"}
    functions = {pattern.__name__ for pattern in patterns.PATTERNS}
    assert functions == {case[0].__name__ for case in CASES.values()} | {"islands", "activations"}, "each has a test"
