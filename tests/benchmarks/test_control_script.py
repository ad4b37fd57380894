"""benchmarks/control.py: its models decode alike on the GPU and on the CPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official

from litegpu import GpuDelegate, Interpreter

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("control")


@pytest.mark.parametrize("stops", [False, True])
def test_decoders(script: Any, stops: bool) -> None:
    """Twice: the second begins with the caches of the first."""
    content = script.decoder(steps=6, width=16, layers=2, words=40, source=5, stops=stops)
    mine = Interpreter(
        model_content=content, experimental_delegates=[GpuDelegate(backend="webgpu", max_delegated_partitions=0)],
        fallback="silent",
    )  # fmt: skip
    official = Official(model_content=content)
    for one in (mine, official):
        one.allocate_tensors()
    for seed in range(3):
        results: list[list[Any]] = []
        for one in (mine, official):
            x = np.random.default_rng(seed).standard_normal((5, 16)).astype(np.float32)
            one.set_tensor(one.get_input_details()[0]["index"], x)
            one.invoke()
            results.append([one.get_tensor(detail["index"]).tolist() for detail in one.get_output_details()])
        assert results[0] == results[1]
    assert mine.delegation_report().fully_delegated or stops
