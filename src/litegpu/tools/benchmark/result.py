"""What a benchmark found."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from typing import Any

from litegpu.delegates.report import DelegationReport
from litegpu.model.types import Subgraph
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.timing import Timing


@dataclass(frozen=True)
class Startup:
    """Seconds from the start to the first inference, in parts that add up to `total`: opening the GPU; reading the
    model and making the runtime's interpreter; shapes, division into partitions and the CPU's parts; choosing and
    printing kernels, and recording commands; the driver's compiler; constants to the GPU."""

    total: float
    device: float = 0.0
    load: float = 0.0
    partition: float = 0.0
    build: float = 0.0
    compile: float = 0.0
    upload: float = 0.0

    def parts(self) -> dict[str, float]:
        """Name -> seconds, in the order of the work."""
        return {name: seconds for name, seconds in asdict(self).items() if name != "total"}


@dataclass(frozen=True)
class MemoryUse:
    """MB (2**20 bytes). `init` and `overall`: how much the process's peak grew until it was ready, and until the last
    run; `peak`: the process's largest resident set. `device`: what the sessions allocated on the device, all of it
    from start to end; `device_used`: how much the device's free memory fell, other processes included, None where the
    driver does not tell."""

    init: float
    overall: float
    peak: float
    device: float = 0.0
    device_used: float | None = None


@dataclass(frozen=True)
class Energy:
    """Joules of the whole device while the timed runs went on, idle power included, and the seconds of that. `source`
    is how they were measured."""

    joules: float
    seconds: float
    inferences: int
    source: str

    @property
    def per_inference(self) -> float:
        return self.joules / self.inferences if self.inferences else 0.0

    @property
    def watts(self) -> float:
        return self.joules / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class KernelRow:
    """A kernel on the GPU: its place in the order, the nodes that it computes, and its time in each profiled
    inference, in milliseconds."""

    order: int
    kernel: str
    nodes: tuple[int, ...]
    milliseconds: tuple[float, ...]

    @property
    def average(self) -> float:
        return sum(self.milliseconds) / len(self.milliseconds)

    @property
    def microseconds(self) -> tuple[float, ...]:
        return tuple(1e3 * ms for ms in self.milliseconds)


@dataclass(frozen=True)
class OpRow:
    """What the kernels of some nodes take together, in milliseconds: one node, or several that kernels share. Without
    nodes: what kernels do for no node in particular."""

    ops: tuple[str, ...]
    nodes: tuple[int, ...]
    milliseconds: float
    kernels: int

    @property
    def microseconds(self) -> float:
        return 1e3 * self.milliseconds


@dataclass(frozen=True)
class PartRow:
    """A partition, or the whole model where it is not divided: the host's time in each profiled inference, in
    milliseconds, copies and waiting included. `start`: from the start of the inference to its own, on average."""

    owner: str
    nodes: tuple[int, ...]
    start: float
    milliseconds: tuple[float, ...]

    @property
    def average(self) -> float:
        return sum(self.milliseconds) / len(self.milliseconds)

    @property
    def microseconds(self) -> tuple[float, ...]:
        return tuple(1e3 * ms for ms in self.milliseconds)


@dataclass(frozen=True)
class Profile:
    """`gpu`: what all kernels of an inference take together in milliseconds, measured as a whole, None where the device
    has no means for that. `note` says why kernels are missing, if they are."""

    parts: tuple[PartRow, ...]
    kernels: tuple[KernelRow, ...]
    ops: tuple[OpRow, ...]
    gpu: float | None = None
    note: str = ""

    @property
    def sum_of_averages(self) -> float:
        """Milliseconds of all kernels, the average of each: what tables and charts of them add up to."""
        return sum(row.average for row in self.kernels)

    @property
    def kernel_sum(self) -> float:
        """Milliseconds of all kernels, each timed on its own: the median over the profiled inferences."""
        rounds = [sum(times) for times in zip(*(row.milliseconds for row in self.kernels), strict=True)]
        return statistics.median(rounds) if rounds else 0.0


@dataclass(frozen=True)
class BenchmarkResult:
    """One configuration. `label` names it, `device` is what runs it, `is_software`: it is a program on the CPU,
    `batch` the leading dimension of its inputs if it was changed, `began` when it was begun to be opened, on the clock
    of Timing.ends, `graph` the main subgraph, with the shapes that were run."""

    label: str
    flags: BenchmarkFlags
    device: str
    delegation: DelegationReport
    model_megabytes: float
    startup: Startup
    warmup: Timing
    inference: Timing
    memory: MemoryUse
    energy: Energy | None = None
    energy_note: str = ""
    profile: Profile | None = None
    batch: int | None = None
    input_bytes: int = 0
    began: float = 0.0
    graph: Subgraph | None = field(default=None, compare=False, repr=False)
    is_software: bool = False

    @property
    def init(self) -> int:
        """Microseconds until the model was ready."""
        return int(self.startup.total * 1e6)

    @property
    def first_inference(self) -> int:
        """Microseconds of the first warm-up run, 0 if there was none."""
        return int(self.warmup.first)

    @property
    def throughput(self) -> float:
        """Inferences per second; with a batch, rows of it."""
        return self.inference.throughput * (self.batch or 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        memory, energy = self.memory, self.energy
        return {
            "label": self.label,
            "device": self.device,
            "is_software": self.is_software,
            "batch": self.batch,
            "flags": asdict(self.flags),
            "delegation": self.delegation.as_dict(),
            "model_size_mb": self.model_megabytes,
            "init_us": self.init,
            "first_inference_us": self.first_inference,
            "warmup_us": {"count": self.warmup.count, "avg": self.warmup.average},
            "inference_us": self.inference.as_dict(),
            "throughput_per_s": self.throughput,
            "startup_ms": {name: seconds * 1e3 for name, seconds in self.startup.parts().items()},
            "memory_mb": {
                "init": memory.init,
                "overall": memory.overall,
                "peak": memory.peak,
                "device": memory.device,
                "device_used": memory.device_used,
            },
            "energy": None
            if energy is None
            else {
                "millijoules_per_inference": energy.per_inference * 1e3,
                "watts": energy.watts,
                "source": energy.source,
            },
            "energy_note": self.energy_note,
            "profile": None if self.profile is None else profile_dict(self.profile),
        }


def profile_dict(profile: Profile) -> dict[str, Any]:
    """Plain values, ready for JSON; times are averages in milliseconds."""
    return {
        "gpu_ms": profile.gpu,
        "kernel_sum_ms": profile.kernel_sum,
        "kernel_sum_of_averages_ms": profile.sum_of_averages,
        "note": profile.note,
        "kernels": [
            {"order": k.order, "kernel": k.kernel, "nodes": list(k.nodes), "ms": k.average, "runs_ms": k.milliseconds}
            for k in profile.kernels
        ],
        "ops": [
            {"ops": list(o.ops), "nodes": list(o.nodes), "ms": o.milliseconds, "kernels": o.kernels}
            for o in profile.ops
        ],
        "parts": [
            {"owner": p.owner, "nodes": list(p.nodes), "ms": p.average, "runs_ms": p.milliseconds}
            for p in profile.parts
        ],
    }
