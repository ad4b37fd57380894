"""Check models on an NVIDIA GPU against the official CPU runtime, and time them.

    python benchmarks/cuda_check.py [MODEL ...] [--repeats 200] [--kernels]
                                    [--programmatic on|off|both] [--wait active|passive|both]

For each model, in float32 and float16: the relative L2 error of each output, the GPU time of all kernels (graphs of the
kernels alone, back to back), the median time from host to host (write, run, read), the number of kernels, and the
seconds to build. --kernels adds the slowest kernels.
"""

from __future__ import annotations

import argparse
import itertools
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from cuda_measure import build, find_models, host_to_host, infer, lowered, reference, relative_error

from litegpu.errors import DeviceError
from litegpu.gpu.backends.registry import open_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="paths or names (default: those of the performance page)")
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--programmatic", choices=("on", "off", "both"), default="both")
    parser.add_argument("--wait", choices=("active", "passive", "both"), default="active")
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    device = open_device("cuda")
    print(f"{device}; {device.info.driver}; {device.features}", flush=True)
    failed = 0
    for path, half in itertools.product(find_models(args.models) if args.models else find_models(), (False, True)):
        name = f"{path.stem} {'float16' if half else 'float32'}"
        try:
            check(device, path, half, name, args)
        except Exception:
            failed += 1
            print(f"{name}: FAILED")
            traceback.print_exc()
            if device.lost:
                raise SystemExit("the device was lost") from None
    raise SystemExit(f"{failed} failed" if failed else 0)


def check(device: Any, path: Path, half: bool, name: str, args: argparse.Namespace) -> None:
    inputs, wanted = reference(path)
    _, graph = lowered(path)
    started = time.perf_counter()
    program = build(device, graph, half)
    printed = time.perf_counter() - started
    for programmatic, wait in itertools.product(_choices(args.programmatic, "on"), _choices(args.wait, "active")):
        device.programmatic = programmatic
        started = time.perf_counter()
        session = device.session(program, wait="active" if wait else "passive")
        built = time.perf_counter() - started
        try:
            errors = [
                relative_error(got, want) for got, want in zip(infer(session, program, inputs), wanted, strict=True)
            ]
            again = infer(session, program, inputs)
            repeatable = all(map(np.array_equal, again, infer(session, program, inputs)))
            latency = host_to_host(session, program, inputs, args.repeats)
            gpu = session.time_graph(args.repeats)
            print(
                f"{name}, programmatic launch {'on' if programmatic else 'off'}, {session.wait} wait: error "
                f"{' '.join(f'{e:.1e}' for e in errors)}{'' if repeatable else ' NOT REPEATABLE'}; "
                f"GPU {gpu * 1e6:.1f} us, host to host {latency * 1e6:.1f} us; {len(program.dispatches)} kernels; "
                f"built in {printed:.2f} + {built:.2f} s; stats {_microseconds(session.stats)}",
                flush=True,
            )
            if args.kernels:
                for row in sorted(session.profile(), key=lambda row: -row.seconds)[:20]:
                    print(f"    {row.seconds * 1e6:8.2f} us  {row.label}")
        finally:
            session.close()


def _choices(option: str, yes: str) -> list[bool]:
    return [True, False] if option == "both" else [option == yes]


def _microseconds(stats: Any) -> str:
    return ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in stats.items() if seconds < 0.05)


if __name__ == "__main__":
    try:
        main()
    except DeviceError as error:
        raise SystemExit(f"no CUDA device: {error}") from None
