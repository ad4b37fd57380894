"""What a device can do, as one frozen record that kernels may query (never who made it)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Features:
    """Defaults are what every device guarantees: the least that W3C's standard for GPUs allows."""

    float16: bool = False  # arithmetic and storage in 16 bits
    subgroups: bool = False
    subgroup_size: int = 0  # if known and fixed, else 0
    linear_subgroups: bool = False  # a subgroup is so many neighbouring threads of the workgroup, counted along x
    timestamps: bool = False
    max_threads: int = 256  # per workgroup
    max_shared_bytes: int = 16384
    max_buffers: int = 8  # storage buffers per kernel
    max_groups: int = 65535  # per dimension of a dispatch
    max_binding_bytes: int = 128 << 20
    max_buffer_bytes: int = 256 << 20  # of the arena, and of the constants
    storage_alignment: int = 256  # bytes, of a binding's offset
    max_rounds: int = 0  # of all loops of a thread together, after which the device ends them; 0: no limit
    compute_units: int = 0  # if known, for choosing tile sizes
    loads_together: int = 0  # of a thread, which are best written side by side, as the compiler unrolls nothing
    cache_bytes: int = (
        0  # of the cache that all compute units share, if known and if kernels can be turned (turning.py)
    )
    byte_products: bool = False  # dot4 takes an instruction, not a dozen
    native: str = ""  # the backend whose own kernels (kernels/native.py) the device runs beside those of the language
    capability: int = 0  # which of their instructions it has: the compute capability times ten, say
