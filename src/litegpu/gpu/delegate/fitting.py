"""What a device cannot hold: operators whose values are surely too large, and those of a partition that have to go."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from litegpu.delegates.partitioner import borders
from litegpu.delegates.protocol import Partition
from litegpu.errors import LiteGpuError
from litegpu.gpu.graph import bhwc
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower.constants import QUANTIZED
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

_HALVES = (TensorType.FLOAT32, TensorType.FLOAT16)


def largest(subgraph: Subgraph, operator: Operator, half: bool) -> tuple[int, Tensor | None]:
    """The bytes that the largest tensor of an operator takes on the GPU, at least, and the tensor."""
    tensors = [subgraph.tensors[t] for t in dict.fromkeys((*operator.inputs, *operator.outputs)) if t >= 0]
    sizes = [(_bytes(t, half), t) for t in tensors if len(t.shape) <= 4]
    return max(sizes, key=lambda pair: pair[0], default=(0, None))


def _bytes(tensor: Tensor, half: bool) -> int:
    """Of values whose channels are padded to a multiple of four; of constants as they are at least."""
    if tensor.is_constant:
        each = 1 if tensor.type in QUANTIZED else 2 if half and tensor.type in _HALVES else 4
        return math.prod(tensor.shape) * each
    *pixels, channels = bhwc(tensor.shape)
    narrow = half and (tensor.type in _HALVES or tensor.type in QUANTIZED)
    return math.prod(pixels) * -(-channels // 4) * 4 * (2 if narrow else 4)


def together(partition: Partition, half: bool) -> int:
    """More bytes than a partition's values, or its constants, can take together."""
    touched = {t for o in partition.nodes for t in (*o.inputs, *o.outputs) if t >= 0}
    tensors = [partition.subgraph.tensors[t] for t in touched]
    values = sum(_bytes(t, half) for t in tensors if len(t.shape) <= 4 and not t.is_constant)
    return 2 * max(values, sum(4 * math.prod(t.shape) for t in tensors if t.is_constant))


def too_large(size: int, tensor: Tensor, features: Features, device: str) -> str | None:
    """The reason why a tensor of that many bytes does not fit, or None."""
    if size <= features.max_binding_bytes:
        return None
    return (
        f"tensor '{tensor.name}' of shape {list(tensor.shape)} takes {size} bytes, of which {device} binds at most "
        f"{features.max_binding_bytes} at once (max-storage-buffer-binding-size)"
    )


def blamed(error: Exception) -> tuple[int, ...]:
    """The numbers of the operators that an error of prepare() blames, () if it blames none."""
    found = getattr(error, "nodes", ())
    return tuple(found) if isinstance(found, (tuple, list, set, frozenset)) else ()


def culprits(partition: Partition, attempt: Callable[[Partition], None]) -> tuple[int, ...]:
    """The operators that fail by themselves, if not all of them do: then something else is wrong."""
    found = []
    for operator in partition.nodes:
        try:
            attempt(alone(partition, [operator]))
        except (LiteGpuError, ValueError, TypeError, RuntimeError, ArithmeticError, LookupError):
            found.append(operator.index)
    return () if len(found) == len(partition.nodes) else tuple(found)


def alone(partition: Partition, operators: Sequence[Operator]) -> Partition:
    """A part of a partition as a partition."""
    inputs, outputs = borders(partition.subgraph, operators)
    return Partition(partition.model, partition.subgraph, tuple(operators), inputs, outputs, partition.xnnpack)
