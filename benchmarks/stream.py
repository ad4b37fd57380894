"""Many inferences in a row: one call after the other, and LoadedModel.stream(), beside what the GPU and the bus allow.

    python benchmarks/stream.py [--model mobilenet_v1_1.0_224_random] [--precision float16] [--batches 1 64]

Needs an NVIDIA GPU. Inputs are NumPy arrays in ordinary memory, eight different ones in turn. Milliseconds for each
inference:

    compute    all kernels, from graphs launched back to back
    copy       the inputs from pinned memory to the device and the outputs back, nothing else
    staging    the copy from ordinary to pinned memory, by several threads if it is large
    calls      model(x), one after the other
    stream     model.stream(...), for several numbers of inferences in flight, of ordinary arrays and of arrays that
               model.empty_input() gave
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Any

import numpy as np
from cuda_measure import find_models

import litegpu
from litegpu.host_copy import copy_bytes
from litegpu.stream import only_kernel

SECONDS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v1_1.0_224_random")
    parser.add_argument("--precision", default="float16", choices=("float16", "float32"))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--ahead", type=int, nargs="+", default=[2, 3, 4])
    args = parser.parse_args()
    path = str(find_models([args.model])[0])
    for batch in args.batches:
        with litegpu.load(path, "cuda", args.precision) as model:
            shape = (batch, *next(iter(model.inputs.values()))["shape"][1:])
            items = [np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(8)]
            model(items[0])
            route = only_kernel(model)
            assert route is not None
            session: Any = route.kernel.session
            compute = session.time_graph(300)
            copy, staging = copies(session, items)
            calls = rate(model(x) for x in itertools.cycle(items))
            print(f"{path}, {args.precision}, batch {batch}, {session.device.info.name}; ms per inference")
            print(f"  compute {1e3 * compute:.4f}  copy {1e3 * copy:.4f}  staging {1e3 * staging:.4f}")
            print(f"  calls      {1e3 * calls:.4f}")
            pinned = [model.empty_input(batch=batch) for _ in items]
            for array, item in zip(pinned, items, strict=True):
                array[...] = item
            for ahead, kind in itertools.product(args.ahead, ("numpy", "pinned")):
                found = rate(model.stream(itertools.cycle(items if kind == "numpy" else pinned), ahead))
                print(
                    f"  stream {ahead} {kind:<6} {1e3 * found:.4f}: {calls / found:.2f} times the rate of calls, "
                    f"{found / max(compute, copy):.2f} times the larger of compute and copy",
                    flush=True,
                )
    return 0


def rate(results: Any) -> float:
    """Seconds for each result."""
    iterator = iter(results)
    for _ in range(20):
        next(iterator)
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        for _ in range(10):
            next(iterator)
        count += 10
    seconds = (time.perf_counter() - started) / count
    iterator.close()
    return seconds


def copies(session: Any, items: list[np.ndarray]) -> tuple[float, float]:
    """Seconds of the copies over the bus, and of staging the input."""
    from cuda.bindings import driver

    program, device = session.program, session.device
    stream = driver.CUstream(session.stream)
    ports = [(port, memory, driver.cuMemcpyHtoDAsync, True) for port, memory in
             zip(program.inputs, session.memory.inputs, strict=True)]  # fmt: skip
    ports += [(port, session.memory.output(i), driver.cuMemcpyDtoHAsync, False)
              for i, port in enumerate(program.outputs)]  # fmt: skip
    times = []
    with device.context:
        for _ in range(30):
            started = time.perf_counter()
            for _ in range(10):
                for port, memory, copy, up in ports:
                    host, place = memory.ctypes.data, session.place(port)
                    copy(*((place, host) if up else (host, place)), port.nbytes, stream)
            driver.cuStreamSynchronize(stream)
            times.append((time.perf_counter() - started) / 10)
    staged = []
    for item in items * 4:
        started = time.perf_counter()
        copy_bytes(session.memory.inputs[0], item.reshape(-1).view(np.uint8))
        staged.append(time.perf_counter() - started)
    return float(np.median(times)), float(np.median(staged))


if __name__ == "__main__":
    sys.exit(main())
