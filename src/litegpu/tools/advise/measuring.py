"""Measures a model in every way that this machine can run it, each in a process of its own, and keeps what was found
for litegpu.load()'s device="auto"."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.boundary import typed
from litegpu.choosing.candidate import Candidate, Measured, cpu_candidates
from litegpu.choosing.records import keep
from litegpu.delegate_registry import others
from litegpu.errors import InvokeError, OptionError
from litegpu.gpu.backends import registry
from litegpu.model.bundle import bundled_content
from litegpu.model.model_type import ModelKind, model_type
from litegpu.model.reader import read_model
from litegpu.tools.advise.trial import BATCH
from litegpu.tools.agreement import compare
from litegpu.tools.entered import entered

TOLERANCE = 1e-2  # relative L2, which float16 is tested to
TRIAL_SECONDS = 300.0

_PRECISIONS = ("float32", "float16", "auto")
_IN_BYTES = (ModelKind.FULL_INTEGER, ModelKind.QUANTIZATION_AWARE)


@dataclass(frozen=True)
class MeasuredWays:
    """What was measured of a model on this machine. `tolerance`: the largest deviation (relative L2) from the official
    CPU runtime that a recommended way may have. `kept`: the file that litegpu.load() will find it in, if any."""

    measured: tuple[Measured, ...]
    tolerance: float
    kept: Path | None = None

    @property
    def best(self) -> Measured | None:
        """The quickest for one call of those that are near enough to the CPU."""
        return min(self._near(), key=lambda one: one.latency or np.inf, default=None)

    @property
    def best_in_batches(self) -> Measured | None:
        """The one that gives the most rows a second in large batches."""
        rows = [one for one in self._near() if one.batch_latency is not None]
        return max(rows, key=lambda one: one.throughput(one.batch) or 0.0, default=None)

    @property
    def recommendation(self) -> tuple[str, ...]:
        """Sentences: what to use, and why."""
        best, bulk = self.best, self.best_in_batches
        if best is None or best.latency is None:
            return ("Nothing could run the model.",)
        why = f"a call takes {best.latency * 1e3:.3g} ms{_against(best, self.measured)}"
        told = [f"Use {best.candidate}: {why}{_said(best)}."]
        if bulk is not None and bulk.batch_latency is not None:
            rate = bulk.batch / bulk.batch_latency
            same = (
                "It"
                if bulk.candidate == best.candidate
                else f"{str(bulk.candidate)[:1].upper()}{str(bulk.candidate)[1:]}"
            )
            told.append(f"{same} gives the most in batches of {bulk.batch}: {rate:,.0f} rows a second.")
        return tuple(told)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: seconds, bytes, relative L2."""
        return {
            "tolerance": self.tolerance,
            "best": None if self.best is None else str(self.best.candidate),
            "best_in_batches": None if self.best_in_batches is None else str(self.best_in_batches.candidate),
            "recommendation": list(self.recommendation),
            "kept": None if self.kept is None else str(self.kept),
            "measured": [one.as_dict() for one in self.measured],
        }

    def _near(self) -> list[Measured]:
        return [
            one
            for one in self.measured
            if one.latency is not None and one.deviation is not None and one.deviation <= self.tolerance
        ]


def candidates(kind: ModelKind = ModelKind.FLOAT32) -> tuple[Candidate, ...]:
    """The CPU, every backend that "auto" would try, in each precision, and in each arithmetic if the model computes in
    8 bits, and litegpu's other delegates."""
    gpus = [name for name, entry in registry.ENTRIES.items() if entry.automatic]
    ways = [(precision, "auto") for precision in _PRECISIONS]
    if kind in _IN_BYTES:
        ways[:1] = [(_PRECISIONS[0], "float"), (_PRECISIONS[0], "integer")]
    return (
        *cpu_candidates(),
        *(Candidate(name, precision, arithmetic=arithmetic) for name in gpus for precision, arithmetic in ways),
        *(Candidate(name) for name in others()),
    )


@typed
def measure(
    model: str | os.PathLike[str] | bytes,
    *,
    tolerance: float = TOLERANCE,
    batch: int = BATCH,
    ways: Sequence[Candidate] | None = None,
    timeout: float = TRIAL_SECONDS,
    progress: Callable[[Candidate, int, int], None] | None = None,
    shapes: Sequence[str] = (),
) -> MeasuredWays:
    """Runs a model in every way that there is: latency, the same for `batch` rows, start-up, memory and deviation.

    tolerance: the largest relative L2 distance from the CPU that a recommended way may have.
    ways: what is tried; by default candidates() for such a model.
    timeout: seconds for each, in its own process.
    progress: called before each, with its number and how many there are.
    shapes: of the inputs, as for tools.entered.entered(); the figures stand for the model in other sizes too.

    Raises ModelError, OptionError, or InvokeError if not even the CPU runs the model."""
    if not tolerance > 0:
        raise OptionError(f"tolerance is {tolerance!r}; it must be above 0")
    if batch < 2:
        raise OptionError(f"batch is {batch!r}; it must be 2 or more")
    read = read_model(model)  # what is no model is told at once
    tried = tuple(candidates(model_type(read).kind) if ways is None else ways)
    reference = next((one for one in tried if one.is_cpu and one.num_threads is None), Candidate("cpu"))
    tried = (reference, *(one for one in tried if one != reference))
    found: list[Measured] = []
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = _as_file(entered(model, shapes=shapes), Path(folder))
        for number, one in enumerate(tried):
            if progress is not None:
                progress(one, number, len(tried))
            if one.device in absent:
                found.append(Measured(one, problem=absent[one.device]))
                continue
            outputs = Path(folder) / f"{number}.npz"
            measured = _tried(one, path, batch, outputs, timeout)
            if one is reference and measured.problem:
                raise InvokeError(f"The CPU does not run the model: {measured.problem}")
            if measured.problem.startswith(("DeviceError", "SoftwareDeviceError", "DelegateLoadError")):
                absent[one.device] = measured.problem
            if outputs.exists():
                measured = replace(measured, deviation=_deviation(outputs, Path(folder) / "0.npz"))
            found.append(measured)
    found = [replace(one, accepted=one.deviation is None or one.deviation <= tolerance) for one in found]
    return MeasuredWays(tuple(found), tolerance, keep(read.content, found))


def _as_file(model: str | os.PathLike[str] | bytes, folder: Path) -> str:
    if not isinstance(model, bytes):
        if bundled_content(os.fspath(model)) is None:
            return os.path.abspath(os.fspath(model))
        model = bytes(read_model(model).content)
    path = folder / "model.tflite"
    path.write_bytes(model)
    return str(path)


def _tried(one: Candidate, path: str, batch: int, outputs: Path, timeout: float) -> Measured:
    """One trial. What ends its process is its problem."""
    order = {
        "model": path,
        "candidate": asdict(one),
        "batch": batch,
        "began": time.time(),
        "outputs": str(outputs),
    }
    command = [sys.executable, "-m", "litegpu.tools.advise.trial"]
    try:
        done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return Measured(one, problem=f"not done after {timeout:.0f} s")
    try:
        return Measured.of(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return Measured(one, problem=f"its process ended with status {done.returncode}: {last[:200]}")


def _deviation(outputs: Path, reference: Path) -> float | None:
    """The largest relative L2 distance of any output."""
    with np.load(outputs) as ours, np.load(reference) as wanted:
        pairs = [(ours[name], wanted[name]) for name in wanted.files if name in ours.files]
        if any(got.shape != want.shape for got, want in pairs):
            return float("inf")
        return max((compare("", got, want).relative_l2 for got, want in pairs), default=0.0)


def _against(best: Measured, all_: Sequence[Measured]) -> str:
    """How much quicker than the CPU's best, or, of the CPU, than the best GPU."""
    others_ = [one for one in all_ if one.latency is not None and one.candidate.is_cpu != best.candidate.is_cpu]
    next_ = min(others_, key=lambda one: one.latency or np.inf, default=None)
    if next_ is None or next_.latency is None or best.latency is None:
        return ""
    return f", on {next_.candidate} {next_.latency * 1e3:.3g} ms"


def _said(best: Measured) -> str:
    if best.candidate.is_cpu or best.deviation is None:
        return ""
    return f"; its results are {best.deviation:.1e} from the CPU's (relative L2)"
