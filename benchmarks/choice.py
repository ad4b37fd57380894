"""Whether device="auto" chooses well: its prediction and its measured choice beside an exhaustive measurement.

    python benchmarks/choice.py [--models a,b] [--devices cpu,cuda] [--budget SECONDS] [--output choice.json]

For the models in LITEGPU_MODELS (../shared/models), the networks of the zoo and those of choice_networks.py, which
nothing was fitted to, at batch 1 and 64: measures every way that the precision float32 leaves to choose (CPU with
threads, GPUs), each by the trial of `litegpu advise --measure`, and asks `litegpu.choosing.auto` without that
measurement and with it. Where several ways are within three times of the best, they are measured twice more, for
longer: the measured choice goes by the first of these, and the second decides what was the best, so that no choice is
judged by itself. A choice is right if it takes at most 5% longer.

Several processes open the models on the GPU beforehand; nothing runs beside what is timed. The CPU is not tried with
batches that would take six times as long as the GPU's. With --budget, what does not fit is left out and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import choice_networks

from litegpu import native
from litegpu.choosing.auto import Auto
from litegpu.choosing.candidate import CPU, Candidate, Measured, cpu_candidates
from litegpu.choosing.records import keep
from litegpu.errors import InvokeError, LiteGpuError
from litegpu.gpu.backends import registry
from litegpu.interpreter import Interpreter
from litegpu.model import read_model, with_batch
from litegpu.session import load
from litegpu.tools.advise import trial
from litegpu.tools.inputs import made_up_inputs
from litegpu.zoo.catalogue import CATALOGUE, build_model

ROOT = Path(__file__).resolve().parents[1]
BATCHES = (1, 64)
NEAR = 1.05  # of the best is right
AGAIN = 3.0  # of the best is measured again
PRECISION = "float32"
_ORDER_SECONDS = 90.0

Row = dict[str, Any]


@dataclass
class Case:
    """A model, and what was found of it. `first`, `second`: candidate -> what was measured, by round."""

    name: str
    group: str
    path: str
    first: dict[Candidate, Measured] = field(default_factory=dict)
    second: dict[Candidate, Measured] = field(default_factory=dict)
    chosen: dict[str, list[Candidate]] = field(default_factory=dict)  # how -> by batch

    def seconds(self, candidate: Candidate, batch: int) -> float | None:
        """As measured last."""
        one = self.second.get(candidate, self.first.get(candidate))
        return None if one is None else one.seconds(batch)

    def contested(self) -> list[Candidate]:
        """The ways within AGAIN of the best, for any batch, if there are several."""
        near: dict[Candidate, None] = {}
        for batch in BATCHES:
            known = {one: s for one, found in self.first.items() if (s := found.seconds(batch)) is not None}
            good = [one for one, seconds in known.items() if seconds <= AGAIN * min(known.values())]
            near |= dict.fromkeys(good if len(good) > 1 else [])
        return list(near)

    def longest(self, limit: float) -> float:
        """Seconds of a batch that the CPU need not be tried beyond: it could not be the best."""
        known = [found.batch_latency for found in self.first.values() if found.batch_latency is not None]
        return max(0.02, 2 * AGAIN * min(known)) if known else limit


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", default="", help="names among all (default: all)")
    add("--devices", default="", help="cpu and backends (default: all that load() would choose among)")
    add("--without", default="", help="names that are left out")
    add(
        "--seconds",
        type=float,
        default=0.3,
        help="how long what is contested is measured for; the rest a sixth of that",
    )
    add("--longest", type=float, default=2.0, help="without a GPU: seconds that a batch may take, else it is left out")
    add("--budget", type=float, default=float("inf"), help="seconds for all of it")
    add("--processes", type=int, default=max(1, native.processors() - 2), help="that hold models on the GPU")
    add("--output", type=Path, help="a JSON file for all that was measured")
    add("--lane", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    args.began = time.monotonic()
    if args.lane:
        serve()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        cases = networks(Path(folder), args.models.split(",") if args.models else None, args.without.split(","))
        ways = candidates(args.devices.split(",") if args.devices else None)
        judged = measure(cases, ways, args, Path(folder))
        rows = [row for case in judged for row in judgements(case)]
        for row in rows:
            print(line(row))
        print("\n".join(summary(rows, len(cases) - len(judged))))
        if args.output is not None:
            args.output.write_text(json.dumps({"rows": rows, "cases": [as_dict(case) for case in cases]}, indent=1))
    return 0


def networks(folder: Path, names: Sequence[str] | None, without: Sequence[str] = ()) -> list[Case]:
    """The shared models, the zoo's and the generated ones, mixed, so that a budget leaves out some of each."""
    shared = Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))
    found = [Case(p.stem, "shared", str(p)) for p in sorted(shared.glob("*.tflite")) if p.stem != "malformed"]
    made: list[tuple[str, str, Callable[[], bytes]]]
    made = [(f"zoo {name}", "zoo", partial(build_model, name)) for name in CATALOGUE]
    made += [(name, "generated", build) for name, build in choice_networks.NETWORKS.items()]

    def wanted(name: str) -> bool:
        return (names is None or name in names) and name not in without

    def write(name: str, group: str, build: Callable[[], bytes]) -> Case:
        path = folder / f"{name.replace(' ', '_')}.tflite"
        path.write_bytes(build())
        return Case(name, group, str(path))

    with ThreadPoolExecutor() as pool:
        found += pool.map(lambda one: write(*one), [one for one in made if wanted(one[0])])
    found = [case for case in found if wanted(case.name)]
    random.Random(1).shuffle(found)
    return found


def candidates(devices: Sequence[str] | None) -> list[Candidate]:
    """What load() may choose among in the precision."""
    gpus = [name for name, entry in registry.ENTRIES.items() if entry.automatic or (devices and name in devices)]
    every = [*cpu_candidates(), *(Candidate(name, PRECISION) for name in gpus)]
    return [one for one in every if devices is None or one.device in devices]


# ------------------------------------------------------------------------------------------------------ measuring


def measure(cases: list[Case], ways: list[Candidate], args: argparse.Namespace, folder: Path) -> list[Case]:
    """All rounds, and the choices; the cases of which all is known that was to be."""
    gpus = [one for one in ways if not one.is_cpu]
    holders = [Process() for _ in range(min(args.processes, len(cases)) if gpus else 0)]
    held = {case.name: holders[i % len(holders)] for i, case in enumerate(cases)} if gpus else {}
    cpu, choosers = Process(), [Process(folder / f"chosen{i}") for i in range(min(4, args.processes))]
    cores = native.processors()
    print(f"{len(cases)} models, {len(ways)} ways: {', '.join(map(str, ways))}; {cores} cores", flush=True)

    def in_time(share: float) -> bool:
        return bool(time.monotonic() < args.began + share * args.budget)

    def told(what: str) -> None:
        print(f"{what} after {time.monotonic() - args.began:.0f} s", flush=True)

    def hold(holder: Process) -> None:
        for case in cases:
            for one in gpus:
                if held[case.name] is holder and in_time(0.5):
                    holder.answer({"hold": case.path, "candidate": asdict(one), "batch": BATCHES[-1]})

    def timed(case: Case, one: Candidate, seconds: float) -> Measured:
        order: Row = {"candidate": asdict(one), "batch": BATCHES[-1], "seconds": seconds, "began": time.time()}
        if one.is_cpu:
            order |= {"model": case.path, "longest": case.longest(args.longest)}
        else:
            order |= {"time": case.path}
        found = (cpu if one.is_cpu else held[case.name]).answer(order)
        return Measured.of(found) if "candidate" in found else Measured(one, problem=found["problem"])

    def choose(chooser: Process, part: Sequence[Case]) -> None:
        for case in part:
            if in_time(1.0):
                found = chooser.answer({"choose": case.path, "measured": [m.as_dict() for m in case.first.values()]})
                case.chosen = {how: [Candidate(**one) for one in by] for how, by in found.get("chosen", {}).items()}

    try:
        together([partial(hold, holder) for holder in holders])
        told("models opened")
        for one in (*gpus, *(way for way in ways if way.is_cpu)):
            for case in cases:
                if in_time(0.78):
                    case.first[one] = timed(case, one, args.seconds / 6)
        known = [case for case in cases if len(case.first) == len(ways)]
        contested = [(case, near) for case in known if (near := case.contested())]
        told(f"{len(known)} models, {len(contested)} of them contested,")
        for case, near in contested:  # what decides between these takes as long as the tool takes
            if in_time(0.85):
                case.first |= {one: timed(case, one, args.seconds) for one in near}
        for case, near in contested[::-1]:
            if in_time(0.93):
                case.second = {one: timed(case, one, args.seconds) for one in near[::-1]}
        told("contested ones again")
        together([partial(choose, chooser, known[i :: len(choosers)]) for i, chooser in enumerate(choosers)])
        told("choices")
    finally:
        for process in (*holders, *choosers, cpu):
            process.close()
    return [case for case in known if case.chosen and (case.second or not case.contested())]


class Process:
    """Answers orders, one at a time; started when it is asked, and again where it ended or does not answer. `home`: its
    cache folder."""

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._process: subprocess.Popen[str] | None = None

    def answer(self, order: Row) -> Row:
        if self._process is None or self._process.poll() is not None:
            environment = {**os.environ, **({"LITEGPU_CACHE_DIR": str(self._home)} if self._home else {})}
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--lane"],
                stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment,
            )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        watch = threading.Timer(_ORDER_SECONDS, self._process.kill)
        watch.start()
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            found: Row = json.loads(self._process.stdout.readline())
            return found
        except (OSError, ValueError):
            return {"problem": f"its process ended with status {self._process.wait()}"}
        finally:
            watch.cancel()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def together(work: Iterable[Callable[[], Any]]) -> None:
    """Each in a thread, and wait for all; raises what the first of them raised."""
    with ThreadPoolExecutor(max(1, len(jobs := list(work)))) as pool:
        for job in [pool.submit(one) for one in jobs]:
            job.result()


def serve() -> None:
    """A process that answers: an order a line, an answer a line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kept: dict[tuple[str, str], Held] = {}
    for text in sys.stdin:
        order = json.loads(text)
        try:
            if "choose" in order:
                found: Row = {"chosen": chosen(order["choose"], order["measured"])}
            elif "hold" in order or "time" in order:
                candidate = Candidate(**order["candidate"])
                place = (order.get("hold") or order["time"], str(candidate))
                if place not in kept:
                    kept[place] = Held(place[0], candidate, order["batch"])
                found = {} if "hold" in order else kept[place].measure(order["seconds"]).as_dict()
            else:
                found = trial.run(order)
        except (LiteGpuError, ValueError, MemoryError, RuntimeError) as error:
            found = {"problem": f"{type(error).__name__}: {error}"[:300]}
        out.write(json.dumps(found) + "\n")
        out.flush()


class Held:
    """A model on a GPU, opened for one row and for a batch, so that it is compiled once for both rounds."""

    def __init__(self, path: str, candidate: Candidate, batch: int) -> None:
        self._measured = Measured(candidate, batch=batch)
        self._calls: list[Callable[[], Any]] = []
        for rows in (1, batch):
            model = load(path, candidate.device, candidate.precision, fallback="silent")
            if not model.report.delegated:
                raise InvokeError("the GPU takes nothing of it")
            details = model.interpreter.get_input_details()
            arrays = dict(zip(model.inputs, made_up_inputs(details, model.interpreter.graph), strict=True))
            try:
                given = arrays if rows == 1 else {name: trial.repeated(array, rows) for name, array in arrays.items()}
                model(**given)
            except (LiteGpuError, ValueError, MemoryError) as error:
                if rows == 1:
                    raise
                self._measured = replace(self._measured, batch_problem=str(error)[:300])
                continue
            self._calls.append(partial(model, **given))
            info = model.delegate.open_device().info if model.delegate is not None else None
            if info is not None:
                self._measured = replace(self._measured, name=info.name, driver=info.driver)

    def measure(self, seconds: float) -> Measured:
        times = [trial.timed(call, seconds) for call in self._calls]
        return replace(self._measured, latency=times[0], batch_latency=times[1] if len(times) > 1 else None)


# --------------------------------------------------------------------------------------------------------- judging


def chosen(path: str, measured: Sequence[Row]) -> dict[str, list[Row]]:
    """What auto chooses for each batch, "predicted", then "measured" with a record of these."""

    def opened(source: Any, delegate: Any, threads: int | None) -> Interpreter:
        given = {"model_content": source} if isinstance(source, bytes) else {"model_path": source}
        delegates = None if delegate is None else [delegate]
        return Interpreter(**given, experimental_delegates=delegates, num_threads=threads, fallback="silent")

    model, found = read_model(path), {}
    for how in ("predicted", "measured"):
        if how == "measured":
            keep(model.content, [Measured.of(one) for one in measured])
        auto = Auto(path, PRECISION, None, opened)
        by_batch: list[Row] = []
        for batch in BATCHES:
            try:
                source: Any = path if batch == 1 else bytes(with_batch(model, batch).content)
            except LiteGpuError:  # then load() resizes what it has
                by_batch.append(by_batch[-1])
                continue
            auto.open(source).close()
            by_batch.append(asdict(Candidate(CPU) if auto.choice is None else auto.choice.candidate))
        found[how] = by_batch
    return found


def judgements(case: Case) -> list[Row]:
    """For each batch that any way was measured for: the best, and what was chosen."""
    rows = []
    for place, batch in enumerate(BATCHES):
        known = {one: seconds for one in case.first if (seconds := case.seconds(one, batch)) is not None}
        if not known:
            continue
        best = min(known, key=lambda one: known[one])
        row: Row = {"model": case.name, "group": case.group, "batch": batch, "best": str(best), "seconds": known[best]}
        for how, by_batch in case.chosen.items():
            took = known.get(by_batch[place])
            row[how] = {
                "choice": str(by_batch[place]),
                "seconds": took,
                "right": took is not None and took <= NEAR * known[best],
            }
        rows.append(row)
    return rows


def line(row: Row) -> str:
    """A judgement for people."""
    told = [f"{row['model']:<40} {row['batch']:>3}  {row['best']:<16} {row['seconds'] * 1e3:>9.3f} ms"]
    for how in ("predicted", "measured"):
        one = row[how]
        if not one["right"]:
            took = "not measured" if one["seconds"] is None else f"{one['seconds'] / row['seconds']:.2f} times as long"
            told.append(f"{how}: {one['choice']}, {took}")
    return "  ".join(told)


def summary(rows: Sequence[Row], left_out: int) -> list[str]:
    """The share of right choices, by group and in all."""
    lines = [f"{left_out} models left out for want of time" if left_out else "no model left out"]
    for name, groups in (("shared and zoo", ("shared", "zoo")), ("generated", ("generated",))):
        told = [row for row in rows if row["group"] in groups]
        for how in ("predicted", "measured"):
            right = sum(row[how]["right"] for row in told)
            lines.append(f"{name}, {how}: {right} of {len(told)} right ({right / max(1, len(told)):.1%})")
    return lines


def as_dict(case: Case) -> Row:
    return {
        "name": case.name, "group": case.group,
        "first": [one.as_dict() for one in case.first.values()],
        "second": [one.as_dict() for one in case.second.values()],
        "chosen": {how: [asdict(one) for one in by_batch] for how, by_batch in case.chosen.items()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
