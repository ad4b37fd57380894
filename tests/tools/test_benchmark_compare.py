"""Configurations compared, batch sizes, and the official set of performance options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from pages import check_self_contained

import litegpu
from litegpu.errors import DelegateError, DeviceError, LiteGpuError, OptionError
from litegpu.tools.benchmark import BenchmarkFlags, main
from litegpu.tools.benchmark.comparison import median_ratio
from litegpu.tools.benchmark.configurations import batch_sizes, configurations, performance_options
from litegpu.zoo import build_model

QUICK: dict[str, Any] = {"num_runs": 20, "min_secs": 0.05, "warmup_min_secs": 0.0}
ARGUMENTS = [f"--{name}={value}" for name, value in QUICK.items()]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("compare") / "m.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=10))
    return str(path)


def test_configurations_are_read() -> None:
    flags = BenchmarkFlags(graph="m", num_runs=7)
    found = configurations(flags, "cpu:threads=4:xnnpack=false,gpu,vulkan:precision=float32:num_runs=9")
    assert [c.label for c in found] == ["cpu:threads=4:xnnpack=false", "gpu", "vulkan:precision=float32:num_runs=9"]
    assert found[0].flags == BenchmarkFlags(graph="m", num_runs=7, num_threads=4, use_xnnpack=False)
    assert found[1].flags == BenchmarkFlags(graph="m", num_runs=7, use_gpu=True)
    assert found[2].flags == BenchmarkFlags(
        graph="m", num_runs=9, use_gpu=True, gpu_backend="vulkan", gpu_precision="float32"
    )
    (named,) = configurations(flags, {"mine": {"use_gpu": True}})
    assert named.label == "mine" and named.flags.use_gpu


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tpu", "begins with none of"),
        ("cpu:threads", "not name=value"),
        ("cpu:treads=2", "no flag treads"),
        ("cpu:threads=0", "num_threads is 0"),
        ("cpu,cpu", "twice"),
        (",", "no configuration"),
    ],
)
def test_mistakes_in_configurations_are_named(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        configurations(BenchmarkFlags(graph="m"), text)


def test_performance_options_are_the_official_ones() -> None:
    flags = BenchmarkFlags(graph="m", use_gpu=True)
    labels = [c.label for c in performance_options(flags, "all")]
    assert labels[:3] == ["cpu w/ 1 threads", "cpu w/ 1 threads (xnnpack)", "cpu w/ 2 threads"]
    assert labels[-2:] == ["gpu-fp16", "gpu-default"]
    assert all(c.flags.use_xnnpack is False for c in performance_options(flags, "gpu"))
    assert performance_options(flags, "none")[0].flags == flags
    for wrong, message in (("nnapi", "use gpu"), ("cpu,none", "alone"), ("fast", "unknown")):
        with pytest.raises(OptionError, match=message):
            performance_options(flags, wrong)


def test_batch_sizes_are_positive() -> None:
    assert batch_sizes("1,4,4,16") == [1, 4, 16]
    for wrong in ("0", "x", "1,-2"):
        with pytest.raises(OptionError, match="batch_sizes"):
            batch_sizes(wrong)


def test_an_interval_has_the_true_ratio_in_it_and_a_drift_does_not_matter() -> None:
    random = np.random.default_rng(0)
    drift = 1 + np.arange(60) / 10  # the machine becomes seven times as slow
    first = drift * random.normal(3, 0.1, 60)
    second = drift * random.normal(2, 0.1, 60)
    found = median_ratio(first.tolist(), second.tolist())
    assert found.low < found.value < found.high and found.high - found.low < 0.1
    assert found.low < 1.5 < found.high
    assert median_ratio([2.0], [1.0]).low == 2.0


def test_a_slower_configuration_is_told_and_an_equal_one_is_not(graph: str) -> None:
    found = litegpu.compare_benchmarks(
        graph,
        {"fast": {"num_threads": 1}, "same": {"num_threads": 1}, "plain": {"num_threads": 1, "use_xnnpack": False}},
        num_runs=200,
        min_secs=0.3,
        warmup_min_secs=0.05,
    )
    speedups = {s.label: s for s in found.speedups}
    assert speedups["plain"].verdict == "slower" and speedups["plain"].high < 0.9
    assert speedups["same"].value == pytest.approx(1, abs=0.3)
    assert all(result.inference.count >= 200 for result in found.results)
    with pytest.raises(AttributeError):
        found.results = ()  # type: ignore[misc]


def test_batches_are_swept(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    arguments = [f"--graph={graph}", *ARGUMENTS, "--compare=cpu,cpu:xnnpack=0", "--batch_sizes=1,4"]
    assert main([*arguments, f"--html={page}", f"--plot={plots}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(r["label"], r["batch"]) for r in found["results"]] == [
        ("cpu", 1), ("cpu:xnnpack=0", 1), ("cpu", 4), ("cpu:xnnpack=0", 4),
    ]  # fmt: skip
    for row in found["results"]:
        seconds = row["inference_us"]["avg"] * 1e-6
        assert row["throughput_per_s"] == pytest.approx(row["batch"] / seconds, rel=1e-6)
    assert [(s["baseline"], s["batch"]) for s in found["speedups"]] == [("cpu", 1), ("cpu", 4)]
    text = " ".join(check_self_contained(page.read_text()).text)
    assert "cpu:xnnpack=0, batch 4" in text and "Rows per second" in text
    assert {p.name for p in plots.iterdir()} == {"times.png", "batches.png"}


def test_the_official_summary_closes_the_log(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--graph={graph}", *ARGUMENTS, "--perf_options_list=cpu"]) == 0
    text = capsys.readouterr().out
    banner = next(line for line in text.splitlines() if "Summary of All Runs" in line)
    assert len(banner) == 80 and banner.strip("=") == " Summary of All Runs w/ Different Performance Options "
    rows = re.findall(r"^ *(cpu w/ .*): count=\d+ .*avg=([0-9.e+]+)", text, re.MULTILINE)
    assert len(rows) == 6 and all(len(name) <= 26 or "xnnpack" in name for name, _ in rows)
    averages = [float(average) for _, average in rows]
    assert averages == sorted(averages)


def test_a_configuration_that_fails_ends_a_comparison_but_not_the_official_set(
    graph: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from litegpu.gpu.delegate.delegate import GpuDelegate

    def no_device(_: GpuDelegate) -> None:
        raise DeviceError("there is no device")

    monkeypatch.setattr(GpuDelegate, "open_device", no_device)
    with pytest.raises(DeviceError):
        main([f"--graph={graph}", *ARGUMENTS, "--compare=cpu,gpu"])
    with pytest.raises(DeviceError):  # and a benchmark never runs on the CPU in place of a GPU
        main([f"--graph={graph}", *ARGUMENTS, "--use_gpu=true"])
    capsys.readouterr()
    assert main([f"--graph={graph}", *ARGUMENTS, "--perf_options_list=all"]) == 0
    text = capsys.readouterr().out
    assert "\n               gpu-default:  failed!" in text and "gpu-fp16 failed: there is no device" in text
    with pytest.raises(LiteGpuError):
        main([f"--graph={graph}", *ARGUMENTS, "--perf_options_list=gpu"])


def test_files_of_one_configuration_are_refused_for_several(graph: str) -> None:
    with pytest.raises(OptionError, match="about the runs of one configuration"):
        main([f"--graph={graph}", "--compare=cpu,gpu", "--trace=/tmp/t.json"])
    with pytest.raises(OptionError, match="not both"):
        main([f"--graph={graph}", "--compare=cpu,gpu", "--perf_options_list=cpu"])


def test_precisions_are_compared_on_the_gpu(graph: str) -> None:
    require_gpu()
    found = litegpu.compare_benchmarks(graph, "cpu,gpu:precision=float16,gpu:precision=float32", **QUICK)
    assert [r.device == "CPU" for r in found.results] == [True, False, False]
    assert found.results[1].memory.device < found.results[2].memory.device
    with pytest.raises(DelegateError, match="CPU fallback"):
        litegpu.compare_benchmarks(
            graph, "gpu", use_gpu=True, require_full_delegation=True, last_delegate_node_index=3, **QUICK
        )


def test_cuda_devices_have_their_usual_names() -> None:
    from litegpu.tools.benchmark.configurations import configurations
    from litegpu.tools.benchmark.flags import BenchmarkFlags

    flags = BenchmarkFlags(graph="m.tflite")
    first, second = configurations(flags, "cuda:1:precision=float32,webgpu")
    assert (first.flags.gpu_backend, first.flags.gpu_device, first.flags.gpu_precision) == ("cuda", "1", "float32")
    assert (second.flags.gpu_backend, second.flags.gpu_device) == ("webgpu", "")


def test_rows_of_profiles_are_in_microseconds_as_well() -> None:
    import dataclasses

    from litegpu.tools.benchmark import result

    kinds = [c for c in vars(result).values() if isinstance(c, type)]
    rows = [c for c in kinds if "milliseconds" in getattr(c, "__annotations__", ())]
    assert len(rows) == 3
    for kind in rows:
        row: Any = object.__new__(kind)
        one = "tuple" not in str(kind.__annotations__["milliseconds"])
        object.__setattr__(row, "milliseconds", 0.25 if one else (0.25, 1.0))
        assert dataclasses.is_dataclass(kind) and row.microseconds == (250.0 if one else (250.0, 1000.0))
