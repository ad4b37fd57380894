"""Many threads, one model: calls of the model, and through its batcher, beside one thread alone.

    python benchmarks/serving.py [--model mobilenet_v1] [--device cuda] [--threads 16] [--ahead 1,2,3]
    python benchmarks/serving.py --device cuda:all --rows 8     two GPUs beside one

A closed loop: each thread calls again as soon as it has its result. Rows per second and milliseconds until a call's
result are printed, with how many times one thread's rate that is. Every result of every call is compared, when the time
is over: it must be ten times as near to what one call gives for its input as to what any other input gives; the worst
ratio is printed. With `cuda:all` the same load goes to one GPU and to all, the ratio of the rates is printed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda_measure import find_models
from threads import used

import litegpu
from litegpu.zoo import build_model

#: Inputs: more than are remembered as coming again, whose memory would be pinned (cuda/registered.py).
ITEMS = 128
#: And so few that it is.
FEW = 16
#: Results for different inputs must differ by this part of themselves (float16 is off by some 1e-4).
LEAST_APART = 2e-3
#: Of results that are kept for the comparison.
MOST_BYTES, MOST_CALLS = 4 << 30, 100_000


class Load:
    """What threads call with, and what must come back."""

    def __init__(self, model: litegpu.LoadedModel, rows: int) -> None:
        self.rows = rows
        self.name, detail = next(iter(model.inputs.items()))
        shape = (rows, *detail["shape"][1:])
        self.items = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(ITEMS)]
        self.wanted = np.stack([first(model(item)) for item in self.items]).reshape(ITEMS, -1)
        distances = np.stack([np.linalg.norm(self.wanted - one, axis=-1) for one in self.wanted])
        self.nearest = (distances + np.where(np.eye(ITEMS), np.inf, 0)).min()
        apart = self.nearest / np.linalg.norm(self.wanted, axis=-1).mean()
        if apart < LEAST_APART:
            raise SystemExit(
                f"results for different inputs are only {apart:.0e} of themselves apart: wrong rows could not be told "
                "from rounding, which batches of several sizes do differently. Take another model"
            )

    def run(
        self, call: Callable[[np.ndarray], Any], threads: int, seconds: float, lag: int = 0, few: int = ITEMS
    ) -> tuple[float, np.ndarray, float]:
        """Rows per second, milliseconds of each call, and the worst result's distance as a share of that to the nearest
        of the others. `lag`: how many calls later results come. `few`: inputs that are taken in turn."""
        times: list[list[float]] = [[] for _ in range(threads)]
        # Copies, in memory that is there already: who keeps results keeps the pinned memory that they lie in.
        most = max(1, min(MOST_BYTES // self.wanted[0].nbytes, int(MOST_CALLS * seconds)) // threads)
        found = np.zeros((threads, most, self.wanted.shape[1]), np.float32)
        found[...] = 0
        start, failures = threading.Barrier(threads + 1), []
        ending = [0.0]

        def work(number: int) -> None:
            clock, items, mine, results = time.perf_counter, self.items[:few], times[number], found[number]
            i, count = number, 0
            try:
                for _ in range(5):
                    call(items[i % few])
                start.wait()
                now = clock()
                while now < ending[0] and count < most:
                    result = call(items[i % few])
                    then, now = now, clock()
                    mine.append(now - then)
                    results[count] = first(result).reshape(-1)
                    i, count, now = i + 1, count + 1, clock()
            except BaseException as error:
                failures.append(error)
                start.abort()

        running = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for thread in running:
            thread.start()
        begun = time.perf_counter()
        ending[0] = begun + 1e9
        start.wait()
        begun = time.perf_counter()
        ending[0] = begun + seconds
        for thread in running:
            thread.join()
        elapsed = time.perf_counter() - begun
        if failures:
            raise failures[0]
        return self._compared(times, found, elapsed, lag, few)

    def run_tasks(self, batcher: litegpu.Batcher, tasks: int, seconds: float) -> tuple[float, np.ndarray, float]:
        """The same with tasks of asyncio, in one thread."""
        times: list[list[float]] = [[] for _ in range(tasks)]
        most = max(1, min(MOST_BYTES // self.wanted[0].nbytes, int(MOST_CALLS * seconds)) // tasks)
        found = np.zeros((tasks, most, self.wanted.shape[1]), np.float32)
        found[...] = 0

        async def work(number: int, ending: float) -> None:
            clock, items, mine, results = time.perf_counter, self.items, times[number], found[number]
            count, now = 0, clock()
            while now < ending and count < most:
                result = await batcher.call_async(items[(number + count) % ITEMS])
                then, now = now, clock()
                mine.append(now - then)
                results[count] = first(result).reshape(-1)
                count, now = count + 1, clock()

        async def all_tasks() -> float:
            begun = time.perf_counter()
            await asyncio.gather(*(work(number, begun + seconds) for number in range(tasks)))
            return time.perf_counter() - begun

        return self._compared(times, found, asyncio.run(all_tasks()), 0, ITEMS)

    def _compared(
        self, times: list[list[float]], found: np.ndarray, elapsed: float, lag: int, few: int
    ) -> tuple[float, np.ndarray, float]:
        worst = 0.0
        for number, mine in enumerate(times):
            for i in range(0, len(mine), 1000):
                got = found[number, i : min(i + 1000, len(mine))]
                which = (number + np.maximum(0, i + np.arange(len(got)) - lag)) % few
                worst = max(worst, float(np.linalg.norm(got - self.wanted[which], axis=1).max()) / self.nearest)
        latencies = 1e3 * np.array([t for mine in times for t in mine])
        return len(latencies) * self.rows / elapsed, latencies, worst


class Submitting:
    """Calls in the background, so many ahead of the one whose result is given. Its milliseconds are those from one
    result to the next."""

    def __init__(self, batcher: litegpu.Batcher, ahead: int) -> None:
        self._batcher, self._ahead = batcher, ahead
        self._own = threading.local()

    def __call__(self, item: np.ndarray) -> Any:
        """The result of the oldest call of this thread once there are enough; until then they are submitted."""
        futures = self._own.__dict__.setdefault("futures", deque())
        futures.append(self._batcher.submit(item))
        while len(futures) <= self._ahead:
            futures.append(self._batcher.submit(item))
        return futures.popleft().result()


def first(result: Any) -> np.ndarray:
    """The (first) output."""
    return np.asarray(next(iter(result.values())) if isinstance(result, dict) else result)


def told(name: str, found: tuple[float, np.ndarray, float], base: float) -> None:
    rate, latencies, worst = found
    p50, p90, p99 = np.percentile(latencies, (50, 90, 99))
    print(
        f"{name:34} {rate:9.0f} rows/s {rate / base:6.2f}x  p50 {p50:.3f} p90 {p90:.3f} p99 {p99:.3f} ms  "
        f"{len(latencies)} results compared, worst {worst:.1e}" + ("" if worst < 0.1 else "  WRONG"),
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v1", help="a file, its name in the models' folder, or of the zoo")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="float16", choices=("float16", "float32"))
    parser.add_argument("--threads", type=int, nargs="+", default=[16])
    parser.add_argument("--rows", type=int, default=1, help="of each call")
    parser.add_argument("--max_batch", type=int, default=64)
    parser.add_argument("--sizes", help="that are prepared, such as 8,16,32,64; by default powers of two")
    parser.add_argument("--ahead", default="0", help="batches under way on each GPU; 0: the default")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--tasks", type=int, nargs="+", default=[16, 64], help="of asyncio, in one thread; 0: leave them out"
    )
    parser.add_argument(
        "--in_flight", type=int, default=32, help="calls that two threads submit ahead; 0: leave it out"
    )
    parser.add_argument("--switch", default="", help="also with these switch intervals of the interpreter, in ms")
    args = parser.parse_args()
    try:
        path: str | bytes = str(find_models([args.model])[0])
    except FileNotFoundError:
        path = build_model(args.model)
    all_gpus = args.device.endswith(":all")
    base_device = args.device.removesuffix(":all") + ":0" if all_gpus else args.device
    with litegpu.load(path, base_device, args.precision) as model:
        load = Load(model, args.rows)
        print(f"{args.model}, {args.precision}, {model.hardware}, {args.rows} rows a call, max_batch {args.max_batch}")
        base = load.run(model, 1, args.seconds)
        told("one thread, model", base, base[0])
        told("one thread, few arrays", load.run(model, 1, args.seconds, few=FEW), base[0])
        told(f"{args.threads[0]} threads, model", load.run(model, args.threads[0], args.seconds), base[0])
        rates = {}
        for ahead in map(int, args.ahead.split(",")):
            rates[ahead] = through_batcher(model, load, args, ahead, base[0])
    if all_gpus:
        with litegpu.load(path, args.device, args.precision) as model:
            print(model.hardware)
            for ahead, rate in rates.items():
                print(f"  {through_batcher(model, load, args, ahead, base[0]) / rate:.2f} times one GPU")
    return 0


def through_batcher(model: litegpu.LoadedModel, load: Load, args: Any, ahead: int, base: float) -> float:
    begun = time.perf_counter()
    sizes = [int(n) for n in args.sizes.split(",")] if args.sizes else None
    with model.batcher(args.max_batch, sizes=sizes, ahead=ahead or None) as batcher:
        print(f"  batcher ready after {time.perf_counter() - begun:.1f} s")
        told(f"one thread, batcher, ahead {ahead}", load.run(batcher, 1, args.seconds / 2), base)
        for threads in args.threads:
            then = used()
            found = load.run(batcher, threads, args.seconds)
            told(f"{threads} threads, batcher, ahead {ahead}", found, base)
            switches, seconds = (now - before for now, before in zip(used(), then, strict=True))
            calls = len(found[1])
            print(
                f"  per call {switches / calls:.2f} switches of threads, {1e6 * seconds / calls:.1f} us of processors"
            )
            told(f"{threads} threads, few arrays", load.run(batcher, threads, args.seconds, few=FEW), base)
        for tasks in filter(None, args.tasks):
            told(f"{tasks} tasks of asyncio", load.run_tasks(batcher, tasks, args.seconds), base)
        if args.in_flight:
            told(
                f"2 threads, {args.in_flight} submitted each",
                load.run(Submitting(batcher, args.in_flight), 2, args.seconds, lag=args.in_flight), base,
            )  # fmt: skip
        for switch in filter(None, args.switch.split(",")):
            before = sys.getswitchinterval()
            sys.setswitchinterval(float(switch) / 1e3)
            told(f"  switch interval {switch} ms", load.run(batcher, args.threads[-1], args.seconds), base)
            sys.setswitchinterval(before)
        print(f"  {batcher.statistics}\n  sizes {batcher.statistics.sizes}", flush=True)
    return found[0]


if __name__ == "__main__":
    sys.exit(main())
