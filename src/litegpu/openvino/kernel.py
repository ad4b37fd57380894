"""A partition that OpenVINO has compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu import fork
from litegpu.background import Patient
from litegpu.delegates.protocol import Partition
from litegpu.errors import InvokeError
from litegpu.model.reader import DTYPES
from litegpu.model.types import Tensor
from litegpu.openvino.conversion import places

_ALIGNMENT = 64


class OpenVinoKernel:
    """Inputs and outputs lie in memory of this kernel, which OpenVINO reads and writes without copies of its own."""

    #: Its threads are not in a forked process, be it on a GPU or not.
    uses_gpu = True

    def __init__(self, compiled: Any, partition: Partition, notes: Sequence[str]) -> None:
        """Raises DelegateError if the compiled model has other inputs or outputs than the partition."""
        import openvino

        self.notes = tuple(notes)
        self._patient = Patient()
        inputs = [partition.subgraph.tensors[t] for t in partition.inputs]
        outputs = [partition.subgraph.tensors[t] for t in partition.outputs]
        self._inputs, self._outputs = list(map(_memory, inputs)), list(map(_memory, outputs))
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        for place, array in zip(places(compiled.inputs, inputs), self._inputs, strict=True):
            self._request.set_input_tensor(place, openvino.Tensor(array, shared_memory=True))
        for place, array in zip(places(compiled.outputs, outputs), self._outputs, strict=True):
            self._request.set_output_tensor(place, openvino.Tensor(array, shared_memory=True))
        fork.follow(self)

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self._patient.settle()
        request = self._request
        if request is None:
            raise InvokeError("The partition is closed")
        for own, given in zip(self._inputs, inputs, strict=True):
            if given is not own:
                np.copyto(own, given)
        self._patient.call(lambda: request.infer(share_outputs=True))  # in this thread: another one has to be woken
        return self._outputs

    def input_memory(self, i: int) -> np.ndarray | None:
        return self._inputs[i]

    def abandon(self) -> None:
        """What still runs keeps what it needs alive."""
        self._request = self._compiled = None

    def close(self) -> None:
        self._patient.settle()
        self.abandon()

    def _forked(self) -> None:
        """In the child: freeing would wait for threads that are in the parent alone."""
        for held in (self._request, self._compiled):
            fork.keep(held)


def _memory(tensor: Tensor) -> np.ndarray:
    """Zeros of a tensor's type and shape, placed as vector instructions like it."""
    dtype = np.dtype(DTYPES[tensor.type])
    size = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(tensor.shape)
