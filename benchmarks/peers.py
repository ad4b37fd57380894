"""Runs what a user could pick instead (PyTorch, LiteRT's GPU), each in a process of its own, and reads what it prints.

The scripts are peer_torch.py, peer_litert_gpu.py and roofline.py of a folder that is not part of this repository.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_measure import ROOT

SCRIPTS = ("peer_torch.py", "peer_litert_gpu.py")


@dataclass(frozen=True)
class Figure:
    """One number of a peer, in seconds, for a batch and "float16" or "float32"."""

    batch: int
    precision: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Job:
    """One process."""

    title: str
    script: str
    arguments: tuple[str, ...]


def find_folder(given: Path | None) -> Path | None:
    """The folder of the scripts: the one given, else ../shared/peers or .dev/peers if there.

    Raises FileNotFoundError if a given one has none of them.
    """
    for folder in (given,) if given else (ROOT.parent / "shared" / "peers", ROOT / ".dev" / "peers"):
        if any((folder / script).is_file() for script in SCRIPTS):
            return folder
    if given:
        raise FileNotFoundError(f"{given} holds none of {', '.join(SCRIPTS)}")
    return None


def jobs(folder: Path, model: Path, batches: Sequence[int], precisions: Sequence[str]) -> list[Job]:
    """The processes for a model, the quick ones first."""
    file, sizes = str(model), ",".join(map(str, batches))
    found = []
    if "float16" in precisions:
        found.append(Job("peers' roofline", "roofline.py", (file,)))
    if 1 in batches:
        modes = {"float16": "def", "float32": "f32"}
        found += [Job(f"LiteRT GPU {p}", "peer_litert_gpu.py", (file, "gpu", modes[p])) for p in precisions]
    found.append(Job("torch CUDA graph", "peer_torch.py", (file, sizes, "graph")))
    if "float16" in precisions:
        found.append(Job("torch.compile", "peer_torch.py", (file, sizes, "compile,fast")))
    return [job for job in found if (folder / job.script).is_file()]


def run(folder: Path, job: Job, timeout: float, python: str = sys.executable) -> tuple[list[Figure], str]:
    """What a process printed until it ended or was ended, and how it failed ("" if it did not)."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        process = subprocess.Popen(
            [python, str(folder / job.script), *job.arguments], stdout=out, stderr=err, start_new_session=True
        )
        try:
            code = process.wait(max(timeout, 0.0))
            failure = "" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            failure = f"took more than {timeout:.0f} s"
            end(process)
        except BaseException:
            end(process)
            raise
        out.seek(0)
        err.seek(0)
        if failure:
            lines = [line.strip() for line in err.read().splitlines() if line.strip()]
            told = [line for line in lines if _ERROR.match(line)] or lines
            failure += f": {told[-1][:200]}" if told else ""
        found = parse(out.read())
        return found, failure or ("" if found else "printed no figures")


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that still runs, and those that it started, such as torch's compilers."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
    else:
        process.kill()
    process.wait()


_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b")
_TORCH = re.compile(r"^TORCH \S+ torch\.(float16|float32) b(\d+) (cudagraph|compile) gpu_ms=([\d.]+)")
_COMPILE = re.compile(r"^TORCH \S+ b(\d+) compile gpu_ms=([\d.]+)")  # of families_peers.py
_HOST = re.compile(r"^\s+host-to-host ms=([\d.]+)")
_LITERT = re.compile(r"^LITERT \S+ gpu (def|f32) .*?\be2e_ms=([\d.]+).*?\bpipelined_ms=([\d.]+)")
_ROOFLINE = re.compile(r"^\S+ b(\d+) GFLOP=.*?\broofline_us=([\d.]+).*?\blaunch_floor_us=([\d.]+)")


def parse(text: str) -> list[Figure]:
    """The figures in the output of any of the scripts; lines of another form are passed over."""
    found: list[Figure] = []
    for line in text.splitlines():
        if match := _TORCH.match(line):
            precision, batch, mode, ms = match.groups()
            name = "torch_graph" if mode == "cudagraph" else "torch_compile"
            found.append(Figure(int(batch), precision, name, float(ms) * 1e-3))
        elif (match := _HOST.match(line)) and found and found[-1].name == "torch_graph":
            found.append(Figure(found[-1].batch, found[-1].precision, "torch_graph_host", float(match[1]) * 1e-3))
        elif match := _COMPILE.match(line):
            found.append(Figure(int(match[1]), "float16", "torch_compile", float(match[2]) * 1e-3))
        elif match := _LITERT.match(line):
            precision = "float32" if match[1] == "f32" else "float16"
            found.append(Figure(1, precision, "litert_host", float(match[2]) * 1e-3))
            found.append(Figure(1, precision, "litert_pipelined", float(match[3]) * 1e-3))
        elif match := _ROOFLINE.match(line):
            limit = max(float(match[2]), float(match[3])) * 1e-6
            found.append(Figure(int(match[1]), "float16", "peers_limit", limit))
    return found
