"""What a delegate has prepared, and which of it a tensor belongs to that a buffer is to stand for."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError, TensorError
from litegpu.gpu.delegate.binding import describe
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.model.types import Tensor


@dataclass(frozen=True, eq=False)
class Prepared:
    """A partition that a delegate has prepared, as long as somebody uses it."""

    kernel: weakref.ref[GpuKernel]
    partition: Partition

    @property
    def alive(self) -> bool:
        kernel = self.kernel()
        return kernel is not None and not kernel.closed

    @property
    def at_work(self) -> bool:
        """Whether it is alive, and its interpreter does not rest."""
        kernel = self.kernel()
        return kernel is not None and not kernel.closed and not kernel.resting


def find(prepared: Sequence[Prepared], index: int) -> tuple[GpuKernel, str, int, Tensor]:
    """(kernel, "input" or "output", place, tensor) of the tensor that is to be bound.

    Raises DelegateError if nothing was delegated yet, or it is unclear which model is meant, TensorError if the tensor
    is no input or output of what was."""
    if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
        raise TensorError(f"bind_buffer_to_tensor: the tensor is given by its index, an int, not {index!r}")
    living = [p for p in prepared if p.at_work]
    if not living:
        raise DelegateError(
            f"bind_buffer_to_tensor: tensor {index} cannot be bound before the graph is delegated: make an Interpreter "
            "with this delegate and call its allocate_tensors() first (and again after resize_tensor_input())"
        )
    if len({id(p.partition.model.content) for p in living}) > 1:
        raise DelegateError(
            f"bind_buffer_to_tensor: this delegate serves several interpreters, so tensor {index} could be of any: "
            "make a delegate for each"
        )
    tensors = living[0].partition.subgraph.tensors
    if not 0 <= index < len(tensors):
        raise TensorError(f"tensor {index} does not exist: the model has {len(tensors)}")
    tensor = tensors[index]
    name = describe(tensor)
    owners = [(p, kind) for p in living for kind in ("input", "output") if index in getattr(p.partition, f"{kind}s")]
    if not owners:
        raise TensorError(f"{name} is neither an input nor an output of what the GPU runs, so it cannot be bound")
    graph = living[0].partition.subgraph
    if len(owners) > 1:
        raise TensorError(f"{name} belongs to several partitions or interpreters, so it cannot be bound")
    if owners[0][1] == "input" and index not in graph.inputs:
        raise TensorError(f"{name} is computed on the CPU, so it cannot be bound")
    owner, kind = owners[0]
    inside = {o.index for o in owner.partition.nodes}
    if kind == "input" and any(index in o.inputs and o.index not in inside for o in graph.operators):
        raise TensorError(f"{name} is also read by operators on the CPU, so it cannot be bound")
    kernel = owner.kernel()
    assert kernel is not None
    return kernel, kind, getattr(owner.partition, f"{kind}s").index(index), tensor


def place(prepared: Sequence[Prepared], index: int, kind: str) -> tuple[GpuKernel, int, Tensor]:
    """(kernel, place, tensor) of the tensor as an "input" or "output" of what the GPU runs; raises as find() does, also
    for an input of the model that is an output as well, which the GPU does not give."""
    kernel, found, number, tensor = find(prepared, index)
    if found != kind:
        raise TensorError(
            f"{describe(tensor)} is an input that the model gives out as it is: give arrays in host memory"
        )
    return kernel, number, tensor


def run_on_gpu(kernel: GpuKernel, inputs: Mapping[int, tuple[Tensor, Any]], outputs: Sequence[Tensor]) -> list[Any]:
    """One inference on arrays on the GPU, by place; the outputs, in their order, as arrays of the first one's library
    that belong to the caller. Does not wait: the results are for the stream that the library works on.

    Outputs of types that the GPU does not have (BOOL, INT64) are int32; of INT64 that 32 bits may not hold two for each
    element, the low word first."""
    for i, (tensor, array) in inputs.items():
        if not kernel.rebind("input", i, array):
            kernel.bind("input", i, tensor, array)
    session, example = kernel.array_binder, next(iter(inputs.values()))[1]
    buffers = session.empty_outputs(example, [kernel.bound_shape("output", i, t) for i, t in enumerate(outputs)])
    for i, (tensor, buffer) in enumerate(zip(outputs, buffers, strict=True)):
        if not kernel.rebind("output", i, buffer):
            kernel.bind("output", i, tensor, buffer)
    kernel.run_bound()
    return [session.in_library(example, buffer) for buffer in buffers]
