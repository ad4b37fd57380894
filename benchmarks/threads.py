"""Inferences per second of 1 to 16 threads: with an interpreter each, and through one model.

    python benchmarks/threads.py [--threads 1 2 4 8 16] [--seconds 0.7] [--device cuda]

Three ways: `interpreters`, each thread has one of a network of a few microseconds (cuda_measure.small_model), with one
delegate for all; `model`, the same through one LoadedModel; `mobilenet`, mobilenet_v1 through one LoadedModel. Says
beside each rate how often an inference lost the processor by its own will, which is what waiting for Python's lock
looks like, and its CPU time in microseconds. Every result is compared. One thread alone differs by a third from one
moment to the next on some machines: numbers of threads that occur more than once (--threads 1 16 1 16 1) have medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda_measure import find_models, small_model

import litegpu
from litegpu import GpuDelegate, Interpreter, native

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Work = Callable[[int], bool]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--ways", nargs="+", default=["interpreters", "model", "mobilenet"])
    parser.add_argument("--seconds", type=float, default=0.7)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="mobilenet_v1_1.0_224_random")
    parser.add_argument("--slots", type=int, help="of a model, at most, in place of what it decides itself")
    args = parser.parse_args()
    if args.slots:
        vars(litegpu.session)["most_on_gpu"] = lambda program: args.slots
    wrong = 0
    for way in args.ways:
        content = small_model() if way != "mobilenet" else find_models([args.model])[0].read_bytes()
        works, close, slots = opened(way, content, args.device, max(args.threads))
        first = 0.0
        rates: dict[int, list[float]] = {}
        for count in args.threads:
            rate, text, mistakes = measured([works[i % len(works)] for i in range(count)], args.seconds)
            first = first or rate
            rates.setdefault(count, []).append(rate)
            wrong += mistakes
            print(f"{way:<13} {count:2d} threads {rate:9.0f}/s, {rate / first:5.2f} times{text}{slots()}", flush=True)
        if len(rates) < len(args.threads):
            medians = {count: statistics.median(found) for count, found in rates.items()}
            print(f"{way:<13} medians: " + ", ".join(f"{n} threads {rate:.0f}/s" for n, rate in medians.items()))
        close()
    if wrong:
        print(f"{wrong} results were wrong")
    return 1 if wrong else 0


def opened(
    way: str, content: bytes, device: str, count: int
) -> tuple[list[Work], Callable[[], object], Callable[[], str]]:
    """What threads do, given their number of the inference: whether the result was right; what closes it all, and how
    many inferences the model has come to run at once."""
    if way != "interpreters":
        model = litegpu.load(content, device, "float16" if device != "cpu" else "float32")
        shape = tuple(next(iter(model.inputs.values()))["shape"])
        items = [np.random.default_rng(i).random(shape, np.float32) for i in range(4)]
        expected = [model(x) for x in items]

        def call(number: int) -> bool:
            return np.array_equal(model(items[number % 4]), expected[number % 4])

        return [call], model.close, lambda: f"; {len(model._slots or ())} slots"
    delegates = [] if device == "cpu" else [GpuDelegate(backend=device, precision_loss_allowed=True)]
    made = [Interpreter(model_content=content, experimental_delegates=delegates) for _ in range(count)]
    works = []
    for one in made:
        one.allocate_tensors()
        works.append(cycle(one))

    def close() -> None:
        for one in made:
            one.close()

    return works, close, str


def cycle(one: Interpreter) -> Work:
    (x, *_), (y, *_) = one.get_input_details(), one.get_output_details()
    source, target = x["index"], y["index"]
    items = [np.random.default_rng(i).random(tuple(x["shape"]), np.float32) for i in range(4)]
    expected: list[np.ndarray] = []

    def infer(number: int) -> np.ndarray:
        one.set_tensor(source, items[number % 4])
        one.invoke()
        found: np.ndarray = one.get_tensor(target)
        return found

    expected += [infer(i) for i in range(4)]
    return lambda number: np.array_equal(infer(number), expected[number % 4])


def measured(works: Sequence[Work], seconds: float) -> tuple[float, str, int]:
    """Inferences per second of all together, what else there is to say, and how many results were wrong."""
    barrier, stop = threading.Barrier(len(works) + 1), threading.Event()
    counts, wrong = [0] * len(works), [0] * len(works)

    def go(place: int, work: Work) -> None:
        for i in range(30):
            work(i)
        barrier.wait()
        while not stop.is_set():
            for _ in range(10):
                wrong[place] += not work(counts[place] + place)
                counts[place] += 1

    threads = [threading.Thread(target=go, args=one) for one in enumerate(works)]
    for thread in threads:
        thread.start()
    barrier.wait()
    before, usage, asked, started = sum(counts), used(), baton(), time.perf_counter()
    time.sleep(seconds)
    count, took = sum(counts) - before, time.perf_counter() - started
    turns = "".join(f", {name} {(now - asked[name]) / count:.2f}" for name, now in baton().items() if now > asked[name])
    switches, cpu = (now - then for now, then in zip(used(), usage, strict=True))
    stop.set()
    for thread in threads:
        thread.join()
    return (
        count / took,
        f"; per inference {switches / count:.2f} switches, {1e6 * cpu / count:.1f} us{turns}",
        sum(wrong),
    )


def baton() -> Counter[str]:
    """What threads did for Python's lock, where the library in C is there: nothing before it was compiled."""
    library = native.find()
    return Counter() if library is None else Counter(library.counts())


def used() -> tuple[float, float]:
    """How often this process gave up the processor, and the seconds it had of it."""
    if resource is None:
        return 0.0, time.process_time()
    found: Any = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_nvcsw, found.ru_utime + found.ru_stime


if __name__ == "__main__":
    sys.exit(main())
