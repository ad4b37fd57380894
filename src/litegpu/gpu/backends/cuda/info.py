"""What is known of CUDA devices before one is opened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CudaDeviceInfo:
    """A device that the driver shows, in the order that CUDA_VISIBLE_DEVICES gives."""

    index: int
    name: str
    uuid: str  # "GPU-" and hexadecimal digits, as nvidia-smi -L prints it
    capability: int  # 10 * major + minor
    memory: int  # bytes

    def __str__(self) -> str:
        return f"{self.name} (cuda:{self.index}, compute capability {self.capability / 10})"


@dataclass(frozen=True)
class CudaVersions:
    """ "13.0", say: the newest CUDA that the driver supports, and the versions of NVRTC and of NVIDIA's bindings."""

    driver: str
    nvrtc: str
    bindings: str
