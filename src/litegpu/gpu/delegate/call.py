"""Calls of a model with arrays in a GPU's memory: what is found once and used for every call with the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.gpu.delegate import prepared
from litegpu.gpu.delegate.array_place import is_on_gpu
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.model.types import Tensor

if TYPE_CHECKING:
    from litegpu.gpu.delegate.delegate import GpuDelegate

_Shapes = dict[str, tuple[bool, tuple[int, ...]]]


@dataclass(frozen=True, eq=False)
class GpuCall:
    """The way of a model's arguments into the kernel that runs all of it. `shapes`: by name, whether the argument is on
    the GPU, and its shape. `converted` makes an argument in host memory one of the input's type."""

    kernel: GpuKernel
    shapes: _Shapes
    inputs: Mapping[str, tuple[int, Tensor]]
    outputs: tuple[Tensor, ...]
    order: tuple[int, ...]  # of the kernel's outputs, for the model's
    converted: Callable[[str, Any], np.ndarray]
    places: tuple[int, ...]  # of the arguments, for the kernel's inputs

    def quick(self, values: Sequence[Any]) -> list[Any] | None:
        """run(), but quick, for inputs in their order that are arrays like those of the last call; None, with nothing
        done, where that does not apply."""
        if self.kernel.closed or len(values) != len(self.places):
            return None
        found = self.kernel.call_tensors([values[i] for i in self.places])
        return None if found is None else [found[i] for i in self.order]

    def takes(self, values: Mapping[str, Any]) -> bool:
        """Whether the values are of the same shapes, in the same kinds of memory."""
        if self.kernel.closed:
            return False
        for name, (on_gpu, shape) in self.shapes.items():
            value = values[name]
            if is_on_gpu(value) != on_gpu or (tuple(value.shape) if on_gpu else np.shape(value)) != shape:
                return False
        return True

    def run(self, values: Mapping[str, Any]) -> list[Any]:
        """One inference; the outputs in the model's order, as arrays of the library of the first input on the GPU."""
        bound = {}
        for name, (place, tensor) in self.inputs.items():
            if self.shapes[name][0]:
                bound[place] = tensor, values[name]
            else:
                self.kernel.unbind("input", place)
                self.kernel.write(place, self.converted(name, values[name]))
        arrays = prepared.run_on_gpu(self.kernel, bound, self.outputs)
        if len(bound) == len(self.inputs):
            shapes = [tensor.shape for tensor in self.outputs]
            self.kernel.array_binder.expect_tensors([bound[i][1] for i in range(len(bound))], shapes)
        return [arrays[i] for i in self.order]

    def unbind(self) -> None:
        """Go back to host memory."""
        if not self.kernel.closed:
            for kind, place in list(self.kernel.bound):
                self.kernel.unbind(kind, place)


def prepare(
    delegate: GpuDelegate,
    values: Mapping[str, Any],
    inputs: Mapping[str, int],
    outputs: Mapping[str, int],
    converted: Callable[[str, Any], np.ndarray],
) -> GpuCall:
    """A GpuCall for values like these. `inputs` and `outputs`: the tensors' indices by name. The delegate has prepared
    one partition, which holds them all."""
    shapes: _Shapes = {}
    for name, value in values.items():
        on_gpu = is_on_gpu(value)
        shapes[name] = on_gpu, tuple(value.shape) if on_gpu else np.shape(value)
    ways = {}
    for name, index in inputs.items():
        _, place, tensor = prepared.place(delegate.prepared, index, "input")
        ways[name] = place, tensor
    found = [prepared.place(delegate.prepared, index, "output") for index in outputs.values()]
    kernel, order = found[0][0], tuple(place for _, place, _ in found)
    tensors = {place: tensor for _, place, tensor in found}
    numbers = {place: number for number, (place, _) in enumerate(ways.values())}
    places = tuple(numbers[place] for place in sorted(numbers))
    return GpuCall(kernel, shapes, ways, tuple(tensors[i] for i in sorted(tensors)), order, converted, places)
