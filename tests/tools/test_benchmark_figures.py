"""The benchmark's figures and their units, on a clock and a model that are made up, so that every number is known."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from litegpu.delegates.report import DelegationReport
from litegpu.errors import OptionError
from litegpu.tools.benchmark import benchmark_inputs, comparison, energy, files, loop, measurement, memory
from litegpu.tools.benchmark.benchmark_text import Log, log_result, more_lines
from litegpu.tools.benchmark.comparison import Interval, Speedup, median_ratio
from litegpu.tools.benchmark.configurations import configurations, performance_options
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.loop import Rule, timed_runs
from litegpu.tools.benchmark.measurement import Measurement
from litegpu.tools.benchmark.result import (
    BenchmarkResult,
    Energy,
    KernelRow,
    MemoryUse,
    OpRow,
    PartRow,
    Profile,
    Startup,
)
from litegpu.tools.benchmark.timing import Timing
from litegpu.tools.inputs import made_up_inputs, random_inputs
from litegpu.tools.statistics import Statistics, microseconds

NOTHING = DelegationReport((), (), ())


class Clock:
    """Stands for the module `time`; it goes on by sleeping, and by what the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def passing(self, *seconds: float) -> Any:
        """A function that takes these times, again and again."""
        calls = iter(seconds * 10_000)

        def work() -> None:
            self.now += next(calls)

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (loop, comparison, measurement, energy):
        monkeypatch.setattr(module, "time", made)
    return made


# The loop


def test_only_the_run_is_timed(clock: Clock) -> None:
    timing = timed_runs(clock.passing(5.0), clock.passing(1.0, 2.0), Rule(3, -1.0, 1e9))
    assert timing.seconds == (1.0, 2.0, 1.0) and timing.ends == (106.0, 113.0, 119.0)


def test_runs_end_by_number_time_and_limit(clock: Clock) -> None:
    def count(runs: int, at_least: float, at_most: float) -> int:
        return timed_runs(lambda: None, clock.passing(1.0), Rule(runs, at_least, at_most)).count

    assert count(3, -1.0, 1e9) == 3 and count(3, 2.0, 1e9) == 3
    assert count(1, 6.5, 1e9) == 7 and count(0, 6.5, 1e9) == 7, "a number is not enough before the time is over"
    assert count(100, 0.0, 4.5) == 5 and count(1, 100.0, 4.5) == 5, "none begins after the limit"
    assert count(100, 0.0, 4.0) == 5


def test_delays_and_schedules(clock: Clock) -> None:
    timed_runs(lambda: None, clock.passing(1.0), Rule(3, -1.0, 1e9, delay=0.25))
    assert clock.slept == [0.25] * 3
    clock.now, clock.slept = 0.0, []
    timing = timed_runs(lambda: None, clock.passing(0.5, 3.0, 0.25, 0.5), Rule(5, -1.0, 1e9, pace=1.0))
    # The second run is late; the others begin at once, as long as they are behind the schedule.
    assert timing.ends == (0.5, 4.0, 4.25, 4.75, 5.25) and clock.slept == [0.5]
    clock.now = 0.0
    timing = timed_runs(lambda: None, clock.passing(0.25), Rule(3, -1.0, 1e9, pace=1.0))
    assert timing.ends == (0.25, 1.25, 2.25)


# Figures of runs


def test_figures_of_runs() -> None:
    micro = [7.0, 1.0, 2.0, 4.0, 21.0]
    found = Timing(tuple(n * 1e-6 for n in micro)).as_dict()
    ordered = sorted(micro)

    def interpolated(percent: float) -> float:
        place = percent / 100 * (len(ordered) - 1)
        low = int(place)
        return ordered[low] + (place - low) * (ordered[min(low + 1, 4)] - ordered[low])

    deviation = (sum((n - 7) ** 2 for n in micro) / 4) ** 0.5
    wanted = {
        "count": 5, "first": 7, "avg": 7, "std": deviation, "min": 1, "max": 21, "p5": interpolated(5), "median": 4,
        "p90": interpolated(90), "p95": interpolated(95), "p99": interpolated(99),
    }  # fmt: skip
    assert found == pytest.approx(wanted) and list(found) == list(wanted)
    timing = Timing((0.5, 0.25, 0.25))
    assert timing.throughput == pytest.approx(3.0) and timing.median == pytest.approx(250_000)


def test_the_official_statistics() -> None:
    values = tuple(range(100, 0, -1))
    found = Statistics(values)
    assert [found.percentile(p) for p in (0, 5, 50, 95, 99)] == [1, 6, 51, 96, 100]
    assert found.average == 50.5 and found.deviation == 28  # sqrt(833.25), of the population, truncated twice
    assert Statistics((3, 6)).deviation == 1  # sqrt(22.5 - 20.25): the variance is truncated to 2
    assert microseconds([1.9e-6, 2.99e-6]).values == (1, 2) and microseconds([]).average == 0
    official = Timing((1.9e-6, 2.9e-6)).official
    assert official.values == (1, 2) and official.average == pytest.approx(2.4)


def test_the_interval_is_that_of_95_percent_of_the_medians() -> None:
    rng = np.random.default_rng(3)
    ratios = np.exp(rng.normal(0, 0.8, 40))  # skewed, so that means are elsewhere
    found = median_ratio((2 * ratios).tolist(), [2.0] * 40)
    other = np.random.default_rng(77)
    medians = [np.median(other.choice(ratios, 40)) for _ in range(6000)]
    assert found.value == pytest.approx(np.median(ratios))
    wide, narrow = (np.percentile(medians, bounds) for bounds in ((2.5, 97.5), (5, 95)))
    for got, right, wrong in zip((found.low, found.high), wide, narrow, strict=True):
        assert abs(got - right) < abs(got - wrong) / 2 or right == wrong
    assert median_ratio([3.0, 8.0, 10.0], [1.0, 2.0, 1.0]).value == 4.0


def test_verdicts_are_of_the_whole_interval() -> None:
    def verdict(value: float, low: float, high: float) -> str:
        return Speedup("a", "b", None, value, low, high, 10).verdict

    assert verdict(1.5, 1.1, 2.0) == "faster" and verdict(0.5, 0.4, 0.9) == "slower"
    assert verdict(1.2, 0.95, 1.3) == verdict(0.8, 0.7, 1.02) == "no difference"


# Turns


def fake_measurement(run: Any, label: str = "a", **flags: Any) -> Any:
    found = SimpleNamespace(
        flags=BenchmarkFlags(graph="m", **flags), label=label, opened=SimpleNamespace(prepare=lambda: None, run=run)
    )
    found.rule = lambda runs, at_least: Rule(runs, at_least, found.flags.max_secs)
    return found


def test_turns_are_interleaved_and_their_first_run_does_not_count(clock: Clock) -> None:
    calls: list[str] = []

    def run(label: str, seconds: float) -> Any:
        def work() -> None:
            calls.append(label)
            clock.now += seconds

        return work

    flags = {"num_runs": 100, "min_secs": 0.0, "max_secs": 1e6}
    both = [fake_measurement(run(label, seconds), label, **flags) for label, seconds in (("a", 0.001), ("b", 0.004))]
    assert [comparison._runs_in_turn(m) for m in both] == [10, 5]  # a tenth of the runs, and 20 ms
    calls.clear()
    turn = comparison._turn(both[0], 4)
    assert turn.count == 4 and calls == ["a"] * 5 and turn.median == pytest.approx(1000)
    found, interrupted = comparison._interleaved(both, False, 0.5, Log(silent=True))
    assert not interrupted
    assert [len(turns) for turns in found] == [20, 20] and {t.count for t in found[0]} == {10}
    assert clock.slept == [0.5] * 40
    calls.clear()
    clock.slept.clear()
    comparison._interleaved(both, True, 0.0, Log(silent=True))
    turns = re.findall("(a{11}|b{6})", "".join(calls)[6:])
    firsts = [pair[0][0] for pair in zip(turns[::2], turns[1::2], strict=True)]
    assert len(turns) == 40 and 4 <= firsts.count("a") <= 16, "the order changes"
    assert clock.slept == []


def test_a_comparison_is_with_the_first_configuration(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int | None, bytes | None]] = []
    closed: list[str] = []

    class Fake:
        meter = None
        opened: Any
        label: str

        def __init__(self, flags: BenchmarkFlags, log: Log, *, label: str, batch: int | None, content: Any) -> None:
            opened.append((label, batch, content))
            seconds = {"slow": 0.004, "quick": 0.001}[label] * (batch or 1)
            self.__dict__.update(
                vars(fake_measurement(clock.passing(seconds), label, num_runs=40, min_secs=0.0, max_secs=1e6))
            )

        def warm_up(self) -> None:
            self.opened.run()

        def result(self, timing: Timing, *more: Any) -> Any:
            return SimpleNamespace(label=self.label, inference=timing, as_dict=dict)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            closed.append(self.label)

    monkeypatch.setattr(comparison, "Measurement", Fake)
    monkeypatch.setattr(comparison, "read_model", lambda graph: graph)
    monkeypatch.setattr(comparison, "with_batch", lambda model, batch: SimpleNamespace(content=b"%d" % batch))
    flags = BenchmarkFlags(graph="m", num_runs=40, min_secs=0.0, max_secs=1e6)
    wanted = configurations(flags, {"slow": {}, "quick": {}})
    found = comparison.run_comparison(wanted, [2, 4], Log(silent=True))
    assert opened == [(label, batch, b"%d" % batch) for batch in (2, 4) for label in ("slow", "quick")]
    assert closed == ["quick", "slow"] * 2
    assert [(s.label, s.baseline, s.batch) for s in found.speedups] == [("quick", "slow", 2), ("quick", "slow", 4)]
    assert [s.value for s in found.speedups] == pytest.approx([4, 4])
    # At most a tenth of 40 runs in a turn, and 20 ms: 3 of 8 ms, 4 of 2 ms; 2 of 16 ms, 4 of 4 ms.
    assert [s.rounds for s in found.speedups] == [14, 20]
    assert [r.inference.count for r in found.results] == [14 * 3, 14 * 4, 20 * 2, 20 * 4]
    rounds = found.as_dict()["speedups"][0]
    assert rounds["interval"] == pytest.approx([4, 4]) and rounds["verdict"] == "faster"


def test_short_names_of_configurations() -> None:
    base = BenchmarkFlags(graph="m")
    item = "vulkan:threads=3:xnnpack=0:precision=auto:wait=active:device=T4:tuning=full:partitions=5:quantized=false"
    (found,) = configurations(base, item)
    flags = found.flags
    assert (flags.num_threads, flags.use_xnnpack, flags.gpu_precision, flags.gpu_backend) == (
        3,
        False,
        "auto",
        "vulkan",
    )
    assert (flags.gpu_wait_type, flags.gpu_device, flags.gpu_tuning) == ("active", "T4", "full")
    assert (flags.max_delegated_partitions, flags.gpu_experimental_enable_quant, flags.use_gpu) == (5, False, True)
    kept = {c.label: c.flags for c in performance_options(BenchmarkFlags(graph="m", num_runs=7), "all")}
    assert all(flags.num_runs == 7 for flags in kept.values())
    assert kept["gpu-fp16"].gpu_precision_loss_allowed and not kept["gpu-default"].gpu_precision_loss_allowed
    assert [kept[f"cpu w/ {n} threads"].num_threads for n in (1, 2, 4)] == [1, 2, 4]
    assert kept["cpu w/ 2 threads (xnnpack)"].use_xnnpack is True and kept["cpu w/ 2 threads"].use_xnnpack is False


# Energy and memory


class Meter:
    """Two readings of a counter, or power that rises by 10 W a reading from 100 W on."""

    source = "the test"

    def __init__(self, counts: bool, clock: Clock) -> None:
        self.counter, self.power, self.clock = iter([1_000_000, 1_007_500]) if counts else None, 90_000, clock

    def millijoules(self) -> int | None:
        return None if self.counter is None else next(self.counter)

    def milliwatts(self) -> int | None:
        self.power += 10_000
        return self.power


def test_energy_is_that_of_the_counter(clock: Clock) -> None:
    with energy.EnergyWatch(Meter(True, clock)) as watch:
        clock.now += 3.0
    found, _ = watch.energy(25)
    assert found is not None and found.joules == pytest.approx(7.5) and found.seconds == 3.0
    assert found.watts == pytest.approx(2.5) and found.per_inference == pytest.approx(0.3)


def test_power_is_averaged_over_time() -> None:
    assert energy._mean_power([(0.0, 100_000), (1.0, 200_000), (4.0, 100_000)]) == pytest.approx(150.0)
    assert energy._mean_power([(0.0, 100_000), (1.0, 100_000), (3.0, 400_000)]) == pytest.approx(200.0)
    assert energy._mean_power([(2.0, 70_000), (2.0, 90_000)]) == pytest.approx(70.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_peak_of_the_memory_is_in_mib() -> None:
    array = np.ones(40 << 17)  # 40 MiB that are given back
    del array
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    peak, resident = (int(fields[name].split()[0]) for name in ("VmHWM", "VmRSS"))
    assert memory.peak_memory() == pytest.approx(peak / 1024, abs=1.0) and peak > resident + 4096


def test_memory_on_the_device_is_in_mib() -> None:
    class WithPorts:
        def session_bytes(self, program: Any) -> int:
            return 19 << 19

    def kernel(device: object) -> Any:
        ports = [SimpleNamespace(nbytes=1 << 20), SimpleNamespace(nbytes=1 << 19)]
        program = SimpleNamespace(
            arena_size=3 << 20, constants=SimpleNamespace(nbytes=5 << 20), inputs=ports[:1], outputs=ports[1:]
        )
        return SimpleNamespace(program=program, device=device)

    assert memory.allocated_on_device([kernel(object())]) == 8.0
    assert memory.allocated_on_device([kernel(WithPorts()), kernel(object())]) == 17.5


def test_free_memory_is_asked_of_devices_that_tell() -> None:
    class Tells:
        def __init__(self, *free: int | None) -> None:
            self.free = list(free)

        def free_bytes(self) -> int | None:
            return self.free.pop(0)

    def used(device: Any) -> float | None:
        return memory.DeviceMemory(device).used()

    assert used(Tells(5 << 20, 2 << 20)) == 3.0
    assert used(Tells(5 << 20, None)) is None and used(Tells(None, 1)) is None
    assert used(object()) is None and used(None) is None


# What is reported


def made_up_result(**changes: Any) -> BenchmarkResult:
    profile = Profile(
        (PartRow("GPU", (0, 1), 0.1, (3.0, 5.0)),),
        (KernelRow(0, "conv", (0,), (1.0, 2.0, 6.0)), KernelRow(1, "add", (1,), (0.5, 0.25, 0.75))),
        (OpRow(("CONV_2D",), (0,), 3.0, 1), OpRow(("ADD",), (1,), 0.5, 1)),
        gpu=3.25,
    )
    known: dict[str, Any] = dict(
        label="l", flags=BenchmarkFlags(graph="dir/m.tflite"), device="Chip (vulkan)", delegation=NOTHING,
        model_megabytes=4.25, startup=Startup(1.5, 0.5, 0.25, 0.125, 0.125, 0.25, 0.25),
        warmup=Timing((0.004, 0.002), (1.0, 1.1)), inference=Timing((0.001, 0.002, 0.003, 0.006), (2.0, 2.1, 2.2, 2.3)),
        memory=MemoryUse(10.5, 20.25, 99.5, 7.25, 8.5), energy=Energy(6.0, 2.0, 100, "counter"), profile=profile,
        batch=8, input_bytes=3 << 20,
    )  # fmt: skip
    return BenchmarkResult(**(known | changes))


def test_the_json_of_a_result() -> None:
    found = made_up_result().as_dict()
    assert (found["init_us"], found["first_inference_us"]) == (1_500_000, 4000)
    assert found["warmup_us"] == {"count": 2, "avg": pytest.approx(3000)}
    assert found["inference_us"]["avg"] == pytest.approx(3000) and found["inference_us"]["median"] == pytest.approx(
        2500
    )
    assert found["throughput_per_s"] == pytest.approx(8 * 4 / 0.012)
    assert made_up_result(batch=None).throughput == pytest.approx(4 / 0.012)
    assert found["startup_ms"] == pytest.approx(
        {"device": 500, "load": 250, "partition": 125, "build": 125, "compile": 250, "upload": 250}
    )
    assert found["memory_mb"] == {"init": 10.5, "overall": 20.25, "peak": 99.5, "device": 7.25, "device_used": 8.5}
    assert found["energy"] == {"millijoules_per_inference": pytest.approx(60), "watts": 3.0, "source": "counter"}
    assert (found["model_size_mb"], found["label"], found["batch"], found["device"]) == (4.25, "l", 8, "Chip (vulkan)")
    profile = found["profile"]
    assert (profile["gpu_ms"], profile["kernel_sum_ms"]) == (3.25, 2.25)  # the median of 1.5, 2.25 and 6.75
    assert profile["kernel_sum_of_averages_ms"] == pytest.approx(3.5)
    assert [k["ms"] for k in profile["kernels"]] == [3.0, 0.5] and profile["parts"][0]["ms"] == 4.0
    assert [(o["ops"], o["nodes"], o["ms"]) for o in profile["ops"]] == [(["CONV_2D"], [0], 3.0), (["ADD"], [1], 0.5)]


def test_the_lines_of_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    lines = more_lines(made_up_result())
    assert lines[0] == (
        "Inference in us: median=2500.0 p90=5100.0 p95=5550.0 p99=5910.0 std=2160.2, throughput: 2666.67 rows/s"
    )
    assert lines[1] == (
        "Start-up in ms: device 500.0, load 250.0, partition 125.0, build 125.0, compile 250.0, upload 250.0"
    )
    assert lines[2] == "Device memory in MB: 7.2 allocated; the device's free memory fell by 8.5"
    assert lines[3].startswith("Energy: 60 mJ per inference at 3 W")
    log_result(Log(), made_up_result())
    text = capsys.readouterr().out
    assert (
        "Inference timings in us: Init: 1500000, First inference: 4000, Warmup (avg): 3000, Inference (avg): 3000"
    ) in text
    assert "(MB): init=10.5 overall=20.25\n" in text


def floats(message: bytes) -> dict[int, Any]:
    """Fields of a message of floats and small whole numbers only."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(message):
        number, kind = divmod(message[at], 8)
        at += 1
        if kind == 5:
            found[number], at = struct.unpack_from("<f", message, at)[0], at + 4
            continue
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 128:
                break
        if kind == 2:
            found[number], at = message[at : at + value], at + value
        else:
            found[number] = value
    return found


def test_the_official_result_is_in_milliseconds_and_kilobytes() -> None:
    message: Any = floats(files.result_message(made_up_result()))
    # average, minimum, maximum, deviation, median, p5, p95, start-up, first and average warm-up
    deviation = 1e3 * np.std([0.001, 0.002, 0.003, 0.006], ddof=1)
    wanted = [3.0, 1.0, 6.0, deviation, 2.5, 1.15, 5.55, 1500.0, 4.0, 3.0]
    assert list(floats(message[2]).values()) == pytest.approx(wanted, rel=1e-6)
    assert list(floats(message[2])) == list(range(1, 11))
    assert floats(message[3]) == {1: 10752, 2: 20736}
    miscellaneous = floats(message[4])
    assert (miscellaneous[1], miscellaneous[2], miscellaneous[3]) == (4.25, 4, 2)
    assert miscellaneous[4] == pytest.approx(3 * 4 / 0.012)  # MiB of inputs a second
    flags = BenchmarkFlags(graph="m", report_peak_memory_footprint=True)
    peak: Any = floats(files.result_message(made_up_result(flags=flags)))
    assert floats(peak[3])[3] == 99.5


def test_where_tensors_are() -> None:
    kinds = [(True, False), (False, True), (False, False)]
    assert [files.allocation_type(SimpleNamespace(is_constant=c, is_variable=v)) for c, v in kinds] == [  # type: ignore[arg-type]
        "kTfLiteMmapRo", "kTfLiteArenaRwPersistent", "kTfLiteArenaRw",
    ]  # fmt: skip


def test_what_is_read_around_the_runs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[str] = []
    closed: list[bool] = []

    def run() -> None:
        runs.append("run")
        clock.now += 0.5

    opened = SimpleNamespace(
        delegates=(), device=None, is_software=False, device_name="CPU", kernels=[], prepare=lambda: None, run=run,
        report=NOTHING, startup=Startup(0.125), device_memory=SimpleNamespace(used=lambda: None),
        inputs=(np.zeros((3, 5), np.float32), np.zeros(7, np.int8)), interpreter=SimpleNamespace(graph=None),
        close=lambda: closed.append(True),
    )  # fmt: skip
    peaks = iter([100.0, 130.0, 190.0])
    monkeypatch.setattr(measurement, "open_model", lambda *_: opened)
    monkeypatch.setattr(measurement, "peak_memory", lambda: next(peaks))
    flags = BenchmarkFlags(graph="m", num_runs=9, warmup_runs=3, warmup_min_secs=0.0, max_secs=20.0, run_delay=0.25)
    with Measurement(flags, Log(), content=b"x" * 1_500_000) as found:
        found.warm_up()
        assert len(runs) == 3 and clock.slept == [0.25] * 3
        assert found.rule(9, 1.0) == Rule(9, 1.0, 20.0, 0.25, 0.0)
        result = found.result(found.runs("runs", 2, 0.0), None, "")
    assert closed == [True]
    text = capsys.readouterr().out
    assert "The input model file size (MB): 1.5\n" in text and "Initialized session in 125ms." in text
    assert "count=2 curr=500000" in text
    memory_ = result.memory
    assert (memory_.init, memory_.overall, memory_.peak) == (30.0, 90.0, 190.0)
    assert result.input_bytes == 67 and result.warmup.count == 3 and result.inference.count == 2
    paced = BenchmarkFlags(graph="m", run_frequency=4.0)
    assert paced.pace == 0.25


# Inputs


def details(*inputs: tuple[str, Sequence[int], type]) -> list[dict[str, Any]]:
    return [
        {"name": name, "index": 10 + i, "shape": np.array(shape), "dtype": dtype}
        for i, (name, shape, dtype) in enumerate(inputs)
    ]


def test_inputs_by_name_file_and_range(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32)
    values.tofile(tmp_path / "b.bin")
    two = details(("x", (2, 500), np.int32), ("y", (2, 3), np.float32))
    flags = BenchmarkFlags(
        graph="m",
        input_layer="a,b",
        input_layer_value_range="a,-3,4",
        input_layer_value_files=f"b:{tmp_path / 'b.bin'}",
    )
    first, second = benchmark_inputs.arrays(flags, two)
    assert set(first.reshape(-1).tolist()) == set(range(-3, 5)), "both ends are drawn"
    np.testing.assert_array_equal(second, values.reshape(2, 3))
    reshaped = BenchmarkFlags(graph="m", input_layer="a,b", input_layer_shape="2,500:4,3")
    assert benchmark_inputs.resizes(reshaped, two) == [(11, [4, 3])]
    with pytest.raises(OptionError, match="2 shapes for"):
        benchmark_inputs.resizes(BenchmarkFlags(graph="m", input_layer="x", input_layer_shape="1:2"), two[:1])


def test_ranges_of_made_up_values() -> None:
    limits = {
        np.int8: (-127, 127), np.uint8: (0, 254), np.int32: (0, 99), np.int64: (0, 99), np.bool_: (0, 1),
        np.int16: (-32767, 32767),
    }  # fmt: skip
    found = random_inputs(details(*((str(i), (200_000,), dtype) for i, dtype in enumerate(limits))))
    for array, (dtype, (low, high)) in zip(found, limits.items(), strict=True):
        assert array.dtype == dtype
        if high < 1000:
            assert (int(array.min()), int(array.max())) == (low, high)
        else:
            assert low <= array.min() < low + 20 and high - 20 < array.max() <= high
    (floats_,) = random_inputs(details(("f", (100_000,), np.float32)))
    assert -0.5 <= floats_.min() < -0.499 and 0.499 < floats_.max() < 0.5 and abs(floats_.mean()) < 0.01


def test_indices_stay_within_what_they_select_from() -> None:
    gather = SimpleNamespace(name="GATHER", inputs=(0, 10), outputs=(1,), options={"axis": 1})
    cast = SimpleNamespace(name="CAST", inputs=(11,), outputs=(5,), options={})
    lookup = SimpleNamespace(name="EMBEDDING_LOOKUP", inputs=(5, 0), outputs=(2,), options={})
    tensors = [SimpleNamespace(shape=(7, 4), data=None)]
    main: Any = SimpleNamespace(operators=(gather, cast, lookup), tensors=tensors)
    first, second, third = made_up_inputs(
        details(("i", (500,), np.int32), ("j", (500,), np.int64), ("k", (5000,), np.int32)), main
    )
    assert set(first.tolist()) == set(range(4)) and set(second.tolist()) == set(range(7))
    assert set(third.tolist()) == set(range(100))


def test_an_interval_is_read_in_order() -> None:
    found = comparison._speedup("a", "b", 3, Interval(2.0, 1.5, 2.5), 12)
    assert (found.value, found.low, found.high, found.rounds, found.batch) == (2.0, 1.5, 2.5, 12, 3)
