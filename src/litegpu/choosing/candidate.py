"""The ways to run a model on a machine, and what was measured of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from litegpu import native

CPU = "cpu"


@dataclass(frozen=True)
class Candidate:
    """One way to run a model. `device`: a word of litegpu.load(); `num_threads`: of the CPU, None for the runtime's
    default, which is one; `precision`: of a GPU; `arithmetic`: of its 8-bit tensors."""

    device: str
    precision: str = "float32"
    num_threads: int | None = None
    arithmetic: str = "auto"

    def __str__(self) -> str:
        if self.device == CPU:
            count = self.num_threads or 1
            return f"CPU, {count} thread{'s' if count > 1 else ''}"
        how = "" if self.arithmetic == "auto" else f", {self.arithmetic} arithmetic"
        return f"{self.device}, {self.precision}{how}"

    @property
    def gpu_options(self) -> dict[str, str]:
        """Of the GPU delegate, beside its precision."""
        return {} if self.arithmetic == "auto" else {"arithmetic": self.arithmetic}

    @property
    def is_cpu(self) -> bool:
        return self.device == CPU


@dataclass(frozen=True)
class Measured:
    """What was measured of a candidate; times in seconds, None where that could not be had, and then `problem` or
    `batch_problem` says why.

    latency: median of one call, from NumPy arrays to NumPy arrays; `batch_latency` the same for `batch` rows at once.
    start: from the start of a process, its imports included, to the first result.
    memory: bytes that the process took at most; `device_memory`: on the device, where that tells.
    deviation: relative L2 distance of the outputs from the official CPU runtime's, the largest of all; `accepted`:
    whether that is as little as was asked for.
    name, driver: of the device, as it describes itself."""

    candidate: Candidate
    name: str = ""
    driver: str = ""
    delegated: float = 0.0  # share of the nodes that a delegate took
    latency: float | None = None
    batch: int = 0
    batch_latency: float | None = None
    start: float | None = None
    memory: int | None = None
    device_memory: int | None = None
    deviation: float | None = None
    accepted: bool = True
    problem: str = ""
    batch_problem: str = ""

    def seconds(self, batch: int) -> float | None:
        """Of one call with `batch` rows, if it was measured."""
        if batch == 1:
            return self.latency
        return self.batch_latency if batch == self.batch else None

    def throughput(self, batch: int) -> float | None:
        """Rows per second of calls with `batch` rows, one after another."""
        seconds = self.seconds(batch)
        return None if seconds is None else batch / seconds

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """What as_dict() gave; raises TypeError or KeyError for anything else."""
        known = {field.name for field in fields(cls)} - {"candidate"}
        return cls(Candidate(**values["candidate"]), **{k: v for k, v in values.items() if k in known})


def cpu_candidates() -> tuple[Candidate, ...]:
    """One thread, which is the official default, and as many as there are cores, at most sixteen; and half of them,
    as two threads may share a core."""
    cores = min(native.processors(), 16)
    counts = sorted({1, max(1, cores // 2), cores})
    return tuple(Candidate(CPU, num_threads=None if count == 1 else count) for count in counts)
