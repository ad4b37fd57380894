"""A sequence LSTM on an NVIDIA GPU, beside PyTorch's cuDNN LSTM in the same run: microseconds per step.

    python benchmarks/lstm.py [--steps 128] [--units 256] [--batch 1]

For float16 (weights and gates; PyTorch: everything) and float32 it prints the GPU time of an inference without copies
from and to the host, that of the recurrence alone, the time from array to array, and how far the result is from the
official CPU runtime's. PyTorch is timed with its kernels launched one by one and as a CUDA graph. Needs litegpu[cuda];
PyTorch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter

import litegpu
from litegpu.model.writer import ModelBuilder

ROUNDS = 50


def model(steps: int, batch: int, depth: int, units: int) -> bytes:
    """UNIDIRECTIONAL_SEQUENCE_LSTM, time-major, with random weights."""
    rng = np.random.default_rng(0)
    b = ModelBuilder()

    def weights(*shape: int) -> int:
        return b.constant((rng.standard_normal(shape) / np.sqrt(units)).astype(np.float32))

    x = b.input("x", (steps, batch, depth))
    inputs: list[int | None] = [x]
    inputs += [weights(units, depth) for _ in range(4)]
    inputs += [weights(units, units) for _ in range(4)]
    inputs += [None] * 3
    inputs += [weights(units) for _ in range(4)]
    inputs += [None] * 2
    inputs += [b.variable("output", (batch, units)), b.variable("state", (batch, units))]
    options = {"time_major": True, "fused_activation_function": "TANH"}
    b.output(b.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, (steps, batch, units), options))
    return b.build()


def median(measure: Callable[[], float], rounds: int = ROUNDS) -> float:
    """The median of several measurements, after some to warm up."""
    for _ in range(5):
        measure()
    return statistics.median(measure() for _ in range(rounds))


def wall(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def report(what: str, seconds: float, steps: int, more: str = "") -> None:
    print(f"{what:46s} {1e6 * seconds:9.1f} us  {1e6 * seconds / steps:7.2f} us/step{more}", flush=True)


def ours(content: bytes, x: np.ndarray, half: bool) -> None:
    """litegpu, from a delegate's session, which can be timed without the host."""
    delegate = litegpu.GpuDelegate(backend="cuda", precision_loss_allowed=half)
    interpreter = litegpu.Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict")
    interpreter.allocate_tensors()
    official = OfficialInterpreter(model_content=content)
    official.allocate_tensors()
    errors = []
    for _ in range(2):  # the second begins with what the first left
        results = []
        for runtime in (interpreter, official):
            runtime.set_tensor(runtime.get_input_details()[0]["index"], x)
            runtime.invoke()
            results.append(runtime.get_tensor(runtime.get_output_details()[0]["index"]))
        errors.append(np.linalg.norm(results[0] - results[1]) / np.linalg.norm(results[1]))
    name, steps = f"litegpu {'float16' if half else 'float32'}", x.shape[0]
    assert interpreter.plan is not None
    session = interpreter.plan.kernels[0].session
    kernels = session.profile()
    label = f", {len(kernels)} kernels, error {max(errors):.1e}"
    report(f"{name}, all kernels", median(lambda: session.time_graph(20), 10), steps, label)
    report(f"{name}, the recurrence alone", sum(k.seconds for k in kernels if k.label == "lstm"), steps)
    report(f"{name}, array to array", median(lambda: wall(interpreter.invoke)), steps)
    for k in kernels:
        print(f"    {k.label:40s} {1e6 * k.seconds:9.2f} us")


def theirs(steps: int, batch: int, depth: int, units: int, half: bool) -> None:
    """torch.nn.LSTM, which calls cuDNN."""
    import torch

    dtype = torch.float16 if half else torch.float32
    layer = torch.nn.LSTM(depth, units).to("cuda", dtype).eval()
    layer.flatten_parameters()
    x = torch.randn(steps, batch, depth, device="cuda", dtype=dtype)
    state = tuple(torch.zeros(1, batch, units, device="cuda", dtype=dtype) for _ in range(2))
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(action: Callable[[], object]) -> float:
        start.record()
        for _ in range(10):
            action()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-4

    name = f"PyTorch {torch.__version__} (cuDNN) {'float16' if half else 'float32'}"
    with torch.inference_mode():
        report(name, median(lambda: timed(lambda: layer(x, state))), steps)
        try:
            for _ in range(3):
                layer(x, state)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                layer(x, state)
        except RuntimeError as error:
            print(f"{name}: no CUDA graph: {error}", flush=True)
            return
        report(f"{name}, CUDA graph", median(lambda: timed(graph.replay)), steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--depth", type=int, default=0, help="features of the input (default: as many as units)")
    parser.add_argument("--batch", type=int, default=1)
    arguments = parser.parse_args()
    steps, batch, units = arguments.steps, arguments.batch, arguments.units
    depth = arguments.depth or units
    content = model(steps, batch, depth, units)
    x = np.random.default_rng(1).standard_normal((steps, batch, depth)).astype(np.float32)
    print(f"LSTM of {units} units over {steps} steps of {depth} features, batch {batch}")
    for half in (True, False):
        ours(content, x, half)
        try:
            theirs(steps, batch, depth, units, half)
        except ImportError:
            print("PyTorch is not installed")


if __name__ == "__main__":
    main()
