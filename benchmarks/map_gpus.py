"""Throughput of a map on one GPU and on all of a machine: images per second, and how many times one GPU that is.

    python benchmarks/map_gpus.py [--workers 1,4] [--crew ray,processes] [--seconds 15] [--model x.tflite] [--json]

Each worker reads JPEG files, decodes them, runs the model in batches, and sends the outputs back to be written as
Parquet: everything that `litegpu map` does. Every worker gets the same number of cores, those of the machine divided
by the largest number of workers, so that the ratio is about GPUs and not about cores. The clock starts when all
workers have answered and a second has passed, so that starting and compiling do not count; what they read has been read
before, so disks do not count either. `ray` is one process per GPU, started by Ray, `processes` the same without it,
`threads` are threads of one process.

Without a GPU, `--device cpu --workers 1,2` shows that it works. Needs litegpu[parquet], and for `ray` litegpu[ray].
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from litegpu.gpu.backends.cuda import opening as cuda
from litegpu.tools.distribute import WorkerContext, map_shards
from litegpu.tools.mapping.batched import default_batch, interface_of, plan_batch
from litegpu.tools.mapping.items import Files
from litegpu.tools.mapping.output import Output
from litegpu.tools.mapping.sources import Chunk
from litegpu.tools.mapping.worker import MapFactory
from litegpu.zoo import build_model

PICTURES = 2000
WARM_UP = 1.0  # seconds after the first answer of the last worker


@dataclass(frozen=True)
class Throughput:
    """Of one configuration. `busiest` and `idlest` are the shares of the answers that one worker gave."""

    crew: str
    workers: int
    images_per_second: float
    images: int
    seconds: float
    startup_seconds: float
    busiest: float
    idlest: float


@dataclass(frozen=True)
class LimitedThreads:
    """A factory whose workers use so many threads."""

    factory: MapFactory
    threads: int

    def __call__(self, context: WorkerContext) -> Any:
        return self.factory(replace(context, threads=self.threads))


def measure(factory: MapFactory, pictures: list[str], crew: str, workers: int, threads: int, seconds: float,
            folder: Path) -> Throughput:  # fmt: skip
    """Map the pictures over and over for so many seconds."""
    begun = time.perf_counter()
    clock: list[float] = []  # when the measurement starts and ends
    chunk = max(64, factory.plan.batch)

    def chunks() -> Iterator[Chunk]:
        start = 0
        while len(clock) < 2:
            names = tuple(pictures[(start + i) % len(pictures)] for i in range(chunk))
            yield Chunk(start, names, Files(names))
            start += chunk

    table = Output(folder / f"{crew}-{workers}", factory.stored(), {})
    table.open(resume=False, overwrite=True)
    answers: dict[str, int] = {}
    seen: set[str] = set()
    ready = 0.0
    for outcome in map_shards(
        LimitedThreads(factory, threads), chunks(), workers=workers, ray="local" if crew == "ray" else None,
        gpus=factory.device != "cpu", processes=crew == "processes",
    ):  # fmt: skip
        if outcome.error is not None:
            raise outcome.error
        if any(outcome.value.errors):
            raise RuntimeError(next(error for error in outcome.value.errors if error))
        table.append(outcome.shard.start, outcome.shard.names, outcome.value)
        now = time.perf_counter()
        seen.add(outcome.worker)
        # Threads are all in one process, so they are not told apart.
        if not ready and len(seen) == (1 if crew == "threads" else workers):
            ready = now
        if ready and not clock and now - ready >= WARM_UP:
            clock.append(now)
        elif len(clock) == 1:
            answers[outcome.worker] = answers.get(outcome.worker, 0) + len(outcome.shard.names)
            if now - clock[0] >= seconds:
                clock.append(now)
    table.finish()
    images, elapsed = sum(answers.values()), clock[1] - clock[0]
    shares = [count / images for count in answers.values()]
    return Throughput(
        crew=crew,
        workers=workers,
        images_per_second=images / elapsed,
        images=images,
        seconds=elapsed,
        startup_seconds=ready - begun,
        busiest=max(shares),
        idlest=min(shares),
    )


def make_pictures(folder: Path, size: int) -> list[str]:
    """JPEG files of soft noise, which compress about as photographs do."""
    rng = np.random.default_rng(0)
    names = []
    for i in range(PICTURES):
        coarse = Image.fromarray(rng.integers(0, 256, (size // 8, size // 8, 3), np.uint8))
        noise = rng.integers(-12, 13, (size, size, 3))
        pixels = np.clip(np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)) + noise, 0, 255)
        names.append(str(folder / f"{i:05}.jpg"))
        Image.fromarray(pixels.astype(np.uint8)).save(names[-1], quality=90)
    for name in names:
        Path(name).read_bytes()
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a .tflite file that takes a picture; the zoo's mobilenet_v1 by default")
    parser.add_argument("--workers", help="how many, one number after another; by default 1 and all GPUs")
    parser.add_argument("--crew", default="ray,processes,threads", help="some of these")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--size", type=int, default=224, help="of the pictures")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    crews = [c for c in options.crew.split(",") if c != "ray" or importlib.util.find_spec("ray") is not None]
    if options.workers:
        counts = [int(n) for n in options.workers.split(",")]
    else:
        counts = sorted({1, 1 if options.device == "cpu" else len(cuda.list_devices())})
    threads = max(1, (os.cpu_count() or 1) // max(counts))
    found: list[Throughput] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = Path(options.model).read_bytes() if options.model else build_model("mobilenet_v1")
        interface = interface_of(content)
        plan = plan_batch(content, interface, options.batch or default_batch(interface, PICTURES))
        factory = MapFactory(
            content, interface, plan, options.device, options.precision, 1 if options.device == "cpu" else None
        )
        pictures = make_pictures(folder, options.size)
        if not options.json:
            print(f"batches of {plan.batch}, {threads} threads a worker, {options.size}x{options.size} JPEG")
        for crew in crews:
            for workers in counts:
                found.append(measure(factory, pictures, crew, workers, threads, options.seconds, folder))
                base = next(f for f in found if f.crew == crew)
                ratio = found[-1].images_per_second / base.images_per_second
                if not options.json:
                    f = found[-1]
                    print(
                        f"{crew:8} {workers} workers {f.images_per_second:9.0f} images/s, {ratio:.2f} times "
                        f"{base.workers}; start {f.startup_seconds:.1f} s; shares {f.idlest:.0%} to {f.busiest:.0%}",
                        flush=True,
                    )
    if options.json:
        print(json.dumps([asdict(f) for f in found], indent=2))


if __name__ == "__main__":
    main()
