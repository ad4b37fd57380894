"""Runs a model by the official interpreter, with litegpu's GPU as its external delegate, beside litegpu's own.

    python examples/official_interpreter.py mobilenet_v1.tflite --backend auto

Prints the largest difference between the two interpreters' results and the median time of invoke() of each.
docs/guide/official_interpreter.md has the rest; `litegpu zoo build mobilenet_v1 -o mobilenet_v1.tflite` makes a model,
with random weights.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from ai_edge_litert import interpreter as official

import litegpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()

    delegate = official.load_delegate(litegpu.external_delegate_path(), {"backend": arguments.backend})
    host = official.Interpreter(arguments.model, experimental_delegates=[delegate])
    ours = litegpu.Interpreter(arguments.model, experimental_delegates=[litegpu.GpuDelegate(backend=arguments.backend)])
    results = [run(interpreter) for interpreter in (host, ours)]
    difference = max(float(np.abs(a.astype(float) - b).max()) for a, b in zip(*results, strict=True))
    print(f"largest difference {difference:.3g}")

    times: dict[str, list[float]] = {"official": [], "litegpu": []}
    for _ in range(arguments.runs):  # by turns, so that what else the machine does meets both
        for name, interpreter in (("official", host), ("litegpu", ours)):
            start = time.perf_counter()
            interpreter.invoke()
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        print(f"{name:8} {statistics.median(seconds) * 1e3:9.3f} ms")


def run(interpreter) -> list[np.ndarray]:
    """The outputs for made-up inputs."""
    interpreter.allocate_tensors()
    generator = np.random.default_rng(0)
    for detail in interpreter.get_input_details():
        value = generator.uniform(-1, 1, detail["shape"])
        if detail["dtype"] != np.float32:
            value = (value + 1) * 60
        interpreter.set_tensor(detail["index"], value.astype(detail["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


if __name__ == "__main__":
    main()
