"""Run the op sweep's small cases under NVIDIA's compute-sanitizer: memcheck and racecheck.

    python benchmarks/cuda_sanitize.py [--tools memcheck,racecheck] [--ops CONV_2D,...] [--cases 2]
                                       [--time-limit SECONDS]

Every op of tests/op_cases.py with its first --cases parameters and one small network, in float32 and float16, all in
one process. Exit status 1 if the sanitizer found anything, a result was wrong, or there is no sanitizer (it comes with
the CUDA toolkit).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS), help="of compute-sanitizer (default: %(default)s)")
    parser.add_argument("--ops", default="", help="names of the sweep, separated by commas (default: all)")
    parser.add_argument("--cases", type=int, default=2, help="parameters of each op (default: %(default)s)")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds for each tool (default: %(default)s)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return run_cases([op for op in args.ops.split(",") if op], args.cases, args.time_limit)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        print("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin: install the CUDA toolkit")
        return 1
    inside = [sys.executable, __file__, "--inside", "--ops", args.ops, "--cases", str(args.cases)]
    inside += ["--time-limit", str(args.time_limit)]
    failed = False
    for tool in args.tools.split(","):
        print(f"{tool}:", flush=True)
        started = time.monotonic()
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", *inside]
        status = subprocess.run(command, check=False).returncode
        found = {0: "clean", 9: "errors found"}.get(status, f"exit status {status}")
        print(f"{tool}: {found} after {time.monotonic() - started:.0f} s", flush=True)
        failed |= status != 0
    return int(failed)


def run_cases(ops: list[str], cases: int, time_limit: float) -> int:
    """Run each case on CUDA and compare with the official runtime; what the sanitizer watches."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, random_inputs, run
    from cuda_measure import small_model
    from op_cases import CASES

    from litegpu.gpu.backends.cuda.passes import separable

    separable.LEAST_PIXELS = 1  # so that the network uses the joint kernel
    network = small_model()

    unknown = [op for op in ops if op not in CASES]
    if unknown:
        print(f"unknown ops: {', '.join(unknown)}; there are {', '.join(CASES)}")
        return 1
    started, count, wrong = time.monotonic(), 0, 0
    todo = [(f"{op} (seed {seed})", op, seed) for seed in range(cases) for op in ops or CASES]
    for name, op, seed in [*todo, ("the network", "", 0)]:
        if time.monotonic() - started > time_limit:
            print(f"stopped after {time_limit:.0f} s and {count} cases: give a larger --time-limit")
            return 1
        case = CASES[op](random.Random(f"{op} {seed}")) if op else None
        content = case.content if case is not None else network
        cpu = official(content)
        inputs = case.inputs if case is not None else random_inputs(cpu)
        wanted = run(cpu, inputs)
        for half in (False, True):
            gpu = on_gpu(content, precision_loss_allowed=half, max_delegated_partitions=0, backend="cuda")
            try:
                for got, want in zip(run(gpu, inputs), wanted, strict=True):
                    assert_agrees(got, want, FLOAT16 if half else FLOAT32, name)
            except AssertionError as error:
                print(error)
                wrong += 1
            gpu.close()
            count += 1
    print(f"{count} cases, {wrong} wrong, {time.monotonic() - started:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    os.chdir(ROOT)
    raise SystemExit(main())
