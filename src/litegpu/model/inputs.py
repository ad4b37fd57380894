"""Inputs of the graph to which the file gives a value: constants until somebody sets them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from litegpu.errors import TensorError
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Tensor


def is_given(model: Model, tensor: int) -> bool:
    """Whether the tensor is an input of the main graph and has a value in the file."""
    tensors = model.main.tensors
    return 0 <= tensor < len(tensors) and tensor in model.main.inputs and tensors[tensor].is_constant


def open_inputs(model: Model) -> tuple[Tensor, ...]:
    """The inputs of the main graph of which the file leaves a size open: the caller decides it."""
    return tuple(t for t in (model.main.tensors[i] for i in model.main.inputs) if -1 in t.shape_signature)


def with_input_shapes(model: Model, shapes: Mapping[int, Sequence[int]]) -> bytes:
    """The model, as a file, whose main graph's inputs have these shapes, by their places; what the file leaves open
    stays open. The tensors behind them are as they were: who runs the model finds their shapes. Raises TensorError for
    a shape that an input cannot have."""
    tensors = list(model.main.tensors)
    for place, shape in shapes.items():
        tensor = tensors[model.main.inputs[place]]
        if len(shape) != len(tensor.shape) or min(shape, default=1) < 1:
            raise TensorError(f"Input '{tensor.name}' has shape {list(tensor.shape)}; it cannot become {list(shape)}")
        signature = tuple(-1 if n == -1 else s for n, s in zip(tensor.shape_signature, shape, strict=True))
        tensors[tensor.index] = replace(tensor, shape=tuple(shape), shape_signature=signature)
    return bytes(write_model(model.with_main(replace(model.main, tensors=tuple(tensors)))))


def without_value(model: Model, tensor: int) -> bytes:
    """The model whose input `tensor` has no value of its own, as a file."""
    tensors = list(model.main.tensors)
    tensors[tensor] = replace(tensors[tensor], data=None, sparsity=None)
    main = replace(model.main, tensors=tuple(tensors))
    return bytes(write_model(model.with_main(main)))
