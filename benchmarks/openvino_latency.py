"""The OpenVINO delegate beside OpenVINO's own reading of the same file: latency of an inference, NumPy to NumPy.

    python benchmarks/openvino_latency.py [--models a,b] [--rounds 60] [--threads N]

Both have the same properties (float32, LATENCY) and the same inputs, and take turns, each time the other one first.
Milliseconds of the fastest rounds (other work on the machine only adds to the rest) and of the median; a ratio above 1
means that the delegate takes longer. Models that the delegate does not take as a whole are left out.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import litegpu
from litegpu.openvino import runtime

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="names in the folder LITEGPU_MODELS (default ../shared/models)")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if not runtime.is_installed():
        raise SystemExit("openvino is not installed: pip install litegpu[openvino]")
    folder = Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))
    names = options.models.split(",") if options.models else sorted(p.stem for p in folder.glob("*.tflite"))
    cores = os.cpu_count()
    print(f"OpenVINO {runtime.version()} on {runtime.full_name('CPU')}, {cores} cores; {platform.platform()}")
    print(f"\n{'model':<42}{'delegate':>10}{'OpenVINO':>10}{'ratio':>8}{'ratio of medians':>18}")
    for name in names:
        figures = compared(folder / f"{name}.tflite", options.rounds, options.threads)
        if figures is not None:
            mine, own = (min(seconds) for seconds in figures)
            medians = statistics.median(figures[0]) / statistics.median(figures[1])
            print(f"{name:<42}{mine * 1e3:>10.3f}{own * 1e3:>10.3f}{mine / own:>8.2f}{medians:>18.2f}", flush=True)


def compared(path: Path, rounds: int, threads: int | None) -> tuple[list[float], list[float]] | None:
    """Seconds of an inference by the delegate and by OpenVINO, for each round; None if the delegate leaves ops."""
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
    found = in_turns(delegated, lambda: request.infer(given), rounds)
    interpreter.close()
    return found


def in_turns(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a call of each in each round, after a warm-up; who begins alternates."""
    seconds: dict[Callable[[], object], list[float]] = {first: [], second: []}
    for round_ in range(-3, rounds):
        for call in (first, second) if round_ % 2 else (second, first):
            start = time.perf_counter()
            for _ in range(3):
                call()
            if round_ >= 0:
                seconds[call].append((time.perf_counter() - start) / 3)
    return seconds[first], seconds[second]


if __name__ == "__main__":
    main()
