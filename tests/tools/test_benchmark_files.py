"""The benchmark's files: profiles, traces, the official messages, the dump of the state, pages and plots."""

from __future__ import annotations

import csv
import io
import itertools
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from pages import check_self_contained

import litegpu
from litegpu.errors import OptionError
from litegpu.tools.benchmark import BenchmarkResult, main
from litegpu.tools.benchmark.benchmark_page import result_page, result_plots
from litegpu.tools.benchmark.profile import by_op
from litegpu.tools.benchmark.profile_text import profile_csv, profile_message, profile_text
from litegpu.tools.benchmark.result import KernelRow
from litegpu.tools.benchmark.trace import trace
from litegpu.zoo import build_model

QUICK: dict[str, Any] = {"num_runs": 3, "min_secs": 0.0, "warmup_min_secs": 0.0}
ARGUMENTS = [f"--{name}={value}" for name, value in QUICK.items()]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("files") / "m.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    return str(path)


@pytest.fixture(scope="module")
def profiled(graph: str) -> BenchmarkResult:
    """Partly on the GPU: what is behind node 26 stays on the CPU."""
    require_gpu()
    flags = {"use_gpu": True, "enable_op_profiling": True, "last_delegate_node_index": 26, **QUICK}
    result = litegpu.benchmark(graph, **flags)
    if result.profile is None or not result.profile.kernels:
        pytest.skip("no timestamps")
    return result


def decoded(content: bytes) -> dict[int, list[Any]]:
    """The fields of a message: field -> integers, floats or bytes."""
    found: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(content):
        field, wire = divmod(varint(), 8)
        if wire == 0:
            value: Any = varint()
        else:
            size = {1: 8, 2: None, 5: 4}[wire] or varint()
            value = content[at : at + size]
            at += size
            if wire != 2:
                (value,) = struct.unpack("<f" if wire == 5 else "<d", value)
        found.setdefault(field, []).append(value)
    return found


def test_tables_list_the_kernels_and_what_the_cpu_does(profiled: BenchmarkResult) -> None:
    text = profile_text(profiled)
    init, _, rest = text.partition("Operator-wise Profiling Info for Regular Benchmark Runs:")
    assert init.startswith("Profiling Info for Benchmark Initialization:\n" + "=" * 30 + " Run Order " + "=" * 30)
    assert "ModifyGraphWithDelegate" in init and "CompileKernels" in init
    runtime, _, delegate = rest.partition("Delegate internal: ")
    assert "CPU partition" in runtime and "CPU: nodes 27, 28, 29, 30 run in one call" in runtime
    profile = profiled.profile
    assert profile is not None and f"Number of nodes executed: {len(profile.kernels)}" in delegate
    header = next(line for line in delegate.splitlines() if "[node type]" in line)
    assert header.split("\t")[1:] == [
        "             [node type]", "  [first]", " [avg ms]", "     [%]", "  [cdf%]", "  [mem KB]", "[times called]",
        "[Name]",
    ]  # fmt: skip
    order = [line for line in delegate.partition("Top by")[0].splitlines() if "Delegate/" in line]
    assert [line.split("\t")[-1].split()[0] for line in order] == [
        f"Delegate/{k.kernel}:{k.order}" for k in profile.kernels
    ]
    assert order[-1].split("\t")[5].strip() == "100.000%"


def test_csv_is_plain(profiled: BenchmarkResult) -> None:
    rows = list(csv.DictReader(io.StringIO(profile_csv(profiled))))
    assert list(rows[0])[:8] == ["node type", "first", "avg_ms", "%", "cdf%", "mem KB", "times called", "name"]
    assert {row["section"] for row in rows} == {"initialization", "runtime", "delegate"}
    kernels = [row for row in rows if row["section"] == "delegate"]
    assert profiled.profile is not None
    total = sum(float(row["avg_ms"]) for row in kernels)
    assert total == pytest.approx(sum(k.average for k in profiled.profile.kernels), abs=1e-4)


def test_the_profile_s_message(profiled: BenchmarkResult) -> None:
    message = decoded(profile_message(profiled, "m.tflite"))
    assert message[1] == [b"m.tflite"]
    runtime = decoded(message[3][0])
    delegate = decoded(runtime[2][0])
    assert delegate[1] == [b"GPU"] and profiled.profile is not None
    assert len(delegate[2]) == len(profiled.profile.kernels)
    op = decoded(delegate[2][0])
    statistics = decoded(op[2][0])
    assert op[1] == [profiled.profile.kernels[0].kernel.encode()]
    assert statistics[9] == [len(profiled.profile.kernels[0].milliseconds)]
    assert statistics[8] == [sum(int(ms * 1e-3 * 1e6) for ms in profiled.profile.kernels[0].milliseconds)]


def test_nodes_that_share_a_kernel_share_a_row() -> None:
    kernels = [
        KernelRow(0, "conv", (0, 1), (1.0, 3.0)),
        KernelRow(1, "copy", (1, 2), (1.0, 1.0)),
        KernelRow(2, "conv", (3,), (4.0, 4.0)),
        KernelRow(3, "copy", (), (0.5, 0.5)),
        KernelRow(4, "conv", (3,), (1.0, 1.0)),
    ]
    rows = by_op(kernels, {0: "CONV_2D", 1: "ADD", 2: "RELU", 3: "CONV_2D"})
    found = {row.nodes: (row.ops, row.milliseconds, row.kernels) for row in rows}
    assert found == {
        (0, 1, 2): (("CONV_2D", "ADD", "RELU"), 3.0, 2),
        (3,): (("CONV_2D",), 5.0, 2),
        (): ((), 0.5, 1),
    }


def test_a_trace_has_every_inference_and_the_kernels_within_their_part(profiled: BenchmarkResult) -> None:
    found = json.loads(json.dumps(trace(profiled)))
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in events)
    inferences = [e for e in events if e["name"].startswith("inference ")]
    assert [e["dur"] for e in inferences] == pytest.approx([s * 1e6 for s in profiled.inference.seconds], abs=2e-3)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 2e-3 for a, b in itertools.pairwise(inferences))
    assert profiled.profile is not None
    kernels = [e for e in events if e["pid"] == 2]
    assert [e["args"]["order"][0] for e in kernels] == [k.order for k in profiled.profile.kernels]
    part = next(e for e in events if e["name"] == "GPU partition 0")
    assert kernels[0]["ts"] == part["ts"]
    named = {e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M"}
    assert "host" in named and f"GPU: {profiled.device}" in named


def test_the_page_is_self_contained_and_plots_are_written(profiled: BenchmarkResult, tmp_path: Path) -> None:
    reader = check_self_contained(result_page(profiled).html())
    text = " ".join(reader.text)
    assert "GPU time by op" in text and "Start-up" in text and profiled.device in text
    for name, plot in result_plots(profiled):
        plot.write(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert {"times.png", "runs.png", "startup.png", "ops.png"} == {p.name for p in tmp_path.iterdir()}


def test_start_up_adds_up(profiled: BenchmarkResult) -> None:
    startup = profiled.startup
    assert sum(startup.parts().values()) == pytest.approx(startup.total)
    assert min(startup.parts().values()) >= 0
    assert startup.compile > 0 and startup.load > 0 and startup.upload > 0
    assert profiled.memory.device > 0 and profiled.memory.peak >= profiled.memory.overall >= profiled.memory.init >= 0


def test_outputs_and_the_result_are_written(graph: str, tmp_path: Path) -> None:
    raw, example, result = (str(tmp_path / name) for name in ("raw", "example", "result"))
    runtime = str(tmp_path / "runtime")
    files = [f"--output_filepath={raw}", f"--output_proto_filepath={example}", f"--result_file_path={result}"]
    files += ["--export_model_runtime_info=true", f"--model_runtime_info_output_file={runtime}"]
    assert main([f"--graph={graph}", *ARGUMENTS, *files, "--json", "--report_peak_memory_footprint=true"]) == 0
    values = np.frombuffer(Path(raw).read_bytes(), np.float32)
    interpreter = litegpu.Interpreter(graph)
    assert values.size == 10 and values.sum() == pytest.approx(1, abs=1e-5)

    feature = decoded(decoded(decoded(Path(example).read_bytes())[1][0])[1][0])
    assert feature[1] == [interpreter.get_output_details()[0]["name"].encode()]
    floats = decoded(decoded(feature[2][0])[2][0])[1][0]
    np.testing.assert_array_equal(np.frombuffer(floats, "<f4"), values)

    message = decoded(Path(result).read_bytes())
    latency, memory, miscellaneous = (decoded(message[i][0]) for i in (2, 3, 4))
    assert latency[2][0] <= latency[5][0] <= latency[3][0] and latency[8][0] > 0
    assert memory[3][0] > 0 and miscellaneous[2] == [3] and miscellaneous[3] == [1]
    assert miscellaneous[1][0] == pytest.approx(Path(graph).stat().st_size / 1e6)

    details = decoded(Path(runtime).read_bytes())
    subgraph = decoded(details[2][0])
    assert details[1] == [b"m.tflite"] and len(subgraph[3]) == 31
    assert list(subgraph[4][0]) == list(range(31))  # all on the CPU, in order


def test_the_runtime_details_say_what_was_delegated(graph: str, tmp_path: Path) -> None:
    require_gpu()
    runtime = str(tmp_path / "runtime")
    flags = {"use_gpu": True, "last_delegate_node_index": 26, **QUICK}
    litegpu.benchmark(graph, export_model_runtime_info=True, model_runtime_info_output_file=runtime, **flags)
    subgraph = decoded(decoded(Path(runtime).read_bytes())[2][0])
    nodes = [decoded(node) for node in subgraph[3]]
    assert [node[9] for node in nodes[:27]] == [[31]] * 27 and all(9 not in node for node in nodes[27:])
    delegate = decoded(nodes[31][8][0])
    assert delegate[1] == [b"GPU"] and list(delegate[2][0]) == list(range(27))
    assert list(subgraph[4][0]) == [31, 27, 28, 29, 30]


def test_profiles_go_where_they_are_asked_to(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("stdout", "csv", "json", "proto"):
        path = tmp_path / mode
        asked = ["--enable_op_profiling=true", f"--op_profiling_output_mode={mode}"]
        assert main([f"--graph={graph}", *ARGUMENTS, *asked, f"--op_profiling_output_file={path}"]) == 0
        assert path.stat().st_size > 100
    assert json.loads((tmp_path / "json").read_text())["parts"][0]["owner"] == "CPU"
    assert "Run Order" not in capsys.readouterr().out
    assert main([f"--graph={graph}", *ARGUMENTS, "--enable_op_profiling=true"]) == 0
    assert "Delegate internal: not profiled: no op runs on the GPU" in capsys.readouterr().out
    with pytest.raises(OptionError, match="op_profiling_output_file"):
        main([f"--graph={graph}", "--enable_op_profiling=true", "--op_profiling_output_mode=proto"])
    with pytest.raises(OptionError, match="one of stdout"):
        main([f"--graph={graph}", "--op_profiling_output_mode=xml"])


def test_the_state_lists_tensors_nodes_and_parts(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--graph={graph}", *ARGUMENTS, "--print_preinvoke_state=true", "--tensor_name_display_length=8"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "-----------Subgraph-0 has 89 tensors and 31 nodes------------" in text
    assert "const... kTfLiteFloat32  kTfLiteMmapRo" in text
    assert "Node  30 Operator Builtin Code 25 SOFTMAX (not delegated)" in text


def test_what_cannot_be_written_is_told_before_the_work(graph: str) -> None:
    for flag in ("html", "trace", "result_file_path", "output_filepath"):
        with pytest.raises(OptionError, match="Cannot write"):
            main([f"--graph={graph}", f"--{flag}=/proc/nothing/file"])
