"""Attention on an NVIDIA GPU: in one kernel, as separate products and softmax, and PyTorch's, in the same run.

    python benchmarks/attention.py [--precisions float16 float32]

Microseconds of GPU time, of kernels launched back to back, of what litegpu chooses, of one kernel of the kernel
language, of separate products and softmax, and of PyTorch's scaled_dot_product_attention (as a CUDA graph; left out
where it is not installed).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from lstm import median

from litegpu.gpu import graph, passes
from litegpu.gpu.backends.cuda import native
from litegpu.gpu.backends.cuda.device import CudaDevice
from litegpu.gpu.backends.cuda.timing import launch_seconds
from litegpu.gpu.backends.registry import open_device
from litegpu.gpu.build import build_program
from litegpu.gpu.lower import lower_partition
from litegpu.model.reader import read_model
from litegpu.model.writer import ModelBuilder

#: Batch, heads, queries, keys, depth.
CASES = (
    (1, 4, 64, 64, 32), (1, 12, 1, 512, 64), (1, 12, 16, 16, 64), (1, 12, 49, 49, 32), (1, 12, 128, 128, 64),
    (1, 12, 197, 197, 64), (8, 12, 128, 128, 64), (1, 8, 1024, 1024, 64), (64, 12, 16, 16, 32), (64, 12, 1, 16, 64),
    (448, 16, 64, 64, 8), (64, 8, 41, 41, 24), (1024, 6, 49, 49, 32), (64, 12, 32, 32, 64), (64, 12, 512, 512, 32),
    (64, 6, 1500, 1500, 64),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", default=["float16", "float32"])
    options = parser.parse_args()
    head = "batch x heads x queries x keys x depth"
    print(f"{head:<40} {'':8} {'chosen':>8} {'language':>8} {'products':>8} {'PyTorch':>8}")
    for precision in options.precisions:
        for case in CASES:
            content, half = network(*case), precision == "float16"
            times: list[float | None] = [seconds(content, half)]
            with mock.patch.dict(native._LAUNCHES, {graph.Attention: lambda ctx: None}), in_one(True):
                times.append(seconds(content, half))
            with in_one(False):
                times.append(seconds(content, half))
            times.append(torch_seconds(case, precision))
            shown = " ".join("       -" if t is None else f"{1e6 * t:8.1f}" for t in times)
            print(f"{'x'.join(map(str, case)):<40} {precision:8} {shown}", flush=True)


def in_one(joined: bool) -> Any:
    """Attention in one kernel whatever the estimates say, or never."""
    if joined:
        return mock.patch.object(native, "FEW_KEYS", 1 << 30)
    return mock.patch.object(passes, "join_attention", lambda found, features, half: found)


def network(batch: int, heads: int, queries: int, keys: int, depth: int) -> bytes:
    b = ModelBuilder()
    shapes = {"q": (batch, heads, queries, depth), "k": (batch, heads, keys, depth), "v": (batch, heads, keys, depth)}
    # softmax, so that what the attention reads is computed, and stored as the precision says
    q, k, v = (b.op("SOFTMAX", [b.input(name, shape)], shape, {"beta": 1.0}) for name, shape in shapes.items())
    whole = (batch, heads, queries, keys)
    logits = b.op("BATCH_MATMUL", [q, k], whole, {"adj_y": True})
    logits = b.op("MUL", [logits, b.constant(np.array(depth**-0.5, np.float32))], whole)
    weights = b.op("SOFTMAX", [logits], whole, {"beta": 1.0})
    b.output(b.op("BATCH_MATMUL", [weights, v], (batch, heads, queries, depth)))
    return b.build()


def seconds(content: bytes, half: bool) -> float:
    """GPU time of the attention's kernels, each by itself: the first three are others."""
    device = open_device("cuda")
    assert isinstance(device, CudaDevice)
    main = read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    program = build_program(lowered.graph, device.features, device.target, half=half)
    session = device.session(program)
    try:
        with device.context:
            return sum(launch_seconds(session._stream, launch) for launch in session.recorder.launches[3:])
    finally:
        session.close()


def torch_seconds(case: tuple[int, ...], precision: str) -> float | None:
    try:
        import torch
    except ImportError:
        return None
    batch, heads, queries, keys, depth = case
    kind = torch.float16 if precision == "float16" else torch.float32
    torch.backends.cuda.matmul.allow_tf32 = False
    q = torch.randn(batch, heads, queries, depth, dtype=kind, device="cuda")
    k, v = (torch.randn(batch, heads, keys, depth, dtype=kind, device="cuda") for _ in range(2))
    function: Callable[..., object] = torch.nn.functional.scaled_dot_product_attention
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.inference_mode():
        for _ in range(3):
            function(q, k, v)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(recorded):
        function(q, k, v)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure() -> float:
        start.record()
        for _ in range(50):
            recorded.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3 / 50

    return median(measure, 5)


if __name__ == "__main__":
    main()
