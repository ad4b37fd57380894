"""torch.compile beside families.py: processes that compile side by side, and are measured one by one."""

from __future__ import annotations

import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import families_peers
import peers


class Peers:
    """Of the networks that have one, name -> batches. They compile from the start on; use as a context."""

    def __init__(self, python: str, batches: Mapping[str, Sequence[int]], timeout: float) -> None:
        """`timeout`: seconds for all of them to compile."""
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._complaints: dict[str, IO[str]] = {}
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
        for name, wanted in batches.items():
            if name in families_peers.NETWORKS:
                script = str(Path(families_peers.__file__))
                self._complaints[name] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (see _end)
                self._running[name] = subprocess.Popen(
                    [python, script, name, "--batches", ",".join(map(str, wanted)), "--wait"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._complaints[name],
                    text=True,
                    start_new_session=True,
                    env=environment,
                )

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self._end(name)

    def compiled(self) -> None:
        """Waits until all have compiled; those that have not by the deadline are ended, and told of."""
        for name, process in list(self._running.items()):
            if not _ready(process, self._deadline):
                print(f"torch.compile {name}: {self._why(name)}", flush=True)
                self._end(name)

    def measure(self, add: Callable[[str, peers.Figure], None]) -> None:
        """Calls add(name, figure) for each that has compiled."""
        for name, process in list(self._running.items()):
            try:
                text, _ = process.communicate("go\n", timeout=120)
            except subprocess.TimeoutExpired:
                text = ""
                print(f"torch.compile {name}: took more than 120 s to be measured", flush=True)
            for figure in peers.parse(text):
                add(name, figure)
                print(f"torch.compile {name} b{figure.batch}: {1e3 * figure.seconds:.4f} ms", flush=True)
            self._end(name)

    def _why(self, name: str) -> str:
        """Why it has not compiled: the last that it complained of if it has ended."""
        try:
            self._running[name].wait(0.2)
        except subprocess.TimeoutExpired:
            return f"did not compile within {self._timeout:.0f} s"
        self._complaints[name].seek(0)
        said = [text.strip() for text in self._complaints[name] if text.strip()]
        return f"did not compile: {said[-1][:200] if said else 'it ended without a word'}"

    def _end(self, name: str) -> None:
        self._complaints.pop(name).close()
        process: subprocess.Popen[Any] = self._running.pop(name)
        peers.end(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _ready(process: subprocess.Popen[str], deadline: float) -> bool:
    """Whether it says that it is ready before the deadline (of time.monotonic())."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            text = process.stdout.readline()
            if not text or text == "READY\n":
                return bool(text)
    return False
