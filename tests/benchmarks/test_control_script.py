"""benchmarks/control.py: its models decode alike on the GPU and on the CPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official

from litegpu import GpuDelegate, Interpreter, native

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("control")


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("name", ["decoder", "beam_search"])
def test_decoders(script: Any, name: str, stops: bool) -> None:
    """Three times: a decoder begins with the caches of the one before."""
    options = dict(layers=2) if name == "decoder" else dict(beams=3)
    content = getattr(script, name)(steps=6, width=16, words=40, source=5, stops=stops, **options)
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
            results.append([one.get_tensor(detail["index"]) for detail in one.get_output_details()])
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)  # tokens and numbers of them are equal
    assert mine.delegation_report().fully_delegated


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["lstm", "decoder", "beam_search"])
def test_no_step_asks_the_driver_for_anything(script: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch of a graph, however many steps it has."""
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    from litegpu.gpu.backends.cuda.opening import available

    if available() is not None:
        pytest.skip(f"no CUDA device: {available()}")
    monkeypatch.setattr(native, "find", lambda: None)  # whose calls are not seen
    options = dict(steps=4, units=8, features=4) if name == "lstm" else dict(steps=4, width=16, words=40, source=5)
    build, more = getattr(script, name), {} if name == "lstm" else dict(stops=True)
    few, many = (script.calls_of(build(**{**options, "steps": steps}, **more)) for steps in (4, 9))
    assert few == many
    assert sum(count for call, count in few.items() if call in ("cuGraphLaunch", "launch_graph")) == 1
