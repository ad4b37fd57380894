"""Calls with PyTorch tensors like those of the last call: checked and launched with as little of Python as can be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from litegpu.gpu.backends.check import NUMPY
from litegpu.gpu.backends.cuda.array import torch_stream, torch_type
from litegpu.gpu.backends.cuda.binding import Bindings
from litegpu.gpu.backends.cuda.graph import CudaGraph
from litegpu.gpu.program import Program

#: Pairs of addresses whose graphs are remembered.
_REMEMBERED = 16


class TensorCalls:
    """Of one session, all of whose ports are bound to plain tensors of PyTorch."""

    def __init__(self, program: Program, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]], index: int) -> None:
        """`inputs` as they are bound; `shapes` of the outputs; `index` of the device."""
        torch = sys.modules["torch"]
        self._kind, self._empty = torch.Tensor, torch.empty
        self._index, self._device = index, inputs[0].device
        self._inputs = [_Expected(tensor.dtype, tensor.shape) for tensor in inputs]
        kinds = (torch_type(NUMPY[port.dtype]) for port in program.outputs)
        self._outputs = list(zip(shapes, kinds, strict=True))
        self._stream = torch_stream(index)
        self._graphs: dict[tuple[int, ...], CudaGraph] = {}
        self._kept: tuple[Any, ...] = ()

    @classmethod
    def of(
        cls, program: Program, bindings: Bindings, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]], index: int
    ) -> TensorCalls | None:
        """For inputs that were just bound, by their places; None if that is not what they are."""
        torch = sys.modules.get("torch")
        if torch is None or not bindings.complete or not all(type(tensor) is torch.Tensor for tensor in inputs):
            return None
        both = (*bindings.inputs.values(), *bindings.outputs.values())
        if any(bound.adapter is not None or type(bound.array.owner) is not torch.Tensor for bound in both):
            return None
        return cls(program, inputs, shapes, index)

    def prepared(
        self, tensors: Sequence[Any], known: Callable[[tuple[int, ...], int], CudaGraph | None]
    ) -> tuple[CudaGraph, int, list[Any]] | None:
        """The graph for these inputs and new outputs, the stream to launch it on, and the outputs; None if the tensors
        are others, or there is no such graph. `known`: that of so many inputs' and the outputs' addresses."""
        addresses = []
        for tensor, (dtype, shape) in zip(tensors, self._inputs, strict=True):
            if (
                type(tensor) is not self._kind
                or tensor.dtype is not dtype
                or tensor.shape != shape
                or tensor.get_device() != self._index
                or not tensor.is_contiguous()
                or tensor.is_neg()
            ):
                return None
            addresses.append(tensor.data_ptr())
        found = [self._empty(shape, dtype=kind, device=self._device) for shape, kind in self._outputs]
        addresses += [tensor.data_ptr() for tensor in found]
        key = tuple(addresses)
        graph = self._graphs.get(key)
        if graph is None or graph.executable is None:
            if len(self._graphs) >= _REMEMBERED:
                self._graphs.clear()
            graph = known(key, len(tensors))
            if graph is None:
                return None
            self._graphs[key] = graph
        self._kept = (*tensors, *found)  # until the next one
        return graph, self._stream(), found


class _Expected(NamedTuple):
    dtype: Any
    shape: Any
