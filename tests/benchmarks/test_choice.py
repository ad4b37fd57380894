"""benchmarks/choice.py: what it asks, and how it judges."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from litegpu import GpuDelegate
from litegpu.choosing import auto
from litegpu.choosing.candidate import CPU, Candidate, Measured
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import CallRates
from litegpu.model import read_model, with_batch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import choice  # noqa: E402
import choice_networks  # noqa: E402

ONE, GPU = Candidate(CPU), Candidate("cuda")
MANY = Candidate(CPU, num_threads=8)


def timed(candidate: Candidate, one: float, many: float | None) -> Measured:
    return Measured(candidate, latency=one, batch=64, batch_latency=many)


def case(first: list[Measured], second: list[Measured], **chosen: list[Candidate]) -> choice.Case:
    by = [{one.candidate: one for one in found} for found in (first, second)]
    return choice.Case("net", "generated", "net.tflite", by[0], by[1], chosen)


def test_the_second_round_judges() -> None:
    found = case(
        [timed(ONE, 1.0, 10.0), timed(GPU, 1.1, 1.0), timed(MANY, 9.0, 9.0)],
        [timed(ONE, 1.2, 10.0), timed(GPU, 1.1, 1.0)],
        predicted=[GPU, ONE],
        measured=[ONE, GPU],
    )
    small, large = choice.judgements(found)
    assert small["best"] == str(GPU) and small["predicted"]["right"] and not small["measured"]["right"]  # 9% more
    assert large["measured"]["right"] and not large["predicted"]["right"]
    assert "10.00 times as long" in choice.line(large) and "predicted" not in choice.line(small)
    lines = choice.summary([small, large], 3)
    assert lines[0].startswith("3 models left out")
    assert "generated, predicted: 1 of 2 right (50.0%)" in lines


def test_what_was_not_measured_is_no_right_choice() -> None:
    found = case([timed(ONE, 1.0, None)], [timed(ONE, 1.0, None)], predicted=[GPU, GPU], measured=[ONE, ONE])
    (row,) = choice.judgements(found)  # nothing is known of batches
    assert not row["predicted"]["right"] and "not measured" in choice.line(row)


def test_only_what_is_near_the_best_is_measured_again() -> None:
    found = case([timed(ONE, 1.0, 40.0), timed(GPU, 2.5, 10.0), timed(MANY, 3.1, 31.0)], [])
    assert found.contested() == [ONE, GPU], "for one row; for many the GPU is the best by far"
    assert case([timed(ONE, 1.0, 40.0), timed(GPU, 4.0, 10.0)], []).contested() == []
    assert found.longest(2.0) == 60.0, "six times what the quickest takes"
    assert case([timed(ONE, 1.0, None)], []).longest(2.0) == 2.0


def test_auto_is_asked_without_a_record_and_with_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(tmp_path))
    delegate = GpuDelegate(backend="reference")
    device = delegate.open_device()
    monkeypatch.setattr(device, "info", replace(device.info, is_software=False))
    monkeypatch.setattr(auto, "delegate_for", lambda *_: GpuDelegate(backend="reference"))
    free = CallRates(0, 0, (0, 0), (0, 0), (0, 0), 0, 0)
    monkeypatch.setattr(registry.backend("reference"), "rates", free, raising=False)
    path = tmp_path / "net.tflite"
    path.write_bytes(choice_networks.NETWORKS["perceptron_small"]())
    gpu = replace(timed(Candidate("reference"), 1.0, 2.0), name=device.info.name, driver=device.info.driver)
    found = choice.chosen(str(path), [timed(ONE, 0.5, 9.0).as_dict(), gpu.as_dict()])
    devices = {how: [one["device"] for one in by_batch] for how, by_batch in found.items()}
    assert devices == {"predicted": ["reference", "reference"], "measured": ["cpu", "reference"]}


@pytest.mark.parametrize("name", choice_networks.NETWORKS)
def test_networks_keep_their_rows_apart(name: str) -> None:
    model = read_model(choice_networks.NETWORKS[name]())
    assert with_batch(model, 3).main.tensors[model.main.outputs[0]].shape[0] == 3


def test_all_of_it_on_the_cpu(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    flags = ["--models", "perceptron_small,sounds_small", "--devices", "cpu", "--seconds", "0.01", "--output", output]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "choice.py"), *map(str, flags)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "generated, measured:" in done.stdout and "no model left out" in done.stdout
    found: dict[str, Any] = json.loads(output.read_text())
    assert {row["model"] for row in found["rows"]} == {"perceptron_small", "sounds_small"}
    assert all(one["latency"] > 0 for kept in found["cases"] for one in kept["first"])
