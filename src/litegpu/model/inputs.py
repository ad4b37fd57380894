"""Inputs of the graph to which the file gives a value: constants until somebody sets them."""

from __future__ import annotations

from dataclasses import replace

from litegpu.model.serialize import write_model
from litegpu.model.types import Model


def is_given(model: Model, tensor: int) -> bool:
    """Whether the tensor is an input of the main graph and has a value in the file."""
    tensors = model.main.tensors
    return 0 <= tensor < len(tensors) and tensor in model.main.inputs and tensors[tensor].is_constant


def without_value(model: Model, tensor: int) -> bytes:
    """The model whose input `tensor` has no value of its own, as a file."""
    tensors = list(model.main.tensors)
    tensors[tensor] = replace(tensors[tensor], data=None, sparsity=None)
    main = replace(model.main, tensors=tuple(tensors))
    return bytes(write_model(model.with_main(main)))
