"""The physical limit of a model on an NVIDIA GPU: arithmetic, memory traffic, and the cost of launching kernels.

    python benchmarks/roofline.py [MODEL ...] [--batches 1,64]

Counted over the fused graph that litegpu runs: two operations for each multiplication of a convolution or matrix
product; each kernel reads its inputs and constants once and writes its output once, floats with 2 or 4 bytes. The limit
is the largest of operations / peak, bytes / bandwidth, and the launch floor of a CUDA graph of n small dependent
kernels, 2.7 + 0.85 n microseconds as measured on an H200. Without a GPU the peaks are the H200's.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from cuda_measure import find_models, lowered

from litegpu.errors import DeviceError
from litegpu.gpu.graph import Graph
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.costs import node_cost
from litegpu.gpu.passes.layout import place

LAUNCH, PER_KERNEL = 2.7e-6, 0.85e-6  # seconds


@dataclass(frozen=True)
class Peak:
    """What a GPU can sustain: operations per second in float16 (tensor cores) and float32, bytes per second."""

    float16: float
    float32: float
    bandwidth: float


@dataclass(frozen=True)
class Work:
    """What one inference takes at the least."""

    operations: int
    bytes: int
    kernels: int

    def roofline(self, peak: Peak, half: bool) -> float:
        """Seconds of arithmetic or of memory traffic, whichever is longer."""
        return max(self.operations / (peak.float16 if half else peak.float32), self.bytes / peak.bandwidth)

    @property
    def launch_floor(self) -> float:
        """Seconds."""
        return LAUNCH + PER_KERNEL * self.kernels

    def limit(self, peak: Peak, half: bool) -> float:
        """Seconds."""
        return max(self.roofline(peak, half), self.launch_floor)


#: 80% of the data sheet's dense 989 and 67 teraflops, 90% of its 4.8 TB/s.
H200 = Peak(790e12, 54e12, 4.3e12)
#: Dense float16 operations with float32 sums per clock and multiprocessor, by compute capability; where GeForce and
#: data centre cards differ (8.6, 8.9), those of GeForce.
_TENSOR = {75: 1024, 80: 2048, 86: 512, 87: 1024, 89: 512, 90: 4096, 100: 8192, 103: 8192, 120: 512}
_FLOAT32 = {75: 128, 80: 128}


def peak_of(device: Any) -> Peak | None:
    """For an opened CudaDevice: the same fractions of what its clocks allow; None if it does not tell them."""
    if "H200" in device.info.name:
        return H200
    try:
        clock, memory_clock, width = (
            device.attribute(name) for name in ("CLOCK_RATE", "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH")
        )
    except DeviceError:
        return None
    tensor = _TENSOR.get(device.found.capability)
    if not clock or not memory_clock or not width or tensor is None:
        return None
    cycles = 1e3 * clock * device.features.compute_units  # of all multiprocessors; clocks are in kHz
    plain = _FLOAT32.get(device.found.capability, 256)  # since 8.6
    return Peak(0.8 * cycles * tensor, 0.8 * cycles * plain, 0.9 * 2e3 * memory_clock * width / 8)


def work(graph: Graph, features: Features, half: bool) -> Work:
    """Of a lowered graph, after the passes that litegpu runs it through."""
    placed = place(optimise(graph, features), half).graph
    costs = [node_cost(placed, node, half) for node in placed.nodes]
    return Work(sum(cost.flops for cost in costs), sum(cost.bytes for cost in costs), len(costs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths or names (default: those of the performance page)")
    parser.add_argument("--batches", default="1,64")
    args = parser.parse_args()
    try:
        from litegpu.gpu.backends.registry import open_device

        device = open_device("cuda")
        peak, features = peak_of(device) or H200, device.features
        print(f"{device}: {peak}")
    except DeviceError as error:
        peak, features = H200, Features(float16=True, subgroups=True, subgroup_size=32, max_buffers=64)
        print(f"H200 ({error}): {peak}")
    for path in find_models(args.models) if args.models else find_models():
        for batch in map(int, args.batches.split(",")):
            _, graph = lowered(path, batch)
            for half in (True, False):
                least = work(graph, features, half)
                print(
                    f"{path.stem} batch {batch} {'float16' if half else 'float32'}: "
                    f"{least.operations / 1e9:.2f} GFLOP, {least.bytes / 1e6:.1f} MB, {least.kernels} kernels; "
                    f"roofline {least.roofline(peak, half) * 1e6:.1f} us, "
                    f"launch floor {least.launch_floor * 1e6:.1f} us",
                    flush=True,
                )


if __name__ == "__main__":
    main()
