"""Check that inferences and sessions leak neither host nor device memory.

    python benchmarks/cuda_leak.py [--inferences 100000] [--sessions 200]

A small model on CUDA: many inferences of one interpreter, then many interpreters opened and closed. Memory is read
after a tenth of each and at the end: this process's resident set, and what the device has in use. Exit status 1 if
either grows by more than --allowed MiB.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable

import numpy as np
from cuda.bindings import driver
from cuda_measure import small_model

import litegpu

MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inferences", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--allowed", type=float, default=8, help="MiB of growth (default: %(default)s)")
    args = parser.parse_args()
    content = small_model()
    interpreter = opened(content)
    failed = grows("inferences", args.inferences, lambda: infer(interpreter), args.allowed)
    interpreter.close()

    def open_and_close() -> None:
        one = opened(content)
        infer(one)
        one.close()

    failed |= grows("interpreters", args.sessions, open_and_close, args.allowed)
    return int(failed)


def opened(content: bytes) -> litegpu.Interpreter:
    delegate = litegpu.GpuDelegate(backend="cuda", precision_loss_allowed=True)
    interpreter = litegpu.Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    return interpreter


def infer(interpreter: litegpu.Interpreter) -> np.ndarray:
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], np.ones(detail["shape"], detail["dtype"]))
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def grows(what: str, count: int, work: Callable[[], object], allowed: float) -> bool:
    """Whether memory grew by more than `allowed` MiB while `work` was done, from a tenth of `count` to all of it."""
    first = max(1, count // 10)
    started = time.monotonic()
    for _ in range(first):
        work()
    before = memory()
    for _ in range(count - first):
        work()
    after = memory()
    host, device = ((b - a) / MIB for a, b in zip(before, after, strict=True))
    print(
        f"{count} {what} in {time.monotonic() - started:.1f} s: host memory {before[0] / MIB:.1f} to "
        f"{after[0] / MIB:.1f} MiB ({host:+.2f}), device memory {before[1] / MIB:.1f} to {after[1] / MIB:.1f} MiB "
        f"({device:+.2f})",
        flush=True,
    )
    return host > allowed or device > allowed


def memory() -> tuple[int, int]:
    """Bytes: resident in this process, and in use on the device, by whomever."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    context = litegpu.GpuDelegate(backend="cuda").open_device().context  # type: ignore[attr-defined]
    with context:
        _, free, total = driver.cuMemGetInfo()
    return resident, total - free


if __name__ == "__main__":
    raise SystemExit(main())
