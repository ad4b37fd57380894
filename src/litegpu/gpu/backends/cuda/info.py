"""What is known of CUDA devices before one is opened, and what kernels may ask of them."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.gpu.lang.features import Features

#: What every device has without asking; a kernel may ask for more with KernelCode.shared_bytes.
PLAIN_SHARED_BYTES = 48 << 10
_MAX_BUFFERS = 64  # of 512 pointers that fit in a kernel's 4 KiB of parameters
_MAX_GROUPS = (1 << 31) - 1  # along x; what asks for more along y or z than 65535 does not get past the language


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


def features_of(capability: int, memory: int, *, threads: int, units: int, cache_bytes: int) -> Features:
    """Of a device with so many bytes of memory and of second-level cache, `threads` in a workgroup at most, and `units`
    multiprocessors."""
    return Features(
        float16=True,
        subgroups=True,
        subgroup_size=32,
        linear_subgroups=True,
        timestamps=True,
        max_threads=threads,
        max_shared_bytes=PLAIN_SHARED_BYTES,
        max_buffers=_MAX_BUFFERS,
        max_groups=_MAX_GROUPS,
        max_binding_bytes=memory,
        max_buffer_bytes=memory,
        storage_alignment=256,
        compute_units=units,
        cache_bytes=cache_bytes,
        byte_products=True,
        native="cuda",
        capability=capability,
    )
