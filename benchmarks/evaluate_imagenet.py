"""Images per second of `litegpu evaluate imagenet`, beside what the cores can decode.

Makes JPEGs of 224x224 pixels with random labels in a temporary folder, and evaluates mobilenet_v1 with float16 weights
on them. The peers in the same run: the same decoding without a model, by one process and by all, which is the most that
an evaluation could reach. Records are written, as with --output.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

import litegpu
from litegpu.tools.evaluate.choice import parse_choice
from litegpu.tools.evaluate.collecting import Running
from litegpu.tools.evaluate.decoding import decoded_batches, worker_count
from litegpu.tools.evaluate.image_list import Item, list_images
from litegpu.tools.evaluate.imagenet import ImagenetTask, evaluate_imagenet
from litegpu.tools.evaluate.preprocessing import for_input
from litegpu.zoo import build_model, draw_scene

SIDE, CLASSES, SCENES = 224, 1001, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="JPEGs to make (default: 10000)")
    parser.add_argument("--delegate", default="gpu/float16", help="as for the command (default: gpu/float16)")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128], help="images at once (default: 32 128)")
    parser.add_argument("--workers", type=int, default=-1, help="decoding processes (default: one per core)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder / "images", options.images)
        task = make_task(folder, options.images)
        items = list_images(folder / "images")
        workers = worker_count(len(items)) if options.workers < 0 else options.workers
        cores = worker_count(10**9)
        size = sum(item.stamp[0] for item in items if item.stamp) / len(items)
        print(f"{len(items)} JPEGs of {SIDE}x{SIDE}, {size / 1e3:.1f} kB each; {cores} cores, {workers} workers")
        print(f"litegpu {litegpu.__version__}, Python {platform.python_version()}, {platform.machine()}")
        one = decoding_rate(task, items[: max(len(items) // 16, 200)], 0)
        everyone = decoding_rate(task, items, workers)
        print(
            f"decoding and preprocessing, one process      {one:8.0f} images/s (times {cores} cores: {one * cores:.0f})"
        )
        print(f"decoding and preprocessing, {workers:3} workers      {everyone:8.0f} images/s: the limit")
        for batch in options.batches:
            running = Running(parse_choice(options.delegate), None, batch, options.workers, str(folder / f"b{batch}"))
            collected = evaluate_imagenet(task, running).result.collected
            place = collected.placement
            inference = 1e6 / collected.inference.average
            print(
                f"evaluation, batches of {place.batch:4}                {collected.rate:8.0f} images/s, "
                f"{collected.rate / everyone:.0%} of the limit (model alone: {inference:.0f})"
            )
        print(f"{place.delegation.summary()}; {place.device}")


def decoding_rate(task: ImagenetTask, items: Sequence[Item], workers: int) -> float:
    """Images per second, once the workers run."""
    prepare = for_input(litegpu.read_model(task.model_file))
    done, first, start = 0, 0, time.perf_counter()
    for batch in decoded_batches(items, prepare, 32, workers):
        done += len(batch.rows)
        if not first:
            first, start = done, time.perf_counter()
    return (done - first) / (time.perf_counter() - start)


def make_task(folder: Path, count: int) -> ImagenetTask:
    labels = [f"class {i}" for i in range(CLASSES)]
    truths = np.random.default_rng(0).choice(labels, count)
    (folder / "labels.txt").write_text("\n".join(labels))
    (folder / "truth.txt").write_text("\n".join(truths))
    (folder / "model.tflite").write_bytes(build_model("mobilenet_v1", precision="float16"))
    model, images, truth, names = (str(folder / n) for n in ("model.tflite", "images", "truth.txt", "labels.txt"))
    return ImagenetTask(model, images, truth, names)


def make_images(folder: Path, count: int) -> None:
    """Pieces of drawn scenes, by all cores."""
    folder.mkdir()
    parts = np.array_split(np.arange(count), os.cpu_count() or 1)
    with ProcessPoolExecutor() as pool:
        list(pool.map(_make_part, [folder] * len(parts), [p.tolist() for p in parts]))


def _make_part(folder: Path, numbers: Sequence[int]) -> None:
    scenes = [draw_scene(2 * SIDE, 2 * SIDE, seed) for seed in range(SCENES)]
    for i in numbers:
        rng = np.random.default_rng(i)
        top, left = rng.integers(0, SIDE, 2)
        piece = scenes[i % SCENES][top : top + SIDE, left : left + SIDE, :: rng.choice([1, -1])]
        Image.fromarray(np.roll(piece, int(rng.integers(3)), axis=2)).save(folder / f"{i:06}.jpg", quality=90)


if __name__ == "__main__":
    main()
