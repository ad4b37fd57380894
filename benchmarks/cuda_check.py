"""Check models on an NVIDIA GPU against the official CPU runtime, and time them.

    python benchmarks/cuda_check.py MODEL.tflite ... [--repeats 200] [--kernels]
                                    [--programmatic on|off|both] [--wait active|passive|both]

For each model, in float32 and float16: the relative L2 error of each output, the GPU time of all kernels (graphs of the
kernels alone, back to back), the median time from host to host (write, run, read), the number of kernels, and the
seconds to build. --kernels adds the slowest kernels.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from litegpu.errors import DeviceError
from litegpu.gpu.build import build_program
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.program import Program
from litegpu.gpu.runtime.cuda import open_device
from litegpu.model.reader import read_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--programmatic", choices=("on", "off", "both"), default="both")
    parser.add_argument("--wait", choices=("active", "passive", "both"), default="active")
    parser.add_argument("--kernels", action="store_true")
    args = parser.parse_args()
    device = open_device()
    print(f"{device}; {device.info.driver}; {device.features}", flush=True)
    failed = 0
    for path, half in itertools.product(args.models, (False, True)):
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
    graph = read_model(path.read_bytes()).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    started = time.perf_counter()
    program = build_program(lowered.graph, device.features, device.target, half=half)
    printed = time.perf_counter() - started
    for programmatic, wait in itertools.product(_choices(args.programmatic, "on"), _choices(args.wait, "active")):
        device.programmatic = programmatic
        started = time.perf_counter()
        session = device.session(program, wait="active" if wait else "passive")
        built = time.perf_counter() - started
        try:
            errors = [_error(got, want) for got, want in zip(infer(session, program, inputs), wanted, strict=True)]
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


def infer(session: Any, program: Program, inputs: list[np.ndarray]) -> list[np.ndarray]:
    for i, array in enumerate(inputs):
        session.write(i, array)
    session.run()
    outputs = [np.empty(p.nbytes // 4, np.float32 if p.dtype.name == "FLOAT32" else np.int32) for p in program.outputs]
    for i, out in enumerate(outputs):
        session.read(i, out)
    return outputs


def host_to_host(session: Any, program: Program, inputs: list[np.ndarray], repeats: int) -> float:
    """The median seconds of write, run and read."""
    outputs = infer(session, program, inputs)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for i, array in enumerate(inputs):
            session.write(i, array)
        session.run()
        for i, out in enumerate(outputs):
            session.read(i, out)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def reference(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random inputs and the official runtime's outputs."""
    official = Interpreter(
        str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, num_threads=4
    )
    official.allocate_tensors()
    rng = np.random.default_rng(0)
    inputs = []
    for detail in official.get_input_details():
        kind = np.dtype(detail["dtype"])
        values = rng.standard_normal(detail["shape"]) if kind.kind == "f" else rng.integers(0, 2, detail["shape"])
        inputs.append(np.ascontiguousarray(values.astype(kind)))
        official.set_tensor(detail["index"], inputs[-1])
    official.invoke()
    return inputs, [np.array(official.get_tensor(d["index"])) for d in official.get_output_details()]


def _choices(option: str, yes: str) -> list[bool]:
    return [True, False] if option == "both" else [option == yes]


def _error(got: np.ndarray, want: np.ndarray) -> float:
    """Relative L2; infinite if anything that should be a finite number is not."""
    got, want = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    if not np.isfinite(got[np.isfinite(want)]).all():
        return float("inf")
    return float(np.linalg.norm(np.nan_to_num(got - want)) / max(np.linalg.norm(np.nan_to_num(want)), 1e-30))


def _microseconds(stats: Any) -> str:
    return ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in stats.items() if seconds < 0.05)


if __name__ == "__main__":
    try:
        main()
    except DeviceError as error:
        raise SystemExit(f"no CUDA device: {error}") from None
