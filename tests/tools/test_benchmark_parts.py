"""How the benchmark reads its command line, adds up kernels, dumps the state and draws traces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tools.test_benchmark_figures import made_up_result

from litegpu.delegates.report import DelegationReport, NodeReport, PartitionReport
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.backends.contract import KernelTime
from litegpu.model import ModelBuilder, TensorType, read_model
from litegpu.tools.benchmark import profile as profile_module
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.parse import flags_from, parse_flags
from litegpu.tools.benchmark.profile import by_op, profile
from litegpu.tools.benchmark.result import KernelRow, PartRow, Profile, Startup
from litegpu.tools.benchmark.state import state_text
from litegpu.tools.benchmark.timing import Timing
from litegpu.tools.benchmark.trace import trace

# The command line


def test_bare_booleans_take_the_word_behind_them_only_if_it_is_one() -> None:
    line = parse_flags(["--use_gpu", "false", "--dry_run", "model.tflite", "--verbose", "--num_runs", "3"])
    assert line.flags == BenchmarkFlags(graph="model.tflite", use_gpu=False, dry_run=True, verbose=True, num_runs=3)
    assert line.unknown == ()


def test_a_word_is_the_model_only_where_none_is_named() -> None:
    assert parse_flags(["first", "second"]).flags.graph == "first"
    assert parse_flags(["first", "second"]).unknown == ("second",)
    line = parse_flags(["first", "--graph=named"])
    assert line.flags.graph == "named" and line.unknown == ("first",)
    assert parse_flags(["-x", "--odd", "model"]).flags.graph == "model"


def test_a_flag_needs_its_value() -> None:
    for arguments in (["--num_runs"], ["--num_runs", "--use_gpu"]):
        with pytest.raises(OptionError, match="--num_runs needs a value"):
            parse_flags(arguments)


@pytest.mark.parametrize("text, off", [("false", True), ("0", True), ("", True), ("true", False), ("1", False)])
def test_delegates_that_are_not_here_may_be_switched_off(text: str, off: bool) -> None:
    if not off:
        with pytest.raises(OptionError, match=f"--use_nnapi={text} cannot be had"):
            parse_flags([f"--use_nnapi={text}"])
        return
    (answer,) = parse_flags([f"--use_nnapi={text}"]).answers
    assert answer.startswith("--use_nnapi has no effect")


@pytest.mark.parametrize("name", ["num_runs", "warmup_runs"])
def test_whole_numbers_have_32_bits(name: str) -> None:
    for good in (2**31 - 1, -(2**31) + 1):
        assert getattr(parse_flags([f"--{name}={good}"]).flags, name) == good
    for wrong in (2**31, -(2**31)):
        with pytest.raises(OptionError, match=f"--{name} is {wrong}; it must be from"):
            parse_flags([f"--{name}={wrong}"])


def test_threads_and_numbers_of_partitions() -> None:
    for count in (-1, 1, 8):
        assert parse_flags([f"--num_threads={count}"]).flags.num_threads == count
    for count in (-2, 0):
        with pytest.raises(OptionError, match="num_threads"):
            parse_flags([f"--num_threads={count}"])
    for name in ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index"):
        assert getattr(parse_flags([f"--{name}=0"]).flags, name) == 0
        with pytest.raises(OptionError, match=f"--{name} is -1"):
            parse_flags([f"--{name}=-1"])


def test_types_of_keyword_arguments() -> None:
    flags = flags_from("m", {"min_secs": 2, "num_runs": "7", "use_gpu": "true", "use_xnnpack": None})
    assert (flags.min_secs, flags.num_runs, flags.use_gpu, flags.use_xnnpack) == (2.0, 7, True, None)
    assert type(flags.min_secs) is float
    for name, value in (("min_secs", True), ("num_runs", True), ("num_runs", 2.0), ("use_gpu", 1), ("use_gpu", None)):
        with pytest.raises(OptionError, match=f"{name} is {value!r}; it must be of type"):
            flags_from("m", {name: value})


# Profiles


def test_nodes_that_are_joined_by_another_node_share_a_row() -> None:
    """Whatever the order of the kernels."""
    rows = [(0, 1), (2, 3), (4,), (3, 1), ()]
    for order in (rows, rows[::-1]):
        kernels = [KernelRow(i, "k", nodes, (1.0, 3.0)) for i, nodes in enumerate(order)]
        found = {row.nodes: (row.milliseconds, row.kernels) for row in by_op(kernels, dict.fromkeys(range(5), "ADD"))}
        assert found == {(0, 1, 2, 3): (6.0, 3), (4,): (2.0, 1), (): (2.0, 1)}


class Clock:
    """Stands for the module `time`, and goes on by a quarter of a second whenever it is read."""

    now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.25
        return self.now


def opened(*kernels: Any) -> Any:
    nodes = (NodeReport(0, "ADD", 0, "CPU", 0, False, None), NodeReport(1, "MUL", 18, "CPU", 0, False, None))
    return SimpleNamespace(
        kernels=kernels, report=DelegationReport((), nodes, ()), interpreter=SimpleNamespace(plan=None),
        prepare=lambda: None, run=lambda: None,
    )  # fmt: skip


def gpu(times: list[float], whole: float | None) -> Any:
    session = SimpleNamespace(**({} if whole is None else {"time_graph": lambda: whole}))
    rows = [KernelTime(f"k{i}", (i,), t) for i, t in enumerate(times)]
    return SimpleNamespace(profile=lambda: rows, session=session)


def test_profiled_inferences_end_by_number_and_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "time", Clock())
    monkeypatch.setattr(profile_module, "_SECONDS", 1000.0)
    found = profile(opened(gpu([0.001, 0.002], 0.0025), gpu([0.004], 0.0045)))
    assert [k.milliseconds for k in found.kernels] == [(ms,) * 10 for ms in (1.0, 2.0, 4.0)]
    assert [k.order for k in found.kernels] == [0, 1, 2] and found.gpu == pytest.approx(7.0)
    (part,) = found.parts
    assert (part.owner, part.nodes, part.start, part.milliseconds) == ("CPU", (0, 1), 0.0, (250.0,) * 10)
    monkeypatch.setattr(profile_module, "_SECONDS", 1.0)
    found = profile(opened(gpu([0.001], None), gpu([0.002], 0.5)))
    assert 1 <= len(found.kernels[0].milliseconds) < 10 and 1 <= len(found.parts[0].milliseconds) < 10
    assert found.gpu is None  # one of them cannot tell


def test_where_kernels_cannot_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "time", Clock())
    assert "no op runs on the GPU" in profile(opened()).note

    def refuse() -> None:
        raise DeviceError("no timestamps here")

    found = profile(opened(SimpleNamespace(profile=refuse)))
    assert found.note == "no timestamps here" and found.kernels == () and len(found.parts) == 1


def test_a_part_begins_when_it_does_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.delegates.plan import PartTime

    clock = Clock()
    monkeypatch.setattr(profile_module, "time", clock)
    monkeypatch.setattr(profile_module, "_RUNS", 2)
    delays = iter([1.0, 3.0])
    times: list[PartTime] = []

    class Timed:
        def __enter__(self) -> list[PartTime]:
            return [PartTime("GPU", (0,), clock.now + next(delays), 0.5)]

        def __exit__(self, *_: object) -> None:
            pass

    one = opened()
    one.interpreter = SimpleNamespace(plan=SimpleNamespace(timed=Timed))
    (part,) = profile(one).parts
    assert (part.start, part.milliseconds, times) == (2000.0, (500.0, 500.0), [])


# The state


def stateful() -> Any:
    b = ModelBuilder()
    x, kept = b.input("a_very_long_name", (1, 4)), b.variable("kept", (1, 4))
    y = b.op("ADD", [x, kept], (1, 4))
    b.output(b.op("FULLY_CONNECTED", [y, b.constant([[1.0, 2, 3, 4]] * 65536), None], (1, 65536)))
    inner = b.subgraph("inner")
    z = inner.input("z", (2,), TensorType.INT8)
    inner.output(inner.op("ABS", [z], (2,), type=TensorType.INT8))
    return read_model(b.build(), verify=False)


def state(report: DelegationReport, **flags: Any) -> list[str]:
    model = stateful()
    interpreter = SimpleNamespace(model=model, graph=model.main)
    of: Any = SimpleNamespace(interpreter=interpreter, report=report)
    return state_text(of, BenchmarkFlags(**flags)).splitlines()


def test_the_state_to_the_byte() -> None:
    nodes = (NodeReport(0, "ADD", 0, "CPU", 0, False, "No."), NodeReport(1, "FULLY_CONNECTED", 9, "GPU", 1, True, None))
    parts = (PartitionReport(0, "CPU", (0,), (0,), (2,)), PartitionReport(1, "GPU", (1,), (2,), (4,)))
    lines = state(DelegationReport(("GPU",), nodes, parts), tensor_name_display_length=8, alloc_type_display_length=8,
                  tensor_type_display_length=3)  # fmt: skip
    text = "\n".join(lines)
    assert "Inputs: [0] -> 16B (0.00MB)\nOutputs: [4] -> 262144B (0.25MB)" in text
    assert [line.split("/")[0].split() for line in lines if line.startswith("Tensor   ")][:5] == [
        ["Tensor", "0", "a_ver...", "...", "...enaRw", "16"], ["Tensor", "1", "kept", "...", "...stent", "16"],
        ["Tensor", "2", "tensor_2", "...", "...enaRw", "16"], ["Tensor", "3", "const...", "...", "...mapRo", "1048576"],
        ["Tensor", "4", "tensor_4", "...", "...enaRw", "262144"],
    ]  # fmt: skip
    assert "kTfLiteArenaRw Info: Tensor 4 has the max size 262144 bytes (0.250 MB). " in text
    assert "All 3 take 262176 bytes (0.250 MB) without sharing." in text
    assert "Node   0 Operator Builtin Code 0 ADD (not delegated)\n  2 Input Tensors: [0, 1] -> 32B" in text
    assert "FULLY_CONNECTED (delegated by GPU, partition 1)\n  3 Input Tensors: [2, 3, -1] -> 1048592B (1.00MB)" in text
    assert "  0: CPU runs 1 nodes: [0]\n  1: GPU runs 1 nodes: [1]" in text
    assert "Subgraph-1 has 2 tensors and 1 nodes" in text and text.count("Execution plan") == 1
    assert "Node   0 Operator Builtin Code 101 ABS (not delegated)" in text


# Traces


def events(**changes: Any) -> list[dict[str, Any]]:
    return [e for e in trace(made_up_result(**changes))["traceEvents"] if e["ph"] == "X"]


def test_a_trace_to_the_microsecond() -> None:
    rows = [KernelRow(0, "conv", (0,), (1.0, 2.0)), KernelRow(1, "fill", (), (0.5,)), KernelRow(2, "add", (3,), (2.0,)),
            KernelRow(3, "more", (), (0.25,))]  # fmt: skip
    parts = (
        PartRow("GPU", (0, 1), 0.5, (4.0, 6.0)),
        PartRow("CPU", (2,), 6.0, (1.0,)),
        PartRow("GPU", (3,), 8.0, (3.0,)),
    )
    found = events(
        startup=Startup(0.5, 0.25, 0.0, 0.125), began=10.0, profile=Profile(parts, tuple(rows), ()),
        warmup=Timing((0.004,), (10.5,)), inference=Timing((0.001, 0.002), (11.0, 12.0)),
    )  # fmt: skip
    at = 2_000_000 + 1000  # behind the last inference
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in found] == [
        ("device", 1, 1, 0.0, 250_000.0), ("partition", 1, 1, 250_000.0, 125_000.0),
        ("warm-up 0", 1, 2, 496_000.0, 4000.0),
        ("inference 0", 1, 2, 999_000.0, 1000.0), ("inference 1", 1, 2, 1_998_000.0, 2000.0),
        ("GPU partition 0", 1, 3, at + 500.0, 5000.0),
        ("conv", 2, 1, at + 500.0, 1500.0), ("fill", 2, 1, at + 2000.0, 500.0),
        ("CPU partition 1", 1, 3, at + 6000.0, 1000.0), ("GPU partition 2", 1, 3, at + 8000.0, 3000.0),
        ("add", 2, 1, at + 8000.0, 2000.0), ("more", 2, 1, at + 10_000.0, 250.0),
    ]  # fmt: skip
    assert [e["args"]["nodes"] for e in found[5:]] == [[0, 1], [0], [], [2], [3], [3], []]
