"""`litegpu evaluate` from the command line, interrupted by Ctrl-C in the middle and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SECONDS = 120
#: Of each Python of the command: opening that image takes as long as the test.
_DISK = """
import os, sys, time

def wait(event, arguments):
    if event == "open" and arguments[0] == os.environ["NO_ANSWER_FOR"]:
        time.sleep(1000)

sys.addaudithook(wait)
"""


def interrupted_and_resumed(arguments: Sequence[str], image: Path, folder: Path, workers: int) -> Mapping[str, Any]:
    """Run `litegpu evaluate ARGUMENTS` until it waits for `image`, as from a disk that does not answer; press Ctrl-C,
    and run the command again with a disk that does. Gives the report of that, whose `reused` were known before."""
    records = folder / "records-cpu.jsonl"
    command = [*(sys.executable, "-m", "litegpu", "evaluate"), *arguments, f"--workers={workers}", "-o", str(folder)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(_DISK)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": path, "NO_ANSWER_FOR": str(image)},
    )  # fmt: skip
    try:
        known = _lines_when_quiet(process, records)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the decoding processes too
        _, errors = process.communicate(timeout=_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        (folder / "sitecustomize.py").unlink()
    assert process.returncode == 130, errors
    told = [line for line in errors.splitlines() if not line.startswith(("INFO", "WARNING"))]
    assert told == ["litegpu: interrupted; the same command goes on from here"], errors
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert again.returncode == 0, again.stderr
    report: dict[str, Any] = json.loads(again.stdout)
    assert report["reused"] >= known > 0
    assert json.loads((folder / "report.json").read_text())["images"] == report["images"]
    return report


def _lines_when_quiet(process: subprocess.Popen[str], records: Path) -> int:
    """How many records there are once no more come for a while."""
    end, quiet, before = time.monotonic() + _SECONDS, 0, 0
    while quiet < 10:
        assert process.poll() is None and time.monotonic() < end, "it does not wait for the image"
        time.sleep(0.1)
        now = records.read_bytes().count(b"\n") - 1 if records.exists() else 0
        quiet = quiet + 1 if now == before > 0 else 0
        before = now
    return before
