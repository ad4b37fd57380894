"""benchmarks/benchmark_tool.py: its figures, and what it takes for good."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.opening import open_model
from litegpu.zoo import build_model

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("benchmark_tool")


def test_figures_of_a_model_on_the_cpu(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=96, classes=5))
    opened = open_model(BenchmarkFlags(graph=str(path)))
    try:
        found = list(script.figures(opened, 4))
    finally:
        opened.close()
    same, other, loop, counted = found
    assert same.good and same.limit == 0.02 and counted.limit == 0.01
    assert 0.5 < other.ratio < 2 and 0.5 < loop.ratio < 2  # other work on this machine decides how near to 1
    assert other.low <= other.ratio <= other.high


def test_a_figure_is_bad_if_all_of_its_interval_is_beyond_the_limit(script: Any) -> None:
    assert script.Figure("x", 1.005, 0.01).good and not script.Figure("x", 1.02, 0.01).good
    assert script.Figure("x", 1.02, 0.01, "", 1.005, 1.03).good
    assert not script.Figure("x", 1.03, 0.01, "", 1.02, 1.04).good
    assert not script.Figure("x", 0.9, 0.01, "", 0.89, 0.91).good
    assert script.Figure("x", 3.0, None).good
