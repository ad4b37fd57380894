"""benchmarks/families.py: what it measures, what it survives, how it takes its peers' figures, and its summary."""

from __future__ import annotations

import concurrent.futures
import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate, Interpreter
from litegpu.limits import WORK_VARIABLE
from litegpu.model import ModelBuilder

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
#: A peer that says it is ready, waits, and prints figures; of one network, nothing.
PEER = """
import sys
name, batches = sys.argv[1], sys.argv[3]
if name == "resnet50":
    sys.exit("RuntimeError: out of memory")
print("READY", flush=True)
assert sys.stdin.readline() == "go\\n"
for b in batches.split(","):
    print(f"TORCH {name} b{b} compile gpu_ms=2.0000", flush=True)
"""


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, its networks on software Vulkan and its clock stopped at a millisecond."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv(WORK_VARIABLE, str(10**12))  # or main() would set it for the tests that follow as well
    module = importlib.import_module("families")

    def opened(path: Path, options: dict[str, Any], folder: Path) -> tuple[Interpreter, GpuDelegate]:
        delegate = GpuDelegate(backend="webgpu")
        interpreter = Interpreter(str(path), experimental_delegates=[delegate], fallback="strict")
        interpreter.allocate_tensors()
        return interpreter, delegate

    monkeypatch.setattr(module, "opened", opened)
    monkeypatch.setattr(module, "bound_seconds", lambda interpreter, delegate, seconds: 1e-3)
    return module


@pytest.fixture
def model(tmp_path: Path) -> Path:
    builder = ModelBuilder()
    x = builder.input("x", (1, 4, 4, 3))
    weights = builder.constant(np.ones((8, 1, 1, 3), np.float32))
    window = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    builder.output(builder.op("CONV_2D", [x, weights, builder.constant(np.ones(8, np.float32))], (1, 4, 4, 8), window))
    path = tmp_path / "tiny.tflite"
    path.write_bytes(builder.build())
    return path


def test_paths_and_names_are_measured_at_their_batches(
    families: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "prepared", _here(families))
    status = families.main(["--models", str(model), "--no-peers", "--output", str(tmp_path / "out")])
    assert status == 0
    text = capsys.readouterr().out
    assert "tiny b1 float16: GPU 1.0000 ms, 1000/s; 1 kernels" in text and "tiny b64 float16" in text
    rows = json.loads((tmp_path / "out" / "families.json").read_text())
    assert [(row["model"], row["batch"], row["kind"], row["gpu"]) for row in rows] == [
        ("tiny", 1, "float16", 1e-3),
        ("tiny", 64, "float16", 1e-3),
    ]


def _here(families: Any) -> Any:
    """`prepared` without processes, which would not see what a test has patched."""

    def prepared(args: Any, kinds: Any, folder: Path) -> Any:
        found: dict[tuple[str, int, str], Any] = {}
        for name in args.models:
            for kind in kinds:
                files = families.written(name, kind, families._batches(args, name), folder, families._options(args))
                found |= {(name, batch, kind): file for batch, file in files.items()}
        return found

    return prepared


@pytest.mark.parametrize("backend", ["cuda", "vulkan"])
def test_slowest_kernels_have_shares_and_limits(
    families: Any, model: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an H200 also where the device does not tell its clocks."""

    class Session:
        device = SimpleNamespace(features=families.roofline.Features(), info=SimpleNamespace(backend=backend))

        def profile(self) -> list[Any]:
            row = type("Row", (), {"label": "conv_2d [0]", "sources": (0,), "seconds": 3e-6})
            other = type("Row", (), {"label": "copy", "sources": (), "seconds": 1e-6})
            return [row, other]

    peaks = {"cuda": families.roofline.H200}
    monkeypatch.setattr(families.roofline, "peak_of", lambda device: peaks[device.info.backend])
    first, second = families.slowest(model, Session(), 2)
    assert first["label"] == "conv_2d [0] 1x4x4x3 8x1x1x3 1x4x4x8" and first["share"] == pytest.approx(0.75)
    assert first["limit"] == pytest.approx((4 * 4 * 3 + 8 * 3 + 8 + 4 * 4 * 8) * 2 / 4.3e12)
    assert second["limit"] == 0
    row = dict(model="m", batch=1, kind="float16", gpu=4e-6, kernels=2, ready=0.1, slowest=[first, second])
    assert "75.0%" in families.line(row) and "(infx)" in families.line(row)


def test_slowest_kernels_come_last_those_of_the_largest_ratio_first(
    families: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(path: Any, row: dict[str, Any], args: Any, folder: Path) -> None:
        row.update(ready=0.1, kernels=9, gpu=1e-3)

    def look(path: Any, row: dict[str, Any], args: Any, folder: Path) -> bool:
        row["slowest"] = [dict(label=f"conv_2d of {path}", seconds=1e-6, share=0.5, limit=1e-6)]
        return False

    class Others(families.Peers):
        def __init__(self, *_: Any) -> None:
            super().__init__("", {}, 0.0)

        def measure(self, add: Any) -> None:
            print("torch.compile")
            add("vgg16", families.peers.Figure(1, "float16", "torch_compile", 1.25e-3))
            add("resnet50", families.peers.Figure(1, "float16", "torch_compile", 1e-3))

    for name, instead in (("measure", measure), ("look", look), ("Peers", Others), ("prepared", _named)):
        monkeypatch.setattr(families, name, instead)
    assert families.main(["--models", "vgg16,resnet50", "--batches", "1", "--only-batches", "--kernels", "3"]) == 0
    text = capsys.readouterr().out
    places = [text.index(word) for word in ("torch.compile", "conv_2d of resnet50", "conv_2d of vgg16")]
    assert places == sorted(places) and text.index("vgg16 b1 float16: GPU") < places[0]


def _named(args: Any, kinds: Any, folder: Path) -> Any:
    return {(name, 1, "float16"): name for name in args.models}


def test_an_interrupt_ends_the_processes_that_build(
    families: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool would wait for them."""
    ended = []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, *_: Any) -> None:
            super().__init__(1)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(families, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(families, "written", interrupted)
    processes = [SimpleNamespace(kill=lambda: ended.append(1))] * 2
    monkeypatch.setattr(families.multiprocessing, "active_children", lambda: processes)
    args = families._arguments(["--models", "resnet50", "--no-peers"])
    with pytest.raises(KeyboardInterrupt):
        families.prepared(args, ["float16"], tmp_path)
    assert ended == [1, 1]


def test_failures_are_named_and_counted(
    families: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "prepared", _failing)
    assert families.main(["--models", "resnet50", "--no-peers", "--only-batches", "--batches", "1"]) == 1
    assert "resnet50 b1 float16: FAILED ValueError: no such network" in capsys.readouterr().out


def _failing(args: Any, kinds: Any, folder: Path) -> Any:
    return {("resnet50", 1, "float16"): "no such network"}


def test_peers_are_measured_one_by_one_and_join_earlier_figures(
    families: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "families_peers.py"
    script.write_text(PEER)
    monkeypatch.setattr(families.families_peers, "__file__", str(script))
    rows = [dict(model="vgg16", batch=batch, kind="float16", gpu=1e-3, kernels=9, ready=0.1) for batch in (1, 64)]
    rows.append(dict(model="vgg16", batch=64, kind="int8", gpu=0.6e-3, kernels=9, ready=0.1))
    (tmp_path / "families.json").write_text(json.dumps(rows))
    arguments = ["--models", "vgg16,resnet50", "--peers-only", "--output", str(tmp_path), "--append"]
    assert families.main([*arguments, "--peer-python", sys.executable, "--peer-timeout", "20"]) == 0
    text = capsys.readouterr().out
    assert "torch.compile resnet50: did not compile: RuntimeError: out of memory" in text
    assert "| vgg16 | 64 | 1.000 | 2.000 | 0.50 | 0.6000 | 0.60 |" in text
    assert "batch 64: geometric mean 0.500 of 1 networks, worst 0.500" in text
    found = json.loads((tmp_path / "families.json").read_text())
    assert [row.get("torch_compile") for row in found] == [2e-3, 2e-3, None]


def test_summary_has_geometric_means(families: Any) -> None:
    rows = [
        dict(model=name, batch=1, kind="float16", gpu=ours, torch_compile=1e-3)
        for name, ours in (("a", 0.25e-3), ("b", 1e-3), ("c", 2e-3))
    ]
    mean = math.exp((math.log(0.25) + math.log(2)) / 3)
    assert f"batch 1: geometric mean {mean:.3f} of 3 networks, worst 2.000" in families.summary(rows, [1, 64])


def test_peers_know_the_networks_of_the_zoo(families: Any) -> None:
    from litegpu.zoo import CATALOGUE

    assert set(families.NETWORKS) <= set(CATALOGUE)
    assert set(families.MORE) <= set(families.NETWORKS)
