"""How far `litegpu benchmark` can be trusted: its average beside an independent timing, its kernels' times beside the
whole, and what its loop costs.

    python benchmarks/benchmark_tool.py [MODEL.tflite ...] [--backend cuda] [--rounds 60]

For each model (by default MobileNet v1, made by litegpu.zoo) on the GPU, and for the first one on the CPU too. Blocks
of runs alternate, and ratios are medians over rounds with their 95% bootstrap intervals. The exit status is 1 if a
figure is beyond its limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litegpu.errors import DeviceError
from litegpu.tools.benchmark.benchmark_text import Log
from litegpu.tools.benchmark.comparison import Interval, median_ratio
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.loop import Rule, timed_runs
from litegpu.tools.benchmark.measurement import Measurement
from litegpu.tools.benchmark.opening import Opened
from litegpu.tools.benchmark.profile import profile
from litegpu.zoo import build_model

AVERAGE, KERNELS, LOOP = 0.02, 0.10, 0.01
_BLOCK_SECONDS = 0.05
_NOTHING_RUNS = 20000


@dataclass(frozen=True)
class Figure:
    """A ratio that should be near 1, and how near; no limit where there is nothing to hold it to. `low` and `high`
    bound where it may be, if that is known: it is bad if all of that is beyond the limit."""

    name: str
    ratio: float
    limit: float | None
    detail: str = ""
    low: float = float("nan")
    high: float = float("nan")

    @property
    def good(self) -> bool:
        if self.limit is None or abs(self.ratio - 1) <= self.limit:
            return True
        return self.low <= 1 + self.limit and self.high >= 1 - self.limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--backend", default="", help="of the GPU; the best by default")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = arguments.models or [_made(Path(folder))]
        return 0 if check(models, arguments.backend, arguments.rounds) else 1


def check(models: Sequence[Path], backend: str, rounds: int) -> bool:
    """Prints every model's figures; whether all are within their limits."""
    good = True
    for i, model in enumerate(models):
        settings: list[dict[str, Any]] = [{}] if i == 0 else []
        settings += [{"use_gpu": True, "gpu_backend": backend, "gpu_precision": "float16"}]
        for changes in settings:
            flags = BenchmarkFlags(graph=str(model), **changes)
            try:
                measurement = Measurement(flags, Log(silent=True))
            except DeviceError as error:
                print(f"{model.name}: no GPU: {error}")
                continue
            with measurement:
                measurement.warm_up()
                print(f"{model.name} on {measurement.opened.device_name}", flush=True)
                for figure in figures(measurement.opened, rounds):
                    limit = "" if figure.limit is None else f"at most {figure.limit:.0%} off"
                    verdict = "" if figure.limit is None else "ok" if figure.good else "BEYOND"
                    print(
                        f"  {figure.name:<44} {figure.ratio:8.4f}  {limit:<16} {verdict:<7} {figure.detail}", flush=True
                    )
                    good &= figure.good
    return good


def figures(opened: Opened, rounds: int) -> Iterator[Figure]:
    """All of one model."""
    block = block_size(opened)
    yield average_of_the_same_calls(opened, block)
    yield average_of_other_calls(opened, block, rounds)
    if opened.kernels:
        yield from kernels_beside_the_whole(opened)
    yield from cost_of_the_loop(opened, block, rounds)


def block_size(opened: Opened) -> int:
    """Runs that take about as long as a block should."""
    return max(3, round(_BLOCK_SECONDS / bare_loop(opened, 5)[0] * 5))


def average_of_the_same_calls(opened: Opened, block: int) -> Figure:
    """The tool's average beside what a second clock around each of its calls gives."""
    took: list[int] = []

    def run() -> None:
        start = time.perf_counter_ns()
        opened.run()
        took.append(time.perf_counter_ns() - start)

    timing = timed_runs(opened.prepare, run, runs(block * 5))
    own = statistics.fmean(took) / 1e3
    return Figure(
        "average / same calls, timed independently",
        timing.average / own,
        AVERAGE,
        f"{timing.average:.2f} / {own:.2f} us",
    )


def average_of_other_calls(opened: Opened, block: int, rounds: int) -> Figure:
    """The tool's average beside that of a loop of our own, in turn."""
    tool, own = [], []

    def ours() -> None:
        own.append(bare_loop(opened, block)[1])

    def theirs() -> None:
        tool.append(timed_runs(opened.prepare, opened.run, runs(block)).average * 1e-6)

    alternate(ours, theirs, rounds)
    return _figure("average / a loop of its own, interleaved", median_ratio(tool, own), AVERAGE)


def kernels_beside_the_whole(opened: Opened) -> Iterator[Figure]:
    """The sum of the kernels' times beside the GPU's time for all of them. No limit with WebGPU: there each kernel is
    timed in a pass of its own, which keeps the device from overlapping them."""
    found = profile(opened)
    if not found.kernels or found.gpu is None:
        print(f"  {found.note}")
        return
    limit = KERNELS if opened.device.target == "cuda" else None
    detail = f"{found.kernel_sum * 1e3:.2f} / {found.gpu * 1e3:.2f} us, {len(found.kernels)} kernels"
    yield Figure("kernels, one by one / all together", found.kernel_sum / found.gpu, limit, detail)


def cost_of_the_loop(opened: Opened, block: int, rounds: int) -> Iterator[Figure]:
    """A block in the tool's loop beside the same block in a bare one, and what the loop does with runs of nothing."""
    tool, own = [], []

    def ours() -> None:
        own.append(bare_loop(opened, block)[0])

    def theirs() -> None:
        start = time.perf_counter()
        timed_runs(opened.prepare, opened.run, runs(block))
        tool.append(time.perf_counter() - start)

    alternate(ours, theirs, rounds)
    yield _figure("tool's loop / bare loop, interleaved", median_ratio(tool, own), LOOP)
    extra, each = nanoseconds_per_run(), statistics.median(own) / block * 1e9
    detail = f"{extra:.0f} ns of {each / 1e3:.2f} us a run, counted with runs of nothing"
    yield Figure("tool's loop / bare loop, counted", 1 + extra / each, LOOP, detail)


def nanoseconds_per_run() -> float:
    """What timed_runs() does for a run, more than a bare loop: the least of several times."""

    def nothing() -> None:
        pass

    def bare() -> float:
        start = time.perf_counter()
        for _ in range(_NOTHING_RUNS):
            nothing()
            nothing()
        return time.perf_counter() - start

    def tool() -> float:
        start = time.perf_counter()
        timed_runs(nothing, nothing, runs(_NOTHING_RUNS))
        return time.perf_counter() - start

    return (min(tool() for _ in range(7)) - min(bare() for _ in range(7))) / _NOTHING_RUNS * 1e9


def bare_loop(opened: Opened, count: int) -> tuple[float, float]:
    """Seconds of a loop of runs with their inputs, without any clock in it; and of a run alone, in another loop."""
    prepare, run = opened.prepare, opened.run
    start = time.perf_counter()
    for _ in range(count):
        prepare()
        run()
    whole = time.perf_counter() - start
    total = 0.0
    for _ in range(count):
        prepare()
        begin = time.perf_counter()
        run()
        total += time.perf_counter() - begin
    return whole, total / count


def runs(count: int) -> Rule:
    """Exactly so many."""
    return Rule(count, -1.0, float("inf"))


def alternate(first: Callable[[], None], second: Callable[[], None], rounds: int) -> None:
    """Both in every round, in changing order."""
    for i in range(rounds):
        for step in (first, second) if i % 2 else (second, first):
            step()


def _made(folder: Path) -> Path:
    path = folder / "mobilenet_v1.tflite"
    path.write_bytes(build_model("mobilenet_v1"))
    return path


def _figure(name: str, interval: Interval, limit: float) -> Figure:
    detail = f"95% interval {interval.low:.4f} to {interval.high:.4f}"
    return Figure(name, interval.value, limit, detail, interval.low, interval.high)


if __name__ == "__main__":
    sys.exit(main())
