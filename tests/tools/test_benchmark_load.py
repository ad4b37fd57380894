"""`litegpu benchmark` under load: what callers see, counted from when their calls were due, and overload named."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.batching import sizes as batching_sizes
from litegpu.errors import InvokeError, OptionError, QueueFullError
from litegpu.model.builder import ModelBuilder
from litegpu.session import LoadedModel
from litegpu.tools.benchmark import BenchmarkFlags, main
from litegpu.tools.benchmark.flags import LoadFlags
from litegpu.tools.benchmark.load import LoadResult, under_load
from litegpu.tools.benchmark.load_loop import (
    Calls,
    Clock,
    arrivals,
    closed_loop,
    open_loop,
    stability,
    stream_loop,
    submitted_loop,
)
from litegpu.tools.benchmark.load_report import load_lines, load_page, load_plots
from litegpu.tools.benchmark.loop import Rule


class Time:
    """A clock on which nothing passes but what is slept or worked."""

    def __init__(self) -> None:
        self.at = 100.0
        self.clock = Clock(lambda: self.at, self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.at += seconds

    def work(self, seconds: float) -> Any:
        def call() -> None:
            self.at += seconds

        return call


def test_a_closed_loop_calls_again_at_once() -> None:
    t = Time()
    calls = closed_loop(t.work(0.1), 1, Rule(5, 2.0, 60.0), t.clock)
    assert len(calls.ends) in (20, 21) and calls.latencies == pytest.approx(0.1)  # at least so long
    t = Time()
    assert len(closed_loop(t.work(0.1), 1, Rule(50, 0.0, 60.0), t.clock).ends) == 50  # at least so many
    t = Time()
    assert len(closed_loop(t.work(1.0), 1, Rule(50, 0.0, 3.5), t.clock).ends) == 4  # at most so long


def test_callers_of_a_closed_loop_are_there_at_once() -> None:
    inside, most = [0], [0]
    lock = threading.Lock()

    def call() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        with lock:
            inside[0] -= 1

    calls = closed_loop(call, 6, Rule(60, 0.0, 60.0))
    assert most[0] == 6 and 60 <= len(calls.ends) <= 66
    assert (calls.latencies >= 0.009).all()


def test_latency_counts_from_the_scheduled_arrival() -> None:
    t = Time()
    calls = open_loop(t.work(1.0), 1, [1.0, 1.5, 1.6, 10.0], 60.0, t.clock)
    assert np.array(calls.due) - 100 == pytest.approx([1.0, 1.5, 1.6, 10.0])
    assert np.array(calls.ends) - 100 == pytest.approx([2.0, 3.0, 4.0, 11.0])
    assert calls.latencies == pytest.approx([1.0, 1.5, 2.4, 1.0])


def test_an_open_loop_ends() -> None:
    t = Time()
    calls = open_loop(t.work(1.0), 1, [0.0] * 10, 3.5, t.clock)
    assert len(calls.ends) == 4 and calls.left == 6
    t = Time()
    calls = open_loop(t.work(0.1), 1, [1.0, 50.0], 3.5, t.clock)
    assert len(calls.ends) == 1 and calls.left == 1 and t.at < 110  # does not sleep for it


def test_submitted_calls_overlap() -> None:
    t = Time()
    futures: list[Future[Any]] = []

    def submit() -> Future[Any]:
        for future in futures[:-1]:
            if not future.done():
                future.set_result(None)
        futures.append(Future())
        if len(futures) == 4:
            t.at += 5
            for future in futures[-2:]:
                future.set_result(None)
        return futures[-1]

    calls = submitted_loop(submit, [1.0, 2.0, 3.0, 4.0], 60.0, t.clock)
    assert sorted(calls.latencies) == pytest.approx([2.0, 2.0, 5.0, 6.0])


def test_arrivals_are_poisson_and_the_same_each_time() -> None:
    times = arrivals(1000.0, Rule(5, 10.0, 60.0))
    assert len(times) == 10_000 and times == arrivals(1000.0, Rule(5, 10.0, 60.0)) and times == sorted(times)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1e-3, rel=0.05) and gaps.std() == pytest.approx(1e-3, rel=0.05)
    assert len(arrivals(10.0, Rule(50, 1.0, 60.0))) == 50


@pytest.mark.parametrize("utilisation", [0.2, 0.7, 0.9])
def test_a_queue_that_does_not_grow_is_stable(utilisation: float) -> None:
    t = Time()
    calls = open_loop(t.work(utilisation), 1, arrivals(1.0, Rule(2000, 0.0, 0.0)), 1e9, t.clock)
    found = stability(calls)
    assert found is not None and not found.is_overload


@pytest.mark.parametrize("utilisation", [1.1, 1.5, 20.0])
def test_a_queue_that_grows_is_overload(utilisation: float) -> None:
    t = Time()
    calls = open_loop(t.work(utilisation), 1, arrivals(1.0, Rule(2000, 0.0, 0.0)), 1e9, t.clock)
    found = stability(calls)
    assert found is not None and found.is_overload
    assert found.after > found.before and found.answered < 0.97


def test_a_moment_of_slowness_is_no_overload() -> None:
    t = Time()
    number = [0]

    def call() -> None:
        number[0] += 1
        t.at += 30.0 if number[0] == 700 else 0.5

    calls = open_loop(call, 1, arrivals(1.0, Rule(2000, 0.0, 0.0)), 1e9, t.clock)
    found = stability(calls)
    assert found is not None and not found.is_overload


def test_few_calls_tell_nothing() -> None:
    assert stability(Calls([0.0] * 15, [1.0] * 15)) is None


def test_a_stream_draws_ahead() -> None:
    t = Time()

    def stream(items: Iterable[Any], ahead: int) -> Iterator[Any]:
        """The first answer comes when so many are drawn."""
        drawn: list[Any] = []
        for item in items:
            drawn.append(item)
            if len(drawn) == ahead:
                t.at += 1.0
                yield drawn.pop(0)
        while drawn:
            t.at += 1.0
            yield drawn.pop(0)

    calls = stream_loop(stream, "item", 3, Rule(10, 0.0, 60.0), t.clock)
    assert calls.latencies == pytest.approx([1.0, 2.0, *[3.0] * 8])


def test_calls_that_fail_are_counted() -> None:
    t = Time()
    number = [0]

    def call() -> None:
        number[0] += 1
        t.at += 0.1
        if number[0] % 4 == 0:
            raise QueueFullError(f"call {number[0]}")

    calls = closed_loop(call, 1, Rule(30, 0.0, 60.0), t.clock)
    assert len(calls.ends) == 30 and calls.failures == {"QueueFullError": 9} and "call 4" in str(calls.error)
    with pytest.raises(ZeroDivisionError):
        closed_loop(lambda: 1 // 0, 3, Rule(30, 0.0, 60.0))

    def submit() -> Future[Any]:
        number[0] += 1
        future: Future[Any] = Future()
        future.set_exception(InvokeError("no") if number[0] % 2 else ZeroDivisionError())
        return future

    with pytest.raises(ZeroDivisionError):
        submitted_loop(submit, [0.0, 0.0], 60.0, t.clock)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    b = ModelBuilder()
    b.output(b.op("TANH", [b.input("x", (1, 6, 5, 3))], (1, 6, 5, 3)))
    path = tmp_path_factory.mktemp("load") / "tanh.tflite"
    path.write_bytes(b.build())
    return str(path)


SHORT = {"num_runs": 60, "min_secs": 0.05, "warmup_min_secs": 0.01, "max_secs": 20.0}


def flags(graph: str, **changes: Any) -> BenchmarkFlags:
    return BenchmarkFlags(graph=graph, **{**SHORT, **changes})


LOADS = {
    "threads": LoadFlags(threads_concurrent=3),
    "batcher": LoadFlags(threads_concurrent=4, batcher=True, max_batch=4),
    "stream": LoadFlags(streams=2),
    "arrivals": LoadFlags(arrival_rate=500.0),
    "arrivals, batcher": LoadFlags(arrival_rate=500.0, batcher=True, max_batch=4),
}


@pytest.mark.parametrize("name", LOADS)
def test_loads(graph: str, name: str, tmp_path: Path) -> None:
    found = under_load(flags(graph), LOADS[name])
    assert len(found.calls.ends) >= 60 and found.throughput > 0 and found.device == "CPU" and found.rows == 1
    assert 0 < found.percentile(50) <= found.percentile(99) <= found.percentile(99.9) <= found.milliseconds.max()
    assert (found.statistics is not None) == LOADS[name].batcher
    if found.statistics is not None:
        assert found.statistics.calls >= len(found.calls.ends)
    told, warnings = load_lines(found)
    assert "Load: " in told[0] and "p99.9=" in told[2] and not [w for w in warnings if "failed" in w]
    data = json.loads(json.dumps(found.as_dict()))
    assert data["mode"] == LOADS[name].mode and set(data["latency_ms"]) == {
        "mean", "p50", "p90", "p95", "p99", "p99.9", "max",
    }  # fmt: skip
    assert (data["overload"] is None) == (not LOADS[name].arrival_rate)
    page = load_page(found).html()
    assert "Latency: how many calls took how long" in page and "p99.9" in page
    assert [name for name, _ in load_plots(found)] == ["latencies", "load"]


def test_slow_model_is_overloaded(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = LoadedModel.__call__

    def slow(self: LoadedModel, *args: Any, **kwargs: Any) -> Any:
        time.sleep(0.02)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(LoadedModel, "__call__", slow)
    found = under_load(flags(graph, num_runs=80), LoadFlags(arrival_rate=400.0, threads_concurrent=1))
    assert found.is_overload and found.throughput < 100 and found.percentile(99) > 500
    _, warnings = load_lines(found)
    assert warnings[0].startswith("Overload: the queue grows (from ") and "or --batcher=true" in warnings[0]
    assert 'class="bad">grows' in load_page(found).html()


def test_a_batcher_takes_what_the_model_alone_cannot(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches take as long as one call."""
    run = batching_sizes._OfModel.run

    def slow(self: Any, arrays: Any) -> Any:
        time.sleep(0.02)
        return run(self, arrays)

    monkeypatch.setattr(batching_sizes._OfModel, "run", slow)
    found = under_load(flags(graph, num_runs=150), LoadFlags(arrival_rate=300.0, batcher=True, max_batch=32))
    assert not found.is_overload and found.statistics is not None and found.statistics.mean_rows > 2


def test_rows_of_a_call(graph: str) -> None:
    found = under_load(
        flags(graph, input_layer="x", input_layer_shape="4,6,5,3"), LoadFlags(threads_concurrent=2, batcher=True)
    )
    assert found.rows == 4 and "rows/s" in load_lines(found)[0][1]


def test_on_all_gpus(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here on the CPU twice."""
    monkeypatch.setattr("litegpu.session.every_device", lambda device: ("cpu",) * (2 if device == "cuda:all" else 1))
    load = litegpu.load

    def noting(path: str, device: str, precision: str, **options: Any) -> LoadedModel:
        assert (device, precision) == ("cuda:all", "float16")
        return load(path, device, num_threads=options["num_threads"])

    monkeypatch.setattr("litegpu.tools.benchmark.load.load", noting)
    found = under_load(flags(graph, use_gpu=True, gpu_device="all"), LoadFlags(threads_concurrent=2))
    assert found.device == "2 x CPU"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--threads_concurrent=-1"], "threads_concurrent is -1"),
        (["--streams=5000"], "streams is 5000"),
        (["--arrival_rate=-2"], "arrival_rate is -2"),
        (["--arrival_rate=nan"], "arrival_rate is 'nan'"),
        (["--streams=2", "--batcher=true"], "leave out"),
        (["--arrival_rate=5", "--batcher=true", "--threads_concurrent=2"], "leave out"),
        (["--threads_concurrent=2", "--compare=cpu,gpu"], "not for a benchmark under load"),
        (["--threads_concurrent=2", "--batch_sizes=1,2"], "not for a benchmark under load"),
        (["--threads_concurrent=2", "--enable_op_profiling=true"], "not for a benchmark under load"),
        (["--threads_concurrent=2", "--trace=x.json"], "not for a benchmark under load"),
        (["--threads_concurrent=2", "--output_filepath=x"], "output_filepath"),
        (["--batcher=true", "--max_batch=0"], "max_batch"),
    ],
)
def test_what_does_not_fit(graph: str, given: list[str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        main([f"--graph={graph}", "--num_runs=5", "--min_secs=0", *given])


def test_the_command(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [f"--graph={graph}", "--num_runs=40", "--min_secs=0.01", "--warmup_min_secs=0.01"]
    page, plots = tmp_path / "load.html", tmp_path / "plots"
    assert main([*common, "--arrival_rate=400", "--batcher", f"--html={page}", f"--plot={plots}"]) == 0
    text = capsys.readouterr().out
    assert "INFO: Load: 400 arrivals/s (open loop, Poisson), through a batcher of up to 64 rows, 2 ms, on CPU" in text
    assert "from its scheduled arrival: p50=" in text and "INFO: Batcher, with the warm-up: " in text
    assert "Under load: tanh.tflite" in page.read_text() and "Batches" in page.read_text()
    assert {file.name for file in plots.iterdir()} == {"latencies.png", "load.png"}
    assert main([*common, "--threads_concurrent=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["threads"] == 2
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "closed loop" in text and "MLPerf" in text and "--arrival_rate=0.0" in text


def test_nothing_answered_is_an_error(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: LoadedModel, *args: Any, **kwargs: Any) -> Any:
        raise InvokeError("it broke")

    monkeypatch.setattr(LoadedModel, "__call__", failing)
    with pytest.raises(InvokeError, match="it broke"):
        under_load(flags(graph), LoadFlags(threads_concurrent=2))


def test_failures_are_told() -> None:
    calls = Calls([0.0, 1.0], [0.5, 1.5])
    calls.failed(QueueFullError("full up"))
    result = LoadResult("m", "CPU", LoadFlags(threads_concurrent=2), 1, calls, None, None)
    assert load_lines(result)[1] == ["Calls that failed: 1 QueueFullError; the first: full up"]
