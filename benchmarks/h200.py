"""How fast models run on an NVIDIA GPU, beside the physical limit and what a user could pick instead.

    python benchmarks/h200.py [--models a,b] [--batches 1,64] [--precisions float16,float32] [--time-limit SECONDS]
                              [--peers DIR | --no-peers] [--output DIR [--append]]

For each model, batch and precision: GPU time of all kernels (CUDA graphs of the kernels alone, back to back), the
median time from host to host (batch 1: set_tensor, invoke and get_tensor of litegpu.Interpreter; other batches: write,
run and read of a session), inferences per second of two sessions in turn, so that one's copies overlap the other's
kernels, and the relative L2 error against the official CPU runtime (of a larger batch: of its first and last rows).
Prints a line for each and writes h200.json and h200.md to --output. Exit status 1 if a case failed; peers that fail are
only reported.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import platform
import shlex
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h200_table
import numpy as np
import peers
import roofline
from cuda_measure import (
    MODELS,
    ROOT,
    build,
    find_models,
    host_to_host,
    infer,
    lowered,
    median_seconds,
    output_arrays,
    read_all,
    reference,
    relative_error,
    repeats_within,
    write_all,
)

import litegpu
from litegpu.errors import DeviceError
from litegpu.gpu.backends.registry import open_device
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.program import Program
from litegpu.model import Model

PRECISIONS = ("float16", "float32")
ROUNDS = 5  # of GPU times, whose median counts

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    args = _arguments(arguments)
    models = find_models(args.models)
    folder = None if args.no_peers else peers.find_folder(args.peers)
    device = open_device("cuda")
    deadline = time.monotonic() + (args.time_limit or float("inf"))
    report = Report(args.output, machine(device), args.append)
    print(f"{', '.join(f'{name} {value}' for name, value in report.machine.items())}", flush=True)
    cases = [(path, batch, precision) for path in models for batch in args.batches for precision in args.precisions]
    for path, batch, precision in cases:
        row = report.row(path.stem, batch, precision)
        if device.lost or time.monotonic() > deadline:
            row["failure"] = "not run: " + ("the device was lost" if device.lost else "out of time")
        else:
            _survive(row, functools.partial(measure, device, path, batch, precision, args, row))
        print(h200_table.line(row), flush=True)
        report.write()
    if folder is not None:
        compare(folder, models, args, report, deadline)
    print()
    print(h200_table.markdown(report.machine, report.command, report.rows, report.notes))
    failed = sum("failure" in report.row(path.stem, batch, precision) for path, batch, precision in cases)
    if failed:
        print(f"{failed} of {len(cases)} cases failed", file=sys.stderr)
    return 1 if failed else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    def listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
        return lambda text: [kind(word) for word in text.split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--models", type=listed(str), default=list(MODELS), help="paths, or names in LITEGPU_MODELS or ../shared/models"
    )
    add("--batches", type=listed(int), default=[1, 64])
    add("--precisions", type=listed(str), default=list(PRECISIONS), help=",".join(PRECISIONS))
    add("--tuning", choices=("off", "fast", "full"), default="off", help="as of GpuDelegate (default: off, as there)")
    add("--seconds", type=float, default=1.0, help="about how long each time is measured for")
    add("--time-limit", type=float, help="seconds after which nothing more is started")
    add("--peers", type=Path, help="folder of the peers' scripts (default: ../shared/peers or .dev/peers)")
    add("--no-peers", action="store_true")
    add("--peer-timeout", type=float, default=180.0, help="seconds for each process of a peer (default: 180)")
    add("--peer-python", default=sys.executable, help="the Python that has the peers' packages (default: this one)")
    add("--output", type=Path, help="folder for h200.json and h200.md")
    add("--append", action="store_true", help="keep the rows of other cases in that folder's h200.json")
    args = parser.parse_args(arguments)
    if unknown := set(args.precisions) - set(PRECISIONS):
        parser.error(f"unknown precision {', '.join(unknown)}; choose among {', '.join(PRECISIONS)}")
    if args.append and not args.output:
        parser.error("--append needs --output")
    return args


def compare(folder: Path, models: Sequence[Path], args: argparse.Namespace, report: Report, deadline: float) -> None:
    """Adds the peers' figures to the rows, and how peers failed to the notes."""
    for path in models:
        for job in peers.jobs(folder, path, args.batches, args.precisions):
            left = min(args.peer_timeout, deadline - time.monotonic())
            found, failure = (
                peers.run(folder, job, left, args.peer_python) if left > 1 else ([], "not run: out of time")
            )
            wanted = [f for f in found if f.batch in args.batches and f.precision in args.precisions]
            for figure in wanted:
                report.row(path.stem, figure.batch, figure.precision)[figure.name] = figure.seconds
            if failure:
                report.note(path.stem, f"{job.title}: {failure}")
            figures = ", ".join(f"b{f.batch} {f.precision} {f.name} {f.seconds * 1e3:.4f} ms" for f in wanted)
            print(f"{path.stem}, {job.title}: {'; '.join(filter(None, (figures, failure)))}", flush=True)
            report.write()


def _survive(row: Row, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as error:
        traceback.print_exc()
        row["failure"] = f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------------------------------------------- measuring


def measure(device: Any, path: Path, batch: int, precision: str, args: argparse.Namespace, row: Row) -> None:
    """One case; what is known is in `row` even if a later part fails."""
    half = precision == "float16"
    model, graph = lowered(path, batch)
    peak = roofline.peak_of(device)
    least = roofline.work(graph, device.features, half)
    row.update(operations=least.operations, bytes=least.bytes, launch_floor=least.launch_floor)
    if peak is not None:
        row.update(roofline=least.roofline(peak, half), limit=least.limit(peak, half))
    started = time.perf_counter()
    program = build(device, graph, half, args.tuning)
    session = device.session(program)
    try:
        row.update(build=time.perf_counter() - started, kernels=len(program.dispatches))
        given, wanted = reference(path)
        inputs = batched(model, given)
        row["error"] = largest_error(model, infer(session, program, inputs), wanted)
        row["gpu"] = gpu_seconds(session, args.seconds)
        if batch != 1:
            estimate = host_to_host(session, program, inputs, 3)
            row["host"] = host_to_host(session, program, inputs, repeats_within(args.seconds, estimate))
    finally:
        session.close()
    if batch == 1:
        row["host"] = interpreter_seconds(model, half, args.tuning, inputs, args.seconds)
    row["pipelined"] = pipelined_seconds(device, program, inputs, args.seconds)


def batched(model: Model, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Inputs for a batch: those given as its first rows, and as its last if they have room, others between."""
    random = np.random.default_rng(1)
    values = []
    for i, array in zip(model.main.inputs, given, strict=True):
        shape = model.main.tensors[i].shape
        if shape == array.shape:
            values.append(array)
            continue
        rows = len(array)
        if array.dtype.kind == "f":
            whole = random.standard_normal(shape, np.float32).astype(array.dtype, copy=False)
        else:
            whole = random.integers(0, 2, shape).astype(array.dtype)
        whole[:rows] = array[: len(whole)]
        if len(whole) >= 2 * rows:
            whole[-rows:] = array
        values.append(whole)
    return values


def largest_error(model: Model, got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """Of all outputs, in the rows that batched() took from the reference."""
    errors = []
    for i, result, want in zip(model.main.outputs, got, wanted, strict=True):
        whole = result.reshape(model.main.tensors[i].shape)
        rows = min(len(want), len(whole)) if want.ndim else 0
        parts = [(whole, want)] if whole.shape == want.shape else [(whole[:rows], want[:rows])]
        if want.ndim and len(whole) >= 2 * rows:
            parts.append((whole[-rows:], want))
        errors += [relative_error(part, reference_part) for part, reference_part in parts]
    return max(errors)


def gpu_seconds(session: Any, seconds: float) -> float:
    repeats = repeats_within(seconds / ROUNDS, session.time_graph(3), least=3)
    times: list[float] = [session.time_graph(repeats) for _ in range(ROUNDS)]
    return statistics.median(times)


def interpreter_seconds(model: Model, half: bool, tuning: str, inputs: Sequence[np.ndarray], seconds: float) -> float:
    """The median of set_tensor, invoke and get_tensor through the public API; all of the model runs on CUDA."""
    delegate = GpuDelegate(backend="cuda", precision_loss_allowed=half, tuning=tuning)
    content = bytes(model.content)
    with litegpu.Interpreter(
        model_content=content, experimental_delegates=[delegate], fallback="strict"
    ) as interpreter:
        interpreter.allocate_tensors()
        numbers = [d["index"] for d in interpreter.get_input_details()]
        outputs = [d["index"] for d in interpreter.get_output_details()]

        def once() -> None:
            for number, array in zip(numbers, inputs, strict=True):
                interpreter.set_tensor(number, array)
            interpreter.invoke()
            for number in outputs:
                interpreter.get_tensor(number)

        estimate = median_seconds(once, 5)
        return median_seconds(once, repeats_within(seconds, estimate))


def pipelined_seconds(device: Any, program: Program, inputs: Sequence[np.ndarray], seconds: float) -> float:
    """Seconds per run with two in flight: while one computes, the other's outputs are read and its inputs written."""
    sessions: list[Any] = []
    try:
        for _ in range(2):
            sessions.append(device.session(program, wait="do_not_wait"))
        outputs = output_arrays(program)

        def each(runs: int) -> float:
            started = time.perf_counter()
            for i in range(runs + len(sessions)):
                session = sessions[i % len(sessions)]
                if i >= len(sessions):
                    read_all(session, outputs)
                if i < runs:
                    write_all(session, inputs)
                    session.run()
            return (time.perf_counter() - started) / runs

        return each(repeats_within(seconds, each(4), most=20000))
    finally:
        for session in sessions:
            session.close()


# ---------------------------------------------------------------------------------------------------- reporting


class Report:
    """The rows by model, batch and precision, and the files they are written to."""

    def __init__(self, folder: Path | None, found: dict[str, str], append: bool) -> None:
        self.folder = folder
        self.machine = found
        self.command = shlex.join(["python", *sys.argv])
        self.rows: list[Row] = []
        self.notes: dict[str, list[str]] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if append and (folder / "h200.json").is_file():
                before = json.loads((folder / "h200.json").read_text())
                self.rows, self.notes = before["rows"], before["notes"]
                self.command = f"{before['command']}; {self.command}"
        self._fresh: set[tuple[str, int, str]] = set()

    def row(self, model: str, batch: int, precision: str) -> Row:
        """The row of a case; the first call of this run begins it anew."""
        key = (model, batch, precision)
        found = next((r for r in self.rows if (r["model"], r["batch"], r["precision"]) == key), None)
        if found is None:
            found = {}
            self.rows.append(found)
        if key not in self._fresh:
            self._fresh.add(key)
            found.clear()
            found.update(model=model, batch=batch, precision=precision)
        return found

    def note(self, model: str, text: str) -> None:
        if text not in self.notes.setdefault(model, []):
            self.notes[model].append(text)

    def write(self) -> None:
        if self.folder is None:
            return
        content = {"machine": self.machine, "command": self.command, "rows": self.rows, "notes": self.notes}
        (self.folder / "h200.json").write_text(json.dumps(content, indent=1) + "\n")
        text = h200_table.markdown(self.machine, self.command, self.rows, self.notes)
        (self.folder / "h200.md").write_text(text + "\n")


def machine(device: Any) -> dict[str, str]:
    """What the figures were measured on."""
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    commit = _output("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = bool(_output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"))
    return {
        "GPU": device.info.name,
        "driver": f"{driver[0].strip() if driver else 'unknown'} ({device.info.driver})",
        "litegpu": f"{litegpu.__version__}{f', commit {commit}' if commit else ''}{' with changes' if changed else ''}",
        "Python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _output(*command: str) -> str:
    """What a program prints, "" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except DeviceError as error:
        raise SystemExit(f"no CUDA device: {error}") from None
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
