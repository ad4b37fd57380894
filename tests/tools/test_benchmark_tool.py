"""The benchmark takes the official tool's flags and ends with its lines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu

from litegpu.errors import DelegateError, OptionError
from litegpu.tools.benchmark import BenchmarkFlags, benchmark, main
from litegpu.tools.benchmark.parse import parse_flags
from litegpu.tools.inputs import random_inputs
from litegpu.tools.statistics import Statistics
from litegpu.zoo import build_model


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("benchmark") / "m.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=10))
    return str(path)


QUICK = ["--num_runs=3", "--min_secs=0", "--warmup_runs=2", "--warmup_min_secs=0"]


def test_flags_are_read_both_ways_and_the_first_counts() -> None:
    arguments = [
        "--graph",
        "a",
        "--num_runs=7",
        "--num_runs=8",
        "--use_gpu",
        "--min_secs",
        "2",
        "--dry_run=0",
        "--odd=1",
    ]
    line = parse_flags(arguments)
    assert line.flags == BenchmarkFlags(graph="a", num_runs=7, use_gpu=True, min_secs=2.0)
    assert line.given == ("graph", "num_runs", "use_gpu", "min_secs", "dry_run")
    assert line.unknown == ("--num_runs=8", "--odd=1")


@pytest.mark.parametrize(
    "argument", ["--num_runs=x", "--use_gpu=maybe", "--graph", "--num_threads=0", "--num_threads=-2"]
)
def test_wrong_values_are_named(argument: str) -> None:
    with pytest.raises(OptionError, match=argument.partition("=")[0]):
        parse_flags([argument])


def test_statistics_follow_the_official_formulas() -> None:
    assert str(Statistics(())) == "count=0 p5=0 median=0 p95=0"
    assert str(Statistics((4,))) == "count=1 curr=4 p5=4 median=4 p95=4"
    assert str(Statistics((4, 4))) == "count=2 curr=4(all same) p5=4 median=4 p95=4"
    # variance 1.25 is truncated to 1; percentiles are sorted[floor(4p/100)].
    assert str(Statistics((4, 1, 3, 2))) == "count=4 first=4 curr=2 min=1 max=4 avg=2.5 std=1 p5=1 median=3 p95=4"
    assert "avg=1.23457e+06" in str(Statistics((1234567, 1234569)))


def test_the_log_ends_with_the_official_lines(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--graph={graph}", *QUICK, "--num_thread=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "INFO: STARTING!"
    assert "WARN: Unconsumed cmdline flags: --num_thread=2 (did you mean --num_threads?)" in lines
    warmup, timed = (line for line in lines if "count=" in line)
    assert warmup.startswith("INFO: count=2 ") and timed.startswith("INFO: count=3 ")
    number = r"[0-9.e+]+"
    assert re.fullmatch(
        rf"INFO: Inference timings in us: Init: \d+, First inference: \d+, Warmup \(avg\): {number}, "
        rf"Inference \(avg\): {number}",
        lines[-3],
    )
    assert re.fullmatch(
        rf"INFO: Memory footprint delta from the start of the tool \(MB\): init={number} overall={number}", lines[-1]
    )


def test_json_and_dry_run(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--graph={graph}", "--dry_run=true", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["inference_us"]["count"] == result["warmup_us"]["count"] == 0
    assert result["init_us"] > 0 and result["delegation"]["counts"] == {"CPU": 31}


def test_max_secs_cuts_the_runs(graph: str) -> None:
    result = benchmark(BenchmarkFlags(graph=graph, num_runs=10**6, max_secs=0.05, warmup_min_secs=0))
    assert 1 <= result.inference.count < 10**6


def test_inputs_from_layers_ranges_and_files(graph: str, tmp_path: Path) -> None:
    values = tmp_path / "a:b.bin"
    np.zeros((1, 64, 64, 3), np.float32).tofile(values)
    quick: dict[str, Any] = dict(graph=graph, num_runs=1, min_secs=0.0, warmup_min_secs=0.0)
    named = f"input:{str(values).replace(':', '::')}"
    benchmark(BenchmarkFlags(**quick, input_layer="input", input_layer_value_files=named))
    benchmark(BenchmarkFlags(**quick, input_layer="other_name", input_layer_value_range="other_name,0,1"))
    mistakes: dict[str, dict[str, Any]] = {
        "64 has": dict(input_layer="input", input_layer_value_files=f"input:{tmp_path / 'short.bin'}"),
        "not among": dict(input_layer="input", input_layer_value_range="odd,0,1"),
        "names 2 inputs": dict(input_layer="a,b"),
        "needs --input_layer": dict(input_layer_shape="1,2,3,4"),
        "cannot become": dict(input_layer="input", input_layer_shape="1,2,3"),
        "low end": dict(input_layer="input", input_layer_value_range="input,2,1"),
    }
    (tmp_path / "short.bin").write_bytes(b"x" * 64)
    for message, flags in mistakes.items():
        with pytest.raises(OptionError, match=message.replace("64 has", "has 64 bytes")):
            benchmark(BenchmarkFlags(**quick, **flags))


def test_full_delegation_can_be_required(graph: str) -> None:
    with pytest.raises(DelegateError, match="Disallowed CPU fallback"):
        benchmark(BenchmarkFlags(graph=graph, require_full_delegation=True))


def test_gpu_kernels_are_profiled(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    gpu = ["--use_gpu=true", "--gpu_precision_loss_allowed=false", "--require_full_delegation=true"]
    assert main([f"--graph={graph}", *QUICK, *gpu, "--enable_op_profiling=true"]) == 0
    text = capsys.readouterr().out
    assert "Explicitly applied GPU delegate, and the model graph will be completely executed by the delegate." in text
    delegate = text.partition("Delegate internal: ")[2].partition("Top by Computation Time")[0]
    rows = re.findall(r"^\t +\w+\t +[0-9.]+\t +([0-9.]+)\t.*\tDelegate/\w+:\d+ \[", delegate, re.MULTILINE)
    assert len(rows) >= 15 and sum(float(row) for row in rows) > 0


def test_made_up_inputs_are_those_of_the_official_tool() -> None:
    details = [{"name": n, "shape": [2], "dtype": t} for n, t in (("a", np.float32), ("b", np.uint8), ("c", np.bool_))]
    first, second = random_inputs(details), random_inputs(details)
    words = np.random.RandomState(5489).randint(0, 2**32, 6, dtype=np.uint32)
    np.testing.assert_array_equal(first[0], words[:2].astype(np.float32) / np.float32(2**32) - np.float32(0.5))
    np.testing.assert_array_equal(first[1], [int(w) * 255 >> 32 for w in words[2:4]])
    assert first[2].dtype == np.bool_
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    (ranged,) = random_inputs(details[:1], {"a": (5, 6)})
    assert ((ranged >= 5) & (ranged < 6)).all()
