"""From NumPy to NumPy: how long a call of a loaded model takes, where the time goes, and PyTorch beside it.

    python benchmarks/host_to_host.py [--models ...] [--batches 1 64] [--precision float16] [--peers DIR | --no-peers]

Needs an NVIDIA GPU. Milliseconds, medians of single calls:

    new     model(x) with an array that was never seen before, and a result that is dropped after the next call
    again   the same with one of four arrays in turn
    pinned  the same with arrays of empty_input()
    named   `again`, when only the smallest output is asked for, where there are several
    kept    `new`, by a caller who keeps all results (few rounds)
    GPU     all kernels, from graphs launched back to back
    copies  the inputs and outputs over the bus, in pinned memory, in turn
    write, submit, wait, read: the parts of the last call of `again` as the session counts them
    torch   a CUDA graph of the same network between copies from and to pinned memory, that is without any copy on the
            host; `fresh` also makes pinned memory of a new array and a NumPy array of the results

Every result is compared with that of the first call.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cuda_measure import find_models
from peers import find_folder

import litegpu
from litegpu.stream import only_kernel

MODELS = ("mobilenet_v1_1.0_224_random", "deeplabv3_257_mv_gpu", "style_transfer_f16_384")
KEPT_BYTES = 2 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--precision", default="float16", choices=("float16", "float32"))
    parser.add_argument("--seconds", type=float, default=0.4, help="that each figure is measured for, about")
    parser.add_argument("--peers", type=Path)
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    folder = None if args.no_peers else find_folder(args.peers)
    wrong = 0
    for path in find_models(args.models):
        for batch in args.batches:
            row = measured(str(path), batch, args.precision, args.seconds)
            wrong += row.pop("wrong")
            if folder is not None:
                row.update(by_torch(folder, str(path), batch, args.precision, args.seconds))
            figures = "  ".join(f"{name} {1e3 * seconds:.4f}" for name, seconds in row.items())
            print(f"{path.stem} batch {batch} {args.precision}: {figures}", flush=True)
    if wrong:
        print(f"{wrong} results were wrong")
    return 1 if wrong else 0


def measured(path: str, batch: int, precision: str, seconds: float) -> dict[str, Any]:
    with litegpu.load(path, "cuda", precision) as model:
        shapes = {name: (batch, *detail["shape"][1:]) for name, detail in model.inputs.items()}
        items = [
            {name: np.random.default_rng(i).random(shape, np.float32) for name, shape in shapes.items()}
            for i in range(4)
        ]
        expected = [_sums(model(x)) for x in items]
        checks = Checks(expected)
        route = only_kernel(model)
        assert route is not None
        session: Any = route.kernel.session
        row: dict[str, Any] = {}
        numbers = itertools.count()

        def called(arrays: Callable[[int], dict[str, np.ndarray]], **how: Any) -> float:
            def call() -> float:
                number = next(numbers) % 4
                x = arrays(number)
                started = time.perf_counter()
                found = model(x, **how)
                took = time.perf_counter() - started
                if not how:
                    checks.look(number, found)
                return took

            return median(call, seconds)

        row["new"] = called(lambda i: copied(items[i]))
        row["again"] = called(lambda i: items[i])
        stats = dict(session.stats)
        pinned = [{name: model.empty_input(name, batch) for name in shapes} for _ in items]
        for arrays, item in zip(pinned, items, strict=True):
            for name, array in arrays.items():
                array[...] = item[name]
        row["pinned"] = called(lambda i: pinned[i])
        details = model.outputs
        if len(details) > 1:
            smallest = min(details, key=lambda name: int(np.prod(details[name]["shape"])))
            row["named"] = called(lambda i: items[i], outputs=smallest)
        kept: list[Any] = []
        result_bytes = sum(port.nbytes for port in session.program.outputs)
        times = []
        for i in range(max(2, min(100, KEPT_BYTES // result_bytes))):
            x = copied(items[i % 4])
            started = time.perf_counter()
            kept.append(model(x))
            times.append(time.perf_counter() - started)
        row["kept"] = statistics.median(times)
        for i, found in enumerate(kept):
            checks.look(i % 4, found)
        kept.clear()
        row["GPU"] = session.time_graph(max(5, min(300, int(seconds / (2 * row["again"])))))
        row["copies"] = bus_seconds(session)
        row |= {name: stats[name] for name in ("write", "submit", "wait", "read")}
        row["wrong"] = checks.wrong
        return row


def copied(item: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in item.items()}


class Checks:
    """Compares results, by a few of their elements and by their sum."""

    def __init__(self, expected: list[list[np.ndarray]]) -> None:
        self._expected = expected
        self.wrong = 0

    def look(self, number: int, found: Any) -> None:
        same = zip(self._expected[number], _sums(found), strict=True)
        self.wrong += not all(np.array_equal(a, b) for a, b in same)


def _sums(found: Any) -> list[np.ndarray]:
    arrays = list(found.values()) if isinstance(found, dict) else [found]
    return [array.reshape(-1)[:: max(1, array.size // 997)].copy() for array in arrays]


def median(call: Callable[[], float], seconds: float) -> float:
    """Of what `call` says it took."""
    first = min(call() for _ in range(4))
    times = [call() for _ in range(max(8, min(1000, int(seconds / max(first, 1e-5)))))]
    return statistics.median(times)


def bus_seconds(session: Any) -> float:
    """Of copies of all ports, from and to pinned memory."""
    from cuda.bindings import driver

    program, device = session.program, session.device
    stream = driver.CUstream(session.stream)
    with device.context:
        host = [device.pinned((port.nbytes,), np.dtype(np.uint8)) for port in (*program.inputs, *program.outputs)]
        places = [session.place(port) for port in (*program.inputs, *program.outputs)]

        def copied() -> float:
            started = time.perf_counter()
            for i, (array, place) in enumerate(zip(host, places, strict=True)):
                if i < len(program.inputs):
                    driver.cuMemcpyHtoDAsync(place, array.ctypes.data, array.nbytes, stream)
                else:
                    driver.cuMemcpyDtoHAsync(array.ctypes.data, place, array.nbytes, stream)
            driver.cuStreamSynchronize(stream)
            return time.perf_counter() - started

        return median(copied, 0.1)


def by_torch(folder: Path, path: str, batch: int, precision: str, seconds: float) -> dict[str, float]:
    """Seconds of PyTorch's CUDA graph between copies."""
    import torch

    sys.path.insert(0, str(folder))
    from tflite_torch import Net  # type: ignore[import-not-found]

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    net = Net(path, getattr(torch, precision)).eval()
    inputs = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in net.inputs(batch)]
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                net(*inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = net(*inputs)
        hosts = [x.float().cpu().pin_memory() for x in inputs]
        results = [torch.empty(y.shape, dtype=torch.float32).pin_memory() for y in outputs]
        arrays = [x.float().cpu().numpy() for x in inputs]

        def call() -> float:
            started = time.perf_counter()
            for x, host in zip(inputs, hosts, strict=True):
                x.copy_(host, non_blocking=True)
            graph.replay()
            for y, host in zip(outputs, results, strict=True):
                host.copy_(y.float(), non_blocking=True)
            torch.cuda.synchronize()
            return time.perf_counter() - started

        def fresh() -> float:
            started = time.perf_counter()
            for x, array in zip(inputs, arrays, strict=True):
                x.copy_(torch.from_numpy(array))
            graph.replay()
            found = [y.float().cpu().numpy() for y in outputs]
            took = time.perf_counter() - started
            assert found
            return took

        return {"torch": median(call, seconds / 2), "torch fresh": median(fresh, seconds / 2)}


if __name__ == "__main__":
    sys.exit(main())
