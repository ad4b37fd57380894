"""What litegpu uses of newer drivers and devices: what each thing needs, and what happens without it."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.gpu.backends.cuda.driver_library import DRIVERS
from litegpu.gpu.backends.cuda.info import CudaVersions

#: The oldest devices: their tensor cores multiply halves and bytes.
LEAST_CAPABILITY = 75


@dataclass(frozen=True)
class Requirement:
    """Of one ability. `driver`, `nvrtc`: versions of CUDA. `only`: later devices than `capability` lack it."""

    ability: str
    without: str
    driver: tuple[int, int] = (12, 0)
    nvrtc: tuple[int, int] = (12, 0)
    capability: int = LEAST_CAPABILITY
    only: bool = False

    def is_met(self, versions: CudaVersions, capability: int) -> bool:
        return not self.missing(versions, capability)

    def missing(self, versions: CudaVersions, capability: int) -> str:
        """What it needs that is not there; empty if nothing."""
        if capability < self.capability or (self.only and capability != self.capability):
            later = ", and no later one" if self.only else " or later"
            return f"compute capability {self.capability / 10}{later}"
        if _numbers(versions.driver) < self.driver:
            return f"driver {DRIVERS[self.driver]} or later"
        if _numbers(versions.nvrtc) < self.nvrtc:
            return f"NVRTC {'.'.join(map(str, self.nvrtc))} or later"
        return ""


#: Captured in a graph, which is how it is used here.
PROGRAMMATIC = Requirement(
    "kernels that start before those in front of them have ended (programmatic dependent launch)",
    "each waits for the one before it",
    driver=(12, 3),
    capability=90,
)
CONDITIONAL = Requirement(
    "loops and branches without the host (conditional graph nodes)",
    "the host reads each condition",
    driver=(12, 3),
    nvrtc=(12, 3),
)
ASYNCHRONOUS = Requirement(
    "tensor cores fed by asynchronous copies",
    "tensor cores fed through registers",
    capability=80,
)
WARPGROUPS = Requirement(
    "products of four warps, clusters and bulk copies", "products of one warp", capability=90, only=True
)
ALL = (PROGRAMMATIC, CONDITIONAL, ASYNCHRONOUS, WARPGROUPS)


def summary(versions: CudaVersions, capability: int) -> list[str]:
    """A line for each ability, for people."""
    lines = []
    for one in ALL:
        missing = one.missing(versions, capability)
        lines.append(f"{one.ability}: {f'no, needs {missing}; {one.without}' if missing else 'yes'}")
    return lines


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))
