"""What a cached Program depends on, as a key: model, partition, options, device, driver, and litegpu's own code."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from litegpu import version
from litegpu.delegates.protocol import Partition
from litegpu.gpu.backends.abilities import Recompiles
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.backends.in_threads import in_threads
from litegpu.gpu.delegate.options import GpuDelegateOptions

#: Models are hashed in pieces of so many bytes, side by side.
_PIECE = 4 << 20
#: The parts of the package whose code decides what a Program is.
_CODE = ("delegates", "gpu", "model")


def fingerprint(content: bytes | memoryview) -> str:
    """A hash of a model's bytes: SHA-256 of the SHA-256 of each 4 MiB."""
    view = memoryview(content).cast("B")
    pieces = [view[i : i + _PIECE] for i in range(0, len(view), _PIECE)]
    if len(pieces) > 1:
        digests = in_threads(_digest, pieces, min(os.cpu_count() or 1, 8))
    else:
        digests = [_digest(piece) for piece in pieces]
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]


def describe(
    partition: Partition,
    device: Device,
    options: GpuDelegateOptions,
    half: bool,
    ranges: Mapping[int, tuple[float, float]],
    token: str,
) -> dict[str, Any] | None:
    """What the entry of a partition is of: `key`, which differs as soon as anything differs that the program depends
    on, and what people want to know. None for partitions with operators that the user registered: their code is not
    ours to know."""
    customs = [o.name for o in partition.nodes if o.is_custom]
    if customs:
        from litegpu.gpu.custom.registration import registered  # which brings the kernel language

        if any(registered(name) is not None for name in customs):
            return None
    tensors = partition.subgraph.tensors
    touched = sorted({t for o in partition.nodes for t in (*o.inputs, *o.outputs) if t >= 0})
    parts = (
        version.__version__,
        code_stamp(),
        token,
        len(partition.model.content),
        partition.subgraph.index,
        [(o.index, o.name, o.inputs, o.outputs) for o in partition.nodes],
        [(i, tensors[i].type.name, tensors[i].shape, tensors[i].is_constant) for i in touched],
        (partition.inputs, partition.outputs, partition.xnnpack),
        (half, options.precision == "auto", options.quantization, options.tuning_level, sorted(ranges.items())),
        options.arithmetic,
        (device.target, device.info.name, device.info.backend, device.info.driver, device.features),
        device.way if isinstance(device, Recompiles) else None,
    )
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:40]
    precision = "float32" if not half else "auto" if options.precision == "auto" else "float16"
    return {
        "key": key,
        "model": token,
        "file": os.path.basename(partition.model.path or ""),
        "nodes": len(partition.nodes),
        "precision": precision,
        "device": device.info.name,
        "backend": device.info.backend,
        "driver": device.info.driver,
        "litegpu": version.__version__,
    }


@functools.cache
def code_stamp() -> str:
    """Names, sizes and times of the files that programs come from: another installation has other programs, even under
    the same version."""
    root = Path(version.__file__).parent
    rows = []
    for part in _CODE:
        for folder, _, names in os.walk(root / part):
            for name in names:
                if not name.endswith(".pyc"):
                    status = os.stat(os.path.join(folder, name))
                    rows.append((os.path.relpath(os.path.join(folder, name), root), status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
