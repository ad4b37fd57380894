"""How much Python time an inference costs on WebGPU: encoding per dispatch, submitting, and both ways of waiting.

The peer in the same run is wgpu-py's own checked API recording the same commands. Two workloads: a chain of trivial
hand-written kernels, where everything is overhead, and a real model. Times are medians; the two ways of recording are
timed alternately while the device is idle; inside inferences a software device competes with Python for the cores.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.gpu.backends.webgpu.device import WebGpuSession, open_device
from litegpu.gpu.backends.webgpu.record import record
from litegpu.gpu.backends.webgpu.replay import Answers
from litegpu.gpu.delegate.delegate import GpuDelegate, GpuKernel
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program
from litegpu.interpreter import Interpreter
from litegpu.zoo import build_model

TARGET = 5.0  # microseconds of Python per dispatch

SHIFT = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn shift_NUMBER(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = x[id.x] + NUMBER.0; }
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a .tflite file (default: mobilenet_v1 224 as the zoo builds it)")
    parser.add_argument("--dispatches", type=int, default=30, help="length of the synthetic chain (default: 30)")
    parser.add_argument("--kernels", type=int, default=8, help="different kernels in the chain (default: 8)")
    parser.add_argument("--repeat", type=int, default=100, help="inferences to time of each kind (default: 100)")
    parser.add_argument("--backend", default="auto", help="auto, vulkan, metal, d3d12 or gl (default: auto)")
    options = parser.parse_args()

    device = open_device(options.backend)
    print(f"device: {device.adapter}, driver {device.info.driver}; Python {platform.python_version()}")
    chain = synthetic(options.dispatches, options.kernels)
    ok = report(f"chain of {options.dispatches} trivial kernels", lambda w: device.session(chain, w), options.repeat)
    program = model_program(options.model, options.backend)
    name = options.model.name if options.model else "mobilenet_v1 224 (zoo)"
    repeat = max(5, options.repeat // 10) if device.info.is_software else options.repeat
    ok &= report(name, lambda w: device.session(program, w), repeat)
    return 0 if ok else 1


def synthetic(dispatches: int, kernels: int) -> Program:
    """A chain of `dispatches` additions to 1024 floats, by `kernels` different kernels in turn."""
    nbytes, slot = 4096, 4096
    codes = tuple(
        KernelCode(f"shift_{i}", SHIFT.replace("NUMBER", str(i)), (64, 1, 1), ("read_write", "read_write"))
        for i in range(kernels)
    )
    steps = tuple(
        Dispatch(
            i % kernels,
            (16, 1, 1),
            (Binding("arena", slot * i, nbytes), Binding("arena", slot * (i + 1), nbytes)),
            f"shift [{i}]",
            (i,),
        )
        for i in range(dispatches)
    )
    ports = [Port(n, 0, (1, 1, 1, 1024), DType.FLOAT32, slot * i, nbytes) for n, i in (("in", 0), ("out", dispatches))]
    size = slot * (dispatches + 1)
    memory = MemoryReport(size, size, 2 * slot)
    return Program(codes, steps, np.zeros(0, np.uint8), size, (ports[0],), (ports[1],), memory)


def model_program(path: Path | None, backend: str) -> Program:
    """The largest partition's Program of a model."""

    class Recorder(GpuDelegate):
        def prepare(self, partition: Partition) -> DelegateKernel:
            kernel = super().prepare(partition)
            assert isinstance(kernel, GpuKernel) and isinstance(kernel.session, WebGpuSession)
            programs.append(kernel.session.program)
            return kernel

    programs: list[Program] = []
    model = {"model_path": str(path)} if path else {"model_content": build_model("mobilenet_v1")}
    interpreter = Interpreter(**model, experimental_delegates=[Recorder(backend=backend)])
    interpreter.allocate_tensors()
    if not programs:
        raise SystemExit(f"nothing of {path} runs on the GPU")
    return max(programs, key=lambda program: len(program.dispatches))


def report(name: str, make: Callable[[str], WebGpuSession], repeat: int) -> bool:
    """Measure and print one workload; whether encoding meets the target."""
    session = make("passive")
    count = len(session.program.dispatches)
    infer(session, 3)
    recording = idle_recording(session, repeat)
    print(f"\n{name}: {count} dispatches of {len(session.program.kernels)} kernels")
    for how, (warm, cold) in recording.items():
        print(
            f"  encode, {how + ':':<16}{warm / count:6.2f} us per dispatch ({warm:.0f} in all); "
            f"first after an inference, caches cold: {cold / count:.2f} ({cold:.0f})"
        )
    for wait in ("passive", "active"):
        timed = make(wait)
        infer(timed, 2)
        stats = infer(timed, repeat)
        parts = {key: statistics.median(one[key] for one in stats) * 1e6 for key in stats[0]}
        whole = parts["submit"] + parts["encode"] + parts["wait"]
        shown = "  ".join(f"{key} {parts[key]:.0f}" for key in ("write", "submit", "encode", "wait", "read"))
        print(f"  inference, {wait} wait: {whole:.0f} us ({shown})")
        assert timed.allocations == session.allocations, "an inference allocated GPU memory"
        timed.close()
    session.close()
    met = recording["straight calls"][0] / count <= TARGET
    print(f"  target of {TARGET:.0f} us per dispatch: {'met' if met else 'MISSED'}")
    return met


def idle_recording(session: WebGpuSession, repeat: int) -> dict[str, tuple[float, float]]:
    """Median microseconds to record an inference while the device is idle: recorded again at once (warm), and as the
    first thing after an inference (cold), by straight calls and through wgpu-py."""
    replay, device = session.commands.replay, session.device.handle
    recorders: dict[str, Callable[[], Any]] = {
        "straight calls": lambda: replay.finish(replay.encode()),
        "wgpu-py (peer)": lambda: record(device, session.inference),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in recorders}
    for _ in range(repeat):
        for name, encode in recorders.items():
            started = time.perf_counter()
            first = encode()
            between = time.perf_counter()
            second = encode()
            ended = time.perf_counter()
            times[name].append((ended - between, between - started))
            answers = Answers()
            replay.unmap()
            replay.submit([first, second])  # which also recycles the command memory
            replay.map(answers)
            replay.wait(answers)
    medians = {
        name: [statistics.median(part) * 1e6 for part in zip(*all_, strict=True)] for name, all_ in times.items()
    }
    return {name: (warm, cold) for name, (warm, cold) in medians.items()}


def infer(session: WebGpuSession, repeat: int) -> Sequence[dict[str, float]]:
    """The stats of `repeat` inferences, inputs written and outputs read each time."""
    types = {DType.FLOAT32: np.float32, DType.INT32: np.int32, DType.BOOL: np.int32}
    inputs = [np.zeros(port.shape, types[port.dtype]) for port in session.program.inputs]
    outputs = [np.empty(port.shape, types[port.dtype]) for port in session.program.outputs]
    stats = []
    for _ in range(repeat):
        for i, array in enumerate(inputs):
            session.write(i, array)
        session.run()
        for i, array in enumerate(outputs):
            session.read(i, array)
        stats.append(dict(session.stats))
    return stats


if __name__ == "__main__":
    raise SystemExit(main())
