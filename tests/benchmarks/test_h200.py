"""benchmarks/h200.py: a run on a tiny model, what it survives, and how it reads and ends the peers."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.lang.features import Features
from litegpu.model import ModelBuilder
from litegpu.zoo import build_model

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

TORCH = """
import sys, time
model, batches, modes = sys.argv[1:]
for precision in ("float16", "float32"):
    for b in batches.split(","):
        if "graph" in modes:
            print(f"TORCH {model} torch.{precision} b{b} cudagraph gpu_ms=0.2500", flush=True)
            print("  host-to-host ms=0.3700", flush=True)
if "compile" in modes:
    print(f"TORCH {model} torch.float16 b1 compile gpu_ms=0.2140 compile_s=31.5", flush=True)
    SLEEP
    sys.exit("RuntimeError: out of memory")
"""
LITERT = 'print("LITERT m gpu def full=True load_s=0.6 first_s=0.1 e2e_ms=0.907 run_ms=0.8 pipelined_ms=0.348")\n'
ROOFLINE = """
for b in (1, 64):
    print(f"m.tflite b{b} GFLOP=1.1 MB=28.9 weightsMB=8.4 roofline_us={6.7 * b} kernels=30 launch_floor_us=28")
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports one of the benchmarks by name."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=5))
    return path


def write_peers(folder: Path, sleep: str = "") -> Path:
    folder.mkdir()
    for name, text in (("peer_torch.py", TORCH), ("peer_litert_gpu.py", LITERT), ("roofline.py", ROOFLINE)):
        (folder / name).write_text(text.replace("SLEEP", sleep))
    return folder


@pytest.mark.cuda
def test_a_tiny_model(
    benchmark: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from litegpu.gpu.backends.cuda.opening import available

    if (reason := available()) is not None:
        pytest.skip(f"no CUDA device: {reason}")
    h200 = benchmark("h200")
    refused = tmp_path / "refused.tflite"
    b = ModelBuilder()
    b.output(b.op("RESHAPE", [b.input("x", (1, 6))], (6,), dict(new_shape=[6])))
    refused.write_bytes(b.build())
    output = tmp_path / "out"
    common = ["--seconds", "0.01", "--output", str(output), "--peers", str(write_peers(tmp_path / "peers"))]
    assert h200.main([*common, "--models", f"{model},{refused}", "--batches", "1,2", "--precisions", "float16"]) == 1
    assert (
        "refused b2 float16: FAILED TensorError: the batch cannot become 2: RESHAPE (node 0)" in capsys.readouterr().out
    )
    content = json.loads((output / "h200.json").read_text())
    rows = {(r["model"], r["batch"]): r for r in content["rows"]}
    for batch in (1, 2):
        row = rows["tiny", batch]
        assert row.get("failure") is None and row["error"] < 1e-2 and row["kernels"] > 20
        assert all(row[name] > 0 for name in ("gpu", "host", "pipelined", "roofline", "limit") if name in row)
        assert row["torch_graph"] == pytest.approx(0.25e-3)
    assert rows["tiny", 1]["litert_host"] == pytest.approx(0.907e-3)
    assert "gpu" in rows["refused", 1] and "gpu" not in rows["refused", 2]
    assert content["notes"]["tiny"] == ["torch.compile: exit status 1: RuntimeError: out of memory"]

    monkeypatch.setattr(h200, "measure", lambda *_: pytest.fail("there is no time for it"))
    assert (
        h200.main([*common, "--append", "--models", str(model), "--precisions", "float32", "--time-limit", "1e-9"]) == 1
    )
    content = json.loads((output / "h200.json").read_text())
    late = [r for r in content["rows"] if r["precision"] == "float32"]
    assert len(content["rows"]) == 6 and all(r["failure"] == "not run: out of time" for r in late)
    table = (output / "h200.md").read_text()
    assert "| tiny | 1 | float16 |" in table and "| tiny | 64 | float32 | failed |" in table and "- GPU: " in table


def test_errors_are_those_of_the_rows_that_were_given(benchmark: Any, model: Path) -> None:
    h200, measure = benchmark("h200"), benchmark("cuda_measure")
    rebatched, _ = measure.lowered(model, 4)
    given, wanted = measure.reference(model)
    (inputs,) = h200.batched(rebatched, given)
    assert inputs.shape == (4, 32, 32, 3)
    np.testing.assert_array_equal(inputs[[0, 3]], given[0][[0, 0]])
    assert not np.array_equal(inputs[1], inputs[0]) and not np.array_equal(inputs[1], inputs[2])
    result = np.repeat(wanted[0], 4, axis=0)
    result[1:3] = np.nan  # of other inputs: nothing is known about them
    assert h200.largest_error(rebatched, [result.ravel()], wanted) == 0
    result[3, 0] += 1
    assert h200.largest_error(rebatched, [result.ravel()], wanted) > 0.1
    result[0, 0] = np.nan
    assert h200.largest_error(rebatched, [result.ravel()], wanted) == math.inf


def test_roofline_counts_the_fused_graph(benchmark: Any, tmp_path: Path) -> None:
    roofline = benchmark("roofline")
    b = ModelBuilder()
    x = b.input("x", (1, 8, 8, 4))
    weights, bias = (b.constant(np.ones(shape, np.float32)) for shape in ((16, 3, 3, 4), (16,)))
    y = b.op("CONV_2D", [x, weights, bias], (1, 8, 8, 16), dict(stride_h=1, stride_w=1, padding="SAME"))
    b.output(b.op("RELU", [y], (1, 8, 8, 16)))
    path = tmp_path / "conv.tflite"
    path.write_bytes(b.build())
    for batch, half in ((1, False), (2, True)):
        work = roofline.work(roofline.lowered(path, batch)[1], Features(True, True, 32), half)
        constants = 16 * 3 * 3 * 4 + 16
        assert work.operations == batch * 2 * 8 * 8 * 16 * 3 * 3 * 4
        assert work.bytes == (2 if half else 4) * (batch * 8 * 8 * (4 + 16) + constants)
        assert work.kernels == 1
    peak = roofline.Peak(1e12, 1e11, 1e9)
    assert work.roofline(peak, True) == work.bytes / 1e9 and work.limit(peak, True) >= 3.5e-6


def test_the_models_are_found(benchmark: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = benchmark("cuda_measure").find_models
    monkeypatch.setenv("LITEGPU_MODELS", str(model.parent))
    assert find(["tiny", "tiny.tflite", str(model)]) == [model] * 3
    with pytest.raises(FileNotFoundError, match="'tiniest'"):
        find(["tiniest"])


def test_peers_are_read_and_ended(benchmark: Any, model: Path, tmp_path: Path) -> None:
    peers = benchmark("peers")
    folder = write_peers(tmp_path / "slow", "time.sleep(600)")
    jobs = peers.jobs(folder, model, [1, 64], ["float16", "float32"])
    assert [job.title for job in jobs] == [
        "peers' roofline", "LiteRT GPU float16", "LiteRT GPU float32", "torch CUDA graph", "torch.compile",
    ]  # fmt: skip
    limits, litert, _, graph, compiled = jobs
    assert compiled.arguments == (str(model), "1,64", "compile,fast")
    found, failure = peers.run(folder, graph, 60)
    assert not failure and len(found) == 8
    assert found[1] == peers.Figure(1, "float16", "torch_graph_host", pytest.approx(0.37e-3))
    assert {f.name: f.seconds for f in peers.run(folder, litert, 60)[0]} == pytest.approx(
        {"litert_host": 0.907e-3, "litert_pipelined": 0.348e-3}
    )
    assert [f.seconds for f in peers.run(folder, limits, 60)[0]] == pytest.approx([28e-6, 6.7e-6 * 64])
    started = time.monotonic()
    found, failure = peers.run(folder, compiled, 2)
    assert time.monotonic() - started < 30
    assert [f.name for f in found] == ["torch_compile"] and failure == "took more than 2 s"
    found, failure = peers.run(folder, peers.Job("none", "absent.py", ()), 60, sys.executable)
    assert not found and failure.startswith("exit status 2: ")


def test_the_folder_of_the_peers(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = benchmark("peers")
    with pytest.raises(FileNotFoundError, match=r"peer_torch\.py"):
        peers.find_folder(tmp_path)
    monkeypatch.setattr(peers, "ROOT", tmp_path / "repository")
    assert peers.find_folder(None) is None
    (tmp_path / "shared").mkdir()
    assert peers.find_folder(None) is None
    assert peers.find_folder(write_peers(tmp_path / "shared" / "peers")) == tmp_path / "shared" / "peers"
