"""Attention on an NVIDIA GPU: in one kernel, as separate products and softmax, and PyTorch's, in the same run.

    python benchmarks/attention.py [--precisions float16 float32]

Microseconds of GPU time, from graphs launched back to back; "chosen" is what litegpu takes by itself. PyTorch
(scaled_dot_product_attention) is timed as a CUDA graph, and left out where it is not installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from lstm import median

from litegpu.gpu.build import build_program
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.passes import attention
from litegpu.gpu.runtime.cuda import open_device
from litegpu.model.reader import read_model
from litegpu.model.writer import ModelBuilder

#: Batch, heads, queries, keys, depth.
CASES = (
    (1, 4, 64, 64, 32), (1, 12, 1, 512, 64), (1, 12, 16, 16, 64), (1, 12, 49, 49, 32), (1, 12, 128, 128, 64),
    (1, 12, 197, 197, 64), (8, 12, 128, 128, 64), (1, 8, 1024, 1024, 64),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", default=["float16", "float32"])
    options = parser.parse_args()
    threshold = attention.MANY_LOGITS
    print(f"{'batch x heads x queries x keys x depth':<40} {'':8} {'logits':>9} {'one':>8} {'three':>8} {'PyTorch':>8}")
    for precision in options.precisions:
        for case in CASES:
            content = network(*case)
            logits = int(np.prod(case[:4]))
            times = []
            for limit in (1 << 40, 0):
                attention.MANY_LOGITS = limit
                times.append(seconds(content, precision == "float16"))
            attention.MANY_LOGITS = threshold
            peer = torch_seconds(case, precision)
            chosen = "one" if logits <= threshold else "three"
            print(
                f"{'x'.join(map(str, case)):<40} {precision:8} {logits:9} {1e6 * times[0]:8.1f} {1e6 * times[1]:8.1f} "
                f"{f'{1e6 * peer:8.1f}' if peer else '       -'}   chosen: {chosen}",
                flush=True,
            )


def network(batch: int, heads: int, queries: int, keys: int, depth: int) -> bytes:
    b = ModelBuilder()
    q = b.input("q", (batch, heads, queries, depth))
    k, v = (b.input(name, (batch, heads, keys, depth)) for name in "kv")
    whole = (batch, heads, queries, keys)
    logits = b.op("BATCH_MATMUL", [q, k], whole, {"adj_y": True})
    logits = b.op("MUL", [logits, b.constant(np.array(depth**-0.5, np.float32))], whole)
    weights = b.op("SOFTMAX", [logits], whole, {"beta": 1.0})
    b.output(b.op("BATCH_MATMUL", [weights, v], (batch, heads, queries, depth)))
    return b.build()


def seconds(content: bytes, half: bool) -> float:
    """GPU time of an inference."""
    device = open_device()
    main = read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    program = build_program(lowered.graph, device.features, device.target, half=half)
    session = device.session(program)
    try:
        return median(lambda: session.time_graph(50), 5)
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
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        function(q, k, v)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure() -> float:
        start.record()
        for _ in range(50):
            graph.replay()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3 / 50

    return median(measure, 5)


if __name__ == "__main__":
    main()
