"""The OpenVINO delegate beside OpenVINO's own reading of the same file: latency of an inference, NumPy to NumPy.

    python benchmarks/openvino_latency.py [--models a,b] [--rounds 40] [--threads N] [--block-ms 20]

Both have the same properties (float32, LATENCY) and the same inputs, and take turns: each round times a block of
inferences by the one and by the other, the other one first each time, so that what else the machine does hits both.
Milliseconds of an inference in the median block; the ratio delegate / OpenVINO of each round, its median with a 95%
bootstrap interval, once of the time that passed and once of the processor time that this process had, which other
processes take nothing of. Above 1 the delegate takes longer. Models that OpenVINO does not read, or that the delegate
does not take as a whole, are left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cpu_overhead import interval, seconds

import litegpu
from litegpu.openvino import runtime

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names in the folder LITEGPU_MODELS (default ../shared/models)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block-ms", type=float, default=20.0, help="about how long one timed block takes")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if not runtime.is_installed():
        raise SystemExit("openvino is not installed: pip install litegpu[openvino]")
    folder = Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))
    names = options.models.split(",") if options.models else sorted(p.stem for p in folder.glob("*.tflite"))
    cores = os.cpu_count()
    print(f"OpenVINO {runtime.version()} on {runtime.full_name('CPU')}, {cores} cores; {platform.platform()}")
    columns = f"{'ratio':>8}{'interval':>16}"
    print(f"\n{'model':<42}{'delegate':>10}{'OpenVINO':>10}{columns}  processor time{columns}")
    for name in names:
        found = compared(folder / f"{name}.tflite", options.rounds, options.threads, options.block_ms * 1e-3)
        if found is not None:
            mine, own = (statistics.median(blocks) * 1e3 for blocks in found.passed)
            told = [told_ratio(*both) for both in (found.passed, found.processor)]
            print(f"{name:<42}{mine:>10.3f}{own:>10.3f}{told[0]}{'':>16}{told[1]}", flush=True)


def told_ratio(mine: Sequence[float], own: Sequence[float]) -> str:
    """Of the rounds: the median, and its 95% interval."""
    ratios = np.array(mine) / np.array(own)
    low, high = interval(ratios)
    return f"{np.median(ratios):>8.3f}{f'{low:.3f}..{high:.3f}':>16}"


@dataclass(frozen=True)
class Blocks:
    """Seconds of an inference in each block, of the delegate and of OpenVINO: that passed, and of processor time."""

    passed: tuple[list[float], list[float]]
    processor: tuple[list[float], list[float]]


def compared(path: Path, rounds: int, threads: int | None, block: float) -> Blocks | None:
    """An inference by the delegate and by OpenVINO; None if the delegate leaves ops."""
    delegate = litegpu.load_delegate("openvino", {"num_threads": threads})
    try:
        interpreter = litegpu.Interpreter(str(path), experimental_delegates=[delegate], fallback="strict")
        interpreter.allocate_tensors()
    except litegpu.LiteGpuError:
        return None
    rng = np.random.default_rng(0)
    details = interpreter.get_input_details()
    inputs = [
        rng.integers(np.iinfo(d["dtype"]).min, np.iinfo(d["dtype"]).max, d["shape"]).astype(d["dtype"])
        if np.dtype(d["dtype"]).kind in "iu"
        else rng.uniform(-1, 1, d["shape"]).astype(d["dtype"])
        for d in details
    ]
    places = [int(d["index"]) for d in details]
    results = [int(d["index"]) for d in interpreter.get_output_details()]

    def delegated() -> object:
        for place, array in zip(places, inputs, strict=True):
            interpreter.set_tensor(place, array)
        interpreter.invoke()
        return [interpreter.get_tensor(place) for place in results]

    core = runtime.core()
    model = core.read_model(str(path))
    model.reshape({i: list(array.shape) for i, array in enumerate(inputs)})
    properties = delegate.options.properties(runtime.known_properties("CPU"), None)
    request = core.compile_model(model, "CPU", properties).create_infer_request()
    given = dict(enumerate(inputs))
    found = in_turns(delegated, lambda: request.infer(given), rounds, block)
    interpreter.close()
    return found


def in_turns(first: Callable[[], object], second: Callable[[], object], rounds: int, block: float) -> Blocks:
    """Times of a call of each in each round, after a warm-up; who begins alternates."""
    passed, processor = ([], []), ([], [])  # type: tuple[list[float], list[float]], tuple[list[float], list[float]]
    calls = (first, second)
    for call in calls:
        seconds(call, 3)
    count = max(1, round(block / seconds(second, 3)))
    for round_ in range(rounds):
        for place in (0, 1) if round_ % 2 else (1, 0):
            began = time.process_time()
            passed[place].append(seconds(calls[place], count))
            processor[place].append((time.process_time() - began) / count)
    return Blocks(passed, processor)


if __name__ == "__main__":
    main()
