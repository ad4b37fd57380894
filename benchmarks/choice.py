"""Whether device="auto" chooses well: its prediction and its measured choice beside an exhaustive measurement.

    python benchmarks/choice.py [--models a,b] [--devices cpu,cuda] [--budget SECONDS] [--output choice.json]

For the models in LITEGPU_MODELS (../shared/models), the networks of the zoo and those of choice_networks.py, which
nothing was fitted to, at batch 1 and 64: measures every way that the precision float32 leaves to choose (CPU with
threads, GPUs), each by the trial of `litegpu advise --measure`, and asks `litegpu.choosing.auto` without that
measurement and with it. Then measures again whatever was within three times of the best: these second times decide what
was the best, so that the measured choice is not judged by itself. A choice is right if it takes at most 5% longer.

A lane is a process that measures one model after another. The lanes of the GPUs and of the CPU with one thread and with
half the cores work beside each other where there are cores for that; all cores are tried last, alone. With --budget,
what does not fit is left out and counted.
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
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import choice_networks

from litegpu.choosing.auto import Auto
from litegpu.choosing.candidate import CPU, Candidate, Measured, cpu_candidates, usable_cores
from litegpu.choosing.records import keep
from litegpu.errors import LiteGpuError
from litegpu.gpu.backends import registry
from litegpu.interpreter import Interpreter
from litegpu.model import read_model, with_batch
from litegpu.tools.advise import trial
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

    def near(self, candidate: Candidate) -> bool:
        """Whether a way is within AGAIN of the best, for any batch, by the first round."""
        for batch in BATCHES:
            known = [seconds for one in self.first.values() if (seconds := one.seconds(batch)) is not None]
            mine = self.first[candidate].seconds(batch)
            if mine is not None and mine <= AGAIN * min(known):
                return True
        return False


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", default="", help="names among all (default: all)")
    add("--devices", default="", help="cpu and backends (default: all that load() would choose among)")
    add("--seconds", type=float, default=0.1, help="how long each time is measured for")
    add("--longest", type=float, default=2.0, help="seconds that the CPU may take for a batch, else it is left out")
    add("--budget", type=float, default=float("inf"), help="seconds for all of it")
    add("--processes", type=int, default=max(1, usable_cores() - 2), help="that compile kernels beforehand")
    add("--output", type=Path, help="a JSON file for all that was measured")
    add("--lane", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.lane:
        serve()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        cases = networks(Path(folder), args.models.split(",") if args.models else None)
        ways = candidates(args.devices.split(",") if args.devices else None)
        judged = measure(cases, ways, args, Path(folder))
        rows = [row for case in judged for row in judgements(case)]
        for row in rows:
            print(line(row))
        print("\n".join(summary(rows, len(cases) - len(judged))))
        if args.output is not None:
            args.output.write_text(json.dumps({"rows": rows, "cases": [as_dict(case) for case in cases]}, indent=1))
    return 0


def networks(folder: Path, names: Sequence[str] | None) -> list[Case]:
    """The shared models, the zoo's and the generated ones, mixed, so that a budget leaves out some of each."""
    shared = Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))
    found = [Case(p.stem, "shared", str(p)) for p in sorted(shared.glob("*.tflite")) if p.stem != "malformed"]
    made: list[tuple[str, str, Callable[[], bytes]]]
    made = [(f"zoo {name}", "zoo", partial(build_model, name)) for name in CATALOGUE]
    made += [(name, "generated", build) for name, build in choice_networks.NETWORKS.items()]
    for name, group, build in made:
        if names is None or name in names:
            path = folder / f"{name.replace(' ', '_')}.tflite"
            path.write_bytes(build())
            found.append(Case(name, group, str(path)))
    found = [case for case in found if names is None or case.name in names]
    random.Random(1).shuffle(found)
    return found


def candidates(devices: Sequence[str] | None) -> list[Candidate]:
    """What load() may choose among in the precision."""
    gpus = [name for name, entry in registry.ENTRIES.items() if entry.automatic or (devices and name in devices)]
    every = [*cpu_candidates(), *(Candidate(name, PRECISION) for name in gpus)]
    return [one for one in every if devices is None or one.device in devices]


# ------------------------------------------------------------------------------------------------------ measuring


def measure(cases: list[Case], ways: list[Candidate], args: argparse.Namespace, folder: Path) -> list[Case]:
    """Both rounds, and the choices; the cases that were measured in every way in both."""
    began = time.monotonic()
    until = lambda share: began + share * args.budget  # noqa: E731
    base = {"batch": max(BATCHES), "seconds": args.seconds, "longest": args.longest}
    gpus = [one for one in ways if not one.is_cpu]
    wide = [one for one in ways if one.is_cpu and (one.num_threads or 1) > usable_cores() // 2]
    narrow = [[one] for one in ways if one.is_cpu and one not in wide]
    together = [gpus, *narrow] if usable_cores() >= 8 else [gpus + [one for lane in narrow for one in lane]]
    said = f"{len(cases)} models, {len(ways)} ways: {', '.join(map(str, ways))}"
    print(f"{said}; {usable_cores()} cores", flush=True)
    if gpus:  # so that nothing compiles while others are timed
        parts = [cases[i :: args.processes] for i in range(args.processes)]
        none: dict[str, dict[Candidate, Measured]] = {}
        run_lanes([Lane(part, gpus, {**base, "seconds": 0.0}, until(0.3), none) for part in parts if part])
        print(f"kernels compiled after {time.monotonic() - began:.0f} s", flush=True)
    first = {case.name: case.first for case in cases}
    run_lanes([Lane(cases, lane, base, until(0.55), first) for lane in together if lane])
    run_lanes([Lane(cases, wide, base, until(0.7), first)] if wide else [])
    whole = [case for case in cases if len(case.first) == len(ways)]
    print(f"first round of {len(whole)} models after {time.monotonic() - began:.0f} s", flush=True)
    second = {case.name: case.second for case in cases}
    again = [[one for one in lane] for lane in together if lane]
    choosing = Lane(whole, [], base, until(0.98), {}, choices=True, home=folder / "chosen")
    run_lanes([*(Lane(whole[::-1], lane, base, until(0.95), second, again=True) for lane in again), choosing])
    run_lanes([Lane(whole[::-1], wide, base, until(1.0), second, again=True)] if wide else [])
    print(f"second round after {time.monotonic() - began:.0f} s", flush=True)
    return [
        case
        for case in whole
        if case.chosen and all(one in case.second for one in ways if case.near(one)) and case.second
    ]


class Lane(threading.Thread):
    """A process that measures `cases` in `ways`, one after another, until a deadline; results go `to` name ->
    candidate. `again`: only what is near the best. `choices`: asks what auto chooses instead, in a cache folder `home`
    of its own."""

    def __init__(
        self, cases: Sequence[Case], ways: Sequence[Candidate], base: Row, deadline: float,
        to: dict[str, dict[Candidate, Measured]], *, again: bool = False, choices: bool = False,
        home: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cases, self.ways, self.base, self.deadline = cases, ways, base, deadline
        self.to, self.again, self.choices, self.home = to, again, choices, home
        self.process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        for case in self.cases:
            if self.choices:
                if time.monotonic() < self.deadline:
                    found = self.answer({"choose": case.path, "measured": [m.as_dict() for m in case.first.values()]})
                    case.chosen = {how: [Candidate(**one) for one in by] for how, by in found.get("chosen", {}).items()}
                continue
            for one in self.ways:
                if time.monotonic() > self.deadline or (self.again and not case.near(one)):
                    continue
                order = {**self.base, "model": case.path, "candidate": asdict(one), "began": time.time()}
                found = self.answer(order)
                measured = Measured.of(found) if "candidate" in found else Measured(one, problem=found["problem"])
                self.to.get(case.name, {})[one] = measured
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def answer(self, order: Row) -> Row:
        """Of the process, which is started again where it ended or does not answer."""
        if self.process is None or self.process.poll() is not None:
            environment = {**os.environ, **({"LITEGPU_CACHE_DIR": str(self.home)} if self.home else {})}
            command = [sys.executable, __file__, "--lane"]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        watch = threading.Timer(_ORDER_SECONDS, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            found: Row = json.loads(self.process.stdout.readline())
            return found
        except (OSError, ValueError):
            return {"problem": f"its process ended with status {self.process.wait()}"}
        finally:
            watch.cancel()


def run_lanes(lanes: Iterable[Lane]) -> None:
    started = list(lanes)
    for lane in started:
        lane.start()
    for lane in started:
        lane.join()


def serve() -> None:
    """A lane's process: an order a line, an answer a line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for text in sys.stdin:
        order = json.loads(text)
        try:
            found = {"chosen": chosen(order["choose"], order["measured"])} if "choose" in order else trial.run(order)
        except LiteGpuError as error:
            found = {"problem": str(error)}
        out.write(json.dumps(found) + "\n")
        out.flush()


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
