"""Run small cases under NVIDIA's compute-sanitizer: memcheck and racecheck.

    python benchmarks/cuda_sanitize.py [--tools memcheck,racecheck] [--ops CONV_2D,...] [--cases 2]
                                       [--time-limit SECONDS]
    python benchmarks/cuda_sanitize.py --kernels all [--tools ...] [--jobs 4]

Every op of tests/op_cases.py with its first --cases parameters and one small network, in float32 and float16, all in
one process; or with --kernels some tests of each native kernel, which choose its tiles, in --jobs processes at once.
Exit status 1 if the sanitizer found anything, a result was wrong, or there is no sanitizer (it comes with the CUDA
toolkit).
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
#: Of each native kernel the file of its tests (test_*.py of tests/gpu/backends/cuda/kernels) and which of them.
KERNELS = {
    "attention": ("attention", "vision or mask or nan"),
    "float_attention": ("attention", "floats and (vision or no_numbers)"),
    "byte_convolution": ("byte_products", "test_tiles or (test_cases and (zero or four)) or turing"),
    "byte_depthwise": ("byte_depthwise", "test_cases and pixels1"),
    "byte_inverted": ("byte_inverted", "first_layer or (test_inverted and shape0) or (separable and shape1)"),
    "byte_matvec": ("byte_matvec", "test_cases"),
    "byte_pool": ("pool", "test_cases"),
    "byte_softmax": ("softmax", "lanes_begin or odd_lengths or (test_rows and (shape0 or shape7))"),
    "columns": ("columns", "divided or True-100 or (some_tiles and residual)"),
    "depthwise": ("depthwise", "test_whole or test_blocks or (test_windows and block1 and op1)"),
    "group_norm": ("group_norm", "test_groups and (8-256 or 1-64) or nan or wider"),
    "float_convolution": ("float_convolution", "rows_of_any or infinities or (some_tiles and (deep or residual))"),
    "grouped": ("grouped", "infinite or (test_cases and 1x6x3)"),
    "halo": ("halo", "some_tiles and (2x2 or w3) and (same or strided or wide)"),
    "inverted": ("inverted", "nan or test_blocks or (test_activations and 16)"),
    "long_depthwise": ("long_depthwise", "test_blocks or test_whole or (test_strides and 8-float16)"),
    "lstm": ("lstm", "(divisions and (4-2 or 8-8)) or sequences"),
    "matmul": ("matmul", "leading or (layouts and True-False)"),
    "mean": ("mean", "test_tiles or rounded"),
    "pair": ("pair", "test_tiles or test_sizes"),
    "patch": ("patch", "random"),
    "persistent": ("persistent", "some_tiles and (residual or window) or test_whole"),
    "pingpong": ("pingpong", "elsewhere or (test_tiles and 3 and (residual or deep)) or (whole and two)"),
    "places": ("places", "agrees"),
    "prologue": ("prologue", "float32_input or nan or strides or (few and relu)"),
    "row_norm": ("row_norm", "chosen or where_they_were or windows_of or (specialized and True-100)"),
    "rows": ("matvec", "(rows and 3-float) or (windows and op2) or beside"),
    "runs": ("runs", "staying or multiply or border or halves"),
    "separable": ("separable", "nan or (windows and op1)"),
    "short_attention": ("short_attention", "random or nan or (agrees and qkv)"),
    "specialized": ("specialized", "whole or requantized or (some_tiles and (deep or strided or residual))"),
    "squeeze": ("squeeze", "(against and (odd or batch)) or test_tiles"),
    "stem": ("stem", "cases or whole"),
    "tensor_lstm": ("tensor_lstm", "divisions or (layouts and inner)"),
    "tf32": ("convolution", "tensor_cores"),
    "tiles": ("convolution", "some or strided or (channels and taps1-12)"),
    "told": ("told", "numpy and (both or roots or turned)"),
    "transpose": ("transpose", "case0 or case1 or case3"),
    "warpgroup_attention": ("warpgroup_attention", "random or nan"),
    "widening": ("widening", "test_blocks or (test_bytes and shape0)"),
    "wide_stem": ("wide_stem", "test_cases or test_whole"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS), help="of compute-sanitizer (default: %(default)s)")
    parser.add_argument("--ops", default="", help="names of the sweep, separated by commas (default: all)")
    parser.add_argument("--cases", type=int, default=2, help="parameters of each op (default: %(default)s)")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds for each tool (default: %(default)s)")
    parser.add_argument("--kernels", default="", help=f"all, or some of {', '.join(KERNELS)}, instead of ops")
    parser.add_argument("--jobs", type=int, default=1, help="processes of --kernels (default: %(default)s)")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    kernels = [name for name in args.kernels.split(",") if name]
    if kernels == ["all"]:
        kernels = list(KERNELS)
    if unknown := set(kernels) - set(KERNELS):
        parser.error(f"unknown kernels: {', '.join(unknown)}; there are {', '.join(KERNELS)}")
    if args.inside:
        if kernels:
            return run_tests(kernels)
        return run_cases([op for op in args.ops.split(",") if op], args.cases, args.time_limit)
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        print("compute-sanitizer is neither on PATH nor in /usr/local/cuda/bin: install the CUDA toolkit")
        return 1
    if kernels:
        shares = [kernels[i :: args.jobs] for i in range(min(args.jobs, len(kernels)))]
        inside = [["--kernels", ",".join(share)] for share in shares]
    else:
        inside = [["--ops", args.ops, "--cases", str(args.cases), "--time-limit", str(args.time_limit)]]
    failed = False
    started = time.monotonic()
    for tool in args.tools.split(","):
        command = [sanitizer, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", sys.executable, __file__]
        running = [subprocess.Popen([*command, "--inside", *one]) for one in inside]
        statuses = [one.wait() for one in running]
        found = {0: "clean", 9: "errors found"}
        told = ", ".join(dict.fromkeys(found.get(status, f"exit status {status}") for status in statuses))
        print(f"{tool}: {told} after {time.monotonic() - started:.0f} s", flush=True)
        failed |= any(statuses)
    return int(failed)


def run_tests(kernels: list[str]) -> int:
    """Tests of kernels, which compare with definitions in NumPy; what the sanitizer watches."""
    import pytest

    sys.path[:0] = [str(ROOT / "src")]
    status = 0
    for name in kernels:
        file, chosen = KERNELS[name]
        path = ROOT / "tests" / "gpu" / "backends" / "cuda" / "kernels" / f"test_{file}.py"
        print(f"{name}:", flush=True)
        options = ["-q", "-p", "no:cacheprovider", "-m", "cuda and not slow", "-k", chosen]
        status = max(status, pytest.main([*options, str(path)]))  # 5: nothing was chosen, which is wrong here
    return int(status)


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
