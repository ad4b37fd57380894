"""How long a model takes to be ready: without a cache, while one is filled, and from a full one.

    python benchmarks/startup.py [--models deeplabv3_257_mv_gpu ...] [--backend cuda] [--precision float16] [--rounds 5]

Every figure is from processes of their own, medians over the rounds, in milliseconds:

    ready    from Interpreter(...) to the end of allocate_tensors(), in a process that has opened the device
    first    the first invoke() after that
    process  the whole process, from its start to its end: Python, imports, driver, device, ready, first

and, with a full cache, from the first import to the first result of load() and a call, and where that goes: the import
of NumPy, that of litegpu, load(), the call. Modules have their byte code, as pip leaves them, in a folder of this
benchmark's.

Peers to compare with: the official wheel's GPU path takes 0.6 to 1.7 s for "ready", every time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cuda_measure import find_models

CHILD = """
import json, sys, time
import litegpu
path, backend, half, folder = sys.argv[1:]
delegate = litegpu.GpuDelegate(
    backend=backend, precision_loss_allowed=half == "float16", serialization_dir=folder or None
)
delegate.open_device()
import litegpu.gpu.build, litegpu.gpu.backends.contract
started = time.perf_counter()
interpreter = litegpu.Interpreter(path, experimental_delegates=[delegate], fallback="strict")
interpreter.allocate_tensors()
ready = time.perf_counter() - started
interpreter.invoke()
first = time.perf_counter() - started - ready
stats = delegate.prepared[0].kernel().session.stats
print(json.dumps({"ready": ready, "first": first, "compile": stats["compile"], "upload": stats["upload"]}))
"""


WHOLE = """
import json, sys, time
clock = time.perf_counter
times = [clock()]
import numpy
times.append(clock())
import litegpu
times.append(clock())
path, backend, half, folder = sys.argv[1:]
model = litegpu.load(path, "cuda" if backend == "cuda" else "webgpu", half, serialization_dir=folder)
times.append(clock())
x = {name: numpy.zeros(detail["shape"], detail["dtype"]) for name, detail in model.inputs.items()}
assert model(x) is not None
times.append(clock())
parts = {name: times[i + 1] - times[i] for i, name in enumerate(("numpy", "litegpu", "load", "call"))}
print(json.dumps({"whole": times[-1] - times[0], **parts}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["deeplabv3_257_mv_gpu", "mobilenet_v1_1.0_224_random"])
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--precision", default="float16", choices=("float16", "float32"))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return compared(args, {**os.environ, "PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""})


def compared(args: argparse.Namespace, environment: dict[str, str]) -> int:
    print(f"{'model':<30} {'cache':<8} {'ready':>8} {'first':>8} {'process':>8}   of ready: compile, upload")
    for path in find_models(args.models):
        rows: dict[str, list[dict[str, float]]] = {"none": [], "filled": [], "full": []}
        whole = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                place = str(Path(folder) / "cache")
                for name, cache in (("none", ""), ("filled", place), ("full", place)):
                    rows[name].append(measured(environment, CHILD, str(path), args.backend, args.precision, cache))
                whole.append(measured(environment, WHOLE, str(path), args.backend, args.precision, place))
        for name, found in rows.items():
            m = {key: 1e3 * statistics.median(row[key] for row in found) for key in found[0]}
            print(
                f"{path.stem:<30} {name:<8} {m['ready']:8.1f} {m['first']:8.1f} {m['process']:8.0f}"
                f"   {m['compile']:.1f}, {m['upload']:.1f}",
                flush=True,
            )
        m = {key: 1e3 * statistics.median(row[key] for row in whole) for key in whole[0]}
        parts = ", ".join(f"{name} {m[name]:.0f}" for name in ("numpy", "litegpu", "load", "call"))
        print(f"{path.stem:<30} first import to first result {m['whole']:.0f}: {parts}", flush=True)
    return 0


def measured(environment: dict[str, str], code: str, *arguments: str) -> dict[str, float]:
    """Seconds in a process of its own."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return {**json.loads(done.stdout.splitlines()[-1]), "process": time.perf_counter() - started}


if __name__ == "__main__":
    sys.exit(main())
