"""Host to host through WebGPU at batch 1: where the time goes, part by part.

    python benchmarks/webgpu_latency.py [MODEL ...] [--backend vulkan] [--precision float16] [--kernels N] [--copies]

For each model the median microseconds of model(x); of set_tensor, invoke and get_tensor together and one by one (set,
invoke, get), and of their parts: copying inputs into mapped memory (write), handing the staging buffers over (unmap),
submitting (submit), asking for the staging buffers (map), encoding the next inference (encode, finish), waiting after
that (wait), looking for what is not finite (look) and copying results (give). Beside them the GPU's time of all
dispatches in one pass. The parts are taken in another series, as the clocks take time themselves, and all after
--warm-up seconds in which the GPU's clocks rise. --kernels N adds the slowest kernels, each in a pass of its own,
beside what operations and bytes allow on an H200; --copies what copying the results costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda_measure import find_models, median_seconds, repeats_within
from families import slowest

import litegpu
from litegpu.gpu.backends.webgpu import replay as replays
from litegpu.gpu.delegate import kernel as kernels
from litegpu.gpu.delegate.second_attempt import all_finite
from litegpu.host_copy import copy_bytes

#: Name of a part -> methods whose time it is.
PARTS = {
    "set": ("interpreter", "set_tensor"),
    "invoke": ("interpreter", "invoke"),
    "get": ("interpreter", "get_tensor"),
    "write": ("session", "write"),
    "unmap": ("replay", "unmap"),
    "submit": ("replay", "submit"),
    "map": ("replay", "map"),
    "encode": ("replay", "encode"),
    "finish": ("replay", "finish"),
    "wait": ("replay", "wait"),
    "look": ("kernel", "_second_attempt"),
    "give": ("session", "give"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths or names (default: those of the performance page)")
    parser.add_argument("--backend", default="vulkan")
    parser.add_argument("--precision", default="float16")
    parser.add_argument("--seconds", type=float, default=0.5, help="about how long each series takes")
    parser.add_argument("--warm-up", type=float, default=0.5)
    parser.add_argument("--kernels", type=int, default=0)
    parser.add_argument("--copies", action="store_true")
    args = parser.parse_args()
    for path in find_models(args.models) if args.models else find_models():
        measure(path, args)


def measure(path: Path, args: argparse.Namespace) -> None:
    delegate = litegpu.GpuDelegate(backend=args.backend, precision=args.precision)
    interpreter = litegpu.Interpreter(str(path), experimental_delegates=[delegate], fallback="strict")
    interpreter.allocate_tensors()
    kernel = next(p.kernel() for p in delegate.prepared if p.alive)
    assert kernel is not None
    random = np.random.default_rng(0)
    inputs = [(d["index"], random.random(d["shape"], np.float32)) for d in interpreter.get_input_details()]
    outputs = [d["index"] for d in interpreter.get_output_details()]

    def once() -> None:
        for index, array in inputs:
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        for index in outputs:
            interpreter.get_tensor(index)

    until = time.perf_counter() + args.warm_up
    while time.perf_counter() < until:
        once()
    repeats = repeats_within(args.seconds, median_seconds(once, 5))
    whole = median_seconds(once, repeats)
    given = [array for _, array in inputs]
    with litegpu.load(path, delegate=litegpu.GpuDelegate(backend=args.backend, precision=args.precision)) as model:
        model(*given)
        called = median_seconds(lambda: model(*given), repeats)
    with parts_of(kernel) as spent:
        series = [spent_in(once, spent) for _ in range(repeats)]
    medians = {name: statistics.median(one[name] for one in series) for name in PARTS}
    session: Any = kernel.session
    gpu = session.time_graph() if session.device.features.timestamps else float("nan")
    listed = " ".join(f"{name} {1e6 * seconds:.0f}" for name, seconds in medians.items())
    count = len(session.program.dispatches)
    times = f"model(x) {1e6 * called:.0f} us, interpreter {1e6 * whole:.0f}"
    print(f"{path.stem}: {times}; {listed}; GPU {1e6 * gpu:.0f}, {count} dispatches", flush=True)
    for row in slowest(path, session, args.kernels) if args.kernels else ():
        spent, limit = 1e6 * row["seconds"], 1e6 * row["limit"]
        print(f"  {spent:7.1f} us {100 * row['share']:3.0f}%  limit {limit:6.2f}  {row['label']}")
    if args.copies:
        copies(session)
    interpreter.close()


@contextmanager
def parts_of(kernel: kernels.GpuKernel) -> Iterator[defaultdict[str, float]]:
    """Seconds by part, while the methods are timed."""
    spent: defaultdict[str, float] = defaultdict(float)
    objects: dict[str, Any] = {
        "interpreter": litegpu.Interpreter,
        "session": type(kernel.session),
        "replay": replays.Replay,
        "kernel": type(kernel),
    }
    before = {name: getattr(objects[owner], method) for name, (owner, method) in PARTS.items()}

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return method(*args, **named)
            finally:
                spent[name] += time.perf_counter() - started

        return call

    try:
        for name, (owner, method) in PARTS.items():
            setattr(objects[owner], method, timed(name, before[name]))
        yield spent
    finally:
        for name, (owner, method) in PARTS.items():
            setattr(objects[owner], method, before[name])


def spent_in(call: Callable[[], None], spent: defaultdict[str, float]) -> dict[str, float]:
    spent.clear()
    call()
    return {name: spent[name] for name in PARTS}


def copies(session: Any) -> None:
    """What copying the largest output costs."""
    mapped = max(session._buffers.outputs, key=len)
    plain, target = np.array(mapped), np.empty(len(mapped), np.uint8)
    target[:] = 0
    kinds: dict[str, Callable[[], object]] = {
        "mapped to fresh, one thread": lambda: np.copyto(np.empty_like(target), mapped),
        "mapped to fresh": lambda: copy_bytes(np.empty_like(target), mapped),
        "mapped to used, one thread": lambda: np.copyto(target, mapped),
        "mapped to used": lambda: copy_bytes(target, mapped),
        "plain to used, one thread": lambda: np.copyto(target, plain),
        "plain to used": lambda: copy_bytes(target, plain),
        "isfinite of plain": lambda: all_finite([plain.view(np.float32)]),
        "isfinite of mapped": lambda: all_finite([mapped.view(np.float32)]),
    }
    found = ", ".join(f"{name} {1e6 * median_seconds(call, 40):.0f}" for name, call in kinds.items())
    print(f"  {len(mapped)} bytes, us: {found}", flush=True)


if __name__ == "__main__":
    main()
